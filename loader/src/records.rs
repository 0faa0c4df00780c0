//! Decoded row groups as records: the values of a row side by side, already in the form that tensors want.
//!
//! All conversion (normalisation, codes of categories, types) is done once per row group. Collating a batch is then a
//! copy of a few bytes for each row and tensor, from one or two cache lines.

use std::collections::HashMap;

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array},
    compute::cast,
    datatypes::{DataType, Float64Type, Int32Type, Int64Type},
    record_batch::RecordBatch,
};
use gristmill_shard::{
    schema::{Column, DatasetSchema},
    statistics::as_f64,
};

use crate::{
    buffer_pool::HostBuffer,
    error::{Error, Result},
    spec::{BatchSpec, LabelEncoding, NonFinite, TensorSpec, require_numbers},
    tensor::{COPY, DType, MASK, ROW_ID},
};

/// The records of one row group.
#[derive(Debug)]
pub(crate) struct Records {
    buffer: HostBuffer,
    stride: usize,
}

impl Records {
    /// The record of row `row`.
    #[inline]
    pub(crate) fn record(&self, row: u64) -> Option<&[u8]> {
        let start = usize::try_from(row).ok()?.checked_mul(self.stride)?;
        self.buffer.as_slice().get(start..start.checked_add(self.stride)?)
    }
}

/// A tensor's place in a record.
#[derive(Debug, Clone)]
pub(crate) struct TensorPlace {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// Elements a row; `None` for a tensor of shape `[B]`.
    pub(crate) columns: Option<usize>,
    pub(crate) offset: usize,
    pub(crate) width: usize,
}

/// How records are made of rows.
#[derive(Debug)]
pub(crate) struct RecordLayout {
    /// Columns that are read, in order.
    pub(crate) projection: Vec<String>,
    /// Tensors in the order of delivery; the mask, which has no place in a record, follows.
    pub(crate) tensors: Vec<TensorPlace>,
    pub(crate) stride: usize,
    fields: Vec<Field>,
    non_finite: NonFinite,
}

#[derive(Debug)]
struct Field {
    /// Ordinal in the projection.
    column: usize,
    offset: usize,
    encode: Encode,
}

#[derive(Debug)]
enum Encode {
    RowId,
    Copy,
    Number { dtype: DType, mean: f64, deviation: f64 },
    LabelNumber { dtype: DType },
    Category(Codes),
    Class(Codes),
    Raw { dtype: DType, null_is_zero: bool },
    Valid { finite_only: bool },
}

/// Codes of a column's values.
#[derive(Debug)]
enum Codes {
    Text(HashMap<String, i64>),
    Integer(IntegerCodes),
    Bool([Option<i64>; 2]),
}

impl RecordLayout {
    /// The layout of `spec` over columns of `schema`, and `_copy` where rows are `resampled`.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown column or one of the wrong type, a name that two tensors have, or no tensor.
    pub(crate) fn new(spec: &BatchSpec, schema: &DatasetSchema, resampled: bool) -> Result<Self> {
        let mut layout = Self {
            projection: Vec::new(),
            tensors: Vec::new(),
            stride: 0,
            fields: Vec::new(),
            non_finite: spec.non_finite,
        };
        let mut valid: Vec<(String, bool)> = Vec::new();
        for tensor in &spec.tensors {
            match tensor {
                TensorSpec::Numbers { name, dtype, columns } => {
                    float_type(name, *dtype)?;
                    layout.start(name, *dtype, Some(columns.len()))?;
                    for number in columns {
                        let column = schema.column(&number.column, "numbers")?;
                        require_numbers(column)?;
                        let (mean, deviation) = (number.mean, number.deviation);
                        if !mean.is_finite() || !deviation.is_finite() || deviation < 0.0 {
                            return Err(Error::usage(
                                format!(
                                    "column \"{}\": mean {mean} and deviation {deviation} can't normalise",
                                    column.name
                                ),
                                "give finite numbers, the deviation not negative",
                            ));
                        }
                        let deviation = if deviation == 0.0 { 1.0 } else { deviation };
                        layout.push(&column.name, *dtype, Encode::Number { dtype: *dtype, mean, deviation });
                        if column.nullable || spec.non_finite == NonFinite::AsNull {
                            valid.push((column.name.clone(), spec.non_finite == NonFinite::AsNull));
                        }
                    }
                }
                TensorSpec::Categories { name, columns } => {
                    layout.start(name, DType::I64, Some(columns.len()))?;
                    for category in columns {
                        let column = schema.column(&category.column, "categories")?;
                        let codes = Codes::new(column, &category.vocabulary, 1)?;
                        layout.push(&column.name, DType::I64, Encode::Category(codes));
                    }
                }
                TensorSpec::Label { name, column, encoding } => {
                    let column = schema.column(column, "label")?;
                    match encoding {
                        LabelEncoding::Number { dtype } => {
                            float_type(name, *dtype)?;
                            require_numbers(column)?;
                            layout.start(name, *dtype, None)?;
                            layout.push(&column.name, *dtype, Encode::LabelNumber { dtype: *dtype });
                        }
                        LabelEncoding::Classes { classes } => {
                            layout.start(name, DType::I64, None)?;
                            let codes = Codes::new(column, classes, 0)?;
                            layout.push(&column.name, DType::I64, Encode::Class(codes));
                        }
                    }
                }
                TensorSpec::Raw { column } => {
                    let column = schema.column(column, "raw")?;
                    let dtype = raw_type(column)?;
                    layout.start(&column.name, dtype, None)?;
                    layout.push(&column.name, dtype, Encode::Raw { dtype, null_is_zero: spec.valid });
                    if column.nullable {
                        valid.push((column.name.clone(), false));
                    }
                }
            }
        }
        if spec.valid {
            valid.sort();
            valid.dedup_by(|a, b| a.0 == b.0);
            for (column, finite_only) in valid {
                layout.start(&format!("{column}.valid"), DType::U8, None)?;
                layout.push(&column, DType::U8, Encode::Valid { finite_only });
            }
        }
        if spec.row_id {
            layout.start(ROW_ID, DType::I64, None)?;
            layout.push(ROW_ID, DType::I64, Encode::RowId);
        }
        if spec.copy {
            if !resampled {
                return Err(Error::usage(
                    "copy is asked for, and the shard set has no copies of rows",
                    "leave copy out: every row is there once",
                ));
            }
            layout.start(COPY, DType::I32, None)?;
            layout.push(COPY, DType::I32, Encode::Copy);
        }
        if layout.tensors.is_empty() {
            return Err(Error::usage("the batch has no tensor", "name at least one column"));
        }
        layout.stride = layout.stride.next_multiple_of(8);
        Ok(layout)
    }

    fn start(&mut self, name: &str, dtype: DType, columns: Option<usize>) -> Result<()> {
        if columns == Some(0) {
            return Err(Error::usage(format!("tensor \"{name}\" has no column"), "name at least one, or leave it out"));
        }
        if name == MASK || self.tensors.iter().any(|t| t.name == name) {
            return Err(Error::usage(format!("two tensors are called \"{name}\""), "give each a name of its own"));
        }
        self.stride = self.stride.next_multiple_of(dtype.size());
        self.tensors.push(TensorPlace { name: name.into(), dtype, columns, offset: self.stride, width: 0 });
        Ok(())
    }

    fn push(&mut self, column: &str, dtype: DType, encode: Encode) {
        let column = match self.projection.iter().position(|c| c == column) {
            Some(at) => at,
            None => {
                self.projection.push(column.to_owned());
                self.projection.len() - 1
            }
        };
        self.fields.push(Field { column, offset: self.stride, encode });
        self.stride += dtype.size();
        if let Some(tensor) = self.tensors.last_mut() {
            tensor.width += dtype.size();
        }
    }

    /// Bytes of a batch of `slots` slots.
    pub(crate) fn batch_bytes(&self, slots: u64) -> u64 {
        let row: u64 = self.tensors.iter().map(|t| t.width as u64).sum();
        slots.saturating_mul(row + DType::F32.size() as u64)
    }

    /// The records of `batch`, whose columns are those of the projection. `place` names the row group in messages.
    ///
    /// # Errors
    /// [`Error::Data`] for a value that the specification refuses, naming row and column.
    pub(crate) fn encode(&self, batch: &RecordBatch, url: &str, place: &str) -> Result<Records> {
        let bytes =
            batch.num_rows().checked_mul(self.stride).ok_or_else(|| Error::internal("a row group is too large"))?;
        let mut buffer = HostBuffer::zeroed(bytes);
        let mut numbers: HashMap<usize, ArrayRef> = HashMap::new();
        for field in &self.fields {
            let column =
                batch.columns().get(field.column).ok_or_else(|| Error::internal("a column was not decoded"))?;
            let name = self.projection.get(field.column).map_or("", String::as_str);
            let at = At { url, place, name };
            let mut out = Strided { bytes: buffer.as_mut_slice(), stride: self.stride, offset: field.offset };
            let mut as_numbers = || -> Result<ArrayRef> {
                if let Some(done) = numbers.get(&field.column) {
                    return Ok(done.clone());
                }
                let done = as_f64(column)?;
                numbers.insert(field.column, done.clone());
                Ok(done)
            };
            match &field.encode {
                Encode::RowId => {
                    let ids = column.as_primitive_opt::<Int64Type>().filter(|ids| ids.null_count() == 0);
                    let ids = ids.ok_or_else(|| {
                        Error::Shard(gristmill_shard::Error::corrupt(
                            url,
                            format!("{place} has no row ids of type int64"),
                        ))
                    })?;
                    out.put(ids.values().iter().map(|v| v.to_ne_bytes()));
                }
                Encode::Copy => {
                    let copies = column.as_primitive_opt::<Int32Type>().filter(|copies| copies.null_count() == 0);
                    let copies = copies.ok_or_else(|| {
                        Error::Shard(gristmill_shard::Error::corrupt(
                            url,
                            format!("{place} has no ordinals of copies of type int32"),
                        ))
                    })?;
                    out.put(copies.values().iter().map(|v| v.to_ne_bytes()));
                }
                Encode::Number { dtype, mean, deviation } => {
                    let values = as_numbers()?;
                    let values = values.as_primitive::<Float64Type>();
                    self.check_finite(values, &at)?;
                    let normalised = numbers_or_zero(values).map(|v| v.map_or(0.0, |v| (v - mean) / deviation));
                    out.put_float(*dtype, normalised);
                }
                Encode::LabelNumber { dtype } => {
                    let values = as_numbers()?;
                    let values = values.as_primitive::<Float64Type>();
                    for (row, value) in values.iter().enumerate() {
                        match value {
                            None => return Err(at.data(row, "the label is null", NULL_LABEL)),
                            Some(v) if !v.is_finite() => {
                                return Err(at.data(row, &format!("the label is {v}"), NULL_LABEL));
                            }
                            Some(_) => {}
                        }
                    }
                    out.put_float(*dtype, values.values().iter().copied());
                }
                Encode::Category(codes) => {
                    out.put(codes.of(column, &at)?.into_iter().map(|c| c.unwrap_or(0).to_ne_bytes()));
                }
                Encode::Class(codes) => {
                    let found = codes.of(column, &at)?;
                    if let Some(row) = found.iter().position(Option::is_none) {
                        let what =
                            if column.is_null(row) { "the label is null" } else { "the label is none of the classes" };
                        return Err(at.data(row, what, NULL_LABEL));
                    }
                    out.put(found.into_iter().map(|c| c.unwrap_or(0).to_ne_bytes()));
                }
                Encode::Raw { dtype, null_is_zero } => {
                    if !null_is_zero && let Some(row) = (0..column.len()).find(|row| column.is_null(*row)) {
                        return Err(at.data(
                            row,
                            "the value is null",
                            "set valid = true to get nulls as 0 with a mask",
                        ));
                    }
                    out.put_raw(*dtype, column, &at)?;
                }
                Encode::Valid { finite_only } => {
                    if *finite_only {
                        let values = as_numbers()?;
                        out.put(numbers_or_zero(values.as_primitive::<Float64Type>()).map(|v| [u8::from(v.is_some())]));
                    } else {
                        out.put((0..column.len()).map(|row| [u8::from(column.is_valid(row))]));
                    }
                }
            }
        }
        Ok(Records { buffer, stride: self.stride })
    }

    fn check_finite(&self, values: &Float64Array, at: &At<'_>) -> Result<()> {
        if self.non_finite == NonFinite::Refuse
            && let Some((row, Some(value))) = values.iter().enumerate().find(|(_, v)| v.is_some_and(|v| !v.is_finite()))
        {
            return Err(at.data(
                row,
                &format!("the value is {value}"),
                &format!(
                    "clean the column at ingest with --sql, for example with CASE WHEN ABS(\"{name}\") < 1.0e308 THEN \"{name}\" END AS \"{name}\", which makes a null of it",
                    name = at.name,
                ),
            ));
        }
        Ok(())
    }
}

const NULL_LABEL: &str = "leave such rows out at ingest with --sql '… WHERE label IS NOT NULL'";

/// Values that are neither null nor NaN nor infinite.
fn numbers_or_zero(values: &Float64Array) -> impl Iterator<Item = Option<f64>> + '_ {
    values.iter().map(|v| v.filter(|v| v.is_finite()))
}

fn float_type(name: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::F64 => Ok(()),
        other => Err(Error::usage(format!("tensor \"{name}\" can't be {other}"), "numbers are f32 or f64")),
    }
}

fn raw_type(column: &Column) -> Result<DType> {
    require_numbers(column)?;
    Ok(match column.column_type.to_arrow() {
        DataType::Boolean => DType::Bool,
        DataType::Int8 => DType::I8,
        DataType::Int16 => DType::I16,
        DataType::UInt8 => DType::U8,
        DataType::Int32 | DataType::UInt16 | DataType::Date32 => DType::I32,
        DataType::Float32 => DType::F32,
        DataType::Float64 => DType::F64,
        _ => DType::I64,
    })
}

/// Where a value is, for messages.
struct At<'a> {
    url: &'a str,
    place: &'a str,
    name: &'a str,
}

impl At<'_> {
    fn data(&self, row: usize, what: &str, help: &str) -> Error {
        Error::Data {
            url: self.url.to_owned(),
            what: format!("{}, row {row}, column \"{}\": {what}", self.place, self.name),
            help: help.to_owned(),
        }
    }
}

/// Codes of integers.
#[derive(Debug)]
enum IntegerCodes {
    /// By value − least, for values that lie close together, as hours and months do.
    Dense {
        least: i128,
        codes: Vec<Option<i64>>,
    },
    Sparse(HashMap<i128, i64>),
}

/// Spread of values up to which codes are kept in a table (1 MiB).
const DENSE_SPREAD: i128 = 1 << 16;

impl IntegerCodes {
    fn new(map: HashMap<i128, i64>) -> Self {
        let (Some(least), Some(greatest)) = (map.keys().min().copied(), map.keys().max().copied()) else {
            return Self::Sparse(map);
        };
        match greatest.checked_sub(least) {
            Some(spread) if spread < DENSE_SPREAD => {
                Self::Dense { least, codes: (0..=spread).map(|i| map.get(&(least + i)).copied()).collect() }
            }
            _ => Self::Sparse(map),
        }
    }

    fn get(&self, value: i128) -> Option<i64> {
        match self {
            Self::Dense { least, codes } => {
                let at = value.checked_sub(*least).and_then(|at| usize::try_from(at).ok())?;
                codes.get(at).copied().flatten()
            }
            Self::Sparse(map) => map.get(&value).copied(),
        }
    }
}

impl Codes {
    fn new(column: &Column, values: &[String], first: i64) -> Result<Self> {
        let numbered = values.iter().zip(first..);
        let unlike = |value: &str| {
            Error::usage(
                format!("\"{value}\" is no value of column \"{}\", which is {}", column.name, column.column_type),
                "take the values from the shard set's categories",
            )
        };
        let mut size = 0;
        let codes = match column.column_type.to_arrow() {
            DataType::LargeUtf8 => {
                let map: HashMap<String, i64> = numbered.map(|(v, code)| (v.clone(), code)).collect();
                size = map.len();
                Self::Text(map)
            }
            DataType::Boolean => {
                let mut codes = [None; 2];
                for (value, code) in numbered {
                    let at = match value.as_str() {
                        "false" => 0,
                        "true" => 1,
                        other => return Err(unlike(other)),
                    };
                    size += usize::from(codes[at].is_none());
                    codes[at] = Some(code);
                }
                Self::Bool(codes)
            }
            t if t.is_integer() => {
                let mut map = HashMap::new();
                for (value, code) in numbered {
                    map.insert(value.parse::<i128>().map_err(|_| unlike(value))?, code);
                }
                size = map.len();
                Self::Integer(IntegerCodes::new(map))
            }
            _ => {
                return Err(Error::usage(
                    format!("column \"{}\" is {}, which has no categories", column.name, column.column_type),
                    "text, integers and truth values have; use it as a number",
                ));
            }
        };
        if size != values.len() {
            return Err(Error::usage(
                format!("a value of column \"{}\" is listed twice", column.name),
                "list each once",
            ));
        }
        Ok(codes)
    }

    /// The code of each value; `None` for a null and a value without one.
    fn of(&self, column: &ArrayRef, at: &At<'_>) -> Result<Vec<Option<i64>>> {
        let unexpected = || {
            Error::Shard(gristmill_shard::Error::corrupt(
                at.url,
                format!("{}, column \"{}\" has type {}", at.place, at.name, column.data_type()),
            ))
        };
        match self {
            Self::Text(codes) => {
                let values = column.as_string_opt::<i64>().ok_or_else(unexpected)?;
                Ok(values.iter().map(|v| v.and_then(|v| codes.get(v).copied())).collect())
            }
            Self::Bool(codes) => {
                let values: &BooleanArray = column.as_boolean_opt().ok_or_else(unexpected)?;
                Ok(values.iter().map(|v| v.and_then(|v| codes[usize::from(v)])).collect())
            }
            Self::Integer(codes) if *column.data_type() == DataType::UInt64 => {
                let values = column.as_primitive_opt::<arrow::datatypes::UInt64Type>().ok_or_else(unexpected)?;
                Ok(values.iter().map(|v| v.and_then(|v| codes.get(i128::from(v)))).collect())
            }
            Self::Integer(codes) => {
                let values = as_i64(column).ok_or_else(unexpected)?;
                Ok(values.iter().map(|v| v.and_then(|v| codes.get(i128::from(v)))).collect())
            }
        }
    }
}

/// Integers and times (in their units since the epoch) as i64; `None` when there is no such reading.
fn as_i64(column: &ArrayRef) -> Option<Int64Array> {
    let column = match column.data_type() {
        DataType::Date32 => cast(column, &DataType::Int32).ok()?,
        _ => column.clone(),
    };
    cast(&column, &DataType::Int64).ok()?.as_primitive_opt::<Int64Type>().cloned()
}

/// One field of all records.
struct Strided<'a> {
    bytes: &'a mut [u8],
    stride: usize,
    offset: usize,
}

impl Strided<'_> {
    fn put<const N: usize>(&mut self, values: impl Iterator<Item = [u8; N]>) {
        let at = self.offset..self.offset + N;
        for (record, value) in self.bytes.chunks_exact_mut(self.stride).zip(values) {
            if let Some(field) = record.get_mut(at.clone()) {
                field.copy_from_slice(&value);
            }
        }
    }

    fn put_float(&mut self, dtype: DType, values: impl Iterator<Item = f64>) {
        match dtype {
            DType::F32 => self.put(values.map(|v| (v as f32).to_ne_bytes())),
            _ => self.put(values.map(f64::to_ne_bytes)),
        }
    }

    fn put_raw(&mut self, dtype: DType, column: &ArrayRef, at: &At<'_>) -> Result<()> {
        if dtype.is_float() {
            let values = as_f64(column)?;
            // f32 → f64 → f32 gives the same number, NaN included.
            self.put_float(dtype, values.as_primitive::<Float64Type>().iter().map(|v| v.unwrap_or(0.0)));
            return Ok(());
        }
        if dtype == DType::Bool {
            let values = column.as_boolean_opt().ok_or_else(|| at.data(0, "it is not a truth value", "shard again"))?;
            self.put(values.iter().map(|v| [u8::from(v.unwrap_or(false))]));
            return Ok(());
        }
        let values = as_i64(column).ok_or_else(|| at.data(0, "it is not an integer", "use it as a number"))?;
        if values.null_count() > column.null_count() {
            let row = (0..column.len()).find(|r| values.is_null(*r) && column.is_valid(*r)).unwrap_or(0);
            return Err(at.data(row, "the value is above 2^63 − 1", "use the column as a number"));
        }
        let integers = values.iter().map(|v| v.unwrap_or(0));
        match dtype {
            DType::I8 => self.put(integers.map(|v| (v as i8).to_ne_bytes())),
            DType::U8 => self.put(integers.map(|v| (v as u8).to_ne_bytes())),
            DType::I16 => self.put(integers.map(|v| (v as i16).to_ne_bytes())),
            DType::I32 => self.put(integers.map(|v| (v as i32).to_ne_bytes())),
            _ => self.put(integers.map(i64::to_ne_bytes)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tables_and_maps_of_integers_agree(values in proptest::collection::hash_set(-40_i128..40, 0..30), far in any::<bool>()) {
            let mut map: HashMap<i128, i64> = values.into_iter().zip(1..).collect();
            if far {
                map.insert(i128::from(u64::MAX), 99);
                map.insert(i128::from(i64::MIN), 100);
            }
            let codes = IntegerCodes::new(map.clone());
            prop_assert_eq!(matches!(codes, IntegerCodes::Sparse(_)), far || map.is_empty());
            for value in (-60..60).chain([i128::MAX, i128::MIN, i128::from(u64::MAX), i128::from(i64::MIN)]) {
                prop_assert_eq!(codes.get(value), map.get(&value).copied());
            }
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_refused_with_a_way_that_exists() {
        let mut layout = RecordLayout {
            projection: Vec::new(),
            tensors: Vec::new(),
            stride: 0,
            fields: Vec::new(),
            non_finite: NonFinite::Refuse,
        };
        let at = At { url: "train/part", place: "row group 3", name: "speed" };
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let values = Float64Array::from(vec![Some(1.0), None, Some(bad)]);
            let error = layout.check_finite(&values, &at).unwrap_err().to_string();
            assert!(error.contains("row 2, column \"speed\": the value is"), "{error}");
            assert!(error.contains("--sql") && error.contains("ABS(\"speed\")"), "{error}");
            assert!(!error.contains("non_finite"), "no command has such a setting: {error}");
        }
        layout.non_finite = NonFinite::AsNull;
        layout.check_finite(&Float64Array::from(vec![f64::NAN]), &at).unwrap();
    }
}
