//! What a plan says must be delivered, as row ids.

use arrow::{
    array::AsArray,
    datatypes::{Int32Type, Int64Type},
};
use gristmill_loader::{Plan, World, slice::SliceRule};
use gristmill_shard::{Result, ShardSet, parquet_reader::ParquetFile};

const ROW_ID: &str = "_row_id";
const COPY: &str = "_copy";

/// The row ids of a split by lane and position, read from the shards.
#[derive(Debug)]
pub struct RowIds(Vec<Vec<i64>>);

impl RowIds {
    /// Reads them with the Parquet reader alone, past the loader.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn read(shards: &ShardSet, split: &str) -> Result<Self> {
        let mut lanes = Vec::new();
        for lane in 0..shards.layout().lanes {
            let mut ids = Vec::new();
            for entry in shards.lane_files(split, lane) {
                let file = ParquetFile::open(shards.storage(), &entry.path).await?;
                for group in 0..file.row_group_rows().len() {
                    let bytes = file.fetch(shards.storage(), group, Some(&[ROW_ID])).await?;
                    let batch = file.decode(group, &bytes, Some(&[ROW_ID]))?;
                    ids.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
                }
            }
            lanes.push(ids);
        }
        Ok(Self(lanes))
    }

    /// Of every row of the split, in order of id.
    #[must_use]
    pub fn sorted(&self) -> Vec<i64> {
        let mut ids = self.0.concat();
        ids.sort_unstable();
        ids
    }

    /// The row ids of each step of `epoch`, over all ranks, in order of the epoch index. No rule of who takes what
    /// enters.
    ///
    /// # Panics
    /// When the plan names a row that the split does not have.
    #[must_use]
    pub fn steps(&self, plan: &Plan, epoch: u64) -> Vec<Vec<i64>> {
        let mut order = plan.epoch(epoch);
        let mut index = 0;
        (0..plan.steps(epoch).expect("a plan of fixed batches"))
            .map(|_| {
                let batch = plan.batch_at(epoch, index).expect("a plan of fixed batches");
                index = batch.end;
                batch.map(|t| self.at(order.sample(t).expect("an order").expect("an index within the epoch"))).collect()
            })
            .collect()
    }

    /// The (step, row id) of each sample that the plan gives `world` in `epoch`, in order of delivery.
    ///
    /// # Panics
    /// When the plan names a row that the split does not have.
    #[must_use]
    pub fn of_rank(&self, plan: &Plan, epoch: u64, world: &World) -> Vec<(u64, i64)> {
        let rule = SliceRule::new(plan, world);
        let interleave = plan.table().interleave();
        let mut order = plan.epoch(epoch);
        let mut delivered = Vec::new();
        let mut index = 0;
        for step in 0..plan.steps(epoch).expect("a plan of fixed batches") {
            let batch = plan.batch_at(epoch, index).expect("a plan of fixed batches");
            index = batch.end;
            for run in rule.slice(plan, epoch, &batch) {
                for ordinal in run.ordinals.clone() {
                    let t = interleave.index(run.lane, ordinal);
                    let sample = order.sample(t).expect("an order").expect("an index within the epoch");
                    delivered.push((step, self.at(sample)));
                }
            }
        }
        delivered
    }

    fn at(&self, sample: gristmill_loader::Sample) -> i64 {
        let lane = &self.0[sample.lane as usize];
        lane[usize::try_from(sample.position).expect("a position in memory")]
    }
}

/// The (row id, copy) of every sample of a resampled split, read with the Parquet reader alone, in ascending order.
///
/// # Errors
/// Those of reading; a set that was not resampled has no column of copies.
pub async fn copies(shards: &ShardSet, split: &str) -> Result<Vec<(i64, i32)>> {
    let names = [ROW_ID, COPY];
    let mut samples = Vec::new();
    for entry in shards.files().iter().filter(|f| f.split == split) {
        let file = ParquetFile::open(shards.storage(), &entry.path).await?;
        for group in 0..file.row_group_rows().len() {
            let bytes = file.fetch(shards.storage(), group, Some(&names)).await?;
            let batch = file.decode(group, &bytes, Some(&names))?;
            let ids = batch.column(0).as_primitive::<Int64Type>().values();
            let copies = batch.column(1).as_primitive::<Int32Type>().values();
            samples.extend(ids.iter().copied().zip(copies.iter().copied()));
        }
    }
    samples.sort_unstable();
    Ok(samples)
}
