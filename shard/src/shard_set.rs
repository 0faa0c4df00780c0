//! A published shard set, opened: its manifest and tables, and the rows of its row groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use tokio::sync::OnceCell;

use crate::{
    error::{Error, Result},
    manifest::{Layout, Manifest, ManifestKind, SplitRule},
    sidecar::Sidecar,
    statistics::ColumnStatistics,
    storage::Storage,
    tables::{self, FileEntry, SidecarEntry},
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
    /// Read when it is first asked for: most readers have no use for it.
    sidecars: Arc<OnceCell<Vec<SidecarEntry>>>,
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
        Ok(Self { storage: storage.clone(), manifest, digest, layout, files, lanes, sidecars: Arc::default() })
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

    /// Names of the sidecars of `split`, in byte order: `weight` (of `--balance`), `difficulty` and `order_difficulty`,
    /// names of columns. Empty where none were asked for, and for a split without rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown split, storage errors, [`Error::Corrupt`].
    pub async fn sidecar_names(&self, split: &str) -> Result<Vec<String>> {
        self.layout.split(split)?;
        let of_split = self.sidecars().await?.iter().filter(|s| s.split == split);
        let names: BTreeSet<&str> = of_split.map(|s| s.name.as_str()).collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    /// Sidecar `name` of a lane: a value for each of its positions, or its positions in order of a column. `None` when
    /// the set keeps none of that name ([`ShardSet::sidecar_names`] has them), and for a lane without rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown split or lane, storage errors, [`Error::Corrupt`] when it is not what was written.
    pub async fn sidecar(&self, split: &str, lane: u32, name: &str) -> Result<Option<Sidecar>> {
        self.layout.split(split)?;
        if lane >= self.layout.lanes {
            return Err(Error::usage(
                format!("there is no lane {lane}"),
                format!("lanes are 0 to {}", self.layout.lanes.saturating_sub(1)),
            ));
        }
        let mut entries = self.sidecars().await?.iter();
        let Some(entry) = entries.find(|s| s.lane == lane && s.split == split && s.name == name) else {
            return Ok(None);
        };
        let rows = self.lane_files(split, lane).iter().fold(0_u64, |sum, file| sum.saturating_add(file.rows));
        Sidecar::read(&self.storage, entry, rows).await.map(Some)
    }

    async fn sidecars(&self) -> Result<&[SidecarEntry]> {
        let entries = self.sidecars.get_or_try_init(|| tables::read_sidecars(&self.storage, &self.manifest)).await?;
        Ok(entries)
    }
}
