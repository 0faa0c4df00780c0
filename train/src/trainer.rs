//! The training loop: steps, epochs, checkpoints, and going on from them.

use std::time::{Duration, Instant};

use gristmill_c10d::{Reducer, ReducerOptions, Rendezvous, World, runtime as torch};
use gristmill_shard::{
    Storage, StorageOptions,
    control::{Control, Unit},
};
use serde::{Deserialize, Serialize};
use tch::Tensor;
use tokio::runtime::Handle;

use crate::{
    batch::{BatchSource, PlanSummary, Sources},
    checkpoint::{
        CHECKPOINT_VERSION, CheckpointManifest, Conditions, DataFile, EpochProgress, RunFolder, auc_from_bytes,
        auc_to_bytes, read_into, to_safetensors,
    },
    config::{ModelKind, TrainConfig},
    error::{Error, Result},
    evaluate::{evaluate, finish_scores, merge_auc},
    finish::finish_run,
    metrics::{AucState, ClassificationState},
    model::{Model, Pass, Tabular},
    optimizer::{AdamW, clip_by_global_norm},
    ranks::{Fact, Ranks},
    report::{EpochScores, LogLine, Speed, TrainReport},
    shard_source::ShardSources,
    step::accumulate_gradients,
};

/// How a call of [`train`] ended well.
#[derive(Debug, Clone, PartialEq)]
pub enum TrainOutcome {
    /// The run is done.
    Finished(TrainReport),
    /// It had been done before; nothing was done.
    AlreadyCurrent(TrainReport),
}

/// Where a run reads and writes.
#[derive(Debug, Clone)]
pub struct Places {
    /// The shard set.
    pub shards: Storage,
    /// The run folder.
    pub run: Storage,
}

impl Places {
    /// The places that `config` names, opened without storage options.
    ///
    /// # Errors
    /// [`Error::Shard`] for a URL that can't be used.
    pub fn open(config: &TrainConfig) -> Result<Self> {
        let none = StorageOptions::new();
        Ok(Self {
            shards: Storage::open(&config.data.shards, &none)?,
            run: Storage::open(&config.checkpoint.url, &none)?,
        })
    }
}

/// Trains the model that `config` describes, as one of the ranks of `rendezvous` or alone. Called again after it was
/// stopped or killed, it goes on from the newest checkpoint; called again after it was done, it does nothing.
///
/// It blocks, so call it on a thread of its own, not in an async task; `runtime` must be multi-threaded and outlive the
/// call. It sets libtorch's thread count, which is the whole process's.
///
/// # Errors
/// [`Error::Stopped`] after `control.stop`, once all is saved; [`Error::Usage`] and [`Error::Conflict`] before anything
/// is done; [`Error::Group`] and [`Error::Reported`] when another rank failed; [`Error::Diverged`]; storage errors.
pub fn train(
    config: &TrainConfig,
    rendezvous: Option<Rendezvous>,
    control: &Control,
    runtime: Handle,
) -> Result<TrainOutcome> {
    config.check_values()?;
    train_at(config, Places::open(config)?, rendezvous, control, runtime)
}

/// [`train`] in places that are open already (with storage options, say).
///
/// # Errors
/// As [`train`].
pub fn train_at(
    config: &TrainConfig,
    places: Places,
    rendezvous: Option<Rendezvous>,
    control: &Control,
    runtime: Handle,
) -> Result<TrainOutcome> {
    config.check_values()?;
    let folder = RunFolder::new(places.run, runtime.clone(), config.checkpoint.keep)?;
    let local = rendezvous.as_ref().map_or(1, |r| r.world.local_world_size);
    let threads = Threads::for_rank(config.threads, local);
    // Before the ranks meet: a mistake in the configuration is told at once.
    let sources = ShardSources::open(config, places.shards, threads.loader, runtime)?;
    let ranks = Ranks::join(rendezvous.as_ref(), Duration::from_secs(config.timeout_s))?;
    let job = Job { config, sources: &sources, folder: &folder, ranks: &ranks, control, threads: threads.torch };
    job.run()
}

/// Finds the mistakes in configuration and data that each of `ranks` ranks of one machine would meet, before any is
/// started: told once instead of by every rank. Nothing is written. It blocks, as [`train`] does.
///
/// # Errors
/// As [`train`], before anything is done.
pub fn check_at(config: &TrainConfig, shards: Storage, ranks: usize, runtime: Handle) -> Result<()> {
    config.check_values()?;
    let threads = Threads::for_rank(config.threads, ranks);
    let sources = ShardSources::open(config, shards, threads.loader, runtime)?;
    let world = World { rank: 0, world_size: ranks, local_rank: 0, local_world_size: ranks };
    sources.train(world).map(drop)
}

/// How the CPUs of a rank are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Threads {
    torch: usize,
    loader: usize,
}

impl Threads {
    fn for_rank(given: Option<usize>, local_world_size: usize) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of(cpus, given, local_world_size)
    }

    fn of(cpus: usize, given: Option<usize>, local_world_size: usize) -> Self {
        let mine = (cpus / local_world_size.max(1)).max(1);
        let loader = (mine / 4).max(1);
        Self { torch: given.unwrap_or_else(|| mine.saturating_sub(loader).max(1)), loader }
    }
}

/// One training run on one rank.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Settings.
    pub config: &'a TrainConfig,
    /// Data.
    pub sources: &'a dyn Sources,
    /// Where the run is kept; rank 0 alone uses it.
    pub folder: &'a RunFolder,
    /// The ranks.
    pub ranks: &'a Ranks,
    /// Progress and stop request.
    pub control: &'a Control,
    /// Threads of libtorch, at least 1.
    pub threads: usize,
}

/// What rank 0 found in the run folder.
#[derive(Debug, Serialize, Deserialize)]
enum Opening {
    Fresh,
    Resume(Box<CheckpointManifest>),
    Current(Box<TrainReport>),
}

/// Where the run is.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) step: u64,
    pub(crate) epoch: u64,
    pub(crate) epoch_step: u64,
    loader_state: serde_json::Value,
    progress: EpochProgress,
    auc: AucState,
    pub(crate) history: Vec<EpochScores>,
    log: Vec<u8>,
    pub(crate) speed: Speed,
}

impl Job<'_> {
    /// Trains; see [`train`].
    ///
    /// # Errors
    /// As [`train`].
    pub fn run(&self) -> Result<TrainOutcome> {
        let result = self.run_inner();
        if let Err(error) = &result {
            self.ranks.report_failure(error);
        }
        result
    }

    fn run_inner(&self) -> Result<TrainOutcome> {
        let (config, ranks) = (self.config, self.ranks);
        config.check_values()?;
        let runtime = |source| Error::Group { during: "setting up libtorch".to_owned(), reported: None, source };
        torch::set_num_threads(self.threads).map_err(runtime)?;
        torch::set_deterministic_algorithms(config.deterministic).map_err(runtime)?;
        let conditions = Conditions {
            gristmill: env!("CARGO_PKG_VERSION").to_owned(),
            libtorch: torch::torch_version().map_err(runtime)?,
            cpu_capability: torch::cpu_capability().map_err(runtime)?,
            threads: self.threads as u64,
            world_size: ranks.size() as u64,
            micro_batch: config.micro_batch,
        };

        let config_digest = config.semantic_digest(&self.sources.digest());
        let mut source = self.sources.train(ranks.world())?;
        let plan = source.plan()?;
        self.check_ranks(&config_digest, &plan, &conditions)?;
        if plan.steps == 0 {
            return Err(Error::no_rows(&config.data.train, &config.data.shards));
        }

        let mut files = None;
        let opening = ranks.on_first("opening the run folder", || {
            self.folder.claim(config, &config_digest)?;
            if let Some(report) = self.folder.finished(&config_digest, &config.report_digest())? {
                return Ok(Opening::Current(Box::new(report)));
            }
            Ok(match self.folder.newest(&config_digest)? {
                None => Opening::Fresh,
                Some(loaded) => {
                    files = Some(loaded.files);
                    Opening::Resume(Box::new(loaded.manifest))
                }
            })
        })?;

        let model: Box<dyn Model> = match config.model.kind {
            ModelKind::Tabular => Box::new(Tabular::new(&config.model, self.sources.features(), config.seed)?),
        };
        let mut optimizer = AdamW::new(&config.optimizer, model.parameters())?;
        let mut state = match opening {
            Opening::Current(report) => return Ok(TrainOutcome::AlreadyCurrent(*report)),
            Opening::Fresh => State {
                step: 0,
                epoch: 0,
                epoch_step: 0,
                loader_state: serde_json::Value::Null,
                progress: EpochProgress::default(),
                auc: AucState::for_rows(plan.samples),
                history: Vec::new(),
                log: Vec::new(),
                speed: Speed::default(),
            },
            Opening::Resume(manifest) => {
                let mut files = files.unwrap_or_default();
                let mut file = |role: &str| files.remove(role).map(|b| b.to_vec()).unwrap_or_default();
                self.restore(*manifest, &plan, &conditions, model.as_ref(), &mut optimizer, &mut file)?
            }
        };
        self.check_parameters(model.as_ref())?;
        self.epochs(&conditions, source.as_mut(), &plan, model.as_ref(), &mut optimizer, &mut state)?;
        drop(source);
        finish_run(self, model.as_ref(), &state, &config_digest).map(TrainOutcome::Finished)
    }

    fn check_ranks(&self, config_digest: &str, plan: &PlanSummary, conditions: &Conditions) -> Result<()> {
        let same_config = "start every rank with the same configuration and data";
        let micro = self.config.micro_batch.map_or_else(|| "unset".to_owned(), |m| m.to_string());
        let every = format!("{:?} {}", self.config.checkpoint.every_steps, self.config.log_every_steps);
        self.ranks.agree(&[
            Fact {
                what: "the version of gristmill",
                value: conditions.gristmill.clone(),
                help: "install the same everywhere",
            },
            Fact {
                what: "the version of libtorch",
                value: conditions.libtorch.clone(),
                help: "install the same everywhere",
            },
            Fact { what: "the configuration or data", value: config_digest.to_owned(), help: same_config },
            Fact { what: "the evaluation settings", value: self.config.report_digest(), help: same_config },
            Fact { what: "micro_batch", value: micro, help: same_config },
            Fact { what: "the checkpoint or log interval", value: every, help: same_config },
            Fact { what: "the plan of the epoch", value: plan.fingerprint.clone(), help: same_config },
            Fact { what: "the number of steps", value: plan.steps.to_string(), help: same_config },
        ])
    }

    fn check_parameters(&self, model: &dyn Model) -> Result<()> {
        let bytes = to_safetensors(&named(model))?;
        self.ranks.agree(&[Fact {
            what: "the digest of the initial parameters",
            value: blake3::hash(&bytes).to_hex().to_string(),
            help: "this is a defect, or one machine computes wrongly; please report it",
        }])
    }

    /// Puts model, optimizer and state to where a checkpoint left them. `file` gives a file's content on rank 0, which
    /// every rank gets from there: others need not reach the run folder.
    fn restore(
        &self,
        manifest: CheckpointManifest,
        plan: &PlanSummary,
        conditions: &Conditions,
        model: &dyn Model,
        optimizer: &mut AdamW,
        file: &mut dyn FnMut(&str) -> Vec<u8>,
    ) -> Result<State> {
        let url = format!("{} (step {})", self.folder.url(), manifest.step);
        if manifest.plan_fingerprint != plan.fingerprint {
            return Err(Error::Conflict {
                url: self.folder.url(),
                what: "a run over another order of the same data".to_owned(),
                help: "give another checkpoint.url, or remove that folder first".to_owned(),
            });
        }
        let differences = manifest.conditions.differences(conditions);
        if !differences.is_empty() {
            let differences = differences.join(", ");
            if self.config.deterministic {
                return Err(Error::Conflict {
                    url,
                    what: format!("a checkpoint made under other conditions ({differences})"),
                    help:
                        "go on under the same conditions, or set deterministic = false to accept rounding differences"
                            .to_owned(),
                });
            }
            if self.ranks.is_first() {
                tracing::warn!("going on from {url} under other conditions: {differences}; results equal to rounding");
            }
        }
        let parameters = self.ranks.broadcast("sending the parameters", file("parameters"))?;
        read_into(&parameters, &url, &named(model))?;
        let moments = self.ranks.broadcast("sending the optimizer's state", file("optimizer"))?;
        read_into(&moments, &url, &optimizer.state(model.parameters()))?;
        optimizer.set_steps(manifest.step);
        let mut state = State {
            step: manifest.step,
            epoch: manifest.epoch,
            epoch_step: manifest.epoch_step,
            loader_state: manifest.loader_state,
            progress: manifest.progress,
            auc: AucState::for_rows(plan.samples),
            history: manifest.history,
            log: Vec::new(),
            speed: Speed::default(),
        };
        let log = file("log");
        self.ranks.on_first("rolling back the log", || self.folder.roll_back_log(&log))?;
        if self.ranks.is_first() {
            state.log = log;
            if state.epoch_step > 0 {
                state.auc = auc_from_bytes(&file("scores"), &url)?;
            }
            tracing::info!(
                "going on from step {} (epoch {}, step {} of it)",
                state.step,
                state.epoch,
                state.epoch_step
            );
        }
        Ok(state)
    }

    fn epochs(
        &self,
        conditions: &Conditions,
        source: &mut dyn BatchSource,
        plan: &PlanSummary,
        model: &dyn Model,
        optimizer: &mut AdamW,
        state: &mut State,
    ) -> Result<()> {
        let config = self.config;
        let parameters: Vec<Tensor> = model.parameters().iter().map(|p| p.tensor.shallow_clone()).collect();
        let mut reducer = Reducer::new(&parameters, self.ranks.group(), ReducerOptions::default())
            .map_err(|e| self.ranks.failed("preparing the gradients' reduction", e))?;
        let mut validation = None;
        while state.epoch < config.epochs {
            let epoch = state.epoch;
            if state.epoch_step == 0 {
                source.start(epoch)?;
            } else if state.epoch_step < plan.steps {
                source.restore(&state.loader_state)?;
            }
            let progress = self.ranks.is_first().then_some(&self.control.progress);
            if let Some(p) = progress {
                p.start(&format!("train epoch {}/{}", epoch + 1, config.epochs), plan.samples, Unit::Rows);
                p.advance(state.progress.rows);
            }
            let mut stop = false;
            while state.epoch_step < plan.steps && !stop {
                let (rows, asked) = self.step(source, plan, model, &mut reducer, optimizer, state)?;
                stop = asked;
                if let Some(p) = progress {
                    p.advance(rows);
                }
                let due = config.checkpoint.every_steps.is_some_and(|n| state.step.is_multiple_of(n));
                if stop || (due && state.epoch_step < plan.steps) {
                    self.save(conditions, plan, model, optimizer, state)?;
                }
            }
            if let Some(p) = progress {
                p.finish();
            }
            if stop {
                return Err(Error::Stopped { step: state.step });
            }
            self.end_epoch(plan, model, state, &mut validation)?;
            self.save(conditions, plan, model, optimizer, state)?;
        }
        Ok(())
    }

    /// One optimizer step. Returns the samples of the global batch, and whether any rank was asked to stop.
    fn step(
        &self,
        source: &mut dyn BatchSource,
        plan: &PlanSummary,
        model: &dyn Model,
        reducer: &mut Reducer,
        optimizer: &mut AdamW,
        state: &mut State,
    ) -> Result<(u64, bool)> {
        let (config, ranks, epoch) = (self.config, self.ranks, state.epoch);
        let began = Instant::now();
        let batch = source
            .next()?
            .ok_or_else(|| Error::internal(format!("epoch {epoch} ended before step {}", state.epoch_step + 1)))?;
        let waited = began.elapsed();

        let pass = Pass::Train { seed: config.seed, step: state.step };
        // This rank's part; the state keeps the sums over all ranks, so that a resume is independent of the ranks.
        let mut scores = ClassificationState {
            loss_sum: 0.0,
            rows: 0,
            correct: 0,
            auc: std::mem::replace(&mut state.auc, AucState::exact()),
        };
        let local = accumulate_gradients(model, reducer, ranks, &batch, config.micro_batch, pass, &mut scores)?;
        state.auc = scores.auc;
        let stop = if self.control.stop.is_set() { 1.0 } else { 0.0 };
        // Counts of rows are below 2^53, so their sums are exact.
        let sums = [local.loss, local.rows as f64, local.correct as f64, stop];
        let sums = ranks.sum_f64("summing the figures of a step", &sums)?;
        let &[loss_sum, rows, correct, stop] = sums.as_slice() else {
            return Err(Error::internal("sums of a step are missing"));
        };
        let (rows, correct) = (rows as u64, correct as u64);
        if rows != batch.global_rows {
            return Err(Error::internal(format!(
                "step {} of epoch {epoch} delivered {rows} samples, its global batch has {}",
                state.epoch_step + 1,
                batch.global_rows
            )));
        }
        if !loss_sum.is_finite() {
            return Err(Error::Diverged { epoch, step: state.step + 1, loss: loss_sum });
        }
        let gradient_norm = match config.optimizer.clip_norm {
            Some(max) => Some(clip_by_global_norm(model.parameters(), max)?),
            None => None,
        };
        let total = plan.steps.saturating_mul(config.epochs);
        let lr = config.optimizer.lr * config.schedule.factor(state.step, total);
        optimizer.step(model.parameters(), lr)?;

        state.step += 1;
        state.epoch_step += 1;
        state.loader_state = batch.state;
        state.progress.loss_sum += loss_sum;
        state.progress.rows += rows;
        state.progress.correct += correct;
        state.speed.steps += 1;
        state.speed.samples += rows;
        state.speed.seconds += began.elapsed().as_secs_f64();
        state.speed.wait_seconds += waited.as_secs_f64();
        if state.step.is_multiple_of(config.log_every_steps) {
            let loss = loss_sum / rows.max(1) as f64;
            self.log(state, &LogLine::Step { epoch, step: state.step, samples: rows, loss, lr, gradient_norm })?;
        }
        Ok((rows, stop > 0.0))
    }

    fn end_epoch(
        &self,
        plan: &PlanSummary,
        model: &dyn Model,
        state: &mut State,
        validation: &mut Option<Box<dyn BatchSource>>,
    ) -> Result<()> {
        let (config, ranks) = (self.config, self.ranks);
        let auc = std::mem::replace(&mut state.auc, AucState::for_rows(plan.samples));
        let train = finish_scores(state.progress, auc, ranks, "scoring the epoch", plan.samples)?;
        let mut scores = vec![(config.data.train.clone(), train)];
        let last = state.epoch + 1 == config.epochs;
        if let (Some(split), _) = self.sources.evaluation_splits()
            && (last || (state.epoch + 1).is_multiple_of(config.evaluate.every_epochs))
        {
            let source = match validation {
                Some(source) => source,
                None => validation.insert(self.sources.scan(&split, crate::batch::Columns::Model, ranks.world())?),
            };
            scores.push((split.clone(), evaluate(model, source.as_mut(), ranks, self.control, &split, None)?));
        }
        for (split, scores) in scores {
            let Some(scores) = scores else { continue };
            let line = EpochScores { epoch: state.epoch, step: state.step, split, scores };
            if ranks.is_first() {
                let auc = scores.auc.map_or_else(|| "none".to_owned(), |a| format!("{a:.4}"));
                tracing::info!(
                    "epoch {} {}: loss {:.4}, accuracy {:.4}, AUC {auc}",
                    line.epoch + 1,
                    line.split,
                    scores.loss,
                    scores.accuracy
                );
            }
            self.log(state, &LogLine::Epoch(line.clone()))?;
            state.history.push(line);
        }
        state.epoch += 1;
        state.epoch_step = 0;
        state.loader_state = serde_json::Value::Null;
        state.progress = EpochProgress::default();
        Ok(())
    }

    fn log(&self, state: &mut State, line: &LogLine) -> Result<()> {
        if self.ranks.is_first() {
            serde_json::to_writer(&mut state.log, line).map_err(|e| Error::internal(format!("the log: {e}")))?;
            state.log.push(b'\n');
        }
        Ok(())
    }

    fn save(
        &self,
        conditions: &Conditions,
        plan: &PlanSummary,
        model: &dyn Model,
        optimizer: &AdamW,
        state: &State,
    ) -> Result<()> {
        let auc = match state.epoch_step {
            0 => None,
            _ => Some(merge_auc(state.auc.clone(), self.ranks, "saving the scores of the epoch")?),
        };
        self.ranks.on_first("saving a checkpoint", || {
            let file = |role, extension, content| DataFile { role, extension, content };
            let mut files = vec![
                file("parameters", "safetensors", to_safetensors(&named(model))?),
                file("optimizer", "safetensors", to_safetensors(&optimizer.state(model.parameters()))?),
                file("log", "jsonl", state.log.clone()),
            ];
            if let Some(auc) = &auc {
                files.push(file("scores", "safetensors", auc_to_bytes(auc)?));
            }
            let manifest = CheckpointManifest {
                format_version: CHECKPOINT_VERSION,
                step: state.step,
                epoch: state.epoch,
                epoch_step: state.epoch_step,
                config_digest: self.config.semantic_digest(&self.sources.digest()),
                plan_fingerprint: plan.fingerprint.clone(),
                loader_state: state.loader_state.clone(),
                progress: state.progress,
                history: state.history.clone(),
                conditions: conditions.clone(),
                files: Default::default(),
            };
            self.folder.publish(manifest, files)
        })
    }
}

/// The parameters by name, shared with the model.
pub(crate) fn named(model: &dyn Model) -> Vec<(String, Tensor)> {
    model.parameters().iter().map(|p| (p.name.clone(), p.tensor.shallow_clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_shared_between_ranks_and_loader() {
        let of = |cpus, given, local| {
            let t = Threads::of(cpus, given, local);
            (t.torch, t.loader)
        };
        assert_eq!(of(16, None, 1), (12, 4));
        assert_eq!(of(16, None, 4), (3, 1));
        assert_eq!(of(2, None, 2), (1, 1));
        assert_eq!(of(2, None, 8), (1, 1));
        assert_eq!(of(8, Some(5), 1), (5, 2));
        assert_eq!(of(8, None, 0), (6, 2));
    }
}
