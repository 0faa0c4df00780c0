//! Phases: units of work done by one process, or by several that know of each other only through storage.
//!
//! Each unit's result is a small receipt, put if absent. A process does its own share first, then, without waiting for
//! anybody, whatever is still missing, from the far end of the others' shares; so a task that never starts, or dies, only
//! makes the others work longer, and a rerun does only what is missing. Two processes that do the same unit write the same
//! bytes under the same name.

use std::future::Future;

use futures::{StreamExt, TryStreamExt, future::BoxFuture};
use serde::{Serialize, de::DeserializeOwned};

use super::Job;
use crate::{
    control::Unit as ProgressUnit,
    error::{Error, Result},
};

/// Receipts read at once.
const RECEIPTS_AT_ONCE: usize = 32;

impl Job {
    /// Does `work` for units `0..count`, `at_once` at a time, and gives the results in order. `amount` is the progress
    /// that a unit makes.
    pub(super) async fn phase<T, F, W>(
        &self,
        name: &str,
        stage: &str,
        amounts: &[u64],
        at_once: usize,
        work: F,
    ) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned + Send + Sync,
        F: Fn(usize) -> W + Sync,
        W: Future<Output = Result<T>> + Send,
    {
        if !self.shared {
            return self.phase_local(stage, amounts, at_once, work).await;
        }
        self.control.progress.start(stage, amounts.iter().sum(), ProgressUnit::Rows);
        let done = |unit: usize| self.control.progress.advance(amounts.get(unit).copied().unwrap_or(0));
        let results = self.phase_shared(name, amounts.len(), at_once, &work, &done).await?;
        self.control.progress.finish();
        Ok(results)
    }

    async fn phase_shared<T, F, W>(
        &self,
        name: &str,
        count: usize,
        at_once: usize,
        work: &F,
        done: &(impl Fn(usize) + Sync),
    ) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned + Send + Sync,
        F: Fn(usize) -> W + Sync,
        W: Future<Output = Result<T>> + Send,
    {
        let (order, own) = self.order(count);
        let units = order.into_iter().enumerate().map(|(i, unit)| -> BoxFuture<'_, Result<(usize, T)>> {
            Box::pin(async move {
                self.control.stop.check()?;
                let receipt = receipt_name(name, unit);
                let result = match self.work.receipt::<T>(&receipt).await? {
                    Some(result) => result,
                    None => {
                        if i >= own {
                            tracing::debug!("{receipt} is missing; doing it");
                        }
                        let result = work(unit).await?;
                        self.work.record(&receipt, &result).await?;
                        result
                    }
                };
                Ok((unit, result))
            })
        });
        let units = futures::stream::iter(units).buffer_unordered(at_once.max(1));
        let mut units = std::pin::pin!(units);
        let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
        while let Some((unit, result)) = units.try_next().await? {
            results[unit] = Some(result);
            done(unit);
        }
        results.into_iter().map(|r| r.ok_or_else(|| Error::internal("a unit has no result"))).collect()
    }

    /// Units in the order in which this process looks at them, and how many are its own.
    fn order(&self, count: usize) -> (Vec<usize>, usize) {
        let (index, tasks) = self.options.task.map_or((0, 1), |t| (t.index as usize, t.count as usize));
        let mut order: Vec<usize> = (index..count).step_by(tasks).collect();
        let own = order.len();
        for other in 1..tasks {
            let theirs: Vec<usize> = ((index + other) % tasks..count).step_by(tasks).collect();
            order.extend(theirs.into_iter().rev());
        }
        (order, own)
    }
}

fn receipt_name(phase: &str, unit: usize) -> String {
    format!("{phase}-{unit:06}")
}

/// What `work` gives for 0 to `count` − 1, [`RECEIPTS_AT_ONCE`] at a time, in order.
pub(super) async fn in_order<'a, T: Send>(
    count: usize,
    work: impl Fn(usize) -> BoxFuture<'a, Result<T>> + Send,
) -> Result<Vec<T>> {
    futures::stream::iter((0..count).map(work)).buffered(RECEIPTS_AT_ONCE).try_collect().await
}
