//! Raw files: which there are, what they are called in the data set, and reading them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::Read,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use gristmill_shard::{Error, Result, StopFlag, schema::MAX_FILES, storage::absolute_path};

/// What a raw file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Comma separated.
    Csv,
    /// Tab separated.
    Tsv,
    /// Parquet.
    Parquet,
}

/// A raw file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What it is called in the data set: its path below the folder that all sources share.
    pub(crate) name: String,
    pub(crate) format: Format,
}

/// The files of a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    /// In byte order of their names.
    pub(crate) files: Vec<SourceFile>,
    /// Files of folders that are not data, by name.
    pub(crate) skipped: Vec<String>,
}

/// Sorts an I/O error by what the caller can do about it.
pub(crate) fn io_error(name: &str, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::NotFound { url: name.to_owned(), help: "check the spelling of the path".into() };
    }
    let source = object_store::Error::Generic { store: "local file", source: Box::new(error) };
    Error::from_store("read", name.to_owned(), source)
}

/// Finds the files of `sources` (files, folders, and patterns whose last part has `*` or `?`).
///
/// # Errors
/// [`Error::NotFound`], [`Error::Permission`], and [`Error::Usage`] for a source without data files, a compressed or
/// unknown file, what is no regular file, or a file that is named twice. Files are told apart by their paths without
/// links: a file that a folder holds under several names is read once.
pub(crate) fn find_sources(sources: &[String], out: Option<&Path>) -> Result<Sources> {
    if sources.is_empty() {
        return Err(Error::usage("no source is given", "name the files or folders to ingest"));
    }
    let out = out.map(real_output);
    let mut found: BTreeMap<PathBuf, Format> = BTreeMap::new();
    let mut known = BTreeSet::new();
    let mut skipped = Vec::new();
    let mut bases = Vec::new();
    for source in sources {
        if let Some((scheme, _)) = source.split_once("://") {
            return Err(Error::usage(
                format!("{source}: sources are read from local paths, not from {scheme}://"),
                "copy the files here first",
            ));
        }
        let path = absolute_path(Path::new(source))?;
        let mut files = Vec::new();
        let mut by_name = false;
        match fs_err::metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                walk(source, &path, out.as_deref(), &mut files, &mut skipped)?;
                bases.push(path.clone());
            }
            Ok(_) => {
                by_name = true;
                refuse_irregular(&path)?;
                let format = format_of(&path)?.ok_or_else(|| unknown(&path))?;
                files.push((path.clone(), format));
                bases.push(parent(&path));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && is_pattern(&path) => {
                matching(&path, &mut files, &mut skipped)?;
                bases.push(parent(&path));
            }
            Err(e) => return Err(io_error(source, e)),
        }
        if files.is_empty() {
            return Err(Error::usage(
                format!("{source} has no data files"),
                "data files end in .csv, .tsv or .parquet; give another folder or pattern",
            ));
        }
        let mut own = BTreeSet::new();
        let mut is_new = false;
        for (path, real, format) in by_real_path(files, &path)? {
            if !own.insert(real.clone()) {
                continue;
            }
            if !known.contains(&real) {
                found.insert(path, format);
                is_new = true;
            } else if by_name || found.contains_key(&path) {
                return Err(named_twice(&path));
            }
        }
        if !is_new {
            return Err(named_twice(&path));
        }
        known.append(&mut own);
    }
    let base = bases.into_iter().reduce(|a, b| common_folder(&a, &b)).unwrap_or_default();
    let mut files = Vec::with_capacity(found.len());
    for (path, format) in found {
        files.push(SourceFile { name: name_below(&base, &path)?, path, format });
    }
    files.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    if files.len() as u64 > MAX_FILES {
        return Err(Error::usage(
            format!("{} source files, at most {MAX_FILES}", files.len()),
            "merge small files first",
        ));
    }
    let mut skipped: Vec<String> = skipped.iter().map(|p| name_below(&base, p)).collect::<Result<_>>()?;
    skipped.sort();
    skipped.dedup();
    Ok(Sources { files, skipped })
}

fn named_twice(path: &Path) -> Error {
    Error::usage(
        format!("{} is named twice by the sources", path.display()),
        "name each file once, or its rows would be doubled",
    )
}

/// The path without links.
fn real_path(path: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|e| io_error(&path.display().to_string(), e))
}

/// The output's path without links, as far as it exists.
fn real_output(out: &Path) -> PathBuf {
    let mut missing = Vec::new();
    let mut folder = out;
    loop {
        if let Ok(real) = std::fs::canonicalize(folder) {
            return missing.iter().rev().fold(real, |path, name| path.join(name));
        }
        let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else { return out.to_path_buf() };
        missing.push(name);
        folder = parent;
    }
}

/// Files with their paths without links, those first that are not reached through a link below `source`: a file is
/// then called by its own name, whatever links lead to it.
fn by_real_path(files: Vec<(PathBuf, Format)>, source: &Path) -> Result<Vec<(PathBuf, PathBuf, Format)>> {
    let base = if source.is_dir() { source.to_path_buf() } else { parent(source) };
    let real_base = real_path(&base)?;
    let mut all = Vec::with_capacity(files.len());
    for (path, format) in files {
        let real = real_path(&path)?;
        all.push((path, real, format));
    }
    all.sort_by_cached_key(|(path, real, _)| {
        let direct = path.strip_prefix(&base).is_ok_and(|below| real_base.join(below) == *real);
        (!direct, path.clone())
    });
    Ok(all)
}

/// Pipes, sockets and devices have no size and no second reading; opening one may wait forever.
fn refuse_irregular(path: &Path) -> Result<()> {
    let meta = fs_err::metadata(path).map_err(|e| io_error(&path.display().to_string(), e))?;
    if meta.is_file() {
        return Ok(());
    }
    Err(Error::usage(
        format!("{} is not a regular file", path.display()),
        "sources are read several times: write it to a file first",
    ))
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}

fn common_folder(a: &Path, b: &Path) -> PathBuf {
    a.components().zip(b.components()).take_while(|(x, y)| x == y).map(|(x, _)| x).collect()
}

fn name_below(base: &Path, path: &Path) -> Result<String> {
    let relative = path.strip_prefix(base).unwrap_or(path);
    relative
        .to_str()
        .map(|s| s.replace('\\', "/"))
        .ok_or_else(|| Error::usage(format!("the name of {} is not UTF-8", path.display()), "rename the file"))
}

fn walk(
    source: &str,
    root: &Path,
    out: Option<&Path>,
    files: &mut Vec<(PathBuf, Format)>,
    skipped: &mut Vec<PathBuf>,
) -> Result<()> {
    let mut seen = BTreeSet::new();
    let mut folders = vec![root.to_path_buf()];
    // Linked folders come last, so that a folder that is reached both ways is called by its own name.
    let mut linked = VecDeque::new();
    while let Some(folder) = folders.pop().or_else(|| linked.pop_front()) {
        let real = real_path(&folder)?;
        if let Some(out) = out.filter(|out| out.starts_with(&real)) {
            return Err(Error::usage(
                format!("the output {} lies inside the source {source}", out.display()),
                "put the output elsewhere, or its files would become input",
            ));
        }
        if !seen.insert(real) {
            continue;
        }
        for path in entries(&folder)? {
            if path.is_dir() {
                if path.is_symlink() {
                    linked.push_back(path);
                } else {
                    folders.push(path);
                }
            } else if let Some(format) = format_of(&path)? {
                refuse_irregular(&path)?;
                files.push((path, format));
            } else {
                skipped.push(path);
            }
        }
    }
    Ok(())
}

/// What is in `folder`, names that begin with `.` or `_` left out: those are marks of other tools, not data.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let fail = |e| io_error(&folder.display().to_string(), e);
    let mut paths = Vec::new();
    for entry in fs_err::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if !matches!(entry.file_name().as_encoded_bytes().first(), Some(b'.' | b'_')) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_pattern(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.as_encoded_bytes().iter().any(|b| matches!(b, b'*' | b'?')))
}

fn matching(pattern: &Path, files: &mut Vec<(PathBuf, Format)>, skipped: &mut Vec<PathBuf>) -> Result<()> {
    let wanted = pattern.file_name().map(|n| n.as_encoded_bytes().to_vec()).unwrap_or_default();
    for path in entries(&parent(pattern))? {
        let name = path.file_name().map(|n| n.as_encoded_bytes().to_vec()).unwrap_or_default();
        if !path.is_dir() && matches_pattern(&wanted, &name) {
            match format_of(&path)? {
                Some(format) => {
                    refuse_irregular(&path)?;
                    files.push((path, format));
                }
                None => skipped.push(path),
            }
        }
    }
    Ok(())
}

/// `*` is any run of bytes, `?` any one.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(b) if *b == b'?' || *b == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut retry {
                Some((star, from)) => {
                    *from += 1;
                    (p, n) = (*star + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

/// The format by the name's ending; `None` when it is no data file.
fn format_of(path: &Path) -> Result<Option<Format>> {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    match ending.as_str() {
        "csv" | "txt" => Ok(Some(Format::Csv)),
        "tsv" | "tab" => Ok(Some(Format::Tsv)),
        "parquet" | "pq" => Ok(Some(Format::Parquet)),
        "gz" | "bz2" | "xz" | "zst" | "zip" | "7z" | "lz4" => Err(Error::usage(
            format!("{} is compressed (.{ending}), which is not read", path.display()),
            "unpack it first",
        )),
        _ => Ok(None),
    }
}

fn unknown(path: &Path) -> Error {
    Error::usage(
        format!("{}: what kind of data this is can't be told from its name", path.display()),
        "data files end in .csv, .tsv or .parquet; rename it or make a link with such a name",
    )
}

/// Refuses text that is visibly not UTF-8, by its first block.
pub(crate) fn refuse_encoding(block: &[u8], name: &str) -> Result<()> {
    let data = |what: &str, help: &str| Err(Error::Data { url: name.to_owned(), what: what.into(), help: help.into() });
    let head = &block[..block.len().min(1024)];
    let nul_at = |parity: usize| head.iter().skip(parity).step_by(2).filter(|b| **b == 0).count();
    if head.starts_with(b"\xff\xfe")
        || head.starts_with(b"\xfe\xff")
        || (head.len() >= 8 && nul_at(0).max(nul_at(1)) * 3 > head.len())
    {
        return data("the file is UTF-16, which is not read", "convert it first: iconv -f utf-16 -t utf-8 FILE > NEW");
    }
    if head.starts_with(b"\x1f\x8b") || head.starts_with(b"\x28\xb5\x2f\xfd") || head.starts_with(b"PK\x03\x04") {
        return data("the file is compressed, whatever its name says", "unpack it first");
    }
    if head.starts_with(b"PAR1") {
        return data("the file is Parquet, not text", "give it a name that ends in .parquet");
    }
    Ok(())
}

/// What tells that a file was written to or replaced, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    device: u64,
    inode: u64,
}

impl FileStamp {
    /// The stamp of the file at `path`, called `name` in messages.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn of(path: &Path, name: &str) -> Result<Self> {
        let meta = fs_err::metadata(path).map_err(|e| io_error(name, e))?;
        Ok(Self {
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            device: meta.dev(),
            inode: meta.ino(),
        })
    }

    /// Refuses a file that is not as it was.
    ///
    /// # Errors
    /// [`Error::Data`] when it changed or is gone; I/O errors.
    pub(crate) fn check(&self, path: &Path, name: &str) -> Result<()> {
        match Self::of(path, name) {
            Ok(now) if &now == self => Ok(()),
            Ok(_) | Err(Error::NotFound { .. }) => Err(changed(name)),
            Err(e) => Err(e),
        }
    }
}

fn changed(name: &str) -> Error {
    Error::Data {
        url: name.to_owned(),
        what: "it changed while it was being read".into(),
        help: "run again when nothing writes to it".into(),
    }
}

/// Size and BLAKE3 of a file.
///
/// # Errors
/// I/O errors, [`Error::Stopped`].
pub(crate) fn digest_file(path: &Path, name: &str, stop: &StopFlag) -> Result<(u64, String)> {
    let mut file = fs_err::File::open(path).map_err(|e| io_error(name, e))?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        stop.check()?;
        match file.read(&mut block) {
            Ok(0) => return Ok((bytes, hasher.finalize().to_hex().to_string())),
            Ok(n) => {
                hasher.update(&block[..n]);
                bytes += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io_error(name, e)),
        }
    }
}

/// Bytes `start..end` of a file.
///
/// # Errors
/// I/O errors; [`Error::Data`] when the file is shorter than it was.
pub(crate) fn read_piece(path: &Path, name: &str, start: u64, end: u64) -> Result<Vec<u8>> {
    let file = fs_err::File::open(path).map_err(|e| io_error(name, e))?;
    let length = usize::try_from(end - start)
        .map_err(|_| Error::internal(format!("a piece of {} bytes does not fit this machine", end - start)))?;
    let mut bytes = vec![0; length];
    match file.file().read_exact_at(&mut bytes, start) {
        Ok(()) => Ok(bytes),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(changed(name)),
        Err(e) => Err(io_error(name, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::ErrorKind;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "a\n1\n").unwrap();
        }
        dir
    }

    fn find(dir: &tempfile::TempDir, parts: &[&str]) -> Result<Vec<String>> {
        let sources: Vec<String> = parts.iter().map(|p| dir.path().join(p).to_str().unwrap().to_owned()).collect();
        Ok(find_sources(&sources, None)?.files.into_iter().map(|f| f.name).collect())
    }

    #[test]
    fn names_are_relative_and_in_byte_order() {
        let dir = folder(&["b/x.csv", "a.csv", "b/Y.csv", "b/notes.md", "b/.hidden.csv", "c/z.parquet"]);
        assert_eq!(find(&dir, &["b"]).unwrap(), ["Y.csv", "x.csv"]);
        assert_eq!(find(&dir, &["."]).unwrap(), ["a.csv", "b/Y.csv", "b/x.csv", "c/z.parquet"]);
        assert_eq!(find(&dir, &["b", "a.csv"]).unwrap(), ["a.csv", "b/Y.csv", "b/x.csv"]);
        assert_eq!(find(&dir, &["b/?.csv"]).unwrap(), ["Y.csv", "x.csv"]);
        assert_eq!(find(&dir, &["c/*.parquet", "b/x*"]).unwrap(), ["b/x.csv", "c/z.parquet"]);
        assert_eq!(find(&dir, &["a.csv"]).unwrap(), ["a.csv"]);
    }

    #[test]
    fn what_can_not_be_read_is_told() {
        let dir = folder(&["a.csv", "e/readme.md", "g/x.csv.gz", "data.bin"]);
        let kind = |parts: &[&str]| find(&dir, parts).unwrap_err().kind();
        assert_eq!(kind(&["absent.csv"]), ErrorKind::NotFound);
        assert_eq!(kind(&["e"]), ErrorKind::Usage);
        assert_eq!(kind(&["g"]), ErrorKind::Usage);
        assert_eq!(kind(&["data.bin"]), ErrorKind::Usage);
        assert_eq!(kind(&["a.csv", "./e/../a.csv"]), ErrorKind::Usage);
        assert_eq!(kind(&["*.xyz"]), ErrorKind::Usage);
        assert_eq!(find_sources(&[], None).unwrap_err().kind(), ErrorKind::Usage);
        assert_eq!(find_sources(&["s3://b/x".into()], None).unwrap_err().kind(), ErrorKind::Usage);
        let source = dir.path().to_str().unwrap().to_owned();
        assert!(
            find_sources(&[source], Some(&dir.path().join("out")))
                .unwrap_err()
                .to_string()
                .contains("inside the source")
        );
    }

    fn link(dir: &tempfile::TempDir, to: &str, name: &str) {
        std::os::unix::fs::symlink(dir.path().join(to), dir.path().join(name)).unwrap();
    }

    #[test]
    fn a_file_is_read_once_whatever_links_lead_to_it() {
        let dir = folder(&["s/b/x.csv", "s/b/deep/y.csv", "o/z.csv"]);
        link(&dir, "s/b/x.csv", "s/a.csv");
        link(&dir, "s/b", "s/a");
        link(&dir, "s", "s/b/loop");
        link(&dir, "o", "s/o");
        link(&dir, "s", "t");
        assert_eq!(find(&dir, &["s"]).unwrap(), ["b/deep/y.csv", "b/x.csv", "o/z.csv"]);
        assert_eq!(find(&dir, &["t"]).unwrap(), ["b/deep/y.csv", "b/x.csv", "o/z.csv"]);
        assert_eq!(find(&dir, &["o", "s"]).unwrap(), ["o/z.csv", "s/b/deep/y.csv", "s/b/x.csv"]);
        for parts in [&["s", "t"][..], &["s/b/x.csv", "s/a.csv"], &["s", "s/a.csv"]] {
            let error = find(&dir, parts).unwrap_err();
            assert!(error.to_string().contains("named twice"), "{parts:?}: {error}");
        }
    }

    #[test]
    fn links_do_not_hide_that_the_output_is_inside() {
        let dir = folder(&["inn/x.csv", "far/y.csv"]);
        link(&dir, "inn", "outlink");
        link(&dir, "far", "inn/far");
        let at = |part: &str| dir.path().join(part);
        for (source, out) in [("outlink", "inn/o"), ("inn", "outlink/o/deep"), ("inn", "far/o"), ("outlink", "inn")] {
            let source = at(source).to_str().unwrap().to_owned();
            let error = find_sources(&[source], Some(&at(out))).unwrap_err();
            assert!(error.to_string().contains("inside the source"), "{out}: {error}");
        }
        assert!(find_sources(&[at("inn").to_str().unwrap().to_owned()], Some(&at("inner/o"))).is_ok());
    }

    #[test]
    fn what_is_no_regular_file_is_refused() {
        let dir = folder(&["a.csv"]);
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("s.csv")).unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join("d/n.csv")).unwrap();
        for part in ["s.csv", "s*", ".", "d", "d/n.csv", "d/*.csv"] {
            let error = find(&dir, &[part]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{part}: {error}");
            assert!(error.to_string().contains("not a regular file"), "{part}: {error}");
        }
        assert_eq!(find(&dir, &["a*"]).unwrap(), ["a.csv"]);
    }

    #[test]
    fn a_file_that_changed_is_told() {
        let dir = folder(&["a.csv", "b.csv"]);
        let path = dir.path().join("a.csv");
        let stamp = FileStamp::of(&path, "a.csv").unwrap();
        stamp.check(&path, "a.csv").unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_modified(modified + std::time::Duration::from_nanos(1000)).unwrap();
        let error = stamp.check(&path, "a.csv").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains("a.csv: it changed while it was being read"), "{error}");
        file.set_modified(modified).unwrap();
        stamp.check(&path, "a.csv").unwrap();
        std::fs::rename(dir.path().join("b.csv"), &path).unwrap();
        assert_eq!(stamp.check(&path, "a.csv").unwrap_err().kind(), ErrorKind::Data);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(stamp.check(&path, "a.csv").unwrap_err().kind(), ErrorKind::Data);
    }

    #[test]
    fn patterns() {
        for (pattern, name, want) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*.csv", "x.csv", true),
            ("??", "a", false),
            ("*a*b*", "xxaxxb", true),
        ] {
            assert_eq!(matches_pattern(pattern.as_bytes(), name.as_bytes()), want, "{pattern} {name}");
        }
    }
}
