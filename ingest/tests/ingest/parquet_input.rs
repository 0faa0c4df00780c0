//! Raw Parquet, alone and with others.

use std::{fs::File, path::Path, sync::Arc};

use arrow::{
    array::{ArrayRef, DictionaryArray, Int64Array, StringArray, StringViewArray, TimestampMicrosecondArray},
    datatypes::Int8Type,
    record_batch::RecordBatch,
};
use gristmill_ingest::{IngestOptions, RejectReason, schema_from_toml};
use gristmill_shard::{ErrorKind, Storage};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

use crate::support::{Raw, rows, run, shown, types};

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>, group_rows: usize) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn columns() -> Vec<(&'static str, ArrayRef)> {
    let n: Int64Array = (0..1000).map(|i| (i != 500).then_some(i + (1 << 53))).collect();
    let s: StringViewArray = (0..1000).map(|i| Some(format!("value {i} of a longer kind"))).collect();
    let d: DictionaryArray<Int8Type> = (0..1000).map(|i| ["x", "y"][i % 2]).collect();
    let t = TimestampMicrosecondArray::from_iter_values(0..1000).with_timezone("Europe/Berlin");
    vec![("n", Arc::new(n)), ("s", Arc::new(s)), ("d", Arc::new(d)), ("t", Arc::new(t))]
}

#[tokio::test(flavor = "multi_thread")]
async fn values_nulls_and_zones_are_kept() {
    let raw = Raw::new(&[]);
    write(&raw.path().join("x.parquet"), columns(), 300);
    for sql in [None, Some("SELECT * FROM input".to_owned())] {
        let out = Storage::memory();
        let outcome = run(&IngestOptions { unit_bytes: 1, sql, ..raw.options() }, &out).await.unwrap();
        let found: Vec<String> = types(&outcome).into_iter().map(|t| t.1).collect();
        assert_eq!(found, ["int64", "large_utf8", "large_utf8", "timestamp[us, Europe/Berlin]"]);
        let nullable: Vec<bool> = outcome.manifest.schema.columns.iter().map(|c| c.nullable).collect();
        assert_eq!(nullable, [true, false, false, false]);
        let batch = rows(&out, &outcome).await;
        let n = shown(&batch, "n");
        assert_eq!((n[499].as_deref(), n[500].as_deref()), (Some("9007199254741491"), None));
        assert_eq!(shown(&batch, "d")[1].as_deref(), Some("y"));
        assert_eq!(shown(&batch, "_source_row")[999].as_deref(), Some("999"));
        assert_eq!(outcome.report.counts.accepted, 1000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nulls_where_none_may_be_are_set_aside() {
    let raw = Raw::new(&[]);
    write(&raw.path().join("x.parquet"), columns(), 300);
    let schema = schema_from_toml("[[columns]]\nname='n'\ntype='int64'\nnullable=false\n[[columns]]\nname='t'\ntype='timestamp[us, Europe/Berlin]'\n", "s").unwrap();
    let out = Storage::memory();
    let outcome = run(&IngestOptions { schema: Some(schema), ..raw.options() }, &out).await.unwrap();
    let counts = outcome.report.counts;
    assert_eq!((counts.rows_in, counts.accepted, counts.rejected), (1000, 999, 1));
    let reject = &outcome.report.rejects.examples[0];
    assert_eq!(
        (reject.row, reject.line, reject.reason, reject.raw.as_str()),
        (500, None, RejectReason::Null, "n=null, t=1970-01-01T00:00:00.000500Z")
    );
    let unread: Vec<&str> =
        outcome.report.columns.iter().filter(|c| c.stage == "unread").map(|c| c.name.as_str()).collect();
    assert_eq!(unread, ["d", "s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_must_agree_on_types() {
    let raw = Raw::new(&[("b.csv", b"n\n7\n8\n")]);
    write(&raw.path().join("a.parquet"), vec![("n", Arc::new(Int64Array::from(vec![1, 2])))], 10);
    let out = Storage::memory();
    let outcome = run(&raw.options(), &out).await.unwrap();
    assert_eq!(shown(&rows(&out, &outcome).await, "n").into_iter().flatten().collect::<Vec<_>>(), ["1", "2", "7", "8"]);

    write(&raw.path().join("c.parquet"), vec![("n", Arc::new(StringArray::from(vec!["x"])))], 10);
    let error = run(&raw.options(), &Storage::memory()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    for want in ["c.parquet", "\"n\"", "large_utf8", "int64"] {
        assert!(error.to_string().contains(want), "{error}");
    }
}
