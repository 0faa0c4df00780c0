//! Replays an epoch of a plan for a whole world without reading data: what is delivered, by whom, and what is read.

use serde::Serialize;

use crate::{
    error::{Error, Result},
    plan::Plan,
    slice::{LaneRun, SliceRule},
    world::{World, check_world_size},
};

/// What an epoch delivers and reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// Ranks.
    pub world_size: u32,
    /// Machines.
    pub machines: u32,
    /// Samples of the split.
    pub rows: u64,
    /// Samples delivered, repeats counted.
    pub delivered: u64,
    /// Samples that the plan drops with the tail.
    pub dropped: u64,
    /// Samples that neither were delivered nor are dropped: 0, or the plan is broken.
    pub missing: u64,
    /// Deliveries of a sample that had been delivered before: 0, or the plan is broken.
    pub repeated: u64,
    /// Steps of every rank.
    pub steps_per_rank: u64,
    /// Rows of each rank.
    pub rows_per_rank: Vec<u64>,
    /// Steps in which a rank had nothing but a filler slot, over all ranks.
    pub empty_slices: u64,
    /// Reads of each machine.
    pub reads: Vec<MachineReads>,
    /// Bytes read by all ranks over the bytes of the split; 1 is the least.
    pub read_amplification: f64,
}

/// Row groups that the ranks of a machine read in an epoch. A row group that two ranks need counts twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MachineReads {
    /// The machine.
    pub machine: u32,
    /// Row groups.
    pub row_groups: u64,
    /// Stored bytes of them.
    pub bytes: u64,
    /// Row groups of lanes of other machines (lane's node mod machines).
    pub foreign_row_groups: u64,
    /// Stored bytes of them.
    pub foreign_bytes: u64,
}

/// A set of positions.
struct Bits(Vec<u64>);

impl Bits {
    fn new(length: u64) -> Self {
        Self(vec![0; usize::try_from(length.div_ceil(64)).unwrap_or(usize::MAX)])
    }

    /// Adds `at`; whether it was new. A place past the end is never new.
    fn insert(&mut self, at: u64) -> bool {
        let Some(word) = usize::try_from(at / 64).ok().and_then(|i| self.0.get_mut(i)) else { return false };
        let bit = 1 << (at % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|w| u64::from(w.count_ones())).sum()
    }
}

/// Replays `epoch` of `plan` for `world_size` ranks on `machines` machines. Takes time in the order of the samples
/// (tens of nanoseconds each) and a bit of memory for each.
///
/// # Errors
/// [`Error::Usage`] when the ranks can't be spread evenly over the machines, or are more than
/// [`crate::world::MAX_WORLD_SIZE`].
pub fn replay(plan: &Plan, epoch: u64, world_size: u32, machines: u32) -> Result<Replay> {
    // Before anything is allocated for each rank.
    check_world_size(world_size)?;
    if machines == 0 || !world_size.is_multiple_of(machines) {
        return Err(Error::usage(
            format!("{world_size} ranks can't be spread evenly over {machines} machines"),
            "give a world size that is a multiple of the machines",
        ));
    }
    let table = plan.table();
    let worlds =
        (0..world_size).map(|rank| World::new(rank, world_size, world_size / machines)).collect::<Result<Vec<_>>>()?;
    let rules: Vec<SliceRule> = worlds.iter().map(|world| SliceRule::new(table, world)).collect();
    let mut seen: Vec<Bits> =
        (0..table.lanes()).map(|lane| Bits::new(table.blocks(lane).last().map_or(0, |b| b.first + b.rows))).collect();
    let mut reads = Vec::new();
    let mut block_base = Vec::new();
    let mut blocks = 0;
    for lane in 0..table.lanes() {
        block_base.push(blocks);
        blocks += table.blocks(lane).len() as u64;
    }
    let mut rows_per_rank = vec![0; world_size as usize];
    let mut read_blocks: Vec<Bits> = (0..world_size).map(|_| Bits::new(blocks)).collect();
    let (mut delivered, mut repeated, mut empty_slices) = (0, 0, 0);
    let mut order = plan.epoch(epoch);
    let mut index = 0;
    let steps = plan.steps();
    for _ in 0..steps {
        let batch = plan.batch_at(index);
        index = batch.end;
        for (rank, rule) in rules.iter().enumerate() {
            let runs = rule.slice(table, &batch);
            empty_slices += u64::from(runs.is_empty());
            rows_per_rank[rank] += runs.iter().map(LaneRun::rows).sum::<u64>();
            for run in &runs {
                let (Some(bits), Some(base)) = (seen.get_mut(run.lane as usize), block_base.get(run.lane as usize))
                else {
                    continue;
                };
                let mut ordinal = run.ordinals.start;
                while ordinal < run.ordinals.end {
                    let Some(window) = order.window(run.lane, ordinal) else { break };
                    let end = run.ordinals.end.min(window.range().end);
                    if end <= ordinal {
                        return Err(Error::internal(format!("lane {} has no sample {ordinal}", run.lane)));
                    }
                    // A rank that touches a window has to read all of its blocks: its rows lie anywhere in them.
                    for block in window.blocks() {
                        read_blocks[rank].insert(base + u64::from(*block));
                    }
                    for ordinal in ordinal..end {
                        delivered += 1;
                        repeated += u64::from(!bits.insert(window.position(ordinal)));
                    }
                    ordinal = end;
                }
            }
        }
    }
    let mut total_bytes = 0;
    let mut machine_reads: Vec<MachineReads> =
        (0..machines).map(|machine| MachineReads { machine, ..MachineReads::default() }).collect();
    for (lane, base) in (0..table.lanes()).zip(&block_base) {
        for (i, block) in table.blocks(lane).iter().enumerate() {
            total_bytes += block.stored_bytes;
            reads.clear();
            reads.extend((0..world_size).filter(|r| {
                let at = base + i as u64;
                read_blocks[*r as usize].0[(at / 64) as usize] >> (at % 64) & 1 == 1
            }));
            for rank in &reads {
                let entry = &mut machine_reads[worlds[*rank as usize].machine() as usize];
                let foreign = table.node_of(lane) % machines != entry.machine;
                entry.row_groups += 1;
                entry.bytes += block.stored_bytes;
                entry.foreign_row_groups += u64::from(foreign);
                entry.foreign_bytes += if foreign { block.stored_bytes } else { 0 };
            }
        }
    }
    let covered: u64 = seen.iter().map(Bits::count).sum();
    let read_bytes: u64 = machine_reads.iter().map(|m| m.bytes).sum();
    Ok(Replay {
        world_size,
        machines,
        rows: plan.rows(),
        delivered,
        dropped: plan.dropped(),
        missing: (plan.rows() - plan.dropped()).saturating_sub(covered),
        repeated,
        steps_per_rank: steps,
        rows_per_rank,
        empty_slices,
        reads: machine_reads,
        read_amplification: if total_bytes == 0 { 1.0 } else { read_bytes as f64 / total_bytes as f64 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lane_table::LaneTable,
        plan::{PlanOptions, Shuffle, Tail},
    };
    use std::sync::Arc;

    fn plan(rows: u64, lanes: u32, nodes: u32, batch: u64, tail: Tail, shuffle: Shuffle) -> Plan {
        let table = LaneTable::simulated(rows, lanes, nodes, nodes - 1, 100).unwrap();
        Plan::over(Arc::new(table), "00", PlanOptions { tail, shuffle, ..PlanOptions::new("train", batch) }).unwrap()
    }

    #[test]
    fn every_world_covers_an_epoch_exactly_once() {
        for world in 1..=16 {
            for shuffle in [Shuffle::None, Shuffle::default(), Shuffle::Global] {
                let plan = plan(10_007, 16, 2, 96, Tail::Exact, shuffle);
                let machines = if world % 2 == 0 { 2 } else { 1 };
                let replay = replay(&plan, 3, world, machines).unwrap();
                assert_eq!((replay.missing, replay.repeated, replay.delivered), (0, 0, 10_007));
                assert_eq!(replay.rows_per_rank.iter().sum::<u64>(), 10_007);
                assert_eq!(replay.steps_per_rank, 10_007_u64.div_ceil(96));
                if 16 % world == 0 {
                    assert!((replay.read_amplification - 1.0).abs() < 1e-12, "{replay:?}");
                    assert!(replay.reads.iter().all(|r| r.foreign_bytes == 0), "{replay:?}");
                }
                // Contiguous parts read little more than once; the residue rule would read W / gcd(W, L) times.
                assert!(replay.read_amplification < 3.0, "world {world}: {}", replay.read_amplification);
            }
        }
    }

    #[test]
    fn any_lanes_and_nodes_are_covered_exactly_once_and_cost_what_is_reported() {
        let even: Vec<u64> = (0..16).map(|v| (10_007_u64 - v).div_ceil(16)).collect();
        // Groups on one of four nodes.
        let grouped: Vec<u64> = (0..16).map(|v| 640 - 20 * (v % 4) - u64::from(v > 7)).collect();
        let empty: Vec<u64> = (0..16).map(|v| if v % 5 == 0 { 0 } else { 100 * v }).collect();
        for (lengths, nodes) in [(&even, 3), (&even, 5), (&even, 16), (&grouped, 4), (&empty, 4), (&empty, 7)] {
            for world in 1..=8 {
                let table = LaneTable::simulated_lanes(lengths, nodes, nodes - 1, 100).unwrap();
                let options = PlanOptions::new("train", 96);
                let plan = Plan::over(Arc::new(table), "00", options).unwrap();
                let machines = if world % nodes == 0 { nodes } else { 1 };
                let replay = replay(&plan, 3, world, machines).unwrap();
                let rows: u64 = lengths.iter().sum();
                assert_eq!((replay.missing, replay.repeated, replay.delivered), (0, 0, rows));
                assert_eq!(replay.steps_per_rank, rows.div_ceil(96));
                let (least, most) = (replay.rows_per_rank.iter().min(), replay.rows_per_rank.iter().max());
                assert!(most.unwrap() - least.unwrap() <= replay.steps_per_rank, "{replay:?}");
                let bytes: u64 = replay.reads.iter().map(|r| r.bytes).sum();
                assert!((replay.read_amplification - bytes as f64 / (rows * 64) as f64).abs() < 1e-9);
                assert!(replay.read_amplification >= 1.0 && replay.read_amplification <= f64::from(world));
                // One rank has nobody to share a row group with.
                assert!(world > 1 || replay.read_amplification == 1.0);
                if std::ptr::eq(lengths, &grouped) {
                    assert!(replay.read_amplification < 1.6, "{world}: {replay:?}");
                }
            }
        }
    }

    #[test]
    fn a_dropped_tail_is_counted_and_nothing_else_is_missing() {
        let replay = replay(&plan(1000, 8, 2, 300, Tail::Drop, Shuffle::default()), 0, 4, 2).unwrap();
        assert_eq!((replay.delivered, replay.dropped, replay.missing, replay.repeated), (900, 100, 0, 0));
    }

    #[test]
    fn a_world_without_bound_is_refused_at_once() {
        let plan = plan(5, 8, 2, 3, Tail::Exact, Shuffle::None);
        for (world, machines) in [(u32::MAX, 1), (u32::MAX, u32::MAX), (0, 1)] {
            assert!(matches!(replay(&plan, 0, world, machines), Err(Error::Usage { .. })), "{world}");
        }
    }

    #[test]
    fn more_ranks_than_samples_leave_some_with_fillers() {
        let replay = replay(&plan(5, 8, 2, 3, Tail::Exact, Shuffle::default()), 0, 8, 2).unwrap();
        assert_eq!((replay.delivered, replay.missing, replay.steps_per_rank), (5, 0, 2));
        assert_eq!(replay.empty_slices, 11);
        assert!(super::replay(&plan(5, 8, 2, 3, Tail::Exact, Shuffle::None), 0, 5, 2).is_err());
    }
}
