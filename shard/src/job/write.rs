//! Writing: each shard's rows gathered, permuted by key, encoded, stored; statistics on the way.

use std::{collections::BTreeMap, sync::Arc};

use arrow::array::{ArrayRef, Int32Array, Int64Array};
use serde::{Deserialize, Serialize};

use super::{Job, count::Counted, place::Placed, plan::Plan, spill};
use crate::{
    coded::{CodedBatch, gather, unify},
    error::{Error, Result},
    keys::{Domain, Key},
    parquet_writer::{EncodedFile, encode_file},
    permutation::Permutation,
    runs::Run,
    statistics::StatisticsBuilder,
    tables::{FileEntry, RowGroupEntry},
};

/// Shards in work at once for each thread: most of a small one's time is waiting for the disk.
const WRITES_PER_THREAD: usize = 4;
/// Slices of one shard that are read at once.
const READS_AT_ONCE: usize = 8;

/// A shard that was written.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) split: u32,
    pub(super) path: String,
    lane: u32,
    sequence: u32,
    rows: u64,
    bytes: u64,
    blake3: String,
    row_groups: Vec<RowGroupEntry>,
    pub(super) statistics: BTreeMap<String, StatisticsBuilder>,
}

impl Written {
    /// Its entry in the files table of version `version`.
    pub(super) fn entry(&self, split: &str, version: u64) -> FileEntry {
        FileEntry {
            path: self.path.clone(),
            split: split.to_owned(),
            lane: self.lane,
            sequence: self.sequence,
            rows: self.rows,
            bytes: self.bytes,
            blake3: self.blake3.clone(),
            version,
            row_groups: self.row_groups.clone(),
        }
    }
}

/// Where rows are gathered from.
pub(super) enum Rows {
    /// All units, in memory, sorted by destination.
    Memory(Arc<Memory>),
    /// Runs on storage.
    Runs(Vec<Run>),
}

/// All rows, in memory.
pub(super) struct Memory {
    batches: Vec<CodedBatch>,
    first_ids: Vec<i64>,
    placed: Vec<Placed>,
    /// `(unit, start, rows)` of each destination.
    by_destination: Vec<Vec<(u32, u32, u32)>>,
}

impl Memory {
    pub(super) fn new(job: &Job, plan: &Plan, counted: &Counted, placed: Vec<Placed>) -> Self {
        let mut by_destination = vec![Vec::new(); plan.destinations() as usize];
        for (unit, placed) in placed.iter().enumerate() {
            for slice in &placed.slices {
                by_destination[slice.destination as usize].push((unit as u32, slice.start, slice.rows));
            }
        }
        let first_ids = job.units.iter().filter_map(|u| u.groups.first().map(|g| g.first_id)).collect();
        Self { batches: counted.loaded.iter().map(|l| l.batch.clone()).collect(), first_ids, placed, by_destination }
    }

    fn rows(&self, destination: u32) -> u64 {
        self.by_destination.get(destination as usize).map_or(0, |s| s.iter().map(|x| u64::from(x.2)).sum())
    }

    /// The rows of a shard, permuted.
    fn shard(&self, plan: &Plan, destination: u32, key: Key) -> Result<CodedBatch> {
        let slices = self.by_destination.get(destination as usize).map_or(&[][..], |s| s);
        let mut rows: Vec<(usize, usize)> = Vec::with_capacity(self.rows(destination) as usize);
        let mut copies = Vec::new();
        for (unit, start, count) in slices {
            let placed = &self.placed[*unit as usize];
            let range = *start as usize..(*start + *count) as usize;
            rows.extend(placed.rows[range.clone()].iter().map(|row| (*unit as usize, *row as usize)));
            if plan.copies {
                copies.extend_from_slice(&placed.copies[range]);
            }
        }
        let permutation = Permutation::new(key, rows.len() as u64);
        let order: Vec<usize> = (0..rows.len() as u64).map(|i| permutation.apply(i) as usize).collect();
        let permuted: Vec<(usize, usize)> = order.iter().map(|i| rows[*i]).collect();
        let ids = permuted.iter().map(|(unit, row)| self.first_ids[*unit] + *row as i64);
        let mut more: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(ids))];
        if plan.copies {
            more.push(Arc::new(Int32Array::from_iter_values(order.iter().map(|i| copies[*i] as i32))));
        }
        let schema = Arc::new(
            plan.schema
                .project(&(0..plan.schema.fields().len() - more.len()).collect::<Vec<_>>())
                .map_err(|source| Error::Arrow { action: "name the columns of a shard".into(), source })?,
        );
        gather(&schema, &self.batches, &permuted)?.with_columns(&plan.schema, more)
    }
}

impl Job {
    /// Writes every shard that has rows; the results are in the order of the files table.
    pub(super) async fn write(&self, plan: &Arc<Plan>, rows: &Rows) -> Result<Vec<Written>> {
        let mut shards: Vec<u32> = Vec::new();
        let mut amounts = Vec::new();
        let mut largest = 1;
        for destination in plan.in_order() {
            let count = match rows {
                Rows::Memory(memory) => memory.rows(destination),
                Rows::Runs(runs) => runs.iter().filter_map(|r| r.slice(destination)).map(|s| u64::from(s.rows)).sum(),
            };
            if count > 0 {
                shards.push(destination);
                amounts.push(count);
                largest = largest.max(count);
            }
        }
        let per_row = self.decoded_bytes().div_ceil(self.input_rows().max(1)).max(1);
        let at_once = self.at_once(largest.saturating_mul(per_row), WRITES_PER_THREAD);
        self.phase("shard", "write shards", &amounts, at_once, |i| self.write_shard(plan, rows, shards[i])).await
    }

    async fn write_shard(&self, plan: &Arc<Plan>, rows: &Rows, destination: u32) -> Result<Written> {
        self.control.stop.check()?;
        let place = plan.place(destination);
        let split = plan.layout.splits.get(place.split).ok_or_else(|| Error::internal("a split is missing"))?;
        let sequence = self.appended.files_before(&split.name, place.lane) + place.file;
        let fields = [place.split as u64, u64::from(place.lane), u64::from(sequence)];
        let key = Key::derive(Domain::FilePermute, self.options.seed, &fields);
        let label = format!("{}/lane-{:04}/part-{sequence:05}", split.name, place.lane);
        let (plan, name) = (Arc::clone(plan), label.clone());
        let (file, statistics) = match rows {
            Rows::Memory(memory) => {
                let memory = Arc::clone(memory);
                self.compute(move || finish(&name, &memory.shard(&plan, destination, key)?)).await?
            }
            Rows::Runs(runs) => {
                let slices = spill::slices(self, runs, destination, READS_AT_ONCE).await?;
                self.compute(move || {
                    let mut batches: Vec<CodedBatch> = slices;
                    unify(&mut batches)?;
                    let rows: Vec<(usize, usize)> = (batches.iter().enumerate())
                        .flat_map(|(b, batch)| (0..batch.rows()).map(move |row| (b, row)))
                        .collect();
                    let permutation = Permutation::new(key, rows.len() as u64);
                    let order: Vec<(usize, usize)> =
                        (0..rows.len() as u64).map(|i| rows[permutation.apply(i) as usize]).collect();
                    finish(&name, &gather(&plan.schema, &batches, &order)?)
                })
                .await?
            }
        };
        let path = format!("{label}-{}.parquet", file.digest8());
        let EncodedFile { bytes, rows, blake3, row_groups } = file;
        let size = bytes.len() as u64;
        self.out.put(&path, bytes).await?;
        Ok(Written {
            split: place.split as u32,
            path,
            lane: place.lane,
            sequence,
            rows,
            bytes: size,
            blake3,
            row_groups,
            statistics,
        })
    }
}

fn finish(name: &str, rows: &CodedBatch) -> Result<(EncodedFile, BTreeMap<String, StatisticsBuilder>)> {
    let mut statistics = BTreeMap::new();
    for (field, column) in rows.schema().fields().iter().zip(rows.columns()) {
        if !crate::schema::is_reserved(field.name()) {
            let mut builder = StatisticsBuilder::new(field.data_type());
            builder.update_coded(column)?;
            statistics.insert(field.name().clone(), builder);
        }
    }
    let plain = rows.to_plain()?;
    Ok((encode_file(name, rows.schema(), std::slice::from_ref(&plain))?, statistics))
}
