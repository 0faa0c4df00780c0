//! What the machine or the launcher lacks.

use std::{os::unix::fs::PermissionsExt, path::Path};

use testkit::program::{command, finish, start};

use crate::pipeline::{LIMIT, gristmill, numbers, numbers_csv, program, run, text};

#[test]
fn a_closed_pipe_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let (clean, shards) = numbers(dir.path());
    for args in [
        vec!["inspect", text(&clean)],
        vec!["inspect", text(&shards), "--json"],
        vec!["load", text(&shards), "--ids", "--global-batch", "7"],
        vec!["plan", text(&shards), "--world-size", "2"],
        vec!["verify", text(&shards)],
        vec!["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = start(gristmill(&args).stdout(writer)).wait(LIMIT);
        assert_eq!(ended.status, Some(0), "{args:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("error"), "{args:?}: {}", ended.stderr);
    }
}

/// Runs as another user where the tests run as root, whom no permission stops.
#[test]
fn an_unreadable_file_is_a_matter_of_permission() {
    use std::os::unix::process::CommandExt as _;

    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let secret = dir.path().join("secret.csv");
    std::fs::write(&secret, numbers_csv()).unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o000)).unwrap();
    let locked = dir.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    let open = dir.path().join("open.csv");
    std::fs::write(&open, numbers_csv()).unwrap();
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o500)).unwrap();

    let root = rustix::process::geteuid().is_root();
    let copy = dir.path().join("gristmill");
    if root {
        std::fs::copy(program(), &copy).unwrap();
    }
    let as_user = |args: &[&str]| {
        let mut c = command(if root { &copy } else { Path::new(env!("CARGO_BIN_EXE_gristmill")) });
        if root {
            c.uid(65534);
        }
        finish(c.args(args).current_dir("/"), LIMIT)
    };
    let out = dir.path().join("clean");
    let ended = as_user(&["ingest", text(&secret), "--out", text(&out)]);
    assert_eq!(ended.status, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("secret.csv") && ended.stderr.contains("ermission"), "{}", ended.stderr);
    let ended = as_user(&["ingest", text(&secret), "--out", text(&out), "--json"]);
    let error: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "permission", "{error}");

    let ended = as_user(&["ingest", text(&open), "--out", text(&locked.join("clean"))]);
    assert_eq!(ended.status, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("locked") && ended.stderr.contains("ermission"), "{}", ended.stderr);
}

#[cfg(feature = "torch")]
mod torch {
    use super::*;

    fn configuration(folder: &Path) -> std::path::PathBuf {
        let _ = numbers(folder);
        let path = folder.join("train.toml");
        let config = "[train]\nlabel = \"label\"\ndata = { shards = \"number-shards\" }\nthreads = 1\n\
                      features = { numbers = [\"number\"] }\ncheckpoint = { url = \"run\" }\n";
        std::fs::write(&path, config).unwrap();
        path
    }

    /// The same-length name makes another file of the folder that the program was linked with.
    fn without(bytes: &[u8], name: &str) -> Vec<u8> {
        let mut copy = bytes.to_vec();
        let mut at = 0;
        let other = vec![b'x'; name.len()];
        while let Some(found) = find(&copy[at..], name.as_bytes()) {
            at += found;
            copy[at..at + other.len()].copy_from_slice(&other);
        }
        copy
    }

    fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
        let first = needle[0];
        let mut from = 0;
        while let Some(i) = bytes[from..].iter().position(|b| *b == first) {
            if bytes[from + i..].starts_with(needle) {
                return Some(from + i);
            }
            from += i + 1;
        }
        None
    }

    #[test]
    fn a_missing_libtorch_is_told_with_how_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = configuration(dir.path());
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let copy = bin.join("gristmill");

        // A copy without its companion.
        std::fs::copy(program(), &copy).unwrap();
        let train = |json: bool| {
            let mut c = command(&copy);
            c.args(["train", text(&config)]).args(json.then_some("--json"));
            finish(c.env_remove("LD_LIBRARY_PATH"), LIMIT)
        };
        let ended = train(false);
        assert_eq!(ended.status, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("gristmill-train") && ended.stderr.contains("help: build"), "{}", ended.stderr);

        // A copy that was linked with a folder which is no longer there.
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gristmill-train"), bin.join("gristmill-train")).unwrap();
        let original = std::fs::read(program()).unwrap();
        std::fs::write(&copy, without(&original, "libtorch_cpu.so")).unwrap();
        let ended = train(false);
        assert_eq!(ended.status, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("libtorch is missing"), "{}", ended.stderr);
        assert!(ended.stderr.contains("make libtorch"), "{}", ended.stderr);
        let error: serde_json::Value = serde_json::from_str(&train(true).stderr).unwrap();
        assert_eq!(error["error"]["kind"], "environment", "{error}");
        // All else works without it.
        let shards = dir.path().join("number-shards");
        let _ = finish(command(&copy).args(["verify", text(&shards)]), LIMIT).success();
    }

    #[test]
    fn half_a_launcher_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let config = configuration(dir.path());
        let table: [(&[(&str, &str)], &str); 4] = [
            (&[("RANK", "0")], "WORLD_SIZE"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")], "MASTER_"),
            (
                &[("RANK", "2"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")],
                "RANK",
            ),
            (
                &[("RANK", "x"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")],
                "RANK",
            ),
        ];
        for (env, says) in table {
            for json in [false, true] {
                let mut c = gristmill(&["train", text(&config)]);
                c.args(json.then_some("--json"));
                let ended = finish(c.envs(env.iter().copied()), LIMIT);
                assert_eq!(ended.status, Some(2), "{env:?}: {}", ended.stderr);
                assert!(ended.stderr.contains(says), "{env:?}: {}", ended.stderr);
                if json {
                    let error: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
                    assert_eq!(error["error"]["kind"], "usage", "{env:?}: {error}");
                }
            }
        }
        let ended = finish(gristmill(&["run", text(&config)]).env("RANK", "0"), LIMIT);
        assert_eq!(ended.status, Some(2));
        assert!(ended.stderr.contains("RANK") && ended.stderr.contains("gristmill train"), "{}", ended.stderr);
    }
}

#[test]
fn doctor_says_what_is_there() {
    let ended = run(&["doctor"]).success();
    assert!(ended.stdout.contains("libtorch"), "{}", ended.stdout);
    let found = run(&["doctor", "--json"]).success().json();
    let found = found.as_array().unwrap();
    assert!(found.iter().any(|f| f["what"].as_str().is_some_and(|w| w.contains("libtorch"))), "{found:?}");
}
