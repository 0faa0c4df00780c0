//! Bad requests to data sets and shard sets, and sets that are damaged.

use std::path::Path;

use crate::{
    expect_error::{bad, check},
    pipeline::{numbers, run, text},
};

#[test]
fn shard_settings_are_checked_against_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let _ = numbers(dir.path());
    check(
        dir.path(),
        &[
            bad("shard numbers --out s --nodes 2 --stratify clss", 2, "usage", &["clss"], "class"),
            bad("shard numbers --out s --nodes 0", 2, "usage", &["--nodes 0"], "1 to"),
            bad("shard numbers --out s --nodes 2 --lanes 5", 2, "usage", &["--lanes 5", "--nodes 2"], "multiple"),
            bad("shard numbers --out s --nodes 2 --split train=0.8,test=0.3", 2, "usage", &["1"], "help: "),
            bad("shard numbers --out s --nodes 2 --split train=0.8,train=0.2", 2, "usage", &["train"], "help: "),
            bad("shard numbers --out s --nodes 2 --split train", 2, "usage", &["train"], "help: "),
            bad("shard numbers --out s --nodes 2 --split train=x", 2, "usage", &["x"], "help: "),
            bad("shard numbers --out s --nodes 2 --memory 1MiB", 2, "usage", &["--memory"], "memory"),
            bad("shard numbers --out s --nodes 2 --shard-bytes 1B", 2, "usage", &["--shard-bytes"], "1KiB"),
            bad("shard number-shards --out s --nodes 2", 2, "usage", &["number-shards", "shard"], "help: "),
            bad("shard numbers --out number-shards --nodes 2", 1, "conflict", &["number-shards"], "--out"),
            bad("shard numbers --out numbers --nodes 2", 1, "conflict", &["numbers"], "--out"),
            bad("ingest numbers.csv --out numbers --sql", 1, "conflict", &["numbers"], "--out")
                .arg("SELECT number FROM input"),
        ],
    );
    assert!(!dir.path().join("s/_gristmill").exists(), "nothing was published");
}

#[test]
fn what_is_asked_of_a_set_is_checked_against_it() {
    let dir = tempfile::tempdir().unwrap();
    let (clean, _) = numbers(dir.path());
    let tiny = dir.path().join("tiny");
    let split = "train=0.9999,test=0.0001";
    let _ = run(&["shard", text(&clean), "--out", text(&tiny), "--nodes", "1", "--split", split, "--quiet"]).success();
    check(
        dir.path(),
        &[
            bad("plan number-shards --world-size 2 --split trian", 2, "usage", &["trian"], "train"),
            bad("load number-shards --split tset", 2, "usage", &["tset"], "test"),
            bad("plan numbers --world-size 2", 2, "usage", &["numbers"], "help: "),
            bad("load numbers", 2, "usage", &["numbers"], "help: "),
            bad("plan number-shards --world-size 3 --machines 2", 2, "usage", &["3", "2"], "multiple"),
            bad("load tiny --split test", 2, "usage", &["split \"test\" has no rows"], "larger share"),
            bad("plan number-shards --world-size 4294967295", 2, "usage", &["4294967295"], "1,048,576"),
            bad("load number-shards --memory 1KiB", 2, "usage", &["memory", "1024"], "help: "),
            bad("load number-shards --world-size 3 --local-world-size 2", 2, "usage", &["3", "2"], "machine"),
            bad("inspect number-shards --files --node 7", 2, "usage", &["7"], "0"),
        ],
    );
}

#[test]
fn damage_is_found_and_the_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_, shards) = numbers(dir.path());
    let part = first_file(&shards.join("train"));
    let name = part.file_name().unwrap().to_str().unwrap();
    let good = std::fs::read(&part).unwrap();

    let mut flipped = good.clone();
    flipped[50] ^= 0x10;
    std::fs::write(&part, &flipped).unwrap();
    let verified = run(&["verify", text(&shards)]);
    assert_eq!(verified.status, Some(1), "{}{}", verified.stdout, verified.stderr);
    assert!(format!("{}{}", verified.stdout, verified.stderr).contains(name), "{}{}", verified.stdout, verified.stderr);
    check(dir.path(), &[bad("load number-shards", 1, "corrupt", &[name], name)]);

    std::fs::remove_file(&part).unwrap();
    let verified = run(&["verify", text(&shards)]);
    assert_eq!(verified.status, Some(1));
    assert!(format!("{}{}", verified.stdout, verified.stderr).contains(name), "{}{}", verified.stdout, verified.stderr);
    std::fs::write(&part, &good).unwrap();
    let _ = run(&["verify", text(&shards)]).success();

    let manifest = shards.join("_gristmill/manifest-00000001.json");
    let original = std::fs::read_to_string(&manifest).unwrap();
    let newer = original.replacen("\"format_version\": 2,", "\"format_version\": 99,", 1);
    assert_ne!(newer, original);
    std::fs::write(&manifest, newer).unwrap();
    check(dir.path(), &[bad("inspect number-shards", 1, "corrupt", &["manifest-00000001.json", "99"], "wrote it")]);
    std::fs::write(&manifest, &original[..original.len() / 2]).unwrap();
    check(dir.path(), &[bad("inspect number-shards", 1, "corrupt", &["manifest-00000001.json"], "manifest")]);
}

fn first_file(folder: &Path) -> std::path::PathBuf {
    let files = |folder: &Path| {
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        paths
    };
    files(&files(folder)[0])[0].clone()
}
