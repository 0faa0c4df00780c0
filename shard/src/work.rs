//! Receipts of finished work units, so that a killed job goes on where it was.
//!
//! A unit's receipt lies under `_gristmill/work/<job digest>/` and is put if absent after the unit's file is whole. The
//! folder is removed once the manifest is published; another job's receipts are never read, since the digest differs.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, Result},
    manifest::META,
    storage::Storage,
};

/// The work folder of one job.
#[derive(Debug, Clone)]
pub struct Work {
    storage: Storage,
    folder: String,
}

impl Work {
    /// The work folder of the job with digest `job` at `storage`.
    #[must_use]
    pub fn new(storage: &Storage, job: &str) -> Self {
        Self { storage: storage.clone(), folder: format!("{META}/work/{}", job.get(..16).unwrap_or(job)) }
    }

    /// Whether `error` is about something in this folder.
    #[must_use]
    pub fn holds(&self, error: &Error) -> bool {
        let (Error::NotFound { url, .. } | Error::Corrupt { url, .. }) = error else { return false };
        url.starts_with(&self.storage.url(&self.folder))
    }

    fn receipt_path(&self, unit: &str) -> String {
        format!("{}/{unit}.receipt", self.folder)
    }

    /// The receipt of `unit`, `None` when it is not done.
    ///
    /// # Errors
    /// Storage errors; a receipt that can't be read is treated as absent, and the unit is done again.
    pub async fn receipt<T: DeserializeOwned>(&self, unit: &str) -> Result<Option<T>> {
        match self.storage.get(&self.receipt_path(unit)).await {
            Ok(bytes) => Ok(read_receipt(&bytes)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Records that `unit` is done.
    ///
    /// # Errors
    /// Storage errors.
    pub async fn record<T: Serialize + Sync>(&self, unit: &str, receipt: &T) -> Result<()> {
        let path = self.receipt_path(unit);
        let bytes = receipt_bytes(receipt)?;
        if self.storage.put_if_absent(&path, bytes.clone()).await? || open(&self.storage.get(&path).await?).is_some() {
            return Ok(());
        }
        // What is there is no receipt: a disk has damaged it.
        self.storage.put(&path, bytes).await
    }

    /// Stores an intermediate file, unsynced, and gives its path below the storage's root.
    ///
    /// # Errors
    /// Storage errors.
    pub async fn put(&self, name: &str, bytes: Bytes) -> Result<String> {
        let path = format!("{}/{name}", self.folder);
        self.storage.put_scratch(&path, bytes).await?;
        Ok(path)
    }

    /// Removes all work folders and half-written files of the output: call it when the manifest is published.
    ///
    /// # Errors
    /// Storage errors.
    pub async fn clear(&self) -> Result<()> {
        self.storage.delete_prefix(&format!("{META}/work")).await?;
        let meta = format!("{META}/");
        self.storage.remove_half_written("", |path| path.starts_with(&meta) || crate::verify::is_ours(path)).await
    }
}

/// A receipt as it is stored.
///
/// # Errors
/// [`Error::Internal`] for a value that can't be encoded.
pub fn receipt_bytes<T: Serialize>(receipt: &T) -> Result<Vec<u8>> {
    let body = postcard::to_allocvec(receipt).map_err(|e| Error::internal(format!("a receipt: {e}")))?;
    Ok([blake3::hash(&body).as_bytes().as_slice(), &body].concat())
}

/// The receipt in `bytes`; `None` when they are no whole one.
#[must_use]
pub fn read_receipt<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    open(bytes).and_then(|body| postcard::from_bytes(body).ok())
}

/// The body of a receipt that is whole: its BLAKE3 comes first.
fn open(bytes: &[u8]) -> Option<&[u8]> {
    let (digest, body) = bytes.split_first_chunk::<32>()?;
    (blake3::hash(body).as_bytes() == digest).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn receipts_are_kept_per_job_and_cleared() {
        let storage = Storage::memory();
        let work = Work::new(&storage, "aaaaaaaaaaaaaaaaaaaa");
        assert_eq!(work.receipt::<u32>("unit-0").await.unwrap(), None);
        work.record("unit-0", &7_u32).await.unwrap();
        work.record("unit-0", &8_u32).await.unwrap();
        assert_eq!(work.receipt::<u32>("unit-0").await.unwrap(), Some(7));
        assert_eq!(Work::new(&storage, "bbbbbbbbbbbbbbbbbbbb").receipt::<u32>("unit-0").await.unwrap(), None);
        storage.put(&work.receipt_path("unit-1"), "no receipt").await.unwrap();
        assert_eq!(work.receipt::<u32>("unit-1").await.unwrap(), None);
        work.clear().await.unwrap();
        assert!(storage.list(META).await.unwrap().is_empty());
    }
}
