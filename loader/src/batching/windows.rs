//! The windows of an epoch: stretches of its order whose rows are batched together, and how many steps or bins each
//! gives. It takes one pass over the lengths of an epoch to make, and a few bytes a window to keep.

use std::ops::Range;

use rayon::prelude::*;

use super::{
    budget::{Budget, WindowBatches},
    options::{Batching, Scope},
    packing::{Method, PackedWindow, Packing, Segment},
};
use crate::{
    bisect::first_where,
    columns::{Column, Number},
    error::{Error, Result},
    interleave::Interleave,
    lane_table::LaneTable,
    order::{LEVEL_BATCHES, PlanKeys},
    plan::{EpochOrder, Plan, Slot},
};
use gristmill_shard::keys::Domain;

/// Streams of keys of groups lie past those of lanes.
const GROUP_STREAM: u64 = 1 << 32;

/// The rule of windows of a plan.
#[derive(Debug)]
pub(crate) struct WindowRule {
    kind: Kind,
    longest_first: bool,
    /// Rows of a window over all groups.
    rows: u64,
    groups: Groups,
    keys: PlanKeys,
}

#[derive(Debug)]
enum Kind {
    /// `micro_batches` are those of one group.
    Budget(Budget),
    Packed(Packing),
}

/// Whose rows are batched together.
#[derive(Debug)]
enum Groups {
    /// Those of the whole plan.
    All,
    /// Those of each node, by its lanes.
    Nodes(Vec<(Vec<u32>, Interleave)>),
}

/// The windows of one epoch.
#[derive(Debug)]
pub(crate) struct EpochWindows {
    /// Rows of each group.
    group_rows: Vec<u64>,
    windows: u64,
    /// Steps, or bins, before each window, and in all; tokens for concat-and-split.
    before: Vec<u64>,
    /// Steps, or bins.
    pub(crate) units: u64,
    /// The step that has the longest row, and is done first.
    first: u64,
}

/// A window with its rows.
#[derive(Debug)]
pub(crate) struct PlannedWindow {
    groups: Vec<PlannedGroup>,
}

#[derive(Debug)]
struct PlannedGroup {
    slots: Vec<Slot>,
    cut: CutRows,
}

#[derive(Debug)]
enum CutRows {
    Batches(WindowBatches),
    Bins(PackedWindow),
    /// By bin of the stream.
    Stretch(Vec<(u64, Segment)>),
}

/// A part of a row in a bin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BinSegment {
    /// The row.
    pub slot: Slot,
    /// Its first token here.
    pub start: u32,
    /// Tokens.
    pub length: u32,
}

/// Lengths of rows by lane and position, 4 bytes a row; 0 of rows that take no part.
#[derive(Debug)]
pub(crate) struct Lengths(Vec<Box<[u32]>>);

impl Lengths {
    pub(crate) fn get(&self, lane: u32, position: u64) -> u32 {
        let lane = self.0.get(lane as usize).map_or(&[][..], |lane| lane);
        usize::try_from(position).ok().and_then(|at| lane.get(at)).copied().unwrap_or(0)
    }
}

/// The lengths of the rows that take part.
///
/// # Errors
/// [`Error::Usage`] for a column of floats, a negative length, one above 2^32 − 2, and one that the rule has no room for.
pub(crate) fn lengths(table: &LaneTable, column: &Column, name: &str, batching: &Batching) -> Result<Lengths> {
    let (mut longest, mut too_long) = (0, 0_u64);
    let mut lanes = Vec::with_capacity(table.lanes() as usize);
    let fits = |length: u32| match batching {
        Batching::Budget { budget, .. } => budget.padded(length).is_some_and(|padded| padded <= budget.max_tokens),
        Batching::Packed { .. } | Batching::Fixed => true,
    };
    for lane in 0..table.lanes() {
        let rows = usize::try_from(table.stored_rows(lane)).unwrap_or(usize::MAX);
        let mut of_lane = vec![0_u32; rows].into_boxed_slice();
        for (position, kept) in (0..).zip(&mut of_lane).filter(|(position, _)| table.contains(lane, *position)) {
            let refuse = |value: &dyn std::fmt::Display| {
                Error::usage(
                    format!("column \"{name}\": {value} at position {position} of lane {lane} is no length"),
                    "give a column of integers from 0 to 4,294,967,294, such as the number of tokens",
                )
            };
            match column.value(lane, position) {
                Some(Number::Integer(value)) => match u32::try_from(value) {
                    Ok(length) if length < u32::MAX => {
                        too_long += u64::from(!fits(length));
                        longest = longest.max(length);
                        *kept = length;
                    }
                    _ => return Err(refuse(&value)),
                },
                Some(Number::Float(value)) => return Err(refuse(&value)),
                None => return Err(Error::internal(format!("lane {lane} has no \"{name}\" at {position}"))),
            }
        }
        lanes.push(of_lane);
    }
    if too_long == 0 {
        return Ok(Lengths(lanes));
    }
    Err(Error::usage(
        format!("{too_long} rows are longer than a micro-batch may be; the longest has {longest}"),
        format!(
            "raise max_tokens (and the last boundary) to hold {longest}, or leave long rows out with a filter on \"{name}\""
        ),
    ))
}

impl WindowRule {
    /// The rule of `batching` on plans whose first source has the lanes of `table`; `None` for a fixed number of samples.
    ///
    /// # Errors
    /// [`Error::Usage`] for windows of nodes where there is a mix, or where micro-batches can't be shared.
    pub(crate) fn new(
        batching: &Batching,
        table: &LaneTable,
        pass: &Interleave,
        is_mixed: bool,
        keys: PlanKeys,
    ) -> Result<Option<Self>> {
        let (kind, groups, longest_first) = match batching {
            Batching::Fixed => return Ok(None),
            Batching::Packed { packing, .. } => (Kind::Packed(packing.clone()), Groups::All, false),
            Batching::Budget { budget, scope, longest_first, .. } => {
                let groups = match scope {
                    Scope::All => Groups::All,
                    Scope::Node if is_mixed => {
                        return Err(Error::usage(
                            "windows of nodes (scope = \"node\") are for a plan without a mix",
                            "use scope = \"all\" where sources are mixed",
                        ));
                    }
                    Scope::Node => Groups::Nodes(nodes(table, pass)?),
                };
                let count = match &groups {
                    Groups::All => 1,
                    Groups::Nodes(nodes) => nodes.len() as u32,
                };
                if !budget.micro_batches.is_multiple_of(count) {
                    return Err(Error::usage(
                        format!("{} micro-batches of a step can't be shared by {count} nodes", budget.micro_batches),
                        format!("give a multiple of {count}, or use scope = \"all\""),
                    ));
                }
                let budget = Budget { micro_batches: budget.micro_batches / count, ..budget.clone() };
                (Kind::Budget(budget), groups, *longest_first)
            }
        };
        Ok(Some(Self { kind, longest_first, rows: batching.window_rows(), groups, keys }))
    }

    /// Groups of rows that are batched by themselves.
    pub(crate) fn groups(&self) -> u32 {
        match &self.groups {
            Groups::All => 1,
            Groups::Nodes(nodes) => nodes.len() as u32,
        }
    }

    /// Micro-batches of a step that are of one group; 0 for bins.
    pub(crate) fn per_group(&self) -> u32 {
        match &self.kind {
            Kind::Budget(budget) => budget.micro_batches,
            Kind::Packed(_) => 0,
        }
    }

    pub(crate) fn budget(&self) -> Option<&Budget> {
        match &self.kind {
            Kind::Budget(budget) => Some(budget),
            Kind::Packed(_) => None,
        }
    }

    pub(crate) fn packing(&self) -> Option<&Packing> {
        match &self.kind {
            Kind::Budget(_) => None,
            Kind::Packed(packing) => Some(packing),
        }
    }

    /// Row `index` of a group of `epoch`, before its position is known.
    fn slot(&self, plan: &Plan, epoch: u64, group: usize, index: u64) -> Option<Slot> {
        match &self.groups {
            Groups::All => plan.slot(epoch, index),
            Groups::Nodes(nodes) => {
                let (lanes, interleave) = nodes.get(group)?;
                let (lane, ordinal) = interleave.at(index)?;
                let lane = *lanes.get(lane as usize)?;
                Some(Slot { source: 0, pass: epoch, lane, ordinal, length: 0 })
            }
        }
    }

    /// The rows of a window of a group, with their lengths.
    fn slots(&self, order: &mut EpochOrder<'_>, group: usize, range: Range<u64>) -> Result<Vec<Slot>> {
        let (plan, epoch) = (order.plan(), order.epoch());
        let missing = |index| Error::internal(format!("epoch {epoch} has no row {index} in group {group}"));
        range
            .map(|index| {
                let slot = self.slot(plan, epoch, group, index).ok_or_else(|| missing(index))?;
                let position = order.position(&slot)?;
                let length = plan.length_of(slot.source, slot.lane, position);
                Ok(Slot { length, ..slot })
            })
            .collect()
    }

    /// The windows of `epoch`. Takes time in the order of its rows.
    pub(crate) fn windows(&self, plan: &Plan, epoch: u64) -> Result<EpochWindows> {
        let group_rows: Vec<u64> = match &self.groups {
            Groups::All => vec![plan.samples(epoch)],
            Groups::Nodes(nodes) => nodes.iter().map(|(_, interleave)| interleave.rows()).collect(),
        };
        let most = group_rows.iter().copied().max().unwrap_or(0);
        let windows = most.div_ceil((self.rows / group_rows.len().max(1) as u64).max(1));
        let mut found = EpochWindows { group_rows, windows, before: vec![0], units: 0, first: 0 };
        // A piece is a few windows, each with its order at hand from the one before.
        let counts: Vec<Result<Vec<Counted>>> = (0..windows.div_ceil(PIECE))
            .into_par_iter()
            .map(|piece| {
                let mut order = plan.epoch(epoch);
                let all = piece * PIECE..((piece + 1) * PIECE).min(windows);
                all.map(|window| self.count(&mut order, &found, window)).collect()
            })
            .collect();
        let (mut before, mut longest) = (0_u64, None);
        for (window, counted) in (0..).zip(counts.into_iter().flat_map(unfold)) {
            let counted = counted?;
            if longest.is_none_or(|(length, _)| counted.longest > length) {
                longest = Some((counted.longest, window));
            }
            before = before.checked_add(counted.units).ok_or_else(|| Error::internal("an epoch of too many steps"))?;
            found.before.push(before);
        }
        found.units = match &self.kind {
            // Rows without tokens make a bin where there is nothing else.
            Kind::Packed(packing) if packing.method == Method::ConcatAndSplit => {
                before.div_ceil(u64::from(packing.capacity)).max(u64::from(most > 0))
            }
            Kind::Packed(_) | Kind::Budget(_) => before,
        };
        if let Some((_, window)) = longest.filter(|_| self.longest_first) {
            found.first = self.longest_step(&mut plan.epoch(epoch), &found, window)?;
        }
        Ok(found)
    }

    /// Steps, bins or tokens of a window.
    fn count(&self, order: &mut EpochOrder<'_>, windows: &EpochWindows, window: u64) -> Result<Counted> {
        let mut counted = Counted::default();
        for group in 0..windows.group_rows.len() {
            let slots = self.slots(order, group, windows.range(group, window))?;
            let mut lengths: Vec<u32> = slots.iter().map(|slot| slot.length).collect();
            counted.longest = counted.longest.max(lengths.iter().copied().max().unwrap_or(0));
            match &self.kind {
                Kind::Budget(budget) => {
                    lengths.sort_unstable_by(|a, b| b.cmp(a));
                    let steps = budget.needed(&lengths)? / u64::from(budget.micro_batches);
                    // Where nodes need different numbers of steps all have the most.
                    counted.units = counted.units.max(steps);
                }
                Kind::Packed(packing) if packing.method == Method::ConcatAndSplit => {
                    counted.units = lengths.iter().map(|length| u64::from(*length)).sum();
                }
                Kind::Packed(packing) => counted.units = packing.bins(&lengths)?,
            }
        }
        Ok(counted)
    }

    fn longest_step(&self, order: &mut EpochOrder<'_>, windows: &EpochWindows, window: u64) -> Result<u64> {
        let planned = self.plan(order, windows, window)?;
        let before = windows.before(window);
        let mut longest = (0, before);
        for step in before..windows.before(window + 1) {
            for micro_batch in self.step(windows, &planned, step) {
                let length = micro_batch.iter().map(|slot| slot.length).max().unwrap_or(0);
                if length > longest.0 {
                    longest = (length, step);
                }
            }
        }
        Ok(longest.1)
    }

    /// A window with its rows, cut.
    pub(crate) fn plan(
        &self,
        order: &mut EpochOrder<'_>,
        windows: &EpochWindows,
        window: u64,
    ) -> Result<PlannedWindow> {
        let mut groups = Vec::with_capacity(windows.group_rows.len());
        let steps = windows.before(window + 1) - windows.before(window);
        for group in 0..windows.group_rows.len() {
            let slots = self.slots(order, group, windows.range(group, window))?;
            let lengths: Vec<u32> = slots.iter().map(|slot| slot.length).collect();
            // One key for all groups, so that their heavy steps meet.
            let key = self.keys.key(Domain::Order, order.epoch(), GROUP_STREAM, LEVEL_BATCHES, window);
            let cut = match &self.kind {
                Kind::Budget(budget) => {
                    CutRows::Batches(budget.cut(&lengths, steps * u64::from(budget.micro_batches), key)?)
                }
                Kind::Packed(packing) if packing.method == Method::ConcatAndSplit => {
                    CutRows::Stretch(packing.stretch(&lengths, windows.before(window))?)
                }
                Kind::Packed(packing) => CutRows::Bins(packing.pack(&lengths, key)?),
            };
            groups.push(PlannedGroup { slots, cut });
        }
        Ok(PlannedWindow { groups })
    }

    /// The micro-batches of a step of `window`, group by group, in each the heaviest first.
    pub(crate) fn step(&self, windows: &EpochWindows, window: &PlannedWindow, step: u64) -> Vec<Vec<Slot>> {
        let per_group = u64::from(self.per_group());
        let local = step - windows.before(windows.window_of(step));
        let mut micro_batches = Vec::new();
        for group in &window.groups {
            let CutRows::Batches(batches) = &group.cut else { continue };
            for number in local * per_group..(local + 1) * per_group {
                let rows = batches.micro_batch(usize::try_from(number).unwrap_or(usize::MAX));
                micro_batches.push(rows.iter().filter_map(|row| group.slots.get(*row as usize)).copied().collect());
            }
        }
        micro_batches
    }

    /// The windows that bin `bin` has rows of, in order.
    pub(crate) fn windows_of_bin(&self, windows: &EpochWindows, bin: u64) -> Range<u64> {
        let Kind::Packed(packing) = &self.kind else { return 0..0 };
        if packing.method != Method::ConcatAndSplit {
            let window = windows.window_of(bin);
            return window..window + 1;
        }
        let capacity = u64::from(packing.capacity);
        // Rows without tokens are in the bin of the token before them.
        let last = |window: u64| windows.before(window + 1).saturating_sub(1) / capacity;
        let first = |window: u64| windows.before(window).saturating_sub(1) / capacity;
        let start = first_where(0, windows.windows, |window| last(window) >= bin);
        start..first_where(start, windows.windows, |window| first(window) > bin)
    }

    /// The segments of bin `bin` that are of `window`.
    pub(crate) fn bin(&self, windows: &EpochWindows, number: u64, window: &PlannedWindow, bin: u64) -> Vec<BinSegment> {
        let mut segments = Vec::new();
        for group in &window.groups {
            let mut take = |segment: &Segment| {
                if let Some(slot) = group.slots.get(segment.row as usize) {
                    segments.push(BinSegment { slot: *slot, start: segment.start, length: segment.length });
                }
            };
            match &group.cut {
                CutRows::Batches(_) => {}
                CutRows::Bins(bins) => {
                    let local = usize::try_from(bin - windows.before(number)).unwrap_or(usize::MAX);
                    bins.bin(local).iter().for_each(&mut take);
                }
                CutRows::Stretch(stretch) => {
                    let start = stretch.partition_point(|(of, _)| *of < bin);
                    stretch.iter().skip(start).take_while(|(of, _)| *of == bin).for_each(|(_, s)| take(s));
                }
            }
        }
        segments
    }
}

/// Windows that are counted one after another.
const PIECE: u64 = 16;

#[derive(Debug, Default)]
struct Counted {
    units: u64,
    longest: u32,
}

/// The lanes of each node, and how a pass's samples of them take turns.
fn nodes(table: &LaneTable, pass: &Interleave) -> Result<Vec<(Vec<u32>, Interleave)>> {
    (0..table.nodes())
        .map(|node| {
            let lanes: Vec<u32> = (0..table.lanes()).filter(|lane| table.node_of(*lane) == node).collect();
            let lengths: Vec<u64> = lanes.iter().map(|lane| pass.before(*lane, pass.rows())).collect();
            let interleave = Interleave::new(&lengths).ok_or_else(|| Error::internal("a node has too many rows"))?;
            Ok((lanes, interleave))
        })
        .collect()
}

impl EpochWindows {
    /// Rows of a window of a group.
    fn range(&self, group: usize, window: u64) -> Range<u64> {
        let rows = self.group_rows.get(group).copied().unwrap_or(0);
        // Groups of different sizes have as many windows.
        let at = |window: u64| (u128::from(rows) * u128::from(window) / u128::from(self.windows.max(1))) as u64;
        at(window)..at(window + 1)
    }

    pub(crate) fn before(&self, window: u64) -> u64 {
        let at = usize::try_from(window).unwrap_or(usize::MAX);
        self.before.get(at).or(self.before.last()).copied().unwrap_or(0)
    }

    /// The window of a step or bin; windows without any are never it.
    pub(crate) fn window_of(&self, unit: u64) -> u64 {
        (self.before.partition_point(|before| *before <= unit) as u64).saturating_sub(1)
    }

    /// Which step is done as number `step`: the first one changes places with the one of the longest row.
    pub(crate) fn step_at(&self, step: u64) -> u64 {
        match step {
            0 => self.first,
            step if step == self.first => 0,
            step => step,
        }
    }
}

/// The results of a piece one by one.
fn unfold<T>(piece: Result<Vec<T>>) -> Vec<Result<T>> {
    match piece {
        Ok(all) => all.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }
}
