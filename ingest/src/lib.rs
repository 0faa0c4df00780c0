//! Raw CSV and Parquet into a clean data set, with every row accounted for: `rows in = accepted + rejected + filtered`.
//!
//! [`ingest`] reads local files, infers (or is given) the columns' types, sets bad rows aside with file, row, line,
//! column, reason and text, runs a row-wise SQL query over the rest, and writes Parquet whose rows can be traced by
//! `_source_file` and `_source_row`. The result's bytes depend on input and options only, not on threads or interruptions.
//!
//! The query computes as polars does: integer `+`, `-` and `*` wrap around at the ends of their type, `/` is a division of
//! floating-point numbers (`x / 0` is an infinity, `0 / 0` NaN), and `//`, `div()` and `%` of integers by zero give null.
//!
//! polars lives behind one file of this crate, and nowhere else in the workspace.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # std::fs::write(dir.path().join("x.csv"), "id,delay\n1,20\n2,3\n")?;
//! # let source = dir.path().join("x.csv").display().to_string();
//! use gristmill_ingest::{IngestOptions, ingest};
//! use gristmill_shard::{Control, Storage};
//!
//! let options = IngestOptions {
//!     sql: Some("SELECT id, delay > 15 AS late FROM input".into()),
//!     ..IngestOptions::new(vec![source])
//! };
//! let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
//! let outcome = runtime.block_on(ingest(&options, &Storage::memory(), &Control::default()))?;
//! assert_eq!(outcome.manifest.rows, 2);
//! # Ok(())
//! # }
//! ```

mod csv_columns;
mod csv_records;
mod csv_rows;
mod csv_scan;
mod datetime;
mod frame;
mod infer;
mod job;
mod leftovers;
mod options;
mod parquet_rows;
mod prepare;
mod receipt;
mod rejects;
mod report;
mod row_query;
mod schema_file;
mod sources;
mod unit;

pub use job::ingest;
pub use options::{CsvOptions, IngestOptions, MaxRejects, OnError};
pub use rejects::{MAX_RAW_BYTES, Reject, RejectReason, RejectSummary, rejects_schema};
pub use report::{
    COLUMNS, ColumnReport, FileReport, IngestOutcome, IngestReport, REJECT_REASONS, SOURCES, read_rejects,
};
pub use row_query::INPUT_TABLE;
pub use schema_file::{parse_role, read_schema_file, schema_from_toml, schema_to_toml};
