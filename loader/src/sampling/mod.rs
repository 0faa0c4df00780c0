//! Weighted and class-balanced epochs: how many draws an epoch makes from each lane, and which positions, in which order.
//!
//! Two stages, both functions of keys. [`allocate`] and [`rounding`] give each lane its number of draws from totals that
//! every rank knows; [`weighted`] and [`balanced`] make the draws of one lane from that lane's column alone. Every
//! decision is made in integers.

pub mod allocate;
pub mod balanced;
pub mod fixed_point;
pub mod options;
pub mod proportional;
pub mod rounding;
pub mod weighted;
mod wide;
