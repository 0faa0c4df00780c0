//! `gristmill inspect`

use std::process::ExitCode;

use gristmill_shard::{Manifest, ManifestKind, Storage, report, tables as stored};

use crate::{args::InspectArgs, commands, failure::Failure, output, session::Session, tables};

pub fn run(session: &Session, args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let storage = session.open(&args.url)?;
    let manifest = session.block_on(Manifest::latest(&storage))?.ok_or_else(|| gristmill_shard::Error::NotFound {
        url: storage.url(""),
        help: "give a folder that `gristmill ingest` or `gristmill shard` made".into(),
    })?;
    if args.files {
        return files(session, args, &storage, &manifest);
    }
    if session.common.json {
        output::json(&manifest)?;
        return Ok(ExitCode::SUCCESS);
    }
    let kind = match manifest.kind {
        ManifestKind::Dataset => "data set",
        ManifestKind::Shards => "shard set",
    };
    let mut text = format!(
        "{kind} {}, version {}, {} rows, seed {}, digest {}\n",
        storage.url(""),
        manifest.version,
        tables::count(manifest.rows),
        manifest.seed,
        manifest.digest()?.get(..16).unwrap_or_default(),
    );
    if let Some(counts) = manifest.ingest {
        text.push_str(&format!(
            "rows in {} = {} accepted + {} rejected + {} filtered\n",
            tables::count(counts.rows_in),
            tables::count(counts.accepted),
            tables::count(counts.rejected),
            tables::count(counts.filtered),
        ));
    }
    text.push_str(&commands::ingest::schema(&manifest.schema));
    text.push_str(&commands::shard::balance_of(&manifest));
    if manifest.kind == ManifestKind::Shards {
        text.push_str(&worst_strata(session, &storage, &manifest)?);
        if session.block_on(storage.size(&report::path()))?.is_some() {
            text.push_str(&format!("report: {}\n", storage.url(&report::path())));
        }
    }
    text.push_str(&statistics(session, &storage, &manifest)?);
    output::result(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The large strata that deviate most at nodes; nothing for one node, or where all have their exact share.
fn worst_strata(session: &Session, storage: &Storage, manifest: &Manifest) -> anyhow::Result<String> {
    const SHOWN: usize = 5;
    let entries = session.block_on(stored::read_node_strata(storage, manifest))?;
    let worst = report::worst_strata(manifest, &entries);
    if worst.is_empty() {
        return Ok(String::new());
    }
    let rows = worst.into_iter().take(SHOWN).map(|w| {
        vec![
            w.split.to_owned(),
            w.value.to_owned(),
            tables::count(w.rows),
            w.node.to_string(),
            tables::count(w.node_rows),
            format!("{:+.4}", w.deviation),
        ]
    });
    Ok(tables::table(&["split", "stratum", "rows", "worst at node", "rows there", "deviation"], 2, rows))
}

fn statistics(session: &Session, storage: &Storage, manifest: &Manifest) -> anyhow::Result<String> {
    let entries = session.block_on(stored::read_statistics(storage, manifest))?;
    let number = |x: Option<f64>| x.map(|x| format!("{x:.4}")).unwrap_or_default();
    let rows = entries.into_iter().map(|e| {
        let s = e.statistics;
        vec![
            e.split,
            e.column,
            tables::count(s.rows),
            tables::count(s.nulls),
            number(s.min),
            number(s.quantiles[3]),
            number(s.mean),
            number(s.max),
            number(s.deviation),
        ]
    });
    Ok(tables::table(&["split", "column", "rows", "nulls", "min", "median", "mean", "max", "deviation"], 2, rows))
}

fn files(session: &Session, args: &InspectArgs, storage: &Storage, manifest: &Manifest) -> anyhow::Result<ExitCode> {
    let mut files = session.block_on(stored::read_files(storage, manifest))?;
    if let Some(node) = args.node {
        let layout = manifest
            .layout
            .as_ref()
            .ok_or_else(|| Failure::usage("a data set has no nodes", "give a shard set, or leave --node out"))?;
        if node >= layout.nodes {
            return Err(Failure::usage(
                format!("there is no node {node}"),
                format!("nodes are 0 to {}", layout.nodes - 1),
            ));
        }
        let mut kept = Vec::new();
        for file in files {
            if layout.split(&file.split)?.1.node_of(file.lane, layout.nodes) == node {
                kept.push(file);
            }
        }
        files = kept;
    }
    if session.common.json {
        let list: Vec<_> = files
            .iter()
            .map(|f| {
                serde_json::json!({
                    "path": f.path, "split": f.split, "lane": f.lane, "sequence": f.sequence,
                    "rows": f.rows, "bytes": f.bytes, "blake3": f.blake3,
                })
            })
            .collect();
        output::json(&list)?;
    } else {
        let (rows, bytes) = files.iter().fold((0, 0), |(r, b), f| (r + f.rows, b + f.bytes));
        let lines = files.iter().map(|f| vec![f.path.clone(), tables::count(f.rows), tables::bytes(f.bytes)]);
        let mut text = tables::table(&["file", "rows", "bytes"], 1, lines);
        text.push_str(&format!("{} files, {} rows, {}\n", files.len(), tables::count(rows), tables::bytes(bytes)));
        output::result(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
