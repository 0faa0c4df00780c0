//! How evenly rows lie: sizes and class deviations of nodes, lanes and files in each split.

use serde::{Deserialize, Serialize};

use crate::manifest::Layout;

/// Balance of a shard set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// Number of strata.
    pub strata: u64,
    /// Strata that have rows, but fewer than nodes, in their largest split: they can't be on every node.
    pub rare_strata: u64,
    /// Rows of each node over all splits.
    pub node_rows: Vec<u64>,
    /// Each split.
    pub splits: Vec<SplitBalance>,
}

/// Balance inside one split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitBalance {
    /// Its name.
    pub name: String,
    /// Rows of each node, node 0 first.
    pub node_rows: Vec<u64>,
    /// Over N nodes.
    pub nodes: LevelBalance,
    /// Over L lanes.
    pub lanes: LevelBalance,
    /// Over L·F files.
    pub files: LevelBalance,
}

/// Balance of one level, over `parts` nodes, lanes or files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelBalance {
    /// Number of parts m.
    pub parts: u32,
    /// Rows of the smallest part.
    pub rows_min: u64,
    /// Rows of the largest part.
    pub rows_max: u64,
    /// Largest |count − n_c/m| over strata and parts, in rows; below 1 by construction.
    pub worst_deviation: f64,
    /// The stratum that has it.
    pub worst_stratum: String,
    /// Whether every count is ⌊n_c/m⌋ or ⌈n_c/m⌉ and sizes differ by at most 1: the guarantee, checked in integers.
    pub exact: bool,
}

impl Balance {
    /// From the rows of every stratum on every leaf of every split.
    ///
    /// `rows(split, stratum)` gives the counts of the split's L·F leaves (leaf = lane + L · file).
    pub fn new(layout: &Layout, names: &[String], mut rows: impl FnMut(usize, usize) -> Vec<u64>) -> Self {
        let mut largest = vec![0_u64; names.len()];
        let mut node_rows = vec![0; layout.nodes as usize];
        let mut splits = Vec::with_capacity(layout.splits.len());
        for (s, split) in layout.splits.iter().enumerate() {
            let leaves = layout.lanes * split.files_per_lane.max(1);
            let mut levels = [layout.nodes, layout.lanes, leaves].map(Level::new);
            for (c, name) in names.iter().enumerate() {
                let by_leaf = rows(s, c);
                let total: u64 = by_leaf.iter().sum();
                largest[c] = largest[c].max(total);
                for level in &mut levels {
                    level.add(&by_leaf, total, name);
                }
            }
            let [nodes, lanes, files] = levels;
            let mut of_nodes = vec![0; layout.nodes as usize];
            for (part, rows) in nodes.sizes.iter().enumerate() {
                let node = split.node_of(part as u32, layout.nodes) as usize;
                of_nodes[node] += rows;
                node_rows[node] += rows;
            }
            splits.push(SplitBalance {
                name: split.name.clone(),
                node_rows: of_nodes,
                nodes: nodes.finish(),
                lanes: lanes.finish(),
                files: files.finish(),
            });
        }
        Self {
            strata: names.len() as u64,
            rare_strata: largest.iter().filter(|n| **n > 0 && **n < u64::from(layout.nodes)).count() as u64,
            node_rows,
            splits,
        }
    }

    /// Whether every bound of the guarantee holds, and machine sizes over all splits differ by at most 1.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let range = self.node_rows.iter().max().unwrap_or(&0) - self.node_rows.iter().min().unwrap_or(&0);
        range <= 1 && self.splits.iter().all(|s| s.nodes.exact && s.lanes.exact && s.files.exact)
    }
}

struct Level {
    sizes: Vec<u64>,
    worst: f64,
    worst_stratum: String,
    exact: bool,
}

impl Level {
    fn new(parts: u32) -> Self {
        Self { sizes: vec![0; parts.max(1) as usize], worst: 0.0, worst_stratum: String::new(), exact: true }
    }

    fn add(&mut self, by_leaf: &[u64], total: u64, name: &str) {
        let m = self.sizes.len();
        let mut counts = vec![0_u64; m];
        for (leaf, rows) in by_leaf.iter().enumerate() {
            counts[leaf % m] += rows;
        }
        let (floor, ceiling) = (total / m as u64, total.div_ceil(m as u64));
        let mean = total as f64 / m as f64;
        for (size, count) in self.sizes.iter_mut().zip(counts) {
            *size += count;
            self.exact &= count == floor || count == ceiling;
            let deviation = (count as f64 - mean).abs();
            if deviation > self.worst {
                self.worst = deviation;
                self.worst_stratum = name.to_owned();
            }
        }
    }

    fn finish(self) -> LevelBalance {
        let (min, max) = (self.sizes.iter().min().copied().unwrap_or(0), self.sizes.iter().max().copied().unwrap_or(0));
        LevelBalance {
            parts: self.sizes.len() as u32,
            rows_min: min,
            rows_max: max,
            worst_deviation: self.worst,
            worst_stratum: self.worst_stratum,
            exact: self.exact && max - min <= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::SplitInfo;

    #[test]
    fn a_stratum_on_one_node_is_seen() {
        let split = SplitInfo { name: "train".into(), share: "1/1".into(), rows: 8, first_node: 0, files_per_lane: 1 };
        let layout = Layout { nodes: 2, lanes: 4, factors: vec![2, 2], stratify: vec![], splits: vec![split] };
        let names = ["even".to_owned(), "skewed".to_owned()];
        let good = Balance::new(&layout, &names, |_, _| vec![1, 1, 1, 1]);
        assert!(good.is_exact());
        assert_eq!(good.node_rows, [4, 4]);
        let bad = Balance::new(&layout, &names, |_, c| if c == 0 { vec![1; 4] } else { vec![2, 0, 2, 0] });
        assert!(!bad.is_exact());
        let nodes = &bad.splits[0].nodes;
        assert_eq!((nodes.worst_deviation, nodes.worst_stratum.as_str()), (2.0, "skewed"));
    }
}
