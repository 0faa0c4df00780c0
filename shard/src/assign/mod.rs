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
