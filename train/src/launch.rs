//! Starting the ranks of one machine: this executable again, once for each rank, with torchrun's variables set.
//!
//! The launcher hosts the store that the ranks meet at, on a free loopback port, so no port has to be chosen, and rank 0
//! can't lose a race for it. Ranks are killed by the kernel when the launcher itself is: a rerun never meets survivors.

use std::{
    ffi::OsString,
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
/// its exit status or signal; [`Error::Spawn`]; [`Error::Usage`] for no ranks.
pub fn launch(launch: &Launch, stop: &StopFlag) -> Result<()> {
    if launch.ranks == 0 {
        return Err(Error::usage("0 ranks were asked for", "give --nproc at least 1"));
    }
    let store = TcpStore::server("127.0.0.1", 0, launch.ranks, launch.timeout).map_err(|source| Error::Group {
        during: "hosting the store".to_owned(),
        reported: None,
        source,
    })?;
    let mut ranks = Ranks { running: Vec::with_capacity(launch.ranks) };
    for rank in 0..launch.ranks {
        let child = spawn(launch, rank, store.port()).map_err(|source| Error::Spawn { rank, source })?;
        ranks.running.push((rank, child));
    }
    ranks.wait(launch.grace, stop)
}

fn spawn(launch: &Launch, rank: usize, port: u16) -> std::io::Result<Child> {
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
    command.args(&launch.args).envs(rendezvous.to_env()).envs(launch.env.iter().cloned()).stdin(Stdio::null());
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
}

impl Ranks {
    fn wait(&mut self, grace: Duration, stop: &StopFlag) -> Result<()> {
        let mut told = false;
        let mut stopped = false;
        let mut killed = false;
        let mut failed: Option<(usize, ExitStatus, Instant)> = None;
        while !self.running.is_empty() {
            for (rank, status) in self.ended()? {
                if status.code() == Some(i32::from(ErrorKind::Stopped.exit_code())) {
                    stopped = true;
                } else if !status.success() {
                    // Of ranks that are seen to end at once, a killed one is the cause and the others the effect.
                    let cause = failed.is_none_or(|(_, before, at)| {
                        let later = before.signal().is_none() && status.signal().is_some();
                        later && !killed && at.elapsed() < POLL * 10
                    });
                    if cause {
                        failed = Some((rank, status, failed.map_or_else(Instant::now, |(_, _, at)| at)));
                    }
                }
            }
            if stop.is_set() && !told {
                told = true;
                self.signal(Signal::TERM);
            }
            if failed.is_some_and(|(_, _, at)| at.elapsed() > grace) {
                killed = true;
                self.signal(Signal::KILL);
            }
            if !self.running.is_empty() {
                std::thread::sleep(POLL);
            }
        }
        match failed {
            Some((rank, status, _)) => Err(Error::RankFailed { rank, how: describe(status), kind: kind(status) }),
            None if stopped => Err(Error::StoppedRanks),
            None => Ok(()),
        }
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
    fn what_cant_be_started_is_an_error() {
        let mut job = shell("", 1, LONG);
        job.program = "/nonexistent/program".into();
        assert!(matches!(launch(&job, &StopFlag::new()), Err(Error::Spawn { rank: 0, .. })));
        assert!(matches!(launch(&shell("", 0, LONG), &StopFlag::new()), Err(Error::Usage { .. })));
    }
}
