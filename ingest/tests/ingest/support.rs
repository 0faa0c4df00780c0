//! A folder of raw files, and the data set that an ingest made of it.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use arrow::{
    compute::{cast, concat_batches},
    datatypes::DataType,
    record_batch::RecordBatch,
};
use bytes::Bytes;
use gristmill_ingest::{IngestOptions, IngestOutcome, MaxRejects, ingest};
use gristmill_shard::{Control, Result, Storage, parquet_reader::ParquetFile, tables::read_files};

pub(crate) struct Raw {
    pub(crate) dir: tempfile::TempDir,
}

impl Raw {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let raw = Self { dir: tempfile::tempdir().unwrap() };
        for (name, bytes) in files {
            raw.write(name, bytes);
        }
        raw
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// All files, any number of rejects.
    pub(crate) fn options(&self) -> IngestOptions {
        IngestOptions {
            max_rejects: MaxRejects::Rows(u64::MAX),
            ..IngestOptions::new(vec![self.path().to_str().unwrap().to_owned()])
        }
    }
}

pub(crate) fn threads(threads: usize) -> Control {
    Control { threads, ..Control::default() }
}

pub(crate) async fn run(options: &IngestOptions, out: &Storage) -> Result<IngestOutcome> {
    Box::pin(ingest(options, out, &threads(2))).await
}

/// All clean rows in order.
pub(crate) async fn rows(out: &Storage, outcome: &IngestOutcome) -> RecordBatch {
    let mut batches = Vec::new();
    for entry in read_files(out, &outcome.manifest).await.unwrap() {
        let file = ParquetFile::open(out, &entry.path).await.unwrap();
        for group in 0..file.row_group_rows().len() {
            let bytes = file.fetch(out, group, None).await.unwrap();
            batches.push(file.decode(group, &bytes, None).unwrap());
        }
    }
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// Every object with its bytes.
pub(crate) async fn objects(out: &Storage) -> BTreeMap<String, Bytes> {
    let mut all = BTreeMap::new();
    for object in out.list("").await.unwrap() {
        let bytes = out.get(&object.path).await.unwrap();
        all.insert(object.path, bytes);
    }
    all
}

/// A column by name, each value as text (instants with a `Z`), `None` for null.
pub(crate) fn shown(batch: &RecordBatch, column: &str) -> Vec<Option<String>> {
    let mut array = Arc::clone(batch.column_by_name(column).unwrap());
    let mut suffix = "";
    if let DataType::Timestamp(unit, Some(_)) = array.data_type() {
        let naive = DataType::Timestamp(*unit, None);
        array = cast(&cast(&array, &DataType::Int64).unwrap(), &naive).unwrap();
        suffix = "Z";
    }
    let options = arrow::util::display::FormatOptions::default();
    let format = arrow::util::display::ArrayFormatter::try_new(array.as_ref(), &options).unwrap();
    (0..array.len())
        .map(|i| arrow::array::Array::is_valid(array.as_ref(), i).then(|| format!("{}{suffix}", format.value(i))))
        .collect()
}

pub(crate) fn types(outcome: &IngestOutcome) -> Vec<(String, String)> {
    outcome.manifest.schema.columns.iter().map(|c| (c.name.clone(), c.column_type.to_string())).collect()
}
