//! The laws of assignment over random data sets, from the rows that were written: class and size bounds, weights under
//! their bound, exactly once, and bytes that depend on nothing but rows, options and seed.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use gristmill_shard::{
    Storage,
    assign::rounding::Shares,
    job::{ShardOptions, Task, shard},
    verify::verify,
};
use proptest::prelude::*;

use crate::support::{contents, put, with_threads};

/// Strata of n rows by Zipf or flat, and weights with a Pareto tail, from a counter-based mix so that a failing case is
/// its few parameters.
async fn random(storage: &Storage, rows: u64, strata: u64, zipf: bool, seed: u64) {
    let draw = |i: u64, stream: u64| {
        let mut x = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_add(stream << 32);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let class = |i: u64| {
        let u = draw(i, 1);
        let c = if zipf { ((strata as f64 + 1.0).powf(u) - 1.0).floor() } else { u * strata as f64 };
        c as i64
    };
    let weight = |i: u64| (10.0 / (1.0 - draw(i, 2)).powf(1.0 / 1.3)) as i64;
    let class: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(class)));
    let weight: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(weight)));
    put(storage, "part.parquet", vec![("class", class), ("weight", weight)], 1 + (rows as usize) / 5).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn bounds_hold_and_the_bytes_are_the_same_for_any_threads_and_tasks(
        rows in prop_oneof![0u64..50, 500u64..6_000], strata in prop_oneof![1u64..20, 1u64..2_000], zipf in any::<bool>(),
        nodes in prop_oneof![1u32..9, 1u32..65], lanes_per_node in 1u32..3, weighted in any::<bool>(),
        shares in prop::sample::select(vec!["all=1", "train=0.8,validation=0.1,test=0.1"]), seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let from = Storage::memory();
            random(&from, rows, strata, zipf, seed).await;
            let options = ShardOptions {
                nodes,
                lanes: Some(nodes * lanes_per_node),
                stratify: vec!["class".into()],
                splits: Shares::parse(shares).unwrap(),
                balance: weighted.then(|| "weight".into()),
                shard_bytes: 16 << 10,
                seed,
                ..ShardOptions::default()
            };
            let mut want = None;
            for (threads, tasks) in [(1, 0), (2, 0), (2, 1), (1, 3), (2, 8)] {
                let to = Storage::memory();
                let mut outcome = None;
                for index in 0..u32::max(tasks, 1) {
                    let task = (tasks > 0).then_some(Task { index, count: tasks });
                    let options = ShardOptions { task, ..options.clone() };
                    outcome = Some(shard(&from, &to, &options, &with_threads(threads)).await.unwrap());
                }
                let all = contents(&to).await;
                if let Some(want) = &want {
                    prop_assert!(&all == want, "{threads} threads, {tasks} tasks");
                    continue;
                }
                want = Some(all);
                let report = verify(&to, &with_threads(2)).await.unwrap();
                prop_assert_eq!(report.problems, []);
                let balance = outcome.unwrap().manifest.balance.unwrap();
                for split in &balance.splits {
                    prop_assert!(split.nodes.guaranteed && split.nodes.exact && split.nodes.worst_deviation < 1.0);
                    prop_assert!(split.files.exact && split.lanes.exact);
                    if let Some(weights) = &split.weights {
                        prop_assert!(weights.spread <= weights.bound + 1e-9, "{:?}", weights);
                    }
                }
            }
            Ok(())
        })?;
    }
}
