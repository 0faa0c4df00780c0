//! Ingest from end to end, on files in temporary folders.

mod accounting;
mod awkward_csv;
mod errors;
mod parquet_input;
mod queries;
mod resume;
mod support;
mod types;
