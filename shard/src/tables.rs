//! The manifest's tables: files with their row groups, strata, categories and statistics, each a small Parquet file.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, Float64Array, LargeBinaryArray, LargeStringArray, UInt32Array, UInt64Array},
    datatypes::{DataType, Field, Float64Type, Schema, UInt32Type, UInt64Type},
    record_batch::RecordBatch,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    manifest::{META, Manifest, TableRef},
    parquet_reader::ParquetFile,
    parquet_writer::{EncodedFile, encode_file},
    statistics::{ColumnStatistics, StatisticsBuilder},
    storage::Storage,
    strata::StratumKey,
};

/// A data file of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Path below the root.
    pub path: String,
    /// Its split; empty for a clean data set.
    pub split: String,
    /// Its lane; 0 for a clean data set.
    pub lane: u32,
    /// Ordinal within its lane (or data set).
    pub sequence: u32,
    /// Rows.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the file.
    pub blake3: String,
    /// Version of the set that added it.
    pub version: u64,
    /// Row groups in order.
    pub row_groups: Vec<RowGroupEntry>,
}

/// A row group of a data file.
pub type RowGroupEntry = crate::parquet_writer::EncodedRowGroup;

impl FileEntry {
    /// The entry of `file` stored at `path`.
    #[must_use]
    pub fn new(path: String, split: &str, lane: u32, sequence: u32, file: &EncodedFile) -> Self {
        Self {
            path,
            split: split.to_owned(),
            lane,
            sequence,
            rows: file.rows,
            bytes: file.bytes.len() as u64,
            blake3: file.blake3.clone(),
            version: 1,
            row_groups: file.row_groups.clone(),
        }
    }
}

/// Rows of a stratum in a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StratumEntry {
    /// Ordinal of the stratum.
    pub stratum: u32,
    /// Its value: the stratify columns' values joined by ` | `, `∅` for null.
    pub value: String,
    /// The split.
    pub split: String,
    /// Rows of the input.
    pub rows_in: u64,
    /// Rows in the shards, copies included: others where the split was resampled.
    pub rows: u64,
    /// The version that added them.
    pub version: u64,
}

/// The stratum of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// The key, as [`crate::strata::key`] encodes it.
    pub key: StratumKey,
    /// Ordinal of its stratum.
    pub stratum: u32,
    /// The version whose strata these are.
    pub version: u64,
}

/// A column kept beside a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecarEntry {
    /// Path below the root.
    pub path: String,
    /// The split.
    pub split: String,
    /// The lane.
    pub lane: u32,
    /// `weight`, `difficulty`, `order_difficulty`, or the column's name.
    pub name: String,
    /// The column of the data set that it is made from.
    pub column: String,
    /// Rows: one a position.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the file.
    pub blake3: String,
}

/// Rows of a large stratum on a node, for pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStratumEntry {
    /// Ordinal of the stratum.
    pub stratum: u32,
    /// Its value.
    pub value: String,
    /// The split.
    pub split: String,
    /// The node.
    pub node: u32,
    /// Rows.
    pub rows: u64,
}

/// A value of a categorical column in a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CategoryEntry {
    /// The split; empty for a clean data set.
    pub split: String,
    /// The column.
    pub column: String,
    /// The value as text.
    pub value: String,
    /// Rows that have it.
    pub rows: u64,
}

/// Statistics of a column in a split.
#[derive(Debug, Clone, PartialEq)]
pub struct StatisticsEntry {
    /// The split; empty for a clean data set.
    pub split: String,
    /// The column.
    pub column: String,
    /// The figures.
    pub statistics: ColumnStatistics,
}

/// A file that rows came from; its ordinal, the upper bits of row ids, is its place in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputEntry {
    /// Path below the input's root.
    pub path: String,
    /// Rows.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of its footer.
    pub footer_blake3: String,
}

/// Name of the inputs table.
pub const INPUTS: &str = "inputs";
/// Name of the files table.
pub const FILES: &str = "files";
/// Name of the table of files with refused rows, of the same form; only where rows were refused.
pub const REJECT_FILES: &str = "reject_files";
/// Name of the strata table.
pub const STRATA: &str = "strata";
/// Name of the table of keys.
pub const KEYS: &str = "keys";
/// Name of the sidecars table; only where there are sidecars.
pub const SIDECARS: &str = "sidecars";
/// Name of the table of the largest strata by node.
pub const NODE_STRATA: &str = "node_strata";
/// Name of the table of statistics as they can be added to.
pub const STATISTICS_STATE: &str = "statistics_state";
/// Name of the categories table.
pub const CATEGORIES: &str = "categories";
/// Name of the statistics table.
pub const STATISTICS: &str = "statistics";

/// Stores a table under its digest and gives the reference for the manifest.
///
/// # Errors
/// Storage and encoding errors.
pub async fn write_table(storage: &Storage, name: &str, batch: &RecordBatch) -> Result<TableRef> {
    let file = encode_file(name, &batch.schema(), std::slice::from_ref(batch))?;
    let path = format!("{META}/tables/{name}-{}.parquet", file.digest8());
    let table = TableRef { path, rows: file.rows, bytes: file.bytes.len() as u64, blake3: file.blake3 };
    storage.put(&table.path, file.bytes).await?;
    Ok(table)
}

/// Reads table `name` of `manifest`, checking its digest.
///
/// # Errors
/// [`Error::Corrupt`] when the bytes are not those of the manifest, or the table is not named there.
pub async fn read_table(storage: &Storage, manifest: &Manifest, name: &str) -> Result<RecordBatch> {
    let table = manifest.tables.get(name).ok_or_else(|| {
        Error::corrupt(storage.url(&Manifest::path(manifest.version)), format!("it names no table \"{name}\""))
    })?;
    read_digested(storage, &table.path, &table.blake3).await
}

/// All rows of a Parquet file that is small enough for memory, whose digest the manifest or a table of it has.
pub(crate) async fn read_digested(storage: &Storage, path: &str, blake3: &str) -> Result<RecordBatch> {
    let url = storage.url(path);
    let bytes = storage.get(path).await?;
    if blake3::hash(&bytes).to_hex().as_str() != blake3 {
        return Err(Error::corrupt(url, "its digest is not the manifest's"));
    }
    let file = ParquetFile::open(storage, path).await?;
    let mut batches = Vec::new();
    for index in 0..file.row_group_rows().len() {
        let group = crate::parquet_reader::RowGroupBytes::new(0, bytes.clone());
        batches.push(file.decode(index, &group, None)?);
    }
    arrow::compute::concat_batches(file.schema(), &batches).map_err(|e| Error::corrupt(url, e.to_string()))
}

fn table(columns: Vec<(&str, ArrayRef)>) -> Result<RecordBatch> {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(n, a)| Field::new(*n, a.data_type().clone(), *a.data_type() == DataType::Float64))
        .collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect())
        .map_err(|source| Error::Arrow { action: "build a table".into(), source })
}

fn text<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(LargeStringArray::from_iter_values(values))
}

fn u64s(values: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(values))
}

fn u32s(values: impl Iterator<Item = u32>) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(values))
}

/// A column of a table that was read back.
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
        Ok(self.column(name, &DataType::LargeUtf8)?.as_string::<i64>())
    }

    fn binary(&self, name: &str) -> Result<&'a LargeBinaryArray> {
        Ok(self.column(name, &DataType::LargeBinary)?.as_binary::<i64>())
    }

    fn u64(&self, name: &str) -> Result<&'a UInt64Array> {
        Ok(self.column(name, &DataType::UInt64)?.as_primitive::<UInt64Type>())
    }

    fn u32(&self, name: &str) -> Result<&'a UInt32Array> {
        Ok(self.column(name, &DataType::UInt32)?.as_primitive::<UInt32Type>())
    }

    fn f64(&self, name: &str) -> Result<&'a Float64Array> {
        Ok(self.column(name, &DataType::Float64)?.as_primitive::<Float64Type>())
    }
}

/// The files table: one row a row group, file fields repeated.
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn files_table(files: &[FileEntry]) -> Result<RecordBatch> {
    let rows: Vec<(&FileEntry, u32, &RowGroupEntry)> =
        files.iter().flat_map(|f| f.row_groups.iter().enumerate().map(move |(i, g)| (f, i as u32, g))).collect();
    table(vec![
        ("path", text(rows.iter().map(|r| r.0.path.as_str()))),
        ("split", text(rows.iter().map(|r| r.0.split.as_str()))),
        ("lane", u32s(rows.iter().map(|r| r.0.lane))),
        ("sequence", u32s(rows.iter().map(|r| r.0.sequence))),
        ("file_rows", u64s(rows.iter().map(|r| r.0.rows))),
        ("file_bytes", u64s(rows.iter().map(|r| r.0.bytes))),
        ("file_blake3", text(rows.iter().map(|r| r.0.blake3.as_str()))),
        ("version", u64s(rows.iter().map(|r| r.0.version))),
        ("row_group", u32s(rows.iter().map(|r| r.1))),
        ("rows", u64s(rows.iter().map(|r| r.2.rows))),
        ("offset", u64s(rows.iter().map(|r| r.2.offset))),
        ("length", u64s(rows.iter().map(|r| r.2.length))),
        ("decoded_bytes", u64s(rows.iter().map(|r| r.2.decoded_bytes))),
        ("blake3", text(rows.iter().map(|r| r.2.blake3.as_str()))),
    ])
}

/// The files of `manifest`, in (split, lane, sequence) order as written.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_files(storage: &Storage, manifest: &Manifest) -> Result<Vec<FileEntry>> {
    read_files_table(storage, manifest, FILES).await
}

/// The files with refused rows of `manifest`; none where no row was refused.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_reject_files(storage: &Storage, manifest: &Manifest) -> Result<Vec<FileEntry>> {
    if manifest.tables.contains_key(REJECT_FILES) {
        read_files_table(storage, manifest, REJECT_FILES).await
    } else {
        Ok(Vec::new())
    }
}

async fn read_files_table(storage: &Storage, manifest: &Manifest, name: &str) -> Result<Vec<FileEntry>> {
    let batch = read_table(storage, manifest, name).await?;
    let url = storage.url(manifest.tables.get(name).map_or("", |t| &t.path));
    let read = Reader { batch: &batch, url: &url };
    let (path, split, lane, sequence) =
        (read.text("path")?, read.text("split")?, read.u32("lane")?, read.u32("sequence")?);
    let (file_rows, file_bytes, file_blake3, version) =
        (read.u64("file_rows")?, read.u64("file_bytes")?, read.text("file_blake3")?, read.u64("version")?);
    let (group, rows, offset, length) =
        (read.u32("row_group")?, read.u64("rows")?, read.u64("offset")?, read.u64("length")?);
    let (decoded, blake3) = (read.u64("decoded_bytes")?, read.text("blake3")?);
    let mut files: Vec<FileEntry> = Vec::new();
    for i in 0..batch.num_rows() {
        if files.last().is_none_or(|f| f.path != path.value(i)) {
            files.push(FileEntry {
                path: path.value(i).to_owned(),
                split: split.value(i).to_owned(),
                lane: lane.value(i),
                sequence: sequence.value(i),
                rows: file_rows.value(i),
                bytes: file_bytes.value(i),
                blake3: file_blake3.value(i).to_owned(),
                version: version.value(i),
                row_groups: Vec::new(),
            });
        }
        let Some(file) = files.last_mut() else { continue };
        if file.row_groups.len() != group.value(i) as usize {
            return Err(Error::corrupt(&url, format!("row groups of {} are out of order", file.path)));
        }
        file.row_groups.push(RowGroupEntry {
            rows: rows.value(i),
            offset: offset.value(i),
            length: length.value(i),
            decoded_bytes: decoded.value(i),
            blake3: blake3.value(i).to_owned(),
        });
    }
    Ok(files)
}

/// The inputs table.
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn inputs_table(inputs: &[InputEntry]) -> Result<RecordBatch> {
    table(vec![
        ("path", text(inputs.iter().map(|i| i.path.as_str()))),
        ("rows", u64s(inputs.iter().map(|i| i.rows))),
        ("bytes", u64s(inputs.iter().map(|i| i.bytes))),
        ("footer_blake3", text(inputs.iter().map(|i| i.footer_blake3.as_str()))),
    ])
}

/// The inputs of `manifest`, in order of their ordinals.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_inputs(storage: &Storage, manifest: &Manifest) -> Result<Vec<InputEntry>> {
    let batch = read_table(storage, manifest, INPUTS).await?;
    let url = storage.url(INPUTS);
    let read = Reader { batch: &batch, url: &url };
    let (path, rows, bytes, footer) =
        (read.text("path")?, read.u64("rows")?, read.u64("bytes")?, read.text("footer_blake3")?);
    Ok((0..batch.num_rows())
        .map(|i| InputEntry {
            path: path.value(i).to_owned(),
            rows: rows.value(i),
            bytes: bytes.value(i),
            footer_blake3: footer.value(i).to_owned(),
        })
        .collect())
}

/// The strata table.
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn strata_table(strata: &[StratumEntry]) -> Result<RecordBatch> {
    table(vec![
        ("stratum", u32s(strata.iter().map(|s| s.stratum))),
        ("value", text(strata.iter().map(|s| s.value.as_str()))),
        ("split", text(strata.iter().map(|s| s.split.as_str()))),
        ("rows_in", u64s(strata.iter().map(|s| s.rows_in))),
        ("rows", u64s(strata.iter().map(|s| s.rows))),
        ("version", u64s(strata.iter().map(|s| s.version))),
    ])
}

/// The keys table.
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn keys_table(keys: &[KeyEntry]) -> Result<RecordBatch> {
    let bytes: ArrayRef = Arc::new(LargeBinaryArray::from_iter_values(keys.iter().map(|k| &k.key)));
    table(vec![
        ("key", bytes),
        ("stratum", u32s(keys.iter().map(|k| k.stratum))),
        ("version", u64s(keys.iter().map(|k| k.version))),
    ])
}

/// The keys of `manifest`.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_keys(storage: &Storage, manifest: &Manifest) -> Result<Vec<KeyEntry>> {
    let batch = read_table(storage, manifest, KEYS).await?;
    let url = storage.url(KEYS);
    let read = Reader { batch: &batch, url: &url };
    let (key, stratum, version) = (read.binary("key")?, read.u32("stratum")?, read.u64("version")?);
    Ok((0..batch.num_rows())
        .map(|i| KeyEntry { key: key.value(i).into(), stratum: stratum.value(i), version: version.value(i) })
        .collect())
}

/// The sidecars table.
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn sidecars_table(sidecars: &[SidecarEntry]) -> Result<RecordBatch> {
    table(vec![
        ("path", text(sidecars.iter().map(|s| s.path.as_str()))),
        ("split", text(sidecars.iter().map(|s| s.split.as_str()))),
        ("lane", u32s(sidecars.iter().map(|s| s.lane))),
        ("name", text(sidecars.iter().map(|s| s.name.as_str()))),
        ("column", text(sidecars.iter().map(|s| s.column.as_str()))),
        ("rows", u64s(sidecars.iter().map(|s| s.rows))),
        ("bytes", u64s(sidecars.iter().map(|s| s.bytes))),
        ("blake3", text(sidecars.iter().map(|s| s.blake3.as_str()))),
    ])
}

/// The sidecars of `manifest`; none where none were asked for.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_sidecars(storage: &Storage, manifest: &Manifest) -> Result<Vec<SidecarEntry>> {
    if !manifest.tables.contains_key(SIDECARS) {
        return Ok(Vec::new());
    }
    let batch = read_table(storage, manifest, SIDECARS).await?;
    let url = storage.url(SIDECARS);
    let read = Reader { batch: &batch, url: &url };
    let (path, split, lane) = (read.text("path")?, read.text("split")?, read.u32("lane")?);
    let (name, column) = (read.text("name")?, read.text("column")?);
    let (rows, bytes, blake3) = (read.u64("rows")?, read.u64("bytes")?, read.text("blake3")?);
    Ok((0..batch.num_rows())
        .map(|i| SidecarEntry {
            path: path.value(i).to_owned(),
            split: split.value(i).to_owned(),
            lane: lane.value(i),
            name: name.value(i).to_owned(),
            column: column.value(i).to_owned(),
            rows: rows.value(i),
            bytes: bytes.value(i),
            blake3: blake3.value(i).to_owned(),
        })
        .collect())
}

/// The table of the largest strata by node.
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn node_strata_table(entries: &[NodeStratumEntry]) -> Result<RecordBatch> {
    table(vec![
        ("stratum", u32s(entries.iter().map(|e| e.stratum))),
        ("value", text(entries.iter().map(|e| e.value.as_str()))),
        ("split", text(entries.iter().map(|e| e.split.as_str()))),
        ("node", u32s(entries.iter().map(|e| e.node))),
        ("rows", u64s(entries.iter().map(|e| e.rows))),
    ])
}

/// Rows of the largest strata on each node, of the version that `manifest` added.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_node_strata(storage: &Storage, manifest: &Manifest) -> Result<Vec<NodeStratumEntry>> {
    let batch = read_table(storage, manifest, NODE_STRATA).await?;
    let url = storage.url(NODE_STRATA);
    let read = Reader { batch: &batch, url: &url };
    let (stratum, value, split) = (read.u32("stratum")?, read.text("value")?, read.text("split")?);
    let (node, rows) = (read.u32("node")?, read.u64("rows")?);
    Ok((0..batch.num_rows())
        .map(|i| NodeStratumEntry {
            stratum: stratum.value(i),
            value: value.value(i).to_owned(),
            split: split.value(i).to_owned(),
            node: node.value(i),
            rows: rows.value(i),
        })
        .collect())
}

/// The table of statistics as they can be added to, by (split, column).
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn statistics_state_table(states: &[(String, String, StatisticsBuilder)]) -> Result<RecordBatch> {
    let mut bytes = Vec::with_capacity(states.len());
    for (_, column, state) in states {
        let state = postcard::to_allocvec(state);
        bytes.push(state.map_err(|e| Error::internal(format!("statistics of \"{column}\": {e}")))?);
    }
    let bytes: ArrayRef = Arc::new(LargeBinaryArray::from_iter_values(bytes));
    table(vec![
        ("split", text(states.iter().map(|s| s.0.as_str()))),
        ("column", text(states.iter().map(|s| s.1.as_str()))),
        ("state", bytes),
    ])
}

/// The statistics of `manifest`, to be added to.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_statistics_state(
    storage: &Storage,
    manifest: &Manifest,
) -> Result<Vec<(String, String, StatisticsBuilder)>> {
    let batch = read_table(storage, manifest, STATISTICS_STATE).await?;
    let url = storage.url(STATISTICS_STATE);
    let read = Reader { batch: &batch, url: &url };
    let (split, column, state) = (read.text("split")?, read.text("column")?, read.binary("state")?);
    let mut states = Vec::with_capacity(batch.num_rows());
    for i in 0..batch.num_rows() {
        let state = postcard::from_bytes(state.value(i)).map_err(|e| Error::corrupt(&url, e.to_string()))?;
        states.push((split.value(i).to_owned(), column.value(i).to_owned(), state));
    }
    Ok(states)
}

/// The strata of `manifest`.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_strata(storage: &Storage, manifest: &Manifest) -> Result<Vec<StratumEntry>> {
    let batch = read_table(storage, manifest, STRATA).await?;
    let url = storage.url(STRATA);
    let read = Reader { batch: &batch, url: &url };
    let (stratum, value, split) = (read.u32("stratum")?, read.text("value")?, read.text("split")?);
    let (rows_in, rows, version) = (read.u64("rows_in")?, read.u64("rows")?, read.u64("version")?);
    Ok((0..batch.num_rows())
        .map(|i| StratumEntry {
            stratum: stratum.value(i),
            value: value.value(i).to_owned(),
            split: split.value(i).to_owned(),
            rows_in: rows_in.value(i),
            rows: rows.value(i),
            version: version.value(i),
        })
        .collect())
}

/// The categories table.
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn categories_table(categories: &[CategoryEntry]) -> Result<RecordBatch> {
    table(vec![
        ("split", text(categories.iter().map(|c| c.split.as_str()))),
        ("column", text(categories.iter().map(|c| c.column.as_str()))),
        ("value", text(categories.iter().map(|c| c.value.as_str()))),
        ("rows", u64s(categories.iter().map(|c| c.rows))),
    ])
}

/// The categories of `manifest`, in (split, column, value) order as written: values of text in byte order, of numbers
/// in numeric order.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_categories(storage: &Storage, manifest: &Manifest) -> Result<Vec<CategoryEntry>> {
    let batch = read_table(storage, manifest, CATEGORIES).await?;
    let url = storage.url(CATEGORIES);
    let read = Reader { batch: &batch, url: &url };
    let (split, column, value, rows) =
        (read.text("split")?, read.text("column")?, read.text("value")?, read.u64("rows")?);
    Ok((0..batch.num_rows())
        .map(|i| CategoryEntry {
            split: split.value(i).to_owned(),
            column: column.value(i).to_owned(),
            value: value.value(i).to_owned(),
            rows: rows.value(i),
        })
        .collect())
}

/// The statistics table.
///
/// # Errors
/// [`Error::Arrow`] when the table can't be built.
pub fn statistics_table(entries: &[StatisticsEntry]) -> Result<RecordBatch> {
    let float = |f: fn(&ColumnStatistics) -> Option<f64>| -> ArrayRef {
        Arc::new(entries.iter().map(|e| f(&e.statistics)).collect::<Float64Array>())
    };
    table(vec![
        ("split", text(entries.iter().map(|e| e.split.as_str()))),
        ("column", text(entries.iter().map(|e| e.column.as_str()))),
        ("rows", u64s(entries.iter().map(|e| e.statistics.rows))),
        ("nulls", u64s(entries.iter().map(|e| e.statistics.nulls))),
        ("non_finite", u64s(entries.iter().map(|e| e.statistics.non_finite))),
        ("min", float(|s| s.min)),
        ("max", float(|s| s.max)),
        ("mean", float(|s| s.mean)),
        ("deviation", float(|s| s.deviation)),
        ("q01", float(|s| s.quantiles[0])),
        ("q05", float(|s| s.quantiles[1])),
        ("q25", float(|s| s.quantiles[2])),
        ("q50", float(|s| s.quantiles[3])),
        ("q75", float(|s| s.quantiles[4])),
        ("q95", float(|s| s.quantiles[5])),
        ("q99", float(|s| s.quantiles[6])),
    ])
}

/// The statistics of `manifest`.
///
/// # Errors
/// [`Error::Corrupt`] when the table is not what it should be.
pub async fn read_statistics(storage: &Storage, manifest: &Manifest) -> Result<Vec<StatisticsEntry>> {
    let batch = read_table(storage, manifest, STATISTICS).await?;
    let url = storage.url(STATISTICS);
    let read = Reader { batch: &batch, url: &url };
    let (split, column) = (read.text("split")?, read.text("column")?);
    let (rows, nulls, non_finite) = (read.u64("rows")?, read.u64("nulls")?, read.u64("non_finite")?);
    let float = |name: &str| -> Result<Vec<Option<f64>>> { Ok(read.f64(name)?.iter().collect()) };
    let (min, max, mean, deviation) = (float("min")?, float("max")?, float("mean")?, float("deviation")?);
    let mut quantiles = Vec::new();
    for name in ["q01", "q05", "q25", "q50", "q75", "q95", "q99"] {
        quantiles.push(float(name)?);
    }
    Ok((0..batch.num_rows())
        .map(|i| StatisticsEntry {
            split: split.value(i).to_owned(),
            column: column.value(i).to_owned(),
            statistics: ColumnStatistics {
                rows: rows.value(i),
                nulls: nulls.value(i),
                non_finite: non_finite.value(i),
                min: min[i],
                max: max[i],
                mean: mean[i],
                deviation: deviation[i],
                quantiles: std::array::from_fn(|q| quantiles[q][i]),
            },
        })
        .collect())
}
