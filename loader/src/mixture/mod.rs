//! Sources mixed by weight, as a function of the index: which source a sample of the mixture is of, and which row of
//! which pass over that source.
//!
//! [`weights`] makes weights exact, [`turns`] decides whose turn it is, and [`Mixture`] puts turns into stages and
//! epochs over sources of given lengths. How a source orders the rows of a pass is its own matter.

mod epochs;
mod options;
mod schedule;
pub mod turns;
pub mod weights;

pub use epochs::{Draw, Mixture, SourceRange, Taken};
pub use options::{MixOptions, StageOptions, Stop};
pub use schedule::Stage;
pub use turns::Turns;
pub use weights::Weight;
