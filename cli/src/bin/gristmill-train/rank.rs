//! Inside `gristmill-train`: one rank, or the launcher of a machine's ranks.

use std::{process::ExitCode, time::Duration};

use clap::Parser as _;
use gristmill_cli::{
    args::{Cli, Command, TrainArgs},
    config,
    failure::{self, Failure, Sorted},
    output,
    session::Session,
};
use gristmill_train::{Launch, Rendezvous, TrainConfig, TrainOutcome, launch, train_at};

use crate::show;

type Pipeline = config::Pipeline<TrainConfig>;

/// `gristmill-train train CONFIG …`
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    gristmill_cli::start_logging();
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
    pipeline.train(&args.config)?.check_values().map_err(sorted)?;
    if args.check {
        return Ok(());
    }
    let rendezvous = Rendezvous::from_env()
        .map_err(|e| Failure::usage(e.to_string(), "unset RANK and its like, or set all that torchrun sets"))?;
    let nproc = args.nproc.or(pipeline.launch.nproc).unwrap_or(1);
    let mut common = cli.common;
    // One rank's progress is enough.
    common.quiet |= rendezvous.as_ref().is_some_and(|r| r.world.rank != 0);
    let session = Session::start(common)?;
    if rendezvous.is_none() && nproc > 1 {
        let timeout = Duration::from_secs(pipeline.train(&args.config)?.timeout_s);
        let arguments = std::env::args_os().skip(1).collect();
        let launched = Launch::this_program(arguments, usize::from(nproc), timeout).map_err(sorted)?;
        return launch(&launched, &session.control.stop).map_err(sorted);
    }
    rank(&session, &args, &pipeline, rendezvous)
}

fn sorted(error: gristmill_train::Error) -> anyhow::Error {
    Sorted { kind: error.kind(), error: Box::new(error) }.into()
}

fn rank(
    session: &Session,
    args: &TrainArgs,
    pipeline: &Pipeline,
    rendezvous: Option<Rendezvous>,
) -> anyhow::Result<()> {
    let config = pipeline.train(&args.config)?;
    let places = gristmill_train::Places {
        shards: session.open_with(&config.data.shards, &pipeline.storage_of(&config.data.shards))?,
        run: session.open_with(&config.checkpoint.url, &pipeline.storage_of(&config.checkpoint.url))?,
    };
    let first = rendezvous.as_ref().is_none_or(|r| r.world.rank == 0);
    let trained = train_at(config, places, rendezvous, &session.control, session.handle()).map_err(sorted)?;
    let (report, already_current) = match trained {
        TrainOutcome::Finished(report) => (report, false),
        TrainOutcome::AlreadyCurrent(report) => (report, true),
    };
    if !first {
        return Ok(());
    }
    let text = show::text(&report, already_current);
    if session.common.json || args.report_json {
        output::json(&serde_json::json!({ "already_current": already_current, "report": report, "text": text }))
    } else {
        output::result(&text)
    }
}
