//! A rank's part of a global batch.
//!
//! Parts of a batch are disjoint, together whole, and differ by at most one sample, for every world size. When lanes
//! are even and the world size W divides their number L, a rank takes `{ t : t mod W = v }`, which are whole lanes of
//! its own node. Else the batch, sorted by (node mod machines, node, lane, t), is cut into W contiguous parts: most of a
//! part is then of the rank's machine, and what is not shows in [`Replay`](crate::Replay).

use std::ops::Range;

use crate::{
    batching::deal::LocalDeal,
    plan::{PassRange, Plan},
    world::World,
};

/// Consecutive samples of a lane's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneRun {
    /// The source.
    pub source: u32,
    /// The pass over it.
    pub pass: u64,
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

/// How a rank's world cuts global batches.
#[derive(Debug, Clone)]
pub struct SliceRule {
    rank: u32,
    world_size: u32,
    rule: Rule,
    /// Of micro-batches, where steps are made of them.
    deal: Option<LocalDeal>,
}

#[derive(Debug, Clone)]
enum Rule {
    /// `t mod world_size = residue`: these lanes of the only source.
    Residue { lanes: Vec<u32> },
    /// Part `rank` of `world_size` of the (source, lane) in this order.
    Contiguous { order: Vec<(u32, u32)> },
}

impl SliceRule {
    /// The rule of `world` on the lanes of `plan`.
    #[must_use]
    pub fn new(plan: &Plan, world: &World) -> Self {
        let (rank, world_size, machines) = (world.rank(), world.world_size(), world.machines());
        let rule = match plan.sources() {
            [one]
                if plan.mixture().is_none()
                    && one.interleave.is_even()
                    && one.table.lanes().is_multiple_of(world_size) =>
            {
                // Lane v is node (v + first_node) mod N's. With M machines of g ranks, W = M·g, this residue keeps machine
                // m on lanes with (v + first_node) mod M = m: its own node's when M = N, those of nodes ≡ m when M divides
                // N.
                let machine = (world.machine() + machines - one.table.first_node() % machines) % machines;
                let residue = world.local_rank() * machines + machine;
                Rule::Residue { lanes: (residue..one.table.lanes()).step_by(world_size as usize).collect() }
            }
            sources => {
                // Where there are fewer machines than nodes, machine m stands for nodes ≡ m, as above.
                let mut order: Vec<(u32, u32, u32, u32)> = Vec::new();
                for (source, planned) in (0..).zip(sources) {
                    let nodes = (0..planned.table.lanes()).map(|lane| (lane, planned.table.node_of(lane)));
                    order.extend(nodes.map(|(lane, node)| (node % machines, node, source, lane)));
                }
                order.sort_unstable();
                Rule::Contiguous { order: order.into_iter().map(|(_, _, source, lane)| (source, lane)).collect() }
            }
        };
        let deal = plan
            .window_rule()
            .filter(|rule| rule.per_group() > 0)
            .and_then(|rule| LocalDeal::new(rule.groups(), rule.per_group(), machines, world.local_world_size()));
        Self { rank, world_size, rule, deal }
    }

    pub(crate) fn world_size(&self) -> u64 {
        u64::from(self.world_size)
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn deal(&self) -> Option<&LocalDeal> {
        self.deal.as_ref()
    }

    /// The rank's part of `count` things in a row, of which the first is number `first` of the epoch.
    pub(crate) fn contiguous(&self, count: u64, first: u64) -> Range<u64> {
        cut(count, self.rank, self.world_size, first)
    }

    /// Whether every rank reads lanes of its own only.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.rule, Rule::Residue { .. })
    }

    /// The rank's part of the epoch indices `batch`, in (lane, t) order of the rule.
    #[must_use]
    pub fn slice(&self, plan: &Plan, epoch: u64, batch: &Range<u64>) -> Vec<LaneRun> {
        let passes = plan.passes(epoch, batch);
        match &self.rule {
            Rule::Residue { lanes } => {
                let runs = lanes.iter().flat_map(|lane| runs(plan, &passes, 0, *lane));
                runs.collect()
            }
            Rule::Contiguous { order } => {
                let samples = batch.end.saturating_sub(batch.start);
                let mut part = cut(samples, self.rank, self.world_size, batch.start);
                let mut taken = Vec::new();
                for (source, lane) in order {
                    for run in runs(plan, &passes, *source, *lane) {
                        let (start, end) = (part.start.min(run.rows()), part.end.min(run.rows()));
                        part = part.start - start..part.end - end;
                        if start < end {
                            let first = run.ordinals.start;
                            taken.push(LaneRun { ordinals: first + start..first + end, ..run });
                        }
                    }
                    if part.end == 0 {
                        break;
                    }
                }
                taken
            }
        }
    }
}

/// What `passes` take of a lane.
fn runs<'a>(
    plan: &'a Plan,
    passes: &'a [PassRange],
    source: u32,
    lane: u32,
) -> impl Iterator<Item = LaneRun> + use<'a> {
    let interleave = plan.sources().get(source as usize).map(|s| &s.interleave);
    passes.iter().filter(move |p| p.source == source).filter_map(move |p| {
        let ordinals = interleave?.ordinals(lane, &p.range);
        (!ordinals.is_empty()).then_some(LaneRun { source, pass: p.pass, lane, ordinals })
    })
}

/// Part `part` of `parts` of `[0, samples)`: contiguous, and as equal as can be. Where parts differ by one it goes round
/// with `first`, the number of the first sample, so that over many steps all parts are as large.
fn cut(samples: u64, part: u32, parts: u32, first: u64) -> Range<u64> {
    let parts = u64::from(parts.max(1));
    let at = |i: u64| ((u128::from(samples) * u128::from(i) + u128::from(first % parts)) / u128::from(parts)) as u64;
    at(u64::from(part))..at(u64::from(part) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lane_table::LaneTable,
        plan::{PlanOptions, tests::plan_of},
    };
    use proptest::prelude::*;

    fn indices(plan: &Plan, runs: &[LaneRun]) -> Vec<u64> {
        let interleave = plan.table().interleave();
        runs.iter().flat_map(|run| run.ordinals.clone().map(move |o| interleave.index(run.lane, o))).collect()
    }

    fn over(table: LaneTable) -> Plan {
        plan_of(table, PlanOptions::new("train", 1))
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
            let plan = over(table);
            let world_size = machines * local;
            for start in (0..rows).step_by(batch as usize) {
                let range = start..(start + batch).min(rows);
                let mut all = Vec::new();
                let mut sizes = Vec::new();
                for rank in 0..world_size {
                    let world = World::new(rank, world_size, local).unwrap();
                    let runs = SliceRule::new(&plan, &world).slice(&plan, 0, &range);
                    prop_assert!(runs.iter().all(|r| r.rows() > 0));
                    sizes.push(runs.iter().map(LaneRun::rows).sum::<u64>());
                    all.extend(indices(&plan, &runs));
                }
                all.sort_unstable();
                prop_assert_eq!(all, range.collect::<Vec<_>>());
                prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }

        #[test]
        fn a_rank_reads_lanes_of_its_own_node(nodes in 1_u32..6, local in 1_u32..5, times in 1_u32..4, first in 0_u32..6) {
            let world_size = nodes * local;
            let plan = over(LaneTable::simulated(1000, world_size * times, nodes, first % nodes, 10).unwrap());
            for rank in 0..world_size {
                let world = World::new(rank, world_size, local).unwrap();
                let rule = SliceRule::new(&plan, &world);
                prop_assert!(rule.is_local());
                for run in rule.slice(&plan, 0, &(0..1000)) {
                    prop_assert_eq!(plan.table().node_of(run.lane), world.machine());
                }
            }
        }
    }

    #[test]
    fn a_machine_reads_mostly_its_own_node_where_lanes_are_uneven() {
        // Three nodes of eight lanes whose groups made them differ by a tenth.
        let lengths: Vec<u64> = (0..24).map(|lane| 300 - 15 * (lane % 3)).collect();
        let plan = over(LaneTable::simulated_lanes(&lengths, 3, 2, 10).unwrap());
        let table = plan.table();
        for machine in 0..3 {
            let rule = SliceRule::new(&plan, &World::new(machine, 3, 1).unwrap());
            assert!(!rule.is_local());
            let (mut own, mut all) = (0, 0);
            for start in (0..table.rows()).step_by(96) {
                for run in rule.slice(&plan, 0, &(start..(start + 96).min(table.rows()))) {
                    all += run.rows();
                    own += if table.node_of(run.lane) == machine { run.rows() } else { 0 };
                }
            }
            assert!(own * 100 >= all * 90, "machine {machine}: {own} of {all}");
        }
    }

    #[test]
    fn half_as_many_machines_read_the_nodes_they_stand_for() {
        let plan = over(LaneTable::simulated(1000, 16, 4, 3, 10).unwrap());
        for rank in 0..4 {
            let world = World::new(rank, 4, 2).unwrap();
            for run in SliceRule::new(&plan, &world).slice(&plan, 0, &(0..1000)) {
                assert_eq!(plan.table().node_of(run.lane) % 2, world.machine());
            }
        }
    }
}
