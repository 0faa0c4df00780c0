//! The report of a shard set: `_gristmill/report.html`, a page that needs no network, no script and no other file. Its
//! bytes are a function of the manifest and its tables.
//!
//! Names of strata, columns and splits come from data, so nothing of them reaches the page unescaped; lists are cut at
//! fixed lengths, each with the number of what it leaves out, so that the page stays small whatever the set holds.

use crate::{
    error::{ErrorKind, Result},
    manifest::{META, Manifest},
    storage::Storage,
    tables::{self, FileEntry, NodeStratumEntry, StatisticsEntry, StratumEntry},
};

mod chart;
mod html;
mod page;
mod summary;
mod text;

/// Where the report lies below a shard set's root.
#[must_use]
pub fn path() -> String {
    format!("{META}/report.html")
}

/// What the page is made of.
#[derive(Debug, Clone, Copy)]
pub struct ReportInput<'a> {
    /// The manifest.
    pub manifest: &'a Manifest,
    /// Its files.
    pub files: &'a [FileEntry],
    /// Its strata, of all versions.
    pub strata: &'a [StratumEntry],
    /// Rows of the largest strata on each node, of the version that it added.
    pub node_strata: &'a [NodeStratumEntry],
    /// Statistics of its columns.
    pub statistics: &'a [StatisticsEntry],
}

/// The page. Empty for a manifest that describes no shards.
///
/// # Errors
/// [`crate::Error::Internal`] when a picture can't be drawn.
pub fn render(input: &ReportInput<'_>) -> Result<String> {
    match (&input.manifest.layout, &input.manifest.balance) {
        (Some(layout), Some(balance)) => page::page(input, layout, balance),
        _ => Ok(String::new()),
    }
}

/// Writes the report of `manifest`, unless the same bytes are there already.
///
/// # Errors
/// Storage errors, and [`crate::Error::Corrupt`] when a table is not what it should be.
pub async fn write(storage: &Storage, manifest: &Manifest) -> Result<()> {
    let (files, strata) = (tables::read_files(storage, manifest).await?, tables::read_strata(storage, manifest).await?);
    let node_strata = tables::read_node_strata(storage, manifest).await?;
    let statistics = tables::read_statistics(storage, manifest).await?;
    let page = render(&ReportInput {
        manifest,
        files: &files,
        strata: &strata,
        node_strata: &node_strata,
        statistics: &statistics,
    })?;
    match storage.get(&path()).await {
        Ok(there) if there.as_ref() == page.as_bytes() => Ok(()),
        Ok(_) => storage.put(&path(), page.into_bytes()).await,
        Err(e) if e.kind() == ErrorKind::NotFound => storage.put(&path(), page.into_bytes()).await,
        Err(e) => Err(e),
    }
}
