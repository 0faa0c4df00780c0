//! Rules that a dependency tree can't show, checked in the sources of the libraries.

use std::path::{Path, PathBuf};

/// Text that library code must not have, the folders that may have it, and why.
const RULES: [(&str, &[&str], &str); 7] = [
    ("println!(", &[], "printing is the command's"),
    ("print!(", &[], "printing is the command's"),
    ("eprintln!(", &[], "printing is the command's"),
    ("eprint!(", &[], "printing is the command's"),
    ("dbg!(", &[], "printing is the command's"),
    ("process::exit(", &[], "a library returns its errors"),
    ("ArrowWriter::", &["shard/src"], "there is one Parquet writer"),
];

/// Folders of library code, from the root of the workspace.
pub const LIBRARIES: [&str; 5] = ["shard/src", "ingest/src", "loader/src", "train/src", "train/c10d/src"];

/// What in `text`, the source of `path` (from the root of the workspace), breaks the rules. Comments and unit tests at
/// the end of the file are left out.
#[must_use]
pub fn violations(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if before.trim() == "#[cfg(test)]" && code.trim_start().starts_with("mod ") && code.contains('{') {
            break;
        }
        before = line;
        for (pattern, allowed, why) in RULES {
            if contains_word(code, pattern) && !allowed.iter().any(|folder| path.starts_with(folder)) {
                found.push(format!("{path}:{}: {} ({why})", number + 1, pattern.trim_end_matches(['(', ':'])));
            }
        }
    }
    found
}

/// Whether `pattern` is in `code` with no letter before it, so that `eprintln!` is not taken for `println!`.
fn contains_word(code: &str, pattern: &str) -> bool {
    code.match_indices(pattern).any(|(at, _)| !code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
}

/// The Rust files under `folder`.
///
/// # Panics
/// When the folder can't be read.
#[must_use]
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let path = entry.expect("a folder entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_and_a_second_writer_are_red() {
        let text = "fn f() {\n    println!(\"x\");\n    let w = ArrowWriter::try_new();\n}\n";
        assert_eq!(
            violations("ingest/src/x.rs", text),
            [
                "ingest/src/x.rs:2: println! (printing is the command's)",
                "ingest/src/x.rs:3: ArrowWriter (there is one Parquet writer)"
            ]
        );
        assert_eq!(violations("shard/src/x.rs", text).len(), 1);
        assert_eq!(violations("shard/src/x.rs", "std::process::exit(2)").len(), 1);
    }

    #[test]
    fn comments_and_unit_tests_are_not() {
        let text =
            "//! println!(\"x\")\nfn f() {} // eprintln!()\n#[cfg(test)]\nmod tests {\n    fn g() { dbg!(1); }\n}\n";
        assert_eq!(violations("shard/src/x.rs", text), [""; 0]);
        assert_eq!(violations("shard/src/x.rs", "my_println!(1)"), [""; 0]);
    }
}
