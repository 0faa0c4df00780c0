//! Training runs over data in memory, in one process and in several.

#![cfg(feature = "torch")]

mod ranks;
mod run_folder;
mod synthetic;

/// Not a test: what the processes that other tests start run.
#[test]
fn as_a_rank() {
    synthetic::rank_process();
}
