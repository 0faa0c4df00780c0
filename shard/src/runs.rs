//! Runs: rows of one work unit, sorted by destination, with an index so that one destination can be read alone.
//!
//! A run is a sequence of Arrow IPC record-batch messages: one a destination, text columns that are coded as their codes;
//! then one for each such column's dictionary; then the index, a list of fixed-width little-endian entries with its length
//! at the end.

use std::{future::Future, ops::Range, sync::Arc};

use arrow::{
    array::{ArrayRef, AsArray, LargeStringArray, RecordBatch, RecordBatchOptions},
    buffer::Buffer,
    datatypes::{DataType, Field, Int32Type, Schema, SchemaRef},
    error::ArrowError,
    ipc::{
        Block, MetadataVersion,
        reader::FileDecoder,
        writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    coded::{CodedBatch, CodedColumn},
    error::{Error, Result},
};

/// Where a destination's rows lie in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Rows.
    pub rows: u32,
    offset: u64,
    metadata: u32,
    body: u32,
    /// First eight bytes of the BLAKE3 of its bytes: runs are not synced to disk, so what is read is checked.
    digest: u64,
}

impl Slice {
    /// Its bytes in the run.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.metadata) + u64::from(self.body)
    }
}

/// What is at the end of a run.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    /// Names of the columns, whether each may be null, and its dictionary where it is coded.
    columns: Vec<(String, bool, Option<Slice>)>,
    /// By destination.
    slices: Vec<(u32, Slice)>,
}

/// The bytes of a run.
#[derive(Debug)]
pub struct EncodedRun {
    /// All of them.
    pub bytes: Bytes,
    /// Where the index begins.
    pub index_at: u64,
}

/// Encodes `batch`, whose rows are sorted by destination: `slices` gives each destination and its rows, in order.
///
/// # Errors
/// [`Error::Arrow`] when the rows can't be encoded, [`Error::Usage`] when one slice is too large.
pub fn encode(batch: &CodedBatch, slices: &[(u32, u32)]) -> Result<EncodedRun> {
    let mut writer = Writer::default();
    let stored = stored(batch)?;
    let mut index = Index { columns: Vec::new(), slices: Vec::with_capacity(slices.len()) };
    let mut start = 0;
    for (destination, rows) in slices {
        let slice = writer.write(&stored.slice(start, *rows as usize))?;
        index.slices.push((*destination, slice));
        start += *rows as usize;
    }
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let dictionary = match column {
            CodedColumn::Plain(_) => None,
            CodedColumn::Text { values, .. } => Some(writer.write(&dictionary_batch(values)?)?),
        };
        index.columns.push((field.name().clone(), field.is_nullable(), dictionary));
    }
    let index_at = writer.bytes.len() as u64;
    let index = postcard::to_allocvec(&index).map_err(|e| Error::internal(format!("a run's index: {e}")))?;
    writer.bytes.extend_from_slice(&index);
    Ok(EncodedRun { bytes: writer.bytes.into(), index_at })
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<Slice> {
        let fail = |source: ArrowError| Error::Arrow { action: "write a run".into(), source };
        let options = IpcWriteOptions::default();
        let mut tracker = DictionaryTracker::new(true);
        let (_, encoded) =
            IpcDataGenerator::default().encode(batch, &mut tracker, &options, &mut Default::default()).map_err(fail)?;
        let offset = self.bytes.len() as u64;
        let (metadata, body) = write_message(&mut self.bytes, encoded, &options).map_err(fail)?;
        let fits = |n: usize| {
            u32::try_from(n).map_err(|_| Error::usage("a run's slice exceeds 4 GiB", "use smaller row groups"))
        };
        let digest = crate::strata::hash(self.bytes.get(offset as usize..).unwrap_or(&[]));
        Ok(Slice { rows: fits(batch.num_rows())?, offset, metadata: fits(metadata)?, body: fits(body)?, digest })
    }
}

/// The batch as it is stored: codes in place of coded text.
fn stored(batch: &CodedBatch) -> Result<RecordBatch> {
    let (mut fields, mut columns): (Vec<Field>, Vec<ArrayRef>) = (Vec::new(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let array: ArrayRef = match column {
            CodedColumn::Plain(array) => Arc::clone(array),
            CodedColumn::Text { codes, .. } => Arc::new(codes.clone()),
        };
        fields.push(Field::new(field.name(), array.data_type().clone(), field.is_nullable()));
        columns.push(array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
        .map_err(|source| Error::Arrow { action: "write a run".into(), source })
}

fn dictionary_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("value", DataType::LargeUtf8, true)]))
}

fn dictionary_batch(values: &Arc<LargeStringArray>) -> Result<RecordBatch> {
    RecordBatch::try_new(dictionary_schema(), vec![Arc::clone(values) as ArrayRef])
        .map_err(|source| Error::Arrow { action: "write a dictionary".into(), source })
}

/// A run whose index has been read.
#[derive(Debug)]
pub struct Run {
    path: String,
    schema: SchemaRef,
    stored: SchemaRef,
    dictionaries: Vec<Option<Arc<LargeStringArray>>>,
    slices: Vec<(u32, Slice)>,
}

impl Run {
    /// Opens the run at `path` from the bytes of its `index`; `schema` is that of the rows, and `read` reads a range of
    /// the run.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it is not what was written, and what `read` returns.
    pub async fn open<R: Future<Output = Result<Bytes>>>(
        path: String,
        index: &[u8],
        schema: &SchemaRef,
        url: &str,
        read: impl Fn(Range<u64>) -> R,
    ) -> Result<Self> {
        let index: Index =
            postcard::from_bytes(index).map_err(|e| Error::corrupt(url, format!("its index is not readable ({e})")))?;
        if index.columns.len() != schema.fields().len() {
            return Err(Error::corrupt(url, "it has other columns"));
        }
        let (mut fields, mut dictionaries) = (Vec::new(), Vec::new());
        for (field, (name, _, dictionary)) in schema.fields().iter().zip(&index.columns) {
            if field.name() != name {
                return Err(Error::corrupt(url, format!("it has column \"{name}\" in place of \"{}\"", field.name())));
            }
            let data_type = if dictionary.is_some() { DataType::Int32 } else { field.data_type().clone() };
            fields.push(Field::new(name, data_type, field.is_nullable()));
            dictionaries.push(match dictionary {
                None => None,
                Some(slice) => {
                    let batch = decode(&dictionary_schema(), slice, read(slice.range()).await?, url)?;
                    Some(Arc::new(batch.column(0).as_string::<i64>().clone()))
                }
            });
        }
        let stored = Arc::new(Schema::new(fields));
        Ok(Self { path, schema: Arc::clone(schema), stored, dictionaries, slices: index.slices })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where the rows of `destination` lie, if there are any.
    #[must_use]
    pub fn slice(&self, destination: u32) -> Option<Slice> {
        let at = self.slices.binary_search_by_key(&destination, |s| s.0).ok()?;
        self.slices.get(at).map(|s| s.1)
    }

    /// The rows of `slice`, whose bytes are `bytes`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when they are not what was written.
    pub fn decode(&self, slice: &Slice, bytes: Bytes, url: &str) -> Result<CodedBatch> {
        let batch = decode(&self.stored, slice, bytes, url)?;
        let columns = batch.columns().iter().zip(&self.dictionaries).map(|(array, dictionary)| match dictionary {
            None => CodedColumn::Plain(Arc::clone(array)),
            Some(values) => {
                CodedColumn::Text { codes: array.as_primitive::<Int32Type>().clone(), values: Arc::clone(values) }
            }
        });
        CodedBatch::new(Arc::clone(&self.schema), columns.collect(), batch.num_rows())
    }
}

fn decode(schema: &SchemaRef, slice: &Slice, bytes: Bytes, url: &str) -> Result<RecordBatch> {
    let corrupt = |e: String| Error::corrupt(url, format!("{e}; run again to make it anew"));
    if crate::strata::hash(&bytes) != slice.digest {
        return Err(corrupt("a slice is not what was written".into()));
    }
    let decoder = FileDecoder::new(Arc::clone(schema), MetadataVersion::V5);
    let block = Block::new(0, slice.metadata as i32, i64::from(slice.body));
    let batch = decoder
        .read_record_batch(&block, &Buffer::from(bytes))
        .map_err(|e| corrupt(e.to_string()))?
        .ok_or_else(|| corrupt("a slice has no rows".into()))?;
    if batch.num_rows() != slice.rows as usize {
        return Err(corrupt(format!("a slice has {} rows instead of {}", batch.num_rows(), slice.rows)));
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coded::gather_one;
    use arrow::array::{Array, DictionaryArray, Int64Array, UInt32Array};

    #[tokio::test]
    async fn slices_hold_the_rows_of_their_destination_in_order() {
        let schema = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, false),
            Field::new("s", DataType::LargeUtf8, true),
            Field::new("c", DataType::LargeUtf8, true),
        ]));
        let n: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
        let s: LargeStringArray = (0..100).map(|i| (i % 4 != 0).then(|| format!("{i}"))).collect();
        let codes = (0..100).map(|i| (i % 5 != 0).then_some(i % 3)).collect();
        let values = Arc::new(LargeStringArray::from(vec!["a", "b", "c"]));
        let c: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::try_new(codes, values).unwrap());
        let columns = [n, Arc::new(s) as ArrayRef, c].iter().map(|a| CodedColumn::from_array(a).unwrap()).collect();
        let batch = CodedBatch::new(Arc::clone(&schema), columns, 100).unwrap();
        let mut order: Vec<u32> = (0..100).collect();
        order.sort_by_key(|i| i % 6);
        let slices: Vec<(u32, u32)> =
            (0..6).map(|d| (d * 10, (0..100).filter(|i| i % 6 == d).count() as u32)).collect();
        let run = encode(&gather_one(&batch, &UInt32Array::from(order)).unwrap(), &slices).unwrap();
        let index = &run.bytes[run.index_at as usize..];
        let read = |range: Range<u64>| {
            let bytes = run.bytes.slice(range.start as usize..range.end as usize);
            async move { Ok(bytes) }
        };
        let opened = Run::open("run".into(), index, &schema, "run", read).await.unwrap();
        assert!(opened.slice(5).is_none());
        for d in 0..6_i64 {
            let slice = opened.slice(d as u32 * 10).unwrap();
            let range = slice.range();
            let bytes = run.bytes.slice(range.start as usize..range.end as usize);
            let rows = opened.decode(&slice, bytes, "run").unwrap().to_plain().unwrap();
            let ids: Vec<i64> = rows.column(0).as_primitive::<arrow::datatypes::Int64Type>().values().to_vec();
            assert_eq!(ids, (0..100).filter(|i| i % 6 == d).collect::<Vec<_>>());
            let (texts, coded) = (rows.column(1).as_string::<i64>(), rows.column(2).as_string::<i64>());
            assert!(ids.iter().enumerate().all(|(i, id)| texts.is_valid(i) == (id % 4 != 0)));
            assert!(ids.iter().enumerate().all(|(i, id)| coded.is_valid(i) == (id % 5 != 0)
                && (coded.is_null(i) || coded.value(i) == ["a", "b", "c"][(id % 3) as usize])));
        }
        assert!(Run::open("run".into(), &index[1..], &schema, "run", read).await.is_err());
        let slice = opened.slice(0).unwrap();
        let range = slice.range();
        let mut bytes = run.bytes[range.start as usize..range.end as usize].to_vec();
        bytes[40] ^= 1;
        assert!(opened.decode(&slice, bytes.into(), "run").unwrap_err().to_string().contains("not what was written"));
    }
}
