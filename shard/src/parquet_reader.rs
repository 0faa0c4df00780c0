//! Reads Parquet by row group: which bytes are needed is decided first, then fetched, then decoded.
//!
//! [`ParquetFile`] holds the footer. [`ParquetFile::fetch`] does the I/O, [`ParquetFile::decode`] the work, so that a
//! caller runs each where it belongs (runtime, worker threads).

use std::{ops::Range, sync::Arc};

use arrow::{
    array::ArrayRef,
    compute::cast,
    datatypes::{DataType, Field, Schema, SchemaRef},
    record_batch::{RecordBatch, RecordBatchReader},
};
use bytes::{Buf, Bytes};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder},
    },
    basic::Encoding,
    errors::ParquetError,
    file::{
        metadata::{ParquetMetaData, ParquetMetaDataReader},
        reader::{ChunkReader, Length},
    },
};

use crate::{
    coded::{CodedBatch, CodedColumn},
    error::{Error, Result},
    parquet_writer::byte_range,
    schema::ColumnType,
    storage::Storage,
};

/// Bytes read from the end at first: most footers fit.
const FOOTER_GUESS: u64 = 64 << 10;

/// A file whose footer has been read.
#[derive(Debug, Clone)]
pub struct ParquetFile {
    url: String,
    path: String,
    bytes: u64,
    metadata: ArrowReaderMetadata,
    /// The same, with text that is kept by dictionary read as such.
    coded: Option<ArrowReaderMetadata>,
    footer_blake3: String,
}

/// Which columns to read, by name, in the order they will have; `None` reads all.
pub type Projection<'a> = Option<&'a [&'a str]>;

/// The fetched bytes of one row group (or of the columns asked for).
#[derive(Debug, Clone)]
pub struct RowGroupBytes {
    start: u64,
    bytes: Bytes,
}

impl RowGroupBytes {
    /// Bytes that begin at byte `start` of their file.
    #[must_use]
    pub fn new(start: u64, bytes: Bytes) -> Self {
        Self { start, bytes }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl ParquetFile {
    /// Reads the footer of `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Permission`], [`Error::Storage`], or [`Error::Corrupt`] when it is not Parquet.
    pub async fn open(storage: &Storage, path: &str) -> Result<Self> {
        let url = storage.url(path);
        let bytes = storage.size(path).await?.ok_or_else(|| Error::NotFound {
            url: url.clone(),
            help: "check the path; a manifest names it, so restore the file or write the set again".into(),
        })?;
        let not_parquet = |e: ParquetError| Error::corrupt(url.clone(), format!("not a readable Parquet file ({e})"));
        let mut tail_bytes = FOOTER_GUESS.min(bytes);
        let (metadata, footer_blake3) = loop {
            let start = bytes - tail_bytes;
            let tail = storage.get_range(path, start..bytes).await?;
            let mut reader = ParquetMetaDataReader::new();
            match reader.try_parse_sized(&tail, bytes) {
                Ok(()) => {
                    let metadata = reader.finish().map_err(not_parquet)?;
                    let footer = usize::try_from(reader_footer_bytes(&tail)).unwrap_or(0).min(tail.len());
                    let digest = blake3::hash(&tail[tail.len() - footer..]).to_hex().to_string();
                    break (metadata, digest);
                }
                Err(ParquetError::NeedMoreData(needed)) if needed as u64 > tail_bytes && needed as u64 <= bytes => {
                    tail_bytes = needed as u64;
                }
                Err(e) => return Err(not_parquet(e)),
            }
        };
        let metadata =
            ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new()).map_err(not_parquet)?;
        Ok(Self { url, path: path.to_owned(), bytes, metadata, coded: None, footer_blake3 })
    }

    /// Whether every value of text column `name` is kept by dictionary, in every row group.
    #[must_use]
    pub fn is_coded(&self, name: &str) -> bool {
        let text = |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        let Ok(root) = self.schema().index_of(name) else { return false };
        if !text(self.schema().field(root).data_type()) {
            return false;
        }
        let Some(leaf) = self.metadata.parquet_schema().columns().iter().position(|c| c.path().string() == name) else {
            return false;
        };
        self.metadata().row_groups().iter().all(|group| {
            let column = group.column(leaf);
            let pages = column.page_encoding_stats_mask();
            column.dictionary_page_offset().is_some()
                && pages.is_some_and(|p| p.is_only(Encoding::RLE_DICTIONARY) || p.is_only(Encoding::PLAIN_DICTIONARY))
        })
    }

    /// The file, with the text columns `names` read as codes by [`ParquetFile::decode_coded`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the columns are not text.
    pub fn with_codes(&self, names: &[String]) -> Result<Self> {
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::LargeUtf8));
        let fields: Vec<Field> = (self.schema().fields().iter())
            .map(|f| {
                if names.contains(f.name()) {
                    f.as_ref().clone().with_data_type(dictionary.clone())
                } else {
                    f.as_ref().clone()
                }
            })
            .collect();
        let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(fields)));
        let metadata = Arc::clone(self.metadata.metadata());
        let coded = ArrowReaderMetadata::try_new(metadata, options)
            .map_err(|e| Error::corrupt(&self.url, format!("its dictionaries can't be read ({e})")))?;
        Ok(Self { coded: Some(coded), ..self.clone() })
    }

    /// The file's path in its storage.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// BLAKE3 of the footer, which names every column chunk with its place, size and statistics.
    #[must_use]
    pub fn footer_blake3(&self) -> &str {
        &self.footer_blake3
    }

    /// The Arrow schema as it is on disk.
    #[must_use]
    pub fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    /// The Parquet metadata.
    #[must_use]
    pub fn metadata(&self) -> &ParquetMetaData {
        self.metadata.metadata()
    }

    /// Rows of each row group.
    #[must_use]
    pub fn row_group_rows(&self) -> Vec<u64> {
        self.metadata().row_groups().iter().map(|g| g.num_rows().max(0) as u64).collect()
    }

    /// Rows of the file.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.row_group_rows().iter().sum()
    }

    fn mask(&self, projection: Projection<'_>) -> Result<ProjectionMask> {
        let Some(names) = projection else { return Ok(ProjectionMask::all()) };
        let schema = self.schema();
        let mut roots = Vec::with_capacity(names.len());
        for name in names {
            roots.push(schema.index_of(name).map_err(|_| {
                Error::usage(
                    format!("{}: there is no column \"{name}\"", self.url),
                    crate::error::nearest_name(name, schema.fields().iter().map(|f| f.name().as_str())),
                )
            })?);
        }
        Ok(ProjectionMask::roots(self.metadata.parquet_schema(), roots))
    }

    /// Bytes of row group `index` that `projection` needs, as one range.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown column, [`Error::Corrupt`] for a row group that is not there.
    pub fn range(&self, index: usize, projection: Projection<'_>) -> Result<Range<u64>> {
        let mask = self.mask(projection)?;
        let group = self.metadata().row_groups().get(index).ok_or_else(|| {
            Error::corrupt(
                &self.url,
                format!("row group {index} is asked for, it has {}", self.metadata().num_row_groups()),
            )
        })?;
        let (mut start, mut end) = (u64::MAX, 0);
        for (leaf, column) in group.columns().iter().enumerate() {
            if mask.leaf_included(leaf) {
                let (from, length) = column.byte_range();
                start = start.min(from);
                end = end.max(from.saturating_add(length));
            }
        }
        if start > end {
            (start, end) = byte_range(group);
        }
        if end > self.bytes {
            return Err(Error::corrupt(&self.url, "its footer points past its end"));
        }
        Ok(start..end)
    }

    /// Reads what [`ParquetFile::range`] says.
    ///
    /// # Errors
    /// As [`ParquetFile::range`], and storage errors.
    pub async fn fetch(&self, storage: &Storage, index: usize, projection: Projection<'_>) -> Result<RowGroupBytes> {
        let range = self.range(index, projection)?;
        Ok(RowGroupBytes { start: range.start, bytes: storage.get_range(&self.path, range).await? })
    }

    /// Decodes row group `index` into one batch of waist types, columns in the order of `projection`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the bytes are not what the footer says, [`Error::Usage`] for an unknown column.
    pub fn decode(&self, index: usize, bytes: &RowGroupBytes, projection: Projection<'_>) -> Result<RecordBatch> {
        // The decoder panics on some malformed pages; what is stored must never do that to a caller.
        self.no_panic(index, || {
            to_waist_types(&self.decode_checked(&self.metadata, index, bytes, projection)?, &self.url)
        })
    }

    /// As [`ParquetFile::decode`], with the columns given to [`ParquetFile::with_codes`] as codes.
    ///
    /// # Errors
    /// As [`ParquetFile::decode`].
    pub fn decode_coded(&self, index: usize, bytes: &RowGroupBytes, projection: Projection<'_>) -> Result<CodedBatch> {
        let Some(coded) = &self.coded else {
            return Ok(CodedBatch::from_plain(&self.decode(index, bytes, projection)?));
        };
        self.no_panic(index, || {
            let batch = self.decode_checked(coded, index, bytes, projection)?;
            let (mut fields, mut columns) = (Vec::new(), Vec::new());
            for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                let (waist, column) = match CodedColumn::from_array(column)? {
                    text @ CodedColumn::Text { .. } => (DataType::LargeUtf8, text),
                    CodedColumn::Plain(column) => {
                        let column = waist_column(field, &column, &self.url)?;
                        (column.data_type().clone(), CodedColumn::Plain(column))
                    }
                };
                fields.push(Field::new(field.name(), waist, field.is_nullable()));
                columns.push(column);
            }
            CodedBatch::new(Arc::new(Schema::new(fields)), columns, batch.num_rows())
        })
    }

    fn no_panic<T>(&self, index: usize, decode: impl FnOnce() -> Result<T>) -> Result<T> {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode))
            .unwrap_or_else(|_| Err(Error::corrupt(&self.url, format!("row group {index} is malformed"))))
    }

    fn decode_checked(
        &self,
        metadata: &ArrowReaderMetadata,
        index: usize,
        bytes: &RowGroupBytes,
        projection: Projection<'_>,
    ) -> Result<RecordBatch> {
        let corrupt =
            |e: &dyn std::fmt::Display| Error::corrupt(&self.url, format!("row group {index} does not decode ({e})"));
        let rows = self.row_group_rows().get(index).copied().unwrap_or(0);
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes.clone(), metadata.clone())
            .with_projection(self.mask(projection)?)
            .with_row_groups(vec![index])
            .with_batch_size(usize::try_from(rows).unwrap_or(usize::MAX).max(1))
            .build()
            .map_err(|e| corrupt(&e))?;
        let schema = reader.schema();
        let mut batches = Vec::new();
        for batch in reader {
            batches.push(batch.map_err(|e| corrupt(&e))?);
        }
        let batch = match batches.len() {
            1 => batches.swap_remove(0),
            _ => arrow::compute::concat_batches(&schema, &batches).map_err(|e| corrupt(&e))?,
        };
        if batch.num_rows() as u64 != rows {
            return Err(Error::corrupt(
                &self.url,
                format!("row group {index} has {} rows, its footer says {rows}", batch.num_rows()),
            ));
        }
        match projection {
            None => Ok(batch),
            Some(names) => {
                let order: Result<Vec<usize>, _> = names.iter().map(|n| batch.schema().index_of(n)).collect();
                batch.project(&order.map_err(|e| corrupt(&e))?).map_err(|e| corrupt(&e))
            }
        }
    }
}

/// Length of the footer (metadata, its 4-byte length, and the 4-byte magic) at the end of `tail`.
fn reader_footer_bytes(tail: &[u8]) -> u64 {
    let Some(trailer) = tail.len().checked_sub(8).and_then(|at| tail.get(at..at + 4)) else { return 0 };
    let mut length = [0; 4];
    length.copy_from_slice(trailer);
    u64::from(u32::from_le_bytes(length)) + 8
}

fn waist_column(field: &Field, column: &ArrayRef, url: &str) -> Result<ArrayRef> {
    let waist = ColumnType::from_arrow(field.data_type()).map_err(|t| {
        Error::usage(
            format!("{url}: column \"{}\" has type {t}, which shards can't hold", field.name()),
            "flatten or drop it",
        )
    })?;
    if field.data_type() == waist.to_arrow() {
        return Ok(Arc::clone(column));
    }
    cast(column, waist.to_arrow())
        .map_err(|source| Error::Arrow { action: format!("convert column \"{}\" of {url}", field.name()), source })
}

/// Casts text to `large_utf8` and bytes to `large_binary`; other types stay.
///
/// # Errors
/// [`Error::Usage`] for a nested type, [`Error::Arrow`] when a cast fails.
pub fn to_waist_types(batch: &RecordBatch, url: &str) -> Result<RecordBatch> {
    let mut columns = Vec::with_capacity(batch.num_columns());
    let mut fields = Vec::with_capacity(batch.num_columns());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let column = waist_column(field, column, url)?;
        fields.push(Field::new(field.name(), column.data_type().clone(), field.is_nullable()));
        columns.push(column);
    }
    let schema = Arc::new(Schema::new(fields));
    let options = arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema, columns, &options)
        .map_err(|source| Error::Arrow { action: format!("convert the columns of {url}"), source })
}

impl Length for RowGroupBytes {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for RowGroupBytes {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let from =
            start.checked_sub(self.start).and_then(|f| usize::try_from(f).ok()).filter(|f| *f <= self.bytes.len());
        match from {
            Some(from) => Ok(self.bytes.slice(from..).reader()),
            None => Err(ParquetError::EOF(format!("byte {start} is not among those fetched"))),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let from = start.checked_sub(self.start).and_then(|f| usize::try_from(f).ok());
        match from.and_then(|f| Some(f..f.checked_add(length)?)).filter(|r| r.end <= self.bytes.len()) {
            Some(range) => Ok(self.bytes.slice(range)),
            None => Err(ParquetError::EOF(format!("bytes {start}+{length} are not among those fetched"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parquet_writer::encode_file;
    use arrow::{
        array::{Int64Array, StringArray},
        datatypes::{DataType, Field, Schema},
    };

    async fn stored() -> (Storage, RecordBatch) {
        let schema =
            Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("s", DataType::Utf8, true)]));
        let n = Int64Array::from_iter_values(0..100_000);
        let s: StringArray = (0..100_000).map(|i| (i % 5 != 0).then(|| format!("v{}", i % 7))).collect();
        let batch = RecordBatch::try_new(schema, vec![Arc::new(n), Arc::new(s)]).unwrap();
        let file = encode_file("f", &batch.schema(), std::slice::from_ref(&batch)).unwrap();
        let storage = Storage::memory();
        storage.put("f.parquet", file.bytes).await.unwrap();
        (storage, batch)
    }

    #[tokio::test]
    async fn rows_come_back_with_waist_types_and_projected_order() {
        let (storage, batch) = stored().await;
        let file = ParquetFile::open(&storage, "f.parquet").await.unwrap();
        assert_eq!(file.rows(), 100_000);
        let mut seen = 0;
        for g in 0..file.row_group_rows().len() {
            let names = ["s", "n"];
            let bytes = file.fetch(&storage, g, Some(&names)).await.unwrap();
            let decoded = file.decode(g, &bytes, Some(&names)).unwrap();
            assert_eq!(decoded.schema().field(0).data_type(), &DataType::LargeUtf8);
            assert_eq!(decoded.column(1).as_ref(), batch.column(0).slice(seen, decoded.num_rows()).as_ref());
            seen += decoded.num_rows();
        }
        assert_eq!(seen, 100_000);
    }

    #[tokio::test]
    async fn nothing_that_is_stored_makes_it_panic() {
        let (storage, _) = stored().await;
        let good = storage.get("f.parquet").await.unwrap();
        for (name, bytes) in [
            ("empty", Bytes::new()),
            ("short", good.slice(..3)),
            ("cut", good.slice(..good.len() - 1)),
            ("text", Bytes::from_static(b"a,b\n1,2\n")),
        ] {
            storage.put(name, bytes).await.unwrap();
            let error = ParquetFile::open(&storage, name).await.unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Corrupt, "{name}: {error}");
        }
        assert_eq!(ParquetFile::open(&storage, "absent").await.unwrap_err().kind(), crate::ErrorKind::NotFound);
        // Any single flipped byte of the data is an error or a different value, never a panic.
        let file = ParquetFile::open(&storage, "f.parquet").await.unwrap();
        let whole = file.fetch(&storage, 0, None).await.unwrap();
        for at in (0..whole.bytes().len()).step_by(997) {
            let mut bad = whole.bytes().to_vec();
            bad[at] ^= 0x55;
            let _ = file.decode(0, &RowGroupBytes::new(whole.start, bad.into()), None);
        }
        assert!(file.range(99, None).is_err());
        assert!(file.fetch(&storage, 0, Some(&["absent"])).await.is_err());
    }
}
