//! Counters of a loader: where its time and its bytes went.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use serde::Serialize;

/// Counters since the loader was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LoaderMetrics {
    /// Seconds that callers of `next` waited for a batch.
    pub wait_seconds: f64,
    /// Seconds of reading from storage, summed over concurrent reads.
    pub fetch_seconds: f64,
    /// Seconds of checking digests and decoding, summed over threads.
    pub decode_seconds: f64,
    /// Seconds of collating batches, summed over threads.
    pub collate_seconds: f64,
    /// Bytes read from storage.
    pub bytes_read: u64,
    /// Row groups read from storage.
    pub row_groups_read: u64,
    /// Row groups that were needed and still in memory.
    pub row_groups_kept: u64,
    /// Micro-batches handed over.
    pub batches: u64,
    /// Samples handed over.
    pub rows: u64,
    /// Bytes of the decoded row groups in memory now.
    pub resident_bytes: u64,
}

/// The counters themselves, in nanoseconds and bytes.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) wait: AtomicU64,
    pub(crate) fetch: AtomicU64,
    pub(crate) decode: AtomicU64,
    pub(crate) collate: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) row_groups_read: AtomicU64,
    pub(crate) row_groups_kept: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) resident: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Adds the time since `start`.
pub(crate) fn add_since(counter: &AtomicU64, start: Instant) {
    add(counter, u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
}

impl Counters {
    pub(crate) fn read(&self) -> LoaderMetrics {
        let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let seconds = |c: &AtomicU64| Duration::from_nanos(count(c)).as_secs_f64();
        LoaderMetrics {
            wait_seconds: seconds(&self.wait),
            fetch_seconds: seconds(&self.fetch),
            decode_seconds: seconds(&self.decode),
            collate_seconds: seconds(&self.collate),
            bytes_read: count(&self.bytes_read),
            row_groups_read: count(&self.row_groups_read),
            row_groups_kept: count(&self.row_groups_kept),
            batches: count(&self.batches),
            rows: count(&self.rows),
            resident_bytes: count(&self.resident),
        }
    }
}
