//! Versions: what is added, and layouts for other machines.

use std::{collections::BTreeMap, sync::Arc};

use arrow::array::{ArrayRef, Int64Array, LargeStringArray};
use gristmill_shard::{
    Control, ErrorKind, Manifest, ShardSet, Storage,
    assign::rounding::Shares,
    job::{ShardOptions, layout_anew, shard},
    tables,
    verify::verify,
};

use crate::support::{contents, put, rows, spilled};

async fn add(storage: &Storage, name: &str, from: i64, count: i64) {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + count));
    let class: ArrayRef =
        Arc::new(LargeStringArray::from_iter_values((from..from + count).map(|i| format!("c{}", (i * i) % 5))));
    let words: ArrayRef = Arc::new(Int64Array::from_iter_values((from..from + count).map(|i| 1 + i % 97)));
    put(storage, name, vec![("id", ids), ("class", class), ("words", words)], 500).await;
}

fn options() -> ShardOptions {
    ShardOptions {
        nodes: 4,
        lanes: Some(8),
        stratify: vec!["class".into()],
        splits: Shares::parse("train=0.8,test=0.2").unwrap(),
        difficulty: Some("words".into()),
        shard_bytes: 8 << 10,
        ..ShardOptions::default()
    }
}

#[tokio::test]
async fn a_version_adds_what_is_new_and_changes_nothing() {
    for (weighted, stable) in [(false, false), (true, false), (false, true)] {
        let (from, to) = (Storage::memory(), Storage::memory());
        add(&from, "a.parquet", 0, 1_003).await;
        let first = ShardOptions {
            balance: weighted.then(|| "words".into()),
            split_by: stable.then(|| "id".into()),
            ..options()
        };
        shard(&from, &to, &first, &Control::default()).await.unwrap();
        let before = contents(&to).await;
        let split_of = |rows: Vec<(String, u32, Vec<String>)>| -> BTreeMap<String, String> {
            rows.into_iter().map(|(split, _, values)| (values[0].clone(), split)).collect()
        };
        let splits_before = split_of(rows(&to, &["id"]).await);

        add(&from, "b.parquet", 1_003, 777).await;
        // Named before the first file: its rows still come after.
        add(&from, "0.parquet", 1_780, 21).await;
        let error = shard(&from, &to, &first, &Control::default()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("--append"), "{error}");
        let append = ShardOptions { append: true, ..first.clone() };
        let other = ShardOptions { seed: 3, ..append.clone() };
        let error = shard(&from, &to, &other, &Control::default()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("seed was 0 and is 3"), "{error}");
        assert!(contents(&to).await == before, "a refused version leaves no trace");

        let spill = Storage::memory();
        for (path, bytes) in &before {
            spill.put(path, bytes.clone()).await.unwrap();
        }
        let outcome = shard(&from, &to, &append, &Control::default()).await.unwrap();
        assert!(!outcome.already_current);
        assert!(shard(&from, &to, &append, &Control::default()).await.unwrap().already_current);
        shard(&from, &spill, &spilled(append.clone()), &Control::default()).await.unwrap();
        let after = contents(&to).await;
        assert!(after == contents(&spill).await, "spilled or not, the bytes are the same");
        assert!(before.iter().all(|(path, bytes)| path.ends_with("report.html") || after.get(path) == Some(bytes)));

        let report = verify(&to, &Control::default()).await.unwrap();
        assert_eq!(report.problems, [], "weighted {weighted}, stable {stable}");
        let set = ShardSet::open(&to).await.unwrap();
        assert_eq!((set.manifest().version, set.manifest().rows), (2, 1_801));
        let split = &set.layout().splits[0];
        let lengths: Vec<u64> = (0..8).map(|lane| set.lane_files("train", lane).iter().map(|f| f.rows).sum()).collect();
        assert_eq!(lengths, (0..8).map(|lane| split.lane_rows(lane, 8)).collect::<Vec<_>>());
        assert_eq!(set.statistics("train").await.unwrap()["words"].rows, split.rows);
        assert_eq!(set.manifest().balance.as_ref().unwrap().versions, 2);
        let inputs: Vec<String> =
            tables::read_inputs(&to, set.manifest()).await.unwrap().into_iter().map(|i| i.path).collect();
        assert_eq!(inputs, ["a.parquet", "0.parquet", "b.parquet"]);
        // Rows of the first version are where they were.
        let splits_after = split_of(rows(&to, &["id"]).await);
        assert!(splits_before.iter().all(|(id, split)| splits_after.get(id) == Some(split)));
        assert_eq!(splits_after.len(), 1_801);
        // The first version can still be read.
        let old = Manifest::read(&to, 1).await.unwrap();
        assert_eq!(tables::read_files(&to, &old).await.unwrap().iter().map(|f| f.rows).sum::<u64>(), 1_003);
    }
}

#[tokio::test]
async fn a_version_of_a_changed_input_is_refused() {
    let (from, to) = (Storage::memory(), Storage::memory());
    add(&from, "a.parquet", 0, 300).await;
    add(&from, "b.parquet", 300, 300).await;
    shard(&from, &to, &options(), &Control::default()).await.unwrap();
    let append = ShardOptions { append: true, ..options() };
    add(&from, "b.parquet", 300, 301).await;
    let error = shard(&from, &to, &append, &Control::default()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Data && error.to_string().contains("b.parquet"), "{error}");
    from.delete("b.parquet").await.unwrap();
    let error = shard(&from, &to, &append, &Control::default()).await.unwrap_err();
    assert!(error.to_string().contains("no longer there"), "{error}");
}

#[tokio::test]
async fn other_machines_are_a_new_manifest_over_the_same_files() {
    let (from, to) = (Storage::memory(), Storage::memory());
    add(&from, "a.parquet", 0, 1_003).await;
    shard(&from, &to, &options(), &Control::default()).await.unwrap();
    let before = contents(&to).await;
    for (nodes, exact) in [(2, true), (8, true), (3, false), (1, true)] {
        let outcome = layout_anew(&to, nodes).await.unwrap();
        assert!(!outcome.already_current);
        assert!(layout_anew(&to, nodes).await.unwrap().already_current);
        let report = verify(&to, &Control::default()).await.unwrap();
        assert_eq!(report.problems, [], "{nodes} nodes");
        let balance = outcome.manifest.balance.unwrap();
        assert_eq!(balance.node_rows.len(), nodes as usize);
        assert_eq!(balance.node_rows.iter().sum::<u64>(), 1_003);
        assert_eq!(balance.splits[0].nodes.guaranteed, exact, "{nodes} nodes");
        assert_eq!(balance.splits[0].nodes.exact, exact, "{nodes} nodes");
    }
    let after = contents(&to).await;
    assert!(before.iter().all(|(path, bytes)| path.ends_with("report.html") || after.get(path) == Some(bytes)));
    let new: Vec<&String> = after.keys().filter(|path| !before.contains_key(*path)).collect();
    assert!(new.iter().all(|path| path.contains("manifest-")), "{new:?}");
    let error = layout_anew(&to, 9).await.unwrap_err();
    assert!(error.to_string().contains("8 lanes"), "{error}");
}
