//! Bad configurations, and settings that the data do not bear out.

use crate::{
    expect_error::{bad, check},
    pipeline::{numbers, numbers_csv},
};

const PIPELINE: &str = r#"
[ingest]
sources = ["n.csv"]
out = "clean"

[shard]
out = "shards"
stratify = ["class"]
"#;

#[test]
fn mistakes_in_a_configuration_are_named_with_the_nearest_key() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("n.csv", &numbers_csv());
    write("key.toml", &PIPELINE.replace("stratify", "stratfy"));
    write("type.toml", &PIPELINE.replace("[\"class\"]", "7"));
    write("section.toml", &PIPELINE.replace("[shard]", "[shards]"));
    write("torn.toml", &PIPELINE.replace("\"clean\"", "\"clean"));
    write("missing.toml", &PIPELINE.replace("out = \"shards\"", ""));
    write("empty.toml", "");
    write("column.toml", &PIPELINE.replace("\"class\"", "\"clas\""));
    write("good.toml", PIPELINE);
    check(
        dir.path(),
        &[
            bad("run key.toml", 2, "usage", &["key.toml", "shard.stratfy"], "stratify"),
            bad("run type.toml", 2, "usage", &["type.toml", "shard.stratify"], "help: "),
            bad("run section.toml", 2, "usage", &["section.toml", "shards"], "shard"),
            bad("run torn.toml", 2, "usage", &["torn.toml", "TOML"], "help: "),
            bad("run missing.toml", 2, "usage", &["missing.toml", "shard.out"], "help: "),
            bad("run empty.toml", 2, "usage", &["empty.toml"], "[ingest]"),
            bad("run good.toml --set shard.nodes", 2, "usage", &["shard.nodes"], "help: "),
            bad("run good.toml --set shard.node=2", 2, "usage", &["node"], "nodes"),
            bad("run good.toml", 2, "usage", &["nods"], "nodes").env("GRISTMILL_SHARD__NODS", "3"),
            bad("run column.toml", 2, "usage", &["clas"], "class"),
            bad("train good.toml", 2, "usage", &["good.toml", "[train]"], "help: "),
        ],
    );
}

#[cfg(feature = "torch")]
#[test]
fn training_is_checked_against_the_shards() {
    use crate::pipeline::{run, text};

    let dir = tempfile::tempdir().unwrap();
    let _ = numbers(dir.path());
    let config = |label: &str, numbers: &str, more: &str| {
        format!(
            "[train]\nlabel = \"{label}\"\ndata = {{ shards = \"number-shards\" }}\nthreads = 1\n\
             features = {{ numbers = [{numbers}] }}\ncheckpoint = {{ url = \"run\" }}\n{more}"
        )
    };
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("label.toml", &config("lable", "\"number\"", ""));
    write("grade.toml", &config("grade", "\"number\"", ""));
    write("text.toml", &config("class", "\"number\"", ""));
    write("feature.toml", &config("label", "\"numbr\"", ""));
    write("class.toml", &config("label", "\"class\"", ""));
    write("none.toml", &config("label", "", ""));
    write("both.toml", &config("label", "\"label\"", ""));
    write("batch.toml", &config("label", "\"number\"", "global_batch = 0\n"));
    write("rate.toml", &config("label", "\"number\"", "optimizer = { lr = -1.0 }\n"));
    write("kind.toml", &config("label", "\"number\"", "optimizer = { kind = \"adamv\" }\n"));
    write("shards.toml", &config("label", "\"number\"", "").replace("number-shards", "nowhere"));
    write("split.toml", &config("label", "\"number\"", "").replace("shards\"", "shards\", train = \"trian\""));
    write("good.toml", &config("label", "\"number\"", ""));
    check(
        dir.path(),
        &[
            bad("train label.toml", 2, "usage", &["lable"], "label"),
            // Several ranks meet the same mistake, and it is told once.
            bad("train label.toml --nproc 2", 2, "usage", &["lable"], "label"),
            bad("train shards.toml --nproc 2", 2, "not_found", &["nowhere"], "help: "),
            bad("train grade.toml", 2, "usage", &["grade", "5 values"], "--sql"),
            bad("train text.toml", 2, "usage", &["class"], "help: "),
            bad("train feature.toml", 2, "usage", &["features.numbers", "numbr"], "number"),
            bad("train class.toml", 2, "usage", &["class"], "features.categories"),
            bad("train none.toml", 2, "usage", &["features"], "features.numbers"),
            bad("train both.toml", 2, "usage", &["label"], "feature"),
            bad("train batch.toml", 2, "usage", &["global_batch"], "1"),
            bad("train rate.toml", 2, "usage", &["optimizer.lr"], "negative"),
            bad("train kind.toml", 2, "usage", &["adamv"], "adamw"),
            bad("train shards.toml", 2, "not_found", &["nowhere"], "help: "),
            bad("train split.toml", 2, "usage", &["trian"], "train"),
            bad("train good.toml --nproc 0", 2, "usage", &["--nproc"], "--help"),
        ],
    );
    assert!(!dir.path().join("run/model").exists(), "nothing was trained");

    // What only rank 0 can see is told once too, and passed on by the others without a word.
    let _ = run(&["train", text(&dir.path().join("good.toml")), "--set", "train.epochs=1", "--quiet"]).success();
    check(
        dir.path(),
        &[bad("train good.toml --set train.seed=7 --nproc 2", 1, "conflict", &["already holds"], "checkpoint.url")],
    );
}
