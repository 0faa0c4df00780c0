//! Keys of strata: each value of each stratify column encoded so that byte order is the order of values, and so that the
//! same value has the same bytes in any version of gristmill: random choices are keyed by them, and manifests keep them.
//!
//! A column's part is one tag byte (0 null, 1 value) and a payload: truth values one byte; integers, dates and times
//! eight bytes big-endian, the sign bit flipped for signed ones; bins a big-endian u32; text, bytes and label sets with
//! every `00` written `00 FF` and `00 00` at the end.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, Int64Array, LargeStringArray},
    compute::cast,
    datatypes::{DataType, Int64Type},
    util::display::{ArrayFormatter, FormatOptions},
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The key of a stratum.
pub type StratumKey = Box<[u8]>;

/// How null is shown in stratum names.
pub const NULL_NAME: &str = "∅";

/// How one column enters the key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum KeyColumn {
    /// By its value.
    Value {
        /// The column.
        column: String,
    },
    /// By the bin its number lies in: bin b holds `edges[b-1] <= x < edges[b]`; NaN has the bin after the last.
    Bins {
        /// The column.
        column: String,
        /// Inner edges, ascending; one fewer than there are bins.
        edges: Vec<f64>,
    },
    /// As a label of a row: a column of 0 and 1.
    Flag {
        /// The column.
        column: String,
    },
    /// As a set of labels in one text, whatever their order and repetition.
    LabelSet {
        /// The column.
        column: String,
        /// What stands between labels.
        separator: String,
    },
}

impl KeyColumn {
    /// Its column.
    #[must_use]
    pub fn column(&self) -> &str {
        match self {
            Self::Value { column }
            | Self::Bins { column, .. }
            | Self::Flag { column }
            | Self::LabelSet { column, .. } => column,
        }
    }
}

/// Appends the part of a null.
pub(super) fn push_null(key: &mut Vec<u8>) {
    key.push(0);
}

/// Appends the part of an integer of a signed type.
pub(super) fn push_i64(key: &mut Vec<u8>, value: i64) {
    key.push(1);
    key.extend_from_slice(&((value as u64) ^ (1 << 63)).to_be_bytes());
}

/// Appends the part of an unsigned integer.
pub(super) fn push_u64(key: &mut Vec<u8>, value: u64) {
    key.push(1);
    key.extend_from_slice(&value.to_be_bytes());
}

/// Appends the part of a truth value.
pub(super) fn push_bool(key: &mut Vec<u8>, value: bool) {
    key.extend_from_slice(&[1, u8::from(value)]);
}

/// Appends the part of a bin.
pub(super) fn push_bin(key: &mut Vec<u8>, bin: u32) {
    key.push(1);
    key.extend_from_slice(&bin.to_be_bytes());
}

/// Appends the part of text or bytes.
pub(super) fn push_bytes(key: &mut Vec<u8>, value: &[u8]) {
    key.push(1);
    for byte in value {
        key.push(*byte);
        if *byte == 0 {
            key.push(0xFF);
        }
    }
    key.extend_from_slice(&[0, 0]);
}

/// The labels of `text`, sorted, each once; no text is no label.
pub(crate) fn labels_of<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let mut labels: Vec<&str> = text.split(separator).map(str::trim).filter(|l| !l.is_empty()).collect();
    labels.sort_unstable();
    labels.dedup();
    labels
}

/// One column's part of a key, read back.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Bin(u32),
    Bytes(Vec<u8>),
}

/// Reads the parts of `key`, whose columns have `types`.
pub(crate) fn parts(key: &[u8], columns: &[KeyColumn], types: &[DataType]) -> Option<Vec<Part>> {
    let mut rest = key;
    let mut parts = Vec::with_capacity(columns.len());
    for (column, data_type) in columns.iter().zip(types) {
        let (tag, after) = rest.split_first()?;
        rest = after;
        if *tag == 0 {
            parts.push(Part::Null);
            continue;
        }
        let fixed = |rest: &mut &[u8]| -> Option<u64> {
            let (head, tail) = rest.split_first_chunk::<8>()?;
            *rest = tail;
            Some(u64::from_be_bytes(*head))
        };
        parts.push(match (column, data_type) {
            (KeyColumn::Bins { .. }, _) => {
                let (head, tail) = rest.split_first_chunk::<4>()?;
                rest = tail;
                Part::Bin(u32::from_be_bytes(*head))
            }
            (KeyColumn::Flag { .. }, _) | (_, DataType::Boolean) => {
                let (head, tail) = rest.split_first()?;
                rest = tail;
                Part::Bool(*head != 0)
            }
            (KeyColumn::LabelSet { .. }, _) | (_, DataType::LargeUtf8 | DataType::LargeBinary) => {
                let mut bytes = Vec::new();
                loop {
                    let (byte, tail) = rest.split_first()?;
                    rest = tail;
                    if *byte == 0 {
                        let (next, tail) = rest.split_first()?;
                        rest = tail;
                        if *next == 0 {
                            break;
                        }
                    }
                    bytes.push(*byte);
                }
                Part::Bytes(bytes)
            }
            (_, t) if t.is_unsigned_integer() => Part::Unsigned(fixed(&mut rest)?),
            _ => Part::Signed((fixed(&mut rest)? ^ (1 << 63)) as i64),
        });
    }
    rest.is_empty().then_some(parts)
}

/// How keys read to people: values joined by ` | `.
///
/// # Errors
/// [`Error::Internal`] for a key that is not one of these columns, [`Error::Arrow`] when a value can't be shown.
pub(super) fn names<'a>(
    keys: impl Iterator<Item = &'a StratumKey>,
    columns: &[KeyColumn],
    types: &[DataType],
) -> Result<Vec<String>> {
    if columns.is_empty() {
        return Ok(keys.map(|_| "all rows".to_owned()).collect());
    }
    let mut rows = Vec::new();
    for key in keys {
        rows.push(parts(key, columns, types).ok_or_else(|| Error::internal("a stratum's key does not parse"))?);
    }
    let mut names = vec![String::new(); rows.len()];
    for (i, (column, data_type)) in columns.iter().zip(types).enumerate() {
        let shown = shown(column, data_type, rows.iter().map(|r| &r[i]))?;
        for (name, value) in names.iter_mut().zip(shown) {
            if i > 0 {
                name.push_str(" | ");
            }
            name.push_str(&value);
        }
    }
    Ok(names)
}

/// How the parts of one column read to people.
pub(crate) fn shown<'a>(
    column: &KeyColumn,
    data_type: &DataType,
    parts: impl Iterator<Item = &'a Part>,
) -> Result<Vec<String>> {
    let is_time = matches!(data_type, DataType::Timestamp(..) | DataType::Date32);
    if let (KeyColumn::Value { .. }, true) = (column, is_time) {
        let values: Int64Array = parts.map(|p| if let Part::Signed(v) = p { Some(*v) } else { None }).collect();
        return times(&(Arc::new(values) as ArrayRef), data_type);
    }
    Ok(parts
        .map(|part| match (column, part) {
            (_, Part::Null) => NULL_NAME.to_owned(),
            (KeyColumn::Flag { column }, Part::Bool(value)) => {
                if *value {
                    column.clone()
                } else {
                    format!("not {column}")
                }
            }
            (KeyColumn::Bins { edges, .. }, Part::Bin(bin)) => bin_name(edges, *bin),
            (KeyColumn::LabelSet { .. }, Part::Bytes(bytes)) => {
                let text = String::from_utf8_lossy(bytes);
                if text.is_empty() { "no label".into() } else { text.replace('\u{1f}', " + ") }
            }
            (_, Part::Bool(value)) => value.to_string(),
            (_, Part::Signed(value)) => value.to_string(),
            (_, Part::Unsigned(value)) => value.to_string(),
            (_, Part::Bin(bin)) => bin.to_string(),
            (_, Part::Bytes(bytes)) if data_type == &DataType::LargeBinary => {
                bytes.iter().map(|b| format!("{b:02x}")).collect()
            }
            (_, Part::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        })
        .collect())
}

/// `[a, b)`, with open ends written `-inf` and `inf`.
pub(crate) fn bin_name(edges: &[f64], bin: u32) -> String {
    let bin = bin as usize;
    if bin > edges.len() {
        return "NaN".into();
    }
    let low = bin.checked_sub(1).and_then(|b| edges.get(b)).map_or("-inf".to_owned(), f64::to_string);
    let high = edges.get(bin).map_or("inf".to_owned(), f64::to_string);
    format!("[{low}, {high})")
}

/// Dates and times; a zoned one as the UTC instant that it is, since names of zones are not resolved here.
fn times(values: &ArrayRef, data_type: &DataType) -> Result<Vec<String>> {
    let fail = |source| Error::Arrow { action: "name the strata".into(), source };
    let target = match data_type {
        DataType::Timestamp(unit, _) => DataType::Timestamp(*unit, None),
        other => other.clone(),
    };
    let values = match target {
        DataType::Date32 => cast(&cast(values, &DataType::Int32).map_err(fail)?, &target).map_err(fail)?,
        _ => cast(values, &target).map_err(fail)?,
    };
    let options = FormatOptions::default().with_null(NULL_NAME);
    let formatter = ArrayFormatter::try_new(values.as_ref(), &options).map_err(fail)?;
    Ok((0..values.len()).map(|row| formatter.value(row).to_string()).collect())
}

/// The values of an integer, date or time column as i64; `None` for other types.
pub(super) fn as_i64(column: &ArrayRef) -> Option<Int64Array> {
    let column = match column.data_type() {
        DataType::Date32 => cast(column, &DataType::Int32).ok()?,
        t if t.is_signed_integer() => Arc::clone(column),
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::Timestamp(..) => Arc::clone(column),
        _ => return None,
    };
    Some(cast(&column, &DataType::Int64).ok()?.as_primitive::<Int64Type>().clone())
}

/// Text as it is.
pub(super) fn as_text(column: &ArrayRef) -> Option<&LargeStringArray> {
    column.as_string_opt::<i64>()
}
