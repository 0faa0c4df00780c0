//! A bad input, and what must be said of it: a table row, run twice (for people and for programs).

use std::path::Path;

use testkit::program::{Ended, finish};

use crate::pipeline::{LIMIT, gristmill};

/// A bad input.
pub struct Bad<'a> {
    /// The arguments.
    pub args: Vec<&'a str>,
    /// The environment.
    pub env: Vec<(&'a str, &'a str)>,
    /// The exit status that is documented for it.
    pub status: i32,
    /// `kind` of the JSON object.
    pub kind: &'a str,
    /// What is wrong and where: each must be in the message.
    pub says: Vec<&'a str>,
    /// What to do: must be in the help.
    pub help: &'a str,
}

/// `gristmill` with these arguments, split at spaces, ends with `status`.
pub fn bad<'a>(args: &'a str, status: i32, kind: &'a str, says: &[&'a str], help: &'a str) -> Bad<'a> {
    Bad { args: args.split(' ').collect(), env: Vec::new(), status, kind, says: says.to_vec(), help }
}

impl<'a> Bad<'a> {
    /// One more argument, which may have spaces.
    pub fn arg(mut self, arg: &'a str) -> Self {
        self.args.push(arg);
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, name: &'a str, value: &'a str) -> Self {
        self.env.push((name, value));
        self
    }

    fn run(&self, folder: &Path, json: bool) -> Ended {
        let mut command = gristmill(&self.args);
        if json {
            command.arg("--json");
        }
        finish(command.current_dir(folder).envs(self.env.iter().copied()), LIMIT)
    }

    /// What differs from what must be said.
    fn differences(&self, folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let ended = self.run(folder, false);
        let mut require = |holds: bool, what: String| {
            if !holds {
                found.push(what);
            }
        };
        require(ended.status == Some(self.status), format!("status {:?}, not {}", ended.status, self.status));
        require(ended.stdout.is_empty(), format!("stdout has {:?}", ended.stdout));
        // What was done before may stand above it.
        require(
            ended.stderr.lines().any(|l| l.starts_with("error: ")),
            "no line of stderr begins with \"error: \"".into(),
        );
        for part in &self.says {
            require(ended.stderr.contains(part), format!("stderr lacks {part:?}"));
        }
        require(ended.stderr.contains(self.help), format!("stderr lacks the help {:?}", self.help));
        require(!ended.stderr.contains("panicked"), "it panicked".into());

        let json = self.run(folder, true);
        require(json.status == Some(self.status), format!("status {:?} with --json", json.status));
        require(json.stdout.is_empty(), format!("stdout has {:?} with --json", json.stdout));
        match serde_json::from_str::<serde_json::Value>(&json.stderr) {
            Err(e) => require(false, format!("stderr with --json is not one object: {e}\n{}", json.stderr)),
            Ok(value) => {
                let error = &value["error"];
                let all = error.to_string();
                require(error["kind"] == self.kind, format!("kind {}, not {}", error["kind"], self.kind));
                require(error["message"].as_str().is_some_and(|m| !m.is_empty()), "no message in JSON".into());
                let missing =
                    self.says.iter().find(|p| !all.contains(serde_json::to_string(p).unwrap().trim_matches('"')));
                require(missing.is_none(), format!("JSON lacks {missing:?}: {all}"));
            }
        }
        if !found.is_empty() {
            found.push(format!("stderr was:\n{}", ended.stderr));
        }
        found
    }
}

/// Runs all of them in `folder`, and fails with everything that is not as it must be.
pub fn check(folder: &Path, table: &[Bad]) {
    let mut failures = String::new();
    for case in table {
        let differences = case.differences(folder);
        if !differences.is_empty() {
            failures.push_str(&format!("\n* gristmill {} {:?}\n", case.args.join(" "), case.env));
            for difference in differences {
                failures.push_str(&format!("  - {}\n", difference.replace('\n', "\n    ")));
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
