//! Pieces of CSV files to rows: counted and looked at once to infer types, then converted, each bad row set aside.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Int64Array},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use gristmill_shard::{Error, Result, StopFlag, schema::DatasetSchema};

use crate::{
    csv_columns::ColumnBuilder,
    csv_records::{Dialect, Field, Records, Span, count_lines},
    infer::{Candidates, trim},
    rejects::{Reject, RejectReason, raw_text},
};

/// Rows between looks at the stop flag.
const STOP_ROWS: u64 = 1 << 16;

/// Texts that mean null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NullValues(Vec<Vec<u8>>);

impl NullValues {
    pub(crate) fn new(values: &[String]) -> Self {
        Self(values.iter().map(|v| v.clone().into_bytes()).collect())
    }

    fn contains(&self, value: &[u8]) -> bool {
        self.0.iter().any(|n| n == value)
    }
}

/// How all pieces of a file are read.
#[derive(Debug, Clone)]
pub(crate) struct CsvFormat {
    pub(crate) dialect: Dialect,
    pub(crate) nulls: NullValues,
    /// Fields of a row.
    pub(crate) width: usize,
    /// For each field the column of the schema that it fills, if any.
    pub(crate) columns: Vec<Option<usize>>,
}

/// Rows of a piece and what its fields may be.
#[derive(Debug, Clone)]
pub(crate) struct PieceProfile {
    pub(crate) rows: u64,
    /// By field; empty unless asked for. Rows count from the start of the piece.
    pub(crate) candidates: Vec<Candidates>,
}

/// Counts the rows of `data`, and looks at their values when `infer` is set.
///
/// # Errors
/// [`Error::Stopped`].
pub(crate) fn profile_piece(
    data: &[u8],
    format: &CsvFormat,
    infer: bool,
    file: u32,
    stop: &StopFlag,
) -> Result<PieceProfile> {
    let checks = Checks::of(data);
    let mut records = Records::new(data, format.dialect);
    let mut candidates = vec![Candidates::default(); if infer { format.width } else { 0 }];
    let mut rows = 0;
    while let Some(span) = records.advance() {
        if rows % STOP_ROWS == 0 {
            stop.check()?;
        }
        let row = rows;
        rows += 1;
        if !infer || checks.row_fault(data, &records, span, format.width).is_some() {
            continue;
        }
        if !checks.utf8 && std::str::from_utf8(&data[span.start..span.end]).is_err() {
            continue;
        }
        for (field, candidates) in records.fields().iter().zip(&mut candidates) {
            let value = records.bytes(*field);
            // A quoted empty field is a value of a column of text, and null in any other; it decides nothing.
            if format.nulls.contains(value) || (value.len() < 64 && format.nulls.contains(trim(value))) {
                candidates.null_field(field.quoted);
            } else {
                candidates.value(value, file, row);
            }
        }
    }
    Ok(PieceProfile { rows, candidates })
}

/// A piece as columns.
#[derive(Debug)]
pub(crate) struct ConvertedPiece {
    /// Rows that are good, with the columns of the schema.
    pub(crate) batch: RecordBatch,
    /// The row of each in its file.
    pub(crate) source_rows: ArrayRef,
    /// Rows that are not.
    pub(crate) rejects: Vec<Reject>,
    /// All.
    pub(crate) rows_in: u64,
}

/// Where a piece is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PiecePlace<'a> {
    pub(crate) file: &'a str,
    /// Row of its first record.
    pub(crate) row: u64,
    /// Line of its first byte.
    pub(crate) line: u64,
}

/// Converts `data` to columns of `schema`. With `stop_at_first` the first bad row ends it.
///
/// # Errors
/// [`Error::Stopped`], [`Error::Arrow`] when Arrow refuses what was checked.
pub(crate) fn convert_piece(
    data: &[u8],
    place: PiecePlace<'_>,
    format: &CsvFormat,
    schema: &DatasetSchema,
    stop_at_first: bool,
    stop: &StopFlag,
) -> Result<ConvertedPiece> {
    let checks = Checks::of(data);
    let mut records = Records::new(data, format.dialect);
    // Rows are not known yet; a guess from the first kilobytes saves most of the growing.
    let guess = (data.len() / 64).min(1 << 20);
    let mut builders: Vec<ColumnBuilder> =
        schema.columns.iter().map(|c| ColumnBuilder::new(&c.column_type, guess)).collect::<Result<_>>()?;
    let mut source_rows = Vec::with_capacity(guess);
    let mut rejects = Vec::new();
    let mut lines = LineCounter { data, at: 0, line: place.line };
    let mut row = place.row;
    while let Some(span) = records.advance() {
        if row.is_multiple_of(STOP_ROWS) {
            stop.check()?;
        }
        let fault = checks
            .row_fault(data, &records, span, format.width)
            .or_else(|| push_row(&records, format, schema, &mut builders, checks.utf8));
        match fault {
            None => source_rows.push(row as i64),
            Some(fault) => {
                for builder in &mut builders {
                    builder.truncate(source_rows.len());
                }
                rejects.push(Reject {
                    file: place.file.to_owned(),
                    row,
                    line: Some(lines.line_of(span.start)),
                    column: fault.column.map(|c| schema.columns[c].name.clone()),
                    reason: fault.reason,
                    detail: fault.detail,
                    raw: raw_text(&data[span.start..span.end]),
                });
                if stop_at_first {
                    break;
                }
            }
        }
        row += 1;
    }
    let columns: Vec<ArrayRef> = builders.into_iter().map(ColumnBuilder::finish).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(source_rows.len()));
    let batch = RecordBatch::try_new_with_options(schema.to_arrow(), columns, &options)
        .map_err(|source| Error::Arrow { action: format!("put together the rows of {}", place.file), source })?;
    Ok(ConvertedPiece {
        batch,
        source_rows: Arc::new(Int64Array::from(source_rows)),
        rejects,
        rows_in: row - place.row,
    })
}

struct Fault {
    column: Option<usize>,
    reason: RejectReason,
    detail: String,
}

/// What the bytes of a whole piece allow to skip for each row.
#[derive(Debug, Clone, Copy)]
struct Checks {
    utf8: bool,
    nul: bool,
}

impl Checks {
    fn of(data: &[u8]) -> Self {
        Self { utf8: std::str::from_utf8(data).is_ok(), nul: memchr::memchr(0, data).is_some() }
    }

    fn row_fault(self, data: &[u8], records: &Records<'_>, span: Span, width: usize) -> Option<Fault> {
        let whole = |reason, detail: String| Some(Fault { column: None, reason, detail });
        let found = records.fields().len();
        if span.unclosed {
            return whole(RejectReason::UnclosedQuote, "the file ends inside a quoted field".into());
        }
        if found != width {
            return whole(RejectReason::Ragged, format!("{found} fields, the header has {width}"));
        }
        if self.nul && memchr::memchr(0, &data[span.start..span.end]).is_some() {
            return whole(RejectReason::NulByte, "a NUL byte".into());
        }
        None
    }
}

/// Adds the fields of one row. After a fault some columns may have it and others not: the caller takes it back.
fn push_row(
    records: &Records<'_>,
    format: &CsvFormat,
    schema: &DatasetSchema,
    builders: &mut [ColumnBuilder],
    utf8: bool,
) -> Option<Fault> {
    for (field, column) in records.fields().iter().zip(&format.columns) {
        let Some(column) = *column else { continue };
        let builder = &mut builders[column];
        let value = records.bytes(*field);
        let fault = |reason, detail| Some(Fault { column: Some(column), reason, detail });
        if is_null(value, *field, builder.is_text(), &format.nulls) {
            if !schema.columns[column].nullable {
                return fault(RejectReason::Null, "no value, and the column may not be null".into());
            }
            builder.push_null();
            continue;
        }
        if !utf8 && builder.needs_utf8() && std::str::from_utf8(value).is_err() {
            return fault(RejectReason::InvalidUtf8, format!("\"{}\" is not UTF-8", shown(value)));
        }
        if !builder.push(value) {
            return fault(
                RejectReason::BadValue,
                format!("\"{}\" is no {}", shown(value), schema.columns[column].column_type),
            );
        }
    }
    None
}

fn is_null(value: &[u8], field: Field, text: bool, nulls: &NullValues) -> bool {
    if text { !field.quoted && nulls.contains(value) } else { nulls.contains(value) || nulls.contains(trim(value)) }
}

fn shown(value: &[u8]) -> String {
    raw_text(&value[..value.len().min(100)])
}

/// Lines of places asked for in order.
struct LineCounter<'a> {
    data: &'a [u8],
    at: usize,
    line: u64,
}

impl LineCounter<'_> {
    fn line_of(&mut self, place: usize) -> u64 {
        let before = self.at.checked_sub(1).map(|i| self.data[i]);
        self.line += count_lines(&self.data[self.at..place], before);
        self.at = place;
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray};
    use gristmill_shard::schema::Column;

    fn format(width: usize) -> CsvFormat {
        CsvFormat {
            dialect: Dialect { delimiter: b',', quote: b'"' },
            nulls: NullValues::new(&[String::new(), "NA".into()]),
            width,
            columns: (0..width).map(Some).collect(),
        }
    }

    fn schema(columns: &[(&str, bool)]) -> DatasetSchema {
        DatasetSchema {
            columns: columns
                .iter()
                .enumerate()
                .map(|(i, (t, nullable))| Column {
                    name: format!("c{i}"),
                    column_type: t.parse().unwrap(),
                    nullable: *nullable,
                    role: None,
                })
                .collect(),
        }
    }

    fn convert(data: &[u8], columns: &[(&str, bool)]) -> ConvertedPiece {
        let place = PiecePlace { file: "f.csv", row: 10, line: 2 };
        convert_piece(data, place, &format(columns.len()), &schema(columns), false, &StopFlag::new()).unwrap()
    }

    #[test]
    fn each_bad_row_is_set_aside_with_its_place_and_reason() {
        let data = b"1,a\nx,b\n2\n3,c,d\n4,\n5,\"q\n\n\"\n\n,z\n6,\xff\n7,\0\n8,ok\n9,\"open\n";
        let piece = convert(data, &[("int64", false), ("large_utf8", true)]);
        let found: Vec<(u64, u64, RejectReason, Option<&str>)> =
            piece.rejects.iter().map(|r| (r.row, r.line.unwrap(), r.reason, r.column.as_deref())).collect();
        assert_eq!(
            found,
            [
                (11, 3, RejectReason::BadValue, Some("c0")),
                (12, 4, RejectReason::Ragged, None),
                (13, 5, RejectReason::Ragged, None),
                (16, 11, RejectReason::Null, Some("c0")),
                (17, 12, RejectReason::InvalidUtf8, Some("c1")),
                (18, 13, RejectReason::NulByte, None),
                (20, 15, RejectReason::UnclosedQuote, None),
            ]
        );
        assert_eq!(piece.rows_in, 11);
        assert_eq!(piece.source_rows.as_primitive::<arrow::datatypes::Int64Type>().values(), &[10, 14, 15, 19]);
        assert_eq!(piece.rejects[0].raw, "x,b");
        assert_eq!(piece.rejects[4].raw, "6,\\xff");
        assert_eq!(piece.rejects[0].to_string(), "f.csv:3: column \"c0\": \"x\" is no int64 (bad_value)");
        let text = piece.batch.column(1).as_string::<i64>();
        assert_eq!(text.iter().collect::<Vec<_>>(), [Some("a"), None, Some("q\n\n"), Some("ok")]);
    }

    #[test]
    fn quotes_tell_text_from_nothing() {
        let piece = convert(b"\"\",\"\"\n,\nNA,NA\n\"NA\",\"NA\"\n", &[("int64", true), ("large_utf8", true)]);
        assert!(piece.rejects.is_empty());
        assert_eq!(piece.batch.column(0).null_count(), 4);
        let text = piece.batch.column(1).as_string::<i64>();
        assert_eq!(text.iter().collect::<Vec<_>>(), [Some(""), None, None, Some("NA")]);
    }

    #[test]
    fn bytes_need_not_be_text() {
        let piece = convert(b"\xff\xfe,1\n", &[("large_binary", true), ("int64", true)]);
        assert!(piece.rejects.is_empty());
        assert_eq!(piece.batch.column(0).as_binary::<i64>().value(0), b"\xff\xfe");
    }

    #[test]
    fn profiles_pass_over_bad_rows() {
        let profile = profile_piece(b"1,a\n2\nx\xff,b\n3,\n", &format(2), true, 0, &StopFlag::new()).unwrap();
        assert_eq!(profile.rows, 4);
        let inferred = profile.candidates[0].resolve(&|_| String::new());
        assert_eq!(inferred.column_type.to_string(), "int64");
        assert!(profile.candidates[1].resolve(&|_| String::new()).nullable);
    }
}
