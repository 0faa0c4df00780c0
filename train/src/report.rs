//! What a run tells when it is done, and the log that it keeps on the way.

use serde::{Deserialize, Serialize};

use crate::{baseline::Baseline, metrics::Scores};

/// Format version of the report written here.
pub const REPORT_VERSION: u64 = 1;

/// One line of `metrics.jsonl`. Lines carry no clock: a run that was resumed leaves the log of one that never stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum LogLine {
    /// One optimizer step.
    Step {
        /// Epoch, from 0.
        epoch: u64,
        /// Optimizer step over the whole run, from 1.
        step: u64,
        /// Real samples of the global batch.
        samples: u64,
        /// Their mean loss, before the step.
        loss: f64,
        /// Learning rate of the step.
        lr: f64,
        /// Norm of the gradient before clipping, where clipping is on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gradient_norm: Option<f64>,
    },
    /// One split at the end of an epoch.
    Epoch(EpochScores),
}

/// Scores of one split at the end of an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochScores {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Optimizer steps done by then.
    pub step: u64,
    /// Which split. Scores of the train split are of the model as it was at each step of the epoch, with dropout.
    pub split: String,
    /// The figures.
    pub scores: Scores,
}

/// The report of a finished run, `report.json` of the run folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainReport {
    /// [`REPORT_VERSION`] of the writer.
    pub format_version: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Epochs.
    pub epochs: u64,
    /// Ranks of the last start.
    pub world_size: u64,
    /// Scalars in the model.
    pub parameters: u64,
    /// Train and validation scores by epoch.
    pub history: Vec<EpochScores>,
    /// Scores on the test split, where there is one.
    pub test: Option<Scores>,
    /// Baselines on the same split.
    pub baselines: Vec<Baseline>,
    /// How fast it went, of the last start only.
    pub speed: Speed,
    /// Where the model is: folder URL.
    pub model: String,
    /// BLAKE3 of the parameters' file.
    pub model_digest: String,
}

/// How fast training went since the last start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speed {
    /// Steps since then.
    pub steps: u64,
    /// Samples over all ranks.
    pub samples: u64,
    /// Seconds in these steps, without evaluation and checkpoints.
    pub seconds: f64,
    /// Seconds of these that rank 0 waited for data.
    pub wait_seconds: f64,
}

impl Speed {
    /// Samples a second over all ranks; 0 before the first step.
    #[must_use]
    pub fn samples_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.samples as f64 / self.seconds } else { 0.0 }
    }

    /// Share of the step time spent waiting for data, 0 to 1.
    #[must_use]
    pub fn wait_share(&self) -> f64 {
        if self.seconds > 0.0 { (self.wait_seconds / self.seconds).clamp(0.0, 1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_read_back_bit_for_bit() {
        let scores = Scores { rows: 3, loss: 0.1 + 0.2, accuracy: 1.0 / 3.0, auc: None, auc_error: 0.0 };
        for line in [
            LogLine::Step { epoch: 0, step: 1, samples: 4, loss: 0.1 + 0.2, lr: 1e-3 / 3.0, gradient_norm: None },
            LogLine::Epoch(EpochScores { epoch: 1, step: 9, split: "train".into(), scores }),
        ] {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<LogLine>(&text).unwrap(), line, "{text}");
        }
        assert!(serde_json::from_str::<LogLine>(r#"{"event":"step","epoch":0}"#).is_err());
    }

    #[test]
    fn speed_of_nothing_is_zero() {
        assert_eq!((Speed::default().samples_per_second(), Speed::default().wait_share()), (0.0, 0.0));
        let s = Speed { steps: 2, samples: 100, seconds: 4.0, wait_seconds: 1.0 };
        assert_eq!((s.samples_per_second(), s.wait_share()), (25.0, 0.25));
    }
}
