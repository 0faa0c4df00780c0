//! `gristmill shard`

use std::{collections::BTreeMap, process::ExitCode};

use gristmill_shard::{
    Manifest, ManifestKind,
    balance::{Balance, LevelBalance},
    job::{ShardOptions, ShardOutcome, layout_anew, shard},
    manifest::Layout,
    report,
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
    text.push_str(&format!("report: {}/{}\n", out.trim_end_matches('/'), report::path()));
    text
}

/// The balance of a shard set, from its manifest.
pub fn balance_of(manifest: &Manifest) -> String {
    match (&manifest.layout, &manifest.balance) {
        (Some(layout), Some(balance)) => balance_table(layout, balance),
        _ => String::new(),
    }
}

/// Sizes and worst deviations, what was asked for beside, and rows of each node.
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
    text.push_str(&splits_table(layout, balance));
    text.push_str(&remarks(layout, balance));
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

/// Shares, drift, and as far as there are such: rows left out, copies, labels, weights.
fn splits_table(layout: &Layout, balance: &Balance) -> String {
    let splits = &balance.splits;
    let resampled = layout.resampled || splits.iter().any(|s| s.left_out > 0 || s.copies > 0);
    let labelled = splits.iter().any(|s| s.labels.is_some());
    let weight = splits.iter().find_map(|s| s.weights.as_ref()).map(|w| w.column.clone());
    let mut header: Vec<String> = ["split", "share", "rows", "drift"].map(str::to_owned).to_vec();
    if resampled {
        header.extend(["left out", "copies"].map(str::to_owned));
    }
    if labelled {
        header.extend(["labels", "worst of a label"].map(str::to_owned));
    }
    if let Some(column) = &weight {
        header.extend([format!("spread of {column}"), "bound".into(), "lower bound".into()]);
    }
    let rows = splits.iter().enumerate().map(|(i, s)| {
        let info = layout.splits.get(i);
        let mut row = vec![
            s.name.clone(),
            info.map(|info| info.share.clone()).unwrap_or_default(),
            tables::count(info.map_or(0, |info| info.rows)),
            format!("{:.4}", s.drift),
        ];
        if resampled {
            row.extend([s.left_out, s.copies].map(tables::count));
        }
        if labelled {
            row.extend(match &s.labels {
                Some(l) => [tables::count(l.labels), format!("{:.4}", l.worst_deviation)],
                None => [String::new(), String::new()],
            });
        }
        if weight.is_some() {
            row.extend(match &s.weights {
                Some(w) => [w.spread, w.bound, w.lower_bound].map(small_percent),
                None => [String::new(), String::new(), String::new()],
            });
        }
        row
    });
    tables::table(&header.iter().map(String::as_str).collect::<Vec<_>>(), 1, rows)
}

/// A share that may be far below one per cent.
fn small_percent(part: f64) -> String {
    if part == 0.0 || part >= 1e-4 { format!("{:.2} %", 100.0 * part) } else { format!("{:.1e} %", 100.0 * part) }
}

/// Groups, merged strata and versions, a line each.
fn remarks(layout: &Layout, balance: &Balance) -> String {
    let mut text = String::new();
    if let Some(g) = &balance.groups {
        text.push_str(&format!(
            "{} groups of {}, each on one {}, the largest has {} rows\n\
             groups force deviations: of a stratum {:.4} rows (at least {:.4}), of a size {:.4} (at least {:.4}), {} above its share\n",
            tables::count(g.groups),
            g.column,
            if g.on_one_node { "node of a split" } else { "split" },
            tables::count(g.largest_group),
            g.class_deviation,
            g.class_lower_bound,
            g.size_deviation,
            g.size_lower_bound,
            small_percent(g.imbalance),
        ));
    }
    let merged = layout.strata.merged.max(balance.merged_strata);
    if merged > 0 {
        text.push_str(&format!("{} rare combinations were merged into one stratum\n", tables::count(merged)));
    }
    if balance.versions > 1 {
        text.push_str(&format!(
            "over {} versions a stratum deviates from its share of a node by at most {:.4} rows\n",
            tables::count(balance.versions),
            balance.union_deviation_bound
        ));
    }
    text
}

const NODES_SHOWN: usize = 32;
