//! The loader: a plan, a rank's place, what batches hold, and how much memory that may take.

use std::sync::Arc;

use gristmill_shard::ShardSet;
use tokio::runtime::Handle;

use crate::{
    batches::{Batches, Itinerary},
    batching::options::Batching,
    block_cache::BlockCache,
    buffer_pool::BufferPool,
    error::{Error, Result},
    metrics::{Counters, LoaderMetrics},
    open_windows::open_windows,
    plan::{Plan, PlanOptions, Shuffle, Tail},
    records::RecordLayout,
    row_group_reader::RowGroupReader,
    slice::SliceRule,
    spec::BatchSpec,
    state::State,
    world::World,
};

/// Settings of a loader. Only `plan` decides the order of samples, and only `batch` their content; the others decide
/// who gets them and how fast.
#[derive(Debug, Clone, PartialEq)]
pub struct LoaderOptions {
    /// The plan.
    pub plan: PlanOptions,
    /// This rank's place.
    pub world: World,
    /// What a batch holds.
    pub batch: BatchSpec,
    /// Slots of a micro-batch at most, at least 1; `None` delivers a rank's part of a step as one batch.
    pub micro_batch: Option<usize>,
    /// Bytes for decoded row groups, batches that wait, and what is being read and decoded. It holds for one iteration
    /// at a time: two at once over one loader share what is in memory, but may each need windows of their own.
    pub memory_bytes: u64,
    /// Batches that may wait to be taken, at least 1.
    pub prefetch_batches: usize,
    /// Threads that decode and collate, at least 1.
    pub threads: usize,
    /// Row groups that are read at once, at least 1.
    pub fetches: usize,
}

impl LoaderOptions {
    /// One rank, 1 GiB, four batches ahead, a quarter of the CPUs (at least one), eight reads at once.
    #[must_use]
    pub fn new(plan: PlanOptions, batch: BatchSpec) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            plan,
            world: World::single(),
            batch,
            micro_batch: None,
            memory_bytes: 1 << 30,
            prefetch_batches: 4,
            threads: (cpus / 4).max(1),
            fetches: 8,
        }
    }
}

/// Delivers a rank's batches.
#[derive(Clone)]
pub struct DataLoader(Arc<Inner>);

/// What iterations share.
pub(crate) struct Inner {
    pub(crate) plan: Plan,
    pub(crate) options: LoaderOptions,
    pub(crate) rule: SliceRule,
    pub(crate) layout: Arc<RecordLayout>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) pool: BufferPool,
    pub(crate) counters: Arc<Counters>,
    pub(crate) runtime: Handle,
}

impl DataLoader {
    /// A loader over `shards`. Of the shards nothing is read before an iteration begins. Reading and decoding run on `runtime`, which
    /// must be running (a current-thread runtime is not, while its thread is elsewhere) and outlive the iterations.
    ///
    /// # Errors
    /// [`Error::Usage`] for a setting, column or split that can't be, [`Error::Memory`] when `memory_bytes` is too
    /// small for the shuffling that was asked for.
    pub async fn open(shards: ShardSet, options: LoaderOptions, runtime: Handle) -> Result<Self> {
        for (name, value) in [
            ("micro_batch", options.micro_batch.unwrap_or(1)),
            ("prefetch_batches", options.prefetch_batches),
            ("threads", options.threads),
            ("fetches", options.fetches),
        ] {
            if value == 0 {
                return Err(Error::usage(format!("{name} is 0"), "give 1 or more, or leave it out"));
            }
        }
        if options.plan.batching != Batching::Fixed || options.plan.mix.is_some() {
            return Err(Error::usage(
                "batches are read in steps of a fixed number of samples, of one source",
                "leave batching and mix out; the plan command shows such plans",
            ));
        }
        let plan = Plan::open(&shards, options.plan.clone()).await?;
        let schema = &shards.manifest().schema;
        let layout = Arc::new(RecordLayout::new(&options.batch, schema, shards.layout().resampled)?);
        let rule = SliceRule::new(&plan, &options.world);
        let needs = Needs::of(&plan, &rule, &layout, &options);
        let blocks = needs.check(&options)?;
        let counters = Arc::new(Counters::default());
        let table = Arc::clone(plan.table());
        let reader = Arc::new(RowGroupReader::new(
            shards,
            table,
            Arc::clone(&layout),
            options.fetches,
            options.threads,
            Arc::clone(&counters),
        ));
        let cache = Arc::new(BlockCache::new(reader, runtime.clone(), blocks, Arc::clone(&counters)));
        let pool = BufferPool::new(usize::try_from(needs.batches).unwrap_or(usize::MAX));
        Ok(Self(Arc::new(Inner { plan, options, rule, layout, cache, pool, counters, runtime })))
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &LoaderOptions {
        &self.0.options
    }

    /// Counters since the loader was made.
    #[must_use]
    pub fn metrics(&self) -> LoaderMetrics {
        self.0.counters.read()
    }

    /// The batches of `epoch`.
    ///
    /// # Errors
    /// As [`DataLoader::run`]; the beginning of an epoch is always a state of the loader's own plan.
    pub fn epoch(&self, epoch: u64) -> Result<Batches> {
        self.run(&self.0.plan.state(epoch, 0)?, epoch.saturating_add(1))
    }

    /// The batches from `state` to the end of its epoch.
    ///
    /// # Errors
    /// [`Error::OtherPlan`] when the state was saved under other settings, [`Error::State`] when it is damaged.
    pub fn resume(&self, state: &State) -> Result<Batches> {
        self.run(state, state.epoch.saturating_add(1))
    }

    /// The batches from `state` through all epochs below `until_epoch`, read ahead across their boundaries.
    ///
    /// # Errors
    /// As [`DataLoader::resume`].
    pub fn run(&self, state: &State, until_epoch: u64) -> Result<Batches> {
        state.check(&self.0.plan)?;
        Batches::start(Arc::clone(&self.0), Itinerary { epoch: state.epoch, index: state.index, until: until_epoch })
    }
}

impl std::fmt::Debug for DataLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataLoader").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl Inner {
    /// Slots of the largest part that a rank has of a batch of `samples` samples.
    pub(crate) fn slots(&self, samples: u64) -> u64 {
        largest_part(&self.options, samples)
    }

    /// Bytes of the records of `rows` rows.
    pub(crate) fn record_bytes(&self, rows: u64) -> u64 {
        rows.saturating_mul(self.layout.stride as u64)
    }
}

fn largest_part(options: &LoaderOptions, samples: u64) -> u64 {
    let samples = match options.plan.tail {
        Tail::PadMasked => options.plan.global_batch,
        Tail::Exact | Tail::Drop => samples,
    };
    samples.div_ceil(u64::from(options.world.world_size()))
}

/// Bytes that a loader needs.
struct Needs {
    /// Windows that are open at once.
    windows: u64,
    /// Batches that wait or are being made, and the one that the caller has.
    batches: u64,
    /// Row groups that are being read and decoded.
    reading: u64,
    lanes: usize,
}

impl Needs {
    fn of(plan: &Plan, rule: &SliceRule, layout: &RecordLayout, options: &LoaderOptions) -> Self {
        let table = plan.table();
        let open = open_windows(plan, rule, layout.stride as u64);
        let part = largest_part(options, options.plan.global_batch.min(plan.samples(0)));
        let slots = options.micro_batch.map_or(part, |micro| part.min(micro as u64)).max(1);
        let queued = (options.prefetch_batches + options.threads + 1) as u64;
        let blocks = || open.lanes.iter().filter_map(|lane| table.blocks(*lane)).flat_map(|blocks| blocks.iter());
        let count = blocks().count() as u64;
        let stored = blocks().map(|b| b.stored_bytes).max().unwrap_or(0);
        let decoded = blocks().map(|b| b.decoded_bytes).max().unwrap_or(0);
        Self {
            windows: open.bytes,
            batches: layout.batch_bytes(slots).saturating_mul(queued),
            reading: (stored.saturating_mul(count.min(options.fetches as u64)))
                .saturating_add(decoded.saturating_mul(count.min(options.threads as u64))),
            lanes: open.lanes_at_once,
        }
    }

    /// The bytes left for row groups in memory.
    fn check(&self, options: &LoaderOptions) -> Result<u64> {
        let others = self.batches.saturating_add(self.reading);
        let needed = self.windows.saturating_add(others);
        if needed > options.memory_bytes {
            let help = match options.plan.shuffle {
                _ if options.plan.curriculum.is_some() || options.plan.sampling.is_some() => {
                    "raise memory_bytes, leave the curriculum or sampling out, or use more ranks".to_owned()
                }
                Shuffle::Global => "raise memory_bytes, use shuffle = \"shard-block\", or more ranks".to_owned(),
                Shuffle::ShardBlock { window_blocks } if window_blocks > 1 => {
                    "raise memory_bytes, lower window_blocks, or use more ranks".to_owned()
                }
                _ => "raise memory_bytes, lower prefetch_batches, or use more ranks".to_owned(),
            };
            return Err(Error::Memory {
                needed,
                given: options.memory_bytes,
                breakdown: format!(
                    "{} for the shuffle windows of {} lanes, {} for batches ahead, {} for reading",
                    self.windows, self.lanes, self.batches, self.reading
                ),
                help,
            });
        }
        Ok(options.memory_bytes - others)
    }
}
