//! The one Parquet writer: record batches to the bytes of a file, digested whole and by row group.
//!
//! A file is built in memory (its size is bounded by the caller's shard size) and stored in one atomic put, under a
//! name that carries its digest, so that a file with its right name has its right content.

use std::sync::Arc;

use arrow::{array::Array, datatypes::SchemaRef, record_batch::RecordBatch};
use bytes::Bytes;
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, Encoding, ZstdLevel},
    errors::ParquetError,
    file::properties::WriterProperties,
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    schema::ROW_ID,
};

/// Rows that a row group may have: the plan permutes row groups whole.
pub const ROW_GROUP_ROWS: usize = 65_536;
/// Decoded Arrow bytes that a row group may have.
pub const ROW_GROUP_BYTES: u64 = 8 << 20;

/// A finished file.
#[derive(Debug, Clone)]
pub struct EncodedFile {
    /// The bytes.
    pub bytes: Bytes,
    /// Rows.
    pub rows: u64,
    /// BLAKE3 of `bytes`, 64 hexadecimal digits.
    pub blake3: String,
    /// Its row groups in order.
    pub row_groups: Vec<EncodedRowGroup>,
}

/// A row group of an [`EncodedFile`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodedRowGroup {
    /// Rows.
    pub rows: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub length: u64,
    /// Arrow bytes of its columns when decoded.
    pub decoded_bytes: u64,
    /// BLAKE3 of its bytes, 64 hexadecimal digits.
    pub blake3: String,
}

impl EncodedFile {
    /// The first eight digits of the digest, as file names carry them.
    #[must_use]
    pub fn digest8(&self) -> &str {
        self.blake3.get(..8).unwrap_or(&self.blake3)
    }
}

/// Encodes `batches` (all of `schema`) as one zstd-compressed file, cut into row groups of at most
/// [`ROW_GROUP_ROWS`] rows and about [`ROW_GROUP_BYTES`] decoded bytes. The bytes depend on the rows only, not on how
/// they are cut into batches.
///
/// # Errors
/// [`Error::Parquet`] when the writer refuses, [`Error::Arrow`] when the batches don't fit the schema; `name` is the
/// file's name in messages.
pub fn encode_file(name: &str, schema: &SchemaRef, batches: &[RecordBatch]) -> Result<EncodedFile> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by("gristmill".into())
        .set_max_row_group_row_count(None)
        // Ids in random order: a dictionary would only be built to be thrown away, and differences pack to the bits
        // that their range needs.
        .set_column_dictionary_enabled(ROW_ID.into(), false)
        .set_column_encoding(ROW_ID.into(), Encoding::DELTA_BINARY_PACKED)
        .build();
    encode(name, schema, batches, properties)
}

/// Encodes one column of numbers uncompressed and at fixed width, so that a range of positions is a range of bytes.
///
/// # Errors
/// As [`encode_file`].
pub fn encode_fixed(name: &str, schema: &SchemaRef, batch: &RecordBatch) -> Result<EncodedFile> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_created_by("gristmill".into())
        .set_max_row_group_row_count(None)
        .build();
    encode(name, schema, std::slice::from_ref(batch), properties)
}

fn encode(
    name: &str,
    schema: &SchemaRef,
    batches: &[RecordBatch],
    properties: WriterProperties,
) -> Result<EncodedFile> {
    let fail = |source: ParquetError| Error::Parquet { action: "write", url: name.to_owned(), source };
    let whole = arrow::compute::concat_batches(schema, batches)
        .map_err(|source| Error::Arrow { action: format!("put together the rows of {name}"), source })?;
    let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(schema), Some(properties)).map_err(fail)?;
    let group_rows = rows_per_group(&whole);
    let mut decoded = Vec::new();
    for start in (0..whole.num_rows()).step_by(group_rows) {
        let group = whole.slice(start, group_rows.min(whole.num_rows() - start));
        decoded.push(decoded_bytes(&group));
        writer.write(&group).map_err(fail)?;
        writer.flush().map_err(fail)?;
    }
    let metadata = writer.flushed_row_groups().to_vec();
    let bytes = Bytes::from(writer.into_inner().map_err(fail)?);
    let mut row_groups = Vec::with_capacity(metadata.len());
    for (group, decoded_bytes) in metadata.iter().zip(decoded) {
        let (offset, end) = byte_range(group);
        let slice = usize::try_from(offset).ok().zip(usize::try_from(end).ok()).and_then(|(a, b)| bytes.get(a..b));
        let slice = slice.ok_or_else(|| Error::internal(format!("a row group of {name} lies outside its file")))?;
        row_groups.push(EncodedRowGroup {
            rows: group.num_rows().max(0) as u64,
            offset,
            length: end - offset,
            decoded_bytes,
            blake3: blake3::hash(slice).to_hex().to_string(),
        });
    }
    Ok(EncodedFile {
        rows: whole.num_rows() as u64,
        blake3: blake3::hash(&bytes).to_hex().to_string(),
        bytes,
        row_groups,
    })
}

/// First byte and end of a row group's column chunks.
pub(crate) fn byte_range(group: &parquet::file::metadata::RowGroupMetaData) -> (u64, u64) {
    let mut range = (u64::MAX, 0);
    for column in group.columns() {
        let (start, length) = column.byte_range();
        range = (range.0.min(start), range.1.max(start + length));
    }
    if range.0 > range.1 { (0, 0) } else { range }
}

/// Arrow bytes of the rows of `batch`, not of the buffers they share with others.
#[must_use]
pub fn decoded_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0) as u64).sum()
}

fn rows_per_group(whole: &RecordBatch) -> usize {
    let per_row = decoded_bytes(whole).div_ceil(whole.num_rows().max(1) as u64).max(1);
    usize::try_from(ROW_GROUP_BYTES / per_row).unwrap_or(ROW_GROUP_ROWS).clamp(1, ROW_GROUP_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::{Int64Array, LargeStringArray},
        datatypes::{DataType, Field, Schema},
    };

    fn batch(from: i64, to: i64) -> RecordBatch {
        let schema = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, false),
            Field::new("s", DataType::LargeUtf8, true),
        ]));
        let n = Int64Array::from_iter_values(from..to);
        let s: LargeStringArray = (from..to).map(|i| (i % 3 != 0).then(|| format!("row {i}"))).collect();
        RecordBatch::try_new(schema, vec![Arc::new(n), Arc::new(s)]).unwrap()
    }

    #[test]
    fn the_bytes_do_not_depend_on_how_rows_are_cut_into_batches() {
        let schema = batch(0, 1).schema();
        let whole = encode_file("x", &schema, &[batch(0, 70_000)]).unwrap();
        let cut = encode_file("x", &schema, &[batch(0, 1), batch(1, 40_000), batch(40_000, 70_000)]).unwrap();
        assert_eq!(whole.bytes, cut.bytes);
        assert_eq!(whole.row_groups, cut.row_groups);
        assert_eq!(whole.row_groups.iter().map(|g| g.rows).collect::<Vec<_>>(), [65_536, 4_464]);
    }

    #[test]
    fn wide_rows_make_smaller_row_groups() {
        let schema = Arc::new(Schema::new(vec![Field::new("s", DataType::LargeUtf8, false)]));
        let text = "x".repeat(100_000);
        let s = LargeStringArray::from_iter_values((0..300).map(|_| text.as_str()));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(s)]).unwrap();
        let file = encode_file("x", &schema, &[batch]).unwrap();
        assert!(file.row_groups.len() >= 4);
        assert!(file.row_groups.iter().all(|g| g.decoded_bytes <= ROW_GROUP_BYTES));
    }

    #[test]
    fn row_group_digests_are_of_the_bytes_they_name() {
        let file = encode_file("x", &batch(0, 1).schema(), &[batch(0, 10)]).unwrap();
        let g = &file.row_groups[0];
        let slice = &file.bytes[g.offset as usize..(g.offset + g.length) as usize];
        assert_eq!(blake3::hash(slice).to_hex().to_string(), g.blake3);
        assert_eq!(blake3::hash(&file.bytes).to_hex().to_string(), file.blake3);
    }
}
