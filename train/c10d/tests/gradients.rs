//! The Reducer against one process that sees the whole batch.

#![allow(clippy::unwrap_used)] // outside #[test] functions too

mod ranks;

use std::time::{Duration, Instant};

use gristmill_c10d::{Error, ProcessGroup, Reducer, ReducerOptions, broadcast_parameters};
use ranks::{PATIENCE, kill_self, run};
use tch::{Device, Kind, Reduction, Tensor};

const ROWS: i64 = 12; // divisible by 1, 2, 3 ranks and by 2 micro-batches each
const COLUMNS: i64 = 5;
const HIDDEN: i64 = 7;

/// A fixed pseudo-random matrix, the same in every process, without torch's generator.
fn matrix(rows: i64, columns: i64, salt: i64) -> Tensor {
    let numbers: Vec<f64> = (0..rows * columns).map(|i| ((i * 37 + salt * 101) as f64 * 0.61).sin()).collect();
    Tensor::from_slice(&numbers).view([rows, columns])
}

fn parameters() -> Vec<Tensor> {
    [matrix(COLUMNS, HIDDEN, 1), matrix(1, HIDDEN, 2), matrix(HIDDEN, 1, 3), matrix(1, 1, 4)]
        .map(|p| p.set_requires_grad(true))
        .into()
}

/// Mean squared error over some rows, as a sum over `total` rows, so that parts add up to the whole batch's mean.
fn loss(p: &[Tensor], from: i64, rows: i64, total: i64) -> Tensor {
    let x = matrix(ROWS, COLUMNS, 5).narrow(0, from, rows);
    let y = matrix(ROWS, 1, 6).narrow(0, from, rows);
    let out = (x.matmul(&p[0]) + &p[1]).tanh().matmul(&p[2]) + &p[3];
    out.mse_loss(&y, Reduction::Sum) / total as f64
}

fn gradients(p: &[Tensor]) -> Vec<f64> {
    p.iter().flat_map(|p| Vec::<f64>::try_from(p.grad().flatten(0, -1)).unwrap()).collect()
}

fn whole_batch() -> Vec<f64> {
    let p = parameters();
    loss(&p, 0, ROWS, ROWS).backward();
    gradients(&p)
}

fn close(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert!((a - b).abs() < 1e-12, "gradient {i}: {a} and {b}");
    }
}

/// Small buckets, so that there are several.
const SMALL: ReducerOptions = ReducerOptions { first_bucket_bytes: 8, bucket_cap_bytes: 64, find_unused: false };

#[test]
fn ranks_together_equal_the_whole_batch() {
    for size in 1..=3_usize {
        let ended = run("ranks_together_equal_the_whole_batch", size, |rank| {
            let group = rank.group(PATIENCE);
            let rows = ROWS / size as i64;
            for options in [ReducerOptions::default(), SMALL, ReducerOptions { find_unused: true, ..SMALL }] {
                let mut p = parameters();
                let mut reducer = Reducer::new(&p, &group, options).unwrap();
                assert_eq!(reducer.buckets() > 1, options.bucket_cap_bytes == 64);
                for _step in 0..4 {
                    p.iter_mut().for_each(Tensor::zero_grad);
                    reducer.prepare_for_forward().unwrap();
                    // The Reducer divides by the number of ranks, so each part is a mean over its own rows.
                    let part = loss(&p, rank.number() as i64 * rows, rows, rows);
                    reducer.backward(&part).unwrap();
                    close(&gradients(&p), &whole_batch());
                }
            }
        });
        if let Some(ended) = ended {
            ended.all_well();
        }
    }
}

#[test]
fn accumulated_micro_batches_equal_the_whole_batch() {
    for size in 1..=3_usize {
        let ended = run("accumulated_micro_batches_equal_the_whole_batch", size, |rank| {
            let group = rank.group(PATIENCE);
            let rows = ROWS / size as i64;
            let (from, half) = (rank.number() as i64 * rows, rows / 2);
            let mut p = parameters();
            let mut reducer = Reducer::new(&p, &group, SMALL).unwrap();
            for _step in 0..3 {
                p.iter_mut().for_each(Tensor::zero_grad);
                reducer.backward_without_reduction(&loss(&p, from, half, rows)).unwrap();
                let local = gradients(&p);
                reducer.prepare_for_forward().unwrap();
                reducer.backward(&loss(&p, from + half, rows - half, rows)).unwrap();
                close(&gradients(&p), &whole_batch());
                assert_ne!(local, gradients(&p));
            }
        });
        if let Some(ended) = ended {
            ended.all_well();
        }
    }
}

/// With more than two ranks, where a gradient lies in its bucket decides in which order its parts are added. A fresh
/// Reducer must place it where one that has run for a while does.
#[test]
fn a_new_reducer_rounds_as_an_old_one() {
    let ended = run("a_new_reducer_rounds_as_an_old_one", 3, |rank| {
        let group = rank.group(PATIENCE);
        let rows = ROWS / 3;
        let step = |p: &mut [Tensor], reducer: &mut Reducer| {
            p.iter_mut().for_each(Tensor::zero_grad);
            reducer.prepare_for_forward().unwrap();
            let part = loss(p, rank.number() as i64 * rows, rows, rows);
            reducer.backward(&part).unwrap();
            gradients(p)
        };
        // Gradients arrive last parameter first; given in that order, they arrive in the opposite of what is expected,
        // and a layout by arrival would be the other way round.
        let given = |p: &[Tensor]| p.iter().rev().map(Tensor::shallow_clone).collect::<Vec<_>>();
        let bits = |g: Vec<f64>| g.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        let mut p = parameters();
        let mut reducer = Reducer::new(&given(&p), &group, ReducerOptions::default()).unwrap();
        let first = bits(step(&mut p, &mut reducer));
        for _ in 0..3 {
            assert_eq!(bits(step(&mut p, &mut reducer)), first);
        }
        drop(reducer);
        let mut reducer = Reducer::new(&given(&p), &group, ReducerOptions::default()).unwrap();
        assert_eq!(bits(step(&mut p, &mut reducer)), first);
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}

#[test]
fn unused_parameters_are_found_or_an_error() {
    let ended = run("unused_parameters_are_found_or_an_error", 2, |rank| {
        let group = rank.group(PATIENCE);
        let partial = |p: &[Tensor]| (&p[0] * (rank.number() as f64 + 1.0)).sum(Kind::Double);

        let p = parameters();
        let mut reducer = Reducer::new(&p, &group, ReducerOptions { find_unused: true, ..SMALL }).unwrap();
        for step in 1..=2 {
            reducer.prepare_for_forward().unwrap();
            reducer.backward(&partial(&p)).unwrap();
            assert_eq!(f64::try_from(p[0].grad().mean(Kind::Double)).unwrap(), 1.5 * f64::from(step));
            assert!(!p[2].grad().defined());
        }

        let p = parameters();
        let mut reducer = Reducer::new(&p, &group, SMALL).unwrap();
        reducer.prepare_for_forward().unwrap();
        let error = reducer.backward(&partial(&p)).unwrap_err();
        assert!(matches!(&error, Error::Torch { message, .. } if message.contains("last parameter")), "{error}");
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}

#[test]
fn different_models_are_refused_on_every_rank() {
    let ended = run("different_models_are_refused_on_every_rank", 3, |rank| {
        let group = rank.group(PATIENCE);
        let refusal = |p: &[Tensor], options| match Reducer::new(p, &group, options) {
            Err(Error::Config { problem, .. }) => problem,
            other => panic!("expected a refusal, got {other:?}"),
        };
        let odd = rank.number() == 2;

        let mut p = parameters();
        if odd {
            p[2] = matrix(HIDDEN, 2, 3).set_requires_grad(true);
        }
        let problem = refusal(&p, SMALL);
        assert!(
            problem.contains("rank 2") && problem.contains("parameter 2 is Double [7, 1] and Double [7, 2]"),
            "{problem}"
        );

        let mut p = parameters();
        if odd {
            p.truncate(2);
        }
        let problem = refusal(&p, SMALL);
        assert!(problem.contains("parameter 2 is Double [7, 1] and absent"), "{problem}");

        let options = ReducerOptions { find_unused: odd, ..SMALL };
        assert!(refusal(&parameters(), options).contains("options"));

        let mut p = parameters();
        if odd {
            p[1] = p[1].detach();
        }
        let problem = refusal(&p, SMALL);
        assert!(problem.contains(if odd { "does not require a gradient" } else { "rank(s) [2]" }), "{problem}");

        assert!(refusal(&[], SMALL).contains("no parameters"));
        assert!(refusal(&parameters(), ReducerOptions { bucket_cap_bytes: 0, ..SMALL }).contains("bucket sizes"));

        // After all that the group is as good as new.
        assert!(Reducer::new(&parameters(), &group, SMALL).is_ok());
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}

#[test]
fn parameters_start_equal() {
    let ended = run("parameters_start_equal", 2, |rank| {
        let group = rank.group(PATIENCE);
        let p: Vec<Tensor> =
            parameters().iter().map(|p| (p + rank.number() as f64).detach().set_requires_grad(true)).collect();
        broadcast_parameters(&group, &p, 0).unwrap();
        for (p, wanted) in p.iter().zip(parameters()) {
            assert_eq!(p, &wanted);
            assert!(p.requires_grad());
        }
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}

/// One step of a model large enough to be under way when a peer is killed.
fn large_step(group: &ProcessGroup, mut at_step: impl FnMut(i32)) -> Error {
    let p = [Tensor::ones([1 << 21], (Kind::Float, Device::Cpu)).set_requires_grad(true)];
    let mut reducer = Reducer::new(&p, group, ReducerOptions::default()).unwrap();
    for step in 0.. {
        at_step(step);
        let done = reducer.prepare_for_forward().and_then(|()| reducer.backward(&p[0].sum(Kind::Float)));
        if let Err(error) = done {
            return error;
        }
    }
    unreachable!("the loop ends with an error")
}

#[test]
fn a_peer_killed_in_a_backward_pass_is_an_error_at_once() {
    let ended = run("a_peer_killed_in_a_backward_pass_is_an_error_at_once", 2, |rank| {
        let group = rank.group(PATIENCE);
        let odd = rank.number() == 1;
        let error = large_step(&group, |step| {
            if odd && step == 3 {
                std::thread::spawn(|| kill_self());
            }
        });
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    });
    if let Some(ended) = ended {
        assert!(ended.ranks[0].0.success(), "{}", ended.ranks[0].1);
        assert!(!ended.ranks[1].0.success());
        assert!(ended.took < PATIENCE / 2, "{:?}", ended.took);
    }
}

#[test]
fn a_peer_stuck_before_a_backward_pass_times_out() {
    let ended = run("a_peer_stuck_before_a_backward_pass_times_out", 2, |rank| {
        let group = rank.group(Duration::from_secs(1));
        let mut begun = Instant::now();
        let odd = rank.number() == 1;
        let error = large_step(&group, |step| {
            begun = Instant::now();
            if odd && step == 2 {
                rank.store.wait(&["gave up"], PATIENCE).unwrap();
            }
        });
        if !odd {
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
            rank.store.set("gave up", b"").unwrap();
        }
    });
    if let Some(ended) = ended {
        ended.all_well();
    }
}
