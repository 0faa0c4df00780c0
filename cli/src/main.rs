//! `gristmill`: see `gristmill --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    gristmill_cli::main()
}
