//! A real epoch, read by processes of their own, is the plan's: every sample once, in its order.

use std::collections::BTreeMap;

use gristmill_loader::{Plan, PlanOptions, Shuffle, World};
use gristmill_shard::{ShardSet, Storage, StorageOptions};
use testkit::{
    delivery::{RowIds, copies},
    program::start,
};

use crate::pipeline::{LIMIT, flights, gristmill, numbers, run, text};

const GLOBAL_BATCH: u64 = 999;

#[test]
fn any_number_of_loader_processes_delivers_what_the_plan_says() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = flights(dir.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let storage = Storage::open(text(&folder), &StorageOptions::new()).unwrap();
    let shards = runtime.block_on(ShardSet::open(&storage)).unwrap();
    assert!(shards.lane_files("train", 0).len() > 1, "lanes of several files");
    let ids = runtime.block_on(RowIds::read(&shards, "train")).unwrap();
    let options = PlanOptions {
        shuffle: Shuffle::ShardBlock { window_blocks: 4 },
        seed: 5,
        ..PlanOptions::new("train", GLOBAL_BATCH)
    };
    let plan = runtime.block_on(Plan::open(&shards, options)).unwrap();
    assert_ne!(plan.samples(0) % GLOBAL_BATCH, 0, "the last step is short");
    // What the plan says, without any rule of who reads what.
    let steps: Vec<Vec<i64>> = ids.steps(&plan, 0);
    let mut planned: Vec<i64> = steps.concat();
    planned.sort_unstable();
    assert_eq!(planned, ids.sorted(), "the plan covers the split exactly once");

    for world_size in 1..=8 {
        let size = world_size.to_string();
        let plan_flags = ["--world-size", &size, "--global-batch", "999", "--seed", "5"];
        let replay = run(&[&["plan", text(&folder), "--json"], &plan_flags[..]].concat()).success().json();
        let replay = &replay["replay"];
        assert_eq!((&replay["missing"], &replay["repeated"]), (&0.into(), &0.into()), "{replay}");
        assert_eq!(
            (&replay["delivered"], &replay["rows"]),
            (&plan.samples(0).into(), &plan.samples(0).into()),
            "{replay}"
        );
        assert_eq!(replay["steps_per_rank"], plan.steps(0).unwrap(), "{replay}");

        let running: Vec<_> = (0..world_size)
            .map(|rank: u32| {
                let rank = rank.to_string();
                let args =
                    [&["load", text(&folder), "--ids", "--threads", "1", "--rank", &rank], &plan_flags[..]].concat();
                start(&mut gristmill(&args))
            })
            .collect();
        let mut delivered: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
        for (rank, process) in (0..).zip(running) {
            let output = process.wait(LIMIT).success().stdout;
            let rows = parse(&output);
            let world = World::new(rank, world_size, world_size).unwrap();
            assert_eq!(rows, ids.of_rank(&plan, 0, &world), "rank {rank} of {world_size}, in order");
            for (step, id) in rows {
                delivered.entry(step).or_default().push(id);
            }
        }
        assert_eq!(delivered.len() as u64, plan.steps(0).unwrap(), "steps of {world_size} ranks");
        for (step, mut got) in delivered {
            let mut want = steps[step as usize].clone();
            got.sort_unstable();
            want.sort_unstable();
            assert_eq!(got, want, "step {step} of {world_size} ranks");
        }
    }
}

#[test]
fn copies_are_printed_and_delivered_as_declared() {
    let dir = tempfile::tempdir().unwrap();
    let (clean, plain) = numbers(dir.path());
    let folder = dir.path().join("copies");
    let shard = ["shard", text(&clean), "--out", text(&folder), "--nodes", "2", "--stratify", "label", "--quiet"];
    let _ = run(&[&shard[..], &["--resample", "label=balanced", "--resample-total", "over"]].concat()).success();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let storage = Storage::open(text(&folder), &StorageOptions::new()).unwrap();
    let shards = runtime.block_on(ShardSet::open(&storage)).unwrap();
    let declared = runtime.block_on(copies(&shards, "train")).unwrap();
    assert!(declared.len() > 500 && declared.windows(2).all(|w| w[0] != w[1]), "{} samples", declared.len());

    for world_size in [1, 3, 4] {
        let size = world_size.to_string();
        let mut delivered = Vec::new();
        for rank in 0..world_size {
            let rank = rank.to_string();
            let flags = ["--world-size", &size, "--rank", &rank, "--global-batch", "60"];
            let output = run(&[&["load", text(&folder), "--ids"], &flags[..]].concat()).success().stdout;
            let mut lines = output.lines();
            assert_eq!(lines.next(), Some("epoch,step,row_id,copy"));
            for line in lines {
                let fields: Vec<i64> = line.split(',').map(|f| f.parse().unwrap()).collect();
                assert!(fields.len() == 4 && fields[0] == 0, "{line}");
                delivered.push((fields[2], fields[3] as i32));
            }
        }
        delivered.sort_unstable();
        assert_eq!(delivered, declared, "{world_size} ranks");
    }
    // Without copies ids say it all.
    let output = run(&["load", text(&plain), "--ids", "--global-batch", "60"]).success().stdout;
    assert!(output.starts_with("epoch,step,row_id\n"), "{output}");
}

fn parse(csv: &str) -> Vec<(u64, i64)> {
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("epoch,step,row_id"));
    lines
        .map(|line| {
            let mut fields = line.split(',').map(|f| f.parse::<i64>().unwrap());
            let (epoch, step, id) = (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap());
            assert_eq!((epoch, fields.next()), (0, None));
            (u64::try_from(step).unwrap(), id)
        })
        .collect()
}
