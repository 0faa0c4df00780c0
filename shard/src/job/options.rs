//! What to shard and how.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::COPIES;
use crate::{
    assign::{resample::Resample, rounding::Shares},
    error::{Error, Result},
    schema::DatasetSchema,
    strata::{KeyColumn, KeySpec},
};

/// Lanes a node gets when none are asked for.
pub const LANES_PER_NODE: u32 = 8;
/// Most bins of a column.
const MAX_BINS: u32 = 1 << 16;

/// What becomes of strata with few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RarePolicy {
    /// They stay strata: at most one row a node, and rotated, so that no node gets more of them than another.
    #[default]
    Spread,
    /// They become one stratum, `(other)`.
    Merge,
    /// The job fails and lists them.
    Error,
}

/// What a group may not straddle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupScope {
    /// A split.
    #[default]
    Split,
    /// A split, and a node in it.
    Node,
}

/// One of several processes that do a job together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// 0 to `count` − 1.
    pub index: u32,
    /// Processes, at least 1.
    pub count: u32,
}

/// What to shard and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardOptions {
    /// Machines, at least 1.
    pub nodes: u32,
    /// Lanes, a multiple of `nodes`; `None` for [`LANES_PER_NODE`] a node.
    pub lanes: Option<u32>,
    /// Columns whose combination is the stratum; empty for none.
    pub stratify: Vec<String>,
    /// Stratify columns that enter by quantile bins, with the number of bins.
    pub bins: BTreeMap<String, u32>,
    /// Label columns of multi-label rows: columns of 0 and 1, or with a separator text columns of several labels.
    pub labels: Vec<String>,
    /// What stands between the labels of a text column.
    pub label_separator: Option<String>,
    /// What becomes of strata with fewer than `rare_below` rows.
    pub rare: RarePolicy,
    /// Rows below which a stratum is rare; `None` for one a node.
    pub rare_below: Option<u64>,
    /// Rows that every stratum is to have on every node, by copying; 0 for as many as there are.
    pub at_least: u64,
    /// Proportions that a column's values are brought to.
    pub resample: Option<Resample>,
    /// Splits that `resample` and `at_least` apply to; empty for the first.
    pub resample_splits: Vec<String>,
    /// Splits and their shares.
    pub splits: Shares,
    /// Column whose keyed hash decides the split, so that a row stays in its split when the data set grows.
    pub split_by: Option<String>,
    /// Column whose equal values stay together.
    pub group: Option<String>,
    /// What groups may not straddle.
    pub group_scope: GroupScope,
    /// Largest deviation of a part's rows from its share, as a part of the share, that groups may force.
    pub max_imbalance: Option<f64>,
    /// Column of weights whose sums are balanced over nodes.
    pub balance: Option<String>,
    /// Column of difficulty: a sidecar, and an order by it.
    pub difficulty: Option<String>,
    /// More columns to keep as sidecars.
    pub sidecars: Vec<String>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Decoded Arrow bytes that a file aims at.
    pub shard_bytes: u64,
    /// Memory to stay within, in bytes. It does not change the result.
    pub memory_bytes: u64,
    /// Which part of the work this process does first. It does not change the result.
    pub task: Option<Task>,
    /// Whether to add what is new in the input to the shards that are there.
    pub append: bool,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            lanes: None,
            stratify: Vec::new(),
            bins: BTreeMap::new(),
            labels: Vec::new(),
            label_separator: None,
            rare: RarePolicy::Spread,
            rare_below: None,
            at_least: 0,
            resample: None,
            resample_splits: Vec::new(),
            splits: Shares::default(),
            split_by: None,
            group: None,
            group_scope: GroupScope::Split,
            max_imbalance: None,
            balance: None,
            difficulty: None,
            sidecars: Vec::new(),
            seed: 0,
            shard_bytes: 128 << 20,
            memory_bytes: 1 << 30,
            task: None,
            append: false,
        }
    }
}

impl ShardOptions {
    /// Lanes, the default resolved.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        self.lanes.unwrap_or(self.nodes.saturating_mul(LANES_PER_NODE))
    }

    /// Rows below which a stratum is rare.
    #[must_use]
    pub fn rare_below(&self) -> u64 {
        self.rare_below.unwrap_or(u64::from(self.nodes))
    }

    /// Whether rows may be copied or left out.
    #[must_use]
    pub fn resamples(&self) -> bool {
        self.resample.is_some() || self.at_least > 0
    }

    /// Whether `split` is resampled.
    #[must_use]
    pub fn resamples_split(&self, split: &str) -> bool {
        self.resamples()
            && match self.resample_splits.as_slice() {
                [] => self.splits.names().first().is_some_and(|first| first == split),
                names => names.iter().any(|n| n == split),
            }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.nodes == 0 || self.nodes > 1 << 16 {
            return Err(Error::usage(format!("--nodes {} is out of range", self.nodes), "give 1 to 65536"));
        }
        let lanes = self.lanes();
        if lanes == 0 || !lanes.is_multiple_of(self.nodes) || lanes > 1 << 20 {
            return Err(Error::usage(
                format!("--lanes {lanes} is not a multiple of --nodes {} up to 1048576", self.nodes),
                format!("give {} or another multiple of {}", self.nodes * LANES_PER_NODE, self.nodes),
            ));
        }
        if self.shard_bytes < 1 << 10 {
            return Err(Error::usage(format!("--shard-bytes {} is too small", self.shard_bytes), "give at least 1KiB"));
        }
        if self.memory_bytes / COPIES < self.shard_bytes {
            return Err(Error::usage(
                format!("--memory {} is less than {COPIES} × --shard-bytes {}", self.memory_bytes, self.shard_bytes),
                "give more memory or smaller shards",
            ));
        }
        if let Some(task) = self.task
            && task.index >= task.count
        {
            return Err(Error::usage(
                format!("--task {}/{} is out of range", task.index, task.count),
                format!("tasks are 0/{0} to {1}/{0}", task.count.max(1), task.count.max(1) - 1),
            ));
        }
        self.check_combinations()
    }

    fn check_combinations(&self) -> Result<()> {
        if let Some((column, bins)) = self.bins.iter().find(|(_, b)| !(2..=MAX_BINS).contains(*b)) {
            return Err(Error::usage(
                format!("--bins {column}={bins} is out of range"),
                format!("give 2 to {MAX_BINS} bins"),
            ));
        }
        if let Some(column) = self.bins.keys().find(|c| !self.stratify.contains(c)) {
            return Err(Error::usage(
                format!("--bins names \"{column}\", which is no stratify column"),
                format!("add it to --stratify: {}", [self.stratify.clone(), vec![column.clone()]].concat().join(",")),
            ));
        }
        if self.label_separator.as_deref().is_some_and(|s| s.is_empty() || self.labels.is_empty()) {
            return Err(Error::usage(
                "--label-separator needs --labels and a text that stands between labels",
                "write --labels genres --label-separator ,",
            ));
        }
        if self.split_by.is_some() && self.group.is_some() {
            return Err(Error::usage(
                "--stable-split and --group both decide the split",
                "for stable splits that keep groups whole, give the group column to --stable-split alone",
            ));
        }
        if self.group.is_none() && (self.group_scope == GroupScope::Node || self.max_imbalance.is_some()) {
            return Err(Error::usage("--group-scope and --max-imbalance are about groups", "give --group COLUMN"));
        }
        if self.group_scope == GroupScope::Node && (self.balance.is_some() || !self.labels.is_empty()) {
            return Err(Error::usage(
                "where groups stay on one node there is no choice left to balance weights or labels by",
                "leave out --balance and --labels, or give --group-scope split",
            ));
        }
        if self.group_scope == GroupScope::Node && self.resamples() {
            return Err(Error::usage(
                "where groups stay on one node rows can't be copied to others or left out evenly",
                "leave out --resample and --at-least, or give --group-scope split",
            ));
        }
        if self.rare == RarePolicy::Merge && !self.labels.is_empty() {
            return Err(Error::usage(
                "--rare merge would lose the labels of the combinations that it merges",
                "give --rare spread: rare combinations are spread by their labels",
            ));
        }
        if self.balance.is_some() && !self.labels.is_empty() {
            return Err(Error::usage(
                "--balance and --labels both decide which node a left-over row goes to",
                "give one of them",
            ));
        }
        if let Some(resample) = &self.resample
            && !self.stratify.contains(&resample.column)
        {
            return Err(Error::usage(
                format!("--resample names \"{}\", which is no stratify column", resample.column),
                format!(
                    "add it: --stratify {}",
                    [self.stratify.clone(), vec![resample.column.clone()]].concat().join(",")
                ),
            ));
        }
        if let Some(split) = self.resample_splits.iter().find(|s| !self.splits.names().contains(s)) {
            return Err(Error::usage(
                format!("--resample-splits names \"{split}\", which is no split"),
                crate::error::nearest_name(split, self.splits.names().iter().map(String::as_str)),
            ));
        }
        if self.append && self.group.is_some() {
            return Err(Error::usage(
                "--append can't keep groups whole: a group of an earlier version would be assigned anew",
                "give the group column to --stable-split, which keeps it in its split over all versions",
            ));
        }
        if let Some(name) = self.sidecars.iter().enumerate().find_map(|(i, name)| {
            let taken = ["weight", "difficulty"].contains(&name.as_str()) || name.starts_with("order_");
            (taken || self.sidecars[..i].contains(name)).then_some(name)
        }) {
            return Err(Error::usage(
                format!("--sidecar {name}: a sidecar of that name would be another's"),
                "name each column once, and rename weight, difficulty and order_… at ingest",
            ));
        }
        if self.append && self.resamples() {
            return Err(Error::usage(
                "--append can't resample: proportions of one version are not those of the union",
                "shard the whole anew, or leave out --resample and --at-least",
            ));
        }
        Ok(())
    }

    /// Checks every column that the options name against `schema`; the bins have no edges yet.
    pub(super) fn check_columns(&self, schema: &DatasetSchema) -> Result<KeySpec> {
        let spec = self.key(schema, &BTreeMap::new())?;
        if let Some(name) = &self.balance {
            let column = schema.column(name, "--balance")?;
            if !crate::weights::is_weight(column.column_type.to_arrow()) {
                return Err(Error::usage(
                    format!("--balance: column \"{name}\" has type {}, weights are numbers", column.column_type),
                    "give a column of integers or floats",
                ));
            }
        }
        for (option, name) in self.sidecar_columns().into_iter().map(|s| (s.option, s.column)) {
            let column = schema.column(&name, option)?;
            if !super::sidecars::is_fixed(column.column_type.to_arrow()) {
                return Err(Error::usage(
                    format!("{option}: column \"{name}\" has type {}, sidecars hold numbers", column.column_type),
                    "give a column of integers, floats, truth values, dates or times",
                ));
            }
        }
        for (option, name) in [("--stable-split", &self.split_by), ("--group", &self.group)] {
            if let Some(name) = name {
                let column = schema.column(name, option)?;
                if column.column_type.to_arrow().is_floating() {
                    return Err(Error::usage(
                        format!("{option}: column \"{name}\" has type {}", column.column_type),
                        "give an identifier: text, an integer, a date",
                    ));
                }
            }
        }
        Ok(spec)
    }

    /// The key columns, with the `edges` of binned ones.
    pub(super) fn key(&self, schema: &DatasetSchema, edges: &BTreeMap<String, Vec<f64>>) -> Result<KeySpec> {
        let mut columns: Vec<KeyColumn> = (self.stratify.iter().cloned())
            .map(|column| match self.bins.get(&column) {
                Some(_) => KeyColumn::Bins { edges: edges.get(&column).cloned().unwrap_or_default(), column },
                None => KeyColumn::Value { column },
            })
            .collect();
        columns.extend(self.labels.iter().cloned().map(|column| match &self.label_separator {
            Some(separator) => KeyColumn::LabelSet { column, separator: separator.clone() },
            None => KeyColumn::Flag { column },
        }));
        KeySpec::new(schema, columns)
    }

    /// The sidecars, in order.
    pub(super) fn sidecar_columns(&self) -> Vec<SidecarColumn> {
        let mut sidecars = Vec::new();
        let mut add = |option, name: &str, column: &String, ordered| {
            sidecars.push(SidecarColumn { option, name: name.to_owned(), column: column.clone(), ordered });
        };
        if let Some(column) = &self.balance {
            add("--balance", "weight", column, false);
        }
        if let Some(column) = &self.difficulty {
            add("--difficulty", "difficulty", column, true);
        }
        for column in &self.sidecars {
            add("--sidecar", column, column, false);
        }
        sidecars
    }

    /// The options that change the output, as the manifest keeps them.
    pub(super) fn semantic(&self) -> serde_json::Value {
        let splits: BTreeMap<&str, String> =
            self.splits.names().iter().enumerate().map(|(s, n)| (n.as_str(), self.splits.fraction(s))).collect();
        serde_json::json!({
            "nodes": self.nodes,
            "lanes": self.lanes(),
            "stratify": self.stratify,
            "bins": self.bins,
            "labels": self.labels,
            "label_separator": self.label_separator,
            "rare": self.rare,
            "rare_below": self.rare_below(),
            "at_least": self.at_least,
            "resample": self.resample,
            "resample_splits": self.resample_splits,
            "split_order": self.splits.names(),
            "splits": splits,
            "stable_split": self.split_by,
            "group": self.group,
            "group_scope": self.group_scope,
            "balance": self.balance,
            "difficulty": self.difficulty,
            "sidecars": self.sidecars,
            "seed": self.seed,
            "shard_bytes": self.shard_bytes,
        })
    }
}

/// A column that is kept beside the shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SidecarColumn {
    pub(super) option: &'static str,
    /// Name of the sidecar.
    pub(super) name: String,
    /// Column of the data set.
    pub(super) column: String,
    /// Whether positions in order of it are kept as well.
    pub(super) ordered: bool,
}
