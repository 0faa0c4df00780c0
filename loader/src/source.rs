//! One source of a plan: a split with the rows that take part, and the order of its lanes in each pass over it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use gristmill_shard::keys::Domain;

use crate::{
    batching::windows::Lengths,
    columns::Columns,
    curriculum::{
        Curriculum, Infeasible, Level, Ramp, RampReport, Threshold,
        pool::{Stage, draw},
    },
    difficulty::ByDifficulty,
    error::{Error, Result},
    interleave::Interleave,
    lane_table::LaneTable,
    options::Shuffle,
    order::{LEVEL_POOL, LaneOrder, PlanKeys},
    sampled::Sampled,
};

/// Epochs over which a curriculum may be paced.
const PACED_EPOCHS_MAX: u64 = 1000;

/// What a plan knows of one split, before it is filtered.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its lanes.
    pub table: Arc<LaneTable>,
    /// BLAKE3 of its shard set's manifest.
    pub manifest: String,
    /// The columns that the plan's options name.
    pub columns: Columns,
}

/// Lists of positions by (pass, lane).
type Lists = BTreeMap<(u64, u32), Arc<Mutex<Option<Arc<[u32]>>>>>;

/// A source as a plan uses it.
#[derive(Debug)]
pub(crate) struct PlannedSource {
    pub(crate) table: Arc<LaneTable>,
    pub(crate) columns: Columns,
    /// Where steps are made by lengths.
    pub(crate) lengths: Option<Arc<Lengths>>,
    /// How the indices of a pass are dealt to the lanes.
    pub(crate) interleave: Interleave,
    pub(crate) order: PassOrder,
    pub(crate) keys: PlanKeys,
    lists: Mutex<Lists>,
}

/// What a lane's windows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowKind {
    /// A row group, as it is stored.
    Stored,
    /// So many row groups, mixed.
    Blocks(u64),
    /// The whole lane, permuted.
    Lane,
    /// The whole lane, by a list.
    List,
}

/// What decides the order of a pass.
#[derive(Debug)]
pub(crate) enum PassOrder {
    /// A shuffle, the same kind in every pass.
    Shuffled(Shuffle),
    /// By difficulty in the first passes.
    Ordered { by: ByDifficulty, passes: u64, then: Shuffle },
    /// From a growing pool in the first passes.
    Paced { by: ByDifficulty, passes: Vec<PacedPass>, then: Shuffle },
    /// Weighted or class-balanced draws.
    Sampled(Sampled),
}

/// A pass that draws from a growing pool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PacedPass {
    pub(crate) levels: Vec<Level>,
    pub(crate) report: RampReport,
    repeats: bool,
}

/// The passes of a curriculum over the rows of `table` that take part, in steps of `batch`.
///
/// # Errors
/// [`Error::Usage`] for a pacing that can't be, or one of more than [`PACED_EPOCHS_MAX`] epochs.
pub(crate) fn pace(table: &LaneTable, by: &ByDifficulty, options: &Curriculum, batch: u64) -> Result<Vec<PacedPass>> {
    let Curriculum::Paced { pacing, infeasible, .. } = options else { return Ok(Vec::new()) };
    let rows = table.rows();
    let at_most = |difficulty: f64| by.at_most_in_all(difficulty);
    let total = options.total_steps(rows, batch);
    if total == Some(0) && rows > 0 {
        return Err(Error::usage(
            format!("curriculum: all rows are admitted from the first step on, of {rows} rows in steps of {batch}"),
            "give more epochs or steps, or smaller batches (windows, where rows are batched by length), or leave it out",
        ));
    }
    let ramp = Ramp::new(pacing, rows, batch, total, *infeasible, &at_most)?;
    let steps = rows.div_ceil(batch.max(1)).max(1);
    let passes = ramp.total_steps().div_ceil(steps);
    if passes > PACED_EPOCHS_MAX {
        return Err(Error::usage(
            format!("curriculum: all rows are admitted after {passes} epochs of {steps} steps"),
            format!("give at most {PACED_EPOCHS_MAX} epochs"),
        ));
    }
    let repeats = *infeasible == Infeasible::Repeat;
    let mut paced = Vec::new();
    for epoch in 0..passes {
        let (levels, report) = ramp.epoch(epoch);
        let mut pass = PacedPass { levels: levels.levels, report, repeats };
        // Every lane takes its turns, so that one with few easy rows has to draw harder ones.
        let widened = pass.widened_in_lanes(table.interleave(), by);
        if *infeasible == Infeasible::Refuse && widened > u64::from(table.lanes()) {
            return Err(Error::usage(
                format!(
                    "curriculum: lanes differ in difficulty: {widened} rows must be drawn before they are admitted"
                ),
                "make the shards with --difficulty for this column and without groups on one node, or give infeasible = \
                 \"widen\"",
            ));
        }
        if widened > pass.report.widened_rows {
            pass.report.widened_rows = widened;
            pass.report.widened_share = widened as f64 / rows.max(1) as f64;
        }
        paced.push(pass);
    }
    Ok(paced)
}

impl PacedPass {
    /// Most rows, over all lanes, that a level admits above those of its difficulty, because the lanes that have them
    /// must draw.
    fn widened_in_lanes(&self, interleave: &Interleave, by: &ByDifficulty) -> u64 {
        let mut widened = vec![0; self.levels.len()];
        for lane in 0..by.lanes() {
            let stages = self.stages(interleave, by, lane);
            for ((sum, level), stage) in widened.iter_mut().zip(&self.levels).zip(stages) {
                if let Threshold::Value(difficulty) = level.threshold {
                    *sum += stage.pool - by.at_most(lane, difficulty).min(stage.pool);
                }
            }
        }
        widened.into_iter().max().unwrap_or(0)
    }

    /// What `lane` draws in each level.
    fn stages(&self, interleave: &Interleave, by: &ByDifficulty, lane: u32) -> Vec<Stage> {
        let rows = interleave.before(lane, interleave.rows());
        let mut pool = 0;
        let ends = self.levels.iter().skip(1).map(|level| level.start).chain([interleave.rows()]);
        let stages = self.levels.iter().zip(ends).map(|(level, end)| {
            let until = interleave.before(lane, end);
            let admitted = match level.threshold {
                Threshold::Value(difficulty) => by.at_most(lane, difficulty),
                Threshold::Share(_) | Threshold::All => interleave.before(lane, level.pool),
            };
            // Lanes take turns, so that a lane may have had to draw one more than its part of the pool.
            let least = if self.repeats { until.min(1) } else { until };
            pool = admitted.max(least).max(pool).min(rows);
            Stage { until, pool }
        });
        stages.collect()
    }
}

impl PlannedSource {
    pub(crate) fn new(
        table: Arc<LaneTable>,
        columns: Columns,
        lengths: Option<Arc<Lengths>>,
        interleave: Interleave,
        order: PassOrder,
        keys: PlanKeys,
    ) -> Self {
        Self { table, columns, lengths, interleave, order, keys, lists: Mutex::default() }
    }

    /// What the windows of the widest kind of any pass are.
    pub(crate) fn window_kind(&self) -> WindowKind {
        match &self.order {
            PassOrder::Shuffled(Shuffle::None) => WindowKind::Stored,
            PassOrder::Shuffled(Shuffle::ShardBlock { window_blocks }) => WindowKind::Blocks(u64::from(*window_blocks)),
            PassOrder::Shuffled(Shuffle::Global) => WindowKind::Lane,
            PassOrder::Ordered { .. } | PassOrder::Paced { .. } | PassOrder::Sampled(_) => WindowKind::List,
        }
    }

    /// Samples of a pass.
    pub(crate) fn samples(&self) -> u64 {
        self.interleave.rows()
    }

    /// The order of `lane` in `pass`.
    ///
    /// # Errors
    /// [`Error::Internal`] when a list can't be made.
    pub(crate) fn lane_order(&self, pass: u64, lane: u32) -> Result<LaneOrder> {
        let shuffled = |shuffle: &Shuffle| Ok(LaneOrder::shuffled(&self.table, *shuffle, self.keys, pass, lane));
        match &self.order {
            PassOrder::Shuffled(shuffle) => shuffled(shuffle),
            PassOrder::Ordered { by, passes, .. } if pass < *passes => {
                Ok(LaneOrder::listed(&self.table, lane, by.lane(lane)))
            }
            PassOrder::Ordered { then, .. } => shuffled(then),
            PassOrder::Paced { by, passes, then } => {
                match usize::try_from(pass).ok().and_then(|pass| passes.get(pass)) {
                    Some(paced) => self.list(pass, lane, || {
                        let stages = paced.stages(&self.interleave, by, lane);
                        let key = self.keys.key(Domain::Order, pass, u64::from(lane), LEVEL_POOL, 0);
                        draw(&by.lane(lane), &stages, &mut key.rng()).map(|drawn| drawn.draws)
                    }),
                    None => shuffled(then),
                }
            }
            PassOrder::Sampled(sampled) => {
                self.list(pass, lane, || sampled.draws(&self.table, &self.columns, self.keys, pass, lane))
            }
        }
    }

    /// The list of `lane` in `pass`, made once and kept while passes near it are asked for.
    fn list(&self, pass: u64, lane: u32, make: impl FnOnce() -> Result<Vec<u32>>) -> Result<LaneOrder> {
        let cell = {
            let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
            lists.retain(|(other, _), _| other.abs_diff(pass) <= 1);
            Arc::clone(lists.entry((pass, lane)).or_default())
        };
        // Each has a lock of its own: lanes are made side by side.
        let mut list = cell.lock().unwrap_or_else(PoisonError::into_inner);
        let positions = match &*list {
            Some(positions) => Arc::clone(positions),
            None => Arc::clone(list.insert(make()?.into())),
        };
        Ok(LaneOrder::listed(&self.table, lane, positions))
    }
}
