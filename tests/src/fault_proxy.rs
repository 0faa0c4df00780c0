//! An HTTP proxy that stands before a server and does what networks and busy stores do: answers 503, resets connections,
//! loses or cuts answers, takes its time.
//!
//! Which request fares how is a function of the seed, the request's method and target, and how often that was asked for
//! before; the order of arrival does not matter.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

/// Heads of requests are no longer.
const MOST_HEAD: usize = 64 << 10;

/// What goes wrong, and how often.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Decides which requests are hit.
    pub seed: u64,
    /// One request in so many is answered 503 `SlowDown`; 0: none.
    pub busy_one_in: u64,
    /// One in so many finds its connection reset before the server has it.
    pub reset_one_in: u64,
    /// One in so many is carried out, and its answer is lost.
    pub lost_one_in: u64,
    /// One in so many gets half of the answer's body.
    pub cut_one_in: u64,
    /// Every request waits so long.
    pub delay: Duration,
    /// Only requests are hit whose line `METHOD target` has this text.
    pub only: Option<&'static str>,
}

/// How many requests there were, and how they fared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub requests: u64,
    /// Answered 503.
    pub busy: u64,
    /// Connection reset.
    pub reset: u64,
    /// Carried out, answer lost.
    pub lost: u64,
    /// Answer cut.
    pub cut: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Busy,
    Reset,
    Lost,
    Cut,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    asked: HashMap<String, u64>,
}

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts one before `server`, on a free port of this machine.
    ///
    /// # Panics
    /// When it can't listen.
    #[must_use]
    pub fn start(server: SocketAddr, faults: Faults) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let address = listener.local_addr().expect("a bound socket");
        let state = Arc::new(Mutex::new(State::default()));
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = accept(listener, server, Arc::new(faults), shared) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, state, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).counts
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, faults: Arc<Faults>, state: Arc<Mutex<State>>) {
    loop {
        // A client that is gone before it was accepted is no matter.
        let Ok((client, _)) = listener.accept().await else { continue };
        let (faults, state) = (Arc::clone(&faults), Arc::clone(&state));
        tokio::spawn(async move {
            // Either side may go away at any time; that is the client's to notice.
            let _ = serve(client, server, &faults, &state).await;
        });
    }
}

/// One request, one connection.
async fn serve(mut client: TcpStream, server: SocketAddr, faults: &Faults, state: &Mutex<State>) -> io::Result<()> {
    let mut seen = Vec::new();
    let head_end = loop {
        if let Some(at) = seen.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if seen.len() > MOST_HEAD || client.read_buf(&mut seen).await? == 0 {
            return Ok(());
        }
    };
    let head = String::from_utf8_lossy(&seen[..head_end]).into_owned();
    let mut begun = seen.split_off(head_end);
    let body_bytes = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
    });
    let body_bytes = body_bytes.unwrap_or(0);
    begun.truncate(usize::try_from(body_bytes).unwrap_or(usize::MAX));
    let rest = body_bytes - begun.len() as u64;

    let line = head.lines().next().unwrap_or_default();
    let line = line.rsplit_once(' ').map_or(line, |(line, _version)| line);
    let fault = decide(faults, line, state);
    tokio::time::sleep(faults.delay).await;
    match fault {
        Fault::Reset => return client.set_zero_linger(),
        Fault::Busy => {
            // All of the request is read: else closing would reset the connection, and the client not see the answer.
            tokio::io::copy(&mut (&mut client).take(rest), &mut tokio::io::sink()).await?;
            let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>SlowDown</Code><Message>Please reduce \
                        your request rate.</Message></Error>";
            let answer = format!(
                "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: \
                 close\r\n\r\n{}",
                body.len(),
                if line.starts_with("HEAD ") { "" } else { body }
            );
            client.write_all(answer.as_bytes()).await?;
            return client.shutdown().await;
        }
        Fault::None | Fault::Lost | Fault::Cut => {}
    }

    let upstream = TcpStream::connect(server).await?;
    let (mut from_server, mut to_server) = upstream.into_split();
    let (mut from_client, mut to_client) = client.split();
    let send = async {
        to_server.write_all(closing(&head).as_bytes()).await?;
        to_server.write_all(&begun).await?;
        tokio::io::copy(&mut (&mut from_client).take(rest), &mut to_server).await
    };
    if fault == Fault::None {
        // A server may answer, and close, before it has read everything; the answer is what counts.
        let (_, answered) = tokio::join!(send, tokio::io::copy(&mut from_server, &mut to_client));
        answered?;
        return to_client.shutdown().await;
    }
    let mut answer = Vec::new();
    let (_, answered) = tokio::join!(send, from_server.read_to_end(&mut answer));
    answered?;
    if fault == Fault::Cut {
        let body = answer.windows(4).position(|w| w == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
        let half = body + (answer.len() - body) / 2;
        to_client.write_all(&answer[..half]).await?;
        // What was written has to leave before the reset overtakes it.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.set_zero_linger()
}

/// The head with which the server is asked to close after its answer, so that its end is the answer's.
fn closing(head: &str) -> String {
    let mut lines: Vec<&str> = head
        .trim_end()
        .lines()
        .filter(|line| !line.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("connection")))
        .collect();
    lines.push("Connection: close");
    lines.join("\r\n") + "\r\n\r\n"
}

fn decide(faults: &Faults, line: &str, state: &Mutex<State>) -> Fault {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.counts.requests += 1;
    if faults.only.is_some_and(|text| !line.contains(text)) {
        return Fault::None;
    }
    let asked = state.asked.entry(line.to_owned()).or_default();
    *asked += 1;
    let fault = draw(faults, line, *asked);
    let counts = &mut state.counts;
    match fault {
        Fault::None => {}
        Fault::Busy => counts.busy += 1,
        Fault::Reset => counts.reset += 1,
        Fault::Lost => counts.lost += 1,
        Fault::Cut => counts.cut += 1,
    }
    fault
}

/// What befalls the request `line` when it is asked for the `time`th time.
fn draw(faults: &Faults, line: &str, time: u64) -> Fault {
    let kinds = [
        (faults.busy_one_in, Fault::Busy),
        (faults.reset_one_in, Fault::Reset),
        (faults.lost_one_in, Fault::Lost),
        (faults.cut_one_in, Fault::Cut),
    ];
    for (kind, (one_in, fault)) in (0_u64..).zip(kinds) {
        if one_in > 0 && mix(line, &[faults.seed, kind, time]).is_multiple_of(one_in) {
            return fault;
        }
    }
    Fault::None
}

/// FNV-1a over text and numbers, then SplitMix64's finish: the same everywhere, and even.
fn mix(text: &str, numbers: &[u64]) -> u64 {
    let numbers = numbers.iter().flat_map(|n| n.to_le_bytes());
    let hash = text
        .bytes()
        .chain(numbers)
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn faults_come_as_often_as_asked_and_always_the_same() {
        let faults = Faults { seed: 7, busy_one_in: 5, ..Faults::default() };
        let drawn = || (0..10_000).map(|n| draw(&faults, &format!("GET /b/{n}"), 1)).collect::<Vec<_>>();
        let busy = drawn().iter().filter(|f| **f == Fault::Busy).count();
        assert!((1_850..2_150).contains(&busy), "{busy}");
        assert_eq!(drawn(), drawn());
        let retried = (1..=200).map(|time| draw(&faults, "GET /b/x", time)).filter(|f| *f == Fault::Busy).count();
        assert!((20..60).contains(&retried), "tries of one request are drawn apart: {retried}");
        assert_eq!(draw(&Faults::default(), "GET /b/x", 1), Fault::None);
    }

    /// A server that answers each request with its own head, in capitals.
    fn echo() -> SocketAddr {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\nbody") && stream.read(&mut byte).unwrap() == 1 {
                    head.push(byte[0]);
                }
                let body = String::from_utf8(head).unwrap().to_uppercase();
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            }
        });
        address
    }

    fn ask(proxy: &FaultProxy) -> io::Result<String> {
        let mut stream = std::net::TcpStream::connect(proxy.address())?;
        stream.write_all(b"PUT /x HTTP/1.1\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn each_fault_is_what_it_says() {
        let with = |faults| FaultProxy::start(echo(), faults);
        let through = with(Faults::default());
        let answer = ask(&through).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("BODY"), "{answer}");
        assert!(answer.contains("CONNECTION: CLOSE") && !answer.contains("KEEP-ALIVE"), "{answer}");
        assert_eq!(through.counts(), Counts { requests: 1, ..Counts::default() });

        let busy = with(Faults { busy_one_in: 1, ..Faults::default() });
        let answer = ask(&busy).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("SlowDown"), "{answer}");
        assert_eq!(busy.counts().busy, 1);

        for faults in [Faults { reset_one_in: 1, ..Faults::default() }, Faults { lost_one_in: 1, ..Faults::default() }]
        {
            assert!(ask(&with(faults)).is_err());
        }
        assert!(ask(&with(Faults { cut_one_in: 1, ..Faults::default() })).is_err());

        let others = with(Faults { busy_one_in: 1, only: Some("GET "), ..Faults::default() });
        assert!(ask(&others).unwrap().starts_with("HTTP/1.1 200"));
    }
}
