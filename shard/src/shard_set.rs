//! A published shard set, opened: its manifest and tables, and the rows of its row groups.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    error::{Error, Result},
    manifest::{Layout, Manifest, ManifestKind, SplitRule},
    statistics::ColumnStatistics,
    storage::Storage,
    tables::{self, FileEntry},
};

/// A shard set. Cheap parts (manifest, file list) are read by [`ShardSet::open`]; data are not touched.
#[derive(Debug, Clone)]
pub struct ShardSet {
    storage: Storage,
    manifest: Manifest,
    digest: String,
    layout: Layout,
    files: Vec<FileEntry>,
    lanes: BTreeMap<(String, u32), Range<usize>>,
}

impl ShardSet {
    /// Opens the newest version at `storage`.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none, [`Error::Corrupt`] when manifest and tables disagree.
    pub async fn open(storage: &Storage) -> Result<Self> {
        let manifest = Manifest::require(storage, ManifestKind::Shards).await?;
        let url = storage.url(&Manifest::path(manifest.version));
        let layout = manifest.layout.clone().ok_or_else(|| Error::corrupt(&url, "it has no layout"))?;
        let files = tables::read_files(storage, &manifest).await?;
        let mut lanes: BTreeMap<(String, u32), Range<usize>> = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            let range = lanes.entry((file.split.clone(), file.lane)).or_insert(i..i);
            if range.end != i || range.len() != file.sequence as usize {
                return Err(Error::corrupt(&url, format!("its file list is out of order at {}", file.path)));
            }
            range.end = i + 1;
        }
        for split in &layout.splits {
            for lane in 0..layout.lanes {
                let range = lanes.get(&(split.name.clone(), lane)).cloned().unwrap_or(0..0);
                let rows: u64 = files[range].iter().map(|f| f.rows).sum();
                let want = split.lane_rows(lane, layout.lanes);
                // Where groups stay on one node, lanes of different nodes differ.
                if rows != want && !matches!(layout.split_rule, SplitRule::Groups { on_one_node: true, .. }) {
                    return Err(Error::corrupt(
                        &url,
                        format!("lane {lane} of split \"{}\" lists {rows} rows, the layout says {want}", split.name),
                    ));
                }
            }
        }
        let digest = manifest.digest()?;
        Ok(Self { storage: storage.clone(), manifest, digest, layout, files, lanes })
    }

    /// Where it is.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Its manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// BLAKE3 of its manifest: the identity of the set.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Splits, nodes and lanes.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All files in (split, lane, sequence) order.
    #[must_use]
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Files of one lane in sequence: position p of the lane is row p of their concatenation. Empty for a lane
    /// without rows.
    #[must_use]
    pub fn lane_files(&self, split: &str, lane: u32) -> &[FileEntry] {
        self.lanes.get(&(split.to_owned(), lane)).and_then(|r| self.files.get(r.clone())).unwrap_or(&[])
    }

    /// Statistics of each column of `split`, by column name.
    ///
    /// # Errors
    /// Storage errors, [`Error::Corrupt`].
    pub async fn statistics(&self, split: &str) -> Result<BTreeMap<String, ColumnStatistics>> {
        let entries = tables::read_statistics(&self.storage, &self.manifest).await?;
        Ok(entries.into_iter().filter(|e| e.split == split).map(|e| (e.column, e.statistics)).collect())
    }

    /// Values and counts of each categorical column of `split`, by column name; values of text in byte order, of
    /// numbers in numeric order.
    ///
    /// # Errors
    /// Storage errors, [`Error::Corrupt`].
    pub async fn categories(&self, split: &str) -> Result<BTreeMap<String, Vec<(String, u64)>>> {
        let mut columns: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
        for entry in tables::read_categories(&self.storage, &self.manifest).await? {
            if entry.split == split {
                columns.entry(entry.column).or_default().push((entry.value, entry.rows));
            }
        }
        Ok(columns)
    }
}
