//! CSV bytes to records and fields: RFC 4180 with the usual leniency (the rules of the `csv` crate, against which it
//! is tested), without copying a field unless it has doubled quotes.
//!
//! A quote is special only at the start of a field; inside, a doubled quote is one quote; text after the closing quote
//! is kept as it is. `\n`, `\r\n` and a bare `\r` end a record; blank lines are no records.

/// How the bytes are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub(crate) delimiter: u8,
    pub(crate) quote: u8,
}

impl Dialect {
    pub(crate) fn ends_field(self, byte: u8) -> bool {
        byte == self.delimiter || byte == b'\n' || byte == b'\r'
    }
}

/// A field of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    start: usize,
    end: usize,
    /// Whether it began with a quote: an empty quoted field is text, an empty bare one is nothing.
    pub(crate) quoted: bool,
    copied: bool,
}

/// A record's place in the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// First byte.
    pub(crate) start: usize,
    /// End, without the line end.
    pub(crate) end: usize,
    /// The data ended inside a quoted field.
    pub(crate) unclosed: bool,
}

/// Reads the records of `data` in order.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    data: &'a [u8],
    at: usize,
    dialect: Dialect,
    fields: Vec<Field>,
    copies: Vec<u8>,
}

impl<'a> Records<'a> {
    pub(crate) fn new(data: &'a [u8], dialect: Dialect) -> Self {
        Self { data, at: 0, dialect, fields: Vec::new(), copies: Vec::new() }
    }

    /// Where the next record is looked for.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Fields of the record that [`Records::advance`] found last.
    pub(crate) fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Bytes of a field of that record.
    pub(crate) fn bytes(&self, field: Field) -> &[u8] {
        let source: &[u8] = if field.copied { &self.copies } else { self.data };
        &source[field.start..field.end]
    }

    /// Finds the next record.
    pub(crate) fn advance(&mut self) -> Option<Span> {
        self.fields.clear();
        self.copies.clear();
        while self.data.get(self.at).is_some_and(|b| matches!(b, b'\n' | b'\r')) {
            self.at += 1;
        }
        if self.at >= self.data.len() {
            return None;
        }
        let start = self.at;
        let mut unclosed = false;
        loop {
            let field = if self.data.get(self.at) == Some(&self.dialect.quote) {
                let (field, closed) = self.quoted_field();
                unclosed |= !closed;
                field
            } else {
                let start = self.at;
                self.at = self.field_end(start);
                Field { start, end: self.at, quoted: false, copied: false }
            };
            self.fields.push(field);
            if self.data.get(self.at) == Some(&self.dialect.delimiter) {
                self.at += 1;
            } else {
                break;
            }
        }
        Some(Span { start, end: self.at, unclosed })
    }

    fn field_end(&self, from: usize) -> usize {
        let rest = &self.data[from..];
        from + rest.iter().position(|b| self.dialect.ends_field(*b)).unwrap_or(rest.len())
    }

    /// The field that starts at the quote at `self.at`, and whether its quote was closed.
    fn quoted_field(&mut self) -> (Field, bool) {
        let quote = self.dialect.quote;
        let start = self.at + 1;
        let mut piece = start;
        let mut copy_from = None;
        loop {
            let Some(close) = memchr::memchr(quote, &self.data[piece..]).map(|i| piece + i) else {
                self.at = self.data.len();
                let field = self.finish_field(start, copy_from, piece..self.data.len());
                return (field, false);
            };
            if self.data.get(close + 1) == Some(&quote) {
                copy_from.get_or_insert(self.copies.len());
                self.copies.extend_from_slice(&self.data[piece..=close]);
                piece = close + 2;
                continue;
            }
            let after = close + 1;
            self.at = self.field_end(after);
            if self.at > after {
                copy_from.get_or_insert(self.copies.len());
                self.copies.extend_from_slice(&self.data[piece..close]);
                return (self.finish_field(start, copy_from, after..self.at), true);
            }
            return (self.finish_field(start, copy_from, piece..close), true);
        }
    }

    fn finish_field(&mut self, start: usize, copy_from: Option<usize>, last: std::ops::Range<usize>) -> Field {
        match copy_from {
            Some(from) => {
                self.copies.extend_from_slice(&self.data[last]);
                Field { start: from, end: self.copies.len(), quoted: true, copied: true }
            }
            None => Field { start, end: last.end, quoted: true, copied: false },
        }
    }
}

/// Line ends in `bytes` (`\n`, `\r\n` and a bare `\r` count one each); `before` is the byte in front, so that a `\r\n`
/// cut in two is counted once.
pub(crate) fn count_lines(bytes: &[u8], before: Option<u8>) -> u64 {
    let mut lines = memchr::memchr_iter(b'\n', bytes).count() as u64;
    if before == Some(b'\r') && bytes.first() == Some(&b'\n') {
        lines -= 1;
    }
    for at in memchr::memchr_iter(b'\r', bytes) {
        if bytes.get(at + 1) != Some(&b'\n') {
            lines += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMMA: Dialect = Dialect { delimiter: b',', quote: b'"' };

    fn read(data: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let mut records = Records::new(data, COMMA);
        let mut all = Vec::new();
        while records.advance().is_some() {
            all.push(records.fields().iter().map(|f| records.bytes(*f).to_vec()).collect());
        }
        all
    }

    fn read_by_csv(data: &[u8]) -> Vec<Vec<Vec<u8>>> {
        csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(data)
            .byte_records()
            .map(|r| r.unwrap().iter().map(<[u8]>::to_vec).collect())
            .collect()
    }

    #[test]
    fn awkward_records_are_those_of_the_csv_crate() {
        for data in [
            "a,b,c\n1,2,3\n",
            "a,b\r\n1,\"line\r\nbreak\"\r\n",
            "a\rb\rc",
            "\"a\"\"b\",c\n\n\n,,\n",
            "x,\"\",\ny,\"open",
            "a\"b,\"c\"d\"e\n",
            "\"1\"\"\",\"\"\"2\"\n",
            "",
            "\n\r\n",
            "a,\n",
            "\"\"\n",
        ] {
            assert_eq!(read(data.as_bytes()), read_by_csv(data.as_bytes()), "{data:?}");
        }
    }

    #[test]
    fn an_open_quote_is_told() {
        let mut records = Records::new(b"a,\"b\n", COMMA);
        assert!(records.advance().unwrap().unclosed);
        let mut records = Records::new(b"a,\"b\"\"\n", COMMA);
        assert!(records.advance().unwrap().unclosed);
        let mut records = Records::new(b"a,\"b\"", COMMA);
        assert!(!records.advance().unwrap().unclosed);
    }

    #[test]
    fn lines_are_counted_across_a_cut() {
        let text = b"a\r\nb\rc\n\r\r\n";
        assert_eq!(count_lines(text, None), 5);
        for cut in 0..=text.len() {
            let before = cut.checked_sub(1).map(|i| text[i]);
            // A cut inside `\r\n` counts at its `\r`.
            assert_eq!(count_lines(&text[..cut], None) + count_lines(&text[cut..], before), 5, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_as_the_csv_crate_reads_them(data in prop::collection::vec(prop::sample::select(b"ab,\"\n\r \xff".to_vec()), 0..60)) {
            prop_assert_eq!(read(&data), read_by_csv(&data));
        }
    }
}
