//! Every way to be wrong has its kind, says where, and leaves nothing behind.

use std::os::unix::fs::PermissionsExt;

use gristmill_ingest::{IngestOptions, MaxRejects, OnError};
use gristmill_shard::{ErrorKind, Storage, schema::Role};

use crate::support::{Raw, objects, run};

async fn fails(options: &IngestOptions, kind: ErrorKind, wants: &[&str]) {
    let out = Storage::memory();
    let error = run(options, &out).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for want in wants {
        assert!(error.to_string().contains(want), "no {want:?} in: {error}");
    }
    assert!(objects(&out).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_not_what_they_should_be() {
    let utf16: Vec<u8> = "a,b\n1,2\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut marked = b"\xff\xfe".to_vec();
    marked.extend_from_slice(&utf16);
    for (name, bytes, kind, want) in [
        ("x.csv", &b""[..], ErrorKind::Data, "no records"),
        ("x.csv", b"\xef\xbb\xbf\n\n", ErrorKind::Data, "no records"),
        ("x.csv", b"a,b\n", ErrorKind::Data, "no row is left"),
        ("x.csv", &utf16, ErrorKind::Data, "UTF-16"),
        ("x.csv", &marked, ErrorKind::Data, "UTF-16"),
        ("x.csv", b"\x1f\x8b\x08\x00", ErrorKind::Data, "compressed"),
        ("x.csv", b"PAR1....", ErrorKind::Data, "Parquet"),
        ("x.csv", b"caf\xe9,b\n1,2\n", ErrorKind::Data, "not UTF-8"),
        ("x.csv", b"a,a\n1,2\n", ErrorKind::Usage, "two columns are called \"a\""),
        ("x.csv", b"a,\n1,2\n", ErrorKind::Usage, "no name"),
        ("x.csv", b"a,_row_id\n1,2\n", ErrorKind::Usage, "reserved"),
        ("x.csv", b"1,2.5\n3,4\n", ErrorKind::Usage, "not as a header"),
        ("x.csv", b"\"a,b\n1,2\n", ErrorKind::Data, "quotes"),
        ("x.parquet", b"nothing of the kind", ErrorKind::Corrupt, "x.parquet"),
        ("x.csv.gz", b"\x1f\x8b", ErrorKind::Usage, "compressed"),
        ("notes.md", b"hello", ErrorKind::Usage, "no data files"),
    ] {
        let raw = Raw::new(&[(name, bytes)]);
        fails(&raw.options(), kind, &[want]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_that_can_not_be_read() {
    let raw = Raw::new(&[("x.csv", b"a\n1\n")]);
    let missing = raw.path().join("absent.csv").to_str().unwrap().to_owned();
    fails(&IngestOptions::new(vec![missing]), ErrorKind::NotFound, &["absent.csv"]).await;
    fails(&IngestOptions::new(Vec::new()), ErrorKind::Usage, &["no source"]).await;
    std::fs::set_permissions(raw.path().join("x.csv"), std::fs::Permissions::from_mode(0o000)).unwrap();
    // Who may read everything (root) can't be refused.
    if std::fs::File::open(raw.path().join("x.csv")).is_err() {
        fails(&raw.options(), ErrorKind::Permission, &["x.csv"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_do_not_fit_together() {
    let raw = Raw::new(&[("1.csv", b"a,bus\n1,2\n"), ("2.csv", b"a,buss\n1,2\n")]);
    fails(&raw.options(), ErrorKind::Usage, &["2.csv", "\"bus\"", "did you mean \"buss\"", "1.csv"]).await;
    let raw = Raw::new(&[("1.csv", b"a,b\n1,2\n"), ("2.csv", b"a,b,c\n1,2,3\n")]);
    fails(&raw.options(), ErrorKind::Usage, &["2.csv", "\"c\"", "1.csv"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_do_not_exist() {
    let raw = Raw::new(&[("x.csv", b"origin,delay\nA,1\n")]);
    let roles = [("orign".to_owned(), Role::Label)].into();
    fails(&IngestOptions { roles, ..raw.options() }, ErrorKind::Usage, &["roles", "did you mean \"origin\""]).await;
    let schema = gristmill_ingest::schema_from_toml("[[columns]]\nname='dely'\ntype='int64'\n", "s").unwrap();
    fails(
        &IngestOptions { schema: Some(schema), ..raw.options() },
        ErrorKind::Usage,
        &["\"dely\"", "did you mean \"delay\""],
    )
    .await;
}

const DIRTY: &[u8] = b"a,b\n1,2\n3\n4,5\n6,7,8\n";

#[tokio::test(flavor = "multi_thread")]
async fn the_first_bad_row_stops_when_asked_to() {
    let raw = Raw::new(&[("x.csv", DIRTY)]);
    let options = IngestOptions { on_error: OnError::Fail, ..raw.options() };
    fails(&options, ErrorKind::Data, &["x.csv:3", "1 fields", "row: 3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_bad_rows_publish_nothing() {
    let raw = Raw::new(&[("x.csv", DIRTY)]);
    for (max_rejects, fine) in [
        (MaxRejects::Rows(1), false),
        (MaxRejects::Rows(2), true),
        (MaxRejects::Percent(49.0), false),
        (MaxRejects::Percent(50.0), true),
        (MaxRejects::default(), false),
    ] {
        let options = IngestOptions { max_rejects, ..raw.options() };
        if fine {
            let out = Storage::memory();
            assert_eq!(run(&options, &out).await.unwrap().report.counts.rejected, 2);
        } else {
            fails(&options, ErrorKind::Data, &["of 4 rows", "x.csv:3", "max_rejects"]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_may_not_become_input() {
    let raw = Raw::new(&[("x.csv", b"a\n1\n")]);
    let inside = raw.path().join("out");
    let out = Storage::open(inside.to_str().unwrap(), &gristmill_shard::StorageOptions::new()).unwrap();
    assert_eq!(run(&raw.options(), &out).await.unwrap_err().kind(), ErrorKind::Usage);
    assert!(!inside.exists());
}
