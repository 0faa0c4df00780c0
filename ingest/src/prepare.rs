//! Before the work: every source is read once for its identity, its columns are settled, and the units are listed.

use std::{ops::Range, path::PathBuf, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use gristmill_shard::{
    Control, Error, Result, StopFlag,
    control::{Unit as ProgressUnit, compute},
    manifest::InputRef,
    nearest_name,
    schema::{Column, ColumnType, DatasetSchema},
};

use crate::{
    csv_records::Dialect,
    csv_rows::{CsvFormat, NullValues, profile_piece},
    csv_scan::{CsvScan, Piece, scan_csv},
    infer::{Candidates, reads_as_value},
    options::{CsvOptions, IngestOptions},
    parquet_rows::ParquetInfo,
    sources::{FileStamp, Format, SourceFile, digest_file, read_piece},
};

/// A source whose bytes have been read once.
#[derive(Debug, Clone)]
pub(crate) struct ScannedSource {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) blake3: String,
    pub(crate) content: Content,
    pub(crate) stamp: FileStamp,
}

impl ScannedSource {
    /// Refuses a file that is not the one that was scanned.
    ///
    /// # Errors
    /// [`Error::Data`] when it changed.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.stamp.check(&self.path, &self.name)
    }

    /// What `read` gives, when the file is before and after it as it was scanned. A change is told rather than what
    /// `read` made of it.
    ///
    /// # Errors
    /// [`Error::Data`] when the file changed, and those of `read`.
    pub(crate) fn while_unchanged<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_unchanged()?;
        let result = read();
        self.check_unchanged()?;
        result
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Content {
    Csv { dialect: Dialect, scan: Arc<CsvScan> },
    Parquet(Arc<ParquetInfo>),
}

/// Reads every source once: digests, headers, footers, and where CSV can be cut.
pub(crate) async fn scan_sources(
    files: &[SourceFile],
    options: &IngestOptions,
    control: &Control,
) -> Result<Vec<ScannedSource>> {
    let mut total = 0;
    for file in files {
        total += fs_err::metadata(&file.path).map_or(0, |m| m.len());
    }
    control.progress.start("read sources", total, ProgressUnit::Bytes);
    let scans = stream::iter(files.to_vec())
        .map(|file| {
            let (options, stop, progress) = (options.clone(), control.stop.clone(), Arc::clone(&control.progress));
            async move {
                let scanned = compute(move || scan_source(file, &options, &stop)).await?;
                progress.advance(scanned.bytes);
                Ok::<_, Error>(scanned)
            }
        })
        .buffered(control.threads.max(1))
        .try_collect()
        .await;
    control.progress.finish();
    scans
}

fn scan_source(file: SourceFile, options: &IngestOptions, stop: &StopFlag) -> Result<ScannedSource> {
    stop.check()?;
    let stamp = FileStamp::of(&file.path, &file.name)?;
    let (path, name) = (file.path.clone(), file.name.clone());
    let scanned = scan_file(file, stamp, options, stop);
    // A digest of bytes of two times would name a file that never was.
    stamp.check(&path, &name)?;
    scanned
}

fn scan_file(file: SourceFile, stamp: FileStamp, options: &IngestOptions, stop: &StopFlag) -> Result<ScannedSource> {
    let SourceFile { path, name, format } = file;
    let default_delimiter = match format {
        Format::Csv => ',',
        Format::Tsv => '\t',
        Format::Parquet => {
            let info = ParquetInfo::open(&path, &name)?;
            let (bytes, blake3) = digest_file(&path, &name, stop)?;
            return Ok(ScannedSource { path, name, bytes, blake3, content: Content::Parquet(Arc::new(info)), stamp });
        }
    };
    let dialect = dialect(&options.csv, default_delimiter);
    let scan = scan_csv(&path, &name, dialect, options.csv.has_header, options.unit_bytes, stop)?;
    let (bytes, blake3) = (scan.bytes, scan.blake3.clone());
    Ok(ScannedSource { path, name, bytes, blake3, content: Content::Csv { dialect, scan: Arc::new(scan) }, stamp })
}

/// Both were checked to be ASCII.
fn dialect(csv: &CsvOptions, default_delimiter: char) -> Dialect {
    let ascii = |c: char| u8::try_from(c).unwrap_or(b',');
    Dialect { delimiter: ascii(csv.delimiter.unwrap_or(default_delimiter)), quote: ascii(csv.quote) }
}

/// What the job reads, as the manifest names it.
pub(crate) fn input_ref(sources: &[ScannedSource]) -> InputRef {
    let mut hasher = blake3::Hasher::new();
    for source in sources {
        for part in [source.name.as_bytes(), source.blake3.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(&source.bytes.to_le_bytes());
    }
    InputRef { kind: "files".into(), digest: hasher.finalize().to_hex().to_string() }
}

/// Columns of the input and why they are as they are.
#[derive(Debug, Clone)]
pub(crate) struct InputColumns {
    pub(crate) schema: DatasetSchema,
    /// By column of the schema.
    pub(crate) evidence: Vec<String>,
    /// Columns of the sources that the schema given does not list.
    pub(crate) unread: Vec<String>,
}

/// Work that makes at most one file.
#[derive(Debug, Clone)]
pub(crate) struct UnitSpec {
    /// Ordinal of the source.
    pub(crate) source: u32,
    /// Row of its first row in the source.
    pub(crate) row: u64,
    /// Rows, refused ones included.
    pub(crate) rows: u64,
    pub(crate) part: Part,
}

#[derive(Debug, Clone)]
pub(crate) enum Part {
    Csv { piece: Piece, format: Arc<CsvFormat> },
    Parquet { groups: Range<usize> },
}

/// Settles the columns and lists the units, reading all CSV once more to count rows and to infer types.
pub(crate) async fn plan_input(
    sources: &Arc<Vec<ScannedSource>>,
    options: &IngestOptions,
    control: &Control,
) -> Result<(InputColumns, Vec<UnitSpec>)> {
    let nulls = NullValues::new(&options.csv.null_values);
    let infer = options.schema.is_none();
    let mut names: Option<Vec<String>> = None;
    let mut unread = Vec::new();
    let mut pieces = Vec::new();
    let mut formats: Vec<Option<Arc<CsvFormat>>> = Vec::with_capacity(sources.len());
    for (ordinal, source) in sources.iter().enumerate() {
        let found = match &source.content {
            Content::Csv { scan, .. } => header(source, scan, options)?,
            Content::Parquet(info) => info.names(),
        };
        let wanted = match (&options.schema, &names) {
            (Some(schema), _) => schema.columns.iter().map(|c| c.name.clone()).collect(),
            (None, Some(names)) => names.clone(),
            (None, None) => {
                names = Some(found.clone());
                found.clone()
            }
        };
        let first = sources.first().map_or("", |s| s.name.as_str());
        let columns = match_columns(&source.name, &found, &wanted, infer.then_some(first))?;
        unread.extend(found.iter().zip(&columns).filter(|(_, c)| c.is_none()).map(|(name, _)| name.clone()));
        formats.push(match &source.content {
            Content::Csv { dialect, scan } => {
                let format =
                    Arc::new(CsvFormat { dialect: *dialect, nulls: nulls.clone(), width: found.len(), columns });
                pieces.extend(scan.pieces.iter().map(|p| (ordinal, p.clone(), Arc::clone(&format))));
                Some(format)
            }
            Content::Parquet(_) => None,
        });
    }
    unread.sort();
    unread.dedup();
    let profiles = profile(sources, pieces, infer, control).await?;
    let input = settle_columns(sources, options, &profiles, &formats, names.unwrap_or_default(), unread)?;
    Ok((input, list_units(sources, options, &profiles, &formats)))
}

struct Profiled {
    source: usize,
    piece: Piece,
    rows: u64,
    candidates: Vec<Candidates>,
}

async fn profile(
    sources: &Arc<Vec<ScannedSource>>,
    pieces: Vec<(usize, Piece, Arc<CsvFormat>)>,
    infer: bool,
    control: &Control,
) -> Result<Vec<Profiled>> {
    control.progress.start(if infer { "infer types" } else { "count rows" }, pieces.len() as u64, ProgressUnit::Items);
    let profiles = stream::iter(pieces)
        .map(|(source, piece, format)| {
            let (sources, stop, progress) = (Arc::clone(sources), control.stop.clone(), Arc::clone(&control.progress));
            async move {
                let profiled = compute(move || {
                    stop.check()?;
                    let file = &sources[source];
                    let data = file.while_unchanged(|| read_piece(&file.path, &file.name, piece.start, piece.end))?;
                    let profile = profile_piece(&data, &format, infer, source as u32, &stop)?;
                    Ok(Profiled { source, piece, rows: profile.rows, candidates: profile.candidates })
                })
                .await?;
                progress.advance(1);
                Ok::<_, Error>(profiled)
            }
        })
        .buffered(control.threads.max(1))
        .try_collect()
        .await;
    control.progress.finish();
    profiles
}

/// Names of a CSV file's columns.
fn header(source: &ScannedSource, scan: &CsvScan, options: &IngestOptions) -> Result<Vec<String>> {
    let width = scan.first_record.len();
    if !options.csv.has_header {
        let names: Vec<String> = match &options.schema {
            Some(schema) => schema.columns.iter().map(|c| c.name.clone()).collect(),
            None => (0..width).map(|i| format!("column_{i}")).collect(),
        };
        if names.len() != width {
            return Err(Error::usage(
                format!("{}: the first record has {width} fields, the schema {} columns", source.name, names.len()),
                "without a header the schema lists every column in order",
            ));
        }
        return Ok(names);
    }
    let names = scan.first_record.clone();
    if options.schema.is_none() && names.iter().all(|n| reads_as_value(n)) {
        return Err(Error::usage(
            format!("{}: the first line ({}) reads as data, not as a header", source.name, names.join(", ")),
            "say that there is no header (has_header = false), or add one",
        ));
    }
    let listed = DatasetSchema {
        columns: names
            .iter()
            .map(|name| Column {
                name: name.clone(),
                column_type: ColumnType::Plain(arrow::datatypes::DataType::LargeUtf8),
                nullable: true,
                role: None,
            })
            .collect(),
    };
    // Only columns that are read need good names.
    let read = match &options.schema {
        Some(schema) => {
            let wanted = |c: &Column| schema.columns.iter().any(|s| s.name == c.name);
            DatasetSchema { columns: listed.columns.into_iter().filter(wanted).collect() }
        }
        None => listed,
    };
    read.check_names(&source.name).map_err(|e| match e {
        Error::Usage { what, .. } => {
            Error::usage(what, "rename columns in the header, or leave them out with a schema that does not list them")
        }
        other => other,
    })?;
    Ok(names)
}

/// For each of a file's columns the wanted one that it is. With `same_as`, files must agree on what there is.
fn match_columns(file: &str, found: &[String], wanted: &[String], same_as: Option<&str>) -> Result<Vec<Option<usize>>> {
    for name in wanted {
        if !found.contains(name) {
            let near = nearest_name(name, found.iter().map(String::as_str));
            return Err(match same_as {
                Some(first) => Error::usage(
                    format!("{file} has no column \"{name}\", {first} has"),
                    format!("{near}; ingest files of one kind together"),
                ),
                None => Error::usage(format!("{file} has no column \"{name}\", which the schema lists"), near),
            });
        }
    }
    let columns: Vec<Option<usize>> = found.iter().map(|name| wanted.iter().position(|w| w == name)).collect();
    if let (Some(first), Some(extra)) = (same_as, found.iter().zip(&columns).find(|(_, c)| c.is_none())) {
        return Err(Error::usage(
            format!("{file} has a column \"{}\", {first} has none", extra.0),
            "give a schema that lists the columns to read, or ingest files of one kind together",
        ));
    }
    Ok(columns)
}

fn settle_columns(
    sources: &[ScannedSource],
    options: &IngestOptions,
    profiles: &[Profiled],
    formats: &[Option<Arc<CsvFormat>>],
    names: Vec<String>,
    unread: Vec<String>,
) -> Result<InputColumns> {
    let mut settled: Option<(DatasetSchema, Vec<String>, String)> = None;
    if let Some(schema) = &options.schema {
        settled =
            Some((schema.clone(), vec!["given by the schema".to_owned(); schema.columns.len()], "the schema".into()));
    } else if let Some(first) = formats.iter().position(Option::is_some) {
        let (schema, evidence) = infer_csv(sources, profiles, formats, &names);
        settled = Some((schema, evidence, sources[first].name.clone()));
    }
    for source in sources {
        let Content::Parquet(info) = &source.content else { continue };
        let schema = info.schema(&source.name, options.schema.as_ref())?;
        match &mut settled {
            None => {
                let evidence = vec![format!("the type in {}", source.name); schema.columns.len()];
                settled = Some((schema, evidence, source.name.clone()));
            }
            Some((known, _, by)) => {
                for column in &mut known.columns {
                    let other = schema.column(&column.name, &source.name)?;
                    if other.column_type != column.column_type {
                        return Err(Error::usage(
                            format!(
                                "{}: column \"{}\" is {}, in {by} it is {}",
                                source.name, column.name, other.column_type, column.column_type
                            ),
                            "convert one of them, or ingest them apart",
                        ));
                    }
                    // Given columns are a demand; found ones are what all files together have.
                    if options.schema.is_none() {
                        column.nullable |= other.nullable;
                    }
                }
            }
        }
    }
    let (schema, evidence, _) = settled.unwrap_or_default();
    Ok(InputColumns { schema, evidence, unread })
}

fn infer_csv(
    sources: &[ScannedSource],
    profiles: &[Profiled],
    formats: &[Option<Arc<CsvFormat>>],
    names: &[String],
) -> (DatasetSchema, Vec<String>) {
    let mut merged = vec![Candidates::default(); names.len()];
    let (mut source, mut row) = (usize::MAX, 0);
    for profile in profiles {
        if profile.source != source {
            (source, row) = (profile.source, 0);
        }
        let columns = formats[source].as_ref().map_or(&[][..], |f| &f.columns);
        for (candidates, column) in profile.candidates.iter().zip(columns) {
            if let Some(column) = column {
                let mut candidates = candidates.clone();
                candidates.shift_rows(row);
                merged[*column].merge(&candidates);
            }
        }
        row += profile.rows;
    }
    let file_name = |file: u32| sources.get(file as usize).map_or_else(String::new, |s| s.name.clone());
    let mut columns = Vec::with_capacity(names.len());
    let mut evidence = Vec::with_capacity(names.len());
    for (name, candidates) in names.iter().zip(&merged) {
        let inferred = candidates.resolve(&file_name);
        columns.push(Column {
            name: name.clone(),
            column_type: inferred.column_type,
            nullable: inferred.nullable,
            role: None,
        });
        evidence.push(inferred.evidence);
    }
    (DatasetSchema { columns }, evidence)
}

fn list_units(
    sources: &[ScannedSource],
    options: &IngestOptions,
    profiles: &[Profiled],
    formats: &[Option<Arc<CsvFormat>>],
) -> Vec<UnitSpec> {
    let mut units = Vec::new();
    let mut next = profiles.iter().peekable();
    for (ordinal, source) in sources.iter().enumerate() {
        let mut row = 0;
        match (&source.content, &formats[ordinal]) {
            (Content::Parquet(info), _) => {
                for groups in info.runs(options.unit_bytes) {
                    let rows = info.rows(&groups);
                    units.push(UnitSpec { source: ordinal as u32, row, rows, part: Part::Parquet { groups } });
                    row += rows;
                }
            }
            (Content::Csv { .. }, Some(format)) => {
                while let Some(profile) = next.next_if(|p| p.source == ordinal) {
                    let part = Part::Csv { piece: profile.piece.clone(), format: Arc::clone(format) };
                    units.push(UnitSpec { source: ordinal as u32, row, rows: profile.rows, part });
                    row += profile.rows;
                }
            }
            (Content::Csv { .. }, None) => {}
        }
    }
    units
}
