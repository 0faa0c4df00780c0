//! Data sets and helpers.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{ArrayRef, BooleanArray, Int64Array, LargeStringArray, RecordBatch},
    datatypes::{DataType, Field, Schema},
};
use gristmill_shard::{
    Control, Storage,
    assign::rounding::Shares,
    job::{ShardOptions, Task},
    parquet_writer::encode_file,
};

/// Rows with a skewed class, a rare one, nulls, and text, in two files of two row groups.
pub async fn input(storage: &Storage, rows: i64) {
    let schema = Arc::new(Schema::new(vec![
        Field::new("n", DataType::Int64, false),
        Field::new("class", DataType::LargeUtf8, true),
        Field::new("late", DataType::Boolean, false),
    ]));
    for (file, range) in [(0, 0..rows / 3), (1, rows / 3..rows)] {
        let n: ArrayRef = Arc::new(Int64Array::from_iter_values(range.clone()));
        let class: ArrayRef = Arc::new(
            range
                .clone()
                .map(|i| {
                    (i % 11 != 0)
                        .then(|| format!("c{}", (i * i) % 7 * i64::from(i % 2 == 0) + if i == 17 { 100 } else { 0 }))
                })
                .collect::<LargeStringArray>(),
        );
        let late: ArrayRef = Arc::new(range.map(|i| Some(i % 5 == 0)).collect::<BooleanArray>());
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![n, class, late]).unwrap();
        let encoded = encode_file("x", &schema, &[batch]).unwrap();
        storage.put(&format!("part-{file}.parquet"), encoded.bytes).await.unwrap();
    }
}

pub fn options() -> ShardOptions {
    ShardOptions {
        nodes: 4,
        lanes: Some(8),
        stratify: vec!["class".into(), "late".into()],
        splits: Shares::parse("train=0.8,validation=0.1,test=0.1").unwrap(),
        shard_bytes: 4 << 10,
        ..ShardOptions::default()
    }
}

pub async fn contents(storage: &Storage) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for listed in storage.list("").await.unwrap() {
        all.insert(listed.path.clone(), storage.get(&listed.path).await.unwrap().to_vec());
    }
    all
}

pub fn with_threads(threads: usize) -> Control {
    Control { threads, ..Control::default() }
}

/// Puts `columns` as one Parquet file, in row groups of at most `rows_per_group` rows.
pub async fn put(storage: &Storage, path: &str, columns: Vec<(&str, ArrayRef)>, rows_per_group: usize) {
    let fields: Vec<Field> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns.into_iter().map(|c| c.1).collect()).unwrap();
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_max_row_group_row_count(Some(rows_per_group))
        .build();
    let mut writer = parquet::arrow::ArrowWriter::try_new(Vec::new(), schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    storage.put(path, writer.into_inner().unwrap()).await.unwrap();
}

/// The same job, as one task of one: it spills its rows instead of holding them.
pub fn spilled(options: ShardOptions) -> ShardOptions {
    ShardOptions { task: Some(Task { index: 0, count: 1 }), ..options }
}

/// Every row of a shard set: split, lane, and the columns asked for as text.
pub async fn rows(storage: &Storage, names: &[&str]) -> Vec<(String, u32, Vec<String>)> {
    let set = gristmill_shard::ShardSet::open(storage).await.unwrap();
    let mut all = Vec::new();
    for file in set.files() {
        let parquet = gristmill_shard::parquet_reader::ParquetFile::open(storage, &file.path).await.unwrap();
        for group in 0..file.row_groups.len() {
            let bytes = parquet.fetch(storage, group, Some(names)).await.unwrap();
            let batch = parquet.decode(group, &bytes, Some(names)).unwrap();
            let options = arrow::util::display::FormatOptions::default().with_null("null");
            let columns: Vec<_> = (batch.columns().iter())
                .map(|c| arrow::util::display::ArrayFormatter::try_new(c.as_ref(), &options).unwrap())
                .collect();
            for row in 0..batch.num_rows() {
                let values = columns.iter().map(|c| c.value(row).to_string()).collect();
                all.push((file.split.clone(), file.lane, values));
            }
        }
    }
    all
}
