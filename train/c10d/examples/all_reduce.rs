//! Sums a tensor over ranks.
//!
//! By itself it starts its own ranks: `cargo run --release -p gristmill-c10d --example all_reduce -- 3`.
//! Under a launcher it is one of them: `torchrun --nproc-per-node 3 --no-python target/release/examples/all_reduce`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use gristmill_c10d::{ProcessGroup, ReduceOp, Rendezvous, TcpStore, World};
use tch::Tensor;

const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    match Rendezvous::from_env()? {
        Some(rendezvous) => rank(&rendezvous),
        None => launch(std::env::args().nth(1).map_or(Ok(2), |n| n.parse())?),
    }
}

fn rank(rendezvous: &Rendezvous) -> Result<(), Box<dyn Error>> {
    let store = rendezvous.store(TIMEOUT)?;
    let group = ProcessGroup::of_run(rendezvous, &store, "default", TIMEOUT)?;
    let mut tensor = Tensor::from_slice(&[group.rank() as i64 + 1; 4]);
    group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    println!("rank {} of {}: {:?}", group.rank(), group.size(), Vec::<i64>::try_from(&tensor)?);
    // The host of the store must not leave before the others are done with it.
    group.barrier(TIMEOUT)?;
    Ok(())
}

/// What a launcher does: host the store, start the ranks with torchrun's variables, wait.
fn launch(size: usize) -> Result<(), Box<dyn Error>> {
    let server = TcpStore::server("127.0.0.1", 0, size, TIMEOUT)?;
    let mut ranks = Vec::new();
    for rank in 0..size {
        let rendezvous = Rendezvous {
            world: World::new(rank, size, rank, size)?,
            master_addr: "127.0.0.1".to_owned(),
            master_port: server.port(),
            agent_store: true,
            restart_count: 0,
            run_id: "example".to_owned(),
        };
        ranks.push(Command::new(std::env::current_exe()?).envs(rendezvous.to_env()).spawn()?);
    }
    for mut rank in ranks {
        let status = rank.wait()?;
        if !status.success() {
            return Err(format!("a rank ended with {status}").into());
        }
    }
    Ok(())
}
