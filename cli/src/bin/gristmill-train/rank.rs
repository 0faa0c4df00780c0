//! Inside `gristmill-train`: one rank, or the launcher of a machine's ranks.

use std::{process::ExitCode, time::Duration};

use gristmill_cli::{
    args::{Cli, Command, TrainArgs},
    config,
    failure::{self, Failure, Reported, Sorted},
    output,
    session::Session,
};
use gristmill_train::{Launch, Places, Rendezvous, TrainConfig, TrainOutcome, check_at, launch, must_report, train_at};

use crate::show;

type Pipeline = config::Pipeline<TrainConfig>;

/// `gristmill-train train CONFIG …`
pub fn main() -> ExitCode {
    let cli = match gristmill_cli::parse() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    gristmill_cli::start_logging();
    let json = cli.common.json;
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if must_report(of_training(&error)) => failure::report(&error, json),
        // Another rank says what went wrong.
        Err(error) => ExitCode::from(failure::kind(&error).exit_code()),
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let Command::Train(args) = cli.command else {
        return Err(Failure::usage("gristmill-train only trains", "use `gristmill` for everything else"));
    };
    let rendezvous = Rendezvous::from_env();
    let mut common = cli.common;
    // One rank's progress is enough.
    common.quiet |= matches!(&rendezvous, Ok(Some(r)) if r.world.rank != 0);
    // First of all: from here on a signal is a request to stop.
    let session = Session::start(common)?;
    let pipeline = Pipeline::read(&args.config, &args.set)?;
    pipeline.train(&args.config)?.check_values().map_err(sorted)?;
    if args.check {
        return Ok(());
    }
    let rendezvous = rendezvous
        .map_err(|e| Failure::usage(e.to_string(), "unset RANK and its like, or set all that torchrun sets"))?;
    let nproc = args.nproc.or(pipeline.launch.nproc.map(u16::from)).unwrap_or(1);
    let config = pipeline.train(&args.config)?;
    let places = Places {
        shards: session.open_with(&config.data.shards, &pipeline.storage_of(&config.data.shards))?,
        run: session.open_with(&config.checkpoint.url, &pipeline.storage_of(&config.checkpoint.url))?,
    };
    if rendezvous.is_none() && nproc > 1 {
        check_at(config, places.shards, usize::from(nproc), session.handle()).map_err(sorted)?;
        session.control.stop.check()?;
        let timeout = Duration::from_secs(config.timeout_s);
        let arguments = std::env::args_os().skip(1).collect();
        let launched = Launch::this_program(arguments, usize::from(nproc), timeout).map_err(sorted)?;
        return launch(&launched, &session.control.stop).map_err(sorted);
    }
    rank(&session, &args, config, places, rendezvous)
}

fn sorted(error: gristmill_train::Error) -> anyhow::Error {
    if let gristmill_train::Error::AlreadyReported { kind, .. } = &error {
        return Reported(kind.exit_code()).into();
    }
    Sorted { kind: error.kind(), error: Box::new(error) }.into()
}

/// The error of training in `error`, if it is one.
fn of_training(error: &anyhow::Error) -> Option<&gristmill_train::Error> {
    error.downcast_ref::<Sorted>().and_then(|sorted| sorted.error.downcast_ref())
}

fn rank(
    session: &Session,
    args: &TrainArgs,
    config: &TrainConfig,
    places: Places,
    rendezvous: Option<Rendezvous>,
) -> anyhow::Result<()> {
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
