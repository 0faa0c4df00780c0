//! A rank's part of a global batch.
//!
//! Parts of a batch are disjoint, together whole, and differ by at most one sample, for every world size. When lanes
//! are even and the world size W divides their number L, a rank takes `{ t : t mod W = v }`, which are whole lanes of
//! its own node. Else the batch, sorted by (node mod machines, node, lane, t), is cut into W contiguous parts: most of a
//! part is then of the rank's machine, and what is not shows in [`Replay`](crate::Replay).

use std::ops::Range;

use crate::{lane_table::LaneTable, world::World};

/// Consecutive samples of a lane's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneRun {
    /// The lane.
    pub lane: u32,
    /// Ordinals in the lane's order; not empty.
    pub ordinals: Range<u64>,
}

impl LaneRun {
    /// Samples.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.ordinals.end - self.ordinals.start
    }
}

/// How a world cuts global batches.
#[derive(Debug, Clone)]
pub struct SliceRule {
    lanes: u32,
    rule: Rule,
}

#[derive(Debug, Clone)]
enum Rule {
    /// `t mod world_size = residue`.
    Residue { residue: u32, world_size: u32 },
    /// Part `rank` of `world_size` of the lanes in this order.
    Contiguous { order: Vec<u32>, rank: u32, world_size: u32 },
}

impl SliceRule {
    /// The rule of `world` on the lanes of `table`.
    #[must_use]
    pub fn new(table: &LaneTable, world: &World) -> Self {
        let (lanes, world_size) = (table.lanes(), world.world_size());
        let rule = if table.interleave().is_even() && lanes.is_multiple_of(world_size) {
            // Lane v is node (v + first_node) mod N's. With M machines of g ranks, W = M·g, this residue keeps machine m
            // on lanes with (v + first_node) mod M = m: its own node's when M = N, those of nodes ≡ m when M divides N.
            let machines = world.machines();
            let machine = (world.machine() + machines - table.first_node() % machines) % machines;
            Rule::Residue { residue: world.local_rank() * machines + machine, world_size }
        } else {
            // Where there are fewer machines than nodes, machine m stands for nodes ≡ m, as above.
            let machines = world.machines();
            let mut order: Vec<u32> = (0..lanes).collect();
            order.sort_by_key(|lane| (table.node_of(*lane) % machines, table.node_of(*lane), *lane));
            Rule::Contiguous { order, rank: world.rank(), world_size }
        };
        Self { lanes, rule }
    }

    /// Whether every rank reads lanes of its own only.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.rule, Rule::Residue { .. })
    }

    /// The rank's part of the epoch indices `batch`, in (lane, t) order of the rule.
    #[must_use]
    pub fn slice(&self, table: &LaneTable, batch: &Range<u64>) -> Vec<LaneRun> {
        match &self.rule {
            Rule::Residue { residue, world_size } => (*residue..self.lanes)
                .step_by(*world_size as usize)
                .map(|lane| LaneRun { lane, ordinals: table.ordinals(lane, batch) })
                .filter(|run| !run.ordinals.is_empty())
                .collect(),
            Rule::Contiguous { order, rank, world_size } => {
                let samples = batch.end.saturating_sub(batch.start);
                let mut part = cut(samples, *rank, *world_size);
                let mut runs = Vec::new();
                for lane in order {
                    let ordinals = table.ordinals(*lane, batch);
                    let length = ordinals.end - ordinals.start;
                    let (start, end) = (part.start.min(length), part.end.min(length));
                    if start < end {
                        runs.push(LaneRun { lane: *lane, ordinals: ordinals.start + start..ordinals.start + end });
                    }
                    part = part.start - start..part.end - end;
                    if part.end == 0 {
                        break;
                    }
                }
                runs
            }
        }
    }
}

/// Part `part` of `parts` of `[0, samples)`: contiguous, and as equal as can be.
fn cut(samples: u64, part: u32, parts: u32) -> Range<u64> {
    let at = |i: u32| ((u128::from(samples) * u128::from(i)) / u128::from(parts.max(1))) as u64;
    at(part)..at(part + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn indices(table: &LaneTable, runs: &[LaneRun]) -> Vec<u64> {
        runs.iter().flat_map(|run| run.ordinals.clone().map(move |o| table.interleave().index(run.lane, o))).collect()
    }

    /// Even and other lanes, as many as there are nodes or more, some of them empty.
    fn tables() -> impl Strategy<Value = LaneTable> {
        let even = (0_u64..400, 1_usize..17)
            .prop_map(|(n, lanes)| (0..lanes as u64).map(|v| n.saturating_sub(v).div_ceil(lanes as u64)).collect());
        let any = proptest::collection::vec(prop_oneof![Just(0_u64), 0_u64..60], 1..17);
        (prop_oneof![even, any], 1_u32..6, 0_u32..5).prop_map(|(lengths, nodes, first): (Vec<u64>, _, _)| {
            let nodes = nodes.min(lengths.len() as u32);
            LaneTable::simulated_lanes(&lengths, nodes, first % nodes, 10).unwrap()
        })
    }

    proptest! {
        #[test]
        fn slices_are_disjoint_whole_and_even(
            table in tables(), machines in 1_u32..5, local in 1_u32..5, batch in 1_u64..130,
        ) {
            let rows = table.rows();
            let world_size = machines * local;
            for start in (0..rows).step_by(batch as usize) {
                let range = start..(start + batch).min(rows);
                let mut all = Vec::new();
                let mut sizes = Vec::new();
                for rank in 0..world_size {
                    let world = World::new(rank, world_size, local).unwrap();
                    let runs = SliceRule::new(&table, &world).slice(&table, &range);
                    prop_assert!(runs.iter().all(|r| r.rows() > 0));
                    sizes.push(runs.iter().map(LaneRun::rows).sum::<u64>());
                    all.extend(indices(&table, &runs));
                }
                all.sort_unstable();
                prop_assert_eq!(all, range.collect::<Vec<_>>());
                prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }

        #[test]
        fn a_rank_reads_lanes_of_its_own_node(nodes in 1_u32..6, local in 1_u32..5, times in 1_u32..4, first in 0_u32..6) {
            let world_size = nodes * local;
            let table = LaneTable::simulated(1000, world_size * times, nodes, first % nodes, 10).unwrap();
            for rank in 0..world_size {
                let world = World::new(rank, world_size, local).unwrap();
                let rule = SliceRule::new(&table, &world);
                prop_assert!(rule.is_local());
                for run in rule.slice(&table, &(0..1000)) {
                    prop_assert_eq!(table.node_of(run.lane), world.machine());
                }
            }
        }
    }

    #[test]
    fn a_machine_reads_mostly_its_own_node_where_lanes_are_uneven() {
        // Three nodes of eight lanes whose groups made them differ by a tenth.
        let lengths: Vec<u64> = (0..24).map(|lane| 300 - 15 * (lane % 3)).collect();
        let table = LaneTable::simulated_lanes(&lengths, 3, 2, 10).unwrap();
        for machine in 0..3 {
            let rule = SliceRule::new(&table, &World::new(machine, 3, 1).unwrap());
            assert!(!rule.is_local());
            let (mut own, mut all) = (0, 0);
            for start in (0..table.rows()).step_by(96) {
                for run in rule.slice(&table, &(start..(start + 96).min(table.rows()))) {
                    all += run.rows();
                    own += if table.node_of(run.lane) == machine { run.rows() } else { 0 };
                }
            }
            assert!(own * 100 >= all * 90, "machine {machine}: {own} of {all}");
        }
    }

    #[test]
    fn half_as_many_machines_read_the_nodes_they_stand_for() {
        let table = LaneTable::simulated(1000, 16, 4, 3, 10).unwrap();
        for rank in 0..4 {
            let world = World::new(rank, 4, 2).unwrap();
            for run in SliceRule::new(&table, &world).slice(&table, &(0..1000)) {
                assert_eq!(table.node_of(run.lane) % 2, world.machine());
            }
        }
    }
}
