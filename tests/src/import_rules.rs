//! The hourglass as a table, and the check of a dependency tree against it:
//!
//! ```text
//! ingest ─▶ shard ◀─ loader ◀─ train ─▶ c10d          cli, tests, benches ─▶ all
//! ```

use std::collections::BTreeMap;

/// Every member of the workspace, and which members it may import, directly or through others. `None`: any.
pub const MEMBERS: [(&str, Option<&[&str]>); 8] = [
    ("gristmill-shard", Some(&[])),
    ("gristmill-ingest", Some(&["gristmill-shard"])),
    ("gristmill-loader", Some(&["gristmill-shard"])),
    ("gristmill-c10d", Some(&[])),
    ("gristmill-train", Some(&["gristmill-c10d", "gristmill-loader", "gristmill-shard"])),
    ("gristmill", None),
    ("gristmill-benches", None),
    ("gristmill-testkit", None),
];

/// Crates that only these libraries may reach, however many steps away: what the crate's name begins with, and whose it is.
const HEAVY: [(&str, &[&str]); 3] = [
    ("polars", &["gristmill-ingest"]),
    ("tch", &["gristmill-train", "gristmill-c10d"]),
    ("torch-sys", &["gristmill-train", "gristmill-c10d"]),
];

/// Crates that no library may import itself: untyped errors, arguments, printing.
const COMMAND_ONLY: [&str; 6] = ["anyhow", "clap", "comfy-table", "figment", "indicatif", "tracing-subscriber"];

/// What one member depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrateTree {
    /// The member.
    pub root: String,
    /// What it names in its own manifest.
    pub imports: Vec<String>,
    /// Every crate it reaches, with one way there: the crates between the member and it.
    pub reached: BTreeMap<String, Vec<String>>,
}

impl CrateTree {
    /// Reads what `cargo tree --prefix depth --format ' {p}'` prints: a line a crate, its depth first.
    ///
    /// # Errors
    /// What is wrong with the text, and in which line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut root = None;
        let (mut imports, mut reached) = (Vec::new(), BTreeMap::new());
        let mut way: Vec<String> = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let bad = |what: &str| format!("line {} of the tree {what}: {line:?}", number + 1);
            let mut words = line.split_whitespace();
            let depth: usize = words.next().and_then(|w| w.parse().ok()).ok_or_else(|| bad("has no depth"))?;
            let name = words.next().ok_or_else(|| bad("names no crate"))?;
            if depth > way.len() {
                return Err(bad("skips a level"));
            }
            way.truncate(depth);
            match depth {
                0 if root.is_none() => root = Some(name.to_owned()),
                0 => return Err(bad("begins a second tree")),
                _ => {
                    if depth == 1 {
                        imports.push(name.to_owned());
                    }
                    reached.entry(name.to_owned()).or_insert_with(|| way[1..].to_vec());
                }
            }
            way.push(name.to_owned());
        }
        let root = root.ok_or("the tree is empty")?;
        Ok(Self { root, imports, reached })
    }

    /// What breaks the rules, a sentence each; empty when nothing does.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut violations = Vec::new();
        let Some((_, allowed)) = MEMBERS.iter().find(|(name, _)| *name == self.root) else {
            return vec![format!("{} is no member that the rules know: add it to MEMBERS", self.root)];
        };
        let Some(allowed) = allowed else { return violations };
        for (name, way) in &self.reached {
            let ours = MEMBERS.iter().any(|(member, _)| member == name);
            if ours && !allowed.contains(&name.as_str()) {
                violations.push(self.sentence("imports", name, way));
            }
            let heavy = HEAVY.iter().find(|(crate_, _)| name == crate_ || name.starts_with(&format!("{crate_}-")));
            if let Some((_, owners)) = heavy
                && !owners.contains(&self.root.as_str())
            {
                violations.push(self.sentence("reaches", name, way));
            }
        }
        for name in &self.imports {
            if COMMAND_ONLY.contains(&name.as_str()) {
                violations.push(format!("{} imports {name}, which is for the command only", self.root));
            }
        }
        violations
    }

    /// Crates of libtorch that it reaches.
    #[must_use]
    pub fn libtorch(&self) -> Vec<&str> {
        self.reached.keys().map(String::as_str).filter(|name| ["tch", "torch-sys"].contains(name)).collect()
    }

    fn sentence(&self, verb: &str, name: &str, way: &[String]) -> String {
        let through = if way.is_empty() { String::new() } else { format!(" (through {})", way.join(" -> ")) };
        format!("{} {verb} {name}{through}", self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> CrateTree {
        CrateTree::parse(text).unwrap()
    }

    #[test]
    fn a_tree_is_read_with_the_way_to_each_crate() {
        let t = tree(
            "0 gristmill-loader v0.1.0 (/x)\n1 arrow v60.1.0\n2 half v2.0.0\n1 gristmill-shard v0.1.0\n2 half v2.0.0 (*)\n",
        );
        assert_eq!(t.imports, ["arrow", "gristmill-shard"]);
        assert_eq!(t.reached["half"], ["arrow"]);
        assert_eq!(t.reached.len(), 3);
        assert_eq!(t.violations(), [""; 0]);
        for bad in ["", "x y", "0", "0 a\n2 b", "0 a\n0 b", "1 a"] {
            assert!(CrateTree::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_polars_import_is_red_wherever_it_is_and_shows_the_way() {
        let direct = tree("0 gristmill-loader v0.1.0\n1 polars v0.55.0\n2 polars-core v0.55.0\n");
        assert_eq!(
            direct.violations(),
            ["gristmill-loader reaches polars", "gristmill-loader reaches polars-core (through polars)"]
        );
        let far = tree("0 gristmill-shard v0.1.0\n1 some-crate v1.0.0\n2 other v1.0.0\n3 polars-arrow v0.55.0\n");
        assert_eq!(far.violations(), ["gristmill-shard reaches polars-arrow (through some-crate -> other)"]);
        assert_eq!(tree("0 gristmill-ingest v0.1.0\n1 polars v0.55.0\n").violations(), [""; 0]);
    }

    #[test]
    fn each_wrong_direction_is_red() {
        for (root, import) in [
            ("gristmill-shard", "gristmill-loader"),
            ("gristmill-shard", "tch"),
            ("gristmill-ingest", "gristmill-loader"),
            ("gristmill-ingest", "torch-sys"),
            ("gristmill-loader", "gristmill-ingest"),
            ("gristmill-loader", "gristmill-c10d"),
            ("gristmill-loader", "tch"),
            ("gristmill-train", "gristmill-ingest"),
            ("gristmill-train", "gristmill"),
            ("gristmill-train", "polars-lazy"),
            ("gristmill-c10d", "gristmill-shard"),
            ("gristmill-shard", "anyhow"),
            ("gristmill-train", "indicatif"),
            ("gristmill-new", "serde"),
        ] {
            let t = tree(&format!("0 {root} v0.1.0\n1 {import} v1.0.0\n"));
            assert_eq!(t.violations().len(), 1, "{root} -> {import}");
        }
        // A name that only begins alike is another crate, and one that others bring is not imported.
        assert_eq!(tree("0 gristmill-shard v0.1\n1 polarsish v1\n1 a v1\n2 anyhow v1\n").violations(), [""; 0]);
        assert_eq!(tree("0 gristmill v0.1\n1 polars v1\n1 tch v1\n1 anyhow v1\n").violations(), [""; 0]);
    }
}
