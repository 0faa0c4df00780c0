//! How fast a loader is.

use std::{ops::Range, time::Instant};

use serde::Serialize;

use crate::{error::Result, loader::DataLoader, metrics::LoaderMetrics};

/// A measured run over whole epochs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// Samples delivered.
    pub rows: u64,
    /// Micro-batches delivered.
    pub batches: u64,
    /// Bytes of their tensors.
    pub bytes: u64,
    /// Seconds from the first call to the last batch.
    pub seconds: f64,
    /// Samples a second.
    pub rows_per_s: f64,
    /// Seconds that the caller waited for batches.
    pub wait_s: f64,
    /// Seconds until the first batch.
    pub first_batch_s: f64,
    /// Each epoch by itself.
    pub epochs: Vec<EpochMeasurement>,
    /// The loader's counters at the end.
    pub metrics: LoaderMetrics,
}

/// One epoch of a [`Measurement`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EpochMeasurement {
    /// The epoch.
    pub epoch: u64,
    /// Samples delivered.
    pub rows: u64,
    /// Seconds.
    pub seconds: f64,
    /// Samples a second.
    pub rows_per_s: f64,
}

/// Takes all batches of `epochs` in one iteration and does nothing with them.
///
/// # Errors
/// What the loader's iteration fails with.
pub async fn measure(loader: &DataLoader, epochs: Range<u64>) -> Result<Measurement> {
    let start = Instant::now();
    let before = loader.metrics();
    let mut batches = loader.run(&loader.plan().state(epochs.start, 0)?, epochs.end)?;
    let (mut rows, mut count, mut bytes, mut first) = (0, 0, 0, None);
    let mut measured: Vec<EpochMeasurement> = Vec::new();
    let mut epoch_start = start;
    let mut epoch_rows = 0;
    while let Some(batch) = batches.next().await? {
        first.get_or_insert_with(|| start.elapsed().as_secs_f64());
        rows += batch.rows() as u64;
        epoch_rows += batch.rows() as u64;
        count += 1;
        bytes += batch.bytes();
        if batch.state().epoch != batch.epoch() {
            let seconds = epoch_start.elapsed().as_secs_f64();
            measured.push(EpochMeasurement {
                epoch: batch.epoch(),
                rows: epoch_rows,
                seconds,
                rows_per_s: rate(epoch_rows, seconds),
            });
            epoch_start = Instant::now();
            epoch_rows = 0;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let metrics = loader.metrics();
    Ok(Measurement {
        rows,
        batches: count,
        bytes,
        seconds,
        rows_per_s: rate(rows, seconds),
        wait_s: metrics.wait_seconds - before.wait_seconds,
        first_batch_s: first.unwrap_or(seconds),
        epochs: measured,
        metrics,
    })
}

fn rate(rows: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { rows as f64 / seconds } else { 0.0 }
}
