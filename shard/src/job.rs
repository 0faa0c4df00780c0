//! The shard job: counts, assigns, spills runs, writes shards, publishes.
//!
//! 1. **count** reads the stratify columns of each row group and counts strata; prefix sums over row groups give each
//!    row its rank in its stratum.
//! 2. **assign** reads each unit (a few row groups) whole, finds each row's destination from its rank, and writes one run.
//! 3. **write** gathers the slices of each shard from the runs, permutes its rows by key, writes the file.
//!
//! Every unit is a pure function of the input, the options and the seed, so the output bytes are the same for any
//! number of threads and any restart.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, Int64Array, RecordBatch, UInt32Array},
    compute::{concat_batches, take_record_batch},
    datatypes::SchemaRef,
};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::{
    assign::{Assignment, Destination, deal::factor_chain, rounding::Shares},
    balance::Balance,
    control::{Control, Unit, compute},
    error::{Error, Result},
    input::{Input, shard_schema},
    keys::{Domain, Key},
    manifest::{Existing, FORMAT_VERSION, Layout, Manifest, ManifestKind, SplitInfo, existing, job_digest},
    parquet_reader::ParquetFile,
    parquet_writer::encode_file,
    permutation::Permutation,
    runs::{self, Slice},
    schema::{MAX_FILE_ROWS, row_id},
    statistics::StatisticsBuilder,
    storage::Storage,
    strata::{self, Strata, StratumKey},
    tables::{self, CategoryEntry, FileEntry, InputEntry, StatisticsEntry, StratumEntry},
    work::Work,
};

/// Lanes a node gets when none are asked for.
pub const LANES_PER_NODE: u32 = 8;
/// Decoded bytes that a unit of work aims at.
const UNIT_BYTES: u64 = 32 << 20;
/// Copies of a unit or a shard that are alive while it is worked on (decoded, sorted, encoded, and one to spare).
const COPIES: u64 = 4;
/// Slices of one shard that are read at once.
const READS_AT_ONCE: usize = 8;

/// What to shard and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardOptions {
    /// Machines, at least 1.
    pub nodes: u32,
    /// Lanes, a multiple of `nodes`; `None` for [`LANES_PER_NODE`] a node.
    pub lanes: Option<u32>,
    /// Columns whose combination is the stratum; empty for none.
    pub stratify: Vec<String>,
    /// Splits and their shares.
    pub splits: Shares,
    /// Seed of every random choice.
    pub seed: u64,
    /// Decoded Arrow bytes that a file aims at.
    pub shard_bytes: u64,
    /// Memory to stay within, in bytes. It does not change the result.
    pub memory_bytes: u64,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            lanes: None,
            stratify: Vec::new(),
            splits: Shares::default(),
            seed: 0,
            shard_bytes: 128 << 20,
            memory_bytes: 1 << 30,
        }
    }
}

impl ShardOptions {
    fn lanes(&self) -> u32 {
        self.lanes.unwrap_or(self.nodes.saturating_mul(LANES_PER_NODE))
    }

    fn check(&self) -> Result<()> {
        if self.nodes == 0 || self.nodes > 1 << 16 {
            return Err(Error::usage(format!("--nodes {} is out of range", self.nodes), "give 1 to 65536"));
        }
        let lanes = self.lanes();
        if lanes == 0 || lanes % self.nodes != 0 || lanes > 1 << 20 {
            return Err(Error::usage(
                format!("--lanes {lanes} is not a multiple of --nodes {} up to 1048576", self.nodes),
                format!("give {} or another multiple of {}", self.nodes * LANES_PER_NODE, self.nodes),
            ));
        }
        if self.shard_bytes < 1 << 10 {
            return Err(Error::usage(format!("--shard-bytes {} is too small", self.shard_bytes), "give at least 1KiB"));
        }
        if self.memory_bytes / COPIES < self.shard_bytes {
            return Err(Error::usage(
                format!("--memory {} is less than {COPIES} × --shard-bytes {}", self.memory_bytes, self.shard_bytes),
                "give more memory or smaller shards",
            ));
        }
        Ok(())
    }

    /// The options that change the output, as the manifest keeps them.
    fn semantic(&self) -> serde_json::Value {
        let splits: BTreeMap<&str, String> =
            self.splits.names().iter().enumerate().map(|(s, n)| (n.as_str(), self.splits.fraction(s))).collect();
        serde_json::json!({
            "nodes": self.nodes,
            "lanes": self.lanes(),
            "stratify": self.stratify,
            "split_order": self.splits.names(),
            "splits": splits,
            "seed": self.seed,
            "shard_bytes": self.shard_bytes,
        })
    }
}

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
        work.clear().await?;
        return Ok(ShardOutcome { manifest: *manifest, already_current: true });
    }
    let job =
        Job { input: Arc::new(input), out: out.clone(), options: options.clone(), control: control.clone(), work };
    let counted = job.count().await?;
    let plan = Arc::new(job.assign(&counted)?);
    let runs = job.spill(&counted, &plan).await?;
    let (files, statistics) = job.write(&plan, &runs).await?;
    let manifest = job.manifest(&plan, &files, &statistics, semantic, digest).await?;
    control.stop.check()?;
    manifest.publish(out).await?;
    job.work.clear().await?;
    job.remove_unlisted(&files, &manifest).await?;
    Ok(ShardOutcome { manifest, already_current: false })
}

struct Job {
    input: Arc<Input>,
    out: Storage,
    options: ShardOptions,
    control: Control,
    work: Work,
}

/// A row group of the input.
#[derive(Debug, Clone)]
struct Group {
    ordinal: u64,
    file: Arc<ParquetFile>,
    index: usize,
    first_row: u64,
    decoded_bytes: u64,
}

struct Counted {
    units: Vec<Vec<Group>>,
    /// Strata of each row group, in input order.
    by_group: Vec<BTreeMap<StratumKey, u64>>,
    strata: Arc<Strata>,
    decoded_bytes: u64,
}

/// The assignment and what it is written by.
struct Plan {
    assignment: Assignment,
    layout: Layout,
    schema: SchemaRef,
    names: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct RunReceipt {
    path: String,
    index_at: u64,
    bytes: u64,
}

struct Run {
    path: String,
    index: HashMap<Destination, Slice>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ShardReceipt {
    path: String,
    bytes: u64,
    blake3: String,
}

type SplitStatistics = Vec<BTreeMap<String, StatisticsBuilder>>;

impl Job {
    fn groups(&self) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        for (ordinal, file) in self.input.files.iter().enumerate() {
            let mut first_row = 0;
            for (index, rows) in file.row_group_rows().into_iter().enumerate() {
                let decoded_bytes = decoded_estimate(file, index) + 8 * rows;
                if decoded_bytes > self.options.memory_bytes / COPIES {
                    return Err(Error::usage(
                        format!(
                            "row group {index} of {} has {rows} rows, about {decoded_bytes} bytes when decoded",
                            self.input.storage.url(file.path())
                        ),
                        format!(
                            "give --memory at least {}, or write the input with smaller row groups",
                            decoded_bytes * COPIES
                        ),
                    ));
                }
                groups.push(Group { ordinal: ordinal as u64, file: Arc::clone(file), index, first_row, decoded_bytes });
                first_row += rows;
            }
            if first_row > MAX_FILE_ROWS {
                return Err(Error::usage(
                    format!("{} has more than 2^40 rows", file.path()),
                    "cut it into several files",
                ));
            }
        }
        Ok(groups)
    }

    async fn count(&self) -> Result<Counted> {
        let groups = self.groups()?;
        let decoded_bytes = groups.iter().map(|g| g.decoded_bytes).sum();
        self.control.progress.start("count strata", self.input.rows(), Unit::Rows);
        let key_schema = self.key_schema()?;
        let by_group: Vec<BTreeMap<StratumKey, u64>> = futures::stream::iter(groups.iter().cloned())
            .map(|group| self.count_group(group))
            .buffered(self.control.threads.max(1))
            .try_collect()
            .await?;
        self.control.progress.finish();
        let mut total: BTreeMap<StratumKey, u64> = BTreeMap::new();
        for counts in &by_group {
            for (key, rows) in counts {
                match total.get_mut(key) {
                    Some(sum) => *sum += rows,
                    None => {
                        total.insert(key.clone(), *rows);
                    }
                }
            }
        }
        let strata = Arc::new(Strata::new(&total, &key_schema)?);
        Ok(Counted { units: units(groups), by_group, strata, decoded_bytes })
    }

    fn key_schema(&self) -> Result<SchemaRef> {
        let schema = self.input.arrow_schema();
        let indices: Result<Vec<usize>, _> = self.options.stratify.iter().map(|n| schema.index_of(n)).collect();
        let fail = |source| Error::Arrow { action: "find the stratify columns".into(), source };
        schema.project(&indices.map_err(fail)?).map(Arc::new).map_err(fail)
    }

    async fn count_group(&self, group: Group) -> Result<BTreeMap<StratumKey, u64>> {
        self.control.stop.check()?;
        let rows = group.file.row_group_rows().get(group.index).copied().unwrap_or(0);
        let stratify = self.options.stratify.clone();
        let counts = if stratify.is_empty() {
            strata::count(&[], rows as usize)?
        } else {
            let names: Vec<&str> = stratify.iter().map(String::as_str).collect();
            let bytes = group.file.fetch(&self.input.storage, group.index, Some(&names)).await?;
            compute(move || {
                let names: Vec<&str> = stratify.iter().map(String::as_str).collect();
                let batch = group.file.decode(group.index, &bytes, Some(&names))?;
                strata::count(batch.columns(), batch.num_rows())
            })
            .await?
        };
        self.control.progress.advance(rows);
        Ok(counts)
    }

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
    fn at_once(&self, bytes: u64) -> usize {
        let fit = usize::try_from(self.options.memory_bytes / (COPIES * bytes.max(1))).unwrap_or(usize::MAX);
        fit.min(self.control.threads).max(1)
    }

    async fn spill(&self, counted: &Counted, plan: &Arc<Plan>) -> Result<Vec<Run>> {
        self.control.progress.start("assign rows", self.input.rows(), Unit::Rows);
        let largest = counted.units.iter().map(|u| u.iter().map(|g| g.decoded_bytes).sum::<u64>()).max().unwrap_or(1);
        // Rank of the first row of each of a unit's strata: prefix sums over row groups in input order.
        let mut starts: Vec<HashMap<u32, u64>> = Vec::with_capacity(counted.units.len());
        let mut next = vec![0_u64; counted.strata.strata().len()];
        let mut groups = counted.by_group.iter();
        for unit in &counted.units {
            let mut of_unit = HashMap::new();
            for counts in groups.by_ref().take(unit.len()) {
                for (key, rows) in counts {
                    if let Some(c) = counted.strata.ordinal(key) {
                        of_unit.entry(c).or_insert(next[c as usize]);
                        next[c as usize] += rows;
                    }
                }
            }
            starts.push(of_unit);
        }
        let runs = futures::stream::iter(counted.units.iter().cloned().zip(starts).enumerate())
            .map(|(u, (unit, ranks))| self.spill_unit(u, unit, ranks, Arc::clone(&counted.strata), Arc::clone(plan)))
            .buffered(self.at_once(largest))
            .try_collect()
            .await?;
        self.control.progress.finish();
        Ok(runs)
    }

    async fn spill_unit(
        &self,
        ordinal: usize,
        unit: Vec<Group>,
        ranks: HashMap<u32, u64>,
        strata: Arc<Strata>,
        plan: Arc<Plan>,
    ) -> Result<Run> {
        self.control.stop.check()?;
        let name = format!("run-{ordinal:06}");
        let rows: u64 = unit.iter().filter_map(|g| g.file.row_group_rows().get(g.index).copied()).sum();
        if let Some(receipt) = self.work.receipt::<RunReceipt>(&name).await?
            && self.out.size(&receipt.path).await? == Some(receipt.bytes)
        {
            self.control.progress.advance(rows);
            return self.open_run(receipt).await;
        }
        let mut fetched = Vec::with_capacity(unit.len());
        let columns: Vec<String> = self.input.schema.columns.iter().map(|c| c.name.clone()).collect();
        let names: Vec<&str> = columns.iter().map(String::as_str).collect();
        for group in unit {
            let bytes = group.file.fetch(&self.input.storage, group.index, Some(&names)).await?;
            fetched.push((group, bytes));
        }
        let (stratify, storage) = (self.options.stratify.clone(), self.input.storage.clone());
        let (bytes, index_at) = compute(move || {
            let names: Vec<&str> = columns.iter().map(String::as_str).collect();
            let mut ranks = ranks;
            let mut assigner = plan.assignment.assigner();
            let (mut batches, mut destinations) = (Vec::new(), Vec::new());
            for (group, bytes) in fetched {
                let url = storage.url(group.file.path());
                let batch = group.file.decode(group.index, &bytes, Some(&names))?;
                let strata = strata.of_rows(&strata::key_columns(&batch, &stratify)?, batch.num_rows(), &url)?;
                for stratum in strata {
                    let rank = ranks.entry(stratum).or_insert(u64::MAX);
                    destinations.push(assigner.destination(stratum, *rank)?);
                    *rank = rank.saturating_add(1);
                }
                batches.push(with_row_ids(&batch, &group, &plan.schema)?);
            }
            let batch = concat_batches(&plan.schema, &batches)
                .map_err(|source| Error::Arrow { action: "put a unit together".into(), source })?;
            drop(batches);
            runs::encode(&batch, &destinations)
        })
        .await?;
        let length = bytes.len() as u64;
        let path = self.work.put(&format!("{name}.arrows"), bytes).await?;
        let receipt = RunReceipt { path, index_at, bytes: length };
        self.work.record(&name, &receipt).await?;
        self.control.progress.advance(rows);
        self.open_run(receipt).await
    }

    async fn open_run(&self, receipt: RunReceipt) -> Result<Run> {
        let index = self.out.get_range(&receipt.path, receipt.index_at..receipt.bytes).await?;
        Ok(Run { index: runs::decode_index(&index, &self.out.url(&receipt.path))?, path: receipt.path })
    }

    async fn write(&self, plan: &Arc<Plan>, runs: &[Run]) -> Result<(Vec<FileEntry>, SplitStatistics)> {
        let mut shards = Vec::new();
        let mut largest = 1;
        for (s, split) in plan.layout.splits.iter().enumerate() {
            for lane in 0..plan.layout.lanes {
                for file in 0..split.files_per_lane {
                    let destination = Destination { split: s, leaf: lane + plan.layout.lanes * file };
                    let bytes: u64 = runs.iter().filter_map(|r| r.index.get(&destination)).map(Slice::bytes).sum();
                    if bytes > 0 {
                        largest = largest.max(bytes);
                        shards.push((destination, lane, file));
                    }
                }
            }
        }
        self.control.progress.start("write shards", self.input.rows(), Unit::Rows);
        let mut written = futures::stream::iter(shards)
            .map(|(destination, lane, file)| self.write_shard(Arc::clone(plan), runs, destination, lane, file))
            .buffered(self.at_once(largest));
        let mut files = Vec::new();
        let mut statistics: SplitStatistics = vec![BTreeMap::new(); plan.layout.splits.len()];
        while let Some((split, entry, of_file)) = written.try_next().await? {
            files.push(entry);
            for (column, builder) in of_file {
                match statistics[split].get_mut(&column) {
                    Some(sum) => sum.merge(&builder),
                    None => {
                        statistics[split].insert(column, builder);
                    }
                }
            }
        }
        drop(written);
        self.control.progress.finish();
        Ok((files, statistics))
    }

    async fn write_shard(
        &self,
        plan: Arc<Plan>,
        runs: &[Run],
        destination: Destination,
        lane: u32,
        sequence: u32,
    ) -> Result<(usize, FileEntry, BTreeMap<String, StatisticsBuilder>)> {
        self.control.stop.check()?;
        let slices: Vec<(&Run, Slice)> = runs.iter().filter_map(|r| Some((r, *r.index.get(&destination)?))).collect();
        let batches: Vec<RecordBatch> = futures::stream::iter(slices)
            .map(|(run, slice)| {
                let schema = Arc::clone(&plan.schema);
                async move {
                    let range = slice.offset..slice.offset + slice.bytes();
                    let bytes = self.work.get_range(&run.path, range).await?;
                    runs::decode_slice(&schema, &slice, bytes, &self.out.url(&run.path))
                }
            })
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        let split = plan.layout.splits.get(destination.split).ok_or_else(|| Error::internal("a split is missing"))?;
        let unit = format!("shard-{}-{lane:06}-{sequence:06}", split.name);
        let key = Key::derive(
            Domain::FilePermute,
            self.options.seed,
            &[destination.split as u64, u64::from(lane), u64::from(sequence)],
        );
        let schema = Arc::clone(&plan.schema);
        let label = format!("{}/lane-{lane:04}/part-{sequence:05}", split.name);
        let (file, statistics) = compute(move || {
            let fail = |source| Error::Arrow { action: "permute a shard".into(), source };
            let whole = concat_batches(&schema, &batches).map_err(fail)?;
            drop(batches);
            let permutation = Permutation::new(key, whole.num_rows() as u64);
            let order =
                UInt32Array::from_iter_values((0..whole.num_rows() as u64).map(|i| permutation.apply(i) as u32));
            let whole = take_record_batch(&whole, &order).map_err(fail)?;
            let mut statistics = BTreeMap::new();
            for (field, column) in schema.fields().iter().zip(whole.columns()) {
                if !crate::schema::is_reserved(field.name()) {
                    let mut builder = StatisticsBuilder::new(field.data_type());
                    builder.update(column)?;
                    statistics.insert(field.name().clone(), builder);
                }
            }
            Ok((encode_file(&label, &schema, std::slice::from_ref(&whole))?, statistics))
        })
        .await?;
        let path = format!("{}/lane-{lane:04}/part-{sequence:05}-{}.parquet", split.name, file.digest8());
        let entry = FileEntry::new(path.clone(), &split.name, lane, sequence, &file);
        let receipt = self.work.receipt::<ShardReceipt>(&unit).await?;
        let stored = receipt.is_some_and(|r| r.path == path && r.blake3 == file.blake3)
            && self.out.size(&path).await? == Some(entry.bytes);
        if !stored {
            self.out.put(&path, file.bytes).await?;
            let receipt = ShardReceipt { path, bytes: entry.bytes, blake3: entry.blake3.clone() };
            self.work.record(&unit, &receipt).await?;
        }
        self.control.progress.advance(entry.rows);
        Ok((destination.split, entry, statistics))
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

    /// Removes shards and tables that an earlier, unpublished job left: files of our own naming that no manifest lists.
    async fn remove_unlisted(&self, files: &[FileEntry], manifest: &Manifest) -> Result<()> {
        for listed in crate::verify::unlisted(&self.out, files, manifest).await? {
            self.out.delete(&listed).await?;
        }
        Ok(())
    }
}

/// Row groups in units of about [`UNIT_BYTES`].
fn units(groups: Vec<Group>) -> Vec<Vec<Group>> {
    let mut units: Vec<Vec<Group>> = Vec::new();
    let mut bytes = 0;
    for group in groups {
        if units.is_empty() || bytes + group.decoded_bytes > UNIT_BYTES {
            units.push(Vec::new());
            bytes = 0;
        }
        bytes += group.decoded_bytes;
        if let Some(unit) = units.last_mut() {
            unit.push(group);
        }
    }
    units
}

/// Arrow bytes of a row group from its metadata: exact for fixed widths and for text whose plain size is recorded.
fn decoded_estimate(file: &ParquetFile, index: usize) -> u64 {
    let Some(group) = file.metadata().row_groups().get(index) else { return 0 };
    let rows = group.num_rows().max(0) as u64;
    group
        .columns()
        .iter()
        .map(|column| match column.column_type() {
            parquet::basic::Type::BOOLEAN => rows.div_ceil(8),
            parquet::basic::Type::INT32 | parquet::basic::Type::FLOAT => 4 * rows,
            parquet::basic::Type::INT64 | parquet::basic::Type::DOUBLE => 8 * rows,
            _ => {
                let plain = column.unencoded_byte_array_data_bytes().unwrap_or_else(|| column.uncompressed_size());
                plain.max(0) as u64 + 8 * rows
            }
        })
        .sum()
}

fn with_row_ids(batch: &RecordBatch, group: &Group, schema: &SchemaRef) -> Result<RecordBatch> {
    let first = row_id(group.ordinal, group.first_row);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + batch.num_rows() as i64));
    let mut columns = batch.columns().to_vec();
    columns.push(ids);
    RecordBatch::try_new(Arc::clone(schema), columns)
        .map_err(|source| Error::Arrow { action: format!("add row ids to {}", group.file.path()), source })
}
