//! Strata: the distinct combinations of the stratify columns, and which one each row has.

pub(crate) mod codes;
pub mod key;

use arrow::datatypes::DataType;
use hashbrown::HashMap;

pub use codes::{Classified, classify};
pub use key::{KeyColumn, NULL_NAME, StratumKey};

use crate::{
    error::{Error, Result},
    schema::{ColumnType, DatasetSchema},
};

/// Name of the stratum that rare ones are merged into.
pub const OTHER_NAME: &str = "(other)";

/// The columns of the key, with their types.
#[derive(Debug, Clone, PartialEq)]
pub struct KeySpec {
    /// How each column enters, in order.
    pub columns: Vec<KeyColumn>,
    /// Waist type of each column.
    pub types: Vec<DataType>,
}

impl KeySpec {
    /// Of `columns` as `schema` has them.
    ///
    /// # Errors
    /// [`Error::Usage`] for a column that is not there, one named twice, or one whose type does not fit.
    pub fn new(schema: &DatasetSchema, columns: Vec<KeyColumn>) -> Result<Self> {
        let mut types = Vec::with_capacity(columns.len());
        for (i, key) in columns.iter().enumerate() {
            let option = match key {
                KeyColumn::Value { .. } | KeyColumn::Bins { .. } => "--stratify",
                KeyColumn::Flag { .. } | KeyColumn::LabelSet { .. } => "--labels",
            };
            let column = schema.column(key.column(), option)?;
            let data_type = column.column_type.to_arrow();
            if columns[..i].iter().any(|c| c.column() == key.column()) {
                return Err(Error::usage(format!("{option} names \"{}\" twice", column.name), "name each column once"));
            }
            check_type(key, data_type, &column.column_type)?;
            types.push(data_type.clone());
        }
        Ok(Self { columns, types })
    }

    /// Names of the columns that have to be read.
    #[must_use]
    pub fn column_names(&self) -> Vec<String> {
        self.columns.iter().map(|c| c.column().to_owned()).collect()
    }
}

fn check_type(key: &KeyColumn, data_type: &DataType, named: &ColumnType) -> Result<()> {
    let name = key.column();
    let numeric = named.is_numeric() || matches!(data_type, DataType::Date32 | DataType::Timestamp(..));
    match key {
        KeyColumn::Value { .. } if data_type.is_floating() => Err(Error::usage(
            format!("--stratify: column \"{name}\" has type {named}, almost every row would be its own stratum"),
            format!("stratify by its quantiles: --bins {name}=10"),
        )),
        KeyColumn::Bins { .. } if !numeric => Err(Error::usage(
            format!("--bins: column \"{name}\" has type {named}, quantiles need numbers or times"),
            "leave it out of --bins",
        )),
        KeyColumn::Flag { .. } if !named.is_numeric() => Err(Error::usage(
            format!("--labels: column \"{name}\" has type {named}, labels are 0 and 1"),
            "for one text column of several labels give --label-separator as well",
        )),
        KeyColumn::LabelSet { .. } if data_type != &DataType::LargeUtf8 => Err(Error::usage(
            format!("--labels: column \"{name}\" has type {named}, --label-separator is for text"),
            "leave --label-separator out for columns of 0 and 1",
        )),
        _ => Ok(()),
    }
}

/// A stratum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stratum {
    /// Keyed choices depend on this hash of its key, not on its ordinal, so that a new stratum does not move the rows
    /// of the others.
    pub hash: u64,
    /// Its value, as people read it.
    pub name: String,
    /// Rows of the input.
    pub rows: u64,
}

/// All strata of a data set, in order of their keys; merged ones last.
#[derive(Debug, Clone, Default)]
pub struct Strata {
    keys: Vec<StratumKey>,
    of_key: HashMap<StratumKey, u32>,
    strata: Vec<Stratum>,
    merged: u64,
}

impl Strata {
    /// Of the rows of each key. Keys with fewer than `merge_below` rows become one stratum, [`OTHER_NAME`].
    ///
    /// # Errors
    /// [`Error::Usage`] for more than 2^31 keys, [`Error::Internal`] for a key that is not one of `spec`.
    pub fn new(mut counts: Vec<(StratumKey, u64)>, spec: &KeySpec, merge_below: u64) -> Result<Self> {
        if i32::try_from(counts.len()).is_err() {
            return Err(Error::usage(
                format!("{} strata are too many", counts.len()),
                "stratify by fewer or coarser columns",
            ));
        }
        counts.sort_unstable();
        let names = key::names(counts.iter().map(|c| &c.0), &spec.columns, &spec.types)?;
        let mut strata = Vec::with_capacity(counts.len());
        let mut of_key = HashMap::with_capacity(counts.len());
        let (mut merged, mut merged_rows) = (Vec::new(), 0_u64);
        for ((key, rows), name) in counts.iter().zip(names) {
            if *rows < merge_below {
                merged_rows += rows;
                merged.push(key.clone());
                continue;
            }
            of_key.insert(key.clone(), strata.len() as u32);
            strata.push(Stratum { hash: hash(key), name, rows: *rows });
        }
        if !merged.is_empty() {
            let other = strata.len() as u32;
            strata.push(Stratum { hash: hash(OTHER_NAME.as_bytes()), name: OTHER_NAME.into(), rows: merged_rows });
            of_key.extend(merged.iter().map(|key| (key.clone(), other)));
        }
        let merged = merged.len() as u64;
        Ok(Self { keys: counts.into_iter().map(|(key, _)| key).collect(), of_key, strata, merged })
    }

    /// Each stratum, by ordinal.
    #[must_use]
    pub fn strata(&self) -> &[Stratum] {
        &self.strata
    }

    /// Number of strata.
    #[must_use]
    pub fn len(&self) -> usize {
        self.strata.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.strata.is_empty()
    }

    /// Keys that were merged into [`OTHER_NAME`].
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// All keys, ascending.
    #[must_use]
    pub fn keys(&self) -> &[StratumKey] {
        &self.keys
    }

    /// Ordinal of the stratum with this key.
    #[must_use]
    pub fn of_key(&self, key: &[u8]) -> Option<u32> {
        self.of_key.get(key).copied()
    }
}

/// The hash that a key's random choices are keyed by.
#[must_use]
pub fn hash(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(key).as_bytes()[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coded::CodedBatch;
    use arrow::{
        array::{
            ArrayRef, BooleanArray, Float64Array, Int64Array, LargeStringArray, RecordBatch, TimestampSecondArray,
        },
        datatypes::{Field, Schema},
    };
    use std::sync::Arc;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> (CodedBatch, DatasetSchema) {
        let fields: Vec<Field> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.into_iter().map(|c| c.1).collect()).unwrap();
        (CodedBatch::from_plain(&batch), DatasetSchema::from_arrow(&schema, "test").unwrap())
    }

    fn value(column: &str) -> KeyColumn {
        KeyColumn::Value { column: column.into() }
    }

    fn of_rows(batch: &CodedBatch, schema: &DatasetSchema, columns: Vec<KeyColumn>) -> Vec<String> {
        let spec = KeySpec::new(schema, columns).unwrap();
        let classified = classify(batch, &spec.columns, "test").unwrap();
        let counts = classified.keys.iter().map(|k| (k.clone(), 1)).collect();
        let strata = Strata::new(counts, &spec, 0).unwrap();
        let ordinals: Vec<u32> = classified.keys.iter().map(|k| strata.of_key(k).unwrap()).collect();
        classified.of_row.iter().map(|l| strata.strata()[ordinals[*l as usize] as usize].name.clone()).collect()
    }

    #[test]
    fn null_is_a_stratum_of_its_own_and_names_read_well() {
        let origin: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("LAX"), None, Some("ATL"), Some("LAX")]));
        let late: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]));
        let (batch, schema) = batch(vec![("origin", origin), ("late", late)]);
        let names = of_rows(&batch, &schema, vec![value("origin"), value("late")]);
        assert_eq!(names, ["LAX | true", "∅ | false", "ATL | ∅", "LAX | true"]);
    }

    #[test]
    fn keys_are_in_the_order_of_values_whatever_the_type() {
        let n: ArrayRef =
            Arc::new(Int64Array::from(vec![Some(5), Some(-7), None, Some(i64::MAX), Some(i64::MIN), Some(0)]));
        let s: ArrayRef = Arc::new(LargeStringArray::from(vec!["b", "a\u{0}b", "a", "a\u{0}", "", "aa"]));
        let (batch, schema) = batch(vec![("n", n), ("s", s)]);
        for (column, want) in [
            ("n", ["∅", "-9223372036854775808", "-7", "0", "5", "9223372036854775807"]),
            ("s", ["", "a", "a\u{0}", "a\u{0}b", "aa", "b"]),
        ] {
            let spec = KeySpec::new(&schema, vec![value(column)]).unwrap();
            let classified = classify(&batch, &spec.columns, "test").unwrap();
            let strata = Strata::new(classified.keys.iter().map(|k| (k.clone(), 1)).collect(), &spec, 0).unwrap();
            let names: Vec<&str> = strata.strata().iter().map(|s| s.name.as_str()).collect();
            assert_eq!(names, want);
        }
    }

    #[test]
    fn bins_labels_and_times() {
        let x: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.5), Some(1.0), Some(f64::NAN), None, Some(9.0)]));
        let at: ArrayRef =
            Arc::new(TimestampSecondArray::from(vec![0, 86_400, 0, 0, 0]).with_timezone("Europe/Berlin"));
        let genres: ArrayRef = Arc::new(LargeStringArray::from(vec![
            Some("War, Drama"),
            Some("Drama,War,Drama"),
            None,
            Some(""),
            Some("War"),
        ]));
        let flag: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 1, 0, 0]));
        let (batch, schema) = batch(vec![("x", x), ("at", at), ("genres", genres), ("flag", flag)]);
        let bins = KeyColumn::Bins { column: "x".into(), edges: vec![1.0, 5.0] };
        assert_eq!(of_rows(&batch, &schema, vec![bins]), ["[-inf, 1)", "[1, 5)", "NaN", "∅", "[5, inf)"]);
        assert_eq!(of_rows(&batch, &schema, vec![value("at")])[..2], ["1970-01-01T00:00:00", "1970-01-02T00:00:00"]);
        let labels = KeyColumn::LabelSet { column: "genres".into(), separator: ",".into() };
        let names = ["Drama + War", "Drama + War", "no label", "no label", "War"];
        assert_eq!(of_rows(&batch, &schema, vec![labels]), names);
        let flag = KeyColumn::Flag { column: "flag".into() };
        assert_eq!(of_rows(&batch, &schema, vec![flag])[..2], ["not flag", "flag"]);
        let odd = KeyColumn::Flag { column: "x".into() };
        assert!(classify(&batch, &[odd], "f.parquet").unwrap_err().to_string().contains("0.5"));
    }

    #[test]
    fn rare_keys_merge() {
        let n: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let (batch, schema) = batch(vec![("n", n)]);
        let spec = KeySpec::new(&schema, vec![value("n")]).unwrap();
        let keys = classify(&batch, &spec.columns, "test").unwrap().keys;
        let strata = Strata::new(keys.iter().cloned().zip([9, 1, 2]).collect(), &spec, 3).unwrap();
        assert_eq!((strata.len(), strata.merged()), (2, 2));
        assert_eq!((strata.strata()[1].name.as_str(), strata.strata()[1].rows), (OTHER_NAME, 3));
        assert_eq!(strata.of_key(&keys[2]), Some(1));
    }

    #[test]
    fn without_columns_there_is_one_stratum() {
        let n: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let (batch, schema) = batch(vec![("n", n)]);
        assert_eq!(of_rows(&batch, &schema, vec![]), ["all rows"; 3]);
    }
}
