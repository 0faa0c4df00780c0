//! First pass over a CSV file: its digest, its header, and where it can be cut so that no record is cut.
//!
//! A quote changes what a line end means, so the cuts can't be found from the middle. This pass looks at quotes and
//! line ends only, at the speed of memory, and leaves the parsing of the pieces to many threads.

use std::{io::Read, path::Path};

use gristmill_shard::{Error, Result, StopFlag};

use crate::{
    csv_records::{Dialect, Records, count_lines},
    sources::{io_error, refuse_encoding},
};

/// Bytes that one record may have. A file that goes on longer without a line end outside quotes has a stray quote.
pub(crate) const MAX_RECORD_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: usize = 1 << 20;

/// A piece of a file: whole records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First byte.
    pub(crate) start: u64,
    /// End.
    pub(crate) end: u64,
    /// Line (from 1) of its first byte.
    pub(crate) line: u64,
}

/// What the first pass found.
#[derive(Debug, Clone)]
pub(crate) struct CsvScan {
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// BLAKE3 of the file.
    pub(crate) blake3: String,
    /// Fields of the first record.
    pub(crate) first_record: Vec<String>,
    /// Its pieces in order, the header left out; empty when there are no records after it.
    pub(crate) pieces: Vec<Piece>,
}

/// Scans the file at `path`, called `name` in messages.
///
/// # Errors
/// I/O errors; [`Error::Data`] for an empty file, another encoding than UTF-8, or a record that does not end.
pub(crate) fn scan_csv(
    path: &Path,
    name: &str,
    dialect: Dialect,
    has_header: bool,
    piece_bytes: u64,
    stop: &StopFlag,
) -> Result<CsvScan> {
    let mut file = fs_err::File::open(path).map_err(|e| io_error(name, e))?;
    let mut hasher = blake3::Hasher::new();
    let mut block = Vec::new();
    read_block(&mut file, &mut block, name)?;
    hasher.update(&block);
    refuse_encoding(&block, name)?;
    let bom = if block.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut records = Records::new(&block[bom..], dialect);
    let span = records.advance().ok_or_else(|| Error::Data {
        url: name.to_owned(),
        what: "the file has no records".into(),
        help: "remove it from the sources".into(),
    })?;
    if (records.position() == block.len() - bom && block.len() == BLOCK_BYTES) || span.unclosed {
        return Err(Error::Data {
            url: name.to_owned(),
            what: "the first record does not end within 1 MiB".into(),
            help: "check the quotes of the first line, and that this is CSV".into(),
        });
    }
    let mut first_record = Vec::with_capacity(records.fields().len());
    for field in records.fields() {
        let text = std::str::from_utf8(records.bytes(*field)).map_err(|_| Error::Data {
            url: name.to_owned(),
            what: "the first record is not UTF-8".into(),
            help: "convert the file to UTF-8, for example with `iconv -f latin1 -t utf-8`".into(),
        })?;
        first_record.push(text.to_owned());
    }
    let body = bom + if has_header { records.position() } else { 0 };
    let mut cutter = Cutter {
        dialect,
        piece_bytes: piece_bytes.max(1),
        state: State::Bare,
        before: None,
        offset: body as u64,
        line: 1 + count_lines(&block[..body], None),
        counted_before: body.checked_sub(1).map(|i| block[i]),
        start: body as u64,
        start_line: 0,
        pieces: Vec::new(),
    };
    cutter.start_line = cutter.line;
    cutter.feed(&block[body..], name)?;
    while block.len() == BLOCK_BYTES {
        stop.check()?;
        read_block(&mut file, &mut block, name)?;
        hasher.update(&block);
        cutter.feed(&block, name)?;
    }
    let bytes = cutter.offset;
    Ok(CsvScan { bytes, blake3: hasher.finalize().to_hex().to_string(), first_record, pieces: cutter.finish() })
}

/// Fills `block` with the next [`BLOCK_BYTES`], fewer only at the end of the file.
fn read_block(file: &mut fs_err::File, block: &mut Vec<u8>, name: &str) -> Result<()> {
    block.resize(BLOCK_BYTES, 0);
    let mut filled = 0;
    while filled < BLOCK_BYTES {
        match file.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io_error(name, e)),
        }
    }
    block.truncate(filled);
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Outside quotes.
    Bare,
    /// Inside quotes.
    Quoted,
    /// After a quote that either closes or is doubled.
    QuoteInQuoted,
}

struct Cutter {
    dialect: Dialect,
    piece_bytes: u64,
    state: State,
    /// The byte before `offset` as far as quotes are concerned; `None` at the start of a record.
    before: Option<u8>,
    /// Bytes seen.
    offset: u64,
    /// Line of `offset`.
    line: u64,
    counted_before: Option<u8>,
    start: u64,
    start_line: u64,
    pieces: Vec<Piece>,
}

impl Cutter {
    fn feed(&mut self, block: &[u8], name: &str) -> Result<()> {
        let base = self.offset;
        let mut counted = 0;
        let mut at = 0;
        while at < block.len() {
            match self.state {
                State::Quoted => match memchr::memchr(self.dialect.quote, &block[at..]) {
                    Some(i) => {
                        at += i + 1;
                        self.state = State::QuoteInQuoted;
                    }
                    None => at = block.len(),
                },
                State::QuoteInQuoted => {
                    if block[at] == self.dialect.quote {
                        at += 1;
                        self.state = State::Quoted;
                    } else {
                        self.state = State::Bare;
                        self.before = Some(self.dialect.quote);
                    }
                }
                State::Bare => {
                    let quote = memchr::memchr(self.dialect.quote, &block[at..]).map(|i| at + i);
                    let bare_end = quote.unwrap_or(block.len());
                    let wanted = (self.start + self.piece_bytes).saturating_sub(base);
                    let from = usize::try_from(wanted).unwrap_or(usize::MAX).max(at + 1) - 1;
                    if let Some(cut) = self.line_end(block, from.max(at), bare_end) {
                        self.count(block, &mut counted, cut);
                        self.cut(base + cut as u64);
                        self.before = Some(b'\n');
                        at = cut;
                        continue;
                    }
                    let Some(quote) = quote else {
                        self.before = block.last().copied();
                        at = block.len();
                        continue;
                    };
                    let before = if quote > at { Some(block[quote - 1]) } else { self.before };
                    if before.is_none_or(|b| self.dialect.ends_field(b)) {
                        self.state = State::Quoted;
                    }
                    self.before = Some(self.dialect.quote);
                    at = quote + 1;
                }
            }
        }
        self.count(block, &mut counted, block.len());
        self.offset = base + block.len() as u64;
        if self.offset - self.start > self.piece_bytes.saturating_add(MAX_RECORD_BYTES) {
            return Err(Error::Data {
                url: name.to_owned(),
                what: format!(
                    "no record ends between byte {} (after line {}) and byte {}",
                    self.start + self.piece_bytes,
                    self.start_line,
                    self.offset
                ),
                help: "look there for a quote that is never closed".into(),
            });
        }
        Ok(())
    }

    /// End of the first line end that is wholly inside `block[from..to]` and after which a piece may start.
    fn line_end(&self, block: &[u8], from: usize, to: usize) -> Option<usize> {
        let mut at = from;
        while at < to {
            let end = at + memchr::memchr2(b'\n', b'\r', &block[at..to])? + 1;
            // A `\r` at the end of the block may be half of `\r\n`; a later line end will do.
            if block[end - 1] == b'\n' || block.get(end).is_some_and(|b| *b != b'\n') {
                return Some(end);
            }
            at = end;
        }
        None
    }

    fn count(&mut self, block: &[u8], counted: &mut usize, to: usize) {
        self.line += count_lines(&block[*counted..to], self.counted_before);
        if to > *counted {
            self.counted_before = Some(block[to - 1]);
        }
        *counted = to;
    }

    fn cut(&mut self, end: u64) {
        self.pieces.push(Piece { start: self.start, end, line: self.start_line });
        self.start = end;
        self.start_line = self.line;
    }

    fn finish(mut self) -> Vec<Piece> {
        if self.offset > self.start {
            self.cut(self.offset);
        }
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMMA: Dialect = Dialect { delimiter: b',', quote: b'"' };

    fn scan(data: &[u8], piece_bytes: u64) -> Result<CsvScan> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.csv");
        std::fs::write(&path, data).unwrap();
        scan_csv(&path, "x.csv", COMMA, false, piece_bytes, &StopFlag::new())
    }

    fn rows(data: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let mut records = Records::new(data, COMMA);
        let mut all = Vec::new();
        while records.advance().is_some() {
            all.push(records.fields().iter().map(|f| records.bytes(*f).to_vec()).collect());
        }
        all
    }

    fn check(data: &[u8], piece_bytes: u64) {
        let Ok(found) = scan(data, piece_bytes) else { return };
        let mut pieced = Vec::new();
        let mut end = 0;
        for piece in &found.pieces {
            assert_eq!(piece.start, end);
            end = piece.end;
            assert_eq!(piece.line, 1 + count_lines(&data[..piece.start as usize], None), "{piece:?}");
            pieced.extend(rows(&data[piece.start as usize..piece.end as usize]));
        }
        assert_eq!(end, data.len() as u64);
        assert_eq!(pieced, rows(data), "{:?} {:?}", String::from_utf8_lossy(data), found.pieces);
        assert_eq!(found.blake3, blake3::hash(data).to_hex().to_string());
    }

    #[test]
    fn no_cut_falls_into_quotes() {
        let data = b"a,b\n1,\"x\ny\"\n2,z\"\n3,\"q\"\"\n\"\r\n4,\"\"\n";
        for piece_bytes in 1..data.len() as u64 {
            check(data, piece_bytes);
        }
        assert!(scan(data, 1).unwrap().pieces.len() > 4);
    }

    #[test]
    fn a_quote_across_blocks_is_followed() {
        let mut data = b"a,b\n".to_vec();
        while data.len() < 3 * BLOCK_BYTES {
            data.extend_from_slice(b"1,\"two\n\"\"lines\"\"\"\r\n");
        }
        check(&data, 100_000);
    }

    #[test]
    fn a_quote_that_never_closes_is_told() {
        let mut data = b"a,b\n1,\"x\n".to_vec();
        data.resize(18 << 20, b'y');
        let error = scan(&data, 1000).unwrap_err();
        assert!(error.to_string().contains("never closed"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn pieces_are_the_whole(data in prop::collection::vec(prop::sample::select(b"ab,\"\n\r".to_vec()), 0..60), piece_bytes in 1_u64..20) {
            check(&data, piece_bytes);
        }
    }
}
