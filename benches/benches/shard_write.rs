//! How many rows a second does `shard` count, assign, shuffle and write (stratified, three splits, two machines)?
//!
//! The floor is `encode`: the same rows, already decoded, written as Parquet once, in their order.
#![allow(clippy::unwrap_used, reason = "a bench that can't run fails by panicking")]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gristmill_benches::{clean, shard_options};
use gristmill_shard::{Control, Storage, job::shard, parquet_reader::ParquetFile, parquet_writer::encode_file};

const ROWS: u64 = 500_000;

fn bench(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let input = runtime.block_on(clean(ROWS)).unwrap();
    let options = shard_options().unwrap();
    let batches = runtime.block_on(async {
        let mut batches = Vec::new();
        for listed in input.list("data").await.unwrap() {
            let file = ParquetFile::open(&input, &listed.path).await.unwrap();
            for group in 0..file.row_group_rows().len() {
                let bytes = file.fetch(&input, group, None).await.unwrap();
                batches.push(file.decode(group, &bytes, None).unwrap());
            }
        }
        batches
    });
    assert_eq!(batches.iter().map(|b| b.num_rows() as u64).sum::<u64>(), ROWS);
    let mut group = c.benchmark_group("shard_write");
    group.throughput(Throughput::Elements(ROWS)).sample_size(10).measurement_time(Duration::from_secs(10));
    group.bench_function("shard", |b| {
        b.to_async(&runtime).iter(|| async {
            let outcome = shard(&input, &Storage::memory(), &options, &Control::default()).await.unwrap();
            assert_eq!(outcome.manifest.rows, ROWS);
        });
    });
    group.bench_function("encode", |b| {
        b.iter(|| assert_eq!(encode_file("floor", &batches[0].schema(), &batches).unwrap().rows, ROWS));
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
