//! Types of CSV columns from all their values: the narrowest that holds every one, with the value that ruled out more.
//!
//! The order of pieces and threads does not matter: what a column may be is an intersection, and witnesses are the
//! first in row order.

use arrow::datatypes::{DataType, TimeUnit};
use gristmill_shard::schema::ColumnType;
use serde::{Deserialize, Serialize};

use crate::datetime::{parse_date, parse_moment};

const BOOL: u8 = 1;
const INT: u8 = 2;
const UINT: u8 = 4;
const FLOAT: u8 = 8;
const DATE: u8 = 16;
const NAIVE: u8 = 32;
const ZONED: u8 = 64;
const ALL: u8 = 127;

/// Integers beyond it are not all float64 values.
const EXACT_IN_FLOAT: u64 = 1 << 53;
/// Characters of a witness that are kept.
const WITNESS_CHARS: usize = 40;

/// A value and where it was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Witness {
    pub(crate) file: u32,
    pub(crate) row: u64,
    pub(crate) value: String,
}

/// What the values of one column so far may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidates {
    possible: u8,
    values: u64,
    nulls: u64,
    quoted_nulls: u64,
    finite: bool,
    big_integer: Option<Witness>,
    fraction: Option<Witness>,
    naive: Option<Witness>,
    zoned: Option<Witness>,
    /// The value that made the last possible type impossible.
    spoiler: Option<Witness>,
}

/// A column's type and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inferred {
    pub(crate) column_type: ColumnType,
    pub(crate) nullable: bool,
    pub(crate) evidence: String,
}

impl Default for Candidates {
    fn default() -> Self {
        Self {
            possible: ALL,
            values: 0,
            nulls: 0,
            quoted_nulls: 0,
            finite: false,
            big_integer: None,
            fraction: None,
            naive: None,
            zoned: None,
            spoiler: None,
        }
    }
}

impl Candidates {
    /// A field that means null where it is bare, and where it is quoted unless its column is text.
    pub(crate) fn null_field(&mut self, quoted: bool) {
        if quoted {
            self.quoted_nulls += 1;
        } else {
            self.nulls += 1;
        }
    }

    /// A value of row `row` of file `file`.
    pub(crate) fn value(&mut self, value: &[u8], file: u32, row: u64) {
        self.values += 1;
        if self.possible == 0 {
            return;
        }
        let class = classify(value);
        let witness = || Witness { file, row, value: shorten(value) };
        if class.big {
            self.big_integer.get_or_insert_with(witness);
        }
        if class.fits & (INT | UINT | FLOAT) == FLOAT {
            self.fraction.get_or_insert_with(witness);
            self.finite |= class.finite;
        }
        if class.fits & (NAIVE | ZONED) != 0 && self.possible & (NAIVE | ZONED) != 0 {
            if class.fits & NAIVE != 0 {
                self.naive.get_or_insert_with(witness);
            } else {
                self.zoned.get_or_insert_with(witness);
            }
        }
        self.finite |= class.fits & (INT | UINT) != 0;
        self.possible &= class.fits;
        if self.possible == 0 {
            self.spoiler = Some(witness());
        }
    }

    /// Adds what later rows gave.
    pub(crate) fn merge(&mut self, later: &Self) {
        let was = self.possible;
        self.possible &= later.possible;
        self.values += later.values;
        self.nulls += later.nulls;
        self.quoted_nulls += later.quoted_nulls;
        self.finite |= later.finite;
        for (mine, theirs) in [
            (&mut self.big_integer, &later.big_integer),
            (&mut self.fraction, &later.fraction),
            (&mut self.naive, &later.naive),
            (&mut self.zoned, &later.zoned),
        ] {
            if mine.is_none() {
                mine.clone_from(theirs);
            }
        }
        if was != 0 && self.possible == 0 && self.spoiler.is_none() {
            self.spoiler = later.spoiler.clone().or_else(|| later.first_witness());
        }
    }

    /// Makes rows that were counted from 0 count from `base`.
    pub(crate) fn shift_rows(&mut self, base: u64) {
        let witnesses =
            [&mut self.big_integer, &mut self.fraction, &mut self.naive, &mut self.zoned, &mut self.spoiler];
        for witness in witnesses.into_iter().flatten() {
            witness.row += base;
        }
    }

    fn first_witness(&self) -> Option<Witness> {
        [&self.big_integer, &self.fraction, &self.naive, &self.zoned].into_iter().flatten().min().cloned()
    }

    /// The type. `file_name` names a file by its ordinal.
    pub(crate) fn resolve(&self, file_name: &dyn Fn(u32) -> String) -> Inferred {
        let at = |w: &Witness| format!("\"{}\" ({}, row {})", w.value, file_name(w.file), w.row);
        let plain = |data_type: DataType, evidence: String| (ColumnType::Plain(data_type), evidence);
        let all = |what: &str| format!("all {} values are {what}", self.values);
        let text = |why: String| plain(DataType::LargeUtf8, why);
        let (column_type, evidence) = if self.values == 0 {
            text("text, since there is no value to tell more".into())
        } else if self.possible & BOOL != 0 {
            plain(DataType::Boolean, all("true or false"))
        } else if self.possible & INT != 0 {
            plain(DataType::Int64, all("integers of 64 bits"))
        } else if self.possible & UINT != 0 {
            let why = self.big_integer.as_ref().map_or_else(String::new, |w| format!(", {} is beyond int64", at(w)));
            plain(DataType::UInt64, all("integers of 64 bits without sign") + &why)
        } else if self.possible & FLOAT != 0 && self.finite {
            match (&self.big_integer, &self.fraction) {
                (Some(big), fraction) => text(match fraction {
                    Some(fraction) => {
                        format!("text, since float64 would round {} and int64 can't hold {}", at(big), at(fraction))
                    }
                    None => format!(
                        "text, since no integer type holds {} with the rest and float64 would round it",
                        at(big)
                    ),
                }),
                (None, fraction) => {
                    let why = fraction.as_ref().map_or_else(String::new, |w| format!(", {} is not an integer", at(w)));
                    plain(DataType::Float64, all("numbers") + &why)
                }
            }
        } else if self.possible & DATE != 0 {
            plain(DataType::Date32, all("dates"))
        } else if self.possible & NAIVE != 0 {
            plain(DataType::Timestamp(TimeUnit::Microsecond, None), all("times without an offset"))
        } else if self.possible & ZONED != 0 {
            plain(
                DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
                all("times with an offset, kept as UTC"),
            )
        } else if let (Some(naive), Some(zoned)) = (&self.naive, &self.zoned) {
            text(format!(
                "text, since times without an offset are mixed with such that have one: {} and {}",
                at(naive),
                at(zoned)
            ))
        } else {
            text(
                self.spoiler
                    .as_ref()
                    .map_or_else(|| "text".into(), |w| format!("text, since {} rules out every narrower type", at(w))),
            )
        };
        let is_text = column_type.to_arrow() == &DataType::LargeUtf8;
        Inferred { column_type, nullable: self.nulls > 0 || (!is_text && self.quoted_nulls > 0), evidence }
    }
}

fn shorten(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    match text.char_indices().nth(WITNESS_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.into_owned(),
    }
}

/// Blanks around a value of a type other than text mean nothing.
pub(crate) fn trim(value: &[u8]) -> &[u8] {
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let start = value.iter().position(|b| !blank(b)).unwrap_or(value.len());
    let end = value.iter().rposition(|b| !blank(b)).map_or(start, |i| i + 1);
    &value[start..end]
}

/// Whether `text` reads as something narrower than text, as column names seldom do.
pub(crate) fn reads_as_value(text: &str) -> bool {
    classify(text.as_bytes()).fits != 0
}

struct Class {
    fits: u8,
    /// An integer that float64 may round.
    big: bool,
    finite: bool,
}

fn classify(value: &[u8]) -> Class {
    let value = trim(value);
    let fits = |fits| Class { fits, big: false, finite: fits & FLOAT != 0 };
    match value {
        b"true" | b"True" | b"TRUE" | b"false" | b"False" | b"FALSE" => fits(BOOL),
        b"NaN" | b"nan" | b"inf" | b"-inf" | b"Inf" | b"-Inf" | b"Infinity" | b"-Infinity" => {
            Class { fits: FLOAT, big: false, finite: false }
        }
        [b'0'..=b'9' | b'-' | b'.', ..] => {
            if value.get(4) == Some(&b'-') && value.len() >= 10 {
                fits(classify_time(value))
            } else {
                classify_number(value)
            }
        }
        _ => fits(0),
    }
}

fn classify_time(value: &[u8]) -> u8 {
    if value.len() == 10 {
        return if parse_date(value).is_some() { DATE | NAIVE } else { 0 };
    }
    match parse_moment(value) {
        // Microseconds are what is inferred; more digits would be lost.
        Some(moment) if moment.nanoseconds % 1000 != 0 => 0,
        Some(moment) if moment.zoned => ZONED,
        Some(_) => NAIVE,
        None => 0,
    }
}

fn classify_number(value: &[u8]) -> Class {
    let none = Class { fits: 0, big: false, finite: false };
    let (negative, digits) = match value {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let whole = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    // An identifier such as 00123 is not the number 123.
    if whole > 1 && digits[0] == b'0' {
        return none;
    }
    if whole == digits.len() {
        if whole == 0 {
            return none;
        }
        let magnitude = match parse_digits(digits) {
            Some(m) => m,
            None => return none,
        };
        let big = magnitude > EXACT_IN_FLOAT;
        let fits = match (negative, magnitude) {
            // "-0" as an integer would lose its sign.
            (true, 0) => FLOAT,
            (true, m) if m <= 1 << 63 => INT | FLOAT,
            (true, _) => 0,
            (false, m) if i64::try_from(m).is_ok() => INT | UINT | FLOAT,
            (false, _) => UINT | FLOAT,
        };
        return Class { fits, big: big && fits != 0, finite: true };
    }
    let mut rest = &digits[whole..];
    let mut decimals = 0;
    if let [b'.', after @ ..] = rest {
        decimals = after.iter().take_while(|b| b.is_ascii_digit()).count();
        rest = &after[decimals..];
    }
    if whole + decimals == 0 {
        return none;
    }
    let exponent = match rest {
        [] => false,
        [b'e' | b'E', b'+' | b'-', power @ ..] | [b'e' | b'E', power @ ..]
            if !power.is_empty() && power.iter().all(u8::is_ascii_digit) =>
        {
            true
        }
        _ => return none,
    };
    let overflows = (exponent || whole > 300) && parse_f64(value).is_none();
    if overflows { none } else { Class { fits: FLOAT, big: false, finite: true } }
}

/// Decimal digits as a number, `None` beyond 64 bits.
pub(crate) fn parse_digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    if digits.len() <= 19 {
        // 19 digits always fit in 64 bits.
        return digits.iter().try_fold(0_u64, |n, b| b.is_ascii_digit().then(|| n * 10 + u64::from(b - b'0')));
    }
    digits.iter().try_fold(0_u64, |n, b| {
        if b.is_ascii_digit() { n.checked_mul(10)?.checked_add(u64::from(b - b'0')) } else { None }
    })
}

/// A float64; `None` for what is no number, or a finite text too large for it.
pub(crate) fn parse_f64(value: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(value).ok()?;
    let number: f64 = text.parse().ok()?;
    let spelled = || value.iter().any(|b| matches!(b, b'n' | b'N'));
    (number.is_finite() || spelled()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(values: &[&str]) -> Inferred {
        let mut whole = Candidates::default();
        for (row, value) in values.iter().enumerate() {
            if value.is_empty() { whole.null_field(false) } else { whole.value(value.as_bytes(), 0, row as u64) }
        }
        // Any cut gives the same.
        for cut in 0..values.len() {
            let (mut a, mut b) = (Candidates::default(), Candidates::default());
            for (row, value) in values.iter().enumerate() {
                let part = if row < cut { &mut a } else { &mut b };
                if value.is_empty() { part.null_field(false) } else { part.value(value.as_bytes(), 0, row as u64) }
            }
            a.merge(&b);
            let name = |_| "f".to_owned();
            let (merged, direct) = (a.resolve(&name), whole.resolve(&name));
            assert_eq!((merged.column_type, merged.nullable), (direct.column_type, direct.nullable), "{values:?}");
        }
        whole.resolve(&|_| "f.csv".to_owned())
    }

    #[test]
    fn the_narrowest_type_that_holds_all() {
        for (values, want) in [
            (&["1", "-2", "0"][..], "int64"),
            (&["9223372036854775807", "-9223372036854775808"], "int64"),
            (&["9223372036854775808", "1"], "uint64"),
            (&["9223372036854775808", "-1"], "large_utf8"),
            (&["18446744073709551616"], "large_utf8"),
            (&["1", "2.5"], "float64"),
            (&["1e5", ".5", "5.", "-0"], "float64"),
            (&["NaN", "1", "inf"], "float64"),
            (&["NaN", "nan"], "large_utf8"),
            (&["1e999"], "large_utf8"),
            (&["9007199254740993", "0.5"], "large_utf8"),
            (&["00123", "5"], "large_utf8"),
            (&["007.5"], "large_utf8"),
            (&["0", "0.5", "-0.25"], "float64"),
            (&["+5"], "large_utf8"),
            (&["true", "FALSE"], "bool"),
            (&["true", "1"], "large_utf8"),
            (&["2024-01-31", "1999-12-01"], "date32"),
            (&["2024-01-31", "2024-01-31T10:00"], "timestamp[us]"),
            (&["2024-01-31T10:00:00.123456"], "timestamp[us]"),
            (&["2024-01-31T10:00:00.123456789"], "large_utf8"),
            (&["2024-01-31T10:00:00Z", "2024-01-31 10:00:00+02:00"], "timestamp[us, UTC]"),
            (&["2024-01-31T10:00:00Z", "2024-01-31 10:00:00"], "large_utf8"),
            (&["2024-02-30"], "large_utf8"),
            (&["2024"], "int64"),
            (&[" 1", "2 "], "int64"),
            (&["-"], "large_utf8"),
            (&["."], "large_utf8"),
            (&["1.2.3"], "large_utf8"),
            (&["1e"], "large_utf8"),
            (&["", ""], "large_utf8"),
            (&["abc"], "large_utf8"),
        ] {
            assert_eq!(infer(values).column_type.to_string(), want, "{values:?}");
        }
    }

    #[test]
    fn evidence_names_the_value_and_its_place() {
        let found = infer(&["1", "", "x7", "y"]);
        assert!(found.nullable);
        assert!(found.evidence.contains("\"x7\" (f.csv, row 2)"), "{}", found.evidence);
        let found = infer(&["9007199254740993", "0.5"]);
        assert!(found.evidence.contains("9007199254740993") && found.evidence.contains("0.5"), "{}", found.evidence);
        let found = infer(&["2024-01-31T10:00:00Z", "2024-01-31 10:00:00"]);
        assert!(found.evidence.contains("mixed"), "{}", found.evidence);
    }
}
