//! Sources that change under the work, other runs at the same output, and what a failed run leaves.

use std::{
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use arrow::{
    array::{ArrayRef, Int64Array},
    record_batch::RecordBatch,
};
use gristmill_ingest::{IngestOptions, MaxRejects, ingest};
use gristmill_shard::{Control, ErrorKind, Progress, Storage, StorageOptions, control::Unit};

use crate::support::{Raw, objects, run};

const DIRTY: &[u8] = b"a,b\n1,2\n3\n4,5\n6,7,8\n";

/// Appends to a file once, when a stage starts or has ended.
struct AppendAt {
    stage: &'static str,
    at_end: bool,
    path: Mutex<Option<PathBuf>>,
    now: Mutex<String>,
}

impl AppendAt {
    fn append(&self) {
        if let Some(path) = self.path.lock().unwrap().take() {
            std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"7,7\n").unwrap();
        }
    }
}

impl Progress for AppendAt {
    fn start(&self, stage: &str, _total: u64, _unit: Unit) {
        stage.clone_into(&mut self.now.lock().unwrap());
        if stage == self.stage && !self.at_end {
            self.append();
        }
    }

    fn advance(&self, _amount: u64) {}

    fn finish(&self) {
        if *self.now.lock().unwrap() == self.stage && self.at_end {
            self.append();
        }
    }
}

fn parquet() -> Vec<u8> {
    let columns = [("a", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changes_is_told_and_nothing_is_published() {
    for (name, bytes) in [("x.csv", b"a,b\n1,2\n3,4\n".to_vec()), ("x.parquet", parquet())] {
        for (stage, at_end) in [("read sources", true), ("ingest", false), ("ingest", true)] {
            let raw = Raw::new(&[(name, bytes.as_slice())]);
            let progress =
                AppendAt { stage, at_end, path: Mutex::new(Some(raw.path().join(name))), now: Mutex::default() };
            let control = Control { progress: Arc::new(progress), threads: 2, ..Control::default() };
            let out = Storage::memory();
            let error = Box::pin(ingest(&raw.options(), &out, &control)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data, "{name} {stage} {at_end}: {error}");
            let text = error.to_string();
            assert!(text.contains(&format!("{name}: it changed while it was being read")), "{text}");
            assert!(objects(&out).await.is_empty(), "{name} {stage} {at_end}");
        }
    }
}

/// Copies a data set that another run publishes into the output when the work starts.
struct PublishMeanwhile {
    from: PathBuf,
    to: PathBuf,
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl Progress for PublishMeanwhile {
    fn start(&self, stage: &str, _total: u64, _unit: Unit) {
        if stage == "ingest" {
            copy(&self.from, &self.to);
        }
    }

    fn advance(&self, _amount: u64) {}

    fn finish(&self) {}
}

fn open(path: &std::path::Path) -> Storage {
    Storage::open(path.to_str().unwrap(), &StorageOptions::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_keeps_what_another_published() {
    let raw = Raw::new(&[("x.csv", DIRTY)]);
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    run(&raw.options(), &open(&from)).await.unwrap();
    let want = objects(&open(&from)).await;
    assert!(want.keys().any(|k| k.starts_with("rejects/")));
    // The same rows with other options: the very files that the other run published.
    for strict in [
        IngestOptions { max_rejects: MaxRejects::Rows(1), ..raw.options() },
        IngestOptions { sql: Some("SELECT a FROM input WHERE a > 100".into()), ..raw.options() },
    ] {
        let progress = PublishMeanwhile { from: from.clone(), to: to.clone() };
        let control = Control { progress: Arc::new(progress), threads: 2, ..Control::default() };
        let out = open(&to);
        let error = Box::pin(ingest(&strict, &out, &control)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        assert!(objects(&out).await == want);
        std::fs::remove_dir_all(&to).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_leaves_no_folders() {
    let raw = Raw::new(&[("x.csv", DIRTY)]);
    let strict = IngestOptions { max_rejects: MaxRejects::Rows(1), ..raw.options() };
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent");
    assert_eq!(run(&strict, &open(&absent)).await.unwrap_err().kind(), ErrorKind::Data);
    assert!(!absent.exists());
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(run(&strict, &open(&empty)).await.unwrap_err().kind(), ErrorKind::Data);
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    // A folder that was there before is the user's.
    let used = dir.path().join("used");
    std::fs::create_dir_all(used.join("data")).unwrap();
    assert_eq!(run(&strict, &open(&used)).await.unwrap_err().kind(), ErrorKind::Data);
    assert!(used.join("data").exists());
}
