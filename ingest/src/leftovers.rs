//! What runs leave behind that no data set names, removed without touching what another run wrote or published.

use std::{collections::BTreeSet, io::ErrorKind, path::Path};

use gristmill_shard::{
    Error, Manifest, Result, Storage,
    manifest::META,
    tables::{read_files, read_reject_files},
    work::{Work, read_receipt},
};

use crate::{
    receipt::{DATA, REJECTS, Receipt},
    sources::io_error,
};

/// After `manifest` was published: removes receipts, and files of this crate's naming that it does not name.
///
/// # Errors
/// Storage errors.
pub(crate) async fn clean_up(out: &Storage, work: &Work, manifest: &Manifest) -> Result<()> {
    work.clear().await?;
    let named = named_by(out, manifest).await?;
    for folder in [DATA, REJECTS] {
        for object in out.list(folder).await? {
            if is_ours(&object.path, folder) && !named.contains(&object.path) {
                out.delete(&object.path).await?;
            }
        }
    }
    Ok(())
}

async fn named_by(out: &Storage, manifest: &Manifest) -> Result<BTreeSet<String>> {
    let mut named = BTreeSet::new();
    named.extend(read_files(out, manifest).await?.into_iter().map(|f| f.path));
    named.extend(read_reject_files(out, manifest).await?.into_iter().map(|f| f.path));
    Ok(named)
}

/// After the job with digest `job` failed: removes its receipts and the files that they name, except those that the
/// newest manifest or another job's receipt names too (jobs with other options may make the same file).
///
/// # Errors
/// Storage errors, and those of reading the newest manifest; nothing is removed then.
pub(crate) async fn undo(out: &Storage, job: &str) -> Result<()> {
    let mut keep = match Manifest::latest(out).await? {
        Some(manifest) => named_by(out, &manifest).await?,
        None => BTreeSet::new(),
    };
    let own = format!("{}/", job_folder(job));
    let (mut receipts, mut files) = (Vec::new(), BTreeSet::new());
    for object in out.list(&work_folder()).await? {
        let bytes = match out.get(&object.path).await {
            Ok(bytes) => bytes,
            Err(Error::NotFound { .. }) => continue,
            Err(e) => return Err(e),
        };
        // A receipt that can't be read counts as none, as it does when a job goes on.
        let paths = read_receipt::<Receipt>(&bytes).map(|r| r.paths()).unwrap_or_default();
        if object.path.starts_with(&own) {
            files.extend(paths);
            receipts.push(object.path);
        } else {
            keep.extend(paths);
        }
    }
    for path in files.difference(&keep) {
        if is_ours(path, DATA) || is_ours(path, REJECTS) {
            out.delete(path).await?;
        }
    }
    for path in &receipts {
        out.delete(path).await?;
    }
    Ok(())
}

fn work_folder() -> String {
    format!("{META}/work")
}

fn job_folder(job: &str) -> String {
    format!("{}/{}", work_folder(), job.get(..16).unwrap_or(job))
}

/// What a local output folder was before the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Absent,
    Empty,
    /// It held something, or can't be told: nothing but work folders is removed from it.
    Used,
}

impl Before {
    pub(crate) fn of(out: &Storage) -> Self {
        let Some(root) = out.local_root() else { return Self::Used };
        match std::fs::read_dir(root) {
            Ok(mut entries) => match entries.next() {
                None => Self::Empty,
                Some(_) => Self::Used,
            },
            Err(e) if e.kind() == ErrorKind::NotFound => Self::Absent,
            // Why it can't be read is told when it is written to.
            Err(_) => Self::Used,
        }
    }
}

/// Removes the empty folders that a failed run made.
///
/// # Errors
/// I/O errors; a folder that is not empty or not there is left as it is.
pub(crate) fn remove_empty_folders(out: &Storage, job: &str, before: Before) -> Result<()> {
    let Some(root) = out.local_root() else { return Ok(()) };
    let mut folders = vec![root.join(job_folder(job)), root.join(work_folder())];
    if before != Before::Used {
        folders.extend([format!("{META}/tables").as_str(), META, DATA, REJECTS].map(|f| root.join(f)));
    }
    if before == Before::Absent {
        folders.push(root.to_path_buf());
    }
    folders.iter().try_for_each(|folder| remove_if_empty(folder))
}

fn remove_if_empty(folder: &Path) -> Result<()> {
    match std::fs::remove_dir(folder) {
        Ok(()) => Ok(()),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory) => {
            Ok(())
        }
        Err(e) => Err(io_error(&folder.display().to_string(), e)),
    }
}

/// `FOLDER/part-<digits>-<8 hexadecimal digits>.parquet`.
fn is_ours(path: &str, folder: &str) -> bool {
    let name =
        path.strip_prefix(folder).and_then(|p| p.strip_prefix("/part-")).and_then(|p| p.strip_suffix(".parquet"));
    name.and_then(|n| n.split_once('-')).is_some_and(|(number, digest)| {
        number.len() >= 5
            && number.bytes().all(|b| b.is_ascii_digit())
            && digest.len() == 8
            && digest.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::work::receipt_bytes;

    #[test]
    fn only_files_of_our_naming_are_removed() {
        for (path, want) in [
            ("data/part-00000-0123abcd.parquet", true),
            ("data/part-123456-0123abcd.parquet", true),
            ("data/part-00000-0123abc.parquet", false),
            ("data/part-0000-0123abcd.parquet", false),
            ("data/mine.parquet", false),
            ("data/x/part-00000-0123abcd.parquet", false),
            ("rejects/part-00000-0123abcd.parquet", false),
        ] {
            assert_eq!(is_ours(path, "data"), want, "{path}");
        }
    }

    #[tokio::test]
    async fn only_files_of_own_receipts_are_undone() {
        let out = Storage::memory();
        let receipt = |path: &str| {
            let receipt = serde_json::json!({
                "rows_in": 1, "filtered": 0, "rejects": null, "summary": crate::RejectSummary::default(),
                "data": {"path": path, "rows": 1, "bytes": 1, "blake3": "", "row_groups": []},
            });
            receipt_bytes(&serde_json::from_value::<Receipt>(receipt).unwrap()).unwrap()
        };
        let (own, shared, other, odd) = (
            "data/part-00000-00000000.parquet",
            "data/part-00001-11111111.parquet",
            "data/part-00002-22222222.parquet",
            "data/mine.parquet",
        );
        for path in [own, shared, other, odd] {
            out.put(path, "x").await.unwrap();
        }
        let job = "aaaaaaaaaaaaaaaaaaaa";
        for (i, path) in [own, shared, odd].into_iter().enumerate() {
            out.put(&format!("{}/ingest-{i:05}.receipt", job_folder(job)), receipt(path)).await.unwrap();
        }
        let kept = format!("{}/ingest-00000.receipt", job_folder("bbbbbbbbbbbbbbbbbbbb"));
        out.put(&kept, receipt(shared)).await.unwrap();
        undo(&out, job).await.unwrap();
        let left: Vec<String> = out.list("").await.unwrap().into_iter().map(|o| o.path).collect();
        assert_eq!(left, [kept.as_str(), odd, shared, other]);
    }
}
