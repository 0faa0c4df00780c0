//! What can be typed. Each flag's help is the documentation of it.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use gristmill_loader::{
    Predicate,
    batching::options::Batching,
    curriculum::Curriculum,
    mixture::{Stop, Weight},
    sampling::options::Sampling,
};
use serde::{Deserialize, Serialize};

/// Raw tables in, a trained model out, every row accounted for on the way.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version, propagate_version = true, after_help = EXIT_STATUS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Settings that every command has.
    #[command(flatten)]
    pub common: Common,
}

const PLAN_EXAMPLES: &str = "\
Examples:
  gristmill plan shards --world-size 6 --global-batch 4096
  gristmill plan shards --world-size 8 --change 100:6 --change 250:3
  gristmill plan shards --world-size 8 --filter 'words<=p99' --html plan.html \\
      --batching 'kind=\"budget\", lengths=\"words\", budget={max_tokens=16384, micro_batches=8}'
  gristmill plan shards --world-size 4 \\
      --curriculum 'kind=\"paced\", column=\"words\", epochs=0.5, pacing={kind=\"sqrt\"}'
  gristmill plan shards --world-size 4 --mix web=0.7 --mix books=0.3 --stop all-exhausted";

const EXIT_STATUS: &str = "\
Exit status: 0 done; 1 the data or the run is at fault; 2 it could not start (usage, configuration, environment,
not found, permission); 75 stopped by a request, run the same command again; 128+N killed by signal N.

Examples:
  gristmill run examples/flights.toml
  gristmill ingest flights.csv --out clean --sql 'SELECT *, delay > 15 AS late FROM input'
  gristmill shard clean --out shards --nodes 4 --stratify origin,late --split train=0.9,test=0.1
  gristmill verify shards";

/// Settings that every command has.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Print one JSON document on stdout; errors are one JSON object on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// Threads to work with; the result does not depend on it [default: the CPUs].
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// No progress on stderr.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Storage option for s3:// URLs, such as aws_endpoint=http://127.0.0.1:9000; may be repeated.
    #[arg(long = "storage", global = true, value_name = "NAME=VALUE")]
    pub storage: Vec<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Raw CSV and Parquet into a clean data set, with every reject listed
    #[command(
        after_help = "Examples:\n  gristmill ingest data/*.csv --out clean\n  gristmill ingest flights.csv --out clean --max-rejects 2% \\\n    --sql 'SELECT *, delay > 15 AS late, EXTRACT(HOUR FROM date) AS hour FROM input'"
    )]
    Ingest(IngestArgs),
    /// A data set into stratified, balanced shards for N machines
    #[command(
        after_help = "Example:\n  gristmill shard clean --out shards --nodes 4 --stratify origin,late \\\n    --split train=0.8,validation=0.1,test=0.1"
    )]
    Shard(Box<ShardArgs>),
    /// What a data set or shard set holds: schema, counts, balance
    #[command(after_help = "Examples:\n  gristmill inspect shards\n  gristmill inspect shards --node 2 --files")]
    Inspect(InspectArgs),
    /// Prove a data set or shard set from its bytes: digests, exactly-once, balance
    Verify(UrlArgs),
    /// Replay an epoch's plan without reading data: coverage, steps per rank, reads per node
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(Box<PlanArgs>),
    /// Read batches as a rank would, or measure how fast
    #[command(
        after_help = "Examples:\n  gristmill load shards --bench\n  gristmill load shards --rank 1 --world-size 4 --ids > ids-1.csv"
    )]
    Load(LoadArgs),
    /// Train a model; run again, it goes on where it was
    #[command(
        after_help = "Examples:\n  gristmill train examples/flights.toml --nproc 2\n  torchrun --no-python --nproc-per-node 2 gristmill train examples/flights.toml"
    )]
    Train(TrainArgs),
    /// Ingest, shard and train, each skipped when its output is current
    #[command(after_help = "Example:\n  gristmill run examples/flights.toml --set train.epochs=3")]
    Run(RunArgs),
    /// What this machine has and lacks: libtorch, GPUs, c10d backends, storage credentials
    Doctor,
}

/// Arguments of `ingest`.
#[derive(Debug, Args)]
pub struct IngestArgs {
    /// Files, folders, or patterns such as 'data/*.csv'.
    #[arg(required = true)]
    pub sources: Vec<String>,
    /// Where the clean data set goes.
    #[arg(long, value_name = "URL")]
    pub out: String,
    /// Columns and types to read, as TOML; inferred from all the data without it.
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Row-wise query over the table `input`: expressions and WHERE.
    #[arg(long, value_name = "QUERY")]
    pub sql: Option<String>,
    /// What a bad row does: reject or fail.
    #[arg(long, value_name = "WHAT", default_value = "reject")]
    pub on_error: String,
    /// Bad rows that are too many: a number, or a share such as 5% [default: 1%].
    #[arg(long, value_name = "N|P%")]
    pub max_rejects: Option<String>,
    /// Role of a column, such as late=label; may be repeated.
    #[arg(long = "role", value_name = "COLUMN=ROLE")]
    pub roles: Vec<String>,
    /// The character between CSV fields [default: a comma, or a tab in .tsv].
    #[arg(long, value_name = "CHAR")]
    pub delimiter: Option<char>,
    /// CSV files have no header.
    #[arg(long)]
    pub no_header: bool,
    /// A bare CSV field that means null, beside the empty one; may be repeated.
    #[arg(long = "null", value_name = "TEXT")]
    pub nulls: Vec<String>,
}

/// Arguments of `shard`.
#[derive(Debug, Args)]
pub struct ShardArgs {
    /// The data set: one that ingest made, or a folder of Parquet files; or a shard set, to lay it out for other
    /// machines.
    pub dataset: String,
    /// Where the shards go.
    #[arg(long, value_name = "URL")]
    pub out: Option<String>,
    /// Machines.
    #[arg(long, value_name = "N")]
    pub nodes: u32,
    /// Lanes, a multiple of the machines [default: 8 each].
    #[arg(long, value_name = "L")]
    pub lanes: Option<u32>,
    /// Columns whose combination is balanced over machines, lanes and files.
    #[arg(long, value_name = "COL,…", value_delimiter = ',')]
    pub stratify: Vec<String>,
    /// Stratify a column of numbers by quantile bins.
    #[arg(long, value_name = "COL=BINS,…", value_delimiter = ',')]
    pub bins: Vec<String>,
    /// Label columns of multi-label rows: columns of 0 and 1, or text with --label-separator.
    #[arg(long, value_name = "COL,…", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// What stands between the labels of one text column.
    #[arg(long, value_name = "TEXT")]
    pub label_separator: Option<String>,
    /// What becomes of strata with fewer rows than --rare-below.
    #[arg(long, value_enum, default_value_t = RareArg::Spread)]
    pub rare: RareArg,
    /// Rows below which a stratum is rare [default: one a machine].
    #[arg(long, value_name = "ROWS")]
    pub rare_below: Option<u64>,
    /// Copy rows until every stratum has this many on every machine; copies are declared (column _copy).
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    pub at_least: u64,
    /// Bring a stratify column's values to proportions, by copies and rows left out.
    #[arg(long, value_name = "COL=balanced|sqrt|0.5,0.5")]
    pub resample: Option<String>,
    /// Rows in all after --resample: as many as before, only copies, or only rows left out.
    #[arg(long, value_enum, default_value_t = TotalArg::Same)]
    pub resample_total: TotalArg,
    /// Splits that --resample and --at-least apply to [default: the first].
    #[arg(long, value_name = "SPLIT,…", value_delimiter = ',')]
    pub resample_splits: Vec<String>,
    /// Column whose hash decides the split, so that a row stays in its split when the data set grows.
    #[arg(long, value_name = "COL")]
    pub stable_split: Option<String>,
    /// Column whose equal values never straddle a split.
    #[arg(long, value_name = "COL")]
    pub group: Option<String>,
    /// What a group may not straddle: a split, or a machine either.
    #[arg(long, value_enum, default_value_t = ScopeArg::Split)]
    pub group_scope: ScopeArg,
    /// Fail when groups force a part this much above its share (0.05 is 5 %).
    #[arg(long, value_name = "SHARE")]
    pub max_imbalance: Option<f64>,
    /// Column of weights (tokens, bytes, pixels) whose sums are balanced over machines.
    #[arg(long, value_name = "COL")]
    pub balance: Option<String>,
    /// Column of difficulty, kept as a sidecar with an order by it.
    #[arg(long, value_name = "COL")]
    pub difficulty: Option<String>,
    /// More columns of numbers to keep as sidecars.
    #[arg(long = "sidecar", value_name = "COL,…", value_delimiter = ',')]
    pub sidecars: Vec<String>,
    /// Splits and their shares, exact: decimals or fractions that sum to 1 [default: train=1].
    #[arg(long, value_name = "NAME=SHARE,…")]
    pub split: Option<String>,
    /// Seed of every random choice.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Decoded bytes that a file aims at.
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub shard_bytes: ByteSize,
    /// Memory to stay within.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub memory: ByteSize,
    /// Do the I-th of T parts of the work first, as one of several processes that share --out; "auto" takes both from
    /// SLURM, "auto/T" the index from SLURM or Kubernetes.
    #[arg(long, value_name = "I/T")]
    pub task: Option<String>,
    /// Shard what is new in the data set and add it to the shards at --out as a new version.
    #[arg(long)]
    pub append: bool,
}

/// `--rare`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum RareArg {
    /// At most one row a machine, rotated over machines.
    #[default]
    Spread,
    /// One stratum of all rare ones.
    Merge,
    /// Fail and list them.
    Error,
}

/// `--resample-total`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum TotalArg {
    /// As many rows as before.
    #[default]
    Same,
    /// The fewest so that no value loses rows.
    Over,
    /// The most so that no row is copied.
    Under,
}

/// `--group-scope`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum ScopeArg {
    /// A split.
    #[default]
    Split,
    /// A split and a machine.
    Node,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A data set or shard set.
    pub url: String,
    /// List files.
    #[arg(long)]
    pub files: bool,
    /// Of this machine only.
    #[arg(long, value_name = "J", requires = "files")]
    pub node: Option<u32>,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct UrlArgs {
    /// A data set or shard set.
    pub url: String,
}

/// How an epoch is planned.
#[derive(Debug, Clone, Args)]
pub struct PlanFlags {
    /// The split to read.
    #[arg(long, default_value = "train")]
    pub split: String,
    /// Samples of one step over all ranks (bins, where plan packs rows).
    #[arg(long, value_name = "G", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    pub global_batch: u64,
    /// Order of the samples.
    #[arg(long, value_enum, default_value_t = ShuffleArg::ShardBlock)]
    pub shuffle: ShuffleArg,
    /// Row groups that are mixed at once by shard-block.
    #[arg(long, value_name = "W", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub window_blocks: u32,
    /// What happens to the last, short batch.
    #[arg(long, value_enum, default_value_t = TailArg::Exact)]
    pub tail: TailArg,
    /// Seed of the order.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Which rows take part, by a column with a sidecar: words<=512, late=1, words<=p99, delay<mean+3sd. May be
    /// repeated: a row must meet all.
    #[arg(long, value_name = "CONDITION")]
    pub filter: Vec<Predicate>,
    /// Easy rows first, as a TOML table: kind="ordered", column="words", epochs=2; or kind="paced", column="words",
    /// epochs=0.5, pacing={kind="sqrt"}.
    #[arg(long, value_name = "TABLE", value_parser = table::<Curriculum>)]
    pub curriculum: Option<Curriculum>,
    /// Weighted or class-balanced epochs, as a TOML table: kind="balanced", column="late"; or kind="weighted",
    /// column="weight", replacement=true, samples=1000.
    #[arg(long, value_name = "TABLE", value_parser = table::<Sampling>)]
    pub sampling: Option<Sampling>,
}

/// A TOML table, with or without its braces.
fn table<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let text = text.trim();
    let table = if text.starts_with('{') { text.to_owned() } else { format!("{{ {text} }}") };
    #[derive(serde::Deserialize)]
    struct Line<T> {
        value: T,
    }
    let line: Line<T> = toml::from_str(&format!("value = {table}")).map_err(|e| e.message().to_owned())?;
    Ok(line.value)
}

/// A source of a mix: a split of the shard set, or URL#SPLIT of another one, and its weight.
#[derive(Debug, Clone)]
pub struct MixArg {
    /// Another shard set.
    pub shards: Option<String>,
    /// The split.
    pub split: String,
    /// Its weight.
    pub weight: Weight,
}

impl std::str::FromStr for MixArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (source, weight) = text.rsplit_once('=').ok_or("write SPLIT=WEIGHT or URL#SPLIT=WEIGHT")?;
        let (shards, split) = match source.rsplit_once('#') {
            Some((shards, split)) => (Some(shards.to_owned()), split),
            None => (None, source),
        };
        if split.is_empty() {
            return Err("the split is missing".into());
        }
        let weight = weight.parse().map_err(|e: gristmill_loader::Error| e.to_string())?;
        Ok(Self { shards, split: split.to_owned(), weight })
    }
}

/// A stage before the last: how many samples it has, and the weights of all sources in it.
#[derive(Debug, Clone)]
pub struct StageArg {
    /// Samples.
    pub samples: u64,
    /// One for each source.
    pub weights: Vec<Weight>,
}

impl std::str::FromStr for StageArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (samples, weights) = text.split_once(':').ok_or("write SAMPLES:WEIGHT,WEIGHT,…")?;
        let samples = samples.parse().map_err(|_| format!("\"{samples}\" is no number of samples"))?;
        let weights = weights.split(',').map(|w| w.parse().map_err(|e: gristmill_loader::Error| e.to_string()));
        Ok(Self { samples, weights: weights.collect::<Result<_, _>>()? })
    }
}

/// Where an epoch of a mix ends.
fn stop(text: &str) -> Result<Stop, String> {
    match text {
        "first-exhausted" => Ok(Stop::FirstExhausted),
        "all-exhausted" => Ok(Stop::AllExhausted),
        _ => match text.parse() {
            Ok(samples) => Ok(Stop::Samples(samples)),
            Err(_) => Err("give first-exhausted, all-exhausted or a number of samples".into()),
        },
    }
}

/// A world that takes over.
#[derive(Debug, Clone, Copy)]
pub struct ChangeArg {
    /// Its first step.
    pub step: u64,
    /// Ranks.
    pub world_size: u32,
    /// Machines.
    pub machines: Option<u32>,
}

impl std::str::FromStr for ChangeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || "write STEP:RANKS or STEP:RANKS:MACHINES".to_owned();
        let mut parts = text.split(':');
        let step = parts.next().and_then(|p| p.parse().ok()).ok_or_else(usage)?;
        let world_size = parts.next().and_then(|p| p.parse().ok()).filter(|w| *w > 0).ok_or_else(usage)?;
        let machines = parts.next().map(|p| p.parse().map_err(|_| usage())).transpose()?;
        if parts.next().is_some() {
            return Err(usage());
        }
        Ok(Self { step, world_size, machines })
    }
}

/// Order of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShuffleArg {
    /// As stored.
    None,
    /// Row groups in random order, rows mixed inside windows of some.
    ShardBlock,
    /// All rows of a lane mixed; the decoded split must fit the memory.
    Global,
}

/// What happens to the last, short batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TailArg {
    /// Delivered as it is.
    Exact,
    /// Left out, and reported.
    Drop,
    /// Filled up with masked slots.
    PadMasked,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A shard set.
    pub shards: String,
    /// Ranks.
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..))]
    pub world_size: u32,
    /// Machines the ranks are on, also those of --change [default: the shard set's nodes when they divide the ranks,
    /// else 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub machines: Option<u32>,
    /// Epoch, from 0.
    #[arg(long, default_value_t = 0)]
    pub epoch: u64,
    /// Another world that goes on from a step, from the state saved there: STEP:RANKS or STEP:RANKS:MACHINES. May be
    /// repeated.
    #[arg(long, value_name = "STEP:RANKS[:MACHINES]")]
    pub change: Vec<ChangeArg>,
    /// A source of a mix: SPLIT=WEIGHT, or URL#SPLIT=WEIGHT of another shard set. Instead of --split, once a source.
    #[arg(long, value_name = "SPLIT=WEIGHT", conflicts_with = "split")]
    pub mix: Vec<MixArg>,
    /// A stage of the mix's first epoch before the weights of --mix hold: SAMPLES:WEIGHT,WEIGHT,… May be repeated.
    #[arg(long, value_name = "SAMPLES:WEIGHTS", requires = "mix")]
    pub stage: Vec<StageArg>,
    /// Where an epoch of the mix ends: first-exhausted, all-exhausted, or after a number of samples
    /// [default: first-exhausted].
    #[arg(long, value_name = "STOP", requires = "mix", value_parser = stop)]
    pub stop: Option<Stop>,
    /// Steps by length, as a TOML table: kind="budget", lengths="words", budget={max_tokens=16384, micro_batches=8}; or
    /// kind="packed", lengths="words", packing={capacity=2048}.
    #[arg(long, value_name = "TABLE", value_parser = table::<Batching>)]
    pub batching: Option<Batching>,
    /// Column of integers whose values are counted over the epoch.
    #[arg(long, value_name = "COLUMN")]
    pub classes: Option<String>,
    /// Column whose course over the epoch is shown [default: that of the curriculum].
    #[arg(long, value_name = "COLUMN")]
    pub difficulty: Option<String>,
    /// Column of lengths, for tokens and padding [default: that of the batching].
    #[arg(long, value_name = "COLUMN")]
    pub lengths: Option<String>,
    /// Stretches of steps in which the course of the epoch is shown.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub stretches: u32,
    /// Write a page with pictures.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How it is planned.
    #[command(flatten)]
    pub plan: PlanFlags,
}

/// Arguments of `load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// A shard set.
    pub shards: String,
    /// This process's rank.
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub rank: u32,
    /// Ranks.
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub world_size: u32,
    /// Ranks on this machine [default: all].
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u32).range(1..))]
    pub local_world_size: Option<u32>,
    /// Epochs to read.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: u64,
    /// Print step and row id of each sample, as CSV; of a resampled set also which copy of the row it is (0: itself).
    #[arg(long, conflicts_with = "bench")]
    pub ids: bool,
    /// Read one epoch to warm up, then measure the epochs.
    #[arg(long)]
    pub bench: bool,
    /// Bytes that the loader may hold.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub memory: ByteSize,
    /// Batches made ahead.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub prefetch: u16,
    /// How it is planned.
    #[command(flatten)]
    pub plan: PlanFlags,
}

/// Arguments of `train`.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// The configuration; its [train] section is used.
    pub config: PathBuf,
    /// Ranks to start on this machine [default: launch.nproc of the configuration, or 1]. With RANK and WORLD_SIZE in
    /// the environment it is one rank of a group that something else started.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub nproc: Option<u16>,
    /// Override of one key, such as train.epochs=3; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the report as JSON, and everything else as without --json (how `run` calls it).
    #[arg(long, hide = true)]
    pub report_json: bool,
    /// Only check the configuration.
    #[arg(long)]
    pub check: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The pipeline: a configuration with [ingest], [shard] and [train].
    pub config: PathBuf,
    /// Override of one key, such as train.epochs=3; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}
