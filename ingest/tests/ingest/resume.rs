//! The same bytes whatever the threads and interruptions, once and not twice.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use gristmill_ingest::{IngestOptions, OnError, ingest};
use gristmill_shard::{Control, ErrorKind, Progress, StopFlag, Storage, StorageOptions, control::Unit};

use crate::support::{Raw, objects, run, threads};

fn raw() -> (Raw, IngestOptions) {
    let raw = Raw::new(&[]);
    for file in 0..3 {
        let mut csv = b"id,x,c\n".to_vec();
        for i in 0..2000 {
            let x = if i % 97 == 5 { "bad".to_owned() } else { format!("{}.25", i * file) };
            csv.extend_from_slice(format!("{i},{x},c{}\n", i % 7).as_bytes());
        }
        raw.write(&format!("f{file}.csv"), &csv);
    }
    let schema = "[[columns]]\nname='id'\ntype='int64'\n[[columns]]\nname='x'\ntype='float64'\n[[columns]]\nname='c'\ntype='string'\n";
    let options = IngestOptions {
        unit_bytes: 4000,
        schema: Some(gristmill_ingest::schema_from_toml(schema, "s").unwrap()),
        sql: Some("SELECT *, x * 0.1 AS y FROM input WHERE id % 11 <> 3".into()),
        ..raw.options()
    };
    (raw, options)
}

/// Sets the flag once so many rows are done.
struct StopAfter {
    stop: StopFlag,
    stage: AtomicU64,
    left: AtomicU64,
}

impl Progress for StopAfter {
    fn start(&self, stage: &str, _total: u64, _unit: Unit) {
        self.stage.store(u64::from(stage == "ingest"), Ordering::SeqCst);
    }

    fn advance(&self, amount: u64) {
        if self.stage.load(Ordering::SeqCst) == 1 {
            let left = self.left.load(Ordering::SeqCst).saturating_sub(amount);
            self.left.store(left, Ordering::SeqCst);
            if left == 0 {
                self.stop.set();
            }
        }
    }

    fn finish(&self) {}
}

fn stop_after(rows: u64) -> Control {
    let stop = StopFlag::new();
    let progress = StopAfter { stop: stop.clone(), stage: AtomicU64::new(0), left: AtomicU64::new(rows) };
    Control { progress: Arc::new(progress), stop, threads: 2 }
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_do_not_show_in_the_bytes() {
    let (_raw, options) = raw();
    let mut all = Vec::new();
    for n in [1, 2, 5] {
        let out = Storage::memory();
        Box::pin(ingest(&options, &out, &threads(n))).await.unwrap();
        all.push(objects(&out).await);
    }
    assert!(all[0].len() > 40);
    assert!(all.windows(2).all(|w| w[0] == w[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_run_goes_on_to_the_same_bytes() {
    let (_raw, options) = raw();
    let whole = Storage::memory();
    run(&options, &whole).await.unwrap();
    let want = objects(&whole).await;
    let dir = tempfile::tempdir().unwrap();
    let out = Storage::open(dir.path().join("set").to_str().unwrap(), &StorageOptions::new()).unwrap();
    let mut kept = 0;
    for rows in [1, 1500, 2500] {
        let error = Box::pin(ingest(&options, &out, &stop_after(rows))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stopped);
        assert!(gristmill_shard::Manifest::latest(&out).await.unwrap().is_none());
        let receipts = out.list("_gristmill/work").await.unwrap().len();
        assert!(receipts > kept, "{receipts} receipts after {rows} more rows, {kept} before");
        kept = receipts;
    }
    // A file that a killed writer left in part, one of another job, one that was damaged, and one of the user's.
    out.put("data/part-00000-00000000.parquet", "of another job").await.unwrap();
    out.put("data/mine.txt", "the user's").await.unwrap();
    std::fs::write(dir.path().join("set/data/part-00001-12345678.parquet#3"), "half").unwrap();
    let ours = out.list("data").await.unwrap().into_iter().find(|o| o.bytes > 100).unwrap();
    out.put(&ours.path, "damaged").await.unwrap();
    let outcome = run(&options, &out).await.unwrap();
    assert!(!outcome.already_current);
    out.delete("data/mine.txt").await.unwrap();
    let got = objects(&out).await;
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    assert!(got == want);
    assert!(!dir.path().join("set/data/part-00001-12345678.parquet#3").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_command_again_does_nothing_and_another_is_refused() {
    let (raw, options) = raw();
    let out = Storage::memory();
    let first = run(&options, &out).await.unwrap();
    let before = objects(&out).await;
    let second = run(&options, &out).await.unwrap();
    assert!(second.already_current);
    assert_eq!(second.manifest, first.manifest);
    assert_eq!(second.report.counts, first.report.counts);
    assert_eq!(second.report.files, first.report.files);
    assert_eq!(second.report.columns, first.report.columns);
    assert_eq!(second.report.rejects, first.report.rejects);
    assert!(objects(&out).await == before);
    let other = IngestOptions { sql: None, ..options.clone() };
    assert_eq!(run(&other, &out).await.unwrap_err().kind(), ErrorKind::Conflict);
    let other = IngestOptions { on_error: OnError::Fail, ..options.clone() };
    assert_eq!(run(&other, &out).await.unwrap_err().kind(), ErrorKind::Conflict);
    raw.write("f1.csv", b"id,x,c\n1,2,c\n");
    assert_eq!(run(&options, &out).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(objects(&out).await == before);
}
