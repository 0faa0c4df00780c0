//! The laws of an epoch's order: what it delivers, the same for every world and through any interruption.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
};

use crate::{
    error::{Error, Result},
    plan::{Plan, Sample},
    slice::SliceRule,
    state::State,
    steps::{RankPart, StepPlanner},
    world::World,
};

/// A row, or a part of one, that was delivered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delivered {
    /// The row.
    pub sample: Sample,
    /// The pass over its source.
    pub pass: u64,
    /// The tokens of it that were delivered; `0..0` where rows are not split.
    pub tokens: Range<u32>,
}

/// What an epoch says that it delivers of one pass over a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The source.
    pub source: u32,
    /// The pass.
    pub pass: u64,
    /// How many rows.
    pub rows: u64,
    /// Of which rows, all of them when `rows` is as many.
    pub of: HashSet<Sample>,
}

/// An order of epochs that is cut into steps and shared by ranks. Units are what steps are counted in: samples, say.
pub trait EpochOrdering {
    /// What `epoch` delivers, once each; `None` where rows may come again or not at all.
    ///
    /// # Errors
    /// Its own.
    fn declared(&self, epoch: u64) -> Result<Option<Vec<Declared>>>;

    /// Steps from unit `unit` to the end of `epoch`.
    ///
    /// # Errors
    /// Its own.
    fn steps_from(&self, epoch: u64, unit: u64) -> Result<u64>;

    /// The units of the step of `epoch` that begins at `unit`.
    ///
    /// # Errors
    /// Its own.
    fn step_at(&self, epoch: u64, unit: u64) -> Result<Range<u64>>;

    /// The micro-batches of a rank in a step. Each rank has as many, or one each where the rank cuts its part itself.
    ///
    /// # Errors
    /// Its own.
    fn part(&self, epoch: u64, units: &Range<u64>, world: &World) -> Result<Vec<Vec<Delivered>>>;

    /// What is saved when unit `unit` of `epoch` comes next.
    ///
    /// # Errors
    /// Its own.
    fn save(&self, epoch: u64, unit: u64) -> Result<String>;

    /// The (epoch, unit) that goes on from what was saved.
    ///
    /// # Errors
    /// Its own.
    fn restore(&self, saved: &str) -> Result<(u64, u64)>;

    /// Samples of `epoch` that are left out with the tail.
    ///
    /// # Errors
    /// Its own.
    fn dropped(&self, epoch: u64) -> Result<Vec<Delivered>>;
}

fn broken<T>(what: String) -> Result<T> {
    Err(Error::Conformance { what })
}

/// The rows of each step of `epoch`, over all ranks of `world_size`, sorted; requires of every step that ranks have as
/// many micro-batches and that no row is of two of them.
fn steps<O: EpochOrdering>(
    order: &O,
    epoch: u64,
    from: u64,
    count: u64,
    worlds: &[World],
) -> Result<(Vec<Vec<Delivered>>, u64)> {
    let mut unit = from;
    let mut taken = Vec::new();
    for _ in 0..count {
        let units = order.step_at(epoch, unit)?;
        if units.start != unit || units.is_empty() {
            return broken(format!("the step at unit {unit} of epoch {epoch} has the units {units:?}"));
        }
        unit = units.end;
        let mut all = Vec::new();
        let mut micro_batches = None;
        for world in worlds {
            let part = order.part(epoch, &units, world)?;
            let same = *micro_batches.get_or_insert(part.len());
            if same != part.len() {
                let rank = world.rank();
                return broken(format!("rank {rank} has {} micro-batches at unit {unit}, rank 0 {same}", part.len()));
            }
            all.extend(part.into_iter().flatten());
        }
        all.sort_unstable_by_key(|row| (row.sample, row.pass, row.tokens.start, row.tokens.end));
        taken.push(all);
    }
    Ok((taken, unit))
}

fn world(world_size: u32, machines: u32) -> Result<Vec<World>> {
    let local = world_size / machines.max(1);
    (0..world_size).map(|rank| World::new(rank, world_size, local)).collect()
}

/// Requires that `epoch` delivers what it declares: each row once, with each token once where rows are split, and nothing
/// else. Gives the rows delivered.
///
/// # Errors
/// [`Error::Conformance`] at the first row that is missing, too much, or not declared; what the order fails with.
pub fn check_coverage<O: EpochOrdering>(order: &O, epoch: u64) -> Result<u64> {
    let count = order.steps_from(epoch, 0)?;
    let (taken, end) = steps(order, epoch, 0, count, &[World::single()])?;
    if order.steps_from(epoch, end)? != 0 {
        return broken(format!("epoch {epoch} has steps after its last one"));
    }
    let delivered: u64 = taken.iter().map(|step| step.len() as u64).sum();
    let Some(declared) = order.declared(epoch)? else { return Ok(delivered) };
    let mut parts: HashMap<(Sample, u64), Vec<Range<u32>>> = HashMap::new();
    for row in taken.into_iter().flatten().chain(order.dropped(epoch)?) {
        parts.entry((row.sample, row.pass)).or_default().push(row.tokens);
    }
    let mut counts: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    for ((sample, pass), mut tokens) in parts {
        *counts.entry((sample.source, pass)).or_default() += 1;
        tokens.sort_unstable_by_key(|part| (part.start, part.end));
        let is_whole = tokens.first().is_some_and(|first| first.start == 0)
            && tokens.windows(2).all(|two| matches!(two, [a, b] if a.end == b.start && !b.is_empty()));
        if !is_whole {
            return broken(format!("{sample:?} is delivered in pass {pass} as the parts {tokens:?}"));
        }
        let of = declared.iter().find(|d| d.source == sample.source && d.pass == pass);
        if !of.is_some_and(|of| of.of.contains(&sample)) {
            return broken(format!("{sample:?} is delivered in pass {pass}, which has not declared it"));
        }
    }
    for of in &declared {
        let count = counts.get(&(of.source, of.pass)).copied().unwrap_or(0);
        if count != of.rows {
            let Declared { source, pass, rows, .. } = of;
            return broken(format!("pass {pass} of source {source} delivers {count} rows of {rows}"));
        }
    }
    Ok(delivered)
}

/// Requires that every step of `epoch` has the same rows in a world of `world_size` ranks on `machines` machines as in
/// one of a single rank, each on one rank, and that ranks have as many micro-batches.
///
/// # Errors
/// [`Error::Conformance`] at the first step that differs; what the order fails with.
pub fn check_worlds<O: EpochOrdering>(order: &O, epoch: u64, world_size: u32, machines: u32) -> Result<()> {
    let count = order.steps_from(epoch, 0)?;
    let (one, _) = steps(order, epoch, 0, count, &[World::single()])?;
    let (many, _) = steps(order, epoch, 0, count, &world(world_size, machines)?)?;
    match one.iter().zip(&many).position(|(a, b)| a != b) {
        Some(step) => broken(format!("step {step} of epoch {epoch} has other rows with {world_size} ranks")),
        None => Ok(()),
    }
}

/// Requires that worlds that take over from one another, (first step, ranks, machines) with steps ascending, deliver the
/// steps of an uninterrupted epoch, each going on from what the one before saved.
///
/// # Errors
/// [`Error::Conformance`] at the first step that differs; what the order fails with.
pub fn check_changes<O: EpochOrdering>(order: &O, epoch: u64, changes: &[(u64, u32, u32)]) -> Result<()> {
    let count = order.steps_from(epoch, 0)?;
    let (whole, _) = steps(order, epoch, 0, count, &[World::single()])?;
    let mut taken: Vec<Vec<Delivered>> = Vec::new();
    let mut saved = order.save(epoch, 0)?;
    let ends = changes.iter().skip(1).map(|change| change.0).chain([count]);
    for ((start, world_size, machines), end) in changes.iter().zip(ends) {
        let (at, unit) = order.restore(&saved)?;
        if at != epoch {
            // The epoch was over.
            break;
        }
        let left = order.steps_from(epoch, unit)?;
        if left != count - start {
            return broken(format!("restored at step {start}, {left} steps are left of {count}"));
        }
        let (some, unit) = steps(order, epoch, unit, end - start, &world(*world_size, *machines)?)?;
        taken.extend(some);
        saved = order.save(epoch, unit)?;
    }
    if taken != whole {
        let step = taken.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        return broken(format!("through the changes {changes:?} step {step} of epoch {epoch} is another"));
    }
    Ok(())
}

/// Requires that a step that is sought gives what it gives after all those before it, rank by rank and in order.
///
/// # Errors
/// [`Error::Conformance`] when it does not; what the order fails with.
pub fn check_seek(
    order: &impl EpochOrdering,
    again: &impl EpochOrdering,
    epoch: u64,
    step: u64,
    world: &World,
) -> Result<()> {
    let mut unit = 0;
    for _ in 0..step {
        let units = order.step_at(epoch, unit)?;
        let _ = order.part(epoch, &units, world)?;
        unit = units.end;
    }
    let units = order.step_at(epoch, unit)?;
    if order.part(epoch, &units, world)? != again.part(epoch, &units, world)? {
        return broken(format!("step {step} of epoch {epoch} is another when it is sought"));
    }
    Ok(())
}

impl EpochOrdering for Plan {
    fn declared(&self, epoch: u64) -> Result<Option<Vec<Declared>>> {
        if !self.options().is_exactly_once() {
            return Ok(None);
        }
        let passes = self.passes(epoch, &(0..self.samples(epoch)));
        let declared = passes.into_iter().map(|pass| {
            let mut of = HashSet::new();
            if let Some(source) = self.sources().get(pass.source as usize) {
                for lane in 0..source.table.lanes() {
                    let rows = (0..source.table.stored_rows(lane)).filter(|p| source.table.contains(lane, *p));
                    of.extend(rows.map(|position| Sample { source: pass.source, lane, position }));
                }
            }
            Declared { source: pass.source, pass: pass.pass, rows: pass.range.end - pass.range.start, of }
        });
        Ok(Some(declared.collect()))
    }

    fn steps_from(&self, epoch: u64, unit: u64) -> Result<u64> {
        Self::steps_from(self, epoch, unit)
    }

    fn step_at(&self, epoch: u64, unit: u64) -> Result<Range<u64>> {
        self.batch_at(epoch, unit)
    }

    fn part(&self, epoch: u64, units: &Range<u64>, world: &World) -> Result<Vec<Vec<Delivered>>> {
        let mut planner = StepPlanner::new(self, epoch)?;
        let step = planner.step(units)?;
        let part = SliceRule::new(self, world).part(self, epoch, &step)?;
        delivered(&mut planner, &part)
    }

    fn save(&self, epoch: u64, unit: u64) -> Result<String> {
        self.state(epoch, unit)?.to_json()
    }

    fn restore(&self, saved: &str) -> Result<(u64, u64)> {
        let state = State::from_json(saved)?;
        state.check(self)?;
        Ok((state.epoch, state.index))
    }

    fn dropped(&self, epoch: u64) -> Result<Vec<Delivered>> {
        let units = self.units(epoch)?;
        let rest = units - Self::dropped(self, epoch)?..units;
        if rest.is_empty() {
            return Ok(Vec::new());
        }
        Ok(EpochOrdering::part(self, epoch, &rest, &World::single())?.concat())
    }
}

fn delivered(planner: &mut StepPlanner<'_>, part: &RankPart) -> Result<Vec<Vec<Delivered>>> {
    if let RankPart::Bins(bins) = part {
        let mut all = Vec::new();
        for segment in bins.iter().flatten() {
            let slot = &segment.slot;
            let sample = Sample { source: slot.source, lane: slot.lane, position: planner.order().position(slot)? };
            let end = segment.start.saturating_add(segment.length);
            all.push(Delivered { sample, pass: slot.pass, tokens: segment.start..end });
        }
        return Ok(vec![all]);
    }
    let mut batches = Vec::new();
    let parts: Vec<RankPart> = match part {
        RankPart::MicroBatches(all) => all.iter().map(|b| RankPart::MicroBatches(vec![b.clone()])).collect(),
        other => vec![other.clone()],
    };
    for part in parts {
        let mut batch = Vec::new();
        part.for_each_row(|slot| {
            let position = planner.order().position(&slot)?;
            let sample = Sample { source: slot.source, lane: slot.lane, position };
            batch.push(Delivered { sample, pass: slot.pass, tokens: 0..0 });
            Ok(())
        })?;
        batches.push(batch);
    }
    Ok(batches)
}
