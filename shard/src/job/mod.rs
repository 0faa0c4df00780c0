//! The shard job: counts, assigns, spills runs, writes shards, publishes.
//!
//! 1. **count** reads the stratify columns of each row group and counts strata; prefix sums over row groups give each
//!    row its rank in its stratum.
//! 2. **assign** reads each unit (a few row groups) whole, finds each row's destination from its rank, and writes one run.
//! 3. **write** gathers the slices of each shard from the runs, permutes its rows by key, writes the file.
//!
//! Every unit is a pure function of the input, the options and the seed, so the output bytes are the same for any
//! number of threads and any restart.

mod count;
mod options;
mod spill;
mod write;

use std::{collections::BTreeMap, sync::Arc};

use arrow::datatypes::SchemaRef;

pub use self::options::{LANES_PER_NODE, ShardOptions};
use self::{count::Counted, write::SplitStatistics};
use crate::{
    assign::{Assignment, deal::factor_chain},
    balance::Balance,
    control::Control,
    error::{Error, ErrorKind, Result},
    input::{Input, shard_schema},
    manifest::{Existing, FORMAT_VERSION, Layout, Manifest, ManifestKind, SplitInfo, existing, job_digest},
    storage::Storage,
    strata,
    tables::{self, CategoryEntry, FileEntry, InputEntry, StatisticsEntry, StratumEntry},
    work::Work,
};

/// Copies of a unit or a shard that are alive while it is worked on (decoded, sorted, encoded, and one to spare).
const COPIES: u64 = 4;
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
/// [`Error::Data`] when the input changes meanwhile, [`Error::Stopped`] when a stop was asked for, storage errors.
pub async fn shard(input: &Storage, out: &Storage, options: &ShardOptions, control: &Control) -> Result<ShardOutcome> {
    options.check()?;
    let input = Input::open(input).await?;
    strata::check_stratify(&input.schema, &options.stratify)?;
    let semantic = options.semantic();
    let digest = job_digest(ManifestKind::Shards, &semantic, &input.reference)?;
    let work = Work::new(out, &digest);
    if let Existing::Current(manifest) = existing(out, ManifestKind::Shards, &digest).await? {
        // A run that was killed after it had published may have left debris.
        work.clear().await?;
        remove_unlisted(out, &tables::read_files(out, &manifest).await?, &manifest).await?;
        return Ok(ShardOutcome { manifest: *manifest, already_current: true });
    }
    let job =
        Job { input: Arc::new(input), out: out.clone(), options: options.clone(), control: control.clone(), work };
    match job.run(semantic, digest.clone()).await {
        Ok(manifest) => Ok(ShardOutcome { manifest, already_current: false }),
        Err(error) => job.overtaken(&digest, error).await,
    }
}

impl Job {
    async fn run(&self, semantic: serde_json::Value, digest: String) -> Result<Manifest> {
        let counted = self.count().await?;
        let plan = Arc::new(self.assign(&counted)?);
        let runs = self.spill(&counted, &plan).await?;
        let (files, statistics) = self.write(&plan, &runs).await?;
        let manifest = self.manifest(&plan, &files, &statistics, semantic, digest).await?;
        self.control.stop.check()?;
        manifest.publish(&self.out).await?;
        self.work.clear().await?;
        remove_unlisted(&self.out, &files, &manifest).await?;
        Ok(manifest)
    }

    /// What became of a run that failed because another process published here first: its work was removed under it.
    /// The same job's output is as good as its own; another's is a conflict, and the files of this one go.
    async fn overtaken(&self, digest: &str, error: Error) -> Result<ShardOutcome> {
        if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Storage) {
            return Err(error);
        }
        match existing(&self.out, ManifestKind::Shards, digest).await {
            Ok(Existing::Current(manifest)) => Ok(ShardOutcome { manifest: *manifest, already_current: true }),
            Err(conflict @ Error::Conflict { .. }) => {
                if let Some(manifest) = Manifest::latest(&self.out).await? {
                    self.work.clear().await?;
                    remove_unlisted(&self.out, &tables::read_files(&self.out, &manifest).await?, &manifest).await?;
                }
                Err(conflict)
            }
            _ => Err(error),
        }
    }
}

struct Job {
    input: Arc<Input>,
    out: Storage,
    options: ShardOptions,
    control: Control,
    work: Work,
}

/// The assignment and what it is written by.
struct Plan {
    assignment: Assignment,
    layout: Layout,
    schema: SchemaRef,
    names: Vec<String>,
}

impl Job {
    fn assign(&self, counted: &Counted) -> Result<Plan> {
        let (nodes, lanes, splits) = (self.options.nodes, self.options.lanes(), &self.options.splits);
        let counts = Assignment::split_counts(counted.strata.strata(), splits, self.options.seed)?;
        let rows: Vec<u64> = (0..splits.len()).map(|s| counts.iter().map(|c| c[s]).sum()).collect();
        let total: u64 = rows.iter().sum();
        let mut infos = Vec::with_capacity(rows.len());
        let mut factors = Vec::with_capacity(rows.len());
        let mut before = 0_u64;
        for (s, name) in splits.names().iter().enumerate() {
            let lane_rows = rows[s].div_ceil(u64::from(lanes));
            let lane_bytes = u128::from(counted.decoded_bytes) * u128::from(lane_rows) / u128::from(total.max(1));
            let files =
                lane_bytes.div_ceil(u128::from(self.options.shard_bytes)).clamp(1, u128::from(lane_rows.max(1)));
            let files_per_lane = u32::try_from(files).unwrap_or(u32::MAX);
            if lane_rows > u64::from(u32::MAX) {
                return Err(Error::usage(
                    format!("a lane of split \"{name}\" has {lane_rows} rows, at most 2^32 fit"),
                    "use more --lanes",
                ));
            }
            factors.push(factor_chain(&[nodes, lanes / nodes, files_per_lane]));
            infos.push(SplitInfo {
                name: name.clone(),
                share: splits.fraction(s),
                rows: rows[s],
                // The longer lanes of a split come first; starting each split at the node where the one before ended
                // keeps the machines' totals within one row.
                first_node: (before % u64::from(nodes)) as u32,
                files_per_lane,
            });
            before += rows[s];
        }
        let chain = factor_chain(&[nodes, lanes / nodes]);
        let assignment = Assignment::new(counted.strata.strata().to_vec(), counts, &factors, self.options.seed)?;
        Ok(Plan {
            assignment,
            layout: Layout { nodes, lanes, factors: chain, stratify: self.options.stratify.clone(), splits: infos },
            schema: shard_schema(&self.input.schema),
            names: counted.strata.names().to_vec(),
        })
    }

    /// Units or shards of `bytes` decoded that may be in work at once.
    fn at_once(&self, bytes: u64, per_thread: usize) -> usize {
        let fit = usize::try_from(self.options.memory_bytes / (COPIES * bytes.max(1))).unwrap_or(usize::MAX);
        fit.min(self.control.threads.saturating_mul(per_thread)).max(1)
    }

    async fn manifest(
        &self,
        plan: &Plan,
        files: &[FileEntry],
        statistics: &SplitStatistics,
        options: serde_json::Value,
        job: String,
    ) -> Result<Manifest> {
        let splits = &plan.layout.splits;
        let inputs: Vec<InputEntry> = self
            .input
            .files
            .iter()
            .map(|f| InputEntry {
                path: f.path().to_owned(),
                rows: f.rows(),
                bytes: f.bytes(),
                footer_blake3: f.footer_blake3().to_owned(),
            })
            .collect();
        let (mut strata, mut categories, mut figures) = (Vec::new(), Vec::new(), Vec::new());
        for (c, value) in plan.names.iter().enumerate() {
            for (s, split) in splits.iter().enumerate() {
                let rows = plan.assignment.counts()[c][s];
                strata.push(StratumEntry { stratum: c as u32, value: value.clone(), split: split.name.clone(), rows });
            }
        }
        for (split, of_split) in splits.iter().zip(statistics) {
            for column in &self.input.schema.columns {
                let Some(builder) = of_split.get(&column.name) else { continue };
                let (split, column) = (split.name.clone(), column.name.clone());
                for (value, rows) in builder.categories().unwrap_or_default() {
                    categories.push(CategoryEntry { split: split.clone(), column: column.clone(), value, rows });
                }
                figures.push(StatisticsEntry { split, column, statistics: builder.finish() });
            }
        }
        let mut references = BTreeMap::new();
        for (name, batch) in [
            (tables::INPUTS, tables::inputs_table(&inputs)?),
            (tables::FILES, tables::files_table(files)?),
            (tables::STRATA, tables::strata_table(&strata)?),
            (tables::CATEGORIES, tables::categories_table(&categories)?),
            (tables::STATISTICS, tables::statistics_table(&figures)?),
        ] {
            references.insert(name.to_owned(), tables::write_table(&self.out, name, &batch).await?);
        }
        let dealings = plan.assignment.dealings();
        let balance = Balance::new(&plan.layout, &plan.names, |s, c| dealings[s].counts(c as u32));
        if !balance.is_exact() {
            return Err(Error::internal("the assignment broke its own bounds"));
        }
        Ok(Manifest {
            format_version: FORMAT_VERSION,
            kind: ManifestKind::Shards,
            version: 1,
            job,
            input: self.input.reference.clone(),
            options,
            seed: self.options.seed,
            schema: self.input.schema.clone(),
            rows: files.iter().map(|f| f.rows).sum(),
            tables: references,
            ingest: None,
            layout: Some(plan.layout.clone()),
            balance: Some(balance),
        })
    }
}

/// Removes shards and tables that an earlier, unpublished job left: files of our own naming that no manifest lists.
async fn remove_unlisted(out: &Storage, files: &[FileEntry], manifest: &Manifest) -> Result<()> {
    for listed in crate::verify::unlisted(out, files, manifest).await? {
        out.delete(&listed).await?;
    }
    Ok(())
}
