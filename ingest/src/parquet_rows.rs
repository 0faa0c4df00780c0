//! Raw Parquet files to rows, some row groups at a time.

use std::{collections::BTreeSet, ops::Range, path::Path, sync::Arc};

use arrow::{
    array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatchReader, new_null_array},
    compute::{cast, concat_batches, filter, filter_record_batch},
    datatypes::DataType,
    record_batch::RecordBatch,
    util::display::{ArrayFormatter, FormatOptions},
};
use gristmill_shard::{
    Error, Result,
    parquet_reader::to_waist_types,
    schema::{Column, ColumnType, DatasetSchema, is_reserved},
};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder},
    },
    file::statistics::Statistics,
};

use crate::{
    rejects::{Reject, RejectReason, raw_text},
    sources::io_error,
};

/// A raw Parquet file whose footer was read.
#[derive(Debug, Clone)]
pub(crate) struct ParquetInfo {
    metadata: ArrowReaderMetadata,
}

impl ParquetInfo {
    /// Reads the footer.
    ///
    /// # Errors
    /// I/O errors, [`Error::Corrupt`] when it is no Parquet.
    pub(crate) fn open(path: &Path, name: &str) -> Result<Self> {
        let file = fs_err::File::open(path).map_err(|e| io_error(name, e))?;
        let metadata = ArrowReaderMetadata::load(file.file(), ArrowReaderOptions::new())
            .map_err(|e| Error::corrupt(name, format!("not a readable Parquet file ({e})")))?;
        Ok(Self { metadata })
    }

    /// Names of its columns.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.schema().fields().iter().map(|f| f.name().clone()).collect()
    }

    /// Its columns, or those of `wanted`. A column is nullable when its statistics do not rule nulls out.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the column that has no place here.
    pub(crate) fn schema(&self, name: &str, wanted: Option<&DatasetSchema>) -> Result<DatasetSchema> {
        let mut columns = Vec::new();
        for (i, field) in self.metadata.schema().fields().iter().enumerate() {
            let column = wanted.map(|w| w.columns.iter().find(|c| &c.name == field.name()));
            if column == Some(None) {
                continue;
            }
            if is_reserved(field.name()) {
                return Err(Error::usage(
                    format!("{name}: column \"{}\" starts with \"_\", which is reserved", field.name()),
                    "rename it in the file, or leave it out with a schema that does not list it",
                ));
            }
            let column_type = ColumnType::from_arrow(field.data_type()).map_err(|t| {
                Error::usage(
                    format!("{name}: column \"{}\" has type {t}, which has no place in a data set", field.name()),
                    "convert it in the file, or leave it out with a schema that does not list it",
                )
            })?;
            columns.push(Column {
                name: field.name().clone(),
                column_type,
                nullable: field.is_nullable() && self.may_be_null(i),
                role: None,
            });
        }
        let schema = DatasetSchema { columns };
        schema.check_names(name)?;
        Ok(schema)
    }

    fn may_be_null(&self, root: usize) -> bool {
        let metadata = self.metadata.metadata();
        let parquet_schema = metadata.file_metadata().schema_descr();
        metadata.row_groups().iter().any(|group| {
            group.columns().iter().enumerate().any(|(leaf, chunk)| {
                parquet_schema.get_column_root_idx(leaf) == root
                    && chunk.statistics().and_then(Statistics::null_count_opt) != Some(0)
            })
        })
    }

    /// Rows of `groups`.
    pub(crate) fn rows(&self, groups: &Range<usize>) -> u64 {
        self.metadata.metadata().row_groups()[groups.clone()].iter().map(|g| g.num_rows().max(0) as u64).sum()
    }

    /// Row groups in runs of about `unit_bytes` decoded, as far as the footer tells.
    pub(crate) fn runs(&self, unit_bytes: u64) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let (mut start, mut bytes) = (0, 0_u64);
        let groups = self.metadata.metadata().row_groups();
        // Dictionaries make the stored size small; values and offsets come out at their width.
        let widths =
            self.metadata.schema().fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(16) as u64);
        let row_bytes: u64 = widths.sum();
        for (i, group) in groups.iter().enumerate() {
            let stored = group.total_byte_size().max(0) as u64;
            let more = stored.max(row_bytes.saturating_mul(group.num_rows().max(0) as u64));
            if i > start && bytes.saturating_add(more) > unit_bytes {
                runs.push(start..i);
                (start, bytes) = (i, 0);
            }
            bytes = bytes.saturating_add(more);
        }
        if start < groups.len() {
            runs.push(start..groups.len());
        }
        runs
    }

    /// Decodes `groups` to the columns of `schema`, in its order.
    ///
    /// # Errors
    /// I/O errors, [`Error::Corrupt`].
    pub(crate) fn read(
        &self,
        path: &Path,
        name: &str,
        groups: &Range<usize>,
        schema: &DatasetSchema,
    ) -> Result<RecordBatch> {
        let corrupt =
            |e: &dyn std::fmt::Display| Error::corrupt(name, format!("row groups {groups:?} do not decode ({e})"));
        let file = fs_err::File::open(path).map_err(|e| io_error(name, e))?;
        let wanted: BTreeSet<&str> = schema.columns.iter().map(|c| c.name.as_str()).collect();
        let file_schema = self.metadata.schema();
        let roots =
            file_schema.fields().iter().enumerate().filter(|(_, f)| wanted.contains(f.name().as_str())).map(|(i, _)| i);
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), roots);
        let rows = self.rows(groups);
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file.into_parts().0, self.metadata.clone())
            .with_projection(mask)
            .with_row_groups(groups.clone().collect())
            .with_batch_size(usize::try_from(rows).unwrap_or(usize::MAX).max(1))
            .build()
            .map_err(|e| corrupt(&e))?;
        let read_schema = reader.schema();
        let mut batches = Vec::new();
        for batch in reader {
            batches.push(to_waist_types(&batch.map_err(|e| corrupt(&e))?, name)?);
        }
        let first = batches.first().map_or(read_schema, |b| b.schema());
        let batch = concat_batches(&first, &batches).map_err(|e| corrupt(&e))?;
        if batch.num_rows() as u64 != rows {
            return Err(corrupt(&format!("{} rows came, the footer says {rows}", batch.num_rows())));
        }
        let order: Vec<usize> = schema
            .columns
            .iter()
            .map(|c| batch.schema().index_of(&c.name).map_err(|e| corrupt(&e)))
            .collect::<Result<_>>()?;
        batch.project(&order).map_err(|e| corrupt(&e))
    }
}

/// Sets aside the rows that have a null where `schema` allows none. Gives the rest, and their rows counted from `base`.
///
/// # Errors
/// [`Error::Arrow`] when Arrow refuses.
pub(crate) fn refuse_nulls(
    batch: &RecordBatch,
    schema: &DatasetSchema,
    file: &str,
    base: u64,
) -> Result<(RecordBatch, ArrayRef, Vec<Reject>)> {
    let fail = |source| Error::Arrow { action: format!("set aside rows of {file}"), source };
    let rows: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..batch.num_rows()).map(|i| (base + i as u64) as i64)));
    let strict: Vec<usize> = (0..schema.columns.len())
        .filter(|i| !schema.columns[*i].nullable && batch.column(*i).null_count() > 0)
        .collect();
    if strict.is_empty() {
        return Ok((batch.clone(), rows, Vec::new()));
    }
    let mut rejects = Vec::new();
    let mut keep = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        let fault = strict.iter().find(|c| batch.column(**c).is_null(row));
        keep.push(fault.is_none());
        if let Some(column) = fault {
            rejects.push(Reject {
                file: file.to_owned(),
                row: base + row as u64,
                line: None,
                column: Some(schema.columns[*column].name.clone()),
                reason: RejectReason::Null,
                detail: "no value, and the column may not be null".into(),
                raw: row_text(batch, row)?,
            });
        }
    }
    let keep = BooleanArray::from(keep);
    Ok((filter_record_batch(batch, &keep).map_err(fail)?, filter(&rows, &keep).map_err(fail)?, rejects))
}

fn row_text(batch: &RecordBatch, row: usize) -> Result<String> {
    let fail = |source| Error::Arrow { action: "show a refused row".into(), source };
    let options = FormatOptions::default().with_null("null").with_display_error(true);
    let mut parts = Vec::with_capacity(batch.num_columns());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let value = column.slice(row, 1);
        // Named zones have no table here to show local times by; the instant is shown instead.
        let (value, suffix) = match value.data_type() {
            DataType::Timestamp(unit, Some(_)) if value.is_valid(0) => {
                let instant = cast(&value, &DataType::Int64).and_then(|v| cast(&v, &DataType::Timestamp(*unit, None)));
                (instant.map_err(fail)?, "Z")
            }
            DataType::Timestamp(unit, Some(_)) => (new_null_array(&DataType::Timestamp(*unit, None), 1), ""),
            _ => (value, ""),
        };
        let shown = ArrayFormatter::try_new(value.as_ref(), &options).map_err(fail)?;
        parts.push(format!("{}={}{suffix}", field.name(), shown.value(0)));
    }
    Ok(raw_text(parts.join(", ").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::{DictionaryArray, StringArray, StringViewArray},
        datatypes::{Field, Int32Type, Schema},
    };
    use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

    fn write(dir: &tempfile::TempDir, batch: &RecordBatch, group_rows: usize) -> std::path::PathBuf {
        let path = dir.path().join("x.parquet");
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
        let mut writer =
            ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        path
    }

    fn batch() -> RecordBatch {
        let n = Int64Array::from((0..100).map(|i| (i % 10 != 3).then_some(i)).collect::<Vec<_>>());
        let s: StringViewArray = (0..100).map(|i| Some(format!("text number {i} that is long"))).collect();
        let d: DictionaryArray<Int32Type> = (0..100).map(|i| if i % 2 == 0 { "even" } else { "odd" }).collect();
        RecordBatch::try_from_iter([("n", Arc::new(n) as ArrayRef), ("s", Arc::new(s)), ("d", Arc::new(d))]).unwrap()
    }

    #[test]
    fn row_groups_come_back_with_waist_types() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(&dir, &batch(), 30);
        let info = ParquetInfo::open(&path, "x").unwrap();
        let schema = info.schema("x", None).unwrap();
        assert_eq!(
            schema.columns.iter().map(|c| (c.column_type.to_string(), c.nullable)).collect::<Vec<_>>(),
            [("int64".into(), true), ("large_utf8".into(), false), ("large_utf8".into(), false)]
        );
        assert_eq!(info.runs(1), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(info.runs(1 << 30), vec![0..4]);
        let part = info.read(&path, "x", &(1..3), &schema).unwrap();
        assert_eq!(part.num_rows(), 60);
        let wanted = DatasetSchema {
            columns: vec![schema.columns[2].clone(), Column { nullable: false, ..schema.columns[0].clone() }],
        };
        let part = info.read(&path, "x", &(1..3), &wanted).unwrap();
        assert_eq!(part.schema().field(0).name(), "d");
        let (kept, rows, rejects) = refuse_nulls(&part, &wanted, "x", 30).unwrap();
        assert_eq!((kept.num_rows(), rows.len(), rejects.len()), (54, 54, 6));
        assert_eq!((rejects[0].row, rejects[0].raw.as_str()), (33, "d=odd, n=null"));
    }

    #[test]
    fn what_has_no_place_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut list = arrow::array::ListBuilder::new(arrow::array::Int64Builder::new());
        list.append_value([Some(1)]);
        let columns = [("l", Arc::new(list.finish()) as ArrayRef), ("a", Arc::new(StringArray::from(vec!["x"])))];
        let path = write(&dir, &RecordBatch::try_from_iter(columns).unwrap(), 10);
        let info = ParquetInfo::open(&path, "x").unwrap();
        assert!(info.schema("x", None).unwrap_err().to_string().contains("\"l\""));
        let wanted = DatasetSchema {
            columns: vec![Column {
                name: "a".into(),
                column_type: "string".parse().unwrap(),
                nullable: true,
                role: None,
            }],
        };
        assert_eq!(info.schema("x", Some(&wanted)).unwrap().columns.len(), 1);
        let reserved = Schema::new(vec![Field::new("_a", DataType::Int64, true)]);
        let batch = RecordBatch::try_new(Arc::new(reserved), vec![Arc::new(Int64Array::from(vec![1]))]).unwrap();
        let path = write(&dir, &batch, 10);
        assert!(ParquetInfo::open(&path, "x").unwrap().schema("x", None).unwrap_err().to_string().contains("reserved"));
        std::fs::write(&path, "PAR1 not really").unwrap();
        assert_eq!(ParquetInfo::open(&path, "x").unwrap_err().kind(), gristmill_shard::ErrorKind::Corrupt);
    }
}
