//! Data sets, shard sets and configurations that tests run the programs on.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use testkit::program::{Ended, command, finish};

/// Longer than any of these takes on a busy machine; what hangs is found all the same.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The `gristmill` that was built with these tests.
pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_gristmill"))
}

/// `gristmill` with `args`, one thread, no progress.
pub fn gristmill(args: &[&str]) -> Command {
    let mut c = command(&program());
    c.args(args);
    c
}

/// `gristmill` with `args`, run to its end.
pub fn run(args: &[&str]) -> Ended {
    finish(&mut gristmill(args), LIMIT)
}

/// `path` as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path of a test is UTF-8")
}

/// A clean data set of the committed extract with `late` and `hour`, and its shards for two machines.
pub fn flights(folder: &Path) -> (PathBuf, PathBuf) {
    let (clean, shards) = (folder.join("clean"), folder.join("shards"));
    let source = testkit::flights_extract();
    let sql = "SELECT *, delay > 15 AS late, EXTRACT(HOUR FROM date) AS hour FROM input";
    let _ = run(&["ingest", text(&source), "--out", text(&clean), "--sql", sql, "--quiet"]).success();
    let split = "train=0.8,validation=0.1,test=0.1";
    let _ = run(&[
        "shard",
        text(&clean),
        "--out",
        text(&shards),
        "--nodes",
        "2",
        "--stratify",
        "late,origin",
        "--split",
        split,
        "--shard-bytes",
        "8KiB",
        "--quiet",
    ])
    .success();
    (clean, shards)
}

/// A small data set of numbers 0 to 399 with a label and a class, and its shards for one machine.
pub fn numbers(folder: &Path) -> (PathBuf, PathBuf) {
    let (csv, clean, shards) = (folder.join("numbers.csv"), folder.join("numbers"), folder.join("number-shards"));
    std::fs::write(&csv, numbers_csv()).unwrap();
    let _ = run(&["ingest", text(&csv), "--out", text(&clean), "--quiet"]).success();
    let split = "train=0.75,test=0.25";
    let _ =
        run(&["shard", text(&clean), "--out", text(&shards), "--nodes", "1", "--split", split, "--quiet"]).success();
    (clean, shards)
}

/// Columns `number`, `label` (true or false), `class` (text) and `grade` (0 to 4).
pub fn numbers_csv() -> String {
    let mut csv = "number,label,class,grade\n".to_owned();
    for i in 0..400 {
        csv.push_str(&format!("{i},{},c{},{}\n", i % 3 == 0, i % 7, i % 5));
    }
    csv
}

/// A configuration of the whole pipeline over the extract, with everything it makes under `folder`. Its stages are cut
/// small, so that a kill may come between any two of many files and steps.
pub fn configuration(folder: &Path, source: &Path, nproc: u32) -> PathBuf {
    let path = folder.join("pipeline.toml");
    let text = format!(
        r#"
[ingest]
sources = ["{source}"]
out = "clean"
sql = "SELECT *, delay > 15 AS late, EXTRACT(HOUR FROM date) AS hour FROM input"

[shard]
out = "shards"
nodes = 2
stratify = ["origin", "late"]
split = "train=0.8,validation=0.1,test=0.1"
shard_bytes = "8KiB"

[train]
label = "late"
epochs = 2
global_batch = 300
threads = 1

[train.features]
numbers = ["distance"]
categories = ["origin", "destination", "hour"]

[train.model]
hidden = [32, 16]
dropout = 0.1

[train.checkpoint]
url = "run"
every_steps = 5

[launch]
nproc = {nproc}
"#,
        source = source.display(),
    );
    std::fs::write(&path, text).unwrap();
    path
}
