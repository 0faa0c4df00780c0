//! The one door to polars: record batches go in and come out by the Arrow C data interface, a query runs in between.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, NullArray, make_array},
    datatypes::{Field, Schema},
    ffi::{FFI_ArrowArray, FFI_ArrowSchema},
    record_batch::RecordBatch,
};
use gristmill_shard::{Error, Result};
use polars::{
    prelude::{Column, CompatLevel, DataFrame, IntoLazy, Series},
    sql::SQLContext,
};
use polars_arrow::ffi as polars_ffi;

use crate::row_query::INPUT_TABLE;

/// Stack of the thread that polars plans on: expressions are walked by recursion.
const STACK_BYTES: usize = 32 << 20;

/// Runs `sql` over `batch` as the table `input`, on a thread of its own.
///
/// # Errors
/// [`Error::Usage`] with polars' own words when the query can't be run, [`Error::Internal`] when polars panics.
pub(crate) fn run_query(sql: &str, batch: RecordBatch) -> Result<RecordBatch> {
    let sql = sql.to_owned();
    let thread = std::thread::Builder::new()
        .name("query".into())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let mut context = SQLContext::new();
            context.register(INPUT_TABLE, to_frame(&batch)?.lazy());
            let frame =
                context.execute(&sql).and_then(polars::prelude::LazyFrame::collect).map_err(|e| query_error(&e))?;
            from_frame(frame)
        })
        .map_err(|e| Error::internal(format!("no thread for the query: {e}")))?;
    thread.join().map_err(|_| Error::internal("polars panicked while it ran the query"))?
}

fn query_error(error: &dyn std::fmt::Display) -> Error {
    let text = error.to_string();
    if let Some(name) = duplicate_name(&text) {
        return Error::usage(
            format!("the query: duplicate output column \"{name}\""),
            "give one of them another name with AS, or leave it out of * with EXCLUDE",
        );
    }
    if text.contains("filter predicate") {
        let found = between(&text, "got `", "`").map(|t| format!(": it is {t}, not true or false")).unwrap_or_default();
        return Error::usage(
            format!("the query: WHERE is not a condition{found}"),
            "compare with something, for example WHERE x > 0 or WHERE x IS NOT NULL",
        );
    }
    // What follows is polars' plan, which says nothing about the query as it was written.
    let first = text.split("\n\nResolved plan until failure").next().unwrap_or_default();
    let line = first.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ");
    Error::usage(
        format!("the query can't be run: {line}"),
        "check names and types; CAST fails on a value it can't convert, TRY_CAST gives null",
    )
}

/// The column that polars found twice in the result, in any of its wordings.
fn duplicate_name(text: &str) -> Option<&str> {
    [
        ("duplicate output name '", "'. It's possible"),
        ("column '", "' is duplicated in the SELECT"),
        ("the name '", "' passed to `LazyFrame.with_columns` is duplicate"),
        ("column with name '", "' has more than one occurrence"),
    ]
    .into_iter()
    .find_map(|(before, after)| between(text, before, after))
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(found, _)| found)
}

fn crossing(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::internal(format!("column \"{what}\" does not cross between Arrow and polars: {error}"))
}

fn to_frame(batch: &RecordBatch) -> Result<DataFrame> {
    let mut columns: Vec<Column> = Vec::with_capacity(batch.num_columns());
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        columns.push(to_series(field, array)?.into());
    }
    DataFrame::new(batch.num_rows(), columns).map_err(|e| Error::internal(format!("a batch is no frame: {e}")))
}

fn to_series(field: &Field, array: &ArrayRef) -> Result<Series> {
    let fail = |e: &dyn std::fmt::Display| crossing(field.name(), e);
    let schema = FFI_ArrowSchema::try_from(field).map_err(|e| fail(&e))?;
    let array = FFI_ArrowArray::new(&array.to_data());
    // SAFETY: both pairs of types are `#[repr(C)]` and have the layout that the C data interface fixes (their sizes
    // are checked below); ownership moves, and the release callback travels inside.
    let (schema, array) = unsafe {
        (
            std::mem::transmute::<FFI_ArrowSchema, polars_ffi::ArrowSchema>(schema),
            std::mem::transmute::<FFI_ArrowArray, polars_ffi::ArrowArray>(array),
        )
    };
    // SAFETY: `schema` was made by arrow-rs from a field just above.
    let field = unsafe { polars_ffi::import_field_from_c(&schema) }.map_err(|e| fail(&e))?;
    // SAFETY: `array` was made by arrow-rs from data of that field's type.
    let array = unsafe { polars_ffi::import_array_from_c(array, field.dtype.clone()) }.map_err(|e| fail(&e))?;
    Series::try_from((field.name, array)).map_err(|e| fail(&e))
}

fn from_frame(frame: DataFrame) -> Result<RecordBatch> {
    let rows = frame.height();
    let mut fields = Vec::new();
    let mut arrays = Vec::new();
    for series in frame.materialized_column_iter() {
        let name = series.name().as_str();
        let array = from_series(series)?;
        fields.push(Field::new(name, array.data_type().clone(), true));
        arrays.push(array);
    }
    let options = arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
        .map_err(|source| Error::Arrow { action: "take the result of the query".into(), source })
}

fn from_series(series: &Series) -> Result<ArrayRef> {
    let fail = |e: &dyn std::fmt::Display| crossing(series.name().as_str(), e);
    if series.dtype() == &polars::prelude::DataType::Null {
        // polars gives this type a buffer, the interface allows none.
        return Ok(Arc::new(NullArray::new(series.len())));
    }
    if series.dtype().is_nested() {
        return Err(Error::usage(
            format!(
                "the query makes column \"{}\" of type {}, which has no place in a data set",
                series.name(),
                series.dtype()
            ),
            "select single values of it",
        ));
    }
    let series = series.rechunk();
    if series.chunks().is_empty() {
        return Err(fail(&"it has no chunk"));
    }
    // The oldest level has large_utf8 and large_binary, the waist's types, not views.
    let level = CompatLevel::oldest();
    let field = series.dtype().to_arrow_field(series.name().clone(), level);
    let schema = polars_ffi::export_field_to_c(&field);
    let array = polars_ffi::export_array_to_c(series.to_arrow(0, level));
    // SAFETY: as in `to_series`, the other way round.
    let (schema, array) = unsafe {
        (
            std::mem::transmute::<polars_ffi::ArrowSchema, FFI_ArrowSchema>(schema),
            std::mem::transmute::<polars_ffi::ArrowArray, FFI_ArrowArray>(array),
        )
    };
    // SAFETY: both were made by polars from one series just above.
    let data = unsafe { arrow::ffi::from_ffi(array, &schema) }.map_err(|e| fail(&e))?;
    Ok(make_array(data))
}

const _: () = assert!(
    size_of::<FFI_ArrowSchema>() == size_of::<polars_ffi::ArrowSchema>()
        && align_of::<FFI_ArrowSchema>() == align_of::<polars_ffi::ArrowSchema>()
        && size_of::<FFI_ArrowArray>() == size_of::<polars_ffi::ArrowArray>()
        && align_of::<FFI_ArrowArray>() == align_of::<polars_ffi::ArrowArray>()
);

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::{
            BooleanArray, Date32Array, Float32Array, Int8Array, Int64Array, LargeBinaryArray, LargeStringArray,
            TimestampMicrosecondArray, UInt16Array, UInt64Array,
        },
        datatypes::DataType,
    };

    #[test]
    fn every_waist_type_crosses_unchanged() {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("i", Arc::new(Int64Array::from(vec![Some(9_007_199_254_740_993), None, Some(i64::MIN)]))),
            ("u", Arc::new(UInt64Array::from(vec![Some(u64::MAX), Some(0), None]))),
            ("i8", Arc::new(Int8Array::from(vec![None, Some(-128), Some(127)]))),
            ("u16", Arc::new(UInt16Array::from(vec![None, Some(0), Some(u16::MAX)]))),
            ("b", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
            ("f", Arc::new(Float32Array::from(vec![Some(f32::NAN), None, Some(-0.0)]))),
            (
                "s",
                Arc::new(LargeStringArray::from(vec![Some(""), None, Some("a text that is longer than a view holds")])),
            ),
            ("x", Arc::new(LargeBinaryArray::from(vec![Some(&b"\xff\x00"[..]), None, Some(b"")]))),
            ("d", Arc::new(Date32Array::from(vec![Some(-1), None, Some(20_000)]))),
            ("t", Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1)]))),
            ("z", Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1)]).with_timezone("UTC"))),
        ];
        let fields: Vec<Field> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
        let batch =
            RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect()).unwrap();
        for part in [batch.clone(), batch.slice(1, 2), batch.slice(0, 0)] {
            assert_eq!(run_query("SELECT * FROM input", part.clone()).unwrap(), part);
        }
        let derived = run_query("SELECT i + 1 AS j FROM input WHERE b", batch).unwrap();
        assert_eq!(derived.column(0).as_ref(), &Int64Array::from(vec![9_007_199_254_740_994]));
        assert_eq!(derived.schema().field(0).data_type(), &DataType::Int64);
    }

    #[test]
    fn overflow_and_division_by_zero_are_as_documented() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let batch = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(vec![i64::MAX, 0]))]).unwrap();
        let result = run_query("SELECT n + 1 AS a, n / 0 AS b, n // 0 AS c, n % 0 AS d FROM input", batch).unwrap();
        assert_eq!(result.column(0).as_ref(), &Int64Array::from(vec![i64::MIN, 1]));
        let quotients = result.column(1).as_any().downcast_ref::<arrow::array::Float64Array>().unwrap();
        assert!(quotients.value(0) == f64::INFINITY && quotients.value(1).is_nan());
        assert_eq!((result.column(2).null_count(), result.column(3).null_count()), (2, 2));
    }

    #[test]
    fn a_query_that_fails_is_told_in_words() {
        let schema = Arc::new(Schema::new(vec![Field::new("s", DataType::LargeUtf8, true)]));
        let batch = RecordBatch::try_new(schema, vec![Arc::new(LargeStringArray::from(vec!["x"]))]).unwrap();
        let error = run_query("SELECT CAST(s AS BIGINT) AS n FROM input", batch.clone()).unwrap_err();
        assert_eq!(error.kind(), gristmill_shard::ErrorKind::Usage);
        for (sql, want) in [
            ("SELECT s, s FROM input", "duplicate output column \"s\""),
            ("SELECT s AS t, upper(s) AS t FROM input", "duplicate output column \"t\""),
            ("SELECT s FROM input WHERE s", "WHERE is not a condition"),
            ("SELECT s FROM input WHERE length(s)", "WHERE is not a condition"),
            ("SELECT s + 1 AS t FROM input", "can't be run"),
        ] {
            let Err(Error::Usage { what, .. }) = run_query(sql, batch.clone()) else { panic!("{sql}") };
            assert!(what.contains(want), "{sql}: {what}");
            assert!(!what.contains('\n') && !what.contains("Resolved plan"), "{sql}: {what}");
        }
        assert_eq!(run_query("SELECT TRY_CAST(s AS BIGINT) AS n FROM input", batch).unwrap().column(0).null_count(), 1);
    }
}
