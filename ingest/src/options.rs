//! What an ingest is asked to do.

use std::{collections::BTreeMap, fmt, str::FromStr};

use gristmill_shard::{
    Error, Result,
    schema::{DatasetSchema, Role},
};
use serde::{Deserialize, Serialize};

/// Options of an ingest. All but `sources` are part of the output's identity.
#[derive(Debug, Clone, PartialEq)]
pub struct IngestOptions {
    /// Local files, folders (searched to the bottom), and patterns whose last part has `*` or `?`.
    pub sources: Vec<String>,
    /// The columns to read with their types; `None` infers them from all the data.
    pub schema: Option<DatasetSchema>,
    /// A row-wise query over the table `input`. Integers wrap around on overflow; `x / 0` is an infinity or NaN, and
    /// `//`, `div()` and `%` of integers by zero give null.
    pub sql: Option<String>,
    /// What a bad row does.
    pub on_error: OnError,
    /// Bad rows that are too many. 1 % unless said otherwise: more than that is a wrong delimiter or schema more
    /// often than it is dirt.
    pub max_rejects: MaxRejects,
    /// Roles of columns of the result.
    pub roles: BTreeMap<String, Role>,
    /// How CSV is read.
    pub csv: CsvOptions,
    /// Raw bytes (of Parquet: decoded bytes) that become one file of the result. Memory is a few times this a thread.
    pub unit_bytes: u64,
}

impl IngestOptions {
    /// Default [`IngestOptions::unit_bytes`].
    pub const UNIT_BYTES: u64 = 32 << 20;

    /// The defaults for `sources`.
    #[must_use]
    pub fn new(sources: Vec<String>) -> Self {
        Self {
            sources,
            schema: None,
            sql: None,
            on_error: OnError::Reject,
            max_rejects: MaxRejects::default(),
            roles: BTreeMap::new(),
            csv: CsvOptions::default(),
            unit_bytes: Self::UNIT_BYTES,
        }
    }

    /// Refuses values that can't be carried out.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub(crate) fn check(&self) -> Result<()> {
        self.csv.check()?;
        if let MaxRejects::Percent(percent) = self.max_rejects
            && !(0.0..=100.0).contains(&percent)
        {
            return Err(Error::usage(format!("max_rejects of {percent} % is not a share"), "give 0% to 100%"));
        }
        if !(1..=1 << 30).contains(&self.unit_bytes) {
            return Err(Error::usage(
                format!("unit_bytes of {} is out of range", self.unit_bytes),
                "give 1 to 1073741824 bytes (1 GiB)",
            ));
        }
        if let Some(schema) = &self.schema {
            if schema.columns.is_empty() {
                return Err(Error::usage("the schema has no columns", "list the columns to read"));
            }
            schema.check_names("the schema")?;
        }
        Ok(())
    }
}

/// What a bad row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It goes to the rejects.
    #[default]
    Reject,
    /// It stops the ingest.
    Fail,
}

impl FromStr for OnError {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "reject" => Ok(Self::Reject),
            "fail" => Ok(Self::Fail),
            other => Err(Error::usage(
                format!("on_error is \"{other}\""),
                gristmill_shard::nearest_name(other, ["reject", "fail"]),
            )),
        }
    }
}

/// How many bad rows are too many.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum MaxRejects {
    /// At most so many rows.
    Rows(u64),
    /// At most so many of a hundred rows.
    Percent(f64),
}

impl Default for MaxRejects {
    fn default() -> Self {
        Self::Percent(1.0)
    }
}

impl MaxRejects {
    /// Whether `rejected` of `rows` are too many.
    #[must_use]
    pub fn is_exceeded(self, rejected: u64, rows: u64) -> bool {
        match self {
            Self::Rows(most) => rejected > most,
            Self::Percent(percent) => rejected as f64 > rows as f64 * percent / 100.0,
        }
    }
}

impl fmt::Display for MaxRejects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows(rows) => write!(f, "{rows}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl From<MaxRejects> for String {
    fn from(limit: MaxRejects) -> Self {
        limit.to_string()
    }
}

impl TryFrom<String> for MaxRejects {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for MaxRejects {
    type Err = Error;

    /// Reads `100` or `5%`.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::usage(format!("max_rejects is \"{text}\""), "give a number of rows (100) or a share (5%)");
        match text.strip_suffix('%') {
            Some(share) => match share.trim().parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Self::Percent(percent)),
                _ => Err(bad()),
            },
            None => text.parse().map(Self::Rows).map_err(|_| bad()),
        }
    }
}

/// How CSV is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CsvOptions {
    /// The byte between fields; `None`: a comma, or a tab in files that end in `.tsv` or `.tab`.
    pub delimiter: Option<char>,
    /// The byte around fields.
    pub quote: char,
    /// Whether the first record names the columns; without it they are `column_0`, `column_1`, …, or the schema's.
    pub has_header: bool,
    /// Bare fields that mean null. A quoted field is null by these only where its column is not text.
    pub null_values: Vec<String>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self { delimiter: None, quote: '"', has_header: true, null_values: vec![String::new()] }
    }
}

impl CsvOptions {
    fn check(&self) -> Result<()> {
        for (what, c) in [("delimiter", self.delimiter.unwrap_or(',')), ("quote", self.quote)] {
            if !c.is_ascii() || matches!(c, '\n' | '\r' | '\0') {
                return Err(Error::usage(format!("the CSV {what} is {c:?}"), "give one ASCII character, no line end"));
            }
        }
        if self.delimiter == Some(self.quote) {
            return Err(Error::usage("the CSV delimiter and quote are the same", "give two characters"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_written() {
        assert_eq!("100".parse::<MaxRejects>().unwrap(), MaxRejects::Rows(100));
        assert_eq!("2.5%".parse::<MaxRejects>().unwrap(), MaxRejects::Percent(2.5));
        assert_eq!(MaxRejects::Percent(2.5).to_string(), "2.5%");
        for bad in ["", "-1", "101%", "NaN%", "5 rows", "%"] {
            assert_eq!(bad.parse::<MaxRejects>().unwrap_err().kind(), gristmill_shard::ErrorKind::Usage, "{bad}");
        }
        assert!(MaxRejects::Rows(3).is_exceeded(4, 100) && !MaxRejects::Rows(3).is_exceeded(3, 100));
        assert!(MaxRejects::Percent(1.0).is_exceeded(2, 100) && !MaxRejects::Percent(1.0).is_exceeded(1, 100));
        assert!("rejct".parse::<OnError>().unwrap_err().to_string().contains("did you mean \"reject\""));
    }

    #[test]
    fn nonsense_is_refused() {
        let base = IngestOptions::new(vec!["x".into()]);
        base.check().unwrap();
        for bad in [
            IngestOptions { unit_bytes: 0, ..base.clone() },
            IngestOptions { max_rejects: MaxRejects::Percent(f64::NAN), ..base.clone() },
            IngestOptions { schema: Some(DatasetSchema::default()), ..base.clone() },
            IngestOptions { csv: CsvOptions { delimiter: Some('é'), ..CsvOptions::default() }, ..base.clone() },
            IngestOptions { csv: CsvOptions { delimiter: Some('"'), ..CsvOptions::default() }, ..base },
        ] {
            assert_eq!(bad.check().unwrap_err().kind(), gristmill_shard::ErrorKind::Usage);
        }
    }
}
