//! What a caller hands a long job beside its options: where progress goes, how it is stopped, how many threads it has.
//! None of it changes the result.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::error::{Error, Result};

/// Unit of a stage's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Rows.
    Rows,
    /// Bytes.
    Bytes,
    /// Files, row groups, steps: `n` of `total`.
    Items,
}

/// Receives progress. Calls may come from several threads.
pub trait Progress: Send + Sync {
    /// A stage begins; `total` 0 means unknown.
    fn start(&self, stage: &str, total: u64, unit: Unit);
    /// `amount` more is done.
    fn advance(&self, amount: u64);
    /// The stage has ended.
    fn finish(&self);
}

/// Progress to nowhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _stage: &str, _total: u64, _unit: Unit) {}
    fn advance(&self, _amount: u64) {}
    fn finish(&self) {}
}

/// A request to stop at the next safe point; set once (by a signal handler, say), read often.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// A flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The flag itself, for a signal handler.
    #[must_use]
    pub fn shared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Asks for the stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Error::Stopped`] when a stop was asked for.
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// How a job is run.
#[derive(Clone)]
pub struct Control {
    /// Where progress goes.
    pub progress: Arc<dyn Progress>,
    /// How it is stopped.
    pub stop: StopFlag,
    /// Units worked on at once, at least 1.
    pub threads: usize,
}

impl Default for Control {
    /// Silent, never stopped, one thread a CPU.
    fn default() -> Self {
        Self {
            progress: Arc::new(Silent),
            stop: StopFlag::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("stop", &self.stop).field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// Runs `work` on a thread of rayon's pool, off the runtime's own: as many at once as there are cores, on threads that
/// stay, so that what one frees is there for the next.
///
/// # Errors
/// What `work` returns; [`Error::Internal`] when it panicked.
pub async fn compute<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (answer, result) = tokio::sync::oneshot::channel();
    rayon::spawn(move || {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(Error::internal("a worker thread panicked")));
        // Whoever asked may be gone: it was stopped.
        drop(answer.send(done));
    });
    result.await.unwrap_or_else(|_| Err(Error::internal("a worker thread gave no answer")))
}
