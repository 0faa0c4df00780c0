//! What is sharded: a gristmill data set, or a folder of Parquet that gristmill never saw.

use std::{collections::BTreeSet, sync::Arc};

use arrow::datatypes::{Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt, future::BoxFuture};

use crate::{
    error::{Error, Result},
    manifest::{InputRef, META, Manifest, ManifestKind},
    parquet_reader::ParquetFile,
    schema::{DatasetSchema, MAX_FILES, is_reserved},
    storage::Storage,
    tables,
};

/// Files of a data set, with their footers.
#[derive(Debug)]
pub struct Input {
    /// Where it is.
    pub storage: Storage,
    /// Files in order; a file's index is its ordinal in row ids.
    pub files: Vec<Arc<ParquetFile>>,
    /// Columns, without gristmill's own.
    pub schema: DatasetSchema,
    /// Identity, for the job digest.
    pub reference: InputRef,
}

/// Footers read at once.
const FOOTERS_AT_ONCE: usize = 32;

impl Input {
    /// Opens the data set at `storage`.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is nothing, [`Error::Usage`] when files disagree about columns or a column has a
    /// nested type, [`Error::Corrupt`] for a file that is not Parquet or not what the manifest says.
    pub async fn open(storage: &Storage) -> Result<Self> {
        let manifest = Manifest::latest(storage).await?;
        let (paths, sizes, reference) = match &manifest {
            Some(m) if m.kind == ManifestKind::Shards => {
                return Err(Error::usage(
                    format!("{} holds shards, not a data set", storage.url("")),
                    "give the data set they were made from",
                ));
            }
            Some(m) => {
                let files = tables::read_files(storage, m).await?;
                let sizes = files.iter().map(|f| Some(f.bytes)).collect::<Vec<_>>();
                let paths = files.into_iter().map(|f| f.path).collect::<Vec<_>>();
                (paths, sizes, InputRef { kind: "manifest".into(), digest: m.digest()? })
            }
            None => {
                let paths = plain_files(storage).await?;
                let sizes = vec![None; paths.len()];
                (paths, sizes, InputRef { kind: "files".into(), digest: String::new() })
            }
        };
        if paths.len() as u64 > MAX_FILES {
            return Err(Error::usage(
                format!("{} has more than {MAX_FILES} files", storage.url("")),
                "merge small files first",
            ));
        }
        let opening = paths.into_iter().map(|path| -> BoxFuture<'_, Result<Arc<ParquetFile>>> {
            Box::pin(async move { ParquetFile::open(storage, &path).await.map(Arc::new) })
        });
        let files: Vec<Arc<ParquetFile>> =
            futures::stream::iter(opening).buffered(FOOTERS_AT_ONCE).try_collect().await?;
        for (file, size) in files.iter().zip(sizes) {
            if size.is_some_and(|s| s != file.bytes()) {
                return Err(Error::corrupt(storage.url(file.path()), "its size is not the manifest's"));
            }
        }
        let schema = match &manifest {
            Some(m) => m.schema.clone(),
            None => common_schema(storage, &files)?,
        };
        let reference = if manifest.is_some() { reference } else { files_reference(&files) };
        Ok(Self { storage: storage.clone(), files, schema, reference })
    }

    /// Arrow schema of the columns that are sharded.
    #[must_use]
    pub fn arrow_schema(&self) -> SchemaRef {
        self.schema.to_arrow()
    }

    /// Rows of all files.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.files.iter().map(|f| f.rows()).sum()
    }
}

async fn plain_files(storage: &Storage) -> Result<Vec<String>> {
    let hidden = |path: &str| path.split('/').any(|part| part.starts_with(['_', '.'])) || path.starts_with(META);
    let paths: Vec<String> =
        storage.list("").await?.into_iter().map(|l| l.path).filter(|p| p.ends_with(".parquet") && !hidden(p)).collect();
    if paths.is_empty() {
        return Err(Error::NotFound {
            url: storage.url(""),
            help: "give a data set that `gristmill ingest` made, or a folder with .parquet files".into(),
        });
    }
    Ok(paths)
}

/// Identity of plain files: paths, sizes and digests of their footers, which name every column chunk with its place,
/// size and statistics.
fn files_reference(files: &[Arc<ParquetFile>]) -> InputRef {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let line = serde_json::json!([file.path(), file.bytes(), file.footer_blake3()]);
        hasher.update(line.to_string().as_bytes());
    }
    InputRef { kind: "files".into(), digest: hasher.finalize().to_hex().to_string() }
}

fn common_schema(storage: &Storage, files: &[Arc<ParquetFile>]) -> Result<DatasetSchema> {
    let mut common: Option<DatasetSchema> = None;
    for file in files {
        let url = storage.url(file.path());
        let names: BTreeSet<&str> = file.schema().fields().iter().map(|f| f.name().as_str()).collect();
        if let Some(name) = names.iter().find(|n| is_reserved(n)) {
            return Err(Error::usage(
                format!("{url}: column \"{name}\" starts with \"_\", which is reserved"),
                "rename it at ingest with --sql",
            ));
        }
        let schema = DatasetSchema::from_arrow(file.schema(), &url)?;
        let Some(first) = &mut common else {
            common = Some(schema);
            continue;
        };
        let shape =
            |s: &DatasetSchema| s.columns.iter().map(|c| (c.name.clone(), c.column_type.clone())).collect::<Vec<_>>();
        let (a, b) = (shape(first), shape(&schema));
        if a != b {
            let differs = a.iter().find(|c| !b.contains(c)).or_else(|| b.iter().find(|c| !a.contains(c)));
            let what = differs.map_or("the order of columns".to_owned(), |c| format!("column \"{}\" ({})", c.0, c.1));
            return Err(Error::usage(
                format!("{url} differs from {} in {what}", storage.url(files[0].path())),
                "bring the files to one schema with `gristmill ingest`",
            ));
        }
        for (mine, theirs) in first.columns.iter_mut().zip(&schema.columns) {
            mine.nullable |= theirs.nullable;
        }
    }
    common.ok_or_else(|| Error::internal("a data set without files has no schema"))
}

/// The sharded columns and the row id, as shards have them.
#[must_use]
pub fn shard_schema(schema: &DatasetSchema) -> SchemaRef {
    let mut fields: Vec<Field> = schema.to_arrow().fields().iter().map(|f| f.as_ref().clone()).collect();
    fields.push(Field::new(crate::schema::ROW_ID, arrow::datatypes::DataType::Int64, false));
    Arc::new(Schema::new(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parquet_writer::encode_file;
    use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};

    async fn put(storage: &Storage, path: &str, name: &str, column: ArrayRef) {
        let schema = Arc::new(Schema::new(vec![Field::new(name, column.data_type().clone(), false)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap();
        storage.put(path, encode_file(path, &schema, &[batch]).unwrap().bytes).await.unwrap();
    }

    #[tokio::test]
    async fn plain_folders_are_inputs_and_their_faults_are_named() {
        let storage = Storage::memory();
        assert_eq!(Input::open(&storage).await.unwrap_err().kind(), crate::ErrorKind::NotFound);
        put(&storage, "b.parquet", "x", Arc::new(Int64Array::from(vec![1, 2]))).await;
        put(&storage, "a.parquet", "x", Arc::new(Int64Array::from(vec![3]))).await;
        storage.put("_hidden.parquet", "x").await.unwrap();
        let input = Input::open(&storage).await.unwrap();
        assert_eq!(input.files.iter().map(|f| f.path()).collect::<Vec<_>>(), ["a.parquet", "b.parquet"]);
        assert_eq!(input.rows(), 3);
        let before = input.reference.clone();
        put(&storage, "c.parquet", "x", Arc::new(Int64Array::from(vec![4]))).await;
        assert_ne!(Input::open(&storage).await.unwrap().reference, before);
        put(&storage, "d.parquet", "x", Arc::new(Int32Array::from(vec![4]))).await;
        let error = Input::open(&storage).await.unwrap_err().to_string();
        assert!(error.contains("d.parquet") && error.contains("\"x\""), "{error}");
        storage.delete("d.parquet").await.unwrap();
        put(&storage, "e.parquet", "_x", Arc::new(Int32Array::from(vec![4]))).await;
        assert!(Input::open(&storage).await.unwrap_err().to_string().contains("reserved"));
        storage.put("e.parquet", "not parquet").await.unwrap();
        assert_eq!(Input::open(&storage).await.unwrap_err().kind(), crate::ErrorKind::Corrupt);
    }
}
