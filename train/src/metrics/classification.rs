//! Loss, accuracy and AUC of a two-class classifier.

use serde::{Deserialize, Serialize};

use super::auc::{Auc, AucState};

/// Figures over a set of rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scores {
    /// Rows.
    pub rows: u64,
    /// Mean log loss in nats.
    pub loss: f64,
    /// Share of rows where the likelier class is the label.
    pub accuracy: f64,
    /// Area under the ROC curve; `None` when one class is absent.
    pub auc: Option<f64>,
    /// Greatest possible error of `auc`; 0 up to 10^7 rows.
    #[serde(default)]
    pub auc_error: f64,
}

/// What [`Scores`] are computed from.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassificationState {
    /// Sum of the log losses.
    pub loss_sum: f64,
    /// Rows.
    pub rows: u64,
    /// Rows where the likelier class is the label.
    pub correct: u64,
    /// Scores and labels.
    pub auc: AucState,
}

impl ClassificationState {
    /// An empty state for a split of `rows` rows over all ranks.
    #[must_use]
    pub fn for_rows(rows: u64) -> Self {
        Self { loss_sum: 0.0, rows: 0, correct: 0, auc: AucState::for_rows(rows) }
    }

    /// Adds a batch: `logits`, `labels` (0 or 1) and `mask` (0 leaves the row out), one of each per row. The losses
    /// come summed, since the model has computed them. Returns (rows, correct rows) of the batch.
    pub fn update(&mut self, loss_sum: f64, logits: &[f64], labels: &[f64], mask: &[f32]) -> (u64, u64) {
        let (mut rows, mut correct) = (0, 0);
        for ((logit, label), mask) in logits.iter().zip(labels).zip(mask) {
            if *mask == 0.0 {
                continue;
            }
            let positive = *label > 0.5;
            rows += 1;
            correct += u64::from((*logit > 0.0) == positive);
            self.auc.push(*logit, positive);
        }
        self.loss_sum += loss_sum;
        self.rows += rows;
        self.correct += correct;
        (rows, correct)
    }

    /// Adds the rows of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.loss_sum += other.loss_sum;
        self.rows += other.rows;
        self.correct += other.correct;
        self.auc.merge(&other.auc);
    }

    /// The figures; `None` without rows.
    #[must_use]
    pub fn finish(self) -> Option<Scores> {
        if self.rows == 0 {
            return None;
        }
        let rows = self.rows as f64;
        let auc = self.auc.finish();
        Some(Scores {
            rows: self.rows,
            loss: self.loss_sum / rows,
            accuracy: self.correct as f64 / rows,
            auc: auc.map(|Auc { value, .. }| value),
            auc_error: auc.map_or(0.0, |a| a.error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_rows_enter_nothing() {
        let mut state = ClassificationState::for_rows(10);
        let counts = state.update(1.5, &[2.0, -1.0, 9.0, 0.0], &[1.0, 1.0, 0.0, 0.0], &[1.0, 1.0, 0.0, 1.0]);
        assert_eq!(counts, (3, 2));
        let scores = state.finish().unwrap();
        assert_eq!((scores.rows, scores.loss, scores.auc), (3, 0.5, Some(0.5)));
        assert!((scores.accuracy - 2.0 / 3.0).abs() < 1e-15);
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let logits = [0.3, -0.2, 1.4, -2.0, 0.0, 0.3];
        let labels = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0];
        let mask = [1.0; 6];
        let mut whole = ClassificationState::for_rows(6);
        whole.update(4.5, &logits, &labels, &mask);
        let mut left = ClassificationState::for_rows(6);
        left.update(1.5, &logits[..2], &labels[..2], &mask[..2]);
        let mut right = ClassificationState::for_rows(6);
        right.update(3.0, &logits[2..], &labels[2..], &mask[2..]);
        left.merge(&right);
        assert_eq!(left.finish(), whole.finish());
        assert_eq!(ClassificationState::for_rows(0).finish(), None);
    }
}
