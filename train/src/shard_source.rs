//! Batches from a shard set, through the loader, as tensors that share the loader's memory.

use gristmill_c10d::{HostBuffer, World, tensor_from_owned};
use gristmill_loader::{
    BatchSpec, Batches, DType, DataLoader, HostBatch, HostTensor, LoaderOptions, PlanOptions, Shuffle, State,
    spec::{CategoryColumn, LabelEncoding, TensorSpec},
};
use gristmill_shard::{ShardSet, Storage, error::nearest_name};
use tch::{Kind, Tensor};
use tokio::runtime::Handle;

use crate::{
    batch::{
        BASELINE, Batch, BatchSource, CategoryFeature, Columns, FeatureSpec, LABEL, LabelSpec, NumberFeature,
        PlanSummary, Sources,
    },
    config::{FloatType, ShuffleKind, TrainConfig},
    error::{During, Error, Result},
    model::kind_of,
};

/// The splits of a shard set, as a configuration uses them.
#[derive(Debug)]
pub struct ShardSources {
    shards: ShardSet,
    config: TrainConfig,
    features: FeatureSpec,
    spec: BatchSpec,
    splits: (Option<String>, Option<String>),
    threads: usize,
    runtime: Handle,
}

impl ShardSources {
    /// Opens the shard set at `storage` and resolves the features of `config` by the statistics of its train split.
    /// Loaders get `threads` threads. It blocks, as [`crate::train`] does.
    ///
    /// # Errors
    /// [`Error::Usage`] for a column, split or type that does not fit; storage errors.
    pub fn open(config: &TrainConfig, storage: Storage, threads: usize, runtime: Handle) -> Result<Self> {
        let shards = runtime.block_on(ShardSet::open(&storage))?;
        config.validate(&shards.manifest().schema)?;
        let splits = evaluation_splits(config, &shards)?;
        // It has no statistics either, which would be a riddle.
        if shards.layout().split(&config.data.train)?.1.rows == 0 {
            return Err(Error::no_rows(&config.data.train, &config.data.shards));
        }
        let (features, spec) = runtime.block_on(resolve(config, &shards))?;
        Ok(Self { shards, config: config.clone(), features, spec, splits, threads, runtime })
    }

    /// The inputs of the model.
    #[must_use]
    pub fn feature_spec(&self) -> &FeatureSpec {
        &self.features
    }

    fn loader(&self, plan: PlanOptions, spec: BatchSpec, world: World) -> Result<Source> {
        let split = plan.split.clone();
        let fail = |e: gristmill_loader::Error| load_error(&split, e);
        let number = |n: usize| u32::try_from(n).map_err(|_| Error::internal(format!("a world of {n} ranks")));
        let mut options = LoaderOptions::new(plan, spec);
        options.world = gristmill_loader::World::new(
            number(world.rank)?,
            number(world.world_size)?,
            number(world.local_world_size)?,
        )
        .map_err(fail)?;
        options.memory_bytes = self.config.loader.memory_bytes;
        options.prefetch_batches = self.config.loader.prefetch;
        options.threads = self.threads;
        let opened = DataLoader::open(self.shards.clone(), options, self.runtime.clone());
        let loader = self.runtime.block_on(opened).map_err(fail)?;
        Ok(Source {
            loader,
            batches: None,
            kind: kind_of(self.config.model.dtype),
            split: split.clone(),
            world_size: world.world_size as u64,
        })
    }
}

impl Sources for ShardSources {
    fn digest(&self) -> String {
        self.shards.digest().to_owned()
    }

    fn features(&self) -> &FeatureSpec {
        &self.features
    }

    fn train(&self, world: World) -> Result<Box<dyn BatchSource>> {
        let mut plan = PlanOptions::new(self.config.data.train.clone(), self.config.global_batch);
        plan.seed = self.config.seed;
        plan.shuffle = match self.config.loader.shuffle {
            ShuffleKind::None => Shuffle::None,
            ShuffleKind::ShardBlock => Shuffle::ShardBlock { window_blocks: self.config.loader.window_blocks },
            ShuffleKind::Global => Shuffle::Global,
        };
        plan.filters.clone_from(&self.config.loader.filters);
        plan.curriculum.clone_from(&self.config.loader.curriculum);
        plan.sampling.clone_from(&self.config.loader.sampling);
        Ok(Box::new(self.loader(plan, self.spec.clone(), world)?))
    }

    fn scan(&self, split: &str, columns: Columns, world: World) -> Result<Box<dyn BatchSource>> {
        let batch = self.config.evaluate.global_batch.unwrap_or(self.config.global_batch);
        let mut plan = PlanOptions::new(split.to_owned(), batch);
        plan.shuffle = Shuffle::None;
        let mut spec = self.spec.clone();
        if columns == Columns::Baseline {
            spec.tensors.retain(|t| matches!(t, TensorSpec::Label { .. }));
        }
        if let (Columns::Baseline | Columns::ModelAndBaseline, Some(baseline)) = (columns, &self.features.baseline) {
            spec.tensors.push(TensorSpec::Categories {
                name: BASELINE.to_owned(),
                columns: vec![CategoryColumn { column: baseline.column.clone(), vocabulary: baseline.values.clone() }],
            });
        }
        Ok(Box::new(self.loader(plan, spec, world)?))
    }

    fn evaluation_splits(&self) -> (Option<String>, Option<String>) {
        self.splits.clone()
    }
}

/// The splits to score on: those named, which must be there, else `validation` and `test` where there.
fn evaluation_splits(config: &TrainConfig, shards: &ShardSet) -> Result<(Option<String>, Option<String>)> {
    let names: Vec<&str> = shards.layout().splits.iter().map(|s| s.name.as_str()).collect();
    let check = |key: &str, name: &str| {
        if names.contains(&name) {
            return Ok(());
        }
        Err(Error::usage(
            format!("data.{key}: {} has no split \"{name}\"", config.data.shards),
            nearest_name(name, names.iter().copied()),
        ))
    };
    check("train", &config.data.train)?;
    let pick = |key: &str, given: &Option<String>, default: &str| match given {
        Some(name) => check(key, name).map(|()| Some(name.clone())),
        None => Ok(names.contains(&default).then(|| default.to_owned())),
    };
    Ok((pick("validation", &config.data.validation, "validation")?, pick("test", &config.data.test, "test")?))
}

async fn resolve(config: &TrainConfig, shards: &ShardSet) -> Result<(FeatureSpec, BatchSpec)> {
    let split = &config.data.train;
    let dtype = match config.model.dtype {
        FloatType::F32 => DType::F32,
        FloatType::F64 => DType::F64,
    };
    let (statistics, vocabularies) = (shards.statistics(split).await?, shards.categories(split).await?);
    let schema = &shards.manifest().schema;
    let (numbers, categories) = (&config.features.numbers, &config.features.categories);
    let mut spec = BatchSpec::tabular(schema, numbers, categories, None, dtype, &statistics, &vocabularies)
        .map_err(|e| load_error(split, e))?;
    let label = label_spec(config, shards, &vocabularies)?;
    spec.tensors.push(TensorSpec::Label {
        name: LABEL.to_owned(),
        column: label.column.clone(),
        encoding: match label.classes.each_ref().map(String::as_str) {
            ["false", "true"] | ["0", "1"] => LabelEncoding::Number { dtype },
            _ => LabelEncoding::Classes { classes: label.classes.to_vec() },
        },
    });
    let mut features = FeatureSpec { numbers: Vec::new(), categories: Vec::new(), label, baseline: None };
    for tensor in &spec.tensors {
        match tensor {
            TensorSpec::Numbers { columns, .. } => features.numbers.extend(columns.iter().map(|c| NumberFeature {
                column: c.column.clone(),
                mean: c.mean,
                // As the loader takes it.
                deviation: if c.deviation == 0.0 { 1.0 } else { c.deviation },
            })),
            TensorSpec::Categories { columns, .. } => features.categories.extend(
                columns.iter().map(|c| CategoryFeature { column: c.column.clone(), values: c.vocabulary.clone() }),
            ),
            TensorSpec::Label { .. } | TensorSpec::Raw { .. } => {}
        }
    }
    if let Some(baseline) = &config.baseline {
        let values = vocabularies.get(&baseline.column).ok_or_else(|| {
            Error::usage(
                format!("baseline.column: \"{}\" has no categories in the shard set", baseline.column),
                "text, integers of up to 1,024 values and truth values have",
            )
        })?;
        features.baseline = Some(CategoryFeature {
            column: baseline.column.clone(),
            values: values.iter().map(|(value, _)| value.clone()).collect(),
        });
    }
    Ok((features, spec))
}

/// The two classes of the label, by its values in the train split.
fn label_spec(
    config: &TrainConfig,
    shards: &ShardSet,
    vocabularies: &gristmill_loader::spec::Vocabularies,
) -> Result<LabelSpec> {
    let column = shards.manifest().schema.column(&config.label, "label")?;
    let values: Vec<&str> =
        vocabularies.get(&config.label).into_iter().flatten().map(|(value, _)| value.as_str()).collect();
    let is_bool = column.column_type.to_string() == "bool";
    let classes = match values.as_slice() {
        _ if is_bool => ["false".to_owned(), "true".to_owned()],
        ["0"] | ["1"] => ["0".to_owned(), "1".to_owned()],
        [negative, positive] => [(*negative).to_owned(), (*positive).to_owned()],
        other => {
            let found = match other.len() {
                0 => "no categories".to_owned(),
                1 => "one value".to_owned(),
                n => format!("{n} values"),
            };
            return Err(Error::usage(
                format!(
                    "label: column \"{}\" ({}) has {found} in split \"{}\"; a two-class model needs two",
                    config.label, column.column_type, config.data.train
                ),
                "derive a column of true and false at ingest with --sql",
            ));
        }
    };
    Ok(LabelSpec { column: config.label.clone(), classes })
}

fn load_error(split: &str, e: gristmill_loader::Error) -> Error {
    Error::Load { split: split.to_owned(), kind: e.kind(), source: Box::new(e) }
}

/// One split through the loader.
struct Source {
    loader: DataLoader,
    batches: Option<Batches>,
    kind: Kind,
    split: String,
    world_size: u64,
}

impl BatchSource for Source {
    fn plan(&self) -> Result<PlanSummary> {
        let plan = self.loader.plan();
        let steps = plan.steps(0).map_err(|e| load_error(&self.split, e))?;
        Ok(PlanSummary { fingerprint: plan.fingerprint().to_string(), samples: plan.samples(0), steps })
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        // The last epoch's tasks go before new ones come.
        self.batches = None;
        self.batches = Some(self.loader.epoch(epoch).map_err(|e| load_error(&self.split, e))?);
        Ok(())
    }

    fn restore(&mut self, state: &serde_json::Value) -> Result<()> {
        let state: State = serde_json::from_value(state.clone())
            .map_err(|e| Error::corrupt(format!("the loader's state of split \"{}\"", self.split), e.to_string()))?;
        self.batches = None;
        self.batches = Some(self.loader.resume(&state).map_err(|e| load_error(&self.split, e))?);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Batch>> {
        let Some(batches) = &mut self.batches else {
            return Err(Error::internal(format!("split \"{}\" was read before it was started", self.split)));
        };
        match batches.next_blocking().map_err(|e| load_error(&self.split, e))? {
            Some(batch) => to_batch(batch, self.kind, self.world_size).map(Some),
            None => Ok(None),
        }
    }
}

fn to_batch(batch: HostBatch, kind: Kind, world_size: u64) -> Result<Batch> {
    let global_rows = batch.global_rows();
    let state = serde_json::to_value(batch.state()).map_err(|e| Error::internal(format!("the loader's state: {e}")))?;
    let mut tensors = Vec::new();
    let (mut mask, mut row_ids) = (None, None);
    for host in batch.into_tensors() {
        let name = host.name().to_owned();
        let mut tensor = to_tensor(host)?;
        match name.as_str() {
            gristmill_loader::tensor::MASK => mask = Some(tensor),
            gristmill_loader::tensor::ROW_ID => row_ids = Some(tensor),
            LABEL => {
                // Classes come as codes.
                tensor = tensor.f_to_kind(kind).during("reading the labels")?;
                tensors.push((name, tensor));
            }
            BASELINE => {
                tensor = tensor.f_select(1, 0).during("reading the baseline column")?;
                tensors.push((name, tensor));
            }
            _ => tensors.push((name, tensor)),
        }
    }
    match (mask, row_ids) {
        (Some(mask), Some(row_ids)) => Ok(Batch {
            tensors,
            mask,
            row_ids,
            global_rows,
            // Parts of a batch differ by at most one row.
            largest_part: global_rows.div_ceil(world_size.max(1)).max(1),
            state,
        }),
        _ => Err(Error::internal("the loader delivered no mask or no row ids")),
    }
}

/// The loader's memory, which goes back to its pool when libtorch lets go of it.
struct Owned {
    pointer: *mut u8,
    len_bytes: usize,
    _owner: Box<dyn Send>,
}

// SAFETY: the pointer is to memory that `_owner`, which may move between threads, owns alone.
unsafe impl Send for Owned {}

// SAFETY: the loader promises that the memory stays where it is until the owner is dropped, that it is aligned to 64
// bytes, initialized and writable, and that nobody else has it.
unsafe impl HostBuffer for Owned {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pointer
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

fn to_tensor(host: HostTensor) -> Result<Tensor> {
    let parts = host.into_parts();
    let kind = match parts.dtype {
        DType::F32 => Kind::Float,
        DType::F64 => Kind::Double,
        DType::F16 => Kind::Half,
        DType::BF16 => Kind::BFloat16,
        DType::I64 => Kind::Int64,
        DType::I32 => Kind::Int,
        DType::I16 => Kind::Int16,
        DType::I8 => Kind::Int8,
        DType::U8 => Kind::Uint8,
        DType::Bool => Kind::Bool,
    };
    let shape: Vec<i64> = parts.shape.iter().map(|d| *d as i64).collect();
    let owned = Owned { pointer: parts.pointer, len_bytes: parts.len_bytes, _owner: parts.owner };
    tensor_from_owned(owned, &shape, kind).map_err(|source| Error::Group {
        during: format!("taking over tensor {}", parts.name),
        reported: None,
        source,
    })
}
