//! What an epoch has delivered so far: a bit for each row of each pass that it touches, set from several threads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    error::{Error, Result},
    plan::{PassRange, Plan, Slot},
    source::PlannedSource,
};

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

/// Samples of an epoch that can be replayed: 8 GiB of bits.
const SAMPLES_MAX: u64 = 1 << 36;
/// Passes over sources of an epoch that can be replayed.
const PASSES_MAX: u64 = 1 << 20;

/// The rows of a pass that were delivered, by lane and position; those that take no part are marked from the beginning, so
/// that whoever delivers one delivers it twice.
#[derive(Debug)]
struct Pass {
    range: PassRange,
    lanes: Vec<Bits>,
    marked: u64,
}

/// The rows that were delivered of each pass that an epoch touches.
#[derive(Debug)]
pub(super) struct Coverage(Vec<Pass>);

impl Coverage {
    /// Of `epoch`, with nothing delivered yet.
    ///
    /// # Errors
    /// [`Error::Usage`] for an epoch that is too long for a bit a row, or of too many passes.
    pub(super) fn new(plan: &Plan, epoch: u64) -> Result<Self> {
        let samples = plan.samples(epoch);
        let taken = plan.mixture().map(|mixture| mixture.taken(epoch)).unwrap_or_default();
        let passes: u64 = (taken.iter().zip(plan.sources()))
            .map(|(taken, source)| (taken.draws / source.samples().max(1)).saturating_add(2))
            .fold(0, u64::saturating_add);
        if samples > SAMPLES_MAX || passes > PASSES_MAX {
            return Err(Error::usage(
                format!(
                    "an epoch of {samples} samples, or of {passes} passes over its sources, is too long to be replayed"
                ),
                format!("replay one of at most {SAMPLES_MAX} samples and {PASSES_MAX} passes"),
            ));
        }
        let passes = plan.passes(epoch, &(0..samples)).into_iter().map(|range| {
            let (mut lanes, mut marked) = (Vec::new(), 0);
            if let Some(source) = plan.sources().get(range.source as usize) {
                let table = &source.table;
                for lane in 0..table.lanes() {
                    let bits = Bits::new(table.stored_rows(lane));
                    if let Some(kept) = table.kept(lane) {
                        let left_out = (0..table.stored_rows(lane)).filter(|row| !kept.contains(*row));
                        marked += left_out.map(|row| u64::from(bits.insert(row))).sum::<u64>();
                    }
                    lanes.push(bits);
                }
            }
            Pass { range, lanes, marked }
        });
        Ok(Self(passes.collect()))
    }

    /// The first pass over a source.
    pub(super) fn first_pass(&self, source: u32) -> Option<u64> {
        self.0.iter().find(|pass| pass.range.source == source).map(|pass| pass.range.pass)
    }

    /// Rows that take part and that no pass of the epoch has delivered.
    pub(super) fn undrawn(&self, plan: &Plan) -> u64 {
        let of_source = |(number, source): (u32, &PlannedSource)| {
            let passes: Vec<&Pass> = self.0.iter().filter(|pass| pass.range.source == number).collect();
            let drawn = |lane: u32, row: u64| {
                passes.iter().any(|pass| pass.lanes.get(lane as usize).is_some_and(|lane| lane.contains(row)))
            };
            let table = &source.table;
            let of_lane = |lane| {
                (0..table.stored_rows(lane)).filter(|row| table.contains(lane, *row) && !drawn(lane, *row)).count()
                    as u64
            };
            (0..table.lanes()).map(of_lane).sum::<u64>()
        };
        (0..).zip(plan.sources()).map(of_source).sum()
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
        self.0.iter().map(|pass| pass.lanes.iter().map(Bits::count).sum::<u64>() - pass.marked).sum()
    }

    /// Rows that the epoch is to deliver of its passes, where each is delivered once.
    pub(super) fn expected(&self) -> u64 {
        self.0.iter().map(|pass| pass.range.range.end - pass.range.range.start).sum()
    }
}
