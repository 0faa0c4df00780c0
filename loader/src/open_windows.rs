//! What a rank has open at once: the windows of the lanes that it reads at the same time, in bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::{lane_table::LaneTable, order::table_bytes, plan::Plan, slice::SliceRule, source::WindowKind};

/// Steps of an epoch that are looked at to see which lanes a rank reads. Parts of batches that begin at the same lane
/// of a segment and the same rank's turn are alike, so as many steps as lanes times ranks show every kind there is; sets of thousands of lanes are
/// looked at in part.
const STEPS: u64 = 1 << 14;

/// What a rank reads in an epoch, and has open at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenWindows {
    /// Lanes that it reads in an epoch, in order.
    pub(crate) lanes: Vec<u32>,
    /// Most of them that it reads at the same time.
    pub(crate) lanes_at_once: usize,
    /// Most bytes of windows at once.
    pub(crate) bytes: u64,
}

/// The windows of a rank whose parts of batches are those of `rule`, with records of `stride` bytes.
pub(crate) fn open_windows(plan: &Plan, rule: &SliceRule, stride: u64) -> OpenWindows {
    let (table, kind) = (plan.table(), plan.window_kind());
    let (phases, runs) = phases(plan, rule);
    let window_rows = (0..table.lanes()).map(|lane| windows(table, lane, kind).first().copied().unwrap_or(0)).max();
    let window_rows = window_rows.unwrap_or(0);
    // Phases in which each lane is read, among those that may have windows open together, and each lane's bytes.
    let mut open: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
    let (mut bytes, mut most, mut lanes_at_once, mut first) = (0_u64, 0, 0, 0);
    for phase in &phases {
        for lane in &phase.lanes {
            let run = runs.get(lane).copied().unwrap_or_default();
            let new = || (0, open_bytes(table, *lane, kind, run, stride));
            let (uses, of_lane) = open.entry(*lane).or_insert_with(new);
            *uses += 1;
            if *uses == 1 {
                bytes = bytes.saturating_add(*of_lane);
            }
        }
        while let Some(old) = phases.get(first).filter(|old| !old.reaches(phase, plan, window_rows)) {
            for lane in &old.lanes {
                if let Some((uses, of_lane)) = open.get_mut(lane) {
                    *uses -= 1;
                    if *uses == 0 {
                        bytes = bytes.saturating_sub(*of_lane);
                        open.remove(lane);
                    }
                }
            }
            first += 1;
        }
        (most, lanes_at_once) = (most.max(bytes), lanes_at_once.max(open.len()));
    }
    OpenWindows { lanes: runs.into_keys().collect(), lanes_at_once, bytes: most }
}

/// What the parts of batches have of a lane.
#[derive(Debug, Clone, Copy, Default)]
struct Runs {
    /// Samples at most.
    longest: u64,
    /// Whether other ranks take samples of the lane before this one.
    skips: bool,
}

/// A stretch of the epoch over which the same lanes take turns.
struct Phase {
    /// Lanes that the rank reads.
    lanes: Vec<u32>,
    indices: Range<u64>,
    /// Samples that each lane has had at its beginning and, if it still has some, at its end.
    ordinals: Range<u64>,
}

impl Phase {
    /// Whether a window or a step of this phase may reach into `later`.
    fn reaches(&self, later: &Self, plan: &Plan, window_rows: u64) -> bool {
        later.ordinals.start < self.ordinals.end.saturating_add(window_rows)
            || later.indices.start < self.indices.end.saturating_add(plan.options().global_batch)
    }
}

/// The phases of an epoch, and what parts of batches have of each lane that is read.
fn phases(plan: &Plan, rule: &SliceRule) -> (Vec<Phase>, BTreeMap<u32, Runs>) {
    let global_batch = plan.options().global_batch;
    let interleave = plan.interleave();
    let segments = interleave.segments();
    let most = (STEPS / (segments.len() as u64).max(1)).max(2);
    let mut phases = Vec::with_capacity(segments.len());
    let mut runs: BTreeMap<u32, Runs> = BTreeMap::new();
    for (at, segment) in segments.iter().enumerate() {
        let (end, after) = segments.get(at + 1).map_or((interleave.rows(), u64::MAX), |next| (next.start, next.before));
        let mut lanes = BTreeSet::new();
        let mut look = |range: &Range<u64>, most: u64| {
            for run in rule.slice(plan, 0, range) {
                lanes.insert(run.lane);
                let of_lane = runs.entry(run.lane).or_default();
                of_lane.longest = of_lane.longest.max(run.rows().min(most));
                of_lane.skips |= run.ordinals.start > interleave.before(run.lane, range.start);
            }
        };
        if rule.is_local() {
            look(&(segment.start..end), global_batch.div_ceil(segment.lanes.max(1)));
        } else {
            // From the step that is under way when the segment begins.
            let mut index = segment.start - segment.start % global_batch;
            for _ in 0..most.min(segment.lanes.saturating_mul(rule.world_size()).saturating_add(2)) {
                if index >= end {
                    break;
                }
                let batch = index..index.saturating_add(global_batch).min(plan.samples(0));
                index = batch.end;
                look(&batch, u64::MAX);
            }
            if let Some(last) = end.checked_sub(1) {
                let start = last - last % global_batch;
                look(&(start..start.saturating_add(global_batch).min(plan.samples(0))), u64::MAX);
            }
        }
        let lanes = lanes.into_iter().collect();
        phases.push(Phase { lanes, indices: segment.start..end, ordinals: segment.before..after });
    }
    (phases, runs)
}

/// Bytes of the permutation table of a window.
fn of_table(kind: WindowKind, rows: u64) -> u64 {
    match kind {
        WindowKind::Stored => 0,
        WindowKind::Blocks(_) | WindowKind::Lane => table_bytes(rows),
        WindowKind::List => rows.saturating_mul(4),
    }
}

/// Stored rows of a lane's windows, as if the largest row groups met in one, largest first.
fn windows(table: &LaneTable, lane: u32, kind: WindowKind) -> Vec<u64> {
    let Some(blocks) = table.blocks(lane) else { return Vec::new() };
    let window_blocks = match kind {
        WindowKind::Stored => 1,
        WindowKind::Blocks(window_blocks) => usize::try_from(window_blocks).unwrap_or(usize::MAX),
        WindowKind::Lane | WindowKind::List => return vec![blocks.rows()],
    };
    let rows = blocks.largest_first();
    rows.chunks(window_blocks.max(1))
        .map(|window| window.iter().fold(0, |sum: u64, rows| sum.saturating_add(*rows)))
        .collect()
}

/// Bytes of the windows of a lane that may be open at once: the two that a batch reaches from and into, whole ones
/// between them, which have no more rows than the part takes of the lane, and where other ranks take samples in between
/// the one that the last batch reached into.
fn open_bytes(table: &LaneTable, lane: u32, kind: WindowKind, runs: Runs, stride: u64) -> u64 {
    let windows = windows(table, lane, kind);
    let (ends, others) = windows.split_at(windows.len().min(2 + usize::from(runs.skips)));
    let between = others.iter().fold(0_u64, |sum, rows| sum.saturating_add(*rows)).min(runs.longest);
    let of_ends = |rows: &u64| rows.saturating_mul(stride).saturating_add(of_table(kind, *rows));
    ends.iter().map(of_ends).fold(between.saturating_mul(stride + table_bytes(1)), u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{PlanOptions, Shuffle, tests::plan_of},
        world::World,
    };
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const STRIDE: u64 = 8;

    /// The most windows that are open at once, found by walking the epoch as an iteration does.
    fn walked(plan: &Plan, rule: &SliceRule) -> (u64, usize) {
        let (table, kind) = (plan.table(), plan.window_kind());
        let orders: Vec<_> = (0..table.lanes()).map(|lane| plan.lane_order(0, 0, lane).unwrap()).collect();
        let mut open: BTreeSet<(u32, u64)> = BTreeSet::new();
        let (mut most, mut lanes) = (0, 0);
        for step in 0..plan.steps(0).unwrap() {
            let batch = plan.batch_at(0, step * plan.options().global_batch).unwrap();
            open.retain(|(lane, window)| {
                let last = orders[*lane as usize].window_range(*window).end - 1;
                table.interleave().index(*lane, last) >= batch.start
            });
            for run in rule.slice(plan, 0, &batch) {
                let order = &orders[run.lane as usize];
                open.extend(run.ordinals.map(|ordinal| (run.lane, order.window_of(ordinal))));
            }
            let bytes = open.iter().map(|(lane, window)| {
                let range = orders[*lane as usize].window_range(*window);
                let rows = range.end - range.start;
                rows * STRIDE + of_table(kind, rows)
            });
            most = most.max(bytes.sum());
            lanes = lanes.max(open.iter().map(|o| o.0).collect::<BTreeSet<_>>().len());
        }
        (most, lanes)
    }

    proptest! {
        #[test]
        fn what_is_opened_was_foreseen(
            lengths in proptest::collection::vec(0_u64..120, 4..13), nodes in 1_u32..5, world_size in 1_u32..6,
            batch in 1_u64..60, window_blocks in 0_u32..3, block in 1_u64..20,
        ) {
            let shuffle = if window_blocks == 0 { Shuffle::None } else { Shuffle::ShardBlock { window_blocks } };
            let table = LaneTable::simulated_lanes(&lengths, nodes, 0, block).unwrap();
            let options = PlanOptions { shuffle, ..PlanOptions::new("train", batch) };
            let plan = plan_of(table, options);
            for rank in 0..world_size {
                let rule = SliceRule::new(&plan, &World::new(rank, world_size, 1).unwrap());
                let foreseen = open_windows(&plan, &rule, STRIDE);
                let (bytes, lanes) = walked(&plan, &rule);
                prop_assert!(bytes <= foreseen.bytes && lanes <= foreseen.lanes_at_once, "{bytes} {lanes} {foreseen:?}");
            }
        }
    }

    #[test]
    fn lanes_read_one_after_another_are_not_added_up() {
        // Nodes of 1000, 2000 and 3000 rows a lane: the last third of the epoch has lanes of one node only.
        let lengths: Vec<u64> = (0..24).map(|lane| 1000 * (1 + lane % 3)).collect();
        let table = LaneTable::simulated_lanes(&lengths, 3, 0, 10).unwrap();
        let plan = plan_of(table, PlanOptions::new("train", 96));
        let rule = SliceRule::new(&plan, &World::new(0, 3, 1).unwrap());
        let foreseen = open_windows(&plan, &rule, STRIDE);
        assert!(foreseen.lanes_at_once < foreseen.lanes.len(), "{foreseen:?}");
    }
}
