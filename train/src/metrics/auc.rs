//! Area under the ROC curve: the probability that a random positive outscores a random negative, ties counting half.

use serde::{Deserialize, Serialize};

/// Scores up to which the area is exact; above it scores are binned, and the error is stated.
pub const EXACT_SCORES: u64 = 10_000_000;

/// Sign, exponent and 9 mantissa bits of the score as f32, in the order of the scores.
const BIN_BITS: u32 = 18;

/// An area and how far it may be off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Auc {
    /// The area, 0 to 1.
    pub value: f64,
    /// Greatest possible distance from the exact area; 0 when exact.
    pub error: f64,
}

/// Scores and labels of the rows seen so far.
///
/// The area of an exact state does not depend on the order in which rows came or states were merged: it is a count of
/// pairs. NaN scores are ordered as the greatest.
#[derive(Debug, Clone, PartialEq)]
pub enum AucState {
    /// Every score.
    Exact {
        /// Scores, any increasing function of the probability.
        scores: Vec<f64>,
        /// One for each score.
        labels: Vec<bool>,
    },
    /// Counts of positives and of negatives for each of 2^18 bins.
    Binned {
        /// Positives by bin.
        positives: Vec<u64>,
        /// Negatives by bin.
        negatives: Vec<u64>,
    },
}

impl AucState {
    /// An empty state for `rows` rows over all ranks: exact up to [`EXACT_SCORES`].
    #[must_use]
    pub fn for_rows(rows: u64) -> Self {
        if rows <= EXACT_SCORES { Self::exact() } else { Self::binned() }
    }

    /// An empty exact state.
    #[must_use]
    pub fn exact() -> Self {
        Self::Exact { scores: Vec::new(), labels: Vec::new() }
    }

    /// An empty binned state.
    #[must_use]
    pub fn binned() -> Self {
        Self::Binned { positives: vec![0; 1 << BIN_BITS], negatives: vec![0; 1 << BIN_BITS] }
    }

    /// Adds one row.
    pub fn push(&mut self, score: f64, label: bool) {
        match self {
            Self::Exact { scores, labels } => {
                scores.push(score);
                labels.push(label);
            }
            Self::Binned { positives, negatives } => {
                let counts = if label { positives } else { negatives };
                if let Some(count) = counts.get_mut(bin_of(score)) {
                    *count += 1;
                }
            }
        }
    }

    /// Adds the rows of `other`. An exact state that meets a binned one becomes binned.
    pub fn merge(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Exact { scores, labels }, Self::Exact { scores: s, labels: l }) => {
                scores.extend_from_slice(s);
                labels.extend_from_slice(l);
            }
            (Self::Binned { .. }, Self::Exact { scores, labels }) => {
                for (score, label) in scores.iter().zip(labels) {
                    self.push(*score, *label);
                }
            }
            (Self::Binned { positives, negatives }, Self::Binned { positives: p, negatives: n }) => {
                for (mine, theirs) in positives.iter_mut().zip(p).chain(negatives.iter_mut().zip(n)) {
                    *mine += theirs;
                }
            }
            (Self::Exact { .. }, Self::Binned { .. }) => {
                let mut binned = other.clone();
                binned.merge(self);
                *self = binned;
            }
        }
    }

    /// The area over all rows; `None` without both a positive and a negative.
    #[must_use]
    pub fn finish(self) -> Option<Auc> {
        match self {
            Self::Exact { scores, labels } => {
                let mut rows: Vec<(u64, bool)> = scores.iter().map(|s| ordered(*s)).zip(labels).collect();
                rows.sort_unstable();
                let groups = rows.chunk_by(|a, b| a.0 == b.0).map(|group| {
                    let positives = group.iter().filter(|(_, label)| *label).count() as u64;
                    (positives, group.len() as u64 - positives)
                });
                area(groups).map(|(value, _)| Auc { value, error: 0.0 })
            }
            Self::Binned { positives, negatives } => {
                area(positives.into_iter().zip(negatives)).map(|(value, error)| Auc { value, error })
            }
        }
    }
}

/// Area over groups of equal score, in ascending order of the score, as (positives, negatives); and how far off it is
/// when a group's scores only were nearly equal.
pub(crate) fn area(groups: impl Iterator<Item = (u64, u64)>) -> Option<(f64, f64)> {
    // Twice the number of pairs won, so that a tie is an integer too; 2 · (10^19)² does not overflow u128.
    let (mut twice_won, mut tied) = (0_u128, 0_u128);
    let (mut positives, mut negatives) = (0_u128, 0_u128);
    for (p, n) in groups {
        let (p, n) = (u128::from(p), u128::from(n));
        twice_won += p * (2 * negatives + n);
        tied += p * n;
        positives += p;
        negatives += n;
    }
    let pairs = positives * negatives;
    if pairs == 0 {
        return None;
    }
    Some((twice_won as f64 / 2.0 / pairs as f64, tied as f64 / 2.0 / pairs as f64))
}

/// Bits that compare as the numbers do, with −0 as 0 and every NaN the greatest.
fn ordered(score: f64) -> u64 {
    if score.is_nan() {
        return u64::MAX;
    }
    let bits = (score + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

fn bin_of(score: f64) -> usize {
    let score = score as f32;
    if score.is_nan() {
        return (1 << BIN_BITS) - 1;
    }
    let bits = (score + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | (1 << 31) };
    (ordered >> (32 - BIN_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::keys::{Domain, Key};

    /// The definition, in O(n²).
    fn naive(rows: &[(f64, bool)]) -> Option<f64> {
        let (mut won, mut pairs) = (0.0, 0.0);
        for (p, _) in rows.iter().filter(|r| r.1) {
            for (n, _) in rows.iter().filter(|r| !r.1) {
                pairs += 1.0;
                won += if p > n {
                    1.0
                } else if p == n {
                    0.5
                } else {
                    0.0
                };
            }
        }
        (pairs > 0.0).then(|| won / pairs)
    }

    fn rows(seed: u64, n: u64, distinct: u64) -> Vec<(f64, bool)> {
        let mut rng = Key::derive(Domain::Draw, seed, &[]).rng();
        (0..n)
            .map(|_| {
                let score = rng.below(distinct) as f64 / 7.0 - 3.0;
                (score, rng.below(10) < 3 + u64::from(score > 0.0) * 4)
            })
            .collect()
    }

    fn state(mut empty: AucState, rows: &[(f64, bool)]) -> AucState {
        for (score, label) in rows {
            empty.push(*score, *label);
        }
        empty
    }

    #[test]
    fn it_is_the_share_of_pairs_won_with_ties_half() {
        for (seed, distinct) in [(1, 2), (2, 5), (3, 40), (4, 1 << 40)] {
            let rows = rows(seed, 300, distinct);
            let auc = state(AucState::exact(), &rows).finish().unwrap();
            assert!((auc.value - naive(&rows).unwrap()).abs() < 1e-14);
            assert_eq!(auc.error, 0.0);
        }
    }

    #[test]
    fn parts_merge_to_the_whole_in_any_order() {
        let rows = rows(9, 500, 30);
        let whole = state(AucState::exact(), &rows).finish();
        let (a, rest) = rows.split_at(123);
        let (b, c) = rest.split_at(1);
        let mut merged = state(AucState::exact(), c);
        merged.merge(&state(AucState::exact(), a));
        merged.merge(&state(AucState::exact(), b));
        assert_eq!(merged.finish(), whole, "to the last bit");
        let mut binned = state(AucState::binned(), a);
        binned.merge(&state(AucState::exact(), rest));
        assert_eq!(binned, state(AucState::binned(), &rows));
        let mut exact = state(AucState::exact(), a);
        exact.merge(&state(AucState::binned(), rest));
        assert_eq!(exact, binned);
    }

    #[test]
    fn bins_stay_within_the_stated_error() {
        let mut rng = Key::derive(Domain::Draw, 5, &[]).rng();
        let rows: Vec<_> = (0..4000)
            .map(|_| {
                let score = 1.0 + rng.below(1 << 30) as f64 / f64::from(1 << 30) / 50.0;
                (score, rng.below(2) == 0)
            })
            .collect();
        let exact = state(AucState::exact(), &rows).finish().unwrap().value;
        let binned = state(AucState::binned(), &rows).finish().unwrap();
        assert!(binned.error > 0.0 && (binned.value - exact).abs() <= binned.error, "{binned:?} {exact}");
    }

    #[test]
    fn edges() {
        assert_eq!(AucState::exact().finish(), None);
        assert_eq!(state(AucState::exact(), &[(1.0, true)]).finish(), None);
        let zeros = [(0.0, true), (-0.0, false)];
        assert_eq!(state(AucState::exact(), &zeros).finish().unwrap().value, 0.5);
        assert_eq!(state(AucState::binned(), &zeros).finish().unwrap().value, 0.5);
        let nan = [(f64::NAN, true), (f64::INFINITY, false), (-f64::NAN, false)];
        assert_eq!(state(AucState::exact(), &nan).finish().unwrap().value, 0.75);
        let ends = [(f64::INFINITY, true), (f64::NEG_INFINITY, false), (-1e300, false), (1e300, true)];
        assert_eq!(state(AucState::exact(), &ends).finish().unwrap().value, 1.0);
        assert_eq!(state(AucState::binned(), &ends).finish().unwrap().value, 1.0);
    }
}
