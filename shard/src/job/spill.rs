//! Assigning: each unit's rows to their destinations, spilled as one run sorted by destination.

use std::{collections::HashMap, sync::Arc};

use arrow::{
    array::{ArrayRef, Int64Array, RecordBatch},
    compute::concat_batches,
    datatypes::SchemaRef,
};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use super::{
    Job, Plan,
    count::{Counted, Group},
};
use crate::{
    assign::Destination,
    control::{Unit, compute},
    error::{Error, Result},
    runs::{self, Slice},
    schema::row_id,
    strata::{self, Strata},
};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct RunReceipt {
    path: String,
    index_at: u64,
    bytes: u64,
}

/// A spilled unit.
pub(super) struct Run {
    pub(super) path: String,
    pub(super) index: HashMap<Destination, Slice>,
}

impl Job {
    pub(super) async fn spill(&self, counted: &Counted, plan: &Arc<Plan>) -> Result<Vec<Run>> {
        self.control.progress.start("assign rows", self.input.rows(), Unit::Rows);
        let largest = counted.units.iter().map(|u| u.iter().map(|g| g.decoded_bytes).sum::<u64>()).max().unwrap_or(1);
        // Rank of the first row of each of a unit's strata: prefix sums over row groups in input order.
        let mut starts: Vec<HashMap<u32, u64>> = Vec::with_capacity(counted.units.len());
        let mut next = vec![0_u64; counted.strata.strata().len()];
        let mut groups = counted.by_group.iter();
        for unit in &counted.units {
            let mut of_unit = HashMap::new();
            for counts in groups.by_ref().take(unit.len()) {
                for (key, rows) in counts {
                    if let Some(c) = counted.strata.ordinal(key) {
                        of_unit.entry(c).or_insert(next[c as usize]);
                        next[c as usize] += rows;
                    }
                }
            }
            starts.push(of_unit);
        }
        let runs = futures::stream::iter(counted.units.iter().cloned().zip(starts).enumerate())
            .map(|(u, (unit, ranks))| self.spill_unit(u, unit, ranks, Arc::clone(&counted.strata), Arc::clone(plan)))
            .buffered(self.at_once(largest, 1))
            .try_collect()
            .await?;
        self.control.progress.finish();
        Ok(runs)
    }

    async fn spill_unit(
        &self,
        ordinal: usize,
        unit: Vec<Group>,
        ranks: HashMap<u32, u64>,
        strata: Arc<Strata>,
        plan: Arc<Plan>,
    ) -> Result<Run> {
        self.control.stop.check()?;
        let name = format!("run-{ordinal:06}");
        let rows: u64 = unit.iter().filter_map(|g| g.file.row_group_rows().get(g.index).copied()).sum();
        if let Some(receipt) = self.work.receipt::<RunReceipt>(&name).await?
            && self.out.size(&receipt.path).await? == Some(receipt.bytes)
        {
            self.control.progress.advance(rows);
            return self.open_run(receipt).await;
        }
        let mut fetched = Vec::with_capacity(unit.len());
        let columns: Vec<String> = self.input.schema.columns.iter().map(|c| c.name.clone()).collect();
        let names: Vec<&str> = columns.iter().map(String::as_str).collect();
        for group in unit {
            let bytes = group.file.fetch(&self.input.storage, group.index, Some(&names)).await?;
            fetched.push((group, bytes));
        }
        let (stratify, storage) = (self.options.stratify.clone(), self.input.storage.clone());
        let (bytes, index_at) = compute(move || {
            let names: Vec<&str> = columns.iter().map(String::as_str).collect();
            let mut ranks = ranks;
            let mut assigner = plan.assignment.assigner();
            let (mut batches, mut destinations) = (Vec::new(), Vec::new());
            for (group, bytes) in fetched {
                let url = storage.url(group.file.path());
                let batch = group.file.decode(group.index, &bytes, Some(&names))?;
                let strata = strata.of_rows(&strata::key_columns(&batch, &stratify)?, batch.num_rows(), &url)?;
                for stratum in strata {
                    let rank = ranks.entry(stratum).or_insert(u64::MAX);
                    destinations.push(assigner.destination(stratum, *rank)?);
                    *rank = rank.saturating_add(1);
                }
                batches.push(with_row_ids(&batch, &group, &plan.schema)?);
            }
            let batch = concat_batches(&plan.schema, &batches)
                .map_err(|source| Error::Arrow { action: "put a unit together".into(), source })?;
            drop(batches);
            runs::encode(&batch, &destinations)
        })
        .await?;
        let length = bytes.len() as u64;
        let path = self.work.put(&format!("{name}.arrows"), bytes).await?;
        let receipt = RunReceipt { path, index_at, bytes: length };
        self.work.record(&name, &receipt).await?;
        self.control.progress.advance(rows);
        self.open_run(receipt).await
    }

    async fn open_run(&self, receipt: RunReceipt) -> Result<Run> {
        let index = self.out.get_range(&receipt.path, receipt.index_at..receipt.bytes).await?;
        Ok(Run { index: runs::decode_index(&index, &self.out.url(&receipt.path))?, path: receipt.path })
    }
}

fn with_row_ids(batch: &RecordBatch, group: &Group, schema: &SchemaRef) -> Result<RecordBatch> {
    let first = row_id(group.ordinal, group.first_row);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + batch.num_rows() as i64));
    let mut columns = batch.columns().to_vec();
    columns.push(ids);
    RecordBatch::try_new(Arc::clone(schema), columns)
        .map_err(|source| Error::Arrow { action: format!("add row ids to {}", group.file.path()), source })
}
