//! What a batch holds: which columns become which tensors, and how.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use gristmill_shard::{
    ShardSet,
    schema::{Column, DatasetSchema},
    statistics::ColumnStatistics,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    tensor::DType,
};

/// Name of the tensor of numbers that [`BatchSpec::tabular`] makes, `[B, F]`.
pub const NUMBERS: &str = "numbers";
/// Name of the tensor of category codes that [`BatchSpec::tabular`] makes, i64 `[B, C]`.
pub const CATEGORIES: &str = "categories";
/// Name of the tensor of labels that [`BatchSpec::tabular`] makes, `[B]`.
pub const LABEL: &str = "label";

/// The tensors of a batch. `_mask` is always there, as the last one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSpec {
    /// Tensors in order.
    pub tensors: Vec<TensorSpec>,
    /// Whether `_row_id` is delivered.
    #[serde(default = "yes")]
    pub row_id: bool,
    /// Whether `_copy` is delivered, which tells copies of a row apart; only of a resampled shard set.
    #[serde(default)]
    pub copy: bool,
    /// Whether `<column>.valid` (u8, 1 = present) is delivered for every nullable number or raw column.
    #[serde(default)]
    pub valid: bool,
    /// What a NaN or an infinity among the numbers does.
    #[serde(default)]
    pub non_finite: NonFinite,
}

fn yes() -> bool {
    true
}

/// What a NaN or an infinity in a [`NumberColumn`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// It is an error that names the row.
    #[default]
    Refuse,
    /// It is taken as a null.
    AsNull,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TensorSpec {
    /// Columns of numbers, truth values or times side by side, `[B, F]`: `(x − mean) / deviation`, null → 0.
    Numbers {
        /// Name of the tensor.
        name: String,
        /// `f32` or `f64`.
        dtype: DType,
        /// The columns in order.
        columns: Vec<NumberColumn>,
    },
    /// Columns of categories side by side, i64 `[B, C]`: 0 = null or unseen, 1..K in order of the vocabulary.
    Categories {
        /// Name of the tensor.
        name: String,
        /// The columns in order.
        columns: Vec<CategoryColumn>,
    },
    /// What is predicted, `[B]`. A null is an error that names the row.
    Label {
        /// Name of the tensor.
        name: String,
        /// The column.
        column: String,
        /// How it is encoded.
        encoding: LabelEncoding,
    },
    /// A column of numbers, truth values or times as it is, `[B]`, named as the column. Unsigned integers take the
    /// next wider signed type. Nulls are 0 where `valid` is asked for, else an error that names the row.
    Raw {
        /// The column.
        column: String,
    },
}

/// A column of a [`TensorSpec::Numbers`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberColumn {
    /// The column.
    pub column: String,
    /// Subtracted first; 0 leaves values where they are.
    #[serde(default)]
    pub mean: f64,
    /// Divided by then; 0 (a constant column) counts as 1.
    #[serde(default = "one")]
    pub deviation: f64,
}

fn one() -> f64 {
    1.0
}

/// A column of a [`TensorSpec::Categories`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategoryColumn {
    /// The column: text, integers or truth values.
    pub column: String,
    /// Values as text, in order of their codes 1..K.
    pub vocabulary: Vec<String>,
}

/// How a label is encoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum LabelEncoding {
    /// The number itself (truth values 0 and 1), as `f32` or `f64`.
    Number {
        /// Element type.
        dtype: DType,
    },
    /// i64 codes 0..K−1 in this order; a value that is not listed is an error that names the row.
    Classes {
        /// Values as text.
        classes: Vec<String>,
    },
}

/// Statistics by column name, of the split that a model is trained on.
pub type Statistics = BTreeMap<String, ColumnStatistics>;
/// Values and their counts by column name, of the split that a model is trained on.
pub type Vocabularies = BTreeMap<String, Vec<(String, u64)>>;

impl BatchSpec {
    /// A batch of these tensors with row ids.
    #[must_use]
    pub fn new(tensors: Vec<TensorSpec>) -> Self {
        Self { tensors, row_id: true, copy: false, valid: false, non_finite: NonFinite::default() }
    }

    /// What a model of tables wants: `numbers` normalised with `statistics` (`[B, F]`), `categories` as codes of
    /// `vocabularies` (`[B, C]`), `label` as a number (`[B]`). Groups without columns are left out.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown column (with the nearest name), or one that has no statistics or vocabulary.
    pub fn tabular(
        schema: &DatasetSchema,
        numbers: &[String],
        categories: &[String],
        label: Option<&str>,
        dtype: DType,
        statistics: &Statistics,
        vocabularies: &Vocabularies,
    ) -> Result<Self> {
        let mut tensors = Vec::new();
        if !numbers.is_empty() {
            let columns = numbers.iter().map(|name| number_column(schema, name, statistics)).collect::<Result<_>>()?;
            tensors.push(TensorSpec::Numbers { name: NUMBERS.into(), dtype, columns });
        }
        if !categories.is_empty() {
            let columns =
                categories.iter().map(|name| category_column(schema, name, vocabularies)).collect::<Result<_>>()?;
            tensors.push(TensorSpec::Categories { name: CATEGORIES.into(), columns });
        }
        if let Some(column) = label {
            schema.column(column, "label")?;
            tensors.push(TensorSpec::Label {
                name: LABEL.into(),
                column: column.into(),
                encoding: LabelEncoding::Number { dtype },
            });
        }
        Ok(Self::new(tensors))
    }

    /// [`BatchSpec::tabular`] with the statistics and vocabularies of `split` read from `shards`.
    ///
    /// # Errors
    /// As [`BatchSpec::tabular`]; [`Error::Usage`] for an unknown split, or one without rows; storage errors.
    pub async fn tabular_of(
        shards: &ShardSet,
        split: &str,
        numbers: &[String],
        categories: &[String],
        label: Option<&str>,
        dtype: DType,
    ) -> Result<Self> {
        require_rows(shards, split)?;
        let (statistics, vocabularies) = (shards.statistics(split).await?, shards.categories(split).await?);
        let schema = &shards.manifest().schema;
        Self::tabular(schema, numbers, categories, label, dtype, &statistics, &vocabularies)
    }

    /// Every column that can be a tensor: numbers, truth values and times in `numbers` (f32, normalised), text in
    /// `categories`. Also gives the names of the columns that can't be (bytes, text with too many values).
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown split, or one without rows; storage errors.
    pub async fn every_column(shards: &ShardSet, split: &str) -> Result<(Self, Vec<String>)> {
        require_rows(shards, split)?;
        let (statistics, vocabularies) = (shards.statistics(split).await?, shards.categories(split).await?);
        let (mut numbers, mut categories, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let schema = &shards.manifest().schema;
        for column in &schema.columns {
            let to = match column.column_type.to_arrow() {
                DataType::LargeUtf8 if vocabularies.contains_key(&column.name) => &mut categories,
                DataType::LargeUtf8 | DataType::LargeBinary => &mut left_out,
                _ => &mut numbers,
            };
            to.push(column.name.clone());
        }
        let mut spec = Self::tabular(schema, &numbers, &categories, None, DType::F32, &statistics, &vocabularies)?;
        spec.non_finite = NonFinite::AsNull;
        Ok((spec, left_out))
    }

    /// Names of the columns that are read, each once.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for tensor in &self.tensors {
            let of_tensor: Vec<&str> = match tensor {
                TensorSpec::Numbers { columns, .. } => columns.iter().map(|c| c.column.as_str()).collect(),
                TensorSpec::Categories { columns, .. } => columns.iter().map(|c| c.column.as_str()).collect(),
                TensorSpec::Label { column, .. } | TensorSpec::Raw { column } => vec![column.as_str()],
            };
            for name in of_tensor {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }
}

/// Refuses a split without rows, which has no statistics.
fn require_rows(shards: &ShardSet, split: &str) -> Result<()> {
    let (_, info) = shards.layout().split(split)?;
    if info.rows > 0 {
        return Ok(());
    }
    Err(Error::usage(format!("split \"{split}\" has no rows"), "give it a larger share, or choose another split"))
}

fn number_column(schema: &DatasetSchema, name: &str, statistics: &Statistics) -> Result<NumberColumn> {
    let column = schema.column(name, "numbers")?;
    require_numbers(column)?;
    let statistics = statistics.get(name).ok_or_else(|| {
        Error::usage(format!("the shard set has no statistics of column \"{name}\""), "shard the data set again")
    })?;
    // A column that is null everywhere has no mean; its values are all 0 whatever is subtracted.
    Ok(NumberColumn {
        column: name.into(),
        mean: statistics.mean.unwrap_or(0.0),
        deviation: statistics.deviation.unwrap_or(1.0),
    })
}

fn category_column(schema: &DatasetSchema, name: &str, vocabularies: &Vocabularies) -> Result<CategoryColumn> {
    let column = schema.column(name, "categories")?;
    let Some(values) = vocabularies.get(name) else {
        return Err(Error::usage(
            format!("column \"{name}\" ({}) has no categories in the shard set", column.column_type),
            "text of up to a million values, integers of up to 1,024 and truth values have; use it as a number, or leave it out",
        ));
    };
    Ok(CategoryColumn { column: name.into(), vocabulary: values.iter().map(|(value, _)| value.clone()).collect() })
}

/// Refuses a column that has no reading as numbers.
pub(crate) fn require_numbers(column: &Column) -> Result<()> {
    match column.column_type.to_arrow() {
        DataType::LargeUtf8 | DataType::LargeBinary => Err(Error::usage(
            format!("column \"{}\" is {}, which has no reading as numbers", column.name, column.column_type),
            "use it as a category, or leave it out",
        )),
        _ => Ok(()),
    }
}
