//! The shard job, run on real Parquet.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod laws;
mod options;
mod report;
mod support;
mod tasks;
mod versions;
mod whole;
