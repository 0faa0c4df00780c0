//! What a row is: column names, types and roles, in the few types that cross between stages.

use std::{collections::HashSet, fmt, str::FromStr, sync::Arc};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, nearest_name};

/// Name of the row identity column of shards: i64, file ordinal · 2^40 + row in file.
pub const ROW_ID: &str = "_row_id";
/// Column of shards whose rows may be copies: i32, 0 for the row itself, 1, 2, … for copies of it.
pub const COPY: &str = "_copy";
/// Column of clean files: ordinal (i32) of the raw file in the manifest's source list.
pub const SOURCE_FILE: &str = "_source_file";
/// Column of clean files: row (i64, from 0, header not counted) in the raw file.
pub const SOURCE_ROW: &str = "_source_row";
/// Rows that one file may have: ids keep 40 bits for them.
pub const MAX_FILE_ROWS: u64 = 1 << 40;
/// Files that one data set may have: ids keep 23 bits for them.
pub const MAX_FILES: u64 = 1 << 23;

/// The identity of row `row` of file `file`.
#[must_use]
pub fn row_id(file: u64, row: u64) -> i64 {
    ((file << 40) | row) as i64
}

/// Type of a column on disk. Text is `large_utf8`, bytes `large_binary` (64-bit offsets, so that no
/// concatenation overflows).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// A plain Arrow type without children.
    Plain(DataType),
}

impl ColumnType {
    /// The waist type of an Arrow type: strings and dictionaries of strings become `large_utf8`.
    ///
    /// # Errors
    /// The Arrow type, when it has no place here (nested types).
    pub fn from_arrow(data_type: &DataType) -> Result<Self, DataType> {
        use DataType as T;
        let plain = match data_type {
            T::Utf8 | T::LargeUtf8 | T::Utf8View => T::LargeUtf8,
            T::Binary | T::LargeBinary | T::BinaryView => T::LargeBinary,
            T::Dictionary(_, values) => return Self::from_arrow(values),
            T::Boolean
            | T::Int8
            | T::Int16
            | T::Int32
            | T::Int64
            | T::UInt8
            | T::UInt16
            | T::UInt32
            | T::UInt64
            | T::Float32
            | T::Float64
            | T::Date32
            | T::Timestamp(..) => data_type.clone(),
            other => return Err(other.clone()),
        };
        Ok(Self::Plain(plain))
    }

    /// The Arrow type.
    #[must_use]
    pub fn to_arrow(&self) -> &DataType {
        let Self::Plain(data_type) = self;
        data_type
    }

    /// Whether values are numbers (integers, floats) or truth values.
    #[must_use]
    pub fn is_numeric(&self) -> bool {
        self.to_arrow().is_numeric() || matches!(self.to_arrow(), DataType::Boolean)
    }
}

const TYPE_NAMES: [&str; 19] = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "large_utf8",
    "large_binary",
    "date32",
    "timestamp[s]",
    "timestamp[ms]",
    "timestamp[us]",
    "timestamp[ns]",
    "timestamp[us, UTC]",
];

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use DataType as T;
        match self.to_arrow() {
            T::Boolean => f.write_str("bool"),
            T::Int8 => f.write_str("int8"),
            T::Int16 => f.write_str("int16"),
            T::Int32 => f.write_str("int32"),
            T::Int64 => f.write_str("int64"),
            T::UInt8 => f.write_str("uint8"),
            T::UInt16 => f.write_str("uint16"),
            T::UInt32 => f.write_str("uint32"),
            T::UInt64 => f.write_str("uint64"),
            T::Float32 => f.write_str("float32"),
            T::Float64 => f.write_str("float64"),
            T::LargeBinary => f.write_str("large_binary"),
            T::Date32 => f.write_str("date32"),
            T::Timestamp(unit, zone) => {
                let unit = match unit {
                    TimeUnit::Second => "s",
                    TimeUnit::Millisecond => "ms",
                    TimeUnit::Microsecond => "us",
                    TimeUnit::Nanosecond => "ns",
                };
                match zone {
                    Some(zone) => write!(f, "timestamp[{unit}, {zone}]"),
                    None => write!(f, "timestamp[{unit}]"),
                }
            }
            _ => f.write_str("large_utf8"),
        }
    }
}

impl FromStr for ColumnType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        use DataType as T;
        let plain = match text {
            "bool" => T::Boolean,
            "int8" => T::Int8,
            "int16" => T::Int16,
            "int32" => T::Int32,
            "int64" => T::Int64,
            "uint8" => T::UInt8,
            "uint16" => T::UInt16,
            "uint32" => T::UInt32,
            "uint64" => T::UInt64,
            "float32" => T::Float32,
            "float64" => T::Float64,
            "large_utf8" | "utf8" | "string" => T::LargeUtf8,
            "large_binary" | "binary" => T::LargeBinary,
            "date32" | "date" => T::Date32,
            _ => match timestamp(text) {
                Some(data_type) => data_type,
                None => {
                    return Err(Error::usage(
                        format!("unknown column type \"{text}\""),
                        nearest_name(text, TYPE_NAMES),
                    ));
                }
            },
        };
        Ok(Self::Plain(plain))
    }
}

fn timestamp(text: &str) -> Option<DataType> {
    let inner = text.strip_prefix("timestamp[")?.strip_suffix(']')?;
    let (unit, zone) = match inner.split_once(',') {
        Some((unit, zone)) => (unit.trim(), Some(zone.trim())),
        None => (inner.trim(), None),
    };
    let unit = match unit {
        "s" => TimeUnit::Second,
        "ms" => TimeUnit::Millisecond,
        "us" => TimeUnit::Microsecond,
        "ns" => TimeUnit::Nanosecond,
        _ => return None,
    };
    if zone == Some("") {
        return None;
    }
    Some(DataType::Timestamp(unit, zone.map(Into::into)))
}

impl Serialize for ColumnType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ColumnType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a column is for. The manifest holds defaults; a training configuration overrides them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// What is predicted.
    Label,
    /// What it is predicted from.
    Feature,
    /// Weight of the row in the loss.
    Weight,
    /// Rows of one group stay together.
    Group,
    /// Identity of the row to its users.
    Id,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name; names that start with `_` are gristmill's own.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    /// Whether nulls may occur.
    #[serde(default = "yes")]
    pub nullable: bool,
    /// What it is for, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
}

fn yes() -> bool {
    true
}

/// Columns in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSchema {
    /// The columns that users see (gristmill's own, with `_`, are not listed).
    pub columns: Vec<Column>,
}

impl DatasetSchema {
    /// The schema of Arrow fields; gristmill's own columns (`_…`) are left out.
    ///
    /// # Errors
    /// [`Error::Usage`] for a nested type, naming the column of `url`, or a name that occurs twice.
    pub fn from_arrow(schema: &Schema, url: &str) -> Result<Self> {
        let mut columns = Vec::new();
        for field in schema.fields().iter().filter(|f| !is_reserved(f.name())) {
            let column_type = ColumnType::from_arrow(field.data_type()).map_err(|t| {
                Error::usage(
                    format!("{url}: column \"{}\" has type {t}, which shards can't hold", field.name()),
                    "flatten or drop it at ingest with --sql",
                )
            })?;
            columns.push(Column { name: field.name().clone(), column_type, nullable: field.is_nullable(), role: None });
        }
        let schema = Self { columns };
        schema.check_names(url)?;
        Ok(schema)
    }

    /// Refuses names that occur twice, are empty, or are reserved.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the column.
    pub fn check_names(&self, url: &str) -> Result<()> {
        let mut seen = HashSet::new();
        for column in &self.columns {
            if column.name.is_empty() {
                return Err(Error::usage(format!("{url}: a column has no name"), "name every column in the header"));
            }
            if is_reserved(&column.name) {
                return Err(Error::usage(
                    format!("{url}: column \"{}\" starts with \"_\", which is reserved", column.name),
                    "rename it (for example with --sql 'SELECT … AS …')",
                ));
            }
            if !seen.insert(column.name.as_str()) {
                return Err(Error::usage(
                    format!("{url}: two columns are called \"{}\"", column.name),
                    "rename or drop one of them",
                ));
            }
        }
        Ok(())
    }

    /// The Arrow schema of these columns, in order.
    #[must_use]
    pub fn to_arrow(&self) -> SchemaRef {
        Arc::new(Schema::new(
            self.columns
                .iter()
                .map(|c| Field::new(&c.name, c.column_type.to_arrow().clone(), c.nullable))
                .collect::<Vec<_>>(),
        ))
    }

    /// The column called `name`.
    ///
    /// # Errors
    /// [`Error::Usage`] with the nearest name; `what` says who asked (`--stratify`, `label`).
    pub fn column(&self, name: &str, what: &str) -> Result<&Column> {
        self.columns.iter().find(|c| c.name == name).ok_or_else(|| {
            Error::usage(
                format!("{what}: there is no column \"{name}\""),
                nearest_name(name, self.columns.iter().map(|c| c.name.as_str())),
            )
        })
    }
}

/// Whether a column name is gristmill's own.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    name.starts_with('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_read_back_as_they_are_written() {
        for name in TYPE_NAMES {
            assert_eq!(name.parse::<ColumnType>().unwrap().to_string(), name);
        }
        assert_eq!(
            "timestamp[ms, Europe/Berlin]".parse::<ColumnType>().unwrap().to_string(),
            "timestamp[ms, Europe/Berlin]"
        );
        let error = "flaot64".parse::<ColumnType>().unwrap_err().to_string();
        assert!(error.contains("did you mean \"float64\""), "{error}");
        assert!("timestamp[us, ]".parse::<ColumnType>().is_err());
    }

    #[test]
    fn names_are_checked() {
        let field = |n: &str| Field::new(n, DataType::Int64, true);
        let schema = Schema::new(vec![field("a"), field("a")]);
        assert!(DatasetSchema::from_arrow(&schema, "x").unwrap_err().to_string().contains("two columns"));
        let schema = DatasetSchema { columns: vec![] };
        assert!(schema.column("a", "--stratify").is_err());
        let nested = Schema::new(vec![Field::new_list("l", Field::new("item", DataType::Int64, true), true)]);
        assert!(DatasetSchema::from_arrow(&nested, "x").unwrap_err().to_string().contains("\"l\""));
    }

    #[test]
    fn row_ids_are_non_negative_and_distinct() {
        assert_eq!(row_id(0, 5), 5);
        assert_eq!(row_id(1, 0), 1 << 40);
        assert!(row_id(MAX_FILES - 1, MAX_FILE_ROWS - 1) > 0);
    }
}
