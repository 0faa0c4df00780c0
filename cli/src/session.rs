//! What every command needs: the runtime, the stop flag, progress, storage options.

use std::{future::Future, sync::Arc};

use anyhow::Context as _;
use gristmill_shard::{Control, StopFlag, Storage, StorageOptions};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{args::Common, failure::Failure, progress};

/// Threads that wait for local disks at once. Each may keep a heap of its own.
const BLOCKING_THREADS: usize = 32;

/// One command under way.
pub struct Session {
    /// Flags of every command.
    pub common: Common,
    /// How jobs are run.
    pub control: Control,
    runtime: tokio::runtime::Runtime,
    storage: StorageOptions,
}

impl Session {
    /// Starts the runtime and listens for SIGINT and SIGTERM: the first asks the job to stop where it can go on from,
    /// the second ends the process at once.
    ///
    /// # Errors
    /// A `--storage` option without a value; a runtime or signal handler that can't be set up.
    pub fn start(common: Common) -> anyhow::Result<Self> {
        let control = Control {
            progress: progress::of(common.quiet || common.json),
            stop: StopFlag::new(),
            threads: common.threads.map_or_else(|| Control::default().threads, usize::from),
        };
        let flag = control.stop.shared();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .context("could not listen for signals")?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(control.threads)
            .max_blocking_threads(BLOCKING_THREADS)
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let mut storage = StorageOptions::new();
        for option in &common.storage {
            let (name, value) = option.split_once('=').ok_or_else(|| {
                Failure::usage(format!("--storage {option} has no value"), "write --storage name=value")
            })?;
            storage.insert(name.trim().to_owned(), value.to_owned());
        }
        Ok(Self { common, control, runtime, storage })
    }

    /// Runs a job to its end.
    pub fn block_on<T>(&self, job: impl Future<Output = T>) -> T {
        self.runtime.block_on(job)
    }

    /// The runtime, for jobs that are not async.
    pub fn handle(&self) -> tokio::runtime::Handle {
        self.runtime.handle().clone()
    }

    /// Opens a URL; the storage options of the command line apply to those that are not local.
    ///
    /// # Errors
    /// A URL or option that can't be used.
    pub fn open(&self, url: &str) -> anyhow::Result<Storage> {
        self.open_with(url, &StorageOptions::new())
    }

    /// Opens a URL with options of the configuration, over which those of the command line win.
    ///
    /// # Errors
    /// A URL or option that can't be used.
    pub fn open_with(&self, url: &str, configured: &StorageOptions) -> anyhow::Result<Storage> {
        if url.starts_with("memory:") {
            return Err(Failure::usage(
                format!("{url} is gone when this command ends"),
                "give a folder or an s3:// URL",
            ));
        }
        let mut options = configured.clone();
        if url.contains("://") && !url.starts_with("file://") {
            options.extend(self.storage.clone());
        }
        Ok(Storage::open(url, &options)?)
    }
}
