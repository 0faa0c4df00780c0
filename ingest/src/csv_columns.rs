//! Text fields straight to Arrow columns, a row at a time: a row that has one bad value leaves none behind.

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, BooleanArray, Date32Array, Float32Array, Float64Array, Int64Array, LargeBinaryArray,
        LargeStringArray, UInt64Array,
    },
    buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer},
    compute::cast,
    datatypes::{DataType, TimeUnit},
};
use gristmill_shard::{Error, Result, schema::ColumnType};

use crate::{
    datetime::{parse_date, parse_moment},
    infer::{parse_digits, parse_f64, trim},
};

/// Collects the values of one column.
#[derive(Debug)]
pub(crate) struct ColumnBuilder {
    data_type: DataType,
    values: Values,
    valid: Vec<bool>,
    nulls: usize,
}

#[derive(Debug)]
enum Values {
    Bool(Vec<bool>),
    Int { values: Vec<i64>, least: i64, greatest: i64 },
    Uint(Vec<u64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Bytes { offsets: Vec<i64>, bytes: Vec<u8>, text: bool },
    Date(Vec<i32>),
    Time { values: Vec<i64>, per_second: i64, zoned: bool },
}

impl ColumnBuilder {
    /// A builder of a column of `column_type` for about `rows` rows.
    ///
    /// # Errors
    /// [`Error::Internal`] for a type that the waist does not have.
    pub(crate) fn new(column_type: &ColumnType, rows: usize) -> Result<Self> {
        use DataType as T;
        let int = |least: i64, greatest: i64| Values::Int { values: Vec::with_capacity(rows), least, greatest };
        let data_type = column_type.to_arrow().clone();
        let values = match &data_type {
            T::Boolean => Values::Bool(Vec::with_capacity(rows)),
            T::Int8 => int(i8::MIN.into(), i8::MAX.into()),
            T::Int16 => int(i16::MIN.into(), i16::MAX.into()),
            T::Int32 => int(i32::MIN.into(), i32::MAX.into()),
            T::Int64 => int(i64::MIN, i64::MAX),
            T::UInt8 => int(0, u8::MAX.into()),
            T::UInt16 => int(0, u16::MAX.into()),
            T::UInt32 => int(0, u32::MAX.into()),
            T::UInt64 => Values::Uint(Vec::with_capacity(rows)),
            T::Float32 => Values::Float32(Vec::with_capacity(rows)),
            T::Float64 => Values::Float64(Vec::with_capacity(rows)),
            T::Date32 => Values::Date(Vec::with_capacity(rows)),
            T::LargeUtf8 | T::LargeBinary => {
                let mut offsets = Vec::with_capacity(rows + 1);
                offsets.push(0);
                Values::Bytes { offsets, bytes: Vec::new(), text: data_type == T::LargeUtf8 }
            }
            T::Timestamp(unit, zone) => {
                let per_second = match unit {
                    TimeUnit::Second => 1,
                    TimeUnit::Millisecond => 1_000,
                    TimeUnit::Microsecond => 1_000_000,
                    TimeUnit::Nanosecond => 1_000_000_000,
                };
                Values::Time { values: Vec::with_capacity(rows), per_second, zoned: zone.is_some() }
            }
            other => return Err(Error::internal(format!("CSV columns of type {other}"))),
        };
        Ok(Self { data_type, values, valid: Vec::with_capacity(rows), nulls: 0 })
    }

    /// Whether values are text, of which blanks and empty quotes are part.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.values, Values::Bytes { .. })
    }

    /// Whether values must be UTF-8.
    pub(crate) fn needs_utf8(&self) -> bool {
        !matches!(self.values, Values::Bytes { text: false, .. })
    }

    /// Rows so far.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.valid.len()
    }

    /// Forgets rows from `rows` on.
    pub(crate) fn truncate(&mut self, rows: usize) {
        if self.valid.len() <= rows {
            return;
        }
        self.nulls -= self.valid[rows..].iter().filter(|v| !**v).count();
        self.valid.truncate(rows);
        match &mut self.values {
            Values::Bool(v) => v.truncate(rows),
            Values::Int { values, .. } | Values::Time { values, .. } => values.truncate(rows),
            Values::Uint(v) => v.truncate(rows),
            Values::Float32(v) => v.truncate(rows),
            Values::Float64(v) => v.truncate(rows),
            Values::Date(v) => v.truncate(rows),
            Values::Bytes { offsets, bytes, .. } => {
                offsets.truncate(rows + 1);
                bytes.truncate(offsets.last().and_then(|o| usize::try_from(*o).ok()).unwrap_or(0));
            }
        }
    }

    /// Adds a null.
    pub(crate) fn push_null(&mut self) {
        self.valid.push(false);
        self.nulls += 1;
        match &mut self.values {
            Values::Bool(v) => v.push(false),
            Values::Int { values, .. } | Values::Time { values, .. } => values.push(0),
            Values::Uint(v) => v.push(0),
            Values::Float32(v) => v.push(0.0),
            Values::Float64(v) => v.push(0.0),
            Values::Date(v) => v.push(0),
            Values::Bytes { offsets, bytes, .. } => offsets.push(bytes.len() as i64),
        }
    }

    /// Adds a value; `false` when it is not of the type, and then nothing is added.
    pub(crate) fn push(&mut self, value: &[u8]) -> bool {
        let done = match &mut self.values {
            Values::Bool(v) => parse_bool(trim(value)).map(|b| v.push(b)),
            Values::Int { values, least, greatest } => {
                parse_i64(trim(value)).filter(|n| (*least..=*greatest).contains(n)).map(|n| values.push(n))
            }
            Values::Uint(v) => {
                let value = trim(value);
                parse_digits(value.strip_prefix(b"+").unwrap_or(value)).map(|n| v.push(n))
            }
            Values::Float32(v) => parse_f32(trim(value)).map(|n| v.push(n)),
            Values::Float64(v) => parse_f64(trim(value)).map(|n| v.push(n)),
            Values::Date(v) => parse_date(trim(value)).map(|d| v.push(d)),
            Values::Time { values, per_second, zoned } => {
                parse_time(trim(value), *per_second, *zoned).map(|t| values.push(t))
            }
            Values::Bytes { offsets, bytes, .. } => {
                bytes.extend_from_slice(value);
                offsets.push(bytes.len() as i64);
                Some(())
            }
        };
        if done.is_some() {
            self.valid.push(true);
        }
        done.is_some()
    }

    /// The column.
    ///
    /// # Errors
    /// [`Error::Arrow`] when text is not UTF-8 (callers check it first).
    pub(crate) fn finish(self) -> Result<ArrayRef> {
        let fail = |source| Error::Arrow { action: format!("build a column of type {}", self.data_type), source };
        let nulls = (self.nulls > 0).then(|| NullBuffer::from(self.valid.as_slice()));
        let array: ArrayRef = match self.values {
            Values::Bool(v) => Arc::new(BooleanArray::new(BooleanBuffer::from(v), nulls)),
            Values::Int { values, .. } | Values::Time { values, .. } => Arc::new(Int64Array::new(values.into(), nulls)),
            Values::Uint(v) => Arc::new(UInt64Array::new(v.into(), nulls)),
            Values::Float32(v) => Arc::new(Float32Array::new(v.into(), nulls)),
            Values::Float64(v) => Arc::new(Float64Array::new(v.into(), nulls)),
            Values::Date(v) => Arc::new(Date32Array::new(v.into(), nulls)),
            Values::Bytes { offsets, bytes, text } => {
                let offsets = OffsetBuffer::new(offsets.into());
                if text {
                    Arc::new(LargeStringArray::try_new(offsets, Buffer::from_vec(bytes), nulls).map_err(fail)?)
                } else {
                    Arc::new(LargeBinaryArray::try_new(offsets, Buffer::from_vec(bytes), nulls).map_err(fail)?)
                }
            }
        };
        // Narrow integers and times were kept as int64 with their bounds checked: exact.
        if array.data_type() == &self.data_type { Ok(array) } else { cast(&array, &self.data_type).map_err(fail) }
    }
}

fn parse_bool(value: &[u8]) -> Option<bool> {
    if value == b"1" || value.eq_ignore_ascii_case(b"true") {
        Some(true)
    } else if value == b"0" || value.eq_ignore_ascii_case(b"false") {
        Some(false)
    } else {
        None
    }
}

fn parse_i64(value: &[u8]) -> Option<i64> {
    match value {
        [b'-', digits @ ..] => 0_i64.checked_sub_unsigned(parse_digits(digits)?),
        [b'+', digits @ ..] => i64::try_from(parse_digits(digits)?).ok(),
        digits => i64::try_from(parse_digits(digits)?).ok(),
    }
}

/// Rounded once, from the text.
fn parse_f32(value: &[u8]) -> Option<f32> {
    let number: f32 = std::str::from_utf8(value).ok()?.parse().ok()?;
    let spelled = || value.iter().any(|b| matches!(b, b'n' | b'N'));
    (number.is_finite() || spelled()).then_some(number)
}

/// A time in units of which a second has `per_second`; `None` when the text has an offset and the column none, or the
/// other way round, or digits below the unit.
fn parse_time(value: &[u8], per_second: i64, zoned: bool) -> Option<i64> {
    let moment = parse_moment(value).filter(|m| m.zoned == zoned)?;
    let nanoseconds_per_unit = 1_000_000_000 / per_second;
    let below = i64::from(moment.nanoseconds);
    if below % nanoseconds_per_unit != 0 {
        return None;
    }
    moment.seconds.checked_mul(per_second)?.checked_add(below / nanoseconds_per_unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::{Array, AsArray},
        datatypes::{Int8Type, Int64Type, TimestampMillisecondType},
    };

    fn build(column_type: &str, values: &[Option<&str>]) -> (ArrayRef, Vec<bool>) {
        let mut builder = ColumnBuilder::new(&column_type.parse().unwrap(), 0).unwrap();
        let mut taken = Vec::new();
        for value in values {
            match value {
                Some(v) => taken.push(builder.push(v.as_bytes())),
                None => builder.push_null(),
            }
        }
        (builder.finish().unwrap(), taken)
    }

    #[test]
    fn large_integers_with_nulls_are_exact() {
        let (array, _) = build("int64", &[Some("9007199254740993"), None, Some("-9223372036854775808"), Some("007")]);
        let array = array.as_primitive::<Int64Type>();
        assert_eq!(array.iter().collect::<Vec<_>>(), [Some(9_007_199_254_740_993), None, Some(i64::MIN), Some(7)]);
    }

    #[test]
    fn values_out_of_the_type_are_refused_and_leave_nothing() {
        let (array, taken) =
            build("int8", &[Some("127"), Some("128"), Some("-128"), Some("-129"), Some("1.0"), Some("x"), Some("")]);
        assert_eq!(taken, [true, false, true, false, false, false, false]);
        assert_eq!(array.as_primitive::<Int8Type>().values(), &[127, -128]);
        assert_eq!(build("uint64", &[Some("18446744073709551615"), Some("-1")]).1, [true, false]);
        assert_eq!(
            build("float64", &[Some("1e308"), Some("1e309"), Some("NaN"), Some("-inf"), Some("1,5")]).1,
            [true, false, true, true, false]
        );
        assert_eq!(build("float32", &[Some("3e38"), Some("4e38")]).1, [true, false]);
        assert_eq!(build("bool", &[Some("TRUE"), Some("0"), Some("yes")]).1, [true, true, false]);
        assert_eq!(build("date32", &[Some("2024-02-29"), Some("2023-02-29")]).1, [true, false]);
        let times = [Some("2024-01-01T00:00:00.001"), Some("2024-01-01T00:00:00.0001"), Some("2024-01-01T00:00:00Z")];
        let (array, taken) = build("timestamp[ms]", &times);
        assert_eq!(taken, [true, false, false]);
        assert_eq!(array.as_primitive::<TimestampMillisecondType>().value(0), 1_704_067_200_001);
        assert_eq!(build("timestamp[us, UTC]", &times).1, [false, false, true]);
        assert_eq!(build("timestamp[ns]", &[Some("2300-01-01T00:00:00")]).1, [false]);
    }

    #[test]
    fn rows_can_be_taken_back() {
        for column_type in
            ["bool", "int16", "uint64", "float32", "float64", "date32", "timestamp[us]", "large_utf8", "large_binary"]
        {
            let mut builder = ColumnBuilder::new(&column_type.parse().unwrap(), 0).unwrap();
            builder.push_null();
            let value: &[u8] = match column_type {
                "date32" => b"2024-01-01",
                "timestamp[us]" => b"2024-01-01T00:00:00",
                _ => b"1",
            };
            assert!(builder.push(value));
            builder.push_null();
            builder.truncate(2);
            assert!(builder.push(value));
            builder.truncate(7);
            assert_eq!(builder.len(), 3);
            let array = builder.finish().unwrap();
            assert_eq!((array.len(), array.null_count()), (3, 1), "{column_type}");
        }
    }
}
