//! Settings of a plan, as a configuration or a program gives them.

use serde::{Deserialize, Serialize};

use crate::{
    batching::options::Batching,
    curriculum::Curriculum,
    error::{Error, Result},
    filter::Predicate,
    mixture::MixOptions,
    sampling::options::{Repeats, Sampling},
};

/// How an epoch is shuffled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Shuffle {
    /// The stored order, lanes in turn; the same every epoch.
    None,
    /// Row groups of a lane are permuted, then rows inside windows of row groups. Reads each row group once.
    ShardBlock {
        /// Row groups of a window, at least 1. A lane's window is what must be in memory.
        window_blocks: u32,
    },
    /// Each lane is permuted as a whole; only where the rank's part of the split fits the memory budget.
    Global,
}

impl Default for Shuffle {
    /// Windows of two row groups.
    fn default() -> Self {
        Self::ShardBlock { window_blocks: 2 }
    }
}

/// What happens to the last, short batch of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tail {
    /// It is delivered as it is.
    #[default]
    Exact,
    /// It is dropped: fewer than `global_batch` samples of the epoch are not delivered.
    Drop,
    /// Every step has `⌈global_batch / W⌉` slots on every rank; slots without a sample have mask 0.
    PadMasked,
}

/// Settings of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanOptions {
    /// The split that is read.
    pub split: String,
    /// Seed of the order.
    #[serde(default)]
    pub seed: u64,
    /// How an epoch is shuffled.
    #[serde(default)]
    pub shuffle: Shuffle,
    /// Samples of a step over all ranks and micro-batches, at least 1; bins where rows are packed. Of no meaning for a
    /// token budget.
    pub global_batch: u64,
    /// The last, short batch.
    #[serde(default)]
    pub tail: Tail,
    /// Which rows take part: those that meet every condition.
    #[serde(default)]
    pub filters: Vec<Predicate>,
    /// Easy rows first; none without it.
    #[serde(default)]
    pub curriculum: Option<Curriculum>,
    /// Weighted or class-balanced epochs; every row once without it.
    #[serde(default)]
    pub sampling: Option<Sampling>,
    /// How an epoch is cut into steps.
    #[serde(default)]
    pub batching: Batching,
    /// How several sources are mixed; there is one without it.
    #[serde(default)]
    pub mix: Option<MixOptions>,
}

impl PlanOptions {
    /// Shuffled batches of `global_batch` samples of `split`, seed 0.
    #[must_use]
    pub fn new(split: impl Into<String>, global_batch: u64) -> Self {
        Self {
            split: split.into(),
            seed: 0,
            shuffle: Shuffle::default(),
            global_batch,
            tail: Tail::default(),
            filters: Vec::new(),
            curriculum: None,
            sampling: None,
            batching: Batching::Fixed,
            mix: None,
        }
    }

    /// The columns that the options name, for which the plan reads sidecars.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let filters = self.filters.iter().map(Predicate::column);
        let of_order = self.curriculum.as_ref().map(Curriculum::column);
        let of_draws = self.sampling.as_ref().map(Sampling::column);
        filters.chain(of_order).chain(of_draws).chain(self.batching.lengths())
    }

    /// Refuses what can't be on any data.
    pub(crate) fn check(&self) -> Result<()> {
        if self.global_batch == 0 {
            return Err(Error::usage(
                "global_batch is 0",
                "give the number of samples of one optimizer step, 1 or more",
            ));
        }
        if self.shuffle == (Shuffle::ShardBlock { window_blocks: 0 }) {
            return Err(Error::usage(
                "window_blocks is 0",
                "give the number of row groups shuffled together, 1 or more",
            ));
        }
        self.batching.check()?;
        if let Some(curriculum) = &self.curriculum {
            curriculum.check()?;
        }
        if let Some(sampling) = &self.sampling {
            sampling.validate()?;
        }
        let has_steps = self.batching == Batching::Fixed && self.mix.is_none();
        if !has_steps && self.curriculum.as_ref().is_some_and(Curriculum::is_in_steps) {
            return Err(Error::usage(
                "curriculum: it is given in steps, which a source of its own has only where batches are of a fixed \
                 number of samples",
                "give epochs, and a pacing without steps of its own",
            ));
        }
        if self.curriculum.is_some() && self.sampling.is_some() {
            return Err(Error::usage(
                "both a curriculum and sampling are given, and each says which rows are drawn when",
                "leave one of them out",
            ));
        }
        if matches!(self.batching, Batching::Budget { .. }) && self.tail != Tail::Exact {
            return Err(Error::usage(
                "a token budget has no short last step to drop or pad",
                "leave the tail exact: every step has all its micro-batches",
            ));
        }
        Ok(())
    }

    /// Whether no row is delivered twice in a pass.
    #[must_use]
    pub fn is_at_most_once(&self) -> bool {
        match &self.sampling {
            None => self.is_exactly_once(),
            Some(Sampling::Weighted { replacement, .. }) => !replacement,
            Some(Sampling::Balanced { repeats, .. }) => *repeats == Repeats::Never,
        }
    }

    /// Whether every row that takes part is delivered once in each pass.
    #[must_use]
    pub fn is_exactly_once(&self) -> bool {
        self.sampling.is_none() && self.curriculum.as_ref().is_none_or(Curriculum::is_exactly_once)
    }
}
