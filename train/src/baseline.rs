//! What a model has to beat: scores of two predictors that only count the training rows.
//!
//! - **majority**: the share of positives, for every row.
//! - **rate by column**: the share of positives among the training rows with the same value of one column (the hour of
//!   the day, say). Shares are smoothed as (positives + 1) / (rows + 2), Laplace's rule, so that no loss is infinite; a
//!   value that the training rows lack gets the majority's share.
//!
//! Both are functions of a row's value alone, so counts of (value, label) in each split are all that is needed, and
//! integer counts merge exactly over ranks.

use serde::{Deserialize, Serialize};

use crate::metrics::Scores;

/// Rows by value of a column, and how many of them are positive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ValueCounts {
    /// Rows with code i; code 0 is null or unseen.
    pub rows: Vec<u64>,
    /// Positives among them.
    pub positives: Vec<u64>,
}

impl ValueCounts {
    /// No rows yet, for codes `0..codes`.
    #[must_use]
    pub fn new(codes: usize) -> Self {
        Self { rows: vec![0; codes], positives: vec![0; codes] }
    }

    /// Adds one row; a code beyond the last is counted as 0, unseen.
    pub fn push(&mut self, code: i64, label: bool) {
        let code = usize::try_from(code).ok().filter(|c| *c < self.rows.len()).unwrap_or(0);
        if let (Some(rows), Some(positives)) = (self.rows.get_mut(code), self.positives.get_mut(code)) {
            *rows += 1;
            *positives += u64::from(label);
        }
    }

    /// (rows, positives) over all codes.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.rows.iter().sum(), self.positives.iter().sum())
    }
}

/// Scores of one baseline on one split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// `majority`, or `rate by <column>`.
    pub name: String,
    /// Its figures.
    pub scores: Scores,
}

/// The baselines, counted on `train` and scored on `test`. `column` names the column that the codes stand for; without
/// one all rows have code 0 and there is only the majority. Empty when either split has no rows.
#[must_use]
pub fn baselines(train: &ValueCounts, test: &ValueCounts, column: Option<&str>) -> Vec<Baseline> {
    let (rows, positives) = train.totals();
    if rows == 0 || test.totals().0 == 0 {
        return Vec::new();
    }
    let overall = smoothed(positives, rows);
    let mut all = vec![Baseline { name: "majority".to_owned(), scores: score(test, |_| overall) }];
    if let Some(column) = column {
        let rate = |code: usize| match (train.rows.get(code), train.positives.get(code)) {
            (Some(&rows), Some(&positives)) if rows > 0 => smoothed(positives, rows),
            _ => overall,
        };
        all.push(Baseline { name: format!("rate by {column}"), scores: score(test, rate) });
    }
    all
}

fn smoothed(positives: u64, rows: u64) -> f64 {
    (positives as f64 + 1.0) / (rows as f64 + 2.0)
}

/// Figures of the predictor that gives every row with code c the probability `rate(c)`.
fn score(test: &ValueCounts, rate: impl Fn(usize) -> f64) -> Scores {
    let mut groups: Vec<(f64, u64, u64)> = test
        .rows
        .iter()
        .zip(&test.positives)
        .enumerate()
        .filter(|(_, (rows, _))| **rows > 0)
        .map(|(code, (rows, positives))| (rate(code), *positives, rows - positives))
        .collect();
    let (mut loss, mut correct, mut rows) = (0.0, 0, 0);
    for (p, positives, negatives) in &groups {
        loss -= *positives as f64 * p.ln() + *negatives as f64 * (1.0 - p).ln();
        correct += if *p > 0.5 { *positives } else { *negatives };
        rows += positives + negatives;
    }
    groups.sort_by(|a, b| a.0.total_cmp(&b.0));
    let tied = groups.chunk_by(|a, b| a.0 == b.0).map(|g| (g.iter().map(|x| x.1).sum(), g.iter().map(|x| x.2).sum()));
    Scores {
        rows,
        loss: loss / rows as f64,
        accuracy: correct as f64 / rows as f64,
        auc: crate::metrics::area(tied).map(|(value, _)| value),
        auc_error: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ClassificationState;
    use gristmill_shard::keys::{Domain, Key};

    #[test]
    fn counted_scores_are_those_of_scoring_each_row() {
        let mut rng = Key::derive(Domain::Draw, 3, &[]).rng();
        let mut draw = |n: u64| -> Vec<(i64, bool)> {
            (0..n)
                .map(|_| {
                    let code = rng.below(6) as i64;
                    (code, rng.below(10) < code as u64 + 2)
                })
                .collect()
        };
        let (train_rows, test_rows) = (draw(400), draw(300));
        let count = |rows: &[(i64, bool)]| {
            let mut counts = ValueCounts::new(6);
            rows.iter().for_each(|(code, label)| counts.push(*code, *label));
            counts
        };
        let (train, test) = (count(&train_rows), count(&test_rows));
        let found = baselines(&train, &test, Some("hour"));
        assert_eq!(found.iter().map(|b| b.name.as_str()).collect::<Vec<_>>(), ["majority", "rate by hour"]);
        assert_eq!(found[0].scores.auc, Some(0.5));

        let mut state = ClassificationState::for_rows(300);
        for (code, label) in &test_rows {
            let of: Vec<_> = train_rows.iter().filter(|r| r.0 == *code).collect();
            let p = (of.iter().filter(|r| r.1).count() as f64 + 1.0) / (of.len() as f64 + 2.0);
            let loss = if *label { -p.ln() } else { -(1.0 - p).ln() };
            state.update(loss, &[(p / (1.0 - p)).ln()], &[f64::from(u8::from(*label))], &[1.0]);
        }
        let want = state.finish().unwrap();
        let got = &found[1].scores;
        assert!((got.loss - want.loss).abs() < 1e-12 && (got.accuracy - want.accuracy).abs() < 1e-12);
        assert!((got.auc.unwrap() - want.auc.unwrap()).abs() < 1e-12);
    }

    #[test]
    fn unseen_values_get_the_majoritys_rate_and_empty_splits_nothing() {
        let mut train = ValueCounts::new(3);
        train.push(1, true);
        train.push(1, false);
        train.push(1, false);
        train.push(99, false);
        assert_eq!(train.rows, [1, 3, 0]);
        let mut test = ValueCounts::new(3);
        test.push(2, true);
        let found = baselines(&train, &test, Some("c"));
        assert!((found[1].scores.loss + (2.0_f64 / 6.0).ln()).abs() < 1e-12);
        assert!(baselines(&train, &ValueCounts::new(3), Some("c")).is_empty());
    }
}
