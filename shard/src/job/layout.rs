//! Laying a shard set out for other machines: a new manifest over the same files.

use super::{ShardOutcome, publish};
use crate::{
    balance::{Balance, Level, LevelBalance},
    coded::CodedBatch,
    error::{Error, Result},
    manifest::{Existing, Layout, Manifest, ManifestKind, SplitRule, existing, job_digest},
    parquet_reader::ParquetFile,
    shard_set::ShardSet,
    storage::Storage,
    strata::{KeyColumn, classify},
    tables,
};
use std::collections::{BTreeMap, HashMap};

/// Publishes a new version of the shard set at `storage` for `nodes` machines: lane v goes to node v mod N as before, for
/// another N. No file is written but tables. Where `nodes` divides the lanes every bound holds as if the set had been made
/// for them; else machines have one lane more or fewer, and what that makes of each stratum is counted and reported.
///
/// # Errors
/// [`Error::Usage`] for more machines than lanes, or groups that stay on one node; [`Error::NotFound`], storage errors.
pub async fn layout_anew(storage: &Storage, nodes: u32) -> Result<ShardOutcome> {
    let set = ShardSet::open(storage).await?;
    let (old, layout) = (set.manifest(), set.layout());
    if nodes == 0 || nodes > layout.lanes {
        return Err(Error::usage(
            format!("--nodes {nodes}: the shards have {} lanes, a machine needs at least one", layout.lanes),
            format!("give 1 to {}, or shard the data set again with more --lanes", layout.lanes),
        ));
    }
    if layout.nodes == nodes {
        publish::write_report(storage, old).await?;
        return Ok(ShardOutcome { manifest: old.clone(), already_current: true });
    }
    if matches!(layout.split_rule, SplitRule::Groups { on_one_node: true, .. }) && !layout.nodes.is_multiple_of(nodes) {
        return Err(Error::usage(
            format!("--nodes {nodes} would cut groups that stay on one of {} machines", layout.nodes),
            format!("give a divisor of {}, or shard the data set again", layout.nodes),
        ));
    }
    let parent = old.reference()?;
    let options = serde_json::json!({ "layout_of": old.options, "nodes": nodes });
    let digest = job_digest(ManifestKind::Shards, &options, &old.input, Some(&parent))?;
    if let Existing::Current(manifest) = existing(storage, ManifestKind::Shards, &digest, true).await? {
        publish::write_report(storage, &manifest).await?;
        return Ok(ShardOutcome { manifest: *manifest, already_current: true });
    }
    let mut new = layout.clone();
    new.nodes = nodes;
    let mut before = 0;
    for split in &mut new.splits {
        split.first_node = if matches!(layout.split_rule, SplitRule::Groups { .. }) {
            split.first_node % nodes
        } else {
            (before % u64::from(nodes)) as u32
        };
        before += split.rows;
    }
    let balance = balance(&set, &new).await?;
    let manifest = Manifest {
        version: old.version + 1,
        job: digest,
        options,
        layout: Some(new),
        balance: Some(balance),
        parent: Some(parent),
        ..old.clone()
    };
    manifest.publish(storage).await?;
    publish::write_report(storage, &manifest).await?;
    Ok(ShardOutcome { manifest, already_current: false })
}

/// The balance over other machines, counted from the stratify columns of the shards.
async fn balance(set: &ShardSet, layout: &Layout) -> Result<Balance> {
    let manifest = set.manifest();
    let old = manifest.balance.as_ref().ok_or_else(|| Error::internal("a shard set has no balance"))?;
    let keys: HashMap<_, _> = (tables::read_keys(set.storage(), manifest).await?.into_iter())
        .map(|k| ((k.version, k.key), k.stratum))
        .collect();
    let names: HashMap<(u64, u32), String> = (tables::read_strata(set.storage(), manifest).await?.into_iter())
        .map(|s| ((s.version, s.stratum), s.value))
        .collect();
    let mut balance = old.clone();
    // Names, not ordinals: versions number their strata anew.
    let mut counts: BTreeMap<(usize, &str), BTreeMap<u32, u64>> = BTreeMap::new();
    for file in set.files() {
        let (s, split) = layout.split(&file.split)?;
        let node = split.node_of(file.lane, layout.nodes);
        for (key, rows) in strata_of(set, &file.path, &layout.strata.columns).await? {
            let stratum = keys.get(&(file.version, key)).copied();
            let name = stratum.and_then(|c| names.get(&(file.version, c))).map_or("", String::as_str);
            *counts.entry((s, name)).or_default().entry(node).or_insert(0) += rows;
        }
    }
    // Dealt by nodes first, only those nodes have the bound; dealt flat, every divisor of the lanes has.
    let flat = layout.weight.is_none()
        && layout.strata.columns.iter().all(|c| matches!(c, KeyColumn::Value { .. } | KeyColumn::Bins { .. }));
    let divides = layout.lanes.is_multiple_of(layout.nodes) && old.versions <= 1;
    for (s, split) in balance.splits.iter_mut().enumerate() {
        let mut level = Level::new(layout.nodes);
        for ((_, name), by_node) in counts.iter().filter(|((of, _), _)| *of == s) {
            level.add_counted(name, &by_node.iter().map(|(n, rows)| (*n, *rows)).collect::<Vec<_>>());
        }
        let rows = layout.splits.get(s).map_or(0, |s| s.rows);
        let guaranteed = split.lanes.guaranteed && divides && flat;
        split.nodes = LevelBalance { guaranteed, ..level.finish(rows, guaranteed) };
        split.node_rows = node_rows(layout, s, &counts);
        split.weights = None;
        split.labels = None;
    }
    balance.node_rows =
        (0..layout.nodes as usize).map(|n| balance.splits.iter().map(|s| s.node_rows[n]).sum()).collect();
    balance.node_rows_guaranteed = divides && balance.splits.iter().all(|s| s.lanes.guaranteed);
    balance.union_deviation_bound = balance.splits.iter().map(|s| s.nodes.worst_deviation).fold(0.0, f64::max);
    Ok(balance)
}

fn node_rows(layout: &Layout, split: usize, counts: &BTreeMap<(usize, &str), BTreeMap<u32, u64>>) -> Vec<u64> {
    let mut rows = vec![0; layout.nodes as usize];
    for (node, n) in counts.iter().filter(|((of, _), _)| *of == split).flat_map(|(_, by_node)| by_node) {
        rows[*node as usize] += n;
    }
    rows
}

/// Rows of each stratum of a shard.
async fn strata_of(
    set: &ShardSet,
    path: &str,
    columns: &[KeyColumn],
) -> Result<BTreeMap<crate::strata::StratumKey, u64>> {
    let file = ParquetFile::open(set.storage(), path).await?;
    let names: Vec<&str> = columns.iter().map(KeyColumn::column).collect();
    let mut counts = BTreeMap::new();
    for (index, rows) in file.row_group_rows().into_iter().enumerate() {
        let classified = if names.is_empty() {
            crate::strata::Classified { keys: vec![[].into()], of_row: vec![0; rows as usize] }
        } else {
            let bytes = file.fetch(set.storage(), index, Some(&names)).await?;
            let batch = CodedBatch::from_plain(&file.decode(index, &bytes, Some(&names))?);
            classify(&batch, columns, &set.storage().url(path))?
        };
        for (key, n) in classified.into_counts() {
            *counts.entry(key).or_insert(0) += n;
        }
    }
    Ok(counts)
}
