//! Proves a data set or a shard set from its bytes: digests, exactly-once as declared, balance, splits, groups, weights,
//! sidecars.

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::{
    balance::Balance,
    control::{Control, Unit},
    error::{Error, ErrorKind, Result},
    manifest::{META, Manifest, ManifestKind},
    storage::Storage,
    tables::{self, FileEntry},
};

mod balance;
mod file;
mod once;
mod parts;
mod sidecars;
mod unlisted;

pub(crate) use unlisted::is_ours;
pub use unlisted::unlisted;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct VerifyReport {
    /// Data set or shards.
    pub kind: ManifestKind,
    /// Files read.
    pub files: u64,
    /// Rows read.
    pub rows: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong; empty when all is well.
    pub problems: Vec<Problem>,
    /// Balance counted from the rows (shards only).
    pub balance: Option<Balance>,
}

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, or the manifest for what concerns the whole.
    pub path: String,
    /// What is wrong with it.
    pub what: String,
}

/// Problems listed in full; of more, the number is told.
const MAX_PROBLEMS: usize = 100;

/// Reads everything at `storage` and checks it against its manifest.
///
/// # Errors
/// [`Error::NotFound`] when there is no manifest, storage errors, [`Error::Stopped`]. What is wrong with the data is not an error
/// but a [`Problem`].
pub async fn verify(storage: &Storage, control: &Control) -> Result<VerifyReport> {
    let manifest = Manifest::latest(storage).await?.ok_or_else(|| Error::NotFound {
        url: storage.url(META),
        help: "give a folder that `gristmill ingest` or `gristmill shard` made".into(),
    })?;
    let mut report =
        VerifyReport { kind: manifest.kind, files: 0, rows: 0, bytes: 0, problems: Vec::new(), balance: None };
    let manifest_path = Manifest::path(manifest.version);
    for (name, table) in &manifest.tables {
        check_table(storage, name, table, &mut report).await?;
    }
    let lists = (tables::read_files(storage, &manifest).await, tables::read_reject_files(storage, &manifest).await);
    let (files, rejects) = match lists {
        (Ok(files), Ok(rejects)) => (files, rejects),
        (Err(e), _) | (_, Err(e)) => {
            report.add(&manifest_path, format!("its file list can't be read: {e}"));
            return Ok(report);
        }
    };
    match unlisted(storage, &manifest).await {
        Ok(paths) => paths.iter().for_each(|path| report.add(path, "no manifest lists this file".into())),
        Err(e) if e.kind() == ErrorKind::Corrupt => report.add(&manifest_path, e.to_string()),
        Err(e) => return Err(e),
    }
    let listed: u64 = files.iter().map(|f| f.rows).sum();
    if listed != manifest.rows {
        report.add(&manifest_path, format!("it says {} rows, its files list {listed}", manifest.rows));
    }
    control.progress.start("verify", files.iter().map(|f| f.bytes).sum(), Unit::Bytes);
    match &manifest.layout {
        Some(layout) => shards(storage, &manifest, layout, &files, control, &mut report).await?,
        None => dataset(storage, &manifest, files, rejects, control, &mut report).await?,
    }
    control.progress.finish();
    let more = report.problems.len().saturating_sub(MAX_PROBLEMS);
    if more > 0 {
        report.problems.truncate(MAX_PROBLEMS);
        report.add(&manifest_path, format!("{more} more problems"));
    }
    Ok(report)
}

async fn dataset(
    storage: &Storage,
    manifest: &Manifest,
    files: Vec<FileEntry>,
    rejects: Vec<FileEntry>,
    control: &Control,
    report: &mut VerifyReport,
) -> Result<()> {
    let mut refused = 0;
    for (files, accepted) in [(files, true), (rejects, false)] {
        let mut checks = futures::stream::iter(files)
            .map(|file| file::check(storage.clone(), file, None, control))
            .buffered(control.threads.max(1));
        while let Some(check) = checks.try_next().await? {
            report.files += 1;
            report.bytes += check.bytes;
            if accepted {
                report.rows += check.rows;
            } else {
                refused += check.rows;
            }
            check.problems.into_iter().for_each(|what| report.add(&check.path, what));
        }
    }
    if let Some(counts) = manifest.ingest {
        let sum = counts.accepted.saturating_add(counts.rejected).saturating_add(counts.filtered);
        let whole = report.problems.is_empty();
        if counts.rows_in != sum || counts.accepted != manifest.rows || (whole && counts.rejected != refused) {
            let what = format!("rows in {} are not accounted for: {counts:?}", counts.rows_in);
            report.add(&Manifest::path(manifest.version), what);
        }
    }
    Ok(())
}

async fn shards(
    storage: &Storage,
    manifest: &Manifest,
    layout: &crate::manifest::Layout,
    files: &[FileEntry],
    control: &Control,
    report: &mut VerifyReport,
) -> Result<()> {
    let path = Manifest::path(manifest.version);
    let read = (
        tables::read_inputs(storage, manifest).await,
        tables::read_keys(storage, manifest).await,
        tables::read_strata(storage, manifest).await,
        tables::read_sidecars(storage, manifest).await,
    );
    let (inputs, keys, strata, sidecars) = match read {
        (Ok(inputs), Ok(keys), Ok(strata), Ok(sidecars)) => (inputs, keys, strata, sidecars),
        (Err(e), ..) | (_, Err(e), ..) | (_, _, Err(e), _) | (.., Err(e)) => {
            report.add(&path, format!("its tables can't be read: {e}"));
            return Ok(());
        }
    };
    let wanted = std::sync::Arc::new(file::Wanted::new(manifest, layout));
    let mut once = once::Once::new(inputs, layout.resampled);
    let mut parts = parts::Parts::new(manifest, layout);
    let mut counted = balance::Counted::new(layout, &keys, files);
    let mut checks = futures::stream::iter(files.iter().cloned())
        .map(|file| file::check(storage.clone(), file, Some(std::sync::Arc::clone(&wanted)), control))
        .buffered(control.threads.max(1));
    while let Some(check) = checks.try_next().await? {
        report.files += 1;
        report.rows += check.rows;
        report.bytes += check.bytes;
        for what in &check.problems {
            report.add(&check.path, what.clone());
        }
        once.add(&check, report);
        parts.add(&check, report);
        counted.add(&check, report);
    }
    once.finish(&path, &strata, report);
    counted.finish(manifest, layout, &strata, report);
    sidecars::check(storage, files, &sidecars, control, report).await
}

impl VerifyReport {
    fn add(&mut self, path: &str, what: String) {
        self.problems.push(Problem { path: path.to_owned(), what });
    }
}

async fn check_table(
    storage: &Storage,
    name: &str,
    table: &crate::manifest::TableRef,
    report: &mut VerifyReport,
) -> Result<()> {
    match storage.get(&table.path).await {
        Ok(bytes) if blake3::hash(&bytes).to_hex().as_str() == table.blake3 => report.bytes += bytes.len() as u64,
        Ok(_) => report.add(&table.path, format!("table \"{name}\" is not what was written (its digest differs)")),
        Err(e) if e.kind() == ErrorKind::NotFound => report.add(&table.path, format!("table \"{name}\" is missing")),
        Err(e) => return Err(e),
    }
    Ok(())
}
