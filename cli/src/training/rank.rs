//! Inside `gristmill-train`: one rank, or the launcher of a machine's ranks.

use std::{process::ExitCode, time::Duration};

use clap::Parser as _;
use gristmill_train::{Launch, Rendezvous, TrainOutcome, launch, train_at};

use crate::{
    args::{Cli, Command, TrainArgs},
    config::Pipeline,
    failure::{self, Failure},
    output,
    session::Session,
    training::show::{self, Outcome},
};

/// `gristmill-train train CONFIG …`
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    crate::commands::start_logging();
    let json = cli.common.json;
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, json),
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let Command::Train(args) = cli.command else {
        return Err(Failure::usage("gristmill-train only trains", "use `gristmill` for everything else"));
    };
    let pipeline = Pipeline::read(&args.config, &args.set)?;
    let rendezvous = Rendezvous::from_env()?;
    let nproc = args.nproc.or(pipeline.launch.nproc).unwrap_or(1);
    let mut common = cli.common;
    // One rank's progress is enough.
    common.quiet |= rendezvous.as_ref().is_some_and(|r| r.world.rank != 0);
    let session = Session::start(common)?;
    if rendezvous.is_none() && nproc > 1 {
        let timeout = Duration::from_secs(pipeline.train(&args.config)?.timeout_s);
        let launched = Launch::this_program(std::env::args_os().skip(1).collect(), usize::from(nproc), timeout)?;
        return Ok(launch(&launched, &session.control.stop)?);
    }
    rank(&session, &args, &pipeline, rendezvous)
}

fn rank(session: &Session, args: &TrainArgs, pipeline: &Pipeline, rendezvous: Option<Rendezvous>) -> anyhow::Result<()> {
    let config = pipeline.train(&args.config)?;
    let places = gristmill_train::Places {
        shards: session.open_with(&config.data.shards, &pipeline.storage_of(&config.data.shards))?,
        run: session.open_with(&config.checkpoint.url, &pipeline.storage_of(&config.checkpoint.url))?,
    };
    let first = rendezvous.as_ref().is_none_or(|r| r.world.rank == 0);
    let outcome = match train_at(config, places, rendezvous, &session.control, session.handle())? {
        TrainOutcome::Finished(report) => Outcome { already_current: false, report },
        TrainOutcome::AlreadyCurrent(report) => Outcome { already_current: true, report },
    };
    if !first {
        return Ok(());
    }
    if session.common.json || args.report_json { output::json(&outcome) } else { output::result(&show::text(&outcome)) }
}
