//! Reading and publishing in the run folder. Rank 0 alone does it.

use std::collections::BTreeMap;

use bytes::Bytes;
use gristmill_shard::{Error as ShardError, Storage};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::{
    config::TrainConfig,
    error::{Error, Result},
    report::{REPORT_VERSION, TrainReport},
};

use super::manifest::{CHECKPOINT_VERSION, CheckpointManifest, FileRef, read_versioned, to_json};

const RUN: &str = "run.json";
const REPORT: &str = "report.json";
const FINISHED: &str = "finished.json";
const METRICS: &str = "metrics.jsonl";
const CHECKPOINTS: &str = "checkpoints";
const MANIFEST: &str = "manifest.json";
const MODEL: &str = "model";

/// Whose folder it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunRecord {
    format_version: u64,
    config_digest: String,
    config: TrainConfig,
}

/// The last thing that a run publishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finished {
    /// [`CHECKPOINT_VERSION`] of the writer.
    pub format_version: u64,
    /// Digest of what decides the parameters.
    pub config_digest: String,
    /// Digest of what decides the report.
    pub report_digest: String,
    /// `report.json`.
    pub report: FileRef,
    /// The model's parameters, below `model/`.
    pub model: FileRef,
}

/// A data file to be written.
#[derive(Debug, Clone)]
pub struct DataFile {
    /// What it holds.
    pub role: &'static str,
    /// Extension of its name.
    pub extension: &'static str,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// A checkpoint, read and checked.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Its manifest.
    pub manifest: CheckpointManifest,
    /// Its files by what they hold.
    pub files: BTreeMap<String, Bytes>,
}

/// The run folder.
///
/// Its methods block on storage, so they must not be called from inside an async task.
#[derive(Debug, Clone)]
pub struct RunFolder {
    storage: Storage,
    runtime: Handle,
    keep: usize,
}

/// Whether this crate writes a file of that path.
fn is_ours(path: &str) -> bool {
    match path.split_once('/') {
        Some((folder, _)) => folder == MODEL || folder == CHECKPOINTS,
        None => [RUN, METRICS, REPORT, FINISHED].contains(&path),
    }
}

impl RunFolder {
    /// The folder at `storage`, of which the newest `keep` checkpoints are kept.
    ///
    /// # Errors
    /// [`Error::Internal`] when called from inside an async task, where waiting would hold up the runtime.
    pub fn new(storage: Storage, runtime: Handle, keep: usize) -> Result<Self> {
        if Handle::try_current().is_ok() {
            return Err(Error::internal("training was started from inside an async task; give it a thread of its own"));
        }
        Ok(Self { storage, runtime, keep: keep.max(1) })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        self.storage.url("")
    }

    /// URL of the folder that holds the model.
    #[must_use]
    pub fn model_url(&self) -> String {
        self.storage.url(MODEL)
    }

    /// Takes the folder for the run of `config`, and removes what a killed writer left half-written.
    ///
    /// # Errors
    /// [`Error::Conflict`] when it is the folder of a run of other settings or data; storage errors.
    pub fn claim(&self, config: &TrainConfig, config_digest: &str) -> Result<()> {
        let record = RunRecord {
            format_version: CHECKPOINT_VERSION,
            config_digest: config_digest.to_owned(),
            config: config.clone(),
        };
        let bytes = to_json(&record, RUN)?;
        self.runtime.block_on(async {
            if self.storage.put_if_absent(RUN, bytes.clone()).await? {
                return Ok(());
            }
            let stored = self.storage.get(RUN).await?;
            let found: RunRecord = read_versioned(&stored, &self.storage.url(RUN), CHECKPOINT_VERSION)?;
            if found.config_digest != config_digest {
                return Err(self.conflict(&differing_settings(&found.config, config)));
            }
            if stored != bytes {
                self.storage.put(RUN, bytes).await?;
            }
            self.storage.remove_half_written("", is_ours).await?;
            Ok(())
        })
    }

    fn conflict(&self, differences: &str) -> Error {
        Error::Conflict {
            url: self.url(),
            what: format!("a run of other settings or data ({differences})"),
            help: "give another checkpoint.url, or remove that folder first".to_owned(),
        }
    }

    /// The report of a run that is done: `Some` when nothing is left to do.
    ///
    /// # Errors
    /// Storage errors; a document that is corrupt counts as not done, with a warning.
    pub fn finished(&self, config_digest: &str, report_digest: &str) -> Result<Option<TrainReport>> {
        let url = self.storage.url(FINISHED);
        let Some(bytes) = self.get_if_there(FINISHED)? else { return Ok(None) };
        let finished: Finished = match read_versioned(&bytes, &url, CHECKPOINT_VERSION) {
            Ok(finished) => finished,
            Err(e @ Error::FormatVersion { .. }) => return Err(e),
            Err(e) => {
                tracing::warn!("{e}; the run is finished anew from its last checkpoint");
                return Ok(None);
            }
        };
        if finished.config_digest != config_digest || finished.report_digest != report_digest {
            return Ok(None);
        }
        let report = self.get_if_there(REPORT)?;
        let model = self.get_if_there(&format!("{MODEL}/{}", finished.model.name))?;
        for (file, content, path) in
            [(&finished.report, &report, REPORT), (&finished.model, &model, finished.model.name.as_str())]
        {
            let fault = match content {
                None => Some("it is missing".to_owned()),
                Some(content) => file.fault(content),
            };
            if let Some(fault) = fault {
                tracing::warn!("{}: {path}: {fault}; it is made anew from the last checkpoint", self.url());
                return Ok(None);
            }
        }
        let Some(report) = report else { return Ok(None) };
        read_versioned(&report, &self.storage.url(REPORT), REPORT_VERSION).map(Some)
    }

    /// The newest checkpoint that is whole. Corrupt and partial ones are passed over with a warning.
    ///
    /// # Errors
    /// [`Error::Conflict`] for one of another run, [`Error::FormatVersion`] for one of another format; storage errors
    /// other than a missing file, since a store that can't be reached is no reason to go back in time.
    pub fn newest(&self, config_digest: &str) -> Result<Option<Loaded>> {
        for step in self.steps()?.into_iter().rev() {
            match self.read(step, config_digest) {
                Ok(Some(loaded)) => return Ok(Some(loaded)),
                Ok(None) => {}
                Err(e @ Error::Corrupt { .. }) => tracing::warn!("checkpoint of step {step} is passed over: {e}"),
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Steps with a published checkpoint, ascending.
    fn steps(&self) -> Result<Vec<u64>> {
        let listed = self.runtime.block_on(self.storage.list(CHECKPOINTS))?;
        let mut steps: Vec<u64> = listed
            .iter()
            .filter_map(|l| {
                let (folder, name) = l.path.strip_prefix(CHECKPOINTS)?.trim_start_matches('/').split_once('/')?;
                if name == MANIFEST { step_of(folder) } else { None }
            })
            .collect();
        steps.sort_unstable();
        steps.dedup();
        Ok(steps)
    }

    fn read(&self, step: u64, config_digest: &str) -> Result<Option<Loaded>> {
        let folder = folder_of(step);
        let path = format!("{folder}/{MANIFEST}");
        let url = self.storage.url(&path);
        let Some(bytes) = self.get_if_there(&path)? else { return Ok(None) };
        let manifest: CheckpointManifest = read_versioned(&bytes, &url, CHECKPOINT_VERSION)?;
        if manifest.step != step {
            return Err(Error::corrupt(url, format!("it says it is of step {}", manifest.step)));
        }
        if manifest.config_digest != config_digest {
            return Err(self.conflict(&format!("see {url}")));
        }
        let mut files = BTreeMap::new();
        for (role, file) in &manifest.files {
            let path = format!("{folder}/{}", file.name);
            let url = self.storage.url(&path);
            let content = self.get_if_there(&path)?.ok_or_else(|| Error::corrupt(&url, "it is missing"))?;
            if let Some(fault) = file.fault(&content) {
                return Err(Error::corrupt(url, fault));
            }
            files.insert(role.clone(), content);
        }
        Ok(Some(Loaded { manifest, files }))
    }

    fn get_if_there(&self, path: &str) -> Result<Option<Bytes>> {
        match self.runtime.block_on(self.storage.get(path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ShardError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Publishes a checkpoint: data files first, the manifest last. `manifest.files` is filled in from `files`. Then
    /// `metrics.jsonl` becomes its log, and older checkpoints beyond those to keep go, with all debris.
    ///
    /// # Errors
    /// Storage errors.
    pub fn publish(&self, mut manifest: CheckpointManifest, files: Vec<DataFile>) -> Result<()> {
        let folder = folder_of(manifest.step);
        let log = files.iter().find(|f| f.role == "log").map(|f| Bytes::from(f.content.clone()));
        manifest.files =
            files.iter().map(|f| (f.role.to_owned(), FileRef::of(f.role, f.extension, &f.content))).collect();
        let bytes = to_json(&manifest, MANIFEST)?;
        self.runtime.block_on(async {
            for file in files {
                let Some(name) = manifest.files.get(file.role).map(|f| f.name.as_str()) else { continue };
                // A corrupt file of that name may be what made the run come this way again: always write.
                self.storage.put(&format!("{folder}/{name}"), file.content).await?;
            }
            let path = format!("{folder}/{MANIFEST}");
            if !self.storage.put_if_absent(&path, bytes.clone()).await? && self.storage.get(&path).await? != bytes {
                self.storage.put(&path, bytes).await?;
            }
            if let Some(log) = log {
                self.storage.put(METRICS, log).await?;
            }
            Ok::<_, Error>(())
        })?;
        self.remove_old(manifest.step, &manifest)
    }

    /// Puts `metrics.jsonl` back to the log of a checkpoint that the run goes on from.
    ///
    /// # Errors
    /// Storage errors.
    pub fn roll_back_log(&self, log: &[u8]) -> Result<()> {
        let log = Bytes::copy_from_slice(log);
        Ok(self.runtime.block_on(self.storage.put(METRICS, log))?)
    }

    fn remove_old(&self, newest: u64, manifest: &CheckpointManifest) -> Result<()> {
        let published = self.steps()?;
        // Checkpoints of later steps are those that were passed over as corrupt, which this run has not reached yet.
        let mut kept: Vec<u64> = published.iter().rev().copied().filter(|s| *s <= newest).take(self.keep).collect();
        kept.push(newest);
        let names: Vec<&str> = manifest.files.values().map(|f| f.name.as_str()).collect();
        self.runtime.block_on(async {
            let listed = self.storage.list(CHECKPOINTS).await?;
            let mut gone: Vec<u64> = Vec::new();
            for object in &listed {
                let Some((folder, name)) =
                    object.path.strip_prefix(CHECKPOINTS).and_then(|p| p.trim_start_matches('/').split_once('/'))
                else {
                    continue;
                };
                let Some(step) = step_of(folder) else { continue };
                if !kept.contains(&step) {
                    gone.push(step);
                } else if step == newest && name != MANIFEST && !names.contains(&name) {
                    self.storage.delete(&object.path).await?;
                }
            }
            gone.sort_unstable();
            gone.dedup();
            for step in gone {
                let folder = folder_of(step);
                // The manifest first: half a checkpoint without it is debris, with it a corruption to be warned of.
                self.storage.delete(&format!("{folder}/{MANIFEST}")).await?;
                self.storage.delete_prefix(&folder).await?;
            }
            Ok(())
        })
    }

    /// Publishes the model: parameters under a name by content, then `model.json` that describes them.
    ///
    /// # Errors
    /// Storage errors.
    pub fn publish_model(&self, parameters: Vec<u8>, description: &serde_json::Value) -> Result<FileRef> {
        let file = FileRef::of("model", "safetensors", &parameters);
        let mut description = description.clone();
        description["parameters"] = serde_json::to_value(&file).map_err(|e| Error::internal(e.to_string()))?;
        let json = to_json(&description, "model.json")?;
        self.runtime.block_on(async {
            self.storage.put(&format!("{MODEL}/{}", file.name), parameters).await?;
            self.storage.put(&format!("{MODEL}/model.json"), json).await?;
            for object in self.storage.list(MODEL).await? {
                if object.path.ends_with(".safetensors") && !object.path.ends_with(&file.name) {
                    self.storage.delete(&object.path).await?;
                }
            }
            Ok::<_, Error>(())
        })?;
        Ok(file)
    }

    /// Publishes the report, and last of all that the run is done.
    ///
    /// # Errors
    /// Storage errors.
    pub fn finish(&self, report: &TrainReport, model: FileRef, config_digest: &str, report_digest: &str) -> Result<()> {
        let bytes = to_json(report, REPORT)?;
        let mut file = FileRef::of("report", "json", &bytes);
        REPORT.clone_into(&mut file.name);
        let finished = Finished {
            format_version: CHECKPOINT_VERSION,
            config_digest: config_digest.to_owned(),
            report_digest: report_digest.to_owned(),
            report: file,
            model,
        };
        let done = to_json(&finished, FINISHED)?;
        self.runtime.block_on(async {
            self.storage.put(REPORT, bytes).await?;
            self.storage.put(FINISHED, done).await?;
            Ok(())
        })
    }
}

fn folder_of(step: u64) -> String {
    format!("{CHECKPOINTS}/step-{step:012}")
}

fn step_of(folder: &str) -> Option<u64> {
    folder.strip_prefix("step-")?.parse().ok()
}

/// The keys in which two configurations differ, dotted.
fn differing_settings(stored: &TrainConfig, given: &TrainConfig) -> String {
    let (Ok(stored), Ok(given)) = (serde_json::to_value(stored), serde_json::to_value(given)) else {
        return "its run.json differs".to_owned();
    };
    let mut keys = Vec::new();
    differing_keys("", &stored, &given, &mut keys);
    if keys.is_empty() {
        "the shards' manifest differs".to_owned()
    } else {
        format!("they differ in {}", keys.join(", "))
    }
}

fn differing_keys(path: &str, a: &serde_json::Value, b: &serde_json::Value, keys: &mut Vec<String>) {
    match (a, b) {
        (serde_json::Value::Object(a), serde_json::Value::Object(b)) => {
            let null = serde_json::Value::Null;
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                differing_keys(&below, a.get(name).unwrap_or(&null), b.get(name).unwrap_or(&null), keys);
            }
        }
        (a, b) if a == b => {}
        _ => keys.push(path.to_owned()),
    }
}
