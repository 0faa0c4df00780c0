//! Strata: how they drift between splits, how they lie on nodes, which are rare.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{COLOURED_SPLITS, Facts, LISTED, ratio};
use crate::{
    error::Result,
    report::{
        chart::{self, Group, HeatRow, SERIES},
        html::{and_more, figure_of, header, name, shared_bars, table},
        summary::{self, Stratum, sum},
        text::{self, count, counted},
    },
};

/// Strata and nodes of a heat map.
const HEAT_STRATA: usize = 32;
const HEAT_NODES: usize = 48;
/// Strata in the picture of drift.
const DRIFT_STRATA: usize = 10;

impl Facts<'_> {
    pub(super) fn drift(&self, all: u64) -> Result<String> {
        let mut shown: Vec<usize> = self.pictured();
        shown.truncate(COLOURED_SPLITS);
        let totals: Vec<u64> = (0..self.layout.splits.len()).map(|s| self.sum_of(s, |c| c.shards)).collect();
        let groups: Vec<Group<'_>> = (self.strata.iter().take(DRIFT_STRATA))
            .map(|c| Group {
                name: c.name,
                shares: std::iter::once(ratio(c.input(), all))
                    .chain(shown.iter().map(|s| ratio(c.splits[*s].shards, totals[*s])))
                    .collect(),
            })
            .collect();
        let order: Vec<usize> = std::iter::once(SERIES.len() - 1).chain(0..shown.len()).collect();
        let colours: Vec<_> = order.iter().map(|c| SERIES[*c]).collect();
        let mut legend = vec![("all rows of the input".to_owned(), SERIES.len() - 1)];
        legend.extend(shown.iter().enumerate().map(|(i, s)| (self.layout.splits[*s].name.clone(), i)));
        let caption = format!(
            "Shares of the {} largest strata of {} in the input and in each split.",
            groups.len(),
            count(self.strata.len() as u64)
        );
        Ok(figure_of(
            &chart::grouped_bars(&groups, &colours)?,
            "Bars of the shares of the largest strata by split",
            &legend,
            &caption,
        ))
    }

    pub(super) fn strata_on_nodes(&self) -> Result<String> {
        let mut html = String::from("<h2>Strata on nodes</h2>\n");
        let Some(on_nodes) = &self.on_nodes else {
            html.push_str("<p class=\"soft\">The set was laid out anew for other machines; what each of them has of each stratum was counted, and only the worst deviations, above, were kept.</p>\n");
            return Ok(html);
        };
        if self.layout.nodes <= 1 {
            html.push_str("<p class=\"soft\">One node has all rows.</p>\n");
            return Ok(html);
        }
        if self.many_versions() {
            html.push_str("<p class=\"soft\">Of what the last version added.</p>\n");
        }
        let pictured = self.pictured();
        let mut drawn = 0;
        for s in &pictured {
            let strata = on_nodes.get(*s).map_or(&[][..], Vec::as_slice);
            let Some(largest) = strata.first() else { continue };
            drawn += 1;
            let split = name(&self.layout.splits[*s].name);
            let _ = writeln!(html, "<h3>{split}</h3>");
            if strata.len() == 1 && self.balance.strata <= 1 {
                let rows: Vec<f64> = largest.by_node.iter().map(|n| *n as f64).collect();
                if let Some(columns) = chart::columns("node", &[&rows], "rows", None)? {
                    let label = "Bars of the rows of each node";
                    html.push_str(&match columns.parts_a_bar {
                        1 => figure_of(&columns.svg, label, &[], "There is one stratum: rows of each node."),
                        k => shared_bars(&columns.svg, label, "nodes", k),
                    });
                }
                continue;
            }
            let shown = strata.len().min(HEAT_STRATA);
            let rows: Vec<HeatRow<'_>> = (strata[..shown].iter())
                .map(|c| HeatRow {
                    name: c.name,
                    deviations: c.deviations().take(HEAT_NODES).collect(),
                    worst: c.worst_deviation(),
                })
                .collect();
            let nodes = largest.by_node.len();
            let mut caption = format!("Rows beyond n<sub>c</sub>/N of the {shown} largest strata");
            if nodes > HEAT_NODES {
                let _ = write!(
                    caption,
                    " on the first {HEAT_NODES} of {} nodes; the worst are of all",
                    count(nodes as u64)
                );
            }
            let _ = write!(
                caption,
                ". The largest stratum has {} rows, the last shown {}.",
                count(largest.rows),
                count(strata[shown - 1].rows)
            );
            html.push_str(&figure_of(&chart::heat_map(&rows)?, "Heat map of strata by nodes", &[], &caption));
        }
        if drawn == 0 {
            html.push_str("<p class=\"soft\">There are no rows.</p>\n");
        }
        let without = self.layout.splits.len() - pictured.len();
        if without > 0 {
            let _ = writeln!(html, "<p class=\"soft\">{} with fewer rows.</p>", counted(without as u64, "more split"));
        }
        Ok(html)
    }

    pub(super) fn worst(&self) -> String {
        const WORST: usize = 12;
        let Some(on_nodes) = &self.on_nodes else { return String::new() };
        let worst = summary::worst(on_nodes, self.layout);
        if worst.is_empty() || self.layout.nodes <= 1 {
            return String::new();
        }
        let rows = worst.iter().take(WORST).map(|c| {
            vec![
                c.split.to_owned(),
                text::stratum(c.value).to_owned(),
                text::signed(c.deviation),
                count(c.node_rows),
                text::mean(c.rows, u64::from(self.layout.nodes)),
                c.node.to_string(),
                count(c.rows),
            ]
        });
        let columns = ["split", "stratum", "deviation", "rows there", "its share", "at node", "rows of the stratum"];
        format!(
            "<h3>Largest deviations</h3>\n<p class=\"soft\">Among the {} largest strata; those of all are in the table above.</p>\n{}",
            self.input.node_strata.iter().map(|e| e.stratum).collect::<BTreeSet<_>>().len(),
            table(&header(&columns), 2, rows)
        )
    }

    pub(super) fn rare(&self) -> String {
        let nodes = u64::from(self.layout.nodes);
        let mut rare: Vec<&Stratum<'_>> = self.strata.iter().filter(|c| (1..nodes).contains(&c.largest())).collect();
        let merged = self.layout.strata.merged.max(self.balance.merged_strata);
        if rare.is_empty() && merged == 0 {
            return String::new();
        }
        let mut html = String::from("<h2>Rare strata</h2>\n");
        if merged > 0 {
            let (what, were) = (counted(merged, "rare combination"), if merged == 1 { "was" } else { "were" });
            let _ = writeln!(html, "<p>{what} {were} merged into one stratum.</p>");
        }
        if rare.is_empty() {
            return html;
        }
        rare.sort_by(|a, b| (a.largest(), a.input(), a.name).cmp(&(b.largest(), b.input(), b.name)));
        let _ = writeln!(
            html,
            "<p>{} fewer rows than there are nodes, even in the split with most, and can't be on every node.</p>",
            if rare.len() == 1 {
                "1 stratum has".to_owned()
            } else {
                format!("{} strata have", count(rare.len() as u64))
            }
        );
        let splits = self.layout.splits.len().min(COLOURED_SPLITS);
        let mut columns = header(&["stratum"]);
        columns.extend(self.layout.splits[..splits].iter().map(|s| s.name.clone()));
        if self.layout.splits.len() > splits {
            columns.push("other splits".into());
        }
        let rows = rare.iter().take(LISTED).map(|c| {
            let mut row = vec![text::stratum(c.name).to_owned()];
            row.extend(c.splits[..splits].iter().map(|s| count(s.shards)));
            if c.splits.len() > splits {
                row.push(count(sum(c.splits[splits..].iter().map(|s| s.shards))));
            }
            row
        });
        html.push_str(&table(&columns, 1, rows));
        html.push_str(&and_more(rare.len(), LISTED));
        html
    }
}
