//! What a plan costs: a sample at any index, a jump to any step, an epoch replayed, and what memory they take, at 10^6, 10^9
//! and 10^12 rows.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a bench")]

use std::{hint::black_box, sync::Arc, time::Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gristmill_loader::{
    Columns, LaneTable, Plan, PlanOptions, ReplayOptions, Shuffle, Source, World, replay, slice::SliceRule,
};

const ROWS: [u64; 3] = [1_000_000, 1_000_000_000, 1_000_000_000_000];
const GLOBAL_BATCH: u64 = 4096;
const BLOCK_ROWS: u64 = 65_536;

fn plan(rows: u64, shuffle: Shuffle) -> Plan {
    let table = Arc::new(LaneTable::simulated(rows, 64, 8, 0, BLOCK_ROWS).unwrap());
    let source = Source { table, manifest: "00".into(), columns: Columns::default() };
    Plan::over(vec![source], PlanOptions { shuffle, ..PlanOptions::new("train", GLOBAL_BATCH) }).unwrap()
}

const SHUFFLES: [(&str, Shuffle); 3] =
    [("none", Shuffle::None), ("shard-block", Shuffle::ShardBlock { window_blocks: 4 }), ("global", Shuffle::Global)];

/// A sample and the next, from the middle of an epoch on.
fn in_order(c: &mut Criterion) {
    let mut group = c.benchmark_group("sample/in_order");
    group.throughput(Throughput::Elements(GLOBAL_BATCH));
    for (name, shuffle) in SHUFFLES {
        for rows in ROWS {
            let plan = plan(rows, shuffle);
            let mut order = plan.epoch(1);
            let mut t = rows / 2;
            group.bench_with_input(BenchmarkId::new(name, rows), &rows, |b, _| {
                b.iter(|| {
                    for at in t..t + GLOBAL_BATCH {
                        black_box(order.sample(at % rows).unwrap());
                    }
                    t = (t + GLOBAL_BATCH) % rows;
                });
            });
        }
    }
    group.finish();
}

/// A rank's part of a step anywhere, with the position of each of its samples, from a plan that has done nothing yet.
fn seek(c: &mut Criterion) {
    let mut group = c.benchmark_group("seek/step");
    for (name, shuffle) in SHUFFLES {
        for rows in ROWS {
            let plan = plan(rows, shuffle);
            let rule = SliceRule::new(&plan, &World::new(3, 8, 1).unwrap());
            let mut step = 0x9E37_79B9_7F4A_7C15_u64;
            group.bench_with_input(BenchmarkId::new(name, rows), &rows, |b, _| {
                b.iter(|| {
                    step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let units = plan.batch_at(1, (step >> 20) % (rows / GLOBAL_BATCH) * GLOBAL_BATCH).unwrap();
                    let mut order = plan.epoch(1);
                    for run in rule.slice(&plan, 1, &units) {
                        for ordinal in run.ordinals.clone() {
                            let window = order.window(run.source, run.pass, run.lane, ordinal).unwrap();
                            black_box(window.position(ordinal));
                        }
                    }
                });
            });
        }
    }
    group.finish();
}

/// A whole epoch of 10^8 samples, replayed for 8 ranks, on all threads; once, since it takes seconds.
fn whole(_: &mut Criterion) {
    for (name, shuffle) in SHUFFLES {
        let plan = plan(100_000_000, shuffle);
        let before = Instant::now();
        let replay = replay(&plan, &ReplayOptions::new(0, 8, 8)).unwrap();
        assert_eq!((replay.missing, replay.repeated), (0, 0));
        println!("replay/1e8/{name}: {:.2} s", before.elapsed().as_secs_f64());
    }
    for rows in ROWS {
        let before = resident();
        let plan = plan(rows, Shuffle::ShardBlock { window_blocks: 4 });
        let mut order = plan.epoch(0);
        for lane in 0..64 {
            let _ = black_box(order.sample(rows / 2 + lane).unwrap());
        }
        println!("memory/{rows}: {} KiB for the plan and a window of each of 64 lanes", resident() - before);
    }
}

/// Resident memory of this process in KiB.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

criterion_group!(benches, whole, in_order, seek);
criterion_main!(benches);
