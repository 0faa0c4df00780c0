//! Runs: rows of one work unit, sorted by destination, with an index so that one destination can be read alone.
//!
//! A run is a sequence of Arrow IPC record-batch messages, one a destination, then the index: 28 bytes an entry
//! (leaf u32, split u32, rows u32, offset u64, metadata u32, body u32, all little-endian).

use std::{collections::HashMap, sync::Arc};

use arrow::{
    array::{RecordBatch, UInt32Array},
    buffer::Buffer,
    compute::take_record_batch,
    datatypes::SchemaRef,
    error::ArrowError,
    ipc::{
        Block, MetadataVersion,
        reader::FileDecoder,
        writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message},
    },
};
use bytes::Bytes;

use crate::{
    assign::Destination,
    error::{Error, Result},
};

const ENTRY_BYTES: usize = 28;

/// Where a destination's rows lie in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Rows.
    pub rows: u32,
    /// First byte in the run.
    pub offset: u64,
    metadata: u32,
    body: u32,
}

impl Slice {
    /// Bytes in the run.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.metadata) + u64::from(self.body)
    }
}

/// Sorts the rows of `batch` by `destinations` (stable: rows of one destination keep their order) and encodes them.
/// Returns the run's bytes and where its index begins.
///
/// # Errors
/// [`Error::Arrow`] when the rows can't be encoded, [`Error::Usage`] for a unit of more than 2^32 rows.
pub fn encode(batch: &RecordBatch, destinations: &[Destination]) -> Result<(Bytes, u64)> {
    let fail = |source: ArrowError| Error::Arrow { action: "write a run".into(), source };
    if u32::try_from(destinations.len()).is_err() {
        return Err(Error::usage("a row group has more than 2^32 rows", "write the input with smaller row groups"));
    }
    let mut order: Vec<u32> = (0..destinations.len() as u32).collect();
    order.sort_by_key(|row| destinations[*row as usize]);
    let sorted = take_record_batch(batch, &UInt32Array::from(order.clone())).map_err(fail)?;
    let options = IpcWriteOptions::default();
    let generator = IpcDataGenerator::default();
    let (mut bytes, mut index) = (Vec::new(), Vec::new());
    let mut start = 0;
    while start < order.len() {
        let destination = destinations[order[start] as usize];
        let rows = order[start..].iter().take_while(|row| destinations[**row as usize] == destination).count();
        let mut tracker = DictionaryTracker::new(true);
        let (_, encoded) = generator
            .encode(&sorted.slice(start, rows), &mut tracker, &options, &mut Default::default())
            .map_err(fail)?;
        let offset = bytes.len() as u64;
        let (metadata, body) = write_message(&mut bytes, encoded, &options).map_err(fail)?;
        let fits = |n: usize| {
            u32::try_from(n).map_err(|_| Error::usage("a run's slice exceeds 4 GiB", "use smaller row groups"))
        };
        index.extend_from_slice(&destination.leaf.to_le_bytes());
        index.extend_from_slice(&(destination.split as u32).to_le_bytes());
        index.extend_from_slice(&(rows as u32).to_le_bytes());
        index.extend_from_slice(&offset.to_le_bytes());
        index.extend_from_slice(&fits(metadata)?.to_le_bytes());
        index.extend_from_slice(&fits(body)?.to_le_bytes());
        start += rows;
    }
    let at = bytes.len() as u64;
    bytes.extend_from_slice(&index);
    Ok((bytes.into(), at))
}

/// Reads an index.
///
/// # Errors
/// [`Error::Corrupt`] when its length is wrong.
pub fn decode_index(bytes: &[u8], url: &str) -> Result<HashMap<Destination, Slice>> {
    if !bytes.len().is_multiple_of(ENTRY_BYTES) {
        return Err(Error::corrupt(url, "its index has a wrong length"));
    }
    let u32_at = |entry: &[u8], at: usize| {
        let mut b = [0; 4];
        b.copy_from_slice(&entry[at..at + 4]);
        u32::from_le_bytes(b)
    };
    Ok(bytes
        .chunks_exact(ENTRY_BYTES)
        .map(|entry| {
            let offset = u64::from(u32_at(entry, 12)) | (u64::from(u32_at(entry, 16)) << 32);
            let slice = Slice { rows: u32_at(entry, 8), offset, metadata: u32_at(entry, 20), body: u32_at(entry, 24) };
            (Destination { leaf: u32_at(entry, 0), split: u32_at(entry, 4) as usize }, slice)
        })
        .collect())
}

/// Decodes the bytes of one slice.
///
/// # Errors
/// [`Error::Corrupt`] when they are not what was written.
pub fn decode_slice(schema: &SchemaRef, slice: &Slice, bytes: Bytes, url: &str) -> Result<RecordBatch> {
    let corrupt = |e: String| Error::corrupt(url, e);
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
    use arrow::{
        array::{Array, AsArray, Int64Array, LargeStringArray},
        datatypes::{DataType, Field, Int64Type, Schema},
    };

    #[test]
    fn slices_hold_the_rows_of_their_destination_in_order() {
        let schema = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, false),
            Field::new("s", DataType::LargeUtf8, true),
        ]));
        let n = Int64Array::from_iter_values(0..100);
        let s: LargeStringArray = (0..100).map(|i| (i % 4 != 0).then(|| format!("{i}"))).collect();
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(n), Arc::new(s)]).unwrap();
        let destinations: Vec<Destination> =
            (0..100).map(|i| Destination { split: i % 2, leaf: (i % 3) as u32 }).collect();
        let (bytes, at) = encode(&batch, &destinations).unwrap();
        let index = decode_index(&bytes[at as usize..], "run").unwrap();
        assert_eq!(index.len(), 6);
        for (d, slice) in &index {
            let part = bytes.slice(slice.offset as usize..(slice.offset + slice.bytes()) as usize);
            let rows = decode_slice(&schema, slice, part, "run").unwrap();
            let ids: Vec<i64> = rows.column(0).as_primitive::<Int64Type>().values().to_vec();
            let want: Vec<i64> = (0..100).filter(|i| destinations[*i as usize] == *d).collect();
            assert_eq!(ids, want);
            let texts = rows.column(1).as_string::<i64>();
            assert!(ids.iter().enumerate().all(|(i, id)| texts.is_valid(i) == (id % 4 != 0)));
        }
        assert!(decode_index(&bytes[at as usize + 1..], "run").is_err());
        let (empty, at) = encode(&batch.slice(0, 0), &[]).unwrap();
        assert_eq!((empty.len(), at), (0, 0));
    }
}
