//! Strata: the distinct combinations of the stratify columns, and which one each row has.

use std::collections::{BTreeMap, HashMap};

use arrow::{
    array::{Array, ArrayRef, RecordBatch, make_array},
    datatypes::{DataType, SchemaRef},
    error::ArrowError,
    row::{RowConverter, SortField},
    util::display::{ArrayFormatter, FormatOptions},
};

use crate::{
    assign::Stratum,
    error::{Error, Result},
    schema::DatasetSchema,
};

/// A stratum's key: an order-preserving encoding of its values.
pub type StratumKey = Box<[u8]>;

/// How null is shown in stratum names.
pub const NULL_NAME: &str = "∅";

/// Checks that strata can be made of `columns`.
///
/// # Errors
/// [`Error::Usage`] for an unknown column, one named twice, or one of floating point.
pub fn check_stratify(schema: &DatasetSchema, columns: &[String]) -> Result<()> {
    for (i, name) in columns.iter().enumerate() {
        let column = schema.column(name, "--stratify")?;
        if columns[..i].contains(name) {
            return Err(Error::usage(format!("--stratify names \"{name}\" twice"), "name each column once"));
        }
        if column.column_type.to_arrow().is_floating() {
            return Err(Error::usage(
                format!(
                    "--stratify: column \"{name}\" has type {}, almost every row would be its own stratum",
                    column.column_type
                ),
                "derive a column of classes or bins at ingest (for example --sql 'SELECT *, delay > 15 AS late FROM input')",
            ));
        }
    }
    Ok(())
}

fn converter(columns: &[ArrayRef]) -> Result<RowConverter> {
    RowConverter::new(columns.iter().map(|c| SortField::new(c.data_type().clone())).collect())
        .map_err(|source| Error::Arrow { action: "encode the stratify columns".into(), source })
}

/// Rows of each stratum among rows with these stratify columns. Without columns all rows are one stratum.
///
/// # Errors
/// [`Error::Arrow`] when the values can't be encoded.
pub fn count(columns: &[ArrayRef], rows: usize) -> Result<BTreeMap<StratumKey, u64>> {
    if columns.is_empty() {
        return Ok(BTreeMap::from([(Box::from([].as_slice()), rows as u64)]));
    }
    let encoded = converter(columns)?
        .convert_columns(columns)
        .map_err(|source| Error::Arrow { action: "encode the stratify columns".into(), source })?;
    let mut counts: HashMap<&[u8], u64> = HashMap::new();
    for row in &encoded {
        *counts.entry(row.data()).or_insert(0) += 1;
    }
    Ok(counts.into_iter().map(|(key, n)| (Box::from(key), n)).collect())
}

/// All strata of a data set, in order of their keys.
#[derive(Debug, Clone)]
pub struct Strata {
    ordinals: HashMap<StratumKey, u32>,
    strata: Vec<Stratum>,
    names: Vec<String>,
}

impl Strata {
    /// The strata that `counts` of all parts add up to; `schema` has the stratify columns in order.
    ///
    /// # Errors
    /// [`Error::Usage`] for more than 2^32 strata, [`Error::Arrow`] when a key can't be shown.
    pub fn new(counts: &BTreeMap<StratumKey, u64>, schema: &SchemaRef) -> Result<Self> {
        if u32::try_from(counts.len()).is_err() {
            return Err(Error::usage(
                format!("{} strata are too many", counts.len()),
                "stratify by fewer or coarser columns",
            ));
        }
        let strata = counts
            .iter()
            .map(|(key, rows)| Stratum { hash: u64::from_le_bytes(first8(blake3::hash(key).as_bytes())), rows: *rows })
            .collect();
        let ordinals = counts.keys().enumerate().map(|(i, key)| (key.clone(), i as u32)).collect();
        Ok(Self { ordinals, strata, names: names(counts.keys(), counts.len(), schema)? })
    }

    /// What assignment needs of them.
    #[must_use]
    pub fn strata(&self) -> &[Stratum] {
        &self.strata
    }

    /// Their values, as people read them.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Ordinal of a key.
    #[must_use]
    pub fn ordinal(&self, key: &[u8]) -> Option<u32> {
        self.ordinals.get(key).copied()
    }

    /// Ordinal of the stratum of each row.
    ///
    /// # Errors
    /// [`Error::Data`] for a stratum that was not there when strata were counted: the input has changed.
    pub fn of_rows(&self, columns: &[ArrayRef], rows: usize, url: &str) -> Result<Vec<u32>> {
        if columns.is_empty() {
            return Ok(vec![0; rows]);
        }
        let encoded = converter(columns)?
            .convert_columns(columns)
            .map_err(|source| Error::Arrow { action: "encode the stratify columns".into(), source })?;
        encoded
            .iter()
            .map(|row| {
                self.ordinal(row.data()).ok_or_else(|| Error::Data {
                    url: url.to_owned(),
                    what: "it changed while it was being sharded".into(),
                    help: "run again when nothing writes to the input".into(),
                })
            })
            .collect()
    }
}

fn first8(bytes: &[u8; 32]) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    first
}

fn names<'a>(keys: impl Iterator<Item = &'a StratumKey>, count: usize, schema: &SchemaRef) -> Result<Vec<String>> {
    if schema.fields().is_empty() {
        return Ok(vec!["all rows".into(); count]);
    }
    let fail = |source| Error::Arrow { action: "name the strata".into(), source };
    let converter = RowConverter::new(schema.fields().iter().map(|f| SortField::new(f.data_type().clone())).collect())
        .map_err(fail)?;
    let parser = converter.parser();
    let columns = converter.convert_rows(keys.map(|key| parser.parse(key))).map_err(fail)?;
    let columns = columns.into_iter().map(without_zone).collect::<Result<Vec<_>, _>>().map_err(fail)?;
    let options = FormatOptions::default().with_null(NULL_NAME);
    let mut formatters = Vec::with_capacity(columns.len());
    for column in &columns {
        formatters.push(ArrayFormatter::try_new(column.as_ref(), &options).map_err(fail)?);
    }
    Ok((0..count)
        .map(|row| formatters.iter().map(|f| f.value(row).to_string()).collect::<Vec<_>>().join(" | "))
        .collect())
}

/// A zoned time as the UTC instant that it is: names of zones are not resolved here.
fn without_zone(column: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let DataType::Timestamp(unit, Some(_)) = column.data_type() else { return Ok(column) };
    let naive = DataType::Timestamp(*unit, None);
    Ok(make_array(column.to_data().into_builder().data_type(naive).build()?))
}

/// The stratify columns of `batch`, in order.
///
/// # Errors
/// [`Error::Internal`] when one is missing: names are checked before data are read.
pub fn key_columns(batch: &RecordBatch, stratify: &[String]) -> Result<Vec<ArrayRef>> {
    stratify
        .iter()
        .map(|name| {
            batch
                .column_by_name(name)
                .cloned()
                .ok_or_else(|| Error::internal(format!("stratify column \"{name}\" was not read")))
        })
        .collect()
}

/// Whether a type can be encoded as part of a key.
#[must_use]
pub fn is_supported(data_type: &DataType) -> bool {
    RowConverter::supports_fields(&[SortField::new(data_type.clone())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::{BooleanArray, LargeStringArray},
        datatypes::{Field, Schema},
    };
    use std::sync::Arc;

    #[test]
    fn null_is_a_stratum_of_its_own_and_names_read_well() {
        let origin: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("LAX"), None, Some("ATL"), Some("LAX")]));
        let late: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]));
        let columns = [origin, late];
        let counts = count(&columns, 4).unwrap();
        let schema = Arc::new(Schema::new(vec![
            Field::new("origin", DataType::LargeUtf8, true),
            Field::new("late", DataType::Boolean, true),
        ]));
        let strata = Strata::new(&counts, &schema).unwrap();
        assert_eq!(strata.names(), ["∅ | false", "ATL | ∅", "LAX | true"]);
        assert_eq!(strata.of_rows(&columns, 4, "x").unwrap(), [2, 0, 1, 2]);
        let other: ArrayRef = Arc::new(LargeStringArray::from(vec!["JFK"]));
        let late: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
        assert!(matches!(strata.of_rows(&[other, late], 1, "x"), Err(Error::Data { .. })));
    }

    #[test]
    fn zoned_times_have_names() {
        let zone = DataType::Timestamp(arrow::datatypes::TimeUnit::Second, Some("Europe/Berlin".into()));
        let times = arrow::array::TimestampSecondArray::from(vec![0, 86_400]).with_timezone("Europe/Berlin");
        let columns: [ArrayRef; 1] = [Arc::new(times)];
        let schema = Arc::new(Schema::new(vec![Field::new("at", zone, false)]));
        let strata = Strata::new(&count(&columns, 2).unwrap(), &schema).unwrap();
        assert_eq!(strata.names(), ["1970-01-01T00:00:00", "1970-01-02T00:00:00"]);
    }

    #[test]
    fn without_columns_there_is_one_stratum() {
        let counts = count(&[], 7).unwrap();
        let strata = Strata::new(&counts, &Arc::new(Schema::empty())).unwrap();
        assert_eq!((strata.names().len(), strata.strata()[0].rows), (1, 7));
        assert_eq!(strata.of_rows(&[], 2, "x").unwrap(), [0, 0]);
    }
}
