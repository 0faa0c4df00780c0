//! Metrics as states that merge: what several ranks gathered over disjoint rows, put together, is what one rank would
//! have gathered over all of them. Rows that a mask excludes enter nothing.

mod auc;
mod classification;

pub(crate) use auc::area;
pub use auc::{Auc, AucState, EXACT_SCORES};
pub use classification::{ClassificationState, Scores};
