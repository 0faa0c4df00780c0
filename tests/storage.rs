//! Storage keeps its contract: in memory, on a disk, on S3, and on an S3 that is slow, busy and badly connected.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::{
    fmt,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::stream::BoxStream;
use gristmill_shard::{Error, ErrorKind, Storage, StorageOptions};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt as _,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory, path::Path as ObjectPath,
};
use testkit::{
    fault_proxy::{FaultProxy, Faults},
    program::{Running, command, start},
    s3_server::{BUCKET, S3Server},
    storage_contract::{a_large_object_comes_back, keeps_the_contract, one_of_many_wins},
};

const LIMIT: Duration = Duration::from_secs(120);
const LARGE: usize = 70 << 20;
/// Races on the server: it makes those who meet at one object wait for whole seconds.
const S3_ROUNDS: usize = 3;

fn local(folder: &Path) -> Storage {
    Storage::open(folder.to_str().unwrap(), &StorageOptions::new()).unwrap()
}

/// A prefix of the server's bucket, reached through `address`.
fn prefix(server: &S3Server, address: SocketAddr, name: &str) -> Storage {
    Storage::open(&format!("s3://{BUCKET}/{name}"), &server.options(address)).unwrap()
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    let storage = Storage::memory();
    keeps_the_contract(&storage).await;
    one_of_many_wins(&storage, 16, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_disk_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let storage = local(dir.path());
    keeps_the_contract(&storage).await;
    one_of_many_wins(&storage, 16, 20).await;
    a_large_object_comes_back(&storage, LARGE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_keeps_the_contract() {
    let Some(server) = S3Server::start() else { return };
    keeps_the_contract(&prefix(&server, server.address(), "contract")).await;
    let storage = prefix(&server, server.address(), "more");
    one_of_many_wins(&storage, 16, S3_ROUNDS).await;
    a_large_object_comes_back(&storage, LARGE).await;
    assert_eq!(server.unfinished_uploads(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_that_is_busy_keeps_the_contract() {
    let Some(server) = S3Server::start() else { return };
    let proxy = FaultProxy::start(server.address(), Faults { seed: 1, busy_one_in: 5, ..Faults::default() });
    keeps_the_contract(&prefix(&server, proxy.address(), "contract")).await;
    let storage = prefix(&server, proxy.address(), "more");
    one_of_many_wins(&storage, 16, S3_ROUNDS).await;
    a_large_object_comes_back(&storage, LARGE).await;
    let counts = proxy.counts();
    assert!(counts.busy * 8 > counts.requests && counts.busy * 4 < counts.requests, "{counts:?}");
}

/// What the plain retries of a client get wrong: a conditional put whose answer was lost finds its own object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_behind_a_bad_connection_keeps_the_contract() {
    let Some(server) = S3Server::start() else { return };
    let faults =
        Faults { seed: 2, busy_one_in: 20, reset_one_in: 12, lost_one_in: 6, cut_one_in: 12, ..Faults::default() };
    let proxy = FaultProxy::start(server.address(), faults);
    keeps_the_contract(&prefix(&server, proxy.address(), "contract")).await;
    let storage = prefix(&server, proxy.address(), "more");
    one_of_many_wins(&storage, 16, S3_ROUNDS).await;
    a_large_object_comes_back(&storage, LARGE).await;
    let counts = proxy.counts();
    assert!([counts.busy, counts.reset, counts.lost, counts.cut].iter().all(|n| *n > 0), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_parts_are_given_back_when_one_of_them_fails() {
    let Some(server) = S3Server::start() else { return };
    let faults = Faults { busy_one_in: 1, only: Some("partNumber=2&"), ..Faults::default() };
    let proxy = FaultProxy::start(server.address(), faults);
    let mut options = server.options(proxy.address());
    options.insert("retry_seconds".into(), "1".into());
    let storage = Storage::open(&format!("s3://{BUCKET}/parts"), &options).unwrap();
    let error = storage.put("large", vec![7_u8; LARGE]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage);
    assert!(error.to_string().contains("retry_seconds"), "{error}");
    assert!(proxy.counts().busy > 1, "it was tried again: {:?}", proxy.counts());
    assert_eq!(storage.size("large").await.unwrap(), None);
    assert_eq!(server.unfinished_uploads(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_errors_are_told_apart() {
    let Some(server) = S3Server::start() else { return };
    let open = |bucket: &str, more: &[(&str, &str)]| {
        let mut options = server.options(server.address());
        options.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Storage::open(&format!("s3://{bucket}/errors"), &options).unwrap()
    };
    let wrong = open(BUCKET, &[("aws_secret_access_key", "another")]);
    for error in [
        wrong.get("a").await.unwrap_err(),
        wrong.list("").await.unwrap_err(),
        wrong.put("a", "x").await.unwrap_err(),
        wrong.put_if_absent("a", "x").await.unwrap_err(),
        wrong.delete("a").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    }
    assert_eq!(open(BUCKET, &[]).get("a").await.unwrap_err().kind(), ErrorKind::NotFound);

    let off = open(BUCKET, &[("aws_conditional_put", "disabled")]);
    let error = off.put_if_absent("a", "x").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("aws_conditional_put"), "{error}");

    let proxy = FaultProxy::start(server.address(), Faults { busy_one_in: 1, ..Faults::default() });
    let endpoint = format!("http://{}", proxy.address());
    let began = Instant::now();
    let busy = open(BUCKET, &[("aws_endpoint", &endpoint), ("retry_seconds", "2")]);
    let error = busy.get("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage);
    assert!(error.to_string().contains("busy"), "{error}");
    assert!((2..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    let tries = proxy.counts().requests;
    assert!(tries > 2, "{tries}");

    let never = open(BUCKET, &[("aws_endpoint", &endpoint), ("retry_seconds", "0")]);
    assert!(never.get("a").await.is_err());
    assert_eq!(proxy.counts().requests, tries + 1, "0 seconds: once");

    let gone = open(BUCKET, &[("aws_endpoint", "http://127.0.0.1:9"), ("retry_seconds", "1")]);
    let error = gone.get("a").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Storage && error.to_string().contains("check the endpoint"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_is_asked_for_no_more_at_once_than_allowed() {
    let Some(server) = S3Server::start() else { return };
    let delay = Duration::from_millis(100);
    let proxy = FaultProxy::start(server.address(), Faults { delay, ..Faults::default() });
    let mut options = server.options(proxy.address());
    options.insert("max_requests".into(), "2".into());
    let storage = Storage::open(&format!("s3://{BUCKET}/few"), &options).unwrap();
    storage.put("a", "x").await.unwrap();
    let began = Instant::now();
    let mut reads = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let storage = storage.clone();
        reads.spawn(async move { storage.get("a").await });
    }
    assert!(reads.join_all().await.into_iter().all(|read| read.unwrap() == "x"));
    assert!(began.elapsed() >= 5 * delay, "ten requests, two at once: {:?}", began.elapsed());
}

/// A put of `bytes` to `url` in a process of its own.
fn writer(url: &str, environment: &[(String, String)], name: &str, bytes: u64) -> Running {
    let mut c = command(Path::new(env!("CARGO_BIN_EXE_put-object")));
    c.args([url, name, &bytes.to_string()]).envs(environment.iter().cloned());
    start(&mut c)
}

/// Kills writers of a large object at moments spread over the time that one takes: it is there whole or not at all, and
/// the next writer is not hindered.
async fn killed_writers_leave_nothing_half(storage: &Storage, url: &str, environment: &[(String, String)]) {
    const KILLS: u32 = 8;
    const BYTES: u64 = 48 << 20;
    let ended = writer(url, environment, "whole", BYTES).wait(LIMIT).success();
    assert_eq!(storage.size("whole").await.unwrap(), Some(BYTES));
    let mut absent = 0;
    for kill in 0..KILLS {
        let name = format!("killed-{kill}");
        let mut running = writer(url, environment, &name, BYTES);
        tokio::time::sleep(ended.took * (2 * kill + 1) / (2 * KILLS)).await;
        running.kill();
        let _ = running.wait(LIMIT);
        match storage.size(&name).await.unwrap() {
            Some(bytes) => assert_eq!(bytes, BYTES, "kill {kill}"),
            None => absent += 1,
        }
        let listed = storage.list("").await.unwrap();
        assert!(listed.iter().all(|l| l.bytes == BYTES || storage.local_root().is_some()), "{listed:?}");
    }
    assert!(absent > 0, "no kill came before the end");
    let _ = writer(url, environment, "killed-0", BYTES).wait(LIMIT).success();
    assert!(storage.get("killed-0").await.unwrap() == storage.get("whole").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_writers_leave_nothing_half_on_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    killed_writers_leave_nothing_half(&local(dir.path()), dir.path().to_str().unwrap(), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_killed_writers_leave_nothing_half() {
    let Some(server) = S3Server::start() else { return };
    let delay = Duration::from_millis(50);
    let proxy = FaultProxy::start(server.address(), Faults { delay, ..Faults::default() });
    let storage = prefix(&server, server.address(), "killed");
    let url = format!("s3://{BUCKET}/killed");
    killed_writers_leave_nothing_half(&storage, &url, &server.environment(proxy.address())).await;
}

/// A store that does not know conditional puts and takes them for plain ones, as some servers do.
#[derive(Debug)]
struct Forgetful(InMemory);

impl fmt::Display for Forgetful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forgetful")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Forgetful {
    async fn put_opts(&self, at: &ObjectPath, bytes: PutPayload, _: PutOptions) -> object_store::Result<PutResult> {
        self.0.put(at, bytes).await
    }

    async fn put_multipart_opts(
        &self,
        at: &ObjectPath,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &ObjectPath, options: GetOptions) -> object_store::Result<GetResult> {
        self.0.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<ObjectPath>>,
    ) -> BoxStream<'static, object_store::Result<ObjectPath>> {
        self.0.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> object_store::Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> object_store::Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_store_that_forgets_the_condition_is_refused() {
    let storage = Storage::from_store(Arc::new(Forgetful(InMemory::new())), "s3://forgetful/x");
    let error = storage.prove_put_if_absent().await.unwrap_err();
    assert!(matches!(error, Error::Usage { .. }));
    let text = error.to_string();
    assert!(text.contains("s3://forgetful/x does not keep") && text.contains("If-None-Match"), "{text}");
    assert!(storage.list("").await.unwrap().is_empty(), "probes are removed");
}
