//! `gristmill run`: ingest, shard, train, each skipped when its output is current, and the report.

use std::{ffi::OsString, process::ExitCode};

use gristmill_ingest::{IngestOutcome, ingest};
use gristmill_shard::job::{ShardOutcome, shard};

use anyhow::Context as _;

use crate::{
    args::RunArgs, commands, config::Pipeline, failure::Failure, output, session::Session, training, training::Outcome,
};

pub fn run(session: &Session, args: &RunArgs) -> anyhow::Result<ExitCode> {
    if std::env::var_os("RANK").is_some() {
        return Err(Failure::usage(
            "RANK is set, but `run` starts its own ranks",
            "under torchrun or SLURM use `gristmill train`, after `gristmill run --set` or `shard` on one machine",
        ));
    }
    let pipeline: Pipeline = Pipeline::read(&args.config, &args.set)?;
    if pipeline.ingest.is_none() && pipeline.shard.is_none() && pipeline.train.is_none() {
        return Err(Failure::usage(
            format!("{} has none of [ingest], [shard], [train]", args.config.display()),
            "examples/flights.toml shows a whole configuration",
        ));
    }
    if pipeline.train.is_some() {
        // Minutes of work should not end in a message that could have come first.
        training::spawn(&arguments(session, args, "--check"), &session.control.stop)?;
    }
    let ingested = run_ingest(session, &pipeline)?;
    let sharded = run_shard(session, &pipeline)?;
    session.control.stop.check()?;
    let trained = run_train(session, &pipeline, args)?;
    if session.common.json {
        output::json(&serde_json::json!({
            "ingest": ingested.as_ref().map(|o| serde_json::json!({ "already_current": o.already_current, "report": o.report })),
            "shard": sharded.as_ref().map(|o| serde_json::json!({ "already_current": o.already_current, "balance": o.manifest.balance })),
            "train": trained,
        }))?;
    } else {
        output::result(&text(&pipeline, ingested.as_ref(), sharded.as_ref(), trained.as_ref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_ingest(session: &Session, pipeline: &Pipeline) -> anyhow::Result<Option<IngestOutcome>> {
    let Some(section) = &pipeline.ingest else { return Ok(None) };
    let out = session.open_with(&section.out, &pipeline.storage_of(&section.out))?;
    let options = section.options()?;
    Ok(Some(session.block_on(ingest(&options, &out, &session.control))?))
}

fn run_shard(session: &Session, pipeline: &Pipeline) -> anyhow::Result<Option<ShardOutcome>> {
    let Some(section) = &pipeline.shard else { return Ok(None) };
    let dataset = section
        .dataset
        .as_ref()
        .or(pipeline.ingest.as_ref().map(|i| &i.out))
        .ok_or_else(|| Failure::usage("[shard] has no dataset and there is no [ingest]", "give shard.dataset"))?;
    let input = session.open_with(dataset, &pipeline.storage_of(dataset))?;
    let out = session.open_with(&section.out, &pipeline.storage_of(&section.out))?;
    let options = section.options()?;
    Ok(Some(session.block_on(shard(&input, &out, &options, &session.control))?))
}

fn run_train(session: &Session, pipeline: &Pipeline, args: &RunArgs) -> anyhow::Result<Option<Outcome>> {
    if pipeline.train.is_none() {
        return Ok(None);
    }
    let report = training::spawn(&arguments(session, args, "--report-json"), &session.control.stop)?;
    serde_json::from_str(&report).map(Some).context("the report of gristmill-train is not the JSON it should be")
}

/// Arguments of `gristmill-train` for this pipeline.
fn arguments(session: &Session, args: &RunArgs, mode: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["train".into(), args.config.clone().into(), mode.into()];
    for set in &args.set {
        arguments.extend(["--set".into(), set.into()]);
    }
    for option in &session.common.storage {
        arguments.extend(["--storage".into(), option.into()]);
    }
    if session.common.quiet {
        arguments.push("--quiet".into());
    }
    if session.common.json {
        arguments.push("--json".into());
    }
    if let Some(threads) = session.common.threads {
        arguments.extend(["--threads".into(), threads.to_string().into()]);
    }
    arguments
}

fn text(
    pipeline: &Pipeline,
    ingested: Option<&IngestOutcome>,
    sharded: Option<&ShardOutcome>,
    trained: Option<&Outcome>,
) -> String {
    let mut text = String::new();
    let all = [
        ingested.is_none_or(|o| o.already_current),
        sharded.is_none_or(|o| o.already_current),
        trained.is_none_or(|o| o.already_current),
    ];
    if all.iter().all(|current| *current) {
        text.push_str("everything is already current: nothing was done\n\n");
    }
    if let (Some(outcome), Some(section)) = (ingested, &pipeline.ingest) {
        text.push_str("== ingest\n");
        text.push_str(&commands::ingest::text(outcome, &section.out));
    }
    if let (Some(outcome), Some(section)) = (sharded, &pipeline.shard) {
        text.push_str("\n== shard\n");
        text.push_str(&commands::shard::text(outcome, &section.out));
    }
    if let Some(outcome) = trained {
        text.push_str("\n== train\n");
        text.push_str(&outcome.text);
    }
    text
}
