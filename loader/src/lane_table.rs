//! The lanes of a split and the row groups (blocks) that each of them is made of: all that the plan knows of the data.

use std::ops::Range;

use gristmill_shard::{ShardSet, manifest::SplitInfo};

use crate::{
    error::{Error, Result},
    interleave::Interleave,
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

/// The lanes of one split, and how epochs take turns among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneTable {
    split: SplitInfo,
    nodes: u32,
    lanes: Vec<Vec<Block>>,
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
            let mut blocks = Vec::new();
            let mut first = 0_u64;
            for (file, entry) in shards.lane_files(split, lane).iter().enumerate() {
                if entry.row_groups.iter().try_fold(0_u64, |sum, g| sum.checked_add(g.rows)) != Some(entry.rows) {
                    return Err(Error::Shard(gristmill_shard::Error::corrupt(
                        shards.storage().url(&entry.path),
                        format!("its row groups do not have the {} rows that it is said to have", entry.rows),
                    )));
                }
                for (row_group, group) in entry.row_groups.iter().enumerate().filter(|(_, g)| g.rows > 0) {
                    blocks.push(Block {
                        rows: group.rows,
                        first,
                        stored_bytes: group.length,
                        decoded_bytes: group.decoded_bytes,
                        file: file as u32,
                        row_group: row_group as u32,
                    });
                    first = first.saturating_add(group.rows);
                }
            }
            lanes.push(blocks);
        }
        Self::new(info.clone(), layout.nodes, lanes).map_err(|what| {
            Error::Shard(gristmill_shard::Error::corrupt(
                shards.storage().url(""),
                format!("split \"{split}\": {what}"),
            ))
        })
    }

    /// A table of `rows` rows over `lanes` lanes of `nodes` nodes, lane v of `⌈(rows − v) / lanes⌉`, cut into row groups
    /// of `block_rows`, without data behind it: for simulations and tests of plans.
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
        let block_rows = block_rows.max(1);
        let blocks = |length: &u64| {
            let length = *length;
            (0..length.div_ceil(block_rows))
                .map(|i| {
                    let rows = block_rows.min(length - i * block_rows);
                    let bytes = rows.saturating_mul(64);
                    Block {
                        rows,
                        first: i * block_rows,
                        stored_bytes: bytes,
                        decoded_bytes: bytes,
                        file: 0,
                        row_group: i as u32,
                    }
                })
                .collect()
        };
        let table = lengths.iter().map(blocks).collect();
        Self::new(split, nodes, table).map_err(|what| Error::usage(what, "give at least one node and a lane for each"))
    }

    fn new(split: SplitInfo, nodes: u32, lanes: Vec<Vec<Block>>) -> Result<Self, String> {
        let count = lanes.len() as u32;
        if nodes == 0 || count < nodes {
            return Err(format!("{count} lanes on {nodes} nodes"));
        }
        let lengths: Vec<u64> = (lanes.iter())
            .map(|blocks| blocks.iter().fold(0_u64, |sum, block| sum.saturating_add(block.rows)))
            .collect();
        let interleave = Interleave::new(&lengths).ok_or_else(|| "its lanes have more rows than can be".to_owned())?;
        if interleave.rows() != split.rows {
            return Err(format!("its lanes have {} rows, the layout says {}", interleave.rows(), split.rows));
        }
        Ok(Self { split, nodes, lanes, interleave })
    }

    /// Name of the split.
    #[must_use]
    pub fn split(&self) -> &str {
        &self.split.name
    }

    /// Rows of the split, n.
    #[must_use]
    pub fn rows(&self) -> u64 {
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

    /// Row groups of lane `lane` in order; none for a lane that is not there.
    #[must_use]
    pub fn blocks(&self, lane: u32) -> &[Block] {
        self.lanes.get(lane as usize).map_or(&[], Vec::as_slice)
    }

    /// How the indices of an epoch are dealt to the lanes.
    #[must_use]
    pub fn interleave(&self) -> &Interleave {
        &self.interleave
    }

    /// Samples of lane `lane` among the epoch indices `range`, as ordinals of the lane's order.
    #[must_use]
    pub fn ordinals(&self, lane: u32, range: &Range<u64>) -> Range<u64> {
        self.interleave.before(lane, range.start)..self.interleave.before(lane, range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_of_a_range_are_those_of_its_indices() {
        let table = LaneTable::simulated(103, 4, 2, 0, 7).unwrap();
        for start in 0..=103 {
            for end in start..=103 {
                for lane in 0..4 {
                    let want: Vec<u64> = (start..end).filter(|t| t % 4 == lane).map(|t| t / 4).collect();
                    let got: Vec<u64> = table.ordinals(lane as u32, &(start..end)).collect();
                    assert_eq!(got, want);
                }
            }
        }
    }

    #[test]
    fn tables_that_can_not_be_are_refused() {
        assert!(LaneTable::simulated(10, 0, 1, 0, 1).is_err());
        assert!(LaneTable::simulated(10, 2, 3, 0, 1).is_err());
        assert!(LaneTable::simulated_lanes(&[u64::MAX, 1], 1, 0, u64::MAX).is_err());
        assert!(LaneTable::simulated(10, 2, 0, 0, 1).is_err());
        assert_eq!(LaneTable::simulated(0, 4, 2, 0, 1).unwrap().blocks(3).len(), 0);
        assert_eq!(LaneTable::simulated(10, 8, 3, 0, 1).unwrap().node_of(7), 1);
    }
}
