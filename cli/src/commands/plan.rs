//! `gristmill plan`

use std::process::ExitCode;

use gristmill_loader::{Plan, PlanOptions, Shuffle, Tail, replay};
use gristmill_shard::{ErrorKind, ShardSet};

use crate::{
    args::{PlanArgs, PlanFlags, ShuffleArg, TailArg},
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
    }
}

pub fn run(session: &Session, args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let storage = session.open(&args.shards)?;
    let shards = session.block_on(ShardSet::open(&storage))?;
    let nodes = shards.layout().nodes;
    let machines = args.machines.unwrap_or(if args.world_size.is_multiple_of(nodes) { nodes } else { 1 });
    let plan = Plan::new(&shards, options(&args.plan))?;
    let replay = replay(&plan, args.epoch, args.world_size, machines)?;
    let covered = replay.missing == 0 && replay.repeated == 0;
    if session.common.json {
        output::json(&serde_json::json!({
            "fingerprint": plan.fingerprint().to_string(),
            "epoch": args.epoch,
            "replay": replay,
        }))?;
    } else {
        let (least, most) = (
            replay.rows_per_rank.iter().min().copied().unwrap_or(0),
            replay.rows_per_rank.iter().max().copied().unwrap_or(0),
        );
        let pair = |name: &str, value: String| vec![name.to_owned(), value];
        let mut text = tables::table(
            &["epoch", &args.epoch.to_string()],
            1,
            [
                pair("split", args.plan.split.clone()),
                pair("rows", tables::count(replay.rows)),
                pair("delivered", tables::count(replay.delivered)),
                pair("missing", tables::count(replay.missing)),
                pair("repeated", tables::count(replay.repeated)),
                pair("dropped by the tail rule", tables::count(replay.dropped)),
                pair("ranks", replay.world_size.to_string()),
                pair("steps of every rank", tables::count(replay.steps_per_rank)),
                pair("rows of a rank, least", tables::count(least)),
                pair("rows of a rank, most", tables::count(most)),
                pair("empty slices", tables::count(replay.empty_slices)),
                pair("read amplification", format!("{:.3}", replay.read_amplification)),
            ],
        );
        let rows = replay.reads.iter().map(|r| {
            vec![
                r.machine.to_string(),
                tables::count(r.row_groups),
                tables::bytes(r.bytes),
                tables::count(r.foreign_row_groups),
                tables::bytes(r.foreign_bytes),
            ]
        });
        let header = ["machine", "row groups", "bytes", "of other nodes", "bytes of other nodes"];
        text.push_str(&tables::table(&header, 1, rows));
        text.push_str(&format!("fingerprint {}\n", plan.fingerprint()));
        output::result(&text)?;
    }
    Ok(if covered { ExitCode::SUCCESS } else { ExitCode::from(ErrorKind::Internal.exit_code()) })
}
