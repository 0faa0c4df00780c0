//! An S3 server of one test's own: SeaweedFS on free ports of this machine, gone when the test ends.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use gristmill_shard::StorageOptions;
use tempfile::TempDir;

use crate::program::command;

/// Names the server's program; when it is set, a test that needs the server fails without it.
pub const VARIABLE: &str = "GRISTMILL_WEED";
/// The bucket that is there from the start.
pub const BUCKET: &str = "gristmill-test";
/// What `scripts/s3-server.sh` fetches.
const VERSION: &str = "4.48";
const ACCESS_KEY: &str = "gristmill";
const SECRET_KEY: &str = "a secret of no worth";
/// Longer than a start takes on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Services of the program: masters, volumes, filer, S3. Each takes a port and the one 10,000 above it.
const SERVICES: u16 = 4;

/// A running server.
#[derive(Debug)]
pub struct S3Server {
    child: Child,
    folder: TempDir,
    /// The first of its ports, that of S3.
    port: u16,
}

/// Where the server's program is: by the environment, else where `scripts/s3-server.sh` puts it, else on the PATH.
///
/// # Panics
/// When the environment names one that is not there.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(named) = set(VARIABLE).map(PathBuf::from) {
        assert!(named.is_file(), "{VARIABLE}={} is not there: scripts/s3-server.sh fetches one", named.display());
        return Some(named);
    }
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| set("HOME").map(|h| Path::new(&h).join(".cache")));
    let fetched = cache.map(|cache| cache.join(format!("gristmill/seaweedfs-{VERSION}/weed")));
    let on_path = set("PATH").map(|path| std::env::split_paths(&path).map(|f| f.join("weed")).collect::<Vec<_>>());
    fetched.into_iter().chain(on_path.unwrap_or_default()).find(|file| file.is_file())
}

impl S3Server {
    /// Starts one with an empty bucket [`BUCKET`]; says on stderr that the test is skipped, and gives nothing, when there
    /// is no program.
    ///
    /// # Panics
    /// When the program is there and can't be started.
    #[must_use]
    #[expect(clippy::print_stderr, reason = "a skipped test has to say so where its reader looks")]
    pub fn start() -> Option<Self> {
        let Some(program) = program() else {
            eprintln!(
                "SKIPPED: this test needs an S3 server; scripts/s3-server.sh fetches one ({VARIABLE} names another)"
            );
            return None;
        };
        let mut why = String::new();
        // Another process may take a port between the look and the start.
        for _ in 0..3 {
            match Self::try_start(&program) {
                Ok(server) => return Some(server),
                Err(e) => why = e,
            }
        }
        panic!("{} does not start: {why}", program.display());
    }

    fn try_start(program: &Path) -> Result<Self, String> {
        let folder = TempDir::new().map_err(|e| e.to_string())?;
        let at = |name: &str| folder.path().join(name);
        let identity = serde_json::json!({ "identities": [{
            "name": "test",
            "credentials": [{ "accessKey": ACCESS_KEY, "secretKey": SECRET_KEY }],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }]});
        std::fs::create_dir(at("data")).map_err(|e| e.to_string())?;
        std::fs::write(at("s3.json"), identity.to_string()).map_err(|e| e.to_string())?;
        let log = std::fs::File::create(at("log")).map_err(|e| e.to_string())?;
        let errors = log.try_clone().map_err(|e| e.to_string())?;

        let port = free_ports();
        let mut c = command(program);
        c.arg("server").arg(format!("-dir={}", at("data").display()));
        c.arg(format!("-s3.config={}", at("s3.json").display()));
        c.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.peers=none", "-filer", "-s3"]);
        c.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=64", "-volume.max=50"]);
        for (service, port) in ["s3", "master", "volume", "filer"].iter().zip(port..) {
            c.arg(format!("-{service}.port={port}"));
        }
        c.current_dir(folder.path()).stdout(Stdio::from(log)).stderr(Stdio::from(errors));
        let child = c.spawn().map_err(|e| e.to_string())?;
        let mut server = Self { child, folder, port };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let began = Instant::now();
        let (s3, master, filer) = (self.address(), self.at(1), self.at(3));
        // S3 answers, a volume takes writes, and the bucket is made.
        let steps: [(SocketAddr, &str, String, u16); 3] = [
            (s3, "GET", "/".into(), 403),
            (master, "GET", "/dir/assign".into(), 200),
            (filer, "POST", format!("/buckets/{BUCKET}/"), 201),
        ];
        for (address, method, target, wanted) in steps {
            while request(address, method, &target).is_none_or(|(status, _)| status != wanted) {
                let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
                if ended || began.elapsed() > START_LIMIT {
                    let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                    let tail: Vec<&str> = log.lines().rev().take(20).collect();
                    return Err(format!(
                        "{method} {target} never gave {wanted}; its log ends, newest first:\n{}",
                        tail.join("\n")
                    ));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    fn at(&self, service: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + service))
    }

    /// Where S3 answers.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.at(0)
    }

    /// Storage options that reach it through `address`: its own, or that of a proxy before it.
    #[must_use]
    pub fn options(&self, address: SocketAddr) -> StorageOptions {
        [
            ("aws_endpoint", format!("http://{address}")),
            ("aws_allow_http", "true".into()),
            ("aws_access_key_id", ACCESS_KEY.into()),
            ("aws_secret_access_key", SECRET_KEY.into()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }

    /// The same as environment variables of a program.
    #[must_use]
    pub fn environment(&self, address: SocketAddr) -> Vec<(String, String)> {
        self.options(address).into_iter().map(|(name, value)| (name.to_uppercase(), value)).collect()
    }

    /// Uploads in parts that were begun and neither completed nor aborted.
    ///
    /// # Panics
    /// When the server does not say.
    #[must_use]
    pub fn unfinished_uploads(&self) -> usize {
        let (status, body) =
            request(self.at(3), "GET", &format!("/buckets/{BUCKET}/.uploads/?limit=1000")).expect("the filer answers");
        if status == 404 {
            return 0;
        }
        let listing: serde_json::Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e} in {body}"));
        listing["Entries"].as_array().map_or(0, Vec::len)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // Asked to end it takes 15 seconds; its data is thrown away in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first of [`SERVICES`] free ports whose fellows 10,000 above are free too. All lie below those that the system
/// gives to whoever asks for any.
fn free_ports() -> u16 {
    let (first, last) = (11_000, 21_000);
    let spread = std::process::id().wrapping_mul(2_654_435_761) % u32::from(last - first);
    let start = first + u16::try_from(spread).unwrap_or(0);
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let candidates = (start..last).chain(first..start).step_by(usize::from(SERVICES));
    candidates
        .into_iter()
        .find(|port| (*port..port + SERVICES).all(|p| free(p) && free(p + 10_000)))
        .expect("there are free ports")
}

/// Status and body of an HTTP request without a body; nothing when the server is not there.
fn request(address: SocketAddr, method: &str, target: &str) -> Option<(u16, String)> {
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    let head = format!(
        "{method} {target} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
