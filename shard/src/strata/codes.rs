//! Rows to strata, fast: each column's values become small codes, codes combine to the strata of one batch, and only
//! the distinct combinations are ever encoded as keys.

use arrow::{
    array::{Array, ArrayRef, AsArray},
    datatypes::{DataType, Float64Type, UInt64Type},
};
use hashbrown::HashMap;

use super::key::{
    KeyColumn, StratumKey, as_i64, as_text, labels_of, push_bin, push_bool, push_bytes, push_i64, push_null, push_u64,
};
use crate::{
    coded::{CodedBatch, CodedColumn},
    error::{Error, Result},
    statistics::as_f64,
};

/// Largest table that is indexed by a value or a pair of codes instead of hashed.
const TABLE: u64 = 1 << 16;

/// The strata of one batch.
#[derive(Debug, Clone, Default)]
pub struct Classified {
    /// Keys of the strata that occur, by local ordinal.
    pub keys: Vec<StratumKey>,
    /// Local ordinal of each row.
    pub of_row: Vec<u32>,
}

impl Classified {
    /// The keys with their rows.
    pub fn into_counts(self) -> impl Iterator<Item = (StratumKey, u64)> {
        let mut rows = vec![0_u64; self.keys.len()];
        for local in &self.of_row {
            rows[*local as usize] += 1;
        }
        self.keys.into_iter().zip(rows)
    }
}

/// A column as codes `0..parts.len()`, and the key part of each code.
struct Codes {
    of_row: Vec<u32>,
    parts: Vec<Vec<u8>>,
}

/// The stratum of each row of `batch`. Without key columns all rows are one stratum.
///
/// # Errors
/// [`Error::Data`] for a label column with values other than 0 and 1 (`url` is where the rows are from),
/// [`Error::Internal`] when a column is missing.
pub fn classify(batch: &CodedBatch, columns: &[KeyColumn], url: &str) -> Result<Classified> {
    let rows = batch.rows();
    let Some((first, others)) = columns.split_first() else {
        let keys = if rows == 0 { Vec::new() } else { vec![StratumKey::from([].as_slice())] };
        return Ok(Classified { keys, of_row: vec![0; rows] });
    };
    let mut combined = compact(codes(batch, first, url)?);
    for column in others {
        combined = combine(&combined, &codes(batch, column, url)?);
    }
    Ok(Classified { keys: combined.parts.into_iter().map(Into::into).collect(), of_row: combined.of_row })
}

/// Codes that occur, renumbered in order of first appearance.
fn compact(codes: Codes) -> Codes {
    let mut number = vec![u32::MAX; codes.parts.len()];
    let mut parts = codes.parts;
    let mut kept = Vec::new();
    let mut of_row = codes.of_row;
    for code in &mut of_row {
        let slot = &mut number[*code as usize];
        if *slot == u32::MAX {
            *slot = kept.len() as u32;
            kept.push(std::mem::take(&mut parts[*code as usize]));
        }
        *code = *slot;
    }
    Codes { of_row, parts: kept }
}

fn combine(left: &Codes, right: &Codes) -> Codes {
    let (a, b) = (left.parts.len() as u64, right.parts.len() as u64);
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut of_row = Vec::with_capacity(left.of_row.len());
    let mut add = |l: u32, r: u32| {
        let mut part = left.parts[l as usize].clone();
        part.extend_from_slice(&right.parts[r as usize]);
        parts.push(part);
        parts.len() as u32 - 1
    };
    let pairs = left.of_row.iter().zip(&right.of_row);
    if a * b <= TABLE {
        let mut table = vec![u32::MAX; (a * b) as usize];
        for (l, r) in pairs {
            let slot = &mut table[*l as usize * b as usize + *r as usize];
            if *slot == u32::MAX {
                *slot = add(*l, *r);
            }
            of_row.push(*slot);
        }
    } else {
        let mut table: HashMap<u64, u32> = HashMap::new();
        for (l, r) in pairs {
            let pair = u64::from(*l) * b + u64::from(*r);
            of_row.push(*table.entry(pair).or_insert_with(|| add(*l, *r)));
        }
    }
    Codes { of_row, parts }
}

fn codes(batch: &CodedBatch, column: &KeyColumn, url: &str) -> Result<Codes> {
    let name = column.column();
    let coded = batch.column(name).ok_or_else(|| Error::internal(format!("column \"{name}\" was not read")))?;
    let unfit = |what: &str| Error::internal(format!("column \"{name}\" {what}"));
    match (column, coded) {
        (KeyColumn::Value { .. }, CodedColumn::Text { codes, values }) => {
            let mut parts: Vec<Vec<u8>> = values.iter().map(|v| text_part(v.map(str::as_bytes))).collect();
            let null = parts.len() as u32;
            parts.push(text_part(None));
            let of_row = codes.iter().map(|c| c.map_or(null, |c| c as u32)).collect();
            Ok(Codes { of_row, parts })
        }
        (KeyColumn::LabelSet { separator, .. }, CodedColumn::Text { codes, values }) => {
            let parts: Vec<Vec<u8>> = values.iter().map(|v| label_set(v, separator)).collect();
            let null = parts.len() as u32;
            let mut all = parts;
            all.push(label_set(None, separator));
            let of_row: Vec<u32> = codes.iter().map(|c| c.map_or(null, |c| c as u32)).collect();
            Ok(merge_equal(Codes { of_row, parts: all }))
        }
        (KeyColumn::LabelSet { separator, .. }, CodedColumn::Plain(array)) => {
            let text = as_text(array).ok_or_else(|| unfit("is not text"))?;
            Ok(merge_equal(distinct(text.iter(), |v| label_set(v, separator))))
        }
        (KeyColumn::Bins { edges, .. }, CodedColumn::Plain(array)) => bins(array, edges),
        (KeyColumn::Flag { .. }, CodedColumn::Plain(array)) => flags(array, name, url),
        (KeyColumn::Value { .. }, CodedColumn::Plain(array)) => values(array).ok_or_else(|| unfit("can't be a key")),
        (KeyColumn::Bins { .. } | KeyColumn::Flag { .. }, CodedColumn::Text { .. }) => Err(unfit("is text")),
    }
}

fn text_part(value: Option<&[u8]>) -> Vec<u8> {
    let mut part = Vec::new();
    match value {
        Some(bytes) => push_bytes(&mut part, bytes),
        None => push_null(&mut part),
    }
    part
}

fn label_set(text: Option<&str>, separator: &str) -> Vec<u8> {
    let mut part = Vec::new();
    push_bytes(&mut part, labels_of(text.unwrap_or(""), separator).join("\u{1f}").as_bytes());
    part
}

/// One code for equal parts: texts that differ may be one set of labels.
fn merge_equal(codes: Codes) -> Codes {
    let mut numbers: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut parts = Vec::new();
    let of_code: Vec<u32> = codes
        .parts
        .into_iter()
        .map(|part| {
            *numbers.entry(part).or_insert_with_key(|part| {
                parts.push(part.clone());
                parts.len() as u32 - 1
            })
        })
        .collect();
    Codes { of_row: codes.of_row.into_iter().map(|c| of_code[c as usize]).collect(), parts }
}

fn distinct<T: std::hash::Hash + Eq + Copy>(
    values: impl Iterator<Item = Option<T>>,
    part: impl Fn(Option<T>) -> Vec<u8>,
) -> Codes {
    let mut numbers: HashMap<Option<T>, u32> = HashMap::new();
    let mut parts = Vec::new();
    let of_row = values
        .map(|value| {
            *numbers.entry(value).or_insert_with(|| {
                parts.push(part(value));
                parts.len() as u32 - 1
            })
        })
        .collect();
    Codes { of_row, parts }
}

fn values(array: &ArrayRef) -> Option<Codes> {
    match array.data_type() {
        DataType::Boolean => Some(bools(array)),
        DataType::LargeUtf8 => Some(distinct(as_text(array)?.iter(), |v| text_part(v.map(str::as_bytes)))),
        DataType::LargeBinary => Some(distinct(array.as_binary_opt::<i64>()?.iter(), text_part)),
        DataType::UInt64 => Some(distinct(array.as_primitive_opt::<UInt64Type>()?.iter(), |v| {
            let mut part = Vec::new();
            match v {
                Some(v) => push_u64(&mut part, v),
                None => push_null(&mut part),
            }
            part
        })),
        t if t.is_unsigned_integer() => integers(array, |key, v| push_u64(key, v as u64)),
        _ => integers(array, push_i64),
    }
}

fn bools(array: &ArrayRef) -> Codes {
    let mut parts = vec![Vec::new(), Vec::new(), Vec::new()];
    push_bool(&mut parts[0], false);
    push_bool(&mut parts[1], true);
    push_null(&mut parts[2]);
    Codes { of_row: array.as_boolean().iter().map(|v| v.map_or(2, u32::from)).collect(), parts }
}

/// Integers by a table where they lie close together, else by hashing.
fn integers(array: &ArrayRef, push: impl Fn(&mut Vec<u8>, i64)) -> Option<Codes> {
    let values = as_i64(array)?;
    let part = |value: Option<i64>| {
        let mut part = Vec::new();
        match value {
            Some(value) => push(&mut part, value),
            None => push_null(&mut part),
        }
        part
    };
    let range = arrow::compute::min(&values).zip(arrow::compute::max(&values));
    let span = range.and_then(|(low, high)| u64::try_from(high.checked_sub(low)?).ok().filter(|s| *s < TABLE));
    let (Some((low, _)), Some(span)) = (range, span) else { return Some(distinct(values.iter(), part)) };
    let mut numbers = vec![u32::MAX; span as usize + 2];
    let mut parts = Vec::new();
    let of_row = values
        .iter()
        .map(|value| {
            let slot = &mut numbers[value.map_or(span as usize + 1, |v| (v - low) as usize)];
            if *slot == u32::MAX {
                *slot = parts.len() as u32;
                parts.push(part(value));
            }
            *slot
        })
        .collect();
    Some(Codes { of_row, parts })
}

fn bins(array: &ArrayRef, edges: &[f64]) -> Result<Codes> {
    let numbers = as_f64(array)?;
    let count = edges.len() as u32 + 2;
    let mut parts: Vec<Vec<u8>> = (0..count)
        .map(|bin| {
            let mut part = Vec::new();
            push_bin(&mut part, bin);
            part
        })
        .collect();
    let mut null = Vec::new();
    push_null(&mut null);
    parts.push(null);
    let of_row = numbers.as_primitive::<Float64Type>().iter().map(|v| v.map_or(count, |v| bin_of(edges, v))).collect();
    Ok(Codes { of_row, parts })
}

/// The bin of `value`: how many edges are not above it; NaN has the bin after the last.
pub(crate) fn bin_of(edges: &[f64], value: f64) -> u32 {
    if value.is_nan() { edges.len() as u32 + 1 } else { edges.partition_point(|e| *e <= value) as u32 }
}

fn flags(array: &ArrayRef, name: &str, url: &str) -> Result<Codes> {
    let odd = |what: String| Error::Data {
        url: url.to_owned(),
        what: format!("label column \"{name}\" holds {what}"),
        help: "labels are 0 and 1, false and true; make them so at ingest with --sql".into(),
    };
    let numbers = as_f64(array)?;
    let mut of_row = Vec::with_capacity(array.len());
    for value in numbers.as_primitive::<Float64Type>() {
        of_row.push(match value {
            Some(0.0) => 0,
            Some(1.0) => 1,
            Some(other) => return Err(odd(other.to_string())),
            None => return Err(odd("null".into())),
        });
    }
    let mut parts = vec![Vec::new(), Vec::new()];
    push_bool(&mut parts[0], false);
    push_bool(&mut parts[1], true);
    Ok(Codes { of_row, parts })
}
