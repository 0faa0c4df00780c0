//! The laws of plans, over random plans of every kind.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests")]

mod kinds;
mod laws;
mod quality;
mod refusals;
