//! The table of a curriculum: from which index of an epoch on how many rows, the easiest first, may be drawn from.
//!
//! Epoch e has S = ⌈n / B⌉ steps, and its step s may draw from the pool that pacing admits at time `e·S + s + 1`:
//! `⌈n · share⌉` rows, or those of at most a difficulty. Every row can be drawn exactly once iff at each step the pool
//! holds what is drawn by its end: `pool(s) ≥ min(n, (s + 1)·B)`. The first epoch decides for all: if it is feasible it
//! ends with pool n, and pools never shrink. A concave share needs two checks, at the last full step and at the last
//! one: it can't be below a line through the origin and above it later. Other functions are searched between the steps
//! where they change.

use serde::{Deserialize, Serialize};

use crate::{
    bisect::first_where,
    curriculum::pacing::{Pacing, Threshold},
    error::{Error, Result},
};

/// Most levels of an epoch.
pub const LEVELS_MAX: usize = 64;

/// What happens where pacing admits fewer rows than an epoch must draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Infeasible {
    /// It is an error, which names the largest T that does.
    #[default]
    Refuse,
    /// The largest T that does is used. For a function with a T of its own: all rows are admitted from there on.
    Clip,
    /// Pools are widened to what must have been drawn. Where pacing is far too slow that is the plain order of
    /// difficulty.
    Widen,
    /// Pools stay as they are and are drawn from again: rows are repeated and others left out.
    Repeat,
}

/// Indices of an epoch that draw from one pool.
//
// Fields are in byte order of their names.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Rows that may be drawn from, the easiest of all; those drawn before are among them.
    pub pool: u64,
    /// First index of the epoch, in samples; a multiple of the batch.
    pub start: u64,
    /// What pacing admits at the first step. A pool may be wider, so whoever counts the rows of a part of the data
    /// (a lane) under it takes at least what that part must have had drawn by the end of the level.
    pub threshold: Threshold,
}

/// The table of an epoch: 1 to [`LEVELS_MAX`] levels, starts and pools rising, the first start 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// The levels.
    pub levels: Vec<Level>,
}

/// What was made of a pacing in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RampReport {
    /// Levels of the epoch.
    pub levels: u64,
    /// T that was asked for, in steps.
    pub requested_steps: u64,
    /// T that is used, in steps.
    pub used_steps: u64,
    /// Most rows that a pool has above what pacing admits at its first step.
    pub widened_rows: u64,
    /// The same as a share of all rows.
    pub widened_share: f64,
}

/// A pacing over the epochs of `rows` rows, its T settled.
pub struct Ramp<'a> {
    pacing: &'a Pacing,
    /// Rows of at most a difficulty.
    at_most: &'a dyn Fn(f64) -> u64,
    rows: u64,
    batch: u64,
    requested: u64,
    total: u64,
    infeasible: Infeasible,
}

/// A step that can't draw what it must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Short {
    step: u64,
    pool: u64,
    needed: u64,
}

impl<'a> Ramp<'a> {
    /// The ramp of `pacing` over epochs of `rows` rows in steps of `batch` rows. `total` is T, in steps counted from
    /// the start of training; it is `None` for a pacing that has a T of its own, and only for those. 0 is no
    /// curriculum at all. `at_most` counts the rows of at most a difficulty, of all `rows`; it is asked only where
    /// difficulties are values, and does not fall.
    ///
    /// # Errors
    /// [`Error::Usage`] for a parameter out of range, a batch of 0, a `total` that is missing or too much, and for
    /// [`Infeasible::Refuse`] where not every row can be drawn exactly once.
    pub fn new(
        pacing: &'a Pacing,
        rows: u64,
        batch: u64,
        total: Option<u64>,
        infeasible: Infeasible,
        at_most: &'a dyn Fn(f64) -> u64,
    ) -> Result<Self> {
        pacing.validate()?;
        if batch == 0 {
            return Err(Error::usage("a step of the curriculum has 0 rows", "give steps of 1 or more rows"));
        }
        let requested = match (pacing.own_total(), total) {
            (None, Some(total)) => total,
            (Some(own), None) => own,
            (None, None) => {
                return Err(Error::usage(
                    "the pacing has no number of steps",
                    "give the steps of training after which every row is admitted",
                ));
            }
            (Some(own), Some(total)) => {
                return Err(Error::usage(
                    format!("the pacing is given {total} steps and lists its own, {own} in all"),
                    "leave the number of steps out",
                ));
            }
        };
        let mut ramp = Self { pacing, at_most, rows, batch, requested, total: requested, infeasible };
        if matches!(infeasible, Infeasible::Refuse | Infeasible::Clip)
            && let Some(short) = ramp.first_short(requested)
        {
            let largest = ramp.largest_feasible();
            if infeasible == Infeasible::Refuse {
                return Err(ramp.refusal(short, largest));
            }
            ramp.total = largest;
        }
        Ok(ramp)
    }

    /// T that is used, in steps.
    #[must_use]
    pub fn total_steps(&self) -> u64 {
        self.total
    }

    /// The table of epoch `epoch`, and what was made of the pacing there. At most [`LEVELS_MAX`] levels: one for each
    /// pool where so many do, else levels over which the pool grows by about as many rows. A level has the pool of its
    /// first step, widened to what is drawn by its end; for [`Infeasible::Repeat`], as far as its last step admits it.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> (Levels, RampReport) {
        let steps = self.steps();
        let before = epoch.saturating_mul(steps);
        let pool = |step: u64| {
            // Something has to be drawn, even where nothing is admitted yet.
            let least = if self.infeasible == Infeasible::Widen { self.drawn(step + 1) } else { self.rows.min(1) };
            self.admitted(before.saturating_add(step), self.total).max(least)
        };
        let starts = level_starts(steps, &pool);
        let mut levels = Vec::with_capacity(starts.len());
        let mut widened_rows = 0;
        for (i, start) in starts.iter().enumerate() {
            let end = starts.get(i + 1).copied().unwrap_or(steps);
            let (step, drawn) = (before.saturating_add(*start), self.drawn(end));
            let least = match self.infeasible {
                Infeasible::Repeat => drawn.min(pool(end.saturating_sub(1))),
                // Where it is feasible, the last step admits as much; a row that rounding took is put back.
                _ => drawn,
            };
            let widened = pool(*start).max(least);
            widened_rows = widened_rows.max(widened - self.admitted(step, self.total));
            levels.push(Level {
                pool: widened,
                // Below rows: the last start is at most steps − 1, and (steps − 1) · batch < rows.
                start: start.saturating_mul(self.batch),
                threshold: self.pacing.threshold(step.saturating_add(1), self.total),
            });
        }
        let report = RampReport {
            levels: levels.len() as u64,
            requested_steps: self.requested,
            used_steps: self.total,
            widened_rows,
            widened_share: if self.rows == 0 { 0.0 } else { widened_rows as f64 / self.rows as f64 },
        };
        (Levels { levels }, report)
    }

    /// S.
    fn steps(&self) -> u64 {
        self.rows.div_ceil(self.batch)
    }

    /// Rows drawn by the first `steps` steps of an epoch.
    fn drawn(&self, steps: u64) -> u64 {
        steps.saturating_mul(self.batch).min(self.rows)
    }

    /// Rows that pacing over `total` steps admits at `step` of training.
    fn admitted(&self, step: u64, total: u64) -> u64 {
        match self.pacing.threshold(step.saturating_add(1), total) {
            Threshold::Share(share) => Threshold::rows_of_share(self.rows, share),
            Threshold::Value(difficulty) => (self.at_most)(difficulty).min(self.rows),
            Threshold::All => self.rows,
        }
    }

    /// The first step of the first epoch that can't draw what it must, with pacing over `total` steps.
    fn first_short(&self, total: u64) -> Option<Short> {
        let steps = self.steps();
        let short = |step: u64| {
            let (pool, needed) = (self.admitted(step, total), self.drawn(step + 1));
            (pool < needed).then_some(Short { step, pool, needed })
        };
        if self.pacing.is_concave() {
            let full = self.rows / self.batch;
            if full.checked_sub(1).and_then(short).is_some() {
                return short(first_where(0, full, |step| short(step).is_some()));
            }
            return steps.checked_sub(1).and_then(short);
        }
        // Ranges of steps, both ends included, the first on top.
        let mut ranges: Vec<(u64, u64)> = steps.checked_sub(1).map(|last| (0, last)).into_iter().collect();
        while let Some((first, last)) = ranges.pop() {
            let pool = self.admitted(first, total);
            if pool >= self.drawn(last + 1) {
                continue;
            }
            if pool == self.admitted(last, total) {
                // One pool for the whole range: the first step that ends above it.
                return short(first.max(pool / self.batch));
            }
            let middle = first + (last - first) / 2;
            ranges.push((middle + 1, last));
            ranges.push((first, middle));
        }
        None
    }

    /// The largest T up to the requested one for which every row can be drawn exactly once. Pools never grow with T, so
    /// what holds for one T holds for all smaller ones; it holds for 1, which is no curriculum.
    fn largest_feasible(&self) -> u64 {
        first_where(1, self.requested, |total| self.first_short(total).is_some()) - 1
    }

    fn refusal(&self, short: Short, largest: u64) -> Error {
        let Short { step, pool, needed } = short;
        let what = format!(
            "the pacing is too slow for every row to be drawn once: step {step} (from 0) may draw from {pool} rows, \
             and {needed} must have been drawn by its end"
        );
        let instead = "choose for infeasible pacing `clip` (the largest number of steps that does), `widen` (larger \
                       pools) or `repeat` (rows are repeated, others left out)";
        let help = match (self.pacing.own_total(), largest) {
            (None, 2..) => {
                format!("let pacing last at most {largest} steps instead of {}, or {instead}", self.requested)
            }
            (None, _) => format!("begin with more rows, or {instead}"),
            (Some(_), _) => format!("admit at least {needed} rows at step {step}, or {instead}"),
        };
        Error::usage(what, help)
    }
}

/// First steps of levels, 0 the first: where the pool changes, if that is at most [`LEVELS_MAX`] levels; else where it
/// passes as many marks at equal distances from the first pool to the last.
fn level_starts(steps: u64, pool: &dyn Fn(u64) -> u64) -> Vec<u64> {
    let mut starts = vec![0];
    let Some(last) = steps.checked_sub(1) else { return starts };
    let (low, high) = (pool(0), pool(last));
    let (mut start, mut at) = (0, low);
    while at < high && starts.len() < LEVELS_MAX {
        start = first_where(start + 1, last, |step| pool(step) > at);
        at = pool(start);
        starts.push(start);
    }
    if at >= high {
        return starts;
    }
    starts.truncate(1);
    let marks = LEVELS_MAX as u64 - 1;
    start = 0;
    for mark in 1..=marks {
        let height = u128::from(high - low) * u128::from(mark);
        // Reached iff pool − low ≥ (high − low) · mark / marks.
        let reached = |step| u128::from(pool(step).saturating_sub(low)) * u128::from(marks) >= height;
        let next = first_where(start, last, reached);
        if next > start {
            starts.push(next);
            start = next;
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curriculum::pacing::DifficultyKind;
    use proptest::prelude::*;

    fn none(_: f64) -> u64 {
        unreachable!("only values are counted")
    }

    fn largest(pacing: &Pacing, rows: u64, batch: u64, total: u64) -> u64 {
        Ramp::new(pacing, rows, batch, Some(total), Infeasible::Clip, &none).unwrap().total_steps()
    }

    #[test]
    fn largest_feasible_totals() {
        let (linear, sqrt) = (Pacing::Linear { start: 0.01 }, Pacing::Sqrt { start: 0.01 });
        for (rows, batch, of_linear, of_sqrt) in [
            (60_000, 256, 234, 234),
            (1_000_000, 1024, 976, 977),
            (5000, 512, 9, 10),
            (10_605, 32, 331, 331),
            (9, 6, 1, 2),
        ] {
            for (pacing, want) in [(&linear, of_linear), (&sqrt, of_sqrt)] {
                assert_eq!(largest(pacing, rows, batch, 100_000), want, "{rows} {batch} {pacing:?}");
                // It is feasible as it is, and the next one is not.
                assert_eq!(largest(pacing, rows, batch, want), want);
                assert!(Ramp::new(pacing, rows, batch, Some(want), Infeasible::Refuse, &none).is_ok());
                assert!(Ramp::new(pacing, rows, batch, Some(want + 1), Infeasible::Refuse, &none).is_err());
            }
        }
    }

    #[test]
    fn refusals_name_the_step_and_the_way_out() {
        let text = |pacing: &Pacing, rows, batch, total| {
            Ramp::new(pacing, rows, batch, total, Infeasible::Refuse, &none).err().unwrap().to_string()
        };
        let linear = Pacing::Linear { start: 0.01 };
        let error = text(&linear, 9, 6, Some(2));
        assert!(error.contains("step 0 (from 0) may draw from 5 rows, and 6 must"), "{error}");
        let error = text(&linear, 60_000, 256, Some(235));
        assert!(error.contains("at most 234 steps instead of 235"), "{error}");
        let table = Pacing::Table { levels: vec![(0, 0.25), (3, 1.0)] };
        let error = text(&table, 100, 10, None);
        assert!(error.contains("step 2 (from 0) may draw from 25 rows, and 30 must"), "{error}");
        assert!(error.contains("at least 30 rows at step 2"), "{error}");
        assert!(text(&linear, 10, 0, Some(1)).contains("0 rows"));
        assert!(text(&linear, 10, 1, None).contains("no number of steps"));
        assert!(text(&table, 10, 1, Some(5)).contains("lists its own, 4"));
        assert!(text(&Pacing::Linear { start: 2.0 }, 10, 1, Some(1)).contains("start"));
    }

    #[test]
    fn step_tables_are_kept_as_they_are() {
        let table = Pacing::Table { levels: vec![(0, 0.25), (2, 0.5), (4, 1.0)] };
        let ramp = Ramp::new(&table, 100, 10, None, Infeasible::Refuse, &none).unwrap();
        let (levels, report) = ramp.epoch(0);
        let rows: Vec<(u64, u64)> = levels.levels.iter().map(|level| (level.start, level.pool)).collect();
        assert_eq!(rows, [(0, 25), (20, 50), (40, 100)]);
        assert_eq!(levels.levels[1].threshold, Threshold::Share(0.5));
        assert_eq!(levels.levels[2].threshold, Threshold::All);
        assert_eq!((report.levels, report.requested_steps, report.used_steps, report.widened_rows), (3, 5, 5, 0));
        assert_eq!(ramp.epoch(1).0.levels, [Level { pool: 100, start: 0, threshold: Threshold::All }]);
        let text = r#"{"levels":[{"pool":25,"start":0,"threshold":{"share":0.25}}"#;
        assert!(serde_json::to_string(&levels).unwrap().starts_with(text));
    }

    #[test]
    fn tables_that_do_not_fit_are_cut_by_growth() {
        // Pools of 501, 502, … and at last all of 1000 rows, one row a step.
        let of = |count: u64| {
            let mut levels: Vec<(u64, f64)> = (0..count).map(|i| (i, (501 + i) as f64 / 1000.0)).collect();
            levels.last_mut().unwrap().1 = 1.0;
            let table = Pacing::Table { levels };
            let ramp = Ramp::new(&table, 1000, 1, None, Infeasible::Refuse, &none).unwrap();
            let rows: Vec<(u64, u64)> = ramp.epoch(0).0.levels.iter().map(|level| (level.start, level.pool)).collect();
            rows
        };
        let whole: Vec<(u64, u64)> = (0..63).map(|i| (i, 501 + i)).chain([(63, 1000)]).collect();
        assert_eq!(of(64), whole);
        // Marks are 499 / 63 = 7.9 rows apart.
        let pools = [(0, 501), (8, 509), (16, 517), (24, 525), (32, 533), (40, 541), (48, 549), (56, 557), (64, 1000)];
        assert_eq!(of(65), pools);
    }

    #[test]
    fn values_are_counted_by_the_caller() {
        // Lengths 1..=100, ten a step; the last level admits what is longer than max.
        let pacing =
            Pacing::FixedLinear { difficulty_step: 8.0, difficulty_type: DifficultyKind::Value, max: 80.0, min: 20.0 };
        let at_most = |difficulty: f64| difficulty as u64;
        let ramp = Ramp::new(&pacing, 100, 10, Some(6), Infeasible::Refuse, &at_most).unwrap();
        let (levels, _) = ramp.epoch(0);
        let rows: Vec<(u64, u64)> = levels.levels.iter().map(|level| (level.start, level.pool)).collect();
        assert_eq!(rows, [(0, 24), (10, 40), (20, 48), (30, 56), (40, 64), (50, 100)]);
        assert_eq!(levels.levels[3].threshold, Threshold::Value(56.0));
        assert_eq!(levels.levels[5].threshold, Threshold::All);
        // With steps up to the epoch's end the rows above max come too late.
        let clipped = Ramp::new(&pacing, 100, 10, Some(10), Infeasible::Clip, &at_most).unwrap();
        assert!(clipped.total_steps() < 10 && clipped.epoch(0).1.requested_steps == 10);
    }

    #[test]
    fn policies_on_a_pacing_twice_too_slow() {
        let linear = Pacing::Linear { start: 0.0 };
        let of = |infeasible| Ramp::new(&linear, 6400, 10, Some(1280), infeasible, &none).unwrap();
        let clip = of(Infeasible::Clip);
        assert_eq!(clip.total_steps(), 640);
        // Widened it is the order of difficulty, one 64th of it at a time, and half the rows come before their time.
        let (levels, report) = of(Infeasible::Widen).epoch(0);
        assert_eq!((levels.levels.len(), report.used_steps), (64, 1280));
        assert!((0.5..0.52).contains(&report.widened_share), "{report:?}");
        // In the second epoch pacing is ahead of what is drawn.
        let (levels, report) = of(Infeasible::Widen).epoch(1);
        assert!(report.widened_share < 1.0 / 64.0 && levels.levels[0].pool > 3200, "{report:?}");
        // Repeated, the pool is what is admitted: half the rows by the epoch's end.
        let (levels, report) = of(Infeasible::Repeat).epoch(0);
        assert!(levels.levels.last().unwrap().pool == 3200 && report.widened_share < 1.0 / 60.0, "{report:?}");
        let last = of(Infeasible::Repeat).epoch(1).0.levels;
        assert_eq!(last.last().unwrap().pool, 6400);
        assert_eq!(of(Infeasible::Repeat).epoch(2).0.levels.len(), 1);
        assert_eq!(of(Infeasible::Repeat).epoch(u64::MAX).0.levels.len(), 1);
    }

    #[test]
    fn extremes() {
        let linear = Pacing::Linear { start: 0.01 };
        let whole = [Level { pool: 100, start: 0, threshold: Threshold::All }];
        for total in [0, 1] {
            let ramp = Ramp::new(&linear, 100, 10, Some(total), Infeasible::Refuse, &none).unwrap();
            assert_eq!(ramp.epoch(0).0.levels, whole);
        }
        let empty = Ramp::new(&linear, 0, 10, Some(50), Infeasible::Refuse, &none).unwrap();
        let (levels, report) = empty.epoch(3);
        assert_eq!((levels.levels.len(), levels.levels[0].pool, report.widened_share), (1, 0, 0.0));
        // Nothing admitted at first: one row is, to be repeated.
        let percent = Pacing::FixedLinear {
            difficulty_step: 50.0,
            difficulty_type: DifficultyKind::Percentile,
            max: 100.0,
            min: 0.0,
        };
        let (levels, report) = Ramp::new(&percent, 40, 10, Some(4), Infeasible::Repeat, &none).unwrap().epoch(0);
        let rows: Vec<(u64, u64)> = levels.levels.iter().map(|level| (level.start, level.pool)).collect();
        assert_eq!((rows, report.widened_rows), (vec![(0, 1), (10, 20), (30, 40)], 1));
        // As many rows and steps as there can be.
        for infeasible in [Infeasible::Clip, Infeasible::Widen, Infeasible::Repeat] {
            for batch in [1, 1000, u64::MAX] {
                let ramp = Ramp::new(&linear, u64::MAX, batch, Some(u64::MAX), infeasible, &none).unwrap();
                let (levels, _) = ramp.epoch(0);
                assert!(levels.levels.len() <= LEVELS_MAX);
                assert!(levels.levels.is_sorted_by(|a, b| a.pool < b.pool && a.start < b.start));
            }
        }
    }

    #[test]
    fn large_epochs_cost_no_visit_of_every_step() {
        // 10^12 rows in 10^9 steps.
        let (rows, batch) = (1_000_000_000_000, 1000);
        for start in [0.0, 0.01] {
            assert_eq!(largest(&Pacing::Linear { start }, rows, batch, 1 << 40), 1_000_000_000);
        }
        let (levels, report) =
            Ramp::new(&Pacing::Sqrt { start: 0.01 }, rows, batch, Some(1_000_000_000), Infeasible::Refuse, &none)
                .unwrap()
                .epoch(0);
        assert_eq!(levels.levels.len(), LEVELS_MAX);
        assert!(report.widened_share < 1.0 / 63.0, "{report:?}");
        // 65,536 difficulties of 15,259 steps or 15.3 million rows each, and 20 million rows from the start.
        let stepped = Pacing::FixedRoot {
            difficulty_step: 1.0,
            difficulty_type: DifficultyKind::Value,
            max: 65_536.0,
            min: 0.0,
            root_degree: 1,
        };
        let at_most = |difficulty: f64| (difficulty * 15_258_789.0) as u64 + 20_000_000;
        let ramp = Ramp::new(&stepped, rows, batch, Some(2_000_000_000), Infeasible::Clip, &at_most).unwrap();
        assert!((1_000_000_000..1_000_010_000).contains(&ramp.total_steps()), "{}", ramp.total_steps());
    }

    fn by_hand(ramp: &Ramp, total: u64) -> Option<Short> {
        (0..ramp.rows.div_ceil(ramp.batch)).find_map(|step| {
            let (pool, needed) = (ramp.admitted(step, total), ramp.rows.min((step + 1) * ramp.batch));
            (pool < needed).then_some(Short { step, pool, needed })
        })
    }

    #[test]
    fn deepspeeds_percentiles() {
        // n = 60,000, B = 250, S = 240, max 100 percent. Below the step as min, the first batches already have too few.
        let fixed = |min, difficulty_step, root_degree| Pacing::FixedRoot {
            difficulty_step,
            difficulty_type: DifficultyKind::Percentile,
            max: 100.0,
            min,
            root_degree,
        };
        for (min, step, degree, want) in [
            (1.0, 1.0, 1, 237),
            (5.0, 5.0, 1, 229),
            (8.0, 8.0, 1, 221),
            (1.0, 1.0, 2, 238),
            (1.0, 5.0, 1, 74),
            (1.0, 8.0, 1, 42),
        ] {
            let pacing = fixed(min, step, degree);
            let ramp = Ramp::new(&pacing, 60_000, 250, Some(480), Infeasible::Clip, &none).unwrap();
            let brute = (1..=480).rev().find(|total| by_hand(&ramp, *total).is_none()).unwrap();
            assert_eq!((ramp.total_steps(), brute), (want, want), "{pacing:?}");
        }
    }

    /// Pacing functions with the steps that they may last, `None` where they list their own.
    fn pacings() -> impl Strategy<Value = (Pacing, Option<u64>)> {
        let start = prop_oneof![Just(0.0), Just(0.01), 0.0..1.0_f64];
        let kind = prop_oneof![Just(DifficultyKind::Value), Just(DifficultyKind::Percentile)];
        let rising = |most: u64| {
            (1_usize..6).prop_flat_map(move |len| {
                (prop::collection::btree_set(1_u64..most, len), prop::collection::btree_set(1_u64..100, len + 1))
            })
        };
        let total = prop_oneof![0_u64..30, 0_u64..400];
        let paced = prop_oneof![
            start.clone().prop_map(|start| Pacing::Linear { start }),
            start.clone().prop_map(|start| Pacing::Sqrt { start }),
            (3_u32..6, start).prop_map(|(degree, start)| Pacing::Root { degree, start }),
            (0.0..60.0, 0.0..40.0, prop_oneof![Just(1.0), Just(8.0), 0.3..30.0], kind.clone(), 1_u32..4).prop_map(
                |(min, width, difficulty_step, difficulty_type, root_degree)| Pacing::FixedRoot {
                    difficulty_step,
                    difficulty_type,
                    max: min + width,
                    min,
                    root_degree,
                }
            ),
        ];
        prop_oneof![
            3 => (paced, total.prop_map(Some)),
            1 => (rising(40), kind).prop_map(|((steps, values), difficulty_type)| {
                let difficulty = values.into_iter().map(|value| value as f64).collect();
                (Pacing::FixedDiscrete { difficulty, difficulty_type, max_step: steps.into_iter().collect() }, None)
            }),
            1 => rising(40).prop_map(|(steps, values)| {
                let shares = values.into_iter().map(|value| value as f64 / 100.0);
                let mut levels: Vec<(u64, f64)> = [0].into_iter().chain(steps).zip(shares).collect();
                levels.last_mut().unwrap().1 = 1.0;
                (Pacing::Table { levels }, None)
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn the_fast_check_is_the_slow_one(
            (pacing, total) in pacings(), rows in 0_u64..300, batch in prop_oneof![1_u64..12, 1_u64..400],
            bend in 0.2..3.0,
        ) {
            let at_most = |difficulty: f64| (rows as f64 * (difficulty / 90.0).max(0.0).powf(bend)) as u64;
            let ramp = Ramp::new(&pacing, rows, batch, total, Infeasible::Repeat, &at_most).unwrap();
            let requested = ramp.requested;
            // Every T that may be tried, and that feasible ones are all those up to some T.
            let mut largest = 0;
            for total in (0..=requested.min(60)).chain([requested]) {
                let slow = by_hand(&ramp, total);
                prop_assert_eq!(ramp.first_short(total), slow, "total {}", total);
                if slow.is_none() {
                    prop_assert!(total <= largest + 1 || total > 60, "feasible at {} but not before", total);
                    largest = total;
                }
            }
            let clip = Ramp::new(&pacing, rows, batch, total, Infeasible::Clip, &at_most).unwrap();
            if requested <= 60 {
                prop_assert_eq!(clip.total_steps(), largest);
            } else {
                prop_assert!(by_hand(&clip, clip.total_steps()).is_none());
                prop_assert!(clip.total_steps() == requested || by_hand(&clip, clip.total_steps() + 1).is_some());
            }
            let refuse = Ramp::new(&pacing, rows, batch, total, Infeasible::Refuse, &at_most);
            prop_assert_eq!(refuse.is_ok(), clip.total_steps() == requested);
        }

        #[test]
        fn tables_are_short_rising_and_feasible(
            (pacing, total) in pacings(), rows in 0_u64..2000, batch in prop_oneof![1_u64..12, 1_u64..400],
            bend in 0.2..3.0, epoch in 0_u64..4,
        ) {
            let at_most = |difficulty: f64| (rows as f64 * (difficulty / 90.0).max(0.0).powf(bend)) as u64;
            for infeasible in [Infeasible::Clip, Infeasible::Widen, Infeasible::Repeat] {
                let ramp = Ramp::new(&pacing, rows, batch, total, infeasible, &at_most).unwrap();
                let (Levels { levels }, report) = ramp.epoch(epoch);
                let steps = ramp.steps();
                prop_assert!((1..=LEVELS_MAX).contains(&levels.len()) && report.levels == levels.len() as u64);
                prop_assert_eq!(levels[0].start, 0);
                prop_assert!(levels.is_sorted_by(|a, b| a.start < b.start && a.pool < b.pool));
                prop_assert!(levels.iter().all(|l| l.start.is_multiple_of(batch) && l.start <= rows && l.pool <= rows));
                let admitted = |step: u64| ramp.admitted(epoch * steps + step, ramp.total);
                let feasible = (0..steps).all(|step| admitted(step) >= ramp.drawn(step + 1));
                prop_assert!(feasible || infeasible != Infeasible::Clip);
                let (low, high) = (admitted(0), if steps == 0 { 0 } else { admitted(steps - 1) });
                let mut widest = 0;
                for (i, level) in levels.iter().enumerate() {
                    let first = level.start / batch;
                    let end = levels.get(i + 1).map_or(steps, |next| next.start / batch);
                    prop_assert_eq!(level.threshold, ramp.pacing.threshold(epoch * steps + first + 1, ramp.total));
                    prop_assert!(level.pool >= admitted(first));
                    widest = widest.max(level.pool - admitted(first));
                    let needed = ramp.drawn(end);
                    if infeasible != Infeasible::Repeat || feasible {
                        prop_assert!(level.pool >= needed, "{:?} needs {}", level, needed);
                    }
                    // Not wider than some step of the level asks for.
                    let last = end.saturating_sub(1);
                    let least = if infeasible == Infeasible::Widen { ramp.drawn(end) } else { rows.min(1) };
                    prop_assert!(steps == 0 || level.pool <= admitted(last).max(least));
                    if feasible && steps > 0 {
                        prop_assert!(level.pool - admitted(first) <= (high - low).div_ceil(LEVELS_MAX as u64 - 1));
                    }
                }
                prop_assert_eq!(report.widened_rows, widest);
                if (epoch + 1) * steps >= ramp.total || infeasible != Infeasible::Repeat {
                    prop_assert_eq!(levels[levels.len() - 1].pool, rows);
                }
                let mut pools: Vec<u64> = (0..steps).map(admitted).collect();
                pools.dedup();
                if feasible && steps > 0 && pools.len() <= LEVELS_MAX {
                    let table: Vec<u64> = levels.iter().map(|level| level.pool).collect();
                    prop_assert_eq!(table, pools, "as many levels as pools");
                }
            }
        }
    }
}
