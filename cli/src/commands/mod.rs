//! One file a command: arguments to a job, its outcome to output.

mod doctor;
mod ingest;
mod inspect;
mod load;
mod plan;
mod run;
mod shard;
mod train;
mod verify;

use std::{io::IsTerminal as _, process::ExitCode};

use clap::{Parser as _, error::ErrorKind as ClapError};
use gristmill_shard::ErrorKind;
use tracing_subscriber::EnvFilter;

use crate::{
    args::{Cli, Command},
    failure::{self, Failure},
    session::Session,
};

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    start_logging();
    let json = cli.common.json;
    match dispatch(cli) {
        Ok(status) => status,
        Err(error) => failure::report(&error, json),
    }
}

/// The arguments of this process.
///
/// # Errors
/// The status to end with, once help, version or what is wrong has been printed.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        let asked_for = matches!(error.kind(), ClapError::DisplayHelp | ClapError::DisplayVersion);
        if !asked_for && std::env::args_os().any(|a| a == "--json") {
            let text = error.render().to_string();
            let (what, help) = text.trim_end().split_once("\n\n").unwrap_or((text.trim_end(), "see gristmill --help"));
            return failure::report(&Failure::usage(what.trim_start_matches("error: "), help.trim()), true);
        }
        // A reader that has gone is no failure; when stderr has gone there is nobody to tell.
        let _ = error.print();
        if asked_for { ExitCode::SUCCESS } else { ExitCode::from(ErrorKind::Usage.exit_code()) }
    })
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    // It replaces this process: nothing may be running here yet.
    if let Command::Train(args) = &cli.command {
        return train::exec(args);
    }
    let session = Session::start(cli.common)?;
    match cli.command {
        Command::Ingest(args) => ingest::run(&session, &args),
        Command::Shard(args) => shard::run(&session, &args),
        Command::Inspect(args) => inspect::run(&session, &args),
        Command::Verify(args) => verify::run(&session, &args),
        Command::Plan(args) => plan::run(&session, &args),
        Command::Load(args) => load::run(&session, &args),
        Command::Run(args) => run::run(&session, &args),
        Command::Doctor => doctor::run(&session),
        Command::Train(args) => train::exec(&args),
    }
}

/// Warnings of the libraries go to stderr; `GRISTMILL_LOG=debug` shows more.
pub fn start_logging() {
    let filter = EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::WARN.into())
        .with_env_var(crate::config::LOG_VARIABLE)
        .from_env_lossy();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time();
    // A second call (in tests) keeps the first subscriber.
    let _ = subscriber.try_init();
}
