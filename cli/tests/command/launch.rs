//! Training by the ranks of one machine, started here or by something else.
#![cfg(feature = "torch")]

use std::{
    io::Read as _,
    net::TcpListener,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use testkit::program::{finish, start};

use crate::pipeline::{LIMIT, configuration, gristmill, run, text};

/// The extract's pipeline up to its shards, and the configuration.
fn shards(folder: &Path) -> std::path::PathBuf {
    let config = configuration(folder, &testkit::flights_extract(), 1);
    let whole = std::fs::read_to_string(&config).unwrap();
    // In float64 the ranks' different order of additions stays far below the differences that a mistake makes.
    let (before, train) = whole.split_once("[train]").unwrap();
    let prepare = folder.join("prepare.toml");
    std::fs::write(&prepare, before).unwrap();
    let _ = run(&["run", text(&prepare), "--quiet"]).success();
    let train =
        train.replace("hidden = [32, 16]", "hidden = [32, 16]\ndtype = \"f64\"").replace("epochs = 2", "epochs = 1");
    std::fs::write(&config, format!("[train]\ndata = {{ shards = \"shards\" }}{train}")).unwrap();
    config
}

fn report(folder: &Path, run: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join(run).join("report.json")).unwrap()).unwrap()
}

/// Losses of two reports, by epoch and split, agree to 1e-6 of themselves.
fn assert_same_losses(a: &serde_json::Value, b: &serde_json::Value) {
    let losses = |r: &serde_json::Value| -> Vec<f64> {
        let history = r["history"].as_array().unwrap().iter().map(|e| e["scores"]["loss"].as_f64().unwrap());
        history.chain(r["test"]["loss"].as_f64()).collect()
    };
    let (a, b) = (losses(a), losses(b));
    assert!(a.len() >= 3 && a.len() == b.len(), "{a:?} {b:?}");
    for (x, y) in a.iter().zip(&b) {
        assert!((x - y).abs() <= 1e-6 * x.abs(), "{a:?} {b:?}");
    }
}

#[test]
fn ranks_started_here_or_by_hand_end_where_one_rank_does() {
    let dir = tempfile::tempdir().unwrap();
    let config = shards(dir.path());
    let train = |run: &str, nproc: &str| {
        let url = format!("train.checkpoint.url={run}");
        let mut c = gristmill(&["train", text(&config), "--quiet", "--set", &url, "--nproc", nproc]);
        finish(&mut c, LIMIT)
    };
    let one = train("one", "1").success();
    assert!(one.stdout.contains("the model"), "{}", one.stdout);
    let _ = train("two", "2").success();
    let (one, two) = (report(dir.path(), "one"), report(dir.path(), "two"));
    assert_eq!((&one["world_size"], &two["world_size"]), (&1.into(), &2.into()));
    assert_eq!(one["steps"], two["steps"]);
    assert_same_losses(&one, &two);

    // As a scheduler would start them: two processes that know of each other by five variables.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let ranks: Vec<_> = ["0", "1"]
        .map(|rank| {
            let mut c = gristmill(&["train", text(&config), "--quiet", "--set", "train.checkpoint.url=hand"]);
            c.env("RANK", rank).env("LOCAL_RANK", rank).env("WORLD_SIZE", "2");
            start(c.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port))
        })
        .into_iter()
        .map(|rank| rank.wait(LIMIT).success())
        .collect();
    assert!(ranks[0].stdout.contains("the model"), "rank 0 reports: {}", ranks[0].stdout);
    assert_eq!(ranks[1].stdout, "", "and only rank 0");
    let hand = report(dir.path(), "hand");
    assert_eq!(hand["world_size"], 2);
    assert_eq!(hand["model_digest"], two["model_digest"], "the same ranks give the same bytes, whoever starts them");
}

#[test]
fn a_rank_that_is_killed_ends_the_others_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let config = shards(dir.path());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut ranks: Vec<_> = ["0", "1"]
        .map(|rank| {
            let mut c = gristmill(&["train", text(&config), "--quiet", "--set", "train.epochs=1000"]);
            c.env("RANK", rank).env("LOCAL_RANK", rank).env("WORLD_SIZE", "2");
            start(c.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port))
        })
        .into();
    let checkpoints = dir.path().join("run/checkpoints");
    let begun = || std::fs::read_dir(&checkpoints).is_ok_and(|mut entries| entries.next().is_some());
    while !begun() {
        assert!(!ranks[0].has_ended() && ranks[0].elapsed() < LIMIT, "training begins");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut last = ranks.pop().unwrap();
    last.kill();
    assert_eq!(last.wait(LIMIT).signal, Some(9));
    let other = ranks.pop().unwrap().wait(LIMIT);
    assert_eq!(other.status, Some(1), "{}", other.stderr);
    assert!(other.stderr.starts_with("error: "), "{}", other.stderr);
}

/// A moment at which programs still load their libraries is as good as any other.
#[test]
fn a_stop_is_a_stop_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let config = shards(dir.path());
    for wait in [0, 20, 80, 200, 400, 800, 1500] {
        let url = format!("train.checkpoint.url=stopped-{wait}");
        let set = ["--set", &url, "--set", "train.epochs=100000", "--set", "launch.nproc=2"];
        let mut c = gristmill(&["run", text(&config), "--quiet"]);
        let mut child = c.args(set).stdout(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        // It listens before it starts the first program.
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        while std::fs::read_to_string(&children).unwrap().is_empty() {
            assert!(child.try_wait().unwrap().is_none() && began.elapsed() < LIMIT, "training is started");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(wait));
        rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let status = child.wait().unwrap();
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(75), "after {wait} ms: {status}: {said}");
        assert_eq!(said.lines().filter(|l| l.starts_with("error: ")).count(), 1, "after {wait} ms: {said}");
        assert!(said.contains("stop"), "after {wait} ms: {said}");
    }
}
