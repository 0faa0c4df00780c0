//! Where bytes are: a URL and the object store behind it.
//!
//! A path is `/`-separated and relative to the URL. Local writes are fsynced; [`Storage::put`] and
//! [`Storage::put_if_absent`] are atomic (a reader sees the old object, the new one, or none).

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Component, Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    local::LocalFileSystem,
    memory::InMemory,
    path::Path as ObjectPath,
};

use crate::error::{Error, Result};

/// Options of one URL, by object_store's names (`aws_endpoint`, `aws_region`, …).
pub type StorageOptions = BTreeMap<String, String>;

/// A folder (or bucket prefix) that holds a data set, shards, or checkpoints.
#[derive(Debug, Clone)]
pub struct Storage {
    store: Arc<dyn ObjectStore>,
    root: ObjectPath,
    url: String,
    local: Option<PathBuf>,
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Path relative to the storage.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
}

impl Storage {
    /// Opens a local path, `file://` or `s3://` URL. Nothing is created until something is written.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown scheme or option (with the nearest valid name), or a URL that does not parse.
    pub fn open(url: &str, options: &StorageOptions) -> Result<Self> {
        if let Some((scheme, _)) = url.split_once("://") {
            return match scheme {
                "file" => {
                    let parsed = parse(url)?;
                    let path = parsed.to_file_path().map_err(|()| {
                        Error::usage(format!("{url} is not a local file URL"), "write file:///absolute/path")
                    })?;
                    Self::local(&path, options)
                }
                "s3" => Self::s3(url, options),
                "memory" => Ok(Self::memory()),
                other => Err(Error::usage(
                    format!("{url}: storage \"{other}://\" is not built in"),
                    "use a local path, file:// or s3://",
                )),
            };
        }
        Self::local(Path::new(url), options)
    }

    fn local(path: &Path, options: &StorageOptions) -> Result<Self> {
        if let Some(name) = options.keys().next() {
            return Err(Error::usage(
                format!("storage option \"{name}\" does not apply to the local path {}", path.display()),
                "local paths take no options",
            ));
        }
        let absolute = absolute_path(path)?;
        let root = ObjectPath::from_absolute_path(&absolute).map_err(|e| {
            Error::usage(format!("{} is not a usable path: {e}", path.display()), "give a plain UTF-8 path")
        })?;
        Ok(Self {
            store: Arc::new(LocalFileSystem::new().with_fsync(true)),
            root,
            url: absolute.display().to_string(),
            local: Some(absolute),
        })
    }

    fn s3(url: &str, options: &StorageOptions) -> Result<Self> {
        let parsed = parse(url)?;
        let mut builder = AmazonS3Builder::from_env().with_url(url);
        for (name, value) in options {
            let key = AmazonS3ConfigKey::from_str(name).map_err(|_| {
                Error::usage(
                    format!("unknown storage option \"{name}\" for {url}"),
                    crate::error::nearest_name(name, S3_OPTIONS.iter().copied()),
                )
            })?;
            builder = builder.with_config(key, value);
        }
        let store = builder.build().map_err(|e| Error::usage(format!("{url}: {e}"), "check the storage options"))?;
        let root = ObjectPath::from_url_path(parsed.path())
            .map_err(|e| Error::usage(format!("{url} is not a usable URL: {e}"), "write s3://bucket/prefix"))?;
        Ok(Self { store: Arc::new(store), root, url: url.trim_end_matches('/').to_owned(), local: None })
    }

    /// An empty store in memory, for tests and examples.
    #[must_use]
    pub fn memory() -> Self {
        Self { store: Arc::new(InMemory::new()), root: ObjectPath::default(), url: "memory://".into(), local: None }
    }

    /// Any object store under a display URL (tests put faults in front of one this way).
    #[must_use]
    pub fn from_store(store: Arc<dyn ObjectStore>, url: impl Into<String>) -> Self {
        Self { store, root: ObjectPath::default(), url: url.into(), local: None }
    }

    /// The folder `path` below this one.
    #[must_use]
    pub fn join(&self, path: &str) -> Self {
        Self {
            store: Arc::clone(&self.store),
            root: self.object(path),
            url: self.url(path),
            local: self.local.as_ref().map(|l| l.join(path)),
        }
    }

    /// The URL of `path`, for messages.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        if path.is_empty() { self.url.clone() } else { format!("{}/{path}", self.url.trim_end_matches('/')) }
    }

    /// The local folder, when the storage is one.
    #[must_use]
    pub fn local_root(&self) -> Option<&Path> {
        self.local.as_deref()
    }

    fn object(&self, path: &str) -> ObjectPath {
        let mut object = self.root.clone();
        for part in path.split('/').filter(|p| !p.is_empty()) {
            object = object.join(part);
        }
        object
    }

    /// The whole object.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Permission`], or [`Error::Storage`].
    pub async fn get(&self, path: &str) -> Result<Bytes> {
        let fail = |e| Error::from_store("read", self.url(path), e);
        self.store.get(&self.object(path)).await.map_err(fail)?.bytes().await.map_err(fail)
    }

    /// Bytes `range` of the object.
    ///
    /// # Errors
    /// As [`Storage::get`]; a range past the end is [`Error::Corrupt`], since ranges come from manifests.
    pub async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let want = range.end - range.start;
        let bytes = self
            .store
            .get_range(&self.object(path), range.clone())
            .await
            .map_err(|e| Error::from_store("read", self.url(path), e))?;
        if bytes.len() as u64 != want {
            return Err(Error::corrupt(
                self.url(path),
                format!("bytes {range:?} were asked for, {} came", bytes.len()),
            ));
        }
        Ok(bytes)
    }

    /// Size in bytes, `None` when absent.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn size(&self, path: &str) -> Result<Option<u64>> {
        match self.store.head(&self.object(path)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(Error::from_store("read", self.url(path), e)),
        }
    }

    /// Writes the object, replacing any old one.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn put(&self, path: &str, bytes: impl Into<Bytes>) -> Result<()> {
        self.store
            .put(&self.object(path), PutPayload::from_bytes(bytes.into()))
            .await
            .map(drop)
            .map_err(|e| Error::from_store("write", self.url(path), e))
    }

    /// Writes the object if there is none; `false` when there was one (it is left as it is).
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn put_if_absent(&self, path: &str, bytes: impl Into<Bytes>) -> Result<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.store.put_opts(&self.object(path), PutPayload::from_bytes(bytes.into()), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
            Err(e) => Err(Error::from_store("write", self.url(path), e)),
        }
    }

    /// All objects under `prefix` (a folder), in byte order of their paths.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`]; a folder that is not there is an empty list.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let folder = self.object(prefix);
        let mut stream = self.store.list(Some(&folder));
        let mut listed = Vec::new();
        while let Some(meta) = stream.next().await {
            match meta {
                Ok(meta) => {
                    let full = meta.location.as_ref();
                    let relative = full.strip_prefix(self.root.as_ref()).unwrap_or(full).trim_start_matches('/');
                    listed.push(Listed { path: relative.to_owned(), bytes: meta.size });
                }
                // An object that a concurrent clean-up removed between listing and stat.
                Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => return Err(Error::from_store("list", self.url(prefix), e)),
            }
        }
        listed.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        Ok(listed)
    }

    /// Deletes the object; one that is not there is no error.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn delete(&self, path: &str) -> Result<()> {
        match self.store.delete(&self.object(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(Error::from_store("delete", self.url(path), e)),
        }
    }

    /// Deletes every object under `prefix` and, locally, the folders and half-written temporary files there.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn delete_prefix(&self, prefix: &str) -> Result<()> {
        if let Some(local) = &self.local {
            let folder = local.join(prefix);
            // Another process may still be writing there: what appears between listing and removing is a second try.
            let mut tries = 3;
            return loop {
                match tokio::fs::remove_dir_all(&folder).await {
                    Ok(()) => break Ok(()),
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => break Ok(()),
                    Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty && tries > 0 => tries -= 1,
                    Err(e) => break Err(Error::from_store("delete", self.url(prefix), local_error(e))),
                }
            };
        }
        let objects = self.list(prefix).await?;
        futures::stream::iter(objects.into_iter().map(Ok))
            .try_for_each_concurrent(16, |object| async move { self.delete(&object.path).await })
            .await
    }

    /// Removes temporary files (`name#1`) that a killed writer left of `ours` under `prefix` of a local folder; `ours`
    /// is asked for the path that the file was to have, below the storage's root. Other files are left alone.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn remove_half_written(&self, prefix: &str, ours: impl Fn(&str) -> bool + Send) -> Result<()> {
        let Some(local) = &self.local else { return Ok(()) };
        let mut folders = vec![local.join(prefix)];
        while let Some(folder) = folders.pop() {
            let fail = |e| Error::from_store("delete", folder.display().to_string(), local_error(e));
            let mut entries = match tokio::fs::read_dir(&folder).await {
                Ok(entries) => entries,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(fail(e)),
            };
            while let Some(entry) = entries.next_entry().await.map_err(fail)? {
                if entry.file_type().await.map_err(fail)?.is_dir() {
                    folders.push(entry.path());
                } else if let Some(path) =
                    entry.path().strip_prefix(local).ok().and_then(Path::to_str).and_then(final_path)
                    && ours(path)
                {
                    match tokio::fs::remove_file(entry.path()).await {
                        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail(e)),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// object_store stages a local write as `<name>#<number>`: the name that it was to have.
fn final_path(staged: &str) -> Option<&str> {
    let (path, number) = staged.rsplit_once('#')?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(path)
}

fn local_error(e: std::io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(e) }
}

/// `path` from the root, without `.` and `..`; it need not exist. Object paths have no `..`.
///
/// # Errors
/// [`Error::Usage`] when there is no such path (it is empty, or the working folder is gone).
pub fn absolute_path(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)
        .map_err(|e| Error::usage(format!("{} is not a usable path: {e}", path.display()), "give a plain path"))?;
    let mut clean = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => {
                // The parent of a linked folder is that of the folder it leads to.
                if let Ok(real) = clean.canonicalize() {
                    clean = real;
                }
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    Ok(clean)
}

fn parse(url: &str) -> Result<url::Url> {
    url::Url::parse(url).map_err(|e| Error::usage(format!("{url} is not a URL: {e}"), "write scheme://bucket/path"))
}

/// The options named in help; object_store accepts more aliases of the same.
const S3_OPTIONS: [&str; 10] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_endpoint",
    "aws_allow_http",
    "aws_virtual_hosted_style_request",
    "aws_skip_signature",
    "aws_unsigned_payload",
    "aws_checksum_algorithm",
];

#[cfg(test)]
mod tests {
    use super::*;

    async fn conformance(storage: &Storage) {
        assert_eq!(storage.size("a/b").await.unwrap(), None);
        assert!(matches!(storage.get("a/b").await, Err(Error::NotFound { .. })));
        assert!(storage.put_if_absent("a/b", "one").await.unwrap());
        assert!(!storage.put_if_absent("a/b", "two").await.unwrap());
        assert_eq!(storage.get("a/b").await.unwrap(), "one");
        storage.put("a/b", "three").await.unwrap();
        storage.put("a/c", "x").await.unwrap();
        assert_eq!(storage.get_range("a/b", 1..3).await.unwrap(), "hr");
        assert!(storage.get_range("a/b", 3..99).await.is_err());
        assert_eq!(storage.size("a/b").await.unwrap(), Some(5));
        let paths: Vec<String> = storage.list("a").await.unwrap().into_iter().map(|l| l.path).collect();
        assert_eq!(paths, ["a/b", "a/c"]);
        assert_eq!(storage.join("a").get("c").await.unwrap(), "x");
        assert_eq!(storage.join("a").list("").await.unwrap().len(), 2);
        storage.delete("a/b").await.unwrap();
        storage.delete("a/b").await.unwrap();
        storage.delete_prefix("a").await.unwrap();
        assert!(storage.list("a").await.unwrap().is_empty());
        assert!(storage.list("nowhere").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn every_store_keeps_the_contract() {
        conformance(&Storage::memory()).await;
        let dir = tempfile::tempdir().unwrap();
        conformance(&Storage::open(dir.path().to_str().unwrap(), &StorageOptions::new()).unwrap()).await;
    }

    #[test]
    fn paths_may_go_up_and_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("far/deep")).unwrap();
        std::os::unix::fs::symlink(base.join("far/deep"), base.join("link")).unwrap();
        for (path, want) in [("a/../b", "b"), ("a/./b/..", "a"), ("link/../x", "far/x")] {
            let storage = Storage::open(base.join(path).to_str().unwrap(), &StorageOptions::new()).unwrap();
            assert_eq!(storage.local_root(), Some(base.join(want).as_path()), "{path}");
        }
    }

    #[tokio::test]
    async fn half_written_files_are_removed_and_others_kept() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(dir.path().to_str().unwrap(), &StorageOptions::new()).unwrap();
        storage.put("x/part.parquet", "whole").await.unwrap();
        std::fs::write(dir.path().join("x/part.parquet#1"), "half").unwrap();
        std::fs::write(dir.path().join("x/notes#draft"), "kept").unwrap();
        std::fs::write(dir.path().join("notes#1"), "a file of the user's").unwrap();
        storage.remove_half_written("", |path| path == "x/part.parquet").await.unwrap();
        assert!(dir.path().join("notes#1").exists());
        assert!(!dir.path().join("x/part.parquet#1").exists());
        assert!(dir.path().join("x/notes#draft").exists());
        assert_eq!(storage.get("x/part.parquet").await.unwrap(), "whole");
    }

    #[test]
    fn bad_urls_and_options_are_refused_with_a_hint() {
        let none = StorageOptions::new();
        assert!(Storage::open("ftp://x/y", &none).unwrap_err().to_string().contains("not built in"));
        let odd = StorageOptions::from([("aws_endpont".to_owned(), "x".to_owned())]);
        let error = Storage::open("s3://bucket/x", &odd).unwrap_err();
        assert!(error.to_string().contains("did you mean \"aws_endpoint\""), "{error}");
        assert!(Storage::open("/tmp/x", &odd).is_err());
    }

    #[tokio::test]
    async fn a_file_where_a_folder_should_be_is_said_so() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let storage = Storage::open(dir.path().join("f").to_str().unwrap(), &StorageOptions::new()).unwrap();
        let error = storage.put("a", "x").await.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NotFound, "{error}");
    }
}
