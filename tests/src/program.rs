//! Programs run to their end, or to a time limit, in an environment without the variables that change what they do.

use std::{
    io::Read,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Prefixes of variables that a program under test must not inherit.
const LAUNCHERS: [&str; 7] = ["GRISTMILL_", "SLURM_", "TORCHELASTIC_", "AWS_", "MASTER_", "GROUP_", "LOCAL_"];
/// Names of others.
const NAMES: [&str; 8] =
    ["RANK", "WORLD_SIZE", "RUST_LOG", "RUST_BACKTRACE", "OMP_NUM_THREADS", "COLUMNS", "NO_COLOR", "CLICOLOR_FORCE"];

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status, `None` when a signal ended it.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl Ended {
    /// Itself, when it ended with status 0.
    ///
    /// # Panics
    /// When it did not, with all that it wrote.
    #[must_use]
    pub fn success(self) -> Self {
        assert_eq!(self.status, Some(0), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// stdout as one JSON document.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in stdout:\n{}", self.stdout))
    }
}

/// A command for `program` whose environment has nothing that would make it a rank of a group, configure it, or change
/// its messages.
#[must_use]
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if NAMES.contains(&&*text) || LAUNCHERS.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A program under way, whose output is being gathered.
#[derive(Debug)]
pub struct Running {
    child: Child,
    started: Instant,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

/// Starts `command`, whose stdout and stderr are to be pipes.
///
/// # Panics
/// When it can't be started.
#[must_use]
pub fn start(command: &mut Command) -> Running {
    let started = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{:?} can't be started: {e}", command.get_program()));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    Running { child, started, stdout: gather(stdout), stderr: gather(stderr) }
}

fn gather(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    /// Time since it was started.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// When the system can't tell.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Ends it with SIGKILL; nothing happens when it has ended already.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it takes longer than `limit` since its start; it is killed then.
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> Ended {
        let mut in_time = true;
        while !self.has_ended() {
            if self.started.elapsed() > limit {
                in_time = false;
                self.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = self.child.wait().expect("a child can be waited for");
        let took = self.started.elapsed();
        let stdout = self.stdout.join().expect("the reader of stdout");
        let stderr = self.stderr.join().expect("the reader of stderr");
        assert!(in_time, "it did not end within {limit:?}; stdout:\n{stdout}\nstderr:\n{stderr}");
        Ended { status: status.code(), signal: status.signal(), stdout, stderr, took }
    }
}

/// Runs `command` to its end.
///
/// # Panics
/// When it can't be started or takes longer than `limit`.
#[must_use]
pub fn finish(command: &mut Command, limit: Duration) -> Ended {
    start(command).wait(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Command {
        let mut c = command(Path::new("/bin/sh"));
        c.args(["-c", script]);
        c
    }

    #[test]
    fn the_end_is_reported_as_it_was() {
        let ended = finish(&mut shell("echo out; echo err >&2; exit 3"), LIMIT);
        assert_eq!((ended.status, ended.signal), (Some(3), None));
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "err\n"));
        let ended = finish(&mut shell("kill -9 $$"), LIMIT);
        assert_eq!((ended.status, ended.signal), (None, Some(9)));
    }

    #[test]
    fn what_takes_too_long_is_killed_and_fails() {
        let began = Instant::now();
        let result = std::panic::catch_unwind(|| finish(&mut shell("exec sleep 60"), Duration::from_millis(50)));
        assert!(result.is_err() && began.elapsed() < LIMIT);
    }
}
