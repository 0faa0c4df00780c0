//! Ingest from end to end, on files in temporary folders.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accounting;
mod awkward_csv;
mod changes;
mod errors;
mod parquet_input;
mod queries;
mod resume;
mod support;
mod types;
