//! `gristmill doctor`: what this machine has, what it lacks, and how to get it.

use std::{path::Path, process::ExitCode};

use crate::{output, session::Session, tables, training};

struct Check {
    what: &'static str,
    /// `None`: fine.
    lacks: Option<&'static str>,
    found: String,
    /// Whether gristmill can't do its work without it.
    needed: bool,
}

pub fn run(session: &Session) -> anyhow::Result<ExitCode> {
    let checks = checks();
    let missing = checks.iter().any(|c| c.needed && c.lacks.is_some());
    if session.common.json {
        let list: Vec<_> = checks
            .iter()
            .map(|c| serde_json::json!({ "what": c.what, "found": c.found, "ok": c.lacks.is_none(), "needed": c.needed, "help": c.lacks }))
            .collect();
        output::json(&list)?;
    } else {
        let rows = checks.iter().map(|c| {
            let state = match (c.lacks, c.needed) {
                (None, _) => "ok",
                (Some(_), true) => "MISSING",
                (Some(_), false) => "absent",
            };
            vec![c.what.to_owned(), state.to_owned(), c.found.clone(), c.lacks.unwrap_or_default().to_owned()]
        });
        output::result(&tables::table(&["what", "state", "found", "how to get it"], 4, rows))?;
    }
    Ok(ExitCode::from(if missing { 2 } else { 0 }))
}

fn checks() -> Vec<Check> {
    let fine = |what, found: String| Check { what, lacks: None, found, needed: true };
    let mut checks = vec![
        fine("gristmill", env!("CARGO_PKG_VERSION").to_owned()),
        fine("CPUs", std::thread::available_parallelism().map_or_else(|e| e.to_string(), |n| n.to_string())),
        memory(),
    ];
    let training = training::locate();
    checks.push(Check {
        what: "libtorch",
        found: match &training {
            Ok(program) => format!("{} (started by {})", training::LIBTORCH_LIB, program.display()),
            Err(e) => e.to_string().lines().next().unwrap_or_default().to_owned(),
        },
        lacks: training.is_err().then_some("run `make libtorch`, then `cargo build --release --workspace`"),
        needed: true,
    });
    checks.push(Check {
        what: "c10d backend gloo",
        found: "in libtorch_cpu".into(),
        lacks: training.is_err().then_some("comes with libtorch"),
        needed: true,
    });
    checks.push(Check {
        what: "c10d backend nccl",
        found: "not built in".into(),
        lacks: Some("ranks meet over Gloo; NCCL is for a later version"),
        needed: false,
    });
    let gpus = std::fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, Iterator::count);
    checks.push(Check {
        what: "GPUs",
        found: gpus.to_string(),
        lacks: (gpus == 0).then_some("none is needed: training runs on the CPU"),
        needed: false,
    });
    checks.push(credentials());
    checks
}

fn memory() -> Check {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let total = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemTotal:"))?.to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let limit = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    let found = match (total, limit) {
        (Some(total), Some(limit)) if limit < total => {
            format!("{} of {} (cgroup limit)", tables::bytes(limit), tables::bytes(total))
        }
        (Some(total), _) => tables::bytes(total),
        (None, _) => "unknown".into(),
    };
    Check { what: "memory", lacks: None, found, needed: true }
}

/// object_store reads neither AWS_PROFILE nor SSO nor ~/.aws.
fn credentials() -> Check {
    let set = |name: &str| std::env::var_os(name).is_some();
    let keys = set("AWS_ACCESS_KEY_ID") && set("AWS_SECRET_ACCESS_KEY");
    let files = std::env::var_os("HOME").is_some_and(|home| Path::new(&home).join(".aws").exists());
    let (found, lacks) = match (keys, set("AWS_PROFILE") || files) {
        (true, _) => ("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set", None),
        (false, true) => (
            "only a profile or ~/.aws, which is not read",
            Some("run `eval \"$(aws configure export-credentials --format env)\"`"),
        ),
        (false, false) => ("none", Some("for s3:// set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")),
    };
    Check { what: "S3 credentials", lacks, found: found.into(), needed: false }
}
