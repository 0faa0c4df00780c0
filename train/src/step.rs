//! One optimizer step: a rank's part of the global batch, in micro-batches, to reduced gradients.

use gristmill_c10d::Reducer;
use tch::{Kind, Tensor};

use crate::{
    batch::{Batch, LABEL},
    error::{During, Error, Result},
    metrics::ClassificationState,
    model::{Forward, Model, Pass},
    ranks::Ranks,
};

/// This rank's share of the figures of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalSums {
    /// Sum of the losses of its samples.
    pub loss: f64,
    /// Its samples.
    pub rows: u64,
    /// Those of them that the model got right.
    pub correct: u64,
}

/// Runs forward and backward over `batch` and leaves in every parameter's gradient the mean over the samples of the
/// whole global batch, the same on every rank.
///
/// The Reducer divides by the number of ranks W, so a rank's loss is (W / samples in the global batch) · Σ mask · loss:
/// then each sample weighs the same, however unevenly the samples lie on ranks and micro-batches. All ranks run the same
/// number of micro-batches, and only the last reduces.
///
/// # Errors
/// [`Error::Group`] when another rank is lost; [`Error::Torch`].
pub fn accumulate_gradients(
    model: &dyn Model,
    reducer: &mut Reducer,
    ranks: &Ranks,
    batch: &Batch,
    micro_batch: Option<u64>,
    pass: Pass,
    scores: &mut ClassificationState,
) -> Result<LocalSums> {
    let weight = if batch.global_rows == 0 { 0.0 } else { ranks.size() as f64 / batch.global_rows as f64 };
    let largest = batch.largest_part.max(1);
    if batch.rows().cast_unsigned() > largest {
        return Err(Error::internal(format!("a part of {} rows, where the largest is {largest}", batch.rows())));
    }
    let size = micro_batch.unwrap_or(largest).clamp(1, largest);
    let parts = largest.div_ceil(size);
    let (size, parts) = match (i64::try_from(size), i64::try_from(parts)) {
        (Ok(size), Ok(parts)) => (size, parts),
        _ => return Err(Error::internal(format!("a part of {largest} rows"))),
    };
    let mut sums = LocalSums { loss: 0.0, rows: 0, correct: 0 };
    for i in 0..parts {
        let part = batch.part(i * size, size)?;
        let last = i + 1 == parts;
        if last {
            reducer.prepare_for_forward().map_err(|e| ranks.failed("preparing a step", e))?;
        }
        let forward = model.forward(&part, pass)?;
        let masked = masked_losses(&forward, &part)?;
        let loss = masked.f_sum(masked.kind()).and_then(|sum| sum.f_mul_scalar(weight)).during("summing the losses")?;
        let result = if last { reducer.backward(&loss) } else { reducer.backward_without_reduction(&loss) };
        result.map_err(|e| ranks.failed("the backward pass", e))?;
        let (loss, rows, correct) = record(&forward, &masked, &part, scores)?;
        sums.loss += loss;
        sums.rows += rows;
        sums.correct += correct;
    }
    Ok(sums)
}

/// [rows]: the losses, 0 where the mask is.
pub(crate) fn masked_losses(forward: &Forward, batch: &Batch) -> Result<Tensor> {
    let losses = &forward.losses;
    batch.mask.f_to_kind(losses.kind()).and_then(|mask| losses.f_mul(&mask)).during("masking the losses")
}

/// Adds a batch to `scores`; returns the loss sum, the rows and the correct rows.
pub(crate) fn record(
    forward: &Forward,
    masked: &Tensor,
    batch: &Batch,
    scores: &mut ClassificationState,
) -> Result<(f64, u64, u64)> {
    let during = "reading the scores";
    let loss =
        masked.f_detach().and_then(|t| t.f_sum(Kind::Double)).and_then(|t| t.f_double_value(&[])).during(during)?;
    let numbers = |t: &Tensor| {
        let double = t.f_to_kind(Kind::Double).during(during)?;
        Vec::<f64>::try_from(double).during(during)
    };
    let logits = numbers(&forward.logits)?;
    let labels = numbers(batch.tensor(LABEL)?)?;
    let mask = Vec::<f32>::try_from(&batch.mask).during(during)?;
    let (rows, correct) = scores.update(loss, &logits, &labels, &mask);
    Ok((loss, rows, correct))
}
