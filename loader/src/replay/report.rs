//! The page of a replay: what an epoch of a plan delivers, in which order of difficulty, classes and sources, and what the
//! ranks read and pad for it. Its bytes are a function of the plan and the replay.
//!
//! Names come from data, so nothing of them reaches the page unescaped; lists are cut at fixed lengths, each with the number
//! of what it leaves out, so that the page stays small whatever is replayed.

use std::fmt::Write as _;

use gristmill_shard::report::{
    chart,
    html::{FULL_NAME, LISTED, Verdict, and_more, document, figure_of, header, shared_bars, table, tiles, verdict},
    text::{bytes, count, counted, escape, mean, percent, visible},
};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    replay::{Replay, WorldReplay},
};
use course::Course;

mod course;

/// Characters of an option or a split, and of an option's value: tables would give them in full, and the page is to stay
/// small.
const NAME: usize = 60;
const VALUE: usize = 120;
/// Worlds with pictures of their own, the first.
const PICTURED_WORLDS: usize = 3;

/// What the page is made of.
#[derive(Debug, Clone, Copy)]
pub struct PageInput<'a> {
    /// Fingerprint of the plan.
    pub fingerprint: &'a str,
    /// Options of the plan, as JSON.
    pub options_json: &'a str,
    /// The replay.
    pub replay: &'a Replay,
    /// Column whose classes are counted.
    pub class_name: Option<&'a str>,
    /// Column of the difficulty.
    pub difficulty_name: Option<&'a str>,
    /// Column of lengths.
    pub lengths_name: Option<&'a str>,
}

/// The page, of less than 300 kB.
///
/// # Errors
/// [`Error::Internal`] when the options are not JSON or a picture can't be drawn.
pub fn render(plan: &PageInput<'_>) -> Result<String> {
    let course = Course::new(plan);
    let mut body = headline(plan);
    body.push_str(&judged(plan.replay));
    body.push_str(&options(plan.options_json)?);
    body.push_str(&coverage(plan.replay));
    body.push_str(&worlds(plan.replay));
    body.push_str(&reads(plan.replay));
    body.push_str(&ranks(plan.replay)?);
    body.push_str(&course.tokens()?);
    body.push_str(&course.difficulty()?);
    body.push_str(&course.classes()?);
    body.push_str(&course.sources()?);
    body.push_str(&pacing(plan.replay));
    Ok(document(&format!("Plan: epoch {}, {}", plan.replay.epoch, counted(plan.replay.delivered, "sample")), &body))
}

/// A paragraph that says what to look for. `text` is HTML.
fn explained(text: &str) -> String {
    format!("<p class=\"soft\">{text}</p>\n")
}

/// A table of figures with their names.
fn figures(rows: Vec<(&str, String)>) -> String {
    table(&header(&["figure", "value"]), 1, rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]))
}

/// `value` as `show` has it, or a dash where it is none.
fn shown(value: f64, show: fn(f64) -> String) -> String {
    if value.is_finite() { show(value) } else { "–".into() }
}

fn least_and_most(values: &[u64]) -> (u64, u64) {
    (values.iter().copied().min().unwrap_or(0), values.iter().copied().max().unwrap_or(0))
}

fn headline(plan: &PageInput<'_>) -> String {
    let replay = plan.replay;
    let mut figures = vec![
        (replay.epoch.to_string(), "epoch"),
        (count(replay.delivered), "samples delivered"),
        (count(replay.steps_per_rank), "steps"),
    ];
    match replay.worlds.as_slice() {
        [world] => {
            figures.push((count(u64::from(world.world_size)), "ranks"));
            figures.push((count(u64::from(world.machines)), "machines"));
        }
        worlds => figures.push((count(worlds.len() as u64), "worlds")),
    }
    if !replay.sources.is_empty() {
        figures.push((count(replay.sources.len() as u64), "sources"));
    }
    if let Some(tokens) = &replay.tokens {
        figures.push((count(tokens.real), "tokens"));
    }
    format!(
        "<h1>Plan</h1>\n<p class=\"soft\">One epoch, replayed without reading data.</p>\n{}\
         <p class=\"soft\">Fingerprint <code>{}</code></p>\n",
        tiles(&figures),
        escape(&visible(plan.fingerprint, FULL_NAME)),
    )
}

/// Whether the plan keeps its promise, in words.
fn judged(replay: &Replay) -> String {
    let none_or = |n: u64| if n == 0 { "none".to_owned() } else { count(n) };
    let mut notes = Vec::new();
    if replay.filtered > 0 {
        notes.push(format!("{} left out by the filter", counted(replay.filtered, "row")));
    }
    if !replay.exactly_once {
        let distinct = replay.delivered.saturating_sub(replay.repeated);
        let sentence = format!(
            "Rows are drawn, not dealt: {}, {} repeated, {} never drawn.",
            counted(distinct, "distinct row"),
            none_or(replay.repeated),
            none_or(replay.missing),
        );
        notes.insert(
            0,
            "by its options the plan does not deliver every row exactly once; these are facts, not faults".into(),
        );
        return verdict(Verdict::Facts, &sentence, &[], &notes);
    }
    if replay.missing > 0 || replay.repeated > 0 {
        let mut broken = Vec::new();
        if replay.missing > 0 {
            broken.push(format!("rows that were due and not delivered: {}", count(replay.missing)));
        }
        if replay.repeated > 0 {
            broken.push(format!("deliveries of rows that had been delivered before: {}", count(replay.repeated)));
        }
        let sentence =
            format!("The plan is BROKEN: {} missing, {} repeated.", none_or(replay.missing), none_or(replay.repeated));
        return verdict(Verdict::Broken, &sentence, &broken, &notes);
    }
    if replay.delivered == 0 && replay.dropped == 0 {
        return verdict(Verdict::Facts, "The epoch is empty: there is nothing to deliver.", &[], &notes);
    }
    let once = if replay.sources.is_empty() { "Every row exactly once" } else { "Every row exactly once in its pass" };
    let sentence = match replay.dropped {
        0 => format!("{once}: nothing missing, nothing repeated."),
        dropped => {
            format!("{once}, but for {} dropped with the tail: nothing missing, nothing repeated.", count(dropped))
        }
    };
    verdict(Verdict::Holds, &sentence, &[], &notes)
}

/// The leaves of `value` with the paths to them.
fn leaves(path: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                leaves(&path, value, rows);
            }
        }
        Value::Null => rows.push((path.to_owned(), "none".into())),
        Value::String(text) => rows.push((path.to_owned(), text.clone())),
        other => rows.push((path.to_owned(), other.to_string())),
    }
}

fn options(json: &str) -> Result<String> {
    let options: Value =
        serde_json::from_str(json).map_err(|e| Error::internal(format!("the options of a plan are not JSON: {e}")))?;
    let mut rows = Vec::new();
    leaves("", &options, &mut rows);
    let listed = rows.iter().take(LISTED).map(|(path, value)| vec![visible(path, NAME), visible(value, VALUE)]);
    Ok(format!("<h2>Options</h2>\n{}{}", table(&header(&["option", "value"]), 2, listed), and_more(rows.len(), LISTED)))
}

fn coverage(replay: &Replay) -> String {
    let (missing, repeated) = match replay.exactly_once {
        true => ("missing", "repeated"),
        false => ("never drawn", "repeated draws"),
    };
    let of = if replay.sources.is_empty() { "rows of the split" } else { "rows of the sources' splits" };
    let rows = vec![
        (of, count(replay.rows)),
        ("left out by the filter", count(replay.filtered)),
        ("rows that take part", count(replay.rows.saturating_sub(replay.filtered))),
        ("samples delivered", count(replay.delivered)),
        (repeated, count(replay.repeated)),
        (missing, count(replay.missing)),
        ("dropped with the tail", count(replay.dropped)),
        ("steps of every rank", count(replay.steps_per_rank)),
    ];
    let means = match (replay.exactly_once, replay.sources.is_empty()) {
        (true, true) => "Rows that take part are those delivered and those dropped with the tail; look for two zeros.",
        (true, false) => {
            "A row counts once in each pass of its source, and is due as far as the epoch goes into the pass; look for two zeros."
        }
        (false, _) => "A row that is drawn again in the same pass is a repeated draw.",
    };
    format!("<h2>Coverage</h2>\n{}{}", figures(rows), explained(means))
}

fn worlds(replay: &Replay) -> String {
    let rows = replay.worlds.iter().take(LISTED).enumerate().map(|(number, world)| {
        let (least, most) = least_and_most(&world.rows_per_rank);
        vec![
            number.to_string(),
            count(world.first_step),
            count(world.steps),
            count(u64::from(world.world_size)),
            count(u64::from(world.machines)),
            count(least),
            count(most),
            count(world.empty_slices),
            shown(world.read_amplification, |x| format!("{x:.3}")),
        ]
    });
    let columns = [
        "world",
        "first step",
        "steps",
        "ranks",
        "machines",
        "rows a rank, least",
        "most",
        "empty slices",
        "read amplification",
    ];
    let mut html =
        format!("<h2>Worlds</h2>\n{}{}", table(&header(&columns), 0, rows), and_more(replay.worlds.len(), LISTED));
    html.push_str(&explained(
        "An empty slice is a step in which a rank has nothing but a filler. Read amplification is the bytes that all ranks read over those of the row groups that any of them reads: 1 is the least, the world size the most.",
    ));
    html
}

fn reads(replay: &Replay) -> String {
    let machines: usize = replay.worlds.iter().map(|world| world.reads.len()).sum();
    if machines == 0 {
        return String::new();
    }
    let of_worlds =
        replay.worlds.iter().enumerate().flat_map(|(number, world)| world.reads.iter().map(move |r| (number, r)));
    let rows = of_worlds.take(LISTED).map(|(number, reads)| {
        vec![
            number.to_string(),
            reads.machine.to_string(),
            count(reads.row_groups),
            bytes(reads.bytes),
            count(reads.foreign_row_groups),
            bytes(reads.foreign_bytes),
        ]
    });
    let columns = ["world", "machine", "row groups", "bytes", "row groups of other nodes", "bytes of other nodes"];
    format!(
        "<h2>Reads of each machine</h2>\n{}{}{}",
        table(&header(&columns), 0, rows),
        and_more(machines, LISTED),
        explained(
            "A row group that two ranks of a machine need counts twice. Look for machines that read more than others, and for row groups of other nodes, which a machine with shards of its own has to fetch from elsewhere."
        )
    )
}

/// Bars of what each rank has, of the first worlds.
fn ranks(replay: &Replay) -> Result<String> {
    let mut html = String::new();
    for (number, world) in replay.worlds.iter().enumerate().take(PICTURED_WORLDS) {
        let picture = ranks_of(world)?;
        if !picture.is_empty() && replay.worlds.len() > 1 {
            let _ = writeln!(html, "<h3>World {number}, from step {}</h3>", count(world.first_step));
        }
        html.push_str(&picture);
    }
    if html.is_empty() {
        return Ok(html);
    }
    let more = replay.worlds.len().saturating_sub(PICTURED_WORLDS);
    if more > 0 {
        let _ = writeln!(html, "<p class=\"soft\">and {} without a picture.</p>", counted(more as u64, "more world"));
    }
    Ok(format!("<h2>Ranks</h2>\n{html}"))
}

fn ranks_of(world: &WorldReplay) -> Result<String> {
    let (title, unit, values) = match world.tokens_per_rank.as_slice() {
        [] => ("Rows", "rows", world.rows_per_rank.as_slice()),
        tokens => ("Tokens", "tokens", tokens),
    };
    if values.len() < 2 {
        return Ok(String::new());
    }
    let of_ranks: Vec<f64> = values.iter().map(|n| *n as f64).collect();
    let average = of_ranks.iter().sum::<f64>() / of_ranks.len() as f64;
    let Some(bars) = chart::columns("rank", &[&of_ranks], unit, Some(average))? else { return Ok(String::new()) };
    let (least, most) = least_and_most(values);
    let total: u64 = values.iter().fold(0, |sum, n| sum.saturating_add(*n));
    let label = format!("Bars of the {unit} of each rank: {} to {}", count(least), count(most));
    let caption = format!(
        "{title} of each rank: {} to {}; the line is their mean, {}. Look for bars that stand out: the rank that has most keeps the others waiting.",
        count(least),
        count(most),
        mean(total, values.len() as u64),
    );
    Ok(match bars.parts_a_bar {
        1 => figure_of(&bars.svg, &label, &[], &caption),
        k => shared_bars(&bars.svg, &label, "ranks", k) + &explained(&caption),
    })
}

fn pacing(replay: &Replay) -> String {
    let Some(pacing) = &replay.pacing else { return String::new() };
    let rows = vec![
        ("steps requested", count(pacing.requested_steps)),
        ("steps used", count(pacing.used_steps)),
        ("levels of this epoch", count(pacing.levels)),
        ("rows that a pool was widened by, at most", count(pacing.widened_rows)),
        ("the same as a share of all rows", shown(pacing.widened_share, percent)),
    ];
    format!(
        "<h2>Pacing</h2>\n{}{}",
        figures(rows),
        explained(
            "Steps over which pacing goes from the easiest rows to all. Fewer used than requested: the pacing was too slow for every row to be delivered once, and was shortened. Widened rows came before their time."
        )
    )
}

#[cfg(test)]
mod tests;
