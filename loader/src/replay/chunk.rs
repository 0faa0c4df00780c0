//! A stretch of steps replayed on one thread, and the sums that come of it.

use std::{collections::HashMap, ops::Range, sync::Arc};

use super::{
    Difficulty, MachineReads, ReplayOptions, Stretch, Tokens,
    coverage::{Bits, Coverage},
    first_unit,
};
use crate::{
    batching::{
        options::Batching,
        windows::{Lengths, lengths},
    },
    columns::{Column, Number},
    error::{Error, Result},
    order::WindowOrder,
    plan::{EpochOrder, Plan, Slot},
    slice::{LaneRun, SliceRule},
    source::PlannedSource,
    steps::{RankPart, StepPlanner},
};

/// Steps of one world in one stretch.
pub(super) struct Chunk {
    pub(super) world: usize,
    pub(super) stretch: u64,
    pub(super) steps: Range<u64>,
}

/// Columns that a replay shows, by source.
pub(super) struct ShownColumns<'a> {
    classes: Option<Vec<&'a Column>>,
    difficulty: Option<Vec<&'a Column>>,
    pub(super) lengths: Option<Vec<Arc<Lengths>>>,
}

impl<'a> ShownColumns<'a> {
    pub(super) fn new(plan: &'a Plan, options: &ReplayOptions) -> Result<Self> {
        let columns = |name: Option<&str>| -> Result<Option<Vec<&'a Column>>> {
            let sources = 0..plan.sources().len() as u32;
            name.map(|name| sources.map(|source| plan.column(source, name)).collect()).transpose()
        };
        let difficulty = options.difficulty.as_deref();
        let of_batching = plan.options().batching.lengths();
        let name = options.lengths.as_deref().or(of_batching);
        if let (Some(given), Some(own)) = (options.lengths.as_deref(), of_batching)
            && given != own
        {
            return Err(Error::usage(
                format!("lengths are asked for by \"{given}\", and the plan batches by \"{own}\""),
                "leave the column of lengths out",
            ));
        }
        let lengths = match name {
            Some(name) => {
                let of_source = |(source, planned): (u32, &PlannedSource)| {
                    match &planned.lengths {
                        // A plan that batches by length has them.
                        Some(lengths) => Ok(Arc::clone(lengths)),
                        None => {
                            let column = plan.column(source, name)?;
                            lengths(&planned.table, column, name, &Batching::Fixed).map(Arc::new)
                        }
                    }
                };
                Some((0..).zip(plan.sources()).map(of_source).collect::<Result<Vec<_>>>()?)
            }
            None => None,
        };
        let classes = columns(options.classes.as_deref())?;
        if let (Some(name), Some(columns)) = (&options.classes, &classes)
            && columns.iter().any(|column| column.has_floats())
        {
            return Err(Error::usage(
                format!("column \"{name}\" has floats, which are no classes"),
                "give a column of integers or truth values",
            ));
        }
        Ok(Self {
            classes,
            difficulty: columns(difficulty.or(plan.options().curriculum.as_ref().map(|c| c.column())))?,
            lengths,
        })
    }
}

impl ShownColumns<'_> {
    pub(super) fn length(&self, slot: &Slot, position: u64) -> u64 {
        let lengths = self.lengths.as_ref().and_then(|lengths| lengths.get(slot.source as usize));
        lengths.map_or(0, |lengths| u64::from(lengths.get(slot.lane, position)))
    }

    fn shows(&self) -> bool {
        self.classes.is_some() || self.difficulty.is_some() || self.lengths.is_some()
    }
}

/// Numbers of the row groups of all sources.
pub(super) struct BlockNumbers {
    /// By source and lane.
    first: Vec<Vec<u64>>,
    count: u64,
}

impl BlockNumbers {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut count = 0;
        let mut first = Vec::new();
        for source in plan.sources() {
            let mut of_source = Vec::new();
            for lane in 0..source.table.lanes() {
                of_source.push(count);
                count += source.table.blocks(lane).map_or(0, |blocks| blocks.count());
            }
            first.push(of_source);
        }
        Self { first, count }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    fn first(&self, source: u32, lane: u32) -> u64 {
        self.first.get(source as usize).and_then(|lanes| lanes.get(lane as usize)).copied().unwrap_or(0)
    }

    /// Each row group with its number, its stored bytes and its node.
    fn each<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (u64, u64, u32)> + 'a {
        plan.sources().iter().zip(&self.first).flat_map(|(source, lanes)| {
            (0..).zip(lanes).flat_map(move |(lane, first)| {
                let node = source.table.node_of(lane);
                let blocks = source.table.blocks(lane).into_iter().flat_map(|blocks| blocks.iter());
                (*first..).zip(blocks).map(move |(number, block)| (number, block.stored_bytes, node))
            })
        })
    }

    /// Bytes that all ranks read over those of the row groups that any of them reads.
    pub(super) fn amplification(&self, plan: &Plan, read: &[Bits]) -> f64 {
        let (mut once, mut all) = (0_u64, 0_u64);
        for (number, bytes, _) in self.each(plan) {
            let ranks = read.iter().filter(|bits| bits.contains(number)).count() as u64;
            once = once.saturating_add(bytes * ranks.min(1));
            all = all.saturating_add(bytes.saturating_mul(ranks));
        }
        if once == 0 { 1.0 } else { all as f64 / once as f64 }
    }

    /// What each machine reads.
    pub(super) fn reads(&self, plan: &Plan, read: &[Bits], machines: u32, local: u32) -> Vec<MachineReads> {
        let mut reads: Vec<MachineReads> =
            (0..machines).map(|machine| MachineReads { machine, ..MachineReads::default() }).collect();
        for (number, bytes, node) in self.each(plan) {
            for (rank, _) in (0_u32..).zip(read).filter(|(_, bits)| bits.contains(number)) {
                let Some(entry) = reads.get_mut((rank / local.max(1)) as usize) else { continue };
                let foreign = node % machines != entry.machine;
                entry.row_groups += 1;
                entry.bytes += bytes;
                entry.foreign_row_groups += u64::from(foreign);
                entry.foreign_bytes += if foreign { bytes } else { 0 };
            }
        }
        reads
    }
}

/// What all chunks share.
pub(super) struct Context<'a> {
    pub(super) plan: &'a Plan,
    pub(super) epoch: u64,
    pub(super) columns: &'a ShownColumns<'a>,
    pub(super) coverage: &'a Coverage,
    pub(super) blocks: &'a BlockNumbers,
}

/// Sums over some steps.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    pub(super) delivered: u64,
    pub(super) repeated: u64,
    pub(super) empty_slices: u64,
    pub(super) rows_per_rank: Vec<u64>,
    pub(super) tokens_per_rank: Vec<u64>,
    real: u64,
    padded: u64,
    /// Steps that had tokens, their imbalance summed, and the worst.
    steps: u64,
    imbalance: f64,
    worst: f64,
    classes: HashMap<i64, u64>,
    sources: Vec<u64>,
    difficulty: Option<(f64, f64, f64)>,
    measured: u64,
}

fn add_each(to: &mut Vec<u64>, from: &[u64]) {
    to.resize(to.len().max(from.len()), 0);
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

impl Totals {
    pub(super) fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.repeated += other.repeated;
        self.empty_slices += other.empty_slices;
        add_each(&mut self.rows_per_rank, &other.rows_per_rank);
        add_each(&mut self.tokens_per_rank, &other.tokens_per_rank);
        add_each(&mut self.sources, &other.sources);
        self.real += other.real;
        self.padded += other.padded;
        self.steps += other.steps;
        self.imbalance += other.imbalance;
        self.worst = self.worst.max(other.worst);
        for (class, count) in &other.classes {
            *self.classes.entry(*class).or_default() += count;
        }
        self.measured += other.measured;
        if let Some((min, sum, max)) = other.difficulty {
            self.difficulty = Some(match self.difficulty {
                Some((least, all, most)) => (least.min(min), all + sum, most.max(max)),
                None => (min, sum, max),
            });
        }
    }

    pub(super) fn tokens(&self) -> Tokens {
        Tokens {
            real: self.real,
            padded: self.padded,
            padding: if self.padded == 0 { 0.0 } else { 1.0 - self.real as f64 / self.padded as f64 },
            imbalance_mean: if self.steps == 0 { 0.0 } else { self.imbalance / self.steps as f64 },
            imbalance_worst: self.worst,
            dropped: 0,
        }
    }

    /// The classes with most samples, the most frequent first.
    pub(super) fn most_frequent(&self, most: usize) -> Vec<i64> {
        let mut classes: Vec<(u64, i64)> = self.classes.iter().map(|(class, count)| (*count, *class)).collect();
        classes.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        classes.into_iter().take(most).map(|(_, class)| class).collect()
    }

    pub(super) fn stretch(&self, first_step: u64, steps: u64, shown: &[i64]) -> Stretch {
        let mut classes: Vec<u64> = shown.iter().map(|c| self.classes.get(c).copied().unwrap_or(0)).collect();
        if !shown.is_empty() {
            let all: u64 = self.classes.values().sum();
            classes.push(all - classes.iter().sum::<u64>());
        }
        Stretch {
            first_step,
            steps,
            samples: self.delivered,
            difficulty: self.difficulty.map(|(min, sum, max)| Difficulty {
                min,
                mean: sum / self.measured.max(1) as f64,
                max,
            }),
            classes,
            sources: self.sources.clone(),
            tokens: self.real,
            padded: self.padded,
        }
    }

    fn count(&mut self, columns: &ShownColumns<'_>, slot: &Slot, position: u64) {
        let value = |columns: &Option<Vec<&Column>>| {
            columns.as_ref().and_then(|c| c.get(slot.source as usize)).and_then(|c| c.value(slot.lane, position))
        };
        if let Some(Number::Integer(class)) = value(&columns.classes) {
            *self.classes.entry(class).or_default() += 1;
        }
        if let Some(difficulty) = value(&columns.difficulty).map(Number::as_f64).filter(|d| !d.is_nan()) {
            self.measured += 1;
            let (min, sum, max) = self.difficulty.unwrap_or((f64::INFINITY, 0.0, f64::NEG_INFINITY));
            self.difficulty = Some((min.min(difficulty), sum + difficulty, max.max(difficulty)));
        }
        if self.sources.len() > 1
            && let Some(count) = self.sources.get_mut(slot.source as usize)
        {
            *count += 1;
        }
    }
}

/// What a rank has in a step.
#[derive(Default)]
struct RankStep {
    rows: u64,
    real: u64,
    padded: u64,
}

/// The windows that each rank read last, by (source, lane): a window is marked once, not once a sample.
struct LastWindows {
    first: Vec<usize>,
    lanes: usize,
    windows: Vec<Option<(u64, u64)>>,
}

impl LastWindows {
    fn new(plan: &Plan, ranks: usize) -> Self {
        let mut first = Vec::new();
        let mut lanes = 0;
        for source in plan.sources() {
            first.push(lanes);
            lanes += source.table.lanes() as usize;
        }
        Self { first, lanes, windows: vec![None; lanes * ranks] }
    }

    /// Whether this is another window than the last one of its lane.
    fn moved(&mut self, rank: usize, slot: &Slot, window: u64) -> bool {
        let lane = self.first.get(slot.source as usize).copied().unwrap_or(0) + slot.lane as usize;
        let this = Some((slot.pass, window));
        match self.windows.get_mut(rank * self.lanes + lane) {
            Some(last) if *last == this => false,
            Some(last) => {
                *last = this;
                true
            }
            None => true,
        }
    }
}

struct Replayer<'a> {
    context: &'a Context<'a>,
    read: &'a [Bits],
    last: LastWindows,
    totals: Totals,
}

impl Replayer<'_> {
    /// Delivers a row to a rank. Gives its position.
    fn deliver(&mut self, order: &mut EpochOrder<'_>, rank: usize, slot: &Slot) -> Result<u64> {
        let window = order.window(slot.source, slot.pass, slot.lane, slot.ordinal)?;
        let position = window.position(slot.ordinal);
        self.read_window(rank, slot, window);
        self.totals.delivered += 1;
        self.totals.repeated += u64::from(!self.context.coverage.insert(slot, position));
        self.totals.count(self.context.columns, slot, position);
        Ok(position)
    }

    /// Marks the row groups of a window as read by a rank.
    fn read_window(&mut self, rank: usize, slot: &Slot, window: &WindowOrder) {
        if !self.last.moved(rank, slot, window.range().start) {
            return;
        }
        // A rank that touches a window has to read all of its blocks: its rows lie anywhere in them.
        let first = self.context.blocks.first(slot.source, slot.lane);
        if let Some(read) = self.read.get(rank) {
            window.blocks().for_each(|block| {
                read.insert(first + block);
            });
        }
    }

    /// Delivers a stretch of a lane to a rank, window by window. Gives its tokens and its longest row.
    fn run(&mut self, order: &mut EpochOrder<'_>, rank: usize, run: &LaneRun) -> Result<(u64, u64)> {
        let LaneRun { source, pass, lane, .. } = *run;
        let (mut real, mut longest) = (0, 0);
        let mut ordinal = run.ordinals.start;
        let covered = self.context.coverage.lane(source, pass, lane);
        // What is shown of each row is looked up only where something is.
        let shows = self.context.columns.shows() || self.totals.sources.len() > 1;
        while ordinal < run.ordinals.end {
            let window = order.window(source, pass, lane, ordinal)?;
            let end = run.ordinals.end.min(window.range().end);
            if end <= ordinal {
                return Err(Error::internal(format!("lane {lane} has no sample {ordinal} in pass {pass}")));
            }
            let mut slot = Slot { source, pass, lane, ordinal, length: 0 };
            self.read_window(rank, &slot, window);
            for at in ordinal..end {
                let position = window.position(at);
                self.totals.repeated += u64::from(!covered.is_some_and(|covered| covered.insert(position)));
                if shows {
                    slot.ordinal = at;
                    self.totals.count(self.context.columns, &slot, position);
                    let length = self.context.columns.length(&slot, position);
                    real += length;
                    longest = longest.max(length);
                }
            }
            self.totals.delivered += end - ordinal;
            ordinal = end;
        }
        Ok((real, longest))
    }

    /// A rank's part of a step.
    fn part(&mut self, order: &mut EpochOrder<'_>, rank: usize, part: &RankPart) -> Result<RankStep> {
        let mut step = RankStep { rows: part.rows(), ..RankStep::default() };
        let rule = self.context.plan.window_rule();
        match part {
            RankPart::Runs(runs) => {
                let mut longest = 0;
                for run in runs {
                    let (real, longest_here) = self.run(order, rank, run)?;
                    step.real += real;
                    longest = longest.max(longest_here);
                }
                step.padded = step.rows.saturating_mul(longest);
            }
            RankPart::MicroBatches(batches) => {
                let budget = rule.and_then(|rule| rule.budget());
                for batch in batches {
                    let mut longest = 0;
                    for slot in batch {
                        self.deliver(order, rank, slot)?;
                        step.real += u64::from(slot.length);
                        longest = longest.max(slot.length);
                    }
                    let padded = budget.and_then(|budget| budget.padded(longest)).unwrap_or(0);
                    step.padded += padded * batch.len() as u64;
                }
            }
            RankPart::Bins(bins) => {
                let capacity = rule.and_then(|rule| rule.packing()).map_or(0, |packing| packing.capacity);
                for segment in bins.iter().flatten() {
                    // A row is delivered with its first token; the others are counted as tokens.
                    if segment.start == 0 {
                        self.deliver(order, rank, &segment.slot)?;
                    }
                    step.real += u64::from(segment.length);
                }
                step.padded = u64::from(capacity) * bins.len() as u64;
            }
        }
        Ok(step)
    }
}

/// Replays the steps of `chunk`.
pub(super) fn replay_chunk(context: &Context<'_>, rules: &[SliceRule], read: &[Bits], chunk: &Chunk) -> Result<Totals> {
    let (plan, epoch) = (context.plan, context.epoch);
    let ranks = rules.len();
    let mut planner = StepPlanner::new(plan, epoch)?;
    let totals = Totals {
        rows_per_rank: vec![0; ranks],
        tokens_per_rank: vec![0; ranks],
        sources: vec![0; plan.sources().len()],
        ..Totals::default()
    };
    let mut replayer = Replayer { context, read, last: LastWindows::new(plan, ranks), totals };
    let mut index = first_unit(plan, epoch, chunk.steps.start)?;
    for _ in chunk.steps.clone() {
        let units = plan.batch_at(epoch, index)?;
        index = units.end;
        let step = planner.step(&units)?;
        let (mut real, mut most) = (0, 0);
        for (rank, rule) in rules.iter().enumerate() {
            let part = rule.part(plan, epoch, &step)?;
            let of_rank = replayer.part(planner.order(), rank, &part)?;
            let totals = &mut replayer.totals;
            totals.empty_slices += u64::from(of_rank.rows == 0);
            if let (Some(rows), Some(tokens)) =
                (totals.rows_per_rank.get_mut(rank), totals.tokens_per_rank.get_mut(rank))
            {
                *rows += of_rank.rows;
                *tokens += of_rank.real;
            }
            totals.padded += of_rank.padded;
            real += of_rank.real;
            most = most.max(of_rank.real);
        }
        if real > 0 {
            let imbalance = most as f64 * ranks as f64 / real as f64 - 1.0;
            replayer.totals.steps += 1;
            replayer.totals.imbalance += imbalance;
            replayer.totals.worst = replayer.totals.worst.max(imbalance);
        }
        replayer.totals.real += real;
    }
    Ok(replayer.totals)
}
