//! Bijection, slices, equal steps, restore, changes of world.

use std::collections::BTreeMap;

use gristmill_loader::{
    Error, Plan, PlanOptions, Replay, ReplayOptions, World,
    batching::options::{Batching, Scope},
    conformance::{EpochOrdering, check_changes, check_coverage, check_seek, check_worlds},
    curriculum::Curriculum,
    mixture::{MixOptions, Stop, Weight},
    replay,
    replay::WorldFrom,
    sampling::options::Sampling,
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use crate::kinds::{Asked, plans};

/// The plan, unless what was asked for can't be for a reason that has to do with the data.
fn planned(asked: &Asked) -> Result<Option<Plan>, TestCaseError> {
    match asked.plan() {
        Ok(plan) => Ok(Some(plan)),
        Err(Error::Usage { what, help }) => {
            let known = [
                // A mix of a source without rows, or with too small a part; nothing that could be drawn.
                "source",
                "stage",
                "epoch",
                "weight",
                "class",
                "samples",
                "filter",
                "such values",
                "windows of nodes",
                "no samples",
                "rows",
            ];
            prop_assert!(known.iter().any(|k| what.contains(k)), "{what}\n{help}");
            Ok(None)
        }
        Err(other) => Err(TestCaseError::fail(other.to_string())),
    }
}

fn replayed(plan: &Plan, epoch: u64, worlds: Vec<WorldFrom>) -> Replay {
    let mut options = ReplayOptions::new(epoch, 1, 1);
    options.worlds = worlds;
    options.classes = Some("class".into());
    options.difficulty = Some("hard".into());
    options.lengths = Some("length".into());
    replay(plan, &options).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(1500), max_global_rejects: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_keeps_every_law(
        asked in plans(400), epoch in 0_u64..4, worlds in (1_u32..5, 1_u32..17, 1_u32..5, 1_u32..9), at in any::<[u64; 3]>(),
    ) {
        let Some(plan) = planned(&asked)? else { return Ok(()) };
        let fail = |e: Error| TestCaseError::fail(format!("{e}\n{asked:#?}"));
        let delivered = check_coverage(&plan, epoch).map_err(fail)?;
        let (machines, second) = ((worlds.0, worlds.1), (worlds.2, worlds.3));
        check_worlds(&plan, epoch, machines.0 * machines.1, machines.0).map_err(fail)?;
        let steps = plan.steps(epoch).unwrap();
        // Parts of a step of a fixed number of samples differ by at most one.
        let is_fixed = plan.options().batching == Batching::Fixed;
        let mut unit = 0;
        for _ in 0..if is_fixed { steps.min(20) } else { 0 } {
            let units = plan.batch_at(epoch, unit).unwrap();
            unit = units.end;
            let size = |rank| {
                let world = World::new(rank, machines.0 * machines.1, machines.1).unwrap();
                EpochOrdering::part(&plan, epoch, &units, &world).unwrap().concat().len()
            };
            let sizes: Vec<usize> = (0..machines.0 * machines.1).map(size).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
        }
        let mut stops = at.map(|at| at % (steps + 1));
        stops.sort_unstable();
        let changes = [
            (0, machines.0 * machines.1, machines.0),
            (stops[0], second.0 * second.1, second.0),
            (stops[1], 1, 1),
            (stops[2], second.1, 1),
        ];
        check_changes(&plan, epoch, &changes).map_err(fail)?;
        // Stopped at every step in turn, where there are few.
        for stop in 0..if steps <= 12 { steps + 1 } else { 0 } {
            let taken_over = [(0, machines.1, 1), (stop, second.0, second.0)];
            check_changes(&plan, epoch, &taken_over).map_err(fail)?;
        }
        if steps > 0 {
            let again = asked.plan().unwrap();
            prop_assert_eq!(plan.fingerprint(), again.fingerprint());
            let world = World::new(second.1 - 1, second.0 * second.1, second.1).unwrap();
            check_seek(&plan, &again, epoch, stops[0].min(steps - 1), &world).map_err(fail)?;
        }
        // What the replay says is what the checks found.
        let mut last = None;
        let taken_over = changes.into_iter().filter(|change| last.replace(change.0) != Some(change.0));
        let worlds: Vec<WorldFrom> =
            taken_over.map(|(step, world_size, machines)| WorldFrom { step, world_size, machines }).collect();
        let replayed = replayed(&plan, epoch, worlds);
        prop_assert_eq!(replayed.steps_per_rank, steps);
        if plan.options().is_exactly_once() {
            prop_assert_eq!((replayed.missing, replayed.repeated), (0, 0));
        }
        let of_worlds: u64 = replayed.worlds.iter().flat_map(|w| &w.rows_per_rank).sum();
        prop_assert_eq!(of_worlds, delivered);
        let of_stretches: u64 = replayed.stretches.iter().map(|s| s.samples).sum();
        prop_assert_eq!(of_stretches, replayed.delivered);
        let of_steps: u64 = replayed.stretches.iter().map(|s| s.steps).sum();
        prop_assert_eq!(of_steps, steps);
        let of_classes: u64 = replayed.stretches.iter().flat_map(|s| &s.classes).sum();
        prop_assert_eq!(of_classes, replayed.delivered);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(6), ..ProptestConfig::default() })]

    /// Large plans by the replay, which has a bit for each row.
    #[test]
    fn large_plans_are_covered(
        asked in plans(1_000_000), epoch in 0_u64..3, world in (1_u32..5, 1_u32..17), then in (1_u32..5, 1_u32..17), at in any::<u64>(),
    ) {
        // A step for a row or two would only test patience.
        let mut asked = asked;
        asked.options.global_batch = asked.options.global_batch * 97 + 1000;
        let Some(plan) = planned(&asked)? else { return Ok(()) };
        let steps = plan.steps(epoch).unwrap();
        let changes = vec![
            WorldFrom { step: 0, world_size: world.0 * world.1, machines: world.0 },
            WorldFrom { step: 1 + at % (steps + 1), world_size: then.0 * then.1, machines: then.0 },
        ];
        let changes = changes.into_iter().filter(|change| change.step <= steps).collect();
        let replayed = replayed(&plan, epoch, changes);
        if plan.options().is_exactly_once() {
            prop_assert_eq!((replayed.missing, replayed.repeated), (0, 0), "{:#?}", asked);
        }
        prop_assert_eq!(replayed.steps_per_rank, steps);
    }
}

#[test]
fn random_plans_are_of_every_kind() {
    let mut runner = TestRunner::deterministic();
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    let mut planned = 0;
    for _ in 0..4000 {
        let asked = plans(400).new_tree(&mut runner).unwrap().current();
        let Ok(plan) = asked.plan() else { continue };
        planned += 1;
        let options = plan.options();
        let order = match (&options.curriculum, &options.sampling) {
            (Some(Curriculum::Ordered { .. }), _) => "ordered",
            (Some(Curriculum::Paced { .. }), _) => "paced",
            (_, Some(Sampling::Weighted { .. })) => "weighted",
            (_, Some(Sampling::Balanced { .. })) => "balanced",
            _ => "shuffled",
        };
        let batching = match &options.batching {
            Batching::Fixed => "fixed",
            Batching::Budget { scope: Scope::All, .. } => "budget",
            Batching::Budget { scope: Scope::Node, .. } => "node budget",
            Batching::Packed { .. } => "packed",
        };
        let mixed = if options.mix.is_some() { "mixed" } else { "one source" };
        for kind in [order, batching, mixed] {
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
        *kinds.entry(format!("{order}, {batching}, {mixed}")).or_default() += 1;
        *kinds.entry(if options.filters.is_empty() { "all rows" } else { "filtered" }.to_owned()).or_default() += 1;
    }
    assert!(planned > 2800, "{planned} of 4000 could be planned");
    // Five orders, four batchings, one source or several (windows of nodes are for one), and what they are made of.
    assert_eq!(kinds.len(), 5 * (4 + 3) + 5 + 4 + 2 + 2, "{kinds:#?}");
    assert!(kinds.iter().filter(|(kind, _)| !kind.contains(',')).all(|(_, n)| *n > 40), "{kinds:#?}");
}

/// `PROPTEST_CASES` times as many, in hundreds, for long runs.
fn cases(cases: u32) -> u32 {
    let times = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse::<u32>().ok()).map_or(1, |n| n.div_ceil(100));
    cases * times.max(1)
}

#[test]
fn a_step_over_the_end_of_a_pass_is_cut_as_evenly_as_any() {
    // Two passes of 102 rows over 4 even lanes in one step: whole lanes would give 52, 52, 50 and 50.
    let mix = MixOptions::new(vec![Weight::from(1)], Stop::Samples(204));
    let options = PlanOptions { mix: Some(mix), ..PlanOptions::new("simulated", 204) };
    let source = crate::kinds::source(&[26, 26, 25, 25], 2, 0, 7, 0);
    let plan = Plan::over(vec![source], options).unwrap();
    let units = plan.batch_at(0, 0).unwrap();
    let size = |rank| EpochOrdering::part(&plan, 0, &units, &World::new(rank, 4, 2).unwrap()).unwrap().concat().len();
    assert_eq!([0, 1, 2, 3].map(size), [51; 4]);
    check_coverage(&plan, 0).unwrap();
}

/// An order that keeps no promise in one way or another: the suite must find it out.
struct Broken<'a>(&'a Plan, &'static str);

impl EpochOrdering for Broken<'_> {
    fn declared(&self, epoch: u64) -> gristmill_loader::Result<Option<Vec<gristmill_loader::conformance::Declared>>> {
        self.0.declared(epoch)
    }
    fn steps_from(&self, epoch: u64, unit: u64) -> gristmill_loader::Result<u64> {
        EpochOrdering::steps_from(self.0, epoch, unit)
    }
    fn step_at(&self, epoch: u64, unit: u64) -> gristmill_loader::Result<std::ops::Range<u64>> {
        self.0.step_at(epoch, unit)
    }
    fn part(
        &self,
        epoch: u64,
        units: &std::ops::Range<u64>,
        world: &World,
    ) -> gristmill_loader::Result<Vec<Vec<gristmill_loader::conformance::Delivered>>> {
        let mut part = EpochOrdering::part(self.0, epoch, units, world)?;
        match self.1 {
            "a row twice" if units.start == 0 => {
                let row = part[0][0].clone();
                part[0].push(row);
            }
            "a row less" if units.start == 0 => {
                part[0].pop();
            }
            "rows by rank" if world.world_size() > 1 && world.rank() == 0 => part[0].reverse(),
            "a row of another rank" if world.rank() == 1 => {
                part = EpochOrdering::part(self.0, epoch, units, &World::new(0, world.world_size(), 1)?)?;
            }
            "micro-batches by rank" if world.rank() == 1 => part.push(Vec::new()),
            _ => {}
        }
        Ok(part)
    }
    fn save(&self, epoch: u64, unit: u64) -> gristmill_loader::Result<String> {
        self.0.save(epoch, if self.1 == "a state too early" && unit > 0 { unit - 1 } else { unit })
    }
    fn restore(&self, saved: &str) -> gristmill_loader::Result<(u64, u64)> {
        self.0.restore(saved)
    }
    fn dropped(&self, epoch: u64) -> gristmill_loader::Result<Vec<gristmill_loader::conformance::Delivered>> {
        EpochOrdering::dropped(self.0, epoch)
    }
}

#[test]
fn the_suite_finds_every_kind_of_fault() {
    let plan = Plan::over(vec![crate::kinds::source(&[30, 30, 29, 29], 2, 0, 7, 0)], PlanOptions::new("simulated", 20))
        .unwrap();
    let checks = |fault: &'static str| {
        let broken = Broken(&plan, fault);
        [
            check_coverage(&broken, 0).is_err(),
            check_worlds(&broken, 0, 2, 1).is_err(),
            check_changes(&broken, 0, &[(0, 2, 1), (3, 4, 2)]).is_err(),
            check_seek(&broken, &plan, 0, 0, &World::new(0, 2, 1).unwrap()).is_err(),
        ]
    };
    assert_eq!(checks("none"), [false; 4]);
    assert_eq!(checks("a row twice"), [true, true, true, true]);
    assert_eq!(checks("a row less"), [true, true, true, true]);
    assert_eq!(checks("rows by rank"), [false, false, false, true]);
    assert_eq!(checks("a row of another rank"), [false, true, true, false]);
    assert_eq!(checks("micro-batches by rank"), [false, true, true, false]);
    assert_eq!(checks("a state too early"), [false, false, true, false]);
}
