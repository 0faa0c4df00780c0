//! Training as several processes: the same result on any number of ranks, to the same bytes after a stop, and an end
//! instead of a hang when a rank is lost.

use std::time::{Duration, Instant};

use gristmill_train::{Error, report::LogLine};

use crate::synthetic::{Scenario, config};

fn finished(ranks: usize, rest: serde_json::Value) -> (tempfile::TempDir, Scenario) {
    let dir = tempfile::tempdir().unwrap();
    let scenario = Scenario::new(dir.path(), config(rest));
    scenario.launch(ranks).unwrap_or_else(|e| panic!("{e}: {} {}", scenario.note(0), scenario.note(1)));
    (dir, scenario)
}

fn numbers(safetensors: &[u8]) -> Vec<f64> {
    let document = safetensors::SafeTensors::deserialize(safetensors).unwrap();
    let mut names = document.names();
    names.sort_unstable();
    names
        .iter()
        .flat_map(|name| document.tensor(name).unwrap().data().chunks_exact(8))
        .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

fn log(scenario: &Scenario) -> Vec<LogLine> {
    let text = std::fs::read_to_string(scenario.run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= tolerance, "{i}: {x} {y}");
    }
}

fn losses(scenario: &Scenario) -> Vec<f64> {
    log(scenario)
        .iter()
        .flat_map(|line| match line {
            LogLine::Step { loss, .. } => vec![*loss],
            LogLine::Epoch(e) => vec![e.scores.loss, e.scores.accuracy, e.scores.auc.unwrap()],
        })
        .collect()
}

#[test]
fn any_number_of_ranks_gives_the_same_curve_and_parameters() {
    let (_dir, one) = finished(1, serde_json::json!({}));
    let log_of_one = log(&one);
    assert_eq!(log_of_one.len(), 2 * (7 + 2));
    // Guards the comparison itself: it does learn, and the last step of an epoch has a single sample.
    assert!(matches!(log_of_one[6], LogLine::Step { samples: 1, step: 7, .. }), "{:?}", log_of_one[6]);
    let model = numbers(&one.file("model", "model-"));
    for (ranks, rest) in [
        (2, serde_json::json!({})),
        (3, serde_json::json!({})),
        (1, serde_json::json!({"micro_batch": 3})),
        (3, serde_json::json!({"micro_batch": 2})),
    ] {
        let (_dir, many) = finished(ranks, rest);
        close(&losses(&one), &losses(&many), 1e-9);
        close(&model, &numbers(&many.file("model", "model-")), 1e-9);
    }
}

#[test]
fn a_stopped_run_goes_on_to_the_same_bytes() {
    let rest = || serde_json::json!({"checkpoint": {"url": "unused", "keep": 9}});
    let (_dir, whole) = finished(2, rest());
    // In the middle of each epoch, at the last step of the first, and again after the first stop.
    for stops in [vec![3], vec![7], vec![11], vec![2, 3, 4]] {
        let dir = tempfile::tempdir().unwrap();
        let mut scenario = Scenario::new(dir.path(), config(rest()));
        let mut done = 0;
        for after in stops {
            scenario.stop_after = Some(after);
            let error = scenario.launch(2).unwrap_err();
            assert!(matches!(error, Error::StoppedRanks), "{error}");
            done += after;
            assert!(scenario.checkpoints().contains(&done), "{done}: {:?}", scenario.checkpoints());
        }
        scenario.stop_after = None;
        scenario.launch(2).unwrap();
        for start in ["parameters", "optimizer", "log", "manifest"] {
            assert!(whole.checkpoint_file(14, start) == scenario.checkpoint_file(14, start), "{start} after {done}");
        }
        assert!(whole.file("model", "model-") == scenario.file("model", "model-"));
        assert_eq!(log(&whole), log(&scenario));
    }
}

#[test]
fn a_stopped_run_goes_on_with_other_ranks_to_rounding() {
    let (_dir, whole) = finished(1, serde_json::json!({}));
    let dir = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new(dir.path(), config(serde_json::json!({})));
    scenario.stop_after = Some(4);
    assert!(scenario.launch(3).is_err());
    scenario.stop_after = None;
    scenario.launch(2).unwrap();
    close(&losses(&whole), &losses(&scenario), 1e-9);
    close(&numbers(&whole.file("model", "model-")), &numbers(&scenario.file("model", "model-")), 1e-9);

    // Under `deterministic` that is refused, naming what differs.
    let dir = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new(dir.path(), config(serde_json::json!({"deterministic": true})));
    scenario.stop_after = Some(4);
    assert!(scenario.launch(2).is_err());
    scenario.stop_after = None;
    assert!(scenario.launch(1).is_err());
    assert!(scenario.note(0).contains("world size was 2 and is 1"), "{}", scenario.note(0));
    scenario.launch(2).unwrap();
}

#[test]
fn a_killed_rank_ends_the_others_and_a_rerun_finishes() {
    let rest = || serde_json::json!({"checkpoint": {"url": "unused", "every_steps": 2}});
    let (_dir, whole) = finished(3, rest());
    let dir = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new(dir.path(), config(rest()));
    for killed in [1, 0] {
        scenario.kill = Some((killed, 5));
        let began = Instant::now();
        let error = scenario.launch(3).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(20), "it must not wait for the timeout");
        let Error::RankFailed { rank, how, .. } = &error else { panic!("{error}") };
        assert_eq!(*rank, killed);
        assert!(how.contains("signal 9"), "{how}");
        // The others ended with an error of their own.
        let note = scenario.note(2);
        assert!(note.starts_with("peer: "), "{note}");
    }
    scenario.kill = None;
    scenario.launch(3).unwrap();
    assert!(whole.file("model", "model-") == scenario.file("model", "model-"));
    assert_eq!(log(&whole), log(&scenario), "steps that were rolled back left the log");
}

#[test]
fn a_rank_that_stalls_ends_the_others_within_the_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new(dir.path(), config(serde_json::json!({"timeout_s": 1})));
    scenario.stall = Some((1, 3));
    let began = Instant::now();
    let error = scenario.launch(2).unwrap_err();
    // One second for the operation, and a grace of 1 s for the stalled rank, which the launcher then kills.
    assert!(began.elapsed() < Duration::from_secs(15));
    assert!(matches!(error, Error::RankFailed { rank: 0, .. }), "{error}");
    let note = scenario.note(0);
    assert!(note.starts_with("peer: "), "{note}");
}

#[test]
fn ranks_that_were_started_differently_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new(dir.path(), config(serde_json::json!({})));
    scenario.odd_one = Some(1);
    assert!(scenario.launch(3).is_err());
    for rank in 0..3 {
        let note = scenario.note(rank);
        assert!(note.starts_with("conflict: the configuration or data of rank 1 differs"), "{note}");
    }
    assert!(!scenario.run.exists(), "nothing is written before the ranks agree");
}
