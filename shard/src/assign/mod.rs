//! Assignment: which split, lane and file each row goes to. Pure: no I/O, no clock, exact integers only.
//!
//! The only thing known of a row is its stratum, the bin of its weight, and its rank: rows of a stratum are ordered by
//! weight bin, heaviest first, and within a bin as the input has them. From the counts of the strata follow the counts of
//! every split ([`rounding`]), where along a stratum the rows of each split lie ([`interleave`]), how many rows each
//! stratum is to have after resampling ([`resample`]), and which leaf (lane and file) each takes ([`deal`]).
//!
//! **Bounds**, for a stratum of `n_c` rows of which split s has `n_cs`, with N nodes, L lanes, F files a lane:
//! split ⌊f·n_c⌋ or ⌈f·n_c⌉, and in total ⌊f·n⌋ or ⌈f·n⌉; inside a split, node ⌊n_cs/N⌋ or ⌈n_cs/N⌉, lane ⌊n_cs/L⌋ or
//! ⌈n_cs/L⌉, file ⌊n_cs/LF⌋ or ⌈n_cs/LF⌉; sizes of nodes, of lanes and of files differ by at most 1 row. Where splits are
//! fixed from outside (by the hash of an id, by group) the first line holds only in expectation, the second as it stands.
//! Where groups stay on one node, the second line holds for the lanes and files of each node.

pub mod chosen;
pub mod deal;
pub mod groups;
pub mod interleave;
pub mod labels;
mod part_counts;
pub mod resample;
pub mod rounding;
pub mod stable;
pub mod weighted;

use std::ops::Range;

use deal::{Dealing, DealingCache};
use interleave::{Chunk, Interleave};

use crate::error::{Error, Result};

/// Stream of the interleaving of splits.
pub(crate) const SPLITS: u64 = 2;

/// Stream of the interleaving of kept and left out rows of a part.
pub(crate) fn kept_stream(part: usize) -> u64 {
    10 + 16 * part as u64
}

/// The assignment of a whole data set to parts: its splits, or the nodes of its splits where groups stay on one node.
#[derive(Debug, Clone)]
pub struct Assignment {
    seed: u64,
    hashes: Vec<u64>,
    parts: usize,
    /// `[c · parts + p]`: rows of the input of stratum c in part p.
    counts: Vec<u64>,
    /// The same after resampling.
    targets: Vec<u64>,
    dealings: Vec<Dealing>,
}

/// Where a row, or a copy of it, goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Place of the row in the range that was asked for.
    pub at: usize,
    /// Ordinal of the part.
    pub part: u32,
    /// Leaf in the part.
    pub leaf: u32,
    /// 0 for the row itself, 1, 2, … for copies.
    pub copy: u32,
}

impl Assignment {
    /// Of strata with these `hashes`; `counts` and `targets` are `[stratum · parts + part]`, and `dealings` deal the
    /// targets.
    ///
    /// # Errors
    /// [`Error::Internal`] when the numbers do not fit each other, or a stratum is to grow from nothing.
    pub fn new(
        hashes: Vec<u64>,
        counts: Vec<u64>,
        targets: Vec<u64>,
        dealings: Vec<Dealing>,
        seed: u64,
    ) -> Result<Self> {
        let parts = dealings.len();
        if counts.len() != hashes.len() * parts || targets.len() != counts.len() {
            return Err(Error::internal("counts do not fit the strata"));
        }
        if counts.iter().zip(&targets).any(|(n, m)| *n == 0 && *m > 0) {
            return Err(Error::internal("a stratum is to grow from nothing"));
        }
        Ok(Self { seed, hashes, parts, counts, targets, dealings })
    }

    /// Rows of the input, `[stratum · parts + part]`.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Rows after resampling, `[stratum · parts + part]`.
    #[must_use]
    pub fn targets(&self) -> &[u64] {
        &self.targets
    }

    /// Number of parts.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// The dealing of each part.
    #[must_use]
    pub fn dealings(&self) -> &[Dealing] {
        &self.dealings
    }

    /// Places rows, stratum by stratum.
    #[must_use]
    pub fn assigner(&self) -> Assigner<'_> {
        Assigner {
            assignment: self,
            splits: Chunk::default(),
            kept: vec![Chunk::default(); self.parts],
            leaves: vec![DealingCache::default(); self.parts],
        }
    }
}

/// Places ranges of ranks; it keeps the current chunk and block of a stratum. Its answers depend on nothing but the
/// question.
#[derive(Debug)]
pub struct Assigner<'a> {
    assignment: &'a Assignment,
    splits: Chunk,
    kept: Vec<Chunk>,
    leaves: Vec<DealingCache>,
}

impl Assigner<'_> {
    /// Where the rows of ranks `ranks` of `stratum` go. Without `part` the ranks are those of the whole stratum, and the
    /// splits interleave along it; with `part` they are ranks within the part.
    ///
    /// # Errors
    /// [`Error::Internal`] for ranks that the stratum does not have.
    pub fn place(
        &mut self,
        part: Option<u32>,
        stratum: u32,
        ranks: Range<u64>,
        mut put: impl FnMut(Placement),
    ) -> Result<()> {
        let outside = || Error::internal(format!("ranks {ranks:?} are outside stratum {stratum}"));
        let of = self.assignment;
        let hash = *of.hashes.get(stratum as usize).ok_or_else(outside)?;
        let counts = &of.counts[stratum as usize * of.parts..][..of.parts];
        let single = part.or(if of.parts == 1 { Some(0) } else { None });
        if let Some(part) = single {
            if counts.get(part as usize).is_none_or(|n| ranks.end > *n) {
                return Err(outside());
            }
            for rank in ranks.clone() {
                self.place_in(part as usize, stratum, hash, rank, (rank - ranks.start) as usize, &mut put);
            }
            return Ok(());
        }
        if ranks.end > counts.iter().sum() {
            return Err(outside());
        }
        let interleave = Interleave::new(counts, SPLITS, hash, of.seed);
        for rank in ranks.clone() {
            let (split, rank_in_split) = self.splits.get(&interleave, u64::from(stratum), rank);
            self.place_in(split as usize, stratum, hash, rank_in_split, (rank - ranks.start) as usize, &mut put);
        }
        Ok(())
    }

    fn place_in(
        &mut self,
        part: usize,
        stratum: u32,
        hash: u64,
        rank: u64,
        at: usize,
        put: &mut impl FnMut(Placement),
    ) {
        let of = self.assignment;
        let place = stratum as usize * of.parts + part;
        let (rows, target) = (of.counts[place], of.targets[place]);
        let (dealing, cache) = (&of.dealings[part], &mut self.leaves[part]);
        let mut leaf = |rank| dealing.leaf(stratum, hash, target, rank, cache);
        if rows == target {
            put(Placement { at, part: part as u32, leaf: leaf(rank), copy: 0 });
        } else if target < rows {
            let counts = [target, rows - target];
            let interleave = Interleave::new(&counts, kept_stream(part), hash, of.seed);
            if let (0, kept) = self.kept[part].get(&interleave, u64::from(stratum), rank) {
                put(Placement { at, part: part as u32, leaf: leaf(kept), copy: 0 });
            }
        } else {
            for (copy, rank) in resample::copies(rank, rows, target).enumerate() {
                put(Placement { at, part: part as u32, leaf: leaf(rank), copy: copy as u32 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deal::factor_chain;
    use proptest::prelude::*;
    use rounding::{Shares, round_strata};
    use weighted::{WeightRun, WeightedNodes, WeightedStratum};

    /// Splits, and dealings with or without weights.
    fn assignment(rows: &[u64], shares: &str, nodes: u32, leaves: u32, weighted: bool, seed: u64) -> Assignment {
        let shares = Shares::parse(shares).unwrap();
        let hashes: Vec<u64> = (0..rows.len() as u64).map(|i| i * 77 + 5).collect();
        let counts = round_strata(rows, &shares, seed).unwrap();
        let dealings = (0..shares.len())
            .map(|s| {
                let of_split: Vec<u64> = counts.iter().skip(s).step_by(shares.len()).copied().collect();
                if !weighted {
                    return Dealing::flat(&hashes, of_split.into_iter(), u64::from(leaves), seed, s as u64).unwrap();
                }
                let strata: Vec<WeightedStratum> = (of_split.iter().zip(&hashes))
                    .map(|(n, hash)| {
                        let runs =
                            (0..*n).map(|i| WeightRun { weight: 1 + (n - i) * (n - i) % 1009, rows: 1 }).collect();
                        WeightedStratum { hash: *hash, runs }
                    })
                    .collect();
                let choice = WeightedNodes::new(&strata, &factor_chain(&[nodes]), 0, seed, s);
                let choice = deal::NodeChoice::Weighted(choice);
                Dealing::by_nodes(choice, nodes, &hashes, of_split, u64::from(leaves), seed, s as u64).unwrap()
            })
            .collect();
        Assignment::new(hashes, counts.clone(), counts, dealings, seed).unwrap()
    }

    fn check(rows: &[u64], shares: &str, nodes: u32, lanes_per_node: u32, files: u32, weighted: bool, seed: u64) {
        let (lanes, leaves) = (nodes * lanes_per_node, nodes * lanes_per_node * files);
        let assignment = assignment(rows, shares, nodes, leaves, weighted, seed);
        let parts = assignment.parts();
        let mut assigner = assignment.assigner();
        let mut table = vec![vec![vec![0_u64; leaves as usize]; rows.len()]; parts];
        for (c, n) in rows.iter().enumerate() {
            // In pieces, as units have them.
            for start in (0..*n).step_by(137) {
                let end = (*n).min(start + 137);
                let mut seen = 0;
                assigner
                    .place(None, c as u32, start..end, |p| {
                        assert_eq!((p.at, p.copy), (seen, 0));
                        seen += 1;
                        table[p.part as usize][c][p.leaf as usize] += 1;
                    })
                    .unwrap();
                assert_eq!(seen as u64, end - start);
            }
        }
        for (s, by_stratum) in table.iter().enumerate() {
            for m in [nodes, lanes, leaves] {
                let mut sizes = vec![0; m as usize];
                for (c, by_leaf) in by_stratum.iter().enumerate() {
                    let n_cs: u64 = by_leaf.iter().sum();
                    assert_eq!(n_cs, assignment.counts()[c * parts + s]);
                    let mut counts = vec![0_u64; m as usize];
                    for (leaf, n) in by_leaf.iter().enumerate() {
                        counts[leaf % m as usize] += n;
                    }
                    for (child, n) in counts.iter().enumerate() {
                        let whole = u64::from(m);
                        assert!(*n == n_cs / whole || *n == n_cs.div_ceil(whole), "{n} of {n_cs} at 1/{m}");
                        sizes[child] += n;
                    }
                }
                let total: u64 = sizes.iter().sum();
                for (v, size) in sizes.iter().enumerate() {
                    let want = total.saturating_sub(v as u64).div_ceil(u64::from(m));
                    assert_eq!(*size, want, "size of {v} of {m}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn every_bound_holds(
            rows in prop::collection::vec(prop_oneof![0u64..4, 0u64..90, 200u64..900], 1..40),
            shares in prop::sample::select(vec!["all=1", "train=0.8,validation=0.1,test=0.1", "a=1/3,b=2/3", "a=0.5,b=0.2,c=0.2,d=0.05,e=0.05"]),
            nodes in 1u32..10, lanes in 1u32..5, files in 1u32..4, weighted in any::<bool>(), seed in any::<u64>(),
        ) {
            check(&rows, shares, nodes, lanes, files, weighted, seed);
        }
    }

    #[test]
    fn blocks_larger_than_a_shuffled_one_keep_the_bounds() {
        for weighted in [false, true] {
            check(&[5_000, 299, 1, 0, 1_234], "a=0.7,b=0.3", 8, 8, 6, weighted, 3);
        }
    }

    #[test]
    fn a_pattern_of_the_input_is_not_a_pattern_of_the_nodes() {
        // Every eighth row of the input has an attribute; eight nodes. A fixed dealing would put all of it on one node.
        let n = 80_000;
        for leaves in [8, 512] {
            let assignment = assignment(&[n], "all=1", 8, leaves, false, 0);
            let mut with = [0_u32; 8];
            assignment
                .assigner()
                .place(None, 0, 0..n, |p| with[p.leaf as usize % 8] += u32::from(p.at % 8 == 0))
                .unwrap();
            assert!(with.iter().all(|w| (1_100..1_400).contains(w)), "{with:?}");
        }
    }

    #[test]
    fn a_thousand_singletons_are_split_as_asked() {
        let shares = Shares::parse("train=0.8,validation=0.1,test=0.1").unwrap();
        let counts = round_strata(&[1; 1000], &shares, 0).unwrap();
        let totals: Vec<u64> = (0..3).map(|s| counts.iter().skip(s).step_by(3).sum()).collect();
        assert_eq!(totals, [800, 100, 100]);
    }

    #[test]
    fn resampled_rows_fill_their_targets() {
        let (hashes, counts, targets) = (vec![1, 2, 3], vec![1_000, 10, 300], vec![400, 400, 300]);
        let dealing = Dealing::flat(&hashes, targets.iter().copied(), 16, 0, 0).unwrap();
        let assignment = Assignment::new(hashes, counts.clone(), targets.clone(), vec![dealing], 0).unwrap();
        let mut assigner = assignment.assigner();
        for (c, (n, m)) in counts.iter().zip(&targets).enumerate() {
            let mut on_leaf = [0_u64; 16];
            let mut copies = vec![0_u32; *n as usize];
            assigner
                .place(None, c as u32, 0..*n, |p| {
                    assert_eq!(p.copy, copies[p.at]);
                    copies[p.at] += 1;
                    on_leaf[p.leaf as usize] += 1;
                })
                .unwrap();
            assert_eq!(on_leaf.iter().sum::<u64>(), *m);
            assert!(on_leaf.iter().all(|l| *l == m / 16 || *l == m.div_ceil(16)));
        }
    }
}
