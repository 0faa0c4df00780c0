//! What tests of more than one crate share: the dependency trees and sources of the workspace as data, programs run
//! under a time limit, sample rows, what a plan says must be delivered, an S3 server and the faults before it, and what
//! every storage keeps.
//!
//! Its functions panic where they can't do their work: in a test that is the clear failure.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that can't go on fails by panicking")]

pub mod delivery;
pub mod fault_proxy;
pub mod flights;
pub mod import_rules;
pub mod program;
pub mod s3_server;
pub mod source_rules;
pub mod storage_contract;

use std::path::PathBuf;

/// The root of the workspace that this crate was built in.
///
/// # Panics
/// When the crate has been moved out of it.
#[must_use]
pub fn workspace_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// The committed extract of real flights: 20,000 rows of CSV.
#[must_use]
pub fn flights_extract() -> PathBuf {
    workspace_root().join("examples/data/flights-20k.csv")
}
