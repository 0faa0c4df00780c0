//! How many samples a second does one rank train on with one thread, when batches are there already (forward, backward
//! through the Reducer, scores, AdamW)?
//!
//! The floor is `model`: forward and backward of the same model over the same batches, and nothing else.
#![allow(clippy::unwrap_used, reason = "a bench that can't run fails by panicking")]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gristmill_benches::shards;
use gristmill_c10d::{Reducer, ReducerOptions, runtime as torch};
use gristmill_train::{
    Batch, Model, Pass, Ranks, ShardSources, Sources, TrainConfig, accumulate_gradients, metrics::ClassificationState,
    model::Tabular, optimizer::AdamW,
};
use tch::Kind;

const ROWS: u64 = 100_000;
const GLOBAL_BATCH: u64 = 4096;
const BATCHES: usize = 8;

fn config() -> TrainConfig {
    TrainConfig::from_value(serde_json::json!({
        "data": { "shards": "shards" },
        "label": "late",
        "features": { "numbers": ["distance"], "categories": ["origin", "destination", "hour"] },
        "model": { "hidden": [128, 64] },
        "global_batch": GLOBAL_BATCH,
        "checkpoint": { "url": "run" },
    }))
    .unwrap()
}

fn forward_backward(model: &Tabular, batch: &Batch) {
    let forward = model.forward(batch, pass(1)).unwrap();
    forward.losses.f_sum(Kind::Float).and_then(|loss| loss.f_backward()).unwrap();
    zero_gradients(model);
}

fn zero_gradients(model: &Tabular) {
    for parameter in model.parameters() {
        let mut gradient = parameter.tensor.grad();
        if gradient.defined() {
            let _ = gradient.f_zero_().unwrap();
        }
    }
}

fn pass(step: u64) -> Pass {
    Pass::Train { seed: 0, step }
}

fn bench(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // More threads than free CPUs would measure their waiting for each other.
    torch::set_num_threads(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let storage = runtime.block_on(shards(folder.path(), ROWS)).unwrap();
    let config = config();
    let sources = ShardSources::open(&config, storage, 1, runtime.handle().clone()).unwrap();
    let ranks = Ranks::join(None, Duration::from_secs(60)).unwrap();
    let mut source = sources.train(ranks.world()).unwrap();
    source.start(0).unwrap();
    let batches: Vec<Batch> = (0..BATCHES).map(|_| source.next().unwrap().unwrap()).collect();
    let model = Tabular::new(&config.model, sources.features(), config.seed).unwrap();

    let mut group = c.benchmark_group("train_step");
    let samples = GLOBAL_BATCH * BATCHES as u64;
    group.throughput(Throughput::Elements(samples)).sample_size(10).measurement_time(Duration::from_secs(8));
    group.bench_function("model", |b| b.iter(|| batches.iter().for_each(|batch| forward_backward(&model, batch))));

    let tensors: Vec<_> = model.parameters().iter().map(|p| p.tensor.shallow_clone()).collect();
    let mut reducer = Reducer::new(&tensors, ranks.group(), ReducerOptions::default()).unwrap();
    let mut optimizer = AdamW::new(&config.optimizer, model.parameters()).unwrap();
    let mut step = 0;
    group.bench_function("step", |b| {
        b.iter(|| {
            for batch in &batches {
                step += 1;
                let mut scores = ClassificationState::for_rows(GLOBAL_BATCH);
                accumulate_gradients(&model, &mut reducer, &ranks, batch, None, pass(step), &mut scores).unwrap();
                optimizer.step(model.parameters(), config.optimizer.lr).unwrap();
            }
        });
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
