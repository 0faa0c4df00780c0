//! What an epoch has delivered so far: a bit for each row of each pass that it touches, set from several threads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::plan::{PassRange, Plan, Slot};

/// A set of numbers that threads add to.
#[derive(Debug)]
pub(super) struct Bits(Vec<AtomicU64>);

impl Bits {
    pub(super) fn new(length: u64) -> Self {
        let words = usize::try_from(length.div_ceil(64)).unwrap_or(usize::MAX);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds `at`; whether it was new. A place past the end is never new.
    pub(super) fn insert(&self, at: u64) -> bool {
        let word = usize::try_from(at / 64).ok().and_then(|i| self.0.get(i));
        let bit = 1 << (at % 64);
        // Each bit by itself: no other memory hangs on its order.
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    pub(super) fn contains(&self, at: u64) -> bool {
        let word = usize::try_from(at / 64).ok().and_then(|i| self.0.get(i));
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (at % 64) & 1 == 1)
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}

/// The rows of a pass that were delivered, by lane and position.
#[derive(Debug)]
struct Pass {
    range: PassRange,
    lanes: Vec<Bits>,
}

/// The rows that were delivered of each pass that an epoch touches.
#[derive(Debug)]
pub(super) struct Coverage(Vec<Pass>);

impl Coverage {
    /// Of `epoch`, with nothing delivered yet.
    pub(super) fn new(plan: &Plan, epoch: u64) -> Self {
        let passes = plan.passes(epoch, &(0..plan.samples(epoch))).into_iter().map(|range| {
            let table = plan.sources().get(range.source as usize).map(|source| &source.table);
            let lanes = table.map(|t| (0..t.lanes()).map(|lane| Bits::new(t.stored_rows(lane))).collect());
            Pass { range, lanes: lanes.unwrap_or_default() }
        });
        Self(passes.collect())
    }

    /// The rows of a lane in a pass that were delivered; `None` for a pass that the epoch does not touch.
    pub(super) fn lane(&self, source: u32, pass: u64, lane: u32) -> Option<&Bits> {
        let at = self.0.binary_search_by_key(&(source, pass), |p| (p.range.source, p.range.pass)).ok()?;
        self.0.get(at)?.lanes.get(lane as usize)
    }

    /// Marks a row as delivered; whether it was new.
    pub(super) fn insert(&self, slot: &Slot, position: u64) -> bool {
        self.lane(slot.source, slot.pass, slot.lane).is_some_and(|lane| lane.insert(position))
    }

    /// Distinct rows delivered, over all passes.
    pub(super) fn distinct(&self) -> u64 {
        self.0.iter().flat_map(|pass| &pass.lanes).map(Bits::count).sum()
    }

    /// Rows that the epoch is to deliver of its passes, where each is delivered once.
    pub(super) fn expected(&self) -> u64 {
        self.0.iter().map(|pass| pass.range.range.end - pass.range.range.start).sum()
    }
}
