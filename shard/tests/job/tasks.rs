//! Several processes do one job, knowing of each other only through storage.

use std::sync::Arc;

use gristmill_shard::{
    Control, Error, Progress, ShardSet, StopFlag, Storage, StorageOptions,
    job::{ShardOptions, Task, shard},
    verify::verify,
};

use crate::support::{contents, input, options, spilled, with_threads};

#[tokio::test]
async fn any_number_of_tasks_in_any_order_gives_the_same_bytes() {
    let from = Storage::memory();
    input(&from, 4_000).await;
    let alone = Storage::memory();
    shard(&from, &alone, &options(), &Control::default()).await.unwrap();
    let want = contents(&alone).await;
    for count in [1, 3, 8] {
        // One after the other: the first finds all others missing, and does their work.
        let to = Storage::memory();
        for (turn, index) in [count - 1, 0].into_iter().enumerate() {
            let options = ShardOptions { task: Some(Task { index, count }), ..options() };
            let outcome = shard(&from, &to, &options, &with_threads(1)).await.unwrap();
            assert_eq!(outcome.already_current, turn == 1);
        }
        assert!(contents(&to).await == want, "{count} tasks in turn");
        // All at once.
        let to = Storage::memory();
        let tasks = (0..count).map(|index| {
            let (from, to) = (from.clone(), to.clone());
            async move {
                let options = ShardOptions { task: Some(Task { index, count }), ..options() };
                shard(&from, &to, &options, &with_threads(2)).await
            }
        });
        for outcome in futures::future::join_all(tasks).await {
            outcome.unwrap();
        }
        assert!(contents(&to).await == want, "{count} tasks at once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_on_a_disk_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| Storage::open(dir.path().join(name).to_str().unwrap(), &StorageOptions::new()).unwrap();
    let (from, to) = (open("in"), open("out"));
    input(&from, 4_000).await;
    let tasks: Vec<_> = (0..4)
        .map(|index| {
            let (from, to) = (from.clone(), to.clone());
            // A job can be spawned: its future is Send.
            tokio::spawn(async move {
                let options = ShardOptions { task: Some(Task { index, count: 4 }), ..options() };
                shard(&from, &to, &options, &with_threads(1)).await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(verify(&to, &Control::default()).await.unwrap().problems, []);
    assert_eq!(ShardSet::open(&to).await.unwrap().manifest().rows, 4_000);
    let left: Vec<String> =
        to.list("").await.unwrap().into_iter().map(|l| l.path).filter(|p| p.contains("work")).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[tokio::test]
async fn a_run_that_is_lost_is_made_again() {
    let (from, whole, to) = (Storage::memory(), Storage::memory(), Storage::memory());
    input(&from, 2_000).await;
    let options = spilled(options());
    shard(&from, &whole, &options, &with_threads(1)).await.unwrap();
    // Stopped while shards are written: the runs are there, and so are their receipts.
    let stop = StopFlag::new();
    let progress = Arc::new(StopAt("write shards", stop.clone()));
    let control = Control { progress, stop, threads: 1 };
    assert!(matches!(shard(&from, &to, &options, &control).await, Err(Error::Stopped)));
    let listed = to.list("_gristmill/work").await.unwrap();
    let runs: Vec<String> = listed.into_iter().map(|l| l.path).filter(|p| p.ends_with(".arrows")).collect();
    to.delete(runs.first().unwrap()).await.unwrap();
    let error = shard(&from, &to, &options, &with_threads(1)).await.unwrap_err();
    assert!(error.to_string().contains("run-"), "{error}");
    shard(&from, &to, &options, &with_threads(1)).await.unwrap();
    assert!(contents(&to).await == contents(&whole).await);
}

struct StopAt(&'static str, StopFlag);

impl Progress for StopAt {
    fn start(&self, stage: &str, _: u64, _: gristmill_shard::control::Unit) {
        if stage == self.0 {
            self.1.set();
        }
    }
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}
