//! The program that trains, `gristmill-train`, seen from outside: where it is, how it is started, what it reports.

use std::{
    ffi::OsString,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use gristmill_shard::StopFlag;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Reported};

/// Folder of the libtorch that this build was linked with.
pub const LIBTORCH_LIB: &str = env!("BUILT_WITH_LIBTORCH_LIB");
const PROGRAM: &str = "gristmill-train";
const LIBRARY: &str = "libtorch_cpu.so";
/// How much libtorch's C++ parts write to standard error. They dump stack traces there for what the ranks report
/// themselves. It has to be set from outside: it is read before `main`.
const TORCH_LOG: (&str, &str) = ("TORCH_CPP_LOG_LEVEL", "FATAL");
/// How often a running `gristmill-train` is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The program beside this one, once it can start.
pub fn locate() -> anyhow::Result<PathBuf> {
    if LIBTORCH_LIB.is_empty() {
        return Err(Failure::environment(
            "this gristmill was built without training (--no-default-features)",
            "build it with `make libtorch` and `cargo build --release --workspace`",
        ));
    }
    let program = std::env::current_exe().context("the path of this program can't be told")?.with_file_name(PROGRAM);
    if !program.is_file() {
        return Err(Failure::environment(
            format!("{} is not there", program.display()),
            "build both programs with `cargo build --release --workspace`, and keep them side by side",
        ));
    }
    let searched = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&searched).chain([Path::new(LIBTORCH_LIB).to_path_buf()]);
    if !folders.into_iter().any(|folder| folder.join(LIBRARY).is_file()) {
        return Err(Failure::environment(
            format!(
                "libtorch is missing: there is no {LIBRARY} in {LIBTORCH_LIB}, with which this gristmill was built"
            ),
            "run `make libtorch`, or set LD_LIBRARY_PATH to the lib folder of torch 2.11.0",
        ));
    }
    Ok(program)
}

/// Replaces this process by `gristmill-train` with the same arguments; returns only when that fails.
pub fn exec() -> anyhow::Result<ExitCode> {
    let program = locate()?;
    let error = command(&program).args(std::env::args_os().skip(1)).exec();
    Err(anyhow::Error::from(error).context(format!("{} could not be started", program.display())))
}

/// A command for `gristmill-train`, with libtorch kept quiet unless its log level is set already.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    let (name, level) = TORCH_LOG;
    if std::env::var_os(name).is_none() {
        command.env(name, level);
    }
    command
}

/// What `gristmill-train` says when it is done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// It had been done before.
    pub already_current: bool,
    /// The report, for programs.
    pub report: serde_json::Value,
    /// The report, for people.
    pub text: String,
}

/// Runs `gristmill-train` and waits for its end. A stop is passed on; when this process is killed, so is that one.
pub fn spawn(arguments: &[OsString], stop: &StopFlag) -> anyhow::Result<String> {
    let program = locate()?;
    let parent = rustix::process::getpid();
    let mut command = command(&program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec it makes two system calls, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()))
            }
        });
    }
    let mut child = command.spawn().with_context(|| format!("{} could not be started", program.display()))?;
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        match stdout {
            Some(mut stdout) => std::io::Read::read_to_string(&mut stdout, &mut text).map(|_| text),
            None => Ok(text),
        }
    });
    let mut told = false;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for training")? {
            break status;
        }
        if stop.is_set() && !told {
            told = true;
            // It may have ended meanwhile; the next look tells.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        }
        std::thread::sleep(POLL);
    };
    let text =
        reader.join().map_err(|_| anyhow::anyhow!("reading the report failed"))?.context("reading the report")?;
    if status.signal() == Some(Signal::TERM.as_raw()) {
        // It was stopped before it could listen, and has said nothing.
        stop.check()?;
    }
    if !status.success() {
        let status = status.code().or(status.signal().map(|s| 128 + s)).and_then(|s| u8::try_from(s).ok());
        return Err(Reported(status.unwrap_or(1)).into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn libtorch_is_quiet_unless_told_otherwise() {
        let (name, level) = TORCH_LOG;
        let quiet = command(Path::new("x"));
        let set: Vec<_> = quiet.get_envs().collect();
        match std::env::var_os(name) {
            None => assert_eq!(set, [(OsStr::new(name), Some(OsStr::new(level)))]),
            Some(_) => assert!(set.is_empty(), "{set:?}"),
        }
    }
}
