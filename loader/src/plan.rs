//! The plan: which sample is at which place of which epoch, as a pure function.
//!
//! Index t of an epoch of n samples over L even lanes is sample `t div L` of the order of lane `t mod L`; for lanes of
//! other lengths [`Interleave`](crate::Interleave) has the rule. World size, threads and clocks do not enter. A step
//! consumes the next `global_batch` indices over all ranks.

use std::{ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use gristmill_shard::ShardSet;

use crate::{
    error::{Error, Result},
    fingerprint::{Batching, Fingerprint, PLAN_VERSION, PlanIdentity},
    lane_table::LaneTable,
    order::{LaneOrder, WindowOrder},
    state::{STATE_VERSION, State},
};

/// How an epoch is shuffled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Shuffle {
    /// The stored order, lanes in turn; the same every epoch.
    None,
    /// Row groups of a lane are permuted, then rows inside windows of row groups. Reads each row group once.
    ShardBlock {
        /// Row groups of a window, at least 1. A lane's window is what must be in memory.
        window_blocks: u32,
    },
    /// Each lane is permuted as a whole; only where the rank's part of the split fits the memory budget.
    Global,
}

impl Default for Shuffle {
    /// Windows of two row groups.
    fn default() -> Self {
        Self::ShardBlock { window_blocks: 2 }
    }
}

/// What happens to the last, short batch of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tail {
    /// It is delivered as it is.
    #[default]
    Exact,
    /// It is dropped: fewer than `global_batch` samples of the epoch are not delivered.
    Drop,
    /// Every step has `⌈global_batch / W⌉` slots on every rank; slots without a sample have mask 0.
    PadMasked,
}

/// Settings of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanOptions {
    /// The split that is read.
    pub split: String,
    /// Seed of the order.
    #[serde(default)]
    pub seed: u64,
    /// How an epoch is shuffled.
    #[serde(default)]
    pub shuffle: Shuffle,
    /// Samples of a step over all ranks and micro-batches, at least 1.
    pub global_batch: u64,
    /// The last, short batch.
    #[serde(default)]
    pub tail: Tail,
}

impl PlanOptions {
    /// Shuffled batches of `global_batch` samples of `split`, seed 0.
    #[must_use]
    pub fn new(split: impl Into<String>, global_batch: u64) -> Self {
        Self { split: split.into(), seed: 0, shuffle: Shuffle::default(), global_batch, tail: Tail::default() }
    }
}

/// A sample of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sample {
    /// Its lane.
    pub lane: u32,
    /// Row ordinal in its lane.
    pub position: u64,
}

/// A plan over all epochs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plan {
    table: Arc<LaneTable>,
    options: PlanOptions,
    identity: Arc<PlanIdentity>,
    fingerprint: Fingerprint,
}

impl Plan {
    /// The plan of `options` over a shard set.
    ///
    /// # Errors
    /// [`Error::Usage`] for an option out of range, [`Error::Shard`] for an unknown split.
    pub fn new(shards: &ShardSet, options: PlanOptions) -> Result<Self> {
        let table = LaneTable::of(shards, &options.split)?;
        Self::over(Arc::new(table), shards.digest(), options)
    }

    /// The plan of `options` over `table`, whose manifest has the digest `manifest`.
    ///
    /// # Errors
    /// [`Error::Usage`] for an option out of range.
    pub fn over(table: Arc<LaneTable>, manifest: &str, options: PlanOptions) -> Result<Self> {
        if options.global_batch == 0 {
            return Err(Error::usage(
                "global_batch is 0",
                "give the number of samples of one optimizer step, 1 or more",
            ));
        }
        if options.shuffle == (Shuffle::ShardBlock { window_blocks: 0 }) {
            return Err(Error::usage(
                "window_blocks is 0",
                "give the number of row groups shuffled together, 1 or more",
            ));
        }
        let identity = PlanIdentity {
            batching: Batching::Fixed { tail: options.tail },
            manifest: manifest.to_owned(),
            plan_version: PLAN_VERSION,
            rows: table.rows(),
            seed: options.seed,
            shuffle: options.shuffle,
            split: options.split.clone(),
        };
        let fingerprint = Fingerprint::of(&identity)?;
        Ok(Self { table, options, identity: Arc::new(identity), fingerprint })
    }

    /// The lanes.
    #[must_use]
    pub fn table(&self) -> &LaneTable {
        &self.table
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &PlanOptions {
        &self.options
    }

    /// What decides the order.
    #[must_use]
    pub fn identity(&self) -> &PlanIdentity {
        &self.identity
    }

    /// Digest of what decides the order; ranks compare it before they start.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Samples of an epoch, n.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.table.rows()
    }

    /// Steps of a whole epoch, the same on every rank.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps_from(0)
    }

    /// Steps from `index` to the end of the epoch.
    #[must_use]
    pub fn steps_from(&self, index: u64) -> u64 {
        let left = self.rows().saturating_sub(index);
        match self.options.tail {
            Tail::Drop => left / self.options.global_batch,
            Tail::Exact | Tail::PadMasked => left.div_ceil(self.options.global_batch),
        }
    }

    /// Samples of an epoch that are not delivered because the tail is dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        match self.options.tail {
            Tail::Drop => self.rows() % self.options.global_batch,
            Tail::Exact | Tail::PadMasked => 0,
        }
    }

    /// The epoch indices of the step that begins at `index`.
    #[must_use]
    pub fn batch_at(&self, index: u64) -> Range<u64> {
        index..index.saturating_add(self.options.global_batch).min(self.rows()).max(index)
    }

    /// The state at `index` of `epoch`; at the end of the epoch it is the beginning of the next.
    #[must_use]
    pub fn state(&self, epoch: u64, index: u64) -> State {
        let (epoch, index) =
            if index > 0 && self.steps_from(index) == 0 { (epoch.saturating_add(1), 0) } else { (epoch, index) };
        State {
            version: STATE_VERSION,
            fingerprint: self.fingerprint.to_string(),
            epoch,
            index,
            plan: PlanIdentity::clone(&self.identity),
        }
    }

    /// The order of `lane` in `epoch`.
    #[must_use]
    pub fn lane_order(&self, epoch: u64, lane: u32) -> LaneOrder {
        // Without shuffling epochs do not differ, and neither must their keys matter.
        let blocks = self.table.blocks(lane);
        LaneOrder::new(blocks, self.options.shuffle, self.options.seed, &self.fingerprint, epoch, lane)
    }

    /// A reader of the order of `epoch`.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> EpochOrder<'_> {
        EpochOrder { plan: self, epoch, lanes: (0..self.table.lanes()).map(|_| None).collect() }
    }
}

/// The order of one epoch, index by index; keeps the window last used of each lane.
#[derive(Debug)]
pub struct EpochOrder<'a> {
    plan: &'a Plan,
    epoch: u64,
    lanes: Vec<Option<(LaneOrder, WindowOrder)>>,
}

impl EpochOrder<'_> {
    /// The sample at index `t`, `None` past the end. Consecutive indices cost nanoseconds; a jump costs the making of
    /// one window's permutation, wherever it goes.
    pub fn sample(&mut self, t: u64) -> Option<Sample> {
        let (lane, ordinal) = self.plan.table.interleave().at(t)?;
        let position = self.window(lane, ordinal)?.position(ordinal);
        Some(Sample { lane, position })
    }

    /// The window that holds sample `ordinal` of `lane`.
    pub(crate) fn window(&mut self, lane: u32, ordinal: u64) -> Option<&WindowOrder> {
        let slot = self.lanes.get_mut(lane as usize)?;
        let order = match slot.take() {
            Some((order, window)) if window.range().contains(&ordinal) => (order, window),
            Some((order, _)) => {
                let window = order.window(order.window_of(ordinal));
                (order, window)
            }
            None => {
                let order = self.plan.lane_order(self.epoch, lane);
                let window = order.window(order.window_of(ordinal));
                (order, window)
            }
        };
        Some(&slot.insert(order).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{slice::SliceRule, world::World};
    use proptest::prelude::*;
    use std::collections::HashSet;

    pub(crate) fn plan(rows: u64, lanes: u32, nodes: u32, block_rows: u64, options: PlanOptions) -> Plan {
        let table = LaneTable::simulated(rows, lanes, nodes, 0, block_rows).unwrap();
        Plan::over(Arc::new(table), "00", options).unwrap()
    }

    fn options(shuffle: Shuffle, global_batch: u64) -> PlanOptions {
        PlanOptions { shuffle, ..PlanOptions::new("train", global_batch) }
    }

    fn shuffles() -> impl Strategy<Value = Shuffle> {
        prop_oneof![
            Just(Shuffle::None),
            (1_u32..5).prop_map(|window_blocks| Shuffle::ShardBlock { window_blocks }),
            Just(Shuffle::Global)
        ]
    }

    /// Every sample of the split, each once.
    fn all_samples(table: &LaneTable) -> HashSet<Sample> {
        (0..table.lanes())
            .flat_map(|lane| {
                let rows = table.blocks(lane).iter().map(|b| b.rows).sum();
                (0..rows).map(move |position| Sample { lane, position })
            })
            .collect()
    }

    proptest! {
        /// The laws of a plan where groups on one node, or a layout for other machines, make lanes and nodes uneven.
        #[test]
        fn lanes_of_any_length_keep_every_law(
            lengths in proptest::collection::vec(prop_oneof![1 => Just(0_u64), 4 => 0_u64..80], 1..14),
            nodes in 1_u32..6, first_node in 0_u32..5, block in 1_u64..30, shuffle in shuffles(),
            batches in (1_u64..50, 1_u64..50), worlds in (1_u32..9, 1_u32..9), at in any::<u64>(),
        ) {
            let nodes = nodes.min(lengths.len() as u32);
            let table = Arc::new(LaneTable::simulated_lanes(&lengths, nodes, first_node % nodes, block).unwrap());
            let of = |batch| Plan::over(Arc::clone(&table), "00", options(shuffle, batch)).unwrap();
            let (whole, rest) = (of(batches.0), of(batches.1));
            prop_assert_eq!(whole.fingerprint(), rest.fingerprint());
            let rows = whole.rows();
            prop_assert_eq!(rows, lengths.iter().sum::<u64>());

            // A bijection, whatever was asked for before.
            let mut scan = whole.epoch(1);
            let scanned: Vec<Sample> = (0..rows).map(|t| scan.sample(t).unwrap()).collect();
            prop_assert_eq!(scan.sample(rows), None);
            prop_assert_eq!(scanned.iter().copied().collect::<HashSet<_>>(), all_samples(&table));
            if rows > 0 {
                let t = at % rows;
                prop_assert_eq!(whole.epoch(1).sample(t), Some(scanned[t as usize]));
            }

            // Stopped anywhere, gone on with by another world in other batches: each step has the plan's samples.
            let stop = at % (whole.steps() + 1);
            let mut index = 0;
            let mut steps = 0;
            while steps < stop + rest.steps_from((stop * batches.0).min(rows)) {
                let (plan, world_size) = if steps < stop { (&whole, worlds.0) } else { (&rest, worlds.1) };
                let range = plan.batch_at(index);
                prop_assert!(!range.is_empty());
                index = range.end;
                let mut got = HashSet::new();
                let mut order = plan.epoch(1);
                for rank in 0..world_size {
                    let rule = SliceRule::new(&table, &World::new(rank, world_size, 1).unwrap());
                    for run in rule.slice(&table, &range) {
                        for ordinal in run.ordinals.clone() {
                            let position = order.window(run.lane, ordinal).unwrap().position(ordinal);
                            let sample = Sample { lane: run.lane, position };
                            prop_assert!(got.insert(sample));
                        }
                    }
                }
                let want = scanned[range.start as usize..range.end as usize].iter().copied().collect::<HashSet<_>>();
                prop_assert_eq!(got, want);
                steps += 1;
            }
            prop_assert_eq!(index, rows);
        }

        #[test]
        fn the_order_is_a_bijection(
            rows in 0_u64..600, nodes in 1_u32..4, per in 1_u32..4, block in 1_u64..40, epoch in 0_u64..5, shuffle in shuffles(),
        ) {
            let plan = plan(rows, nodes * per, nodes, block, options(shuffle, 7));
            let mut order = plan.epoch(epoch);
            let samples: HashSet<Sample> = (0..rows).map(|t| order.sample(t).unwrap()).collect();
            prop_assert_eq!(samples.len() as u64, rows);
            for s in &samples {
                let length = rows.saturating_sub(u64::from(s.lane)).div_ceil(u64::from(nodes * per));
                prop_assert!(s.position < length);
            }
            prop_assert_eq!(order.sample(rows), None);
        }

        #[test]
        fn a_seek_gives_what_a_scan_gives(rows in 1_u64..500, block in 1_u64..40, shuffle in shuffles(), at in any::<u64>()) {
            let plan = plan(rows, 4, 2, block, options(shuffle, 7));
            let at = at % rows;
            let mut scan = plan.epoch(1);
            let scanned: Vec<_> = (0..rows).map(|t| scan.sample(t)).collect();
            prop_assert_eq!(plan.epoch(1).sample(at), scanned[at as usize]);
            let mut backwards = plan.epoch(1);
            for t in (0..rows).rev() {
                prop_assert_eq!(backwards.sample(t), scanned[t as usize]);
            }
        }

        #[test]
        fn every_rank_takes_the_same_steps_and_any_world_may_take_over(
            rows in 1_u64..500, batch in 1_u64..60, first in 1_u32..17, second in 1_u32..17, batch2 in 1_u64..60, at in any::<u64>(),
        ) {
            let whole = plan(rows, 12, 3, 9, options(Shuffle::default(), batch));
            let rest = plan(rows, 12, 3, 9, options(Shuffle::default(), batch2));
            prop_assert_eq!(whole.fingerprint(), rest.fingerprint());
            let stop = at % (whole.steps() + 1);
            let mut seen = HashSet::new();
            let mut take = |plan: &Plan, world_size: u32, range: Range<u64>| {
                let mut order = plan.epoch(2);
                for rank in 0..world_size {
                    let rule = SliceRule::new(plan.table(), &World::new(rank, world_size, 1).unwrap());
                    for run in rule.slice(plan.table(), &range) {
                        for ordinal in run.ordinals.clone() {
                            let position = order.window(run.lane, ordinal).unwrap().position(ordinal);
                            assert!(seen.insert(Sample { lane: run.lane, position }));
                        }
                    }
                }
            };
            let mut index = 0;
            for _ in 0..stop {
                let range = whole.batch_at(index);
                index = range.end;
                take(&whole, first, range);
            }
            let steps = rest.steps_from(index);
            for step in 0..steps {
                let range = rest.batch_at(index);
                prop_assert!(!range.is_empty() && (range.end < rows || step + 1 == steps));
                index = range.end;
                take(&rest, second, range);
            }
            prop_assert_eq!(seen.len() as u64, rows);
        }
    }

    #[test]
    fn epochs_seeds_and_splits_have_orders_of_their_own() {
        let base = options(Shuffle::default(), 10);
        let order = |plan: &Plan, epoch| {
            let mut order = plan.epoch(epoch);
            (0..1000).map(|t| order.sample(t).unwrap()).collect::<Vec<_>>()
        };
        let a = plan(1000, 4, 2, 50, base.clone());
        let seeded = plan(1000, 4, 2, 50, PlanOptions { seed: 1, ..base.clone() });
        let split = plan(1000, 4, 2, 50, PlanOptions { split: "test".into(), ..base.clone() });
        let first = order(&a, 0);
        assert_eq!(first, order(&a, 0));
        assert_ne!(first, order(&a, 1));
        assert_ne!(first, order(&seeded, 0));
        assert_ne!(first, order(&split, 0));
        let none = plan(1000, 4, 2, 50, options(Shuffle::None, 10));
        assert_eq!(order(&none, 0), order(&none, 1));
        assert_eq!(none.epoch(0).sample(9), Some(Sample { lane: 1, position: 2 }));
    }

    #[test]
    fn golden_orders_never_change() {
        let plan = plan(100, 4, 2, 5, options(Shuffle::ShardBlock { window_blocks: 2 }, 10));
        let mut order = plan.epoch(0);
        let got: Vec<u64> = (0..12).map(|t| order.sample(t).unwrap().position).collect();
        assert_eq!(got, GOLDEN_ORDER);
    }

    // Made once by this code and committed: a change is a new PLAN_VERSION.
    const GOLDEN_ORDER: [u64; 12] = [13, 11, 15, 9, 18, 10, 11, 8, 11, 13, 13, 5];

    #[test]
    fn tails_are_counted() {
        let steps = |tail, rows, batch| {
            let p = plan(rows, 4, 2, 50, PlanOptions { tail, ..options(Shuffle::None, batch) });
            (p.steps(), p.dropped())
        };
        assert_eq!(steps(Tail::Exact, 1000, 300), (4, 0));
        assert_eq!(steps(Tail::PadMasked, 1000, 300), (4, 0));
        assert_eq!(steps(Tail::Drop, 1000, 300), (3, 100));
        assert_eq!(steps(Tail::Drop, 900, 300), (3, 0));
        assert_eq!(steps(Tail::Exact, 0, 300), (0, 0));
        assert_eq!(steps(Tail::Drop, 10, 300), (0, 10));
    }

    #[test]
    fn the_state_after_the_last_step_is_the_next_epoch() {
        let p = plan(10, 2, 1, 5, options(Shuffle::None, 4));
        assert_eq!((p.state(3, 8).epoch, p.state(3, 8).index), (3, 8));
        assert_eq!((p.state(3, 10).epoch, p.state(3, 10).index), (4, 0));
        let drop = plan(10, 2, 1, 5, PlanOptions { tail: Tail::Drop, ..options(Shuffle::None, 4) });
        assert_eq!((drop.state(3, 8).epoch, drop.state(3, 8).index), (4, 0));
        // An epoch without a step begins where it is asked to.
        let none = plan(3, 2, 1, 5, PlanOptions { tail: Tail::Drop, ..options(Shuffle::None, 4) });
        assert_eq!((none.state(3, 0).epoch, none.state(3, 0).index), (3, 0));
        assert!(
            Plan::over(Arc::new(LaneTable::simulated(1, 1, 1, 0, 1).unwrap()), "0", options(Shuffle::None, 0)).is_err()
        );
    }
}
