//! `gristmill verify`

use std::process::ExitCode;

use gristmill_shard::{ErrorKind, ManifestKind, verify::verify};

use crate::{args::UrlArgs, output, session::Session, tables};

pub fn run(session: &Session, args: &UrlArgs) -> anyhow::Result<ExitCode> {
    let storage = session.open(&args.url)?;
    let report = session.block_on(verify(&storage, &session.control))?;
    if session.common.json {
        output::json(&report)?;
    } else {
        let mut text = String::new();
        for problem in &report.problems {
            text.push_str(&format!("{}: {}\n", storage.url(&problem.path), problem.what));
        }
        let read = format!(
            "{} files, {} rows, {}",
            tables::count(report.files),
            tables::count(report.rows),
            tables::bytes(report.bytes)
        );
        if report.problems.is_empty() {
            let proved = match report.kind {
                ManifestKind::Dataset => "every digest is right and every row is accounted for",
                ManifestKind::Shards => {
                    "every digest is right, every row is there exactly once, every balance bound holds"
                }
            };
            text.push_str(&format!("{read}: {proved}\n"));
        } else {
            text.push_str(&format!("{read}: {} problems\n", report.problems.len()));
        }
        output::result(&text)?;
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(ErrorKind::Corrupt.exit_code()) })
}
