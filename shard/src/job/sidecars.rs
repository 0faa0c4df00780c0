//! Sidecars: a column kept beside each lane, one value a position, uncompressed and of fixed width, so that a plan reads
//! weights, lengths and difficulties without reading the shards; and positions in the order of difficulty.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, RecordBatch, UInt32Array},
    datatypes::{DataType, Field, Schema},
};
use serde::{Deserialize, Serialize};

use super::{Job, options::SidecarColumn};
use crate::{
    error::{Error, Result},
    manifest::META,
    parquet_reader::ParquetFile,
    parquet_writer::{EncodedFile, encode_fixed},
    sidecar::{lane_values, order_of},
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
                    parts.push(file.decode(index, &bytes, Some(&names))?.column(0).clone());
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

/// The sidecar of a lane's values, and the order by them.
fn encode(name: &str, ordered: bool, parts: &[ArrayRef]) -> Result<Vec<(String, EncodedFile)>> {
    let values = lane_values(parts)?;
    let mut made = vec![(name.to_owned(), encode_column(name, Arc::clone(&values))?)];
    if ordered {
        let order = order_of(&values);
        let name = format!("order_{name}");
        let file = encode_column(&name, Arc::new(UInt32Array::from(order)))?;
        made.push((name, file));
    }
    Ok(made)
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
    fn an_ordered_sidecar_has_its_order_beside_it() {
        let values: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![0.5, -1.0]));
        let made = encode("difficulty", true, &[values]).unwrap();
        assert_eq!(made.iter().map(|m| m.0.as_str()).collect::<Vec<_>>(), ["difficulty", "order_difficulty"]);
    }
}
