//! The report of a shard set: `_gristmill/report.html`, a page that needs no network, no script and no other file. Its
//! bytes are a function of the manifest and its tables.
//!
//! Names of strata, columns and splits come from data, so nothing of them reaches the page unescaped; lists are cut at
//! fixed lengths, each with the number of what it leaves out, so that the page stays small whatever the set holds.

use crate::{
    error::{ErrorKind, Result},
    manifest::{META, Manifest},
    storage::Storage,
    tables::{self, FileEntry, NodeStratumEntry, StatisticsEntry, StratumEntry},
};

pub mod chart;
pub mod html;
pub mod lines;
mod page;
mod summary;
pub mod text;

pub use summary::WorstStratum;

/// Where the report lies below a shard set's root.
#[must_use]
pub fn path() -> String {
    format!("{META}/report.html")
}

/// What the page is made of.
#[derive(Debug, Clone, Copy)]
pub struct ReportInput<'a> {
    /// The manifest.
    pub manifest: &'a Manifest,
    /// Its files.
    pub files: &'a [FileEntry],
    /// Its strata, of all versions.
    pub strata: &'a [StratumEntry],
    /// Rows of the largest strata on each node, of the version that it added.
    pub node_strata: &'a [NodeStratumEntry],
    /// Statistics of its columns.
    pub statistics: &'a [StatisticsEntry],
}

/// The page. Empty for a manifest that describes no shards.
///
/// # Errors
/// [`crate::Error::Internal`] when a picture can't be drawn.
pub fn render(input: &ReportInput<'_>) -> Result<String> {
    match (&input.manifest.layout, &input.manifest.balance) {
        (Some(layout), Some(balance)) => page::page(input, layout, balance),
        _ => Ok(String::new()),
    }
}

/// Strata of `node_strata`, the largest ones, that have not their exact share on every node: the largest deviation first.
/// None where what each node has was not kept, as after a set was laid out anew.
#[must_use]
pub fn worst_strata<'a>(manifest: &'a Manifest, node_strata: &'a [NodeStratumEntry]) -> Vec<WorstStratum<'a>> {
    let Some(layout) = &manifest.layout else { return Vec::new() };
    let on_nodes = summary::on_nodes(manifest, layout, node_strata).unwrap_or_default();
    summary::worst(&on_nodes, layout)
}

/// Writes the report of `manifest`, unless the same bytes are there already.
///
/// # Errors
/// Storage errors, and [`crate::Error::Corrupt`] when a table is not what it should be.
pub async fn write(storage: &Storage, manifest: &Manifest) -> Result<()> {
    let (files, strata) = (tables::read_files(storage, manifest).await?, tables::read_strata(storage, manifest).await?);
    let node_strata = tables::read_node_strata(storage, manifest).await?;
    let statistics = tables::read_statistics(storage, manifest).await?;
    let page = render(&ReportInput {
        manifest,
        files: &files,
        strata: &strata,
        node_strata: &node_strata,
        statistics: &statistics,
    })?;
    match storage.get(&path()).await {
        Ok(there) if there.as_ref() == page.as_bytes() => Ok(()),
        Ok(_) => storage.put(&path(), page.into_bytes()).await,
        Err(e) if e.kind() == ErrorKind::NotFound => storage.put(&path(), page.into_bytes()).await,
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        balance::{Balance, GroupReport, LabelReport, Level, SplitBalance, WeightBalance},
        manifest::{FORMAT_VERSION, InputRef, Layout, ManifestKind, SplitInfo, SplitRule, StrataRule},
        schema::DatasetSchema,
        statistics::ColumnStatistics,
    };
    use std::collections::BTreeMap;

    /// What a page is made of, with an owner.
    #[derive(Clone)]
    struct Set {
        manifest: Manifest,
        files: Vec<FileEntry>,
        strata: Vec<StratumEntry>,
        node_strata: Vec<NodeStratumEntry>,
        statistics: Vec<StatisticsEntry>,
    }

    impl Set {
        fn page(&self) -> String {
            render(&ReportInput {
                manifest: &self.manifest,
                files: &self.files,
                strata: &self.strata,
                node_strata: &self.node_strata,
                statistics: &self.statistics,
            })
            .unwrap()
        }

        fn balance(&mut self) -> &mut Balance {
            self.manifest.balance.as_mut().unwrap()
        }
    }

    /// Splits `train` of all rows and `test` of none; rows of a stratum are dealt over `nodes` from the first.
    fn set(nodes: u32, strata: &[(&str, u64)]) -> Set {
        let rows: u64 = strata.iter().map(|s| s.1).sum();
        let names = ["train", "test"];
        let of_node = |n: u64, node: u32| n.saturating_sub(u64::from(node)).div_ceil(u64::from(nodes));
        let mut entries = (Vec::new(), Vec::new());
        for (c, (name, n)) in strata.iter().enumerate() {
            for (split, n) in names.iter().zip([*n, 0]) {
                let (stratum, value, split) = (c as u32, (*name).to_owned(), (*split).to_owned());
                for node in (0..nodes).filter(|_| c < 64) {
                    let (value, split) = (value.clone(), split.clone());
                    entries.1.push(NodeStratumEntry { stratum, value, split, node, rows: of_node(n, node) });
                }
                entries.0.push(StratumEntry { stratum, value, split, rows_in: n, rows: n, version: 1 });
            }
        }
        let splits = names.iter().zip([rows, 0]).map(|(name, rows)| SplitInfo {
            name: (*name).to_owned(),
            share: if rows > 0 { "1/1".into() } else { "0/1".into() },
            rows,
            first_node: 0,
            files_per_lane: 1,
        });
        let splits: Vec<SplitInfo> = splits.collect();
        let of_splits = splits.iter().map(|split| {
            let level = |parts: u32| {
                let mut level = Level::new(parts);
                strata.iter().filter(|_| split.rows > 0).for_each(|(name, n)| level.add_dealt(name, *n));
                level.finish(split.rows, true)
            };
            SplitBalance {
                name: split.name.clone(),
                rows_in: split.rows,
                left_out: 0,
                copies: 0,
                node_rows: (0..nodes).map(|node| of_node(split.rows, node)).collect(),
                nodes: level(nodes),
                lanes: level(2 * nodes),
                files: level(2 * nodes),
                drift: 0.0,
                weights: None,
                labels: None,
            }
        });
        let balance = Balance {
            strata: strata.len() as u64,
            rare_strata: strata.iter().filter(|s| (1..u64::from(nodes)).contains(&s.1)).count() as u64,
            merged_strata: 0,
            node_rows: (0..nodes).map(|node| of_node(rows, node)).collect(),
            node_rows_guaranteed: true,
            versions: 1,
            union_deviation_bound: 0.0,
            splits: of_splits.collect(),
            groups: None,
        };
        let layout = Layout {
            nodes,
            lanes: 2 * nodes,
            strata: StrataRule::default(),
            split_rule: SplitRule::Shares,
            weight: None,
            resampled: false,
            splits,
        };
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            kind: ManifestKind::Shards,
            version: 1,
            job: "00".into(),
            input: InputRef { kind: "files".into(), digest: "11".into() },
            options: serde_json::json!({}),
            seed: 0,
            schema: DatasetSchema::default(),
            rows,
            tables: BTreeMap::new(),
            ingest: None,
            layout: Some(layout),
            balance: Some(balance),
            parent: None,
        };
        let files = (0..2 * nodes).map(|lane| FileEntry {
            path: format!("train/lane-{lane:04}/part-00000-0badf00d.parquet"),
            split: "train".into(),
            lane,
            sequence: 0,
            rows: 1,
            bytes: 1000 + u64::from(lane),
            blake3: String::new(),
            version: 1,
            row_groups: Vec::new(),
        });
        Set { manifest, files: files.collect(), strata: entries.0, node_strata: entries.1, statistics: Vec::new() }
    }

    /// What every page must be: closed, without anything to fetch or run.
    fn check(page: &str) {
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
        assert!(page.len() < 1_000_000, "{} bytes", page.len());
        for tag in ["table", "tr", "td", "figure", "svg", "div", "ul", "p", "text", "pre"] {
            let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        for bad in ["<script", "<img", "<link", "<iframe", "@import", "NaN"] {
            assert!(!page.contains(bad), "{bad}");
        }
        for tag in page.split('<').filter_map(|t| t.split_once('>')) {
            for bad in [" src=", " href=", " on", "url("] {
                assert!(!tag.0.contains(bad) || tag.0.contains("title="), "{}", tag.0);
            }
        }
        let addresses = page.matches("http").count() - page.matches("http-equiv").count();
        assert_eq!(addresses, page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
        let unseen = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!page.contains(unseen), "{:?}", page.find(unseen));
    }

    #[test]
    fn a_page_says_what_the_manifest_says() {
        let set = set(4, &[("LAX", 4_003), ("ATL", 1_237), ("JFK", 3)]);
        let page = set.page();
        check(&page);
        let (digest, files) = (set.manifest.digest().unwrap(), "<b>8</b><span>files</span>");
        for text in ["Every guaranteed bound holds", "<b>5,243</b>", &digest, files, "+0.75", "−0.25", "LAX", "7.8 KiB"]
        {
            assert!(page.contains(text), "{text}\n{page}");
        }
        assert!(page.contains("1 stratum has fewer rows than there are nodes"));
        for absent in ["Weights", "Groups", "Labels", "Resampling", "Versions"] {
            assert!(!page.contains(absent), "{absent}");
        }
        assert_eq!(page, set.clone().page(), "the same manifest and tables give the same bytes");
    }

    #[test]
    fn hostile_names_are_text() {
        let long = "long ".repeat(10_000);
        let hostile = [
            "<script>alert(1)</script>",
            "</td></table><img src=x onerror=alert(1)>",
            "\" onmouseover=\"alert(1)",
            "'; x",
            "&lt;b&gt;",
            "a\0b\u{1b}[31m\r\n\tc\u{202e}drow",
            "]]> --> </style> </svg> </text>",
            "",
            "∅ | 数据 | 🦀",
            long.as_str(),
        ];
        let strata: Vec<(&str, u64)> = hostile.iter().enumerate().map(|(i, s)| (*s, 2 + 3 * i as u64)).collect();
        let mut set = set(5, &strata);
        let evil = format!("{}{}", hostile[0], hostile[5]);
        let layout = set.manifest.layout.as_mut().unwrap();
        layout.splits[0].name.clone_from(&evil);
        layout.splits[0].share = evil.clone();
        layout.strata.columns = vec![crate::strata::KeyColumn::Value { column: evil.clone() }];
        layout.split_rule = SplitRule::Groups { column: evil.clone(), on_one_node: true };
        set.manifest.options = serde_json::json!({ evil.as_str(): hostile });
        set.manifest.input.kind = evil.clone();
        set.strata.iter_mut().filter(|s| s.split == "train").for_each(|s| s.split.clone_from(&evil));
        set.node_strata.iter_mut().filter(|s| s.split == "train").for_each(|s| s.split.clone_from(&evil));
        set.statistics = vec![StatisticsEntry {
            split: evil.clone(),
            column: evil.clone(),
            statistics: ColumnStatistics { mean: Some(1.0), deviation: Some(2.0), ..ColumnStatistics::default() },
        }];
        let balance = set.balance();
        balance.groups = Some(GroupReport {
            column: evil.clone(),
            on_one_node: true,
            groups: 3,
            largest_group: 2,
            class_deviation: 1.5,
            class_lower_bound: 0.5,
            size_deviation: 2.5,
            size_lower_bound: 0.25,
            imbalance: 0.1,
        });
        let split = &mut balance.splits[0];
        split.name.clone_from(&evil);
        split.nodes.worst_stratum.clone_from(&evil);
        (split.nodes.exact, split.lanes.guaranteed) = (false, false);
        split.labels = Some(LabelReport { labels: 3, worst_deviation: 0.5 });
        split.weights = Some(WeightBalance {
            column: evil.clone(),
            node_sums: vec![1.0, 2.0, 3.0, 4.0, 5.0],
            spread: 0.5,
            bound: 0.25,
            lower_bound: 0.1,
        });
        let page = set.page();
        check(&page);
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && page.contains("\\u{202e}"));
        assert!(page.contains("A guaranteed bound is BROKEN") && page.contains("🦀"));
        assert!(!page.contains(&"long ".repeat(60)));
    }

    #[test]
    fn no_rows_one_node_and_a_thousand() {
        check(&set(4, &[]).page());
        check(&set(3, &[("a", 0)]).page());
        let one = set(1, &[("", 7)]).page();
        check(&one);
        assert!(one.contains("One node has all rows"));
        let bars = set(4, &[("", 10)]).page();
        check(&bars);
        assert!(bars.contains("There is one stratum"));
        let names: Vec<String> = (0..100).map(|i| format!("class {i}")).collect();
        let strata: Vec<(&str, u64)> = names.iter().map(|n| (n.as_str(), 12_345)).collect();
        let mut many = set(1000, &strata);
        for split in &mut many.balance().splits {
            split.weights = Some(WeightBalance {
                column: "words".into(),
                node_sums: (0..1000).map(|i| 1e6 + f64::from(i)).collect(),
                spread: 1e-3,
                bound: 2e-3,
                lower_bound: 0.0,
            });
        }
        let page = many.page();
        check(&page);
        assert!(page.contains("first 48 of 1,000 nodes") && page.contains("Each bar stands for 11 nodes"));
        assert!(page.contains("0.10 % of their mean (bound 0.20 %)"));
    }

    #[test]
    fn a_million_strata_give_a_small_page() {
        let mut set = set(8, &[("c", 8)]);
        set.strata = (0..1_000_000)
            .map(|i| StratumEntry {
                stratum: i,
                value: format!("stratum {i}"),
                split: "train".into(),
                rows_in: 3 + u64::from(i % 2),
                rows: 3,
                version: 1,
            })
            .collect();
        let page = set.page();
        check(&page);
        assert!(page.contains("1,000,000 strata have fewer rows") && page.contains("and 999,950 more."));
        assert!(page.contains("<h2>Resampling</h2>") && page.contains("and 499,950 more."));
        assert!(page.len() < 60_000, "{}", page.len());
    }

    #[test]
    fn splits_columns_and_versions_without_end_are_cut() {
        let mut set = set(64, &[("a", 1_000), ("b", 7)]);
        let (split, balance) =
            (set.manifest.layout.as_ref().unwrap().splits[0].clone(), set.balance().splits[0].clone());
        for i in 0..3_000 {
            let name = format!("split {i}");
            set.manifest.layout.as_mut().unwrap().splits.push(SplitInfo { name: name.clone(), ..split.clone() });
            set.balance().splits.push(SplitBalance { name: name.clone(), ..balance.clone() });
            let statistics = ColumnStatistics::default();
            set.statistics.push(StatisticsEntry { split: "train".into(), column: name, statistics });
        }
        let two: Vec<StratumEntry> = set.strata.clone();
        set.strata.extend((2..2_000).flat_map(|v| two.iter().cloned().map(move |s| StratumEntry { version: v, ..s })));
        set.balance().versions = 2_000;
        let page = set.page();
        check(&page);
        assert!(page.contains("and 2,962 more.") && page.contains("<h2>Versions</h2>"));
    }

    #[test]
    fn numbers_beyond_reason_do_no_harm() {
        let mut set = set(2, &[("a", 10), ("b", 5)]);
        for entry in &mut set.strata {
            (entry.rows, entry.rows_in) = (u64::MAX, u64::MAX);
        }
        for entry in &mut set.node_strata {
            entry.rows = u64::MAX;
        }
        for file in &mut set.files {
            (file.bytes, file.lane) = (u64::MAX, u32::MAX);
        }
        set.balance().node_rows = vec![u64::MAX, 0];
        set.balance().splits[0].node_rows = vec![u64::MAX];
        check(&set.page());
        let layout = set.manifest.layout.as_mut().unwrap();
        (layout.nodes, layout.lanes) = (u32::MAX, 0);
        set.balance().splits.clear();
        check(&set.page());
        set.manifest.layout.as_mut().unwrap().splits.clear();
        set.balance().node_rows.clear();
        check(&set.page());
        set.manifest.layout = None;
        assert_eq!(set.page(), "");
    }

    #[test]
    fn a_set_laid_out_anew_shows_no_stale_picture() {
        let mut set = set(4, &[("a", 10), ("b", 7)]);
        set.manifest.options = serde_json::json!({ "layout_of": {}, "nodes": 4 });
        let page = set.page();
        check(&page);
        assert!(page.contains("laid out anew") && !page.contains("Heat map"));
        let mut set = self::set(4, &[("a", 10), ("b", 7)]);
        set.manifest.layout.as_mut().unwrap().nodes = 2;
        assert!(!set.page().contains("Heat map"));
    }
}
