//! Errors as people and programs read them, and the one place that decides the exit status.

use std::{error::Error as StdError, process::ExitCode};

use gristmill_shard::ErrorKind;

/// A failure of the command itself, beside those of the libraries.
#[derive(Debug)]
pub struct Failure {
    /// What the caller can do.
    pub kind: ErrorKind,
    /// What is wrong and where.
    pub what: String,
    /// What to do.
    pub help: String,
}

impl Failure {
    /// A mistake in flags or configuration.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> anyhow::Error {
        Self { kind: ErrorKind::Usage, what: what.into(), help: help.into() }.into()
    }

    /// Something that this machine lacks.
    pub fn environment(what: impl Into<String>, help: impl Into<String>) -> anyhow::Error {
        Self { kind: ErrorKind::Environment, what: what.into(), help: help.into() }.into()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n  help: {}", self.what, self.help)
    }
}

impl StdError for Failure {}

/// An error of a library that this program is not linked with, with its kind told by who is.
#[derive(Debug)]
pub struct Sorted {
    /// What the caller can do.
    pub kind: ErrorKind,
    /// The error.
    pub error: Box<dyn StdError + Send + Sync>,
}

impl std::fmt::Display for Sorted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl StdError for Sorted {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// Another process has already said what went wrong; only its status remains to be passed on.
#[derive(Debug)]
pub struct Reported(pub u8);

impl std::fmt::Display for Reported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "training ended with status {}", self.0)
    }
}

impl StdError for Reported {}

/// The reader of stdout has gone; that is no failure.
#[derive(Debug)]
pub struct ReaderGone;

impl std::fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the reader of stdout has gone")
    }
}

impl StdError for ReaderGone {}

/// What the caller can do about `error`. The errors of training are not named here: naming them would link libtorch into
/// every command.
pub fn kind(error: &anyhow::Error) -> ErrorKind {
    for cause in error.chain() {
        if let Some(e) = cause.downcast_ref::<Failure>() {
            return e.kind;
        }
        if let Some(e) = cause.downcast_ref::<Sorted>() {
            return e.kind;
        }
        if let Some(e) = cause.downcast_ref::<gristmill_loader::Error>() {
            return e.kind();
        }
        if let Some(e) = cause.downcast_ref::<gristmill_shard::Error>() {
            return e.kind();
        }
        if let Some(e) = cause.downcast_ref::<std::io::Error>() {
            return match e.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                _ => ErrorKind::Storage,
            };
        }
    }
    ErrorKind::Internal
}

/// Prints `error` on stderr and gives the status to exit with.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    if error.downcast_ref::<ReaderGone>().is_some() {
        return ExitCode::SUCCESS;
    }
    if let Some(Reported(status)) = error.downcast_ref::<Reported>() {
        return ExitCode::from(*status);
    }
    let kind = kind(error);
    let (message, help, causes) = texts(error);
    let text = if json {
        serde_json::json!({ "error": { "kind": kind, "message": message, "help": help, "causes": causes } }).to_string()
    } else {
        let mut text = format!("error: {message}");
        for cause in &causes {
            text.push_str(&format!("\n  because: {cause}"));
        }
        if let Some(help) = help {
            text.push_str(&format!("\n  help: {help}"));
        }
        text
    };
    crate::output::line_to_stderr(&text);
    ExitCode::from(kind.exit_code())
}

/// Message, help and causes. Libraries put `help:` on a line of its own; it goes last, whichever error of the chain
/// has it.
fn texts(error: &anyhow::Error) -> (String, Option<String>, Vec<String>) {
    let mut help = None;
    let mut lines = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let what = match text.split_once("\n  help: ") {
            Some((what, h)) => {
                help.get_or_insert_with(|| h.to_owned());
                what.to_owned()
            }
            None => text,
        };
        // Some libraries repeat their source's text in their own.
        if lines.last().is_none_or(|l: &String| !l.contains(&what)) {
            lines.push(what);
        }
    }
    let message = if lines.is_empty() { String::new() } else { lines.remove(0) };
    (message, help, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_comes_from_the_cause() {
        let e = anyhow::Error::from(gristmill_shard::Error::corrupt("x", "y")).context("reading");
        assert_eq!(kind(&e), ErrorKind::Corrupt);
        let e = anyhow::Error::from(std::io::Error::from(std::io::ErrorKind::PermissionDenied)).context("open");
        assert_eq!(kind(&e).exit_code(), 2);
        assert_eq!(kind(&anyhow::anyhow!("?")), ErrorKind::Internal);
        assert_eq!(kind(&Failure::usage("a", "b")), ErrorKind::Usage);
    }

    #[test]
    fn help_goes_last_and_causes_are_not_repeated() {
        let usage = || anyhow::Error::from(gristmill_shard::Error::usage("no column", "did you mean x"));
        let (message, help, causes) = texts(&usage().context("in --stratify"));
        assert_eq!((message.as_str(), help.as_deref()), ("in --stratify", Some("did you mean x")));
        assert_eq!(causes, ["no column"]);
        let (message, _, causes) = texts(&usage().context("there is no column here"));
        assert_eq!((message.as_str(), causes.len()), ("there is no column here", 0));
    }
}
