//! Row-wise SQL over the rows that are good.

use gristmill_ingest::IngestOptions;
use gristmill_shard::{ErrorKind, Storage};

use crate::support::{Raw, objects, rows, run, shown, types};

const FLIGHTS: &[u8] = b"date,delay,origin\n2001-01-01 05:30:00,20,SFO\n2001-01-06 23:59:00,3,LAX\n2001-02-04 00:00:00,-4,SFO\n2001-03-05 12:00:00,16,JFK\n";

fn with(sql: &str) -> (Raw, IngestOptions) {
    let raw = Raw::new(&[("flights.csv", FLIGHTS)]);
    let options = IngestOptions { sql: Some(sql.to_owned()), ..raw.options() };
    (raw, options)
}

#[tokio::test(flavor = "multi_thread")]
async fn derived_columns_and_where() {
    let (_raw, options) = with(
        "SELECT *, delay > 15 AS late, EXTRACT(HOUR FROM date) AS hour, EXTRACT(DOW FROM date) AS weekday, \
         EXTRACT(MONTH FROM date) AS month FROM input WHERE origin <> 'LAX'",
    );
    let out = Storage::memory();
    let outcome = run(&options, &out).await.unwrap();
    let batch = rows(&out, &outcome).await;
    assert_eq!(shown(&batch, "late").into_iter().flatten().collect::<Vec<_>>(), ["true", "false", "true"]);
    assert_eq!(shown(&batch, "hour").into_iter().flatten().collect::<Vec<_>>(), ["5", "0", "12"]);
    assert_eq!(shown(&batch, "weekday").into_iter().flatten().collect::<Vec<_>>(), ["1", "0", "1"]);
    assert_eq!(shown(&batch, "month").into_iter().flatten().collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(shown(&batch, "_source_row").into_iter().flatten().collect::<Vec<_>>(), ["0", "2", "3"]);
    let counts = outcome.report.counts;
    assert_eq!((counts.rows_in, counts.accepted, counts.rejected, counts.filtered), (4, 3, 0, 1));
    assert!(outcome.manifest.schema.columns.iter().all(|c| !c.nullable), "{:?}", outcome.manifest.schema);
    let names: Vec<String> = types(&outcome).into_iter().map(|t| format!("{}:{}", t.0, t.1)).collect();
    assert_eq!(
        names,
        [
            "date:timestamp[us]",
            "delay:int64",
            "origin:large_utf8",
            "late:bool",
            "hour:int8",
            "weekday:int8",
            "month:int8"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_traced_whatever_is_selected() {
    for (sql, columns) in [
        ("SELECT delay FROM input", vec!["delay"]),
        ("SELECT upper(origin) AS o, 1 AS one FROM input", vec!["o", "one"]),
        ("SELECT * EXCLUDE (delay) FROM input", vec!["date", "origin"]),
        ("SELECT input.* FROM input", vec!["date", "delay", "origin"]),
        ("SELECT t.delay AS d FROM input AS t", vec!["d"]),
        ("SELECT 5 AS five FROM input", vec!["five"]),
    ] {
        let (_raw, options) = with(sql);
        let out = Storage::memory();
        let outcome = run(&options, &out).await.unwrap();
        let batch = rows(&out, &outcome).await;
        let names: Vec<String> = types(&outcome).into_iter().map(|t| t.0).collect();
        assert_eq!(names, columns, "{sql}");
        assert_eq!(
            shown(&batch, "_source_row").into_iter().flatten().collect::<Vec<_>>(),
            ["0", "1", "2", "3"],
            "{sql}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_polars_refuses_is_told_and_nothing_is_left() {
    for (sql, kind, want) in [
        ("SELECT delay, delay FROM input", ErrorKind::Usage, "duplicate output column \"delay\""),
        ("SELECT *, delay FROM input", ErrorKind::Usage, "duplicate output column \"delay\""),
        ("SELECT delay FROM input WHERE delay", ErrorKind::Usage, "WHERE is not a condition"),
        ("SELECT delay FROM input WHERE delay + 1", ErrorKind::Usage, "WHERE is not a condition"),
        ("SELECT delay AS _x FROM input", ErrorKind::Usage, "reserved"),
        ("SELECT date::TIME AS t FROM input", ErrorKind::Usage, "\"t\""),
        ("SELECT origin + 1 AS x FROM input", ErrorKind::Usage, "can't be run"),
        ("SELECT CAST(origin AS BIGINT) AS x FROM input", ErrorKind::Data, "TRY_CAST"),
        ("SELECT NULL AS x FROM input", ErrorKind::Usage, "column \"x\" has no type"),
        ("SELECT *, NULL AS x FROM input", ErrorKind::Usage, "write CAST(NULL AS …)"),
        ("SELECT delay FROM input WHERE delay > 1000", ErrorKind::Data, "no row is left"),
        ("SELECT late FROM input", ErrorKind::Usage, "no column \"late\""),
    ] {
        let (_raw, options) = with(sql);
        let out = Storage::memory();
        let error = run(&options, &out).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{sql}: {error}");
        assert!(error.to_string().contains(want), "{sql}: {error}");
        assert!(objects(&out).await.is_empty(), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_do_not_show_in_the_result() {
    let (_raw, options) = with("SELECT delay * 2 AS d, date FROM input WHERE delay > 0");
    let mut results = Vec::new();
    for unit_bytes in [1, 60, 1 << 20] {
        let out = Storage::memory();
        let outcome = run(&IngestOptions { unit_bytes, ..options.clone() }, &out).await.unwrap();
        results.push(rows(&out, &outcome).await);
    }
    assert_eq!(results[0], results[1]);
    assert_eq!(results[1], results[2]);
}
