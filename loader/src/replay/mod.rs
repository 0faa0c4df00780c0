//! Replays an epoch of a plan for whole worlds without reading data: what is delivered, by whom, and what is read.

mod chunk;
mod coverage;
pub mod report;

use std::ops::Range;

use rayon::prelude::*;
use serde::Serialize;

use crate::{
    curriculum::RampReport,
    error::{Error, Result},
    plan::Plan,
    slice::SliceRule,
    state::State,
    steps::{RankPart, StepPlanner},
    world::{World, check_world_size},
};
use chunk::{Chunk, Totals, replay_chunk};
use coverage::{Bits, Coverage};

/// What is replayed, and what is shown of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayOptions {
    /// The epoch.
    pub epoch: u64,
    /// The world of the first step, and those that take over; steps ascending, the first 0.
    pub worlds: Vec<WorldFrom>,
    /// Column of classes that are counted.
    pub classes: Option<String>,
    /// Column whose course over the epoch is shown; by default that of the curriculum.
    pub difficulty: Option<String>,
    /// Column of lengths; by default that of the batching.
    pub lengths: Option<String>,
    /// Stretches of steps in which the course of an epoch is shown, at least 1.
    pub stretches: u32,
}

/// A world that begins at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldFrom {
    /// Its first step.
    pub step: u64,
    /// Ranks.
    pub world_size: u32,
    /// Machines that they are on; divides the ranks.
    pub machines: u32,
}

impl ReplayOptions {
    /// `epoch`, by `world_size` ranks on `machines` machines throughout.
    #[must_use]
    pub fn new(epoch: u64, world_size: u32, machines: u32) -> Self {
        let worlds = vec![WorldFrom { step: 0, world_size, machines }];
        Self { epoch, worlds, classes: None, difficulty: None, lengths: None, stretches: 40 }
    }
}

/// What an epoch delivers and reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// The epoch.
    pub epoch: u64,
    /// Rows of the sources' splits.
    pub rows: u64,
    /// Rows that the filter leaves out.
    pub filtered: u64,
    /// Whether the plan delivers each row that takes part once in each pass.
    pub exactly_once: bool,
    /// Whether the plan delivers no row twice in a pass.
    pub at_most_once: bool,
    /// Samples delivered, repeats counted.
    pub delivered: u64,
    /// Samples that the plan drops with the tail.
    pub dropped: u64,
    /// Rows that take part in the epoch and neither were delivered nor are dropped: 0, or the plan is broken, where it is
    /// exactly once. Else rows that the epoch does not draw.
    pub missing: u64,
    /// Deliveries of a row that had been delivered before in its pass. 0, or the plan is broken, where it is at most once.
    pub repeated: u64,
    /// Steps of every rank.
    pub steps_per_rank: u64,
    /// Each world and what its ranks do.
    pub worlds: Vec<WorldReplay>,
    /// The sources, where there are several.
    pub sources: Vec<SourceReplay>,
    /// Tokens, where lengths are known.
    pub tokens: Option<Tokens>,
    /// What became of the curriculum's pacing in the first pass over the first source.
    pub pacing: Option<RampReport>,
    /// Values of the classes that are counted, the most frequent first; the last count of a stretch is of all others.
    pub classes: Vec<i64>,
    /// The course of the epoch.
    pub stretches: Vec<Stretch>,
}

/// A world from its first step to the next world's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorldReplay {
    /// Its first step.
    pub first_step: u64,
    /// Its steps, of every rank.
    pub steps: u64,
    /// Ranks.
    pub world_size: u32,
    /// Machines.
    pub machines: u32,
    /// Rows of each rank; parts of rows where they are packed.
    pub rows_per_rank: Vec<u64>,
    /// Tokens of each rank, where lengths are known.
    pub tokens_per_rank: Vec<u64>,
    /// Steps in which a rank had nothing but a filler slot, over all ranks.
    pub empty_slices: u64,
    /// Reads of each machine.
    pub reads: Vec<MachineReads>,
    /// Bytes read by all ranks over the bytes of the row groups that any of them reads; 1 is the least.
    pub read_amplification: f64,
}

/// Row groups that the ranks of a machine read. A row group that two ranks need counts twice.
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

/// A source of a mix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceReplay {
    /// Its split.
    pub split: String,
    /// Rows of a pass.
    pub rows: u64,
    /// Samples of the epoch.
    pub draws: u64,
    /// Passes complete at the end of the epoch, those of epochs before included.
    pub passes: u64,
    /// The part of the epoch that it has.
    pub share: f64,
    /// The part that the weights ask for, over the stages of the epoch.
    pub asked: f64,
}

/// Tokens of an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Tokens {
    /// Tokens of rows.
    pub real: u64,
    /// Tokens with padding, each micro-batch to its longest row, or bins as a whole.
    pub padded: u64,
    /// The part of `padded` that is padding.
    pub padding: f64,
    /// Tokens of rows that are dropped with the tail.
    pub dropped: u64,
    /// Real tokens of the rank that has most over the mean of the ranks, less 1, mean over steps.
    pub imbalance_mean: f64,
    /// The same, of the worst step.
    pub imbalance_worst: f64,
}

/// A stretch of steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stretch {
    /// Its first step.
    pub first_step: u64,
    /// Its steps.
    pub steps: u64,
    /// Samples delivered.
    pub samples: u64,
    /// Difficulty of them, where there is one.
    pub difficulty: Option<Difficulty>,
    /// Samples of each class, and of all others.
    pub classes: Vec<u64>,
    /// Samples of each source.
    pub sources: Vec<u64>,
    /// Real tokens.
    pub tokens: u64,
    /// Tokens with padding.
    pub padded: u64,
}

/// Difficulties of some samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Difficulty {
    /// Smallest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Largest.
    pub max: f64,
}

/// Ranks of a world that is replayed.
const RANKS_MAX: u32 = 16_384;

/// Classes that are told apart in a stretch.
const CLASSES_SHOWN: usize = 12;

/// Replays an epoch of `plan`. Where a world takes over from another, it does so from the state that the other would have
/// saved. Takes time in the order of the samples (tens of nanoseconds each, on all threads) and a bit of memory for each.
///
/// # Errors
/// [`Error::Usage`] when the ranks of a world can't be spread evenly over its machines, or are more than
/// [`crate::world::MAX_WORLD_SIZE`], when worlds are out of order, or for a column that is not there.
pub fn replay(plan: &Plan, options: &ReplayOptions) -> Result<Replay> {
    let epoch = options.epoch;
    let steps = plan.steps(epoch)?;
    let worlds = worlds(plan, options, steps)?;
    let columns = chunk::ShownColumns::new(plan, options)?;
    let coverage = Coverage::new(plan, epoch)?;
    let blocks = chunk::BlockNumbers::new(plan);
    let read: Vec<Vec<Bits>> =
        (worlds.iter()).map(|world| (0..world.size).map(|_| Bits::new(blocks.count())).collect()).collect();
    let stretches = u64::from(options.stretches.max(1)).min(steps.max(1));
    let chunks: Vec<Chunk> = chunks(&worlds, steps, stretches);
    let context = chunk::Context { plan, epoch, columns: &columns, coverage: &coverage, blocks: &blocks };
    let done = (chunks.par_iter())
        .map(|chunk| {
            let (Some(world), Some(read)) = (worlds.get(chunk.world), read.get(chunk.world)) else {
                return Err(Error::internal("a chunk without a world"));
            };
            replay_chunk(&context, &world.rules, read, chunk)
        })
        .collect::<Result<Vec<Totals>>>()?;

    let first_pass = coverage.first_pass(0);
    let (dropped, dropped_tokens) = dropped(&context, steps)?;
    let mut whole = Totals::default();
    let mut of_world: Vec<Totals> = worlds.iter().map(|_| Totals::default()).collect();
    let mut of_stretch: Vec<(u64, u64, Totals)> = Vec::new();
    for (chunk, totals) in chunks.iter().zip(&done) {
        whole.add(totals);
        if let Some(world) = of_world.get_mut(chunk.world) {
            world.add(totals);
        }
        let goes_on = chunk.stretch + 1 == of_stretch.len() as u64;
        match of_stretch.last_mut() {
            Some((_, steps, sum)) if goes_on => {
                *steps += chunk.steps.end - chunk.steps.start;
                sum.add(totals);
            }
            _ => {
                let mut sum = Totals::default();
                sum.add(totals);
                of_stretch.push((chunk.steps.start, chunk.steps.end - chunk.steps.start, sum));
            }
        }
    }
    let shown: Vec<i64> = whole.most_frequent(CLASSES_SHOWN);
    let exactly_once = plan.options().is_exactly_once();
    let split_rows: u64 = plan.sources().iter().map(|source| source.table.split_rows()).sum();
    let kept: u64 = plan.sources().iter().map(|source| source.table.rows()).sum();
    let (distinct, expected) = (coverage.distinct(), coverage.expected());
    let missing = if exactly_once { expected.saturating_sub(distinct) } else { coverage.undrawn(plan) };
    // More rows than the epoch has are as wrong as the same ones twice.
    let surplus = if exactly_once { distinct.saturating_sub(expected) } else { 0 };
    let worlds = worlds.iter().zip(of_world).zip(&read).map(|((world, totals), read)| WorldReplay {
        first_step: world.steps.start,
        steps: world.steps.end - world.steps.start,
        world_size: world.size,
        machines: world.machines,
        rows_per_rank: totals.rows_per_rank,
        tokens_per_rank: if columns.lengths.is_some() { totals.tokens_per_rank } else { Vec::new() },
        empty_slices: totals.empty_slices,
        read_amplification: blocks.amplification(plan, read),
        reads: blocks.reads(plan, read, world.machines, world.size / world.machines),
    });
    Ok(Replay {
        epoch,
        rows: split_rows,
        filtered: split_rows - kept,
        exactly_once,
        at_most_once: plan.options().is_at_most_once(),
        delivered: whole.delivered,
        dropped,
        missing,
        repeated: whole.repeated + surplus,
        steps_per_rank: steps,
        worlds: worlds.collect(),
        sources: sources(plan, epoch),
        tokens: columns.lengths.as_ref().map(|_| Tokens { dropped: dropped_tokens, ..whole.tokens() }),
        pacing: first_pass.and_then(|pass| plan.paced(0, pass)).map(|(_, report)| *report),
        stretches: of_stretch.into_iter().map(|(first, steps, t)| t.stretch(first, steps, &shown)).collect(),
        classes: shown,
    })
}

/// A world with its steps.
struct PlannedWorld {
    size: u32,
    machines: u32,
    steps: Range<u64>,
    rules: Vec<SliceRule>,
}

fn worlds(plan: &Plan, options: &ReplayOptions, steps: u64) -> Result<Vec<PlannedWorld>> {
    let mut worlds = Vec::with_capacity(options.worlds.len());
    let starts_well = options.worlds.first().is_some_and(|world| world.step == 0);
    if !starts_well || !options.worlds.is_sorted_by(|a, b| a.step < b.step) {
        return Err(Error::usage(
            "worlds do not begin at step 0 and ascend",
            "list each change once, in order of its step, after step 0",
        ));
    }
    let ends = options.worlds.iter().skip(1).map(|world| world.step).chain([steps]);
    for (world, end) in options.worlds.iter().zip(ends) {
        let WorldFrom { step, world_size, machines } = *world;
        // Before anything is allocated for each rank.
        check_world_size(world_size)?;
        if world_size > RANKS_MAX {
            return Err(Error::usage(
                format!("a world of {world_size} ranks is too large to be replayed"),
                format!("replay one of at most {RANKS_MAX} ranks"),
            ));
        }
        if machines == 0 || !world_size.is_multiple_of(machines) {
            return Err(Error::usage(
                format!("{world_size} ranks can't be spread evenly over {machines} machines"),
                "give a world size that is a multiple of the machines",
            ));
        }
        if step > steps || end > steps {
            return Err(Error::usage(
                format!("a world begins at step {} of an epoch of {steps}", step.max(end)),
                format!("give steps from 0 to {steps}"),
            ));
        }
        let rules = (0..world_size)
            .map(|rank| Ok(SliceRule::new(plan, &World::new(rank, world_size, world_size / machines)?)))
            .collect::<Result<Vec<_>>>()?;
        worlds.push(PlannedWorld { size: world_size, machines, steps: step..end.max(step), rules });
    }
    Ok(worlds)
}

/// The steps cut where a world, a stretch or a piece of work ends.
fn chunks(worlds: &[PlannedWorld], steps: u64, stretches: u64) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let at = |stretch: u64| (u128::from(steps) * u128::from(stretch) / u128::from(stretches)) as u64;
    for stretch in 0..stretches {
        for (number, world) in worlds.iter().enumerate() {
            let start = at(stretch).max(world.steps.start);
            let end = at(stretch + 1).min(world.steps.end);
            if start < end {
                chunks.push(Chunk { world: number, stretch, steps: start..end });
            }
        }
    }
    chunks
}

/// Samples that are dropped with the tail, and their tokens. They count as covered where rows are delivered once.
fn dropped(context: &chunk::Context<'_>, steps: u64) -> Result<(u64, u64)> {
    let (plan, epoch) = (context.plan, context.epoch);
    let units = plan.units(epoch)?;
    let rest = units - plan.dropped(epoch)?..units;
    if rest.is_empty() || (steps == 0 && units == 0) {
        return Ok((0, 0));
    }
    let mut planner = StepPlanner::new(plan, epoch)?;
    let step = planner.step(&rest)?;
    let part = SliceRule::new(plan, &World::single()).part(plan, epoch, &step)?;
    let exactly_once = plan.options().is_exactly_once();
    let (mut dropped, mut tokens) = (0, 0);
    if let RankPart::Bins(bins) = &part {
        tokens = bins.iter().flatten().map(|segment| u64::from(segment.length)).sum();
    }
    let is_whole = tokens == 0;
    part.for_each_row(|slot| {
        let position = planner.order().position(&slot)?;
        if is_whole {
            tokens += context.columns.length(&slot, position);
        }
        // A row of which bins before have the beginning was delivered.
        dropped += u64::from(!exactly_once || context.coverage.insert(&slot, position));
        Ok(())
    })?;
    Ok((dropped, tokens))
}

fn sources(plan: &Plan, epoch: u64) -> Vec<SourceReplay> {
    let Some(mixture) = plan.mixture() else { return Vec::new() };
    let length = plan.samples(epoch);
    let stages = mixture.stages(epoch);
    let ends = stages.iter().skip(1).map(|stage| stage.start()).chain([length]);
    let spans: Vec<u64> = stages.iter().zip(ends).map(|(stage, end)| end.saturating_sub(stage.start())).collect();
    let share = |count: f64| if length == 0 { 0.0 } else { count / length as f64 };
    (0..)
        .zip(plan.sources())
        .zip(mixture.taken(epoch))
        .map(|((source, planned), taken)| {
            let asked: f64 = (stages.iter().zip(&spans))
                .map(|(stage, span)| {
                    let turns = stage.turns();
                    *span as f64 * turns.part(source) as f64 / turns.period() as f64
                })
                .sum();
            SourceReplay {
                split: planned.table.split().to_owned(),
                rows: planned.samples(),
                draws: taken.draws,
                passes: taken.passes,
                share: share(taken.draws as f64),
                asked: share(asked),
            }
        })
        .collect()
}

/// The unit at which step `step` of `epoch` begins, from the state that a run would have saved after the step before.
pub(crate) fn first_unit(plan: &Plan, epoch: u64, step: u64) -> Result<u64> {
    let unit = step.saturating_mul(plan.step_units()).min(plan.units(epoch)?);
    let state = State::from_json(&plan.state(epoch, unit)?.to_json()?)?;
    state.check(plan)?;
    // After the last step the state is the beginning of the next epoch.
    Ok(if state.epoch == epoch { state.index } else { plan.units(epoch)? })
}
