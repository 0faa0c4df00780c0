//! Whose turn it is: sources take turns by integer weights, each within one turn of its share at every prefix.
//!
//! With weights p_i of sum q over m sources, source i has had, after t turns, at most `1 − 1/(2m − 2)` turns more or
//! fewer than its share `t·p_i/q`. No rule does better for all weights (Tijdeman, "The chairman assignment problem",
//! Discrete Mathematics 32, 1980). Giving each turn to the source that is furthest behind keeps no such bound from four
//! sources on. The rule as earliest deadline first, with `z = 2m − 2`: the k-th turn of source i, from 1, may not be
//! before turn `⌈((k − 1)z + 1)q / (z·p_i)⌉` and is due at turn `⌊(kz − 1)q / (z·p_i)⌋ + 1`; of the sources that may,
//! the one that is due first has the turn, ties by ordinal.
//!
//! The bound makes turns repeat with period q, in which source i has p_i turns, so that a table of one period answers
//! for every index.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{
    error::{Error, Result},
    mixture::weights::{Weight, coprime},
};

/// An endless sequence of turns ⟷ (source, turns it has had before), a bijection; every lookup costs the same wherever
/// it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turns {
    sources: Vec<Source>,
    /// One period.
    period: Vec<Turn>,
    /// The turns of source 0 within the period, in order, then those of source 1, and so on.
    of_source: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    /// Turns in a period, p_i.
    part: u64,
    /// Where its turns begin in `of_source`.
    start: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    source: u32,
    /// Turns of the source before this one in the period.
    before: u32,
}

impl Turns {
    /// Turns of sources with these weights; a source of weight 0 has none. Takes about 0.1 µs for each turn of a
    /// period.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is no weight above 0, there are more than 2^32 − 1 weights, or the weights without
    /// their common factor sum to more than [`MAX_PERIOD`](crate::mixture::weights::MAX_PERIOD).
    pub fn new(weights: &[u64]) -> Result<Self> {
        let parts = coprime(&weights.iter().copied().map(Weight::from).collect::<Vec<_>>())?;
        if u32::try_from(parts.len()).is_err() {
            return Err(Error::usage(
                format!("there are {} sources, and at most 2^32 - 1 are possible", parts.len()),
                "leave out those of weight 0",
            ));
        }
        let mut start = 0;
        let mut sources = Vec::with_capacity(parts.len());
        for part in parts {
            sources.push(Source { part, start });
            start += part as usize;
        }
        let mut of_source = vec![0; start];
        let mut period = Vec::with_capacity(start);
        let mut taken = vec![0_u32; sources.len()];
        for source in earliest_deadline_first(&sources)? {
            let before = &mut taken[source as usize];
            // Both are below the period, at most 2^20.
            of_source[sources[source as usize].start + *before as usize] = period.len() as u32;
            period.push(Turn { source, before: *before });
            *before += 1;
        }
        Ok(Self { sources, period, of_source })
    }

    /// Whose turn `t` is, from 0, and how many turns that source has had before.
    #[must_use]
    pub fn at(&self, t: u64) -> (u32, u64) {
        let (periods, slot) = (t / self.period(), t % self.period());
        let turn = self.period[slot as usize];
        (turn.source, periods * self.sources[turn.source as usize].part + u64::from(turn.before))
    }

    /// Turns of `source` among those below `t`.
    #[must_use]
    pub fn before(&self, source: u32, t: u64) -> u64 {
        let Some(Source { part, start }) = self.sources.get(source as usize).copied().filter(|s| s.part > 0) else {
            return 0;
        };
        let (periods, slot) = (t / self.period(), t % self.period());
        // Less than one turn from its share, it has had the share rounded down or up: up when the turn that makes the
        // difference is past.
        let share = slot * part / self.period();
        let turn = u64::from(self.of_source[start + share as usize]);
        periods * part + share + u64::from(turn < slot)
    }

    /// The turn that `source` has after `k` turns, the inverse of [`Turns::at`]; `None` when it has none below 2^64.
    #[must_use]
    pub fn index(&self, source: u32, k: u64) -> Option<u64> {
        let Source { part, start } = self.sources.get(source as usize).copied().filter(|s| s.part > 0)?;
        let turn = u64::from(self.of_source[start + (k % part) as usize]);
        (k / part).checked_mul(self.period())?.checked_add(turn)
    }

    /// Turns after which they repeat: the sum of the weights without their common factor.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period.len() as u64
    }

    /// Turns of `source` in a period: its weight without the common factor.
    #[must_use]
    pub fn part(&self, source: u32) -> u64 {
        self.sources.get(source as usize).map_or(0, |s| s.part)
    }

    /// Number of sources, those of weight 0 included.
    #[must_use]
    pub fn sources(&self) -> u32 {
        self.sources.len() as u32
    }

    /// Bytes that the tables take: 12 for each turn of a period and 16 for each source.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (size_of_val(&*self.period) + size_of_val(&*self.of_source) + size_of_val(&*self.sources)) as u64
    }
}

/// One period of turns by the rule above.
fn earliest_deadline_first(sources: &[Source]) -> Result<Vec<u32>> {
    let members: Vec<(u32, u64)> = (0..).zip(sources).filter(|(_, s)| s.part > 0).map(|(i, s)| (i, s.part)).collect();
    let period: u64 = members.iter().map(|(_, part)| part).sum();
    if let [(only, _)] = members.as_slice() {
        return Ok(vec![*only; period as usize]);
    }
    // A period and the number of sources are at most 2^20, so that every product below is within 2^62.
    let z = 2 * members.len() as u64 - 2;
    let release = |part: u64, taken: u64| ((taken * z + 1) * period).div_ceil(z * part);
    let deadline = |part: u64, taken: u64| ((taken + 1) * z - 1) * period / (z * part) + 1;
    let mut taken = vec![0_u64; members.len()];
    // One entry a source in one of the two: by the first turn it may have, then by the turn at which it is due.
    let mut waiting: BinaryHeap<Reverse<(u64, usize)>> =
        members.iter().enumerate().map(|(at, (_, part))| Reverse((release(*part, 0), at))).collect();
    let mut ready: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::with_capacity(members.len());
    let mut turns = Vec::with_capacity(period as usize);
    for turn in 1..=period {
        while let Some(Reverse((_, at))) = waiting.peek().copied().filter(|Reverse((first, _))| *first <= turn) {
            waiting.pop();
            ready.push(Reverse((deadline(members[at].1, taken[at]), at)));
        }
        let Some(Reverse((_, at))) = ready.pop() else {
            return Err(Error::internal(format!("no source may have turn {turn} of {period}")));
        };
        let (source, part) = members[at];
        turns.push(source);
        taken[at] += 1;
        waiting.push(Reverse((release(part, taken[at]), at)));
    }
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mixture::weights::MAX_PERIOD;
    use gristmill_shard::keys::{Domain, Key};
    use proptest::prelude::*;

    fn sequence(weights: &[u64]) -> Vec<u32> {
        let turns = Turns::new(weights).unwrap();
        (0..turns.period()).map(|t| turns.at(t).0).collect()
    }

    /// Largest deviation from the share over the prefixes of `turns` turns, times the period, and the number of sources
    /// that have turns.
    fn deviation(weights: &[u64], turns: u64) -> (u64, u64) {
        let order = Turns::new(weights).unwrap();
        let q = order.period() as i64;
        let parts: Vec<i64> = (0..order.sources()).map(|s| order.part(s) as i64).collect();
        // taken · q − t · p, kept for each source.
        let mut ahead = vec![0_i64; parts.len()];
        let mut worst = 0;
        for t in 0..turns {
            ahead[order.at(t).0 as usize] += q;
            for (ahead, part) in ahead.iter_mut().zip(&parts) {
                *ahead -= part;
                worst = worst.max(ahead.unsigned_abs());
            }
        }
        (worst, parts.iter().filter(|p| **p > 0).count() as u64)
    }

    /// Whether the deviation is at most 1 − 1/(2m − 2), and 0 for one source.
    fn within_bound(weights: &[u64]) -> bool {
        let q = Turns::new(weights).unwrap().period();
        let (worst, m) = deviation(weights, q);
        if m == 1 { worst == 0 } else { worst * (2 * m - 2) <= q * (2 * m - 3) }
    }

    /// Every lookup against a scan over `periods` periods.
    fn check(weights: &[u64], periods: u64) -> Result<(), TestCaseError> {
        let turns = Turns::new(weights).unwrap();
        let mut taken = vec![0; weights.len()];
        for t in 0..periods * turns.period() {
            for (source, taken) in (0..).zip(&taken) {
                prop_assert_eq!(turns.before(source, t), *taken, "source {} before {}", source, t);
            }
            let (source, k) = turns.at(t);
            prop_assert_eq!(k, taken[source as usize]);
            prop_assert_eq!(turns.index(source, k), Some(t));
            taken[source as usize] += 1;
        }
        for (source, (weight, taken)) in (0..).zip(weights.iter().zip(&taken)) {
            prop_assert_eq!(*taken, turns.part(source) * periods);
            prop_assert_eq!(turns.index(source, 0).is_some(), *weight > 0);
        }
        Ok(())
    }

    fn some_weights() -> impl Strategy<Value = Vec<u64>> {
        let few = proptest::collection::vec(prop_oneof![1_u64..5, 1_u64..60, Just(0)], 1..9);
        let many = proptest::collection::vec(prop_oneof![4 => 1_u64..4, 1 => 1_u64..40], 9..42);
        prop_oneof![3 => few, 1 => many].prop_filter("no weight above 0", |w| w.iter().any(|w| *w > 0))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn every_prefix_is_within_the_bound(weights in some_weights()) {
            prop_assert!(within_bound(&weights), "{:?}", deviation(&weights, Turns::new(&weights).unwrap().period()));
        }

        #[test]
        fn lookups_are_a_scan(weights in some_weights()) {
            check(&weights, 2)?;
        }

        #[test]
        fn weights_count_by_their_ratio(weights in some_weights(), factor in 1_u64..1_000_000_007) {
            let multiples: Vec<u64> = weights.iter().map(|w| w * factor).collect();
            prop_assert_eq!(Turns::new(&weights).unwrap(), Turns::new(&multiples).unwrap());
        }

        #[test]
        fn sources_without_weight_change_nothing(weights in some_weights()) {
            let (members, kept): (Vec<u32>, Vec<u64>) = (0..).zip(&weights).filter(|(_, w)| **w > 0).unzip();
            let named: Vec<u32> = sequence(&kept).into_iter().map(|s| members[s as usize]).collect();
            prop_assert_eq!(sequence(&weights), named);
        }
    }

    #[test]
    fn every_small_weight_is_within_the_bound() {
        for a in 1..=14 {
            for b in a..=14 {
                for c in b..=14 {
                    assert!(within_bound(&[a, b, c]), "{a} {b} {c}");
                    for d in c..=14 {
                        assert!(within_bound(&[a, b, c, d]), "{a} {b} {c} {d}");
                    }
                }
            }
        }
    }

    #[test]
    fn reference_sequences() {
        assert_eq!(sequence(&[7, 2, 1]), [0, 0, 1, 0, 0, 2, 0, 0, 1, 0]);
        assert_eq!(sequence(&[5, 3, 2]), [0, 1, 0, 2, 0, 1, 0, 2, 0, 1]);
        assert_eq!(sequence(&[4, 3, 2, 1]), [0, 1, 0, 2, 1, 0, 3, 0, 1, 2]);
        assert_eq!(sequence(&[6, 2, 1, 1]), [0, 0, 1, 0, 2, 0, 0, 3, 0, 1]);
        assert_eq!(sequence(&[1, 1, 1, 1, 7, 7]), [4, 5, 4, 5, 0, 4, 5, 4, 5, 1, 4, 5, 2, 4, 5, 3, 4, 5]);
        assert_eq!(sequence(&[1, 5, 37, 37])[..10], [2, 3, 2, 3, 2, 3, 2, 3, 1, 2]);
        // The largest deviation of each, times the period.
        for (weights, worst) in [
            (vec![7, 2, 1], 6),
            (vec![5, 3, 2], 7),
            (vec![4, 3, 2, 1], 8),
            (vec![6, 2, 1, 1], 8),
            (vec![1, 1, 1, 1, 7, 7], 16),
            (vec![1, 5, 37, 37], 66),
        ] {
            let period = weights.iter().sum();
            assert_eq!(deviation(&weights, period).0, worst, "{weights:?}");
        }
    }

    #[test]
    fn five_sources_over_ten_million_turns() {
        // Weights down to 1e-4, of a short period and of one near the longest.
        for weights in [[6100, 2907, 990, 2, 1], [700_001, 300_007, 47_000, 1003, 101]] {
            const TURNS: u64 = 10_000_000;
            let turns = Turns::new(&weights).unwrap();
            let q = turns.period() as i64;
            let mut rng = Key::derive(Domain::Draw, 3, &weights).rng();
            let mut stops: Vec<u64> = (0..5000).map(|_| rng.below(TURNS)).collect();
            stops.sort_unstable();
            let mut stops = stops.into_iter().peekable();
            let (mut taken, mut ahead) = ([0_u64; 5], [0_i64; 5]);
            let mut worst = 0;
            for t in 0..TURNS {
                let (source, k) = turns.at(t);
                while stops.next_if_eq(&t).is_some() {
                    // A run that begins here knows what the one from the start has taken.
                    assert_eq!(k, taken[source as usize]);
                    for (source, taken) in (0..).zip(&taken) {
                        assert_eq!(turns.before(source, t), *taken);
                        let next = turns.index(source, *taken).unwrap();
                        assert!(next >= t && turns.at(next) == (source, *taken));
                    }
                }
                taken[source as usize] += 1;
                ahead[source as usize] += q;
                for (ahead, part) in ahead.iter_mut().zip(weights) {
                    *ahead -= part as i64;
                    worst = worst.max(ahead.abs());
                }
            }
            assert!(stops.next().is_none());
            // 1 − 1/(2m − 2) = 7/8.
            assert!(worst * 8 <= q * 7, "{worst} of {q}");
            assert_eq!(taken.iter().sum::<u64>(), TURNS);
        }
    }

    #[test]
    fn thousands_of_sources_are_within_the_bound() {
        let mut rng = Key::derive(Domain::Draw, 4, &[]).rng();
        let weights: Vec<u64> = (0..2000).map(|_| 1 + rng.below(3)).collect();
        assert!(within_bound(&weights));
        assert!(within_bound(&vec![1; 3000]));
    }

    #[test]
    fn one_source_has_every_turn() {
        for weights in [&[1_u64][..], &[12], &[0, u64::MAX, 0]] {
            let turns = Turns::new(weights).unwrap();
            let source = weights.len() as u32 / 2;
            assert_eq!((turns.period(), turns.part(source)), (1, 1));
            for t in [0, 1, 1_000_003, u64::MAX] {
                assert_eq!((turns.at(t), turns.before(source, t)), ((source, t), t));
                assert_eq!(turns.index(source, t), Some(t));
            }
        }
    }

    #[test]
    fn extremes() {
        let turns = Turns::new(&[2, 0, 1]).unwrap();
        assert_eq!((turns.sources(), turns.part(1), turns.part(9)), (3, 0, 0));
        assert_eq!(
            (turns.before(1, 100), turns.before(9, 100), turns.index(1, 0), turns.index(9, 0)),
            (0, 0, None, None)
        );
        let (source, k) = turns.at(u64::MAX);
        assert_eq!(turns.index(source, k), Some(u64::MAX));
        assert_eq!((0..3).map(|s| turns.before(s, u64::MAX)).sum::<u64>(), u64::MAX);
        assert_eq!(turns.index(2, u64::MAX / 3), None);
        assert_eq!(turns.index(0, u64::MAX), None);
        let longest = Turns::new(&[MAX_PERIOD - 1, 1]).unwrap();
        assert_eq!((longest.period(), longest.memory_bytes()), (MAX_PERIOD, 12 * MAX_PERIOD + 32));
        for weights in [&[][..], &[0, 0], &[MAX_PERIOD, 1], &[u64::MAX, u64::MAX - 1]] {
            assert!(matches!(Turns::new(weights), Err(Error::Usage { .. })), "{weights:?}");
        }
    }
}
