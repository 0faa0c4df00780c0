//! `gristmill plan`

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Context as _;
use gristmill_loader::{
    Plan, PlanOptions, Replay, ReplayOptions, Shuffle, Source, Tail,
    batching::options::Batching,
    mixture::{MixOptions, StageOptions},
    replay,
    replay::{
        WorldFrom, WorldReplay,
        report::{self, PageInput},
    },
};
use gristmill_shard::{ErrorKind, ShardSet};

use crate::{
    args::{PlanArgs, PlanFlags, ShuffleArg, TailArg},
    failure::Failure,
    output,
    session::Session,
    tables,
};

/// The plan's options as typed.
pub fn options(flags: &PlanFlags) -> PlanOptions {
    PlanOptions {
        split: flags.split.clone(),
        seed: flags.seed,
        shuffle: match flags.shuffle {
            ShuffleArg::None => Shuffle::None,
            ShuffleArg::ShardBlock => Shuffle::ShardBlock { window_blocks: flags.window_blocks },
            ShuffleArg::Global => Shuffle::Global,
        },
        global_batch: flags.global_batch,
        tail: match flags.tail {
            TailArg::Exact => Tail::Exact,
            TailArg::Drop => Tail::Drop,
            TailArg::PadMasked => Tail::PadMasked,
        },
        filters: flags.filter.clone(),
        curriculum: flags.curriculum.clone(),
        sampling: flags.sampling.clone(),
        batching: Batching::Fixed,
        mix: None,
    }
}

/// The plan, and the nodes of its first shard set.
async fn open(session: &Session, args: &PlanArgs) -> anyhow::Result<(Plan, u32)> {
    let mut options = options(&args.plan);
    options.batching = args.batching.clone().unwrap_or_default();
    let shown = [&args.classes, &args.difficulty, &args.lengths];
    let shown: Vec<&str> = shown.into_iter().filter_map(Option::as_deref).collect();
    let mut sets = BTreeMap::new();
    let first = ShardSet::open(&session.open(&args.shards)?).await?;
    let nodes = first.layout().nodes;
    sets.insert(args.shards.clone(), first);
    let mut sources = Vec::new();
    if args.mix.is_empty() {
        sources.push(Source::read(&sets[&args.shards], &options.split, &options, &shown).await?);
    }
    for mixed in &args.mix {
        let url = mixed.shards.as_ref().unwrap_or(&args.shards);
        if !sets.contains_key(url) {
            sets.insert(url.clone(), ShardSet::open(&session.open(url)?).await?);
        }
        sources.push(Source::read(&sets[url], &mixed.split, &options, &shown).await?);
    }
    if let Some(split) = args.mix.first().map(|mixed| mixed.split.clone()) {
        options.split = split;
        let mut stages: Vec<StageOptions> = Vec::new();
        stages.extend(args.stage.iter().map(|s| StageOptions { samples: Some(s.samples), weights: s.weights.clone() }));
        let weights = args.mix.iter().map(|mixed| mixed.weight).collect();
        stages.push(StageOptions { samples: None, weights });
        options.mix = Some(MixOptions { stages, stop: args.stop.unwrap_or_default() });
    }
    Ok((Plan::over(sources, options)?, nodes))
}

pub fn run(session: &Session, args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let (plan, nodes) = session.block_on(open(session, args))?;
    // As many machines as there are nodes, where the ranks can be spread over them.
    let machines =
        |given: Option<u32>, world_size: u32| given.unwrap_or(if world_size.is_multiple_of(nodes) { nodes } else { 1 });
    let mut worlds =
        vec![WorldFrom { step: 0, world_size: args.world_size, machines: machines(args.machines, args.world_size) }];
    worlds.extend(args.change.iter().map(|change| WorldFrom {
        step: change.step,
        world_size: change.world_size,
        machines: machines(change.machines.or(args.machines), change.world_size),
    }));
    let options = ReplayOptions {
        epoch: args.epoch,
        worlds,
        classes: args.classes.clone(),
        difficulty: args.difficulty.clone(),
        lengths: args.lengths.clone(),
        stretches: args.stretches,
    };
    let replay = replay(&plan, &options)?;
    if let Some(path) = &args.html {
        let options = serde_json::to_string_pretty(plan.options()).context("the plan's options")?;
        let lengths = args.lengths.as_deref().or(plan.options().batching.lengths());
        let of_order = plan.options().curriculum.as_ref().map(|curriculum| curriculum.column());
        let page = report::render(&PageInput {
            fingerprint: &plan.fingerprint().to_string(),
            options_json: &options,
            replay: &replay,
            class_name: args.classes.as_deref(),
            difficulty_name: args.difficulty.as_deref().or(of_order),
            lengths_name: lengths,
        })?;
        fs_err::write(path, page)
            .map_err(|e| Failure::usage(e.to_string(), "give --html a file in a folder that is there"))?;
    }
    let broken = (replay.exactly_once && replay.missing > 0) || (replay.at_most_once && replay.repeated > 0);
    if session.common.json {
        output::json(&serde_json::json!({
            "fingerprint": plan.fingerprint().to_string(),
            "epoch": args.epoch,
            "options": plan.options(),
            "replay": replay,
        }))?;
    } else {
        output::result(&text(args, &plan, &replay))?;
    }
    Ok(if broken { ExitCode::from(ErrorKind::Internal.exit_code()) } else { ExitCode::SUCCESS })
}

fn pair(name: &str, value: impl Into<String>) -> Vec<String> {
    vec![name.to_owned(), value.into()]
}

fn least_and_most(values: &[u64]) -> String {
    let (least, most) = (values.iter().min().copied().unwrap_or(0), values.iter().max().copied().unwrap_or(0));
    format!("{} to {}", tables::count(least), tables::count(most))
}

fn text(args: &PlanArgs, plan: &Plan, replay: &Replay) -> String {
    let count = tables::count;
    let split = match args.mix.len() {
        0 => args.plan.split.clone(),
        n => format!("{n} sources"),
    };
    let mut facts = vec![pair("split", split), pair("rows", count(replay.rows))];
    if replay.filtered > 0 {
        facts.push(pair("left out by the filter", count(replay.filtered)));
    }
    facts.push(pair("delivered", count(replay.delivered)));
    facts.push(pair(if replay.exactly_once { "missing" } else { "never drawn" }, count(replay.missing)));
    facts.push(pair(if replay.exactly_once { "repeated" } else { "drawn again" }, count(replay.repeated)));
    facts.push(pair("dropped by the tail rule", count(replay.dropped)));
    facts.push(pair("steps of every rank", count(replay.steps_per_rank)));
    if let Some(tokens) = &replay.tokens {
        facts.push(pair("tokens", count(tokens.real)));
        if tokens.dropped > 0 {
            facts.push(pair("tokens dropped with the tail", count(tokens.dropped)));
        }
        facts.push(pair("padding, of all tokens", format!("{:.2} %", 100.0 * tokens.padding)));
        facts.push(pair("imbalance of tokens between ranks, mean", format!("{:.2} %", 100.0 * tokens.imbalance_mean)));
        facts.push(pair("imbalance, worst step", format!("{:.2} %", 100.0 * tokens.imbalance_worst)));
    }
    if let Some(pacing) = &replay.pacing {
        facts.push(pair(
            "pacing, steps asked and used",
            format!("{} / {}", count(pacing.requested_steps), count(pacing.used_steps)),
        ));
        facts.push(pair("pacing, most rows admitted early", count(pacing.widened_rows)));
    }
    let mut text = tables::table(&["epoch", &args.epoch.to_string()], 1, facts);
    let header = ["from step", "steps", "ranks", "machines", "rows of a rank", "empty slices", "read amplification"];
    text.push_str(&tables::table(&header, 0, replay.worlds.iter().map(world)));
    let header = ["from step", "machine", "row groups", "bytes", "of other nodes", "bytes of other nodes"];
    let reads = replay.worlds.iter().flat_map(|world| {
        world.reads.iter().map(|r| {
            vec![
                count(world.first_step),
                r.machine.to_string(),
                count(r.row_groups),
                tables::bytes(r.bytes),
                count(r.foreign_row_groups),
                tables::bytes(r.foreign_bytes),
            ]
        })
    });
    text.push_str(&tables::table(&header, 0, reads));
    if !replay.sources.is_empty() {
        let header = ["source", "rows", "draws", "whole passes", "share asked", "share"];
        let rows = replay.sources.iter().zip(&args.mix).map(|(s, mixed)| {
            vec![
                mixed.shards.as_ref().map_or_else(|| s.split.clone(), |url| format!("{url}#{}", s.split)),
                count(s.rows),
                count(s.draws),
                count(s.passes),
                format!("{:.4} %", 100.0 * s.asked),
                format!("{:.4} %", 100.0 * s.share),
            ]
        });
        text.push_str(&tables::table(&header, 1, rows));
    }
    text.push_str(&course(args, replay));
    text.push_str(&format!("fingerprint {}\n", plan.fingerprint()));
    text
}

fn world(world: &WorldReplay) -> Vec<String> {
    vec![
        tables::count(world.first_step),
        tables::count(world.steps),
        world.world_size.to_string(),
        world.machines.to_string(),
        least_and_most(&world.rows_per_rank),
        tables::count(world.empty_slices),
        format!("{:.3}", world.read_amplification),
    ]
}

/// Stretches that a table shows.
const SHOWN: usize = 12;

/// The course of the epoch, where something was asked for that has one.
fn course(args: &PlanArgs, replay: &Replay) -> String {
    let with_difficulty = replay.stretches.iter().any(|s| s.difficulty.is_some());
    if !with_difficulty && replay.classes.is_empty() {
        return String::new();
    }
    let mut header = vec!["steps from".to_owned(), "samples".to_owned()];
    if with_difficulty {
        header.extend(["least", "mean", "most"].map(|name| format!("difficulty, {name}")));
    }
    let class = args.classes.as_deref().unwrap_or("class");
    header.extend(replay.classes.iter().map(|value| format!("{class}={value}")));
    if !replay.classes.is_empty() {
        header.push("others".into());
    }
    let every = replay.stretches.len().div_ceil(SHOWN).max(1);
    let rows = replay.stretches.iter().step_by(every).map(|stretch| {
        let mut row = vec![tables::count(stretch.first_step), tables::count(stretch.samples)];
        if with_difficulty {
            let numbers = stretch.difficulty.map(|d| [d.min, d.mean, d.max]);
            row.extend((0..3).map(|at| numbers.map_or_else(|| "-".to_owned(), |n| format!("{:.4}", n[at]))));
        }
        row.extend(stretch.classes.iter().map(|n| tables::count(*n)));
        row
    });
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    tables::table(&header, 0, rows)
}
