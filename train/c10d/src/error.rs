//! What can go wrong, sorted by what a caller can do about it.

use std::time::Duration;

/// A failure of a store, a collective, or of what they were asked to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The launcher's environment is incomplete or contradicts itself.
    #[error("environment variable {variable}: {problem}")]
    Environment {
        /// The variable at fault.
        variable: String,
        /// What is wrong with it and what it should hold.
        problem: String,
    },
    /// An argument can't be used.
    #[error("{what}: {problem}")]
    Config {
        /// The operation that was asked for.
        what: String,
        /// What is wrong with its arguments.
        problem: String,
    },
    /// The key-value store refused or failed.
    #[error("store, {op}: {message}")]
    Store {
        /// The operation and the key or address that it was about.
        op: String,
        /// c10d's text.
        message: String,
    },
    /// An operation was not done in time. Peers may be slow, stuck, or may never have started.
    #[error("{what} was not done within {after:?}: {message}")]
    Timeout {
        /// The operation.
        what: String,
        /// The limit that it ran under.
        after: Duration,
        /// c10d's text.
        message: String,
    },
    /// A barrier was not reached by every rank in time.
    #[error("barrier: of {world_size} ranks, {} did not arrive within {after:?}", list(.missing))]
    MissingRanks {
        /// The ranks that did not arrive, ascending.
        missing: Vec<usize>,
        /// Ranks in the group.
        world_size: usize,
        /// The limit that the barrier ran under.
        after: Duration,
    },
    /// A peer closed its connection: it has ended or was killed, or gave up on an operation itself.
    #[error("{what}: the connection to a peer is gone: {message}")]
    PeerLost {
        /// The operation.
        what: String,
        /// c10d's text.
        message: String,
    },
    /// libtorch threw something else.
    #[error("{op}: {message}")]
    Torch {
        /// The operation.
        op: String,
        /// libtorch's text.
        message: String,
    },
    /// The communication backend is not part of this build.
    #[error("backend {backend} is not built in: use gloo")]
    BackendUnavailable {
        /// The backend's name.
        backend: &'static str,
    },
}

/// [`std::result::Result`] with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn config(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { what: what.into(), problem: problem.into() }
    }

    /// Sorts an error that tch returned, from a backward pass above all: the Reducer's collectives run inside
    /// `backward`, so a lost peer shows up there.
    ///
    /// `after` is the timeout of the process group.
    #[cfg(feature = "torch")]
    #[must_use]
    pub fn from_tch(op: &str, error: &tch::TchError, after: Duration) -> Self {
        Self::classify(op, code::OTHER, error.to_string(), after)
    }

    /// Whether the ranks have lost touch with each other: nothing but a restart of the group helps.
    #[must_use]
    pub fn is_communication(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::MissingRanks { .. } | Self::PeerLost { .. } | Self::Store { .. })
    }

    /// Gloo reports by text alone, and c10d's exception classes do not tell a lost peer from a slow one.
    #[cfg_attr(not(feature = "torch"), allow(dead_code))]
    pub(crate) fn classify(op: &str, code: i32, message: String, after: Duration) -> Self {
        let text = message.to_ascii_lowercase();
        let has = |needles: &[&str]| needles.iter().any(|needle| text.contains(needle));
        if code == code::TIMEOUT || has(&["timed out", "timeout"]) {
            return Self::Timeout { what: op.to_owned(), after, message };
        }
        let gone = [
            "connection closed by peer",
            "connection reset",
            "broken pipe",
            "connection refused",
            "connection was likely closed",
            "got 0 bytes",
            "remote peer",
        ];
        if has(&gone) {
            return Self::PeerLost { what: op.to_owned(), message };
        }
        match code {
            code::NETWORK | code::STORE => Self::Store { op: op.to_owned(), message },
            _ => Self::Torch { op: op.to_owned(), message },
        }
    }
}

/// The codes of `csrc/shim.h`.
#[cfg_attr(not(feature = "torch"), allow(dead_code))]
pub(crate) mod code {
    pub const OK: i32 = 0;
    pub const TIMEOUT: i32 = 1;
    pub const NETWORK: i32 = 2;
    pub const STORE: i32 = 3;
    pub const OTHER: i32 = 6;
}

fn list(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(3);

    #[test]
    fn texts_of_gloo_and_tcp_store_are_sorted() {
        let of = |code, text: &str| Error::classify("all_reduce", code, text.to_owned(), AFTER);
        let timeouts = [
            "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete",
            "wait timeout after 500ms, keys: /a",
            "Socket Timeout",
        ];
        for text in timeouts {
            assert!(matches!(of(code::OTHER, text), Error::Timeout { after: AFTER, .. }), "{text}");
        }
        assert!(matches!(of(code::TIMEOUT, "anything"), Error::Timeout { .. }));
        let lost = [
            "[pair.cc:553] Connection closed by peer [127.0.0.1]:3124",
            "Read error [127.0.0.1]:1: Connection reset by peer",
            "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        ];
        for text in lost {
            assert!(matches!(of(code::OTHER, text), Error::PeerLost { .. }), "{text}");
        }
        assert!(matches!(of(code::STORE, "no such key"), Error::Store { .. }));
        assert!(matches!(of(code::OTHER, "shapes differ"), Error::Torch { .. }));
    }

    #[test]
    fn missing_ranks_are_named() {
        let error = Error::MissingRanks { missing: vec![1, 3], world_size: 4, after: AFTER };
        assert_eq!(error.to_string(), "barrier: of 4 ranks, ranks 1, 3 did not arrive within 3s");
        assert!(error.is_communication());
    }
}
