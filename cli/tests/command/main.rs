//! The programs as they are run: what they say of bad input, what survives a kill, what a group of them delivers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod config_errors;
mod delivery;
mod environment_errors;
mod expect_error;
mod ingest_errors;
mod inspect;
mod killed;
mod killed_tasks;
mod launch;
mod object_storage;
mod pipeline;
mod plan;
mod set_errors;
mod usage_errors;
