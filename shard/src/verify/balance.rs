//! Balance counted from the rows: of the strata over nodes, lanes and files, of splits and of weights.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{VerifyReport, file::FileCheck};
use crate::{
    balance::{Balance, Level, LevelBalance},
    manifest::{Layout, Manifest, SplitRule},
    strata::StratumKey,
    tables::{FileEntry, KeyEntry, StratumEntry},
};

/// How far a figure that is not exact may lie above the manifest's.
const ROUNDING: f64 = 1e-6;

/// Rows of each stratum on each leaf of one version of one split.
#[derive(Default)]
struct OfVersion {
    /// By stratum: (lane, file among those of this version in the lane, rows).
    strata: BTreeMap<u32, Vec<(u32, u32, u64)>>,
    files_per_lane: u32,
    rows: u64,
}

/// What is counted while files are read.
pub(super) struct Counted {
    strata: HashMap<(u64, StratumKey), u32>,
    /// Version and file ordinal, within the version's files of the lane, of each path.
    places: HashMap<String, (u64, u32)>,
    splits: HashMap<String, usize>,
    versions: BTreeMap<(usize, u64), OfVersion>,
    node_weights: Vec<Vec<u128>>,
    nodes: u32,
    first_nodes: Vec<u32>,
}

impl Counted {
    pub(super) fn new(layout: &Layout, keys: &[KeyEntry], files: &[FileEntry]) -> Self {
        let mut next: HashMap<(&str, u32, u64), u32> = HashMap::new();
        let mut places = HashMap::new();
        for file in files {
            let ordinal = next.entry((&file.split, file.lane, file.version)).or_insert(0);
            places.insert(file.path.clone(), (file.version, *ordinal));
            *ordinal += 1;
        }
        Self {
            strata: keys.iter().map(|k| ((k.version, k.key.clone()), k.stratum)).collect(),
            places,
            splits: layout.splits.iter().enumerate().map(|(s, i)| (i.name.clone(), s)).collect(),
            versions: BTreeMap::new(),
            node_weights: vec![vec![0; layout.nodes as usize]; layout.splits.len()],
            nodes: layout.nodes,
            first_nodes: layout.splits.iter().map(|s| s.first_node).collect(),
        }
    }

    pub(super) fn add(&mut self, check: &FileCheck, report: &mut VerifyReport) {
        let (Some(split), Some((version, file))) =
            (self.splits.get(&check.split).copied(), self.places.get(&check.path).copied())
        else {
            return;
        };
        let of = self.versions.entry((split, version)).or_default();
        of.files_per_lane = of.files_per_lane.max(file + 1);
        of.rows += check.rows;
        let mut unknown = 0;
        let mut rows: BTreeMap<u32, u64> = BTreeMap::new();
        for (key, n) in &check.strata {
            match self.strata.get(&(version, key.clone())) {
                Some(stratum) => *rows.entry(*stratum).or_insert(0) += n,
                None => unknown += n,
            }
        }
        for (stratum, n) in rows {
            of.strata.entry(stratum).or_default().push((check.lane, file, n));
        }
        if unknown > 0 {
            report.add(&check.path, format!("{unknown} rows are of strata that the manifest does not know"));
        }
        let node = (u64::from(check.lane) + u64::from(self.first_nodes[split])) % u64::from(self.nodes.max(1));
        self.node_weights[split][node as usize] += check.weight;
    }

    pub(super) fn finish(
        &self,
        manifest: &Manifest,
        layout: &Layout,
        strata: &[StratumEntry],
        report: &mut VerifyReport,
    ) {
        let path = Manifest::path(manifest.version);
        let Some(declared) = &manifest.balance else {
            report.add(&path, "it has no balance".into());
            return;
        };
        let mut balance = declared.clone();
        self.check_strata(&path, strata, report);
        let names: HashMap<(u64, u32), &str> =
            strata.iter().map(|s| ((s.version, s.stratum), s.value.as_str())).collect();
        let last = self.versions.keys().map(|k| k.1).max().unwrap_or(1);
        for ((split, version), of) in &self.versions {
            let levels = levels(layout, of, |c| names.get(&(*version, c)).copied().unwrap_or(""));
            let Some(mine) = balance.splits.get_mut(*split) else { continue };
            for (found, was) in levels.into_iter().zip([&mut mine.nodes, &mut mine.lanes, &mut mine.files]) {
                check_level(&path, &layout.splits[*split].name, &found, was, *version == last, report);
            }
        }
        self.check_sizes(layout, &mut balance, &path, report);
        self.check_weights(&balance, &path, report);
        if matches!(layout.split_rule, SplitRule::Shares) {
            check_shares(layout, strata, &path, report);
        }
        if report.problems.is_empty() && !balance.holds() {
            report.add(&path, "its rows break the balance bounds".into());
        }
        report.balance = Some(balance);
    }

    /// Rows of each stratum in each split are those of the strata table.
    fn check_strata(&self, path: &str, strata: &[StratumEntry], report: &mut VerifyReport) {
        if !report.problems.is_empty() {
            return;
        }
        let mut wrong = 0;
        for entry in strata {
            let found = self.splits.get(&entry.split).and_then(|s| self.versions.get(&(*s, entry.version)));
            let found = found.and_then(|of| of.strata.get(&entry.stratum)).map_or(0, |l| l.iter().map(|x| x.2).sum());
            wrong += u64::from(found != entry.rows);
        }
        if wrong > 0 {
            report.add(path, format!("{wrong} strata have other rows in a split than the manifest says"));
        }
    }

    fn check_sizes(&self, layout: &Layout, balance: &mut Balance, path: &str, report: &mut VerifyReport) {
        let mut node_rows = vec![0_u64; layout.nodes as usize];
        for (s, split) in layout.splits.iter().enumerate() {
            let mut of_split = vec![0_u64; layout.nodes as usize];
            let versions = self.versions.iter().filter(|((split, _), _)| *split == s);
            for (lane, _, rows) in versions.flat_map(|(_, of)| of.strata.values().flatten()) {
                of_split[split.node_of(*lane, layout.nodes) as usize] += rows;
            }
            let Some(mine) = balance.splits.get_mut(s) else { continue };
            if report.problems.is_empty() && mine.node_rows != of_split {
                report.add(path, format!("node sizes of split \"{}\" are not the manifest's", split.name));
            }
            node_rows.iter_mut().zip(&of_split).for_each(|(sum, n)| *sum += n);
            mine.node_rows = of_split;
        }
        balance.node_rows = node_rows;
    }

    fn check_weights(&self, balance: &Balance, path: &str, report: &mut VerifyReport) {
        for (split, sums) in balance.splits.iter().zip(&self.node_weights) {
            let Some(weights) = &split.weights else { continue };
            let found: Vec<f64> = sums.iter().map(|s| *s as f64).collect();
            let mean = found.iter().sum::<f64>() / found.len().max(1) as f64;
            let range = found.iter().copied().fold(f64::MIN, f64::max) - found.iter().copied().fold(f64::MAX, f64::min);
            let spread = if mean > 0.0 { range / mean } else { 0.0 };
            let same_version = balance.versions <= 1;
            if report.problems.is_empty()
                && same_version
                && ((spread - weights.spread).abs() > ROUNDING || spread > weights.bound + ROUNDING)
            {
                report.add(
                    path,
                    format!(
                        "weights of split \"{}\" spread by {spread:.3e}, the manifest says {:.3e} of at most {:.3e}",
                        split.name, weights.spread, weights.bound
                    ),
                );
            }
        }
    }
}

fn levels<'a>(layout: &Layout, of: &OfVersion, name: impl Fn(u32) -> &'a str) -> [LevelBalance; 3] {
    let leaves = layout.lanes.saturating_mul(of.files_per_lane.max(1));
    let mut levels = [layout.nodes, layout.lanes, leaves].map(Level::new);
    for (stratum, places) in &of.strata {
        for level in &mut levels {
            let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
            for (lane, file, rows) in places {
                *counts.entry((lane + layout.lanes * file) % level.parts()).or_insert(0) += rows;
            }
            let counts: Vec<(u32, u64)> = counts.into_iter().collect();
            level.add_counted(name(*stratum), &counts);
        }
    }
    levels.map(|level| level.finish(of.rows, true))
}

/// Compares what was found with what the manifest says, and keeps what was found of the last version.
fn check_level(
    path: &str,
    split: &str,
    found: &LevelBalance,
    was: &mut LevelBalance,
    last: bool,
    report: &mut VerifyReport,
) {
    let guaranteed = was.guaranteed;
    let far = last && found.worst_deviation > was.worst_deviation + ROUNDING;
    if report.problems.is_empty() && ((guaranteed && !found.exact) || far) {
        report.add(
            path,
            format!(
                "split \"{split}\" over {} parts: stratum \"{}\" is {:.4} rows off its share, sizes are {} to {}; the manifest says {:.4}, {} to {}",
                found.parts, found.worst_stratum, found.worst_deviation, found.rows_min, found.rows_max,
                was.worst_deviation, was.rows_min, was.rows_max
            ),
        );
    }
    if last {
        *was = LevelBalance { guaranteed, ..found.clone() };
    }
}

/// Floor and ceiling of each stratum's share of each split, and of the whole, of the rows before resampling.
fn check_shares(layout: &Layout, strata: &[StratumEntry], path: &str, report: &mut VerifyReport) {
    if !report.problems.is_empty() {
        return;
    }
    let shares = match layout.shares() {
        Ok(shares) => shares,
        Err(e) => {
            report.add(path, format!("its shares are not shares: {e}"));
            return;
        }
    };
    let versions: BTreeSet<u64> = strata.iter().map(|s| s.version).collect();
    for version in versions {
        let mut totals = vec![0_u64; layout.splits.len()];
        let mut of_strata: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for entry in strata.iter().filter(|s| s.version == version) {
            let Some(s) = layout.splits.iter().position(|i| i.name == entry.split) else { continue };
            of_strata.entry(entry.stratum).or_insert_with(|| vec![0; totals.len()])[s] += entry.rows_in;
            totals[s] += entry.rows_in;
        }
        let fits = |counts: &[u64]| {
            let n: u64 = counts.iter().sum();
            counts.iter().enumerate().all(|(s, count)| {
                let (low, high) = shares.bounds(s, n);
                (low..=high).contains(count)
            })
        };
        let outside = of_strata.values().filter(|counts| !fits(counts)).count();
        if outside > 0 {
            report.add(path, format!("{outside} strata are outside their share of a split"));
        }
        if !fits(&totals) {
            report.add(path, format!("splits have {totals:?} rows, outside their shares"));
        }
    }
}
