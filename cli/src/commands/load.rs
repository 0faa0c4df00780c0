//! `gristmill load`

use std::{fmt::Write as _, process::ExitCode};

use gristmill_loader::{BatchSpec, DataLoader, LoaderOptions, World, measure};
use gristmill_shard::ShardSet;

use crate::{args::LoadArgs, commands::plan, failure::Failure, output, session::Session, tables};

pub fn run(session: &Session, args: &LoadArgs) -> anyhow::Result<ExitCode> {
    if args.rank >= args.world_size {
        return Err(Failure::usage(
            format!("--rank {} is outside --world-size {}", args.rank, args.world_size),
            format!("ranks are 0 to {}", args.world_size - 1),
        ));
    }
    if args.ids && session.common.json {
        return Err(Failure::usage("--ids prints CSV, --json one document", "give one of them"));
    }
    let storage = session.open(&args.shards)?;
    let shards = session.block_on(ShardSet::open(&storage))?;
    // Else the first thing to be missed would be the split's statistics.
    shards.layout().split(&args.plan.split)?;
    let (mut batch, left_out) = session.block_on(BatchSpec::every_column(&shards, &args.plan.split))?;
    for column in left_out {
        output::line_to_stderr(&format!("column \"{column}\" has no tensor form and is left out"));
    }
    // Only there do ids not tell samples apart.
    batch.copy = args.ids && shards.layout().resampled;
    let mut options = LoaderOptions::new(plan::options(&args.plan), batch);
    options.world = World::new(args.rank, args.world_size, args.local_world_size.unwrap_or(args.world_size))?;
    options.memory_bytes = args.memory.as_u64();
    options.prefetch_batches = usize::from(args.prefetch);
    options.threads = session.control.threads;
    let loader = session.block_on(DataLoader::open(shards, options, session.handle()))?;
    if args.bench {
        bench(session, args, &loader)?;
    } else {
        read(session, args, &loader)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the epochs; prints ids, or counts.
fn read(session: &Session, args: &LoadArgs, loader: &DataLoader) -> anyhow::Result<()> {
    let (mut rows, mut batches) = (0_u64, 0_u64);
    let copies = loader.options().batch.copy;
    if args.ids {
        output::result(if copies { "epoch,step,row_id,copy\n" } else { "epoch,step,row_id\n" })?;
    }
    for epoch in 0..args.epochs {
        let mut epoch_batches = loader.epoch(epoch)?;
        let mut step = 0_u64;
        while let Some(batch) = session.block_on(epoch_batches.next())? {
            session.control.stop.check()?;
            rows += batch.rows() as u64;
            batches += 1;
            if args.ids {
                let mut text = String::new();
                let copy_of = if copies { batch.copies()? } else { &[] };
                for (sample, id) in batch.row_ids()?.iter().enumerate() {
                    let _ = match copy_of.get(sample) {
                        Some(copy) => writeln!(text, "{epoch},{step},{id},{copy}"),
                        None => writeln!(text, "{epoch},{step},{id}"),
                    };
                }
                if !text.is_empty() {
                    output::result(&text)?;
                }
            }
            step += 1;
        }
    }
    if session.common.json {
        output::json(&serde_json::json!({ "rows": rows, "batches": batches, "metrics": loader.metrics() }))?;
    } else if !args.ids {
        output::result(&format!("{} rows in {} batches\n", tables::count(rows), tables::count(batches)))?;
    }
    Ok(())
}

fn bench(session: &Session, args: &LoadArgs, loader: &DataLoader) -> anyhow::Result<()> {
    let measured = session.block_on(measure::measure(loader, 0..args.epochs.saturating_add(1)))?;
    if session.common.json {
        return output::json(&measured);
    }
    let rows = measured.epochs.iter().map(|e| {
        let name = if e.epoch == 0 { "0 (cold)".to_owned() } else { e.epoch.to_string() };
        vec![name, tables::count(e.rows), format!("{:.3}", e.seconds), tables::count(e.rows_per_s as u64)]
    });
    let mut text = tables::table(&["epoch", "rows", "seconds", "rows/s"], 1, rows);
    text.push_str(&format!(
        "first batch after {:.3} s; waited {:.3} s of {:.3} s for batches; read {}\n",
        measured.first_batch_s,
        measured.wait_s,
        measured.seconds,
        tables::bytes(measured.metrics.bytes_read),
    ));
    output::result(&text)
}
