//! The whole ingest: sources are read once, columns settled, units done by several threads with a receipt each, and
//! the manifest published last.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{StreamExt, stream};
use gristmill_shard::{
    Control, Error, ErrorKind, Manifest, ManifestKind, Result, Storage,
    control::{Unit as ProgressUnit, compute},
    manifest::{Existing, FORMAT_VERSION, IngestCounts, InputRef, META, existing, job_digest},
    parquet_reader::{ParquetFile, RowGroupBytes},
    schema::{DatasetSchema, MAX_FILE_ROWS},
    statistics::StatisticsBuilder,
    tables::{
        CATEGORIES, CategoryEntry, FILES, FileEntry, REJECT_FILES, STATISTICS, StatisticsEntry, categories_table,
        files_table, statistics_table, write_table,
    },
    work::Work,
};

use crate::{
    leftovers::{Before, clean_up, remove_empty_folders, undo},
    options::IngestOptions,
    prepare::{InputColumns, ScannedSource, UnitSpec, input_ref, plan_input, scan_sources},
    receipt::{DATA, REJECTS, Receipt, StoredFile},
    rejects::RejectSummary,
    report::{ColumnReport, FileReport, IngestOutcome, IngestReport},
    sources::find_sources,
    unit::{MadeUnit, Plan},
};

/// Turns raw files into a clean data set at `out`.
///
/// The manifest is published last: a run that is killed leaves nothing that a reader would take for a data set, and
/// the same command goes on where it was. The same command after that finds its output current and does nothing.
///
/// # Errors
/// - [`ErrorKind::Usage`]: options, names or types that can't be (unknown columns with the nearest name).
/// - [`ErrorKind::NotFound`], [`ErrorKind::Permission`]: a source.
/// - [`ErrorKind::Data`]: an empty or undecodable source, too many bad rows, a bad row under `on_error = fail`, no row
///   left. Nothing is published then.
/// - [`ErrorKind::Corrupt`]: a source that is no Parquet.
/// - [`ErrorKind::Conflict`]: `out` holds something else.
/// - [`ErrorKind::Stopped`]: run the same command again.
pub async fn ingest(options: &IngestOptions, out: &Storage, control: &Control) -> Result<IngestOutcome> {
    options.check()?;
    let (names, local) = (options.sources.clone(), out.local_root().map(std::path::Path::to_path_buf));
    let found = compute(move || find_sources(&names, local.as_deref())).await?;
    let sources = Arc::new(Box::pin(scan_sources(&found.files, options, control)).await?);
    let input = input_ref(&sources);
    let semantic = semantic_options(options);
    let job = job_digest(ManifestKind::Dataset, &semantic, &input, None)?;
    let work = Work::new(out, &job);
    if let Existing::Current(manifest) = existing(out, ManifestKind::Dataset, &job, false).await? {
        let mut report = IngestReport::read(out, &manifest).await?;
        report.skipped = found.skipped;
        // A run killed between publishing and cleaning up left these.
        clean_up(out, &work, &manifest).await?;
        return Ok(IngestOutcome { manifest: *manifest, already_current: true, report });
    }
    let (columns, units) = Box::pin(plan_input(&sources, options, control)).await?;
    let (plan_sources, sql, on_error, input_columns) =
        (Arc::clone(&sources), options.sql.clone(), options.on_error, columns.clone());
    let mut plan = compute(move || Plan::new(plan_sources, &input_columns, sql.as_deref(), on_error)).await?;
    set_roles(&mut plan.output, options)?;
    check_sizes(&sources, &units)?;
    let before = Before::of(out);
    let job = Job {
        out: out.clone(),
        digest: job,
        work,
        plan: Arc::new(plan),
        control: control.clone(),
        ended: AtomicBool::new(false),
    };
    let outcome = match Box::pin(job.run(units, options)).await {
        Ok(done) => Box::pin(job.publish(done, &columns, semantic, input)).await,
        Err(e) => Err(e),
    };
    let (manifest, report) = match outcome {
        Ok(published) => published,
        Err(e) => {
            Box::pin(job.fail(&e, before)).await;
            return Err(e);
        }
    };
    clean_up(out, &job.work, &manifest).await?;
    Ok(IngestOutcome { manifest, already_current: false, report: IngestReport { skipped: found.skipped, ..report } })
}

fn semantic_options(options: &IngestOptions) -> serde_json::Value {
    serde_json::json!({
        "schema": options.schema,
        "sql": options.sql,
        "on_error": options.on_error,
        "max_rejects": options.max_rejects,
        "roles": options.roles,
        "csv": options.csv,
        "unit_bytes": options.unit_bytes,
    })
}

fn set_roles(schema: &mut DatasetSchema, options: &IngestOptions) -> Result<()> {
    for (name, role) in &options.roles {
        schema.column(name, "roles")?;
        for column in schema.columns.iter_mut().filter(|c| &c.name == name) {
            column.role = Some(*role);
        }
    }
    Ok(())
}

fn check_sizes(sources: &[ScannedSource], units: &[UnitSpec]) -> Result<()> {
    for unit in units {
        if unit.row + unit.rows > MAX_FILE_ROWS {
            let name = sources.get(unit.source as usize).map_or("", |s| s.name.as_str());
            return Err(Error::usage(format!("{name} has more than 2^40 rows"), "cut it into several files"));
        }
    }
    Ok(())
}

struct Job {
    out: Storage,
    /// Of the job, as the manifest has it.
    digest: String,
    work: Work,
    plan: Arc<Plan>,
    control: Control,
    /// Set when no more units are wanted.
    ended: AtomicBool,
}

/// All units together.
#[derive(Debug, Default)]
struct Done {
    counts: IngestCounts,
    by_source: Vec<IngestCounts>,
    data: Vec<FileEntry>,
    rejects: Vec<FileEntry>,
    summary: RejectSummary,
    statistics: Vec<StatisticsBuilder>,
}

fn add(total: &mut IngestCounts, part: &IngestCounts) {
    total.rows_in += part.rows_in;
    total.accepted += part.accepted;
    total.rejected += part.rejected;
    total.filtered += part.filtered;
}

impl Job {
    async fn run(&self, units: Vec<UnitSpec>, options: &IngestOptions) -> Result<Done> {
        let columns = &self.plan.output.columns;
        let mut done = Done {
            by_source: vec![IngestCounts::default(); self.plan.sources.len()],
            statistics: columns.iter().map(|c| StatisticsBuilder::new(c.column_type.to_arrow())).collect(),
            ..Done::default()
        };
        let progress = &self.control.progress;
        progress.start("ingest", units.iter().map(|u| u.rows).sum(), ProgressUnit::Rows);
        let mut results = stream::iter(units.into_iter().enumerate())
            .map(|(ordinal, unit)| async move {
                let (receipt, statistics) = Box::pin(self.unit(ordinal, &unit)).await?;
                Ok::<_, Error>((unit, receipt, statistics))
            })
            .buffered(self.control.threads.max(1));
        let outcome = loop {
            let (unit, receipt, statistics) = match results.next().await {
                Some(Ok(unit)) => unit,
                Some(Err(e)) => break Err(e),
                None => break Ok(()),
            };
            let counts = receipt.counts();
            progress.advance(counts.rows_in);
            add(&mut done.counts, &counts);
            if let Some(source) = done.by_source.get_mut(unit.source as usize) {
                add(source, &counts);
            }
            done.data.extend(receipt.data.as_ref().map(|f| f.entry(done.data.len())));
            done.rejects.extend(receipt.rejects.as_ref().map(|f| f.entry(done.rejects.len())));
            done.summary.merge(&receipt.summary);
            for (all, part) in done.statistics.iter_mut().zip(&statistics) {
                all.merge(part);
            }
            // A number of rows can be exceeded early, a share only at the end.
            if options.max_rejects.is_exceeded(done.counts.rejected, u64::MAX) {
                break Ok(());
            }
        };
        // Units under way end by themselves, so that nothing is written after this.
        self.ended.store(true, Ordering::Relaxed);
        while results.next().await.is_some() {}
        progress.finish();
        outcome?;
        self.check(&done, options)?;
        Ok(done)
    }

    fn check(&self, done: &Done, options: &IngestOptions) -> Result<()> {
        let IngestCounts { rows_in, accepted, rejected, filtered } = done.counts;
        if rows_in != accepted + rejected + filtered || done.data.iter().map(|f| f.rows).sum::<u64>() != accepted {
            return Err(Error::internal(format!(
                "{rows_in} rows came in, but {accepted} were accepted, {rejected} refused and {filtered} left out"
            )));
        }
        let examples: String = done.summary.examples.iter().map(|r| format!("\n    {r}")).collect();
        if options.max_rejects.is_exceeded(rejected, rows_in) {
            return Err(Error::Data {
                url: self.out.url(""),
                what: format!(
                    "{rejected} of {rows_in} rows were refused, more than the {} allowed (max_rejects); nothing was published. The first:{examples}",
                    options.max_rejects
                ),
                help: "check delimiter and types (a schema file says them), correct the rows, or allow more with --max-rejects N or P%".into(),
            });
        }
        if accepted == 0 {
            return Err(Error::Data {
                url: self.out.url(""),
                what: format!(
                    "no row is left of {rows_in}: {rejected} were refused and {filtered} left out by the query{examples}"
                ),
                help: "check the sources, and WHERE of the query".into(),
            });
        }
        Ok(())
    }

    async fn unit(&self, ordinal: usize, spec: &UnitSpec) -> Result<(Receipt, Vec<StatisticsBuilder>)> {
        self.control.stop.check()?;
        if self.ended.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let name = format!("ingest-{ordinal:05}");
        if let Some(receipt) = self.work.receipt::<Receipt>(&name).await?
            && let Some(statistics) = self.statistics_of(&receipt).await?
        {
            return Ok((receipt, statistics));
        }
        let (plan, spec, stop) = (Arc::clone(&self.plan), spec.clone(), self.control.stop.clone());
        let made = compute(move || plan.make(&spec, &stop)).await?;
        let receipt = self.store(ordinal, &made).await?;
        self.work.record(&name, &receipt).await?;
        Ok((receipt, made.statistics))
    }

    async fn store(&self, ordinal: usize, made: &MadeUnit) -> Result<Receipt> {
        let mut stored = [None, None];
        for (slot, (folder, file)) in stored.iter_mut().zip([(DATA, &made.data), (REJECTS, &made.rejects)]) {
            if let Some(file) = file {
                let entry = StoredFile::new(folder, ordinal, file);
                self.out.put(&entry.path, file.bytes.clone()).await?;
                *slot = Some(entry);
            }
        }
        let [data, rejects] = stored;
        Ok(Receipt { rows_in: made.rows_in, filtered: made.filtered, data, rejects, summary: made.summary.clone() })
    }

    /// Statistics of a unit that an earlier run did, from its file; `None` when the file is not whole, and the unit is
    /// to be done again.
    async fn statistics_of(&self, receipt: &Receipt) -> Result<Option<Vec<StatisticsBuilder>>> {
        if let Some(rejects) = &receipt.rejects
            && self.out.size(&rejects.path).await? != Some(rejects.bytes)
        {
            return Ok(None);
        }
        let mut columns = Vec::new();
        if let Some(data) = &receipt.data {
            let bytes = match self.out.get(&data.path).await {
                Ok(bytes) if blake3::hash(&bytes).to_hex().as_str() == data.blake3 => bytes,
                Ok(_) | Err(Error::NotFound { .. }) => return Ok(None),
                Err(e) => return Err(e),
            };
            let file = ParquetFile::open(&self.out, &data.path).await?;
            let groups = file.row_group_rows().len();
            columns = compute(move || {
                let whole = RowGroupBytes::new(0, bytes);
                let batches = (0..groups).map(|g| file.decode(g, &whole, None)).collect::<Result<Vec<_>>>()?;
                let schema =
                    batches.first().map(|b| b.schema()).ok_or_else(|| Error::corrupt(file.path(), "it has no rows"))?;
                let batch = arrow::compute::concat_batches(&schema, &batches)
                    .map_err(|source| Error::Arrow { action: "put together a finished file".into(), source })?;
                Ok(batch.columns().to_vec())
            })
            .await?;
        }
        let mut statistics = Vec::with_capacity(self.plan.output.columns.len());
        for (i, column) in self.plan.output.columns.iter().enumerate() {
            let mut builder = StatisticsBuilder::new(column.column_type.to_arrow());
            if let Some(values) = columns.get(i) {
                builder.update(values)?;
            }
            statistics.push(builder);
        }
        Ok(Some(statistics))
    }

    async fn publish(
        &self,
        done: Done,
        input: &InputColumns,
        options: serde_json::Value,
        input_ref: InputRef,
    ) -> Result<(Manifest, IngestReport)> {
        self.control.stop.check()?;
        self.check_sources().await?;
        self.check_files(&done).await?;
        let report = self.report(&done, input);
        let schema = self.plan.output.clone();
        let mut batches = vec![(FILES, files_table(&done.data)?)];
        let mut categories = Vec::new();
        let mut statistics = Vec::new();
        for (column, builder) in schema.columns.iter().zip(&done.statistics) {
            statistics.push(StatisticsEntry {
                split: String::new(),
                column: column.name.clone(),
                statistics: builder.finish(),
            });
            for (value, rows) in builder.categories().unwrap_or_default() {
                categories.push(CategoryEntry { split: String::new(), column: column.name.clone(), value, rows });
            }
        }
        batches.push((STATISTICS, statistics_table(&statistics)?));
        batches.push((CATEGORIES, categories_table(&categories)?));
        if !done.rejects.is_empty() {
            batches.push((REJECT_FILES, files_table(&done.rejects)?));
        }
        batches.extend(report.tables()?);
        let mut tables = BTreeMap::new();
        for (name, batch) in batches {
            tables.insert(name.to_owned(), write_table(&self.out, name, &batch).await?);
        }
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            kind: ManifestKind::Dataset,
            version: 1,
            job: self.digest.clone(),
            input: input_ref,
            options,
            seed: 0,
            schema,
            rows: done.counts.accepted,
            tables,
            ingest: Some(done.counts),
            layout: None,
            balance: None,
            parent: None,
        };
        // The last moment at which a source that changed can be told.
        if let Err(e) = self.check_sources().await {
            self.remove_tables(&manifest).await?;
            return Err(e);
        }
        manifest.publish(&self.out).await?;
        self.remove_old_tables(&manifest).await?;
        Ok((manifest, report))
    }

    /// Refuses to publish digests of bytes that are no longer there.
    async fn check_sources(&self) -> Result<()> {
        let sources = Arc::clone(&self.plan.sources);
        compute(move || sources.iter().try_for_each(ScannedSource::check_unchanged)).await
    }

    /// Refuses to publish files that are gone: another run at the same output may have removed them.
    async fn check_files(&self, done: &Done) -> Result<()> {
        let mut stored = BTreeMap::new();
        for folder in [DATA, REJECTS] {
            stored.extend(self.out.list(folder).await?.into_iter().map(|o| (o.path, o.bytes)));
        }
        for file in done.data.iter().chain(&done.rejects) {
            if stored.get(&file.path) != Some(&file.bytes) {
                return Err(Error::Data {
                    url: self.out.url(&file.path),
                    what: "it is no longer there as it was written; another run may use the same output".into(),
                    help: "run again when no other run writes there".into(),
                });
            }
        }
        Ok(())
    }

    /// After a failure: what this job wrote and can't be of use is removed. The failure itself is what is told, so a
    /// removal that fails is only logged.
    async fn fail(&self, error: &Error, before: Before) {
        // Nothing of a run that can't succeed is of use to a later one.
        let undone = if matches!(error.kind(), ErrorKind::Data | ErrorKind::Usage) {
            undo(&self.out, &self.digest).await
        } else {
            Ok(())
        };
        if let Err(e) = undone.and_then(|()| remove_empty_folders(&self.out, &self.digest, before)) {
            tracing::warn!("{}: not all that the failed run wrote could be removed: {e}", self.out.url(""));
        }
    }

    /// Tables of a manifest that is not going to be published, except those that a published one has too.
    async fn remove_tables(&self, manifest: &Manifest) -> Result<()> {
        let latest = Manifest::latest(&self.out).await?;
        for table in manifest.tables.values() {
            if !latest.as_ref().is_some_and(|l| l.tables.values().any(|t| t.path == table.path)) {
                self.out.delete(&table.path).await?;
            }
        }
        Ok(())
    }

    /// Tables of an interrupted job with other input.
    async fn remove_old_tables(&self, manifest: &Manifest) -> Result<()> {
        for object in self.out.list(&format!("{META}/tables")).await? {
            if !manifest.tables.values().any(|t| t.path == object.path) {
                self.out.delete(&object.path).await?;
            }
        }
        Ok(())
    }

    fn report(&self, done: &Done, input: &InputColumns) -> IngestReport {
        let mut columns = Vec::new();
        for (column, evidence) in input.schema.columns.iter().zip(&input.evidence) {
            columns.push(ColumnReport {
                name: column.name.clone(),
                stage: "input".into(),
                column_type: column.column_type.to_string(),
                nullable: column.nullable,
                evidence: evidence.clone(),
            });
        }
        columns.extend(input.unread.iter().map(|name| ColumnReport {
            name: name.clone(),
            stage: "unread".into(),
            column_type: String::new(),
            nullable: true,
            evidence: "not listed by the schema".into(),
        }));
        if self.plan.sql.is_some() {
            columns.extend(self.plan.output.columns.iter().map(|column| ColumnReport {
                name: column.name.clone(),
                stage: "output".into(),
                column_type: column.column_type.to_string(),
                nullable: column.nullable,
                evidence: "the query".into(),
            }));
        }
        let files = self
            .plan
            .sources
            .iter()
            .zip(&done.by_source)
            .map(|(s, counts)| FileReport {
                name: s.name.clone(),
                bytes: s.bytes,
                blake3: s.blake3.clone(),
                counts: *counts,
            })
            .collect();
        IngestReport { counts: done.counts, files, columns, rejects: done.summary.clone(), skipped: Vec::new() }
    }
}
