//! Publishing: the tables, and last the manifest.

use std::collections::BTreeMap;

use super::{Job, count::Counted, plan::Plan, prepare::PartRule, rows::Classes, write::Written};
use crate::{
    assign::deal::{DealingCache, NodeChoice},
    balance::{Balance, GroupReport, LabelReport, Level, SplitBalance, WeightBalance},
    error::{Error, ErrorKind, Result},
    manifest::{FORMAT_VERSION, Layout, Manifest, ManifestKind, SplitRule},
    parquet_reader::ParquetFile,
    statistics::StatisticsBuilder,
    storage::Storage,
    tables::{self, CategoryEntry, FileEntry, InputEntry, KeyEntry, NodeStratumEntry, StatisticsEntry, StratumEntry},
    weights::{FRACTION_BITS, width},
};

/// Strata whose rows on each node are kept for pictures.
const PICTURED: usize = 64;

impl Job {
    #[expect(clippy::too_many_arguments, reason = "everything that the job found out goes into the manifest")]
    pub(super) async fn publish(
        &self,
        plan: &Plan,
        counted: &Counted,
        classes: &Classes,
        written: Vec<Written>,
        weights: &[u128],
        options: serde_json::Value,
        job: String,
    ) -> Result<Manifest> {
        let version = self.appended.version();
        let name_of = |w: &Written| plan.layout.splits.get(w.split as usize).map_or("", |s| s.name.as_str());
        let new_files: Vec<FileEntry> = written.iter().map(|w| w.entry(name_of(w), version)).collect();
        let mut sidecars = self.appended.sidecars.clone();
        let files = in_order(&plan.layout, &self.appended.files, &new_files);
        // A lane that grew has other positions: its sidecars are made anew over all its files.
        let grown: Vec<FileEntry> = (files.iter())
            .filter(|f| new_files.iter().any(|n| (&n.split, n.lane) == (&f.split, f.lane)))
            .cloned()
            .collect();
        let made = self.write_sidecars(&grown).await?;
        sidecars.retain(|old| {
            made.iter().all(|new| (&new.split, new.lane, &new.name) != (&old.split, old.lane, &old.name))
        });
        sidecars.extend(made);
        sidecars.sort_by(|a, b| (&a.split, a.lane, &a.name).cmp(&(&b.split, b.lane, &b.name)));

        let mut layout = plan.layout.clone();
        for (split, before) in layout.splits.iter_mut().zip(self.appended.rows_before(plan.layout.splits.len())) {
            split.rows += before;
        }
        let (statistics, categories) = self.statistics(&layout, &written);
        let figures: Vec<StatisticsEntry> = (statistics.iter())
            .map(|(split, column, builder)| StatisticsEntry {
                split: split.clone(),
                column: column.clone(),
                statistics: builder.finish(),
            })
            .collect();
        let mut batches = vec![
            (tables::INPUTS, tables::inputs_table(&self.inputs())?),
            (tables::FILES, tables::files_table(&files)?),
            (tables::STRATA, tables::strata_table(&self.strata_entries(plan, counted, version))?),
            (tables::KEYS, tables::keys_table(&self.key_entries(counted, version))?),
            (tables::NODE_STRATA, tables::node_strata_table(&node_strata(plan, counted))?),
            (tables::CATEGORIES, tables::categories_table(&categories)?),
            (tables::STATISTICS, tables::statistics_table(&figures)?),
            (tables::STATISTICS_STATE, tables::statistics_state_table(&statistics)?),
        ];
        if !sidecars.is_empty() {
            batches.push((tables::SIDECARS, tables::sidecars_table(&sidecars)?));
        }
        let mut references = BTreeMap::new();
        for (name, batch) in batches {
            references.insert(name.to_owned(), tables::write_table(&self.out, name, &batch).await?);
        }
        let balance = self.balance(plan, &layout, counted, classes, weights);
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            kind: ManifestKind::Shards,
            version,
            job,
            input: self.input.reference.clone(),
            options,
            seed: self.options.seed,
            schema: self.input.schema.clone(),
            rows: layout.splits.iter().map(|s| s.rows).sum(),
            tables: references,
            ingest: None,
            layout: Some(layout),
            balance: Some(balance),
            parent: self.appended.parent.as_ref().map(|m| m.reference()).transpose()?,
        };
        self.control.stop.check()?;
        self.unchanged_input().await?;
        self.all_there(&new_files).await?;
        manifest.publish(&self.out).await?;
        self.work.clear().await?;
        remove_unlisted(&self.out, &manifest).await?;
        write_report(&self.out, &manifest).await?;
        Ok(manifest)
    }

    /// Whether the input is still what was sharded: a file that was replaced meanwhile has another footer.
    async fn unchanged_input(&self) -> Result<()> {
        let files = self.input.files.get(self.appended.first_file()..).unwrap_or(&[]);
        super::phase::in_order(files.len(), |f| {
            let (file, storage) = (&files[f], &self.input.storage);
            Box::pin(async move {
                match ParquetFile::open(storage, file.path()).await {
                    Ok(now) if now.footer_blake3() == file.footer_blake3() && now.bytes() == file.bytes() => Ok(()),
                    Ok(_) => Err(super::changed(&storage.url(file.path()))),
                    Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                        Err(super::changed(&storage.url(file.path())))
                    }
                    Err(e) => Err(e),
                }
            })
        })
        .await
        .map(drop)
    }

    /// Whether the new shards are there: another job's clean-up may have taken them for debris.
    async fn all_there(&self, files: &[FileEntry]) -> Result<()> {
        let sizes: BTreeMap<String, u64> = self.out.list("").await?.into_iter().map(|l| (l.path, l.bytes)).collect();
        match files.iter().find(|f| sizes.get(&f.path) != Some(&f.bytes)) {
            None => Ok(()),
            Some(file) => {
                // Receipts that say it is there are wrong; without them a rerun writes it again.
                self.work.clear().await?;
                // Another job that published here first takes files of this one for debris.
                Err(Error::Conflict {
                    url: self.out.url(&file.path),
                    what: "something else than this job wrote there, or nothing: it was removed or replaced since"
                        .into(),
                    help: "let one job at a time write to this folder, and run again".into(),
                })
            }
        }
    }

    fn inputs(&self) -> Vec<InputEntry> {
        (self.input.files.iter())
            .map(|f| InputEntry {
                path: f.path().to_owned(),
                rows: f.rows(),
                bytes: f.bytes(),
                footer_blake3: f.footer_blake3().to_owned(),
            })
            .collect()
    }

    fn strata_entries(&self, plan: &Plan, counted: &Counted, version: u64) -> Vec<StratumEntry> {
        let mut entries = self.appended.strata.clone();
        let (counts, targets) =
            (split_counts(plan, plan.assignment.counts()), split_counts(plan, plan.assignment.targets()));
        let splits = plan.layout.splits.len();
        for (c, stratum) in counted.strata.strata().iter().enumerate() {
            for (s, split) in plan.layout.splits.iter().enumerate() {
                entries.push(StratumEntry {
                    stratum: c as u32,
                    value: stratum.name.clone(),
                    split: split.name.clone(),
                    rows_in: counts[c * splits + s],
                    rows: targets[c * splits + s],
                    version,
                });
            }
        }
        entries
    }

    fn key_entries(&self, counted: &Counted, version: u64) -> Vec<KeyEntry> {
        let mut entries = self.appended.keys.clone();
        for key in counted.strata.keys() {
            let stratum = counted.strata.of_key(key).unwrap_or(0);
            entries.push(KeyEntry { key: key.clone(), stratum, version });
        }
        entries
    }

    /// Statistics of all versions, by (split, column), and the values of categorical columns: those of earlier versions
    /// keep their places.
    fn statistics(
        &self,
        layout: &Layout,
        written: &[Written],
    ) -> (Vec<(String, String, StatisticsBuilder)>, Vec<CategoryEntry>) {
        let mut all: BTreeMap<(usize, &str), StatisticsBuilder> = BTreeMap::new();
        for (split, column, builder) in &self.appended.statistics {
            if let Some(s) = layout.splits.iter().position(|i| i.name == *split) {
                all.insert((s, column), builder.clone());
            }
        }
        for shard in written {
            for (column, builder) in &shard.statistics {
                match all.get_mut(&(shard.split as usize, column.as_str())) {
                    Some(sum) => sum.merge(builder),
                    None => {
                        all.insert((shard.split as usize, column), builder.clone());
                    }
                }
            }
        }
        let (mut statistics, mut categories) = (Vec::new(), Vec::new());
        for (s, split) in layout.splits.iter().enumerate() {
            for column in &self.input.schema.columns {
                let Some(builder) = all.remove(&(s, column.name.as_str())) else { continue };
                if let Some(values) = builder.categories() {
                    let known: Vec<&str> = (self.appended.categories.iter())
                        .filter(|c| c.split == split.name && c.column == column.name)
                        .map(|c| c.value.as_str())
                        .collect();
                    categories.extend(in_known_order(&known, values).into_iter().map(|(value, rows)| CategoryEntry {
                        split: split.name.clone(),
                        column: column.name.clone(),
                        value,
                        rows,
                    }));
                }
                statistics.push((split.name.clone(), column.name.clone(), builder));
            }
        }
        (statistics, categories)
    }

    fn balance(&self, plan: &Plan, union: &Layout, counted: &Counted, classes: &Classes, weights: &[u128]) -> Balance {
        let layout = &plan.layout;
        let splits = layout.splits.len();
        let (counts, targets) =
            (split_counts(plan, plan.assignment.counts()), split_counts(plan, plan.assignment.targets()));
        let on_one_node = matches!(layout.split_rule, SplitRule::Groups { on_one_node: true, .. });
        let mut of_splits = Vec::with_capacity(splits);
        let mut largest = vec![0_u64; counted.strata.len()];
        for (s, split) in layout.splits.iter().enumerate() {
            let parts = [layout.nodes, layout.lanes, layout.lanes.saturating_mul(split.files_per_lane)];
            let mut levels = parts.map(Level::new);
            for (c, stratum) in counted.strata.strata().iter().enumerate() {
                let rows = targets[c * splits + s];
                largest[c] = largest[c].max(rows);
                if on_one_node {
                    add_by_node(&mut levels, plan, c, s, &stratum.name, rows);
                } else {
                    levels.iter_mut().for_each(|level| level.add_dealt(&stratum.name, rows));
                }
            }
            let [nodes, lanes, files] = levels;
            let [nodes, lanes, files] = if on_one_node {
                let sizes = node_sizes(plan, s);
                [nodes, lanes, files].map(|level| {
                    let parts = u64::from(level.parts());
                    let within = (parts / u64::from(layout.nodes)).max(1);
                    let low = sizes.iter().map(|n| n / within).min().unwrap_or(0);
                    let high = sizes.iter().map(|n| n.div_ceil(within)).max().unwrap_or(0);
                    level.finish_sized(low, high, false)
                })
            } else {
                [nodes, lanes, files].map(|level| level.finish(split.rows, true))
            };
            let sums = |of: &[u64]| (0..counted.strata.len()).map(|c| of[c * splits + s]).collect::<Vec<u64>>();
            let (rows_in, rows) = (sums(&counts), sums(&targets));
            of_splits.push(SplitBalance {
                name: split.name.clone(),
                rows_in: rows_in.iter().sum(),
                left_out: rows_in.iter().zip(&rows).map(|(n, m)| n.saturating_sub(*m)).sum(),
                copies: rows_in.iter().zip(&rows).map(|(n, m)| m.saturating_sub(*n)).sum(),
                node_rows: self.node_rows(plan, union, s, on_one_node),
                nodes,
                lanes,
                files,
                drift: drift(&rows, counted),
                weights: self.weight_balance(plan, s, weights),
                labels: self.label_report(plan, s),
            });
        }
        let node_rows = (0..layout.nodes as usize).map(|n| of_splits.iter().map(|s| s.node_rows[n]).sum()).collect();
        let worst = of_splits.iter().map(|s| s.nodes.worst_deviation).fold(0.0, f64::max);
        let before = self.appended.parent.as_ref().and_then(|m| m.balance.as_ref());
        Balance {
            strata: counted.strata.len() as u64,
            rare_strata: largest.iter().filter(|n| **n > 0 && **n < u64::from(layout.nodes)).count() as u64,
            merged_strata: counted.strata.merged(),
            node_rows,
            node_rows_guaranteed: !on_one_node && before.is_none(),
            versions: self.appended.version(),
            union_deviation_bound: worst + before.map_or(0.0, |b| b.union_deviation_bound),
            splits: of_splits,
            groups: match &classes.rule {
                PartRule::Groups { column, parts, balance } => Some(GroupReport {
                    column: column.clone(),
                    on_one_node,
                    groups: parts.len() as u64,
                    largest_group: balance.largest_group,
                    class_deviation: balance.worst,
                    class_lower_bound: balance.class_lower_bound,
                    size_deviation: balance.size_worst,
                    size_lower_bound: balance.lower_bound,
                    imbalance: balance.imbalance,
                }),
                _ => None,
            },
        }
    }

    /// Rows of each node in split `s`, of all versions.
    fn node_rows(&self, plan: &Plan, union: &Layout, s: usize, on_one_node: bool) -> Vec<u64> {
        let layout = &plan.layout;
        let mut rows = vec![0; layout.nodes as usize];
        let Some(split) = union.splits.get(s) else { return rows };
        if on_one_node {
            return node_sizes(plan, s);
        }
        for lane in 0..layout.lanes {
            rows[split.node_of(lane, layout.nodes) as usize] += split.lane_rows(lane, layout.lanes);
        }
        rows
    }

    fn weight_balance(&self, plan: &Plan, s: usize, weights: &[u128]) -> Option<WeightBalance> {
        let column = self.options.balance.clone()?;
        let nodes = plan.layout.nodes as usize;
        let sums = weights.get(s * nodes..(s + 1) * nodes)?;
        let NodeChoice::Weighted(choice) = plan.assignment.dealings().get(s)?.choice()? else { return None };
        let is_float =
            self.input.schema.column(&column, "--balance").is_ok_and(|c| c.column_type.to_arrow().is_floating());
        let unit = if is_float { (1_u64 << FRACTION_BITS) as f64 } else { 1.0 };
        let mean = sums.iter().sum::<u128>() as f64 / nodes as f64;
        let relative = |x: f64| if mean > 0.0 { x / mean } else { 0.0 };
        let range = sums.iter().max()? - sums.iter().min()?;
        // Sums of bin means are off by at most the width of a bin, at both ends.
        let largest = sums.iter().max().map_or(0.0, |m| *m as f64);
        Some(WeightBalance {
            column,
            node_sums: sums.iter().map(|s| *s as f64 / unit).collect(),
            spread: relative(range as f64),
            bound: relative(choice.bound() as f64 + 2.0 * width(plan.level) * largest),
            lower_bound: relative(choice.lower_bound() as f64),
        })
    }

    fn label_report(&self, plan: &Plan, s: usize) -> Option<LabelReport> {
        match plan.assignment.dealings().get(s)?.choice()? {
            NodeChoice::Labels { worst, labels, .. } => Some(LabelReport { labels: *labels, worst_deviation: *worst }),
            NodeChoice::Weighted(_) => None,
        }
    }
}

/// Counts by (stratum, split) from counts by (stratum, part).
fn split_counts(plan: &Plan, counts: &[u64]) -> Vec<u64> {
    let (parts, splits) = (plan.assignment.parts(), plan.layout.splits.len());
    if parts == splits {
        return counts.to_vec();
    }
    let per_split = parts / splits.max(1);
    counts.chunks(per_split.max(1)).map(|c| c.iter().sum()).collect()
}

/// Rows of each node of split `s` where parts are nodes.
fn node_sizes(plan: &Plan, s: usize) -> Vec<u64> {
    let (parts, nodes) = (plan.assignment.parts(), plan.layout.nodes as usize);
    (0..nodes).map(|n| plan.assignment.targets().iter().skip(s * nodes + n).step_by(parts).sum()).collect()
}

fn add_by_node(levels: &mut [Level; 3], plan: &Plan, c: usize, s: usize, name: &str, rows: u64) {
    let (parts, nodes) = (plan.assignment.parts(), plan.layout.nodes as usize);
    let by_node = &plan.assignment.targets()[c * parts + s * nodes..][..nodes];
    for level in levels {
        let within = u64::from(level.parts()) / nodes as u64;
        let mean = rows as f64 / f64::from(level.parts());
        level.add_values(name, mean, by_node.iter().flat_map(|n| [n / within.max(1), n.div_ceil(within.max(1))]));
    }
}

/// Total variation distance between a split's strata and the whole's.
fn drift(rows: &[u64], counted: &Counted) -> f64 {
    let of_split: u64 = rows.iter().sum();
    let of_all: u64 = counted.strata.strata().iter().map(|s| s.rows).sum();
    if of_split == 0 || of_all == 0 {
        return 0.0;
    }
    let share = |n: u64, of: u64| n as f64 / of as f64;
    let strata = counted.strata.strata().iter();
    rows.iter().zip(strata).map(|(m, s)| (share(*m, of_split) - share(s.rows, of_all)).abs()).sum::<f64>() / 2.0
}

/// Rows of the largest strata on each node.
fn node_strata(plan: &Plan, counted: &Counted) -> Vec<NodeStratumEntry> {
    let (parts, nodes) = (plan.assignment.parts(), u64::from(plan.layout.nodes));
    let mut order: Vec<usize> = (0..counted.strata.len()).collect();
    order.sort_by_key(|c| (std::cmp::Reverse(counted.strata.strata()[*c].rows), *c));
    let mut entries = Vec::new();
    for c in order.into_iter().take(PICTURED) {
        let stratum = &counted.strata.strata()[c];
        let mut rows = vec![0_u64; plan.layout.splits.len() * nodes as usize];
        for (part, dealing) in plan.assignment.dealings().iter().enumerate() {
            let target = plan.assignment.targets()[c * parts + part];
            let leaves = u64::from(dealing.leaves());
            let mut cache = DealingCache::default();
            let mut put = |leaf: u32, n: u64| {
                let (split, _, node) = plan.destination(part as u32, leaf);
                if let Some(sum) = rows.get_mut(split as usize * nodes as usize + node as usize) {
                    *sum += n;
                }
            };
            // Full blocks of all leaves give each leaf the same; only the rest has to be looked up.
            let full = target / leaves;
            if full > 0 {
                (0..leaves).for_each(|leaf| put(leaf as u32, full));
            }
            for rank in full * leaves..target {
                put(dealing.leaf(c as u32, stratum.hash, target, rank, &mut cache), 1);
            }
        }
        for (i, n) in rows.into_iter().enumerate() {
            entries.push(NodeStratumEntry {
                stratum: c as u32,
                value: stratum.name.clone(),
                split: plan.layout.splits[i / nodes as usize].name.clone(),
                node: (i as u64 % nodes) as u32,
                rows: n,
            });
        }
    }
    entries
}

/// Values that were known keep their order; new ones follow in theirs.
fn in_known_order(known: &[&str], values: Vec<(String, u64)>) -> Vec<(String, u64)> {
    if known.is_empty() {
        return values;
    }
    let rows: BTreeMap<&str, u64> = values.iter().map(|(v, n)| (v.as_str(), *n)).collect();
    let old: std::collections::BTreeSet<&str> = known.iter().copied().collect();
    let mut ordered: Vec<(String, u64)> =
        known.iter().map(|v| ((*v).to_owned(), rows.get(v).copied().unwrap_or(0))).collect();
    ordered.extend(values.iter().filter(|(v, _)| !old.contains(v.as_str())).cloned());
    ordered
}

/// Files of all versions by split, lane and sequence.
fn in_order(layout: &Layout, old: &[FileEntry], new: &[FileEntry]) -> Vec<FileEntry> {
    let place: BTreeMap<&str, usize> = layout.splits.iter().enumerate().map(|(s, i)| (i.name.as_str(), s)).collect();
    let mut files: Vec<FileEntry> = old.iter().chain(new).cloned().collect();
    files.sort_by_key(|f| (place.get(f.split.as_str()).copied(), f.lane, f.sequence));
    files
}

/// Removes files of gristmill's own naming that no version lists.
pub(super) async fn remove_unlisted(out: &Storage, manifest: &Manifest) -> Result<()> {
    for path in crate::verify::unlisted(out, manifest).await? {
        out.delete(&path).await?;
    }
    Ok(())
}

/// Writes the report of `manifest`, when it is not the one that is there.
pub(super) async fn write_report(out: &Storage, manifest: &Manifest) -> Result<()> {
    crate::report::write(out, manifest).await
}
