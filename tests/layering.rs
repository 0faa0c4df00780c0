//! The hourglass, proved from `cargo tree`, and what the sources of the libraries must not have.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use testkit::{
    import_rules::{CrateTree, MEMBERS},
    program::{command, finish},
    source_rules::{LIBRARIES, rust_files, violations},
    workspace_root,
};

const LIMIT: Duration = Duration::from_secs(120);

fn cargo(root: &Path, args: &[&str]) -> String {
    let program = PathBuf::from(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    finish(command(&program).current_dir(root).args(args), LIMIT).success().stdout
}

fn tree(root: &Path, member: &str, more: &[&str]) -> CrateTree {
    let args = ["tree", "--offline", "--edges", "normal", "--prefix", "depth", "--format", " {p}", "--package", member];
    CrateTree::parse(&cargo(root, &[&args, more].concat())).unwrap()
}

fn members(root: &Path) -> BTreeSet<String> {
    let text = cargo(root, &["metadata", "--offline", "--no-deps", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&text).unwrap();
    metadata["packages"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect()
}

/// All members' trees, made at once: each is a process that mostly waits.
fn trees(root: &Path, more: &[&str]) -> Vec<CrateTree> {
    std::thread::scope(|s| {
        let started: Vec<_> = MEMBERS.iter().map(|(member, _)| s.spawn(move || tree(root, member, more))).collect();
        started.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn the_rules_know_every_member() {
    let known: BTreeSet<String> = MEMBERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(members(&workspace_root()), known);
}

#[test]
fn imports_form_an_hourglass() {
    let found: Vec<String> = trees(&workspace_root(), &["--locked"]).iter().flat_map(CrateTree::violations).collect();
    assert_eq!(found, [""; 0]);
}

#[test]
fn without_default_features_nothing_reaches_libtorch() {
    for tree in trees(&workspace_root(), &["--locked", "--no-default-features"]) {
        assert_eq!(tree.violations(), [""; 0]);
        assert_eq!(tree.libtorch(), [""; 0], "{} reaches libtorch", tree.root);
    }
}

/// The check itself would be worth nothing if it could not turn red: a copy of the workspace whose loader imports
/// polars.
#[test]
fn a_polars_import_added_to_the_loader_turns_it_red() {
    let copy = tempfile::tempdir().unwrap();
    copy_manifests_and_sources(&workspace_root(), copy.path());
    assert_eq!(tree(copy.path(), "gristmill-loader", &[]).violations(), [""; 0], "the copy as it is");

    let manifest = copy.path().join("loader/Cargo.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let changed = text.replacen("[dependencies]\n", "[dependencies]\npolars.workspace = true\n", 1);
    assert_ne!(text, changed);
    std::fs::write(&manifest, changed).unwrap();

    let red = tree(copy.path(), "gristmill-loader", &[]).violations();
    assert!(red.iter().any(|v| v == "gristmill-loader reaches polars"), "{red:?}");
    let red = tree(copy.path(), "gristmill-train", &[]).violations();
    assert!(red.iter().any(|v| v == "gristmill-train reaches polars (through gristmill-loader)"), "{red:?}");
}

fn copy_manifests_and_sources(from: &Path, to: &Path) {
    for file in ["Cargo.toml", "Cargo.lock"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let text = std::fs::read_to_string(from.join("Cargo.toml")).unwrap();
    let list = text.lines().find_map(|l| l.strip_prefix("members = [")).expect("the list of members");
    for member in list.split('"').skip(1).step_by(2) {
        copy_rust(&from.join(member), &to.join(member));
    }
}

fn copy_rust(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_rust(&path, &target);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn libraries_do_not_print_exit_or_write_parquet_of_their_own() {
    let root = workspace_root();
    let mut found = Vec::new();
    for folder in LIBRARIES {
        let files = rust_files(&root.join(folder));
        assert!(!files.is_empty(), "{folder} has no sources");
        for file in files {
            let path = file.strip_prefix(&root).unwrap().to_str().unwrap();
            found.extend(violations(path, &std::fs::read_to_string(&file).unwrap()));
        }
    }
    assert_eq!(found, [""; 0]);
}
