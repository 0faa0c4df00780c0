//! The waist of gristmill: what a data set and its shards are, where their bytes lie, and how rows are assigned.
//!
//! Every other crate of the workspace imports this one; it imports none of them.

pub mod assign;
pub mod balance;
pub mod cells;
pub mod coded;
pub mod control;
pub mod error;
pub mod input;
pub mod job;
pub mod keys;
pub mod manifest;
pub mod parquet_reader;
pub mod parquet_writer;
pub mod permutation;
pub mod report;
pub mod runs;
pub mod schema;
pub mod shard_set;
pub mod sidecar;
pub mod statistics;
pub mod storage;
pub mod strata;
pub mod tables;
pub mod verify;
pub mod weights;
pub mod work;

pub use control::{Control, Progress, StopFlag};
pub use error::{Error, ErrorKind, Result, nearest_name};
pub use manifest::{Manifest, ManifestKind};
pub use shard_set::ShardSet;
pub use sidecar::Sidecar;
pub use storage::{Storage, StorageOptions};
