//! The run folder: checkpoints, log, model and report of one training run.
//!
//! ```text
//! RUN/
//!   run.json                                   the resolved configuration and its digest; whose folder this is
//!   checkpoints/step-000000001200/
//!     parameters-<digest8>.safetensors
//!     optimizer-<digest8>.safetensors
//!     log-<digest8>.jsonl                      the log up to this step
//!     scores-<digest8>.safetensors             scores of the running epoch, for its AUC (only inside an epoch)
//!     manifest.json                            published last: what counts as a checkpoint is a folder that has it
//!   metrics.jsonl                              the log of the newest checkpoint
//!   model/model-<digest8>.safetensors, model/model.json
//!   report.json
//!   finished.json                              published last of all: the run is done
//! ```
//!
//! Data files are named by their content and never changed. A process that is killed at any moment leaves the
//! checkpoints before it whole, and a run that goes on from one is the run that never stopped.

mod manifest;
mod run_folder;
#[cfg(feature = "torch")]
mod tensors;

pub use manifest::{CHECKPOINT_VERSION, CheckpointManifest, Conditions, EpochProgress, FileRef};
pub use run_folder::{DataFile, Finished, Loaded, RunFolder};
#[cfg(feature = "torch")]
pub use tensors::{auc_from_bytes, auc_to_bytes, read_into, to_safetensors};
