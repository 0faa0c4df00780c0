//! The root manifest: a small JSON document that says what a data set or a shard set is, published last.
//!
//! Bulk (files, strata, categories, statistics) is in Parquet tables that the manifest names with their digests.
//! Nothing in a manifest is a clock, a host name or an absolute URL: the same job gives the same bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    assign::rounding::Shares,
    balance::Balance,
    error::{Error, ErrorKind, Result},
    schema::DatasetSchema,
    storage::Storage,
    strata::KeyColumn,
    tables,
};

/// Format version written, and the newest one read.
pub const FORMAT_VERSION: u64 = 2;
/// What a manifest's text ends with, and what introduces its digest.
const END: &str = "\n}\n";
const DIGEST: &str = ",\n  \"blake3\": \"";
/// Folder of everything that is not data.
pub const META: &str = "_gristmill";

/// What a manifest describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManifestKind {
    /// Clean Parquet, as `ingest` writes it.
    Dataset,
    /// Stratified shards, as `shard` writes them.
    Shards,
}

/// The manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u64,
    /// Data set or shards.
    pub kind: ManifestKind,
    /// 1, 2, … within its folder.
    pub version: u64,
    /// Digest of (semantic options, input, format version): two jobs of equal digest have equal output.
    pub job: String,
    /// What it was made from.
    pub input: InputRef,
    /// Resolved semantic options (those that change the output).
    pub options: serde_json::Value,
    /// Seed of every random choice.
    pub seed: u64,
    /// Columns.
    pub schema: DatasetSchema,
    /// Rows.
    pub rows: u64,
    /// Tables by name.
    pub tables: BTreeMap<String, TableRef>,
    /// Counts of an ingest; absent for shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingest: Option<IngestCounts>,
    /// Splits, nodes and lanes; absent for a data set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Achieved balance; absent for a data set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<Balance>,
    /// The version that this one adds to, or lays out anew; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentRef>,
}

/// A version that another was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentRef {
    /// Its number.
    pub version: u64,
    /// BLAKE3 of its text.
    pub digest: String,
}

/// What an output was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputRef {
    /// `files` (raw files or plain Parquet) or `manifest`.
    pub kind: String,
    /// BLAKE3 of the input's manifest, or of the list of its files with their digests.
    pub digest: String,
}

/// A Parquet table of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableRef {
    /// Path below the data set's root.
    pub path: String,
    /// Rows.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the file.
    pub blake3: String,
}

/// Every raw row in one of these: `rows_in = accepted + rejected + filtered`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IngestCounts {
    /// Rows found in the sources.
    pub rows_in: u64,
    /// Rows in the clean data set.
    pub accepted: u64,
    /// Rows refused, each listed in the rejects.
    pub rejected: u64,
    /// Rows that the query's WHERE left out.
    pub filtered: u64,
}

/// How shards are laid out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Machines, N.
    pub nodes: u32,
    /// Lanes, L: a multiple of N as `shard` makes them, any number when laid out anew for other machines.
    pub lanes: u32,
    /// What strata are.
    pub strata: StrataRule,
    /// What decides the split of a row.
    pub split_rule: SplitRule,
    /// Column whose sums are balanced over nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Whether rows may be copied (column `_copy`) or left out.
    pub resampled: bool,
    /// Splits in order.
    pub splits: Vec<SplitInfo>,
}

/// What strata are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrataRule {
    /// Columns whose combination is the stratum, and how each enters; empty for one stratum of all rows.
    pub columns: Vec<KeyColumn>,
    /// Rare combinations that were merged into one stratum.
    pub merged: u64,
}

/// What decides the split of a row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SplitRule {
    /// Shares of each stratum, exactly.
    #[default]
    Shares,
    /// The keyed hash of a column, so that a row stays in its split; shares hold in expectation.
    Stable {
        /// The column.
        column: String,
    },
    /// Groups of equal values, kept whole.
    Groups {
        /// The column.
        column: String,
        /// Whether a group is on one node as well.
        on_one_node: bool,
    },
}

/// One split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitInfo {
    /// `train`, `validation`, `test`, or a name of the user's.
    pub name: String,
    /// Share asked for, as a fraction `numerator/denominator`.
    pub share: String,
    /// Rows.
    pub rows: u64,
    /// Node of lane 0: lane v belongs to node `(v + first_node) mod N`.
    pub first_node: u32,
    /// Files that this version adds to each lane.
    pub files_per_lane: u32,
}

impl Layout {
    /// The split called `name`.
    ///
    /// # Errors
    /// [`Error::Usage`] with the nearest name.
    pub fn split(&self, name: &str) -> Result<(usize, &SplitInfo)> {
        self.splits.iter().enumerate().find(|(_, s)| s.name == name).ok_or_else(|| {
            Error::usage(
                format!("there is no split \"{name}\""),
                crate::error::nearest_name(name, self.splits.iter().map(|s| s.name.as_str())),
            )
        })
    }
}

impl Layout {
    /// The shares of the splits, as they were asked for.
    ///
    /// # Errors
    /// [`Error::Usage`] when they are no shares.
    pub fn shares(&self) -> Result<Shares> {
        let text: Vec<String> = self.splits.iter().map(|s| format!("{}={}", s.name, s.share)).collect();
        Shares::parse(&text.join(","))
    }
}

impl SplitInfo {
    /// Node of lane `lane`, of `nodes`.
    #[must_use]
    pub fn node_of(&self, lane: u32, nodes: u32) -> u32 {
        ((u64::from(lane) + u64::from(self.first_node)) % u64::from(nodes.max(1))) as u32
    }

    /// Rows of lane `lane` of `lanes`: `⌈(rows − lane) / lanes⌉`.
    #[must_use]
    pub fn lane_rows(&self, lane: u32, lanes: u32) -> u64 {
        self.rows.saturating_sub(u64::from(lane)).div_ceil(u64::from(lanes.max(1)))
    }
}

impl Manifest {
    /// The bytes as they are stored: JSON whose last member, `blake3`, is the digest of the text without that member.
    ///
    /// # Errors
    /// [`Error::Json`] when an option can't be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let (text, digest) = self.text()?;
        let open = text.strip_suffix(END).unwrap_or(&text);
        Ok(format!("{open}{DIGEST}{digest}\"{END}").into_bytes())
    }

    /// BLAKE3 of its text: the identity of the set.
    ///
    /// # Errors
    /// As [`Manifest::to_bytes`].
    pub fn digest(&self) -> Result<String> {
        Ok(self.text()?.1)
    }

    fn text(&self) -> Result<(String, String)> {
        let mut text =
            serde_json::to_string_pretty(self).map_err(|source| Error::Json { url: "manifest".into(), source })?;
        text.push('\n');
        let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok((text, digest))
    }

    /// Path of version `version`.
    #[must_use]
    pub fn path(version: u64) -> String {
        format!("{META}/manifest-{version:08}.json")
    }

    /// Reads a stored manifest.
    ///
    /// # Errors
    /// [`Error::FormatVersion`] for one of a newer format, [`Error::Json`] for anything that is not a manifest.
    pub fn from_bytes(bytes: &[u8], url: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u64,
        }
        let json = |source| Error::Json { url: url.to_owned(), source };
        let Version { format_version } = serde_json::from_slice(bytes).map_err(json)?;
        if format_version != FORMAT_VERSION {
            return Err(Error::FormatVersion { url: url.to_owned(), found: format_version, supported: FORMAT_VERSION });
        }
        let text = std::str::from_utf8(bytes).map_err(|e| Error::corrupt(url, e.to_string()))?;
        let (open, digest) = text
            .strip_suffix(END)
            .and_then(|t| t.strip_suffix('"'))
            .and_then(|t| t.rsplit_once(DIGEST))
            .ok_or_else(|| Error::corrupt(url, "it does not end with its digest"))?;
        let text = format!("{open}{END}");
        if blake3::hash(text.as_bytes()).to_hex().as_str() != digest {
            return Err(Error::corrupt(url, "its digest is not that of its text"));
        }
        serde_json::from_str(&text).map_err(json)
    }

    /// The newest manifest of `storage`, `None` where there is none.
    ///
    /// # Errors
    /// Storage errors, and those of [`Manifest::from_bytes`].
    pub async fn latest(storage: &Storage) -> Result<Option<Self>> {
        let newest = storage
            .list(META)
            .await?
            .into_iter()
            .filter_map(|l| {
                let name = l.path.strip_prefix(META)?.strip_prefix("/manifest-")?.strip_suffix(".json")?;
                name.parse::<u64>().ok()
            })
            .max();
        let Some(version) = newest else { return Ok(None) };
        Self::read(storage, version).await.map(Some)
    }

    /// Version `version` of `storage`.
    ///
    /// # Errors
    /// Storage errors, and those of [`Manifest::from_bytes`].
    pub async fn read(storage: &Storage, version: u64) -> Result<Self> {
        let path = Self::path(version);
        let manifest = Self::from_bytes(&storage.get(&path).await?, &storage.url(&path))?;
        if manifest.version != version {
            return Err(Error::corrupt(storage.url(&path), format!("it says it is version {}", manifest.version)));
        }
        Ok(manifest)
    }

    /// This manifest, as another names it.
    ///
    /// # Errors
    /// As [`Manifest::to_bytes`].
    pub fn reference(&self) -> Result<ParentRef> {
        Ok(ParentRef { version: self.version, digest: self.digest()? })
    }

    /// The newest manifest, which must be of `kind`.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none, [`Error::Usage`] when it is of the other kind, and those of [`Manifest::latest`].
    pub async fn require(storage: &Storage, kind: ManifestKind) -> Result<Self> {
        let manifest = Self::latest(storage).await?.ok_or_else(|| Error::NotFound {
            url: storage.url(META),
            help: match kind {
                ManifestKind::Dataset => "this is not a gristmill data set; make one with `gristmill ingest`".into(),
                ManifestKind::Shards => "this is not a shard set; make one with `gristmill shard`".into(),
            },
        })?;
        if manifest.kind != kind {
            let (is, help) = match manifest.kind {
                ManifestKind::Dataset => ("a data set, not shards", "make shards of it with `gristmill shard`"),
                ManifestKind::Shards => ("shards, not a data set", "give the data set they were made from"),
            };
            return Err(Error::usage(format!("{} holds {is}", storage.url("")), help));
        }
        Ok(manifest)
    }

    /// Publishes this manifest as its version, the last step of a job. When the version exists with the same bytes,
    /// an earlier run of the same job had published it, which is as good.
    ///
    /// # Errors
    /// [`Error::Conflict`] when another manifest has the version.
    pub async fn publish(&self, storage: &Storage) -> Result<()> {
        let path = Self::path(self.version);
        let bytes = self.to_bytes()?;
        if storage.put_if_absent(&path, bytes.clone()).await? || storage.get(&path).await? == bytes {
            return Ok(());
        }
        Err(Error::Conflict {
            url: storage.url(&path),
            what: "another job's manifest".into(),
            help: "give another --out, or remove what is there".into(),
        })
    }
}

/// Digest of a job: BLAKE3 over canonical JSON (object keys sorted) of its semantic options, input and kind.
///
/// # Errors
/// [`Error::Json`] when an option can't be written.
pub fn job_digest(
    kind: ManifestKind,
    options: &serde_json::Value,
    input: &InputRef,
    parent: Option<&ParentRef>,
) -> Result<String> {
    // serde_json's maps are sorted by key (the `preserve_order` feature is off), so this text is canonical.
    let text = serde_json::to_string(&serde_json::json!({
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "options": options,
        "input": input,
        "parent": parent,
    }))
    .map_err(|source| Error::Json { url: "job".into(), source })?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}

/// What is already at an output.
#[derive(Debug)]
pub enum Existing {
    /// Nothing published: do the work.
    Nothing,
    /// The same job's output: nothing to do.
    Current(Box<Manifest>),
}

/// Whether `storage` already holds the output of `job`; with `append` another's is what it adds to.
///
/// # Errors
/// [`Error::Conflict`] when it holds another job's output, or files that no manifest explains.
pub async fn existing(storage: &Storage, kind: ManifestKind, job: &str, append: bool) -> Result<Existing> {
    let Some(manifest) = Manifest::latest(storage).await? else { return Ok(Existing::Nothing) };
    if manifest.job == job && manifest.kind == kind {
        return match missing(storage, &manifest).await? {
            None => Ok(Existing::Current(Box::new(manifest))),
            // The same job gives the same bytes, so doing it again restores what is gone.
            Some(path) => {
                tracing::warn!(
                    "{} is not what was written: {path} is missing or has another size; writing it again",
                    storage.url("")
                );
                Ok(Existing::Nothing)
            }
        };
    }
    if append && manifest.kind == kind {
        return Ok(Existing::Nothing);
    }
    Err(Error::Conflict {
        url: storage.url(""),
        what: match manifest.kind {
            ManifestKind::Dataset => "a data set made from other input or options".into(),
            ManifestKind::Shards => "shards made from other input or options".into(),
        },
        help: match kind {
            ManifestKind::Dataset => "give another --out, or remove that folder first".into(),
            ManifestKind::Shards => {
                "give another --out, remove that folder first, or, where files were added to the input, --append".into()
            }
        },
    })
}

/// A file that `manifest` names and that is missing or of another size; the bytes are for `verify` to read.
async fn missing(storage: &Storage, manifest: &Manifest) -> Result<Option<String>> {
    let sizes: BTreeMap<String, u64> = storage.list("").await?.into_iter().map(|l| (l.path, l.bytes)).collect();
    let differs = |path: &str, bytes: u64| sizes.get(path) != Some(&bytes);
    if let Some(table) = manifest.tables.values().find(|t| differs(&t.path, t.bytes)) {
        return Ok(Some(table.path.clone()));
    }
    let lists = match (tables::read_files(storage, manifest).await, tables::read_reject_files(storage, manifest).await)
    {
        (Ok(files), Ok(rejects)) => [files, rejects].concat(),
        (Err(e), _) | (_, Err(e)) if e.kind() == ErrorKind::Corrupt => return Ok(Some(e.to_string())),
        (Err(e), _) | (_, Err(e)) => return Err(e),
    };
    Ok(lists.into_iter().find(|f| differs(&f.path, f.bytes)).map(|f| f.path))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Manifest {
        Manifest {
            format_version: FORMAT_VERSION,
            kind: ManifestKind::Dataset,
            version: 1,
            job: "00".into(),
            input: InputRef { kind: "files".into(), digest: "11".into() },
            options: serde_json::json!({}),
            seed: 0,
            schema: DatasetSchema::default(),
            rows: 0,
            tables: BTreeMap::new(),
            ingest: None,
            layout: None,
            balance: None,
            parent: None,
        }
    }

    #[tokio::test]
    async fn publishing_is_once_and_idempotent() {
        let storage = Storage::memory();
        assert!(Manifest::latest(&storage).await.unwrap().is_none());
        let manifest = sample();
        manifest.publish(&storage).await.unwrap();
        manifest.publish(&storage).await.unwrap();
        let other = Manifest { job: "22".into(), ..sample() };
        assert!(matches!(other.publish(&storage).await, Err(Error::Conflict { .. })));
        assert_eq!(Manifest::latest(&storage).await.unwrap().unwrap(), manifest);
        // It names no files table, so it is no whole set.
        assert!(matches!(existing(&storage, ManifestKind::Dataset, "00", false).await.unwrap(), Existing::Nothing));
        assert!(existing(&storage, ManifestKind::Dataset, "33", false).await.is_err());
        assert!(Manifest::require(&storage, ManifestKind::Shards).await.is_err());
    }

    #[test]
    fn unknown_versions_fields_and_bytes_are_refused() {
        let good = sample().to_bytes().unwrap();
        assert_eq!(Manifest::from_bytes(&good, "m").unwrap(), sample());
        let text = String::from_utf8(good).unwrap();
        let newer = text.replace("\"format_version\": 2", "\"format_version\": 3");
        assert!(matches!(Manifest::from_bytes(newer.as_bytes(), "m"), Err(Error::FormatVersion { found: 3, .. })));
        for cut in 0..text.len() {
            assert!(Manifest::from_bytes(&text.as_bytes()[..cut], "m").is_err());
        }
        for at in 0..text.len() {
            let mut flipped = text.clone().into_bytes();
            flipped[at] ^= 1;
            assert!(Manifest::from_bytes(&flipped, "m").is_err(), "byte {at}");
        }
    }

    #[test]
    fn lanes_and_nodes_add_up() {
        let split = SplitInfo { name: "s".into(), share: "1/1".into(), rows: 1003, first_node: 3, files_per_lane: 1 };
        assert_eq!((0..32).map(|v| split.lane_rows(v, 32)).sum::<u64>(), 1003);
        assert_eq!(split.node_of(0, 4), 3);
        assert_eq!(split.node_of(1, 4), 0);
    }
}
