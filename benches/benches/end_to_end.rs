//! How many raw rows a second get from a CSV file to shuffled batches: ingest, shard, one epoch of the train split, all
//! from and to disk?
//!
//! The floor is `copy`: the raw file read, and written to the same disk.
#![allow(clippy::unwrap_used, reason = "a bench that can't run fails by panicking")]

use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use gristmill_benches::{ingest_options, shard_options, write_csv};
use gristmill_ingest::ingest;
use gristmill_loader::{BatchSpec, DType, DataLoader, LoaderOptions, PlanOptions};
use gristmill_shard::{Control, ShardSet, Storage, StorageOptions, job::shard};
use tempfile::TempDir;

const ROWS: u64 = 200_000;

async fn pipeline(source: &str, folder: &TempDir) {
    let open = |name: &str| Storage::open(folder.path().join(name).to_str().unwrap(), &StorageOptions::new()).unwrap();
    let (clean, shards, control) = (open("clean"), open("shards"), Control::default());
    ingest(&ingest_options(source), &clean, &control).await.unwrap();
    shard(&clean, &shards, &shard_options().unwrap(), &control).await.unwrap();
    let set = ShardSet::open(&shards).await.unwrap();
    let numbers = ["distance".to_owned()];
    let categories = ["origin", "destination", "hour"].map(str::to_owned);
    let spec = BatchSpec::tabular_of(&set, "train", &numbers, &categories, Some("late"), DType::F32).await.unwrap();
    let options = LoaderOptions::new(PlanOptions::new("train", 4096), spec);
    let loader = DataLoader::open(set, options, tokio::runtime::Handle::current()).await.unwrap();
    let mut batches = loader.epoch(0).unwrap();
    let mut rows = 0;
    while let Some(batch) = batches.next().await.unwrap() {
        rows += batch.rows() as u64;
    }
    assert_eq!(rows, ROWS * 8 / 10);
}

fn bench(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = write_csv(folder.path(), ROWS).unwrap();
    let mut group = c.benchmark_group("end_to_end");
    group.throughput(Throughput::Elements(ROWS)).sample_size(10).measurement_time(Duration::from_secs(10));
    group.bench_function("pipeline", |b| {
        b.iter_batched(
            || tempfile::tempdir().unwrap(),
            |out| {
                runtime.block_on(pipeline(&source, &out));
                out
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("copy", |b| b.iter(|| std::fs::copy(&source, folder.path().join("copy.csv")).unwrap()));
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
