//! Weighted and class-balanced passes over a source: how many draws each lane has, and which.

use gristmill_shard::{keys::Domain, sidecar::Sidecar};

use crate::{
    columns::{Column, Columns, Number},
    error::{Error, Result},
    interleave::Interleave,
    lane_table::LaneTable,
    order::{LEVEL_DRAW, PlanKeys},
    sampling::{
        allocate::{allocate, allocate_limited},
        balanced::{ClassRows, balanced},
        fixed_point::{FloatTotal, common_scale, fixed_point, integers},
        options::{Repeats, Sampling, balanced_samples, class_shares, weighted_samples},
        rounding::{Cell, allocate_cells},
        weighted::{with_replacement, without_replacement},
    },
};

/// Stream of keys that are of no lane.
const NO_LANE: u64 = u64::MAX;

/// What decides the draws of a pass. The numbers of draws are the same in every pass, the draws are not.
#[derive(Debug)]
pub(crate) enum Sampled {
    Weighted {
        column: String,
        replacement: bool,
        /// Of floats: the power of two by which they become integers.
        scale: Option<i32>,
        /// Draws by lane.
        draws: Vec<u64>,
    },
    Balanced {
        column: String,
        repeats: Repeats,
        /// Classes that have rows, ascending.
        classes: Vec<i64>,
        /// Draws by lane of the classes that it has, (class, draws).
        draws: Vec<Vec<(u32, u64)>>,
    },
}

impl Sampled {
    /// The draws that `options` ask for of the rows of `table` that take part.
    ///
    /// # Errors
    /// [`Error::Usage`] for a column that is not there or not of the kind, values that can't be weights, and more samples
    /// than there can be.
    pub(crate) fn new(table: &LaneTable, columns: &Columns, options: &Sampling, keys: PlanKeys) -> Result<Self> {
        let mut rng = keys.key(Domain::Draw, 0, NO_LANE, LEVEL_DRAW, 0).rng();
        let column = columns.get(options.column())?;
        match options {
            Sampling::Weighted { column: name, replacement, samples } => {
                let weights = Weights::of(table, column)?;
                let samples = weighted_samples(*samples, *replacement, table.rows(), weights.positive.iter().sum())?;
                let draws = match replacement {
                    true => allocate(&weights.totals, samples, &mut rng)?,
                    false => allocate_limited(&weights.totals, &weights.positive, samples, &mut rng)?,
                };
                if let Some(draws) = draws.iter().find(|draws| u32::try_from(**draws).is_err()) {
                    return Err(Error::usage(
                        format!("samples is {samples}, of which one lane would have {draws}"),
                        "ask for fewer samples, so that a lane has at most 4,294,967,295, or use more lanes",
                    ));
                }
                Ok(Self::Weighted { column: name.clone(), replacement: *replacement, scale: weights.scale, draws })
            }
            Sampling::Balanced { column: name, repeats, samples, shares } => {
                let mut classes: Vec<i64> = Vec::new();
                for lane in 0..table.lanes() {
                    classes.extend(classes_of(table, column, lane)?.map(|(_, class)| class));
                    classes.sort_unstable();
                    classes.dedup();
                }
                let mut cells = Vec::new();
                for lane in 0..table.lanes() {
                    let mut here: Vec<i64> = classes_of(table, column, lane)?.map(|(_, class)| class).collect();
                    here.sort_unstable();
                    cells.extend(here.chunk_by(|a, b| a == b).map(|run| Cell {
                        class: run.first().map_or(0, |class| number_of(&classes, *class)),
                        lane,
                        rows: run.len() as u64,
                    }));
                }
                cells.sort_by_key(|cell| (cell.class, cell.lane));
                let rows: Vec<u64> =
                    cells.chunk_by(|a, b| a.class == b.class).map(|of| of.iter().map(|c| c.rows).sum()).collect();
                let shares = class_shares(&classes, shares.as_ref())?;
                let samples = balanced_samples(*samples, *repeats, &rows, &shares)?;
                let weights: Vec<u128> = shares.iter().map(|share| u128::from(*share)).collect();
                let of_class = match repeats {
                    Repeats::Never => allocate_limited(&weights, &rows, samples, &mut rng)?,
                    Repeats::Passes | Repeats::Independent => allocate(&weights, samples, &mut rng)?,
                };
                let of_cell = allocate_cells(&cells, table.lanes(), &of_class, &mut rng)?;
                let mut draws = vec![Vec::new(); table.lanes() as usize];
                for (cell, count) in cells.iter().zip(of_cell) {
                    if let Some(lane) = draws.get_mut(cell.lane as usize) {
                        lane.push((cell.class, count));
                    }
                }
                Ok(Self::Balanced { column: name.clone(), repeats: *repeats, classes, draws })
            }
        }
    }

    /// How the indices of a pass are dealt to the lanes.
    pub(crate) fn interleave(&self) -> Result<Interleave> {
        let lengths: Vec<u64> = match self {
            Self::Weighted { draws, .. } => draws.clone(),
            Self::Balanced { draws, .. } => {
                draws.iter().map(|lane| lane.iter().map(|(_, count)| *count).sum()).collect()
            }
        };
        Interleave::new(&lengths).ok_or_else(|| Error::internal("an epoch has more draws than can be"))
    }

    /// Positions of the draws of `lane` in `pass`.
    pub(crate) fn draws(
        &self,
        table: &LaneTable,
        columns: &Columns,
        keys: PlanKeys,
        pass: u64,
        lane: u32,
    ) -> Result<Vec<u32>> {
        let key = keys.key(Domain::Draw, pass, u64::from(lane), LEVEL_DRAW, 1);
        match self {
            Self::Weighted { column, replacement, scale, draws } => {
                let weights = weights_of(table, columns.get(column)?, lane, *scale)?;
                let count = draws.get(lane as usize).copied().unwrap_or(0);
                match replacement {
                    true => with_replacement(&weights, count, key),
                    false => without_replacement(&weights, count, key),
                }
            }
            Self::Balanced { column, repeats, classes, draws } => {
                // Rows that take no part are of one class more, without draws.
                let mut class_of_row = vec![classes.len() as u32; table.stored_rows(lane) as usize];
                for (position, class) in classes_of(table, columns.get(column)?, lane)? {
                    if let Some(at) = class_of_row.get_mut(position as usize) {
                        *at = number_of(classes, class);
                    }
                }
                let rows = ClassRows::new(&class_of_row, classes.len() as u32 + 1)?;
                let mut counts = vec![0; classes.len() + 1];
                for (class, count) in draws.get(lane as usize).into_iter().flatten() {
                    if let Some(at) = counts.get_mut(*class as usize) {
                        *at = *count;
                    }
                }
                balanced(&rows, &counts, *repeats, key)
            }
        }
    }
}

fn number_of(classes: &[i64], class: i64) -> u32 {
    classes.partition_point(|c| *c < class) as u32
}

/// (position, class) of the rows of `lane` that take part.
fn classes_of<'a>(
    table: &'a LaneTable,
    column: &'a Column,
    lane: u32,
) -> Result<impl Iterator<Item = (u64, i64)> + 'a> {
    let values: &[i64] = match column.lane(lane) {
        Some(Sidecar::Integers(values)) => values,
        None => &[],
        Some(Sidecar::Floats(_) | Sidecar::Order(_)) => {
            return Err(Error::usage(
                "sampling: the column of classes has floats",
                "give a column of integers or truth values",
            ));
        }
    };
    Ok((0..).zip(values.iter().copied()).filter(move |(position, _)| table.contains(lane, *position)))
}

/// What the weights of each lane sum to.
struct Weights {
    scale: Option<i32>,
    totals: Vec<u128>,
    positive: Vec<u64>,
}

impl Weights {
    fn of(table: &LaneTable, column: &Column) -> Result<Self> {
        let lanes = 0..table.lanes();
        let is_float = |lane| matches!(column.lane(lane), Some(Sidecar::Floats(values)) if !values.is_empty());
        if lanes.clone().any(is_float) {
            let of_lane = |lane| FloatTotal::of(lane, &floats_of(table, column, lane));
            let totals: Vec<FloatTotal> = lanes.map(of_lane).collect::<Result<_>>()?;
            let scale = common_scale(&totals).unwrap_or(0);
            let positive = totals.iter().map(FloatTotal::positive).collect();
            return Ok(Self { scale: Some(scale), totals: totals.iter().map(|t| t.at(scale)).collect(), positive });
        }
        let (mut totals, mut positive) = (Vec::new(), Vec::new());
        for lane in lanes {
            let weights = weights_of(table, column, lane, None)?;
            totals.push(weights.iter().map(|w| u128::from(*w)).sum());
            positive.push(weights.iter().filter(|w| **w > 0).count() as u64);
        }
        Ok(Self { scale: None, totals, positive })
    }
}

/// The weights of `lane` as floats, 0 of rows that take no part.
fn floats_of(table: &LaneTable, column: &Column, lane: u32) -> Vec<f64> {
    let rows = column.lane(lane).map_or(0, Sidecar::len) as u64;
    let weight = |position| match column.value(lane, position) {
        Some(value) if table.contains(lane, position) => value.as_f64(),
        _ => 0.0,
    };
    (0..rows).map(weight).collect()
}

/// The weights of `lane` as integers, 0 of rows that take no part.
fn weights_of(table: &LaneTable, column: &Column, lane: u32, scale: Option<i32>) -> Result<Vec<u64>> {
    if let Some(scale) = scale {
        return fixed_point(lane, &floats_of(table, column, lane), scale);
    }
    let rows = column.lane(lane).map_or(0, Sidecar::len) as u64;
    let weight = |position| match column.value(lane, position) {
        Some(Number::Integer(value)) if table.contains(lane, position) => value,
        _ => 0,
    };
    integers(lane, &(0..rows).map(weight).collect::<Vec<_>>())
}
