//! What the page says, gathered from the tables. Sums saturate: tables come from storage and may hold anything.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use crate::{
    manifest::{Layout, Manifest},
    tables::{FileEntry, NodeStratumEntry, StratumEntry},
};

/// A stratum over all versions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stratum<'a> {
    pub name: &'a str,
    /// One a split.
    pub splits: Vec<Rows>,
}

/// Rows of a stratum in a split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub input: u64,
    pub left_out: u64,
    pub copies: u64,
    pub shards: u64,
}

/// Sum that stops at the largest number.
pub(super) fn sum(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0, u64::saturating_add)
}

impl Rows {
    fn add(&mut self, entry: &StratumEntry) {
        self.input = self.input.saturating_add(entry.rows_in);
        self.left_out = self.left_out.saturating_add(entry.rows_in.saturating_sub(entry.rows));
        self.copies = self.copies.saturating_add(entry.rows.saturating_sub(entry.rows_in));
        self.shards = self.shards.saturating_add(entry.rows);
    }

    /// Rows left out and copies together.
    pub fn changed(&self) -> u64 {
        self.left_out.saturating_add(self.copies)
    }
}

impl Stratum<'_> {
    /// Rows in the split that has most.
    pub fn largest(&self) -> u64 {
        self.splits.iter().map(|s| s.shards).max().unwrap_or(0)
    }

    /// Rows of the input.
    pub fn input(&self) -> u64 {
        sum(self.splits.iter().map(|s| s.input))
    }
}

/// Strata in order of rows of the input, most first.
pub(super) fn strata<'a>(entries: &'a [StratumEntry], layout: &Layout) -> Vec<Stratum<'a>> {
    let place = split_places(layout);
    // Versions number their strata anew, so over several the name is all that tells which is which.
    let numbered = entries.iter().all(|e| e.version == entries.first().map_or(0, |f| f.version));
    let mut index: HashMap<(u32, &str), usize> = HashMap::new();
    let mut strata: Vec<Stratum<'a>> = Vec::new();
    for entry in entries {
        let Some(split) = place.get(entry.split.as_str()) else { continue };
        let at = *index.entry((if numbered { entry.stratum } else { 0 }, &entry.value)).or_insert(strata.len());
        if at == strata.len() {
            strata.push(Stratum { name: &entry.value, splits: vec![Rows::default(); layout.splits.len()] });
        }
        strata[at].splits[*split].add(entry);
    }
    strata.sort_by_cached_key(|c| (Reverse((c.input(), c.largest())), c.name));
    strata
}

fn split_places(layout: &Layout) -> HashMap<&str, usize> {
    layout.splits.iter().enumerate().map(|(s, split)| (split.name.as_str(), s)).collect()
}

/// Rows of one stratum on each node of a split.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OnNodes<'a> {
    pub name: &'a str,
    pub rows: u64,
    pub by_node: Vec<u64>,
}

impl OnNodes<'_> {
    /// (rows of `node` − mean) · nodes, exactly.
    fn scaled(&self, rows: u64) -> i128 {
        i128::from(rows) * self.by_node.len() as i128 - i128::from(self.rows)
    }

    /// Rows of each node beyond the mean.
    pub fn deviations(&self) -> impl Iterator<Item = f64> {
        let nodes = self.by_node.len().max(1) as f64;
        self.by_node.iter().map(move |rows| self.scaled(*rows) as f64 / nodes)
    }

    /// The first node with the largest deviation, and that deviation times the nodes.
    pub fn worst(&self) -> (usize, i128) {
        let scaled = self.by_node.iter().map(|rows| self.scaled(*rows)).enumerate();
        scaled.min_by_key(|(node, d)| (Reverse(d.unsigned_abs()), *node)).unwrap_or((0, 0))
    }

    /// The largest deviation, with its sign.
    pub fn worst_deviation(&self) -> f64 {
        self.worst().1 as f64 / self.by_node.len().max(1) as f64
    }
}

/// Name of a stratum, and (node, rows) in any order.
type ByNode<'a> = (&'a str, Vec<(u32, u64)>);

/// The largest strata of each split by node, most rows first; `None` where the table is of another number of nodes, as
/// after a set was laid out anew.
pub(super) fn on_nodes<'a>(
    manifest: &Manifest,
    layout: &Layout,
    entries: &'a [NodeStratumEntry],
) -> Option<Vec<Vec<OnNodes<'a>>>> {
    if manifest.options.get("layout_of").is_some() {
        return None;
    }
    let place = split_places(layout);
    let mut cells: BTreeMap<(usize, u32), ByNode<'a>> = BTreeMap::new();
    for entry in entries {
        if let Some(split) = place.get(entry.split.as_str()) {
            let cell = cells.entry((*split, entry.stratum)).or_insert_with(|| (&entry.value, Vec::new()));
            cell.1.push((entry.node, entry.rows));
        }
    }
    let mut of_splits: Vec<Vec<OnNodes<'a>>> = layout.splits.iter().map(|_| Vec::new()).collect();
    for ((split, _), (name, mut nodes)) in cells {
        nodes.sort_unstable();
        if !nodes.iter().map(|(node, _)| *node).eq(0..layout.nodes) {
            return None;
        }
        let by_node: Vec<u64> = nodes.into_iter().map(|(_, rows)| rows).collect();
        let rows = sum(by_node.iter().copied());
        if rows > 0 {
            of_splits[split].push(OnNodes { name, rows, by_node });
        }
    }
    for strata in &mut of_splits {
        strata.sort_by(|a, b| (b.rows, a.name).cmp(&(a.rows, b.name)));
    }
    Some(of_splits)
}

/// A stratum that has not its exact share on every node of a split.
#[derive(Debug, Clone, PartialEq)]
pub struct WorstStratum<'a> {
    /// The split.
    pub split: &'a str,
    /// Its value.
    pub value: &'a str,
    /// Its rows in the split.
    pub rows: u64,
    /// The node where it deviates most, the first of such.
    pub node: usize,
    /// Its rows there.
    pub node_rows: u64,
    /// They less its share `rows` / nodes, in rows.
    pub deviation: f64,
}

/// Strata that deviate, the largest deviation first, and of equal ones the largest stratum.
pub(super) fn worst<'a>(of_splits: &[Vec<OnNodes<'a>>], layout: &'a Layout) -> Vec<WorstStratum<'a>> {
    let mut all: Vec<(u128, WorstStratum<'a>)> = Vec::new();
    for (strata, split) in of_splits.iter().zip(&layout.splits) {
        for stratum in strata {
            let (node, scaled) = stratum.worst();
            if scaled != 0 {
                let worst = WorstStratum {
                    split: &split.name,
                    value: stratum.name,
                    rows: stratum.rows,
                    node,
                    node_rows: stratum.by_node.get(node).copied().unwrap_or(0),
                    deviation: stratum.worst_deviation(),
                };
                all.push((scaled.unsigned_abs(), worst));
            }
        }
    }
    all.sort_by_key(|(scaled, worst)| Reverse((*scaled, worst.rows)));
    all.into_iter().map(|(_, worst)| worst).collect()
}

/// Bytes of the smallest and the largest node, lane and file of a split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub files: u64,
    pub bytes: u64,
    /// (least, most) of nodes, lanes, files.
    pub levels: [(u64, u64); 3],
}

/// Sizes of each split.
pub(super) fn sizes(files: &[FileEntry], layout: &Layout) -> Vec<Sizes> {
    let mut of_splits: BTreeMap<&str, Vec<&FileEntry>> = BTreeMap::new();
    for file in files {
        of_splits.entry(&file.split).or_default().push(file);
    }
    let of_split = |split: &crate::manifest::SplitInfo| {
        let files = of_splits.get(split.name.as_str()).map_or(&[][..], Vec::as_slice);
        let (mut nodes, mut lanes): (BTreeMap<u32, u64>, BTreeMap<u32, u64>) = Default::default();
        for file in files {
            for (of, part) in [(&mut nodes, split.node_of(file.lane, layout.nodes)), (&mut lanes, file.lane)] {
                let bytes = of.entry(part).or_insert(0);
                *bytes = bytes.saturating_add(file.bytes);
            }
        }
        // A part without a file has none of the bytes.
        let range = |parts: &BTreeMap<u32, u64>, all: u32| {
            let least = if (parts.len() as u64) < u64::from(all) { None } else { parts.values().min() };
            (least.copied().unwrap_or(0), parts.values().max().copied().unwrap_or(0))
        };
        let of_files = files.iter().map(|f| f.bytes);
        Sizes {
            files: files.len() as u64,
            bytes: sum(of_files.clone()),
            levels: [
                range(&nodes, layout.nodes),
                range(&lanes, layout.lanes),
                (of_files.clone().min().unwrap_or(0), of_files.max().unwrap_or(0)),
            ],
        }
    };
    layout.splits.iter().map(of_split).collect()
}
