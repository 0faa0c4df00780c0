//! Rows that were refused: why, where, and what they said.

use std::{collections::BTreeMap, fmt, sync::Arc};

use arrow::{
    array::{ArrayRef, Int64Array, LargeStringArray},
    datatypes::{DataType, Field, Schema, SchemaRef},
    record_batch::RecordBatch,
};
use gristmill_shard::{Error, Result};
use serde::{Deserialize, Serialize};

/// Bytes of a refused row's text that are kept.
pub const MAX_RAW_BYTES: usize = 64 << 10;

/// Why a row was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RejectReason {
    /// It has more or fewer fields than the header.
    Ragged,
    /// A value is not of its column's type.
    BadValue,
    /// A column that may not be null has no value.
    Null,
    /// It is not UTF-8.
    InvalidUtf8,
    /// It has a NUL byte.
    NulByte,
    /// The file ended inside a quoted field.
    UnclosedQuote,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ragged => "ragged",
            Self::BadValue => "bad_value",
            Self::Null => "null",
            Self::InvalidUtf8 => "invalid_utf8",
            Self::NulByte => "nul_byte",
            Self::UnclosedQuote => "unclosed_quote",
        })
    }
}

/// A refused row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// The raw file.
    pub file: String,
    /// Row from 0, the header not counted.
    pub row: u64,
    /// Line from 1 on which the row begins; `None` for Parquet.
    pub line: Option<u64>,
    /// The column at fault; `None` when it is the whole row.
    pub column: Option<String>,
    /// Why.
    pub reason: RejectReason,
    /// Why, in words.
    pub detail: String,
    /// The row as it stood, at most [`MAX_RAW_BYTES`] of it; bytes that are not UTF-8 as `\xNN`.
    pub raw: String,
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: ", self.file)?,
            None => write!(f, "{} row {}: ", self.file, self.row)?,
        }
        if let Some(column) = &self.column {
            write!(f, "column \"{column}\": ")?;
        }
        write!(f, "{} ({})", self.detail, self.reason)
    }
}

/// Counts of refused rows, with the first few.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectSummary {
    /// Rows by reason.
    pub by_reason: BTreeMap<RejectReason, u64>,
    /// The first [`RejectSummary::EXAMPLES`] in row order.
    pub examples: Vec<Reject>,
}

impl RejectSummary {
    /// Examples that are kept.
    pub const EXAMPLES: usize = 5;
    const EXAMPLE_RAW_CHARS: usize = 200;

    /// The summary of `rejects`, in order.
    #[must_use]
    pub fn of(rejects: &[Reject]) -> Self {
        let mut summary = Self::default();
        for reject in rejects {
            *summary.by_reason.entry(reject.reason).or_insert(0) += 1;
        }
        for reject in rejects.iter().take(Self::EXAMPLES) {
            let raw = reject.raw.chars().take(Self::EXAMPLE_RAW_CHARS).collect();
            summary.examples.push(Reject { raw, ..reject.clone() });
        }
        summary
    }

    /// Adds the summary of later rows.
    pub fn merge(&mut self, later: &Self) {
        for (reason, count) in &later.by_reason {
            *self.by_reason.entry(*reason).or_insert(0) += count;
        }
        let room = Self::EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(later.examples.iter().take(room).cloned());
    }

    /// Rows of all reasons.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.by_reason.values().sum()
    }
}

/// The text of raw bytes as it is kept in [`Reject::raw`].
pub(crate) fn raw_text(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(MAX_RAW_BYTES)];
    let mut text = String::with_capacity(cut.len());
    for chunk in cut.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Schema of the files in `rejects/`.
#[must_use]
pub fn rejects_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("file", DataType::LargeUtf8, false),
        Field::new("row", DataType::Int64, false),
        Field::new("line", DataType::Int64, true),
        Field::new("column", DataType::LargeUtf8, true),
        Field::new("reason", DataType::LargeUtf8, false),
        Field::new("detail", DataType::LargeUtf8, false),
        Field::new("raw", DataType::LargeUtf8, false),
    ]))
}

/// The table of `rejects`.
///
/// # Errors
/// [`Error::Arrow`] when it can't be built.
pub(crate) fn rejects_table(rejects: &[Reject]) -> Result<RecordBatch> {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(LargeStringArray::from_iter_values(rejects.iter().map(|r| &r.file))),
        Arc::new(Int64Array::from_iter_values(rejects.iter().map(|r| number(r.row)))),
        Arc::new(rejects.iter().map(|r| r.line.map(number)).collect::<Int64Array>()),
        Arc::new(rejects.iter().map(|r| r.column.as_deref()).collect::<LargeStringArray>()),
        Arc::new(LargeStringArray::from_iter_values(rejects.iter().map(|r| r.reason.to_string()))),
        Arc::new(LargeStringArray::from_iter_values(rejects.iter().map(|r| &r.detail))),
        Arc::new(LargeStringArray::from_iter_values(rejects.iter().map(|r| &r.raw))),
    ];
    RecordBatch::try_new(rejects_schema(), columns)
        .map_err(|source| Error::Arrow { action: "build the table of rejects".into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_bytes_stay_readable() {
        assert_eq!(raw_text(b"caf\xe9,1"), "caf\\xe9,1");
        assert_eq!(raw_text("\u{e9}".as_bytes()), "\u{e9}");
        assert_eq!(raw_text(&vec![b'a'; MAX_RAW_BYTES + 1]).len(), MAX_RAW_BYTES);
    }

    #[test]
    fn summaries_merge_in_order() {
        let reject = |row| Reject {
            file: "f".into(),
            row,
            line: Some(row + 2),
            column: Some("c".into()),
            reason: if row % 2 == 0 { RejectReason::Null } else { RejectReason::BadValue },
            detail: "d".into(),
            raw: "r".into(),
        };
        let rejects: Vec<Reject> = (0..9).map(reject).collect();
        let mut merged = RejectSummary::of(&rejects[..3]);
        merged.merge(&RejectSummary::of(&rejects[3..]));
        assert_eq!(merged, RejectSummary::of(&rejects));
        assert_eq!(merged.rows(), 9);
        assert_eq!(rejects[0].to_string(), "f:2: column \"c\": d (null)");
    }
}
