//! Starting the ranks of one machine: this executable again, once for each rank, with torchrun's variables set.
//!
//! The launcher hosts the store that the ranks meet at, on a free loopback port, so no port has to be chosen, and rank 0
//! can't lose a race for it. Ranks are killed by the kernel when the launcher itself is: a rerun never meets survivors.
//!
//! When a run ends early, most ranks see it, and one report is enough. The ranks' standard input is one pipe with one
//! byte in it: who reads the byte says what went wrong. If none has taken it, the launcher does.

use std::{
    ffi::OsString,
    io::{PipeReader, Read as _, Write as _},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use gristmill_c10d::{Rendezvous, TcpStore, World};
use gristmill_shard::{ErrorKind, control::StopFlag};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::error::{Error, Result};

/// How often the ranks are looked at.
const POLL: Duration = Duration::from_millis(10);

/// Set for ranks whose standard input is the pipe with the right to report.
const LAUNCHED: &str = "LAUNCHED_BY_GRISTMILL";

/// What to start, and how often.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program; [`std::env::current_exe`] as a rule.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// More environment variables for it.
    pub env: Vec<(OsString, OsString)>,
    /// Ranks, at least 1.
    pub ranks: usize,
    /// How long the ranks may take to meet.
    pub timeout: Duration,
    /// How long the others may take to end by themselves when one rank has failed, before they are killed.
    pub grace: Duration,
}

impl Launch {
    /// `ranks` times this executable with `args`.
    ///
    /// # Errors
    /// [`Error::Environment`] when the executable's path can't be told.
    pub fn this_program(args: Vec<OsString>, ranks: usize, timeout: Duration) -> Result<Self> {
        let program = std::env::current_exe().map_err(|e| Error::Environment {
            what: format!("the path of this program can't be told: {e}"),
            help: "start the ranks with torchrun --no-python instead".to_owned(),
        })?;
        let grace = timeout.min(Duration::from_secs(30));
        Ok(Self { program, args, env: Vec::new(), ranks, timeout, grace })
    }
}

/// Starts the ranks and waits until all have ended. Rank 0 has this process's standard output, and all its standard
/// error. When `stop` is set they get SIGTERM, upon which [`crate::train`]'s caller sets its own stop flag.
///
/// # Errors
/// [`Error::StoppedRanks`] when they stopped by request; [`Error::RankFailed`], naming the rank that failed first, with
/// its exit status or signal; [`Error::AlreadyReported`] instead of either when a rank has said why by
/// [`must_report`]; [`Error::Spawn`]; [`Error::Environment`]; [`Error::Usage`] for no ranks.
pub fn launch(launch: &Launch, stop: &StopFlag) -> Result<()> {
    if launch.ranks == 0 {
        return Err(Error::usage("0 ranks were asked for", "give --nproc at least 1"));
    }
    let store = TcpStore::server("127.0.0.1", 0, launch.ranks, launch.timeout).map_err(|source| Error::Group {
        during: "hosting the store".to_owned(),
        reported: None,
        source,
    })?;
    let right = right_to_report().map_err(|e| Error::Environment {
        what: format!("no pipe for the ranks could be made: {e}"),
        help: "raise the limit of open files (ulimit -n)".to_owned(),
    })?;
    let mut ranks = Ranks { running: Vec::with_capacity(launch.ranks), right };
    for rank in 0..launch.ranks {
        let child = spawn(launch, rank, store.port(), &ranks.right).map_err(|source| Error::Spawn { rank, source })?;
        ranks.running.push((rank, child));
    }
    ranks.wait(launch.grace, stop)
}

/// A pipe with one byte, whose writer is gone: the first read gets the byte, later ones the end.
fn right_to_report() -> std::io::Result<PipeReader> {
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(b"1")?;
    Ok(reader)
}

/// Whether this process, which ends by `error`, has to say so. Of the ranks that [`launch`] started the first to ask
/// has to, unless its error only echoes another rank's; a process that was started otherwise always has to. Ask once,
/// and report then.
#[must_use]
pub fn must_report(error: Option<&Error>) -> bool {
    if std::env::var_os(LAUNCHED).is_none() {
        return true;
    }
    if error.is_some_and(Error::is_echo) {
        return false;
    }
    // Where it can't be told, better twice than never.
    !matches!(std::io::stdin().read(&mut [0]), Ok(0))
}

fn spawn(launch: &Launch, rank: usize, port: u16, right: &PipeReader) -> std::io::Result<Child> {
    let world = World { rank, world_size: launch.ranks, local_rank: rank, local_world_size: launch.ranks };
    let rendezvous = Rendezvous {
        world,
        master_addr: "127.0.0.1".to_owned(),
        master_port: port,
        agent_store: true,
        restart_count: 0,
        run_id: format!("launch-{}", std::process::id()),
    };
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).envs(rendezvous.to_env()).envs(launch.env.iter().cloned());
    command.env(LAUNCHED, "1").stdin(right.try_clone()?);
    if rank != 0 {
        command.stdout(Stdio::null());
    }
    // A group of its own: the terminal's Ctrl-C reaches the launcher alone, which passes one SIGTERM on.
    command.process_group(0);
    let launcher = rustix::process::getpid();
    // SAFETY: between fork and exec it makes two system calls, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The launcher may have ended before that call.
            if rustix::process::getppid() == Some(launcher) {
                Ok(())
            } else {
                Err(std::io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()))
            }
        });
    }
    command.spawn()
}

/// The ranks that have not ended; those left are killed when it is dropped.
struct Ranks {
    running: Vec<(usize, Child)>,
    right: PipeReader,
}

impl Ranks {
    fn wait(&mut self, grace: Duration, stop: &StopFlag) -> Result<()> {
        let mut told = false;
        let mut stopped: Option<(usize, ExitStatus)> = None;
        let mut interrupted = false;
        let mut failed_before = false;
        let mut killed = false;
        let mut failed: Option<(usize, ExitStatus, Instant)> = None;
        while !self.running.is_empty() {
            for (rank, status) in self.ended()? {
                if status.code() == Some(i32::from(ErrorKind::Stopped.exit_code())) {
                    stopped.get_or_insert((rank, status));
                } else if stop.is_set() && status.signal() == Some(Signal::TERM.as_raw()) {
                    // It had not come as far as to listen for signals.
                    interrupted = true;
                } else if !status.success() {
                    // Of ranks that are seen to end at once, a killed one is the cause and the others the effect; so is
                    // one with a status of its own, beside those that have lost a peer.
                    let cause = failed.is_none_or(|(_, before, at)| {
                        !killed && weight(status) > weight(before) && at.elapsed() < POLL * 10
                    });
                    failed_before |= !stop.is_set();
                    if cause {
                        failed = Some((rank, status, failed.map_or_else(Instant::now, |(_, _, at)| at)));
                    }
                }
            }
            if stop.is_set() && !told {
                told = true;
                self.signal(Signal::TERM);
            }
            // Ranks listen before they meet: when one did not, none has begun to train, and there is nothing to save.
            if interrupted || failed.is_some_and(|(_, _, at)| at.elapsed() > grace) {
                killed = true;
                self.signal(Signal::KILL);
            }
            if !self.running.is_empty() {
                std::thread::sleep(POLL);
            }
        }
        if interrupted && !failed_before {
            return Err(Error::StoppedRanks);
        }
        match (failed, stopped) {
            (Some((rank, status, _)), _) => {
                let (how, kind) = (describe(status), kind(status));
                // A killed rank has said nothing, whatever another one took for the cause.
                if status.signal().is_none() && self.has_reported() {
                    Err(Error::AlreadyReported { rank, how, kind })
                } else {
                    Err(Error::RankFailed { rank, how, kind })
                }
            }
            (None, Some((rank, status))) => {
                if self.has_reported() {
                    Err(Error::AlreadyReported { rank, how: describe(status), kind: ErrorKind::Stopped })
                } else {
                    Err(Error::StoppedRanks)
                }
            }
            (None, None) => Ok(()),
        }
    }

    /// Whether a rank has taken the right to report; it is taken by this call otherwise.
    fn has_reported(&mut self) -> bool {
        matches!(self.right.read(&mut [0]), Ok(0))
    }

    fn ended(&mut self) -> Result<Vec<(usize, ExitStatus)>> {
        let mut ended = Vec::new();
        let mut running = Vec::with_capacity(self.running.len());
        for (rank, mut child) in self.running.drain(..) {
            match child.try_wait() {
                Ok(Some(status)) => ended.push((rank, status)),
                Ok(None) => running.push((rank, child)),
                // The system says it is no child of ours: there is nothing left to wait for.
                Err(e) => return Err(Error::internal(format!("waiting for rank {rank}: {e}"))),
            }
        }
        self.running = running;
        Ok(ended)
    }

    fn signal(&self, signal: Signal) {
        for (rank, child) in &self.running {
            // Not yet waited for, so the id is still the child's.
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(Err(e)) = pid.map(|pid| kill_process(pid, signal)) {
                tracing::warn!("rank {rank} could not be signalled: {e}");
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for (rank, child) in &mut self.running {
            if let Err(e) = child.wait() {
                tracing::warn!("rank {rank} could not be waited for: {e}");
            }
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => format!("ended: {status}"),
    }
}

/// How much a status tells of the cause: 1 is also that of a rank that has lost a peer.
fn weight(status: ExitStatus) -> u8 {
    match status.code() {
        None => 2,
        Some(code) => u8::from(code != i32::from(ErrorKind::Peer.exit_code())),
    }
}

/// What to do about it: what the rank's own exit status says.
fn kind(status: ExitStatus) -> ErrorKind {
    match status.code() {
        Some(code) if code == i32::from(ErrorKind::Usage.exit_code()) => ErrorKind::Usage,
        _ => ErrorKind::Peer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, ranks: usize, grace: Duration) -> Launch {
        Launch {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: Vec::new(),
            ranks,
            timeout: Duration::from_secs(20),
            grace,
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn ranks_get_their_place_and_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let mut job = shell(
            "echo $RANK/$WORLD_SIZE/$LOCAL_RANK/$TORCHELASTIC_USE_AGENT_STORE > $OUT/$RANK; test $MASTER_PORT -gt 0",
            3,
            LONG,
        );
        job.env = vec![("OUT".into(), dir.path().into())];
        launch(&job, &StopFlag::new()).unwrap();
        for rank in 0..3 {
            let text = std::fs::read_to_string(dir.path().join(rank.to_string())).unwrap();
            assert_eq!(text.trim(), format!("{rank}/3/{rank}/True"));
        }
    }

    #[test]
    fn a_failing_rank_is_named_and_the_others_are_ended() {
        let began = Instant::now();
        let job = shell("if [ $RANK = 1 ]; then exit 3; fi; exec sleep 60", 3, Duration::from_millis(50));
        match launch(&job, &StopFlag::new()) {
            Err(Error::RankFailed { rank: 1, how, kind: ErrorKind::Peer }) => assert!(how.contains('3'), "{how}"),
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < LONG);
    }

    #[test]
    fn a_killed_rank_is_the_cause() {
        let job = shell("if [ $RANK = 0 ]; then kill -9 $$; fi; exit 1", 2, LONG);
        match launch(&job, &StopFlag::new()) {
            Err(Error::RankFailed { rank: 0, how, .. }) => assert!(how.contains("signal 9"), "{how}"),
            // The other may have been seen to end first, well before.
            Err(Error::RankFailed { rank: 1, .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_usage_error_keeps_its_kind() {
        let error = launch(&shell("exit 2", 2, LONG), &StopFlag::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }

    #[test]
    fn a_stop_is_passed_on_and_told_from_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap 'exit 75' TERM; touch $OUT/$RANK; while :; do sleep 0.01; done";
        let mut job = shell(script, 2, LONG);
        job.env = vec![("OUT".into(), dir.path().into())];
        let stop = StopFlag::new();
        let result = std::thread::scope(|s| {
            s.spawn(|| {
                while !(dir.path().join("0").exists() && dir.path().join("1").exists()) {
                    std::thread::sleep(POLL);
                }
                stop.set();
            });
            launch(&job, &stop)
        });
        assert!(matches!(result, Err(Error::StoppedRanks)), "{result:?}");
    }

    #[test]
    fn a_rank_that_was_not_listening_yet_is_stopped_too() {
        let dir = tempfile::tempdir().unwrap();
        // Rank 1 is as while it loads its libraries; rank 0 waits for it and would not end by itself.
        let script = "if [ $RANK = 0 ]; then trap '' TERM; fi; touch $OUT/$RANK; exec sleep 60";
        let mut job = shell(script, 2, LONG);
        job.env = vec![("OUT".into(), dir.path().into())];
        let stop = StopFlag::new();
        let began = Instant::now();
        let result = std::thread::scope(|s| {
            s.spawn(|| {
                while !(dir.path().join("0").exists() && dir.path().join("1").exists()) {
                    std::thread::sleep(POLL);
                }
                stop.set();
            });
            launch(&job, &stop)
        });
        assert!(matches!(result, Err(Error::StoppedRanks)), "{result:?}");
        assert!(began.elapsed() < LONG, "nobody waits for what can't come");
    }

    #[test]
    fn a_signal_that_nobody_asked_for_is_a_failure() {
        let result = launch(&shell("kill -15 $$", 1, LONG), &StopFlag::new());
        assert!(matches!(result, Err(Error::RankFailed { rank: 0, .. })), "{result:?}");
    }

    #[test]
    fn one_report_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let script = "if [ -n \"$(head -c 1)\" ]; then touch $OUT/$RANK; fi; exit 2";
        let mut job = shell(script, 3, LONG);
        job.env = vec![("OUT".into(), dir.path().into())];
        let result = launch(&job, &StopFlag::new());
        assert!(matches!(result, Err(Error::AlreadyReported { kind: ErrorKind::Usage, .. })), "{result:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "one rank has the right");

        let stopped = launch(&shell("head -c 1 > /dev/null; exit 75", 2, LONG), &StopFlag::new());
        assert!(matches!(stopped, Err(Error::AlreadyReported { kind: ErrorKind::Stopped, .. })), "{stopped:?}");
        // One that was killed has said nothing.
        let killed = launch(&shell("head -c 1 > /dev/null; kill -9 $$", 1, LONG), &StopFlag::new());
        assert!(matches!(killed, Err(Error::RankFailed { .. })), "{killed:?}");
    }

    #[test]
    fn what_echoes_another_rank_is_told_from_what_is_new() {
        let group = |reported: Option<&str>, source| Error::Group {
            during: "a step".into(),
            reported: reported.map(str::to_owned),
            source,
        };
        let lost = || gristmill_c10d::Error::PeerLost { what: "all_reduce".into(), message: "closed".into() };
        let late =
            || gristmill_c10d::Error::Timeout { what: "all_reduce".into(), after: LONG, message: "timed out".into() };
        assert!(Error::Reported { rank: 0, message: "full".into() }.is_echo());
        assert!(group(None, lost()).is_echo() && group(Some("rank 1: full"), late()).is_echo());
        assert!(!group(None, late()).is_echo(), "no other rank may be able to tell");
        assert!(!Error::usage("a", "b").is_echo());
    }

    #[test]
    fn what_cant_be_started_is_an_error() {
        let mut job = shell("", 1, LONG);
        job.program = "/nonexistent/program".into();
        assert!(matches!(launch(&job, &StopFlag::new()), Err(Error::Spawn { rank: 0, .. })));
        assert!(matches!(launch(&shell("", 0, LONG), &StopFlag::new()), Err(Error::Usage { .. })));
    }
}
