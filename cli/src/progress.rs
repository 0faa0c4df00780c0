//! Progress on stderr: bars on a terminal, one line a finished stage elsewhere.

use std::{
    io::IsTerminal as _,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use gristmill_shard::{Progress, control::Silent, control::Unit};
use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};

/// The progress of this process.
pub fn of(quiet: bool) -> Arc<dyn Progress> {
    if quiet {
        Arc::new(Silent)
    } else if std::io::stderr().is_terminal() {
        Arc::new(Bars::default())
    } else {
        Arc::new(Lines::default())
    }
}

#[derive(Default)]
struct Bars(Mutex<Option<ProgressBar>>);

impl Progress for Bars {
    fn start(&self, stage: &str, total: u64, unit: Unit) {
        let amount = match unit {
            Unit::Bytes => "{bytes}/{total_bytes} {bytes_per_sec}",
            Unit::Rows | Unit::Items => "{human_pos}/{human_len} {per_sec}",
        };
        let bar = if total > 0 { ProgressBar::new(total) } else { ProgressBar::no_length() };
        let template = format!("{{msg:16}} {{wide_bar:.green/dim}} {amount} {{elapsed}} (ETA {{eta}})");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.set_message(stage.to_owned());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
    }

    fn advance(&self, amount: u64) {
        if let Some(bar) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            bar.inc(amount);
        }
    }

    fn finish(&self) {
        if let Some(bar) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish();
        }
    }
}

struct Stage {
    name: String,
    unit: Unit,
    done: u64,
    since: Instant,
}

#[derive(Default)]
struct Lines(Mutex<Option<Stage>>);

impl Progress for Lines {
    fn start(&self, stage: &str, _total: u64, unit: Unit) {
        let stage = Stage { name: stage.to_owned(), unit, done: 0, since: Instant::now() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stage);
    }

    fn advance(&self, amount: u64) {
        if let Some(stage) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            stage.done += amount;
        }
    }

    fn finish(&self) {
        let Some(stage) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let amount = match stage.unit {
            Unit::Bytes => HumanBytes(stage.done).to_string(),
            Unit::Rows => format!("{} rows", HumanCount(stage.done)),
            Unit::Items => HumanCount(stage.done).to_string(),
        };
        let elapsed = stage.since.elapsed();
        let took = if elapsed.as_secs() < 60 {
            format!("{:.1} s", elapsed.as_secs_f64())
        } else {
            HumanDuration(elapsed).to_string()
        };
        crate::output::line_to_stderr(&format!("{}: {amount} in {took}", stage.name));
    }
}
