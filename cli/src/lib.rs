//! The `gristmill` command: typed arguments in, jobs of the library crates, results out.
//!
//! Printing, exit statuses and `anyhow` live in this crate and nowhere else.

mod args;
mod commands;
mod config;
mod failure;
mod output;
mod progress;
mod session;
mod tables;
mod training;

pub use commands::main;
#[cfg(feature = "torch")]
pub use training::rank::main as train_main;
