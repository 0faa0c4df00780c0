//! Training over gristmill's batches with libtorch, on one rank or many.
//!
//! - [`TrainConfig`] says what to train; [`train`] trains it as one rank, [`launch`] starts the ranks of a machine.
//! - A [`BatchSource`] delivers a rank's part of each global batch in a planned order; [`ShardSources`] are those of a
//!   shard set. A [`Model`] gives every row a loss.
//! - Gradients are averaged by torch.distributed's own Reducer. Each sample of a global batch weighs the same, however
//!   the samples lie on ranks and micro-batches, so the number of ranks changes the result by rounding only.
//! - Random choices are keyed: initial parameters by (seed, name), dropout by (seed, step, row), order by the plan. So a
//!   run that was stopped or killed goes on to the same bytes, and no generator's state has to be saved.
//! - Metrics are counts and sums over unmasked rows, put together over the ranks before anything is divided.
//! - The run folder ([`checkpoint`]) holds checkpoints, log, model and report; each is published whole or not at all.
//!
//! Without the feature `torch` (on by default) the configuration, schedule, metrics and report types remain.

pub mod baseline;
pub mod checkpoint;
pub mod config;
mod error;
pub mod metrics;
pub mod report;
pub mod schedule;

#[cfg(feature = "torch")]
pub mod batch;
#[cfg(feature = "torch")]
mod evaluate;
#[cfg(feature = "torch")]
mod finish;
#[cfg(feature = "torch")]
mod launch;
#[cfg(feature = "torch")]
pub mod model;
#[cfg(feature = "torch")]
pub mod optimizer;
#[cfg(feature = "torch")]
mod ranks;
#[cfg(feature = "torch")]
mod shard_source;
#[cfg(feature = "torch")]
mod step;
#[cfg(feature = "torch")]
mod trainer;

pub use config::TrainConfig;
pub use error::{Error, Result};
pub use report::TrainReport;

#[cfg(feature = "torch")]
pub use batch::{Batch, BatchSource, Sources};
#[cfg(feature = "torch")]
pub use evaluate::{count_values, evaluate};
#[cfg(feature = "torch")]
pub use gristmill_c10d::{Rendezvous, World};
#[cfg(feature = "torch")]
pub use launch::{Launch, launch, must_report};
#[cfg(feature = "torch")]
pub use model::{Forward, Model, Pass};
#[cfg(feature = "torch")]
pub use ranks::{Fact, Ranks};
#[cfg(feature = "torch")]
pub use shard_source::ShardSources;
#[cfg(feature = "torch")]
pub use step::{LocalSums, accumulate_gradients};
#[cfg(feature = "torch")]
pub use trainer::{Job, Places, TrainOutcome, check_at, train, train_at};
