//! Collectives between real processes: results, and what happens when a peer is missing, stuck or killed.

#![allow(clippy::unwrap_used)] // outside #[test] functions too

mod ranks;

use std::time::{Duration, Instant};

use gristmill_c10d::{Backend, Error, ProcessGroup, ReduceOp};
use ranks::{PATIENCE, kill_self, run, run_with};
use tch::{Device, Kind, Tensor};

const KINDS: [Kind; 3] = [Kind::Float, Kind::Double, Kind::Int64];

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

/// `[rank + 1, 10 * (rank + 1)]`
fn part(rank: usize, kind: Kind) -> Tensor {
    let one = (rank + 1) as i64;
    Tensor::from_slice(&[one, 10 * one]).to_kind(kind)
}

#[test]
fn results_are_right_for_each_size_and_kind() {
    for size in 1..=3_usize {
        let ended = run("results_are_right_for_each_size_and_kind", size, |rank| {
            let group = rank.group(PATIENCE);
            let me = rank.number();
            assert_eq!((group.rank(), group.size()), (me, size));
            let sum: usize = (1..=size).sum();
            let product: usize = (1..=size).product();
            for kind in KINDS {
                let reduced = |op| {
                    let mut tensor = part(me, kind);
                    group.all_reduce(&mut tensor, op).unwrap();
                    assert_eq!(tensor.kind(), kind);
                    values(&tensor)
                };
                assert_eq!(reduced(ReduceOp::Sum), [sum as f64, 10.0 * sum as f64]);
                assert_eq!(reduced(ReduceOp::Min), [1.0, 10.0]);
                assert_eq!(reduced(ReduceOp::Max), [size as f64, 10.0 * size as f64]);
                let tens = 10f64.powi(i32::try_from(size).unwrap());
                assert_eq!(reduced(ReduceOp::Product), [product as f64, tens * product as f64]);

                let root = size - 1;
                let mut tensor = part(me, kind);
                group.broadcast(&mut tensor, root).unwrap();
                assert_eq!(values(&tensor), values(&part(root, kind)));

                let all = group.all_gather(&part(me, kind).view([2, 1])).unwrap();
                assert_eq!(all.len(), size);
                for (from, tensor) in all.iter().enumerate() {
                    assert_eq!((tensor.size(), tensor.kind()), (vec![2, 1], kind));
                    assert_eq!(values(tensor), values(&part(from, kind)));
                }

                let both = [part(me, kind), part(me, kind).view([2, 1]) * 2];
                group.broadcast_all(&both, root).unwrap();
                assert_eq!(values(&both[0]), values(&part(root, kind)));
                assert_eq!(values(&both[1]), values(&(part(root, kind) * 2)));
            }
            let mut mean = part(me, Kind::Double);
            group.all_reduce(&mut mean, ReduceOp::Average).unwrap();
            assert_eq!(values(&mean)[0], sum as f64 / size as f64);
            for _ in 0..3 {
                group.barrier(PATIENCE).unwrap();
            }
        });
        if let Some(ended) = ended {
            ended.all_well();
        }
    }
}

#[test]
fn what_gloo_can_not_do_is_refused() {
    let ended = run("what_gloo_can_not_do_is_refused", 1, |rank| {
        let group = rank.group(PATIENCE);
        let config = |result: Result<(), Error>, word: &str| match result {
            Err(Error::Config { problem, .. }) => assert!(problem.contains(word), "{problem}"),
            other => panic!("expected a refusal that says {word}, got {other:?}"),
        };
        config(group.all_reduce(&mut part(0, Kind::Int64), ReduceOp::Average), "average");
        config(group.broadcast(&mut part(0, Kind::Int64), 1), "root 1");
        config(group.all_reduce(&mut Tensor::new(), ReduceOp::Sum), "not defined");
        config(group.all_reduce(&mut part(0, Kind::Float).to_sparse_sparse_dim(1), ReduceOp::Sum), "sparse");
        config(ProcessGroup::new(&rank.store, 2, 2, &Backend::Gloo(gloo(PATIENCE))).map(drop), "rank 2");
        let nccl = ProcessGroup::new(&rank.store, 0, 1, &Backend::Nccl);
        assert!(matches!(nccl, Err(Error::BackendUnavailable { backend: "nccl" })));

        let mut gaps = Tensor::zeros([4, 4], (Kind::Float, Device::Cpu)).slice(1, 0, 4, 2);
        config(group.all_reduce(&mut gaps, ReduceOp::Sum), "not contiguous");
        config(group.broadcast(&mut gaps, 0), "not contiguous");
        // Reading is another matter.
        assert_eq!(group.all_gather(&gaps).unwrap()[0].size(), [4, 2]);

        // An exception of libtorch's own arrives as text.
        match group.all_reduce(&mut part(0, Kind::Int16), ReduceOp::Sum) {
            Err(Error::Torch { op, message }) => assert!(op == "all_reduce" && !message.is_empty(), "{message}"),
            other => panic!("expected libtorch's refusal, got {other:?}"),
        }
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}

fn gloo(timeout: Duration) -> gristmill_c10d::GlooOptions {
    gristmill_c10d::GlooOptions::loopback(timeout)
}

#[test]
fn a_group_that_is_not_complete_times_out() {
    let ended = run_with("a_group_that_is_not_complete_times_out", 2, 1, |rank| {
        let begun = Instant::now();
        let limit = Duration::from_secs(1);
        let error = ProcessGroup::of_run(&rank.rendezvous, &rank.store, "test", limit).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(begun.elapsed() < limit * 10, "{:?}", begun.elapsed());
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}

#[test]
fn a_barrier_names_the_missing_rank() {
    let ended = run("a_barrier_names_the_missing_rank", 3, |rank| {
        let group = rank.group(PATIENCE);
        group.barrier(PATIENCE).unwrap();
        if rank.number() == 1 {
            // Alive, but not coming: it waits until the others have given up.
            rank.store.wait(&["gave up/0", "gave up/2"], PATIENCE).unwrap();
            return;
        }
        let begun = Instant::now();
        let error = group.barrier(Duration::from_millis(500)).unwrap_err();
        assert!(matches!(&error, Error::MissingRanks { missing, world_size: 3, .. } if missing == &[1]), "{error}");
        assert!(error.to_string().contains("rank 1 did not arrive"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        rank.store.set(&format!("gave up/{}", rank.number()), b"").unwrap();
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}

#[test]
fn a_stuck_peer_times_out() {
    let ended = run("a_stuck_peer_times_out", 2, |rank| {
        let group = rank.group(Duration::from_secs(1));
        if rank.number() == 1 {
            rank.store.wait(&["gave up"], PATIENCE).unwrap();
            return;
        }
        let begun = Instant::now();
        let error = group.all_reduce(&mut part(0, Kind::Float), ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        rank.store.set("gave up", b"").unwrap();
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}

#[test]
fn a_killed_peer_is_an_error_at_once() {
    let ended = run("a_killed_peer_is_an_error_at_once", 3, |rank| {
        // Long: what is tested is that the others do not wait for it.
        let group = rank.group(PATIENCE);
        // Large enough to be under way when the peer is killed.
        let mut tensor = Tensor::ones([1 << 22], (Kind::Float, Device::Cpu));
        for step in 0.. {
            if rank.number() == 1 && step == 3 {
                std::thread::spawn(|| kill_self());
            }
            match group.all_reduce(&mut tensor, ReduceOp::Max) {
                Ok(()) => {}
                Err(error) => {
                    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
                    return;
                }
            }
        }
    });
    if let Some(ended) = ended {
        for rank in [0, 2] {
            assert!(ended.ranks[rank].0.success(), "rank {rank}: {}", ended.ranks[rank].1);
        }
        assert!(!ended.ranks[1].0.success());
        assert!(ended.took < PATIENCE / 2, "{:?}", ended.took);
    }
}

/// Without the check Gloo ends the process by SIGABRT, or takes 16 bytes for 4016.
#[test]
fn ranks_in_different_calls_are_told_so() {
    let ended = run("ranks_in_different_calls_are_told_so", 2, |rank| {
        let group = rank.group(PATIENCE);
        let odd = rank.number() == 1;
        let problem = |result: Result<(), Error>| match result {
            Err(Error::Config { problem, .. }) => problem,
            other => panic!("expected a disagreement, got {other:?}"),
        };
        let mut tensor = Tensor::zeros([if odd { 1004 } else { 4 }], (Kind::Float, Device::Cpu));
        let text = problem(group.all_gather(&tensor).map(drop));
        assert!(text.contains("4 Float elements; rank 1 is in") && text.contains("1004 Float"), "{text}");
        assert!(!problem(group.all_reduce(&mut tensor, ReduceOp::Sum)).is_empty());
        assert!(!problem(group.broadcast(&mut tensor, 0)).is_empty());
        assert!(!problem(group.broadcast_all(&[part(0, Kind::Float), tensor], 0)).is_empty());

        let mut same = part(0, Kind::Double);
        let text = problem(group.all_reduce(&mut same, if odd { ReduceOp::Sum } else { ReduceOp::Max }));
        assert!(text.contains("different shapes, root or reduction"), "{text}");
        let text = problem(if odd { group.broadcast(&mut same, 0) } else { group.all_gather(&same).map(drop) });
        assert!(text.contains("rank 1 is in call 5, broadcast"), "{text}");

        // All were told alike, so the group is as good as new.
        group.all_reduce(&mut same, ReduceOp::Sum).unwrap();
        assert_eq!(values(&same), [2.0, 20.0]);
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}
