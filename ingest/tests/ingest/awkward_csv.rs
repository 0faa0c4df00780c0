//! CSV as it comes.

use gristmill_ingest::{CsvOptions, IngestOptions, IngestOutcome, RejectReason};
use gristmill_shard::Storage;

use crate::support::{Raw, rows, run, shown, types};

async fn read(bytes: &[u8]) -> (IngestOutcome, arrow::record_batch::RecordBatch) {
    let raw = Raw::new(&[("x.csv", bytes)]);
    let out = Storage::memory();
    let outcome = run(&raw.options(), &out).await.unwrap();
    let batch = rows(&out, &outcome).await;
    (outcome, batch)
}

fn some(values: &[&str]) -> Vec<Option<String>> {
    values.iter().map(|v| Some((*v).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn quotes_line_ends_and_marks() {
    for (bytes, a, b) in [
        (&b"a,b\n1,\"ha \"\"ha\"\" ha\"\n3,4\n"[..], ["1", "3"], ["ha \"ha\" ha", "4"]),
        (b"a,b\r\n1,\"Once upon\r\na time\"\r\n5,7\r\n", ["1", "5"], ["Once upon\r\na time", "7"]),
        (b"a,b\r1,x\r2,y", ["1", "2"], ["x", "y"]),
        (b"\xef\xbb\xbfa,b\n1,x\n2,y\n", ["1", "2"], ["x", "y"]),
        (b"\xef\xbb\xbf\"a\",\"b\"\n1,x\n2,y\n", ["1", "2"], ["x", "y"]),
        (b"a,b\n\n1,\"{\"\"k\"\": [1, 2]}\"\n\n2,\n", ["1", "2"], ["{\"k\": [1, 2]}", ""]),
        ("a,b\n1,\u{2764}\n2,\u{e9}\n".as_bytes(), ["1", "2"], ["\u{2764}", "\u{e9}"]),
        (b"a,b\n1,x \"y\" z\n2, \n", ["1", "2"], ["x \"y\" z", " "]),
    ] {
        let (outcome, batch) = read(bytes).await;
        assert_eq!(outcome.report.counts.rejected, 0);
        assert_eq!(shown(&batch, "a"), some(&a), "{}", String::from_utf8_lossy(bytes));
        let got: Vec<String> = shown(&batch, "b").into_iter().map(Option::unwrap_or_default).collect();
        assert_eq!(got, b, "{}", String::from_utf8_lossy(bytes));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_do_not_spoil_the_good_ones() {
    let (outcome, batch) = read(b"id,name\n1,ada\n2\n3,bob,x\n4,caf\xe9\n5,n\0l\n6,eve\n7,\"open").await;
    assert_eq!(shown(&batch, "id"), some(&["1", "6"]));
    assert_eq!(types(&outcome)[0].1, "int64");
    let reasons: Vec<(RejectReason, u64)> = outcome.report.rejects.by_reason.clone().into_iter().collect();
    assert_eq!(
        reasons,
        [
            (RejectReason::Ragged, 2),
            (RejectReason::InvalidUtf8, 1),
            (RejectReason::NulByte, 1),
            (RejectReason::UnclosedQuote, 1)
        ]
    );
    assert_eq!(outcome.report.rejects.examples[0].line, Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_delimiters_headers_and_nulls() {
    let raw = Raw::new(&[("x.tsv", b"a\tb\n1\tx,y\n")]);
    let out = Storage::memory();
    let outcome = run(&raw.options(), &out).await.unwrap();
    assert_eq!(shown(&rows(&out, &outcome).await, "b"), some(&["x,y"]));

    let raw = Raw::new(&[("x.csv", b"1;NA\n2;'a;b'\n")]);
    let csv = CsvOptions { delimiter: Some(';'), quote: '\'', has_header: false, null_values: vec!["NA".into()] };
    let out = Storage::memory();
    let outcome = run(&IngestOptions { csv, ..raw.options() }, &out).await.unwrap();
    let batch = rows(&out, &outcome).await;
    assert_eq!(shown(&batch, "column_1"), [None, Some("a;b".into())]);
    assert_eq!(types(&outcome)[0], ("column_0".into(), "int64".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_may_order_their_columns_differently() {
    let raw = Raw::new(&[("1.csv", b"a,b\n1,x\n"), ("2.csv", b"b,a\ny,2\n"), ("3.csv", b"a,b\n")]);
    let out = Storage::memory();
    let outcome = run(&raw.options(), &out).await.unwrap();
    let batch = rows(&out, &outcome).await;
    assert_eq!(shown(&batch, "a"), some(&["1", "2"]));
    assert_eq!(shown(&batch, "b"), some(&["x", "y"]));
    assert_eq!(shown(&batch, "_source_file"), some(&["0", "1"]));
    let rows_in: Vec<u64> = outcome.report.files.iter().map(|f| f.counts.rows_in).collect();
    assert_eq!(rows_in, [1, 1, 0]);
}
