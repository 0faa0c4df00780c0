//! The order of one lane in one epoch: row groups (blocks) are permuted, then rows inside windows of blocks.
//!
//! Every kind of shuffling is this with other windows: `none` has windows of one block and permutes nothing, `global`
//! has one window over the whole lane. So whoever follows the order needs the blocks of one window at a time. An order
//! by difficulty, or of draws, is a list of positions with one window over the whole lane.

use std::{ops::Range, sync::Arc};

use gristmill_shard::{
    keys::{Domain, Key},
    permutation::{Permutation, TABLE_MAX},
};

use crate::{fingerprint::Fingerprint, lane_table::LaneTable, options::Shuffle, sizes::Sizes};

/// Level of the key that permutes blocks.
const LEVEL_BLOCKS: u64 = 0;
/// Level of the keys that permute the rows of a window.
const LEVEL_ROWS: u64 = 1;
/// Level of the key that draws from the pool of a curriculum.
pub(crate) const LEVEL_POOL: u64 = 2;
/// Level of the key of weighted and class-balanced draws.
pub(crate) const LEVEL_DRAW: u64 = 3;
/// Level of the keys of windows of batches.
pub(crate) const LEVEL_BATCHES: u64 = 4;

/// Keys of one plan: hashed from (seed, fingerprint, epoch, stream, level, index), where the stream is a lane, or a group
/// of lanes past all lanes, of a source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanKeys {
    pub(crate) seed: u64,
    pub(crate) fingerprint: [u64; 4],
    /// Ordinal of the source where the plan has several.
    pub(crate) source: Option<u32>,
}

impl PlanKeys {
    pub(crate) fn new(seed: u64, fingerprint: &Fingerprint, source: Option<u32>) -> Self {
        Self { seed, fingerprint: fingerprint.words(), source }
    }

    pub(crate) fn key(&self, domain: Domain, epoch: u64, stream: u64, level: u64, index: u64) -> Key {
        let [a, b, c, d] = self.fingerprint;
        let fields = [a, b, c, d, epoch, stream, level, index, u64::from(self.source.unwrap_or(0))];
        // One source has no field of its own.
        let fields = if self.source.is_none() { fields.get(..8).unwrap_or(&fields) } else { &fields };
        Key::derive(domain, self.seed, fields)
    }
}

/// A lane of a table.
#[derive(Debug, Clone)]
struct Lane {
    table: Arc<LaneTable>,
    lane: u32,
}

impl Lane {
    /// Position of the lane's row number `ordinal` among those that take part.
    fn position(&self, ordinal: u64) -> u64 {
        self.table.kept(self.lane).map_or(ordinal, |kept| kept.select(ordinal))
    }

    fn block_of(&self, position: u64) -> u64 {
        self.table.blocks(self.lane).map_or(0, |blocks| blocks.block_of(position))
    }

    fn first(&self, block: u64) -> u64 {
        self.table.blocks(self.lane).map_or(0, |blocks| blocks.first(block))
    }

    fn blocks(&self) -> u64 {
        self.table.blocks(self.lane).map_or(0, |blocks| blocks.count())
    }

    /// Rows of `block` that take part.
    fn rows_of(&self, block: u64) -> u64 {
        self.table.sizes(self.lane).map_or(0, |sizes| sizes.size(block))
    }

    /// The blocks of which rows take part; `None` when it is all of them.
    fn used(&self) -> Option<Vec<u64>> {
        self.table.kept(self.lane).map(|_| (0..self.blocks()).filter(|b| self.rows_of(*b) > 0).collect())
    }
}

/// The order of a lane. Cheap to clone; without permutations of rows, and in memory that does not grow with the rows,
/// unless it is a list.
#[derive(Debug, Clone)]
pub struct LaneOrder {
    lane: Lane,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Windows of blocks.
    Blocks {
        keys: PlanKeys,
        epoch: u64,
        /// Rows of the blocks, in the order in which they are used.
        used: Arc<Sizes>,
        /// Which block is used at each place; `None` when it is that of the same number.
        permutation: Option<Arc<Permutation>>,
        window_blocks: u64,
        permute_rows: bool,
    },
    /// One window over the lane.
    Lane { keys: PlanKeys, epoch: u64, rows: u64 },
    /// One window over these positions.
    Listed(Arc<[u32]>),
}

/// The order of the samples of one window.
#[derive(Debug, Clone)]
pub struct WindowOrder {
    /// Ordinals of the window's samples in the lane's order.
    range: Range<u64>,
    lane: Lane,
    rows: Rows,
}

#[derive(Debug, Clone)]
enum Rows {
    Blocks {
        /// As ordinals in the lane.
        blocks: Vec<u64>,
        /// Where each block begins in the window's rows, and the end.
        starts: Vec<u64>,
        /// Rows that take part before each block in the lane.
        before: Vec<u64>,
        permutation: Option<Permutation>,
    },
    Lane {
        permutation: Permutation,
        used: Option<Vec<u64>>,
    },
    Listed {
        positions: Arc<[u32]>,
        used: Option<Vec<u64>>,
    },
}

impl LaneOrder {
    /// The rows of `lane` that take part, shuffled.
    pub(crate) fn shuffled(table: &Arc<LaneTable>, shuffle: Shuffle, keys: PlanKeys, epoch: u64, lane: u32) -> Self {
        let empty = Arc::new(Sizes::of(&[]));
        let sizes = table.sizes(lane).unwrap_or(&empty);
        let (window_blocks, permute) = match shuffle {
            Shuffle::None => (1, false),
            Shuffle::ShardBlock { window_blocks } => (u64::from(window_blocks.max(1)), true),
            Shuffle::Global => {
                let kind = Kind::Lane { keys, epoch, rows: sizes.total() };
                return Self { lane: Lane { table: Arc::clone(table), lane }, kind };
            }
        };
        let permutation = permute.then(|| {
            let key = keys.key(Domain::Order, epoch, u64::from(lane), LEVEL_BLOCKS, 0);
            Arc::new(Permutation::new(key, sizes.count()))
        });
        let used = match &permutation {
            // A table finds a place by looking through all of it, so that all places at once are no dearer than a few.
            Some(p) => Arc::new(sizes.permuted(sizes.count() <= TABLE_MAX, |at| p.apply(at), |block| p.invert(block))),
            None => Arc::clone(sizes),
        };
        let kind = Kind::Blocks { keys, epoch, used, permutation, window_blocks, permute_rows: permute };
        Self { lane: Lane { table: Arc::clone(table), lane }, kind }
    }

    /// These positions of `lane`, in this order.
    pub(crate) fn listed(table: &Arc<LaneTable>, lane: u32, positions: Arc<[u32]>) -> Self {
        Self { lane: Lane { table: Arc::clone(table), lane }, kind: Kind::Listed(positions) }
    }

    /// Samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        match &self.kind {
            Kind::Blocks { used, .. } => used.total(),
            Kind::Lane { rows, .. } => *rows,
            Kind::Listed(positions) => positions.len() as u64,
        }
    }

    /// Windows of the lane.
    #[must_use]
    pub fn windows(&self) -> u64 {
        match &self.kind {
            Kind::Blocks { used, window_blocks, .. } => used.count().div_ceil(*window_blocks),
            Kind::Lane { .. } | Kind::Listed(_) => u64::from(self.samples() > 0),
        }
    }

    /// The window of sample `ordinal`; past the end it is the number of windows.
    #[must_use]
    pub fn window_of(&self, ordinal: u64) -> u64 {
        match &self.kind {
            _ if ordinal >= self.samples() => self.windows(),
            Kind::Blocks { used, window_blocks, .. } => used.block_of(ordinal) / window_blocks,
            Kind::Lane { .. } | Kind::Listed(_) => 0,
        }
    }

    /// Places of the blocks of `window` in the order of use.
    fn places(&self, window: u64) -> Range<u64> {
        match &self.kind {
            Kind::Blocks { used, window_blocks, .. } => {
                let start = window.saturating_mul(*window_blocks).min(used.count());
                start..start.saturating_add(*window_blocks).min(used.count())
            }
            Kind::Lane { .. } | Kind::Listed(_) if window > 0 => 0..0,
            Kind::Lane { .. } | Kind::Listed(_) => 0..self.lane.blocks(),
        }
    }

    /// Ordinals of the samples of `window`.
    #[must_use]
    pub fn window_range(&self, window: u64) -> Range<u64> {
        match &self.kind {
            Kind::Blocks { used, .. } => {
                let places = self.places(window);
                used.start(places.start)..used.start(places.end)
            }
            Kind::Lane { .. } | Kind::Listed(_) if window > 0 => self.samples()..self.samples(),
            Kind::Lane { .. } | Kind::Listed(_) => 0..self.samples(),
        }
    }

    /// Blocks of `window`, as ordinals in the lane; those of which no row takes part are not among them.
    pub fn window_blocks(&self, window: u64) -> impl Iterator<Item = u64> + '_ {
        self.places(window).map(|place| self.block_at(place)).filter(|block| self.lane.rows_of(*block) > 0)
    }

    /// The block that is used at `place`.
    fn block_at(&self, place: u64) -> u64 {
        match &self.kind {
            Kind::Blocks { permutation: Some(permutation), .. } => permutation.apply(place),
            _ => place,
        }
    }

    /// The order of the samples of `window`. Costs time and memory in the order of its rows when they are permuted
    /// and at most [`TABLE_MAX`].
    #[must_use]
    pub fn window(&self, window: u64) -> WindowOrder {
        let range = self.window_range(window);
        let lane = u64::from(self.lane.lane);
        let rows = match &self.kind {
            Kind::Blocks { keys, epoch, permute_rows, .. } => {
                let blocks: Vec<u64> = self.window_blocks(window).collect();
                let sizes = self.lane.table.sizes(self.lane.lane);
                let mut starts = vec![0];
                let mut end = 0;
                for block in &blocks {
                    end += self.lane.rows_of(*block);
                    starts.push(end);
                }
                let before = blocks.iter().map(|block| sizes.map_or(0, |s| s.start(*block))).collect();
                let key = || keys.key(Domain::Order, *epoch, lane, LEVEL_ROWS, window);
                let permutation = permute_rows.then(|| Permutation::new(key(), range.end - range.start));
                Rows::Blocks { blocks, starts, before, permutation }
            }
            Kind::Lane { keys, epoch, rows } => {
                let permutation = Permutation::new(keys.key(Domain::Order, *epoch, lane, LEVEL_ROWS, window), *rows);
                Rows::Lane { permutation, used: self.lane.used() }
            }
            Kind::Listed(positions) => Rows::Listed { positions: Arc::clone(positions), used: self.lane.used() },
        };
        WindowOrder { range, lane: self.lane.clone(), rows }
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

    pub(crate) fn contains(&self, ordinal: u64) -> bool {
        self.range.contains(&ordinal)
    }

    /// Its blocks, as ordinals in the lane.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        let (some, all) = match &self.rows {
            Rows::Blocks { blocks, .. } => (blocks.as_slice(), 0),
            Rows::Lane { used, .. } | Rows::Listed { used, .. } => match used {
                Some(used) => (used.as_slice(), 0),
                None => (&[][..], self.lane.blocks()),
            },
        };
        some.iter().copied().chain(0..all)
    }

    /// The position in the lane of sample `ordinal` (of [`WindowOrder::range`]).
    #[must_use]
    pub fn position(&self, ordinal: u64) -> u64 {
        let index = ordinal.saturating_sub(self.range.start);
        match &self.rows {
            Rows::Blocks { before, .. } => {
                let (block, row) = self.row_in_blocks(index);
                self.lane.position(before.get(block).map_or(row, |before| before + row))
            }
            Rows::Lane { permutation, .. } => self.lane.position(permutation.apply(index)),
            Rows::Listed { positions, .. } => {
                usize::try_from(index).ok().and_then(|at| positions.get(at)).map_or(index, |p| u64::from(*p))
            }
        }
    }

    /// Where sample `ordinal` lies: the index of its block in [`WindowOrder::blocks`], and the row in that block.
    #[must_use]
    pub fn place(&self, ordinal: u64) -> (usize, u64) {
        if let (Rows::Blocks { .. }, None) = (&self.rows, self.lane.table.kept(self.lane.lane)) {
            return self.row_in_blocks(ordinal.saturating_sub(self.range.start));
        }
        let position = self.position(ordinal);
        let block = self.lane.block_of(position);
        let index = match &self.rows {
            Rows::Blocks { blocks, .. } => blocks.iter().position(|b| *b == block),
            Rows::Lane { used: Some(used), .. } | Rows::Listed { used: Some(used), .. } => {
                used.binary_search(&block).ok()
            }
            Rows::Lane { .. } | Rows::Listed { .. } => usize::try_from(block).ok(),
        };
        (index.unwrap_or(usize::MAX), position.saturating_sub(self.lane.first(block)))
    }

    /// Of windows over blocks: which block sample `index` of the window is in, and which row it is among those of it that
    /// take part.
    fn row_in_blocks(&self, index: u64) -> (usize, u64) {
        let Rows::Blocks { blocks, starts, permutation, .. } = &self.rows else { return (0, index) };
        let row = permutation.as_ref().map_or(index, |p| p.apply(index));
        // Most windows have a handful of blocks: counting beats a binary search there.
        let block = if starts.len() <= 9 {
            starts.iter().skip(1).take_while(|s| **s <= row).count()
        } else {
            starts.partition_point(|s| *s <= row).saturating_sub(1)
        };
        let block = block.min(blocks.len().saturating_sub(1));
        (block, row - starts.get(block).copied().unwrap_or(0).min(row))
    }
}
