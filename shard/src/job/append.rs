//! New versions: what a set had before.

use std::{collections::BTreeMap, sync::Arc};

use super::ShardOptions;
use crate::{
    error::{Error, Result},
    input::Input,
    manifest::{Manifest, ManifestKind, ParentRef, job_digest},
    statistics::StatisticsBuilder,
    storage::Storage,
    tables::{self, FileEntry, InputEntry, KeyEntry, SidecarEntry, StratumEntry},
};

/// The version that a job adds to; nothing for the first.
#[derive(Debug, Default)]
pub(super) struct Appended {
    pub(super) parent: Option<Box<Manifest>>,
    pub(super) inputs: Vec<InputEntry>,
    pub(super) files: Vec<FileEntry>,
    pub(super) strata: Vec<StratumEntry>,
    pub(super) keys: Vec<KeyEntry>,
    pub(super) sidecars: Vec<SidecarEntry>,
    pub(super) statistics: Vec<(String, String, StatisticsBuilder)>,
    pub(super) categories: Vec<tables::CategoryEntry>,
    lane_files: BTreeMap<(String, u32), u32>,
}

/// The version that `options` add to, at `out`.
pub(super) async fn parent(out: &Storage, options: &ShardOptions, input: &Input) -> Result<Option<ParentRef>> {
    if !options.append {
        return Ok(None);
    }
    let Some(latest) = Manifest::latest(out).await?.filter(|m| m.kind == ManifestKind::Shards) else { return Ok(None) };
    // The same command again: what it was to add is there.
    let digest = job_digest(ManifestKind::Shards, &options.semantic(), &input.reference, latest.parent.as_ref())?;
    if digest == latest.job {
        return Ok(latest.parent);
    }
    latest.reference().map(Some)
}

impl Appended {
    /// Reads what version `parent` of `out` has, and brings the files of `input` into its order, new ones last.
    pub(super) async fn new(
        out: &Storage,
        parent: Option<ParentRef>,
        input: &mut Input,
        options: &ShardOptions,
    ) -> Result<Self> {
        let Some(parent) = parent else { return Ok(Self::default()) };
        let manifest = Manifest::read(out, parent.version).await?;
        same_options(out, &manifest, options)?;
        if manifest.schema != input.schema {
            return Err(Error::usage(
                format!("{} has other columns than {}", input.storage.url(""), out.url("")),
                "bring the new files to the schema of the old ones",
            ));
        }
        let inputs = tables::read_inputs(out, &manifest).await?;
        let mut old = Vec::with_capacity(inputs.len());
        for entry in &inputs {
            let file = input.files.iter().find(|f| f.path() == entry.path);
            let same = file.filter(|f| f.rows() == entry.rows && f.footer_blake3() == entry.footer_blake3);
            old.push(Arc::clone(same.ok_or_else(|| {
                Error::Data {
                    url: input.storage.url(&entry.path),
                    what: match file {
                        Some(_) => "it is not the file that was sharded".into(),
                        None => "it was sharded and is no longer there".into(),
                    },
                    help:
                        "a version adds files and changes none: restore the file, or shard the whole into another --out"
                            .into(),
                }
            })?));
        }
        let new = input.files.iter().filter(|f| inputs.iter().all(|i| i.path != f.path())).cloned();
        input.files = old.iter().cloned().chain(new).collect();
        let files = tables::read_files(out, &manifest).await?;
        let mut lane_files = BTreeMap::new();
        for file in &files {
            let next = lane_files.entry((file.split.clone(), file.lane)).or_insert(0);
            *next = (*next).max(file.sequence + 1);
        }
        Ok(Self {
            inputs,
            files,
            lane_files,
            strata: tables::read_strata(out, &manifest).await?,
            keys: tables::read_keys(out, &manifest).await?,
            sidecars: tables::read_sidecars(out, &manifest).await?,
            statistics: tables::read_statistics_state(out, &manifest).await?,
            categories: tables::read_categories(out, &manifest).await?,
            parent: Some(Box::new(manifest)),
        })
    }

    /// Ordinal of the first file of the input that is new.
    pub(super) fn first_file(&self) -> usize {
        self.inputs.len()
    }

    /// Rows that each split has.
    pub(super) fn rows_before(&self, splits: usize) -> Vec<u64> {
        let layout = self.parent.as_ref().and_then(|m| m.layout.as_ref());
        (0..splits).map(|s| layout.and_then(|l| l.splits.get(s)).map_or(0, |s| s.rows)).collect()
    }

    /// Node of lane 0 of a split.
    pub(super) fn first_node(&self, split: &str) -> Option<u32> {
        let layout = self.parent.as_ref()?.layout.as_ref()?;
        layout.splits.iter().find(|s| s.name == split).map(|s| s.first_node)
    }

    /// Files that a lane has.
    pub(super) fn files_before(&self, split: &str, lane: u32) -> u32 {
        self.lane_files.get(&(split.to_owned(), lane)).copied().unwrap_or(0)
    }

    /// Version to be published.
    pub(super) fn version(&self) -> u64 {
        self.parent.as_ref().map_or(1, |m| m.version + 1)
    }
}

/// Refuses to add to shards that were made with other options.
fn same_options(out: &Storage, manifest: &Manifest, options: &ShardOptions) -> Result<()> {
    let wanted = options.semantic();
    let (Some(old), Some(new)) = (manifest.options.as_object(), wanted.as_object()) else { return Ok(()) };
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differ: Vec<String> = (names.into_iter())
        .filter(|name| old.get(*name) != new.get(*name))
        .map(|name| {
            let show = |v: Option<&serde_json::Value>| v.map_or("nothing".to_owned(), ToString::to_string);
            format!("{name} was {} and is {}", show(old.get(name)), show(new.get(name)))
        })
        .collect();
    if differ.is_empty() {
        return Ok(());
    }
    Err(Error::usage(
        format!("{} was made with other options: {}", out.url(""), differ.join("; ")),
        "give the same options with --append, or another --out",
    ))
}
