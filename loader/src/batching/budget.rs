//! Steps of micro-batches under a token budget, padding counted.
//!
//! The rows of a window are sorted by length, so that a micro-batch holds rows of similar lengths and pads little. The
//! sorted rows are cut, longest first, into K micro-batches, a multiple of the D of a step: the cap on padded tokens
//! is lowered until K is what the greedy cut needs, which fills micro-batches evenly; splitting some of those that a
//! cut at the budget gives would not. Micro-batches of similar real tokens form a step, so that ranks finish together,
//! and the steps of the window are permuted. D belongs to the plan: the world size does not enter.
//!
//! A larger window pads less and balances better, and mixes less in that a micro-batch has rows of one length: 1024 ·
//! D rows pad under 1 %. Losses must be summed over tokens and divided by the step's tokens: micro-batches differ in
//! rows.

use std::{cmp::Reverse, ops::Range};

use gristmill_shard::{keys::Key, permutation::Permutation};
use serde::{Deserialize, Serialize};

use super::longest_first::longest_first;
use crate::{
    bisect::first_where,
    error::{Error, Result},
};

/// Most micro-batches of a step.
pub const MICRO_BATCHES_MAX: u32 = 1 << 20;

/// What a micro-batch may hold. Lengths may be in any unit that adds up, bytes for instance; tokens are spoken of.
// Fields are in byte order of their names: the JSON is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Rows of a micro-batch at most, at least 1; no bound when absent.
    #[serde(default)]
    pub max_rows: Option<u32>,
    /// Padded tokens of a micro-batch at most: its rows times its padded length. At least 1.
    pub max_tokens: u64,
    /// Micro-batches of a step over all ranks that share the window, D, at least 1.
    pub micro_batches: u32,
    /// Which length a micro-batch is padded to.
    #[serde(default)]
    pub pad_to: PadTo,
}

/// The length that a micro-batch is padded to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PadTo {
    /// The length of its longest row.
    #[default]
    Longest,
    /// The least multiple of a number that holds its longest row.
    Multiple {
        /// Tokens, at least 1.
        of: u32,
    },
    /// The least of these lengths that holds its longest row (length buckets: the model sees these shapes only).
    Boundaries {
        /// Tokens, ascending, the first at least 1. A row above the last one is refused.
        at: Vec<u32>,
    },
}

/// The micro-batches of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowBatches {
    /// Ordinals of rows in the window, in delivered order.
    pub rows: Vec<u32>,
    /// Where each micro-batch ends in `rows`, in delivered order: number s · D + m is micro-batch m of step s.
    pub ends: Vec<u32>,
}

impl WindowBatches {
    /// The rows of micro-batch `number`; none past the last one.
    #[must_use]
    pub fn micro_batch(&self, number: usize) -> &[u32] {
        let end = |number: usize| self.ends.get(number).map(|end| *end as usize);
        let start = number.checked_sub(1).map_or(Some(0), end);
        start.zip(end(number)).and_then(|(start, end)| self.rows.get(start..end)).unwrap_or_default()
    }
}

impl Budget {
    /// Whether the options can be met at all.
    ///
    /// # Errors
    /// A usage error when a number is 0, when the boundaries are none or don't ascend, or when no row, however short,
    /// fits one of the padded lengths.
    pub fn validate(&self) -> Result<()> {
        let at_least_1 = |name: &str| {
            Error::usage(format!("{name} is 0"), format!("{name} must be at least 1, or be left out where it may be"))
        };
        if self.max_rows == Some(0) {
            return Err(at_least_1("max_rows"));
        }
        if self.max_tokens == 0 {
            return Err(at_least_1("max_tokens"));
        }
        if self.micro_batches == 0 {
            return Err(at_least_1("micro_batches"));
        }
        if self.micro_batches > MICRO_BATCHES_MAX {
            return Err(Error::usage(
                format!("micro_batches is {}", self.micro_batches),
                format!("a step has at most {MICRO_BATCHES_MAX}"),
            ));
        }
        let widest = match &self.pad_to {
            PadTo::Longest => return Ok(()),
            PadTo::Multiple { of: 0 } => return Err(at_least_1("pad_to.multiple.of")),
            PadTo::Multiple { of } => *of,
            PadTo::Boundaries { at } => {
                let Some((first, last)) = at.first().zip(at.last()) else {
                    return Err(Error::usage(
                        "pad_to.boundaries.at is empty",
                        "list the lengths to pad to, or use pad_to = \"longest\"",
                    ));
                };
                if *first == 0 || !at.is_sorted_by(|a, b| a < b) {
                    return Err(Error::usage(
                        format!("pad_to.boundaries.at = {at:?} does not ascend from 1 or more"),
                        "list each length once, the shortest first",
                    ));
                }
                *last
            }
        };
        if u64::from(widest) > self.max_tokens {
            return Err(Error::usage(
                format!("a row padded to {widest} tokens is above max_tokens = {}", self.max_tokens),
                format!("raise max_tokens to at least {widest}, or pad to less"),
            ));
        }
        Ok(())
    }

    /// The length, in tokens, that a micro-batch whose longest row has `longest` is padded to; `None` above the last
    /// boundary. It is at least 1, so that `max_tokens` also bounds the rows of a micro-batch of empty rows.
    #[must_use]
    pub fn padded(&self, longest: u32) -> Option<u64> {
        let length = longest.max(1);
        match &self.pad_to {
            PadTo::Longest => Some(u64::from(length)),
            PadTo::Multiple { of } => u64::from(length).checked_next_multiple_of(u64::from(*of)),
            PadTo::Boundaries { at } => at.get(at.partition_point(|b| *b < length)).map(|b| u64::from(*b)),
        }
    }

    /// Micro-batches that a window of these lengths needs, the longest first: those of the greedy cut at `max_tokens`,
    /// which is the fewest possible, rounded up to a multiple of D. 0 for no rows.
    ///
    /// # Errors
    /// A usage error when the options are bad ([`Budget::validate`]) or a row alone is above the budget; an internal
    /// one when the lengths are not sorted.
    pub fn needed(&self, longest_first: &[u32]) -> Result<u64> {
        self.validate()?;
        if !longest_first.is_sorted_by(|a, b| a >= b) {
            return Err(Error::internal("the lengths of a window are not sorted from the longest on"));
        }
        self.check_lengths(longest_first)?;
        let count = self.parts(longest_first, Cut { cap: self.max_tokens, lowered: 0 }).count() as u64;
        Ok(count.next_multiple_of(u64::from(self.micro_batches)))
    }

    /// The window whose rows have these `lengths`, in plan order, as `micro_batches` micro-batches: K, a multiple of D
    /// and at least what the window needs, more where another window of the same steps needs more.
    ///
    /// The cap on padded tokens is the lowest for which the greedy cut has at most K parts (a row above it goes
    /// alone). Where these are fewer than K, as few as possible of the first parts are cut at the cap less 1, so that
    /// there are K. Parts are sorted by real tokens, the heaviest first, and dealt to the K / D steps in stretches of
    /// that order, as equal as can be: D a step, or where there are fewer rows than K, so few more in one step than in
    /// another that they differ by at most 1. Inside a step the heaviest come first, and those without rows last. The
    /// steps are permuted by a permutation that depends on K and the key only, so that windows of the same K and key
    /// have their heavy steps together; then the rows of each micro-batch are shuffled. Streams 0 and 1 of the key are
    /// used.
    ///
    /// # Errors
    /// A usage error when the options are bad ([`Budget::validate`]) or a row alone is above the budget; an internal
    /// one when K is not a multiple of D, is less than needed, or K or the rows are more than 2^32 − 1.
    pub fn cut(&self, lengths: &[u32], micro_batches: u64, key: Key) -> Result<WindowBatches> {
        self.validate()?;
        let (Ok(count), Ok(_)) = (u32::try_from(micro_batches), u32::try_from(lengths.len())) else {
            return Err(Error::internal("a window has more than 2^32 - 1 micro-batches or rows"));
        };
        if !count.is_multiple_of(self.micro_batches) {
            return Err(Error::internal(format!("{count} micro-batches are not steps of {}", self.micro_batches)));
        }
        let (sorted, mut ordinals) = longest_first((0..).zip(lengths.iter().copied()));
        self.check_lengths(&sorted)?;
        let Some(cut) = self.lowest_cut(&sorted, count as usize) else {
            return Err(Error::internal(format!("a window needs more than the {count} micro-batches it was given")));
        };
        let mut weighed: Vec<(Reverse<u64>, usize, usize)> = self
            .parts(&sorted, cut)
            .map(|part| {
                let lengths = sorted.get(part.clone()).unwrap_or_default();
                (Reverse(lengths.iter().map(|length| u64::from(*length)).sum()), part.start, part.end)
            })
            .collect();
        weighed.sort_unstable();

        let steps = (count / self.micro_batches) as usize;
        let (each, more) = (weighed.len() / steps.max(1), weighed.len() % steps.max(1));
        let permutation = Permutation::new(key, steps as u64);
        let mut rng = key.rng_at_block(1);
        let mut batches = WindowBatches { rows: Vec::with_capacity(lengths.len()), ends: Vec::new() };
        batches.ends.reserve_exact(count as usize);
        for step in 0..steps as u64 {
            let by_weight = permutation.apply(step) as usize;
            let start = by_weight * each + by_weight.min(more);
            let end = start + each + usize::from(by_weight < more);
            for (_, start, end) in weighed.get(start..end).unwrap_or_default() {
                let rows = ordinals.get_mut(*start..*end).unwrap_or_default();
                rng.shuffle(rows);
                batches.rows.extend_from_slice(rows);
                batches.ends.push(batches.rows.len() as u32);
            }
            let whole_step = (step as usize + 1) * self.micro_batches as usize;
            batches.ends.resize(whole_step, batches.rows.len() as u32);
        }
        Ok(batches)
    }

    /// Refuses a window with a row that no micro-batch holds.
    fn check_lengths(&self, longest_first: &[u32]) -> Result<()> {
        let fits = |length: u32| self.padded(length).is_some_and(|padded| padded <= self.max_tokens);
        let Some(longest) = longest_first.first().copied().filter(|longest| !fits(*longest)) else {
            return Ok(());
        };
        let (rows, all) = (longest_first.partition_point(|length| !fits(*length)), longest_first.len());
        Err(match (self.padded(longest), &self.pad_to) {
            (None, PadTo::Boundaries { at }) => Error::usage(
                format!(
                    "{rows} of {all} rows of a window are longer than the last of pad_to.boundaries.at, {}: \
                     the longest has {longest} tokens",
                    at.last().copied().unwrap_or(0)
                ),
                format!("filter such rows out, or add a boundary of at least {longest} and as many max_tokens"),
            ),
            (padded, _) => {
                let padded = padded.unwrap_or(u64::from(longest));
                Error::usage(
                    format!(
                        "{rows} of {all} rows of a window are above max_tokens = {}: the longest has {longest} \
                         tokens, {padded} with its padding",
                        self.max_tokens
                    ),
                    format!("filter such rows out, or raise max_tokens to at least {padded}"),
                )
            }
        })
    }

    /// [`Budget::padded`] of a length that has been checked.
    fn width(&self, longest: u32) -> u64 {
        self.padded(longest).unwrap_or(u64::MAX)
    }

    /// The greedy cut: each part takes as many of the next rows as stay within the cap, at least one.
    fn parts<'a>(&'a self, longest_first: &'a [u32], cut: Cut) -> impl Iterator<Item = Range<usize>> + 'a {
        let max_rows = u64::from(self.max_rows.unwrap_or(u32::MAX));
        let (mut start, mut lowered) = (0, cut.lowered);
        std::iter::from_fn(move || {
            let longest = *longest_first.get(start)?;
            let cap = cut.cap - u64::from(lowered > 0);
            lowered = lowered.saturating_sub(1);
            // At most 2^32 − 1, so a usize holds it.
            let rows = (cap / self.width(longest)).min(max_rows).max(1) as usize;
            let part = start..start.saturating_add(rows).min(longest_first.len());
            start = part.end;
            Some(part)
        })
    }

    /// The lowest cap for which the greedy cut has at most `count` parts, and the fewest parts to lower so that it has
    /// exactly as many, or a part for each row where there are fewer rows. `None` when `max_tokens` is too low.
    fn lowest_cut(&self, longest_first: &[u32], count: usize) -> Option<Cut> {
        // A part that begins later has shorter rows and ends as late or later, and a higher cap ends every part as
        // late or later. So the number of parts never grows with the cap.
        let at_most = |cap| self.parts(longest_first, Cut { cap, lowered: 0 }).nth(count).is_none();
        let longest = longest_first.first().map_or(1, |longest| self.width(*longest));
        let whole = longest.saturating_mul(longest_first.len() as u64).max(1);
        let highest = self.max_tokens.min(whole);
        if !at_most(highest) {
            return None;
        }
        let cap = first_where(1, highest, at_most);
        // Lowering one part more leaves the cut at most one part behind, for the next part then reaches what the
        // lowered one did not. So the number of parts takes every value up to that of the cap less 1, which is above
        // `count`.
        let enough = |lowered| self.parts(longest_first, Cut { cap, lowered }).nth(count.saturating_sub(1)).is_some();
        Some(Cut { cap, lowered: first_where(0, count as u64, enough) })
    }
}

/// A cap on padded tokens, at least 1, and how many of the first parts are cut at the cap less 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    cap: u64,
    lowered: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::lognormal_lengths;
    use gristmill_shard::keys::Domain;
    use proptest::prelude::*;

    fn key(n: u64) -> Key {
        Key::derive(Domain::Order, 0, &[n])
    }

    fn budget(max_tokens: u64, micro_batches: u32) -> Budget {
        Budget { max_rows: None, max_tokens, micro_batches, pad_to: PadTo::Longest }
    }

    fn sorted(lengths: &[u32]) -> Vec<u32> {
        let mut sorted = lengths.to_vec();
        sorted.sort_unstable_by_key(|length| Reverse(*length));
        sorted
    }

    /// Budgets of lengths up to 40 and windows that they hold.
    fn windows() -> impl Strategy<Value = (Budget, Vec<u32>)> {
        let pad_to = prop_oneof![
            Just(PadTo::Longest),
            (1_u32..12).prop_map(|of| PadTo::Multiple { of }),
            proptest::collection::btree_set(1_u32..40, 0..5)
                .prop_map(|at| PadTo::Boundaries { at: at.into_iter().chain([40]).collect() }),
        ];
        let max_rows = prop_oneof![Just(None), (1_u32..9).prop_map(Some)];
        let lengths = prop_oneof![
            proptest::collection::vec(0_u32..=40, 0..90),
            proptest::collection::vec(prop_oneof![Just(3_u32), Just(4), Just(40)], 0..90),
        ];
        (max_rows, 50_u64..200, 1_u32..6, pad_to, lengths).prop_map(
            |(max_rows, max_tokens, micro_batches, pad_to, lengths)| {
                (Budget { max_rows, max_tokens, micro_batches, pad_to }, lengths)
            },
        )
    }

    /// Ends of the greedy cut, row by row, as it is defined.
    fn greedy(budget: &Budget, sorted: &[u32], cap: u64, lowered: usize) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut start = 0;
        for end in 1..=sorted.len() {
            let cap = cap - u64::from(ends.len() < lowered);
            let fits = |rows: usize| {
                rows as u64 * budget.padded(sorted[start]).unwrap() <= cap
                    && budget.max_rows.is_none_or(|most| rows <= most as usize)
            };
            if end == sorted.len() || !fits(end + 1 - start) {
                ends.push(end);
                start = end;
            }
        }
        ends
    }

    proptest! {
        #[test]
        fn a_window_is_cut_whole_within_the_budget_into_balanced_steps(
            (budget, lengths) in windows(), more in 0_u64..12, seed in any::<u64>(),
        ) {
            let d = budget.micro_batches as usize;
            let needed = budget.needed(&sorted(&lengths)).unwrap();
            prop_assert_eq!(needed % d as u64, 0);
            let k = needed + more * d as u64;
            let cut = budget.cut(&lengths, k, key(seed)).unwrap();
            prop_assert_eq!(cut.ends.len() as u64, k);
            prop_assert!(cut.ends.is_sorted());
            prop_assert_eq!(cut.ends.last().copied().unwrap_or(0) as usize, lengths.len());
            let mut rows = cut.rows.clone();
            rows.sort_unstable();
            prop_assert!(rows.into_iter().eq(0..lengths.len() as u32));

            let batches: Vec<&[u32]> = (0..k as usize).map(|number| cut.micro_batch(number)).collect();
            prop_assert!(cut.micro_batch(k as usize).is_empty());
            for rows in &batches {
                let longest = rows.iter().map(|row| lengths[*row as usize]).max().unwrap_or(0);
                prop_assert!(rows.len() as u64 * budget.padded(longest).unwrap() <= budget.max_tokens);
                prop_assert!(rows.len() <= budget.max_rows.unwrap_or(u32::MAX) as usize);
            }
            // As many micro-batches hold rows as can, and as many in one step as in another.
            let held = |step: &[&[u32]]| step.iter().filter(|rows| !rows.is_empty()).count();
            let held: Vec<usize> = batches.chunks(d).map(held).collect();
            prop_assert_eq!(held.iter().sum::<usize>(), lengths.len().min(k as usize));
            prop_assert!(held.iter().max().unwrap_or(&0) - held.iter().min().unwrap_or(&0) <= 1);
            let tokens = |rows: &&[u32]| rows.iter().map(|row| u64::from(lengths[*row as usize])).sum::<u64>();
            let mut weights: Vec<Vec<u64>> = batches.chunks(d).map(|step| step.iter().map(tokens).collect()).collect();
            for (step, held) in batches.chunks(d).zip(&held) {
                prop_assert!(step.is_sorted_by_key(|rows| (rows.is_empty(), Reverse(tokens(rows)))));
                prop_assert!(step[..*held].iter().all(|rows| !rows.is_empty()));
            }
            // Steps are stretches of the micro-batches by weight.
            for (weights, held) in weights.iter_mut().zip(&held) {
                weights.truncate(*held);
            }
            weights.sort_unstable_by(|a, b| b.cmp(a));
            weights.retain(|step| !step.is_empty());
            prop_assert!(weights.is_sorted_by(|a, b| a.last() >= b.first()));
        }

        #[test]
        fn the_cap_is_the_lowest_and_the_count_is_met((budget, lengths) in windows(), more in 0_u64..12) {
            let sorted = sorted(&lengths);
            let k = (budget.needed(&sorted).unwrap() + more * u64::from(budget.micro_batches)) as usize;
            let cut = budget.lowest_cut(&sorted, k).unwrap();
            let lowest = (1..=budget.max_tokens).find(|cap| greedy(&budget, &sorted, *cap, 0).len() <= k).unwrap();
            prop_assert_eq!(cut.cap, lowest);
            let parts = k.min(lengths.len());
            let lowered = (0..=k).find(|lowered| greedy(&budget, &sorted, lowest, *lowered).len() == parts).unwrap();
            if lengths.len() >= k {
                prop_assert_eq!(cut.lowered as usize, lowered);
            }
            let ends: Vec<usize> = budget.parts(&sorted, cut).map(|part| part.end).collect();
            prop_assert_eq!(&ends, &greedy(&budget, &sorted, lowest, cut.lowered as usize));
            prop_assert_eq!(ends.len(), parts);
            if k > 0 {
                let fewest = greedy(&budget, &sorted, budget.max_tokens, 0).len();
                prop_assert!(fewest == 0 || budget.lowest_cut(&sorted, fewest - 1).is_none());
            }
        }

        #[test]
        fn no_cut_of_any_kind_needs_fewer(
            (mut budget, lengths) in windows().prop_map(|(b, mut l)| { l.truncate(9); (b, l) }),
        ) {
            budget.micro_batches = 1;
            budget.max_tokens = budget.max_tokens.min(80);
            let fits = |set: usize| {
                let rows = || (0..lengths.len()).filter(move |row| set >> row & 1 == 1);
                let longest = rows().map(|row| lengths[row]).max().unwrap_or(0);
                rows().count() as u64 * budget.padded(longest).unwrap() <= budget.max_tokens
                    && budget.max_rows.is_none_or(|most| rows().count() <= most as usize)
            };
            // The fewest micro-batches of every set of rows, over all its subsets.
            let mut fewest = vec![0_u64; 1 << lengths.len()];
            for set in 1..fewest.len() {
                let mut subset = set;
                fewest[set] = u64::MAX;
                while subset > 0 {
                    if fits(subset) {
                        fewest[set] = fewest[set].min(1 + fewest[set ^ subset]);
                    }
                    subset = (subset - 1) & set;
                }
            }
            prop_assert_eq!(budget.needed(&sorted(&lengths)).unwrap(), fewest[fewest.len() - 1]);
        }

        #[test]
        fn no_options_and_no_lengths_panic(
            max_rows in prop_oneof![Just(None), Just(Some(0)), Just(Some(1)), Just(Some(u32::MAX))],
            max_tokens in prop_oneof![Just(0), 1_u64..100, Just(u64::from(u32::MAX)), Just(u64::MAX)],
            micro_batches in prop_oneof![0_u32..4, Just(u32::MAX)],
            pad_to in prop_oneof![
                Just(PadTo::Longest),
                prop_oneof![0_u32..4, Just(u32::MAX)].prop_map(|of| PadTo::Multiple { of }),
                proptest::collection::vec(prop_oneof![0_u32..9, Just(u32::MAX)], 0..4)
                    .prop_map(|at| PadTo::Boundaries { at }),
            ],
            lengths in proptest::collection::vec(prop_oneof![0_u32..9, Just(u32::MAX)], 0..6),
            k in prop_oneof![0_u64..9, Just(u64::MAX)],
        ) {
            let budget = Budget { max_rows, max_tokens, micro_batches, pad_to };
            let needed = budget.needed(&sorted(&lengths));
            prop_assert!(budget.validate().is_ok() || needed.is_err());
            let cut = budget.cut(&lengths, k, key(0));
            let whole_steps = k.is_multiple_of(u64::from(micro_batches)) && k < u64::MAX;
            let enough = whole_steps && needed.is_ok_and(|needed| needed <= k);
            prop_assert_eq!(cut.is_ok(), enough);
        }
    }

    #[test]
    fn rows_of_one_length_stay_in_plan_order_before_the_shuffle() {
        let cut = budget(50, 2).cut(&[7; 30], 6, key(3)).unwrap();
        let mut firsts = Vec::new();
        for number in 0..6 {
            let mut rows = cut.micro_batch(number).to_vec();
            rows.sort_unstable();
            assert!(rows.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{rows:?}");
            firsts.push(rows[0]);
        }
        firsts.sort_unstable();
        assert_eq!(firsts, [0, 5, 10, 15, 20, 25]);
    }

    #[test]
    fn windows_of_the_same_count_and_key_have_their_heavy_steps_together() {
        let budget = budget(2000, 4);
        let by_weight = |lengths: &[u32], seed: u64| {
            let cut = budget.cut(lengths, 80, key(seed)).unwrap();
            let tokens = |number: usize| cut.micro_batch(number).iter().map(|row| lengths[*row as usize]).sum::<u32>();
            let mut steps: Vec<usize> = (0..20).collect();
            steps.sort_by_key(|step| Reverse((0..4).map(|m| tokens(step * 4 + m)).sum::<u32>()));
            steps
        };
        // Shares of lengths that make every step's weight its own.
        let one: Vec<u32> = (0..1000).map(|i| 10 + i % 97 + i / 9).collect();
        let other: Vec<u32> = (0..400).map(|i| 300 - i / 2 - i % 31).collect();
        assert_eq!(by_weight(&one, 1), by_weight(&other, 1));
        assert_ne!(by_weight(&one, 1), by_weight(&one, 2));
        assert!(!by_weight(&one, 1).is_sorted());
    }

    #[test]
    fn rows_are_shuffled_by_the_key() {
        let lengths = [9; 40];
        let cut = |seed| budget(360, 1).cut(&lengths, 1, key(seed)).unwrap().rows;
        assert_eq!(cut(1), cut(1));
        assert_ne!(cut(1), cut(2));
        assert!(!cut(1).is_sorted() && !cut(2).is_sorted());
    }

    #[test]
    fn reference_values() {
        let lengths = [12, 3, 7, 7, 30, 1, 0, 18, 5, 5, 9, 2];
        let longest = Budget { max_rows: Some(4), ..budget(40, 2) };
        assert_eq!(longest.needed(&sorted(&lengths)).unwrap(), 6);
        // The cap is 21: rows of 30, of 18, of 12, of 9 and 7, of 7, 5 and 5, and the four shortest.
        let (rows, ends) = (vec![0, 1, 11, 6, 5, 8, 3, 9, 2, 10, 4, 7], vec![1, 5, 8, 10, 11, 12]);
        assert_eq!(longest.cut(&lengths, 6, key(0)).unwrap(), WindowBatches { rows, ends });
        assert_eq!(longest.lowest_cut(&sorted(&lengths), 8), Some(Cut { cap: 12, lowered: 0 }));
        // 30 equal rows are six times 5 rows or, one row less in the first part, seven parts.
        assert_eq!(budget(40, 1).lowest_cut(&[7; 30], 7), Some(Cut { cap: 35, lowered: 1 }));
    }

    #[test]
    fn documents_pad_under_a_hundredth_and_ranks_finish_together() {
        let budget = budget(17_172, 8);
        let (mut real, mut padded, mut steps, mut imbalance) = (0, 0, 0.0, 0.0);
        for window in 0..8 {
            let lengths = lognormal_lengths(window, 8192);
            let cut = budget.cut(&lengths, budget.needed(&sorted(&lengths)).unwrap(), key(window)).unwrap();
            let of = |number| cut.micro_batch(number).iter().map(|row| u64::from(lengths[*row as usize]));
            let tokens: Vec<u64> = (0..cut.ends.len()).map(|number| of(number).sum()).collect();
            real += tokens.iter().sum::<u64>();
            padded += (0..cut.ends.len()).map(|n| of(n).max().unwrap() * of(n).count() as u64).sum::<u64>();
            for step in tokens.chunks(8) {
                steps += 1.0;
                imbalance += *step.iter().max().unwrap() as f64 * 8.0 / step.iter().sum::<u64>() as f64 - 1.0;
            }
        }
        assert!((padded - real) * 100 < padded, "{real} of {padded}");
        assert!(imbalance / steps < 0.007, "{}", imbalance / steps);
    }

    #[test]
    fn what_does_not_fit_is_described() {
        let text = |budget: &Budget, lengths: &[u32]| budget.cut(lengths, 4, key(0)).unwrap_err().to_string();
        let multiple = Budget { pad_to: PadTo::Multiple { of: 64 }, ..budget(200, 4) };
        assert_eq!(
            text(&multiple, &[5, 300, 192, 193]),
            "2 of 4 rows of a window are above max_tokens = 200: the longest has 300 tokens, 320 with its padding\n  \
             help: filter such rows out, or raise max_tokens to at least 320"
        );
        let boundaries = Budget { pad_to: PadTo::Boundaries { at: vec![64, 128] }, ..budget(200, 4) };
        assert_eq!(
            text(&boundaries, &[5, 300, 129, 128]),
            "2 of 4 rows of a window are longer than the last of pad_to.boundaries.at, 128: the longest has 300 \
             tokens\n  \
             help: filter such rows out, or add a boundary of at least 300 and as many max_tokens"
        );
        assert_eq!(
            multiple.needed(&sorted(&[5, 300, 192, 193])).unwrap_err().to_string(),
            text(&multiple, &[5, 300, 192, 193])
        );
        // A row as long as the budget is alone in its micro-batch.
        assert_eq!(budget(200, 1).needed(&[200, 200, 1]).unwrap(), 3);
        assert!(budget(200, 4).needed(&[1, 2]).unwrap_err().to_string().contains("not sorted"));
        assert!(text(&budget(200, 3), &[1]).contains("4 micro-batches are not steps of 3"));
        assert!(text(&budget(200, 4), &[150; 5]).contains("needs more than the 4 micro-batches"));
    }

    #[test]
    fn bad_options_are_refused() {
        let good = budget(100, 1);
        let boundaries = |at: &[u32]| PadTo::Boundaries { at: at.to_vec() };
        for (bad, what) in [
            (Budget { max_rows: Some(0), ..good.clone() }, "max_rows is 0"),
            (Budget { max_tokens: 0, ..good.clone() }, "max_tokens is 0"),
            (Budget { micro_batches: 0, ..good.clone() }, "micro_batches is 0"),
            (Budget { pad_to: PadTo::Multiple { of: 0 }, ..good.clone() }, "pad_to.multiple.of is 0"),
            (Budget { pad_to: PadTo::Multiple { of: 101 }, ..good.clone() }, "padded to 101 tokens is above"),
            (Budget { pad_to: boundaries(&[]), ..good.clone() }, "is empty"),
            (Budget { pad_to: boundaries(&[0, 5]), ..good.clone() }, "[0, 5] does not ascend"),
            (Budget { pad_to: boundaries(&[5, 5]), ..good.clone() }, "[5, 5] does not ascend"),
            (Budget { pad_to: boundaries(&[5, 101]), ..good.clone() }, "padded to 101 tokens is above"),
        ] {
            let error = bad.validate().unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        good.validate().unwrap();
        Budget { pad_to: boundaries(&[1, 100]), ..good }.validate().unwrap();
    }

    #[test]
    fn padded_lengths() {
        let padded = |pad_to: PadTo, length| Budget { pad_to, ..budget(100, 1) }.padded(length);
        assert_eq!([0, 1, 7].map(|l| padded(PadTo::Longest, l)), [Some(1), Some(1), Some(7)]);
        assert_eq!([0, 8, 9].map(|l| padded(PadTo::Multiple { of: 8 }, l)), [Some(8), Some(8), Some(16)]);
        assert_eq!(padded(PadTo::Multiple { of: 8 }, u32::MAX), Some(1 << 32));
        assert_eq!(
            [0, 4, 5, 9, 10].map(|l| padded(PadTo::Boundaries { at: vec![4, 9] }, l)),
            [Some(4), Some(4), Some(9), Some(9), None]
        );
    }

    #[test]
    fn options_are_json_in_byte_order_of_their_names() {
        let budget = Budget { pad_to: PadTo::Boundaries { at: vec![64, 128] }, ..budget(512, 8) };
        let json = r#"{"max_rows":null,"max_tokens":512,"micro_batches":8,"pad_to":{"boundaries":{"at":[64,128]}}}"#;
        assert_eq!(serde_json::to_string(&budget).unwrap(), json);
        assert_eq!(serde_json::from_str::<Budget>(json).unwrap(), budget);
        let short: Budget = serde_json::from_str(r#"{"max_tokens":512,"micro_batches":8}"#).unwrap();
        assert_eq!(short, Budget { pad_to: PadTo::Longest, ..budget });
        for unknown in [
            r#"{"max_tokens":512,"micro_batches":8,"rows":1}"#,
            r#"{"max_tokens":512,"micro_batches":8,"pad_to":{"multiple":{"of":8,"at":1}}}"#,
        ] {
            assert!(serde_json::from_str::<Budget>(unknown).unwrap_err().to_string().contains("unknown field"));
        }
    }
}
