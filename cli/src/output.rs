//! stdout is the result, stderr all else.

use std::io::Write as _;

use serde::Serialize;

use crate::failure::ReaderGone;

/// Writes the result of a command.
///
/// # Errors
/// [`ReaderGone`] when nobody reads any more; other failures of stdout.
pub fn result(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written =
        out.write_all(text.as_bytes()).and_then(|()| if text.ends_with('\n') { Ok(()) } else { out.write_all(b"\n") });
    written.and_then(|()| out.flush()).map_err(|e| match e.kind() {
        std::io::ErrorKind::BrokenPipe => anyhow::Error::from(ReaderGone),
        _ => anyhow::Error::from(e).context("could not write the result to stdout"),
    })
}

/// Writes the result as JSON.
///
/// # Errors
/// As [`result`].
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    result(&serde_json::to_string_pretty(value)?)
}

/// Writes a line to stderr; when even that fails there is nobody to tell.
pub fn line_to_stderr(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
