//! `gristmill shard`

use std::process::ExitCode;

use gristmill_shard::{
    Manifest,
    assign::rounding::Shares,
    balance::{Balance, LevelBalance},
    job::{ShardOptions, ShardOutcome, shard},
    manifest::Layout,
};

use crate::{args::ShardArgs, output, session::Session, tables};

pub fn run(session: &Session, args: &ShardArgs) -> anyhow::Result<ExitCode> {
    let options = ShardOptions {
        nodes: args.nodes,
        lanes: args.lanes,
        stratify: args.stratify.clone(),
        splits: args.split.as_deref().map(Shares::parse).transpose()?.unwrap_or_default(),
        seed: args.seed,
        shard_bytes: args.shard_bytes.as_u64(),
        memory_bytes: args.memory.as_u64(),
    };
    let (input, out) = (session.open(&args.dataset)?, session.open(&args.out)?);
    let outcome = session.block_on(shard(&input, &out, &options, &session.control))?;
    if session.common.json {
        output::json(&serde_json::json!({ "already_current": outcome.already_current, "manifest": outcome.manifest }))?;
    } else {
        output::result(&text(&outcome, &args.out))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The outcome as people read it.
pub fn text(outcome: &ShardOutcome, out: &str) -> String {
    let mut text = String::new();
    if outcome.already_current {
        text.push_str(&format!("{out} is already current: nothing was done\n"));
    }
    text.push_str(&balance_of(&outcome.manifest));
    text.push_str(&format!("shards: {out}  (seed {})\n", outcome.manifest.seed));
    text
}

/// The balance of a shard set, from its manifest.
pub fn balance_of(manifest: &Manifest) -> String {
    match (&manifest.layout, &manifest.balance) {
        (Some(layout), Some(balance)) => balance_table(layout, balance),
        _ => String::new(),
    }
}

/// Sizes and worst deviations, and rows of each node.
pub fn balance_table(layout: &Layout, balance: &Balance) -> String {
    let by = if layout.stratify.is_empty() { "nothing".to_owned() } else { layout.stratify.join(", ") };
    let mut text = format!(
        "{} nodes, {} lanes, stratified by {by}: {} strata, {} rare (fewer rows than nodes)\n",
        layout.nodes,
        layout.lanes,
        tables::count(balance.strata),
        tables::count(balance.rare_strata),
    );
    let level = |split: &str, name: &str, level: &LevelBalance| {
        vec![
            split.to_owned(),
            format!("{} {name}", tables::count(u64::from(level.parts))),
            if level.exact { "holds".into() } else { "BROKEN".into() },
            tables::count(level.rows_min),
            tables::count(level.rows_max),
            format!("{:.4}", level.worst_deviation),
            level.worst_stratum.clone(),
        ]
    };
    let rows = balance.splits.iter().flat_map(|s| {
        [level(&s.name, "nodes", &s.nodes), level(&s.name, "lanes", &s.lanes), level(&s.name, "files", &s.files)]
    });
    let header = ["split", "over", "bound < 1", "rows, least", "rows, most", "worst deviation", "in stratum"];
    text.push_str(&tables::table(&header, 3, rows));
    let mut header = vec!["node".to_owned()];
    header.extend(balance.splits.iter().map(|s| s.name.clone()));
    header.push("all".into());
    let shown = balance.node_rows.len().min(NODES_SHOWN);
    let rows = (0..shown).map(|node| {
        let mut row = vec![node.to_string()];
        row.extend(balance.splits.iter().map(|s| tables::count(s.node_rows.get(node).copied().unwrap_or(0))));
        row.push(tables::count(balance.node_rows[node]));
        row
    });
    text.push_str(&tables::table(&header.iter().map(String::as_str).collect::<Vec<_>>(), 1, rows));
    if shown < balance.node_rows.len() {
        text.push_str(&format!("and {} more nodes (--json lists all)\n", balance.node_rows.len() - shown));
    }
    text
}

const NODES_SHOWN: usize = 32;
