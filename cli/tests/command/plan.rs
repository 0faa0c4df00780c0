//! `gristmill plan` on real shards: every kind of plan, changes of world, the page, and what it says of mistakes.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    expect_error::{bad, check},
    pipeline::{run, text},
};

const ROWS: u64 = 3000;

/// Shards of documents with lengths, a class and a difficulty, in two splits.
fn documents(dir: &Path) -> PathBuf {
    let mut csv = String::from("id,tokens,topic,hard,kind\n");
    for i in 0..ROWS {
        let _ = writeln!(csv, "{i},{},{},{}.5,{}", 20 + i * i % 977, i % 7 / 3, i * 37 % 501, i % 5 / 4);
    }
    let (source, clean, shards) = (dir.join("documents.csv"), dir.join("clean"), dir.join("shards"));
    std::fs::write(&source, csv).unwrap();
    let _ = run(&["ingest", text(&source), "--out", text(&clean), "--quiet"]).success();
    let shard =
        ["shard", text(&clean), "--out", text(&shards), "--nodes", "2", "--split", "web=0.7,books=0.3", "--quiet"];
    let sidecars = ["--difficulty", "hard", "--sidecar", "tokens", "--sidecar", "topic", "--shard-bytes", "4KiB"];
    let _ = run(&[&shard[..], &sidecars].concat()).success();
    shards
}

fn replayed(shards: &Path, flags: &[&str]) -> Value {
    run(&[&["plan", text(shards), "--json"], flags].concat()).success().json()["replay"].clone()
}

#[test]
fn every_kind_of_plan_is_replayed_for_any_world_and_through_changes() {
    let dir = tempfile::tempdir().unwrap();
    let shards = documents(dir.path());
    let budget = r#"kind="budget", lengths="tokens", budget={max_tokens=8192, micro_batches=4}"#;
    let packed = r#"{ kind = "packed", lengths = "tokens", packing = { capacity = 1024 } }"#;
    let node = r#"kind="budget", lengths="tokens", scope="node", budget={max_tokens=8192, micro_batches=4}"#;
    let paced = r#"kind="paced", epochs=0.7, pacing={kind="sqrt"}"#;
    let ordered = r#"kind="ordered", epochs=1"#;
    for plan in [
        &["--batching", budget][..],
        &["--batching", node],
        &["--batching", packed, "--global-batch", "16"],
        &["--curriculum", paced, "--filter", "tokens<p95", "--global-batch", "64"],
        &["--curriculum", ordered, "--batching", budget, "--shuffle", "none"],
        &["--filter", "topic!=1", "--filter", "tokens>=100", "--tail", "drop", "--global-batch", "64"],
    ] {
        let world =
            ["--split", "web", "--world-size", "4", "--change", "3:6", "--change", "5:3:1", "--classes", "topic"];
        let replay = replayed(&shards, &[&world, plan].concat());
        assert_eq!((&replay["missing"], &replay["repeated"]), (&0.into(), &0.into()), "{plan:?}");
        let kept = replay["rows"].as_u64().unwrap() - replay["filtered"].as_u64().unwrap();
        let dropped = replay["dropped"].as_u64().unwrap();
        assert_eq!(replay["delivered"].as_u64().unwrap() + dropped, kept, "{plan:?}");
        assert_eq!(dropped > 0, plan.contains(&"drop"), "{plan:?}");
        let worlds = replay["worlds"].as_array().unwrap();
        let sizes: Vec<u64> = worlds.iter().map(|w| w["world_size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [4, 6, 3]);
        let steps: u64 = worlds.iter().map(|w| w["steps"].as_u64().unwrap()).sum();
        assert_eq!(replay["steps_per_rank"], steps);
    }
    // A node's windows read nothing of another's.
    let replay = replayed(&shards, &["--split", "web", "--world-size", "4", "--batching", node]);
    let reads = replay["worlds"][0]["reads"].as_array().unwrap();
    assert!(reads.len() == 2 && reads.iter().all(|r| r["foreign_bytes"] == 0 && r["bytes"] != 0), "{reads:?}");
    // The least difficulty of an ordered epoch rises.
    let replay =
        replayed(&shards, &["--split", "web", "--world-size", "2", "--curriculum", ordered, "--global-batch", "64"]);
    let stretches = replay["stretches"].as_array().unwrap();
    let means: Vec<f64> = stretches.iter().map(|s| s["difficulty"]["mean"].as_f64().unwrap()).collect();
    assert!(means.is_sorted() && means.len() > 10, "{means:?}");
}

#[test]
fn mixes_and_draws_say_what_they_came_to() {
    let dir = tempfile::tempdir().unwrap();
    let shards = documents(dir.path());
    let books = format!("{}#books=0.4", text(&shards));
    let mix =
        ["--world-size", "4", "--mix", "web=0.6", "--mix", &books, "--stop", "all-exhausted", "--global-batch", "50"];
    let replay = replayed(&shards, &mix);
    assert_eq!((&replay["missing"], &replay["repeated"]), (&0.into(), &0.into()));
    let sources = replay["sources"].as_array().unwrap();
    let share = |at: usize| sources[at]["share"].as_f64().unwrap();
    assert!((share(0) - 0.6).abs() < 1e-3 && (share(1) - 0.4).abs() < 1e-3, "{sources:?}");
    assert!(sources.iter().all(|s| s["passes"].as_u64().unwrap() >= 1), "{sources:?}");
    let stages = [&mix[..], &["--stage", "100:1,0"]].concat();
    assert_eq!(replayed(&shards, &stages)["stretches"][0]["sources"][1], 0);

    let balanced = r#"kind="balanced", column="topic""#;
    let flags =
        ["--split", "web", "--world-size", "3", "--sampling", balanced, "--classes", "topic", "--stretches", "1"];
    let replay = replayed(&shards, &flags);
    assert_eq!(replay["exactly_once"], false);
    let counts: Vec<u64> =
        replay["stretches"][0]["classes"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert_eq!(counts.iter().sum::<u64>(), replay["rows"].as_u64().unwrap());
    let (most, least) = (counts[0], counts[..counts.len() - 1].iter().min().unwrap());
    assert!(most - least <= 1, "{counts:?}");
}

#[test]
fn a_page_is_written_and_the_table_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let shards = documents(dir.path());
    let page = dir.path().join("plan.html");
    let budget = r#"kind="budget", lengths="tokens", budget={max_tokens=8192, micro_batches=4}"#;
    let flags =
        ["--split", "web", "--world-size", "4", "--batching", budget, "--html", text(&page), "--classes", "topic"];
    let shown = run(&[&["plan", text(&shards)], &flags[..]].concat()).success().stdout;
    assert!(shown.contains("padding, of all tokens") && shown.contains("topic=0"), "{shown}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("topic") && page.contains("Every row exactly once"), "{page}");
    // What is printed is what the plan is: the same for the same options, another for others.
    let fingerprint = |flags: &[&str]| {
        let shown =
            run(&[&["plan", text(&shards), "--split", "web", "--world-size", "2"], flags].concat()).success().stdout;
        shown.lines().last().unwrap().to_owned()
    };
    assert_eq!(fingerprint(&[]), fingerprint(&["--global-batch", "99"]));
    assert_ne!(fingerprint(&[]), fingerprint(&["--filter", "tokens<500"]));
}

#[test]
fn mistakes_are_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let _ = documents(dir.path());
    check(
        dir.path(),
        &[
            bad(
                "plan shards --world-size 2 --split web --filter kind=1",
                2,
                "usage",
                &["\"kind\"", "hard"],
                "--sidecar kind",
            ),
            bad(
                "plan shards --world-size 2 --filter tokens",
                2,
                "usage",
                &["tokens", "compares nothing"],
                "words<=512",
            ),
            bad(
                "plan shards --world-size 2 --curriculum kind=\"orderd\"",
                2,
                "usage",
                &["orderd", "ordered"],
                "--help",
            ),
            bad("plan shards --world-size 2 --change 4", 2, "usage", &["STEP:RANKS", "--change"], "--help"),
            bad("plan shards --world-size 2 --split web --change 9999:3", 2, "usage", &["9999"], "steps from 0 to"),
            bad("plan shards --world-size 2 --mix web=x", 2, "usage", &["web=x"], "--help"),
            bad("plan shards --world-size 2 --mix nothing=1", 2, "usage", &["nothing"], "web"),
            bad("plan shards --world-size 2 --mix web=1 --split web", 2, "usage", &["--split", "--mix"], "--help"),
            bad("load shards --batching kind=1", 2, "usage", &["--batching"], "--help"),
            bad("plan shards --world-size 2 --stop 9", 2, "usage", &["--mix"], "--help"),
        ],
    );
}
