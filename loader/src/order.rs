//! The order of one lane in one epoch: row groups (blocks) are permuted, then rows inside windows of blocks.
//!
//! Every kind of shuffling is this with other windows: `none` has windows of one block and permutes nothing, `global`
//! has one window over the whole lane. So whoever follows the order needs the blocks of one window at a time.

use std::ops::Range;

use gristmill_shard::{
    keys::{Domain, Key},
    permutation::{Permutation, TABLE_MAX},
};

use crate::{fingerprint::Fingerprint, lane_table::Block, plan::Shuffle};

/// Level of the key that permutes blocks.
const LEVEL_BLOCKS: u64 = 0;
/// Level of the keys that permute the rows of a window.
const LEVEL_ROWS: u64 = 1;

/// Keys of one lane in one epoch.
#[derive(Debug, Clone, Copy)]
struct LaneKeys {
    seed: u64,
    fingerprint: [u64; 4],
    epoch: u64,
    lane: u32,
}

impl LaneKeys {
    fn key(&self, level: u64, index: u64) -> Key {
        let [a, b, c, d] = self.fingerprint;
        Key::derive(Domain::Order, self.seed, &[a, b, c, d, self.epoch, u64::from(self.lane), level, index])
    }
}

/// The order of a lane, without its rows' permutations: small, one entry a block.
#[derive(Debug, Clone)]
pub struct LaneOrder {
    keys: LaneKeys,
    /// Blocks in the order in which they are used, as ordinals in the lane.
    blocks: Vec<u32>,
    /// Ordinal of the first sample of each used block, and the end.
    starts: Vec<u64>,
    /// First position of each used block.
    firsts: Vec<u64>,
    window_blocks: usize,
    permute_rows: bool,
}

/// The order of the samples of one window.
#[derive(Debug, Clone)]
pub struct WindowOrder {
    /// Ordinals of the window's samples in the lane's order.
    range: Range<u64>,
    /// Its blocks, as ordinals in the lane.
    blocks: Vec<u32>,
    /// Where each block begins in the window's rows, and the end.
    starts: Vec<u64>,
    firsts: Vec<u64>,
    rows: Option<Permutation>,
}

impl LaneOrder {
    pub(crate) fn new(
        blocks: &[Block],
        shuffle: Shuffle,
        seed: u64,
        fingerprint: &Fingerprint,
        epoch: u64,
        lane: u32,
    ) -> Self {
        let keys = LaneKeys { seed, fingerprint: fingerprint.words(), epoch, lane };
        let count = blocks.len() as u64;
        let (window_blocks, permute_blocks, permute_rows) = match shuffle {
            Shuffle::None => (1, false, false),
            Shuffle::ShardBlock { window_blocks } => (window_blocks.max(1) as usize, true, true),
            Shuffle::Global => (blocks.len().max(1), false, true),
        };
        let used: Vec<u32> = if permute_blocks {
            let permutation = Permutation::new(keys.key(LEVEL_BLOCKS, 0), count);
            (0..count).map(|i| permutation.apply(i) as u32).collect()
        } else {
            (0..count as u32).collect()
        };
        let mut starts = Vec::with_capacity(used.len() + 1);
        let mut firsts = Vec::with_capacity(used.len());
        let mut start = 0;
        starts.push(0);
        for block in used.iter().filter_map(|b| blocks.get(*b as usize)) {
            start += block.rows;
            starts.push(start);
            firsts.push(block.first);
        }
        Self { keys, blocks: used, starts, firsts, window_blocks, permute_rows }
    }

    /// Windows of the lane.
    #[must_use]
    pub fn windows(&self) -> usize {
        self.blocks.len().div_ceil(self.window_blocks)
    }

    /// The window of sample `ordinal`; past the end it is the number of windows.
    #[must_use]
    pub fn window_of(&self, ordinal: u64) -> usize {
        // The last start that is not above the ordinal; blocks without rows are never in the table.
        let block = self.starts.partition_point(|s| *s <= ordinal).saturating_sub(1);
        (block / self.window_blocks).min(self.windows())
    }

    fn block_range(&self, window: usize) -> Range<usize> {
        let start = (window * self.window_blocks).min(self.blocks.len());
        start..(start + self.window_blocks).min(self.blocks.len())
    }

    /// Ordinals of the samples of `window`.
    #[must_use]
    pub fn window_range(&self, window: usize) -> Range<u64> {
        let blocks = self.block_range(window);
        self.starts[blocks.start]..self.starts[blocks.end]
    }

    /// Blocks of `window`, as ordinals in the lane.
    #[must_use]
    pub fn window_blocks(&self, window: usize) -> &[u32] {
        &self.blocks[self.block_range(window)]
    }

    /// The order of the samples of `window`. Costs time and memory in the order of its rows when they are permuted
    /// and at most [`TABLE_MAX`].
    #[must_use]
    pub fn window(&self, window: usize) -> WindowOrder {
        let blocks = self.block_range(window);
        let range = self.window_range(window);
        let rows = self
            .permute_rows
            .then(|| Permutation::new(self.keys.key(LEVEL_ROWS, window as u64), range.end - range.start));
        WindowOrder {
            starts: self.starts[blocks.start..=blocks.end].iter().map(|s| s - range.start).collect(),
            firsts: self.firsts[blocks.clone()].to_vec(),
            blocks: self.blocks[blocks].to_vec(),
            range,
            rows,
        }
    }
}

/// Bytes of the permutation table of a window of `rows` rows.
#[must_use]
pub(crate) fn table_bytes(rows: u64) -> u64 {
    if rows <= TABLE_MAX { rows * 4 } else { 0 }
}

impl WindowOrder {
    /// Ordinals of its samples.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Its blocks, as ordinals in the lane, in order of their rows in the window.
    #[must_use]
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Where sample `ordinal` (of [`WindowOrder::range`]) lies: the index of its block in [`WindowOrder::blocks`], and
    /// the row in that block.
    #[must_use]
    pub fn place(&self, ordinal: u64) -> (usize, u64) {
        let index = ordinal.saturating_sub(self.range.start);
        let row = self.rows.as_ref().map_or(index, |p| p.apply(index));
        // Most windows have a handful of blocks: counting beats a binary search there.
        let block = if self.starts.len() <= 9 {
            self.starts.iter().skip(1).take_while(|s| **s <= row).count()
        } else {
            self.starts.partition_point(|s| *s <= row).saturating_sub(1)
        };
        let block = block.min(self.blocks.len().saturating_sub(1));
        (block, row - self.starts[block])
    }

    /// The position in the lane of sample `ordinal`.
    #[must_use]
    pub fn position(&self, ordinal: u64) -> u64 {
        let (block, row) = self.place(ordinal);
        self.firsts.get(block).map_or(row, |first| first + row)
    }
}
