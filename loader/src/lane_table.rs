//! The lanes of a split and the row groups (blocks) that each of them is made of: all that the plan knows of the data.

use std::sync::Arc;

use gristmill_shard::{ShardSet, manifest::SplitInfo};

use crate::{
    error::{Error, Result},
    interleave::Interleave,
    kept::KeptRows,
    sizes::Sizes,
};

/// A row group of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Rows.
    pub rows: u64,
    /// First position (row ordinal in its lane).
    pub first: u64,
    /// Bytes in the file.
    pub stored_bytes: u64,
    /// Arrow bytes when all columns are decoded.
    pub decoded_bytes: u64,
    /// Ordinal of its file in the lane.
    pub file: u32,
    /// Ordinal of the row group in its file.
    pub row_group: u32,
}

/// The row groups of a lane, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneBlocks {
    sizes: Arc<Sizes>,
    /// Where each lies in storage; `None` for lanes without data behind them.
    stored: Option<Vec<Stored>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    bytes: u64,
    decoded_bytes: u64,
    file: u32,
    row_group: u32,
}

/// Bytes that a row of a simulated lane is said to have.
const SIMULATED_ROW: u64 = 64;

impl LaneBlocks {
    /// Row groups.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.sizes.count()
    }

    /// Row group `block`, from 0; `None` past the last.
    #[must_use]
    pub fn get(&self, block: u64) -> Option<Block> {
        if block >= self.count() {
            return None;
        }
        let (rows, first) = (self.sizes.size(block), self.sizes.start(block));
        let stored = match &self.stored {
            Some(stored) => *usize::try_from(block).ok().and_then(|at| stored.get(at))?,
            None => {
                let bytes = rows.saturating_mul(SIMULATED_ROW);
                Stored { bytes, decoded_bytes: bytes, file: 0, row_group: u32::try_from(block).unwrap_or(u32::MAX) }
            }
        };
        let Stored { bytes, decoded_bytes, file, row_group } = stored;
        Some(Block { rows, first, stored_bytes: bytes, decoded_bytes, file, row_group })
    }

    /// All row groups in order.
    pub fn iter(&self) -> impl Iterator<Item = Block> + '_ {
        (0..self.count()).filter_map(|block| self.get(block))
    }

    /// Rows of all.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.sizes.total()
    }

    /// The row group that holds `position`.
    #[must_use]
    pub fn block_of(&self, position: u64) -> u64 {
        self.sizes.block_of(position)
    }

    /// Rows of each row group, largest first.
    pub(crate) fn largest_first(&self) -> Vec<u64> {
        self.sizes.largest_first(usize::MAX)
    }

    /// First position of row group `block`.
    #[must_use]
    pub fn first(&self, block: u64) -> u64 {
        self.sizes.start(block)
    }
}

/// What a filter keeps of the lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    rows: Vec<Arc<KeptRows>>,
    /// Kept rows of each lane's row groups.
    sizes: Vec<Arc<Sizes>>,
}

/// The lanes of one split, and how epochs take turns among the rows that a plan keeps of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneTable {
    split: SplitInfo,
    nodes: u32,
    lanes: Vec<LaneBlocks>,
    kept: Option<Kept>,
    interleave: Interleave,
}

impl LaneTable {
    /// The lanes of `split` in `shards`.
    ///
    /// # Errors
    /// [`Error::Shard`] for a split that is not there; a file list that disagrees with the layout is corrupt.
    pub fn of(shards: &ShardSet, split: &str) -> Result<Self> {
        let layout = shards.layout();
        let (_, info) = layout.split(split)?;
        let mut lanes = Vec::with_capacity(layout.lanes as usize);
        for lane in 0..layout.lanes {
            let (mut rows, mut stored) = (Vec::new(), Vec::new());
            for (file, entry) in (0..).zip(shards.lane_files(split, lane)) {
                if entry.row_groups.iter().try_fold(0_u64, |sum, g| sum.checked_add(g.rows)) != Some(entry.rows) {
                    return Err(Error::Shard(gristmill_shard::Error::corrupt(
                        shards.storage().url(&entry.path),
                        format!("its row groups do not have the {} rows that it is said to have", entry.rows),
                    )));
                }
                for (row_group, group) in (0..).zip(&entry.row_groups).filter(|(_, g)| g.rows > 0) {
                    rows.push(group.rows);
                    stored.push(Stored { bytes: group.length, decoded_bytes: group.decoded_bytes, file, row_group });
                }
            }
            lanes.push(LaneBlocks { sizes: Arc::new(Sizes::of(&rows)), stored: Some(stored) });
        }
        Self::new(info.clone(), layout.nodes, lanes).map_err(|what| {
            Error::Shard(gristmill_shard::Error::corrupt(
                shards.storage().url(""),
                format!("split \"{split}\": {what}"),
            ))
        })
    }

    /// A table of `rows` rows over `lanes` lanes of `nodes` nodes, lane v of `⌈(rows − v) / lanes⌉`, cut into row groups
    /// of `block_rows`, without data behind it: for simulations and tests of plans. Its memory does not grow with the
    /// rows.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is no lane or no node, or fewer lanes than nodes.
    pub fn simulated(rows: u64, lanes: u32, nodes: u32, first_node: u32, block_rows: u64) -> Result<Self> {
        let even = |lane: u32| rows.saturating_sub(u64::from(lane)).div_ceil(u64::from(lanes));
        let lengths: Vec<u64> = (0..lanes).map(even).collect();
        Self::simulated_lanes(&lengths, nodes, first_node, block_rows)
    }

    /// [`LaneTable::simulated`] with lanes of these lengths, in rows.
    ///
    /// # Errors
    /// As [`LaneTable::simulated`]; also when there are more than 2^64 − 1 rows.
    pub fn simulated_lanes(lengths: &[u64], nodes: u32, first_node: u32, block_rows: u64) -> Result<Self> {
        let rows = lengths.iter().fold(0_u64, |sum, length| sum.saturating_add(*length));
        let split = SplitInfo { name: "simulated".into(), share: "1/1".into(), rows, first_node, files_per_lane: 1 };
        let lanes =
            lengths.iter().map(|rows| LaneBlocks { sizes: Arc::new(Sizes::cut(*rows, block_rows)), stored: None });
        Self::new(split, nodes, lanes.collect())
            .map_err(|what| Error::usage(what, "give at least one node and a lane for each"))
    }

    fn new(split: SplitInfo, nodes: u32, lanes: Vec<LaneBlocks>) -> Result<Self, String> {
        let count = lanes.len() as u32;
        if nodes == 0 || count < nodes {
            return Err(format!("{count} lanes on {nodes} nodes"));
        }
        let lengths: Vec<u64> = lanes.iter().map(LaneBlocks::rows).collect();
        let interleave = Interleave::new(&lengths).ok_or_else(|| "its lanes have more rows than can be".to_owned())?;
        if interleave.rows() != split.rows {
            return Err(format!("its lanes have {} rows, the layout says {}", interleave.rows(), split.rows));
        }
        Ok(Self { split, nodes, lanes, kept: None, interleave })
    }

    /// The same lanes with these rows of them only, by lane.
    pub(crate) fn filtered(&self, rows: Vec<KeptRows>) -> Result<Self> {
        let lengths: Vec<u64> = rows.iter().map(KeptRows::count).collect();
        let interleave = Interleave::new(&lengths).ok_or_else(|| Error::internal("more rows are kept than can be"))?;
        let sizes = self.lanes.iter().zip(&rows).map(|(blocks, kept)| {
            let ends: Vec<u64> = (0..blocks.count()).map(|b| kept.rank(blocks.first(b + 1))).collect();
            let starts = std::iter::once(0).chain(ends.iter().copied());
            Arc::new(Sizes::of(&ends.iter().zip(starts).map(|(end, start)| end - start).collect::<Vec<_>>()))
        });
        let kept = Kept { sizes: sizes.collect(), rows: rows.into_iter().map(Arc::new).collect() };
        Ok(Self { kept: Some(kept), interleave, ..self.clone() })
    }

    /// Name of the split.
    #[must_use]
    pub fn split(&self) -> &str {
        &self.split.name
    }

    /// Rows that take part, n.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.interleave.rows()
    }

    /// Rows of the split, those that a filter leaves out included.
    #[must_use]
    pub fn split_rows(&self) -> u64 {
        self.split.rows
    }

    /// Lanes, L.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        self.lanes.len() as u32
    }

    /// Nodes that the lanes were dealt to, N.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Node of lane 0.
    #[must_use]
    pub fn first_node(&self) -> u32 {
        self.split.first_node
    }

    /// Node of lane `lane`.
    #[must_use]
    pub fn node_of(&self, lane: u32) -> u32 {
        self.split.node_of(lane, self.nodes)
    }

    /// Row groups of lane `lane` in order; `None` for a lane that is not there.
    #[must_use]
    pub fn blocks(&self, lane: u32) -> Option<&LaneBlocks> {
        self.lanes.get(lane as usize)
    }

    /// Rows of `lane` in storage.
    #[must_use]
    pub fn stored_rows(&self, lane: u32) -> u64 {
        self.blocks(lane).map_or(0, LaneBlocks::rows)
    }

    /// Rows of `lane` that take part.
    #[must_use]
    pub fn lane_rows(&self, lane: u32) -> u64 {
        self.sizes(lane).map_or(0, |sizes| sizes.total())
    }

    /// Rows of each row group of `lane` that take part.
    pub(crate) fn sizes(&self, lane: u32) -> Option<&Arc<Sizes>> {
        match &self.kept {
            Some(kept) => kept.sizes.get(lane as usize),
            None => self.lanes.get(lane as usize).map(|blocks| &blocks.sizes),
        }
    }

    /// The rows of `lane` that take part; `None` when all do.
    pub(crate) fn kept(&self, lane: u32) -> Option<&Arc<KeptRows>> {
        self.kept.as_ref().and_then(|kept| kept.rows.get(lane as usize))
    }

    /// Whether the row at `position` of `lane` takes part.
    #[must_use]
    pub fn contains(&self, lane: u32, position: u64) -> bool {
        match self.kept(lane) {
            Some(kept) => kept.contains(position),
            None => position < self.stored_rows(lane),
        }
    }

    /// How the rows that take part are dealt to the indices of an epoch.
    #[must_use]
    pub fn interleave(&self) -> &Interleave {
        &self.interleave
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filtered_table_has_the_kept_rows_of_each_block() {
        let table = LaneTable::simulated_lanes(&[10, 3], 1, 0, 4).unwrap();
        let kept = [10, 3].map(|rows| KeptRows::new(rows, |p| p % 3 == 0 || p == 1));
        let filtered = table.filtered(kept.to_vec()).unwrap();
        assert_eq!((filtered.rows(), filtered.split_rows()), (7, 13));
        let sizes: Vec<u64> = (0..3).map(|b| filtered.sizes(0).unwrap().size(b)).collect();
        assert_eq!((sizes, filtered.lane_rows(1), filtered.stored_rows(1)), (vec![3, 1, 1], 2, 3));
        assert!(filtered.contains(0, 9) && !filtered.contains(0, 8) && !filtered.contains(1, 3));
        assert!(table.contains(1, 2) && !table.contains(1, 3) && !table.contains(2, 0));
        assert_eq!(filtered.blocks(0).unwrap().get(2).map(|b| (b.first, b.rows)), Some((8, 2)));
    }

    #[test]
    fn tables_that_can_not_be_are_refused() {
        assert!(LaneTable::simulated(10, 0, 1, 0, 1).is_err());
        assert!(LaneTable::simulated(10, 2, 3, 0, 1).is_err());
        assert!(LaneTable::simulated_lanes(&[u64::MAX, 1], 1, 0, u64::MAX).is_err());
        assert!(LaneTable::simulated(10, 2, 0, 0, 1).is_err());
        assert_eq!(LaneTable::simulated(0, 4, 2, 0, 1).unwrap().blocks(3).unwrap().count(), 0);
        assert_eq!(LaneTable::simulated(10, 8, 3, 0, 1).unwrap().node_of(7), 1);
    }
}
