//! The rows of a unit as assignment sees them: stratum, weight, part.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{prepare::PartRule, units::Unit};
use crate::{
    cells::UnitCounts,
    coded::{CodedBatch, CodedColumn},
    error::{Error, Result},
    strata::{KeySpec, StratumKey, classify},
    weights,
};

/// What classing rows needs to know.
#[derive(Debug, Clone)]
pub(super) struct Classes {
    pub(super) spec: KeySpec,
    pub(super) rule: PartRule,
    pub(super) weight: Option<String>,
    /// Columns where a null or NaN is an error: those of sidecars, with the option that named them.
    pub(super) numbers: Vec<(String, &'static str)>,
}

impl Classes {
    /// Columns that have to be read to class rows.
    pub(super) fn columns(&self) -> Vec<String> {
        let mut names = self.spec.column_names();
        let others = self.rule.column().map(str::to_owned).into_iter().chain(self.weight.clone());
        for name in others.chain(self.numbers.iter().map(|n| n.0.clone())) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// The rows of a unit, in the order of the input.
#[derive(Debug, Clone, Default)]
pub(super) struct UnitRows {
    pub(super) keys: Vec<StratumKey>,
    ordinals: HashMap<StratumKey, u32>,
    pub(super) of_row: Vec<u32>,
    pub(super) weights: Option<Vec<u64>>,
    pub(super) parts: Option<Vec<u32>>,
}

impl UnitRows {
    /// Ordinals in the unit of the keys of one of its batches.
    pub(super) fn ordinals(&mut self, keys: Vec<StratumKey>) -> Vec<u32> {
        (keys.into_iter())
            .map(|key| {
                *self.ordinals.entry(key).or_insert_with_key(|key| {
                    self.keys.push(key.clone());
                    self.keys.len() as u32 - 1
                })
            })
            .collect()
    }

    /// Of `batches`, one a row group of `unit`; `urls` are those of the row groups' files.
    pub(super) fn of(classes: &Classes, unit: &Unit, urls: &[String], batches: &[CodedBatch]) -> Result<Self> {
        let mut rows = Self {
            weights: classes.weight.as_ref().map(|_| Vec::new()),
            parts: classes.rule.column().map(|_| Vec::new()),
            ..Self::default()
        };
        for ((batch, group), url) in batches.iter().zip(&unit.groups).zip(urls) {
            let classified = classify(batch, &classes.spec.columns, url)?;
            if batches.len() == 1 {
                (rows.keys, rows.of_row) = (classified.keys, classified.of_row);
            } else {
                let local = rows.ordinals(classified.keys);
                rows.of_row.extend(classified.of_row.into_iter().map(|c| local[c as usize]));
            }
            if let (Some(name), Some(all)) = (&classes.weight, &mut rows.weights) {
                all.extend(weights::weights(super::units::column(batch, name)?, name, url, group.first_row)?);
            }
            if let (Some(parts), Some(all)) = (classes.rule.parts(batch, url, group.first_row)?, &mut rows.parts) {
                all.extend(parts);
            }
            for (name, option) in &classes.numbers {
                check_numbers(super::units::column(batch, name)?, name, option, url, group.first_row)?;
            }
        }
        rows.ordinals = HashMap::new();
        Ok(rows)
    }

    /// Rows of each cell.
    pub(super) fn counts(&self) -> UnitCounts {
        UnitCounts::count(self.keys.clone(), &self.of_row, self.weights.as_deref(), self.parts.as_deref())
    }
}

fn check_numbers(column: &CodedColumn, name: &str, option: &str, url: &str, first_row: u64) -> Result<()> {
    use arrow::array::{Array, AsArray};
    let CodedColumn::Plain(array) = column else { return Err(Error::internal(format!("\"{name}\" is text"))) };
    let bad = |row: usize, what: &str| Error::Data {
        url: url.to_owned(),
        what: format!(
            "row {} has {what} in column \"{name}\", which {option} keeps as numbers",
            first_row + row as u64
        ),
        help: "mend it at ingest (for example COALESCE(x, 0) in --sql)".into(),
    };
    if let Some(row) = array.logical_nulls().and_then(|n| n.iter().position(|valid| !valid)) {
        return Err(bad(row, "null"));
    }
    let nan = match array.data_type() {
        arrow::datatypes::DataType::Float32 => {
            array.as_primitive::<arrow::datatypes::Float32Type>().values().iter().position(|v| v.is_nan())
        }
        arrow::datatypes::DataType::Float64 => {
            array.as_primitive::<arrow::datatypes::Float64Type>().values().iter().position(|v| v.is_nan())
        }
        _ => None,
    };
    nan.map_or(Ok(()), |row| Err(bad(row, "NaN")))
}

/// A unit that is held in memory until it is written.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) rows: Arc<UnitRows>,
    pub(super) batch: CodedBatch,
}
