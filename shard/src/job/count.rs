//! Counting: how many rows of each stratum each row group has.

use std::{collections::BTreeMap, sync::Arc};

use arrow::datatypes::SchemaRef;
use futures::{StreamExt, TryStreamExt};

use super::{COPIES, Job};
use crate::{
    control::{Unit, compute},
    error::{Error, Result},
    parquet_reader::ParquetFile,
    schema::MAX_FILE_ROWS,
    strata::{self, Strata, StratumKey},
};

/// Decoded bytes that a unit of work aims at.
const UNIT_BYTES: u64 = 32 << 20;
/// A row group of the input.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) ordinal: u64,
    pub(super) file: Arc<ParquetFile>,
    pub(super) index: usize,
    pub(super) first_row: u64,
    pub(super) decoded_bytes: u64,
}

/// What counting finds.
pub(super) struct Counted {
    pub(super) units: Vec<Vec<Group>>,
    /// Strata of each row group, in input order.
    pub(super) by_group: Vec<BTreeMap<StratumKey, u64>>,
    pub(super) strata: Arc<Strata>,
    pub(super) decoded_bytes: u64,
}

impl Job {
    fn groups(&self) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        for (ordinal, file) in self.input.files.iter().enumerate() {
            let mut first_row = 0;
            for (index, rows) in file.row_group_rows().into_iter().enumerate() {
                let decoded_bytes = decoded_estimate(file, index) + 8 * rows;
                if decoded_bytes > self.options.memory_bytes / COPIES {
                    return Err(Error::usage(
                        format!(
                            "row group {index} of {} has {rows} rows, about {decoded_bytes} bytes when decoded",
                            self.input.storage.url(file.path())
                        ),
                        format!(
                            "give --memory at least {}, or write the input with smaller row groups",
                            decoded_bytes * COPIES
                        ),
                    ));
                }
                groups.push(Group { ordinal: ordinal as u64, file: Arc::clone(file), index, first_row, decoded_bytes });
                first_row += rows;
            }
            if first_row > MAX_FILE_ROWS {
                return Err(Error::usage(
                    format!("{} has more than 2^40 rows", file.path()),
                    "cut it into several files",
                ));
            }
        }
        Ok(groups)
    }

    pub(super) async fn count(&self) -> Result<Counted> {
        let groups = self.groups()?;
        let decoded_bytes = groups.iter().map(|g| g.decoded_bytes).sum();
        self.control.progress.start("count strata", self.input.rows(), Unit::Rows);
        let key_schema = self.key_schema()?;
        let by_group: Vec<BTreeMap<StratumKey, u64>> = futures::stream::iter(groups.iter().cloned())
            .map(|group| self.count_group(group))
            .buffered(self.control.threads.max(1))
            .try_collect()
            .await?;
        self.control.progress.finish();
        let mut total: BTreeMap<StratumKey, u64> = BTreeMap::new();
        for counts in &by_group {
            for (key, rows) in counts {
                match total.get_mut(key) {
                    Some(sum) => *sum += rows,
                    None => {
                        total.insert(key.clone(), *rows);
                    }
                }
            }
        }
        let strata = Arc::new(Strata::new(&total, &key_schema)?);
        Ok(Counted { units: units(groups), by_group, strata, decoded_bytes })
    }

    fn key_schema(&self) -> Result<SchemaRef> {
        let schema = self.input.arrow_schema();
        let indices: Result<Vec<usize>, _> = self.options.stratify.iter().map(|n| schema.index_of(n)).collect();
        let fail = |source| Error::Arrow { action: "find the stratify columns".into(), source };
        schema.project(&indices.map_err(fail)?).map(Arc::new).map_err(fail)
    }

    async fn count_group(&self, group: Group) -> Result<BTreeMap<StratumKey, u64>> {
        self.control.stop.check()?;
        let rows = group.file.row_group_rows().get(group.index).copied().unwrap_or(0);
        let stratify = self.options.stratify.clone();
        let counts = if stratify.is_empty() {
            strata::count(&[], rows as usize)?
        } else {
            let names: Vec<&str> = stratify.iter().map(String::as_str).collect();
            let bytes = group.file.fetch(&self.input.storage, group.index, Some(&names)).await?;
            compute(move || {
                let names: Vec<&str> = stratify.iter().map(String::as_str).collect();
                let batch = group.file.decode(group.index, &bytes, Some(&names))?;
                strata::count(batch.columns(), batch.num_rows())
            })
            .await?
        };
        self.control.progress.advance(rows);
        Ok(counts)
    }
}

/// Row groups in units of about [`UNIT_BYTES`].
fn units(groups: Vec<Group>) -> Vec<Vec<Group>> {
    let mut units: Vec<Vec<Group>> = Vec::new();
    let mut bytes = 0;
    for group in groups {
        if units.is_empty() || bytes + group.decoded_bytes > UNIT_BYTES {
            units.push(Vec::new());
            bytes = 0;
        }
        bytes += group.decoded_bytes;
        if let Some(unit) = units.last_mut() {
            unit.push(group);
        }
    }
    units
}

/// Arrow bytes of a row group from its metadata: exact for fixed widths and for text whose plain size is recorded.
fn decoded_estimate(file: &ParquetFile, index: usize) -> u64 {
    let Some(group) = file.metadata().row_groups().get(index) else { return 0 };
    let rows = group.num_rows().max(0) as u64;
    group
        .columns()
        .iter()
        .map(|column| match column.column_type() {
            parquet::basic::Type::BOOLEAN => rows.div_ceil(8),
            parquet::basic::Type::INT32 | parquet::basic::Type::FLOAT => 4 * rows,
            parquet::basic::Type::INT64 | parquet::basic::Type::DOUBLE => 8 * rows,
            _ => {
                let plain = column.unencoded_byte_array_data_bytes().unwrap_or_else(|| column.uncompressed_size());
                plain.max(0) as u64 + 8 * rows
            }
        })
        .sum()
}
