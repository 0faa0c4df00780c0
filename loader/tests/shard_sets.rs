//! Every kind of shard set that `shard` makes is delivered as it is declared: groups on one node, layouts for other
//! machines, copies, versions.
#![allow(clippy::unwrap_used, clippy::expect_used)] // clippy.toml's exception for tests does not reach their fixtures

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{ArrayRef, AsArray, Float64Array, Int64Array, LargeStringArray},
    datatypes::{DataType, Field, Int32Type, Int64Type, Schema},
    record_batch::RecordBatch,
};
use gristmill_loader::{
    BatchSpec, DataLoader, Error, LoaderOptions, Plan, PlanOptions, ReplayOptions, Shuffle, TensorSpec, World,
    batching::{
        options::Batching,
        packing::{Method, Packing},
    },
    conformance::check_resume,
    curriculum::{Curriculum, Infeasible, Pacing},
    replay,
    sampling::options::Sampling,
};
use gristmill_shard::{
    Control, ErrorKind, ShardSet, Storage,
    assign::{
        resample::{Resample, Total},
        rounding::Shares,
    },
    job::{GroupScope, ShardOptions, layout_anew, shard},
    parquet_reader::ParquetFile,
    parquet_writer::encode_file,
    verify::verify,
};
use tokio::runtime::Handle;

/// Rows with a group of a skewed size and a rare class.
async fn add_file(storage: &Storage, file: usize, rows: i64) {
    let schema = Arc::new(Schema::new(vec![
        Field::new("x", DataType::Float64, false),
        Field::new("user", DataType::Int64, false),
        Field::new("class", DataType::LargeUtf8, false),
    ]));
    let class = |i: i64| if i % 10 == 0 { "rare" } else { "common" };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Float64Array::from_iter_values((0..rows).map(|i| i as f64))),
        // Two rows in five are one user's.
        Arc::new(Int64Array::from_iter_values(
            (0..rows).map(|i| if i % 5 < 2 { 0 } else { (i * i / 50) % 97 } + 1000 * file as i64),
        )),
        Arc::new(LargeStringArray::from_iter_values((0..rows).map(class))),
    ];
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let encoded = encode_file("x", &schema, &[batch]).unwrap();
    storage.put(&format!("part-{file}.parquet"), encoded.bytes).await.unwrap();
}

fn small_shards() -> ShardOptions {
    ShardOptions { shard_bytes: 2 << 10, stratify: vec!["class".into()], ..ShardOptions::default() }
}

async fn shards(rows: i64, options: &ShardOptions) -> (Storage, Storage, ShardSet) {
    let (from, to) = (Storage::memory(), Storage::memory());
    add_file(&from, 0, rows).await;
    shard(&from, &to, options, &Control::default()).await.unwrap();
    let set = ShardSet::open(&to).await.unwrap();
    (from, to, set)
}

/// A sample's row and, where rows are resampled, which copy of it.
type Sample = (i64, i32);

/// The samples of a split by lane, read past the loader.
async fn stored(set: &ShardSet, split: &str) -> Vec<Vec<Sample>> {
    let resampled = set.layout().resampled;
    let names: &[&str] = if resampled { &["_row_id", "_copy"] } else { &["_row_id"] };
    let mut lanes = Vec::new();
    for lane in 0..set.layout().lanes {
        let mut samples = Vec::new();
        for entry in set.lane_files(split, lane) {
            let file = ParquetFile::open(set.storage(), &entry.path).await.unwrap();
            for group in 0..file.row_group_rows().len() {
                let bytes = file.fetch(set.storage(), group, Some(names)).await.unwrap();
                let batch = file.decode(group, &bytes, Some(names)).unwrap();
                let ids = batch.column(0).as_primitive::<Int64Type>().values();
                let copy =
                    |row: usize| if resampled { batch.column(1).as_primitive::<Int32Type>().value(row) } else { 0 };
                samples.extend(ids.iter().enumerate().map(|(row, id)| (*id, copy(row))));
            }
        }
        lanes.push(samples);
    }
    lanes
}

fn options(set: &ShardSet, split: &str, global_batch: u64, world: World) -> LoaderOptions {
    let mut batch = BatchSpec::new(vec![TensorSpec::Raw { column: "x".into() }]);
    batch.copy = set.layout().resampled;
    LoaderOptions { world, ..LoaderOptions::new(PlanOptions::new(split, global_batch), batch) }
}

fn sorted(mut samples: Vec<Sample>) -> Vec<Sample> {
    samples.sort_unstable();
    samples
}

/// Delivers an epoch to `world_size` ranks and checks that every step has the samples that the plan says, that all
/// ranks take the same steps, and that the whole is what is stored.
async fn check_delivery(set: &ShardSet, split: &str, world_size: u32, local: u32) {
    let lanes = stored(set, split).await;
    let mut steps: BTreeMap<u64, Vec<Sample>> = BTreeMap::new();
    let mut plan = None;
    for rank in 0..world_size {
        let options = options(set, split, 40, World::new(rank, world_size, local).unwrap());
        let loader = DataLoader::open(set.clone(), options, Handle::current()).await.unwrap();
        let mut batches = loader.epoch(1).unwrap();
        let mut taken = 0;
        while let Some(batch) = batches.next().await.unwrap() {
            let of_step = steps.entry(batch.global_range().start).or_default();
            let ids = batch.row_ids().unwrap().iter().copied();
            if set.layout().resampled {
                of_step.extend(ids.zip(batch.copies().unwrap().iter().copied()));
            } else {
                assert_eq!(batch.copies().unwrap_err().kind(), ErrorKind::Usage);
                of_step.extend(ids.map(|id| (id, 0)));
            }
            taken += 1;
        }
        assert_eq!(taken, loader.plan().steps(1).unwrap(), "steps of rank {rank}");
        plan = Some(loader.plan().clone());
    }
    let plan = plan.unwrap();
    let mut order = plan.epoch(1);
    let mut all = Vec::new();
    for (start, got) in steps {
        let want = plan.batch_at(1, start).unwrap().map(|t| order.sample(t).unwrap().unwrap());
        let want = want.map(|s| lanes[s.lane as usize][s.position as usize]).collect();
        assert_eq!(sorted(got.clone()), sorted(want), "step at {start} of {world_size} ranks");
        all.extend(got);
    }
    assert_eq!(sorted(all), sorted(lanes.concat()));
}

/// Read amplification of an epoch over `world_size` ranks, which is covered exactly once.
async fn amplification(set: &ShardSet, split: &str, world_size: u32, machines: u32) -> f64 {
    let plan = Plan::open(set, PlanOptions::new(split, 40)).await.unwrap();
    let replay = replay(&plan, &ReplayOptions::new(1, world_size, machines)).unwrap();
    assert_eq!((replay.missing, replay.repeated, replay.delivered), (0, 0, plan.samples(1)), "{world_size} ranks");
    assert_eq!(replay.steps_per_rank, plan.steps(1).unwrap());
    replay.worlds[0].read_amplification
}

async fn check_all_worlds(set: &ShardSet, split: &str) {
    for world_size in 1..=8 {
        check_delivery(set, split, world_size, 1).await;
        amplification(set, split, world_size, 1).await;
        amplification(set, split, world_size, world_size).await;
    }
    for shuffle in [Shuffle::None, Shuffle::default()] {
        for world in [World::single(), World::new(1, 3, 1).unwrap(), World::new(3, 4, 2).unwrap()] {
            let mut base = options(set, split, 150, world);
            base.plan.shuffle = shuffle;
            let stops = check_resume(async || DataLoader::open(set.clone(), base.clone(), Handle::current()).await, 0)
                .await
                .unwrap();
            assert!(stops > 1);
        }
    }
}

#[tokio::test]
async fn groups_on_one_node_make_uneven_lanes_that_are_delivered_exactly_once() {
    let options = ShardOptions {
        nodes: 4,
        lanes: Some(12),
        group: Some("user".into()),
        group_scope: GroupScope::Node,
        splits: Shares::parse("train=0.8,test=0.2").unwrap(),
        ..small_shards()
    };
    let (_, to, set) = shards(1_300, &options).await;
    assert_eq!(verify(&to, &Control::default()).await.unwrap().problems, []);
    let lengths: Vec<usize> = stored(&set, "train").await.iter().map(Vec::len).collect();
    assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() > 1, "{lengths:?}");
    check_all_worlds(&set, "train").await;
    check_delivery(&set, "test", 4, 1).await;
    // Two machines take two nodes each.
    layout_anew(&to, 2).await.unwrap();
    let set = ShardSet::open(&to).await.unwrap();
    assert_eq!(set.layout().nodes, 2);
    check_all_worlds(&set, "train").await;
    // A node without a group has empty lanes.
    let few = ShardOptions { group: Some("class".into()), stratify: Vec::new(), splits: Shares::default(), ..options };
    let (_, _, set) = shards(400, &few).await;
    let lanes = stored(&set, "train").await;
    assert!(lanes.iter().any(Vec::is_empty) && lanes.concat().len() == 400);
    check_all_worlds(&set, "train").await;
}

#[tokio::test]
async fn a_set_laid_out_for_any_number_of_machines_is_delivered_exactly_once() {
    let (_, to, set) = shards(800, &ShardOptions { nodes: 2, lanes: Some(8), ..small_shards() }).await;
    let rows = sorted(stored(&set, "train").await.concat());
    let at_start = Plan::open(&set, PlanOptions::new("train", 40)).await.unwrap().state(0, 40).unwrap();
    for machines in [1, 3, 5, 6, 7, 8, 2] {
        layout_anew(&to, machines).await.unwrap();
        let set = ShardSet::open(&to).await.unwrap();
        assert_eq!(set.layout().nodes, machines);
        assert_eq!(sorted(stored(&set, "train").await.concat()), rows);
        check_delivery(&set, "train", machines, 1).await;
        for world_size in 1..=8 {
            let local = amplification(&set, "train", world_size, 1).await;
            // Lanes stay whole whatever node they are on.
            assert!(8 % world_size != 0 || local == 1.0, "{world_size}: {local}");
        }
        if machines.is_multiple_of(3) {
            check_all_worlds(&set, "train").await;
        }
        // Another version is another plan, with other keys.
        let options = options(&set, "train", 40, World::single());
        let loader = DataLoader::open(set, options, Handle::current()).await.unwrap();
        let refused = loader.resume(&at_start).unwrap_err();
        assert!(matches!(&refused, Error::OtherPlan { differences } if differences[0].starts_with("manifest: ")));
    }
}

#[tokio::test]
async fn copies_are_delivered_as_declared() {
    let resampled = ShardOptions {
        nodes: 2,
        lanes: Some(8),
        resample: Some(Resample::parse("class=balanced", Total::Same).unwrap()),
        splits: Shares::parse("train=0.8,test=0.2").unwrap(),
        ..small_shards()
    };
    let (_, to, set) = shards(1_000, &resampled).await;
    assert!(set.layout().resampled);
    assert_eq!(verify(&to, &Control::default()).await.unwrap().problems, []);
    let declared = sorted(stored(&set, "train").await.concat());
    assert!(declared.iter().any(|s| s.1 > 2), "rare rows are copied");
    assert!(declared.windows(2).all(|w| w[0] != w[1]), "a copy is there once");
    check_all_worlds(&set, "train").await;
    check_delivery(&set, "test", 3, 1).await;
    // Ids alone are delivered as ever, and copies only where there are some.
    let mut ids = options(&set, "train", 40, World::single());
    ids.batch.copy = false;
    let loader = DataLoader::open(set, ids, Handle::current()).await.unwrap();
    let batch = loader.epoch(0).unwrap().next().await.unwrap().unwrap();
    assert_eq!((batch.row_ids().unwrap().len(), batch.tensors().len()), (40, 3));
    let (_, _, plain) = shards(100, &small_shards()).await;
    let mut asked = options(&plain, "train", 40, World::single());
    asked.batch.copy = true;
    let refused = DataLoader::open(plain, asked, Handle::current()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage);
    assert!(refused.to_string().contains("no copies"), "{refused}");
}

#[tokio::test]
async fn a_set_that_grew_is_delivered_whole() {
    let options = ShardOptions { nodes: 2, lanes: Some(8), ..small_shards() };
    let (from, to, first) = shards(700, &options).await;
    let files = first.lane_files("train", 0).len();
    for (file, rows) in [(1, 3), (2, 430)] {
        add_file(&from, file, rows).await;
        let more = ShardOptions { append: true, ..options.clone() };
        shard(&from, &to, &more, &Control::default()).await.unwrap();
    }
    assert_eq!(verify(&to, &Control::default()).await.unwrap().problems, []);
    let set = ShardSet::open(&to).await.unwrap();
    assert_eq!((set.manifest().version, set.manifest().rows), (3, 1_133));
    // More files than the newest version adds, and not the same number in every lane.
    let counts: Vec<usize> = (0..8).map(|lane| set.lane_files("train", lane).len()).collect();
    assert!(counts[0] > files && counts.iter().any(|c| *c != counts[0]), "{counts:?}");
    let samples = sorted(stored(&set, "train").await.concat());
    assert!(samples.len() == 1_133 && samples.windows(2).all(|w| w[0].0 < w[1].0));
    check_all_worlds(&set, "train").await;
}

/// A set with sidecars by which plans filter, order and draw.
async fn set_with_sidecars() -> ShardSet {
    let options = ShardOptions {
        nodes: 2,
        lanes: Some(8),
        difficulty: Some("x".into()),
        sidecars: vec!["x".into(), "user".into()],
        ..small_shards()
    };
    shards(700, &options).await.2
}

#[tokio::test]
async fn filtered_ordered_and_drawn_plans_are_delivered_as_planned() {
    let set = set_with_sidecars().await;
    let lanes = stored(&set, "train").await;
    let base = PlanOptions::new("train", 40);
    let paced = |infeasible| Curriculum::Paced {
        column: "x".into(),
        epochs: Some(0.8),
        infeasible,
        pacing: Pacing::Sqrt { start: 0.05 },
        steps: None,
    };
    let weighted = |replacement| Sampling::Weighted { column: "x".into(), replacement, samples: Some(300) };
    let filters = vec!["x<p70".parse().unwrap(), "user!=0".parse().unwrap()];
    let kinds = [
        PlanOptions { filters: filters.clone(), ..base.clone() },
        // Whole row groups are left out.
        PlanOptions { filters: vec!["x>=690".parse().unwrap()], ..base.clone() },
        PlanOptions { filters, shuffle: Shuffle::Global, ..base.clone() },
        PlanOptions {
            curriculum: Some(Curriculum::Ordered { column: "difficulty".into(), epochs: 1 }),
            ..base.clone()
        },
        PlanOptions { curriculum: Some(paced(Infeasible::Clip)), ..base.clone() },
        PlanOptions {
            curriculum: Some(paced(Infeasible::Repeat)),
            filters: vec!["x<p70".parse().unwrap()],
            ..base.clone()
        },
        PlanOptions { sampling: Some(weighted(true)), ..base.clone() },
        PlanOptions { sampling: Some(weighted(false)), ..base.clone() },
    ];
    for plan_options in kinds {
        for epoch in [0, 1] {
            let mut steps: BTreeMap<u64, Vec<Sample>> = BTreeMap::new();
            let mut plan = None;
            for rank in 0..3 {
                let mut options = options(&set, "train", 40, World::new(rank, 3, 3).unwrap());
                options.plan = plan_options.clone();
                let loader = DataLoader::open(set.clone(), options, Handle::current()).await.unwrap();
                let mut batches = loader.epoch(epoch).unwrap();
                while let Some(batch) = batches.next().await.unwrap() {
                    let ids = batch.row_ids().unwrap().iter().map(|id| (*id, 0));
                    steps.entry(batch.global_range().start).or_default().extend(ids);
                }
                plan = Some(loader.plan().clone());
            }
            let plan = plan.unwrap();
            assert_eq!(steps.len() as u64, plan.steps(epoch).unwrap());
            let mut order = plan.epoch(epoch);
            for (start, got) in steps {
                let want = plan.batch_at(epoch, start).unwrap().map(|t| order.sample(t).unwrap().unwrap());
                let want = want.map(|s| lanes[s.lane as usize][s.position as usize]).collect();
                assert_eq!(sorted(got), sorted(want), "step at {start} of {plan_options:?}");
            }
        }
        let mut resumed = options(&set, "train", 40, World::single());
        resumed.plan = plan_options;
        check_resume(async || DataLoader::open(set.clone(), resumed.clone(), Handle::current()).await, 0)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_the_loader_does_not_deliver_is_refused_and_so_are_columns_without_a_sidecar() {
    let set = set_with_sidecars().await;
    let refused = async |plan: PlanOptions| {
        let mut options = options(&set, "train", 40, World::single());
        options.plan = plan;
        DataLoader::open(set.clone(), options, Handle::current()).await.unwrap_err()
    };
    let base = PlanOptions::new("train", 40);
    let packing = Packing { capacity: 10, max_segments: None, method: Method::BestFit };
    let packed = Batching::Packed { lengths: "user".into(), packing, window_rows: None };
    let error = refused(PlanOptions { batching: packed, ..base.clone() }).await;
    assert!(error.to_string().contains("fixed number of samples"), "{error}");
    let error = refused(PlanOptions { filters: vec!["class=1".parse().unwrap()], ..base }).await;
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("\"class\"") && error.to_string().contains("difficulty, user, x"), "{error}");
}
