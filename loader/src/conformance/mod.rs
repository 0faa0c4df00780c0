//! Checks of the promises of plans and loaders, that any implementation of them can be put to.

mod ordering;
mod resume;

pub use ordering::{Declared, Delivered, EpochOrdering, check_changes, check_coverage, check_seek, check_worlds};
pub use resume::check_resume;
