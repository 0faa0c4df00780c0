//! Trains a small network on several ranks, as torch's DistributedDataParallel would, and shows that the ranks end with
//! the same parameters as one process.
//!
//! By itself it starts its own ranks: `cargo run --release -p gristmill-c10d --example ddp_linear -- 2`.
//! Under a launcher it is one of them: `torchrun --nproc-per-node 2 --no-python target/release/examples/ddp_linear`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use gristmill_c10d::{
    ProcessGroup, Reducer, ReducerOptions, Rendezvous, TcpStore, World, broadcast_parameters, runtime,
};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

const TIMEOUT: Duration = Duration::from_secs(60);
const ROWS: i64 = 48;
const STEPS: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    match Rendezvous::from_env()? {
        Some(rendezvous) => rank(&rendezvous),
        None => launch(std::env::args().nth(1).map_or(Ok(2), |n| n.parse())?),
    }
}

fn rank(rendezvous: &Rendezvous) -> Result<(), Box<dyn Error>> {
    runtime::set_num_threads(1)?;
    let store = rendezvous.store(TIMEOUT)?;
    let group = ProcessGroup::of_run(rendezvous, &store, "default", TIMEOUT)?;
    let (rank, size) = (group.rank() as i64, group.size() as i64);

    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq()
        .add(nn::linear(vs.root() / "a", 16, 64, nn::LinearConfig::default()))
        .add_fn(|x| x.relu())
        .add(nn::linear(vs.root() / "b", 64, 1, nn::LinearConfig::default()));
    let params = vs.trainable_variables();
    broadcast_parameters(&group, &params, 0)?;
    let mut reducer = Reducer::new(&params, &group, ReducerOptions::default())?;
    let mut opt = nn::Sgd::default().build(&vs, 0.01)?;

    tch::manual_seed(100);
    let rows = ROWS / size;
    for step in 0..STEPS {
        // Every rank makes the whole batch and takes its part of it.
        let x = Tensor::f_randn([ROWS, 16], (Kind::Float, Device::Cpu))?;
        let y = x.f_sum_dim_intlist([1_i64].as_slice(), true, Kind::Float)?.f_sin()?;
        let (x, y) = (x.f_narrow(0, rank * rows, rows)?, y.f_narrow(0, rank * rows, rows)?);
        opt.zero_grad();
        reducer.prepare_for_forward()?;
        let loss = net.forward(&x).f_mse_loss(&y, Reduction::Mean)?;
        reducer.backward(&loss)?;
        opt.step();
        if rank == 0 && (step + 1) % 10 == 0 {
            println!("step {:2}: loss of rank 0's part {:.6}", step + 1, f64::try_from(&loss)?);
        }
    }
    let mut sum = 0.0;
    for param in &params {
        sum += f64::try_from(param.f_to_kind(Kind::Double)?.f_sum(Kind::Double)?)?;
    }
    println!("rank {rank} of {size}: sum of the parameters {sum:.6}");
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
