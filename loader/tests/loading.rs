//! What the loader delivers, checked against the plan and the values that the row ids imply.
#![allow(clippy::unwrap_used, clippy::expect_used)] // clippy.toml's exception for tests does not reach their fixtures

mod fixture;

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use fixture::{SMALL, Shape, city_of, count_of, id_at, late_of, loader, options, shards, x_of};
use gristmill_loader::{
    BatchSpec, CategoryColumn, DType, DataLoader, Error, HostBatch, LabelEncoding, LoaderOptions, NumberColumn,
    PlanOptions, Shuffle, State, Tail, TensorSpec, World, conformance::check_resume, measure::measure,
};
use gristmill_shard::{ErrorKind, ShardSet, Storage};
use tokio::runtime::Handle;

async fn ids(loader: &DataLoader, epoch: u64) -> Vec<i64> {
    let mut batches = loader.epoch(epoch).unwrap();
    let mut ids = Vec::new();
    while let Some(batch) = batches.next().await.unwrap() {
        ids.extend_from_slice(batch.row_ids().unwrap());
    }
    assert_eq!(batches.left(), 0);
    ids
}

fn planned(loader: &DataLoader, epoch: u64) -> HashSet<i64> {
    let mut order = loader.plan().epoch(epoch);
    (0..loader.plan().samples(epoch))
        .map(|t| order.sample(t).unwrap().unwrap())
        .map(|s| id_at(SMALL, 0, s.lane, s.position))
        .collect()
}

#[tokio::test]
async fn every_world_delivers_each_step_of_the_plan() {
    let set = shards(SMALL).await;
    for shuffle in [Shuffle::None, Shuffle::ShardBlock { window_blocks: 2 }, Shuffle::Global] {
        for (world_size, local) in [(1, 1), (2, 1), (4, 2), (3, 1), (5, 1), (6, 2), (8, 4)] {
            let mut steps: BTreeMap<u64, HashSet<i64>> = BTreeMap::new();
            let mut counts = HashSet::new();
            let mut plan = None;
            for rank in 0..world_size {
                let mut options = options(&set, 20).await;
                options.plan.shuffle = shuffle;
                options.world = World::new(rank, world_size, local).unwrap();
                let loader = loader(&set, options).await;
                let mut batches = loader.epoch(2).unwrap();
                let mut count = 0;
                while let Some(batch) = batches.next().await.unwrap() {
                    count += 1;
                    let of_step = steps.entry(batch.global_range().start).or_default();
                    for id in batch.row_ids().unwrap() {
                        assert!(of_step.insert(*id), "row {id} twice");
                    }
                }
                counts.insert(count);
                plan = Some(loader);
            }
            assert_eq!(counts, HashSet::from([6]));
            let plan = plan.unwrap();
            let mut order = plan.plan().epoch(2);
            for (start, got) in steps {
                let want: HashSet<i64> = (start..(start + 20).min(103))
                    .map(|t| order.sample(t).unwrap().unwrap())
                    .map(|s| id_at(SMALL, 0, s.lane, s.position))
                    .collect();
                assert_eq!(got, want, "{shuffle:?}, {world_size} ranks, step at {start}");
            }
        }
    }
}

fn check_values(batch: &HostBatch, mean: [f64; 2], deviation: [f64; 2]) {
    let ids = batch.get("_row_id").unwrap().elements::<i64>().unwrap();
    let numbers = batch.get("numbers").unwrap();
    let (categories, label) = (batch.get("categories").unwrap(), batch.get("label").unwrap());
    let mask = batch.get("_mask").unwrap().elements::<f32>().unwrap();
    assert_eq!(numbers.shape(), [batch.slots(), 2]);
    assert_eq!(categories.shape(), [batch.slots(), 1]);
    assert_eq!(label.shape(), [batch.slots()]);
    let (numbers, categories) = (numbers.elements::<f32>().unwrap(), categories.elements::<i64>().unwrap());
    let label = label.elements::<f32>().unwrap();
    for slot in 0..batch.slots() {
        if slot >= batch.rows() {
            assert_eq!(
                (ids[slot], mask[slot], numbers[2 * slot], categories[slot], label[slot]),
                (-1, 0.0, 0.0, 0, 0.0)
            );
            continue;
        }
        let id = ids[slot];
        let x = x_of(id).map_or(0.0, |x| (x - mean[0]) / deviation[0]) as f32;
        let count = ((f64::from(count_of(id)) - mean[1]) / deviation[1]) as f32;
        let cities = ["Aachen", "Bonn", "Celle", "Düren", "Essen"];
        let city = city_of(id).map_or(0, |c| 1 + cities.iter().position(|k| *k == c).unwrap() as i64);
        assert_eq!((numbers[2 * slot], numbers[2 * slot + 1]), (x, count));
        assert_eq!((categories[slot], label[slot], mask[slot]), (city, f32::from(u8::from(late_of(id))), 1.0));
    }
}

#[tokio::test]
async fn values_are_those_of_the_rows_and_fillers_are_masked() {
    let set = shards(SMALL).await;
    let statistics = set.statistics("train").await.unwrap();
    let of = |name: &str| (statistics[name].mean.unwrap(), statistics[name].deviation.unwrap());
    let ((mx, dx), (mc, dc)) = (of("x"), of("count"));
    for tail in [Tail::Exact, Tail::Drop, Tail::PadMasked] {
        for (world_size, micro_batch) in [(1, None), (3, Some(2)), (8, None)] {
            let mut rows = 0;
            let mut shapes = HashSet::new();
            for rank in 0..world_size {
                let mut options = options(&set, 20).await;
                options.plan.tail = tail;
                options.micro_batch = micro_batch;
                options.world = World::new(rank, world_size, 1).unwrap();
                let loader = loader(&set, options).await;
                let mut batches = loader.epoch(0).unwrap();
                let mut sequence = Vec::new();
                while let Some(batch) = batches.next().await.unwrap() {
                    check_values(&batch, [mx, mc], [dx, dc]);
                    rows += batch.rows();
                    let slots = if tail == Tail::PadMasked { batch.slots() } else { 0 };
                    sequence.push((batch.global_range().start, batch.micro(), batch.micros(), slots));
                }
                shapes.insert(sequence);
            }
            assert_eq!(rows, if tail == Tail::Drop { 100 } else { 103 });
            // Every rank has the same steps and micro-batches, and with pad-masked the same shapes.
            assert_eq!(shapes.len(), 1);
        }
    }
}

#[tokio::test]
async fn stopping_anywhere_and_resuming_gives_the_same_rest() {
    let set = shards(SMALL).await;
    for shuffle in [Shuffle::None, Shuffle::ShardBlock { window_blocks: 1 }, Shuffle::default(), Shuffle::Global] {
        for (world, micro_batch) in [(World::single(), None), (World::new(2, 3, 1).unwrap(), Some(2))] {
            let mut base = options(&set, 9).await;
            base.plan.shuffle = shuffle;
            base.world = world;
            base.micro_batch = micro_batch;
            let stops = check_resume(async || DataLoader::open(set.clone(), base.clone(), Handle::current()).await, 1)
                .await
                .unwrap();
            assert_eq!(stops, 13);
        }
    }
}

#[tokio::test]
async fn another_world_takes_over_in_mid_epoch() {
    let set = shards(SMALL).await;
    let mut seen = HashSet::new();
    let mut state: Option<State> = None;
    for (world_size, steps, batch) in [(1_u32, 3, 10), (4, 2, 10), (3, 1, 7), (2, u64::MAX, 12)] {
        let mut after = None;
        for rank in 0..world_size {
            let mut options = options(&set, batch).await;
            options.world = World::new(rank, world_size, 1).unwrap();
            let loader = loader(&set, options).await;
            let begin = state.clone().unwrap_or_else(|| loader.plan().state(4, 0).unwrap());
            let mut batches = loader.resume(&begin).unwrap();
            let mut taken = 0;
            while taken < steps {
                let Some(batch) = batches.next().await.unwrap() else { break };
                taken += 1;
                for id in batch.row_ids().unwrap() {
                    assert!(seen.insert(*id), "row {id} twice");
                }
                after = Some(batch.state().clone());
            }
        }
        state = after;
    }
    assert_eq!(seen.len(), 103);
    let state = state.unwrap();
    assert_eq!((state.epoch, state.index), (5, 0));
}

#[tokio::test]
async fn threads_memory_and_prefetch_change_nothing() {
    let set = shards(Shape { rows: 500, files_per_lane: 6, ..SMALL }).await;
    let mut want = None;
    for (threads, prefetch, memory) in [(1, 1, 200_000), (4, 8, 1 << 30), (2, 3, 250_000)] {
        let mut options = options(&set, 16).await;
        options.threads = threads;
        options.prefetch_batches = prefetch;
        options.memory_bytes = memory;
        let loader = loader(&set, options).await;
        let got = (ids(&loader, 0).await, ids(&loader, 1).await);
        assert_ne!(got.0, got.1);
        assert_eq!(want.get_or_insert_with(|| got.clone()), &got);
    }
}

#[tokio::test]
async fn what_fits_is_read_once_and_what_does_not_is_bounded() {
    let set = shards(Shape { rows: 2000, nodes: 1, lanes: 2, files_per_lane: 20 }).await;
    let roomy = loader(&set, options(&set, 50).await).await;
    for epoch in 0..3 {
        assert_eq!(ids(&roomy, epoch).await.len(), 2000);
    }
    assert_eq!(roomy.metrics().row_groups_read, 40);
    let mut tight = options(&set, 50).await;
    (tight.prefetch_batches, tight.threads, tight.fetches) = (1, 1, 1);
    tight.memory_bytes = 1;
    let needed = match DataLoader::open(set.clone(), tight.clone(), Handle::current()).await {
        Err(Error::Memory { needed, .. }) => needed,
        other => panic!("{other:?}"),
    };
    tight.memory_bytes = needed;
    let tight = loader(&set, tight).await;
    let mut most = 0;
    for epoch in 0..3 {
        let mut batches = tight.epoch(epoch).unwrap();
        while batches.next().await.unwrap().is_some() {
            most = most.max(tight.metrics().resident_bytes);
        }
    }
    assert!(most <= needed, "{most} of {needed}");
    assert!(tight.metrics().row_groups_read > 60, "{:?}", tight.metrics());
}

#[tokio::test]
async fn epochs_follow_each_other_in_one_iteration() {
    let set = shards(SMALL).await;
    let loader = loader(&set, options(&set, 20).await).await;
    let mut batches = loader.run(&loader.plan().state(0, 40).unwrap(), 3).unwrap();
    let mut rows: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    while let Some(batch) = batches.next().await.unwrap() {
        rows.entry(batch.epoch()).or_default().extend_from_slice(batch.row_ids().unwrap());
    }
    assert_eq!(rows[&0].len(), 63);
    for epoch in [1, 2] {
        assert_eq!(rows[&epoch].iter().copied().collect::<HashSet<_>>(), planned(&loader, epoch));
        assert_eq!(rows[&epoch], ids(&loader, epoch).await);
    }
}

#[tokio::test]
async fn a_small_split_and_more_ranks_than_rows() {
    let set = shards(SMALL).await;
    let mut all = Vec::new();
    for rank in 0..8 {
        let mut options = options(&set, 4).await;
        options.plan.split = "test".into();
        options.world = World::new(rank, 8, 1).unwrap();
        let loader = loader(&set, options).await;
        let mut batches = loader.epoch(0).unwrap();
        assert_eq!(batches.left(), 2);
        while let Some(batch) = batches.next().await.unwrap() {
            assert_eq!(batch.slots(), 1);
            all.extend_from_slice(batch.row_ids().unwrap());
        }
    }
    all.sort_unstable();
    assert_eq!(all, (1_000_000..1_000_005).collect::<Vec<_>>());
}

#[tokio::test]
async fn epochs_without_a_step_are_over_at_once() {
    let set = shards(SMALL).await;
    let mut options = options(&set, 200).await;
    options.plan.tail = Tail::Drop;
    let loader = loader(&set, options).await;
    assert!(loader.epoch(3).unwrap().next().await.unwrap().is_none());
    assert!(loader.run(&loader.plan().state(0, 0).unwrap(), 1_000_000).unwrap().next().await.unwrap().is_none());
}

#[tokio::test]
async fn raw_columns_classes_and_validity() {
    let set = shards(SMALL).await;
    let mut spec = BatchSpec::new(vec![
        TensorSpec::Raw { column: "x".into() },
        TensorSpec::Raw { column: "count".into() },
        TensorSpec::Raw { column: "late".into() },
        TensorSpec::Label {
            name: "class".into(),
            column: "count".into(),
            encoding: LabelEncoding::Classes { classes: (-3..10).rev().map(|c: i32| c.to_string()).collect() },
        },
        TensorSpec::Categories {
            name: "codes".into(),
            columns: vec![
                CategoryColumn { column: "late".into(), vocabulary: vec!["true".into(), "false".into()] },
                CategoryColumn { column: "city".into(), vocabulary: vec!["Essen".into()] },
            ],
        },
    ]);
    spec.valid = true;
    let loader = loader(&set, LoaderOptions::new(PlanOptions::new("train", 103), spec)).await;
    let batch = loader.epoch(0).unwrap().next().await.unwrap().unwrap();
    let ids = batch.row_ids().unwrap();
    let x = batch.get("x").unwrap().elements::<f64>().unwrap();
    let valid = batch.get("x.valid").unwrap().elements::<u8>().unwrap();
    let count = batch.get("count").unwrap().elements::<i32>().unwrap();
    let (late, class) = (batch.get("late").unwrap(), batch.get("class").unwrap().elements::<i64>().unwrap());
    let codes = batch.get("codes").unwrap().elements::<i64>().unwrap();
    assert_eq!(late.dtype(), DType::Bool);
    assert!(batch.get("count.valid").is_none());
    for (slot, id) in ids.iter().enumerate() {
        assert_eq!((x[slot], valid[slot]), (x_of(*id).unwrap_or(0.0), u8::from(x_of(*id).is_some())));
        assert_eq!((count[slot], class[slot]), (count_of(*id), 9 - i64::from(count_of(*id))));
        assert_eq!(late.bytes()[slot], u8::from(late_of(*id)));
        assert_eq!(codes[2 * slot], if late_of(*id) { 1 } else { 2 });
        assert_eq!(codes[2 * slot + 1], i64::from(city_of(*id) == Some("Essen")));
    }
}

async fn refusal(set: &ShardSet, options: LoaderOptions) -> Error {
    DataLoader::open(set.clone(), options, Handle::current()).await.unwrap_err()
}

async fn failure(set: &ShardSet, tensors: Vec<TensorSpec>) -> Error {
    let loader = loader(set, LoaderOptions::new(PlanOptions::new("train", 10), BatchSpec::new(tensors))).await;
    let mut batches = loader.epoch(0).unwrap();
    loop {
        match batches.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no error"),
            Err(e) => {
                assert!(batches.next().await.is_err());
                return e;
            }
        }
    }
}

#[tokio::test]
async fn requests_that_can_not_be_are_refused_with_what_and_why() {
    let set = shards(SMALL).await;
    let base = options(&set, 10).await;
    let raw = |column: &str| BatchSpec::new(vec![TensorSpec::Raw { column: column.into() }]);
    let error = refusal(&set, LoaderOptions { batch: raw("cuont"), ..base.clone() }).await;
    assert!(error.to_string().contains("did you mean \"count\""), "{error}");
    let error = refusal(&set, LoaderOptions { batch: raw("city"), ..base.clone() }).await;
    assert!(error.to_string().contains("no reading as numbers"), "{error}");
    let mut split = base.clone();
    split.plan.split = "trian".into();
    let error = refusal(&set, split).await;
    assert!(error.to_string().contains("did you mean \"train\""), "{error}");
    let twice = vec![TensorSpec::Raw { column: "x".into() }, TensorSpec::Raw { column: "x".into() }];
    assert_eq!(
        refusal(&set, LoaderOptions { batch: BatchSpec::new(twice), ..base.clone() }).await.kind(),
        ErrorKind::Usage
    );
    let batch = BatchSpec { row_id: false, ..BatchSpec::new(vec![]) };
    assert_eq!(refusal(&set, LoaderOptions { batch, ..base.clone() }).await.kind(), ErrorKind::Usage);
    let category = |column: &str, values: &[&str]| {
        let vocabulary = values.iter().map(|v| (*v).to_owned()).collect();
        let columns = vec![CategoryColumn { column: column.into(), vocabulary }];
        BatchSpec::new(vec![TensorSpec::Categories { name: "c".into(), columns }])
    };
    for batch in
        [category("x", &["1"]), category("count", &["one"]), category("late", &["yes"]), category("city", &["a", "a"])]
    {
        assert_eq!(refusal(&set, LoaderOptions { batch, ..base.clone() }).await.kind(), ErrorKind::Usage);
    }
    let columns = vec![NumberColumn { column: "x".into(), mean: f64::NAN, deviation: 1.0 }];
    let batch = BatchSpec::new(vec![TensorSpec::Numbers { name: "n".into(), dtype: DType::F32, columns }]);
    assert_eq!(refusal(&set, LoaderOptions { batch, ..base.clone() }).await.kind(), ErrorKind::Usage);
    for broken in [
        LoaderOptions { threads: 0, ..base.clone() },
        LoaderOptions { micro_batch: Some(0), ..base.clone() },
        LoaderOptions { plan: PlanOptions { global_batch: 0, ..base.plan.clone() }, ..base.clone() },
    ] {
        assert_eq!(refusal(&set, broken).await.kind(), ErrorKind::Usage);
    }
    let mut global = LoaderOptions { memory_bytes: 1000, ..base.clone() };
    global.plan.shuffle = Shuffle::Global;
    let error = refusal(&set, global).await.to_string();
    assert!(error.contains("memory_bytes is 1000") && error.contains("shard-block"), "{error}");
    let unknown =
        BatchSpec::tabular_of(&set, "train", &["x".into()], &["x".into()], None, DType::F32).await.unwrap_err();
    assert!(unknown.to_string().contains("no categories"), "{unknown}");
}

#[tokio::test]
async fn a_split_without_rows_is_named() {
    let set = shards(SMALL).await;
    let columns = ["x".to_owned()];
    for error in [
        BatchSpec::every_column(&set, "empty").await.map(|_| ()).unwrap_err(),
        BatchSpec::tabular_of(&set, "empty", &columns, &[], None, DType::F32).await.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Usage);
        let text = error.to_string();
        assert!(text.contains("split \"empty\" has no rows") && text.contains("larger share"), "{text}");
    }
}

#[tokio::test]
async fn values_that_the_request_refuses_are_named() {
    let set = shards(SMALL).await;
    let error = failure(&set, vec![TensorSpec::Raw { column: "x".into() }]).await;
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.to_string().contains("column \"x\": the value is null"), "{error}");
    let label = |column: &str, encoding| TensorSpec::Label { name: "y".into(), column: column.into(), encoding };
    let error = failure(&set, vec![label("x", LabelEncoding::Number { dtype: DType::F32 })]).await;
    assert!(error.to_string().contains("the label is null"), "{error}");
    let classes = LabelEncoding::Classes { classes: vec!["0".into()] };
    let error = failure(&set, vec![label("count", classes)]).await;
    assert!(error.to_string().contains("none of the classes"), "{error}");
}

#[tokio::test]
async fn damaged_and_missing_shards_are_errors_of_next_and_never_a_hang() {
    let storage = Storage::memory();
    fixture::write(&storage, SMALL).await;
    let set = ShardSet::open(&storage).await.unwrap();
    let path = set.lane_files("train", 2)[1].path.clone();
    let whole = storage.get(&path).await.unwrap();
    let run = async |set: &ShardSet| {
        let loader = loader(set, options(set, 10).await).await;
        let mut batches = loader.epoch(0).unwrap();
        let outcome = tokio::time::timeout(Duration::from_secs(20), async {
            let mut bytes = Vec::new();
            while let Some(batch) = batches.next().await? {
                batch.tensors().iter().for_each(|t| bytes.extend_from_slice(t.bytes()));
            }
            Ok::<_, Error>(bytes)
        });
        outcome.await.expect("the loader hangs")
    };
    let good = run(&set).await.unwrap();
    let group = set.lane_files("train", 2)[1].row_groups[0].clone();
    let mut flipped = 0;
    for at in (0..whole.len()).step_by(11) {
        let mut bad = whole.to_vec();
        bad[at] ^= 0x40;
        storage.put(&path, bad).await.unwrap();
        // A flip outside the row groups may touch what no reader looks at; then every byte delivered is right.
        match run(&set).await {
            Ok(bytes) => {
                assert!(!(group.offset..group.offset + group.length).contains(&(at as u64)), "byte {at}");
                assert!(bytes == good, "byte {at} changed a batch in silence");
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corrupt, "byte {at}: {e}");
                assert!(e.to_string().contains(&path), "{e}");
                flipped += 1;
            }
        }
    }
    assert!(flipped > 10);
    storage.put(&path, whole.slice(..whole.len() - 9)).await.unwrap();
    assert_eq!(run(&set).await.unwrap_err().kind(), ErrorKind::Corrupt);
    storage.delete(&path).await.unwrap();
    let error = run(&set).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains(&path), "{error}");
}

#[tokio::test]
async fn states_of_other_plans_are_refused() {
    let set = shards(SMALL).await;
    let loader = loader(&set, options(&set, 10).await).await;
    let mut other = options(&set, 10).await;
    other.plan.seed = 5;
    other.plan.shuffle = Shuffle::Global;
    let other = fixture::loader(&set, other).await;
    let error = other.resume(&loader.plan().state(0, 10).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("seed: the state has 0, this run has 5"), "{error}");
    assert!(error.to_string().contains("shuffle: "), "{error}");
}

#[test]
fn blocking_is_for_plain_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (loader, mut inside) = runtime.block_on(async {
        let set = shards(SMALL).await;
        let loader = loader(&set, options(&set, 10).await).await;
        let inside = loader.epoch(0).unwrap();
        (loader, inside)
    });
    let refused = runtime.block_on(async { inside.next_blocking() });
    assert!(matches!(refused, Err(Error::BlockingInAsync)));
    let mut rows = 0;
    while let Some(batch) = inside.next_blocking().unwrap() {
        rows += batch.rows();
    }
    assert_eq!(rows, 103);
    // A runtime that goes away is an error, not a hang.
    let mut orphan = loader.epoch(0).unwrap();
    runtime.shutdown_background();
    let mut outcome = Ok(None);
    for _ in 0..100 {
        outcome = orphan.next_blocking();
        if !matches!(outcome, Ok(Some(_))) {
            break;
        }
    }
    assert!(matches!(outcome, Err(Error::Internal { .. }) | Ok(None)), "{outcome:?}");
}

#[tokio::test]
async fn a_measurement_counts_what_was_delivered() {
    let set = shards(SMALL).await;
    let measured = measure(&loader(&set, options(&set, 10).await).await, 0..3).await.unwrap();
    assert_eq!((measured.rows, measured.batches), (309, 33));
    assert_eq!(measured.epochs.iter().map(|e| e.rows).collect::<Vec<_>>(), [103, 103, 103]);
    assert!(measured.rows_per_s > 0.0 && measured.bytes > 0 && measured.first_batch_s <= measured.seconds);
}

#[tokio::test]
async fn memory_of_batches_comes_back_from_anywhere() {
    let set = shards(SMALL).await;
    let loader = loader(&set, options(&set, 10).await).await;
    let mut batches = loader.epoch(0).unwrap();
    let mut first = batches.next().await.unwrap().unwrap();
    let parts = first.take("numbers").unwrap().into_parts();
    assert_eq!(parts.pointer as usize % 64, 0);
    assert_eq!(parts.shape, [10, 2]);
    assert_eq!(parts.len_bytes, 80);
    drop(first);
    let owner = parts.owner;
    drop(batches);
    drop(loader);
    std::thread::spawn(move || drop(owner)).join().unwrap();
}
