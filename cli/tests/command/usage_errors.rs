//! Mistakes in flags and places.

use crate::expect_error::{bad, check};

#[test]
fn mistyped_flags_are_named_with_the_nearest() {
    let dir = tempfile::tempdir().unwrap();
    check(
        dir.path(),
        &[
            bad("shard x --out y --nodes 2 --stratfy late", 2, "usage", &["--stratfy"], "--stratify"),
            bad("ingst x.csv --out y", 2, "usage", &["ingst"], "ingest"),
            bad("shard x --nodes 2", 2, "usage", &["data set", "place of their own"], "--out"),
            bad("shard x --out y --nodes many", 2, "usage", &["many", "--nodes"], "--help"),
            bad("shard x --out y --nodes 1 --memory=-1GiB", 2, "usage", &["-1GiB", "--memory"], "--help"),
            bad("shard x --out y --nodes 1 --seed=-1", 2, "usage", &["--seed"], "--help"),
            bad("plan x --world-size 0", 2, "usage", &["--world-size", "0"], "--help"),
            bad("plan x --world-size 2 --shuffle globl", 2, "usage", &["globl", "--shuffle"], "global"),
            bad("load x --ids --bench", 2, "usage", &["--ids", "--bench"], "--help"),
            bad("load x --rank 4 --world-size 4", 2, "usage", &["--rank 4", "--world-size 4"], "0 to 3"),
            bad("inspect x --node 1", 2, "usage", &["--files"], "--help"),
        ],
    );
}

#[test]
fn places_that_are_not_there_or_cant_be_are_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    check(
        dir.path(),
        &[
            bad("ingest missing.csv --out clean", 2, "not_found", &["missing.csv"], "help: "),
            bad("ingest no*.csv --out clean", 2, "usage", &["no*.csv"], ".csv"),
            bad("ingest empty --out clean", 2, "usage", &["empty"], ".csv"),
            bad("shard missing --out shards --nodes 1", 2, "not_found", &["missing"], "help: "),
            bad("inspect empty", 2, "not_found", &["empty"], "help: "),
            bad("verify missing", 2, "not_found", &["missing"], "help: "),
            bad("inspect ftp://host/shards", 2, "usage", &["ftp"], "s3"),
            bad("inspect s3://bucket/shards --storage aws_regoin=eu", 2, "usage", &["aws_regoin"], "aws_region"),
            bad("inspect s3://bucket/shards --storage aws_region", 2, "usage", &["aws_region"], "name=value"),
            bad("run missing.toml", 2, "not_found", &["missing.toml"], "help: "),
        ],
    );
}
