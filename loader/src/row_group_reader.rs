//! Reads row groups: fetched whole, checked against the manifest's digest, decoded, made into records.

use std::{sync::Arc, time::Instant};

use gristmill_shard::{
    Error as ShardError, ShardSet,
    control::compute,
    parquet_reader::{ParquetFile, RowGroupBytes},
    schema::ColumnType,
    tables::FileEntry,
};
use tokio::sync::{OnceCell, Semaphore};

use crate::{
    error::{Error, Result},
    lane_table::LaneTable,
    metrics::{Counters, add, add_since},
    records::{RecordLayout, Records},
    tensor::{COPY, ROW_ID},
};

/// A row group of the split, by lane and ordinal in the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockKey {
    pub(crate) lane: u32,
    pub(crate) block: u64,
}

/// Reads row groups of one split.
pub(crate) struct RowGroupReader {
    shards: ShardSet,
    table: Arc<LaneTable>,
    layout: Arc<RecordLayout>,
    /// Footers by lane and file, each read once.
    footers: Vec<Vec<OnceCell<ParquetFile>>>,
    fetches: Semaphore,
    decodes: Semaphore,
    counters: Arc<Counters>,
}

impl RowGroupReader {
    pub(crate) fn new(
        shards: ShardSet,
        table: Arc<LaneTable>,
        layout: Arc<RecordLayout>,
        fetches: usize,
        threads: usize,
        counters: Arc<Counters>,
    ) -> Self {
        let footers = (0..table.lanes())
            .map(|lane| shards.lane_files(table.split(), lane).iter().map(|_| OnceCell::new()).collect())
            .collect();
        let (fetches, decodes) = (Semaphore::new(fetches.max(1)), Semaphore::new(threads.max(1)));
        Self { shards, table, layout, footers, fetches, decodes, counters }
    }

    /// The records of a row group.
    ///
    /// # Errors
    /// Storage errors; [`ShardError::Corrupt`] when the bytes are not those of the manifest; [`Error::Data`] when a
    /// value is refused.
    pub(crate) async fn load(self: Arc<Self>, key: BlockKey) -> Result<Arc<Records>> {
        let missing = || Error::internal(format!("lane {} has no row group {}", key.lane, key.block));
        let block = self.table.blocks(key.lane).and_then(|blocks| blocks.get(key.block)).ok_or_else(missing)?;
        let files = self.shards.lane_files(self.table.split(), key.lane);
        let entry = files.get(block.file as usize).ok_or_else(missing)?;
        let group = entry.row_groups.get(block.row_group as usize).ok_or_else(missing)?.clone();
        let storage = self.shards.storage();
        let url = storage.url(&entry.path);
        // The permit covers the bytes until they are decoded: it bounds memory, not only concurrent requests.
        let _fetch = self.fetches.acquire().await.map_err(|_| Error::internal("the loader is closed"))?;
        let start = Instant::now();
        let cell = self.footers.get(key.lane as usize).and_then(|l| l.get(block.file as usize)).ok_or_else(missing)?;
        let file = cell.get_or_try_init(|| self.open(entry)).await?.clone();
        let end = group.offset.checked_add(group.length).filter(|end| *end <= entry.bytes).ok_or_else(|| {
            ShardError::corrupt(&url, format!("row group {} ends past the end of the file", block.row_group))
        })?;
        let bytes = storage.get_range(&entry.path, group.offset..end).await?;
        add_since(&self.counters.fetch, start);
        add(&self.counters.bytes_read, bytes.len() as u64);
        add(&self.counters.row_groups_read, 1);
        let _decode = self.decodes.acquire().await.map_err(|_| Error::internal("the loader is closed"))?;
        let (layout, counters) = (Arc::clone(&self.layout), Arc::clone(&self.counters));
        let decoded = compute(move || {
            let start = Instant::now();
            let index = block.row_group as usize;
            if blake3::hash(&bytes).to_hex().as_str() != group.blake3 {
                return Err(ShardError::corrupt(
                    &url,
                    format!("the digest of row group {index} is not the manifest's"),
                ));
            }
            let names: Vec<&str> = layout.projection.iter().map(String::as_str).collect();
            let rows = file.decode(index, &RowGroupBytes::new(group.offset, bytes), Some(&names))?;
            let records = layout.encode(&rows, &url, &format!("row group {index}"));
            add_since(&counters.decode, start);
            Ok(records)
        });
        Ok(Arc::new(decoded.await??))
    }

    /// Reads a file's footer and checks that it describes the file of the manifest.
    async fn open(&self, entry: &FileEntry) -> Result<ParquetFile> {
        let storage = self.shards.storage();
        let url = storage.url(&entry.path);
        let file = ParquetFile::open(storage, &entry.path).await?;
        if file.bytes() != entry.bytes {
            let what = format!("it has {} bytes, the manifest says {}", file.bytes(), entry.bytes);
            return Err(ShardError::corrupt(url, what).into());
        }
        let rows: Vec<u64> = entry.row_groups.iter().map(|g| g.rows).collect();
        if file.row_group_rows() != rows {
            return Err(ShardError::corrupt(url, "its row groups are not those of the manifest").into());
        }
        for name in &self.layout.projection {
            let found = file.schema().field_with_name(name).ok().map(|f| f.data_type().clone());
            let found = found.and_then(|t| ColumnType::from_arrow(&t).ok());
            let declared = self.shards.manifest().schema.columns.iter().find(|c| c.name == *name);
            let same = match declared {
                Some(column) => found.as_ref() == Some(&column.column_type),
                None => (name == ROW_ID || name == COPY) && found.is_some(),
            };
            if !same {
                let is = found.map_or("absent".to_owned(), |t| t.to_string());
                return Err(
                    ShardError::corrupt(url, format!("its column \"{name}\" is {is}, not as in the manifest")).into()
                );
            }
        }
        Ok(file)
    }
}
