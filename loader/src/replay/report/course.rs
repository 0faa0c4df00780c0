//! The course of the epoch: padding, difficulty, classes and sources over its steps.

use gristmill_shard::report::{
    html::{LISTED, and_more, figure_of, header, name, table},
    lines::{Between, Line, bands, lines},
    text::{count, counted, percent, visible},
};

use super::{NAME, PageInput, explained, figures, shown};
use crate::{
    error::Result,
    replay::{Difficulty, Stretch},
};

/// Stretches that are told apart; of more, neighbours are joined.
const STRETCHES: usize = 50;
/// Classes or sources with a band of their own; the others share one.
const BANDS: usize = 12;
/// The place of the colour of the others.
const OTHERS: usize = 4;
/// Characters of the name at an axis.
const AXIS_NAME: usize = 24;

/// The page's input with its stretches, few enough to be shown.
pub(super) struct Course<'a> {
    plan: &'a PageInput<'a>,
    pub(super) stretches: Vec<Stretch>,
    /// First steps and the end of the last.
    pub(super) edges: Vec<u64>,
}

/// Counts over the epoch of classes or sources: those shown by themselves, then all others.
struct Parts {
    /// Names as far as shown, with the places of their colours.
    legend: Vec<(String, usize)>,
    /// Of each stretch, as many as names.
    counts: Vec<Vec<u64>>,
}

impl<'a> Course<'a> {
    pub(super) fn new(plan: &'a PageInput<'a>) -> Self {
        let all = &plan.replay.stretches;
        let joined = all.len().div_ceil(STRETCHES).max(1);
        let stretches: Vec<Stretch> = all.chunks(joined).filter_map(join).collect();
        let end = stretches.last().map(|last| last.first_step.saturating_add(last.steps));
        let edges = stretches.iter().map(|stretch| stretch.first_step).chain(end).collect();
        Self { plan, stretches, edges }
    }

    pub(super) fn tokens(&self) -> Result<String> {
        let Some(tokens) = &self.plan.replay.tokens else { return Ok(String::new()) };
        let rows = vec![
            ("tokens of rows", count(tokens.real)),
            ("tokens with padding", count(tokens.padded)),
            ("padding, of all tokens", shown(tokens.padding, percent)),
            ("imbalance between ranks, mean over steps", shown(tokens.imbalance_mean, percent)),
            ("imbalance between ranks, worst step", shown(tokens.imbalance_worst, percent)),
        ];
        let mut html = format!("<h2>Tokens</h2>\n{}", figures(rows));
        let lengths = self.plan.lengths_name.map(|column| format!("Lengths are those of {}. ", name(column)));
        html.push_str(&explained(&format!(
            "{}Imbalance is the tokens of the rank that has most over the mean of the ranks, less 1.",
            lengths.unwrap_or_default()
        )));
        let values: Vec<f64> = self.stretches.iter().map(padding).collect();
        if let Some(svg) = lines(&self.edges, &[Line { values: &values, place: 0 }], None, "padding, %", true)? {
            let caption = self.caption(
                "Padding as a part of all tokens. Look for stretches well above the rest: there rows of unlike lengths share a batch.",
            );
            html.push_str(&figure_of(&svg, "Line of the padding over the steps of the epoch", &[], &caption));
        }
        Ok(html)
    }

    pub(super) fn difficulty(&self) -> Result<String> {
        let of = |end: fn(Difficulty) -> f64| -> Vec<f64> {
            self.stretches.iter().map(|stretch| stretch.difficulty.map_or(f64::NAN, end)).collect()
        };
        let (low, mean, high) = (of(|d| d.min), of(|d| d.mean), of(|d| d.max));
        let column = self.plan.difficulty_name.unwrap_or("difficulty");
        let between = Between { low: &low, high: &high, place: 0 };
        let mean = [Line { values: &mean, place: 0 }];
        let Some(svg) = lines(&self.edges, &mean, Some(between), &visible(column, AXIS_NAME), false)? else {
            return Ok(String::new());
        };
        let caption = self.caption(
            "The line is the mean of the samples of a stretch, the band goes from the smallest to the largest. A curriculum shows as a band whose upper edge rises; without one both are about level.",
        );
        let label = format!("Line and band of {column} over the steps of the epoch");
        Ok(format!("<h2>Difficulty: {}</h2>\n{}", name(column), figure_of(&svg, &visible(&label, 120), &[], &caption)))
    }

    pub(super) fn classes(&self) -> Result<String> {
        let replay = self.plan.replay;
        let names: Vec<(usize, String)> = replay.classes.iter().map(i64::to_string).enumerate().take(BANDS).collect();
        let parts = self.parts(names, "all others", |stretch| &stretch.classes);
        let Some(svg) = self.bands(&parts)? else { return Ok(String::new()) };
        let title = match self.plan.class_name {
            Some(column) => format!("Classes: {}", name(column)),
            None => "Classes".into(),
        };
        let caption = self.caption(
            "Shares of the samples of each stretch, from the bottom up in this order. Look for bands that widen or narrow: there the mix of classes changes.",
        );
        let mut columns = header(&["steps", "samples"]);
        columns.extend(parts.legend.iter().map(|(name, _)| name.clone()));
        let rows = self.stretches.iter().zip(&parts.counts).map(|(stretch, counts)| {
            let mut row = vec![steps(stretch), count(stretch.samples)];
            row.extend(counts.iter().map(|n| count(*n)));
            row
        });
        Ok(format!(
            "<h2>{title}</h2>\n{}{}{}",
            figure_of(&svg, "Bands of the shares of classes over the steps of the epoch", &parts.legend, &caption),
            table(&columns, 1, rows),
            explained("Samples of each class by stretch, the most frequent classes first."),
        ))
    }

    pub(super) fn sources(&self) -> Result<String> {
        let sources = &self.plan.replay.sources;
        if sources.is_empty() {
            return Ok(String::new());
        }
        let rows = sources.iter().take(LISTED).enumerate().map(|(number, source)| {
            vec![
                number.to_string(),
                visible(&source.split, NAME),
                count(source.rows),
                count(source.draws),
                count(source.passes),
                shown(source.asked, percent),
                shown(source.share, percent),
            ]
        });
        let columns =
            ["source", "split", "rows of a pass", "draws", "passes complete", "share asked", "share realised"];
        let mut html = format!(
            "<h2>Sources</h2>\n{}{}{}",
            table(&header(&columns), 2, rows),
            and_more(sources.len(), LISTED),
            explained(
                "Passes are those complete at the end of the epoch, earlier epochs included. The share realised should be the share asked, up to a few samples."
            ),
        );
        let mut largest: Vec<usize> = (0..sources.len()).collect();
        largest.sort_by_key(|at| (sources.get(*at).map(|source| std::cmp::Reverse(source.draws)), *at));
        largest.truncate(BANDS);
        largest.sort_unstable();
        let names = largest.into_iter().filter_map(|at| Some((at, format!("{at}: {}", sources.get(at)?.split))));
        let parts = self.parts(names.collect(), "all others", |stretch| &stretch.sources);
        if let Some(svg) = self.bands(&parts)? {
            let caption = self.caption(
                "Shares of the samples of each stretch, from the bottom up in this order. Level bands keep the weights; steps in them are stages of the mix.",
            );
            let label = "Bands of the shares of sources over the steps of the epoch";
            html.push_str(&figure_of(&svg, label, &parts.legend, &caption));
        }
        Ok(html)
    }

    /// The counts at the places of `names`, and of all others where there are any.
    fn parts(&self, names: Vec<(usize, String)>, others: &str, counts: fn(&Stretch) -> &[u64]) -> Parts {
        let sum = |counts: &[u64]| counts.iter().fold(0_u64, |sum, n| sum.saturating_add(*n));
        let mut of_stretches: Vec<Vec<u64>> = Vec::with_capacity(self.stretches.len());
        for counts in self.stretches.iter().map(counts) {
            let mut row: Vec<u64> = names.iter().map(|(at, _)| counts.get(*at).copied().unwrap_or(0)).collect();
            row.push(sum(counts).saturating_sub(sum(&row)));
            of_stretches.push(row);
        }
        // The grey one is left for the others.
        let places = (0..).filter(|place| *place != OTHERS);
        let mut legend: Vec<(String, usize)> = names.into_iter().map(|(_, name)| name).zip(places).collect();
        if of_stretches.iter().any(|row| row.last().is_some_and(|n| *n > 0)) {
            legend.push((others.to_owned(), OTHERS));
        } else {
            of_stretches.iter_mut().for_each(|row| row.truncate(legend.len()));
        }
        Parts { legend, counts: of_stretches }
    }

    fn bands(&self, parts: &Parts) -> Result<Option<String>> {
        let places: Vec<usize> = parts.legend.iter().map(|(_, place)| *place).collect();
        Ok(bands(&self.edges, &parts.counts, &places, "share")?)
    }

    /// What a picture shows, as HTML, and how wide its stretches are.
    fn caption(&self, what: &str) -> String {
        let longest = self.stretches.iter().map(|stretch| stretch.steps).max().unwrap_or(0);
        format!("{what} A stretch is of up to {}.", counted(longest, "step"))
    }
}

/// Some stretches as one; `None` of none.
fn join(stretches: &[Stretch]) -> Option<Stretch> {
    let (first, rest) = stretches.split_first()?;
    let mut sum = first.clone();
    for next in rest {
        sum.difficulty = match (sum.difficulty, next.difficulty) {
            (Some(a), Some(b)) => {
                let (m, n) = (sum.samples as f64, next.samples as f64);
                let mean = if m + n > 0.0 { (a.mean * m + b.mean * n) / (m + n) } else { a.mean };
                Some(Difficulty { min: a.min.min(b.min), mean, max: a.max.max(b.max) })
            }
            (a, b) => a.or(b),
        };
        add(&mut sum.classes, &next.classes);
        add(&mut sum.sources, &next.sources);
        for (sum, next) in [
            (&mut sum.steps, next.steps),
            (&mut sum.samples, next.samples),
            (&mut sum.tokens, next.tokens),
            (&mut sum.padded, next.padded),
        ] {
            *sum = sum.saturating_add(next);
        }
    }
    Some(sum)
}

/// Padding in percent of all tokens; not finite where there are none.
pub(super) fn padding(stretch: &Stretch) -> f64 {
    100.0 * (1.0 - stretch.tokens as f64 / stretch.padded as f64)
}

/// Adds counts place by place.
fn add(sums: &mut Vec<u64>, counts: &[u64]) {
    sums.resize(sums.len().max(counts.len()), 0);
    for (sum, n) in sums.iter_mut().zip(counts) {
        *sum = sum.saturating_add(*n);
    }
}

/// The steps of a stretch, the last included.
fn steps(stretch: &Stretch) -> String {
    let last = stretch.first_step.saturating_add(stretch.steps.saturating_sub(1));
    if last == stretch.first_step { count(last) } else { format!("{}–{}", count(stretch.first_step), count(last)) }
}
