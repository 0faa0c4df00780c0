//! The pipeline wholly on an S3 that answers 503 to one request in five, and credentials that are not where they are read.

use std::process::Command;

use testkit::{
    fault_proxy::{FaultProxy, Faults},
    program::{Ended, finish},
    s3_server::{BUCKET, S3Server},
};

use crate::pipeline::{LIMIT, gristmill, run, text};

const SQL: &str = "SELECT *, delay > 15 AS late, EXTRACT(HOUR FROM date) AS hour FROM input";

/// Ingests the extract into `clean` and makes `shards` of it; gives what each of the sets and a loader then say.
fn pipeline(clean: &str, shards: &str, mut run: impl FnMut(&[&str]) -> Ended) -> Vec<String> {
    let source = testkit::flights_extract();
    let _ = run(&["ingest", text(&source), "--out", clean, "--sql", SQL, "--quiet"]).success();
    let split = "train=0.8,validation=0.1,test=0.1";
    let shard = ["shard", clean, "--out", shards, "--nodes", "2", "--stratify", "late,origin", "--split", split];
    let _ = run(&[&shard[..], &["--shard-bytes", "64KiB", "--quiet"]].concat()).success();
    let mut said = Vec::new();
    for set in [clean, shards] {
        let verified = run(&["verify", set, "--json"]).success().json();
        assert_eq!(verified["problems"], serde_json::json!([]), "{set}");
        said.push(["kind", "files", "rows", "bytes"].map(|key| verified[key].to_string()).join(" "));
        // The manifest: it names every table by digest, and they every file.
        said.push(run(&["inspect", set, "--json"]).success().stdout);
        said.push(run(&["inspect", set, "--files", "--json"]).success().stdout);
    }
    for rank in ["0", "1"] {
        let load =
            ["load", shards, "--ids", "--rank", rank, "--world-size", "2", "--global-batch", "999", "--seed", "5"];
        said.push(run(&load).success().stdout);
    }
    said
}

#[test]
fn s3_with_one_answer_in_five_503_gives_what_a_disk_gives() {
    let Some(server) = S3Server::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name)).to_owned();
    let local = pipeline(&at("clean"), &at("shards"), run);

    let proxy = FaultProxy::start(server.address(), Faults { seed: 3, busy_one_in: 5, ..Faults::default() });
    let on_s3 = |args: &[&str]| {
        let mut c: Command = gristmill(args);
        c.envs(server.environment(proxy.address()));
        finish(&mut c, LIMIT)
    };
    let url = |name: &str| format!("s3://{BUCKET}/flights/{name}");
    let remote = pipeline(&url("clean"), &url("shards"), on_s3);
    assert_eq!(local.len(), remote.len());
    for (local, remote) in local.iter().zip(&remote) {
        assert_eq!(local, remote);
    }
    let counts = proxy.counts();
    println!("{counts:?}");
    assert!(counts.requests > 100 && counts.busy * 8 > counts.requests, "{counts:?}");

    // Run again, there is nothing to do.
    let again = on_s3(&["ingest", text(&testkit::flights_extract()), "--out", &url("clean"), "--sql", SQL]).success();
    assert!(again.stdout.contains("already current"), "{}", again.stdout);

    // The same by storage options instead of variables, to a bucket that is not there.
    let mut args = vec!["inspect".to_owned(), "s3://no-such-bucket/x".to_owned()];
    for (name, value) in server.options(server.address()) {
        args.extend(["--storage".to_owned(), format!("{name}={value}")]);
    }
    let ended = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ended.status, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("not found"), "{}", ended.stderr);
}

#[test]
fn credentials_that_are_only_in_a_profile_are_said_not_to_be_read() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    std::fs::write(home.path().join(".aws/config"), "[default]\nregion = eu-west-1\nsso_session = work\n").unwrap();
    let refused = |variable: (&str, &str)| {
        let mut c = gristmill(&["inspect", "s3://bucket/x"]);
        c.env("HOME", home.path()).env(variable.0, variable.1);
        let ended = finish(&mut c, LIMIT);
        assert_eq!(ended.status, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("aws configure export-credentials --format env"), "{}", ended.stderr);
        ended.stderr
    };
    assert!(refused(("AWS_REGION", "eu-west-1")).contains(".aws/config"));
    assert!(refused(("AWS_PROFILE", "work")).contains("the profile \"work\""));
}

#[cfg(not(any(feature = "gcs", feature = "azure")))]
#[test]
fn stores_that_are_not_built_in_say_how_to_build_them() {
    for (url, feature) in [("gs://bucket/x", "gcs"), ("az://container/x", "azure")] {
        let ended = run(&["inspect", url]);
        assert_eq!(ended.status, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(&format!("--features gristmill/{feature}")), "{}", ended.stderr);
    }
}
