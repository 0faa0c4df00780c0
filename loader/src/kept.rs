//! The rows of a lane that a filter keeps: a bit for each row, with counts that find the k-th kept one.

/// Rows of a run of bits whose count is stored.
const RUN: usize = 512;
const WORDS: usize = RUN / 64;

/// A set of positions with rank and select (Jacobson, "Space-efficient static trees and graphs", 1989): 1 bit a row and
/// 12 bytes for 512 of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRows {
    bits: Vec<u64>,
    /// Kept rows before each run, and in all.
    before: Vec<u64>,
    /// The run of every 512th kept row, so that a kept row is sought between two of them.
    hints: Vec<u32>,
}

impl KeptRows {
    /// Of `rows` rows, those of which `keep` says so.
    pub(crate) fn new(rows: u64, mut keep: impl FnMut(u64) -> bool) -> Self {
        let words = usize::try_from(rows.div_ceil(64)).unwrap_or(usize::MAX);
        let mut bits = vec![0_u64; words];
        for (word, first) in bits.iter_mut().zip((0..).step_by(64)) {
            for bit in 0..64.min(rows - first) {
                *word |= u64::from(keep(first + bit)) << bit;
            }
        }
        let mut before = Vec::with_capacity(words.div_ceil(WORDS) + 1);
        let mut kept = 0;
        before.push(0);
        for run in bits.chunks(WORDS) {
            kept += run.iter().map(|w| u64::from(w.count_ones())).sum::<u64>();
            before.push(kept);
        }
        let mut hints = Vec::new();
        for (run, ends) in (0..).zip(before.iter().skip(1)) {
            while (hints.len() * RUN) as u64 <= ends.saturating_sub(1) && *ends > 0 {
                hints.push(run);
            }
        }
        Self { bits, before, hints }
    }

    /// Kept rows.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.before.last().copied().unwrap_or(0)
    }

    /// Whether the row at `position` is kept.
    #[must_use]
    pub fn contains(&self, position: u64) -> bool {
        let word = usize::try_from(position / 64).ok().and_then(|at| self.bits.get(at)).copied().unwrap_or(0);
        word >> (position % 64) & 1 == 1
    }

    /// Kept rows before `position`.
    #[must_use]
    pub fn rank(&self, position: u64) -> u64 {
        let word = usize::try_from(position / 64).unwrap_or(usize::MAX);
        if word >= self.bits.len() {
            return self.count();
        }
        let run = word / WORDS;
        let whole = self.bits.get(run * WORDS..word).into_iter().flatten();
        let mask = (1_u64 << (position % 64)) - 1;
        let part = self.bits.get(word).map_or(0, |w| (w & mask).count_ones());
        self.before.get(run).copied().unwrap_or(0)
            + whole.map(|w| u64::from(w.count_ones())).sum::<u64>()
            + u64::from(part)
    }

    /// Position of kept row `ordinal`; the number of rows, rounded up to 64, past the last one.
    #[must_use]
    pub fn select(&self, ordinal: u64) -> u64 {
        let hint = usize::try_from(ordinal).unwrap_or(usize::MAX) / RUN;
        let first = self.hints.get(hint).map_or(self.before.len(), |run| *run as usize);
        let last = self.hints.get(hint + 1).map_or(self.before.len(), |run| *run as usize + 2);
        let between = self.before.get(first..last.min(self.before.len())).unwrap_or_default();
        let run = (first + between.partition_point(|b| *b <= ordinal)).saturating_sub(1);
        let mut left = ordinal - self.before.get(run).copied().unwrap_or(0);
        for (at, word) in (run * WORDS..).zip(self.bits.iter().skip(run * WORDS)) {
            let ones = u64::from(word.count_ones());
            if left < ones {
                return at as u64 * 64 + u64::from(nth_one(*word, left));
            }
            left -= ones;
        }
        self.bits.len() as u64 * 64
    }
}

/// Place of set bit `n` (from 0, below the number of set bits) of `word`.
fn nth_one(mut word: u64, n: u64) -> u32 {
    for _ in 0..n {
        word &= word.wrapping_sub(1);
    }
    word.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranks_and_places_are_those_of_a_list(
            rows in 0_u64..3000, one_in in 1_u64..700, seed in any::<u64>(),
        ) {
            let keep = |row: u64| (row ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33 == 0
                || (row.wrapping_mul(31) ^ seed).is_multiple_of(one_in);
            let want: Vec<u64> = (0..rows).filter(|r| keep(*r)).collect();
            let kept = KeptRows::new(rows, keep);
            prop_assert_eq!(kept.count(), want.len() as u64);
            for (ordinal, position) in (0..).zip(&want) {
                prop_assert_eq!((kept.select(ordinal), kept.rank(*position)), (*position, ordinal));
            }
            for position in 0..rows + 70 {
                prop_assert_eq!(kept.contains(position), want.binary_search(&position).is_ok());
                prop_assert_eq!(kept.rank(position), want.partition_point(|w| *w < position) as u64);
            }
            prop_assert!(kept.select(kept.count()) >= rows);
        }
    }
}
