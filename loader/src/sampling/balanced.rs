//! Class-balanced draws of one lane: how often each class comes is given, when is by turns, which row by [`Repeats`].
//!
//! **What is exact.** Each class has exactly the draws it is given. Among the first x draws of the lane a class has its
//! share, x times its part of the lane's draws, in exact expectation at every x and never 3.36 draws away
//! ([`Proportional`]). Inside a class, in expectation every row of the lane is drawn equally often; with
//! [`Repeats::Never`] and [`Repeats::Passes`] no row of a class twice more than another of the lane, and as
//! [`allocate_cells`](super::rounding::allocate_cells) shares by rows, of the split.

use gristmill_shard::{
    keys::{Key, KeyedRng},
    permutation::{Feistel, TABLE_MAX},
};

use super::{allocate::too_many, options::Repeats, proportional::Proportional};
use crate::error::{Error, Result};

/// Positions of a lane by class, ascending inside a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRows {
    /// Where each class begins in `positions`, and the end.
    starts: Vec<usize>,
    positions: Vec<u32>,
}

impl ClassRows {
    /// Of a lane whose row at position i has class `class_of_row[i]`, below `classes`.
    ///
    /// # Errors
    /// [`Error::Internal`] for a class out of range, [`Error::Usage`] for 2^32 rows or more.
    pub fn new(class_of_row: &[u32], classes: u32) -> Result<Self> {
        let rows = u32::try_from(class_of_row.len())
            .map_err(|_| Error::usage("a lane has 2^32 rows or more", "use more lanes"))?;
        let out_of_range = |class: u32| Error::internal(format!("class number {class} of {classes}"));
        let mut starts = vec![0; classes as usize + 1];
        for class in class_of_row {
            *starts[1..].get_mut(*class as usize).ok_or_else(|| out_of_range(*class))? += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut next = starts.clone();
        let mut positions = vec![0; class_of_row.len()];
        for (position, class) in (0..rows).zip(class_of_row) {
            let next = next.get_mut(*class as usize).ok_or_else(|| out_of_range(*class))?;
            positions[*next] = position;
            *next += 1;
        }
        Ok(Self { starts, positions })
    }

    /// Classes, with those that have no rows.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Positions of class `class`, ascending; none of a class that isn't there.
    #[must_use]
    pub fn of(&self, class: usize) -> &[u32] {
        match self.starts.get(class..).unwrap_or_default() {
            [start, end, ..] => self.positions.get(*start..*end).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// The draws of a lane, `draws[c]` of class c, as positions in order. `key` is of one lane in one epoch: its stream 0
/// orders the classes, its stream 1 + c draws the rows of class c, so that these don't depend on other classes' draws.
///
/// Memory: about 12 bytes a draw, and 4 a row of one class.
///
/// # Errors
/// [`Error::Usage`] for 2^32 draws or more and, with [`Repeats::Never`], for more draws of a class than it has rows;
/// [`Error::Internal`] for draws of a class without rows, or draws of another number of classes.
pub fn balanced(rows: &ClassRows, draws: &[u64], repeats: Repeats, key: Key) -> Result<Vec<u32>> {
    if draws.len() != rows.classes() {
        return Err(Error::internal(format!("{} classes have draws, {} have rows", draws.len(), rows.classes())));
    }
    for (class, draws) in draws.iter().enumerate() {
        let rows = rows.of(class).len();
        if *draws > 0 && rows == 0 {
            return Err(Error::internal(format!("class number {class} has {draws} draws and no rows in this lane")));
        }
        if repeats == Repeats::Never && *draws > rows as u64 {
            return Err(too_many(*draws, rows as u128));
        }
    }
    let turns = Proportional::keyed(draws, &mut key.rng_at_block(0))?;
    let mut out = Vec::new();
    let mut deck = Vec::new();
    turns.for_each_item(|class, turns_of_class| {
        // Here, as there are fewer than 2^32 draws from here on.
        out.resize(turns.total() as usize, 0);
        let mut rng = key.rng_at_block(1 + class as u64);
        fill(&mut out, turns_of_class, rows.of(class), repeats, &mut deck, &mut rng);
    })?;
    Ok(out)
}

/// Writes one class's draws to its turns.
fn fill(out: &mut [u32], turns: &[u32], rows: &[u32], repeats: Repeats, deck: &mut Vec<u32>, rng: &mut KeyedRng) {
    let mut put = |turn: &u32, row: Option<&u32>| {
        if let (Some(slot), Some(row)) = (out.get_mut(*turn as usize), row) {
            *slot = *row;
        }
    };
    let count = rows.len();
    if repeats == Repeats::Independent {
        turns.iter().for_each(|turn| put(turn, rows.get(rng.below(count as u64) as usize)));
    } else if count as u64 > TABLE_MAX && turns.len() < count / 2 {
        // Few draws of many rows: a permutation without a table, so that memory is that of the draws.
        let permutation = Feistel::new(rng, count as u64);
        (0..).zip(turns).for_each(|(i, turn)| put(turn, rows.get(permutation.apply(i) as usize)));
    } else {
        // Pass after pass, each as far as it is needed; a shuffle is as fair from the order that the last one left.
        deck.clear();
        deck.extend_from_slice(rows);
        for pass in turns.chunks(count.max(1)) {
            for (i, turn) in pass.iter().enumerate() {
                deck.swap(i, i + rng.below((count - i) as u64) as usize);
                put(turn, deck.get(i));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::keys::Domain;
    use proptest::prelude::*;

    fn key(n: u64) -> Key {
        Key::derive(Domain::Draw, 4, &[n])
    }

    /// Classes of rows, and draws of each class as a number of 1/4 passes.
    fn lanes() -> impl Strategy<Value = (Vec<u32>, Vec<u64>)> {
        (1_u32..30).prop_flat_map(|classes| {
            let class_of_row = proptest::collection::vec(0..classes, 0..300);
            (class_of_row, proptest::collection::vec(0_u64..14, classes as usize))
        })
    }

    proptest! {
        #[test]
        fn classes_and_repeats_are_exact((class_of_row, quarters) in lanes(), n in any::<u64>()) {
            let rows = ClassRows::new(&class_of_row, quarters.len() as u32).unwrap();
            let passes: Vec<u64> = quarters.iter().enumerate().map(|(c, q)| q * rows.of(c).len() as u64 / 4).collect();
            let never: Vec<u64> = passes.iter().enumerate().map(|(c, d)| (*d).min(rows.of(c).len() as u64)).collect();
            for (repeats, draws) in [(Repeats::Never, never), (Repeats::Passes, passes.clone()), (Repeats::Independent, passes)] {
                let out = balanced(&rows, &draws, repeats, key(n)).unwrap();
                prop_assert_eq!(&out, &balanced(&rows, &draws, repeats, key(n)).unwrap());
                let total: u64 = draws.iter().sum();
                prop_assert_eq!(out.len() as u64, total);
                let mut of_class = vec![0_u64; draws.len()];
                let mut of_row = vec![0_u64; class_of_row.len()];
                for (x, row) in (1..).zip(&out) {
                    let class = class_of_row[*row as usize] as usize;
                    of_row[*row as usize] += 1;
                    of_class[class] += 1;
                    prop_assert!((of_class[class] * total).abs_diff(draws[class] * x) * 100 < 336 * total);
                    if repeats == Repeats::Passes {
                        // Not only in the end: no row again before all others of its class were drawn as often.
                        let least = rows.of(class).iter().map(|r| of_row[*r as usize]).min().unwrap();
                        prop_assert!(of_row[*row as usize] <= least + 1);
                    }
                }
                prop_assert_eq!(&of_class, &draws);
                if repeats != Repeats::Independent {
                    for (count, class) in of_row.iter().zip(&class_of_row) {
                        let (draws, rows) = (draws[*class as usize], rows.of(*class as usize).len() as u64);
                        prop_assert!((draws / rows..=draws.div_ceil(rows)).contains(count));
                    }
                }
            }
        }

        #[test]
        fn rows_are_found_by_class((class_of_row, quarters) in lanes()) {
            let rows = ClassRows::new(&class_of_row, quarters.len() as u32).unwrap();
            prop_assert_eq!(rows.classes(), quarters.len());
            for class in 0..=quarters.len() {
                let expected: Vec<u32> =
                    (0..).zip(&class_of_row).filter(|(_, c)| **c as usize == class).map(|(i, _)| i).collect();
                prop_assert_eq!(rows.of(class), expected);
            }
        }
    }

    #[test]
    fn rows_of_a_class_are_equally_likely_at_every_draw() {
        // Class 0 has rows 0, 2, 4 and five draws of eight.
        let rows = ClassRows::new(&[0, 1, 0, 1, 0, 1], 2).unwrap();
        for repeats in [Repeats::Passes, Repeats::Independent] {
            let mut counts = [[0_u32; 6]; 8];
            for n in 0..24_000 {
                let out = balanced(&rows, &[5, 3], repeats, key(n)).unwrap();
                out.iter().zip(&mut counts).for_each(|(row, counts)| counts[*row as usize] += 1);
            }
            for counts in counts {
                for (row, count) in counts.into_iter().enumerate() {
                    // 24,000 · 5/8 / 3 and 24,000 · 3/8 / 3, within five standard deviations.
                    let expected: u32 = if row % 2 == 0 { 5_000 } else { 3_000 };
                    assert!(count.abs_diff(expected) < 320, "{repeats:?}: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn independent_draws_repeat_at_once() {
        // A row again at the next draw: a third of the time when independent, hardly in passes.
        let rows = ClassRows::new(&[0; 3], 1).unwrap();
        let again =
            |repeats| balanced(&rows, &[30_000], repeats, key(1)).unwrap().windows(2).filter(|w| w[0] == w[1]).count();
        assert!((9_600..10_400).contains(&again(Repeats::Independent)));
        // Only from the last of a pass to the first of the next: a third of 10,000.
        assert!((3_000..3_700).contains(&again(Repeats::Passes)));
    }

    #[test]
    fn few_draws_of_a_large_class_are_distinct() {
        let rows = ClassRows::new(&[0; 100_000], 1).unwrap();
        for repeats in [Repeats::Never, Repeats::Passes] {
            for draws in [20_000, 80_000] {
                let mut out = balanced(&rows, &[draws], repeats, key(2)).unwrap();
                assert!(!out.is_sorted());
                // Spread over the lane.
                assert!(out.iter().filter(|row| **row < 50_000).count().abs_diff(draws as usize / 2) < 500);
                out.sort_unstable();
                out.dedup();
                assert_eq!(out.len() as u64, draws);
            }
        }
    }

    #[test]
    fn a_class_does_not_depend_on_the_draws_of_others() {
        let class_of_row: Vec<u32> = (0..60).map(|i| i % 3).collect();
        let rows = ClassRows::new(&class_of_row, 3).unwrap();
        let of_class_1 = |draws: &[u64]| -> Vec<u32> {
            let out = balanced(&rows, draws, Repeats::Passes, key(3)).unwrap();
            out.into_iter().filter(|row| row % 3 == 1).collect()
        };
        assert_eq!(of_class_1(&[5, 30, 7]), of_class_1(&[50, 30, 0]));
    }

    #[test]
    fn classes_have_streams_of_their_own() {
        // Two classes of 40 neighbours each: the same order in both would be a stream used twice.
        let class_of_row: Vec<u32> = (0..80).map(|i| i / 40).collect();
        let rows = ClassRows::new(&class_of_row, 2).unwrap();
        let out = balanced(&rows, &[40, 40], Repeats::Never, key(4)).unwrap();
        let (first, second): (Vec<u32>, Vec<u32>) = out.into_iter().partition(|row| *row < 40);
        assert_ne!(first, second.into_iter().map(|row| row - 40).collect::<Vec<_>>());
    }

    #[test]
    fn golden_draws() {
        let rows = ClassRows::new(&[0, 0, 0, 0, 1, 1, 2], 3).unwrap();
        assert_eq!(balanced(&rows, &[3, 3, 3], Repeats::Passes, key(1)).unwrap(), GOLDEN);
        // Few draws of a large class, by the permutation without a table.
        let large = ClassRows::new(&[0; 100_000], 1).unwrap();
        assert_eq!(balanced(&large, &[4], Repeats::Never, key(1)).unwrap(), GOLDEN_OF_MANY);
    }

    const GOLDEN_OF_MANY: [u32; 4] = [67860, 28064, 3351, 61685];
    const GOLDEN: [u32; 9] = [1, 6, 5, 0, 6, 4, 2, 6, 4];

    #[test]
    fn bad_requests_are_refused() {
        let rows = ClassRows::new(&[0, 0, 2], 3).unwrap();
        let text = |draws: &[u64], repeats| balanced(&rows, draws, repeats, key(0)).unwrap_err().to_string();
        assert!(text(&[3, 0, 0], Repeats::Never).contains("at most 2"));
        assert!(text(&[0, 1, 0], Repeats::Passes).contains("class number 1 has 1 draws and no rows"));
        assert!(text(&[1], Repeats::Passes).contains("1 classes have draws, 3 have rows"));
        assert!(text(&[1 << 32, 0, 0], Repeats::Passes).contains("2^32 - 1"));
        assert!(ClassRows::new(&[3], 3).is_err());
        assert!(ClassRows::new(&[0], 0).is_err());
        assert_eq!(balanced(&rows, &[0; 3], Repeats::Never, key(0)).unwrap(), [0_u32; 0]);
        let none = ClassRows::new(&[], 0).unwrap();
        assert_eq!(balanced(&none, &[], Repeats::Never, key(0)).unwrap(), [0_u32; 0]);
    }
}
