//! One error type for the plan and the loader.

use std::sync::Arc;

use gristmill_shard::ErrorKind;

/// An error of the plan or the loader.
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
    /// The data break a rule of the batch that was asked for.
    #[error("{url}: {what}\n  help: {help}")]
    Data {
        /// The shard.
        url: String,
        /// Which rule, which column, which row.
        what: String,
        /// What to do.
        help: String,
    },
    /// A saved state belongs to another plan.
    #[error(
        "the saved loader state belongs to another plan:\n{}\n  help: use the settings that the state was saved with, or begin a new run",
        differences.iter().map(|d| format!("    {d}")).collect::<Vec<_>>().join("\n")
    )]
    OtherPlan {
        /// One line a field: `seed: the state has 1, this run has 2`.
        differences: Vec<String>,
    },
    /// A saved state that can't be read.
    #[error("the saved loader state can't be used: {what}\n  help: {help}")]
    State {
        /// What is wrong.
        what: String,
        /// What to do.
        help: String,
    },
    /// The memory budget is too small for what was asked.
    #[error("the loader needs at least {needed} bytes and memory_bytes is {given}: {breakdown}\n  help: {help}")]
    Memory {
        /// Bytes needed.
        needed: u64,
        /// Bytes given.
        given: u64,
        /// What the bytes are for.
        breakdown: String,
        /// What to do.
        help: String,
    },
    /// A blocking call on a thread that drives async tasks would stall them.
    #[error(
        "next_blocking() was called inside an async context\n  help: call next().await there, or call next_blocking() from a plain thread"
    )]
    BlockingInAsync,
    /// Storage, manifests and Parquet.
    #[error(transparent)]
    Shard(#[from] gristmill_shard::Error),
    /// A row group's failure, which every batch that needs the row group gets.
    #[error(transparent)]
    RowGroup(Arc<Error>),
    /// A check of [`crate::conformance`] failed.
    #[error("the loader does not keep its promise: {what}")]
    Conformance {
        /// Which promise, and where it broke.
        what: String,
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

impl Error {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Usage { .. } | Self::OtherPlan { .. } | Self::BlockingInAsync => ErrorKind::Usage,
            Self::Data { .. } => ErrorKind::Data,
            Self::State { .. } => ErrorKind::Corrupt,
            Self::Memory { .. } => ErrorKind::Usage,
            Self::Shard(e) => e.kind(),
            Self::RowGroup(e) => e.kind(),
            Self::Conformance { .. } | Self::Internal { .. } => ErrorKind::Internal,
        }
    }

    /// An [`Error::Usage`] from its two texts.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), help: help.into() }
    }

    /// An [`Error::Internal`] from its text.
    pub fn internal(what: impl Into<String>) -> Self {
        Self::Internal { what: what.into() }
    }
}

/// Result of the loader.
pub type Result<T, E = Error> = std::result::Result<T, E>;
