//! The report: there after every publication, with the manifest's figures, the same bytes each time.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, LargeStringArray};
use gristmill_shard::{
    Control, Manifest, Storage,
    assign::{
        resample::{Resample, Total},
        rounding::Shares,
    },
    job::{ShardOptions, layout_anew, shard},
    report,
};

use crate::support::{contents, input, options, put};

async fn page(storage: &Storage) -> String {
    String::from_utf8(storage.get(&report::path()).await.unwrap().to_vec()).unwrap()
}

fn counted(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap()).collect();
    groups.join(",")
}

#[tokio::test]
async fn a_report_has_the_figures_of_its_manifest() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 5_000).await;
    let manifest = shard(&from, &to, &options(), &Control::default()).await.unwrap().manifest;
    let page = page(&to).await;
    assert!(page.contains("Every guaranteed bound holds."));
    assert!(page.contains(&manifest.digest().unwrap()));
    let balance = manifest.balance.as_ref().unwrap();
    for split in &balance.splits {
        assert!(page.contains(&format!("<td class=\"t\">{}</td>", split.name)), "{}", split.name);
        for level in [&split.nodes, &split.lanes, &split.files] {
            let cells = format!(
                "<td class=\"t\">{}</td><td>{:.4}</td><td>{}</td><td>{}</td>",
                level.worst_stratum,
                level.worst_deviation,
                counted(level.rows_min),
                counted(level.rows_max)
            );
            assert!(page.contains(&cells), "{cells}");
        }
    }
    assert!(page.contains(&format!("<b>{}</b><span>rows</span>", counted(manifest.rows))));
    assert!(page.contains("Rare strata") && page.contains("Heat map"));
    let pictures = page.matches("<svg").count();
    assert!(pictures >= 5 && page.matches("</svg>").count() == pictures, "{pictures}");
}

#[tokio::test]
async fn a_report_that_is_gone_or_changed_is_written_again_to_the_same_bytes() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 1_000).await;
    shard(&from, &to, &options(), &Control::default()).await.unwrap();
    let before = contents(&to).await;
    for change in [None, Some("<p>another</p>")] {
        match change {
            None => to.delete(&report::path()).await.unwrap(),
            Some(text) => to.put(&report::path(), text).await.unwrap(),
        }
        assert!(shard(&from, &to, &options(), &Control::default()).await.unwrap().already_current);
        assert!(contents(&to).await == before);
    }
}

#[tokio::test]
async fn names_from_data_are_text_in_the_report() {
    let (from, to) = (Storage::memory(), Storage::memory());
    let names = ["<script>alert(1)</script>", "\"quoted' & more", "a\u{0}b\u{202e}c\nd", "plain"];
    let classes = (0..400).map(|i| names[i % names.len()]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("<b>n</b>", Arc::new(Int64Array::from_iter_values(0..400))),
        ("class", Arc::new(LargeStringArray::from_iter_values(classes))),
    ];
    put(&from, "part.parquet", columns, 100).await;
    let options = ShardOptions { nodes: 3, lanes: Some(3), stratify: vec!["class".into()], ..ShardOptions::default() };
    shard(&from, &to, &options, &Control::default()).await.unwrap();
    let page = page(&to).await;
    assert!(!page.contains("<script") && !page.contains("<b>n</b>") && !page.contains('\u{202e}'));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && page.contains("&lt;b&gt;n&lt;/b&gt;"));
}

#[tokio::test]
async fn what_was_asked_for_is_reported() {
    let (from, to) = (Storage::memory(), Storage::memory());
    input(&from, 2_000).await;
    let weighted = ShardOptions {
        balance: Some("n".into()),
        resample: Some(Resample::parse("late=balanced", Total::Same).unwrap()),
        ..options()
    };
    let manifest = shard(&from, &to, &weighted, &Control::default()).await.unwrap().manifest;
    let text = page(&to).await;
    let train = &manifest.balance.as_ref().unwrap().splits[0];
    assert!(train.copies > 0 && train.left_out > 0);
    let resampled = format!(
        "<tr><td class=\"t\">train</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        counted(train.rows_in),
        counted(train.left_out),
        counted(train.copies),
        counted(train.rows_in - train.left_out + train.copies)
    );
    assert!(text.contains(&resampled), "{resampled}");
    assert!(text.contains("<h2>Weights</h2>"));

    let (from, grouped_at) = (Storage::memory(), Storage::memory());
    let ids = || 0..2_000_i64;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("user", Arc::new(Int64Array::from_iter_values(ids().map(|i| if i % 9 < 3 { 0 } else { 1 + i % 37 })))),
        ("class", Arc::new(Int64Array::from_iter_values(ids().map(|i| (i * i) % 7)))),
    ];
    put(&from, "part.parquet", columns, 300).await;
    let splits = Shares::parse("train=0.5,test=0.5").unwrap();
    let grouped = ShardOptions { group: Some("user".into()), stratify: vec!["class".into()], splits, ..options() };
    let manifest = shard(&from, &grouped_at, &grouped, &Control::default()).await.unwrap().manifest;
    let groups = manifest.balance.unwrap().groups.unwrap();
    let text = page(&grouped_at).await;
    let cells = format!("<td>{:.4}</td><td>{:.4}</td>", groups.class_deviation, groups.class_lower_bound);
    assert!(text.contains("<h2>Groups</h2>") && text.contains(&cells), "{cells}");
}

#[tokio::test]
async fn versions_and_other_layouts_are_reported() {
    let (from, to) = (Storage::memory(), Storage::memory());
    let add = async |name: &str, ids: std::ops::Range<i64>| {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("class", Arc::new(Int64Array::from_iter_values(ids.clone().map(|i| i % 7)))),
            ("id", Arc::new(Int64Array::from_iter_values(ids))),
        ];
        put(&from, name, columns, 300).await;
    };
    add("a.parquet", 0..1_003).await;
    let options = ShardOptions { nodes: 4, lanes: Some(8), stratify: vec!["class".into()], ..ShardOptions::default() };
    shard(&from, &to, &options, &Control::default()).await.unwrap();
    add("b.parquet", 1_003..1_501).await;
    let append = ShardOptions { append: true, ..options };
    let manifest = shard(&from, &to, &append, &Control::default()).await.unwrap().manifest;
    let text = page(&to).await;
    let bound = format!("{:.4} rows", manifest.balance.unwrap().union_deviation_bound);
    assert!(text.contains("<h2>Versions</h2>") && text.contains(&bound), "{bound}");
    assert!(text.contains("<b>1,501</b>") && text.contains("<td>1,003</td>") && text.contains("<td>498</td>"));

    layout_anew(&to, 3).await.unwrap();
    let text = page(&to).await;
    assert!(text.contains("laid out anew") && text.contains("3 nodes"));
    assert!(text.contains(&Manifest::latest(&to).await.unwrap().unwrap().digest().unwrap()));
}
