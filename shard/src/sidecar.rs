//! A column kept beside a lane: one value a position, so that a plan reads weights, lengths and difficulties without
//! reading the shards.

use arrow::{
    array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch},
    buffer::ScalarBuffer,
    compute::{cast, concat},
    datatypes::{DataType, Float64Type, Int64Type, UInt32Type},
};

use crate::{
    error::{Error, Result},
    storage::Storage,
    tables::{self, SidecarEntry},
};

/// The values of one lane's sidecar. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub enum Sidecar {
    /// By position: an integer column's values, truth values as 0 and 1, dates and times in their units since the
    /// epoch.
    Integers(ScalarBuffer<i64>),
    /// By position: a float column's values, or unsigned integers of which one is above 2^63 − 1.
    Floats(ScalarBuffer<f64>),
    /// The lane's positions, each once, in ascending order of the column, equal values by position.
    Order(ScalarBuffer<u32>),
}

impl Sidecar {
    /// Positions of the lane.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Order(positions) => positions.len(),
        }
    }

    /// Whether the lane has no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the sidecar of `entry`, of a lane of `rows` rows.
    ///
    /// # Errors
    /// Storage errors, [`Error::Corrupt`] when it is not what was written, or no sidecar of such a lane.
    pub(crate) async fn read(storage: &Storage, entry: &SidecarEntry, rows: u64) -> Result<Self> {
        let batch = tables::read_digested(storage, &entry.path, &entry.blake3).await?;
        let corrupt = |what: String| Error::corrupt(storage.url(&entry.path), what);
        if batch.num_rows() as u64 != rows {
            return Err(corrupt(format!("it has {} values, its lane {rows} rows", batch.num_rows())));
        }
        Self::of(&batch).map_err(corrupt)
    }

    fn of(batch: &RecordBatch) -> Result<Self, String> {
        let [column] = batch.columns() else { return Err(format!("it has {} columns, not one", batch.num_columns())) };
        if column.null_count() > 0 {
            return Err("it has nulls".into());
        }
        match column.data_type() {
            DataType::Int64 => Ok(Self::Integers(column.as_primitive::<Int64Type>().values().clone())),
            DataType::Float64 => Ok(Self::Floats(column.as_primitive::<Float64Type>().values().clone())),
            DataType::UInt32 => {
                let positions = column.as_primitive::<UInt32Type>().values().clone();
                // Whoever follows an order must not have to ask whether it leaves the lane or says a position twice.
                let mut seen = vec![false; positions.len()];
                for position in &positions {
                    match seen.get_mut(*position as usize) {
                        Some(seen) if !*seen => *seen = true,
                        _ => return Err(format!("position {position} is there twice, or outside the lane")),
                    }
                }
                Ok(Self::Order(positions))
            }
            other => Err(format!("its column is {other}, not int64, float64 or uint32")),
        }
    }
}

/// The values of a lane's column, of which `parts` are the pieces in order: integers as they are, truth values as 0 and 1,
/// dates and times in their units since the epoch, all as f64 where any is a float.
pub(crate) fn lane_values(parts: &[ArrayRef]) -> Result<ArrayRef> {
    let fail = |source| Error::Arrow { action: "make a sidecar".into(), source };
    let parts: Vec<ArrayRef> = parts.iter().map(fixed).collect::<Result<_>>()?;
    let target = match parts.iter().all(|p| p.data_type() == &DataType::Int64) {
        true => DataType::Int64,
        false => DataType::Float64,
    };
    let parts: Vec<ArrayRef> = parts.iter().map(|p| cast(p, &target)).collect::<Result<_, _>>().map_err(fail)?;
    concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>()).map_err(fail)
}

/// Numbers as i64 or f64; times in units since the epoch, truth values 0 and 1.
fn fixed(array: &ArrayRef) -> Result<ArrayRef> {
    let fail = |source| Error::Arrow { action: "make a sidecar".into(), source };
    match array.data_type() {
        t if t.is_floating() => cast(array, &DataType::Float64).map_err(fail),
        DataType::Date32 => cast(&cast(array, &DataType::Int32).map_err(fail)?, &DataType::Int64).map_err(fail),
        DataType::UInt64 => {
            let values = cast(array, &DataType::Int64).map_err(fail)?;
            if values.null_count() > array.null_count() {
                cast(array, &DataType::Float64).map_err(fail)
            } else {
                Ok(values)
            }
        }
        _ => cast(array, &DataType::Int64).map_err(fail),
    }
}

/// Positions in ascending order of their values, ties by position.
pub(crate) fn order_of(values: &ArrayRef) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    if let Some(values) = values.as_primitive_opt::<Int64Type>() {
        let values: &Int64Array = values;
        order.sort_by_key(|i| values.value(*i as usize));
    } else if let Some(values) = values.as_primitive_opt::<Float64Type>() {
        let values: &Float64Array = values;
        order.sort_by(|a, b| values.value(*a as usize).total_cmp(&values.value(*b as usize)));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Control, ErrorKind, ShardSet,
        assign::rounding::Shares,
        job::{ShardOptions, layout_anew, shard},
        parquet_reader::ParquetFile,
        parquet_writer::encode_file,
    };
    use arrow::{
        array::{ArrayRef, Float64Array, Int32Array, Int64Array, UInt32Array},
        datatypes::{Field, Schema},
    };
    use std::sync::Arc;

    const NAMES: [&str; 4] = ["difficulty", "n", "order_difficulty", "weight"];

    #[test]
    fn orders_are_ascending_and_stable() {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 2, 1]));
        assert_eq!(order_of(&values), [1, 3, 2, 0]);
        let values: ArrayRef = Arc::new(Float64Array::from(vec![0.5, -1.0, f64::INFINITY, 0.0]));
        assert_eq!(order_of(&values), [1, 3, 0, 2]);
    }

    async fn input(storage: &Storage, file: i64, rows: i64) {
        let schema = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, false),
            Field::new("tokens", DataType::Int32, false),
            Field::new("hard", DataType::Float64, false),
        ]));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(0..rows)),
            Arc::new(Int32Array::from_iter_values((0..rows).map(|i| (i * 37 % 101) as i32))),
            Arc::new(Float64Array::from_iter_values((0..rows).map(|i| (i * 17 % 23) as f64 / 4.0))),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let encoded = encode_file("x", &schema, &[batch]).unwrap();
        storage.put(&format!("part-{file}.parquet"), encoded.bytes).await.unwrap();
    }

    fn options() -> ShardOptions {
        ShardOptions {
            nodes: 2,
            lanes: Some(4),
            splits: Shares::parse("train=0.9,test=0.1").unwrap(),
            balance: Some("tokens".into()),
            difficulty: Some("hard".into()),
            sidecars: vec!["n".into()],
            shard_bytes: 2 << 10,
            ..ShardOptions::default()
        }
    }

    /// A column of a lane, read from its shards.
    async fn column(set: &ShardSet, split: &str, lane: u32, name: &str) -> Vec<f64> {
        let mut values = Vec::new();
        for entry in set.lane_files(split, lane) {
            let file = ParquetFile::open(set.storage(), &entry.path).await.unwrap();
            for group in 0..file.row_group_rows().len() {
                let bytes = file.fetch(set.storage(), group, Some(&[name])).await.unwrap();
                let batch = file.decode(group, &bytes, Some(&[name])).unwrap();
                let floats = cast(batch.column(0), &DataType::Float64).unwrap();
                values.extend_from_slice(floats.as_primitive::<Float64Type>().values());
            }
        }
        values
    }

    async fn check(set: &ShardSet) {
        for split in ["train", "test"] {
            assert_eq!(set.sidecar_names(split).await.unwrap(), NAMES);
            for lane in 0..4 {
                let [hard, n, tokens] = [
                    column(set, split, lane, "hard").await,
                    column(set, split, lane, "n").await,
                    column(set, split, lane, "tokens").await,
                ];
                let read = async |name| set.sidecar(split, lane, name).await.unwrap().unwrap();
                let integers = |values: &[f64]| Sidecar::Integers(values.iter().map(|v| *v as i64).collect());
                assert_eq!(read("difficulty").await, Sidecar::Floats(hard.clone().into()));
                assert_eq!(read("n").await, integers(&n));
                assert_eq!(read("weight").await, integers(&tokens));
                let mut order: Vec<u32> = (0..hard.len() as u32).collect();
                order.sort_by(|a, b| hard[*a as usize].total_cmp(&hard[*b as usize]));
                assert_eq!(read("order_difficulty").await, Sidecar::Order(order.into()));
            }
        }
    }

    #[tokio::test]
    async fn what_the_job_kept_is_read_back_for_every_version() {
        let (from, to) = (Storage::memory(), Storage::memory());
        input(&from, 0, 1_000).await;
        shard(&from, &to, &options(), &Control::default()).await.unwrap();
        let first = ShardSet::open(&to).await.unwrap();
        assert!(first.lane_files("train", 0).len() > 1, "a lane of several files");
        check(&first).await;
        assert_eq!(first.sidecar("train", 0, "other").await.unwrap(), None);
        for error in [
            first.sidecar("trian", 0, "n").await.unwrap_err(),
            first.sidecar("train", 4, "n").await.unwrap_err(),
            first.sidecar_names("trian").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        }
        // A version that adds rows has sidecars over all of a lane; so has one that only lays lanes out anew.
        input(&from, 1, 700).await;
        shard(&from, &to, &ShardOptions { append: true, ..options() }, &Control::default()).await.unwrap();
        let grown = ShardSet::open(&to).await.unwrap();
        assert_eq!((grown.manifest().version, grown.manifest().rows), (2, 1_700));
        check(&grown).await;
        layout_anew(&to, 3).await.unwrap();
        check(&ShardSet::open(&to).await.unwrap()).await;
    }

    #[tokio::test]
    async fn a_set_without_sidecars_names_none() {
        let (from, to) = (Storage::memory(), Storage::memory());
        input(&from, 0, 50).await;
        let options = ShardOptions { balance: None, difficulty: None, sidecars: Vec::new(), ..options() };
        shard(&from, &to, &options, &Control::default()).await.unwrap();
        let set = ShardSet::open(&to).await.unwrap();
        assert!(set.sidecar_names("train").await.unwrap().is_empty());
        assert_eq!(set.sidecar("train", 0, "weight").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_sidecar_that_is_not_what_was_written_is_refused() {
        let (from, to) = (Storage::memory(), Storage::memory());
        input(&from, 0, 400).await;
        shard(&from, &to, &options(), &Control::default()).await.unwrap();
        let set = ShardSet::open(&to).await.unwrap();
        let entries = tables::read_sidecars(&to, set.manifest()).await.unwrap();
        let entry = entries.iter().find(|e| (e.split.as_str(), e.lane, e.name.as_str()) == ("train", 1, "n")).unwrap();
        let whole = to.get(&entry.path).await.unwrap().to_vec();
        for at in (0..whole.len()).step_by(7) {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            to.put(&entry.path, bad).await.unwrap();
            let error = set.sidecar("train", 1, "n").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
            assert!(error.to_string().contains(&entry.path), "{error}");
        }
        to.delete(&entry.path).await.unwrap();
        assert_eq!(set.sidecar("train", 1, "n").await.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn orders_are_permutations_and_other_types_are_refused() {
        let of = |column: ArrayRef| Sidecar::of(&RecordBatch::try_from_iter([("c", column)]).unwrap());
        assert_eq!(of(Arc::new(UInt32Array::from(vec![2, 0, 1]))).unwrap().len(), 3);
        assert!(of(Arc::new(UInt32Array::from(vec![2, 0, 2]))).is_err());
        assert!(of(Arc::new(UInt32Array::from(vec![0, 3, 1]))).is_err());
        assert!(of(Arc::new(Int64Array::from(vec![Some(1), None]))).is_err());
        assert!(of(Arc::new(Int32Array::from(vec![1]))).is_err());
    }
}
