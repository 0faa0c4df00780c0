//! Files of gristmill's own naming that no version lists: what killed jobs left.

use std::collections::HashSet;

use crate::{
    error::Result,
    manifest::{META, Manifest},
    storage::Storage,
    tables,
};

/// Files of gristmill's own naming below `storage` that neither `manifest` nor an earlier version lists.
///
/// # Errors
/// Storage errors, and [`crate::Error::Corrupt`] when a version's tables can't be read.
pub async fn unlisted(storage: &Storage, manifest: &Manifest) -> Result<Vec<String>> {
    let mut known: HashSet<String> = HashSet::new();
    let mut next = Some(manifest.clone());
    while let Some(version) = next {
        known.extend(version.tables.values().map(|t| t.path.clone()));
        known.extend(tables::read_files(storage, &version).await?.into_iter().map(|f| f.path));
        known.extend(tables::read_reject_files(storage, &version).await?.into_iter().map(|f| f.path));
        known.extend(tables::read_sidecars(storage, &version).await?.into_iter().map(|s| s.path));
        next = match &version.parent {
            Some(parent) => Some(Manifest::read(storage, parent.version).await?),
            None => None,
        };
    }
    let ours = storage.list("").await?.into_iter().map(|l| l.path).filter(|p| is_ours(p) && !known.contains(p));
    Ok(ours.collect())
}

/// Whether a path has the form of a data file or table of ours: `…-<8 hexadecimal digits>.parquet`.
pub(crate) fn is_ours(path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    let digest = name.strip_suffix(".parquet").and_then(|n| n.rsplit_once('-')).map(|(_, d)| d);
    let named = digest.is_some_and(|d| d.len() == 8 && d.bytes().all(|b| b.is_ascii_hexdigit()));
    let place = folder == format!("{META}/tables")
        || folder == "data"
        || folder == "rejects"
        || folder.rsplit_once('/').is_some_and(|(_, lane)| lane.starts_with("lane-"));
    named && place
}
