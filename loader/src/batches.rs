//! An iteration over batches: a driver task walks the plan, opens windows as memory allows, and has batches collated
//! in the background, in order.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    ops::Range,
    sync::Arc,
    time::Instant,
};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc, oneshot},
    task::AbortHandle,
};

use crate::{
    collate::collate,
    error::{Error, Result},
    loader::Inner,
    metrics::{add, add_since},
    order::LaneOrder,
    plan::Tail,
    row_group_reader::BlockKey,
    slice::LaneRun,
    tensor::HostBatch,
    window::{Part, Window, cut},
};

/// Steps that the read-ahead looks at for each step that is delivered.
const AHEAD_STEPS: usize = 64;

/// Where an iteration begins and ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Itinerary {
    pub(crate) epoch: u64,
    pub(crate) index: u64,
    /// First epoch that is not delivered.
    pub(crate) until: u64,
}

/// A rank's batches, in order. Dropping it stops the work behind it.
pub struct Batches {
    inner: Arc<Inner>,
    queue: mpsc::Receiver<oneshot::Receiver<Result<HostBatch>>>,
    /// Micro-batches that are still to come.
    left: u64,
    failed: bool,
    driver: AbortHandle,
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches").field("left", &self.left).field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Batches {
    pub(crate) fn start(inner: Arc<Inner>, itinerary: Itinerary) -> Result<Self> {
        let left = inner.micro_batches(itinerary)?;
        let (sender, queue) = mpsc::channel(inner.options.prefetch_batches.max(1));
        let driver = Driver {
            steps: Steps::new(Arc::clone(&inner), itinerary),
            ahead: Steps::new(Arc::clone(&inner), itinerary),
            pending: Vec::new(),
            open: HashMap::new(),
            dead_at: BinaryHeap::new(),
            orders: BTreeMap::new(),
            workers: Arc::new(Semaphore::new(inner.options.threads.max(1))),
            inner: Arc::clone(&inner),
            sender,
        };
        let driver = inner.runtime.spawn(driver.run()).abort_handle();
        Ok(Self { inner, queue, left, failed: false, driver })
    }

    /// Micro-batches that are still to come; the same on every rank.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next micro-batch; `None` after the last.
    ///
    /// # Errors
    /// What failed behind it: storage, a corrupt row group, a value that the specification refuses. The iteration is
    /// over then; another may begin at the last state.
    pub async fn next(&mut self) -> Result<Option<HostBatch>> {
        if self.over()? {
            return Ok(None);
        }
        let start = Instant::now();
        let batch = match self.queue.recv().await {
            Some(batch) => batch.await.ok(),
            None => None,
        };
        self.taken(start, batch)
    }

    /// [`Batches::next`] for threads that run no async tasks.
    ///
    /// # Errors
    /// As [`Batches::next`]; [`Error::BlockingInAsync`] on a thread of a tokio runtime, which it would stall.
    pub fn next_blocking(&mut self) -> Result<Option<HostBatch>> {
        if Handle::try_current().is_ok() {
            return Err(Error::BlockingInAsync);
        }
        if self.over()? {
            return Ok(None);
        }
        let start = Instant::now();
        let batch = self.queue.blocking_recv().and_then(|batch| batch.blocking_recv().ok());
        self.taken(start, batch)
    }

    fn over(&self) -> Result<bool> {
        if self.failed {
            return Err(Error::usage("this iteration has failed before", "begin another at the last batch's state"));
        }
        Ok(self.left == 0)
    }

    fn taken(&mut self, start: Instant, batch: Option<Result<HostBatch>>) -> Result<Option<HostBatch>> {
        add_since(&self.inner.counters.wait, start);
        match batch {
            Some(Ok(batch)) => {
                self.left -= 1;
                add(&self.inner.counters.batches, 1);
                add(&self.inner.counters.rows, batch.rows as u64);
                Ok(Some(batch))
            }
            Some(Err(e)) => {
                self.failed = true;
                Err(e)
            }
            None => {
                self.failed = true;
                Err(Error::internal("the loader's work ended early (a worker panicked, or the runtime was shut down)"))
            }
        }
    }
}

impl Inner {
    /// Micro-batches of a step of `samples` samples.
    fn micros(&self, samples: u64) -> u64 {
        match self.options.micro_batch {
            Some(micro) => self.slots(samples).div_ceil(micro as u64).max(1),
            None => 1,
        }
    }

    /// Micro-batches of `itinerary`.
    fn micro_batches(&self, itinerary: Itinerary) -> Result<u64> {
        let global_batch = self.plan.options().global_batch;
        let of_epoch = |epoch: u64, index: u64| {
            let steps = self.plan.steps_from(epoch, index)?;
            let Some(full) = steps.checked_sub(1) else { return Ok(0) };
            let last = self.plan.batch_at(epoch, index + full * global_batch)?;
            Ok(full * self.micros(global_batch) + self.micros(last.end - last.start))
        };
        let Some(more) = itinerary.until.checked_sub(itinerary.epoch).and_then(|n| n.checked_sub(1)) else {
            return Ok(0);
        };
        let now: u64 = of_epoch(itinerary.epoch, itinerary.index)?;
        // Where there is one source all epochs are as long.
        let later: Result<u64> = of_epoch(itinerary.epoch.saturating_add(1), 0);
        Ok(now.saturating_add(later?.saturating_mul(more)))
    }
}

/// The steps of an itinerary.
struct Steps {
    inner: Arc<Inner>,
    itinerary: Itinerary,
}

#[derive(Debug, Clone)]
struct Step {
    epoch: u64,
    range: Range<u64>,
    runs: Vec<LaneRun>,
}

impl Steps {
    fn new(inner: Arc<Inner>, itinerary: Itinerary) -> Self {
        Self { inner, itinerary }
    }

    fn next(&mut self) -> Result<Option<Step>> {
        let plan = &self.inner.plan;
        let at = &mut self.itinerary;
        while at.epoch < at.until && plan.steps_from(at.epoch, at.index)? == 0 {
            at.epoch += 1;
            at.index = 0;
            if plan.steps(at.epoch)? == 0 {
                return Ok(None);
            }
        }
        if at.epoch >= at.until {
            return Ok(None);
        }
        let range = plan.batch_at(at.epoch, at.index)?;
        at.index = range.end;
        Ok(Some(Step { epoch: at.epoch, runs: self.inner.rule.slice(plan, at.epoch, &range), range }))
    }
}

/// A window by epoch, lane and number.
type WindowKey = (u64, u32, u64);

struct Driver {
    inner: Arc<Inner>,
    steps: Steps,
    /// Runs in front of `steps`, to open windows before they are needed.
    ahead: Steps,
    /// Windows that `ahead` has come to and memory had no room for, in reverse order.
    pending: Vec<WindowKey>,
    open: HashMap<WindowKey, Arc<Window>>,
    /// Open windows by the (epoch, index) of their last sample: once a step begins after it, no step needs them.
    dead_at: BinaryHeap<Reverse<(u64, u64, WindowKey)>>,
    orders: BTreeMap<(u64, u32), Arc<LaneOrder>>,
    workers: Arc<Semaphore>,
    sender: mpsc::Sender<oneshot::Receiver<Result<HostBatch>>>,
}

impl Driver {
    async fn run(mut self) {
        if let Err(e) = self.drive().await {
            let (result, batch) = oneshot::channel();
            // A receiver that is gone has no use for the error.
            let _ = result.send(Err(e));
            let _ = self.sender.send(batch).await;
        }
    }

    /// Walks the steps; ends early, without an error, when nobody takes the batches any more.
    async fn drive(&mut self) -> Result<()> {
        while let Some(step) = self.steps.next()? {
            self.close_before(&step);
            let parts = self.parts(&step)?;
            self.read_ahead(&step)?;
            for part in &parts {
                part.window.ready().await?;
            }
            let rows: u64 = parts.iter().map(Part::rows).sum();
            let samples = step.range.end - step.range.start;
            let micros = self.inner.micros(samples);
            let most = self.inner.slots(samples);
            let micro_batch = self.inner.options.micro_batch.map_or(most, |m| m as u64).max(1);
            for micro in 0..micros {
                let first = micro * micro_batch;
                let taken = first.min(rows)..(first + micro_batch).min(rows);
                let slots = match self.inner.options.plan.tail {
                    Tail::PadMasked => micro_batch.min(most - first),
                    Tail::Exact | Tail::Drop => taken.end - taken.start,
                };
                let job = Job {
                    inner: Arc::clone(&self.inner),
                    parts: cut(&parts, taken.clone()),
                    epoch: step.epoch,
                    range: step.range.clone(),
                    micro: micro as u32,
                    micros: micros as u32,
                    rows: (taken.end - taken.start) as usize,
                    slots: slots.max(1) as usize,
                };
                if !self.submit(job).await? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Has a batch collated; `false` when nobody takes batches any more.
    async fn submit(&self, job: Job) -> Result<bool> {
        let Ok(place) = self.sender.reserve().await else { return Ok(false) };
        let worker = Arc::clone(&self.workers).acquire_owned().await;
        let worker = worker.map_err(|_| Error::internal("the loader's workers are closed"))?;
        let (result, batch) = oneshot::channel();
        place.send(batch);
        self.inner.runtime.spawn_blocking(move || {
            let batch = job.run();
            drop(worker);
            // A receiver that is gone has no use for the batch.
            let _ = result.send(batch);
        });
        Ok(true)
    }

    /// Closes the windows that neither `step` nor a later one needs.
    fn close_before(&mut self, step: &Step) {
        while let Some(Reverse((epoch, last, key))) = self.dead_at.peek().copied() {
            if (epoch, last) >= (step.epoch, step.range.start) {
                break;
            }
            self.dead_at.pop();
            self.open.remove(&key);
        }
        while let Some(entry) = self.orders.first_entry().filter(|entry| entry.key().0 < step.epoch) {
            entry.remove();
        }
    }

    fn order(&mut self, epoch: u64, lane: u32) -> Result<Arc<LaneOrder>> {
        if let Some(order) = self.orders.get(&(epoch, lane)) {
            return Ok(Arc::clone(order));
        }
        let order = Arc::new(self.inner.plan.lane_order(0, epoch, lane)?);
        self.orders.insert((epoch, lane), Arc::clone(&order));
        Ok(order)
    }

    /// The step's samples by window; opens the windows that are not.
    fn parts(&mut self, step: &Step) -> Result<Vec<Part>> {
        let mut parts = Vec::with_capacity(step.runs.len());
        for run in &step.runs {
            let order = self.order(step.epoch, run.lane)?;
            let mut start = run.ordinals.start;
            for window in order.window_of(start)..order.windows() {
                if start >= run.ordinals.end {
                    break;
                }
                let end = order.window_range(window).end.min(run.ordinals.end);
                // A filter may leave nothing of a window.
                if start >= end {
                    continue;
                }
                let window = self.window((step.epoch, run.lane, window), &order);
                parts.push(Part { window, ordinals: start..end });
                start = end;
            }
        }
        Ok(parts)
    }

    fn window(&mut self, key: WindowKey, order: &Arc<LaneOrder>) -> Arc<Window> {
        if let Some(window) = self.open.get(&key) {
            return Arc::clone(window);
        }
        let (epoch, lane, index) = key;
        let pins = self.blocks(lane, index, order).map(|(block, bytes)| self.inner.cache.pin(block, bytes)).collect();
        let window = Arc::new(Window::new(Arc::clone(order), index, pins));
        self.dead_at.push(Reverse((epoch, self.last_index(lane, index, order), key)));
        self.open.insert(key, Arc::clone(&window));
        window
    }

    /// The row groups of a window, with the bytes of their records.
    fn blocks<'a>(&'a self, lane: u32, index: u64, order: &'a LaneOrder) -> impl Iterator<Item = (BlockKey, u64)> + 'a {
        let blocks = self.inner.plan.table().blocks(lane);
        order.window_blocks(index).filter_map(move |block| {
            let rows = blocks?.get(block)?.rows;
            Some((BlockKey { lane, block }, self.inner.record_bytes(rows)))
        })
    }

    /// Opens windows of later steps, nearest first, while the budget has room for them; at most one epoch ahead, and
    /// looking at a bounded number of steps each time, so that no batch waits for the look-out.
    fn read_ahead(&mut self, step: &Step) -> Result<()> {
        for _ in 0..AHEAD_STEPS {
            while let Some(key) = self.pending.last().copied() {
                let (epoch, lane, index) = key;
                let order = self.order(epoch, lane)?;
                let over = (epoch, self.last_index(lane, index, &order)) < (step.epoch, step.range.start);
                if !over && !self.open.contains_key(&key) {
                    if !self.inner.cache.has_room(self.blocks(lane, index, &order)) {
                        return Ok(());
                    }
                    self.window(key, &order);
                }
                self.pending.pop();
            }
            let (now, ahead) = (self.steps.itinerary, self.ahead.itinerary);
            if (ahead.epoch, ahead.index) < (now.epoch, now.index) {
                self.ahead.itinerary = now;
            }
            if self.ahead.itinerary.epoch > step.epoch.saturating_add(1) {
                return Ok(());
            }
            let Some(later) = self.ahead.next()? else { return Ok(()) };
            for run in later.runs.iter().rev() {
                let order = self.order(later.epoch, run.lane)?;
                let (first, last) = (order.window_of(run.ordinals.start), order.window_of(run.ordinals.end - 1));
                self.pending.extend((first..=last).rev().map(|window| (later.epoch, run.lane, window)));
            }
        }
        Ok(())
    }

    /// Index in its epoch of the last sample of a window.
    fn last_index(&self, lane: u32, index: u64, order: &LaneOrder) -> u64 {
        let last = order.window_range(index).end.saturating_sub(1);
        self.inner.plan.interleave().index(lane, last)
    }
}

/// A batch to be collated.
struct Job {
    inner: Arc<Inner>,
    parts: Vec<Part>,
    epoch: u64,
    range: Range<u64>,
    micro: u32,
    micros: u32,
    rows: usize,
    slots: usize,
}

impl Job {
    fn run(self) -> Result<HostBatch> {
        let start = Instant::now();
        let tensors = collate(&self.inner.layout, &self.inner.pool, &self.parts, self.slots)?;
        // A step that was not finished is done again as a whole, so the state moves with its last micro-batch.
        let index = if self.micro + 1 == self.micros { self.range.end } else { self.range.start };
        let state = self.inner.plan.state(self.epoch, index)?;
        add_since(&self.inner.counters.collate, start);
        Ok(HostBatch {
            tensors,
            epoch: self.epoch,
            range: self.range,
            micro: self.micro,
            micros: self.micros,
            rows: self.rows,
            slots: self.slots,
            state,
        })
    }
}
