//! Settings of a curriculum.

use serde::{Deserialize, Serialize};

use super::{levels::Infeasible, pacing::Pacing};
use crate::error::{Error, Result};

/// In which order an epoch goes through the rows by their difficulty. Rows without a number for difficulty (NaN) are the
/// hardest.
//
// Fields are in byte order of their names, after the tag: the JSON is hashed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Curriculum {
    /// The easiest first, without shuffling, in the first epochs; shuffled in those after.
    Ordered {
        /// The difficulty, a column of numbers.
        #[serde(default = "difficulty")]
        column: String,
        /// How many epochs are ordered, at least 1.
        epochs: u64,
    },
    /// Samples are drawn from the easiest rows, which grow until all are admitted; then epochs are shuffled.
    Paced {
        /// The difficulty, a column of numbers.
        #[serde(default = "difficulty")]
        column: String,
        /// When all rows are admitted, in epochs of as many whole steps as there are; above 0. Instead of `steps`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epochs: Option<f64>,
        /// What happens where fewer rows are admitted than an epoch must draw.
        #[serde(default)]
        infeasible: Infeasible,
        /// How the admitted part grows.
        pacing: Pacing,
        /// When all rows are admitted, in steps from the start of training. Neither for a pacing with steps of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps: Option<u64>,
    },
}

fn difficulty() -> String {
    "difficulty".to_owned()
}

impl Curriculum {
    /// The column of difficulties.
    #[must_use]
    pub fn column(&self) -> &str {
        match self {
            Self::Ordered { column, .. } | Self::Paced { column, .. } => column,
        }
    }

    /// Whether an epoch has every row once.
    pub(crate) fn is_exactly_once(&self) -> bool {
        !matches!(self, Self::Paced { infeasible: Infeasible::Repeat, .. })
    }

    /// Whether it says in steps when rows are admitted.
    pub(crate) fn is_in_steps(&self) -> bool {
        matches!(self, Self::Paced { steps, pacing, .. } if steps.is_some() || pacing.own_total().is_some())
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Ordered { epochs: 0, .. } => {
                Err(Error::usage("curriculum: 0 ordered epochs", "order 1 epoch or more, or leave the curriculum out"))
            }
            Self::Paced { epochs: Some(_), steps: Some(_), .. } => {
                Err(Error::usage("curriculum: both epochs and steps are given", "give one of them"))
            }
            Self::Paced { epochs: Some(epochs), .. } if !(epochs.is_finite() && *epochs > 0.0) => {
                Err(Error::usage(format!("curriculum: {epochs} epochs"), "give a number above 0, such as 0.5"))
            }
            Self::Paced { pacing, .. } => pacing.validate(),
            Self::Ordered { .. } => Ok(()),
        }
    }

    /// T in steps for epochs of `rows` rows in steps of `batch`, where it is given.
    pub(crate) fn total_steps(&self, rows: u64, batch: u64) -> Option<u64> {
        match self {
            Self::Paced { epochs: Some(epochs), .. } => Some((epochs * (rows / batch.max(1)) as f64).floor() as u64),
            Self::Paced { steps, .. } => *steps,
            Self::Ordered { .. } => None,
        }
    }
}
