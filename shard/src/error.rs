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
    #[error("permission denied: {url}\n  help: {}", permission_help(source))]
    Permission {
        /// What was to be read or written.
        url: String,
        /// The store's own error.
        #[source]
        source: object_store::Error,
    },
    /// The store failed.
    #[error("could not {action} {url}\n  help: {}", storage_help(source))]
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
        use std::io::ErrorKind as Io;
        let io = io_kind(&source);
        // Listings and bulk deletes have no variant of their own for these answers.
        let says = |signs: &[&str]| says(&source, signs);
        // The local store reports a refused open or mkdir as a generic failure around an io::Error.
        let refused = matches!(
            source,
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }
        ) || matches!(io, Some(Io::PermissionDenied | Io::ReadOnlyFilesystem))
            || says(&["status code: 401", "status code: 403"])
            || says(&NO_CREDENTIALS);
        if refused {
            return Self::Permission { url, source };
        }
        let help = if io == Some(Io::NotADirectory) {
            "check the path: a part of it is a file, not a folder"
        } else if matches!(source, object_store::Error::NotFound { .. }) || says(&["status code: 404"]) {
            // Only a server's answer has tags.
            let no_bucket = source.to_string().contains("<Code>NoSuchBucket<");
            let no_bucket_help = "there is no such bucket: check its name, or make it first";
            if no_bucket { no_bucket_help } else { "check the spelling of the path or URL" }
        } else {
            return Self::Storage { action, url, source };
        };
        Self::NotFound { url, help: help.into() }
    }
}

/// Whether the text of a store's generic error has one of `signs`. That of the other variants has a path in it, which may
/// be any text.
fn says(source: &object_store::Error, signs: &[&str]) -> bool {
    matches!(source, object_store::Error::Generic { .. }) && {
        let text = source.to_string();
        signs.iter().any(|sign| text.contains(sign))
    }
}

/// Where no credentials are given the machine's metadata service is asked for some: this says that it was what failed.
const NO_CREDENTIALS: [&str; 2] = ["performing PUT http://169.254.169.254/", "performing GET http://169.254.169.254/"];

fn permission_help(source: &object_store::Error) -> String {
    match io_kind(source) {
        Some(std::io::ErrorKind::PermissionDenied) => "check who may read and write there (ls -ld)".into(),
        Some(std::io::ErrorKind::ReadOnlyFilesystem) => "the file system is mounted read-only: write elsewhere".into(),
        _ if says(source, &NO_CREDENTIALS) => {
            format!("no credentials were found: {}", crate::storage::EXPORT_HELP)
        }
        _ => "check the credentials, what they are allowed to do there, and this machine's clock".into(),
    }
}

fn storage_help(source: &object_store::Error) -> &'static str {
    use std::io::ErrorKind as Io;
    let says = |signs: &[&str]| says(source, signs);
    if matches!(io_kind(source), Some(Io::StorageFull | Io::QuotaExceeded)) {
        "the disk, or your share of it, is full: free some room there (df -h shows how much there is), then run the same \
         command again; what is done is kept"
    } else if says(&["SlowDown", "status code: 503", "status code: 429"]) {
        "the store says that it is busy: ask for less at once (storage option max_requests), or for longer \
         (retry_seconds); the same command goes on where it was"
    } else if says(&["status code: 501"]) {
        "the store can't do what was asked for; docs/storage.md says what is needed of one"
    } else if says(&["Received redirect"]) {
        "the bucket is in another region: give aws_region (or AWS_REGION), or the right endpoint"
    } else if says(&["error sending request"]) {
        "check the endpoint and the way to it; retry_seconds says how long to keep trying; the same command goes on where \
         it was"
    } else {
        "run the same command again: it goes on where it was"
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

    fn local_failure(code: i32) -> Error {
        let source = Box::new(std::io::Error::from_raw_os_error(code));
        Error::from_store("write", "/data/x".into(), object_store::Error::Generic { store: "LocalFileSystem", source })
    }

    #[test]
    fn a_full_disk_is_said_so() {
        // ENOSPC and EDQUOT.
        for code in [28, 122] {
            let error = local_failure(code);
            assert_eq!(error.kind(), ErrorKind::Storage);
            let text = error.to_string();
            assert!(text.contains("could not write /data/x") && text.contains("free some room"), "{text}");
        }
        // EACCES and EROFS.
        for code in [13, 30] {
            assert_eq!(local_failure(code).kind(), ErrorKind::Permission);
        }
    }

    #[test]
    fn a_store_that_is_busy_is_told_from_one_that_is_not_there() {
        let generic = |text: &str| object_store::Error::Generic { store: "S3", source: text.to_owned().into() };
        let help = |text: &str| Error::from_store("read", "s3://b/x".into(), generic(text)).to_string();
        assert!(help("status code: 503 Service Unavailable: <Code>SlowDown</Code>").contains("max_requests"));
        assert!(help("error sending request").contains("check the endpoint"));
        assert!(help("Received redirect without LOCATION").contains("aws_region"));
        let error = Error::from_store(
            "read",
            "s3://b/x".into(),
            generic("Error performing PUT http://169.254.169.254/latest/api/token: status code: 403 Forbidden"),
        );
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(error.to_string().contains("export-credentials"));
    }

    #[test]
    fn every_kind_has_the_documented_status() {
        assert_eq!(ErrorKind::Usage.exit_code(), 2);
        assert_eq!(ErrorKind::Stopped.exit_code(), 75);
        assert_eq!(ErrorKind::Corrupt.exit_code(), 1);
    }
}
