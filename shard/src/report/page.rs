//! The page: its sections in order.

use std::fmt::Write as _;

use super::{
    ReportInput,
    html::{FULL_NAME, LISTED, Verdict, document, name, tiles, verdict},
    summary::{self, OnNodes, Rows, Sizes, Stratum, sum},
    text::{self, bytes, count, counted, escape, percent},
};
use crate::{
    balance::{Balance, LevelBalance, SplitBalance},
    error::Result,
    manifest::Layout,
};

mod asked;
mod splits;
mod strata;

/// Splits with rows in tables.
const SPLITS: usize = 40;
/// Splits with pictures of their own, the largest.
const PICTURED_SPLITS: usize = 3;
/// Splits with a colour of their own.
const COLOURED_SPLITS: usize = 4;

/// What sections are made of.
struct Facts<'a> {
    input: ReportInput<'a>,
    layout: &'a Layout,
    balance: &'a Balance,
    strata: Vec<Stratum<'a>>,
    on_nodes: Option<Vec<Vec<OnNodes<'a>>>>,
    sizes: Vec<Sizes>,
}

/// The page of `input`, whose manifest has `layout` and `balance`.
pub(super) fn page(input: &ReportInput<'_>, layout: &Layout, balance: &Balance) -> Result<String> {
    let facts = Facts {
        input: *input,
        layout,
        balance,
        strata: summary::strata(input.strata, layout),
        on_nodes: summary::on_nodes(input.manifest, layout, input.node_strata),
        sizes: summary::sizes(input.files, layout),
    };
    let title = format!(
        "Shard set: {}, {}, {}",
        counted(input.manifest.rows, "row"),
        counted(layout.splits.len() as u64, "split"),
        counted(u64::from(layout.nodes), "node"),
    );
    let mut body = String::new();
    for section in [
        facts.headline()?,
        facts.verdict(),
        facts.splits()?,
        facts.nodes()?,
        facts.levels(),
        facts.strata_on_nodes()?,
        facts.worst(),
        facts.weights()?,
        facts.groups(),
        facts.labels(),
        facts.rare(),
        facts.resampling(),
        facts.versions(),
        facts.columns(),
        facts.options(),
    ] {
        body.push_str(&section);
    }
    Ok(document(&title, &body))
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn range(values: &[u64]) -> (u64, u64) {
    (values.iter().copied().min().unwrap_or(0), values.iter().copied().max().unwrap_or(0))
}

fn levels(split: &SplitBalance) -> [(&'static str, &LevelBalance); 3] {
    [("node", &split.nodes), ("lane", &split.lanes), ("file", &split.files)]
}

impl Facts<'_> {
    /// Sum over strata in split `split`.
    fn sum_of(&self, split: usize, figure: fn(&Rows) -> u64) -> u64 {
        sum(self.strata.iter().map(|c| figure(&c.splits[split])))
    }

    fn many_versions(&self) -> bool {
        self.balance.versions > 1
    }

    /// Splits by rows, most first, as far as they have pictures.
    fn pictured(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.layout.splits.len()).collect();
        order.sort_by_key(|s| (std::cmp::Reverse(self.layout.splits[*s].rows), *s));
        order.truncate(PICTURED_SPLITS);
        order.sort_unstable();
        order
    }

    fn headline(&self) -> Result<String> {
        let (manifest, layout) = (self.input.manifest, self.layout);
        let files = sum(self.sizes.iter().map(|s| s.files));
        let size = sum(self.sizes.iter().map(|s| s.bytes));
        let figures = [
            (count(manifest.rows), "rows"),
            (count(layout.splits.len() as u64), "splits"),
            (count(u64::from(layout.nodes)), "nodes"),
            (count(u64::from(layout.lanes)), "lanes a split"),
            (count(files), "files"),
            (bytes(size), "in data files"),
            (manifest.seed.to_string(), "seed"),
            (count(manifest.version), "version"),
        ];
        let mut html = String::from("<h1>Shard set</h1>\n");
        let columns: Vec<String> = layout.strata.columns.iter().take(LISTED).map(|c| name(c.column())).collect();
        let more = layout.strata.columns.len().saturating_sub(columns.len());
        let by = match (columns.is_empty(), more) {
            (true, _) => "not stratified".to_owned(),
            (false, 0) => format!("stratified by {}", columns.join(", ")),
            (false, more) => format!("stratified by {} and {more} more", columns.join(", ")),
        };
        let _ = writeln!(html, "<p class=\"soft\">{by}: {}</p>", counted_strata(self.balance.strata));
        html.push_str(&tiles(&figures));
        let _ = writeln!(
            html,
            "<p class=\"soft\">Manifest <code>{}</code><br>\nmade from {} <code>{}</code></p>",
            manifest.digest()?,
            name(&manifest.input.kind),
            escape(&text::visible(&manifest.input.digest, FULL_NAME)),
        );
        Ok(html)
    }

    /// Whether every bound holds, in words.
    fn verdict(&self) -> String {
        let balance = self.balance;
        let mut broken = Vec::new();
        let mut notes = Vec::new();
        let (least, most) = range(&balance.node_rows);
        let over_all = format!("over all splits a node has {} to {} rows", count(least), count(most));
        match (balance.node_rows_guaranteed, most - least <= 1) {
            (true, true) => notes.push(format!("{over_all}, within 1 row by construction")),
            (true, false) => broken.push(format!("{over_all}, which should differ by at most 1")),
            (false, _) => notes.push(format!("{over_all}; within 1 row is not guaranteed here")),
        }
        let (mut sure, mut computed) = (0_u64, Vec::new());
        for split in &balance.splits {
            for (part, level) in levels(split) {
                match (level.guaranteed, level.exact) {
                    (true, true) => sure += 1,
                    (true, false) => broken.push(format!(
                        "over the {part}s of {} a stratum deviates by {} rows (in {}), or their sizes differ by more than 1",
                        name(&split.name),
                        text::rows(level.worst_deviation),
                        name(text::stratum(&level.worst_stratum)),
                    )),
                    (false, _) => computed.push(format!(
                        "{} of {}: {} rows at worst",
                        counted(u64::from(level.parts), part),
                        name(&split.name),
                        text::rows(level.worst_deviation)
                    )),
                }
            }
            if let Some(weights) = &split.weights {
                let figures = format!(
                    "sums of {} over the nodes of {} differ by {} of their mean (bound {})",
                    name(&weights.column),
                    name(&split.name),
                    percent(weights.spread),
                    percent(weights.bound)
                );
                if weights.spread <= weights.bound { notes.push(figures) } else { broken.push(figures) }
            }
        }
        if sure > 0 {
            notes.insert(
                0,
                format!(
                    "in {sure} of {} levels (nodes, lanes and files of each split) every stratum has its share rounded down or up on every part, and sizes differ by at most 1 row",
                    3 * balance.splits.len()
                ),
            );
        }
        if !computed.is_empty() {
            let shown = computed.len().min(6);
            let more = computed.len() - shown;
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            notes.push(format!("computed, not guaranteed: {}{more}", computed[..shown].join("; ")));
        }
        if let Some(groups) = &balance.groups {
            notes.push(format!(
                "groups of {} are kept whole: a class deviates by up to {} rows, at least {} of which the largest group forces",
                name(&groups.column),
                text::rows(groups.class_deviation),
                text::rows(groups.class_lower_bound)
            ));
        }
        if self.many_versions() {
            notes.push(format!(
                "over all {} versions a stratum deviates from its share of a node by at most {} rows",
                count(balance.versions),
                text::rows(balance.union_deviation_bound)
            ));
        }
        let whole = broken.is_empty() && balance.holds();
        let (came_to, sentence) = match whole {
            true => (Verdict::Holds, "Every guaranteed bound holds."),
            false => (Verdict::Broken, "A guaranteed bound is BROKEN."),
        };
        verdict(came_to, sentence, &broken, &notes)
    }

    fn options(&self) -> String {
        const SHOWN: usize = 8_000;
        let options = serde_json::to_string_pretty(&self.input.manifest.options).unwrap_or_default();
        let shown: Vec<String> = options.lines().map(|line| text::visible(line, FULL_NAME)).collect();
        let shown = shown.join("\n");
        let cut: String = shown.chars().take(SHOWN).collect();
        let dots = if cut.len() < shown.len() { "\n…" } else { "" };
        format!(
            "<h2>Options</h2>\n<pre>{}{dots}</pre>\n<p class=\"soft\">This page shows what the manifest says; <code>gristmill verify</code> proves it from the bytes.</p>\n",
            escape(&cut)
        )
    }
}

fn counted_strata(n: u64) -> String {
    if n == 1 { "1 stratum".into() } else { format!("{} strata", count(n)) }
}
