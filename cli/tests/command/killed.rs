//! SIGKILL at 20 moments of a whole run, each rerun until done: the end is that of a run that nobody disturbed.
#![cfg(feature = "torch")]

use std::{
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use testkit::program::{Running, finish, start};

use crate::pipeline::{LIMIT, configuration, gristmill, run, text};

const KILLS: usize = 20;
/// Runs at once.
const AT_ONCE: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Ingest,
    Shard,
    Train,
}

const STAGES: [Stage; 3] = [Stage::Ingest, Stage::Shard, Stage::Train];

/// The stage that a run is in, by what it has published.
fn stage(folder: &Path) -> Stage {
    let published = |set: &str| folder.join(set).join("_gristmill/manifest-00000001.json").exists();
    match (published("clean"), published("shards")) {
        (false, _) => Stage::Ingest,
        (true, false) => Stage::Shard,
        (true, true) => Stage::Train,
    }
}

fn spawn(folder: &Path) -> Running {
    start(&mut gristmill(&["run", text(&folder.join("pipeline.toml")), "--quiet"]))
}

/// How long each stage took, watched from outside, and what came out.
fn undisturbed(folder: &Path) -> ([Duration; 3], String) {
    let mut running = spawn(folder);
    let mut began = [Duration::ZERO; 3];
    let mut current = Stage::Ingest;
    while !running.has_ended() {
        let now = stage(folder);
        for later in STAGES.into_iter().filter(|s| *s > current && *s <= now) {
            began[later as usize] = running.elapsed();
        }
        current = now;
        assert!(running.elapsed() < LIMIT, "an undisturbed run ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    let whole = running.elapsed();
    let _ = running.wait(LIMIT).success();
    let took = [began[1], began[2].saturating_sub(began[1]), whole.saturating_sub(began[2])];
    (took, digest(folder))
}

/// Digest of the parameters, as the report states it and as the bytes have it.
fn digest(folder: &Path) -> String {
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("run/report.json")).unwrap()).unwrap();
    let digest = report["model_digest"].as_str().unwrap().to_owned();
    let models: Vec<PathBuf> = std::fs::read_dir(folder.join("run/model"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    assert_eq!(models.len(), 1, "{models:?}");
    let name = models[0].file_name().unwrap().to_str().unwrap();
    assert!(name.contains(&digest[..8]), "{name} and {digest}");
    digest
}

/// Kills a run once, `fraction` into the time that `aim` takes; gives the stage it was in then, or nothing when it had
/// ended before.
fn kill_once(folder: &Path, aim: Stage, after: Duration) -> Option<Stage> {
    let mut running = spawn(folder);
    while stage(folder) < aim && !running.has_ended() {
        assert!(running.elapsed() < LIMIT, "{aim:?} begins");
        std::thread::sleep(Duration::from_micros(200));
    }
    let begun = Instant::now();
    while begun.elapsed() < after && !running.has_ended() {
        std::thread::sleep(Duration::from_micros(200));
    }
    running.kill();
    let hit = stage(folder);
    let ended = running.wait(LIMIT);
    match ended.signal {
        Some(9) => Some(hit),
        _ => {
            assert_eq!(ended.status, Some(0), "{}", ended.stderr);
            None
        }
    }
}

/// The part of a second thing that `n` draws: a fixed sequence, evenly spread over [0, 1) (golden ratio).
fn spread(n: usize) -> f64 {
    (n as f64 * 0.618_033_988_749_894_9 + 0.5).fract()
}

#[test]
fn a_run_killed_anywhere_ends_as_if_it_had_not_been() {
    let root = tempfile::tempdir().unwrap();
    let source = testkit::flights_extract();
    let whole = root.path().join("undisturbed");
    std::fs::create_dir(&whole).unwrap();
    configuration(&whole, &source, 2);
    let (took, want) = undisturbed(&whole);

    let next = Mutex::new(0);
    let hits = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..AT_ONCE {
            s.spawn(|| {
                loop {
                    let n = {
                        let mut next = next.lock().unwrap();
                        *next += 1;
                        *next - 1
                    };
                    if n >= KILLS {
                        break;
                    }
                    let hit = one_kill(root.path(), &source, n, &took, &want);
                    hits.lock().unwrap().push(hit);
                }
            });
        }
    });
    let hits = hits.into_inner().unwrap();
    assert_eq!(hits.len(), KILLS);
    let counts = STAGES.map(|stage| hits.iter().filter(|h| **h == stage).count());
    println!("stages took {took:?}; kills in ingest, shard, train: {counts:?}");
    assert!(counts.iter().all(|count| *count > 0), "every stage is hit: {counts:?}");
}

/// One run killed once and rerun; gives the stage that the kill hit.
fn one_kill(root: &Path, source: &Path, n: usize, took: &[Duration; 3], want: &str) -> Stage {
    let aim = STAGES[n % 3];
    let mut fraction = spread(n);
    for attempt in 0.. {
        assert!(attempt < 10, "kill {n} in {aim:?} never came in time");
        let folder = root.join(format!("killed-{n}-{attempt}"));
        std::fs::create_dir(&folder).unwrap();
        configuration(&folder, source, 2);
        let after = took[aim as usize].mul_f64(fraction);
        let Some(hit) = kill_once(&folder, aim, after) else {
            // It was faster than the one that was measured.
            fraction /= 2.0;
            continue;
        };
        check_rerun(&folder, want, &format!("kill {n} in {hit:?}, {after:?} into {aim:?}"));
        std::fs::remove_dir_all(&folder).unwrap();
        return hit;
    }
    unreachable!("the attempts are bounded")
}

/// The same command finishes the work, and then has nothing to do.
fn check_rerun(folder: &Path, want: &str, context: &str) {
    let config = folder.join("pipeline.toml");
    let ended = finish(&mut gristmill(&["run", text(&config), "--quiet"]), LIMIT);
    assert_eq!(ended.status, Some(0), "{context}: {}", ended.stderr);
    for set in ["clean", "shards"] {
        let verified = run(&["verify", text(&folder.join(set))]);
        assert_eq!(verified.status, Some(0), "{context}: {set}: {}{}", verified.stdout, verified.stderr);
        assert!(!folder.join(set).join("_gristmill/work").exists(), "{context}: {set} has debris");
    }
    assert_eq!(digest(folder), want, "{context}: parameters");

    let before = modified(folder);
    let again = finish(&mut gristmill(&["run", text(&config), "--quiet"]), LIMIT).success();
    assert!(
        again.stdout.starts_with("everything is already current: nothing was done\n"),
        "{context}: {}",
        again.stdout
    );
    assert_eq!(modified(folder), before, "{context}: nothing is written");
}

/// Every file under `folder` and when it was last written.
fn modified(folder: &Path) -> Vec<(PathBuf, std::time::SystemTime)> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let time = std::fs::metadata(&path).unwrap().modified().unwrap();
                all.push((path, time));
            }
        }
    }
    all.sort();
    all
}
