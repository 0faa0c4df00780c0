//! Sidecars: a column kept beside each lane, one value a position, uncompressed and of fixed width, so that a plan reads
//! weights, lengths and difficulties without reading the shards; and positions in the order of difficulty.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, UInt32Array},
    compute::{cast, concat},
    datatypes::{DataType, Field, Float64Type, Int64Type, Schema},
};
use serde::{Deserialize, Serialize};

use super::{Job, options::SidecarColumn};
use crate::{
    error::{Error, Result},
    manifest::META,
    parquet_reader::ParquetFile,
    parquet_writer::{EncodedFile, encode_fixed},
    tables::{FileEntry, SidecarEntry},
};

/// Bytes of a position while a sidecar is made: the values, their order and the encoded file.
const BYTES_A_ROW: u64 = 32;

/// Whether a column can be a sidecar.
pub(super) fn is_fixed(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_floating()
        || matches!(data_type, DataType::Boolean | DataType::Date32 | DataType::Timestamp(..))
}

/// The sidecars of a lane.
#[derive(Debug, Serialize, Deserialize)]
struct LaneSidecars {
    entries: Vec<SidecarEntry>,
}

impl Job {
    /// Writes the sidecars of every lane from the shards in `files`.
    pub(super) async fn write_sidecars(&self, files: &[FileEntry]) -> Result<Vec<SidecarEntry>> {
        let columns = self.options.sidecar_columns();
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let mut lanes: Vec<&[FileEntry]> = files.chunk_by(|a, b| (&a.split, a.lane) == (&b.split, b.lane)).collect();
        lanes.retain(|files| !files.is_empty());
        let amounts: Vec<u64> = lanes.iter().map(|files| files.iter().map(|f| f.rows).sum()).collect();
        let largest = amounts.iter().max().copied().unwrap_or(1) * BYTES_A_ROW;
        let made: Vec<LaneSidecars> = self
            .phase("sidecar", "write sidecars", &amounts, self.at_once(largest, 1), |i| {
                self.lane_sidecars(lanes[i], &columns)
            })
            .await?;
        Ok(made.into_iter().flat_map(|m| m.entries).collect())
    }

    async fn lane_sidecars(&self, files: &[FileEntry], columns: &[SidecarColumn]) -> Result<LaneSidecars> {
        self.control.stop.check()?;
        let Some(first) = files.first() else { return Ok(LaneSidecars { entries: Vec::new() }) };
        let mut entries = Vec::new();
        for sidecar in columns {
            let mut parts: Vec<ArrayRef> = Vec::new();
            for entry in files {
                let file = ParquetFile::open(&self.out, &entry.path).await?;
                for index in 0..entry.row_groups.len() {
                    let names = [sidecar.column.as_str()];
                    let bytes = file.fetch(&self.out, index, Some(&names)).await?;
                    parts.push(fixed(file.decode(index, &bytes, Some(&names))?.column(0))?);
                }
            }
            let (name, ordered) = (sidecar.name.clone(), sidecar.ordered);
            let made = self.compute(move || encode(&name, ordered, &parts)).await?;
            for (name, file) in made {
                let folder = format!("{META}/sidecar/{}/lane-{:04}", first.split, first.lane);
                let path = format!("{folder}/{name}-{}.parquet", file.digest8());
                let entry = SidecarEntry {
                    path: path.clone(),
                    split: first.split.clone(),
                    lane: first.lane,
                    name,
                    column: sidecar.column.clone(),
                    rows: file.rows,
                    bytes: file.bytes.len() as u64,
                    blake3: file.blake3.clone(),
                };
                self.out.put(&path, file.bytes).await?;
                entries.push(entry);
            }
        }
        Ok(LaneSidecars { entries })
    }
}

/// Numbers as i64 or f64; times in units since the epoch, truth values 0 and 1.
pub(crate) fn fixed(array: &ArrayRef) -> Result<ArrayRef> {
    let fail = |source| Error::Arrow { action: "make a sidecar".into(), source };
    match array.data_type() {
        t if t.is_floating() => cast(array, &DataType::Float64).map_err(fail),
        DataType::Date32 => cast(&cast(array, &DataType::Int32).map_err(fail)?, &DataType::Int64).map_err(fail),
        DataType::UInt64 => {
            let values = cast(array, &DataType::Int64).map_err(fail)?;
            if values.null_count() > array.null_count() {
                cast(array, &DataType::Float64).map_err(fail)
            } else {
                Ok(values)
            }
        }
        _ => cast(array, &DataType::Int64).map_err(fail),
    }
}

/// The sidecar of a lane's values, and the order by them.
fn encode(name: &str, ordered: bool, parts: &[ArrayRef]) -> Result<Vec<(String, EncodedFile)>> {
    let fail = |source| Error::Arrow { action: "make a sidecar".into(), source };
    let all_i64 = parts.iter().all(|p| p.data_type() == &DataType::Int64);
    let parts: Result<Vec<ArrayRef>> = (parts.iter())
        .map(|p| if all_i64 { Ok(Arc::clone(p)) } else { cast(p, &DataType::Float64).map_err(fail) })
        .collect();
    let parts = parts?;
    let values = concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>()).map_err(fail)?;
    let mut made = vec![(name.to_owned(), encode_column(name, Arc::clone(&values))?)];
    if ordered {
        let order = order_of(&values);
        let name = format!("order_{name}");
        let file = encode_column(&name, Arc::new(UInt32Array::from(order)))?;
        made.push((name, file));
    }
    Ok(made)
}

/// Positions in ascending order of their values, ties by position.
pub(crate) fn order_of(values: &ArrayRef) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    if let Some(values) = values.as_primitive_opt::<Int64Type>() {
        let values: &Int64Array = values;
        order.sort_by_key(|i| values.value(*i as usize));
    } else if let Some(values) = values.as_primitive_opt::<Float64Type>() {
        let values: &Float64Array = values;
        order.sort_by(|a, b| values.value(*a as usize).total_cmp(&values.value(*b as usize)));
    }
    order
}

fn encode_column(name: &str, values: ArrayRef) -> Result<EncodedFile> {
    let schema = Arc::new(Schema::new(vec![Field::new(name, values.data_type().clone(), false)]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![values])
        .map_err(|source| Error::Arrow { action: "make a sidecar".into(), source })?;
    encode_fixed(name, &schema, &batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_ascending_and_stable() {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 2, 1]));
        assert_eq!(order_of(&values), [1, 3, 2, 0]);
        let values: ArrayRef = Arc::new(Float64Array::from(vec![0.5, -1.0, f64::INFINITY, 0.0]));
        assert_eq!(order_of(&values), [1, 3, 0, 2]);
        let made = encode("difficulty", true, &[values]).unwrap();
        assert_eq!(made.iter().map(|m| m.0.as_str()).collect::<Vec<_>>(), ["difficulty", "order_difficulty"]);
    }
}
