//! Random plans: every mode, and every combination of them that is one.

use std::sync::Arc;

use gristmill_loader::{
    Column, Columns, LaneTable, Plan, PlanOptions, Shuffle, Source, Tail,
    batching::{
        budget::{Budget, PadTo},
        options::{Batching, Scope},
        packing::{Method, Packing},
    },
    curriculum::{Curriculum, DifficultyKind, Infeasible, Pacing},
    mixture::{MixOptions, StageOptions, Stop, Weight},
    sampling::options::{Repeats, Sampling},
};
use proptest::{collection::vec, prelude::*};

/// A lane table with a column of each kind.
pub fn source(lengths: &[u64], nodes: u32, first_node: u32, block: u64, salt: u64) -> Source {
    let table = LaneTable::simulated_lanes(lengths, nodes, first_node, block).unwrap();
    let mix = |lane: usize, position: u64, of: u64| {
        let mut x = (position ^ (lane as u64) << 40 ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= x >> 29;
        x.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33 ^ of
    };
    let integers = |of: u64, below: u64| {
        let lane = |(lane, rows): (usize, &u64)| (0..*rows).map(|p| (mix(lane, p, of) % below) as i64).collect();
        Column::integers(lengths.iter().enumerate().map(lane).collect())
    };
    let lane = |(lane, rows): (usize, &u64)| (0..*rows).map(|p| (mix(lane, p, 5) % 1000) as f64 / 8.0).collect();
    let floats = Column::floats(lengths.iter().enumerate().map(lane).collect());
    let columns = [
        ("length".to_owned(), integers(1, 61)),
        ("class".to_owned(), integers(2, 4)),
        ("weight".to_owned(), integers(3, 9)),
        ("hard".to_owned(), floats),
    ];
    Source { table: Arc::new(table), manifest: format!("{salt:x}"), columns: Columns::new(columns) }
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    prop_oneof![
        Just(Shuffle::None),
        (1_u32..5).prop_map(|window_blocks| Shuffle::ShardBlock { window_blocks }),
        Just(Shuffle::Global)
    ]
}

fn pacings() -> impl Strategy<Value = Pacing> {
    prop_oneof![
        (0.0..0.5).prop_map(|start| Pacing::Linear { start }),
        (0.0..0.5).prop_map(|start| Pacing::Sqrt { start }),
        (1_u32..6, 0.0..0.5).prop_map(|(degree, start)| Pacing::Root { degree, start }),
        (1.0..30.0).prop_map(|difficulty_step| Pacing::FixedLinear {
            difficulty_step,
            difficulty_type: DifficultyKind::Value,
            max: 120.0,
            min: 10.0,
        }),
        (1_u32..4).prop_map(|root_degree| Pacing::FixedRoot {
            difficulty_step: 5.0,
            difficulty_type: DifficultyKind::Percentile,
            max: 100.0,
            min: 5.0,
            root_degree,
        }),
    ]
}

fn curricula() -> impl Strategy<Value = Curriculum> {
    let infeasible = prop_oneof![Just(Infeasible::Clip), Just(Infeasible::Widen), Just(Infeasible::Repeat)];
    prop_oneof![
        (1_u64..3).prop_map(|epochs| Curriculum::Ordered { column: "hard".into(), epochs }),
        (pacings(), infeasible, 0.3..2.5).prop_map(|(pacing, infeasible, epochs)| Curriculum::Paced {
            column: "hard".into(),
            epochs: Some(epochs),
            infeasible,
            pacing,
            steps: None,
        }),
    ]
}

fn samplings() -> impl Strategy<Value = Sampling> {
    let repeats = prop_oneof![Just(Repeats::Passes), Just(Repeats::Independent)];
    let samples = prop_oneof![Just(None), (1_u64..300).prop_map(Some)];
    prop_oneof![
        (repeats, samples.clone()).prop_map(|(repeats, samples)| Sampling::Balanced {
            column: "class".into(),
            repeats,
            samples,
            shares: None,
        }),
        samples.prop_map(|samples| Sampling::Weighted { column: "weight".into(), replacement: true, samples }),
        Just(Sampling::Weighted { column: "weight".into(), replacement: false, samples: None }),
    ]
}

fn pads() -> impl Strategy<Value = PadTo> {
    prop_oneof![
        Just(PadTo::Longest),
        (1_u32..20).prop_map(|of| PadTo::Multiple { of }),
        Just(PadTo::Boundaries { at: vec![8, 24, 64] }),
    ]
}

fn batchings(nodes: u32) -> impl Strategy<Value = Batching> {
    let scope = prop_oneof![Just(Scope::All), Just(Scope::Node)];
    let window = prop_oneof![1 => Just(None), 4 => (1_u64..60).prop_map(Some)];
    let budget = (80_u64..400, prop_oneof![Just(None), (1_u32..12).prop_map(Some)], 1_u32..5, pads());
    let budget = (budget, scope, any::<bool>(), window.clone()).prop_map(
        move |((max_tokens, max_rows, micro_batches, pad_to), scope, longest_first, window_rows)| {
            let micro_batches = if scope == Scope::Node { micro_batches * nodes } else { micro_batches };
            let budget = Budget { max_rows, max_tokens, micro_batches, pad_to };
            Batching::Budget { budget, lengths: "length".into(), longest_first, scope, window_rows }
        },
    );
    let method = prop_oneof![Just(Method::FirstFit), Just(Method::BestFit), Just(Method::ConcatAndSplit)];
    let packed = (1_u32..200, method, window).prop_map(|(capacity, method, window_rows)| Batching::Packed {
        lengths: "length".into(),
        packing: Packing { capacity, max_segments: None, method },
        window_rows,
    });
    prop_oneof![3 => Just(Batching::Fixed), 2 => budget, 2 => packed]
}

fn filters() -> impl Strategy<Value = Vec<&'static str>> {
    prop_oneof![
        3 => Just(vec![]),
        1 => Just(vec!["length<=30"]),
        1 => Just(vec!["hard<p80", "class!=2"]),
        1 => Just(vec!["hard>=mean-1sd"]),
    ]
}

/// Lanes, nodes, first node, rows of a row group.
type Lanes = (Vec<u64>, u32, u32, u64);

/// Even lanes of up to `rows` rows in all, or any lanes.
pub fn lanes(rows: u64) -> impl Strategy<Value = Lanes> {
    let even = (0..rows, 1_usize..17).prop_map(|(n, lanes)| {
        (0..lanes as u64).map(|v| n.saturating_sub(v).div_ceil(lanes as u64)).collect::<Vec<u64>>()
    });
    let any = vec(prop_oneof![1 => Just(0_u64), 4 => 0..rows / 8 + 1], 1..17);
    (prop_oneof![even, any], 1_u32..6, 0_u32..5, 1_u64..40).prop_map(|(lengths, nodes, first, block)| {
        let nodes = nodes.min(lengths.len() as u32);
        (lengths, nodes, first % nodes, block)
    })
}

/// A plan, as it is asked for; [`Asked::plan`] gives the plan, or why there is none.
#[derive(Debug, Clone)]
pub struct Asked {
    pub sources: Vec<Lanes>,
    pub options: PlanOptions,
}

impl Asked {
    pub fn sources(&self) -> Vec<Source> {
        let of = |(salt, lanes): (u64, &Lanes)| source(&lanes.0, lanes.1, lanes.2, lanes.3, salt);
        (0..).zip(&self.sources).map(of).collect()
    }

    pub fn plan(&self) -> gristmill_loader::Result<Plan> {
        Plan::over(self.sources(), self.options.clone())
    }
}

fn mixes(sources: usize) -> BoxedStrategy<Option<MixOptions>> {
    let weights = move || vec(1_u64..20, sources).prop_map(|w| w.into_iter().map(Weight::from).collect::<Vec<_>>());
    let stop = prop_oneof![Just(Stop::FirstExhausted), Just(Stop::AllExhausted), (1_u64..500).prop_map(Stop::Samples)];
    let first = prop_oneof![2 => Just(None), 1 => (1_u64..30, weights()).prop_map(Some)];
    let mix = (first, weights(), stop).prop_map(|(first, weights, stop)| {
        let first = first.map(|(samples, weights)| StageOptions { samples: Some(samples), weights });
        let stages = first.into_iter().chain([StageOptions { samples: None, weights }]).collect();
        Some(MixOptions { stages, stop })
    });
    // One source may be mixed with nothing: its epochs need not be its passes.
    if sources == 1 { prop_oneof![5 => Just(None), 1 => mix].boxed() } else { mix.boxed() }
}

/// Random plans of sources of up to `rows` rows.
pub fn plans(rows: u64) -> impl Strategy<Value = Asked> {
    let sources = prop_oneof![3 => vec(lanes(rows), 1), 1 => vec(lanes(rows), 2..4)];
    sources.prop_flat_map(|sources| {
        let nodes = sources[0].1;
        let order = prop_oneof![
            3 => Just((None, None)),
            2 => curricula().prop_map(|c| (Some(c), None)),
            2 => samplings().prop_map(|s| (None, Some(s))),
        ];
        let tail = prop_oneof![Just(Tail::Exact), Just(Tail::Drop), Just(Tail::PadMasked)];
        let rest = (shuffles(), filters(), order, batchings(nodes), mixes(sources.len()));
        (Just(sources), rest, 1_u64..70, tail, any::<u64>()).prop_map(
            |(sources, (shuffle, filters, (curriculum, sampling), batching, mix), global_batch, tail, seed)| {
                let tail = if matches!(batching, Batching::Budget { .. }) { Tail::Exact } else { tail };
                let filters = filters.iter().map(|f| f.parse().unwrap()).collect();
                let base = PlanOptions::new("simulated", global_batch);
                let options = PlanOptions { seed, shuffle, filters, curriculum, sampling, batching, mix, tail, ..base };
                Asked { sources, options }
            },
        )
    })
}
