//! Puts the records of a batch's samples together as tensors.

use crate::{
    buffer_pool::{BufferPool, HostBuffer},
    error::{Error, Result},
    records::RecordLayout,
    tensor::{DType, HostTensor, MASK, ROW_ID},
    window::Part,
};

/// Rows that are gathered at once: their records stay in the first-level cache while each tensor takes its part.
const CHUNK: usize = 128;

/// The tensors of the samples of `parts`, followed by fillers up to `slots` slots. Fillers are zeros, with mask 0 and
/// row id -1.
///
/// # Errors
/// [`Error::Internal`] when a part names a row that its window does not have.
pub(crate) fn collate(
    layout: &RecordLayout,
    pool: &BufferPool,
    parts: &[Part],
    slots: usize,
) -> Result<Vec<HostTensor>> {
    let mut buffers: Vec<HostBuffer> = layout.tensors.iter().map(|t| pool.take(t.width * slots)).collect();
    let mut filled = 0;
    let mut chunk: Vec<&[u8]> = Vec::with_capacity(CHUNK);
    for part in parts {
        let (order, records) = (part.window.order(), part.window.records());
        let mut ordinals = part.ordinals.clone();
        loop {
            chunk.clear();
            for ordinal in ordinals.by_ref().take(CHUNK) {
                let (block, row) = order.place(ordinal);
                let record = records.get(block).and_then(|r| r.record(row)).ok_or_else(|| {
                    Error::internal(format!("sample {ordinal} lies outside its window {:?}", order.range()))
                })?;
                chunk.push(record);
            }
            if chunk.is_empty() {
                break;
            }
            for (tensor, buffer) in layout.tensors.iter().zip(&mut buffers) {
                let out = buffer.as_mut_slice().get_mut(filled * tensor.width..(filled + chunk.len()) * tensor.width);
                let out = out.ok_or_else(|| Error::internal("a batch has more samples than slots"))?;
                gather(&chunk, tensor.offset, tensor.width, out);
            }
            filled += chunk.len();
        }
    }
    let mut tensors = Vec::with_capacity(buffers.len() + 1);
    for (tensor, mut buffer) in layout.tensors.iter().zip(buffers) {
        let fill = if tensor.name == ROW_ID { 0xFF } else { 0 };
        if let Some(rest) = buffer.as_mut_slice().get_mut(filled * tensor.width..) {
            rest.fill(fill);
        }
        let shape = match tensor.columns {
            Some(columns) => vec![slots, columns],
            None => vec![slots],
        };
        tensors.push(HostTensor::new(&tensor.name, tensor.dtype, shape, buffer)?);
    }
    tensors.push(mask(pool, filled, slots)?);
    Ok(tensors)
}

fn mask(pool: &BufferPool, filled: usize, slots: usize) -> Result<HostTensor> {
    let mut buffer = pool.take(slots * DType::F32.size());
    for (slot, value) in buffer.as_mut_slice().chunks_exact_mut(DType::F32.size()).enumerate() {
        value.copy_from_slice(&(if slot < filled { 1.0_f32 } else { 0.0 }).to_ne_bytes());
    }
    HostTensor::new(MASK, DType::F32, vec![slots], buffer)
}

/// Copies `width` bytes at `offset` of each record. A copy of a length known to the compiler is one or two moves, of
/// another a call.
fn gather(records: &[&[u8]], offset: usize, width: usize, out: &mut [u8]) {
    match width {
        1 => gather_of::<1>(records, offset, out),
        2 => gather_of::<2>(records, offset, out),
        4 => gather_of::<4>(records, offset, out),
        8 => gather_of::<8>(records, offset, out),
        12 => gather_of::<12>(records, offset, out),
        16 => gather_of::<16>(records, offset, out),
        24 => gather_of::<24>(records, offset, out),
        32 => gather_of::<32>(records, offset, out),
        40 => gather_of::<40>(records, offset, out),
        48 => gather_of::<48>(records, offset, out),
        56 => gather_of::<56>(records, offset, out),
        64 => gather_of::<64>(records, offset, out),
        _ => {
            for (record, out) in records.iter().zip(out.chunks_exact_mut(width)) {
                if let Some(from) = record.get(offset..offset + width) {
                    out.copy_from_slice(from);
                }
            }
        }
    }
}

#[inline]
fn gather_of<const W: usize>(records: &[&[u8]], offset: usize, out: &mut [u8]) {
    for (record, out) in records.iter().zip(out.chunks_exact_mut(W)) {
        if let Some(from) = record.get(offset..offset + W) {
            out.copy_from_slice(from);
        }
    }
}
