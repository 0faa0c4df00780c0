//! Where bytes are: a URL and the object store behind it.
//!
//! A path is `/`-separated and relative to the URL. Local writes are fsynced; [`Storage::put`] and
//! [`Storage::put_if_absent`] are atomic (a reader sees the old object, the new one, or none).
//!
//! Requests to a remote store are tried again for `retry_seconds` (60 unless that option says otherwise), with growing
//! random waits: answers 5xx, 408 and 429, connections refused, reset or cut. `docs/storage.md` lists the options.

mod credentials;
mod remote;
mod upload;

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::StreamExt;
use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    client::{HttpError, HttpErrorKind},
    local::LocalFileSystem,
    memory::InMemory,
    path::{Path as ObjectPath, PathPart},
};
use tokio::sync::OnceCell;

pub(crate) use credentials::EXPORT_HELP;

use crate::{
    error::{Error, Result},
    manifest::META,
};
use upload::Found;

/// Options of one URL: object_store's names (`aws_endpoint`, `aws_region`, …), and `retry_seconds` and `max_requests`.
pub type StorageOptions = BTreeMap<String, String>;

/// A folder (or bucket prefix) that holds a data set, shards, or checkpoints.
#[derive(Debug, Clone)]
pub struct Storage {
    store: Arc<dyn ObjectStore>,
    root: ObjectPath,
    url: String,
    local: Option<PathBuf>,
    /// The local store again, without fsync.
    unsynced: Option<Arc<dyn ObjectStore>>,
    /// For how long a request is tried again; `None` for stores that are no requests away.
    retry: Option<Duration>,
    /// Set once [`Storage::prove_put_if_absent`] was right; shared by all that were joined from one that was opened.
    proved: Arc<OnceCell<()>>,
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
    /// Opens a local path, `file://` or `s3://` URL, or (with the cargo features `gcs` and `azure`) a `gs://` or `az://`
    /// one. Nothing is sent or created until something is read or written.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown scheme or option (with the nearest valid name), a URL that does not parse, or S3
    /// credentials that are only in a profile.
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
                "memory" => Ok(Self::memory()),
                scheme => {
                    let remote::Opened { store, root, retry } = remote::open(scheme, url, options)?;
                    let url = url.trim_end_matches('/').to_owned();
                    Ok(Self { root, retry: Some(retry), ..Self::from_store(store, url) })
                }
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
        let store = Arc::new(LocalFileSystem::new().with_fsync(true));
        let url = absolute.display().to_string();
        let unsynced: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
        Ok(Self { root, local: Some(absolute), unsynced: Some(unsynced), ..Self::from_store(store, url) })
    }

    /// An empty store in memory, for tests and examples.
    #[must_use]
    pub fn memory() -> Self {
        Self::from_store(Arc::new(InMemory::new()), "memory://")
    }

    /// Any object store under a display URL (tests put faults in front of one this way).
    #[must_use]
    pub fn from_store(store: Arc<dyn ObjectStore>, url: impl Into<String>) -> Self {
        Self {
            store,
            root: ObjectPath::default(),
            url: url.into(),
            local: None,
            unsynced: None,
            retry: None,
            proved: Arc::new(OnceCell::new()),
        }
    }

    /// The folder `path` below this one.
    #[must_use]
    pub fn join(&self, path: &str) -> Self {
        Self {
            store: Arc::clone(&self.store),
            root: self.object(path),
            url: self.url(path),
            local: self.local.as_ref().map(|l| l.join(path)),
            unsynced: self.unsynced.clone(),
            retry: self.retry,
            proved: Arc::clone(&self.proved),
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
        // A name is stored as it is, so that what other programs call a file is what it is called here, and what a listing
        // gives can be asked for. Only what no object may be called (`..`, control characters) is percent-encoded.
        path.split('/').filter(|p| !p.is_empty()).fold(self.root.clone(), |object, part| match PathPart::parse(part) {
            Ok(part) => object.join(part),
            Err(_) => object.join(part),
        })
    }

    /// Does `request`, which may be done twice, again while the network fails it and there is time. object_store itself
    /// tries again what it knows to be safe; this is for the rest (a reset connection under a bulk delete, a listing cut
    /// short).
    async fn again<T, F>(&self, mut request: impl FnMut() -> F) -> object_store::Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut waits = Waits::new(self.retry);
        loop {
            match request().await {
                Err(e) if of_the_network(&e) && waits.wait().await => {}
                other => return other,
            }
        }
    }

    /// The whole object.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Permission`], or [`Error::Storage`].
    pub async fn get(&self, path: &str) -> Result<Bytes> {
        let object = self.object(path);
        self.again(|| async { self.store.get(&object).await?.bytes().await })
            .await
            .map_err(|e| Error::from_store("read", self.url(path), e))
    }

    /// Bytes `range` of the object.
    ///
    /// # Errors
    /// As [`Storage::get`]; a range past the end is [`Error::Corrupt`], since ranges come from manifests.
    pub async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let want = range.end.saturating_sub(range.start);
        let object = self.object(path);
        let bytes = match self.again(|| self.store.get_range(&object, range.clone())).await {
            Ok(bytes) => bytes,
            Err(e) if is_past_the_end(&e) => {
                return Err(Error::corrupt(self.url(path), format!("it ends before bytes {range:?}")));
            }
            Err(e) => return Err(Error::from_store("read", self.url(path), e)),
        };
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
        let object = self.object(path);
        match self.again(|| self.store.head(&object)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(Error::from_store("read", self.url(path), e)),
        }
    }

    /// Writes the object, replacing any old one. A large one goes to a remote store in parts, several at once; it is
    /// still there whole or not at all.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn put(&self, path: &str, bytes: impl Into<Bytes>) -> Result<()> {
        let (object, bytes) = (self.object(path), bytes.into());
        let written = if self.retry.is_some() && bytes.len() > upload::PARTS_ABOVE {
            self.again(|| upload::put_in_parts(&*self.store, &object, &bytes)).await
        } else {
            self.again(|| self.store.put(&object, PutPayload::from_bytes(bytes.clone()))).await.map(drop)
        };
        written.map_err(|e| Error::from_store("write", self.url(path), e))
    }

    /// As [`Storage::put`], for what can be made again: on a local disk it is not synced, so that after a loss of power it
    /// may be empty or cut short. Whoever reads it checks it.
    ///
    /// # Errors
    /// As [`Storage::put`].
    pub async fn put_scratch(&self, path: &str, bytes: impl Into<Bytes>) -> Result<()> {
        let Some(store) = &self.unsynced else { return self.put(path, bytes).await };
        let written = store.put(&self.object(path), PutPayload::from_bytes(bytes.into())).await.map(drop);
        written.map_err(|e| Error::from_store("write", self.url(path), e))
    }

    /// Writes the object if there is none; `false` when there was one (it is left as it is). Of several writers at once
    /// one is told `true`, also when answers are lost on the way and the request is sent again.
    ///
    /// The first call for a remote store proves that it keeps this ([`Storage::prove_put_if_absent`]).
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`]; [`Error::Usage`] for a store that can't do this.
    pub async fn put_if_absent(&self, path: &str, bytes: impl Into<Bytes>) -> Result<bool> {
        if self.retry.is_some() {
            self.prove_put_if_absent().await?;
        }
        self.create(path, bytes.into()).await
    }

    /// Shows on a probe object that the store lets only the first of several writers put an object if absent; what is
    /// published relies on it. Shown once for an opened storage; later calls do nothing.
    ///
    /// # Errors
    /// [`Error::Usage`] for a store that lets a second writer win, or that refuses conditional puts;
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn prove_put_if_absent(&self) -> Result<()> {
        self.proved.get_or_try_init(|| self.probe()).await.map(drop)
    }

    async fn probe(&self) -> Result<()> {
        // A job that ends meanwhile empties the work folder, and with it removes a probe; that is no fault of the store.
        for _ in 0..3 {
            let path = format!("{META}/work/probe-{}", upload::unique());
            let texts = ["first", "second", "third"].map(|text| Bytes::from_static(text.as_bytes()));
            let [first, second, third] = texts.clone();
            let (a, b) = futures::future::try_join(self.create(&path, first), self.create(&path, second)).await?;
            let c = self.create(&path, third).await?;
            let left = match self.get(&path).await {
                Ok(bytes) => Some(bytes),
                Err(Error::NotFound { .. }) => None,
                Err(e) => return Err(e),
            };
            self.delete(&path).await?;
            let winner = match (a, b, c) {
                (true, false, false) => &texts[0],
                (false, true, false) => &texts[1],
                _ => continue,
            };
            if left.as_ref() == Some(winner) {
                return Ok(());
            }
        }
        Err(Error::usage(
            format!(
                "{} does not keep \"put if absent\": several writers of one object were all told to be the first",
                self.url("")
            ),
            "use a store that honours If-None-Match on PUT (docs/storage.md says which do), or write to a local folder and copy that",
        ))
    }

    /// Puts if absent, whether that was proved or not.
    async fn create(&self, path: &str, bytes: Bytes) -> Result<bool> {
        let object = self.object(path);
        let fail = |e| Err(Error::from_store("write", self.url(path), e));
        let mut options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        if self.retry.is_none() {
            return match self.store.put_opts(&object, PutPayload::from_bytes(bytes), options).await {
                Ok(_) => Ok(true),
                Err(e) if is_there_already(&e) => Ok(false),
                Err(e) => fail(e),
            };
        }
        // A request whose answer was lost is sent again, by object_store or here, and then finds its own object. So each
        // write names its writer, and who finds an object asks whose it is.
        let writer = upload::unique();
        options.attributes = upload::written_by(&writer);
        let mut waits = Waits::new(self.retry);
        loop {
            let payload = PutPayload::from_bytes(bytes.clone());
            let error = match self.store.put_opts(&object, payload, options.clone()).await {
                Ok(_) => return Ok(true),
                Err(e @ object_store::Error::NotImplemented { .. }) => {
                    return Err(Error::usage(
                        format!("{}: {e}", self.url(path)),
                        "leave out the storage option aws_conditional_put, or set it to etag",
                    ));
                }
                Err(e) if is_there_already(&e) || of_the_network(&e) => e,
                Err(e) => return fail(e),
            };
            match self.again(|| upload::find(&*self.store, &object)).await {
                Ok(Found::Object(found)) => return Ok(found.as_deref() == Some(&writer)),
                // Of two writers at once a store may refuse both (S3: 409), and a lost request may never have arrived.
                Ok(Found::Nothing) if waits.wait().await => {}
                Ok(Found::Nothing) => return fail(error),
                Err(e) => return fail(e),
            }
        }
    }

    /// All objects under `prefix` (a folder), in byte order of their paths.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`]; a folder that is not there is an empty list.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let folder = self.object(prefix);
        let list = || async {
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
                    Err(object_store::Error::NotFound { .. }) if self.local.is_some() => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(listed)
        };
        let mut listed = self.again(list).await.map_err(|e| Error::from_store("list", self.url(prefix), e))?;
        listed.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        Ok(listed)
    }

    /// Deletes the object; one that is not there is no error.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Storage`].
    pub async fn delete(&self, path: &str) -> Result<()> {
        let object = self.object(path);
        match self.again(|| self.store.delete(&object)).await {
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
        let objects: Vec<ObjectPath> = self.list(prefix).await?.iter().map(|o| self.object(&o.path)).collect();
        let delete = || async {
            let paths = futures::stream::iter(objects.clone().into_iter().map(Ok)).boxed();
            let mut deleted = self.store.delete_stream(paths);
            while let Some(result) = deleted.next().await {
                match result {
                    Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        };
        self.again(delete).await.map_err(|e| Error::from_store("delete", self.url(prefix), e))
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

/// Growing waits between tries, until the time is up.
struct Waits {
    until: Option<Instant>,
    next: Duration,
}

impl Waits {
    fn new(retry: Option<Duration>) -> Self {
        let until = retry.filter(|r| !r.is_zero()).and_then(|r| Instant::now().checked_add(r));
        Self { until, next: Duration::from_millis(100) }
    }

    /// Waits for the next try; `false` when there is no time for one.
    async fn wait(&mut self) -> bool {
        use std::hash::BuildHasher as _;
        let in_time = |until: Instant| Instant::now().checked_add(self.next).is_some_and(|then| then < until);
        if !self.until.is_some_and(in_time) {
            return false;
        }
        // Between half and all of it, at random, so that those who failed together do not come back together.
        let part = std::hash::RandomState::new().hash_one(0_u8) % 512;
        let most = u64::try_from(self.next.as_micros()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_micros((most / 1024).saturating_mul(512 + part))).await;
        self.next = self.next.saturating_mul(2).min(Duration::from_secs(5));
        true
    }
}

/// Whether the connection failed, not the store: whether the request was carried out is not known.
fn of_the_network(error: &object_store::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            let kind = http.kind();
            return !matches!(kind, HttpErrorKind::Decode | HttpErrorKind::Unknown);
        }
        next = error.source();
    }
    false
}

fn is_there_already(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })
}

/// Whether a range begins or ends after the object does. Stores have no variant of their own for it.
fn is_past_the_end(error: &object_store::Error) -> bool {
    // Only the generic variant: a path may have any of these words in it.
    let signs = ["status code: 416", "InvalidRange", "Wanted range", "Requested "];
    matches!(error, object_store::Error::Generic { .. }) && {
        let text = error.to_string();
        signs.iter().any(|sign| text.contains(sign))
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

#[cfg(test)]
mod tests {
    use super::*;

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
