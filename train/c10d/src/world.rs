//! Who this process is among the ranks, and where they meet: arithmetic and environment, no libtorch.

use crate::{Error, Result};

/// The place of one process among all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    /// Number of this process among all, `0..world_size`.
    pub rank: usize,
    /// Processes in all, at least 1.
    pub world_size: usize,
    /// Number of this process on its machine, `0..local_world_size`.
    pub local_rank: usize,
    /// Processes on this machine, `1..=world_size`.
    pub local_world_size: usize,
}

impl World {
    /// One process on its own.
    #[must_use]
    pub const fn single() -> Self {
        Self { rank: 0, world_size: 1, local_rank: 0, local_world_size: 1 }
    }

    /// # Errors
    /// [`Error::Config`] when a rank is not below its world size, or more processes are local than there are.
    pub fn new(rank: usize, world_size: usize, local_rank: usize, local_world_size: usize) -> Result<Self> {
        let world = Self { rank, world_size, local_rank, local_world_size };
        match world.fault([&"rank", &"world_size", &"local_rank", &"local_world_size"]) {
            None => Ok(world),
            Some((_, problem)) => Err(Error::config("world", problem)),
        }
    }

    /// The first contradiction: the name at fault (of rank, world size, local rank, local world size) and why.
    fn fault<'n>(&self, names: [&'n &'n str; 4]) -> Option<(&'n str, String)> {
        let [rank, world_size, local_rank, local_world_size] = names;
        if self.world_size == 0 {
            Some((world_size, format!("{world_size} is 0; it must be at least 1")))
        } else if self.rank >= self.world_size {
            let (r, w) = (self.rank, self.world_size);
            Some((rank, format!("{rank} is {r}, but must be below {world_size}, which is {w}")))
        } else if self.local_world_size == 0 || self.local_world_size > self.world_size {
            let (l, w) = (self.local_world_size, self.world_size);
            Some((
                local_world_size,
                format!("{local_world_size} is {l}, but must be between 1 and {world_size}, which is {w}"),
            ))
        } else if self.local_rank >= self.local_world_size {
            let (r, l) = (self.local_rank, self.local_world_size);
            Some((local_rank, format!("{local_rank} is {r}, but must be below {local_world_size}, which is {l}")))
        } else {
            None
        }
    }
}

/// Where the ranks of one run find each other, as a launcher states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// This process.
    pub world: World,
    /// Host of the store.
    pub master_addr: String,
    /// Port of the store.
    pub master_port: u16,
    /// The launcher hosts the store itself, so every rank is a client of it; else rank 0 hosts it.
    pub agent_store: bool,
    /// How often the launcher has started the ranks anew; keys of different rounds must not meet in one store.
    pub restart_count: u64,
    /// Name of the run, for the same reason.
    pub run_id: String,
}

impl Rendezvous {
    /// Reads the environment of torchrun, else of SLURM's srun. `None`: no launcher, a process on its own.
    ///
    /// torchrun's: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`, all needed as soon as one of the
    /// first three is set; `LOCAL_WORLD_SIZE`, without which all ranks count as on one machine (every rank comes to the
    /// same conclusion, so it costs locality at most); `TORCHELASTIC_USE_AGENT_STORE`, `TORCHELASTIC_RESTART_COUNT` and
    /// `TORCHELASTIC_RUN_ID` where there.
    ///
    /// SLURM's: `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` and the number of tasks on this node
    /// (`SLURM_NTASKS_PER_NODE`, else this node's entry of `SLURM_STEP_TASKS_PER_NODE` or `SLURM_TASKS_PER_NODE`).
    /// SLURM says nothing of a port, so `MASTER_ADDR` and `MASTER_PORT` are still needed. A single task needs no
    /// meeting place and counts as a process on its own.
    ///
    /// # Errors
    /// [`Error::Environment`], naming the variable that is missing, unreadable or contradicts another.
    pub fn from_env() -> Result<Option<Self>> {
        let mut not_unicode = None;
        let found = Self::from_lookup(|name| match std::env::var(name) {
            Ok(value) => Some(value),
            Err(std::env::VarError::NotPresent) => None,
            Err(std::env::VarError::NotUnicode(_)) => {
                not_unicode.get_or_insert_with(|| name.to_owned());
                None
            }
        });
        match not_unicode {
            Some(variable) => Err(environment(&variable, "is not valid UTF-8".to_owned())),
            None => found,
        }
    }

    /// [`Rendezvous::from_env`] over any source of variables.
    ///
    /// # Errors
    /// As [`Rendezvous::from_env`].
    pub fn from_lookup(mut lookup: impl FnMut(&str) -> Option<String>) -> Result<Option<Self>> {
        // An empty variable is how shells and schedulers often spell an unset one.
        let mut get = |name: &str| lookup(name).filter(|value| !value.is_empty());
        if TORCHRUN.iter().any(|name| get(name).is_some()) {
            return torchrun(&mut get).map(Some);
        }
        if get("SLURM_PROCID").is_some() {
            return slurm(&mut get);
        }
        Ok(None)
    }

    /// The variables that tell a child process its place, in torchrun's words: what a launcher sets.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("RANK", self.world.rank.to_string()),
            ("WORLD_SIZE", self.world.world_size.to_string()),
            ("LOCAL_RANK", self.world.local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", self.world.local_world_size.to_string()),
            ("MASTER_ADDR", self.master_addr.clone()),
            ("MASTER_PORT", self.master_port.to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", if self.agent_store { "True" } else { "False" }.to_owned()),
            ("TORCHELASTIC_RESTART_COUNT", self.restart_count.to_string()),
            ("TORCHELASTIC_RUN_ID", self.run_id.clone()),
        ]
    }

    /// Whether the ranks meet on this machine only.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let bare = self.master_addr.trim_start_matches('[').trim_end_matches(']');
        bare.eq_ignore_ascii_case("localhost")
            || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The prefix of every key of this round of this run.
    #[must_use]
    pub fn key_prefix(&self) -> String {
        format!("gristmill/{}/{}", self.run_id, self.restart_count)
    }
}

const TORCHRUN: [&str; 4] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

type Get<'a> = &'a mut dyn FnMut(&str) -> Option<String>;

fn environment(variable: &str, problem: String) -> Error {
    Error::Environment { variable: variable.to_owned(), problem }
}

fn number<N: std::str::FromStr>(variable: &str, value: &str) -> Result<N> {
    value.trim().parse().map_err(|_| environment(variable, format!("`{value}` is not a number in range")))
}

fn needed<N: std::str::FromStr>(get: Get<'_>, variable: &str, because: &str) -> Result<N> {
    match get(variable) {
        Some(value) => number(variable, &value),
        None => Err(environment(variable, format!("is not set, and is needed {because}"))),
    }
}

fn optional(get: Get<'_>, variable: &str) -> Result<u64> {
    get(variable).map_or(Ok(0), |value| number(variable, &value))
}

fn world(names: [&str; 4], numbers: [usize; 4]) -> Result<World> {
    let [rank, world_size, local_rank, local_world_size] = numbers;
    let world = World { rank, world_size, local_rank, local_world_size };
    match world.fault([&names[0], &names[1], &names[2], &names[3]]) {
        None => Ok(world),
        Some((variable, problem)) => Err(environment(variable, problem)),
    }
}

fn master(get: Get<'_>, because: &str) -> Result<(String, u16)> {
    let addr: String = needed(get, "MASTER_ADDR", because)?;
    let port: u16 = needed(get, "MASTER_PORT", because)?;
    if port == 0 {
        return Err(environment("MASTER_PORT", "is 0; the ranks can't meet at a port that is not known".to_owned()));
    }
    Ok((addr, port))
}

fn torchrun(get: Get<'_>) -> Result<Rendezvous> {
    let because = "since the launcher set others of RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE";
    let [rank, size, local, local_size] = TORCHRUN;
    let world_size = needed(get, size, because)?;
    let local_world_size = match get(local_size) {
        Some(value) => number(local_size, &value)?,
        None => world_size,
    };
    let numbers = [needed(get, rank, because)?, world_size, needed(get, local, because)?, local_world_size];
    let world = world(TORCHRUN, numbers)?;
    let (master_addr, master_port) = master(get, "for the ranks to meet")?;
    let agent_store = match get("TORCHELASTIC_USE_AGENT_STORE").as_deref() {
        None | Some("False" | "false" | "0") => false,
        Some("True" | "true" | "1") => true,
        Some(other) => {
            let problem = format!("is `{other}`; torchrun sets True or False");
            return Err(environment("TORCHELASTIC_USE_AGENT_STORE", problem));
        }
    };
    let restart_count = optional(get, "TORCHELASTIC_RESTART_COUNT")?;
    let run_id = get("TORCHELASTIC_RUN_ID").unwrap_or_else(|| "none".to_owned());
    Ok(Rendezvous { world, master_addr, master_port, agent_store, restart_count, run_id })
}

fn slurm(get: Get<'_>) -> Result<Option<Rendezvous>> {
    let because = "since SLURM_PROCID says that srun started this process";
    let rank = needed(get, "SLURM_PROCID", because)?;
    let world_size = needed(get, "SLURM_NTASKS", because)?;
    if world_size == 1 && rank == 0 {
        return Ok(None);
    }
    let local_rank = needed(get, "SLURM_LOCALID", because)?;
    let (local_name, local_world_size) = slurm_local_world_size(get)?;
    let names = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", local_name];
    let world = world(names, [rank, world_size, local_rank, local_world_size])?;
    let (master_addr, master_port) = master(
        get,
        "for the ranks to meet (SLURM names none: export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | \
         head -n1) and a free MASTER_PORT before srun)",
    )?;
    let restart_count = optional(get, "SLURM_RESTART_COUNT")?;
    let job = get("SLURM_JOB_ID").unwrap_or_else(|| "none".to_owned());
    let step = get("SLURM_STEP_ID").map(|step| format!(".{step}")).unwrap_or_default();
    let run_id = format!("slurm-{job}{step}");
    Ok(Some(Rendezvous { world, master_addr, master_port, agent_store: false, restart_count, run_id }))
}

fn slurm_local_world_size(get: Get<'_>) -> Result<(&'static str, usize)> {
    if let Some(value) = get("SLURM_NTASKS_PER_NODE") {
        return Ok(("SLURM_NTASKS_PER_NODE", number("SLURM_NTASKS_PER_NODE", &value)?));
    }
    for name in ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"] {
        if let Some(value) = get(name) {
            let node = get("SLURM_NODEID").map_or(Ok(0), |node| number("SLURM_NODEID", &node))?;
            return match tasks_of_node(&value, node) {
                Some(tasks) => Ok((name, tasks)),
                None => Err(environment(name, format!("`{value}` has no entry for node {node}"))),
            };
        }
    }
    let problem = "is not set, nor SLURM_STEP_TASKS_PER_NODE: give srun --ntasks-per-node".to_owned();
    Err(environment("SLURM_NTASKS_PER_NODE", problem))
}

/// Tasks of one node from SLURM's run-length list, such as `2(x3),1`.
fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut left = node;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks.parse().ok()?, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part.parse().ok()?, 1),
        };
        if left < nodes {
            return Some(tasks);
        }
        left -= nodes;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Rendezvous>> {
        let map: HashMap<_, _> = pairs.iter().copied().collect();
        Rendezvous::from_lookup(|name| map.get(name).map(|value| (*value).to_owned()))
    }

    fn variable(pairs: &[(&str, &str)]) -> String {
        match read(pairs) {
            Err(Error::Environment { variable, .. }) => variable,
            other => panic!("expected an environment error, got {other:?}"),
        }
    }

    const TORCHRUN_ENV: [(&str, &str); 9] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RESTART_COUNT", "2"),
        ("TORCHELASTIC_RUN_ID", "run7"),
    ];

    #[test]
    fn no_launcher_is_none() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[("MASTER_ADDR", "x"), ("SLURM_JOB_ID", "1"), ("RANK", "")]).unwrap(), None);
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]).unwrap(), None);
    }

    #[test]
    fn torchrun_is_read_and_written() {
        let found = read(&TORCHRUN_ENV).unwrap().unwrap();
        assert_eq!(found.world, World::new(3, 4, 1, 2).unwrap());
        assert_eq!((found.master_addr.as_str(), found.master_port), ("10.0.0.1", 29500));
        assert!(found.agent_store && !found.is_loopback());
        assert_eq!(found.key_prefix(), "gristmill/run7/2");
        let env = found.to_env();
        let pairs: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(read(&pairs).unwrap().unwrap(), found);
    }

    #[test]
    fn each_missing_variable_is_named() {
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let rest: Vec<_> = TORCHRUN_ENV.into_iter().filter(|(other, _)| *other != name).collect();
            assert_eq!(variable(&rest), name);
        }
    }

    #[test]
    fn without_its_local_world_size_a_launcher_means_one_machine() {
        let rest: Vec<_> = TORCHRUN_ENV.into_iter().filter(|(name, _)| *name != "LOCAL_WORLD_SIZE").collect();
        assert_eq!(read(&rest).unwrap().unwrap().world, World::new(3, 4, 1, 4).unwrap());
    }

    #[test]
    fn contradictions_are_named() {
        let with = |name: &'static str, value: &'static str| {
            let mut all: Vec<_> = TORCHRUN_ENV.into_iter().filter(|(other, _)| *other != name).collect();
            all.push((name, value));
            variable(&all)
        };
        assert_eq!(with("RANK", "4"), "RANK");
        assert_eq!(with("RANK", "-1"), "RANK");
        assert_eq!(with("WORLD_SIZE", "0"), "WORLD_SIZE");
        assert_eq!(with("LOCAL_RANK", "2"), "LOCAL_RANK");
        assert_eq!(with("LOCAL_WORLD_SIZE", "9"), "LOCAL_WORLD_SIZE");
        assert_eq!(with("MASTER_PORT", "70000"), "MASTER_PORT");
        assert_eq!(with("MASTER_PORT", "0"), "MASTER_PORT");
        assert_eq!(with("TORCHELASTIC_USE_AGENT_STORE", "perhaps"), "TORCHELASTIC_USE_AGENT_STORE");
        assert_eq!(with("TORCHELASTIC_RESTART_COUNT", "x"), "TORCHELASTIC_RESTART_COUNT");
    }

    #[test]
    fn slurm_is_read() {
        let base = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "7"), ("SLURM_LOCALID", "1"), ("SLURM_JOB_ID", "88")];
        let master = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "4000")];
        let per_node = [("SLURM_NTASKS_PER_NODE", "2")];
        let found = read(&[&base[..], &master, &per_node].concat()).unwrap().unwrap();
        assert_eq!(found.world, World::new(5, 7, 1, 2).unwrap());
        assert!(found.is_loopback() && !found.agent_store);
        assert_eq!(found.run_id, "slurm-88");

        let listed = [("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"), ("SLURM_NODEID", "2")];
        assert_eq!(read(&[&base[..], &master, &listed].concat()).unwrap().unwrap().world, found.world);
        assert_eq!(variable(&[&base[..], &master].concat()), "SLURM_NTASKS_PER_NODE");
        assert_eq!(variable(&[&base[..], &per_node].concat()), "MASTER_ADDR");
        assert_eq!(variable(&[("SLURM_PROCID", "0")]), "SLURM_NTASKS");
    }

    #[test]
    fn every_small_world_survives_its_environment() {
        for n in 0..6_usize.pow(4) {
            let [rank, size, local, local_size] = [n % 6, n / 6 % 6, n / 36 % 6, n / 216];
            let valid = rank < size && local < local_size && local_size <= size;
            let base = read(&TORCHRUN_ENV).unwrap().unwrap();
            let world = World { rank, world_size: size, local_rank: local, local_world_size: local_size };
            let env = Rendezvous { world, ..base }.to_env();
            let pairs: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
            match read(&pairs) {
                Ok(found) => assert!(valid && found.unwrap().world == world, "{world:?}"),
                Err(error) => assert!(!valid && matches!(error, Error::Environment { .. }), "{world:?}: {error}"),
            }
            assert_eq!(World::new(rank, size, local, local_size).is_ok(), valid);
        }
    }

    #[test]
    fn slurm_lists_are_expanded() {
        assert_eq!(tasks_of_node("2(x3),1", 0), Some(2));
        assert_eq!(tasks_of_node("2(x3),1", 3), Some(1));
        assert_eq!(tasks_of_node("2(x3),1", 4), None);
        assert_eq!(tasks_of_node("4", 0), Some(4));
        assert_eq!(tasks_of_node("a(xb)", 0), None);
        assert_eq!(tasks_of_node("", 0), None);
    }

    #[test]
    fn loopback_is_recognised() {
        let of = |addr: &str| {
            let mut found = read(&TORCHRUN_ENV).unwrap().unwrap();
            found.master_addr = addr.to_owned();
            found.is_loopback()
        };
        for addr in ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"] {
            assert!(of(addr), "{addr}");
        }
        for addr in ["10.0.0.1", "node1", "::2"] {
            assert!(!of(addr), "{addr}");
        }
    }
}
