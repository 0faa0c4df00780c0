//! The `gristmill` command: typed arguments in, jobs of the library crates, results out.
//!
//! Printing, exit statuses and `anyhow` live in this package and nowhere else. The program `gristmill-train` shares the
//! modules below; it alone is linked with libtorch.

pub mod args;
mod commands;
pub mod config;
pub mod failure;
pub mod output;
mod progress;
pub mod session;
pub mod tables;
pub mod tasks;
mod training;

pub use commands::{main, parse, start_logging};
