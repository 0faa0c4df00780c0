//! What the options promise, checked on the rows that were written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, LargeStringArray};
use gristmill_shard::{
    Control, Error, ErrorKind, Storage,
    assign::{
        resample::{Resample, Total},
        rounding::Shares,
    },
    job::{GroupScope, RarePolicy, ShardOptions, shard},
    manifest::Manifest,
    tables,
    verify::verify,
};

use crate::support::{contents, put, rows, spilled};

const ROWS: i64 = 4_000;

/// Users of very different sizes, a skewed class, a delay, words with a heavy tail, two flags and a text of labels.
async fn people(storage: &Storage) {
    let ids = || 0..ROWS;
    let user = |i: i64| if i % 9 < 3 { 0 } else { 1 + (i * 7919) % 211 };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(ids()))),
        ("user", Arc::new(Int64Array::from_iter_values(ids().map(user)))),
        ("class", Arc::new(LargeStringArray::from_iter_values(ids().map(|i| format!("c{}", ((i * i) % 97).isqrt()))))),
        ("delay", Arc::new(Float64Array::from_iter_values(ids().map(|i| ((i * 31) % 1_000) as f64 / 7.0 - 20.0)))),
        ("words", Arc::new(Int64Array::from_iter_values(ids().map(|i| 10 + 20_000 / (20 + (i * 37) % 1_009))))),
        ("war", Arc::new(BooleanArray::from_iter(ids().map(|i| Some(i % 5 == 0))))),
        ("drama", Arc::new(Int64Array::from_iter_values(ids().map(|i| i64::from(i % 3 == 0))))),
        (
            "genres",
            Arc::new(
                ids()
                    .map(|i| (i % 50 != 0).then(|| format!("g{}, g{}", i % 4, (i / 4) % 3 + 2)))
                    .collect::<LargeStringArray>(),
            ),
        ),
    ];
    put(storage, "part.parquet", columns, 700).await;
}

fn base() -> ShardOptions {
    ShardOptions {
        nodes: 4,
        lanes: Some(8),
        stratify: vec!["class".into()],
        splits: Shares::parse("train=0.8,test=0.2").unwrap(),
        ..ShardOptions::default()
    }
}

/// Shards, checks that a spilled run gives the same bytes and that everything verifies.
async fn sharded(options: ShardOptions) -> (Storage, Manifest) {
    let (from, to, other) = (Storage::memory(), Storage::memory(), Storage::memory());
    people(&from).await;
    let manifest = shard(&from, &to, &options, &Control::default()).await.unwrap().manifest;
    shard(&from, &other, &spilled(options), &Control::default()).await.unwrap();
    assert!(contents(&to).await == contents(&other).await, "spilled or not, the bytes are the same");
    let report = verify(&to, &Control::default()).await.unwrap();
    assert_eq!(report.problems, []);
    (to, manifest)
}

async fn refused(options: ShardOptions) -> Error {
    let (from, to) = (Storage::memory(), Storage::memory());
    people(&from).await;
    let error = shard(&from, &to, &options, &Control::default()).await.unwrap_err();
    assert!(to.list("").await.unwrap().iter().all(|l| !l.path.contains("manifest")), "{error}");
    error
}

fn count<K: Ord>(keys: impl Iterator<Item = K>) -> BTreeMap<K, u64> {
    let mut counts = BTreeMap::new();
    keys.for_each(|key| *counts.entry(key).or_insert(0) += 1);
    counts
}

#[tokio::test]
async fn quantile_bins_are_strata() {
    let bins = BTreeMap::from([("delay".to_owned(), 5)]);
    let options = ShardOptions { stratify: vec!["delay".into(), "war".into()], bins, ..base() };
    let (_, manifest) = sharded(options).await;
    assert_eq!(manifest.balance.unwrap().strata, 10);
    let error = refused(ShardOptions { stratify: vec!["delay".into()], ..base() }).await;
    assert!(error.to_string().contains("--bins delay=10"), "{error}");
}

#[tokio::test]
async fn weights_are_balanced_over_nodes() {
    let (to, manifest) = sharded(ShardOptions { balance: Some("words".into()), ..base() }).await;
    for split in &manifest.balance.unwrap().splits {
        let weights = split.weights.as_ref().unwrap();
        assert!(weights.spread <= weights.bound && weights.spread < 2e-3, "{weights:?}");
        let mut sums = [0_i64; 4];
        let layout = manifest.layout.as_ref().unwrap().split(&split.name).unwrap().1.clone();
        for (_, lane, values) in rows(&to, &["words"]).await.iter().filter(|r| r.0 == split.name) {
            sums[layout.node_of(*lane, 4) as usize] += values[0].parse::<i64>().unwrap();
        }
        assert_eq!(sums.map(|s| s as f64).to_vec(), weights.node_sums);
    }
}

#[tokio::test]
async fn a_stable_split_is_the_same_for_the_same_identity() {
    let (to, _) = sharded(ShardOptions { split_by: Some("user".into()), ..base() }).await;
    let mut split_of: BTreeMap<String, String> = BTreeMap::new();
    for (split, _, values) in rows(&to, &["user"]).await {
        assert_eq!(split_of.entry(values[0].clone()).or_insert(split.clone()), &split);
    }
    assert!(split_of.values().collect::<BTreeSet<_>>().len() == 2);
}

#[tokio::test]
async fn groups_stay_whole_and_the_largest_is_reported() {
    for scope in [GroupScope::Split, GroupScope::Node] {
        let options = ShardOptions { group: Some("user".into()), group_scope: scope, ..base() };
        let (to, manifest) = sharded(options.clone()).await;
        let layout = manifest.layout.as_ref().unwrap();
        let mut part_of = BTreeMap::new();
        for (split, lane, values) in rows(&to, &["user"]).await {
            let node = layout.split(&split).unwrap().1.node_of(lane, 4);
            let part = (split, if scope == GroupScope::Node { node } else { 0 });
            assert_eq!(part_of.entry(values[0].clone()).or_insert(part.clone()), &part);
        }
        let groups = manifest.balance.unwrap().groups.unwrap();
        assert!(groups.largest_group > ROWS as u64 / 4, "{groups:?}");
        assert!(groups.size_deviation >= groups.size_lower_bound && groups.class_deviation >= groups.class_lower_bound);
        if scope == GroupScope::Node {
            // A third of the rows belongs to one user; no node of eight can have its share.
            assert!(groups.size_lower_bound > 500.0, "{groups:?}");
            let error = refused(ShardOptions { max_imbalance: Some(0.05), ..options }).await;
            assert!(error.kind() == ErrorKind::Data && error.to_string().contains("--max-imbalance"), "{error}");
        }
    }
}

#[tokio::test]
async fn labels_are_spread_over_nodes_and_splits() {
    let columns = ShardOptions { stratify: vec![], labels: vec!["war".into(), "drama".into()], ..base() };
    let text = ShardOptions { labels: vec!["genres".into()], label_separator: Some(",".into()), ..columns.clone() };
    for options in [columns, text] {
        let (_, manifest) = sharded(options).await;
        for split in manifest.balance.unwrap().splits {
            let labels = split.labels.unwrap();
            assert!(labels.labels >= 2 && labels.worst_deviation <= 1.5, "{labels:?}");
        }
    }
    let odd = ShardOptions { stratify: vec![], labels: vec!["words".into()], ..base() };
    assert!(refused(odd).await.to_string().contains("labels are 0 and 1"));
}

#[tokio::test]
async fn resampling_hits_its_target_and_says_so() {
    for (to, total) in [("balanced", Total::Same), ("sqrt", Total::Over), ("balanced", Total::Under)] {
        let resample = Resample::parse(&format!("class={to}"), total).unwrap();
        let (storage, manifest) = sharded(ShardOptions { resample: Some(resample), ..base() }).await;
        let all = rows(&storage, &["class", "id", "_copy"]).await;
        let classes = count(all.iter().filter(|r| r.0 == "train").map(|r| r.2[0].clone()));
        if to == "balanced" {
            let (low, high) = (classes.values().min().unwrap(), classes.values().max().unwrap());
            assert!(high - low <= 1, "{classes:?}");
        }
        let balance = manifest.balance.unwrap();
        let (train, test) = (&balance.splits[0], &balance.splits[1]);
        assert_eq!(all.iter().filter(|r| r.0 == "train" && r.2[2] != "0").count() as u64, train.copies);
        assert_eq!((test.copies, test.left_out), (0, 0), "only the first split is resampled");
        assert_eq!(train.copies > 0, total != Total::Under);
        assert_eq!(train.left_out > 0, total != Total::Over);
        // Copies of a row are numbered, and no two are one row of one number.
        let distinct: BTreeSet<_> = all.iter().map(|r| (r.2[1].clone(), r.2[2].clone())).collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(manifest.rows, all.len() as u64);
    }
}

#[tokio::test]
async fn every_stratum_can_be_brought_to_every_node() {
    let (storage, manifest) = sharded(ShardOptions { at_least: 30, ..base() }).await;
    let layout = manifest.layout.as_ref().unwrap().splits[0].clone();
    let all = rows(&storage, &["class"]).await;
    let on_node = count(all.iter().filter(|r| r.0 == "train").map(|r| (r.2[0].clone(), layout.node_of(r.1, 4))));
    assert_eq!(on_node.len(), 10 * 4);
    assert!(on_node.values().all(|n| *n >= 30), "{on_node:?}");
    let entries = tables::read_strata(&storage, &manifest).await.unwrap();
    assert!(entries.iter().any(|e| e.rows > e.rows_in), "copies are declared");
}

#[tokio::test]
async fn rare_strata_follow_the_policy() {
    let rare = ShardOptions {
        stratify: vec!["class".into(), "delay".into()],
        bins: BTreeMap::from([("delay".into(), 200)]),
        ..base()
    };
    let (_, spread) = sharded(rare.clone()).await;
    assert!(spread.balance.as_ref().unwrap().rare_strata > 0);
    let (_, merged) = sharded(ShardOptions { rare: RarePolicy::Merge, rare_below: Some(6), ..rare.clone() }).await;
    let balance = merged.balance.unwrap();
    assert!(balance.merged_strata > 0 && balance.strata < spread.balance.unwrap().strata);
    let error = refused(ShardOptions { rare: RarePolicy::Error, rare_below: Some(6), ..rare }).await;
    assert!(error.kind() == ErrorKind::Data && error.to_string().contains("fewer than 6 rows"), "{error}");
}

#[tokio::test]
async fn sidecars_hold_the_values_of_their_positions() {
    let options = ShardOptions {
        balance: Some("words".into()),
        difficulty: Some("delay".into()),
        sidecars: vec!["id".into(), "war".into()],
        ..base()
    };
    let (storage, manifest) = sharded(options).await;
    let sidecars = tables::read_sidecars(&storage, &manifest).await.unwrap();
    let names: BTreeSet<&str> = sidecars.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["difficulty", "id", "order_difficulty", "war", "weight"]);
    assert_eq!(sidecars.len(), 5 * 8 * 2);
    // A sidecar of the right form with other values is found.
    let bad = sidecars.iter().find(|s| s.name == "order_difficulty").unwrap();
    let other =
        sidecars.iter().find(|s| s.name == "order_difficulty" && s.path != bad.path && s.rows == bad.rows).unwrap();
    let bytes = storage.get(&other.path).await.unwrap();
    storage.put(&bad.path, bytes).await.unwrap();
    let report = verify(&storage, &Control::default()).await.unwrap();
    assert!(report.problems.iter().any(|p| p.path == bad.path), "{:?}", report.problems);
}

#[tokio::test]
async fn what_cant_go_together_is_said() {
    let resample = || Some(Resample::parse("class=balanced", Total::Same).unwrap());
    for (options, says) in [
        (ShardOptions { bins: BTreeMap::from([("delay".into(), 5)]), ..base() }, "no stratify column"),
        (ShardOptions { group: Some("user".into()), split_by: Some("id".into()), ..base() }, "both decide the split"),
        (ShardOptions { max_imbalance: Some(0.1), ..base() }, "about groups"),
        (ShardOptions { labels: vec!["war".into()], balance: Some("words".into()), ..base() }, "give one of them"),
        (ShardOptions { balance: Some("class".into()), ..base() }, "weights are numbers"),
        (ShardOptions { difficulty: Some("class".into()), ..base() }, "sidecars hold numbers"),
        (ShardOptions { split_by: Some("delay".into()), ..base() }, "identifier"),
        (ShardOptions { stratify: vec![], resample: resample(), ..base() }, "--resample names"),
        (
            ShardOptions { resample: resample(), resample_splits: vec!["trian".into()], ..base() },
            "did you mean \"train\"",
        ),
        (ShardOptions { resample: resample(), rare: RarePolicy::Merge, rare_below: Some(400), ..base() }, "not known"),
        (ShardOptions { balance: Some("delay".into()), ..base() }, "in weight column \"delay\""),
        (ShardOptions { group: Some("usr".into()), ..base() }, "did you mean \"user\""),
        (ShardOptions { group: Some("user".into()), append: true, ..base() }, "--stable-split"),
        (
            ShardOptions { group: Some("user".into()), group_scope: GroupScope::Node, at_least: 2, ..base() },
            "--group-scope split",
        ),
        (ShardOptions { labels: vec!["war".into()], rare: RarePolicy::Merge, ..base() }, "lose the labels"),
        (ShardOptions { sidecars: vec!["weight".into()], ..base() }, "of that name"),
        (ShardOptions { sidecars: vec!["id".into(), "id".into()], ..base() }, "of that name"),
    ] {
        let error = refused(options).await;
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
}
