//! Settings of a training run: a serde structure with a default for all that has a sensible one, and unknown keys
//! refused.

use std::collections::BTreeMap;

use gristmill_loader::{Predicate, curriculum::Curriculum, sampling::options::Sampling};
use gristmill_shard::{error::nearest_name, schema::DatasetSchema};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    schedule::{ScheduleConfig, ScheduleKind},
};

/// Settings of a training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Where the shards are, and which splits play which part.
    pub data: DataConfig,
    /// Column to predict: true or false, 0 or 1.
    pub label: String,
    /// Columns to predict it from.
    pub features: FeaturesConfig,
    /// The model.
    #[serde(default)]
    pub model: ModelConfig,
    /// The optimizer.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// Learning rate over the run.
    #[serde(default)]
    pub schedule: ScheduleConfig,
    /// Passes over the train split, at least 1. Default 1.
    #[serde(default = "one")]
    pub epochs: u64,
    /// Samples of one optimizer step over all ranks, at least 1. Default 4096.
    #[serde(default = "default_batch")]
    pub global_batch: u64,
    /// Samples that a rank computes at once, at least 1: a memory knob. Default: its whole part of the global batch.
    #[serde(default)]
    pub micro_batch: Option<u64>,
    /// Seed of initial parameters, order and dropout. Default 0.
    #[serde(default)]
    pub seed: u64,
    /// How data are read.
    #[serde(default)]
    pub loader: LoaderConfig,
    /// Where the run is kept.
    pub checkpoint: CheckpointConfig,
    /// Use only deterministic operations, and refuse to resume under other conditions (threads, CPU capability, world
    /// size) instead of warning. Default false.
    #[serde(default)]
    pub deterministic: bool,
    /// Seconds that an operation among the ranks may take, at least 1. Default 300.
    #[serde(default = "default_timeout")]
    pub timeout_s: u64,
    /// When the model is scored.
    #[serde(default)]
    pub evaluate: EvaluateConfig,
    /// What the model is compared with, beside the majority class.
    #[serde(default)]
    pub baseline: Option<BaselineConfig>,
    /// Steps between two lines of the log, at least 1. Default 50.
    #[serde(default = "default_log")]
    pub log_every_steps: u64,
    /// Threads of libtorch in each rank, at least 1. Default: the CPUs of a rank less a quarter (at least one) for the
    /// loader.
    #[serde(default)]
    pub threads: Option<usize>,
}

/// Where the shards are, and which splits play which part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// URL of the shard set.
    pub shards: String,
    /// Split to train on. Default `train`.
    #[serde(default = "default_train")]
    pub train: String,
    /// Split that is scored after each epoch. Default: `validation` when the shard set has it.
    #[serde(default)]
    pub validation: Option<String>,
    /// Split that is scored at the end. Default: `test` when the shard set has it.
    #[serde(default)]
    pub test: Option<String>,
}

/// Columns to predict from. At least one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeaturesConfig {
    /// Numeric columns, normalised by mean and deviation of the train split; null becomes 0, the mean.
    #[serde(default)]
    pub numbers: Vec<String>,
    /// Categorical columns, each value of the train split with an embedding of its own; null and unseen share one.
    #[serde(default)]
    pub categories: Vec<String>,
}

/// The model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Which model. Default `tabular`.
    #[serde(default)]
    pub kind: ModelKind,
    /// Width of the embeddings, or `"auto"` for min(50, ⌈(values + 1) / 2⌉). Default `"auto"`.
    #[serde(default)]
    pub embedding_dim: EmbeddingDim,
    /// Widths of the hidden layers, each at least 1. Default [256, 128].
    #[serde(default = "default_hidden")]
    pub hidden: Vec<i64>,
    /// Share of hidden units that is dropped at each step, 0 (none) up to but not 1. Default 0.
    #[serde(default)]
    pub dropout: f64,
    /// After each hidden layer. Default `relu`.
    #[serde(default)]
    pub activation: Activation,
    /// Number type of parameters and features. Default `f32`.
    #[serde(default)]
    pub dtype: FloatType,
}

/// Which model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// Embeddings of the categories beside the numbers, then fully connected layers, one logit.
    #[default]
    Tabular,
}

/// Width of the embeddings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EmbeddingDim {
    /// By the number of values.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// The same for every column.
    Fixed(i64),
}

mod auto {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("auto")
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" { Ok(()) } else { Err(serde::de::Error::custom("expected \"auto\" or a number")) }
    }
}

impl EmbeddingDim {
    /// Width for a column of `values` distinct values.
    #[must_use]
    pub fn width(self, values: usize) -> i64 {
        match self {
            Self::Auto => (values as i64 + 2) / 2,
            Self::Fixed(width) => return width,
        }
        .clamp(1, 50)
    }
}

/// What follows each hidden layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// max(x, 0)
    #[default]
    Relu,
    /// x · Φ(x)
    Gelu,
    /// x · sigmoid(x)
    Silu,
    /// tanh x
    Tanh,
}

/// Number type of parameters and features.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FloatType {
    /// 32 bits.
    #[default]
    F32,
    /// 64 bits.
    F64,
}

/// The optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// Which optimizer. Default `adamw`.
    #[serde(default)]
    pub kind: OptimizerKind,
    /// Greatest learning rate, not negative. Default 0.001.
    #[serde(default = "default_lr")]
    pub lr: f64,
    /// Decay of the two running means, each from 0 up to but not 1. Default [0.9, 0.999].
    #[serde(default = "default_betas")]
    pub betas: [f64; 2],
    /// Added to the root of the second mean, above 0. Default 1e-8.
    #[serde(default = "default_eps")]
    pub eps: f64,
    /// Decoupled weight decay, not negative. Default 0.01.
    #[serde(default = "default_decay")]
    pub weight_decay: f64,
    /// Greatest norm of the whole gradient, above 0. Default: none.
    #[serde(default)]
    pub clip_norm: Option<f64>,
}

/// Which optimizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    #[default]
    #[serde(rename = "adamw")]
    AdamW,
}

/// How data are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderConfig {
    /// Order of the train split. Default `shard_block`.
    #[serde(default)]
    pub shuffle: ShuffleKind,
    /// Row groups that are mixed at once by `shard_block`, at least 1. Default 4.
    #[serde(default = "default_window")]
    pub window_blocks: u32,
    /// Bytes that a rank's loader may hold. Default 1 GiB.
    #[serde(default = "default_memory")]
    pub memory_bytes: u64,
    /// Batches made ahead, at least 1. Default 4.
    #[serde(default = "default_prefetch")]
    pub prefetch: usize,
    /// Which rows of the train split take part, by columns with sidecars: those that meet every condition, such as
    /// `words<=512`. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<Predicate>,
    /// Easy rows first, by a column with a sidecar. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curriculum: Option<Curriculum>,
    /// Weighted or class-balanced epochs, by a column with a sidecar. Default: every row once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
}

/// Order of the train split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShuffleKind {
    /// As stored.
    None,
    /// Row groups in random order, rows mixed inside windows of some.
    #[default]
    ShardBlock,
    /// All rows of a lane mixed; the decoded split must fit `memory_bytes`.
    Global,
}

/// Where the run is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// URL of the run folder: checkpoints, log, report, model.
    pub url: String,
    /// Steps between two checkpoints, at least 1. Default: only at the end of each epoch.
    #[serde(default)]
    pub every_steps: Option<u64>,
    /// Newest checkpoints that are kept, at least 1. Default 2.
    #[serde(default = "two")]
    pub keep: usize,
}

/// When the model is scored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluateConfig {
    /// Epochs between two passes over the validation split, at least 1; the last epoch is always scored. Default 1.
    #[serde(default = "one")]
    pub every_epochs: u64,
    /// Samples over all ranks that are scored at once, at least 1. Default: `global_batch`.
    #[serde(default)]
    pub global_batch: Option<u64>,
}

/// What the model is compared with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineConfig {
    /// Column whose rate of positives, by value, is the second baseline.
    pub column: String,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            kind: ModelKind::Tabular,
            embedding_dim: EmbeddingDim::Auto,
            hidden: default_hidden(),
            dropout: 0.0,
            activation: Activation::Relu,
            dtype: FloatType::F32,
        }
    }
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::AdamW,
            lr: default_lr(),
            betas: default_betas(),
            eps: default_eps(),
            weight_decay: default_decay(),
            clip_norm: None,
        }
    }
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self {
            shuffle: ShuffleKind::ShardBlock,
            window_blocks: default_window(),
            memory_bytes: default_memory(),
            prefetch: default_prefetch(),
            filters: Vec::new(),
            curriculum: None,
            sampling: None,
        }
    }
}

impl Default for EvaluateConfig {
    fn default() -> Self {
        Self { every_epochs: 1, global_batch: None }
    }
}

fn one() -> u64 {
    1
}
fn two() -> usize {
    2
}
fn default_batch() -> u64 {
    4096
}
fn default_timeout() -> u64 {
    300
}
fn default_log() -> u64 {
    50
}
fn default_train() -> String {
    "train".to_owned()
}
fn default_hidden() -> Vec<i64> {
    vec![256, 128]
}
fn default_lr() -> f64 {
    1e-3
}
fn default_betas() -> [f64; 2] {
    [0.9, 0.999]
}
fn default_eps() -> f64 {
    1e-8
}
fn default_decay() -> f64 {
    1e-2
}
fn default_window() -> u32 {
    4
}
fn default_memory() -> u64 {
    1 << 30
}
fn default_prefetch() -> usize {
    4
}

/// Beyond this a layer or table is a mistake, not a model.
const MAX_WIDTH: i64 = 1 << 20;
/// Beyond this the memory of one row's scores alone is one.
const MAX_BATCH: u64 = 1 << 32;

impl TrainConfig {
    /// Reads settings that a layer of files, environment and flags has put together.
    ///
    /// # Errors
    /// [`Error::Usage`] for a key that is unknown (with the nearest valid one) or missing, or a value of the wrong type.
    pub fn from_value(value: serde_json::Value) -> Result<Self> {
        serde_json::from_value(value).map_err(|e| {
            let text = e.to_string();
            let help = unknown_key_help(&text)
                .unwrap_or_else(|| "see docs for the keys of the training configuration".to_owned());
            Error::usage(format!("training configuration: {text}"), help)
        })
    }

    /// Checks every value, and every column against the shards' schema.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the key, and the nearest name for a column.
    pub fn validate(&self, schema: &DatasetSchema) -> Result<()> {
        self.check_values()?;
        self.check_columns(schema)
    }

    /// Checks what can be checked without the data.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the key.
    pub fn check_values(&self) -> Result<()> {
        let m = &self.model;
        let o = &self.optimizer;
        let widths = m.hidden.iter().all(|w| (1..=MAX_WIDTH).contains(w));
        let embedding = match m.embedding_dim {
            EmbeddingDim::Auto => true,
            EmbeddingDim::Fixed(w) => (1..=MAX_WIDTH).contains(&w),
        };
        let batch = |n: u64| (1..=MAX_BATCH).contains(&n);
        let share = |x: f64| (0.0..1.0).contains(&x);
        let not_negative = |x: f64| x >= 0.0 && x.is_finite();
        let positive = |x: f64| x > 0.0 && x.is_finite();
        let rules: &[(bool, &str, &str)] = &[
            (!self.data.shards.is_empty(), "data.shards", "give the URL of the shard set"),
            (!self.checkpoint.url.is_empty(), "checkpoint.url", "give the URL of the run folder"),
            (self.epochs >= 1, "epochs", "it must be at least 1"),
            (batch(self.global_batch), "global_batch", "it must be from 1 to 2^32"),
            (self.micro_batch.is_none_or(batch), "micro_batch", "it must be from 1 to 2^32"),
            (self.evaluate.global_batch.is_none_or(batch), "evaluate.global_batch", "it must be from 1 to 2^32"),
            (widths, "model.hidden", "each width must be from 1 to 2^20"),
            (embedding, "model.embedding_dim", "it must be \"auto\" or from 1 to 2^20"),
            (share(m.dropout), "model.dropout", "it must be at least 0 and less than 1"),
            (not_negative(o.lr), "optimizer.lr", "it must be a number that is not negative"),
            (o.betas.iter().all(|b| share(*b)), "optimizer.betas", "each must be at least 0 and less than 1"),
            (positive(o.eps), "optimizer.eps", "it must be above 0"),
            (not_negative(o.weight_decay), "optimizer.weight_decay", "it must be a number that is not negative"),
            (o.clip_norm.is_none_or(positive), "optimizer.clip_norm", "it must be above 0"),
            ((0.0..=1.0).contains(&self.schedule.final_fraction), "schedule.final_fraction", "it must be from 0 to 1"),
            (
                self.schedule.kind != ScheduleKind::Constant
                    || (self.schedule.warmup_steps == 0 && self.schedule.final_fraction == 0.0),
                "schedule.kind",
                "a constant schedule takes no warmup_steps or final_fraction: say kind = \"warmup_cosine\"",
            ),
            (self.loader.window_blocks >= 1, "loader.window_blocks", "it must be at least 1"),
            (self.loader.prefetch >= 1, "loader.prefetch", "it must be at least 1"),
            (self.loader.memory_bytes >= 1 << 20, "loader.memory_bytes", "it must be at least 1 MiB"),
            (self.checkpoint.every_steps != Some(0), "checkpoint.every_steps", "it must be at least 1"),
            (self.checkpoint.keep >= 1, "checkpoint.keep", "it must be at least 1"),
            ((1..=86_400 * 7).contains(&self.timeout_s), "timeout_s", "it must be from 1 second to 7 days"),
            (self.evaluate.every_epochs >= 1, "evaluate.every_epochs", "it must be at least 1"),
            (self.log_every_steps >= 1, "log_every_steps", "it must be at least 1"),
            (self.threads.is_none_or(|t| (1..=4096).contains(&t)), "threads", "it must be from 1 to 4096"),
        ];
        match rules.iter().find(|(holds, ..)| !holds) {
            None => Ok(()),
            Some((_, key, help)) => Err(Error::usage(format!("training configuration: {key} is out of range"), *help)),
        }
    }

    fn check_columns(&self, schema: &DatasetSchema) -> Result<()> {
        schema.column(&self.label, "label")?;
        let mut seen: BTreeMap<&str, &str> = BTreeMap::from([(self.label.as_str(), "label")]);
        let numbers = self.features.numbers.iter().map(|c| (c, "features.numbers"));
        let categories = self.features.categories.iter().map(|c| (c, "features.categories"));
        for (name, key) in numbers.chain(categories) {
            let column = schema.column(name, key)?;
            if let Some(before) = seen.insert(name, key) {
                return Err(Error::usage(
                    format!("{key}: column \"{name}\" is already listed as {before}"),
                    "list it once; the label can't be a feature",
                ));
            }
            let text = matches!(column.column_type.to_string().as_str(), "large_utf8" | "large_binary");
            if key == "features.numbers" && text {
                return Err(Error::usage(
                    format!("features.numbers: column \"{name}\" is {}, not a number", column.column_type),
                    "list it under features.categories, or derive a number from it at ingest with --sql",
                ));
            }
        }
        if seen.len() == 1 {
            return Err(Error::usage(
                "training configuration: features is empty",
                "list columns under features.numbers or features.categories",
            ));
        }
        if let Some(baseline) = &self.baseline {
            schema.column(&baseline.column, "baseline.column")?;
        }
        Ok(())
    }

    /// Digest of what decides the parameters: these settings and the shards' manifest. Not in it: where things are,
    /// how fast and on how many ranks they are done, and what is only reported.
    #[must_use]
    pub fn semantic_digest(&self, manifest_digest: &str) -> String {
        let mut options = serde_json::json!({
            "version": 1,
            "manifest": manifest_digest,
            "train": self.data.train,
            "label": self.label,
            "features": self.features,
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "epochs": self.epochs,
            "global_batch": self.global_batch,
            "seed": self.seed,
            "shuffle": self.loader.shuffle,
            "window_blocks": self.loader.window_blocks,
        });
        // Only where they are given: a run without them is the same run as before there were any.
        let LoaderConfig { filters, curriculum, sampling, .. } = &self.loader;
        if !filters.is_empty() || curriculum.is_some() || sampling.is_some() {
            options["order"] = serde_json::json!([filters, curriculum, sampling]);
        }
        digest(&options)
    }

    /// Digest of what decides the report, given the parameters.
    #[must_use]
    pub fn report_digest(&self) -> String {
        digest(&serde_json::json!({
            "version": 1,
            "validation": self.data.validation,
            "test": self.data.test,
            "every_epochs": self.evaluate.every_epochs,
            "baseline": self.baseline,
        }))
    }
}

/// BLAKE3 of canonical JSON: serde_json keeps the keys of a `Value` sorted.
fn digest(value: &serde_json::Value) -> String {
    blake3::hash(value.to_string().as_bytes()).to_hex().to_string()
}

/// serde says ``unknown field `x`, expected one of `a`, `b` ``; this adds the nearest.
fn unknown_key_help(text: &str) -> Option<String> {
    let (_, rest) = ["unknown field `", "unknown variant `"].iter().find_map(|start| text.split_once(start))?;
    let (given, expected) = rest.split_once('`')?;
    let valid: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    (!valid.is_empty()).then(|| nearest_name(given, valid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::schema::Column;

    fn schema() -> DatasetSchema {
        let column = |name: &str, t: &str| Column {
            name: name.into(),
            column_type: t.parse().unwrap(),
            nullable: true,
            role: None,
        };
        DatasetSchema {
            columns: vec![column("late", "bool"), column("distance", "float64"), column("origin", "large_utf8")],
        }
    }

    fn minimal() -> serde_json::Value {
        serde_json::json!({
            "data": {"shards": "s"}, "label": "late",
            "features": {"numbers": ["distance"], "categories": ["origin"]},
            "checkpoint": {"url": "r"},
        })
    }

    fn with(path: &[&str], value: serde_json::Value) -> Result<TrainConfig> {
        let mut all = minimal();
        let mut at = &mut all;
        for key in path {
            at = &mut at[key];
        }
        *at = value;
        TrainConfig::from_value(all)
    }

    #[test]
    fn the_least_that_one_must_write_is_enough_and_reads_back() {
        let config = TrainConfig::from_value(minimal()).unwrap();
        config.validate(&schema()).unwrap();
        assert_eq!(config.model, ModelConfig::default());
        assert_eq!(config.optimizer, OptimizerConfig::default());
        assert_eq!(config.loader, LoaderConfig::default());
        let value = serde_json::to_value(&config).unwrap();
        assert_eq!(TrainConfig::from_value(value).unwrap(), config);
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest() {
        for (path, wanted) in [
            (&["epoch"][..], "\"epochs\""),
            (&["model", "droput"], "\"dropout\""),
            (&["checkpoint", "every_step"], "\"every_steps\""),
            (&["optimizer", "beta"], "\"betas\""),
        ] {
            let error = with(path, 1.into()).unwrap_err();
            assert_eq!(error.kind(), gristmill_shard::ErrorKind::Usage);
            assert!(error.to_string().contains(&format!("did you mean {wanted}")), "{error}");
        }
        let error = with(&["schedule"], serde_json::json!({"kind": "warmup_cosin"})).unwrap_err();
        assert!(error.to_string().contains("did you mean \"warmup_cosine\""), "{error}");
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (path, value) in [
            (&["epochs"][..], serde_json::json!(0)),
            (&["global_batch"], 0.into()),
            (&["micro_batch"], 0.into()),
            (&["timeout_s"], 0.into()),
            (&["model", "dropout"], 1.0.into()),
            (&["model", "hidden"], serde_json::json!([16, 0])),
            (&["model", "embedding_dim"], 0.into()),
            (&["optimizer", "lr"], (-1.0).into()),
            (&["optimizer", "eps"], 0.0.into()),
            (&["optimizer", "betas"], serde_json::json!([0.9, 1.0])),
            (&["optimizer", "clip_norm"], 0.0.into()),
            (&["checkpoint", "keep"], 0.into()),
            (&["loader", "memory_bytes"], 5.into()),
        ] {
            let error = with(path, value).unwrap().validate(&schema()).unwrap_err().to_string();
            assert!(error.contains(&path.join(".")), "{error}");
        }
        let error = with(&["schedule"], serde_json::json!({"warmup_steps": 10})).unwrap().check_values().unwrap_err();
        assert!(error.to_string().contains("warmup_cosine"));
    }

    #[test]
    fn columns_are_checked_against_the_schema() {
        for (path, value, wanted) in [
            (&["label"][..], serde_json::json!("latte"), "did you mean \"late\""),
            (&["features", "numbers"], serde_json::json!(["distanse"]), "did you mean \"distance\""),
            (&["features", "numbers"], serde_json::json!(["origin"]), "not a number"),
            (&["features", "categories"], serde_json::json!(["late"]), "already listed as label"),
            (&["features"], serde_json::json!({}), "features is empty"),
            (&["baseline"], serde_json::json!({"column": "hour"}), "baseline.column"),
        ] {
            let error = with(path, value).unwrap().validate(&schema()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn the_digest_follows_what_changes_the_parameters_only() {
        let base = TrainConfig::from_value(minimal()).unwrap();
        let same = |c: &TrainConfig| c.semantic_digest("m") == base.semantic_digest("m");
        for (path, value) in
            [(&["timeout_s"][..], 7), (&["micro_batch"], 8), (&["threads"], 1), (&["checkpoint", "keep"], 9)]
        {
            assert!(same(&with(path, value.into()).unwrap()), "{path:?}");
        }
        for (path, value) in [(&["seed"][..], 7), (&["global_batch"], 8), (&["epochs"], 2)] {
            assert!(!same(&with(path, value.into()).unwrap()), "{path:?}");
        }
        for (key, value) in [
            ("filters", serde_json::json!(["words<=512"])),
            ("curriculum", serde_json::json!({"kind": "ordered", "column": "words", "epochs": 1})),
            ("sampling", serde_json::json!({"kind": "balanced", "column": "late"})),
        ] {
            assert!(!same(&with(&["loader", key], value).unwrap()), "{key}");
        }
        assert!(with(&["loader", "filters"], serde_json::json!(["words"])).is_err());
        assert_ne!(base.semantic_digest("other"), base.semantic_digest("m"));
        let baseline = with(&["baseline"], serde_json::json!({"column": "origin"})).unwrap();
        assert!(same(&baseline) && baseline.report_digest() != base.report_digest());
    }

    #[test]
    fn embeddings_are_as_wide_as_the_rule_says() {
        assert_eq!([0, 1, 7, 24, 98, 5000].map(|k| EmbeddingDim::Auto.width(k)), [1, 1, 4, 13, 50, 50]);
        assert_eq!(EmbeddingDim::Fixed(3).width(900), 3);
        let config = with(&["model", "embedding_dim"], "auto".into()).unwrap();
        assert_eq!(config.model.embedding_dim, EmbeddingDim::Auto);
        assert!(with(&["model", "embedding_dim"], "big".into()).is_err());
    }
}
