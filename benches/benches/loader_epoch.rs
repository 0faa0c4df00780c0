//! How many rows a second does the loader deliver, shuffled and collated, over a whole epoch from disk?
//!
//! The floor is `decode`: the same row groups read and decoded to Arrow on one thread, in their order, and thrown away.
//! `steady` has all decoded rows in memory already: what is left is the order, the gathering and the collation.
#![allow(clippy::unwrap_used, reason = "a bench that can't run fails by panicking")]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gristmill_benches::shards;
use gristmill_loader::{BatchSpec, DType, DataLoader, LoaderOptions, PlanOptions};
use gristmill_shard::{ShardSet, Storage, parquet_reader::ParquetFile};

const ROWS: u64 = 1_000_000;
const GLOBAL_BATCH: u64 = 4096;

async fn loader(storage: &Storage) -> DataLoader {
    let set = ShardSet::open(storage).await.unwrap();
    let numbers = ["distance".to_owned()];
    let categories = ["origin", "destination", "hour"].map(str::to_owned);
    let spec = BatchSpec::tabular_of(&set, "train", &numbers, &categories, Some("late"), DType::F32).await.unwrap();
    let options = LoaderOptions::new(PlanOptions::new("train", GLOBAL_BATCH), spec);
    DataLoader::open(set, options, tokio::runtime::Handle::current()).await.unwrap()
}

async fn epoch(loader: &DataLoader, epoch: u64) -> u64 {
    let mut batches = loader.epoch(epoch).unwrap();
    let mut rows = 0;
    while let Some(batch) = batches.next().await.unwrap() {
        rows += batch.rows() as u64;
    }
    rows
}

async fn decode(storage: &Storage) -> u64 {
    let set = ShardSet::open(storage).await.unwrap();
    let columns = ["_row_id", "distance", "origin", "destination", "hour", "late"];
    let mut rows = 0;
    for entry in set.files().iter().filter(|f| f.split == "train") {
        let file = ParquetFile::open(storage, &entry.path).await.unwrap();
        for group in 0..entry.row_groups.len() {
            let bytes = file.fetch(storage, group, Some(&columns)).await.unwrap();
            rows += file.decode(group, &bytes, Some(&columns)).unwrap().num_rows() as u64;
        }
    }
    rows
}

fn bench(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let storage = runtime.block_on(shards(folder.path(), ROWS)).unwrap();
    let train = ROWS * 8 / 10;
    let mut group = c.benchmark_group("loader_epoch");
    group.throughput(Throughput::Elements(train)).sample_size(10).measurement_time(Duration::from_secs(8));
    group.bench_function("cold", |b| {
        b.to_async(&runtime).iter(|| async { assert_eq!(epoch(&loader(&storage).await, 0).await, train) });
    });
    let warm = runtime.block_on(loader(&storage));
    let mut next = 0;
    group.bench_function("steady", |b| {
        b.iter(|| {
            next += 1;
            assert_eq!(runtime.block_on(epoch(&warm, next)), train);
        });
    });
    group.bench_function("decode", |b| {
        b.to_async(&runtime).iter(|| async { assert_eq!(decode(&storage).await, train) });
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
