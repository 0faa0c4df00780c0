//! Tasks of one shard job killed at random moments, on a disk and on S3: the same command always ends with the set that
//! nobody disturbed would have made, and leaves nothing else; a reader never sees part of a set.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use testkit::{
    program::{Ended, finish, start},
    s3_server::{BUCKET, S3Server},
};

use crate::pipeline::{LIMIT, gristmill, text};

/// Runs that are killed; `GRISTMILL_KILLS` asks for more.
const KILLS: usize = 10;
const TASKS: usize = 3;

fn kills() -> usize {
    std::env::var("GRISTMILL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS)
}

/// A data set of eight files, so that every phase has several units.
fn clean(folder: &Path) -> PathBuf {
    let whole = std::fs::read_to_string(testkit::flights_extract()).unwrap();
    let mut lines = whole.lines();
    let header = lines.next().unwrap();
    let rows: Vec<&str> = lines.collect();
    let mut args = vec!["ingest".to_owned()];
    for (i, part) in rows.chunks(rows.len().div_ceil(8)).enumerate() {
        let path = folder.join(format!("flights-{i}.csv"));
        std::fs::write(&path, format!("{header}\n{}\n", part.join("\n"))).unwrap();
        args.push(text(&path).to_owned());
    }
    let out = folder.join("clean");
    args.extend(["--out".to_owned(), text(&out).to_owned(), "--quiet".to_owned()]);
    args.extend(["--sql".to_owned(), "SELECT *, delay > 15 AS late FROM input".to_owned()]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let _ = finish(&mut gristmill(&args), LIMIT).success();
    out
}

/// The store that shards are written to.
struct Store {
    base: String,
    environment: Vec<(String, String)>,
}

impl Store {
    fn command(&self, args: &[&str]) -> Command {
        let mut c = gristmill(args);
        c.envs(self.environment.clone());
        c
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    fn shard(&self, clean: &Path, out: &str, task: usize) -> Command {
        self.command(&[
            "shard",
            text(clean),
            "--out",
            out,
            "--nodes",
            "3",
            "--lanes",
            "6",
            "--stratify",
            "late,origin",
            "--split",
            "train=0.8,test=0.2",
            "--difficulty",
            "distance",
            "--shard-bytes",
            "64KiB",
            "--threads",
            "1",
            "--quiet",
            "--task",
            &format!("{task}/{TASKS}"),
        ])
    }

    fn run(&self, args: &[&str]) -> Ended {
        finish(&mut self.command(args), LIMIT)
    }

    /// Digest of the published manifest.
    fn digest(&self, out: &str) -> Option<String> {
        let ended = self.run(&["inspect", out]);
        match ended.status {
            Some(0) => {
                let line = ended.stdout.lines().next().unwrap().to_owned();
                Some(line.split_once("digest ").unwrap().1.to_owned())
            }
            _ => {
                assert_eq!(ended.status, Some(2), "nothing, or a whole set: {}{}", ended.stdout, ended.stderr);
                assert!(ended.stderr.contains("not found"), "{}", ended.stderr);
                None
            }
        }
    }
}

/// Numbers in [0, 1) that are evenly spread (golden ratio).
fn spread(n: usize) -> f64 {
    (n as f64 * 0.618_033_988_749_894_9 + 0.5).fract()
}

/// Runs all tasks at once and kills them; gives how many were still running.
fn disturbed(store: &Store, clean: &Path, out: &str, n: usize, took: Duration) -> usize {
    let mut running: Vec<_> = (0..TASKS).map(|task| start(&mut store.shard(clean, out, task))).collect();
    let begun = Instant::now();
    let mut at: Vec<(Duration, usize)> =
        (0..TASKS).map(|task| (took.mul_f64(spread(n) * (0.4 + 0.6 * spread(n * TASKS + task))), task)).collect();
    at.sort();
    for (when, task) in at {
        std::thread::sleep(when.saturating_sub(begun.elapsed()));
        running[task].kill();
    }
    let ended: Vec<Ended> = running.into_iter().map(|r| r.wait(LIMIT)).collect();
    for task in &ended {
        assert!(task.signal == Some(9) || task.status == Some(0), "{}", task.stderr);
    }
    ended.iter().filter(|e| e.signal == Some(9)).count()
}

/// What was hit: of `runs`, how many tasks, and how many runs had published before.
#[derive(Debug)]
struct Hits {
    runs: usize,
    tasks: usize,
    published: usize,
}

impl Hits {
    fn check(&self) {
        assert!(self.tasks > self.runs, "most tasks are hit: {self:?}");
        assert!(self.published < self.runs, "some runs are hit before they publish: {self:?}");
    }
}

fn killed_anywhere(store: &Store, folder: &Path, kills: usize, left: impl Fn(&str) -> Vec<String>) -> Hits {
    let clean = clean(folder);
    let whole = store.url("undisturbed");
    let begun = Instant::now();
    let mut tasks: Vec<_> = (0..TASKS).map(|task| start(&mut store.shard(&clean, &whole, task))).collect();
    tasks.drain(..).for_each(|t| drop(t.wait(LIMIT).success()));
    let took = begun.elapsed();
    let want = store.digest(&whole).unwrap();
    let (mut hits, mut early) = (0, 0);
    for n in 0..kills {
        let out = store.url(&format!("killed-{n}"));
        hits += disturbed(store, &clean, &out, n, took);
        if let Some(digest) = store.digest(&out) {
            // Published before the last one was killed: what a reader sees is the whole set.
            assert_eq!(digest, want, "run {n}");
            early += 1;
        }
        let again = finish(&mut store.shard(&clean, &out, n % TASKS), LIMIT);
        assert_eq!(again.status, Some(0), "run {n}: {}", again.stderr);
        assert_eq!(store.digest(&out).as_ref(), Some(&want), "run {n}");
        let verified = store.run(&["verify", &out]);
        assert_eq!(verified.status, Some(0), "run {n}: {}{}", verified.stdout, verified.stderr);
        assert_eq!(left(&out), Vec::<String>::new(), "run {n}");
    }
    Hits { runs: kills, tasks: hits, published: early }
}

/// Files below `folder` that are neither data, tables, sidecars, manifest nor report.
fn debris(folder: &Path) -> Vec<String> {
    let mut left = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = text(&path).to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.contains('#')
                || name.contains("/work/")
                || ![".parquet", ".json", ".html"].iter().any(|e| name.ends_with(e))
            {
                left.push(name);
            }
        }
    }
    left
}

#[test]
fn on_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store { base: text(dir.path()).to_owned(), environment: Vec::new() };
    let hits = killed_anywhere(&store, dir.path(), kills(), |out| debris(Path::new(out)));
    println!("{hits:?}");
    hits.check();
}

#[test]
fn on_s3() {
    let Some(server) = S3Server::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let store = Store { base: format!("s3://{BUCKET}/killed"), environment: server.environment(server.address()) };
    let options = server.options(server.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hits = killed_anywhere(&store, dir.path(), kills().div_ceil(2), |out| {
        let storage = gristmill_shard::Storage::open(out, &options).unwrap();
        let listed = runtime.block_on(storage.list("_gristmill/work")).unwrap();
        listed.into_iter().map(|l| l.path).collect()
    });
    println!("{hits:?}");
    hits.check();
    assert_eq!(server.unfinished_uploads(), 0);
}
