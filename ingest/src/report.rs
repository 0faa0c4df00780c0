//! What an ingest found: per file, per column, and the refused rows. It is kept in tables of the manifest and read back.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, LargeStringArray, UInt64Array},
    datatypes::{DataType, Field, Schema, UInt64Type},
    record_batch::RecordBatch,
};
use gristmill_shard::{
    Error, Manifest, Result, Storage,
    manifest::IngestCounts,
    parquet_reader::ParquetFile,
    tables::{REJECT_FILES, read_table},
};
use serde::Serialize;

use crate::rejects::{Reject, RejectReason, RejectSummary};

/// Table of the raw files.
pub const SOURCES: &str = "sources";
/// Table of the columns and why they have their types.
pub const COLUMNS: &str = "columns";
/// Table of refused rows by reason.
pub const REJECT_REASONS: &str = "reject_reasons";

/// A raw file and where its rows went. Its place in the list is the value of `_source_file`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileReport {
    /// Path below the folder that all sources share.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the file.
    pub blake3: String,
    /// Its rows.
    #[serde(flatten)]
    pub counts: IngestCounts,
}

/// A column and why it is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColumnReport {
    /// Name.
    pub name: String,
    /// `input` (read), `output` (made by the query), or `unread` (in the files, not in the schema given).
    pub stage: String,
    /// Type; empty for an unread column.
    #[serde(rename = "type")]
    pub column_type: String,
    /// Whether nulls may occur.
    pub nullable: bool,
    /// Why.
    pub evidence: String,
}

/// What an ingest found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct IngestReport {
    /// Where all rows went.
    pub counts: IngestCounts,
    /// By raw file.
    pub files: Vec<FileReport>,
    /// By column.
    pub columns: Vec<ColumnReport>,
    /// Refused rows.
    pub rejects: RejectSummary,
    /// Files of the source folders that are not data.
    pub skipped: Vec<String>,
}

/// A finished ingest.
#[derive(Debug, Clone)]
pub struct IngestOutcome {
    /// The published manifest.
    pub manifest: Manifest,
    /// The output was there already, from the same input and options; nothing was done.
    pub already_current: bool,
    /// What was found.
    pub report: IngestReport,
}

fn table(fields: Vec<(&str, ArrayRef)>) -> Result<RecordBatch> {
    let schema =
        Schema::new(fields.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), false)).collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), fields.into_iter().map(|(_, a)| a).collect())
        .map_err(|source| Error::Arrow { action: "build a table of the report".into(), source })
}

fn text<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(LargeStringArray::from_iter_values(values))
}

fn numbers(values: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(values))
}

impl IngestReport {
    /// The tables that keep it, by name.
    pub(crate) fn tables(&self) -> Result<Vec<(&'static str, RecordBatch)>> {
        let count = |f: fn(&IngestCounts) -> u64| numbers(self.files.iter().map(move |file| f(&file.counts)));
        let sources = table(vec![
            ("ordinal", numbers(0..self.files.len() as u64)),
            ("file", text(self.files.iter().map(|f| f.name.as_str()))),
            ("bytes", numbers(self.files.iter().map(|f| f.bytes))),
            ("blake3", text(self.files.iter().map(|f| f.blake3.as_str()))),
            ("rows_in", count(|c| c.rows_in)),
            ("accepted", count(|c| c.accepted)),
            ("rejected", count(|c| c.rejected)),
            ("filtered", count(|c| c.filtered)),
        ])?;
        let columns = table(vec![
            ("column", text(self.columns.iter().map(|c| c.name.as_str()))),
            ("stage", text(self.columns.iter().map(|c| c.stage.as_str()))),
            ("type", text(self.columns.iter().map(|c| c.column_type.as_str()))),
            ("nullable", Arc::new(self.columns.iter().map(|c| Some(c.nullable)).collect::<BooleanArray>())),
            ("evidence", text(self.columns.iter().map(|c| c.evidence.as_str()))),
        ])?;
        let reasons: Vec<(String, u64)> = self.rejects.by_reason.iter().map(|(r, n)| (r.to_string(), *n)).collect();
        let reasons = table(vec![
            ("reason", text(reasons.iter().map(|r| r.0.as_str()))),
            ("rows", numbers(reasons.iter().map(|r| r.1))),
        ])?;
        Ok(vec![(SOURCES, sources), (COLUMNS, columns), (REJECT_REASONS, reasons)])
    }

    /// The report of a published data set; [`IngestReport::skipped`] is not kept.
    ///
    /// # Errors
    /// Storage errors, [`Error::Corrupt`] when a table is not what it should be.
    pub async fn read(storage: &Storage, manifest: &Manifest) -> Result<Self> {
        let url = storage.url(&Manifest::path(manifest.version));
        let counts = manifest.ingest.ok_or_else(|| Error::corrupt(&url, "it has no counts of an ingest"))?;
        let sources = read_table(storage, manifest, SOURCES).await?;
        let read = Reader { batch: &sources, url: &url };
        let (names, bytes, digests) = (read.text("file")?, read.number("bytes")?, read.text("blake3")?);
        let (rows_in, accepted) = (read.number("rows_in")?, read.number("accepted")?);
        let (rejected, filtered) = (read.number("rejected")?, read.number("filtered")?);
        let files = (0..sources.num_rows())
            .map(|i| FileReport {
                name: names.value(i).to_owned(),
                bytes: bytes.value(i),
                blake3: digests.value(i).to_owned(),
                counts: IngestCounts {
                    rows_in: rows_in.value(i),
                    accepted: accepted.value(i),
                    rejected: rejected.value(i),
                    filtered: filtered.value(i),
                },
            })
            .collect();
        let columns = read_table(storage, manifest, COLUMNS).await?;
        let read = Reader { batch: &columns, url: &url };
        let (names, stages, types) = (read.text("column")?, read.text("stage")?, read.text("type")?);
        let (evidence, nullable) = (read.text("evidence")?, read.column("nullable", &DataType::Boolean)?.as_boolean());
        let columns = (0..columns.num_rows())
            .map(|i| ColumnReport {
                name: names.value(i).to_owned(),
                stage: stages.value(i).to_owned(),
                column_type: types.value(i).to_owned(),
                nullable: nullable.value(i),
                evidence: evidence.value(i).to_owned(),
            })
            .collect();
        let reasons = read_table(storage, manifest, REJECT_REASONS).await?;
        let read = Reader { batch: &reasons, url: &url };
        let (names, rows) = (read.text("reason")?, read.number("rows")?);
        let mut by_reason = BTreeMap::new();
        for i in 0..reasons.num_rows() {
            by_reason.insert(reason(names.value(i), &url)?, rows.value(i));
        }
        let examples = if by_reason.is_empty() {
            Vec::new()
        } else {
            read_rejects(storage, manifest, RejectSummary::EXAMPLES).await?
        };
        let rejects = RejectSummary { by_reason, examples: RejectSummary::of(&examples).examples };
        Ok(Self { counts, files, columns, rejects, skipped: Vec::new() })
    }
}

fn reason(text: &str, url: &str) -> Result<RejectReason> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| Error::corrupt(url, format!("it has the unknown reject reason \"{text}\"")))
}

/// The first `limit` refused rows of a data set, in row order.
///
/// # Errors
/// Storage errors, [`Error::Corrupt`] when a file is not what the manifest says.
pub async fn read_rejects(storage: &Storage, manifest: &Manifest, limit: usize) -> Result<Vec<Reject>> {
    let mut rejects = Vec::new();
    if !manifest.tables.contains_key(REJECT_FILES) {
        return Ok(rejects);
    }
    let files = read_table(storage, manifest, REJECT_FILES).await?;
    let url = storage.url(&Manifest::path(manifest.version));
    let read = Reader { batch: &files, url: &url };
    let paths = read.text("path")?;
    let mut last = None;
    for path in paths.iter().flatten() {
        // The table has a row for each row group of a file.
        if last == Some(path) {
            continue;
        }
        last = Some(path);
        let file = ParquetFile::open(storage, path).await?;
        for group in 0..file.row_group_rows().len() {
            if rejects.len() >= limit {
                return Ok(rejects);
            }
            let bytes = file.fetch(storage, group, None).await?;
            let batch = file.decode(group, &bytes, None)?;
            rejects.extend(rejects_of(&batch, &storage.url(path), limit - rejects.len())?);
        }
    }
    Ok(rejects)
}

fn rejects_of(batch: &RecordBatch, url: &str, limit: usize) -> Result<Vec<Reject>> {
    let read = Reader { batch, url };
    let (file, column, reasons) = (read.text("file")?, read.text("column")?, read.text("reason")?);
    let (detail, raw) = (read.text("detail")?, read.text("raw")?);
    let (row, line) = (read.signed("row")?, read.signed("line")?);
    (0..batch.num_rows().min(limit))
        .map(|i| {
            Ok(Reject {
                file: file.value(i).to_owned(),
                row: row.value(i).max(0) as u64,
                line: line.is_valid(i).then(|| line.value(i).max(0) as u64),
                column: column.is_valid(i).then(|| column.value(i).to_owned()),
                reason: reason(reasons.value(i), url)?,
                detail: detail.value(i).to_owned(),
                raw: raw.value(i).to_owned(),
            })
        })
        .collect()
}

struct Reader<'a> {
    batch: &'a RecordBatch,
    url: &'a str,
}

impl<'a> Reader<'a> {
    fn column(&self, name: &str, data_type: &DataType) -> Result<&'a ArrayRef> {
        self.batch
            .column_by_name(name)
            .filter(|c| c.data_type() == data_type)
            .ok_or_else(|| Error::corrupt(self.url, format!("it has no column \"{name}\" of type {data_type}")))
    }

    fn text(&self, name: &str) -> Result<&'a LargeStringArray> {
        Ok(self.column(name, &DataType::LargeUtf8)?.as_string())
    }

    fn number(&self, name: &str) -> Result<&'a UInt64Array> {
        Ok(self.column(name, &DataType::UInt64)?.as_primitive::<UInt64Type>())
    }

    fn signed(&self, name: &str) -> Result<&'a arrow::array::Int64Array> {
        Ok(self.column(name, &DataType::Int64)?.as_primitive())
    }
}
