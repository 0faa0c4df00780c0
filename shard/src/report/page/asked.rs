//! What only a set has that was made so: weights, groups, labels, resampling, versions.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{Facts, LISTED, PICTURED_SPLITS, SPLITS, ratio};
use crate::{
    error::Result,
    report::{
        chart,
        html::{and_more, figure_of, header, name, shared_bars, table},
        summary::{Rows, Stratum},
        text::{self, count, counted, figure, percent},
    },
};

impl Facts<'_> {
    pub(super) fn weights(&self) -> Result<String> {
        let weighted: Vec<_> = self.balance.splits.iter().filter_map(|s| s.weights.as_ref().map(|w| (s, w))).collect();
        let Some((_, first)) = weighted.first() else { return Ok(String::new()) };
        let mut html = format!(
            "<h2>Weights</h2>\n<p>Sums of {} are balanced over the nodes of each split. The spread is (largest − smallest sum) / mean; its bound is proven, and no assignment can be better than the lower bound, which the heaviest row forces.</p>\n",
            name(&first.column)
        );
        let rows = weighted.iter().take(SPLITS).map(|(split, w)| {
            let finite = || w.node_sums.iter().copied().filter(|s| s.is_finite());
            vec![
                split.name.clone(),
                figure(finite().fold(f64::INFINITY, f64::min)),
                figure(finite().fold(f64::NEG_INFINITY, f64::max)),
                percent(w.spread),
                percent(w.bound),
                percent(w.lower_bound),
            ]
        });
        let columns = ["split", "sum, least", "sum, most", "spread", "bound", "lower bound"];
        html.push_str(&table(&header(&columns), 1, rows));
        html.push_str(&and_more(weighted.len(), SPLITS));
        for (split, w) in weighted.iter().take(PICTURED_SPLITS) {
            let mean = w.node_sums.iter().sum::<f64>() / w.node_sums.len().max(1) as f64;
            if let Some(columns) = chart::columns("node", &[&w.node_sums], &text::visible(&w.column, 24), Some(mean))? {
                let _ = writeln!(html, "<h3>{}</h3>", name(&split.name));
                let label = "Bars of the sums of weights of each node";
                html.push_str(&match columns.parts_a_bar {
                    1 => figure_of(&columns.svg, label, &[], "Sum of each node; the line is their mean."),
                    k => shared_bars(&columns.svg, label, "nodes", k),
                });
            }
        }
        Ok(html)
    }

    pub(super) fn groups(&self) -> String {
        let Some(groups) = &self.balance.groups else { return String::new() };
        let of = if groups.on_one_node { "nodes of splits" } else { "splits" };
        let largest = ratio(groups.largest_group, self.input.manifest.rows);
        let rows = vec![
            vec!["of a stratum".into(), text::rows(groups.class_deviation), text::rows(groups.class_lower_bound)],
            vec!["of the size".into(), text::rows(groups.size_deviation), text::rows(groups.size_lower_bound)],
        ];
        format!(
            "<h2>Groups</h2>\n<p>{} of {} are each on one of the {of}. The largest has {}, {} of all. The largest part is {} above its share.</p>\n{}\
             <p class=\"soft\">Rows; no assignment that keeps groups whole can be better than the lower bound of its largest group.</p>\n",
            counted(groups.groups, "group"),
            name(&groups.column),
            counted(groups.largest_group, "row"),
            percent(largest),
            percent(groups.imbalance),
            table(&header(&["largest deviation", "reached", "lower bound"]), 1, rows)
        )
    }

    pub(super) fn labels(&self) -> String {
        let labelled: Vec<_> = self.balance.splits.iter().filter_map(|s| s.labels.as_ref().map(|l| (s, l))).collect();
        if labelled.is_empty() {
            return String::new();
        }
        let rows = (labelled.iter().take(SPLITS))
            .map(|(split, l)| vec![split.name.clone(), count(l.labels), text::rows(l.worst_deviation)]);
        format!(
            "<h2>Labels</h2>\n<p>A row may have several labels; of each label a node has its share up to the deviation.</p>\n{}{}",
            table(&header(&["split", "labels", "worst deviation"]), 1, rows),
            and_more(labelled.len(), SPLITS)
        )
    }

    pub(super) fn resampling(&self) -> String {
        let changed = self.strata.iter().flat_map(|c| &c.splits).any(|s| s.changed() > 0);
        if !self.layout.resampled && !changed {
            return String::new();
        }
        let splits = self.layout.splits.iter().enumerate().take(SPLITS).map(|(s, split)| {
            let figures: [fn(&Rows) -> u64; 4] = [|c| c.input, |c| c.left_out, |c| c.copies, |c| c.shards];
            let mut row = vec![split.name.clone()];
            row.extend(figures.map(|figure| count(self.sum_of(s, figure))));
            row
        });
        let mut html = String::from(
            "<h2>Resampling</h2>\n<p>Rows of some strata were left out or copied; the column <code>_copy</code> numbers the copies of a row.</p>\n",
        );
        let figures = ["rows of the input", "left out", "copies", "rows"];
        html.push_str(&table(&header(&[&["split"][..], &figures].concat()), 1, splits));
        html.push_str(&and_more(self.layout.splits.len(), SPLITS));
        let mut of_strata: Vec<(usize, &Stratum<'_>)> = (self.strata.iter())
            .flat_map(|c| (0..self.layout.splits.len()).map(move |s| (s, c)))
            .filter(|(s, c)| c.splits[*s].changed() > 0)
            .collect();
        let moved = |s: usize, c: &Stratum<'_>| c.splits[s].changed();
        of_strata.sort_by(|(s, a), (t, b)| (moved(*t, b), *s, a.name).cmp(&(moved(*s, a), *t, b.name)));
        let rows = of_strata.iter().take(LISTED).map(|(s, c)| {
            vec![
                self.layout.splits[*s].name.clone(),
                text::stratum(c.name).to_owned(),
                count(c.splits[*s].input),
                count(c.splits[*s].left_out),
                count(c.splits[*s].copies),
                count(c.splits[*s].shards),
            ]
        });
        if !of_strata.is_empty() {
            html.push_str(&table(&header(&[&["split", "stratum"][..], &figures].concat()), 2, rows));
            html.push_str(&and_more(of_strata.len(), LISTED));
        }
        html
    }

    pub(super) fn versions(&self) -> String {
        if !self.many_versions() {
            return String::new();
        }
        let mut versions = BTreeMap::<u64, [u64; 2]>::new();
        for entry in self.input.strata {
            let [rows_in, rows] = versions.entry(entry.version).or_default();
            *rows_in = rows_in.saturating_add(entry.rows_in);
            *rows = rows.saturating_add(entry.rows);
        }
        let listed = versions.iter().rev().take(LISTED);
        let rows = listed.map(|(version, [rows_in, rows])| vec![count(*version), count(*rows_in), count(*rows)]);
        format!(
            "<h2>Versions</h2>\n<p>The set has grown by {} versions. Each was dealt on its own, so over all of them a stratum deviates from its share of a node by at most the sum of their worst deviations: {} rows.</p>\n{}{}",
            count(self.balance.versions),
            text::rows(self.balance.union_deviation_bound),
            table(&header(&["version that added", "rows of the input", "rows"]), 1, rows),
            and_more(versions.len(), LISTED)
        )
    }
}
