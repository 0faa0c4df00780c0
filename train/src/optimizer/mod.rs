//! Optimizers in Rust over tch tensors, since tch gives no access to the state of libtorch's.

mod adamw;
mod clip;

pub use adamw::AdamW;
pub use clip::clip_by_global_norm;
