//! The turns of one epoch of a mixture: stages that follow one another, each with turns that start anew.

use std::sync::Arc;

use crate::{
    error::{Error, Result},
    mixture::{options::Stop, turns::Turns},
};

/// A stage: the samples of an epoch over which the same weights hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Its first sample in the epoch.
    start: u64,
    /// What each source has had in the stages before.
    drawn: Vec<u64>,
    turns: Arc<Turns>,
}

impl Stage {
    /// Its first sample, as an index in the epoch.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Its turns, of which its first sample is turn 0.
    #[must_use]
    pub fn turns(&self) -> &Turns {
        &self.turns
    }
}

/// The stages of an epoch, and its length: index in the epoch ⟷ (source, draws of it before in the epoch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// At least one; the last goes on to the end of the epoch.
    stages: Vec<Stage>,
    /// Samples of the epoch, at least 1.
    length: u64,
    /// What the epoch takes of each source.
    taken: Vec<u64>,
}

impl Schedule {
    /// The epoch of these turns, each with the samples over which they hold save for `last`, that ends by `stop`, over
    /// sources of `rows` rows.
    pub(crate) fn new(before: &[(Arc<Turns>, u64)], last: Arc<Turns>, stop: Stop, rows: &[u64]) -> Result<Self> {
        let mut stages = Vec::with_capacity(before.len() + 1);
        let (mut start, mut drawn) = (0_u64, vec![0_u64; rows.len()]);
        for (turns, samples) in before {
            stages.push(Stage { start, drawn: drawn.clone(), turns: Arc::clone(turns) });
            start = start
                .checked_add(*samples)
                .ok_or_else(|| Error::usage("the stages are longer than 2^64 - 1 samples in all", "shorten them"))?;
            // Together they are `start` at most.
            for (source, drawn) in (0..).zip(&mut drawn) {
                *drawn += turns.before(source, *samples);
            }
        }
        stages.push(Stage { start, drawn, turns: last });
        let mut schedule = Self { stages, length: 0, taken: Vec::new() };
        schedule.length = schedule.length_by(stop, rows)?;
        if schedule.length <= start && !before.is_empty() {
            return Err(Error::usage(
                format!(
                    "the first epoch ends after {} samples by stop = {stop}, and its stage {} begins after {start}",
                    schedule.length,
                    before.len()
                ),
                "shorten the stages before it, or give the epoch more samples than they have by stop = { samples = N }",
            ));
        }
        schedule.taken = (0..).zip(rows).map(|(source, _)| schedule.before(source, schedule.length)).collect();
        Ok(schedule)
    }

    fn length_by(&self, stop: Stop, rows: &[u64]) -> Result<u64> {
        let too_long = || {
            Error::usage(
                format!("an epoch by stop = {stop} would be longer than 2^64 - 1 samples"),
                "give its length by stop = { samples = N }",
            )
        };
        match stop {
            Stop::Samples(samples) => Ok(samples),
            Stop::FirstExhausted => {
                (0..).zip(rows).filter_map(|(source, rows)| self.index(source, *rows)).min().ok_or_else(too_long)
            }
            Stop::AllExhausted => {
                let mut length = 0;
                for (source, rows) in (0..).zip(rows).filter(|(source, _)| self.has_turns(*source)) {
                    let taken = self.before_last(source);
                    if !self.goes_on(source) && taken < *rows {
                        return Err(Error::usage(
                            format!(
                                "source {source} has {rows} rows, of which the stages draw {taken} before they leave \
                                 it out, so that it is never exhausted as stop = {stop} asks"
                            ),
                            "lengthen the stages that have it, give it a weight in the last one, or give the length of \
                             an epoch by stop = { samples = N }",
                        ));
                    }
                    let last = rows.checked_sub(1).and_then(|k| self.index(source, k)).ok_or_else(too_long)?;
                    length = length.max(last.checked_add(1).ok_or_else(too_long)?);
                }
                Ok(length)
            }
        }
    }

    /// Whether `source` has a weight in some stage.
    pub(crate) fn has_turns(&self, source: u32) -> bool {
        self.stages.iter().any(|stage| stage.turns.part(source) > 0)
    }

    /// Whether `source` has a weight in the last stage.
    fn goes_on(&self, source: u32) -> bool {
        self.stages.last().is_some_and(|stage| stage.turns.part(source) > 0)
    }

    /// Draws of `source` before the last stage.
    fn before_last(&self, source: u32) -> u64 {
        self.stages.last().and_then(|stage| stage.drawn.get(source as usize)).copied().unwrap_or(0)
    }

    pub(crate) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn taken(&self) -> &[u64] {
        &self.taken
    }

    /// The stage of index `t`, the last one past the end.
    pub(crate) fn stage_of(&self, t: u64) -> usize {
        // Stages are not empty and the first begins at 0.
        self.stages.partition_point(|stage| stage.start <= t) - 1
    }

    /// Whose turn index `t` is, and how many draws of that source are before it in the epoch.
    pub(crate) fn at(&self, t: u64) -> (u32, u64) {
        let stage = &self.stages[self.stage_of(t)];
        let (source, k) = stage.turns.at(t - stage.start);
        (source, stage.drawn[source as usize] + k)
    }

    /// Draws of `source` below index `t`.
    pub(crate) fn before(&self, source: u32, t: u64) -> u64 {
        let stage = &self.stages[self.stage_of(t)];
        stage.drawn[source as usize] + stage.turns.before(source, t - stage.start)
    }

    /// Index of draw `k` of `source` in the stages without an end, the inverse of [`Schedule::at`]; `None` when there
    /// is none below 2^64.
    pub(crate) fn index(&self, source: u32, k: u64) -> Option<u64> {
        let drawn = |stage: &Stage| stage.drawn.get(source as usize).copied().unwrap_or(0);
        // The last stage that begins with the draw still to come is the one that has it, since the next begins after.
        let stage = &self.stages[self.stages.partition_point(|stage| drawn(stage) <= k).checked_sub(1)?];
        stage.turns.index(source, k - drawn(stage))?.checked_add(stage.start)
    }
}
