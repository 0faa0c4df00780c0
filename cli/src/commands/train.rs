//! `gristmill train`: hands over to `gristmill-train`, which is linked with libtorch.

use std::process::ExitCode;

use crate::{args::TrainArgs, config::Pipeline, training};

/// Replaces this process by `gristmill-train` with the same arguments.
pub fn exec(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    // A mistake in the configuration is told even where libtorch is missing.
    Pipeline::read(&args.config, &args.set)?.train(&args.config)?;
    training::exec()
}
