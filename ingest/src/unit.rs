//! One unit of work: raw rows of one source in, the bytes of one clean file and of its rejects out. It is a pure
//! function of the plan, so that any thread, or a later run, makes the same bytes.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, Int32Array},
    datatypes::{DataType, Field, Int64Type, Schema, SchemaRef},
    record_batch::RecordBatch,
};
use gristmill_shard::{
    Error, Result, StopFlag,
    parquet_writer::{EncodedFile, encode_file},
    schema::{Column, ColumnType, DatasetSchema, SOURCE_FILE, SOURCE_ROW, is_reserved},
    statistics::StatisticsBuilder,
};

use crate::{
    csv_rows::{PiecePlace, convert_piece},
    frame::run_query,
    options::OnError,
    parquet_rows::refuse_nulls,
    prepare::{Content, InputColumns, Part, ScannedSource, UnitSpec},
    rejects::{Reject, RejectSummary, rejects_schema, rejects_table},
    row_query::RowQuery,
    sources::read_piece,
};

/// All that units share.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) sources: Arc<Vec<ScannedSource>>,
    pub(crate) input: DatasetSchema,
    /// The query as it runs: its result has `_source_row`.
    pub(crate) sql: Option<String>,
    /// Columns of the result.
    pub(crate) output: DatasetSchema,
    pub(crate) on_error: OnError,
}

/// What a unit made.
#[derive(Debug)]
pub(crate) struct MadeUnit {
    pub(crate) rows_in: u64,
    pub(crate) filtered: u64,
    /// `None` when no row is left.
    pub(crate) data: Option<EncodedFile>,
    /// `None` when no row was refused.
    pub(crate) rejects: Option<EncodedFile>,
    pub(crate) summary: RejectSummary,
    pub(crate) statistics: Vec<StatisticsBuilder>,
}

impl Plan {
    /// Settles the columns of the result, trying the query on no rows.
    ///
    /// # Errors
    /// [`Error::Usage`] when the query is wrong or its result has a column that a data set can't hold.
    pub(crate) fn new(
        sources: Arc<Vec<ScannedSource>>,
        input: &InputColumns,
        sql: Option<&str>,
        on_error: OnError,
    ) -> Result<Self> {
        let schema = input.schema.clone();
        let Some(text) = sql else {
            return Ok(Self { sources, output: schema.clone(), input: schema, sql: None, on_error });
        };
        let query = RowQuery::parse(text, &schema)?;
        let nothing = RecordBatch::new_empty(input_fields(&schema));
        // `*` has `_source_row` already, and twice is an error; a plain list of columns lacks it.
        let mut sql = query.text.clone();
        let mut result = run_query(&sql, nothing.clone())?;
        if result.schema().index_of(SOURCE_ROW).is_err() {
            sql.clone_from(&query.with_source_row);
            result = run_query(&sql, nothing)?;
        }
        let mut columns = Vec::new();
        for field in result.schema().fields() {
            if field.name() == SOURCE_ROW {
                continue;
            }
            if is_reserved(field.name()) {
                return Err(Error::usage(
                    format!("the query makes a column \"{}\": names that start with \"_\" are reserved", field.name()),
                    "give it another name with AS",
                ));
            }
            if field.data_type() == &DataType::Null {
                return Err(Error::usage(
                    format!("the query: column \"{}\" has no type", field.name()),
                    "write CAST(NULL AS …)",
                ));
            }
            let column_type = ColumnType::from_arrow(field.data_type()).map_err(|t| {
                Error::usage(
                    format!(
                        "the query makes column \"{}\" of type {t}, which has no place in a data set",
                        field.name()
                    ),
                    "CAST it to another type",
                )
            })?;
            let role = schema.columns.iter().find(|c| &c.name == field.name()).and_then(|c| c.role);
            columns.push(Column {
                name: field.name().clone(),
                column_type,
                nullable: !query.is_not_null(field.name()),
                role,
            });
        }
        let output = DatasetSchema { columns };
        output.check_names("the query")?;
        if output.columns.is_empty() {
            return Err(Error::usage("the query selects no column", "select at least one"));
        }
        Ok(Self { sources, input: schema, sql: Some(sql), output, on_error })
    }

    /// Schema of the clean files.
    pub(crate) fn file_schema(&self) -> SchemaRef {
        let mut fields: Vec<Field> = self.output.to_arrow().fields().iter().map(|f| f.as_ref().clone()).collect();
        fields.push(Field::new(SOURCE_FILE, DataType::Int32, false));
        fields.push(Field::new(SOURCE_ROW, DataType::Int64, false));
        Arc::new(Schema::new(fields))
    }

    /// Does one unit.
    ///
    /// # Errors
    /// [`Error::Data`] for the first bad row under [`OnError::Fail`], and those of reading, querying and writing.
    pub(crate) fn make(&self, spec: &UnitSpec, stop: &StopFlag) -> Result<MadeUnit> {
        stop.check()?;
        let source = self.sources.get(spec.source as usize).ok_or_else(|| Error::internal("a unit of no source"))?;
        let (batch, rows, rejects, rows_in) = self.read(spec, source, stop)?;
        if let (OnError::Fail, Some(first)) = (self.on_error, rejects.first()) {
            return Err(Error::Data {
                url: source.name.clone(),
                what: format!("a bad row: {first}\n  row: {}", first.raw.chars().take(200).collect::<String>()),
                help: "correct it, or set bad rows aside with --on-error reject".into(),
            });
        }
        if rows_in != spec.rows {
            return Err(Error::Data {
                url: source.name.clone(),
                what: format!("{rows_in} rows were read where {} had been counted", spec.rows),
                help: "run again when nothing writes to the file".into(),
            });
        }
        let good = batch.num_rows() as u64;
        let (batch, rows) = self.query(batch, rows, source)?;
        let accepted = batch.num_rows() as u64;
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(Int32Array::from_value(spec.source as i32, batch.num_rows())));
        columns.push(rows);
        let schema = self.file_schema();
        let clean = RecordBatch::try_new(Arc::clone(&schema), columns)
            .map_err(|e| Error::internal(format!("rows of {} do not fit the settled columns: {e}", source.name)))?;
        let mut statistics = Vec::with_capacity(self.output.columns.len());
        for column in clean.columns().iter().take(self.output.columns.len()) {
            let mut builder = StatisticsBuilder::new(column.data_type());
            builder.update(column)?;
            statistics.push(builder);
        }
        stop.check()?;
        let data = if accepted > 0 { Some(encode_file(&source.name, &schema, &[clean])?) } else { None };
        let refused = if rejects.is_empty() {
            None
        } else {
            Some(encode_file("rejects", &rejects_schema(), &[rejects_table(&rejects)?])?)
        };
        Ok(MadeUnit {
            rows_in,
            filtered: good - accepted,
            data,
            rejects: refused,
            summary: RejectSummary::of(&rejects),
            statistics,
        })
    }

    fn read(
        &self,
        spec: &UnitSpec,
        source: &ScannedSource,
        stop: &StopFlag,
    ) -> Result<(RecordBatch, ArrayRef, Vec<Reject>, u64)> {
        match (&spec.part, &source.content) {
            (Part::Csv { piece, format }, _) => {
                let data = source.while_unchanged(|| read_piece(&source.path, &source.name, piece.start, piece.end))?;
                let place = PiecePlace { file: &source.name, row: spec.row, line: piece.line };
                let fail = self.on_error == OnError::Fail;
                let piece = convert_piece(&data, place, format, &self.input, fail, stop)?;
                Ok((piece.batch, piece.source_rows, piece.rejects, piece.rows_in))
            }
            (Part::Parquet { groups }, Content::Parquet(info)) => {
                let batch = source.while_unchanged(|| info.read(&source.path, &source.name, groups, &self.input))?;
                let rows_in = batch.num_rows() as u64;
                let (batch, rows, rejects) = refuse_nulls(&batch, &self.input, &source.name, spec.row)?;
                Ok((batch, rows, rejects, rows_in))
            }
            (Part::Parquet { .. }, Content::Csv { .. }) => Err(Error::internal("row groups of a CSV file")),
        }
    }

    /// Runs the query, if any. Gives the result's columns in order, and the source row of each of its rows.
    fn query(&self, batch: RecordBatch, rows: ArrayRef, source: &ScannedSource) -> Result<(RecordBatch, ArrayRef)> {
        let Some(sql) = &self.sql else { return Ok((batch, rows)) };
        let fail =
            |e: arrow::error::ArrowError| Error::internal(format!("rows of {} do not fit the query: {e}", source.name));
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::clone(&rows));
        let given = RecordBatch::try_new(input_fields(&self.input), columns).map_err(fail)?;
        let result = run_query(sql, given).map_err(|e| match e {
            Error::Usage { what, help } => Error::Data {
                url: source.name.clone(),
                what: format!(
                    "from row {} on: {what}",
                    rows.as_primitive::<Int64Type>().iter().flatten().next().unwrap_or(0)
                ),
                help,
            },
            other => other,
        })?;
        let mut order = Vec::with_capacity(self.output.columns.len());
        for column in &self.output.columns {
            let index = result.schema().index_of(&column.name).map_err(fail)?;
            let found = result.schema().field(index).data_type().clone();
            if &found != column.column_type.to_arrow() {
                return Err(Error::internal(format!("column \"{}\" became {found} in {}", column.name, source.name)));
            }
            order.push(index);
        }
        let row_column = result.column(result.schema().index_of(SOURCE_ROW).map_err(fail)?);
        let kept = row_column
            .as_primitive_opt::<Int64Type>()
            .filter(|k| k.null_count() == 0)
            .ok_or_else(|| Error::internal("the query changed the row numbers"))?;
        // Each row of the result is a row of the input, in order and once: the proof that the query was row-wise.
        let mut source_rows = rows.as_primitive::<Int64Type>().values().iter();
        if !kept.values().iter().all(|k| source_rows.any(|r| r == k)) {
            return Err(Error::internal("the query did not keep rows apart and in order"));
        }
        Ok((result.project(&order).map_err(fail)?, Arc::clone(row_column)))
    }
}

/// The query's table: the input's columns and the source row.
fn input_fields(schema: &DatasetSchema) -> SchemaRef {
    let mut fields: Vec<Field> = schema.to_arrow().fields().iter().map(|f| f.as_ref().clone()).collect();
    fields.push(Field::new(SOURCE_ROW, DataType::Int64, false));
    Arc::new(Schema::new(fields))
}
