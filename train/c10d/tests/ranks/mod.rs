//! Runs a test's body in several processes: the test binary starts itself again, once a rank, with torchrun's
//! environment. The parent hosts the store, as torchrun's agent does, so no port is guessed.

#![allow(dead_code, clippy::unwrap_used)] // each test binary uses a part; a failed unwrap is a failed test

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gristmill_c10d::{PrefixStore, ProcessGroup, Rendezvous, TcpStore, World};

/// Marks a child, and says which test it is of.
const MARK: &str = "GRISTMILL_C10D_TEST_RANK_OF";

/// Far above what any test needs, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Rank {
    pub rendezvous: Rendezvous,
    pub store: PrefixStore,
}

impl Rank {
    pub fn number(&self) -> usize {
        self.rendezvous.world.rank
    }

    pub fn group(&self, timeout: Duration) -> ProcessGroup {
        ProcessGroup::of_run(&self.rendezvous, &self.store, "test", timeout).unwrap()
    }
}

/// How the ranks of a test ended.
pub struct Ended {
    /// Exit status of each rank and what it wrote.
    pub ranks: Vec<(std::process::ExitStatus, String)>,
    pub took: Duration,
}

impl Ended {
    pub fn all_well(&self) {
        for (rank, (status, text)) in self.ranks.iter().enumerate() {
            assert!(status.success(), "rank {rank}: {status}\n{text}");
        }
    }
}

/// In a child of this test: its body runs and `None` comes back. In the parent: `size` children run.
pub fn run(test: &str, size: usize, body: impl FnOnce(&Rank)) -> Option<Ended> {
    run_with(test, size, size, body)
}

/// As [`run`], but only ranks `0..started` of the `size` are ever started.
pub fn run_with(test: &str, size: usize, started: usize, body: impl FnOnce(&Rank)) -> Option<Ended> {
    let variant = format!("{test}/{size}");
    match std::env::var(MARK) {
        Ok(of) if of == variant => {
            let rendezvous = Rendezvous::from_env().unwrap().unwrap();
            let store = rendezvous.store(PATIENCE).unwrap();
            body(&Rank { rendezvous, store });
            return None;
        }
        // A child of another world size of the same test.
        Ok(_) => return None,
        Err(_) => {}
    }
    let server = TcpStore::server("127.0.0.1", 0, size, PATIENCE).unwrap();
    let start = Instant::now();
    let children: Vec<Child> = (0..started).map(|rank| spawn(test, &variant, rank, size, server.port())).collect();
    let ranks = children
        .into_iter()
        .map(|child| {
            let out = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
            (out.status, text)
        })
        .collect();
    Some(Ended { ranks, took: start.elapsed() })
}

fn spawn(test: &str, variant: &str, rank: usize, size: usize, port: u16) -> Child {
    let rendezvous = Rendezvous {
        world: World::new(rank, size, rank, size).unwrap(),
        master_addr: "127.0.0.1".to_owned(),
        master_port: port,
        agent_store: true,
        restart_count: 0,
        run_id: "test".to_owned(),
    };
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MARK, variant)
        .env("OMP_NUM_THREADS", "1")
        .envs(rendezvous.to_env())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Ends this process as an operator's `kill -9` would: no destructor runs, the kernel closes its sockets.
pub fn kill_self() -> ! {
    let pid = std::process::id().to_string();
    let _ = Command::new("kill").args(["-KILL", &pid]).status();
    std::process::abort()
}
