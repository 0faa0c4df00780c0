//! `gristmill shard`

use std::{collections::BTreeMap, process::ExitCode};

use gristmill_shard::{
    Manifest, ManifestKind,
    balance::{Balance, LevelBalance},
    job::{ShardOptions, ShardOutcome, layout_anew, shard},
    manifest::Layout,
};

use crate::{args::ShardArgs, config::ShardSection, failure::Failure, output, session::Session, tables, tasks};

pub fn run(session: &Session, args: &ShardArgs) -> anyhow::Result<ExitCode> {
    let input = session.open(&args.dataset)?;
    let out_url = args.out.as_ref().unwrap_or(&args.dataset);
    let out = session.open(out_url)?;
    let options = options(args)?;
    let outcome = match session.block_on(Manifest::latest(&input))? {
        Some(manifest) if manifest.kind == ManifestKind::Shards => {
            only_layout(args)?;
            session.block_on(layout_anew(&input, args.nodes))?
        }
        _ if args.out.is_none() => {
            return Err(Failure::usage(
                format!("{} is a data set, its shards need a place of their own", args.dataset),
                "give --out",
            ));
        }
        _ => session.block_on(shard(&input, &out, &options, &session.control))?,
    };
    if session.common.json {
        output::json(&serde_json::json!({ "already_current": outcome.already_current, "manifest": outcome.manifest }))?;
    } else {
        output::result(&text(&outcome, out_url))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &ShardArgs) -> anyhow::Result<ShardOptions> {
    let mut bins = BTreeMap::new();
    for text in &args.bins {
        let parsed =
            text.split_once('=').and_then(|(column, n)| Some((column.trim().to_owned(), n.trim().parse().ok()?)));
        let (column, n) = parsed.ok_or_else(|| {
            Failure::usage(format!("--bins {text} is not COLUMN=NUMBER"), "write for example --bins delay=10")
        })?;
        bins.insert(column, n);
    }
    let section = ShardSection {
        dataset: None,
        out: String::new(),
        nodes: args.nodes,
        lanes: args.lanes,
        stratify: args.stratify.clone(),
        bins,
        labels: args.labels.clone(),
        label_separator: args.label_separator.clone(),
        rare: args.rare,
        rare_below: args.rare_below,
        at_least: args.at_least,
        resample: args.resample.clone(),
        resample_total: args.resample_total,
        resample_splits: args.resample_splits.clone(),
        stable_split: args.stable_split.clone(),
        group: args.group.clone(),
        group_scope: args.group_scope,
        max_imbalance: args.max_imbalance,
        balance: args.balance.clone(),
        difficulty: args.difficulty.clone(),
        sidecars: args.sidecars.clone(),
        split: args.split.clone(),
        seed: args.seed,
        shard_bytes: args.shard_bytes,
        memory: args.memory,
    };
    let task = args.task.as_deref().map(|text| tasks::parse(text, |name| std::env::var(name).ok())).transpose()?;
    Ok(ShardOptions { task, append: args.append, ..section.options()? })
}

/// Laying shards out for other machines changes no file, so every option but --nodes would be without effect.
fn only_layout(args: &ShardArgs) -> anyhow::Result<()> {
    let elsewhere =
        args.out.as_ref().is_some_and(|out| out.trim_end_matches('/') != args.dataset.trim_end_matches('/'));
    let others = args.lanes.is_some() || args.split.is_some() || !args.stratify.is_empty() || args.append;
    if elsewhere || others {
        return Err(Failure::usage(
            format!(
                "{} holds shards; they can be laid out for other machines where they are, nothing else",
                args.dataset
            ),
            "give --nodes alone, or the data set they were made from",
        ));
    }
    Ok(())
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
    let columns: Vec<&str> = layout.strata.columns.iter().map(|c| c.column()).collect();
    let by = if columns.is_empty() { "nothing".to_owned() } else { columns.join(", ") };
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
            match (level.exact, level.guaranteed) {
                (true, _) => "holds".into(),
                (false, true) => "BROKEN".into(),
                (false, false) => "not asked".into(),
            },
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
