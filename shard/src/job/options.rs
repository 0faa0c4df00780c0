//! What to shard and how.

use std::collections::BTreeMap;

use super::COPIES;
use crate::{
    assign::rounding::Shares,
    error::{Error, Result},
};

/// Lanes a node gets when none are asked for.
pub const LANES_PER_NODE: u32 = 8;
/// What to shard and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardOptions {
    /// Machines, at least 1.
    pub nodes: u32,
    /// Lanes, a multiple of `nodes`; `None` for [`LANES_PER_NODE`] a node.
    pub lanes: Option<u32>,
    /// Columns whose combination is the stratum; empty for none.
    pub stratify: Vec<String>,
    /// Splits and their shares.
    pub splits: Shares,
    /// Seed of every random choice.
    pub seed: u64,
    /// Decoded Arrow bytes that a file aims at.
    pub shard_bytes: u64,
    /// Memory to stay within, in bytes. It does not change the result.
    pub memory_bytes: u64,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            lanes: None,
            stratify: Vec::new(),
            splits: Shares::default(),
            seed: 0,
            shard_bytes: 128 << 20,
            memory_bytes: 1 << 30,
        }
    }
}

impl ShardOptions {
    pub(super) fn lanes(&self) -> u32 {
        self.lanes.unwrap_or(self.nodes.saturating_mul(LANES_PER_NODE))
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
        Ok(())
    }

    /// The options that change the output, as the manifest keeps them.
    pub(super) fn semantic(&self) -> serde_json::Value {
        let splits: BTreeMap<&str, String> =
            self.splits.names().iter().enumerate().map(|(s, n)| (n.as_str(), self.splits.fraction(s))).collect();
        serde_json::json!({
            "nodes": self.nodes,
            "lanes": self.lanes(),
            "stratify": self.stratify,
            "split_order": self.splits.names(),
            "splits": splits,
            "seed": self.seed,
            "shard_bytes": self.shard_bytes,
        })
    }
}
