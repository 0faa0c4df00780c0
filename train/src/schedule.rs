//! The learning rate as a pure function of the optimizer step: it can't drift from the step it belongs to, whatever
//! the number of ranks, of micro-batches, or of restarts.

use serde::{Deserialize, Serialize};

/// Shape of the learning rate over the run; `optimizer.lr` is its greatest value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Which shape.
    #[serde(default)]
    pub kind: ScheduleKind,
    /// Steps of the linear rise from 0 (`warmup_cosine` only).
    #[serde(default)]
    pub warmup_steps: u64,
    /// Rate that the fall ends at, as a fraction of `optimizer.lr`, 0 to 1 (`warmup_cosine` only).
    #[serde(default)]
    pub final_fraction: f64,
}

/// Which shape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// `optimizer.lr` at every step.
    #[default]
    Constant,
    /// A linear rise, then half a cosine down to the last step.
    WarmupCosine,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { kind: ScheduleKind::Constant, warmup_steps: 0, final_fraction: 0.0 }
    }
}

impl ScheduleConfig {
    /// Factor on `optimizer.lr` for optimizer step `step` (from 0) of `total` steps, within 0 to 1.
    ///
    /// `warmup_cosine` is `(step + 1) / warmup` during the rise, so that no step is wasted at rate 0, and
    /// `f + (1 − f) · (1 + cos π p) / 2` after it, with p the share of the fall that is done.
    #[must_use]
    pub fn factor(&self, step: u64, total: u64) -> f64 {
        match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::WarmupCosine if step < self.warmup_steps => (step + 1) as f64 / self.warmup_steps as f64,
            ScheduleKind::WarmupCosine => {
                let fall = total.saturating_sub(self.warmup_steps).max(1) as f64;
                let done = ((step - self.warmup_steps) as f64 / fall).min(1.0);
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
                self.final_fraction + (1.0 - self.final_fraction) * cosine
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_then_falls_and_is_a_function_of_the_step_alone() {
        let s = ScheduleConfig { kind: ScheduleKind::WarmupCosine, warmup_steps: 4, final_fraction: 0.1 };
        let rates: Vec<f64> = (0..14).map(|t| s.factor(t, 14)).collect();
        assert_eq!(&rates[..4], [0.25, 0.5, 0.75, 1.0]);
        assert_eq!(rates[4], 1.0);
        assert!(rates[4..].windows(2).all(|w| w[1] < w[0]), "{rates:?}");
        assert!((rates[9] - 0.55).abs() < 1e-12, "half way down");
        assert!(rates[13] > 0.1);
        assert!((s.factor(14, 14) - 0.1).abs() < 1e-12);
        assert!((s.factor(99, 14) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn odd_settings_stay_finite() {
        let s = ScheduleConfig { kind: ScheduleKind::WarmupCosine, warmup_steps: 10, final_fraction: 0.0 };
        assert!((0..30).all(|t| (0.0..=1.0).contains(&s.factor(t, 3))));
        let s = ScheduleConfig { warmup_steps: 0, ..s };
        assert_eq!(s.factor(0, 0), 1.0);
        assert_eq!(ScheduleConfig::default().factor(5, 1), 1.0);
    }
}
