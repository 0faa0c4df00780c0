//! Types: found, given, and kept to the last digit.

use arrow::{array::AsArray, datatypes::Int64Type};
use gristmill_ingest::{IngestOptions, RejectReason, schema_from_toml, schema_to_toml};
use gristmill_shard::{
    Storage,
    schema::Role,
    tables::{read_categories, read_statistics},
};

use crate::support::{Raw, rows, run, shown, types};

const MIXED: &[u8] = b"id,zip,big,u,flag,x,day,at,utc,mix,none\n\
9007199254740993,00501,9223372036854775807,18446744073709551615,true,1,2024-02-29,2024-02-29 12:00:00,2024-02-29T12:00:00Z,2024-02-29T12:00:00Z,\n\
,10001,-9223372036854775808,1,False,0.5,1969-12-31,1969-12-31T23:59:59.999999,2024-02-29T13:00:00+02:00,2024-02-29T12:00:00,\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_is_written_down_and_reads_back() {
    let raw = Raw::new(&[("x.csv", MIXED)]);
    let out = Storage::memory();
    let outcome = run(&raw.options(), &out).await.unwrap();
    let found: Vec<String> = types(&outcome).into_iter().map(|t| t.1).collect();
    assert_eq!(
        found,
        [
            "int64",
            "large_utf8",
            "int64",
            "uint64",
            "bool",
            "float64",
            "date32",
            "timestamp[us]",
            "timestamp[us, UTC]",
            "large_utf8",
            "large_utf8"
        ]
    );
    let nullable: Vec<bool> = outcome.manifest.schema.columns.iter().map(|c| c.nullable).collect();
    assert_eq!(nullable, [true, false, false, false, false, false, false, false, false, false, true]);
    let batch = rows(&out, &outcome).await;
    let id = batch.column_by_name("id").unwrap().as_primitive::<Int64Type>();
    assert_eq!(id.iter().collect::<Vec<_>>(), [Some(9_007_199_254_740_993), None]);
    assert_eq!(shown(&batch, "zip")[0].as_deref(), Some("00501"));
    assert_eq!(shown(&batch, "utc"), [Some("2024-02-29T12:00:00Z".into()), Some("2024-02-29T11:00:00Z".into())]);
    let mix = outcome.report.columns.iter().find(|c| c.name == "mix").unwrap();
    assert!(mix.evidence.contains("mixed"), "{}", mix.evidence);

    // The schema found, given as a file, makes the same rows.
    let text = schema_to_toml(&outcome.manifest.schema).unwrap();
    let options = IngestOptions { schema: Some(schema_from_toml(&text, "s").unwrap()), ..raw.options() };
    let again = Storage::memory();
    let outcome = run(&options, &again).await.unwrap();
    assert_eq!(rows(&again, &outcome).await, batch);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_schema_is_a_demand() {
    let raw = Raw::new(&[("x.csv", b"a,b,c\n1,x,7\n300,y,8\n,z,9\n2,w,oops\n")]);
    let schema = schema_from_toml(
        "[[columns]]\nname='c'\ntype='float32'\n[[columns]]\nname='a'\ntype='uint8'\nnullable=false\nrole='id'\n",
        "s",
    )
    .unwrap();
    let out = Storage::memory();
    let options =
        IngestOptions { schema: Some(schema), roles: [("c".to_owned(), Role::Label)].into(), ..raw.options() };
    let outcome = run(&options, &out).await.unwrap();
    let batch = rows(&out, &outcome).await;
    assert_eq!(shown(&batch, "a"), [Some("1".into())]);
    let names: Vec<String> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["c", "a", "_source_file", "_source_row"]);
    let reasons: Vec<_> =
        outcome.report.rejects.examples.iter().map(|r| (r.row, r.column.clone().unwrap(), r.reason)).collect();
    assert_eq!(
        reasons,
        [
            (1, "a".into(), RejectReason::BadValue),
            (2, "a".into(), RejectReason::Null),
            (3, "c".into(), RejectReason::BadValue)
        ]
    );
    assert_eq!(outcome.manifest.schema.columns[0].role, Some(Role::Label));
    assert_eq!(outcome.manifest.schema.columns[1].role, Some(Role::Id));
    let unread: Vec<&str> =
        outcome.report.columns.iter().filter(|c| c.stage == "unread").map(|c| c.name.as_str()).collect();
    assert_eq!(unread, ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_and_categories_are_of_all_rows() {
    let mut csv = b"n,c\n".to_vec();
    for i in 0..1000 {
        csv.extend_from_slice(format!("{i},{}\n", ["red", "green", "blue"][i % 3]).as_bytes());
    }
    let raw = Raw::new(&[("x.csv", &csv)]);
    let out = Storage::memory();
    let outcome = run(&IngestOptions { unit_bytes: 1000, ..raw.options() }, &out).await.unwrap();
    let statistics = read_statistics(&out, &outcome.manifest).await.unwrap();
    assert_eq!(statistics[0].split, "");
    let n = &statistics[0].statistics;
    assert_eq!((n.rows, n.nulls, n.min, n.max), (1000, 0, Some(0.0), Some(999.0)));
    assert!((n.mean.unwrap() - 499.5).abs() < 1e-9);
    let categories = read_categories(&out, &outcome.manifest).await.unwrap();
    let c: Vec<(String, u64)> = categories.into_iter().filter(|c| c.column == "c").map(|c| (c.value, c.rows)).collect();
    assert_eq!(c, [("blue".into(), 333), ("green".into(), 333), ("red".into(), 334)]);
}
