//! The plan (an epoch's order as a pure function) and the prefetching loader that obeys it.
//!
//! [`Plan`] decides, without I/O, which sample is at which place of which epoch, and [`slice`] which rank takes it.
//! [`DataLoader`] reads what the plan names and delivers [`HostBatch`]es, each with the [`State`] to go on after it.

pub mod batches;
pub mod batching;
mod bisect;
mod block_cache;
pub mod buffer_pool;
mod collate;
pub mod columns;
pub mod conformance;
pub mod curriculum;
mod difficulty;
pub mod error;
pub mod filter;
pub mod fingerprint;
pub mod interleave;
mod kept;
pub mod lane_table;
pub mod loader;
pub mod measure;
pub mod metrics;
pub mod mixture;
mod open_windows;
pub mod options;
pub mod order;
pub mod plan;
mod records;
pub mod replay;
mod row_group_reader;
mod sampled;
pub mod sampling;
mod sizes;
pub mod slice;
pub mod source;
pub mod spec;
pub mod state;
pub mod steps;
pub mod tensor;
mod window;
pub mod world;

pub use batches::Batches;
pub use buffer_pool::{BufferPool, HostBuffer};
pub use columns::{Column, Columns};
pub use error::{Error, Result};
pub use filter::Predicate;
pub use fingerprint::{Fingerprint, PlanIdentity};
pub use interleave::Interleave;
pub use lane_table::LaneTable;
pub use loader::{DataLoader, LoaderOptions};
pub use metrics::LoaderMetrics;
pub use plan::{Plan, PlanOptions, Sample, Shuffle, Tail};
pub use replay::{Replay, ReplayOptions, replay};
pub use source::Source;
pub use spec::{BatchSpec, CategoryColumn, LabelEncoding, NonFinite, NumberColumn, TensorSpec};
pub use state::State;
pub use tensor::{DType, HostBatch, HostTensor, HostTensorParts};
pub use world::World;
