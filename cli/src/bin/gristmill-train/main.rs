//! `gristmill-train`: the part of `gristmill train` that needs libtorch. `gristmill train` and `gristmill run` start it.
//!
//! Nothing of `gristmill-train`'s libraries is named in the crate `gristmill_cli`: one name is enough for the linker to
//! tie libtorch to every command, `doctor` included, which has to run where libtorch is missing.

mod rank;
mod show;

use std::process::ExitCode;

fn main() -> ExitCode {
    rank::main()
}
