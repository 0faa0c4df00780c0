//! How many rows of CSV a second does `ingest` make into a clean data set (types inferred, a query run, statistics made,
//! Parquet written)?
//!
//! The floor is `records`: the `csv` crate splits the same bytes into fields on one thread, and does nothing with them.
#![allow(clippy::unwrap_used, reason = "a bench that can't run fails by panicking")]

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gristmill_benches::{ingest_options, write_csv};
use gristmill_ingest::ingest;
use gristmill_shard::{Control, Storage};

const ROWS: u64 = 200_000;

fn bench(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = write_csv(folder.path(), ROWS).unwrap();
    let options = ingest_options(&source);
    let mut group = c.benchmark_group("ingest_csv");
    group.throughput(Throughput::Elements(ROWS)).sample_size(10).measurement_time(Duration::from_secs(8));
    group.bench_function("ingest", |b| {
        b.to_async(&runtime).iter(|| async {
            let outcome = ingest(&options, &Storage::memory(), &Control::default()).await.unwrap();
            assert_eq!(outcome.manifest.rows, ROWS);
        });
    });
    group.bench_function("records", |b| {
        b.iter(|| {
            let mut reader = csv::Reader::from_path(&source).unwrap();
            let mut record = csv::ByteRecord::new();
            let mut rows = 0;
            while reader.read_byte_record(&mut record).unwrap() {
                rows += 1;
                black_box(&record);
            }
            assert_eq!(rows, ROWS);
        });
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
