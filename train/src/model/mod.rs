//! Models as the trainer sees them: named parameters, and a forward pass that gives each row a loss.

mod dropout;
mod initialize;
mod tabular;

use tch::Tensor;

pub use dropout::DropoutMasks;
pub use initialize::Initializer;
pub use tabular::Tabular;
pub(crate) use tabular::kind_of;

use crate::{batch::Batch, error::Result};

/// A trainable tensor.
#[derive(Debug)]
pub struct Parameter {
    /// Its name, unique in the model; the order of parameters is part of the model.
    pub name: String,
    /// A leaf that requires a gradient.
    pub tensor: Tensor,
}

/// Why a forward pass is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// To learn from it; random choices are keyed by (seed, step, row), so they depend neither on the ranks nor on
    /// what was drawn before.
    Train {
        /// Seed of the run.
        seed: u64,
        /// Optimizer step, from 0.
        step: u64,
    },
    /// To score it.
    Evaluate,
}

/// What a forward pass gives.
#[derive(Debug)]
pub struct Forward {
    /// [rows]: loss of each row, of the model's number type, part of the autograd graph. Masked rows are finite too.
    pub losses: Tensor,
    /// [rows]: logit of the positive class, detached.
    pub logits: Tensor,
}

/// A model that is trained on batches.
pub trait Model {
    /// Its parameters, always in the same order.
    fn parameters(&self) -> &[Parameter];

    /// Losses and logits of the rows of `batch`.
    ///
    /// # Errors
    /// [`crate::Error::Torch`], or [`crate::Error::Internal`] when the batch lacks a tensor.
    fn forward(&self, batch: &Batch, pass: Pass) -> Result<Forward>;
}

/// Scalars in the parameters.
#[must_use]
pub fn parameter_count(model: &dyn Model) -> u64 {
    model.parameters().iter().map(|p| p.tensor.numel() as u64).sum()
}
