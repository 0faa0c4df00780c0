//! Awkward and broken inputs: each is handled by a documented policy or refused with an error that says what to do.

use std::{path::PathBuf, sync::Arc};

use arrow::{
    array::{ArrayRef, Int64Array, LargeStringArray, ListArray, StructArray},
    datatypes::{DataType, Field, Int64Type},
};
use gristmill_shard::{
    Control, ErrorKind, Progress, Storage, StorageOptions,
    control::Unit,
    job::{ShardOptions, shard},
    verify::verify,
};

use crate::support::{put, spilled};

fn by(column: &str) -> ShardOptions {
    ShardOptions { nodes: 4, stratify: vec![column.into()], ..ShardOptions::default() }
}

async fn both(from: &Storage, options: &ShardOptions) {
    for options in [options.clone(), spilled(options.clone())] {
        let to = Storage::memory();
        shard(from, &to, &options, &Control::default()).await.unwrap();
        assert_eq!(verify(&to, &Control::default()).await.unwrap().problems, []);
    }
}

#[tokio::test]
async fn singletons_all_null_and_more_nodes_than_rows() {
    let from = Storage::memory();
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..50));
    let nothing: ArrayRef = Arc::new(Int64Array::from(vec![None; 50]));
    put(&from, "a.parquet", vec![("id", ids), ("nothing", nothing)], 20).await;
    both(&from, &by("id")).await;
    both(&from, &by("nothing")).await;
    both(&from, &ShardOptions { nodes: 64, ..by("id") }).await;
    let bins = [("nothing".to_owned(), 4)].into();
    both(&from, &ShardOptions { bins, ..by("nothing") }).await;
}

#[tokio::test]
async fn nested_types_and_files_that_differ_are_named() {
    let id = || Arc::new(Int64Array::from_iter_values(0..3)) as ArrayRef;
    let list: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)]), None, Some(vec![])]));
    let field = Arc::new(Field::new("x", DataType::Int64, true));
    let nested: ArrayRef = Arc::new(StructArray::from(vec![(field, id())]));
    for (name, column) in [("list", list), ("nested", nested)] {
        let from = Storage::memory();
        put(&from, "a.parquet", vec![("id", id()), (name, column)], 10).await;
        let error = shard(&from, &Storage::memory(), &by("id"), &Control::default()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(&format!("\"{name}\"")), "{error}");
    }
    let from = Storage::memory();
    put(&from, "a.parquet", vec![("id", id())], 10).await;
    put(&from, "b.parquet", vec![("id", Arc::new(LargeStringArray::from(vec!["x"])))], 10).await;
    let error = shard(&from, &Storage::memory(), &by("id"), &Control::default()).await.unwrap_err();
    assert!(error.to_string().contains("b.parquet") && error.to_string().contains("\"id\""), "{error}");
    let twice = Storage::memory();
    put(&twice, "a.parquet", vec![("id", id()), ("id", id())], 10).await;
    let error = shard(&twice, &Storage::memory(), &by("id"), &Control::default()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("two columns are called"), "{error}");
}

/// Replaces a file when a stage begins.
struct Replace {
    stage: &'static str,
    file: PathBuf,
    with: Vec<u8>,
}

impl Progress for Replace {
    fn start(&self, stage: &str, _: u64, _: Unit) {
        if stage == self.stage {
            std::fs::write(&self.file, &self.with).unwrap();
        }
    }
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}

#[tokio::test]
async fn a_file_that_changes_meanwhile_is_said_to_have_changed() {
    let file = |add: i64| async move {
        let storage = Storage::memory();
        let class: ArrayRef = Arc::new(Int64Array::from_iter_values((0..3_000).map(|i| (i + add) % 7 + add % 2)));
        let other: ArrayRef = Arc::new(Int64Array::from_iter_values((0..3_000).map(|i| i * add)));
        put(&storage, "a.parquet", vec![("class", class), ("other", other)], 500).await;
        storage.get("a.parquet").await.unwrap().to_vec()
    };
    // Other classes, and the same classes with other values beside them.
    for (stage, add) in [("assign rows", 3), ("assign rows", 14), ("write shards", 14), ("read rows", 3)] {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| Storage::open(dir.path().join(name).to_str().unwrap(), &StorageOptions::new()).unwrap();
        let (from, to) = (open("in"), open("out"));
        from.put("a.parquet", file(7).await).await.unwrap();
        let replace = Replace { stage, file: dir.path().join("in/a.parquet"), with: file(add).await };
        let control = Control { progress: Arc::new(replace), ..Control::default() };
        let options = if stage == "read rows" { by("class") } else { spilled(by("class")) };
        let error = shard(&from, &to, &options, &control).await.unwrap_err();
        let says = error.to_string();
        let kind = matches!(error.kind(), ErrorKind::Data | ErrorKind::Corrupt);
        assert!(kind && says.contains("a.parquet"), "{stage}: {says}");
        assert!(gristmill_shard::Manifest::latest(&to).await.unwrap().is_none(), "{stage}");
    }
}
