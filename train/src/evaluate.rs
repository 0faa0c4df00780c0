//! Scores of a model on a split, exact over all ranks.

use gristmill_shard::control::{Control, Unit};

use crate::{
    baseline::ValueCounts,
    batch::{BASELINE, Batch, BatchSource, LABEL},
    checkpoint::EpochProgress,
    error::{During, Error, Result},
    metrics::{AucState, ClassificationState, Scores},
    model::{Model, Pass},
    ranks::Ranks,
    step::{masked_losses, record},
};

/// Scores `model` on all samples of `source`, each counted once; every rank gets the same figures. `None` for an empty
/// split. `counts` also gets the rows by value of the baseline column.
///
/// # Errors
/// Those of the source and the model; [`Error::Group`] when another rank is lost.
pub fn evaluate(
    model: &dyn Model,
    source: &mut dyn BatchSource,
    ranks: &Ranks,
    control: &Control,
    split: &str,
    mut counts: Option<&mut ValueCounts>,
) -> Result<Option<Scores>> {
    let plan = source.plan()?;
    let mut state = ClassificationState::for_rows(plan.samples);
    let _no_grad = tch::no_grad_guard();
    let progress = ranks.is_first().then_some(&control.progress);
    if let Some(p) = progress {
        p.start(&format!("score {split}"), plan.samples, Unit::Rows);
    }
    source.start(0)?;
    while let Some(batch) = source.next()? {
        let forward = model.forward(&batch, Pass::Evaluate)?;
        let masked = masked_losses(&forward, &batch)?;
        record(&forward, &masked, &batch, &mut state)?;
        if let Some(counts) = counts.as_deref_mut() {
            count(&batch, counts)?;
        }
        if let Some(p) = progress {
            p.advance(batch.global_rows);
        }
    }
    if let Some(p) = progress {
        p.finish();
    }
    merge_over_ranks(state, ranks, &format!("scoring split \"{split}\""), plan.samples)
}

/// Counts the rows of `source` by value of the baseline column, over all ranks.
///
/// # Errors
/// Those of the source; [`Error::Group`] when another rank is lost.
pub fn count_values(source: &mut dyn BatchSource, ranks: &Ranks, codes: usize) -> Result<ValueCounts> {
    let mut counts = ValueCounts::new(codes);
    source.start(0)?;
    while let Some(batch) = source.next()? {
        count(&batch, &mut counts)?;
    }
    sum_counts(&counts, ranks)
}

/// Sums counts over all ranks.
///
/// # Errors
/// [`Error::Group`] when another rank is lost.
pub fn sum_counts(counts: &ValueCounts, ranks: &Ranks) -> Result<ValueCounts> {
    let during = "counting values for the baselines";
    Ok(ValueCounts { rows: ranks.sum_u64(during, &counts.rows)?, positives: ranks.sum_u64(during, &counts.positives)? })
}

fn count(batch: &Batch, counts: &mut ValueCounts) -> Result<()> {
    let during = "reading values for the baselines";
    let labels =
        Vec::<f64>::try_from(batch.tensor(LABEL)?.f_to_kind(tch::Kind::Double).during(during)?).during(during)?;
    let mask = Vec::<f32>::try_from(&batch.mask).during(during)?;
    let codes = if counts.rows.len() > 1 {
        Vec::<i64>::try_from(batch.tensor(BASELINE)?).during(during)?
    } else {
        vec![0; labels.len()]
    };
    for ((code, label), mask) in codes.iter().zip(&labels).zip(&mask) {
        if *mask != 0.0 {
            counts.push(*code, *label > 0.5);
        }
    }
    Ok(())
}

/// Merges the ranks' states and computes the figures, the same on every rank. `expected` rows must have been seen.
///
/// # Errors
/// [`Error::Internal`] when rows are missing or too many: a figure over the wrong rows would be worse than none.
pub(crate) fn merge_over_ranks(
    state: ClassificationState,
    ranks: &Ranks,
    during: &str,
    expected: u64,
) -> Result<Option<Scores>> {
    let loss = ranks.sum_f64(during, &[state.loss_sum])?;
    let counts = ranks.sum_u64(during, &[state.rows, state.correct])?;
    let (&[loss_sum], &[rows, correct]) = (loss.as_slice(), counts.as_slice()) else {
        return Err(Error::internal(format!("{during}: sums are missing")));
    };
    finish_scores(EpochProgress { loss_sum, rows, correct }, state.auc, ranks, during, expected)
}

/// The figures from sums that are over all ranks already, and this rank's scores.
pub(crate) fn finish_scores(
    sums: EpochProgress,
    auc: AucState,
    ranks: &Ranks,
    during: &str,
    expected: u64,
) -> Result<Option<Scores>> {
    let EpochProgress { loss_sum, rows, correct } = sums;
    let auc = merge_auc(auc, ranks, during)?;
    if rows > expected {
        return Err(Error::internal(format!("{during}: {rows} rows were scored, the plan has {expected}")));
    }
    if rows < expected && ranks.is_first() {
        tracing::warn!("{during}: {} of {expected} samples were masked", expected - rows);
    }
    // Sorting the scores is work for one rank.
    ranks.on_first(during, || Ok(ClassificationState { loss_sum, rows, correct, auc }.finish()))
}

/// The ranks' states put together; whole on rank 0, of no use elsewhere when exact.
pub(crate) fn merge_auc(state: AucState, ranks: &Ranks, during: &str) -> Result<AucState> {
    if ranks.size() == 1 {
        return Ok(state);
    }
    match state {
        AucState::Binned { positives, negatives } => Ok(AucState::Binned {
            positives: ranks.sum_u64(during, &positives)?,
            negatives: ranks.sum_u64(during, &negatives)?,
        }),
        AucState::Exact { scores, labels } => {
            let mut bytes = Vec::with_capacity(scores.len() * 9);
            for (score, label) in scores.iter().zip(&labels) {
                bytes.extend_from_slice(&score.to_le_bytes());
                bytes.push(u8::from(*label));
            }
            let all = ranks.gather(during, &bytes)?;
            let mut whole = AucState::exact();
            if ranks.is_first() {
                for row in all.iter().flat_map(|part| part.chunks_exact(9)) {
                    if let Some((score, &[label])) = row.split_first_chunk::<8>() {
                        whole.push(f64::from_le_bytes(*score), label != 0);
                    }
                }
            }
            Ok(whole)
        }
    }
}
