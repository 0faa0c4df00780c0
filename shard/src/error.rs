//! One error type for the waist, named by what the caller can do about it.

use std::fmt;

use serde::Serialize;

/// What the caller can do about an error. It alone decides the exit status of the `gristmill` command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong: a flag, a configuration key, a column name. Change the request.
    Usage,
    /// This machine lacks something (libtorch, memory, a compiler). Install it.
    Environment,
    /// What the request names does not exist.
    NotFound,
    /// It exists, but may not be read or written.
    Permission,
    /// The data break a rule of the request (too many rejects, a null label).
    Data,
    /// Stored bytes are not what was written.
    Corrupt,
    /// The output already holds something else.
    Conflict,
    /// Storage failed while the work was under way.
    Storage,
    /// Another rank, or the launcher, failed.
    Peer,
    /// Stopped by a request; run the same command again.
    Stopped,
    /// A defect of gristmill.
    Internal,
}

impl ErrorKind {
    /// Exit status of a command that ends with this kind: 2 could not start, 75 run again, 1 everything else.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage | Self::Environment | Self::NotFound | Self::Permission => 2,
            Self::Stopped => 75,
            Self::Data | Self::Corrupt | Self::Conflict | Self::Storage | Self::Peer | Self::Internal => 1,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Usage => "usage",
            Self::Environment => "environment",
            Self::NotFound => "not found",
            Self::Permission => "permission",
            Self::Data => "data",
            Self::Corrupt => "corrupt",
            Self::Conflict => "conflict",
            Self::Storage => "storage",
            Self::Peer => "peer",
            Self::Stopped => "stopped",
            Self::Internal => "internal",
        })
    }
}

/// An error of storage, manifests, shards or assignment.
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
    /// Nothing is there.
    #[error("not found: {url}\n  help: {help}")]
    NotFound {
        /// What was looked for.
        url: String,
        /// What to do.
        help: String,
    },
    /// Not allowed.
    #[error("permission denied: {url}")]
    Permission {
        /// What was to be read or written.
        url: String,
        /// The store's own error.
        #[source]
        source: object_store::Error,
    },
    /// The store failed.
    #[error("could not {action} {url}")]
    Storage {
        /// `read`, `write`, `list`, `delete`.
        action: &'static str,
        /// The object.
        url: String,
        /// The store's own error.
        #[source]
        source: object_store::Error,
    },
    /// The data break a rule.
    #[error("{url}: {what}\n  help: {help}")]
    Data {
        /// The file or data set.
        url: String,
        /// Which rule, which column, which row.
        what: String,
        /// What to do.
        help: String,
    },
    /// Stored bytes differ from what was written, or never were what they claim.
    #[error("{url} is corrupt: {what}")]
    Corrupt {
        /// The file.
        url: String,
        /// What differs.
        what: String,
    },
    /// The output holds something else.
    #[error("{url} already holds {what}\n  help: {help}")]
    Conflict {
        /// The output.
        url: String,
        /// What it holds.
        what: String,
        /// What to do.
        help: String,
    },
    /// A persisted thing of a version this build does not know.
    #[error(
        "{url} has format version {found}; this gristmill reads {supported}\n  help: use the gristmill that wrote it, or write it again"
    )]
    FormatVersion {
        /// The file.
        url: String,
        /// Its version.
        found: u64,
        /// What is supported.
        supported: u64,
    },
    /// Parquet could not be read or written.
    #[error("could not {action} Parquet {url}")]
    Parquet {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        url: String,
        /// The library's own error.
        #[source]
        source: parquet::errors::ParquetError,
    },
    /// An Arrow kernel refused.
    #[error("could not {action}")]
    Arrow {
        /// What was being done.
        action: String,
        /// The library's own error.
        #[source]
        source: arrow::error::ArrowError,
    },
    /// JSON that does not say what it should.
    #[error("{url} is not the JSON it should be")]
    Json {
        /// The file.
        url: String,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// Stopped by a request (a signal); the same command goes on from here.
    #[error("stopped by request; run the same command again to go on")]
    Stopped,
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
            Self::Usage { .. } => ErrorKind::Usage,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Permission { .. } => ErrorKind::Permission,
            Self::Storage { .. } => ErrorKind::Storage,
            Self::Data { .. } => ErrorKind::Data,
            Self::Corrupt { .. }
            | Self::FormatVersion { .. }
            | Self::Json { .. }
            | Self::Parquet { action: "read", .. } => ErrorKind::Corrupt,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Stopped => ErrorKind::Stopped,
            Self::Parquet { .. } | Self::Arrow { .. } | Self::Internal { .. } => ErrorKind::Internal,
        }
    }

    /// A [`Error::Usage`] from its two texts.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), help: help.into() }
    }

    /// A [`Error::Corrupt`] from its two texts.
    pub fn corrupt(url: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Corrupt { url: url.into(), what: what.into() }
    }

    /// A [`Error::Internal`] from its text.
    pub fn internal(what: impl Into<String>) -> Self {
        Self::Internal { what: what.into() }
    }

    /// Sorts a store's error by what the caller can do.
    pub fn from_store(action: &'static str, url: String, source: object_store::Error) -> Self {
        match source {
            object_store::Error::NotFound { .. } => {
                Self::NotFound { url, help: "check the spelling of the path or URL".into() }
            }
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                Self::Permission { url, source }
            }
            // The local store reports a refused open or mkdir as a generic failure around an io::Error.
            other if io_kind(&other) == Some(std::io::ErrorKind::PermissionDenied) => {
                Self::Permission { url, source: other }
            }
            // A file where the path has a folder.
            other if io_kind(&other) == Some(std::io::ErrorKind::NotADirectory) => {
                Self::NotFound { url, help: "check the path: a part of it is a file, not a folder".into() }
            }
            other => Self::Storage { action, url, source: other },
        }
    }
}

fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<std::io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}

/// The nearest of `valid` to `given`, worded for an error message: `did you mean "x"?` or the whole list.
#[must_use]
pub fn nearest_name<'a>(given: &str, valid: impl IntoIterator<Item = &'a str>) -> String {
    let valid: Vec<&str> = valid.into_iter().collect();
    let best = valid
        .iter()
        .map(|name| (strsim::damerau_levenshtein(given, name), *name))
        .min()
        .filter(|(distance, name)| *distance <= (name.chars().count().max(given.chars().count()) / 2).max(1));
    match best {
        Some((_, name)) => format!("did you mean \"{name}\"? (valid: {})", valid.join(", ")),
        None => format!("valid: {}", valid.join(", ")),
    }
}

/// Result of the waist.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_and_a_far_one_is_not() {
        assert!(nearest_name("orign", ["origin", "date"]).starts_with("did you mean \"origin\""));
        assert!(nearest_name("zzzzzzzz", ["origin", "date"]).starts_with("valid: "));
        assert_eq!(nearest_name("x", []), "valid: ");
    }

    #[test]
    fn every_kind_has_the_documented_status() {
        assert_eq!(ErrorKind::Usage.exit_code(), 2);
        assert_eq!(ErrorKind::Stopped.exit_code(), 75);
        assert_eq!(ErrorKind::Corrupt.exit_code(), 1);
    }
}
