//! What can go wrong while training, sorted by what the caller can do about it.

use gristmill_shard::ErrorKind;

/// An error of configuration, training, checkpoints or launching.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request can't be carried out as written.
    #[error("{what}\n  help: {help}")]
    Usage {
        /// What is wrong and where.
        what: String,
        /// What to do.
        help: String,
    },
    /// This build or machine can't do it.
    #[error("{what}\n  help: {help}")]
    Environment {
        /// What is missing.
        what: String,
        /// What to do.
        help: String,
    },
    /// Storage, manifests, shards.
    #[error(transparent)]
    Shard(#[from] gristmill_shard::Error),
    /// The loader.
    #[error("loading split \"{split}\" failed")]
    Load {
        /// The split that was being read.
        split: String,
        /// What to do about it.
        kind: ErrorKind,
        /// The loader's own error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A collective operation or the store failed.
    #[error("{during} failed among the ranks{}", cause(.reported))]
    Group {
        /// What this rank was doing.
        during: String,
        /// What a failing rank had left in the store, if it had the time.
        reported: Option<String>,
        /// The operation and libtorch's text.
        #[source]
        source: gristmill_c10d::Error,
    },
    /// Another rank reported a failure of its own.
    #[error("rank {rank} failed: {message}")]
    Reported {
        /// The rank at fault.
        rank: usize,
        /// Its error.
        message: String,
    },
    /// The ranks were not started alike.
    #[error("{what} of rank {rank} differs from that of rank 0: {theirs} and {first}\n  help: {help}")]
    Disagreement {
        /// What differs.
        what: String,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Value of rank 0.
        first: String,
        /// Value of `rank`.
        theirs: String,
        /// What to do.
        help: String,
    },
    /// libtorch refused an operation.
    #[cfg(feature = "torch")]
    #[error("libtorch refused: {during}")]
    Torch {
        /// The operation and its tensors.
        during: String,
        /// libtorch's text.
        #[source]
        source: tch::TchError,
    },
    /// The loss stopped being a number.
    #[error(
        "the loss is {loss} at step {step} (epoch {epoch})\n  help: lower optimizer.lr, set optimizer.clip_norm, or look for non-finite features"
    )]
    Diverged {
        /// Epoch, from 0.
        epoch: u64,
        /// Optimizer step, from 1.
        step: u64,
        /// The loss.
        loss: f64,
    },
    /// The data break a rule.
    #[error("{what}\n  help: {help}")]
    Data {
        /// Which rule, which column.
        what: String,
        /// What to do.
        help: String,
    },
    /// The run folder holds something else.
    #[error("{url} already holds {what}\n  help: {help}")]
    Conflict {
        /// The run folder.
        url: String,
        /// What it holds.
        what: String,
        /// What to do.
        help: String,
    },
    /// Stored bytes are not what was written.
    #[error("{url} is corrupt: {what}")]
    Corrupt {
        /// The file.
        url: String,
        /// What differs.
        what: String,
    },
    /// A persisted thing of a version this build does not know.
    #[error(
        "{url} has format version {found}; this gristmill reads {supported}\n  help: use the gristmill that wrote it, or train anew in another folder"
    )]
    FormatVersion {
        /// The file.
        url: String,
        /// Its version.
        found: u64,
        /// What is supported.
        supported: u64,
    },
    /// Stopped by a request, after a checkpoint.
    #[error("stopped by request at step {step}, which is saved; run the same command again to go on")]
    Stopped {
        /// Optimizer steps done and saved.
        step: u64,
    },
    /// The ranks that this process had started stopped by a request, after a checkpoint.
    #[error("stopped by request; run the same command again to go on")]
    StoppedRanks,
    /// A rank that this process had started ended badly.
    #[error("rank {rank} {how}; the other ranks were ended")]
    RankFailed {
        /// The rank that ended first.
        rank: usize,
        /// Its exit status or signal.
        how: String,
        /// What to do about it, as its exit status tells.
        kind: ErrorKind,
    },
    /// A rank that this process had started ended badly or by request, and has said why (see `must_report`).
    #[error("rank {rank} {how}, and has said why")]
    AlreadyReported {
        /// The rank that ended first.
        rank: usize,
        /// Its exit status.
        how: String,
        /// What to do about it, as its exit status tells.
        kind: ErrorKind,
    },
    /// A process could not be started.
    #[error("rank {rank} could not be started")]
    Spawn {
        /// The rank.
        rank: usize,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A defect of gristmill itself.
    #[error(
        "internal error: {what}\n  help: this is a defect of gristmill; please report it with the command that led here"
    )]
    Internal {
        /// What happened.
        what: String,
    },
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Usage { .. } => ErrorKind::Usage,
            Self::Environment { .. } | Self::Spawn { .. } => ErrorKind::Environment,
            Self::Shard(e) => e.kind(),
            Self::Load { kind, .. } | Self::RankFailed { kind, .. } | Self::AlreadyReported { kind, .. } => *kind,
            Self::Group { source, .. } => group_kind(source),
            Self::Reported { .. } => ErrorKind::Peer,
            Self::Disagreement { .. } | Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Diverged { .. } | Self::Data { .. } => ErrorKind::Data,
            Self::Corrupt { .. } | Self::FormatVersion { .. } => ErrorKind::Corrupt,
            Self::Stopped { .. } | Self::StoppedRanks => ErrorKind::Stopped,
            #[cfg(feature = "torch")]
            Self::Torch { .. } => ErrorKind::Internal,
            Self::Internal { .. } => ErrorKind::Internal,
        }
    }

    /// An [`Error::Usage`] from its two texts.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), help: help.into() }
    }

    /// The [`Error::Data`] of a split that has nothing to train on.
    #[cfg(feature = "torch")]
    pub(crate) fn no_rows(split: &str, shards: &str) -> Self {
        Self::Data {
            what: format!("split \"{split}\" of {shards} has no rows to train on"),
            help: "name another split under data.train, or shard with a larger share for it".to_owned(),
        }
    }

    /// An [`Error::Internal`] from its text.
    pub fn internal(what: impl Into<String>) -> Self {
        Self::Internal { what: what.into() }
    }

    /// An [`Error::Corrupt`] from its two texts.
    pub fn corrupt(url: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Corrupt { url: url.into(), what: what.into() }
    }

    /// Whether this rank failed only because another one did or ended: that one, or who had started it, says why.
    #[must_use]
    pub fn is_echo(&self) -> bool {
        match self {
            Self::Reported { .. } => true,
            Self::Group { reported, source, .. } => {
                reported.is_some() || matches!(source, gristmill_c10d::Error::PeerLost { .. })
            }
            _ => false,
        }
    }

    /// The error and its causes in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

fn cause(reported: &Option<String>) -> String {
    reported.as_ref().map_or_else(String::new, |text| format!(" ({text})"))
}

fn group_kind(source: &gristmill_c10d::Error) -> ErrorKind {
    use gristmill_c10d::Error as E;
    match source {
        E::Environment { .. } => ErrorKind::Usage,
        E::BackendUnavailable { .. } => ErrorKind::Environment,
        e if e.is_communication() => ErrorKind::Peer,
        _ => ErrorKind::Internal,
    }
}

/// Names what was being done when libtorch refused.
#[cfg(feature = "torch")]
pub(crate) trait During<T> {
    /// # Errors
    /// [`Error::Torch`] with `during`.
    fn during(self, during: &str) -> Result<T>;
}

#[cfg(feature = "torch")]
impl<T> During<T> for std::result::Result<T, tch::TchError> {
    fn during(self, during: &str) -> Result<T> {
        self.map_err(|source| Error::Torch { during: during.to_owned(), source })
    }
}
