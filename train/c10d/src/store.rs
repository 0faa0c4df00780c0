//! Key-value stores by which ranks find each other.

use std::ffi::{CString, c_char, c_void};
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use crate::ffi::{self, c_string, call, millis};
use crate::{Error, Rendezvous, Result};

/// A `c10d::Store`: keys and byte values that all ranks see.
///
/// Any thread may use it. One store is one connection, on which operations take turns: a [`Store::wait`] or
/// [`Store::get`] in one thread holds up all other threads until it is done. [`Store::reconnect`] makes a second
/// connection for a thread that must not be held up.
#[derive(Debug)]
pub struct Store {
    raw: NonNull<c_void>,
    timeout: Duration,
}

// SAFETY: the handle is a reference-counted c10d::Store with an atomic count; TCPStore guards its connection with a
// mutex, and PrefixStore holds nothing but a constant string and such a store.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    fn from_raw(raw: *mut c_void, timeout: Duration, op: &str) -> Result<Self> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::Store { op: op.to_owned(), message: "no store was made".to_owned() })?;
        Ok(Self { raw, timeout })
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.raw.as_ptr()
    }

    /// How long [`Store::get`] waits for a key, and every operation for the server.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The same store over a connection of its own.
    ///
    /// # Errors
    /// [`Error::Timeout`] or [`Error::PeerLost`] when the server can't be reached.
    pub fn reconnect(&self) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: the handle is live, and the out places outlive the call.
        call("reconnect", self.timeout, |e| unsafe { ffi::gm_store_clone(self.as_ptr(), &raw mut raw, e) })?;
        Self::from_raw(raw, self.timeout, "reconnect")
    }

    /// Sets a key, whether or not it was there.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::Store`] when the server is gone.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let op = format!("set {key}");
        let key = c_string(&op, key)?;
        // SAFETY: the handle is live; the key is NUL-terminated and the value readable for its length.
        call(&op, self.timeout, |e| unsafe {
            ffi::gm_store_set(self.as_ptr(), key.as_ptr(), value.as_ptr(), value.len(), e)
        })
    }

    /// The value of a key, waiting until it is there, at most [`Store::timeout`].
    ///
    /// # Errors
    /// [`Error::Timeout`] when it does not appear; [`Error::PeerLost`] or [`Error::Store`] when the server is gone.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let op = format!("get {key}");
        let key = c_string(&op, key)?;
        let mut value: Vec<u8> = Vec::new();
        // SAFETY: the handle is live, the key NUL-terminated, and `collect` is given the Vec that it expects.
        call(&op, self.timeout, |e| unsafe {
            ffi::gm_store_get(self.as_ptr(), key.as_ptr(), ffi::collect, (&raw mut value).cast(), e)
        })?;
        Ok(value)
    }

    /// Waits until all keys are there.
    ///
    /// # Errors
    /// [`Error::Timeout`] when one does not appear; [`Error::PeerLost`] or [`Error::Store`] when the server is gone.
    pub fn wait(&self, keys: &[impl AsRef<str>], timeout: Duration) -> Result<()> {
        let op = format!("wait for {}", name_keys(keys));
        let (_owned, pointers) = c_strings(&op, keys)?;
        // SAFETY: the handle is live, and `_owned` keeps the `n` NUL-terminated keys until the call is over.
        call(&op, timeout, |e| unsafe {
            ffi::gm_store_wait(self.as_ptr(), pointers.as_ptr(), pointers.len(), millis(timeout), e)
        })
    }

    /// Whether all keys are there now.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::Store`] when the server is gone.
    pub fn check(&self, keys: &[impl AsRef<str>]) -> Result<bool> {
        let op = format!("check {}", name_keys(keys));
        let (_owned, pointers) = c_strings(&op, keys)?;
        let mut present = false;
        // SAFETY: as in `wait`; the out place outlives the call.
        call(&op, self.timeout, |e| unsafe {
            ffi::gm_store_check(self.as_ptr(), pointers.as_ptr(), pointers.len(), &raw mut present, e)
        })?;
        Ok(present)
    }

    /// Adds to a counter, which starts at 0, and returns the sum. Only counters may be added to.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::Store`] when the server is gone.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let op = format!("add to {key}");
        let key = c_string(&op, key)?;
        let mut sum = 0;
        // SAFETY: the handle is live, the key NUL-terminated, and the out place outlives the call.
        call(&op, self.timeout, |e| unsafe {
            ffi::gm_store_add(self.as_ptr(), key.as_ptr(), amount, &raw mut sum, e)
        })?;
        Ok(sum)
    }

    /// Deletes a key. `false`: it was not there.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::Store`] when the server is gone.
    pub fn delete_key(&self, key: &str) -> Result<bool> {
        let op = format!("delete {key}");
        let key = c_string(&op, key)?;
        let mut deleted = false;
        // SAFETY: the handle is live, the key NUL-terminated, and the out place outlives the call.
        call(&op, self.timeout, |e| unsafe { ffi::gm_store_delete(self.as_ptr(), key.as_ptr(), &raw mut deleted, e) })?;
        Ok(deleted)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the handle is owned by this value alone, and freed once.
        unsafe { ffi::gm_store_free(self.raw.as_ptr()) };
    }
}

/// A [`Store`] over TCP. The server lives as long as the value that made it and every group made over it: when the
/// process that hosts it ends, the other ranks' operations fail with [`Error::PeerLost`].
#[derive(Debug)]
pub struct TcpStore {
    store: Store,
    port: u16,
}

impl TcpStore {
    /// Hosts a store for `world_size` ranks on all interfaces and connects to it. Port 0 picks a free one: see
    /// [`TcpStore::port`]. It does not wait for the others. Within one process, two servers may share a port.
    ///
    /// # Errors
    /// [`Error::Store`] when the port is taken by another process.
    pub fn server(host: &str, port: u16, world_size: usize, timeout: Duration) -> Result<Self> {
        Self::open(host, port, true, world_size, timeout)
    }

    /// Connects to a store, trying again until `timeout` while nobody listens there yet.
    ///
    /// # Errors
    /// [`Error::Timeout`] when there is no server; [`Error::Config`] for port 0.
    pub fn connect(host: &str, port: u16, world_size: usize, timeout: Duration) -> Result<Self> {
        if port == 0 {
            return Err(Error::config(format!("connect to the store at {host}"), "port 0 is nobody's"));
        }
        Self::open(host, port, false, world_size, timeout)
    }

    fn open(host: &str, port: u16, server: bool, world_size: usize, timeout: Duration) -> Result<Self> {
        let op = format!("{} {host}:{port}", if server { "host the store at" } else { "connect to the store at" });
        if world_size == 0 {
            return Err(Error::config(op, "world_size must be at least 1"));
        }
        let host = c_string(&op, host)?;
        let (mut raw, mut bound) = (null_mut(), 0);
        // Multi-tenant, as torch has it: with port 0 it would share whichever server this process has, so not there.
        let multi_tenant = server && port != 0;
        // SAFETY: the host is NUL-terminated, and the out places outlive the call.
        call(&op, timeout, |e| unsafe {
            ffi::gm_tcp_store(
                host.as_ptr(),
                port,
                server,
                multi_tenant,
                world_size as u64,
                millis(timeout),
                &raw mut raw,
                &raw mut bound,
                e,
            )
        })?;
        Ok(Self { store: Store::from_raw(raw, timeout, &op)?, port: bound })
    }

    /// The port that the server listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Deref for TcpStore {
    type Target = Store;
    fn deref(&self) -> &Store {
        &self.store
    }
}

/// A [`Store`] that puts `prefix/` before every key of another one, so that users of one server do not meet.
#[derive(Debug)]
pub struct PrefixStore {
    store: Store,
}

impl PrefixStore {
    /// # Errors
    /// [`Error::Config`] when the prefix holds a NUL.
    pub fn new(prefix: &str, store: &Store) -> Result<Self> {
        let op = format!("prefix {prefix}");
        let prefix = c_string(&op, prefix)?;
        let mut raw = null_mut();
        // SAFETY: the prefix is NUL-terminated, the handle live, and the out place outlives the call.
        call(&op, store.timeout, |e| unsafe {
            ffi::gm_prefix_store(prefix.as_ptr(), store.as_ptr(), &raw mut raw, e)
        })?;
        Ok(Self { store: Store::from_raw(raw, store.timeout, &op)? })
    }
}

impl Deref for PrefixStore {
    type Target = Store;
    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Rendezvous {
    /// The store of this run: hosted by the launcher when it says so, else by rank 0. Keys carry
    /// [`Rendezvous::key_prefix`], so that a restarted round never sees those of the round before.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the host can't be reached, [`Error::Store`] when its port is taken.
    pub fn store(&self, timeout: Duration) -> Result<PrefixStore> {
        let open = if self.world.rank == 0 && !self.agent_store { TcpStore::server } else { TcpStore::connect };
        let tcp = open(&self.master_addr, self.master_port, self.world.world_size, timeout)?;
        PrefixStore::new(&self.key_prefix(), &tcp)
    }
}

fn c_strings(op: &str, keys: &[impl AsRef<str>]) -> Result<(Vec<CString>, Vec<*const c_char>)> {
    let owned = keys.iter().map(|key| c_string(op, key.as_ref())).collect::<Result<Vec<_>>>()?;
    let pointers = owned.iter().map(|key| key.as_ptr()).collect();
    Ok((owned, pointers))
}

fn name_keys(keys: &[impl AsRef<str>]) -> String {
    match keys {
        [] => "no key".to_owned(),
        [one] => one.as_ref().to_owned(),
        [first, rest @ ..] => format!("{} and {} more", first.as_ref(), rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn keys_are_shared_between_server_client_and_clone() {
        let server = TcpStore::server("127.0.0.1", 0, 2, TIMEOUT).unwrap();
        assert_ne!(server.port(), 0);
        let client = TcpStore::connect("127.0.0.1", server.port(), 2, TIMEOUT).unwrap();
        client.set("a", b"\0one\xff").unwrap();
        assert_eq!(server.get("a").unwrap(), b"\0one\xff");
        server.set("empty", b"").unwrap();
        assert_eq!(client.reconnect().unwrap().get("empty").unwrap(), b"");
        assert_eq!(server.add("n", 2).unwrap() + client.add("n", 3).unwrap(), 7);
        assert!(client.check(&["a", "n"]).unwrap());
        assert!(!client.check(&["a", "missing"]).unwrap());
        assert!(client.delete_key("a").unwrap());
        assert!(!client.delete_key("a").unwrap());
        client.wait(&["n", "empty"], TIMEOUT).unwrap();
    }

    #[test]
    fn prefixes_keep_users_apart() {
        let server = TcpStore::server("127.0.0.1", 0, 1, TIMEOUT).unwrap();
        let (one, two) = (PrefixStore::new("one", &server).unwrap(), PrefixStore::new("two", &server).unwrap());
        one.set("k", b"1").unwrap();
        assert!(!two.check(&["k"]).unwrap());
        assert_eq!(server.get("one/k").unwrap(), b"1");
    }

    #[test]
    fn a_missing_key_times_out() {
        let server = TcpStore::server("127.0.0.1", 0, 1, TIMEOUT).unwrap();
        let short = Duration::from_millis(100);
        match server.wait(&["never"], short) {
            Err(Error::Timeout { what, after, .. }) => assert_eq!((what.as_str(), after), ("wait for never", short)),
            other => panic!("expected a timeout, got {other:?}"),
        }
        server.set("still", b"usable").unwrap();
    }

    #[test]
    fn rank_0_hosts_the_store_and_restarts_do_not_meet() {
        let of = |rank, port, restart_count| Rendezvous {
            world: crate::World::new(rank, 2, rank, 2).unwrap(),
            master_addr: "127.0.0.1".to_owned(),
            master_port: port,
            agent_store: false,
            restart_count,
            run_id: "run".to_owned(),
        };
        // The port was free a moment ago; should someone else take it, another is tried.
        let hosted = (0..10).find_map(|_| {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            // Rank 1 is early, and keeps trying until rank 0 is there.
            let early = std::thread::spawn(move || of(1, port, 0).store(TIMEOUT));
            let host = of(0, port, 0).store(TIMEOUT).ok();
            let early = early.join().unwrap();
            Some((port, host?, early.unwrap()))
        });
        let (port, host, early) = hosted.unwrap();
        early.set("k", b"first").unwrap();
        assert_eq!(host.get("k").unwrap(), b"first");
        let again = of(1, port, 1).store(TIMEOUT).unwrap();
        assert!(!again.check(&["k"]).unwrap());
    }

    #[test]
    fn an_absent_or_unusable_server_is_an_error() {
        // A port that was just free and that nobody listens on.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let error = TcpStore::connect("127.0.0.1", port, 2, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. } | Error::PeerLost { .. }), "{error}");
        assert!(matches!(TcpStore::connect("127.0.0.1", 0, 2, TIMEOUT), Err(Error::Config { .. })));
        assert!(matches!(TcpStore::server("127.0.0.1", 0, 0, TIMEOUT), Err(Error::Config { .. })));
        assert!(matches!(TcpStore::server("a\0b", 0, 1, TIMEOUT), Err(Error::Config { .. })));
        let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let error = TcpStore::server("127.0.0.1", taken.local_addr().unwrap().port(), 1, TIMEOUT).unwrap_err();
        assert!(matches!(error, Error::Store { .. }), "{error}");
    }
}
