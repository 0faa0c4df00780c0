//! `gristmill train`: hands over to `gristmill-train`, which is linked with libtorch.

use std::process::ExitCode;

use crate::{args::TrainArgs, config::Pipeline, training};

/// Replaces this process by `gristmill-train` with the same arguments.
pub fn exec(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    // What can be told without libtorch is told where it is missing too.
    let pipeline: Pipeline = Pipeline::read(&args.config, &args.set)?;
    pipeline.train(&args.config)?;
    training::exec()
}
