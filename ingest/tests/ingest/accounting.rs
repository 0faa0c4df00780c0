//! Rows in = accepted + rejected + filtered, and every refused row is found where it was spoilt.

use std::collections::BTreeMap;

use arrow::{array::AsArray, datatypes::Int64Type};
use gristmill_ingest::{IngestOptions, RejectReason, read_rejects, schema_from_toml};
use gristmill_shard::Storage;
use proptest::prelude::*;

use crate::support::{Raw, rows, run};

#[derive(Debug, Clone, Copy)]
enum Spoilt {
    Not,
    BadNumber,
    Null,
    TooFew,
    TooMany,
    NotUtf8,
    Nul,
}

fn line(id: usize, text: &str, spoilt: Spoilt) -> (Vec<u8>, Option<RejectReason>) {
    let quoted = format!("\"{}\"", text.replace('"', "\"\""));
    let text = quoted.as_bytes();
    let join = |parts: &[&[u8]]| parts.join(&b','.to_owned());
    let id = id.to_string();
    let id = id.as_bytes();
    match spoilt {
        Spoilt::Not => (join(&[id, text, b"0.5"]), None),
        Spoilt::BadNumber => (join(&[id, text, b"half"]), Some(RejectReason::BadValue)),
        Spoilt::Null => (join(&[b"", text, b"0.5"]), Some(RejectReason::Null)),
        Spoilt::TooFew => (join(&[id, text]), Some(RejectReason::Ragged)),
        Spoilt::TooMany => (join(&[id, text, b"0.5", b""]), Some(RejectReason::Ragged)),
        Spoilt::NotUtf8 => (join(&[id, b"\xc3(", b"0.5"]), Some(RejectReason::InvalidUtf8)),
        Spoilt::Nul => (join(&[id, b"a\0b", b"0.5"]), Some(RejectReason::NulByte)),
    }
}

fn spoilt() -> impl Strategy<Value = Spoilt> {
    prop_oneof![
        6 => Just(Spoilt::Not),
        1 => prop::sample::select(vec![Spoilt::BadNumber, Spoilt::Null, Spoilt::TooFew, Spoilt::TooMany, Spoilt::NotUtf8, Spoilt::Nul]),
    ]
}

fn table() -> impl Strategy<Value = Vec<(String, Spoilt)>> {
    prop::collection::vec(("[a-z,\"\n\r ]{0,12}", spoilt()), 1..40)
}

const SCHEMA: &str = "[[columns]]\nname = 'id'\ntype = 'int64'\nnullable = false\n[[columns]]\nname = 'text'\ntype = 'string'\n[[columns]]\nname = 'x'\ntype = 'float64'\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_row_is_somewhere(files in prop::collection::vec(table(), 1..4), crlf: bool, unit_bytes in 20_u64..400, keep_below in 0_usize..40) {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let raw = Raw::new(&[]);
        let end: &[u8] = if crlf { b"\r\n" } else { b"\n" };
        let mut spoilt_rows = BTreeMap::new();
        let (mut all, mut kept) = (0, Vec::new());
        for (f, table) in files.iter().enumerate() {
            let mut bytes = b"id,text,x".to_vec();
            bytes.extend_from_slice(end);
            for (row, (text, spoilt)) in table.iter().enumerate() {
                let (line, reason) = line(row, text, *spoilt);
                match reason {
                    Some(reason) => { spoilt_rows.insert((format!("f{f}.csv"), row as u64), (reason, line.clone())); }
                    None if row < keep_below => kept.push((f as i32, row as i64, text.clone())),
                    None => {}
                }
                all += 1;
                bytes.extend_from_slice(&line);
                bytes.extend_from_slice(end);
            }
            raw.write(&format!("f{f}.csv"), &bytes);
        }
        let options = IngestOptions {
            schema: Some(schema_from_toml(SCHEMA, "s").unwrap()),
            sql: Some(format!("SELECT * FROM input WHERE id < {keep_below}")),
            unit_bytes,
            ..raw.options()
        };
        let out = Storage::memory();
        let result = runtime.block_on(run(&options, &out));
        if kept.is_empty() {
            prop_assert_eq!(result.unwrap_err().kind(), gristmill_shard::ErrorKind::Data);
            prop_assert!(runtime.block_on(out.list("")).unwrap().is_empty());
            return Ok(());
        }
        let outcome = result.unwrap();
        let counts = outcome.report.counts;
        prop_assert_eq!(counts.rows_in, all);
        prop_assert_eq!(counts.rows_in, counts.accepted + counts.rejected + counts.filtered);
        prop_assert_eq!(counts.rejected, spoilt_rows.len() as u64);
        let rejects = runtime.block_on(read_rejects(&out, &outcome.manifest, usize::MAX)).unwrap();
        prop_assert_eq!(rejects.len(), spoilt_rows.len());
        for reject in &rejects {
            let (reason, raw) = &spoilt_rows[&(reject.file.clone(), reject.row)];
            prop_assert_eq!(reject.reason, *reason);
            if let Ok(raw) = std::str::from_utf8(raw) {
                prop_assert_eq!(&reject.raw, raw);
            }
        }
        let batch = runtime.block_on(rows(&out, &outcome));
        let file = batch.column_by_name("_source_file").unwrap().as_primitive::<arrow::datatypes::Int32Type>();
        let row = batch.column_by_name("_source_row").unwrap().as_primitive::<Int64Type>();
        let text = batch.column_by_name("text").unwrap().as_string::<i64>();
        let found: Vec<(i32, i64, String)> =
            (0..batch.num_rows()).map(|i| (file.value(i), row.value(i), text.value(i).to_owned())).collect();
        prop_assert_eq!(found, kept);
    }
}
