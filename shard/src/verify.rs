//! Proves a data set or a shard set from its bytes: digests, exactly-once, balance.

use std::collections::{BTreeMap, HashMap, HashSet};

use arrow::{array::AsArray, datatypes::Int64Type};
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::{
    assign::rounding::Shares,
    balance::Balance,
    control::{Control, Unit, compute},
    error::{Error, ErrorKind, Result},
    manifest::{Layout, META, Manifest, ManifestKind},
    parquet_reader::{ParquetFile, RowGroupBytes},
    schema::ROW_ID,
    storage::Storage,
    strata::{self, StratumKey},
    tables::{self, FileEntry},
};

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct VerifyReport {
    /// Data set or shards.
    pub kind: ManifestKind,
    /// Files read.
    pub files: u64,
    /// Rows read.
    pub rows: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong; empty when all is well.
    pub problems: Vec<Problem>,
    /// Balance counted from the rows (shards only).
    pub balance: Option<Balance>,
}

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, or the manifest for what concerns the whole.
    pub path: String,
    /// What is wrong with it.
    pub what: String,
}

/// Problems listed in full; of more, the number is told.
const MAX_PROBLEMS: usize = 100;

/// Reads everything at `storage` and checks it against its manifest.
///
/// # Errors
/// [`Error::NotFound`] when there is no manifest, storage errors, [`Error::Stopped`]. What is wrong with the data is not an error
/// but a [`Problem`].
pub async fn verify(storage: &Storage, control: &Control) -> Result<VerifyReport> {
    let manifest = Manifest::latest(storage).await?.ok_or_else(|| Error::NotFound {
        url: storage.url(META),
        help: "give a folder that `gristmill ingest` or `gristmill shard` made".into(),
    })?;
    let mut report =
        VerifyReport { kind: manifest.kind, files: 0, rows: 0, bytes: 0, problems: Vec::new(), balance: None };
    let manifest_path = Manifest::path(manifest.version);
    for (name, table) in &manifest.tables {
        check_table(storage, name, table, &mut report).await?;
    }
    let lists = (tables::read_files(storage, &manifest).await, tables::read_reject_files(storage, &manifest).await);
    let (files, rejects) = match lists {
        (Ok(files), Ok(rejects)) => (files, rejects),
        (Err(e), _) | (_, Err(e)) => {
            report.add(&manifest_path, format!("its file list can't be read: {e}"));
            return Ok(report);
        }
    };
    for path in unlisted(storage, &[files.as_slice(), &rejects].concat(), &manifest).await? {
        report.add(&path, "no manifest lists this file".into());
    }
    let stratify = manifest.layout.as_ref().map(|l| l.stratify.clone()).unwrap_or_default();
    let ids = manifest.kind == ManifestKind::Shards;
    control.progress.start("verify", files.iter().map(|f| f.bytes).sum(), Unit::Bytes);
    let mut once = Once::new(storage, &manifest, &mut report).await;
    let mut counted: Vec<BTreeMap<StratumKey, u64>> = Vec::with_capacity(files.len());
    {
        let mut checks = futures::stream::iter(files.iter().cloned())
            .map(|file| check_file(storage.clone(), file, stratify.clone(), ids, control))
            .buffered(control.threads.max(1));
        while let Some(check) = checks.try_next().await? {
            report.files += 1;
            report.rows += check.rows;
            report.bytes += check.bytes;
            for what in check.problems {
                report.add(&check.path, what);
            }
            once.add(&check.path, &check.ids, &mut report);
            counted.push(check.strata);
        }
    }
    control.progress.finish();
    let listed: u64 = files.iter().map(|f| f.rows).sum();
    if listed != manifest.rows {
        report.add(&manifest_path, format!("it says {} rows, its files list {listed}", manifest.rows));
    }
    let mut refused = 0;
    for file in rejects {
        let check = check_file(storage.clone(), file, Vec::new(), false, control).await?;
        report.files += 1;
        report.bytes += check.bytes;
        refused += check.rows;
        for what in check.problems {
            report.add(&check.path, what);
        }
    }
    if let Some(counts) = manifest.ingest {
        let sum = counts.accepted.saturating_add(counts.rejected).saturating_add(counts.filtered);
        let whole = report.problems.is_empty();
        if counts.rows_in != sum || counts.accepted != manifest.rows || (whole && counts.rejected != refused) {
            report.add(&manifest_path, format!("rows in {} are not accounted for: {counts:?}", counts.rows_in));
        }
    }
    once.finish(&manifest_path, &mut report);
    if let Some(layout) = &manifest.layout {
        check_balance(&manifest, layout, &files, &counted, &mut report);
    }
    let more = report.problems.len().saturating_sub(MAX_PROBLEMS);
    if more > 0 {
        report.problems.truncate(MAX_PROBLEMS);
        report.add(&manifest_path, format!("{more} more problems"));
    }
    Ok(report)
}

impl VerifyReport {
    fn add(&mut self, path: &str, what: String) {
        self.problems.push(Problem { path: path.to_owned(), what });
    }
}

async fn check_table(
    storage: &Storage,
    name: &str,
    table: &crate::manifest::TableRef,
    report: &mut VerifyReport,
) -> Result<()> {
    match storage.get(&table.path).await {
        Ok(bytes) if blake3::hash(&bytes).to_hex().as_str() == table.blake3 => report.bytes += bytes.len() as u64,
        Ok(_) => report.add(&table.path, format!("table \"{name}\" is not what was written (its digest differs)")),
        Err(e) if e.kind() == ErrorKind::NotFound => report.add(&table.path, format!("table \"{name}\" is missing")),
        Err(e) => return Err(e),
    }
    Ok(())
}

struct FileCheck {
    path: String,
    rows: u64,
    bytes: u64,
    problems: Vec<String>,
    ids: Vec<i64>,
    strata: BTreeMap<StratumKey, u64>,
}

async fn check_file(
    storage: Storage,
    file: FileEntry,
    stratify: Vec<String>,
    ids: bool,
    control: &Control,
) -> Result<FileCheck> {
    control.stop.check()?;
    let mut check = FileCheck {
        path: file.path.clone(),
        rows: 0,
        bytes: 0,
        problems: Vec::new(),
        ids: Vec::new(),
        strata: BTreeMap::new(),
    };
    let bytes = match storage.get(&file.path).await {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            check.problems.push("it is missing".into());
            control.progress.advance(file.bytes);
            return Ok(check);
        }
        Err(e) => return Err(e),
    };
    check.bytes = bytes.len() as u64;
    control.progress.advance(file.bytes);
    if check.bytes != file.bytes {
        check.problems.push(format!("it has {} bytes, the manifest says {}", check.bytes, file.bytes));
        return Ok(check);
    }
    // A footer that is not the one written must not be parsed as if it were; the digest comes first.
    let digest = {
        let bytes = bytes.clone();
        compute(move || Ok(blake3::hash(&bytes).to_hex().to_string())).await?
    };
    if digest != file.blake3 {
        check.problems.push("it is not what was written (its digest differs)".into());
        return Ok(check);
    }
    let parquet = match ParquetFile::open(&storage, &file.path).await {
        Ok(parquet) => parquet,
        Err(e) => {
            check.problems.push(e.to_string());
            return Ok(check);
        }
    };
    compute(move || {
        read_rows(&parquet, &file, &RowGroupBytes::new(0, bytes), &stratify, ids, &mut check);
        Ok(check)
    })
    .await
}

fn read_rows(
    parquet: &ParquetFile,
    file: &FileEntry,
    bytes: &RowGroupBytes,
    stratify: &[String],
    ids: bool,
    check: &mut FileCheck,
) {
    let rows: Vec<u64> = file.row_groups.iter().map(|g| g.rows).collect();
    if parquet.row_group_rows() != rows || file.rows != rows.iter().sum::<u64>() {
        check.problems.push("its row groups are not those of the manifest".into());
    }
    for index in 0..rows.len().min(parquet.row_group_rows().len()) {
        let batch = match parquet.decode(index, bytes, None) {
            Ok(batch) => batch,
            Err(e) => {
                check.problems.push(e.to_string());
                continue;
            }
        };
        check.rows += batch.num_rows() as u64;
        if !ids {
            continue;
        }
        match batch.column_by_name(ROW_ID).and_then(|c| c.as_primitive_opt::<Int64Type>()) {
            Some(column) => check.ids.extend_from_slice(column.values()),
            None => check.problems.push(format!("it has no {ROW_ID} column")),
        }
        match strata::key_columns(&batch, stratify).and_then(|columns| strata::count(&columns, batch.num_rows())) {
            Ok(counts) => {
                for (key, rows) in counts {
                    *check.strata.entry(key).or_insert(0) += rows;
                }
            }
            Err(e) => check.problems.push(e.to_string()),
        }
    }
}

/// Row ids seen so far: one bit a row of each input file.
struct Once {
    seen: Vec<Vec<u64>>,
    rows: Vec<u64>,
    names: Vec<String>,
}

impl Once {
    async fn new(storage: &Storage, manifest: &Manifest, report: &mut VerifyReport) -> Self {
        let mut once = Self { seen: Vec::new(), rows: Vec::new(), names: Vec::new() };
        if manifest.kind == ManifestKind::Shards {
            match tables::read_inputs(storage, manifest).await {
                Ok(inputs) => {
                    for input in inputs {
                        once.seen.push(vec![0; usize::try_from(input.rows.div_ceil(64)).unwrap_or(0)]);
                        once.rows.push(input.rows);
                        once.names.push(input.path);
                    }
                }
                Err(e) => report.add(&Manifest::path(manifest.version), format!("its inputs can't be read: {e}")),
            }
        }
        once
    }

    fn add(&mut self, path: &str, ids: &[i64], report: &mut VerifyReport) {
        let (mut repeated, mut unknown, mut first) = (0_u64, 0_u64, None);
        for id in ids {
            let (file, row) = ((*id as u64 >> 40) as usize, (*id as u64) & ((1 << 40) - 1));
            if *id < 0 || self.rows.get(file).is_none_or(|n| row >= *n) {
                unknown += 1;
                first.get_or_insert(*id);
                continue;
            }
            let word = &mut self.seen[file][(row / 64) as usize];
            if *word >> (row % 64) & 1 == 1 {
                repeated += 1;
                first.get_or_insert(*id);
            }
            *word |= 1 << (row % 64);
        }
        if repeated > 0 {
            report.add(
                path,
                format!("{repeated} rows are in the set a second time (first: {ROW_ID} {})", first.unwrap_or(0)),
            );
        }
        if unknown > 0 {
            report.add(path, format!("{unknown} rows are of no input (first: {ROW_ID} {})", first.unwrap_or(0)));
        }
    }

    fn finish(&self, manifest_path: &str, report: &mut VerifyReport) {
        for ((seen, rows), name) in self.seen.iter().zip(&self.rows).zip(&self.names) {
            let present: u64 = seen.iter().map(|w| u64::from(w.count_ones())).sum();
            if present != *rows {
                report.add(manifest_path, format!("{} rows of input {name} are in no shard", rows - present));
            }
        }
    }
}

fn check_balance(
    manifest: &Manifest,
    layout: &Layout,
    files: &[FileEntry],
    counted: &[BTreeMap<StratumKey, u64>],
    report: &mut VerifyReport,
) {
    let path = Manifest::path(manifest.version);
    let keys: Vec<&StratumKey> = counted.iter().flat_map(BTreeMap::keys).collect::<HashSet<_>>().into_iter().collect();
    let place: HashMap<&str, usize> = layout.splits.iter().enumerate().map(|(s, i)| (i.name.as_str(), s)).collect();
    let mut by_stratum: HashMap<&StratumKey, Vec<(usize, u32, u64)>> = HashMap::new();
    for (file, counts) in files.iter().zip(counted) {
        let Some(split) = place.get(file.split.as_str()) else {
            report.add(&file.path, format!("its split \"{}\" is not in the layout", file.split));
            continue;
        };
        for (key, rows) in counts {
            by_stratum.entry(key).or_default().push((*split, file.lane + layout.lanes * file.sequence, *rows));
        }
    }
    let names: Vec<String> = (0..keys.len()).map(|c| format!("stratum {c}")).collect();
    let balance = Balance::new(layout, &names, |s, c| {
        let mut leaves = vec![0; (layout.lanes * layout.splits[s].files_per_lane.max(1)) as usize];
        for (split, leaf, rows) in by_stratum.get(keys[c]).into_iter().flatten() {
            if let (true, Some(sum)) = (*split == s, leaves.get_mut(*leaf as usize)) {
                *sum += rows;
            }
        }
        leaves
    });
    if report.problems.is_empty() && !balance.is_exact() {
        report.add(&path, "its rows break the balance bounds".into());
    }
    check_splits(layout, &by_stratum, &path, report);
    report.balance = Some(balance);
}

/// Floor and ceiling of each stratum's share of each split, and of the whole.
fn check_splits(
    layout: &Layout,
    by_stratum: &HashMap<&StratumKey, Vec<(usize, u32, u64)>>,
    path: &str,
    report: &mut VerifyReport,
) {
    if !report.problems.is_empty() {
        return;
    }
    let text: Vec<String> = layout.splits.iter().map(|s| format!("{}={}", s.name, s.share)).collect();
    let Ok(shares) = Shares::parse(&text.join(",")) else {
        report.add(path, format!("its shares \"{}\" are not shares", text.join(",")));
        return;
    };
    let mut totals = vec![0_u64; layout.splits.len()];
    let mut outside = 0;
    for parts in by_stratum.values() {
        let mut counts = vec![0_u64; layout.splits.len()];
        for (split, _, rows) in parts {
            counts[*split] += rows;
            totals[*split] += rows;
        }
        let n: u64 = counts.iter().sum();
        outside += counts
            .iter()
            .enumerate()
            .filter(|(s, count)| {
                let (low, high) = shares.bounds(*s, n);
                !(low..=high).contains(*count)
            })
            .count();
    }
    if outside > 0 {
        report.add(path, format!("{outside} strata are outside their share of a split"));
    }
    let n: u64 = totals.iter().sum();
    for (s, total) in totals.iter().enumerate() {
        let (low, high) = shares.bounds(s, n);
        if !(low..=high).contains(total) || *total != layout.splits[s].rows {
            report.add(
                path,
                format!("split \"{}\" has {total} rows, its share is {low} to {high}", layout.splits[s].name),
            );
        }
    }
}

/// Files of gristmill's own naming below `storage` that `manifest` does not list.
///
/// # Errors
/// Storage errors.
pub async fn unlisted(storage: &Storage, files: &[FileEntry], manifest: &Manifest) -> Result<Vec<String>> {
    let known: HashSet<&str> =
        files.iter().map(|f| f.path.as_str()).chain(manifest.tables.values().map(|t| t.path.as_str())).collect();
    Ok(storage
        .list("")
        .await?
        .into_iter()
        .map(|l| l.path)
        .filter(|p| is_ours(p) && !known.contains(p.as_str()))
        .collect())
}

/// Whether a path has the form of a data file or table of ours: `…-<8 hexadecimal digits>.parquet`.
pub(crate) fn is_ours(path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    let digest = name.strip_suffix(".parquet").and_then(|n| n.rsplit_once('-')).map(|(_, d)| d);
    let named = digest.is_some_and(|d| d.len() == 8 && d.bytes().all(|b| b.is_ascii_hexdigit()));
    let place = folder == format!("{META}/tables")
        || folder == "data"
        || folder == "rejects"
        || folder.rsplit_once('/').is_some_and(|(_, lane)| lane.starts_with("lane-"));
    named && place
}
