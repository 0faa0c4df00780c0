//! `gristmill ingest`

use std::process::ExitCode;

use gristmill_ingest::{CsvOptions, IngestOptions, IngestOutcome, MaxRejects, ingest, parse_role, read_schema_file};

use crate::{args::IngestArgs, failure::Failure, output, session::Session, tables};

pub fn run(session: &Session, args: &IngestArgs) -> anyhow::Result<ExitCode> {
    let out = session.open(&args.out)?;
    let options = options(args)?;
    let outcome = session.block_on(ingest(&options, &out, &session.control))?;
    if session.common.json {
        output::json(&serde_json::json!({
            "already_current": outcome.already_current,
            "report": outcome.report,
            "manifest": outcome.manifest,
        }))?;
    } else {
        output::result(&text(&outcome, &args.out))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &IngestArgs) -> anyhow::Result<IngestOptions> {
    let mut options = IngestOptions::new(args.sources.clone());
    options.schema = args.schema.as_deref().map(read_schema_file).transpose()?;
    options.sql.clone_from(&args.sql);
    options.on_error = args.on_error.parse()?;
    if let Some(limit) = &args.max_rejects {
        options.max_rejects = limit.parse::<MaxRejects>()?;
    }
    for role in &args.roles {
        let (column, role) = role
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--role {role} has no role"), "write --role late=label"))?;
        options.roles.insert(column.to_owned(), parse_role(role)?);
    }
    let defaults = CsvOptions::default();
    options.csv = CsvOptions {
        delimiter: args.delimiter,
        has_header: !args.no_header,
        null_values: defaults.null_values.iter().chain(&args.nulls).cloned().collect(),
        ..defaults
    };
    Ok(options)
}

/// The outcome as people read it.
pub fn text(outcome: &IngestOutcome, out: &str) -> String {
    let counts = outcome.report.counts;
    let mut text = String::new();
    if outcome.already_current {
        text.push_str(&format!("{out} is already current: nothing was done\n"));
    }
    let numbers = [counts.rows_in, counts.accepted, counts.rejected, counts.filtered].map(tables::count).to_vec();
    text.push_str(&tables::table(&["rows in", "accepted", "rejected", "filtered"], 0, [numbers]));
    for (reason, rows) in &outcome.report.rejects.by_reason {
        text.push_str(&format!("rejected, {reason}: {}\n", tables::count(*rows)));
    }
    for reject in &outcome.report.rejects.examples {
        let line = reject.line.map(|l| format!(", line {l}")).unwrap_or_default();
        let column = reject.column.as_ref().map(|c| format!(", column \"{c}\"")).unwrap_or_default();
        text.push_str(&format!("  {}, row {}{line}{column}: {}\n", reject.file, reject.row, reject.detail));
    }
    text.push_str(&schema(&outcome.manifest.schema));
    text.push_str(&format!("data set: {out}\n"));
    text
}

/// A schema as a table.
pub fn schema(schema: &gristmill_shard::schema::DatasetSchema) -> String {
    let rows = schema.columns.iter().map(|c| {
        let role = c.role.and_then(|r| serde_json::to_value(r).ok()).and_then(|v| v.as_str().map(str::to_owned));
        let nulls = if c.nullable { "yes" } else { "no" };
        vec![c.name.clone(), c.column_type.to_string(), nulls.to_owned(), role.unwrap_or_default()]
    });
    tables::table(&["column", "type", "nulls", "role"], 4, rows)
}
