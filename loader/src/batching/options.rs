//! Settings of how an epoch is cut into steps.

use serde::{Deserialize, Serialize};

use super::{budget::Budget, packing::Packing};
use crate::error::{Error, Result};

/// Rows of a window, for each micro-batch of a step: 32 steps of 32 rows.
const WINDOW_ROWS: u64 = 1024;
/// Rows of a window of bins.
const PACKED_WINDOW_ROWS: u64 = 4096;

/// How an epoch is cut into steps.
//
// Fields are in byte order of their names, after the tag: the JSON is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Batching {
    /// `global_batch` samples a step.
    #[default]
    Fixed,
    /// Micro-batches of rows of similar lengths, each within a budget of padded tokens; a step is so many of them.
    Budget {
        /// The budget. Its `micro_batches` are those of a step over all ranks, and a multiple of the nodes where windows
        /// are a node's.
        budget: Budget,
        /// The length of a row, in the unit of the budget: a column of integers.
        lengths: String,
        /// Whether the step that has the longest row of the epoch comes first, so that what doesn't fit in memory fails
        /// at once.
        #[serde(default)]
        longest_first: bool,
        /// Whose rows are batched together.
        #[serde(default)]
        scope: Scope,
        /// Rows that are sorted by length together, at least 1. Default 1024 for each micro-batch of a step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window_rows: Option<u64>,
    },
    /// Rows packed into bins of a number of tokens; a step is `global_batch` bins.
    Packed {
        /// The length of a row, in tokens: a column of integers.
        lengths: String,
        /// The bins.
        packing: Packing,
        /// Rows that are packed together, at least 1. Default 4096.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window_rows: Option<u64>,
    },
}

/// Whose rows are batched together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Those of all nodes: the least padding, and every rank reads every lane.
    #[default]
    All,
    /// Those of each node by themselves: ranks of a node read its own lanes only.
    Node,
}

impl Batching {
    /// The column of lengths.
    #[must_use]
    pub fn lengths(&self) -> Option<&str> {
        match self {
            Self::Fixed => None,
            Self::Budget { lengths, .. } | Self::Packed { lengths, .. } => Some(lengths),
        }
    }

    /// Rows of a window over all groups.
    pub(crate) fn window_rows(&self) -> u64 {
        match self {
            Self::Fixed => 1,
            Self::Budget { window_rows, budget, .. } => {
                window_rows.unwrap_or(WINDOW_ROWS.saturating_mul(u64::from(budget.micro_batches)))
            }
            Self::Packed { window_rows, .. } => window_rows.unwrap_or(PACKED_WINDOW_ROWS),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Fixed => return Ok(()),
            Self::Budget { budget, .. } => budget.validate()?,
            Self::Packed { packing, .. } => packing.validate()?,
        }
        match self.window_rows() {
            1..=0xFFFF_FFFF => Ok(()),
            rows => Err(Error::usage(
                format!("window_rows is {rows}"),
                "give the number of rows that are batched together, from 1 to 4,294,967,295",
            )),
        }
    }
}
