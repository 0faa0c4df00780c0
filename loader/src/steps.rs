//! The steps of an epoch with their samples, and each rank's part of them.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use crate::{
    batching::windows::{BinSegment, EpochWindows, PlannedWindow, WindowRule},
    error::{Error, Result},
    plan::{EpochOrder, Plan, Slot},
    slice::{LaneRun, SliceRule},
};

/// What a step is over all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Consecutive samples of the epoch, by index.
    Samples(Range<u64>),
    /// Micro-batches, group by group.
    MicroBatches {
        /// Number of the step in its epoch.
        number: u64,
        /// Their rows; some may have none.
        micro_batches: Vec<Vec<Slot>>,
    },
    /// Bins of packed rows.
    Bins {
        /// Number of the first in its epoch.
        first: u64,
        /// Their rows.
        bins: Vec<Vec<BinSegment>>,
    },
}

/// A rank's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankPart {
    /// Stretches of lanes.
    Runs(Vec<LaneRun>),
    /// As many micro-batches as every rank has; some may be without rows.
    MicroBatches(Vec<Vec<Slot>>),
    /// Bins of packed rows.
    Bins(Vec<Vec<BinSegment>>),
}

/// Goes through the steps of an epoch; keeps the windows last used.
#[derive(Debug)]
pub struct StepPlanner<'a> {
    order: EpochOrder<'a>,
    windows: Option<Arc<EpochWindows>>,
    planned: VecDeque<(u64, Arc<PlannedWindow>)>,
}

/// Windows that are kept: a bin may reach over some.
const KEPT: usize = 4;

impl<'a> StepPlanner<'a> {
    /// The steps of `epoch`.
    ///
    /// # Errors
    /// [`Error::Internal`] when the windows of the epoch can't be made.
    pub fn new(plan: &'a Plan, epoch: u64) -> Result<Self> {
        Ok(Self { order: plan.epoch(epoch), windows: plan.windows(epoch)?, planned: VecDeque::new() })
    }

    /// The order of the epoch.
    pub fn order(&mut self) -> &mut EpochOrder<'a> {
        &mut self.order
    }

    /// The step of these units ([`Plan::batch_at`]).
    ///
    /// # Errors
    /// [`Error::Internal`] when it can't be made.
    pub fn step(&mut self, units: &Range<u64>) -> Result<Step> {
        let plan = self.order.plan();
        let (Some(rule), Some(windows)) = (plan.window_rule(), self.windows.clone()) else {
            return Ok(Step::Samples(units.clone()));
        };
        if rule.packing().is_none() {
            let step = windows.step_at(units.start);
            let window = self.window(rule, &windows, windows.window_of(step))?;
            let micro_batches = rule.step(&windows, &window, step);
            return Ok(Step::MicroBatches { number: units.start, micro_batches });
        }
        let mut bins = Vec::new();
        for bin in units.clone() {
            let mut segments = Vec::new();
            for number in rule.windows_of_bin(&windows, bin) {
                let window = self.window(rule, &windows, number)?;
                segments.extend(rule.bin(&windows, number, &window, bin));
            }
            bins.push(segments);
        }
        Ok(Step::Bins { first: units.start, bins })
    }

    fn window(&mut self, rule: &WindowRule, windows: &EpochWindows, number: u64) -> Result<Arc<PlannedWindow>> {
        if let Some((_, window)) = self.planned.iter().find(|(n, _)| *n == number) {
            return Ok(Arc::clone(window));
        }
        let window = Arc::new(rule.plan(&mut self.order, windows, number)?);
        if self.planned.len() == KEPT {
            self.planned.pop_front();
        }
        self.planned.push_back((number, Arc::clone(&window)));
        Ok(window)
    }
}

impl RankPart {
    /// Samples, or parts of samples in bins.
    #[must_use]
    pub fn rows(&self) -> u64 {
        match self {
            Self::Runs(runs) => runs.iter().map(LaneRun::rows).sum(),
            Self::MicroBatches(batches) => batches.iter().map(|b| b.len() as u64).sum(),
            Self::Bins(bins) => bins.iter().map(|b| b.len() as u64).sum(),
        }
    }

    /// Every row of it. A row that is split over bins comes once a bin.
    ///
    /// # Errors
    /// What `visit` fails with.
    pub fn for_each_row(&self, mut visit: impl FnMut(Slot) -> Result<()>) -> Result<()> {
        match self {
            Self::Runs(runs) => {
                for run in runs {
                    for ordinal in run.ordinals.clone() {
                        let LaneRun { source, pass, lane, .. } = *run;
                        visit(Slot { source, pass, lane, ordinal, length: 0 })?;
                    }
                }
            }
            Self::MicroBatches(batches) => batches.iter().flatten().try_for_each(|slot| visit(*slot))?,
            Self::Bins(bins) => bins.iter().flatten().try_for_each(|segment| visit(segment.slot))?,
        }
        Ok(())
    }
}

impl SliceRule {
    /// The rank's part of a step.
    ///
    /// # Errors
    /// [`Error::Internal`] for a step that is not of the plan of this rule.
    pub fn part(&self, plan: &Plan, epoch: u64, step: &Step) -> Result<RankPart> {
        match step {
            Step::Samples(range) => Ok(RankPart::Runs(self.slice(plan, epoch, range))),
            Step::MicroBatches { number, micro_batches } => {
                let deal = self.deal().ok_or_else(|| Error::internal("a plan without micro-batches has some"))?;
                let mine = deal.micro_batches(self.rank(), *number);
                let mut mine: Vec<Vec<Slot>> =
                    mine.map(|at| micro_batches.get(at as usize).cloned().unwrap_or_default()).collect();
                // Every rank runs as many.
                mine.resize_with(deal.micro_steps() as usize, Vec::new);
                Ok(RankPart::MicroBatches(mine))
            }
            Step::Bins { first, bins } => {
                let mine = self.contiguous(bins.len() as u64, *first);
                let mine = bins.iter().skip(mine.start as usize).take((mine.end - mine.start) as usize);
                Ok(RankPart::Bins(mine.cloned().collect()))
            }
        }
    }
}
