//! Curriculum learning: samples are drawn from the easier part of the data, which grows as training goes on.
//!
//! [`Pacing`] says which part is admitted at which step, [`Ramp`] makes of it a table of at most 64 integer levels an
//! epoch, and [`draw`] gives one lane's order under that table. Floats are used up to the table only.

pub mod levels;
mod options;
pub mod pacing;
pub mod pool;

pub use levels::{Infeasible, LEVELS_MAX, Level, Levels, Ramp, RampReport};
pub use options::Curriculum;
pub use pacing::{DifficultyKind, Pacing, Threshold};
pub use pool::{PoolDraws, Stage, draw};
