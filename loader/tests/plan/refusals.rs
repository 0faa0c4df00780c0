//! What can't be planned is refused with what and what to do; states of other plans with their differences.

use gristmill_loader::{
    PlanOptions, Shuffle, State, Tail,
    batching::{
        budget::{Budget, PadTo},
        options::{Batching, Scope},
        packing::{Method, Packing},
    },
    curriculum::{Curriculum, Infeasible, Pacing},
    mixture::{MixOptions, Stop, Weight},
    sampling::options::{Repeats, Sampling},
};

use crate::kinds::{Asked, source};

fn asked(options: PlanOptions) -> Asked {
    Asked { sources: vec![(vec![30, 30, 30, 30], 2, 0, 7)], options }
}

fn base() -> PlanOptions {
    PlanOptions::new("simulated", 20)
}

fn budget(max_tokens: u64, micro_batches: u32, scope: Scope) -> Batching {
    let budget = Budget { max_rows: None, max_tokens, micro_batches, pad_to: PadTo::Longest };
    Batching::Budget { budget, lengths: "length".into(), longest_first: false, scope, window_rows: None }
}

fn paced(epochs: Option<f64>, infeasible: Infeasible) -> Curriculum {
    let pacing = Pacing::Linear { start: 0.01 };
    Curriculum::Paced { column: "hard".into(), epochs, infeasible, pacing, steps: None }
}

#[test]
fn options_that_can_not_be_are_refused_with_the_reason() {
    let weighted = |samples| Sampling::Weighted { column: "weight".into(), replacement: false, samples };
    let balanced = |column: &str| Sampling::Balanced {
        column: column.into(),
        repeats: Repeats::Never,
        samples: Some(1000),
        shares: None,
    };
    let packed = Packing { capacity: 0, max_segments: None, method: Method::BestFit };
    let packed = Batching::Packed { lengths: "length".into(), packing: packed, window_rows: None };
    let mix =
        |weights: &[u64]| MixOptions::new(weights.iter().map(|w| Weight::from(*w)).collect(), Stop::FirstExhausted);
    for (options, why) in [
        (PlanOptions { global_batch: 0, ..base() }, "global_batch is 0"),
        (PlanOptions { shuffle: Shuffle::ShardBlock { window_blocks: 0 }, ..base() }, "window_blocks is 0"),
        (PlanOptions { filters: vec!["nothing<3".parse().unwrap()], ..base() }, "column \"nothing\""),
        (PlanOptions { curriculum: Some(Curriculum::Ordered { column: "no".into(), epochs: 1 }), ..base() }, "\"no\""),
        (
            PlanOptions { curriculum: Some(Curriculum::Ordered { column: "hard".into(), epochs: 0 }), ..base() },
            "0 ordered",
        ),
        (PlanOptions { curriculum: Some(paced(Some(f64::NAN), Infeasible::Clip)), ..base() }, "NaN epochs"),
        (PlanOptions { curriculum: Some(paced(None, Infeasible::Clip)), ..base() }, "number of steps"),
        (PlanOptions { curriculum: Some(paced(Some(3.0), Infeasible::Refuse)), ..base() }, "step"),
        (PlanOptions { curriculum: Some(paced(Some(5000.0), Infeasible::Widen)), ..base() }, "epochs"),
        (
            PlanOptions {
                curriculum: Some(paced(Some(0.5), Infeasible::Clip)),
                sampling: Some(weighted(None)),
                ..base()
            },
            "both",
        ),
        (PlanOptions { sampling: Some(weighted(Some(1000))), ..base() }, "at most"),
        (PlanOptions { sampling: Some(balanced("class")), ..base() }, "at most"),
        (PlanOptions { sampling: Some(balanced("hard")), ..base() }, "floats"),
        (PlanOptions { batching: budget(40, 4, Scope::All), ..base() }, "longer than a micro-batch"),
        (PlanOptions { batching: budget(400, 3, Scope::Node), ..base() }, "can't be shared by 2 nodes"),
        (PlanOptions { batching: budget(0, 4, Scope::All), ..base() }, "max_tokens is 0"),
        (PlanOptions { batching: budget(400, 4, Scope::All), tail: Tail::Drop, ..base() }, "no short last step"),
        (PlanOptions { batching: packed, ..base() }, "capacity"),
        (PlanOptions { mix: Some(mix(&[1, 2])), ..base() }, "weights"),
    ] {
        let error = asked(options).plan().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(why) && text.contains("help: "), "{why}: {text}");
    }
    let mut lengths = asked(PlanOptions { batching: budget(400, 4, Scope::All), ..base() }).sources();
    lengths[0].columns = source(&[30, 30], 2, 0, 7, 0).columns;
    let error = gristmill_loader::Plan::over(lengths, base()).unwrap_err().to_string();
    assert!(error.contains("one value for each row"), "{error}");
    let two = Asked { sources: vec![asked(base()).sources[0].clone(); 2], options: base() };
    assert!(two.plan().unwrap_err().to_string().contains("2 sources"));
}

#[test]
fn a_state_of_another_plan_is_refused_with_what_differs() {
    let mix = |weight: u64| MixOptions::new(vec![Weight::from(1), Weight::from(weight)], Stop::AllExhausted);
    let of = |options: PlanOptions| {
        let sources = if options.mix.is_some() { 2 } else { 1 };
        Asked { sources: vec![(vec![30, 30, 30, 30], 2, 0, 7); sources], options }.plan().unwrap()
    };
    let plain = of(base());
    let state = plain.state(2, 40).unwrap().to_json().unwrap();
    State::from_json(&state).unwrap().check(&plain).unwrap();
    // Another batch size is the same plan; so a run may go on with it.
    State::from_json(&state).unwrap().check(&of(PlanOptions { global_batch: 7, ..base() })).unwrap();
    let weighted = Sampling::Weighted { column: "weight".into(), replacement: true, samples: None };
    for (options, field) in [
        (PlanOptions { seed: 3, ..base() }, "seed: "),
        (PlanOptions { shuffle: Shuffle::Global, ..base() }, "shuffle: "),
        (PlanOptions { filters: vec!["length<p50".parse().unwrap()], ..base() }, "filters: "),
        (PlanOptions { curriculum: Some(paced(Some(0.5), Infeasible::Clip)), ..base() }, "curriculum: "),
        (PlanOptions { sampling: Some(weighted), ..base() }, "sampling: "),
        (PlanOptions { batching: budget(400, 4, Scope::All), ..base() }, "batching: "),
        (PlanOptions { mix: Some(mix(2)), ..base() }, "mix: "),
        (PlanOptions { tail: Tail::Drop, ..base() }, "batching: "),
    ] {
        let other = of(options);
        let error = State::from_json(&state).unwrap().check(&other).unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
        // And its own state is taken.
        let own = other.state(1, 0).unwrap().to_json().unwrap();
        State::from_json(&own).unwrap().check(&other).unwrap();
    }
    // The same levels are another plan when they come of another batch.
    let curriculum =
        |global_batch| of(PlanOptions { curriculum: Some(paced(Some(0.9), Infeasible::Clip)), global_batch, ..base() });
    let error = curriculum(20).state(0, 20).unwrap().check(&curriculum(10)).unwrap_err().to_string();
    assert!(error.contains("levels"), "{error}");
    // Weights in other words are the same mix.
    let words = |a: &str, b: &str| {
        let weights = vec![a.parse().unwrap(), b.parse().unwrap()];
        of(PlanOptions { mix: Some(MixOptions::new(weights, Stop::AllExhausted)), ..base() })
    };
    assert_eq!(words("0.25", "0.75").fingerprint(), words("1", "3").fingerprint());
    assert_ne!(words("0.25", "0.75").fingerprint(), words("1", "2").fingerprint());
}

#[test]
fn golden_orders_of_each_kind_never_change() {
    let first = |options: PlanOptions| {
        let asked = Asked { sources: vec![(vec![25, 25, 25, 25], 2, 0, 5)], options };
        let plan = asked.plan().unwrap();
        let mut order = plan.epoch(0);
        (0..10).map(|t| order.sample(t).unwrap().unwrap().position).collect::<Vec<_>>()
    };
    let balanced = Sampling::Balanced { column: "class".into(), repeats: Repeats::Passes, samples: None, shares: None };
    let got = [
        first(PlanOptions { curriculum: Some(Curriculum::Ordered { column: "hard".into(), epochs: 1 }), ..base() }),
        first(PlanOptions { curriculum: Some(paced(Some(0.9), Infeasible::Clip)), ..base() }),
        first(PlanOptions { sampling: Some(balanced), ..base() }),
        first(PlanOptions { filters: vec!["length<=30".parse().unwrap()], ..base() }),
    ];
    assert_eq!(got, GOLDEN, "{got:?}");
}

/// Made once by this code and committed: a change is a new PLAN_VERSION.
const GOLDEN: [[u64; 10]; 4] = [
    [0, 14, 12, 7, 15, 24, 8, 4, 17, 3],
    [1, 1, 8, 4, 0, 7, 20, 22, 19, 14],
    [3, 1, 10, 16, 18, 19, 13, 13, 5, 12],
    [5, 14, 16, 8, 1, 11, 24, 4, 6, 13],
];
