//! Decoded row groups in memory, under a budget: pinned while a window needs them, kept after that as long as there
//! is room.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

use futures::{FutureExt, future::BoxFuture, future::Shared};
use tokio::runtime::Handle;

use crate::{
    error::{Error, Result},
    metrics::{Counters, add},
    records::Records,
    row_group_reader::{BlockKey, RowGroupReader},
};

type Load = Shared<BoxFuture<'static, Result<Arc<Records>, Arc<Error>>>>;

/// The cache of one loader.
pub(crate) struct BlockCache {
    reader: Arc<RowGroupReader>,
    runtime: Handle,
    budget: u64,
    counters: Arc<Counters>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<BlockKey, Entry>,
    /// Bytes of all entries, those being loaded included.
    resident: u64,
    /// Bytes of pinned entries.
    pinned: u64,
    clock: u64,
}

struct Entry {
    load: Load,
    bytes: u64,
    pins: u32,
    /// When it was last unpinned.
    freed: u64,
}

/// Keeps a row group in memory until it is dropped.
pub(crate) struct Pin {
    cache: Arc<BlockCache>,
    key: BlockKey,
    load: Load,
}

impl BlockCache {
    pub(crate) fn new(reader: Arc<RowGroupReader>, runtime: Handle, budget: u64, counters: Arc<Counters>) -> Self {
        Self { reader, runtime, budget, counters, entries: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether these row groups (with their bytes) could be pinned on top of what is pinned within the budget.
    pub(crate) fn has_room(&self, blocks: impl Iterator<Item = (BlockKey, u64)>) -> bool {
        let entries = self.lock();
        let more: u64 =
            blocks.filter(|(key, _)| entries.by_key.get(key).is_none_or(|e| e.pins == 0)).map(|(_, bytes)| bytes).sum();
        entries.pinned.saturating_add(more) <= self.budget
    }

    /// Pins a row group of `bytes` bytes of records, and begins to load it when it is not there. Never waits: what is
    /// needed now is loaded even when the budget is used up (the loader's check at the start makes sure that it is
    /// not, as long as one iteration is under way).
    pub(crate) fn pin(self: &Arc<Self>, key: BlockKey, bytes: u64) -> Pin {
        let mut entries = self.lock();
        let entries = &mut *entries;
        let load = match entries.by_key.get_mut(&key) {
            Some(entry) => {
                if entry.pins == 0 {
                    entries.pinned += entry.bytes;
                    add(&self.counters.row_groups_kept, 1);
                }
                entry.pins += 1;
                entry.load.clone()
            }
            None => {
                entries.make_room(bytes, self.budget);
                let task = self.runtime.spawn(Arc::clone(&self.reader).load(key));
                let load = async move {
                    match task.await {
                        Ok(result) => result.map_err(Arc::new),
                        Err(e) => Err(Arc::new(Error::internal(format!("reading a row group was cut short: {e}")))),
                    }
                };
                let load: Load = load.boxed().shared();
                entries.resident += bytes;
                entries.pinned += bytes;
                entries.by_key.insert(key, Entry { load: load.clone(), bytes, pins: 1, freed: 0 });
                load
            }
        };
        self.counters.resident.store(entries.resident, Ordering::Relaxed);
        Pin { cache: Arc::clone(self), key, load }
    }
}

impl Entries {
    /// Drops unpinned row groups until `bytes` more fit into `budget`, or none is left. The one freed last goes first:
    /// an epoch uses each row group once, so those freed long ago are as likely to come soon as any, and dropping
    /// those just used leaves a fixed part of the split in memory for every epoch (dropping the oldest would leave
    /// nothing that the next epoch finds, when order repeats).
    fn make_room(&mut self, bytes: u64, budget: u64) {
        while self.resident.saturating_add(bytes) > budget {
            let last = self.by_key.iter().filter(|(_, e)| e.pins == 0).max_by_key(|(_, e)| e.freed).map(|(k, _)| *k);
            let Some(entry) = last.and_then(|key| self.by_key.remove(&key)) else { return };
            self.resident -= entry.bytes;
        }
    }
}

impl Pin {
    /// Waits until the row group is loaded.
    ///
    /// # Errors
    /// [`Error::RowGroup`] when it could not be.
    pub(crate) async fn records(&self) -> Result<Arc<Records>> {
        self.load.clone().await.map_err(Error::RowGroup)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut entries = self.cache.lock();
        let entries = &mut *entries;
        entries.clock += 1;
        let Some(entry) = entries.by_key.get_mut(&self.key) else { return };
        entry.pins -= 1;
        if entry.pins > 0 {
            return;
        }
        entry.freed = entries.clock;
        entries.pinned -= entry.bytes;
        // A failed load is forgotten, so that another attempt reads again.
        if matches!(entry.load.peek(), Some(Err(_))) {
            entries.resident -= entry.bytes;
            entries.by_key.remove(&self.key);
        }
        self.cache.counters.resident.store(entries.resident, Ordering::Relaxed);
    }
}
