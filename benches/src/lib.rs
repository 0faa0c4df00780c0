//! Data that the benches share: made-up flights as raw files, as a clean data set, and as shards.
//!
//! The benches themselves are in `benches/`, one question each; `peers/` runs other loaders on the same data, and
//! `runs/` keeps evidence.

use std::{error::Error, path::Path};

use gristmill_ingest::{IngestOptions, ingest};
use gristmill_shard::{Control, Storage, StorageOptions, assign::rounding::Shares, job::ShardOptions};

/// What the raw flights become: a label and parts of the date beside the raw columns.
pub const QUERY: &str = "SELECT *, delay > 15 AS late, EXTRACT(HOUR FROM date) AS hour FROM input";

/// Result of making data.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Writes `rows` made-up flights as CSV to `flights.csv` in `folder`; gives the path.
///
/// # Errors
/// When it can't be written.
pub fn write_csv(folder: &Path, rows: u64) -> Result<String> {
    let path = folder.join("flights.csv");
    std::fs::write(&path, testkit::flights::csv(rows))?;
    Ok(path.to_str().ok_or("the folder's path is not UTF-8")?.to_owned())
}

/// How the raw file is ingested.
#[must_use]
pub fn ingest_options(source: &str) -> IngestOptions {
    IngestOptions { sql: Some(QUERY.to_owned()), ..IngestOptions::new(vec![source.to_owned()]) }
}

/// How the data set is sharded: two machines, stratified, three splits.
///
/// # Errors
/// Never; the shares are constant.
pub fn shard_options() -> Result<ShardOptions> {
    Ok(ShardOptions {
        nodes: 2,
        stratify: vec!["origin".to_owned(), "late".to_owned()],
        splits: Shares::parse("train=0.8,validation=0.1,test=0.1")?,
        ..ShardOptions::default()
    })
}

/// `rows` made-up flights as a clean data set in memory.
///
/// # Errors
/// Those of ingest.
pub async fn clean(rows: u64) -> Result<Storage> {
    let folder = tempfile::tempdir()?;
    let source = write_csv(folder.path(), rows)?;
    let storage = Storage::memory();
    ingest(&ingest_options(&source), &storage, &Control::default()).await?;
    Ok(storage)
}

/// The shards of [`clean`] in `folder`, on disk.
///
/// # Errors
/// Those of ingest and shard.
pub async fn shards(folder: &Path, rows: u64) -> Result<Storage> {
    let path = folder.to_str().ok_or("the folder's path is not UTF-8")?;
    let storage = Storage::open(path, &StorageOptions::new())?;
    gristmill_shard::job::shard(&clean(rows).await?, &storage, &shard_options()?, &Control::default()).await?;
    Ok(storage)
}
