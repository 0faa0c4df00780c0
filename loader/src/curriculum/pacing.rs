//! Pacing functions: what part of the data, from the easiest row on, is admitted at which step of training.
//!
//! Time t counts steps from the start of training, and what step s (counted from 0) may draw from is the function at
//! t = s + 1: competence as in Platanios et al., "Competence-based curriculum learning for neural machine translation"
//! (2019, arXiv:1903.09848), or difficulty as in DeepSpeed's curriculum scheduler, which is asked at s + 1 too.
//!
//! DeepSpeed's `fixed_linear` and `fixed_root` are mended at both ends. Rounding down to a multiple of the step can
//! fall below the minimum, and then the minimum holds. The maximum is reached at T and not after it. From T on every
//! row is admitted, harder ones than the maximum too: else they would never be drawn.
//!
//! Every function here is non-decreasing in t and non-increasing in T, to the last bit, and the same on every machine:
//! sums, products, quotients and square roots are as IEEE 754 fixes them, and other roots are defined by products.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Largest degree of a root.
pub const DEGREE_MAX: u32 = 64;

/// Most steps of difficulty between the minimum and the maximum.
pub const DIFFICULTY_STEPS_MAX: u32 = 65_536;

/// What a difficulty of a pacing function means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DifficultyKind {
    /// In percent of the rows, the easiest first: 0 to 100.
    Percentile,
    /// In the unit of the rows' own difficulty: rows of at most this difficulty are admitted.
    Value,
}

/// A pacing function. T is the number of steps after which every row is admitted.
//
// Fields are in byte order of their names, after the tag: the text is then canonical by construction, whatever
// features serde_json is built with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pacing {
    /// The admitted share of the rows grows linearly from `start` to 1: `t (1 − start) / T + start`.
    Linear {
        /// Share at t = 0, 0 to 1.
        #[serde(default = "default_start")]
        start: f64,
    },
    /// The square of the share grows linearly: [`Pacing::Root`] of degree 2.
    Sqrt {
        /// Share at t = 0, 0 to 1.
        #[serde(default = "default_start")]
        start: f64,
    },
    /// The share's power p grows linearly: `(t (1 − start^p) / T + start^p)^(1/p)`.
    Root {
        /// p, 1 to [`DEGREE_MAX`].
        degree: u32,
        /// Share at t = 0, 0 to 1.
        #[serde(default = "default_start")]
        start: f64,
    },
    /// The difficulty grows linearly: `t / T · (max − min) + min`, rounded down to a multiple of `difficulty_step`,
    /// kept in `[min, max]`.
    FixedLinear {
        /// What difficulties are rounded down to a multiple of; above 0, at least 1/65,536 of `max − min`.
        difficulty_step: f64,
        /// What a difficulty is.
        difficulty_type: DifficultyKind,
        /// Difficulty at t = T.
        max: f64,
        /// Difficulty at t = 0.
        min: f64,
    },
    /// The difficulty grows as a root: `(t / T)^(1/p) · (max − min) + min`, rounded as for [`Pacing::FixedLinear`].
    FixedRoot {
        /// What difficulties are rounded down to a multiple of; above 0, at least 1/65,536 of `max − min`.
        difficulty_step: f64,
        /// What a difficulty is.
        difficulty_type: DifficultyKind,
        /// Difficulty at t = T.
        max: f64,
        /// Difficulty at t = 0.
        min: f64,
        /// p, 1 to [`DEGREE_MAX`].
        root_degree: u32,
    },
    /// `difficulty[i]` holds up to and including t = `max_step[i]`, the last one after that. T is the last of
    /// `max_step` plus 1, and at the last difficulty every row is admitted.
    FixedDiscrete {
        /// Difficulties, rising.
        difficulty: Vec<f64>,
        /// What a difficulty is.
        difficulty_type: DifficultyKind,
        /// How many steps of training have had at most the difficulty of that place; rising, one fewer than
        /// difficulties.
        max_step: Vec<u64>,
    },
    /// The share of each level is admitted from its step of training, counted from 0, to the next level's. T is the
    /// last level's step plus 1.
    Table {
        /// (step, share): both rising, from step 0 to share 1.
        levels: Vec<(u64, f64)>,
    },
}

fn default_start() -> f64 {
    0.01
}

/// What rows are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threshold {
    /// This share of the rows, the easiest, 0 to 1.
    Share(f64),
    /// Rows of at most this difficulty.
    Value(f64),
    /// All rows.
    All,
}

impl Pacing {
    /// Whether every parameter is in its range.
    ///
    /// # Errors
    /// [`Error::Usage`] for the first that is not.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Linear { start } | Self::Sqrt { start } => validate_start(*start),
            Self::Root { degree, start } => {
                validate_degree("degree", *degree)?;
                validate_start(*start)
            }
            Self::FixedLinear { difficulty_step, difficulty_type, max, min } => {
                validate_range(*difficulty_type, *min, *max, *difficulty_step)
            }
            Self::FixedRoot { difficulty_step, difficulty_type, max, min, root_degree } => {
                validate_degree("root_degree", *root_degree)?;
                validate_range(*difficulty_type, *min, *max, *difficulty_step)
            }
            Self::FixedDiscrete { difficulty, difficulty_type, max_step } => {
                validate_discrete(*difficulty_type, difficulty, max_step)
            }
            Self::Table { levels } => validate_table(levels),
        }
    }

    /// T where the function itself fixes it; the others stretch over any number of steps.
    #[must_use]
    pub fn own_total(&self) -> Option<u64> {
        match self {
            Self::FixedDiscrete { max_step, .. } => Some(max_step.last().map_or(0, |step| step.saturating_add(1))),
            Self::Table { levels } => Some(levels.last().map_or(0, |(step, _)| step.saturating_add(1))),
            _ => None,
        }
    }

    /// Whether the share is a concave function of time, at least 0 at t = 0.
    pub(super) fn is_concave(&self) -> bool {
        matches!(self, Self::Linear { .. } | Self::Sqrt { .. } | Self::Root { .. })
    }

    /// The admitted share of the rows at time `t` of `total`, 1 from `total` on; `None` where difficulties are values.
    /// A function with a T of its own is cut off at `total`.
    #[must_use]
    pub fn competence(&self, t: u64, total: u64) -> Option<f64> {
        let share = match self {
            Self::Linear { start } => paced(t, total, 1, *start),
            Self::Sqrt { start } => paced(t, total, 2, *start),
            Self::Root { degree, start } => paced(t, total, *degree, *start),
            Self::Table { levels } => {
                // The level of step t − 1.
                let after = levels.partition_point(|(step, _)| *step < t).max(1);
                levels.get(after - 1).map_or(1.0, |(_, share)| *share)
            }
            Self::FixedLinear { difficulty_type, .. }
            | Self::FixedRoot { difficulty_type, .. }
            | Self::FixedDiscrete { difficulty_type, .. } => match difficulty_type {
                DifficultyKind::Percentile => self.difficulty(t, total)? / 100.0,
                DifficultyKind::Value => return None,
            },
        };
        Some(if t >= self.end(total) { 1.0 } else { share })
    }

    /// The difficulty at time `t` of `total`, the largest from `total` on; `None` where the function is of shares.
    /// A function with a T of its own is cut off at `total`. At the end rows of larger difficulty are admitted too:
    /// [`Pacing::threshold`] tells.
    #[must_use]
    pub fn difficulty(&self, t: u64, total: u64) -> Option<f64> {
        let is_over = t >= self.end(total);
        match self {
            Self::Linear { .. } | Self::Sqrt { .. } | Self::Root { .. } | Self::Table { .. } => None,
            Self::FixedLinear { max, .. } | Self::FixedRoot { max, .. } if is_over => Some(*max),
            Self::FixedLinear { difficulty_step, max, min, .. } => {
                Some(stepped(t, total, 1, *min, *max, *difficulty_step))
            }
            Self::FixedRoot { difficulty_step, max, min, root_degree, .. } => {
                Some(stepped(t, total, *root_degree, *min, *max, *difficulty_step))
            }
            Self::FixedDiscrete { difficulty, .. } if is_over => difficulty.last().copied(),
            Self::FixedDiscrete { difficulty, max_step, .. } => {
                difficulty.get(max_step.partition_point(|step| *step < t)).copied()
            }
        }
    }

    /// What is admitted at time `t` of `total`: all rows from `total` on.
    #[must_use]
    pub fn threshold(&self, t: u64, total: u64) -> Threshold {
        if t >= self.end(total) {
            return Threshold::All;
        }
        match (self.competence(t, total), self.difficulty(t, total)) {
            (Some(share), _) => Threshold::Share(share),
            (None, Some(difficulty)) => Threshold::Value(difficulty),
            (None, None) => Threshold::All,
        }
    }

    /// The time from which all rows are admitted.
    fn end(&self, total: u64) -> u64 {
        self.own_total().map_or(total, |own| own.min(total))
    }
}

impl Threshold {
    /// `⌈rows · share⌉`, the product rounded to the nearest number first (a share of 0.1 of 30 rows is 3 rows).
    #[must_use]
    pub fn rows_of_share(rows: u64, share: f64) -> u64 {
        if share >= 1.0 {
            return rows;
        }
        // Above 2^53 rows the product is off by a part in 2^53, and still non-decreasing in the share. A float outside
        // the range of u64 becomes its nearest bound.
        ((rows as f64 * share).ceil() as u64).min(rows)
    }
}

/// `(t (1 − start^p) / T + start^p)^(1/p)`, in `[start, 1]`.
fn paced(t: u64, total: u64, degree: u32, start: f64) -> f64 {
    if t == 0 {
        return start;
    }
    if t >= total {
        return 1.0;
    }
    let from = power(start, degree);
    root((t as f64 * (1.0 - from) / total as f64 + from).min(1.0), degree).max(start)
}

/// `(t / T)^(1/p) · (max − min) + min`, rounded down to a multiple of `step`, in `[min, max]`.
fn stepped(t: u64, total: u64, degree: u32, min: f64, max: f64, step: f64) -> f64 {
    if t == 0 {
        return min.max((min / step).floor() * step);
    }
    if t >= total {
        return max;
    }
    let exact = root((t as f64 / total as f64).min(1.0), degree) * (max - min) + min;
    ((exact / step).floor() * step).max(min).min(max)
}

/// `base^exponent` by squaring: products of numbers that are not negative, each correctly rounded, so it is
/// non-decreasing in the base.
fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest % 2 == 1 {
            result *= square;
        }
        square *= square;
        rest /= 2;
    }
    result
}

/// `x^(1/degree)` for x in `[2^−64, 1]`. What `powf` returns is not fixed across machines, so it is only where the
/// search starts for what is: the square root, or the largest number whose [`power`] is at most x.
fn root(x: f64, degree: u32) -> f64 {
    match degree {
        0 | 1 => x,
        2 => x.sqrt(),
        _ => {
            let mut y = x.powf(1.0 / f64::from(degree));
            while power(y, degree) > x {
                y = y.next_down();
            }
            while power(y.next_up(), degree) <= x {
                y = y.next_up();
            }
            y.min(1.0)
        }
    }
}

fn validate_start(start: f64) -> Result<()> {
    if (0.0..=1.0).contains(&start) {
        return Ok(());
    }
    Err(Error::usage(
        format!("start of the pacing is {start}"),
        "give the share of the rows that the first steps draw from, 0 to 1, as 0.01",
    ))
}

fn validate_degree(name: &str, degree: u32) -> Result<()> {
    if (1..=DEGREE_MAX).contains(&degree) {
        return Ok(());
    }
    Err(Error::usage(
        format!("{name} of the pacing is {degree}"),
        format!("give 1 for a linear pacing, 2 for a square root, and so on up to {DEGREE_MAX}"),
    ))
}

fn validate_difficulty(name: &str, kind: DifficultyKind, difficulty: f64) -> Result<()> {
    match kind {
        DifficultyKind::Percentile if !(0.0..=100.0).contains(&difficulty) => Err(Error::usage(
            format!("{name} of the pacing is {difficulty} and its difficulties are percentiles"),
            "give 0 to 100, or the difficulty_type `value` for difficulties in the rows' own unit",
        )),
        DifficultyKind::Value if !difficulty.is_finite() => {
            Err(Error::usage(format!("{name} of the pacing is {difficulty}"), "give a finite difficulty"))
        }
        _ => Ok(()),
    }
}

fn validate_range(kind: DifficultyKind, min: f64, max: f64, step: f64) -> Result<()> {
    validate_difficulty("min", kind, min)?;
    validate_difficulty("max", kind, max)?;
    if min > max {
        return Err(Error::usage(
            format!("min of the pacing is {min} and max is {max}"),
            "give the difficulty of the first step as min and that of the last as max",
        ));
    }
    if !(step.is_finite() && step > 0.0) {
        return Err(Error::usage(
            format!("difficulty_step of the pacing is {step}"),
            "give what difficulties are rounded down to a multiple of, as 1 or 8",
        ));
    }
    let steps = (max - min) / step;
    if steps > f64::from(DIFFICULTY_STEPS_MAX) {
        return Err(Error::usage(
            format!("difficulty_step of the pacing is {step}, which makes {steps:.0} steps of {min} to {max}"),
            format!("give a difficulty_step of at least {}", (max / 65_536.0 - min / 65_536.0).max(f64::MIN_POSITIVE)),
        ));
    }
    Ok(())
}

fn validate_discrete(kind: DifficultyKind, difficulty: &[f64], max_step: &[u64]) -> Result<()> {
    if max_step.is_empty() || difficulty.len() != max_step.len() + 1 {
        return Err(Error::usage(
            format!("the pacing has {} difficulties and {} of max_step", difficulty.len(), max_step.len()),
            "give a max_step for every difficulty but the last, and at least two difficulties",
        ));
    }
    for (i, value) in difficulty.iter().enumerate() {
        validate_difficulty(&format!("difficulty[{i}]"), kind, *value)?;
    }
    for (i, pair) in difficulty.windows(2).enumerate() {
        if let [easier, harder] = pair
            && easier >= harder
        {
            return Err(Error::usage(
                format!("difficulty[{}] of the pacing is {harder}, after {easier}", i + 1),
                "give difficulties that rise: what was admitted stays admitted",
            ));
        }
    }
    if max_step.first() == Some(&0) {
        return Err(Error::usage(
            "max_step[0] of the pacing is 0",
            "give the number of steps that the first difficulty holds for, 1 or more",
        ));
    }
    for (i, pair) in max_step.windows(2).enumerate() {
        if let [earlier, later] = pair
            && earlier >= later
        {
            return Err(Error::usage(
                format!("max_step[{}] of the pacing is {later}, after {earlier}", i + 1),
                "give steps that rise: each is counted from the start of training",
            ));
        }
    }
    Ok(())
}

fn validate_table(levels: &[(u64, f64)]) -> Result<()> {
    let (Some((first, _)), Some((last, whole))) = (levels.first(), levels.last()) else {
        return Err(Error::usage("the pacing's table has no levels", "give (step, share) pairs, the last of share 1"));
    };
    if *first != 0 {
        return Err(Error::usage(
            format!("the first level of the pacing's table begins at step {first}"),
            "give the share that is admitted from step 0 on",
        ));
    }
    for (step, share) in levels {
        if !(*share > 0.0 && *share <= 1.0) {
            return Err(Error::usage(
                format!("the share of the pacing's level at step {step} is {share}"),
                "give a share of the rows above 0 and up to 1",
            ));
        }
    }
    for pair in levels.windows(2) {
        if let [(earlier, less), (later, more)] = pair
            && (earlier >= later || less >= more)
        {
            return Err(Error::usage(
                format!("the pacing's level ({later}, {more}) comes after ({earlier}, {less})"),
                "give levels whose steps and shares both rise",
            ));
        }
    }
    if *whole < 1.0 {
        return Err(Error::usage(
            format!("the last share of the pacing's table is {whole}: rows beyond it would never be drawn"),
            format!("add a level of share 1 after step {last}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fixed(min: f64, max: f64, difficulty_step: f64) -> Pacing {
        Pacing::FixedLinear { difficulty_step, difficulty_type: DifficultyKind::Value, max, min }
    }

    fn fixed_root(min: f64, max: f64, difficulty_step: f64, root_degree: u32) -> Pacing {
        Pacing::FixedRoot { difficulty_step, difficulty_type: DifficultyKind::Value, max, min, root_degree }
    }

    fn discrete(kind: DifficultyKind) -> Pacing {
        Pacing::FixedDiscrete { difficulty: vec![1.0, 20.0, 30.0], difficulty_type: kind, max_step: vec![5, 10] }
    }

    /// DeepSpeed's formula as it stands, without ends mended; the value before rounding comes with it.
    fn deepspeed(t: u64, total: u64, degree: u32, min: f64, max: f64, step: f64) -> (f64, f64) {
        let exact = (t as f64 / total as f64).powf(1.0 / f64::from(degree)) * (max - min) + min;
        let floor = exact.floor();
        ((floor - floor.rem_euclid(step)).min(max), exact)
    }

    #[test]
    fn competence_is_the_papers() {
        let (linear, sqrt) = (Pacing::Linear { start: 0.01 }, Pacing::Sqrt { start: 0.01 });
        for (t, of_linear, of_sqrt) in [
            (0, 0.01, 0.01),
            (10, 0.0199, 0.1005),
            (100, 0.109, 0.3164),
            (500, 0.505, 0.70714),
            (1000, 1.0, 1.0),
            (5000, 1.0, 1.0),
        ] {
            assert!((linear.competence(t, 1000).unwrap() - of_linear).abs() < 5e-5, "linear at {t}");
            assert!((sqrt.competence(t, 1000).unwrap() - of_sqrt).abs() < 5e-5, "sqrt at {t}");
            assert_eq!(Pacing::Root { degree: 1, start: 0.01 }.competence(t, 1000), linear.competence(t, 1000));
            assert_eq!(Pacing::Root { degree: 2, start: 0.01 }.competence(t, 1000), sqrt.competence(t, 1000));
            let cube = (t as f64 / 1000.0 * (1.0 - 1e-6) + 1e-6).cbrt().min(1.0);
            assert!((Pacing::Root { degree: 3, start: 0.01 }.competence(t, 1000).unwrap() - cube).abs() < 1e-12);
        }
        assert_eq!(linear.competence(999, 1000).unwrap(), 999.0 * 0.99 / 1000.0 + 0.01);
        assert_eq!(linear.threshold(1000, 1000), Threshold::All);
        assert_eq!(linear.threshold(0, 0), Threshold::All);
        assert_eq!(linear.difficulty(0, 10), None);
        assert_eq!(Pacing::Sqrt { start: 1.0 }.competence(1, 10), Some(1.0));
        assert_eq!(Pacing::Sqrt { start: 0.0 }.competence(0, 10), Some(0.0));
    }

    #[test]
    fn difficulties_are_deepspeeds_between_the_ends() {
        for (min, max, step, degree, total) in [
            (64.0, 2048.0, 8.0, 1, 1000),
            (1.0, 100.0, 1.0, 1, 237),
            (8.0, 1024.0, 8.0, 2, 777),
            (5.0, 905.0, 3.0, 3, 91),
        ] {
            let pacing = fixed_root(min, max, step, degree);
            let mut compared = 0;
            for t in 0..total {
                let (theirs, exact) = deepspeed(t, total, degree, min, max, step);
                // Where the value before rounding is an integer, a last bit decides.
                if (exact - exact.round()).abs() > 1e-9 {
                    assert_eq!(pacing.difficulty(t, total), Some(theirs.max(min)), "{pacing:?} at {t}");
                    compared += 1;
                }
            }
            assert!(compared * 10 > total * 9);
        }
        // 64 + 1984 t / 1000 at t = 125, 500 and 999, by hand.
        let lengths = fixed(64.0, 2048.0, 8.0);
        assert_eq!([125, 500, 999].map(|t| lengths.difficulty(t, 1000).unwrap()), [312.0, 1056.0, 2040.0]);
        // 8 + 1016 √(t / 100) at t = 1, 25 and 81, by hand.
        let root = fixed_root(8.0, 1024.0, 8.0, 2);
        assert_eq!([1, 25, 81].map(|t| root.difficulty(t, 100).unwrap()), [104.0, 512.0, 920.0]);
    }

    #[test]
    fn the_ends_are_mended() {
        // Below the minimum at the start.
        assert_eq!(deepspeed(0, 10, 1, 10.0, 100.0, 8.0).0, 8.0);
        assert_eq!(fixed(10.0, 100.0, 8.0).difficulty(0, 10), Some(10.0));
        // The maximum is not reached at T.
        assert_eq!(deepspeed(10, 10, 1, 10.0, 100.0, 8.0).0, 96.0);
        for t in [10, 11, 1000] {
            assert_eq!(fixed(10.0, 100.0, 8.0).difficulty(t, 10), Some(100.0));
            assert_eq!(fixed(10.0, 100.0, 8.0).threshold(t, 10), Threshold::All);
        }
        assert_eq!(fixed(10.0, 100.0, 8.0).threshold(9, 10), Threshold::Value(88.0));
        // A step larger than the range: the minimum, then all.
        assert_eq!(fixed(10.0, 12.0, 50.0).difficulty(9, 10), Some(10.0));
        // No range at all, and difficulties below zero, rounded down.
        assert_eq!(fixed(7.0, 7.0, 8.0).difficulty(3, 10), Some(7.0));
        assert_eq!(fixed(-20.0, 0.0, 8.0).difficulty(5, 10), Some(-16.0));
        assert_eq!(fixed(0.0, 1.0, 0.25).difficulty(6, 10), Some(0.5));
    }

    #[test]
    fn percentiles_are_shares() {
        let pacing = Pacing::FixedLinear {
            difficulty_step: 5.0,
            difficulty_type: DifficultyKind::Percentile,
            max: 80.0,
            min: 20.0,
        };
        assert_eq!(pacing.difficulty(5, 10), Some(50.0));
        assert_eq!(pacing.threshold(5, 10), Threshold::Share(0.5));
        assert_eq!(pacing.difficulty(10, 10), Some(80.0));
        assert_eq!((pacing.competence(10, 10), pacing.threshold(10, 10)), (Some(1.0), Threshold::All));
        assert_eq!(fixed(1.0, 2.0, 1.0).competence(5, 10), None);
    }

    #[test]
    fn step_tables_change_where_they_say() {
        // DeepSpeed: `t <= max_step[i]`, at t = s + 1.
        let pacing = discrete(DifficultyKind::Value);
        assert_eq!(pacing.own_total(), Some(11));
        for (t, difficulty) in [(0, 1.0), (1, 1.0), (5, 1.0), (6, 20.0), (10, 20.0), (11, 30.0), (u64::MAX, 30.0)] {
            assert_eq!(pacing.difficulty(t, 11), Some(difficulty), "at {t}");
        }
        assert_eq!(pacing.threshold(10, 99), Threshold::Value(20.0));
        assert_eq!(pacing.threshold(11, 99), Threshold::All);
        assert_eq!((pacing.difficulty(6, 6), pacing.threshold(6, 6)), (Some(30.0), Threshold::All));
        assert_eq!(discrete(DifficultyKind::Percentile).threshold(6, 11), Threshold::Share(0.2));
        // Steps of training, each at time s + 1.
        let table = Pacing::Table { levels: vec![(0, 0.25), (3, 0.5), (7, 1.0)] };
        assert_eq!(table.own_total(), Some(8));
        let shares: Vec<f64> = (0..9).map(|s| table.competence(s + 1, 8).unwrap()).collect();
        assert_eq!(shares, [0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0]);
        assert_eq!((table.competence(0, 8), table.threshold(7, 8)), (Some(0.25), Threshold::Share(0.5)));
        assert_eq!((table.threshold(8, 8), table.threshold(5, 5)), (Threshold::All, Threshold::All));
    }

    #[test]
    fn shares_become_rows() {
        for (rows, share, want) in
            [(30, 0.1, 3), (9, 0.505, 5), (10, 1e-9, 1), (10, 0.0, 0), (10, 1.0, 10), (u64::MAX, 1.0, u64::MAX)]
        {
            assert_eq!(Threshold::rows_of_share(rows, share), want, "{rows} {share}");
        }
        assert_eq!(Threshold::rows_of_share(u64::MAX, 1.0_f64.next_down()), u64::MAX - 2047);
    }

    #[test]
    fn roots_are_fixed_by_products() {
        for degree in 3..=DEGREE_MAX {
            for x in [1.0, 0.5, 1e-3, 1.0 / u64::MAX as f64, 0.999_999_999] {
                let y = root(x, degree);
                assert!(power(y, degree) <= x && (y == 1.0 || power(y.next_up(), degree) > x), "{x} {degree}");
                assert!((y / x.powf(1.0 / f64::from(degree)) - 1.0).abs() < 1e-14);
            }
        }
        assert_eq!([root(0.125, 3), root(0.0625, 4), power(0.5, 10)], [0.5, 0.5, 1.0 / 1024.0]);
    }

    #[test]
    fn golden_values_never_change() {
        let bits = |value: Option<f64>| value.unwrap().to_bits();
        let of =
            |pacing: &Pacing| (0..1000).fold(0_u64, |sum, t| sum.rotate_left(5) ^ bits(pacing.competence(t, 1000)));
        let root = |degree| Pacing::Root { degree, start: 0.01 };
        assert_eq!([1, 2, 3, 5, 64].map(|degree| of(&root(degree))), GOLDEN);
    }

    // From the definitions, by another program; orders depend on every bit.
    const GOLDEN: [u64; 5] = [
        10_077_557_991_744_530_272,
        2_257_740_116_582_780_766,
        14_597_713_229_783_043_817,
        2_977_270_735_772_587_537,
        11_122_134_785_345_268_705,
    ];

    fn pacings() -> impl Strategy<Value = Pacing> {
        let start = prop_oneof![Just(0.0), Just(0.01), Just(1.0), 0.0..1.0, 1e-120..1e-90];
        let kind = prop_oneof![Just(DifficultyKind::Value), Just(DifficultyKind::Percentile)];
        let range = (0.0..50.0, 0.0..50.0, prop_oneof![Just(1.0), Just(8.0), 0.01..20.0], kind.clone());
        prop_oneof![
            start.clone().prop_map(|start| Pacing::Linear { start }),
            start.clone().prop_map(|start| Pacing::Sqrt { start }),
            (1_u32..=DEGREE_MAX, start).prop_map(|(degree, start)| Pacing::Root { degree, start }),
            (range, 1_u32..9).prop_map(|((min, width, difficulty_step, difficulty_type), root_degree)| {
                Pacing::FixedRoot { difficulty_step, difficulty_type, max: min + width, min, root_degree }
            }),
            kind.prop_map(discrete),
            Just(Pacing::Table { levels: vec![(0, 0.25), (3, 0.5), (7, 1.0)] }),
        ]
    }

    /// Where a threshold stands among those of its pacing.
    fn height(threshold: Threshold) -> f64 {
        match threshold {
            Threshold::Share(height) | Threshold::Value(height) => height,
            Threshold::All => f64::INFINITY,
        }
    }

    proptest! {
        #[test]
        fn pacing_never_falls_in_t_nor_rises_in_total(
            pacing in pacings(), t in prop_oneof![0_u64..40, 0_u64..1_000_000, any::<u64>()], by in 0_u64..20,
            total in prop_oneof![1_u64..40, 1_u64..1_000_000, any::<u64>()],
        ) {
            pacing.validate().unwrap();
            let now = height(pacing.threshold(t, total));
            prop_assert!(now <= height(pacing.threshold(t.saturating_add(by), total)));
            prop_assert!(now >= height(pacing.threshold(t, total.saturating_add(by))));
            if let Some(share) = pacing.competence(t, total) {
                prop_assert!((0.0..=1.0).contains(&share));
                prop_assert!(share <= pacing.competence(t.saturating_add(by), total).unwrap());
                prop_assert!(t < total || share == 1.0);
            }
            if let Some(difficulty) = pacing.difficulty(t, total) {
                prop_assert!(difficulty <= pacing.difficulty(t.saturating_add(by), total).unwrap());
            }
        }

        #[test]
        fn difficulties_stay_in_their_range(
            min in -100.0..100.0, width in 0.0..100.0, step in 0.01..200.0, degree in 1_u32..6, t in 0_u64..50,
        ) {
            let max = min + width;
            let difficulty = fixed_root(min, max, step, degree).difficulty(t, 40).unwrap();
            prop_assert!((min..=max).contains(&difficulty));
            prop_assert!(t < 40 || difficulty == max);
        }
    }

    #[test]
    fn bad_parameters_are_refused() {
        let bad = |pacing: Pacing, text: &str| {
            let error = pacing.validate().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("help:"), "{pacing:?}: {error}");
        };
        for start in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
            bad(Pacing::Linear { start }, "start");
            bad(Pacing::Sqrt { start }, "start");
            bad(Pacing::Root { degree: 2, start }, "start");
        }
        for degree in [0, 65] {
            bad(Pacing::Root { degree, start: 0.1 }, "degree");
            bad(fixed_root(0.0, 1.0, 1.0, degree), "root_degree");
        }
        bad(fixed(f64::NAN, 1.0, 1.0), "min");
        bad(fixed(0.0, f64::INFINITY, 1.0), "max");
        bad(fixed(2.0, 1.0, 1.0), "min of the pacing is 2 and max is 1");
        for step in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-5] {
            bad(fixed(0.0, 1.0, step), "difficulty_step");
            bad(fixed_root(0.0, 1.0, step, 2), "difficulty_step");
        }
        bad(fixed(-1e308, 1e308, 1.0), "difficulty_step");
        let percentile = |min, max| Pacing::FixedLinear {
            difficulty_step: 1.0,
            difficulty_type: DifficultyKind::Percentile,
            max,
            min,
        };
        bad(percentile(-1.0, 50.0), "percentile");
        bad(percentile(0.0, 101.0), "percentile");
        let discrete = |difficulty: &[f64], max_step: &[u64]| Pacing::FixedDiscrete {
            difficulty: difficulty.to_vec(),
            difficulty_type: DifficultyKind::Value,
            max_step: max_step.to_vec(),
        };
        bad(discrete(&[], &[]), "0 difficulties");
        bad(discrete(&[1.0], &[]), "1 difficulties");
        bad(discrete(&[1.0, 2.0], &[1, 2]), "2 difficulties and 2");
        bad(discrete(&[1.0, f64::NAN], &[1]), "difficulty[1]");
        bad(discrete(&[2.0, 2.0], &[1]), "difficulty[1]");
        bad(discrete(&[1.0, 2.0], &[0]), "max_step[0]");
        bad(discrete(&[1.0, 2.0, 3.0], &[5, 5]), "max_step[1]");
        let table = |levels: &[(u64, f64)]| Pacing::Table { levels: levels.to_vec() };
        bad(table(&[]), "no levels");
        bad(table(&[(1, 1.0)]), "step 1");
        bad(table(&[(0, 0.0), (1, 1.0)]), "is 0");
        bad(table(&[(0, f64::NAN)]), "NaN");
        bad(table(&[(0, 0.5), (2, 1.5)]), "1.5");
        bad(table(&[(0, 0.5), (0, 1.0)]), "comes after");
        bad(table(&[(0, 0.5), (3, 0.5), (4, 1.0)]), "comes after");
        bad(table(&[(0, 0.5), (3, 0.75)]), "never be drawn");
        fixed(0.0, 65_536.0, 1.0).validate().unwrap();
        table(&[(0, 1.0)]).validate().unwrap();
    }

    #[test]
    fn options_have_one_text() {
        let round = |pacing: Pacing, text: &str| {
            assert_eq!(serde_json::to_string(&pacing).unwrap(), text);
            assert_eq!(serde_json::from_str::<Pacing>(text).unwrap(), pacing);
        };
        round(Pacing::Sqrt { start: 0.01 }, r#"{"kind":"sqrt","start":0.01}"#);
        round(Pacing::Root { degree: 3, start: 0.0 }, r#"{"kind":"root","degree":3,"start":0.0}"#);
        round(
            fixed_root(8.0, 64.0, 8.0, 2),
            concat!(
                r#"{"kind":"fixed-root","difficulty_step":8.0,"#,
                r#""difficulty_type":"value","max":64.0,"min":8.0,"root_degree":2}"#
            ),
        );
        round(
            discrete(DifficultyKind::Percentile),
            concat!(
                r#"{"kind":"fixed-discrete","difficulty":[1.0,20.0,30.0],"#,
                r#""difficulty_type":"percentile","max_step":[5,10]}"#
            ),
        );
        round(Pacing::Table { levels: vec![(0, 0.5), (9, 1.0)] }, r#"{"kind":"table","levels":[[0,0.5],[9,1.0]]}"#);
        assert_eq!(serde_json::from_str::<Pacing>(r#"{"kind":"linear"}"#).unwrap(), Pacing::Linear { start: 0.01 });
        assert!(serde_json::from_str::<Pacing>(r#"{"kind":"linear","begin":0.1}"#).is_err());
        assert!(serde_json::from_str::<Pacing>(r#"{"kind":"log"}"#).is_err());
    }
}
