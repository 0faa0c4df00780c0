//! Units of work: a few row groups each, cut by the input alone, so that every process cuts alike.

use std::sync::Arc;

use crate::{
    coded::{CodedBatch, CodedColumn},
    control::compute,
    error::{Error, Result},
    input::Input,
    parquet_reader::ParquetFile,
    schema::{MAX_FILE_ROWS, row_id},
};

/// Most decoded bytes that a unit aims at.
const UNIT_BYTES: u64 = 32 << 20;

/// A row group of the input.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) file: Arc<ParquetFile>,
    pub(super) index: usize,
    pub(super) rows: u64,
    pub(super) first_id: i64,
    pub(super) first_row: u64,
    pub(super) decoded_bytes: u64,
}

/// Row groups that are worked on together.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) groups: Vec<Group>,
}

impl Unit {
    pub(super) fn rows(&self) -> u64 {
        self.groups.iter().map(|g| g.rows).sum()
    }

    pub(super) fn decoded_bytes(&self) -> u64 {
        self.groups.iter().map(|g| g.decoded_bytes).sum()
    }
}

/// The units of `input`, starting at file `from`, of about `aim` decoded bytes where row groups are smaller; those of more
/// than `limit` are refused.
pub(super) fn units(input: &Input, from: usize, aim: u64, limit: u64) -> Result<Vec<Unit>> {
    let mut units: Vec<Unit> = Vec::new();
    let mut bytes = 0;
    for group in groups(input, from, limit)? {
        if units.is_empty() || bytes + group.decoded_bytes > aim.min(UNIT_BYTES) {
            units.push(Unit { groups: Vec::new() });
            bytes = 0;
        }
        bytes += group.decoded_bytes;
        if let Some(unit) = units.last_mut() {
            unit.groups.push(group);
        }
    }
    Ok(units)
}

fn groups(input: &Input, from: usize, limit: u64) -> Result<Vec<Group>> {
    let coded: Vec<String> = (input.schema.columns.iter().map(|c| c.name.clone()))
        .filter(|name| input.files.iter().all(|f| f.is_coded(name)))
        .collect();
    let mut groups = Vec::new();
    for (ordinal, file) in input.files.iter().enumerate().skip(from) {
        let file = if coded.is_empty() { Arc::clone(file) } else { Arc::new(file.with_codes(&coded)?) };
        let mut first_row = 0;
        for (index, rows) in file.row_group_rows().into_iter().enumerate() {
            let decoded_bytes = decoded_estimate(&file, index) + 8 * rows;
            if decoded_bytes > limit {
                return Err(Error::usage(
                    format!(
                        "row group {index} of {} has {rows} rows, about {decoded_bytes} bytes when decoded",
                        input.storage.url(file.path())
                    ),
                    format!(
                        "give --memory at least {}, or write the input with smaller row groups",
                        decoded_bytes * super::COPIES
                    ),
                ));
            }
            let first_id = row_id(ordinal as u64, first_row);
            groups.push(Group { file: Arc::clone(&file), index, rows, first_id, first_row, decoded_bytes });
            first_row += rows;
        }
        if first_row > MAX_FILE_ROWS {
            return Err(Error::usage(format!("{} has more than 2^40 rows", file.path()), "cut it into several files"));
        }
    }
    Ok(groups)
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

/// Reads columns `names` of `unit`, one batch a row group.
pub(super) async fn read(input: &Arc<Input>, unit: &Unit, names: &[String]) -> Result<Vec<CodedBatch>> {
    let columns: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut fetched = Vec::with_capacity(unit.groups.len());
    for group in &unit.groups {
        let bytes = if names.is_empty() {
            None
        } else {
            Some(group.file.fetch(&input.storage, group.index, Some(&columns)).await?)
        };
        fetched.push((group.clone(), bytes));
    }
    let names = names.to_vec();
    compute(move || {
        let columns: Vec<&str> = names.iter().map(String::as_str).collect();
        (fetched.into_iter())
            .map(|(group, bytes)| match bytes {
                Some(bytes) => group.file.decode_coded(group.index, &bytes, Some(&columns)),
                None => CodedBatch::new(Arc::new(arrow::datatypes::Schema::empty()), Vec::new(), group.rows as usize),
            })
            .collect()
    })
    .await
}

/// The column `name` of `batch`.
pub(super) fn column<'a>(batch: &'a CodedBatch, name: &str) -> Result<&'a CodedColumn> {
    batch.column(name).ok_or_else(|| Error::internal(format!("column \"{name}\" was not read")))
}
