//! Data in memory behind [`Sources`], and this test executable started again as ranks.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use gristmill_shard::{
    Control, Storage, StorageOptions,
    control::StopFlag,
    keys::{Domain, Key},
};
use gristmill_train::{
    Batch, BatchSource, Job, Launch, Ranks, Rendezvous, Sources, TrainConfig, TrainOutcome, World,
    batch::{
        BASELINE, CATEGORIES, CategoryFeature, Columns, FeatureSpec, LABEL, LabelSpec, NUMBERS, NumberFeature,
        PlanSummary,
    },
    checkpoint::RunFolder,
};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

/// What a rank of a test does; passed by environment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Scenario {
    pub config: TrainConfig,
    /// Rows of the train split.
    pub rows: u64,
    /// Folder of the run; each rank leaves `rank-<r>.error` in `notes`.
    pub run: PathBuf,
    pub notes: PathBuf,
    /// Steps of this start after which rank 0 is asked to stop.
    pub stop_after: Option<u64>,
    /// (rank, steps of this start) after which it kills itself.
    pub kill: Option<(usize, u64)>,
    /// (rank, steps of this start) after which it delivers nothing for a long time.
    pub stall: Option<(usize, u64)>,
    /// A rank whose seed is another.
    pub odd_one: Option<usize>,
}

const SCENARIO: &str = "GRISTMILL_TRAIN_TEST_SCENARIO";

pub fn config(rest: serde_json::Value) -> TrainConfig {
    let mut all = serde_json::json!({
        "data": {"shards": "memory"}, "label": "y",
        "features": {"numbers": ["x0", "x1"], "categories": ["c"]},
        "model": {"hidden": [8, 4], "dtype": "f64", "embedding_dim": 3, "dropout": 0.25},
        "optimizer": {"lr": 0.02, "clip_norm": 0.05},
        "schedule": {"kind": "warmup_cosine", "warmup_steps": 3},
        "epochs": 2, "global_batch": 16, "log_every_steps": 1, "timeout_s": 20, "threads": 1,
        "checkpoint": {"url": "unused"}, "baseline": {"column": "c"},
    });
    for (key, value) in rest.as_object().unwrap() {
        all[key] = value.clone();
    }
    TrainConfig::from_value(all).unwrap()
}

impl Scenario {
    /// 97 rows: with 16 a batch, the last has one row, and so all ranks but one have none.
    pub fn new(dir: &Path, config: TrainConfig) -> Self {
        let notes = dir.join("notes");
        std::fs::create_dir_all(&notes).unwrap();
        Self { config, rows: 97, run: dir.join("run"), notes, stop_after: None, kill: None, stall: None, odd_one: None }
    }

    /// Runs it as `ranks` processes.
    pub fn launch(&self, ranks: usize) -> gristmill_train::Result<()> {
        let args: Vec<OsString> = ["--exact", "as_a_rank", "--nocapture"].map(Into::into).to_vec();
        let mut job = Launch::this_program(args, ranks, Duration::from_secs(20))?;
        job.env = vec![(SCENARIO.into(), serde_json::to_string(self).unwrap().into())];
        if self.stall.is_some() {
            job.grace = Duration::from_secs(1);
        }
        gristmill_train::launch(&job, &StopFlag::new())
    }

    pub fn note(&self, rank: usize) -> String {
        std::fs::read_to_string(self.notes.join(format!("rank-{rank}.error"))).unwrap_or_default()
    }

    /// The one file of the run folder that fits.
    pub fn file(&self, folder: &str, start: &str) -> Vec<u8> {
        let found: Vec<PathBuf> = std::fs::read_dir(self.run.join(folder))
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with(start))
            .collect();
        assert_eq!(found.len(), 1, "{folder}/{start}: {found:?}");
        std::fs::read(&found[0]).unwrap()
    }

    /// Folders of checkpoints by step.
    pub fn checkpoints(&self) -> Vec<u64> {
        let Ok(entries) = std::fs::read_dir(self.run.join("checkpoints")) else { return Vec::new() };
        let mut steps: Vec<u64> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap().trim_start_matches("step-").parse().unwrap())
            .collect();
        steps.sort_unstable();
        steps
    }

    pub fn checkpoint_file(&self, step: u64, start: &str) -> Vec<u8> {
        self.file(&format!("checkpoints/step-{step:012}"), start)
    }
}

/// The body of the test `as_a_rank`: nothing, unless it was started as a rank.
pub fn rank_process() {
    let Ok(text) = std::env::var(SCENARIO) else { return };
    let scenario: Scenario = serde_json::from_str(&text).unwrap();
    let rendezvous = Rendezvous::from_env().unwrap().unwrap();
    let rank = rendezvous.world.rank;
    let code = match run(&scenario, Some(&rendezvous)) {
        Ok(_) => 0,
        Err(error) => {
            let note = format!("{}: {}", error.kind(), error.chain());
            std::fs::write(scenario.notes.join(format!("rank-{rank}.error")), note).unwrap();
            i32::from(error.kind().exit_code())
        }
    };
    std::process::exit(code);
}

/// Runs a scenario as one rank, in this process.
pub fn run(scenario: &Scenario, rendezvous: Option<&Rendezvous>) -> gristmill_train::Result<TrainOutcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut config = scenario.config.clone();
    let ranks = Ranks::join(rendezvous, Duration::from_secs(config.timeout_s))?;
    if scenario.odd_one == Some(ranks.world().rank) {
        config.seed += 1;
    }
    let storage = Storage::open(scenario.run.to_str().unwrap(), &StorageOptions::new()).unwrap();
    let folder = RunFolder::new(storage, runtime.handle().clone(), config.checkpoint.keep)?;
    let control = Control::default();
    let sources = Memory { scenario: scenario.clone(), features: features(), stop: control.stop.clone() };
    Job { config: &config, sources: &sources, folder: &folder, ranks: &ranks, control: &control, threads: 1 }.run()
}

fn features() -> FeatureSpec {
    let number = |column: &str| NumberFeature { column: column.into(), mean: 0.0, deviation: 1.0 };
    let c = CategoryFeature { column: "c".into(), values: (0..5).map(|i| format!("v{i}")).collect() };
    FeatureSpec {
        numbers: vec![number("x0"), number("x1")],
        categories: vec![c.clone()],
        label: LabelSpec { column: "y".into(), classes: ["0".into(), "1".into()] },
        baseline: Some(c),
    }
}

struct Memory {
    scenario: Scenario,
    features: FeatureSpec,
    stop: StopFlag,
}

impl Memory {
    fn open(&self, split: &str, rows: u64, shuffled: bool, world: World) -> Box<dyn BatchSource> {
        Box::new(Part {
            split: split.to_owned(),
            rows,
            batch: self.scenario.config.global_batch,
            shuffled,
            world,
            at: (0, 0),
            delivered: 0,
            scenario: self.scenario.clone(),
            stop: self.stop.clone(),
        })
    }
}

impl Sources for Memory {
    fn digest(&self) -> String {
        format!("{} rows", self.scenario.rows)
    }
    fn features(&self) -> &FeatureSpec {
        &self.features
    }
    fn train(&self, world: World) -> gristmill_train::Result<Box<dyn BatchSource>> {
        Ok(self.open("train", self.scenario.rows, true, world))
    }
    fn scan(&self, split: &str, _: Columns, world: World) -> gristmill_train::Result<Box<dyn BatchSource>> {
        let rows = if split == "train" { self.scenario.rows } else { 41 };
        Ok(self.open(split, rows, false, world))
    }
    fn evaluation_splits(&self) -> (Option<String>, Option<String>) {
        (Some("validation".into()), Some("test".into()))
    }
}

struct Part {
    split: String,
    rows: u64,
    batch: u64,
    shuffled: bool,
    world: World,
    at: (u64, u64),
    delivered: u64,
    scenario: Scenario,
    stop: StopFlag,
}

impl Part {
    /// Row t of the epoch: a permutation, since 13 divides none of the sizes used here.
    fn row(&self, t: u64) -> u64 {
        if self.shuffled { (t * 13 + self.at.0 * 7) % self.rows } else { t }
    }
}

/// (numbers, category code, label) of a row, a function of split and row.
fn sample(split: &str, row: u64) -> ([f64; 2], i64, f64) {
    let domain = split.bytes().fold(0, |h, b| h * 31 + u64::from(b));
    let mut rng = Key::derive(Domain::Draw, 5, &[domain, row]).rng();
    let mut unit = || rng.next_u32() as f64 / f64::from(u32::MAX) * 2.0 - 1.0;
    let x = [unit(), unit()];
    let noise = unit();
    let code = (rng.below(6)) as i64;
    (x, code, f64::from(x[0] - x[1] * 0.5 + code as f64 * 0.3 - 0.7 + noise > 0.0))
}

impl BatchSource for Part {
    fn plan(&self) -> gristmill_train::Result<PlanSummary> {
        Ok(PlanSummary {
            fingerprint: format!("{} {}", self.rows, self.batch),
            samples: self.rows,
            steps: self.rows.div_ceil(self.batch),
        })
    }
    fn start(&mut self, epoch: u64) -> gristmill_train::Result<()> {
        self.at = (epoch, 0);
        Ok(())
    }
    fn restore(&mut self, state: &serde_json::Value) -> gristmill_train::Result<()> {
        self.at = serde_json::from_value(state.clone()).unwrap();
        Ok(())
    }
    fn next(&mut self) -> gristmill_train::Result<Option<Batch>> {
        let rank = self.world.rank;
        if self.split == "train" && self.shuffled {
            if self.scenario.kill == Some((rank, self.delivered)) {
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
            }
            if self.scenario.stall == Some((rank, self.delivered)) {
                std::thread::sleep(Duration::from_secs(60));
            }
            self.delivered += 1;
            if rank == 0 && self.scenario.stop_after == Some(self.delivered) {
                self.stop.set();
            }
        }
        let (epoch, step) = self.at;
        let (start, end) = (step * self.batch, ((step + 1) * self.batch).min(self.rows));
        if start >= end {
            return Ok(None);
        }
        let (rank, size) = (rank as u64, self.world.world_size as u64);
        let mut rows: Vec<u64> = (start..end).filter(|t| t % size == rank).map(|t| self.row(t)).collect();
        let real = rows.len();
        if rows.is_empty() {
            rows.push(0);
        }
        self.at = (epoch, step + 1);
        let samples: Vec<_> = rows.iter().map(|row| sample(&self.split, *row)).collect();
        let n = rows.len() as i64;
        let numbers: Vec<f64> = samples.iter().flat_map(|s| s.0).collect();
        let codes = Tensor::from_slice(&samples.iter().map(|s| s.1.min(5)).collect::<Vec<_>>());
        let mask = Tensor::zeros([n], (Kind::Float, Device::Cpu));
        let _ = mask.narrow(0, 0, real as i64).fill_(1.0);
        Ok(Some(Batch {
            tensors: vec![
                (NUMBERS.into(), Tensor::from_slice(&numbers).reshape([n, 2])),
                (CATEGORIES.into(), codes.reshape([n, 1])),
                (BASELINE.into(), codes),
                (LABEL.into(), Tensor::from_slice(&samples.iter().map(|s| s.2).collect::<Vec<_>>())),
            ],
            mask,
            row_ids: Tensor::from_slice(&rows.iter().map(|r| *r as i64).collect::<Vec<_>>()),
            global_rows: end - start,
            largest_part: (end - start).div_ceil(size),
            state: serde_json::json!(self.at),
        }))
    }
}
