//! Spilling: each unit's rows sorted by destination, stored as one run that shards are gathered from.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, UInt32Array};
use futures::{StreamExt, TryStreamExt, future::BoxFuture};
use serde::{Deserialize, Serialize};

use super::{
    Job,
    count::Counted,
    phase::in_order,
    place::{Placed, place},
    plan::Plan,
    rows::{Classes, UnitRows},
    units::{self, Unit},
};
use crate::{
    cells::UnitCell,
    coded::{CodedBatch, concat, gather_one},
    error::{Error, Result},
    runs::{self, Run},
};

/// What a spilled unit leaves behind.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RunReceipt {
    path: String,
    bytes: u64,
    index_at: u64,
    pub(super) node_weights: Vec<u128>,
}

impl Job {
    /// Places every unit where it is held in memory.
    pub(super) async fn place_loaded(
        &self,
        counted: &Arc<Counted>,
        plan: &Arc<Plan>,
    ) -> Result<(Vec<Placed>, Vec<u128>)> {
        let mut cursor = counted.table.cursor();
        let mut cells = Vec::with_capacity(counted.units.len());
        for unit in &counted.units {
            cells.push(cursor.next(unit, &counted.strata)?);
        }
        let placed: Vec<Placed> = self
            .phase_local("assign rows", &self.unit_rows(), self.control.threads, |u| {
                let (counted, plan, cells) = (Arc::clone(counted), Arc::clone(plan), cells_at(&cells, u));
                let url = self.input.storage.url("");
                self.compute(move || place(&plan, &counted.strata, &counted.loaded[u].rows, &cells, &url))
            })
            .await?;
        let mut sums = Vec::new();
        for unit in &placed {
            add_weights(&mut sums, &unit.node_weights);
        }
        Ok((placed, sums))
    }

    /// Spills every unit.
    pub(super) async fn spill(
        &self,
        counted: &Arc<Counted>,
        classes: &Arc<Classes>,
        plan: &Arc<Plan>,
    ) -> Result<(Vec<Run>, Vec<u128>)> {
        let mut cursor = counted.table.cursor();
        let mut cells = Vec::with_capacity(counted.units.len());
        for unit in &counted.units {
            cells.push(cursor.next(unit, &counted.strata)?);
        }
        let receipts: Vec<RunReceipt> = self
            .phase("run", "assign rows", &self.unit_rows(), self.units_at_once(), |u| {
                self.spill_unit(u, cells_at(&cells, u), counted, classes, plan)
            })
            .await?;
        let mut sums = Vec::new();
        for receipt in &receipts {
            add_weights(&mut sums, &receipt.node_weights);
        }
        let runs = in_order(receipts.len(), |r| Box::pin(self.open_run(plan, receipts[r].clone()))).await?;
        Ok((runs, sums))
    }

    async fn spill_unit(
        &self,
        ordinal: usize,
        cells: Vec<UnitCell>,
        counted: &Arc<Counted>,
        classes: &Arc<Classes>,
        plan: &Arc<Plan>,
    ) -> Result<RunReceipt> {
        self.control.stop.check()?;
        let unit = self.units[ordinal].clone();
        let names: Vec<String> = self.input.schema.columns.iter().map(|c| c.name.clone()).collect();
        let batches = units::read(&self.input, &unit, &names).await?;
        let urls = self.urls(&unit);
        let (counted, classes, plan) = (Arc::clone(counted), Arc::clone(classes), Arc::clone(plan));
        let (run, node_weights) = self
            .compute(move || {
                let rows = UnitRows::of(&classes, &unit, &urls, &batches)?;
                let placed = place(&plan, &counted.strata, &rows, &cells, urls.first().map_or("", |u| u))?;
                let sorted = sorted_rows(&plan, &unit, batches, &placed)?;
                let slices: Vec<(u32, u32)> = placed.slices.iter().map(|s| (s.destination, s.rows)).collect();
                Ok((runs::encode(&sorted, &slices)?, placed.node_weights))
            })
            .await?;
        let bytes = run.bytes.len() as u64;
        let path = self.work.put(&format!("run-{ordinal:06}.arrows"), run.bytes).await?;
        Ok(RunReceipt { path, bytes, index_at: run.index_at, node_weights })
    }

    async fn open_run(&self, plan: &Plan, receipt: RunReceipt) -> Result<Run> {
        let index = self.out.get_range(&receipt.path, receipt.index_at..receipt.bytes).await?;
        Run::open(receipt.path.clone(), &index, &plan.schema, &self.out.url(&receipt.path), |range| {
            let (out, path) = (self.out.clone(), receipt.path.clone());
            async move { out.get_range(&path, range).await }
        })
        .await
    }
}

/// Cells of unit `u`.
fn cells_at(cells: &[Vec<UnitCell>], u: usize) -> Vec<UnitCell> {
    cells.get(u).cloned().unwrap_or_default()
}

fn add_weights(sums: &mut Vec<u128>, more: &[u128]) {
    sums.resize(sums.len().max(more.len()), 0);
    for (sum, weight) in sums.iter_mut().zip(more) {
        *sum += weight;
    }
}

/// A unit's rows in the order of `placed`, with their ids and, where there may be copies, which copy each is.
fn sorted_rows(plan: &Plan, unit: &Unit, mut batches: Vec<CodedBatch>, placed: &Placed) -> Result<CodedBatch> {
    let schema =
        batches.first().map(|b| Arc::clone(b.schema())).ok_or_else(|| Error::internal("a unit has no rows"))?;
    let whole = concat(&schema, &mut batches)?;
    let sorted = gather_one(&whole, &UInt32Array::from(placed.rows.clone()))?;
    let mut ids = Vec::with_capacity(whole.rows());
    for group in &unit.groups {
        ids.extend(group.first_id..group.first_id + group.rows as i64);
    }
    let ids = Int64Array::from_iter_values(placed.rows.iter().map(|row| ids.get(*row as usize).copied().unwrap_or(-1)));
    let mut columns: Vec<ArrayRef> = vec![Arc::new(ids)];
    if plan.copies {
        columns.push(Arc::new(Int32Array::from_iter_values(placed.copies.iter().map(|c| *c as i32))));
    }
    sorted.with_columns(&plan.schema, columns)
}

/// Reads a shard's slices, `at_once` at a time, in the order of the runs.
pub(super) async fn slices(job: &Job, runs: &[Run], destination: u32, at_once: usize) -> Result<Vec<CodedBatch>> {
    let wanted: Vec<(usize, runs::Slice)> =
        runs.iter().enumerate().filter_map(|(r, run)| Some((r, run.slice(destination)?))).collect();
    let reads = wanted.into_iter().map(|(r, slice)| -> BoxFuture<'_, Result<CodedBatch>> {
        Box::pin(async move {
            let run = &runs[r];
            let bytes = job.out.get_range(run.path(), slice.range()).await?;
            run.decode(&slice, bytes, &job.out.url(run.path()))
        })
    });
    futures::stream::iter(reads).buffered(at_once).try_collect().await
}
