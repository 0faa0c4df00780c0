//! The one configuration schema, of `run` and `train`:
//! `[ingest] [shard] [loader] [train] [launch] [storage."url"]`.
//!
//! Layers, each over the one before: defaults, the file, the environment (`GRISTMILL_TRAIN__EPOCHS=3` is
//! `train.epochs`), `--set train.epochs=3`. Unknown keys are refused with the nearest valid one.

use std::{
    collections::BTreeMap,
    num::NonZeroU16,
    path::{Path, PathBuf},
};

use bytesize::ByteSize;
use figment::{
    Figment,
    error::Kind,
    providers::{Env, Format as _, Serialized, Toml},
};
use gristmill_ingest::{CsvOptions, IngestOptions, MaxRejects, OnError, read_schema_file};
use gristmill_shard::{
    ErrorKind, StorageOptions,
    assign::{
        resample::{Resample, Total},
        rounding::Shares,
    },
    job::{GroupScope, RarePolicy, ShardOptions},
    nearest_name,
    schema::Role,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    args::{RareArg, ScopeArg, TotalArg},
    failure::Failure,
};

/// Environment variables with this prefix and a `__` set keys.
const PREFIX: &str = "GRISTMILL_";
/// A variable with the prefix that is no key.
pub(crate) const LOG_VARIABLE: &str = "GRISTMILL_LOG";
/// Names the S3 server of the tests.
const TEST_SERVER_VARIABLE: &str = "GRISTMILL_WEED";

/// A whole pipeline. `T` is the type of `[train]`: `gristmill-train` knows it, the other commands only pass it on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline<T = toml::Table> {
    /// Raw files to a data set.
    #[serde(default)]
    pub ingest: Option<IngestSection>,
    /// Data set to shards.
    #[serde(default)]
    pub shard: Option<ShardSection>,
    /// How training reads data; the same as `[train.loader]`.
    #[serde(default)]
    #[allow(dead_code, reason = "read through the layers as train.loader; named here so that the key is known")]
    loader: Option<toml::Table>,
    /// Shards to a model.
    pub train: Option<T>,
    /// How ranks are started.
    #[serde(default)]
    pub launch: LaunchSection,
    /// Storage options by URL prefix.
    #[serde(default)]
    pub storage: BTreeMap<String, StorageOptions>,
}

/// `[ingest]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IngestSection {
    /// Files, folders, patterns.
    pub sources: Vec<String>,
    /// Where the data set goes.
    pub out: String,
    /// Schema file.
    #[serde(default)]
    pub schema: Option<String>,
    /// Row-wise query.
    #[serde(default)]
    pub sql: Option<String>,
    /// What a bad row does.
    #[serde(default)]
    pub on_error: OnError,
    /// Bad rows that are too many.
    #[serde(default)]
    pub max_rejects: MaxRejects,
    /// Roles of columns.
    #[serde(default)]
    pub roles: BTreeMap<String, Role>,
    /// How CSV is read.
    #[serde(default)]
    pub csv: CsvOptions,
}

/// `[shard]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardSection {
    /// Data set; `[ingest] out` when absent.
    #[serde(default)]
    pub dataset: Option<String>,
    /// Where the shards go.
    pub out: String,
    /// Machines.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Lanes.
    #[serde(default)]
    pub lanes: Option<u32>,
    /// Stratify columns.
    #[serde(default)]
    pub stratify: Vec<String>,
    /// Bins of stratify columns that enter by quantiles.
    #[serde(default)]
    pub bins: BTreeMap<String, u32>,
    /// Label columns.
    #[serde(default)]
    pub labels: Vec<String>,
    /// What stands between the labels of a text column.
    #[serde(default)]
    pub label_separator: Option<String>,
    /// What becomes of rare strata.
    #[serde(default)]
    pub rare: RareArg,
    /// Rows below which a stratum is rare.
    #[serde(default)]
    pub rare_below: Option<u64>,
    /// Rows of every stratum on every machine, by copying.
    #[serde(default)]
    pub at_least: u64,
    /// `COLUMN=balanced`, `COLUMN=sqrt` or `COLUMN=0.5,0.5`.
    #[serde(default)]
    pub resample: Option<String>,
    /// Rows in all after resampling.
    #[serde(default)]
    pub resample_total: TotalArg,
    /// Splits that are resampled.
    #[serde(default)]
    pub resample_splits: Vec<String>,
    /// Column whose hash decides the split.
    #[serde(default)]
    pub stable_split: Option<String>,
    /// Column of groups.
    #[serde(default)]
    pub group: Option<String>,
    /// What groups may not straddle.
    #[serde(default)]
    pub group_scope: ScopeArg,
    /// How far groups may force a part above its share.
    #[serde(default)]
    pub max_imbalance: Option<f64>,
    /// Column of weights.
    #[serde(default)]
    pub balance: Option<String>,
    /// Column of difficulty.
    #[serde(default)]
    pub difficulty: Option<String>,
    /// More sidecars.
    #[serde(default)]
    pub sidecars: Vec<String>,
    /// Splits and shares.
    #[serde(default)]
    pub split: Option<String>,
    /// Seed.
    #[serde(default)]
    pub seed: u64,
    /// Decoded bytes that a file aims at.
    #[serde(default = "shard_bytes")]
    pub shard_bytes: ByteSize,
    /// Memory to stay within.
    #[serde(default = "memory")]
    pub memory: ByteSize,
}

/// `[launch]`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSection {
    /// Ranks to start on this machine.
    #[serde(default)]
    pub nproc: Option<NonZeroU16>,
}

fn one() -> u32 {
    1
}
fn shard_bytes() -> ByteSize {
    ByteSize::mib(128)
}
fn memory() -> ByteSize {
    ByteSize::gib(1)
}

impl<T: DeserializeOwned> Pipeline<T> {
    /// Reads the layers; relative paths in the file are relative to the file.
    ///
    /// # Errors
    /// [`Failure`] of kind usage, naming file, key and nearest valid key; a file that can't be read.
    pub fn read(path: &Path, overrides: &[String]) -> anyhow::Result<Self> {
        let text = read_text(path)?;
        refuse_odd_variables()?;
        // Parsed on its own first: toml's message shows the line.
        toml::from_str::<toml::Table>(&text)
            .map_err(|e| Failure::usage(format!("{} is not TOML: {e}", path.display()), "mend the line it names"))?;
        let mut layers = Figment::new().merge(Toml::string(&text));
        layers = layers.merge(Env::prefixed(PREFIX).filter(|key| key.as_str().contains("__")).split("__"));
        for given in overrides {
            layers = layers.merge(Toml::string(&override_line(given)?));
        }
        // Defaults that follow from other keys.
        if let (Ok(out), Ok(_)) = (layers.find_value("shard.out"), layers.find_value("train")) {
            layers = layers.join(Serialized::default("train.data.shards", out));
        }
        if let Ok(loader) = layers.find_value("loader") {
            if layers.contains("train.loader") {
                return Err(Failure::usage(
                    format!("{}: both [loader] and [train.loader] are given", path.display()),
                    "keep one of them",
                ));
            }
            layers = layers.merge(Serialized::default("train.loader", loader));
        }
        // These two are in the section whose type is not known here.
        let folder = path.parent().unwrap_or(Path::new(""));
        for key in ["train.data.shards", "train.checkpoint.url"] {
            if let Some(url) = layers.find_value(key).ok().as_ref().and_then(|v| v.as_str()) {
                layers = layers.merge(Serialized::default(key, resolved(folder, url)));
            }
        }
        let mut pipeline: Self = layers.extract().map_err(|e| explain(&e, path))?;
        pipeline.resolve(folder);
        Ok(pipeline)
    }

    fn resolve(&mut self, folder: &Path) {
        let at = |url: &mut String| *url = resolved(folder, url);
        if let Some(ingest) = &mut self.ingest {
            ingest.sources.iter_mut().for_each(at);
            at(&mut ingest.out);
            ingest.schema.iter_mut().for_each(at);
        }
        if let Some(shard) = &mut self.shard {
            shard.dataset.iter_mut().for_each(at);
            at(&mut shard.out);
        }
    }

    /// Options of `[storage."prefix"]` with the longest prefix of `url`.
    pub fn storage_of(&self, url: &str) -> StorageOptions {
        self.storage
            .iter()
            .filter(|(prefix, _)| url.starts_with(prefix.as_str()))
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, options)| options.clone())
            .unwrap_or_default()
    }

    /// The `[train]` section, which must be there.
    ///
    /// # Errors
    /// [`Failure`] of kind usage when it is not.
    pub fn train(&self, path: &Path) -> anyhow::Result<&T> {
        self.train.as_ref().ok_or_else(|| {
            Failure::usage(
                format!("{} has no [train] section", path.display()),
                "add one; examples/flights.toml shows how",
            )
        })
    }
}

impl IngestSection {
    /// Options of the job.
    ///
    /// # Errors
    /// For a schema file that can't be read.
    pub fn options(&self) -> anyhow::Result<IngestOptions> {
        let schema = self.schema.as_ref().map(|s| read_schema_file(Path::new(s))).transpose()?;
        Ok(IngestOptions {
            schema,
            sql: self.sql.clone(),
            on_error: self.on_error,
            max_rejects: self.max_rejects,
            roles: self.roles.clone(),
            csv: self.csv.clone(),
            ..IngestOptions::new(self.sources.clone())
        })
    }
}

impl ShardSection {
    fn total(&self) -> Total {
        match self.resample_total {
            TotalArg::Same => Total::Same,
            TotalArg::Over => Total::Over,
            TotalArg::Under => Total::Under,
        }
    }

    /// Options of the job.
    ///
    /// # Errors
    /// For shares that are not shares.
    pub fn options(&self) -> anyhow::Result<ShardOptions> {
        Ok(ShardOptions {
            nodes: self.nodes,
            lanes: self.lanes,
            stratify: self.stratify.clone(),
            bins: self.bins.clone(),
            labels: self.labels.clone(),
            label_separator: self.label_separator.clone(),
            rare: match self.rare {
                RareArg::Spread => RarePolicy::Spread,
                RareArg::Merge => RarePolicy::Merge,
                RareArg::Error => RarePolicy::Error,
            },
            rare_below: self.rare_below,
            at_least: self.at_least,
            resample: self.resample.as_deref().map(|text| Resample::parse(text, self.total())).transpose()?,
            resample_splits: self.resample_splits.clone(),
            split_by: self.stable_split.clone(),
            group: self.group.clone(),
            group_scope: match self.group_scope {
                ScopeArg::Split => GroupScope::Split,
                ScopeArg::Node => GroupScope::Node,
            },
            max_imbalance: self.max_imbalance,
            balance: self.balance.clone(),
            difficulty: self.difficulty.clone(),
            sidecars: self.sidecars.clone(),
            task: None,
            append: false,
            splits: self.split.as_deref().map(Shares::parse).transpose()?.unwrap_or_default(),
            seed: self.seed,
            shard_bytes: self.shard_bytes.as_u64(),
            memory_bytes: self.memory.as_u64(),
        })
    }
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let show = path.display();
    let bytes = match fs_err::read(path) {
        Ok(bytes) => bytes,
        Err(e) => {
            return Err(match e.kind() {
                std::io::ErrorKind::NotFound => Failure {
                    kind: ErrorKind::NotFound,
                    what: format!("there is no configuration {show}"),
                    help: "give the path of a TOML file; examples/flights.toml is one".into(),
                }
                .into(),
                std::io::ErrorKind::IsADirectory => {
                    Failure::usage(format!("{show} is a folder"), "give the path of a TOML file")
                }
                _ => e.into(),
            });
        }
    };
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{show} is not UTF-8 text"), "write it as UTF-8"))
}

/// A variable with our prefix that sets nothing is a mistake, most often one `_` for two.
fn refuse_odd_variables() -> anyhow::Result<()> {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && !name.contains("__") && ![LOG_VARIABLE, TEST_SERVER_VARIABLE].contains(&&*name) {
            return Err(Failure::usage(
                format!("the environment variable {name} sets no key"),
                format!("keys have two underscores between their parts, as in {PREFIX}TRAIN__EPOCHS"),
            ));
        }
    }
    Ok(())
}

/// `train.epochs=3` as a line of TOML; a value that is not TOML is text.
fn override_line(given: &str) -> anyhow::Result<String> {
    let (key, value) = given
        .split_once('=')
        .filter(|(key, _)| !key.trim().is_empty())
        .ok_or_else(|| Failure::usage(format!("--set {given} has no value"), "write --set train.epochs=3"))?;
    let (key, value) = (key.trim(), value.trim());
    let line = format!("{key} = {value}");
    if toml::from_str::<toml::Table>(&line).is_ok() {
        return Ok(line);
    }
    let line = format!("{key} = {}", toml::Value::String(value.to_owned()));
    match toml::from_str::<toml::Table>(&line) {
        Ok(_) => Ok(line),
        Err(e) => Err(Failure::usage(format!("--set {given}: {}", e.message()), "write --set train.epochs=3")),
    }
}

fn resolved(folder: &Path, url: &str) -> String {
    if url.contains("://") || Path::new(url).is_absolute() {
        return url.to_owned();
    }
    let mut path = PathBuf::new();
    for part in folder.join(url).components() {
        match part {
            std::path::Component::CurDir => {}
            // `a/../b` is `b`, so that paths in messages read well; a leading `..` stays.
            std::path::Component::ParentDir
                if matches!(path.components().next_back(), Some(std::path::Component::Normal(_))) =>
            {
                path.pop();
            }
            other => path.push(other),
        }
    }
    path.display().to_string()
}

/// figment's error in the words of the file.
fn explain(error: &figment::Error, path: &Path) -> anyhow::Error {
    let from = error.metadata.as_ref().map_or("", |m| m.name.as_ref());
    let origin = match from {
        name if name.starts_with("TOML") || name.contains("::") || name.is_empty() => path.display().to_string(),
        name => format!("{name} over {}", path.display()),
    };
    let key = error.path.join(".");
    let (what, help) = match &error.kind {
        Kind::UnknownField(name, valid) => {
            let mut full = error.path.clone();
            if full.last() != Some(name) {
                full.push(name.clone());
            }
            (format!("unknown key \"{}\"", full.join(".")), nearest_name(name, valid.iter().copied()))
        }
        Kind::UnknownVariant(name, valid) => {
            (format!("key \"{key}\": unknown value \"{name}\""), nearest_name(name, valid.iter().copied()))
        }
        Kind::MissingField(name) => {
            let key = if key.is_empty() { name.to_string() } else { format!("{key}.{name}") };
            (
                format!("key \"{key}\" is missing"),
                "add it; examples/flights.toml shows a whole configuration".to_owned(),
            )
        }
        other => (format!("key \"{key}\": {other}"), "mend that value".to_owned()),
    };
    Failure::usage(format!("{origin}: {what}"), help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.toml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    const GOOD: &str = r#"
        [ingest]
        sources = ["../raw/a.csv", "s3://b/c.csv"]
        out = "clean"
        [shard]
        out = "shards"
        stratify = ["a"]
        shard_bytes = "1MiB"
        [loader]
        prefetch = 9
        [train]
        label = "late"
        features = { numbers = ["x"] }
        checkpoint = { url = "run" }
        [storage."s3://b"]
        aws_region = "eu"
    "#;

    #[test]
    fn layers_paths_and_defaults() {
        let (dir, path) = write(GOOD);
        let p: Pipeline = Pipeline::read(&path, &["train.epochs=7".into(), "train.label=on_time".into()]).unwrap();
        let train = p.train(&path).unwrap();
        assert_eq!(train["epochs"].as_integer(), Some(7));
        assert_eq!(train["label"].as_str(), Some("on_time"));
        assert_eq!(train["loader"]["prefetch"].as_integer(), Some(9));
        assert_eq!(train["data"]["shards"].as_str(), dir.path().join("shards").to_str());
        assert_eq!(train["checkpoint"]["url"].as_str(), dir.path().join("run").to_str());
        let ingest = p.ingest.as_ref().unwrap();
        assert_eq!(ingest.sources[1], "s3://b/c.csv");
        assert_eq!(ingest.sources[0], dir.path().parent().unwrap().join("raw/a.csv").display().to_string());
        assert_eq!(p.shard.as_ref().unwrap().options().unwrap().shard_bytes, 1 << 20);
        assert_eq!(p.storage_of("s3://b/x")["aws_region"], "eu");
        assert!(p.storage_of("s3://other").is_empty());
    }

    #[test]
    fn mistakes_are_named_with_the_nearest_key() {
        for (from, to, text) in [
            ("stratify =", "stratfy =", "did you mean \"stratify\""),
            ("[storage", "[storag", "storag"),
            ("stratify = [\"a\"]", "stratify = 3", "shard.stratify"),
            ("out = \"clean\"", "out = \"clean", "not TOML"),
        ] {
            let (_dir, path) = write(&GOOD.replace(from, to));
            let error = Pipeline::<toml::Table>::read(&path, &[]).unwrap_err().to_string();
            assert!(error.contains(text), "{to}: {error}");
        }
        let (_dir, path) = write(GOOD);
        assert!(Pipeline::<toml::Table>::read(&path, &["train.epochs".into()]).is_err());
        assert!(Pipeline::<toml::Table>::read(Path::new("/nowhere.toml"), &[]).is_err());
    }
}
