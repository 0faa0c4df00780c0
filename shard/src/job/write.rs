//! Writing: each shard's slices gathered, permuted by key, encoded, stored; statistics on the way.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{RecordBatch, UInt32Array},
    compute::{concat_batches, take_record_batch},
};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use super::{Job, Plan, spill::Run};
use crate::{
    assign::Destination,
    control::{Unit, compute},
    error::{Error, Result},
    keys::{Domain, Key},
    parquet_writer::encode_file,
    permutation::Permutation,
    runs::{self, Slice},
    statistics::StatisticsBuilder,
    tables::FileEntry,
};

/// Shards in work at once for each thread: most of a small one's time is waiting for the disk.
const WRITES_PER_THREAD: usize = 4;
/// Slices of one shard that are read at once.
const READS_AT_ONCE: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
struct ShardReceipt {
    path: String,
    bytes: u64,
    blake3: String,
}

/// Statistics of each column, by split.
pub(super) type SplitStatistics = Vec<BTreeMap<String, StatisticsBuilder>>;

impl Job {
    pub(super) async fn write(&self, plan: &Arc<Plan>, runs: &[Run]) -> Result<(Vec<FileEntry>, SplitStatistics)> {
        let mut shards = Vec::new();
        let mut largest = 1;
        for (s, split) in plan.layout.splits.iter().enumerate() {
            for lane in 0..plan.layout.lanes {
                for file in 0..split.files_per_lane {
                    let destination = Destination { split: s, leaf: lane + plan.layout.lanes * file };
                    let bytes: u64 = runs.iter().filter_map(|r| r.index.get(&destination)).map(Slice::bytes).sum();
                    if bytes > 0 {
                        largest = largest.max(bytes);
                        shards.push((destination, lane, file));
                    }
                }
            }
        }
        self.control.progress.start("write shards", self.input.rows(), Unit::Rows);
        let mut written = futures::stream::iter(shards)
            .map(|(destination, lane, file)| self.write_shard(Arc::clone(plan), runs, destination, lane, file))
            .buffered(self.at_once(largest, WRITES_PER_THREAD));
        let mut files = Vec::new();
        let mut statistics: SplitStatistics = vec![BTreeMap::new(); plan.layout.splits.len()];
        while let Some((split, entry, of_file)) = written.try_next().await? {
            files.push(entry);
            for (column, builder) in of_file {
                match statistics[split].get_mut(&column) {
                    Some(sum) => sum.merge(&builder),
                    None => {
                        statistics[split].insert(column, builder);
                    }
                }
            }
        }
        drop(written);
        self.control.progress.finish();
        Ok((files, statistics))
    }

    async fn write_shard(
        &self,
        plan: Arc<Plan>,
        runs: &[Run],
        destination: Destination,
        lane: u32,
        sequence: u32,
    ) -> Result<(usize, FileEntry, BTreeMap<String, StatisticsBuilder>)> {
        self.control.stop.check()?;
        let slices: Vec<(&Run, Slice)> = runs.iter().filter_map(|r| Some((r, *r.index.get(&destination)?))).collect();
        let batches: Vec<RecordBatch> = futures::stream::iter(slices)
            .map(|(run, slice)| {
                let schema = Arc::clone(&plan.schema);
                async move {
                    let range = slice.offset..slice.offset + slice.bytes();
                    let bytes = self.work.get_range(&run.path, range).await?;
                    runs::decode_slice(&schema, &slice, bytes, &self.out.url(&run.path))
                }
            })
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        let split = plan.layout.splits.get(destination.split).ok_or_else(|| Error::internal("a split is missing"))?;
        let unit = format!("shard-{}-{lane:06}-{sequence:06}", split.name);
        let key = Key::derive(
            Domain::FilePermute,
            self.options.seed,
            &[destination.split as u64, u64::from(lane), u64::from(sequence)],
        );
        let schema = Arc::clone(&plan.schema);
        let label = format!("{}/lane-{lane:04}/part-{sequence:05}", split.name);
        let (file, statistics) = compute(move || {
            let fail = |source| Error::Arrow { action: "permute a shard".into(), source };
            let whole = concat_batches(&schema, &batches).map_err(fail)?;
            drop(batches);
            let permutation = Permutation::new(key, whole.num_rows() as u64);
            let order =
                UInt32Array::from_iter_values((0..whole.num_rows() as u64).map(|i| permutation.apply(i) as u32));
            let whole = take_record_batch(&whole, &order).map_err(fail)?;
            let mut statistics = BTreeMap::new();
            for (field, column) in schema.fields().iter().zip(whole.columns()) {
                if !crate::schema::is_reserved(field.name()) {
                    let mut builder = StatisticsBuilder::new(field.data_type());
                    builder.update(column)?;
                    statistics.insert(field.name().clone(), builder);
                }
            }
            Ok((encode_file(&label, &schema, std::slice::from_ref(&whole))?, statistics))
        })
        .await?;
        let path = format!("{}/lane-{lane:04}/part-{sequence:05}-{}.parquet", split.name, file.digest8());
        let entry = FileEntry::new(path.clone(), &split.name, lane, sequence, &file);
        let receipt = self.work.receipt::<ShardReceipt>(&unit).await?;
        let stored = receipt.is_some_and(|r| r.path == path && r.blake3 == file.blake3)
            && self.out.size(&path).await? == Some(entry.bytes);
        if !stored {
            self.out.put(&path, file.bytes).await?;
            let receipt = ShardReceipt { path, bytes: entry.bytes, blake3: entry.blake3.clone() };
            self.work.record(&unit, &receipt).await?;
        }
        self.control.progress.advance(entry.rows);
        Ok((destination.split, entry, statistics))
    }
}
