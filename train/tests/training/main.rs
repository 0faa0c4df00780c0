//! Training runs over data in memory, in one process and in several.

#![cfg(feature = "torch")]
// clippy.toml allows these in functions marked as tests, which helpers of tests are not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod ranks;
mod run_folder;
mod shards;
mod synthetic;

/// Not a test: what the processes that other tests start run.
#[test]
fn as_a_rank() {
    synthetic::rank_process();
    shards::rank_process();
}
