//! How evenly rows lie: sizes and class deviations of nodes, lanes and files in each split; sums of weights; labels; how
//! far the splits' classes drift apart.

use serde::{Deserialize, Serialize};

/// Balance of a shard set. Where versions were added, `node_rows` are of all, the rest of what the last one added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// Number of strata.
    pub strata: u64,
    /// Strata that have rows, but fewer than nodes, in their largest split: they can't be on every node.
    pub rare_strata: u64,
    /// Rare combinations that were merged into one stratum.
    pub merged_strata: u64,
    /// Rows of each node over all splits and versions.
    pub node_rows: Vec<u64>,
    /// Whether node sizes over all splits are within 1 row by construction.
    pub node_rows_guaranteed: bool,
    /// Versions that the set has grown by; over all of them a class deviates by less than the sum of the versions'
    /// worst deviations, which `union_deviation_bound` is.
    pub versions: u64,
    /// In rows, at nodes.
    pub union_deviation_bound: f64,
    /// Each split.
    pub splits: Vec<SplitBalance>,
    /// What groups forced, where there are groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<GroupReport>,
}

/// Balance inside one split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitBalance {
    /// Its name.
    pub name: String,
    /// Rows of the input.
    pub rows_in: u64,
    /// Rows left out by resampling.
    pub left_out: u64,
    /// Copies made by resampling.
    pub copies: u64,
    /// Rows of each node, node 0 first, of all versions.
    pub node_rows: Vec<u64>,
    /// Over N nodes.
    pub nodes: LevelBalance,
    /// Over L lanes.
    pub lanes: LevelBalance,
    /// Over L·F files.
    pub files: LevelBalance,
    /// Total variation distance between the strata of this split and those of the whole input: half the sum over strata
    /// of |share in the split − share in the whole|, 0 to 1.
    pub drift: f64,
    /// Sums of weights, where a weight column is balanced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightBalance>,
    /// Labels, where rows have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelReport>,
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
    /// Largest |count − n_c/m| over strata and parts, in rows.
    pub worst_deviation: f64,
    /// The stratum that has it.
    pub worst_stratum: String,
    /// Whether every count is ⌊n_c/m⌋ or ⌈n_c/m⌉ and sizes differ by at most 1, in integers.
    pub exact: bool,
    /// Whether it must be so, by construction.
    pub guaranteed: bool,
}

/// Sums of weights of the nodes of a split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightBalance {
    /// The column.
    pub column: String,
    /// Sum of each node, node 0 first, in the column's unit.
    pub node_sums: Vec<f64>,
    /// (largest − smallest sum) / mean.
    pub spread: f64,
    /// Proven bound of the spread.
    pub bound: f64,
    /// What the heaviest row forces on any assignment.
    pub lower_bound: f64,
}

/// Labels over the nodes of a split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelReport {
    /// Distinct labels.
    pub labels: u64,
    /// Largest |rows with a label − share of a node| over labels and nodes, in rows.
    pub worst_deviation: f64,
}

/// What groups forced on the parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupReport {
    /// The column.
    pub column: String,
    /// Whether a part is a node of a split, not only a split.
    pub on_one_node: bool,
    /// Number of groups.
    pub groups: u64,
    /// Rows of the largest group.
    pub largest_group: u64,
    /// Largest |count − share| over strata and parts, in rows.
    pub class_deviation: f64,
    /// What the largest group forces that to be.
    pub class_lower_bound: f64,
    /// Largest |rows − share| over parts.
    pub size_deviation: f64,
    /// What the largest group forces that to be.
    pub size_lower_bound: f64,
    /// The largest part's size deviation as a part of its share.
    pub imbalance: f64,
}

impl Balance {
    /// Whether everything that is guaranteed holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        let range = self.node_rows.iter().max().unwrap_or(&0) - self.node_rows.iter().min().unwrap_or(&0);
        let levels = self.splits.iter().flat_map(|s| [&s.nodes, &s.lanes, &s.files]);
        (!self.node_rows_guaranteed || range <= 1) && levels.into_iter().all(|l| l.exact || !l.guaranteed)
    }
}

/// One level, while strata are added.
#[derive(Debug)]
pub(crate) struct Level {
    parts: u32,
    worst: f64,
    worst_stratum: String,
    exact: bool,
    sizes: Vec<u64>,
}

impl Level {
    pub(crate) fn new(parts: u32) -> Self {
        Self { parts: parts.max(1), worst: 0.0, worst_stratum: String::new(), exact: true, sizes: Vec::new() }
    }

    pub(crate) fn parts(&self) -> u32 {
        self.parts
    }

    fn see(&mut self, deviation: f64, name: &str) {
        if deviation > self.worst {
            self.worst = deviation;
            self.worst_stratum.clear();
            self.worst_stratum.push_str(name);
        }
    }

    /// A stratum of `total` rows that is dealt floor and ceiling.
    pub(crate) fn add_dealt(&mut self, name: &str, total: u64) {
        let m = u64::from(self.parts);
        let left = total % m;
        if left > 0 {
            self.see(left.max(m - left) as f64 / m as f64, name);
        }
    }

    /// A stratum with rows `counts[..].1` on parts `counts[..].0`, each part once, none on the others.
    pub(crate) fn add_counted(&mut self, name: &str, counts: &[(u32, u64)]) {
        let m = u64::from(self.parts);
        self.sizes.resize(self.parts as usize, 0);
        let total: u64 = counts.iter().map(|c| c.1).sum();
        let (floor, ceiling) = (total / m, total.div_ceil(m));
        let mean = total as f64 / m as f64;
        for (part, count) in counts {
            if let Some(size) = self.sizes.get_mut(*part as usize) {
                *size += count;
            }
            self.exact &= *count == floor || *count == ceiling;
            self.see((*count as f64 - mean).abs(), name);
        }
        if (counts.len() as u64) < m {
            self.exact &= floor == 0;
            self.see(mean, name);
        }
    }

    /// A stratum whose parts have some of `values` rows, where the mean is `mean`.
    pub(crate) fn add_values(&mut self, name: &str, mean: f64, values: impl Iterator<Item = u64>) {
        for value in values {
            self.see((value as f64 - mean).abs(), name);
        }
    }

    /// Of parts with the sizes that were counted, or `rows` dealt evenly where none were.
    pub(crate) fn finish(self, rows: u64, guaranteed: bool) -> LevelBalance {
        let m = u64::from(self.parts);
        let sizes = self.sizes.iter().min().copied().zip(self.sizes.iter().max().copied());
        let (rows_min, rows_max) = sizes.unwrap_or((rows / m, rows.div_ceil(m)));
        self.finish_sized(rows_min, rows_max, guaranteed)
    }

    pub(crate) fn finish_sized(self, rows_min: u64, rows_max: u64, guaranteed: bool) -> LevelBalance {
        LevelBalance {
            parts: self.parts,
            rows_min,
            rows_max,
            worst_deviation: self.worst,
            worst_stratum: self.worst_stratum,
            exact: self.exact && rows_max - rows_min <= 1 && (guaranteed || !self.sizes.is_empty()),
            guaranteed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dealt_and_what_is_counted_agree() {
        let mut dealt = Level::new(4);
        let mut counted = Level::new(4);
        for (name, counts) in [("a", [2, 2, 1, 1]), ("b", [0, 0, 1, 0]), ("c", [3, 3, 3, 3])] {
            dealt.add_dealt(name, counts.iter().sum());
            let sparse: Vec<(u32, u64)> = (0..4).zip(counts).filter(|c| c.1 > 0).collect();
            counted.add_counted(name, &sparse);
        }
        let (dealt, counted) = (dealt.finish(19, true), counted.finish(19, true));
        assert_eq!((dealt.worst_deviation, dealt.worst_stratum.as_str()), (0.75, "b"));
        assert_eq!((counted.worst_deviation, counted.worst_stratum.as_str()), (0.75, "b"));
        assert!(dealt.exact && counted.exact);
        assert_eq!((dealt.rows_min, dealt.rows_max), (counted.rows_min, counted.rows_max));
    }

    #[test]
    fn a_stratum_on_one_node_is_seen() {
        let mut level = Level::new(2);
        level.add_counted("skewed", &[(0, 4)]);
        level.add_counted("other", &[(1, 4)]);
        let level = level.finish(8, true);
        assert!(!level.exact);
        assert_eq!((level.worst_deviation, level.worst_stratum.as_str(), level.rows_max), (2.0, "skewed", 4));
    }
}
