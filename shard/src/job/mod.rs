//! The shard job: counts, assigns, writes shards, publishes.
//!
//! 0. **prepare** finds quantiles and gathers groups, where they are asked for.
//! 1. **count** reads the columns that decide and counts, for each unit (a few row groups), the rows of each cell: a
//!    stratum, a weight bin, a part. Prefix sums over units give each row its rank.
//! 2. **assign** finds each row's destination from its rank. Where the rows fit in memory they stay there; else each unit
//!    is read whole and stored as one run, sorted by destination.
//! 3. **write** gathers the rows of each shard, permutes them by key, writes the file; then the sidecars.
//! 4. **publish** writes the tables and, last, the manifest.
//!
//! Every unit is a pure function of the input, the options and the seed, so the output bytes are the same for any number of
//! threads and processes, any memory and any restart.

mod append;
mod count;
mod layout;
mod options;
mod phase;
mod place;
mod plan;
mod prepare;
mod publish;
mod rows;
mod sidecars;
mod spill;
mod stream;
mod units;
mod write;

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, future::BoxFuture};
use tokio::sync::Semaphore;

pub use self::layout::layout_anew;
pub use self::options::{GroupScope, LANES_PER_NODE, RarePolicy, ShardOptions, Task};
pub use self::stream::shard_batches;
use self::{
    append::Appended,
    rows::Classes,
    units::Unit,
    write::{Memory, Rows},
};
use crate::{
    control::{Control, Unit as ProgressUnit, compute},
    error::{Error, ErrorKind, Result},
    input::Input,
    manifest::{Existing, Manifest, ManifestKind, existing, job_digest},
    storage::Storage,
    strata::KeySpec,
    work::Work,
};

/// Copies of a unit or a shard that are alive while it is worked on (decoded, sorted, encoded, and one to spare).
const COPIES: u64 = 4;
/// Bytes of a row, besides its columns, where all rows are held in memory: stratum, place, destination, and to spare.
const HELD_A_ROW: u64 = 24;

/// What a job did.
#[derive(Debug, Clone)]
pub struct ShardOutcome {
    /// The published manifest.
    pub manifest: Manifest,
    /// Whether it was there already, so that nothing was done.
    pub already_current: bool,
}

/// Shards the data set at `input` into `out`.
///
/// # Errors
/// [`Error::Usage`] for options that can't be met, [`Error::Conflict`] when `out` holds something else,
/// [`Error::Data`] when the input breaks a rule of the options or changes meanwhile, [`Error::Stopped`] when a stop was
/// asked for, storage errors.
pub async fn shard(input: &Storage, out: &Storage, options: &ShardOptions, control: &Control) -> Result<ShardOutcome> {
    options.check()?;
    let mut input = Input::open(input).await?;
    let spec = options.check_columns(&input.schema)?;
    out.prove_put_if_absent().await?;
    let parent = append::parent(out, options, &input).await?;
    let semantic = options.semantic();
    let digest = job_digest(ManifestKind::Shards, &semantic, &input.reference, parent.as_ref())?;
    let work = Work::new(out, &digest);
    if let Existing::Current(manifest) = existing(out, ManifestKind::Shards, &digest, options.append).await? {
        // A run that was killed after it had published may have left debris.
        work.clear().await?;
        publish::remove_unlisted(out, &manifest).await?;
        publish::write_report(out, &manifest).await?;
        return Ok(ShardOutcome { manifest: *manifest, already_current: true });
    }
    let appended = Appended::new(out, parent, &mut input, options).await?;
    let job = Job::new(Arc::new(input), out, options, control, work, appended)?;
    match job.run(spec, semantic, digest.clone()).await {
        Ok(manifest) => Ok(ShardOutcome { manifest, already_current: false }),
        Err(error) => job.overtaken(&digest, error).await,
    }
}

/// The input is not what it was when it was counted.
fn changed(url: &str) -> Error {
    Error::Data {
        url: url.to_owned(),
        what: "it changed while it was being sharded".into(),
        help: "run again when nothing writes to the input".into(),
    }
}

struct Job {
    input: Arc<Input>,
    out: Storage,
    options: ShardOptions,
    control: Control,
    work: Work,
    appended: Appended,
    units: Vec<Unit>,
    /// Whether all rows are held in memory.
    in_memory: bool,
    /// Whether units leave receipts, so that others see them.
    shared: bool,
    /// One permit a thread: more units may be in flight (reading, waiting for the disk) than are worked on.
    working: Semaphore,
}

impl Job {
    fn new(
        input: Arc<Input>,
        out: &Storage,
        options: &ShardOptions,
        control: &Control,
        work: Work,
        appended: Appended,
    ) -> Result<Self> {
        let mut units =
            units::units(&input, appended.first_file(), options.shard_bytes, options.memory_bytes / COPIES)?;
        let bytes: u64 = units.iter().map(Unit::decoded_bytes).sum();
        let rows: u64 = units.iter().map(Unit::rows).sum();
        let in_memory = options.task.is_none() && bytes + bytes / 2 + HELD_A_ROW * rows <= options.memory_bytes / 2;
        if in_memory {
            units = units.into_iter().flat_map(|u| u.groups).map(|g| Unit { groups: vec![g] }).collect();
        }
        Ok(Self {
            input,
            out: out.clone(),
            options: options.clone(),
            control: control.clone(),
            work,
            appended,
            units,
            in_memory,
            shared: !in_memory,
            working: Semaphore::new(control.threads.max(1)),
        })
    }

    async fn run(&self, spec: KeySpec, semantic: serde_json::Value, digest: String) -> Result<Manifest> {
        let spec = self.with_edges(spec).await?;
        let rule = self.part_rule(&spec).await?;
        let numbers = self.options.sidecar_columns().into_iter().map(|s| (s.column, s.option)).collect();
        let classes = Arc::new(Classes { spec, rule, weight: self.options.balance.clone(), numbers });
        let counted = Arc::new(self.count(&classes).await?);
        let plan = Arc::new(self.plan(&counted, &classes)?);
        let (rows, weights) = if self.in_memory {
            let (placed, weights) = self.place_loaded(&counted, &plan).await?;
            (Rows::Memory(Arc::new(Memory::new(self, &plan, &counted, placed))), weights)
        } else {
            let (runs, weights) = self.spill(&counted, &classes, &plan).await?;
            (Rows::Runs(runs), weights)
        };
        let written = self.write(&plan, &rows).await?;
        drop(rows);
        self.publish(&plan, &counted, &classes, written, &weights, semantic, digest).await
    }

    /// What became of a run that failed because another process published here first: its work was removed under it.
    /// The same job's output is as good as its own; another's is a conflict, and the files of this one go.
    async fn overtaken(&self, digest: &str, error: Error) -> Result<ShardOutcome> {
        if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Storage | ErrorKind::Corrupt)
        {
            return Err(error);
        }
        match existing(&self.out, ManifestKind::Shards, digest, self.options.append).await {
            Ok(Existing::Current(manifest)) => {
                self.work.clear().await?;
                Ok(ShardOutcome { manifest: *manifest, already_current: true })
            }
            Err(conflict @ Error::Conflict { .. }) => {
                if let Some(manifest) = Manifest::latest(&self.out).await? {
                    self.work.clear().await?;
                    publish::remove_unlisted(&self.out, &manifest).await?;
                }
                Err(conflict)
            }
            // A run that its receipt names is gone or damaged (runs are not synced): a rerun makes it again.
            Ok(Existing::Nothing) if self.work.holds(&error) => {
                self.work.clear().await?;
                Err(error)
            }
            _ => Err(error),
        }
    }

    /// Runs `work` on a thread for computing, at most as many at once as there are threads.
    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let _permit = self.working.acquire().await.map_err(|e| Error::internal(e.to_string()))?;
        compute(work).await
    }

    /// Rows of each unit.
    fn unit_rows(&self) -> Vec<u64> {
        self.units.iter().map(Unit::rows).collect()
    }

    fn input_rows(&self) -> u64 {
        self.units.iter().map(Unit::rows).sum()
    }

    fn decoded_bytes(&self) -> u64 {
        self.units.iter().map(Unit::decoded_bytes).sum()
    }

    /// Units or shards of `bytes` decoded that may be in work at once.
    fn at_once(&self, bytes: u64, per_thread: usize) -> usize {
        let memory = if self.in_memory { self.options.memory_bytes / 2 } else { self.options.memory_bytes };
        let fit = usize::try_from(memory / (COPIES * bytes.max(1))).unwrap_or(usize::MAX);
        fit.min(self.control.threads.saturating_mul(per_thread)).max(1)
    }

    fn units_at_once(&self) -> usize {
        self.at_once(self.units.iter().map(Unit::decoded_bytes).max().unwrap_or(1), 1)
    }

    /// As [`Job::phase`], where results can't leave this process.
    async fn phase_local<T, W>(
        &self,
        stage: &str,
        amounts: &[u64],
        at_once: usize,
        work: impl Fn(usize) -> W + Sync,
    ) -> Result<Vec<T>>
    where
        T: Send,
        W: Future<Output = Result<T>> + Send,
    {
        self.control.progress.start(stage, amounts.iter().sum(), ProgressUnit::Rows);
        let work = &work;
        // Boxed: the compiler can't see that a stream of unnamed futures over references is Send.
        let units = (0..amounts.len()).map(|unit| -> BoxFuture<'_, Result<T>> {
            Box::pin(async move {
                self.control.stop.check()?;
                let result = work(unit).await?;
                self.control.progress.advance(amounts.get(unit).copied().unwrap_or(0));
                Ok(result)
            })
        });
        let results = futures::stream::iter(units).buffered(at_once.max(1)).try_collect().await?;
        self.control.progress.finish();
        Ok(results)
    }
}
