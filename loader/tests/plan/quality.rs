//! What is measured of orders: how draws are spread, how well a shuffle mixes.

use std::collections::HashMap;

use gristmill_loader::{
    PlanOptions, Shuffle,
    mixture::{MixOptions, Stop, Weight},
    sampling::options::{Repeats, Sampling},
};

use crate::kinds::Asked;

fn counts(options: PlanOptions, epochs: u64) -> HashMap<(u32, u32, u64), u64> {
    let plan = Asked { sources: vec![(vec![100, 100, 100, 100], 2, 0, 16)], options }.plan().unwrap();
    let mut counts = HashMap::new();
    for epoch in 0..epochs {
        let mut order = plan.epoch(epoch);
        for t in 0..plan.samples(epoch) {
            let sample = order.sample(t).unwrap().unwrap();
            *counts.entry((sample.source, sample.lane, sample.position)).or_default() += 1;
        }
    }
    counts
}

#[test]
fn balanced_epochs_have_as_many_of_each_class() {
    let asked =
        Asked { sources: vec![(vec![100, 100, 100, 100], 2, 0, 16)], options: PlanOptions::new("simulated", 20) };
    let class = |lane, position| {
        let source = &asked.sources()[0];
        source.columns.get("class").unwrap().value(lane, position).unwrap().as_f64() as i64
    };
    let sampling = Sampling::Balanced { column: "class".into(), repeats: Repeats::Passes, samples: None, shares: None };
    let of_rows = counts(PlanOptions { sampling: Some(sampling), ..PlanOptions::new("simulated", 20) }, 3);
    let mut of_classes: HashMap<i64, u64> = HashMap::new();
    for ((_, lane, position), n) in &of_rows {
        *of_classes.entry(class(*lane, *position)).or_default() += n;
    }
    assert_eq!(of_classes.len(), 4);
    assert!(of_classes.values().all(|n| *n == 300), "{of_classes:?}");
}

#[test]
fn weighted_draws_are_in_proportion() {
    let asked =
        Asked { sources: vec![(vec![100, 100, 100, 100], 2, 0, 16)], options: PlanOptions::new("simulated", 20) };
    let source = &asked.sources()[0];
    let weight = |lane, position| source.columns.get("weight").unwrap().value(lane, position).unwrap().as_f64();
    let sampling = Sampling::Weighted { column: "weight".into(), replacement: true, samples: None };
    let epochs = 300;
    let of_rows = counts(PlanOptions { sampling: Some(sampling), ..PlanOptions::new("simulated", 20) }, epochs);
    let mut by_weight: HashMap<i64, (f64, f64)> = HashMap::new();
    let mut all = 0.0;
    for lane in 0..4 {
        for position in 0..100 {
            let drawn = of_rows.get(&(0, lane, position)).copied().unwrap_or(0) as f64;
            let w = weight(lane, position);
            let entry = by_weight.entry(w as i64).or_default();
            *entry = (entry.0 + drawn, entry.1 + w);
            all += w;
        }
    }
    let draws = 400.0 * epochs as f64;
    for (w, (drawn, sum)) in by_weight {
        let want = draws * sum / all;
        // Five deviations of so many independent draws.
        assert!((drawn - want).abs() <= 5.0 * want.sqrt() + 1e-9, "weight {w}: {drawn} of {want}");
    }
}

#[test]
fn a_mix_has_its_weights_at_every_prefix() {
    let weights = ["0.7", "0.2", "0.1"].map(|w| w.parse::<Weight>().unwrap()).to_vec();
    let options =
        PlanOptions { mix: Some(MixOptions::new(weights, Stop::AllExhausted)), ..PlanOptions::new("simulated", 20) };
    let lanes = || (vec![50_u64, 50], 2, 0, 16);
    let plan = Asked { sources: vec![lanes(), lanes(), lanes()], options }.plan().unwrap();
    let mut order = plan.epoch(1);
    let mut taken = [0.0; 3];
    for t in 0..plan.samples(1) {
        taken[order.sample(t).unwrap().unwrap().source as usize] += 1.0;
        for (n, w) in taken.iter().zip([0.7, 0.2, 0.1]) {
            assert!((n - w * (t + 1) as f64).abs() < 1.0, "{taken:?} at {t}");
        }
    }
}

#[test]
fn shuffles_mix_as_well_as_they_say() {
    // Rows in file order are rows in order of time: how far does a sample move, of what a true permutation moves it?
    let moved = |shuffle| {
        let options = PlanOptions { shuffle, ..PlanOptions::new("simulated", 20) };
        let plan = Asked { sources: vec![(vec![4000; 4], 2, 0, 100)], options }.plan().unwrap();
        let mut order = plan.epoch(0);
        let n = plan.samples(0);
        let distance = (0..n).map(|t| {
            let sample = order.sample(t).unwrap().unwrap();
            (sample.position * 4 + u64::from(sample.lane)).abs_diff(t) as f64
        });
        // Two independent uniform places are a third of the length apart.
        distance.sum::<f64>() / n as f64 / (n as f64 / 3.0)
    };
    assert!(moved(Shuffle::None) < 1e-3);
    assert!(moved(Shuffle::ShardBlock { window_blocks: 2 }) > 0.9);
    assert!(moved(Shuffle::Global) > 0.95);
}
