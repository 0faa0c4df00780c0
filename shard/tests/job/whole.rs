//! The job as a whole: what it publishes, that it depends on nothing it should not, and that `verify` sees every fault.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Int64Array, RecordBatch},
    datatypes::{DataType, Field, Schema},
};
use gristmill_shard::{
    Control, Error, ErrorKind, Manifest, ShardSet, Storage, StorageOptions,
    assign::rounding::Shares,
    job::{ShardOptions, shard},
    parquet_writer::encode_file,
    verify::verify,
};

use crate::support::{contents, input, options, spilled, with_threads};

#[tokio::test]
async fn the_set_is_balanced_whole_and_verified_from_its_bytes() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 5_000).await;
    let outcome = shard(&from, &to, &options(), &Control::default()).await.unwrap();
    assert!(!outcome.already_current);
    let set = ShardSet::open(&to).await.unwrap();
    assert_eq!(set.manifest().rows, 5_000);
    let totals: Vec<u64> = set.layout().splits.iter().map(|s| s.rows).collect();
    assert_eq!(totals, [4_000, 500, 500]);
    assert!(set.layout().splits[0].files_per_lane > 1, "small shards make several files a lane");
    let report = verify(&to, &Control::default()).await.unwrap();
    assert_eq!(report.problems, []);
    let balance = report.balance.unwrap();
    assert!(balance.holds());
    assert_eq!(balance.node_rows.iter().sum::<u64>(), 5_000);
    let stored = set.manifest().balance.clone().unwrap();
    assert_eq!(stored.node_rows, balance.node_rows);
    assert!(stored.rare_strata >= 1);
    let statistics = set.statistics("train").await.unwrap();
    assert_eq!(statistics["n"].rows, 4_000);
    assert_eq!(set.categories("train").await.unwrap()["late"].len(), 2);
    assert!(!to.list("").await.unwrap().iter().any(|l| l.path.contains("/work/")), "no work file is left");
}

#[tokio::test]
async fn the_bytes_do_not_depend_on_threads_or_memory_and_do_on_the_seed() {
    let from = Storage::memory();
    input(&from, 3_000).await;
    let mut sets = Vec::new();
    for (threads, spill, seed) in [(1, false, 0), (4, true, 0), (2, false, 1)] {
        let to = Storage::memory();
        let options = ShardOptions { seed, ..options() };
        let options = if spill { spilled(options) } else { options };
        shard(&from, &to, &options, &with_threads(threads)).await.unwrap();
        sets.push(contents(&to).await);
    }
    assert!(sets[0] == sets[1]);
    assert!(sets[0].keys().ne(sets[2].keys()));
}

#[tokio::test]
async fn how_the_input_is_cut_into_row_groups_changes_no_shard() {
    let (a, b) = (Storage::memory(), Storage::memory());
    let schema =
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("c", DataType::Int64, false)]));
    let rows = |from: i64, to: i64| {
        let n: ArrayRef = Arc::new(Int64Array::from_iter_values(from..to));
        let c: ArrayRef = Arc::new(Int64Array::from_iter_values((from..to).map(|i| i % 3)));
        RecordBatch::try_new(Arc::clone(&schema), vec![n, c]).unwrap()
    };
    let one = encode_file("x", &schema, &[rows(0, 70_000)]).unwrap();
    assert_eq!(one.row_groups.len(), 2);
    a.put("x.parquet", one.bytes).await.unwrap();
    // The same rows in one row group.
    let mut writer = parquet::arrow::ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), None).unwrap();
    writer.write(&rows(0, 70_000)).unwrap();
    b.put("x.parquet", writer.into_inner().unwrap()).await.unwrap();
    let options = ShardOptions { nodes: 2, stratify: vec!["c".into()], ..ShardOptions::default() };
    let mut data = Vec::new();
    for from in [a, b] {
        let to = Storage::memory();
        shard(&from, &to, &options, &Control::default()).await.unwrap();
        let mut all = contents(&to).await;
        all.retain(|path, _| path.starts_with("train/"));
        data.push(all);
    }
    assert!(data[0] == data[1]);
}

#[tokio::test]
async fn the_same_job_again_does_nothing_and_another_is_refused() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 1_000).await;
    shard(&from, &to, &options(), &Control::default()).await.unwrap();
    let before = contents(&to).await;
    // What a run leaves that was killed between publishing and cleaning up.
    to.put("train/lane-0000/part-00000-deadbeef.parquet", "of another job").await.unwrap();
    to.put("_gristmill/work/0123456789abcdef/run-000000.arrows", "a run").await.unwrap();
    assert!(shard(&from, &to, &options(), &Control::default()).await.unwrap().already_current);
    assert!(contents(&to).await == before);
    let other = ShardOptions { seed: 9, ..options() };
    let error = shard(&from, &to, &other, &Control::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(contents(&to).await == before);
}

#[tokio::test]
async fn what_was_deleted_is_written_again() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 1_000).await;
    shard(&from, &to, &options(), &Control::default()).await.unwrap();
    let before = contents(&to).await;
    for path in before.keys().filter(|p| p.ends_with(".parquet")).step_by(7) {
        to.delete(path).await.unwrap();
        assert!(!shard(&from, &to, &options(), &Control::default()).await.unwrap().already_current, "{path}");
        assert!(contents(&to).await == before, "{path}");
    }
}

#[tokio::test]
async fn two_processes_at_one_output_leave_one_whole_set() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| Storage::open(dir.path().join(name).to_str().unwrap(), &StorageOptions::new()).unwrap();
    let from = open("in");
    input(&from, 3_000).await;
    for (n, seeds) in [[0, 0], [1, 2]].into_iter().enumerate() {
        let to = open(&format!("out-{n}"));
        let [first, second] = seeds.map(|seed| ShardOptions { seed, ..options() });
        let control = Control::default();
        let both = futures::future::join(shard(&from, &to, &first, &control), shard(&from, &to, &second, &control));
        let (a, b) = both.await;
        let mut done = 0;
        for outcome in [a, b] {
            match outcome {
                Ok(_) => done += 1,
                Err(e) => assert_eq!(e.kind(), ErrorKind::Conflict, "{e}"),
            }
        }
        assert_eq!(done, if seeds[0] == seeds[1] { 2 } else { 1 });
        assert_eq!(verify(&to, &Control::default()).await.unwrap().problems, []);
    }
}

#[tokio::test]
async fn a_stopped_job_goes_on_to_the_same_bytes() {
    for options in [options(), spilled(options())] {
        stopped_everywhere(&options).await;
    }
}

async fn stopped_everywhere(options: &ShardOptions) {
    let (from, whole) = (Storage::memory(), Storage::memory());
    input(&from, 2_000).await;
    shard(&from, &whole, options, &with_threads(1)).await.unwrap();
    let want = contents(&whole).await;
    // Stop at every progress event in turn until one run is not stopped.
    for after in 0.. {
        let to = Storage::memory();
        let control = stopping_after(after);
        match shard(&from, &to, options, &control).await {
            Err(Error::Stopped) => {
                assert!(Manifest::latest(&to).await.unwrap().is_none(), "nothing is published by a stopped job");
                shard(&from, &to, options, &with_threads(2)).await.unwrap();
                assert!(contents(&to).await == want, "stopped after {after}");
            }
            Ok(_) => {
                assert!(after > 20);
                break;
            }
            Err(e) => panic!("{e}"),
        }
    }
}

struct StopAfter(std::sync::atomic::AtomicI64, gristmill_shard::StopFlag);

impl gristmill_shard::Progress for StopAfter {
    fn start(&self, _: &str, _: u64, _: gristmill_shard::control::Unit) {}
    fn advance(&self, _: u64) {
        if self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) <= 0 {
            self.1.set();
        }
    }
    fn finish(&self) {}
}

fn stopping_after(events: i64) -> Control {
    let stop = gristmill_shard::StopFlag::new();
    Control { progress: Arc::new(StopAfter(events.into(), stop.clone())), stop, threads: 1 }
}

#[tokio::test]
async fn verify_names_every_file_that_was_touched() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 600).await;
    let options = ShardOptions { lanes: Some(4), shard_bytes: 1 << 20, ..options() };
    shard(&from, &to, &options, &Control::default()).await.unwrap();
    let mut good = contents(&to).await;
    // The report is for people: what it says is in the manifest.
    good.retain(|path, _| *path != gristmill_shard::report::path());
    for (path, bytes) in &good {
        // A byte flipped: at the start, in the middle, at the end.
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            to.put(path, bad).await.unwrap();
            assert_named(&to, path).await;
        }
        to.delete(path).await.unwrap();
        assert_named(&to, path).await;
        to.put(path, bytes.clone()).await.unwrap();
    }
    // A stray copy of a shard.
    let (shard_path, bytes) = good.iter().find(|(p, _)| p.starts_with("train/")).unwrap();
    let copy = shard_path.replace("part-00000", "part-00009");
    to.put(&copy, bytes.clone()).await.unwrap();
    assert_named(&to, &copy).await;
    to.delete(&copy).await.unwrap();
    assert_eq!(verify(&to, &Control::default()).await.unwrap().problems, []);
}

async fn assert_named(storage: &Storage, path: &str) {
    match verify(storage, &Control::default()).await {
        Ok(report) => {
            let named = report.problems.iter().any(|p| p.path.contains(path) || p.what.contains(path));
            assert!(named, "{path} is not named in {:?}", report.problems);
        }
        Err(e) => {
            let manifest = path.contains("manifest-");
            assert!(manifest && (e.to_string().contains("manifest") || e.kind() == ErrorKind::NotFound), "{path}: {e}");
        }
    }
}

#[tokio::test]
async fn a_row_written_twice_is_found_even_when_every_digest_is_right() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 600).await;
    let options = ShardOptions { lanes: Some(4), shard_bytes: 1 << 20, splits: Shares::default(), ..options() };
    shard(&from, &to, &options, &Control::default()).await.unwrap();
    let mut manifest = Manifest::latest(&to).await.unwrap().unwrap();
    let mut files = gristmill_shard::tables::read_files(&to, &manifest).await.unwrap();
    // Write one shard anew with its second row in place of its first, and make the whole set consistent again.
    let parquet = gristmill_shard::parquet_reader::ParquetFile::open(&to, &files[0].path).await.unwrap();
    let bytes = parquet.fetch(&to, 0, None).await.unwrap();
    let rows = parquet.decode(0, &bytes, None).unwrap();
    let order = arrow::array::UInt32Array::from_iter_values((0..rows.num_rows() as u32).map(|i| i.max(1)));
    let doubled = arrow::compute::take_record_batch(&rows, &order).unwrap();
    let encoded = encode_file("x", &doubled.schema(), &[doubled]).unwrap();
    to.delete(&files[0].path).await.unwrap();
    let path = format!("train/lane-0000/part-00000-{}.parquet", encoded.digest8());
    files[0] = gristmill_shard::tables::FileEntry::new(path.clone(), "train", 0, 0, &encoded);
    to.put(&path, encoded.bytes).await.unwrap();
    let old = manifest.tables[gristmill_shard::tables::FILES].path.clone();
    to.delete(&old).await.unwrap();
    let table = gristmill_shard::tables::files_table(&files).unwrap();
    let reference = gristmill_shard::tables::write_table(&to, "files", &table).await.unwrap();
    manifest.tables.insert("files".into(), reference);
    to.put(&Manifest::path(1), manifest.to_bytes().unwrap()).await.unwrap();
    let report = verify(&to, &Control::default()).await.unwrap();
    assert!(report.problems.iter().any(|p| p.path == path && p.what.contains("second time")), "{:?}", report.problems);
    assert!(report.problems.iter().any(|p| p.what.contains("in no shard")), "{:?}", report.problems);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_with_a_reason() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 100).await;
    let cases: Vec<(ShardOptions, &str)> = vec![
        (ShardOptions { nodes: 0, ..options() }, "--nodes 0"),
        (ShardOptions { lanes: Some(7), ..options() }, "--lanes 7"),
        (ShardOptions { stratify: vec!["clas".into()], ..options() }, "did you mean \"class\""),
        (ShardOptions { stratify: vec!["class".into(), "class".into()], ..options() }, "twice"),
        (ShardOptions { shard_bytes: 1, ..options() }, "--shard-bytes"),
        (ShardOptions { memory_bytes: 1, ..options() }, "--memory"),
    ];
    for (options, text) in cases {
        let error = shard(&from, &to, &options, &Control::default()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(text), "{error}");
    }
    assert!(to.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn few_rows_many_nodes_and_no_rows_at_all() {
    for rows in [0, 1, 3] {
        let (from, to) = (Storage::memory(), Storage::memory());
        input(&from, rows).await;
        let options = ShardOptions { nodes: 16, lanes: Some(64), ..options() };
        shard(&from, &to, &options, &Control::default()).await.unwrap();
        let report = verify(&to, &Control::default()).await.unwrap();
        assert_eq!(report.problems, [], "{rows} rows");
        assert_eq!(ShardSet::open(&to).await.unwrap().manifest().rows, rows as u64);
    }
}

#[tokio::test]
async fn a_local_folder_is_left_clean() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| Storage::open(dir.path().join(name).to_str().unwrap(), &StorageOptions::new()).unwrap();
    let (from, to) = (open("in"), open("out"));
    input(&from, 1_000).await;
    // Debris of a killed writer and of another job that never published.
    to.put("train/lane-0000/part-00000-deadbeef.parquet", "old").await.unwrap();
    std::fs::write(dir.path().join("out/train/lane-0000/part-00000-0badf00d.parquet#1"), "half").unwrap();
    shard(&from, &to, &options(), &Control::default()).await.unwrap();
    assert_eq!(verify(&to, &Control::default()).await.unwrap().problems, []);
    assert!(!dir.path().join("out/_gristmill/work").exists());
    assert!(!dir.path().join("out/train/lane-0000/part-00000-0badf00d.parquet#1").exists());
}
