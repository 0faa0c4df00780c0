//! `gristmill-train`: the part of `gristmill train` that needs libtorch. `gristmill train` starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    gristmill_cli::train_main()
}
