//! Assignment: which split, lane and file each row goes to. Pure: no I/O, no clock, exact integers only.
//!
//! The only thing known of a row is its stratum and its rank among the rows of that stratum, in the order of the input.
//! From the counts of the strata follow the counts of every split ([`rounding`]), where along a stratum the rows of
//! each split lie ([`interleave`]), and which leaf (lane and file) each takes ([`deal`]).
//!
//! **Bounds**, for a stratum of `n_c` rows of which split s has `n_cs`, with N nodes, L lanes, F files a lane:
//! split ⌊f·n_c⌋ or ⌈f·n_c⌉, and in total ⌊f·n⌋ or ⌈f·n⌉; inside a split, node ⌊n_cs/N⌋ or ⌈n_cs/N⌉, lane ⌊n_cs/L⌋ or
//! ⌈n_cs/L⌉, file ⌊n_cs/LF⌋ or ⌈n_cs/LF⌉; sizes of nodes, of lanes and of files differ by at most 1 row.

pub mod deal;
pub mod interleave;
pub mod rounding;

use std::collections::HashMap;

use deal::{Dealing, Leaves};
use interleave::Interleave;
use rounding::{Shares, round_strata};

use crate::error::Result;

/// A stratum as assignment sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stratum {
    /// Keyed choices depend on this hash of the stratum's value, not on its ordinal, so that a new stratum does not
    /// move the rows of the others.
    pub hash: u64,
    /// Rows.
    pub rows: u64,
}

/// The assignment of a whole data set.
#[derive(Debug, Clone)]
pub struct Assignment {
    seed: u64,
    strata: Vec<Stratum>,
    /// `counts[c][s]`: rows of stratum c in split s.
    counts: Vec<Vec<u64>>,
    dealings: Vec<Dealing>,
}

/// Where a row goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// Ordinal of the split.
    pub split: usize,
    /// Leaf: lane = leaf mod L, file = leaf div L.
    pub leaf: u32,
}

impl Assignment {
    /// The counts of each stratum in each split, the first half of the assignment (files per lane follow from it).
    ///
    /// # Errors
    /// [`crate::Error::Internal`] when the rounding's own check fails.
    pub fn split_counts(strata: &[Stratum], shares: &Shares, seed: u64) -> Result<Vec<Vec<u64>>> {
        round_strata(&strata.iter().map(|s| s.rows).collect::<Vec<_>>(), shares, seed)
    }

    /// Deals `counts` (of [`Assignment::split_counts`]) along the factors of each split.
    ///
    /// # Errors
    /// [`crate::Error::Internal`] when a dealing's own check fails.
    pub fn new(strata: Vec<Stratum>, counts: Vec<Vec<u64>>, factors: &[Vec<u32>], seed: u64) -> Result<Self> {
        let hashes: Vec<u64> = strata.iter().map(|s| s.hash).collect();
        let mut dealings = Vec::with_capacity(factors.len());
        for (split, factors) in factors.iter().enumerate() {
            let of_split: Vec<u64> = counts.iter().map(|c| c[split]).collect();
            dealings.push(Dealing::new(&hashes, &of_split, factors, seed, split)?);
        }
        Ok(Self { seed, strata, counts, dealings })
    }

    /// Rows of stratum `c` in each split.
    #[must_use]
    pub fn counts(&self) -> &[Vec<u64>] {
        &self.counts
    }

    /// The dealing of each split.
    #[must_use]
    pub fn dealings(&self) -> &[Dealing] {
        &self.dealings
    }

    /// Assigns rows whose ranks within a stratum come in increasing order (as a row group has them).
    #[must_use]
    pub fn assigner(&self) -> Assigner<'_> {
        Assigner { assignment: self, chunks: HashMap::new(), leaves: HashMap::new() }
    }
}

/// Assigns rows one by one; it keeps the current chunk and block of each stratum, so it is cheap when ranks of a
/// stratum come in order. Its answers do not depend on that order.
#[derive(Debug)]
pub struct Assigner<'a> {
    assignment: &'a Assignment,
    chunks: HashMap<u32, (u64, Vec<(u32, u64)>)>,
    leaves: HashMap<(u32, u32), Leaves>,
}

impl Assigner<'_> {
    /// Where the row of rank `rank` in stratum `stratum` goes.
    ///
    /// # Errors
    /// [`crate::Error::Internal`] for a rank that the stratum does not have.
    pub fn destination(&mut self, stratum: u32, rank: u64) -> Result<Destination> {
        let outside = || crate::Error::internal(format!("rank {rank} is outside stratum {stratum}"));
        let c = stratum as usize;
        let (info, counts) = self.assignment.strata.get(c).zip(self.assignment.counts.get(c)).ok_or_else(outside)?;
        let (split, rank_in_split) = if counts.len() == 1 {
            (0, rank)
        } else {
            let chunk = rank / interleave::CHUNK;
            let entry = self.chunks.entry(stratum).or_insert_with(|| (u64::MAX, Vec::new()));
            if entry.0 != chunk {
                *entry = (chunk, Interleave::new(counts, info.hash, self.assignment.seed).chunk(chunk));
            }
            let (split, rank) = *entry.1.get((rank % interleave::CHUNK) as usize).ok_or_else(outside)?;
            (split as usize, rank)
        };
        let dealing = self.assignment.dealings.get(split).ok_or_else(outside)?;
        let leaves = self.leaves.entry((stratum, split as u32)).or_default();
        let leaf = dealing.leaf(stratum, info.hash, rank_in_split, leaves).ok_or_else(outside)?;
        Ok(Destination { split, leaf })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(rows: &[u64], shares: &str, nodes: u32, lanes_per_node: u32, files: u32, seed: u64) {
        let shares = Shares::parse(shares).unwrap();
        let strata: Vec<Stratum> =
            rows.iter().enumerate().map(|(i, r)| Stratum { hash: i as u64 * 77 + 5, rows: *r }).collect();
        let counts = Assignment::split_counts(&strata, &shares, seed).unwrap();
        let lanes = nodes * lanes_per_node;
        let factors = vec![deal::factor_chain(&[nodes, lanes_per_node, files]); shares.len()];
        let assignment = Assignment::new(strata, counts, &factors, seed).unwrap();
        let leaves = lanes * files;
        let mut assigner = assignment.assigner();
        let mut table = vec![vec![vec![0_u64; leaves as usize]; rows.len()]; shares.len()];
        for (c, n) in rows.iter().enumerate() {
            for rank in 0..*n {
                let d = assigner.destination(c as u32, rank).unwrap();
                table[d.split][c][d.leaf as usize] += 1;
            }
        }
        for (s, by_stratum) in table.iter().enumerate() {
            for m in [nodes, lanes, leaves] {
                let mut sizes = vec![0; m as usize];
                for (c, by_leaf) in by_stratum.iter().enumerate() {
                    let n_cs: u64 = by_leaf.iter().sum();
                    assert_eq!(n_cs, assignment.counts()[c][s]);
                    let mut counts = vec![0_u64; m as usize];
                    for (leaf, n) in by_leaf.iter().enumerate() {
                        counts[leaf % m as usize] += n;
                    }
                    for (child, n) in counts.iter().enumerate() {
                        assert!(
                            *n == n_cs / u64::from(m) || *n == n_cs.div_ceil(u64::from(m)),
                            "{n} of {n_cs} at 1/{m}"
                        );
                        sizes[child] += n;
                    }
                }
                let total: u64 = sizes.iter().sum();
                for (v, size) in sizes.iter().enumerate() {
                    assert_eq!(*size, total.saturating_sub(v as u64).div_ceil(u64::from(m)), "size of {v} of {m}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        #[test]
        fn every_bound_holds(
            rows in prop::collection::vec(prop_oneof![0u64..4, 0u64..90, 200u64..900], 1..40),
            shares in prop::sample::select(vec!["all=1", "train=0.8,validation=0.1,test=0.1", "a=1/3,b=2/3", "a=0.5,b=0.2,c=0.2,d=0.05,e=0.05"]),
            nodes in 1u32..10, lanes in 1u32..5, files in 1u32..4, seed in any::<u64>(),
        ) {
            check(&rows, shares, nodes, lanes, files, seed);
        }
    }

    #[test]
    fn a_thousand_singletons_are_split_as_asked() {
        let strata: Vec<Stratum> = (0..1000).map(|i| Stratum { hash: i, rows: 1 }).collect();
        let shares = Shares::parse("train=0.8,validation=0.1,test=0.1").unwrap();
        let counts = Assignment::split_counts(&strata, &shares, 0).unwrap();
        let totals: Vec<u64> = (0..3).map(|s| counts.iter().map(|c| c[s]).sum()).collect();
        assert_eq!(totals, [800, 100, 100]);
    }

    #[test]
    fn a_pattern_of_the_input_is_not_a_pattern_of_the_nodes() {
        // Every eighth row of the input has an attribute; eight nodes. A fixed dealing would put all of it on one node.
        let n = 80_000;
        let strata = vec![Stratum { hash: 1, rows: n }];
        let assignment = Assignment::new(strata, vec![vec![n]], &[deal::factor_chain(&[8])], 0).unwrap();
        let mut assigner = assignment.assigner();
        let mut with = [0_u32; 8];
        for rank in (0..n).step_by(8) {
            with[assigner.destination(0, rank).unwrap().leaf as usize] += 1;
        }
        assert!(with.iter().all(|w| (1_100..1_400).contains(w)), "{with:?}");
    }
}
