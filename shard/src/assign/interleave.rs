//! Where along a stratum the rows of each split lie: spread evenly, so that each split sees the whole of the input's
//! order (time, say), but by keyed choice inside short chunks, so that no period of the input is a period of a split.

use crate::keys::{Domain, Key};

/// Ranks in a chunk.
pub const CHUNK: u64 = 256;

/// The interleaving of one stratum.
#[derive(Debug, Clone, Copy)]
pub struct Interleave<'a> {
    counts: &'a [u64],
    stream: u64,
    hash: u64,
    seed: u64,
}

impl<'a> Interleave<'a> {
    /// Of a stratum with `counts[s]` rows in split s; `stream` tells uses apart.
    #[must_use]
    pub fn new(counts: &'a [u64], stream: u64, hash: u64, seed: u64) -> Self {
        Self { counts, stream, hash, seed }
    }

    /// Rows of each split among the first `x` ranks: a chain of two-way Bresenham lines, split against the rest. Each
    /// line rises by 0 or 1 a rank, so no count ever falls.
    fn before(&self, x: u64) -> Vec<u64> {
        let mut total: u64 = self.counts.iter().sum();
        let mut left = x.min(total);
        let mut counts = Vec::with_capacity(self.counts.len());
        for count in self.counts {
            let of_split = if total == 0 {
                0
            } else {
                let (c, l, t) = (u128::from(*count), u128::from(left), u128::from(total));
                ((2 * c * l + t) / (2 * t)) as u64
            };
            counts.push(of_split);
            left -= of_split;
            total -= count;
        }
        counts
    }

    /// (split, rank within the split) of each rank of chunk `chunk`.
    #[must_use]
    pub fn chunk(&self, chunk: u64) -> Vec<(u32, u64)> {
        let start = self.before(chunk * CHUNK);
        let end = self.before((chunk + 1) * CHUNK);
        let mut splits: Vec<u32> = Vec::with_capacity(CHUNK as usize);
        for (s, (from, to)) in start.iter().zip(&end).enumerate() {
            splits.extend(std::iter::repeat_n(s as u32, (to - from) as usize));
        }
        Key::derive(Domain::Assign, self.seed, &[self.stream, self.hash, chunk]).rng().shuffle(&mut splits);
        let mut next = start;
        splits
            .into_iter()
            .map(|s| {
                let rank = next[s as usize];
                next[s as usize] += 1;
                (s, rank)
            })
            .collect()
    }
}

impl Interleave<'_> {
    /// Rows of each split among the first `x` ranks, exactly.
    #[must_use]
    pub fn among_first(&self, x: u64) -> Vec<u64> {
        let mut counts = self.before(x / CHUNK * CHUNK);
        if !x.is_multiple_of(CHUNK) {
            for (split, _) in self.chunk(x / CHUNK).into_iter().take((x % CHUNK) as usize) {
                counts[split as usize] += 1;
            }
        }
        counts
    }
}

/// Entry `split` of counts by split.
pub(crate) fn count(counts: &[u64], split: usize) -> u64 {
    counts.get(split).copied().unwrap_or(0)
}

/// The chunk of an interleaving that was asked for last.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    of: Option<(u64, u64)>,
    ranks: Vec<(u32, u64)>,
}

impl Chunk {
    /// (split, rank within the split) of `rank`, which must lie within the counts; `stratum` tells strata apart.
    pub fn get(&mut self, interleave: &Interleave<'_>, stratum: u64, rank: u64) -> (u32, u64) {
        let chunk = rank / CHUNK;
        if self.of != Some((stratum, chunk)) {
            self.of = Some((stratum, chunk));
            self.ranks = interleave.chunk(chunk);
        }
        self.ranks.get((rank % CHUNK) as usize).copied().unwrap_or((0, rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn ranks_of_each_split_are_0_1_2_in_order(counts in prop::collection::vec(0u64..3000, 1..6), seed in any::<u64>()) {
            let n: u64 = counts.iter().sum();
            let interleave = Interleave::new(&counts, 2, 9, seed);
            let mut next = vec![0; counts.len()];
            for chunk in 0..n.div_ceil(CHUNK) {
                let ranks = interleave.chunk(chunk);
                prop_assert_eq!(ranks.len() as u64, CHUNK.min(n - chunk * CHUNK));
                for (s, rank) in ranks {
                    prop_assert_eq!(rank, next[s as usize]);
                    next[s as usize] += 1;
                }
            }
            prop_assert_eq!(&next, &counts);
            for x in [0, n / 3, n / 2, n] {
                let mut among = vec![0; interleave.counts.len()];
                for rank in 0..x {
                    let (s, _) = Chunk::default().get(&interleave, 0, rank);
                    among[s as usize] += 1;
                }
                prop_assert_eq!(interleave.among_first(x), among);
                if n > 600 { break; }
            }
        }
    }

    #[test]
    fn each_split_covers_the_whole_stratum_and_no_period_of_it() {
        let counts = [80_000, 10_000, 10_000];
        let interleave = Interleave::new(&counts, 2, 1, 0);
        let (mut early, mut every_tenth) = (0, 0);
        for chunk in 0..100_000_u64.div_ceil(CHUNK) {
            for (i, (s, _)) in interleave.chunk(chunk).into_iter().enumerate() {
                let rank = chunk * CHUNK + i as u64;
                if s == 2 {
                    early += u32::from(rank < 50_000);
                    every_tenth += u32::from(rank.is_multiple_of(10));
                }
            }
        }
        assert!(early.abs_diff(5_000) < 30, "{early}");
        assert!(every_tenth.abs_diff(1_000) < 150, "{every_tenth}");
    }
}
