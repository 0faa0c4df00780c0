//! How well each kind of shuffling mixes a shard set, beside a true permutation of the same rows.
//!
//! The set needs two sidecars: `n`, the ordinal of a row in the order in which it came, and `label`, a class.
//! usage: `mixing_quality SHARDS [GLOBAL_BATCH]`
//!
//! - entropy: of the labels in a batch, over that of all rows, mean over batches (1: every batch has the mix of the whole);
//! - spread: chi-square of the labels of a batch against the mix of the whole, over its degrees of freedom (1: as of random
//!   draws; 0: the same mix in every batch);
//! - adjacent: pairs of consecutive samples that came one after the other, per million (a permutation has 2 in all);
//! - moved: mean distance between the places of a sample in the order and in the file, over that of a permutation, n/3;
//! - correlation: of the two places.
#![allow(clippy::print_stdout, reason = "an example")]

use std::collections::BTreeMap;

use gristmill_loader::{Column, Plan, PlanOptions, Sample, Shuffle, Source};
use gristmill_shard::{
    ShardSet, Storage, StorageOptions,
    keys::{Domain, Key},
    permutation::Permutation,
};

struct Quality {
    entropy: f64,
    spread: f64,
    adjacent: f64,
    moved: f64,
    correlation: f64,
}

fn entropy(counts: impl IntoIterator<Item = u64>) -> f64 {
    let counts: Vec<f64> = counts.into_iter().filter(|n| *n > 0).map(|n| n as f64).collect();
    let all: f64 = counts.iter().sum();
    counts.iter().map(|n| -n / all * (n / all).log2()).sum()
}

fn quality(rows: &[(i64, i64)], batch: usize) -> Quality {
    let n = rows.len() as f64;
    let mut whole: BTreeMap<i64, u64> = BTreeMap::new();
    for (_, label) in rows {
        *whole.entry(*label).or_default() += 1;
    }
    let (mut entropies, mut spreads, mut batches) = (0.0, 0.0, 0.0);
    for part in rows.chunks_exact(batch) {
        let mut counts: BTreeMap<i64, u64> = whole.keys().map(|label| (*label, 0)).collect();
        for (_, label) in part {
            *counts.entry(*label).or_default() += 1;
        }
        entropies += entropy(counts.values().copied());
        let chi: f64 = counts
            .iter()
            .map(|(label, count)| {
                let want = batch as f64 * whole.get(label).copied().unwrap_or(0) as f64 / n;
                (*count as f64 - want).powi(2) / want
            })
            .sum();
        spreads += chi / (whole.len().max(2) - 1) as f64;
        batches += 1.0;
    }
    let adjacent = rows.windows(2).filter(|two| two[0].0.abs_diff(two[1].0) == 1).count() as f64;
    let middle = (n - 1.0) / 2.0;
    let places = || rows.iter().enumerate().map(|(t, (from, _))| (t as f64, *from as f64));
    let moved: f64 = places().map(|(t, from)| (t - from).abs()).sum();
    let covariance: f64 = places().map(|(t, from)| (t - middle) * (from - middle)).sum();
    let variance: f64 = places().map(|(t, _)| (t - middle).powi(2)).sum();
    Quality {
        entropy: entropies / batches / entropy(whole.into_values()),
        spread: spreads / batches,
        adjacent: adjacent / n * 1e6,
        moved: moved / n / (n / 3.0),
        correlation: covariance / variance,
    }
}

fn print(name: &str, quality: &Quality) {
    let Quality { entropy, spread, adjacent, moved, correlation } = quality;
    println!("{name:<16} {entropy:>8.4} {spread:>10.3} {adjacent:>10.1} {moved:>8.4} {correlation:>12.4}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: mixing_quality SHARDS [GLOBAL_BATCH]")?;
    let batch: usize = arguments.next().map_or(Ok(256), |n| n.parse())?;
    let shards = ShardSet::open(&Storage::open(&url, &StorageOptions::new())?).await?;
    println!("{url}, batches of {batch}");
    println!(
        "{:<16} {:>8} {:>10} {:>10} {:>8} {:>12}",
        "shuffle", "entropy", "spread", "adjacent", "moved", "correlation"
    );
    let blocks = |window_blocks| Shuffle::ShardBlock { window_blocks };
    let kinds = [
        ("none", Shuffle::None),
        ("shard-block 1", blocks(1)),
        ("shard-block 2", blocks(2)),
        ("shard-block 4", blocks(4)),
        ("shard-block 8", blocks(8)),
        ("global", Shuffle::Global),
    ];
    let mut in_file_order = Vec::new();
    for (name, shuffle) in kinds {
        let options = PlanOptions { shuffle, ..PlanOptions::new("train", batch as u64) };
        let source = Source::read(&shards, "train", &options, &["n", "label"]).await?;
        let (from, label) = (source.columns.get("n")?.clone(), source.columns.get("label")?.clone());
        let plan = Plan::over(vec![source], options)?;
        let value =
            |column: &Column, at: &Sample| column.value(at.lane, at.position).map_or(0, |value| value.as_f64() as i64);
        let mut order = plan.epoch(0);
        let mut rows = Vec::new();
        while let Some(sample) = order.sample(rows.len() as u64)? {
            rows.push((value(&from, &sample), value(&label, &sample)));
        }
        print(name, &quality(&rows, batch));
        in_file_order = rows;
    }
    in_file_order.sort_unstable();
    let permutation = Permutation::new(Key::derive(Domain::Order, 1, &[]), in_file_order.len() as u64);
    let permuted: Vec<(i64, i64)> =
        (0..in_file_order.len() as u64).map(|t| in_file_order[permutation.apply(t) as usize]).collect();
    print("a permutation", &quality(&permuted, batch));
    print("in file order", &quality(&in_file_order, batch));
    Ok(())
}
