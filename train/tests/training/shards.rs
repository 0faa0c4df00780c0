//! Training from real shards through the loader: the whole way from Parquet to a model.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow::{
    array::{BooleanArray, Float64Array, Int64Array, LargeStringArray, RecordBatch},
    datatypes::{DataType, Field, Schema},
};
use gristmill_shard::{
    Control, ErrorKind, Progress, Storage, StorageOptions,
    assign::rounding::Shares,
    control::{StopFlag, Unit},
    job::{ShardOptions, shard},
    keys::{Domain, Key},
    parquet_writer::encode_file,
};
use gristmill_train::{Error, Launch, Rendezvous, TrainConfig, TrainOutcome, TrainReport, train};
use serde::{Deserialize, Serialize};

const JOB: &str = "GRISTMILL_TRAIN_TEST_SHARDS";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    config: TrainConfig,
    /// Samples of this start after which rank 0 is asked to stop.
    stop_after: Option<u64>,
    notes: PathBuf,
}

/// The body of the test `as_a_rank`: nothing, unless it was started as a rank of a test here.
pub fn rank_process() {
    let Ok(text) = std::env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&text).unwrap();
    let rendezvous = Rendezvous::from_env().unwrap().unwrap();
    let rank = rendezvous.world.rank;
    let code = match run(&job, Some(rendezvous)) {
        Ok(_) => 0,
        Err(error) => {
            std::fs::write(job.notes.join(format!("rank-{rank}.error")), error.chain()).unwrap();
            i32::from(error.kind().exit_code())
        }
    };
    std::process::exit(code);
}

/// Sets the stop flag when so many samples have been trained on.
struct StopAfter {
    samples: u64,
    seen: AtomicU64,
    stop: StopFlag,
}

impl Progress for StopAfter {
    fn start(&self, _: &str, _: u64, _: Unit) {}
    fn advance(&self, amount: u64) {
        if self.seen.fetch_add(amount, Ordering::Relaxed) + amount >= self.samples {
            self.stop.set();
        }
    }
    fn finish(&self) {}
}

fn run(job: &Job, rendezvous: Option<Rendezvous>) -> gristmill_train::Result<TrainOutcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut control = Control::default();
    if let (Some(samples), true) = (job.stop_after, rendezvous.as_ref().is_none_or(|r| r.world.rank == 0)) {
        control.progress = Arc::new(StopAfter { samples, seen: AtomicU64::new(0), stop: control.stop.clone() });
    }
    train(&job.config, rendezvous, &control, runtime.handle().clone())
}

/// 2,600 rows of flights that never flew: late in the evening and from some airports.
fn rows() -> RecordBatch {
    let mut rng = Key::derive(Domain::Draw, 11, &[]).rng();
    let (mut hours, mut distances, mut origins, mut late) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..2600 {
        let (hour, origin) = (rng.below(24), rng.below(9));
        let distance = (rng.below(11) != 0).then(|| rng.below(3000) as f64);
        let score = hour * 3 + origin * 5 + if distance.is_some_and(|d| d > 1500.0) { 20 } else { 0 };
        hours.push(hour as i64);
        distances.push(distance);
        origins.push((origin != 4).then(|| format!("A{origin}")));
        late.push(rng.below(160) < score);
    }
    let schema = Schema::new(vec![
        Field::new("hour", DataType::Int64, false),
        Field::new("distance", DataType::Float64, true),
        Field::new("origin", DataType::LargeUtf8, true),
        Field::new("late", DataType::Boolean, false),
    ]);
    RecordBatch::try_new(
        Arc::new(schema),
        vec![
            Arc::new(Int64Array::from(hours)),
            Arc::new(Float64Array::from(distances)),
            Arc::new(LargeStringArray::from(origins)),
            Arc::new(BooleanArray::from(late)),
        ],
    )
    .unwrap()
}

/// Shards of [`rows`] in `dir/shards`.
fn make_shards(dir: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let open = |name: &str| Storage::open(dir.join(name).to_str().unwrap(), &StorageOptions::new()).unwrap();
    let batch = rows();
    runtime.block_on(async {
        let file = encode_file("rows", &batch.schema(), &[batch]).unwrap();
        open("raw").put("rows.parquet", file.bytes).await.unwrap();
        let options = ShardOptions {
            nodes: 2,
            stratify: vec!["late".into()],
            splits: Shares::parse("train=0.8,validation=0.1,test=0.1").unwrap(),
            shard_bytes: 4096,
            ..ShardOptions::default()
        };
        shard(&open("raw"), &open("shards"), &options, &Control::default()).await.unwrap();
    });
}

fn job(dir: &Path, run: &str, rest: serde_json::Value) -> Job {
    let notes = dir.join(format!("{run}-notes"));
    std::fs::create_dir_all(&notes).unwrap();
    let mut all = serde_json::json!({
        "data": {"shards": dir.join("shards")}, "label": "late",
        "features": {"numbers": ["distance"], "categories": ["origin", "hour"]},
        "model": {"hidden": [16], "dtype": "f64", "dropout": 0.1},
        "optimizer": {"lr": 0.02},
        "epochs": 3, "global_batch": 100, "log_every_steps": 1, "timeout_s": 20, "threads": 1,
        "checkpoint": {"url": dir.join(run), "keep": 9}, "baseline": {"column": "hour"},
    });
    for (key, value) in rest.as_object().unwrap() {
        all[key] = value.clone();
    }
    Job { config: TrainConfig::from_value(all).unwrap(), stop_after: None, notes }
}

impl Job {
    fn launch(&self, ranks: usize) -> gristmill_train::Result<()> {
        let args: Vec<OsString> = ["--exact", "as_a_rank", "--nocapture"].map(Into::into).to_vec();
        let mut launch = Launch::this_program(args, ranks, Duration::from_secs(20))?;
        launch.env = vec![(JOB.into(), serde_json::to_string(self).unwrap().into())];
        gristmill_train::launch(&launch, &StopFlag::new())
    }

    fn folder(&self) -> &Path {
        Path::new(&self.config.checkpoint.url)
    }

    fn report(&self) -> TrainReport {
        serde_json::from_slice(&std::fs::read(self.folder().join("report.json")).unwrap()).unwrap()
    }

    /// Contents of the run folder that must not depend on how often it was stopped, by path.
    fn results(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = Vec::new();
        for folder in ["model", "."] {
            for entry in std::fs::read_dir(self.folder().join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                if path.is_file() && (folder == "model" || name == "metrics.jsonl") {
                    files.push((name, std::fs::read(&path).unwrap()));
                }
            }
        }
        files.sort();
        files
    }
}

#[test]
fn shards_train_to_a_model_that_beats_the_baselines_on_any_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    make_shards(dir.path());
    let one = job(dir.path(), "one", serde_json::json!({}));
    let TrainOutcome::Finished(report) = run(&one, None).unwrap() else { panic!("it was not done before") };
    let test = report.test.unwrap();
    assert_eq!(report.steps, 3 * 21, "2080 rows in batches of 100");
    assert_eq!((test.rows, report.history.len()), (260, 6));
    for baseline in &report.baselines {
        assert!(test.auc > baseline.scores.auc && test.loss < baseline.scores.loss, "{baseline:?} {test:?}");
    }
    assert!(matches!(run(&one, None).unwrap(), TrainOutcome::AlreadyCurrent(_)));

    for ranks in [2, 3] {
        let many = job(dir.path(), &format!("ranks-{ranks}"), serde_json::json!({"micro_batch": 20}));
        many.launch(ranks).unwrap();
        let other = many.report();
        assert_eq!(other.baselines, report.baselines);
        let pairs = report.history.iter().zip(&other.history);
        for (a, b) in pairs.map(|(a, b)| (a.scores, b.scores)).chain([(test, other.test.unwrap())]) {
            assert_eq!(a.rows, b.rows);
            assert!((a.loss - b.loss).abs() < 1e-9 && (a.auc.unwrap() - b.auc.unwrap()).abs() < 1e-9, "{a:?} {b:?}");
        }
    }
}

#[test]
fn a_run_over_shards_that_was_stopped_goes_on_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    make_shards(dir.path());
    let whole = job(dir.path(), "whole", serde_json::json!({}));
    whole.launch(2).unwrap();
    let mut stopped = job(dir.path(), "stopped", serde_json::json!({}));
    for samples in [700, 1500] {
        stopped.stop_after = Some(samples);
        let error = stopped.launch(2).unwrap_err();
        assert!(matches!(error, Error::StoppedRanks), "{error}");
    }
    stopped.stop_after = None;
    stopped.launch(2).unwrap();
    let (a, b) = (whole.results(), stopped.results());
    assert_eq!(a.iter().map(|f| &f.0).collect::<Vec<_>>(), b.iter().map(|f| &f.0).collect::<Vec<_>>());
    assert_eq!(a.len(), 3);
    for ((name, a), (_, b)) in a.iter().zip(&b) {
        assert!(a == b, "{name}");
    }
}

#[test]
fn ranks_that_something_else_started_join_by_their_environment() {
    let dir = tempfile::tempdir().unwrap();
    make_shards(dir.path());
    let job = job(dir.path(), "run", serde_json::json!({"epochs": 1}));
    // Free a moment ago. Rank 0 hosts the store there, as under torchrun without an agent's store.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ranks: Vec<_> = (0..2)
        .map(|rank: usize| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "as_a_rank", "--nocapture"])
                .env(JOB, serde_json::to_string(&job).unwrap())
                .envs(
                    [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)]
                        .map(|(k, v)| (k, v.to_string())),
                )
                .envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())])
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
    assert_eq!((job.report().world_size, job.report().steps), (2, 21));
}

#[test]
fn a_configuration_that_does_not_fit_the_shards_is_told_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    make_shards(dir.path());
    for (rest, wanted) in [
        (serde_json::json!({"label": "lat"}), "did you mean \"late\""),
        (serde_json::json!({"label": "hour", "features": {"categories": ["origin"]}}), "24 values"),
        (serde_json::json!({"label": "distance", "features": {"categories": ["origin"]}}), "no categories"),
        (serde_json::json!({"features": {"categories": ["orgin"]}}), "did you mean \"origin\""),
        (serde_json::json!({"features": {"categories": ["distance"]}}), "distance"),
        (serde_json::json!({"baseline": {"column": "distance"}}), "baseline.column"),
        (
            serde_json::json!({"data": {"shards": dir.path().join("shards"), "validation": "validaton"}}),
            "did you mean \"validation\"",
        ),
        (
            serde_json::json!({"data": {"shards": dir.path().join("shards"), "train": "trian"}}),
            "did you mean \"train\"",
        ),
    ] {
        let error = run(&job(dir.path(), "wrong", rest), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.chain().contains(wanted), "{}", error.chain());
    }
    let missing = job(dir.path(), "wrong", serde_json::json!({"data": {"shards": dir.path().join("nothing")}}));
    assert_eq!(run(&missing, None).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!dir.path().join("wrong").exists());
}

#[test]
fn a_flipped_byte_in_a_shard_ends_the_run_naming_the_file() {
    let dir = tempfile::tempdir().unwrap();
    make_shards(dir.path());
    let lane = dir.path().join("shards/train/lane-0003");
    let file = std::fs::read_dir(lane).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let error = run(&job(dir.path(), "run", serde_json::json!({})), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.chain().contains("lane-0003"), "{}", error.chain());

    // Among several ranks the one that read it says so, and the others pass it on.
    let many = job(dir.path(), "many", serde_json::json!({}));
    assert!(many.launch(2).is_err());
    let notes: Vec<String> =
        (0..2).map(|r| std::fs::read_to_string(many.notes.join(format!("rank-{r}.error"))).unwrap()).collect();
    assert!(notes.iter().all(|n| n.contains("lane-0003")), "{notes:?}");
}
