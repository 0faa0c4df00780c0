//! Splits, nodes, the levels of parts inside splits, and the columns.

use super::{COLOURED_SPLITS, Facts, SPLITS, levels, range, ratio};
use crate::{
    balance::{LevelBalance, SplitBalance},
    error::Result,
    manifest::SplitRule,
    report::{
        chart,
        html::{and_more, figure_of, header, name, shared_bars, table},
        summary::sum,
        text::{self, bytes, count, counted, figure, percent},
    },
    statistics::ColumnStatistics,
};

impl Facts<'_> {
    pub(super) fn splits(&self) -> Result<String> {
        let layout = self.layout;
        let totals: Vec<u64> = (0..layout.splits.len()).map(|s| self.sum_of(s, |c| c.input)).collect();
        let all = sum(totals.iter().copied());
        let rows = layout.splits.iter().enumerate().take(SPLITS).map(|(s, split)| {
            vec![
                split.name.clone(),
                match share_of(&split.share) {
                    Some(share) => format!("{} = {}", split.share, percent(share)),
                    None => split.share.clone(),
                },
                percent(ratio(totals[s], all)),
                count(totals[s]),
                count(split.rows),
                self.balance.splits.get(s).map(|b| format!("{:.4}", b.drift)).unwrap_or_default(),
                count(u64::from(split.files_per_lane)),
                self.sizes.get(s).map(|z| count(z.files)).unwrap_or_default(),
                self.sizes.get(s).map(|z| bytes(z.bytes)).unwrap_or_default(),
            ]
        });
        let mut html = String::from("<h2>Splits</h2>\n<p>");
        html.push_str(&match &layout.split_rule {
            SplitRule::Shares => "Each stratum is divided by the shares exactly, up to a row.".to_owned(),
            SplitRule::Stable { column } => format!(
                "The keyed hash of {} decides the split, so that a row stays in its split when the data set grows; shares hold in expectation only.",
                name(column)
            ),
            SplitRule::Groups { column, on_one_node } => format!(
                "Rows of equal {} are a group and stay in one split{}.",
                name(column),
                if *on_one_node { ", on one node of it" } else { "" }
            ),
        });
        html.push_str("</p>\n");
        let columns = [
            "split",
            "share asked",
            "share got",
            "rows of the input",
            "rows",
            "drift",
            "files a lane",
            "files",
            "size",
        ];
        html.push_str(&table(&header(&columns), 1, rows));
        html.push_str(&and_more(layout.splits.len(), SPLITS));
        html.push_str(
            "<p class=\"soft\">Drift is the total variation distance between the strata of a split and those of all rows of the input: 0 where their proportions are the same, 1 where they share no stratum.</p>\n",
        );
        if self.strata.len() > 1 && all > 0 {
            html.push_str(&self.drift(all)?);
        }
        Ok(html)
    }

    pub(super) fn nodes(&self) -> Result<String> {
        let balance = self.balance;
        let (least, most) = range(&balance.node_rows);
        let mut html = format!(
            "<h2>Nodes</h2>\n<p>{} to {} rows a node over all splits, {} on average.</p>\n",
            count(least),
            count(most),
            text::mean(sum(balance.node_rows.iter().copied()), balance.node_rows.len() as u64)
        );
        let splits: Vec<&SplitBalance> = balance.splits.iter().collect();
        let as_f64 = |rows: &[u64]| rows.iter().map(|n| *n as f64).collect::<Vec<f64>>();
        let mut series: Vec<Vec<f64>> = splits.iter().take(COLOURED_SPLITS).map(|s| as_f64(&s.node_rows)).collect();
        let mut legend: Vec<(String, usize)> =
            splits.iter().take(COLOURED_SPLITS).enumerate().map(|(i, s)| (s.name.clone(), i)).collect();
        if splits.len() > COLOURED_SPLITS {
            let rest = (0..balance.node_rows.len())
                .map(|n| sum(splits[COLOURED_SPLITS..].iter().map(|s| s.node_rows.get(n).copied().unwrap_or(0))) as f64)
                .collect();
            series.push(rest);
            legend.push(("other splits".into(), COLOURED_SPLITS));
        }
        let borrowed: Vec<&[f64]> = series.iter().map(Vec::as_slice).collect();
        if let Some(columns) = chart::columns("node", &borrowed, "rows", None)? {
            let label = "Bars of the rows of each node";
            html.push_str(&match columns.parts_a_bar {
                1 => figure_of(&columns.svg, label, &legend, "Rows of each node, by split."),
                k => shared_bars(&columns.svg, label, "nodes", k),
            });
        }
        Ok(html)
    }

    pub(super) fn levels(&self) -> String {
        let splits = &self.balance.splits;
        let rows = splits.iter().take(SPLITS).enumerate().flat_map(|(s, split)| {
            let sizes = self.sizes.get(s).copied().unwrap_or_default();
            levels(split).into_iter().enumerate().map(move |(i, (part, level))| {
                vec![
                    split.name.clone(),
                    counted(u64::from(level.parts), part),
                    bound(level).to_owned(),
                    text::stratum(&level.worst_stratum).to_owned(),
                    text::rows(level.worst_deviation),
                    count(level.rows_min),
                    count(level.rows_max),
                    bytes(sizes.levels[i].0),
                    bytes(sizes.levels[i].1),
                ]
            })
        });
        let mut html = String::from(
            "<h2>Balance inside splits</h2>\n<p>For a stratum of n<sub>c</sub> rows and m parts the bound is: ⌊n<sub>c</sub>/m⌋ or ⌈n<sub>c</sub>/m⌉ rows on each part, a deviation below 1, and sizes that differ by at most 1 row.</p>\n",
        );
        let columns = [
            "split",
            "over",
            "bound",
            "worst stratum",
            "worst deviation",
            "rows, least",
            "rows, most",
            "size, least",
            "size, most",
        ];
        html.push_str(&table(&header(&columns), 4, rows));
        html.push_str(&and_more(splits.len(), SPLITS));
        if self.many_versions() {
            html.push_str("<p class=\"soft\">Deviations and rows are of what the last version added, sizes of files of all versions.</p>\n");
        }
        html
    }

    pub(super) fn columns(&self) -> String {
        const COLUMNS: usize = 60;
        let entries = self.input.statistics;
        let splits: Vec<&str> = self.layout.splits.iter().take(COLOURED_SPLITS).map(|s| s.name.as_str()).collect();
        let mut by_column: Vec<(&str, Vec<Option<&ColumnStatistics>>)> = Vec::new();
        let mut index = std::collections::HashMap::new();
        for entry in entries {
            let Some(split) = splits.iter().position(|s| *s == entry.split) else { continue };
            let at = *index.entry(entry.column.as_str()).or_insert(by_column.len());
            if at == by_column.len() {
                by_column.push((&entry.column, vec![None; splits.len()]));
            }
            by_column[at].1[split] = Some(&entry.statistics);
        }
        if by_column.is_empty() {
            return String::new();
        }
        let mut columns = header(&["column"]);
        for split in &splits {
            columns.push(format!("{split}: nulls"));
            columns.push("mean ± deviation".into());
        }
        let rows = by_column.iter().take(COLUMNS).map(|(column, of_splits)| {
            let mut row = vec![(*column).to_owned()];
            for statistics in of_splits {
                let (nulls, mean) = match statistics {
                    Some(s) => (count(s.nulls), s.mean.zip(s.deviation)),
                    None => (String::new(), None),
                };
                row.push(nulls);
                row.push(mean.map_or("–".into(), |(m, d)| format!("{} ± {}", figure(m), figure(d))));
            }
            row
        });
        format!("<h2>Columns</h2>\n{}{}", table(&columns, 1, rows), and_more(by_column.len(), COLUMNS))
    }
}

fn share_of(text: &str) -> Option<f64> {
    let (numerator, denominator) = text.split_once('/')?;
    let (n, d): (u64, u64) = (numerator.parse().ok()?, denominator.parse().ok()?);
    (d > 0).then(|| n as f64 / d as f64)
}

fn bound(level: &LevelBalance) -> &'static str {
    match (level.exact, level.guaranteed) {
        (true, true) => "holds, guaranteed",
        (true, false) => "holds, computed",
        (false, true) => "BROKEN",
        (false, false) => "computed",
    }
}
