//! Rows in memory as jobs hold them: text that the input keeps by dictionary stays codes of a dictionary, so that
//! classing, sorting, gathering and counting it handle four bytes a row.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, Int32Array, LargeStringArray, RecordBatch, RecordBatchOptions, UInt32Array},
    compute::{interleave, take},
    datatypes::{DataType, Int32Type, SchemaRef},
    error::ArrowError,
};
use hashbrown::HashMap;

use crate::error::{Error, Result};

/// A column: as it is, or text by codes.
#[derive(Debug, Clone)]
pub enum CodedColumn {
    /// Values of the column's waist type.
    Plain(ArrayRef),
    /// Text: `values[codes[row]]`; null where the code is. A code of a null value does not occur.
    Text {
        /// Codes, one a row.
        codes: Int32Array,
        /// The dictionary.
        values: Arc<LargeStringArray>,
    },
}

impl CodedColumn {
    /// The column of an array that may be dictionary-encoded text.
    ///
    /// # Errors
    /// [`Error::Arrow`] when the dictionary can't be brought to 32-bit codes of large text.
    pub fn from_array(array: &ArrayRef) -> Result<Self> {
        let DataType::Dictionary(_, values) = array.data_type() else { return Ok(Self::Plain(Arc::clone(array))) };
        if **values != DataType::LargeUtf8 {
            return Ok(Self::Plain(Arc::clone(array)));
        }
        let fail = |source| Error::Arrow { action: "read a dictionary".into(), source };
        let dictionary = array
            .as_dictionary_opt::<Int32Type>()
            .ok_or_else(|| fail(ArrowError::CastError("its codes are not 32-bit".into())))?;
        let values = dictionary.values().as_string::<i64>().clone();
        Ok(Self::Text { codes: dictionary.keys().clone(), values: Arc::new(values) })
    }

    fn len(&self) -> usize {
        match self {
            Self::Plain(array) => array.len(),
            Self::Text { codes, .. } => codes.len(),
        }
    }

    /// What is gathered: the array itself, or the codes.
    fn array(&self) -> ArrayRef {
        match self {
            Self::Plain(array) => Arc::clone(array),
            Self::Text { codes, .. } => Arc::new(codes.clone()),
        }
    }

    /// The values, dictionary resolved.
    ///
    /// # Errors
    /// [`Error::Arrow`] when a code is outside its dictionary.
    pub fn to_plain(&self) -> Result<ArrayRef> {
        match self {
            Self::Plain(array) => Ok(Arc::clone(array)),
            Self::Text { codes, values } => take(values.as_ref(), codes, None)
                .map_err(|source| Error::Arrow { action: "resolve a dictionary".into(), source }),
        }
    }

    /// Bytes in memory, the dictionary left out.
    fn bytes(&self) -> u64 {
        match self {
            Self::Plain(array) => array.to_data().get_slice_memory_size().unwrap_or(0) as u64,
            Self::Text { codes, .. } => codes.to_data().get_slice_memory_size().unwrap_or(0) as u64,
        }
    }
}

/// Rows with some text columns coded.
#[derive(Debug, Clone)]
pub struct CodedBatch {
    schema: SchemaRef,
    columns: Vec<CodedColumn>,
    rows: usize,
}

impl CodedBatch {
    /// Of `columns` with the names and waist types of `schema`.
    ///
    /// # Errors
    /// [`Error::Internal`] when lengths or the number of columns differ.
    pub fn new(schema: SchemaRef, columns: Vec<CodedColumn>, rows: usize) -> Result<Self> {
        if columns.len() != schema.fields().len() || columns.iter().any(|c| c.len() != rows) {
            return Err(Error::internal("columns of a batch do not fit its schema"));
        }
        Ok(Self { schema, columns, rows })
    }

    /// A batch of waist types, nothing coded.
    #[must_use]
    pub fn from_plain(batch: &RecordBatch) -> Self {
        let columns = batch.columns().iter().map(|c| CodedColumn::Plain(Arc::clone(c))).collect();
        Self { schema: batch.schema(), columns, rows: batch.num_rows() }
    }

    /// Names and waist types.
    #[must_use]
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns in the order of the schema.
    #[must_use]
    pub fn columns(&self) -> &[CodedColumn] {
        &self.columns
    }

    /// The column called `name`.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&CodedColumn> {
        self.columns.get(self.schema.index_of(name).ok()?)
    }

    /// Bytes in memory, dictionaries left out.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.columns.iter().map(CodedColumn::bytes).sum()
    }

    /// With more columns at the end, as `schema` has them.
    ///
    /// # Errors
    /// As [`CodedBatch::new`].
    pub fn with_columns(mut self, schema: &SchemaRef, columns: Vec<ArrayRef>) -> Result<Self> {
        self.columns.extend(columns.into_iter().map(CodedColumn::Plain));
        Self::new(Arc::clone(schema), self.columns, self.rows)
    }

    /// As a record batch of waist types.
    ///
    /// # Errors
    /// [`Error::Arrow`] when a code is outside its dictionary.
    pub fn to_plain(&self) -> Result<RecordBatch> {
        let columns: Result<Vec<ArrayRef>> = self.columns.iter().map(CodedColumn::to_plain).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns?, &options)
            .map_err(|source| Error::Arrow { action: "put a batch together".into(), source })
    }
}

/// Gives the coded columns of `batches` one dictionary each, in order of first appearance.
///
/// # Errors
/// [`Error::Usage`] when there are more than 2^31 distinct values.
pub fn unify(batches: &mut [CodedBatch]) -> Result<()> {
    let Some(first) = batches.first() else { return Ok(()) };
    for at in 0..first.columns.len() {
        let mut texts = batches.iter().filter_map(|b| match b.columns.get(at) {
            Some(CodedColumn::Text { values, .. }) => Some(values),
            _ => None,
        });
        let Some(first) = texts.next() else { continue };
        if texts.all(|v| Arc::ptr_eq(v, first)) {
            continue;
        }
        unify_column(batches, at)?;
    }
    Ok(())
}

fn unify_column(batches: &mut [CodedBatch], at: usize) -> Result<()> {
    let mut numbers: HashMap<String, i32> = HashMap::new();
    let mut all: Vec<String> = Vec::new();
    let mut recoded = Vec::with_capacity(batches.len());
    for batch in batches.iter() {
        let Some(CodedColumn::Text { codes, values }) = batch.columns.get(at) else {
            recoded.push(None);
            continue;
        };
        let mut table = Vec::with_capacity(values.len());
        for value in values.iter() {
            let value = value.unwrap_or("");
            let number = match numbers.get(value) {
                Some(number) => *number,
                None => {
                    let number = i32::try_from(all.len())
                        .map_err(|_| Error::usage("a text column has more than 2^31 distinct values", "drop it"))?;
                    numbers.insert(value.to_owned(), number);
                    all.push(value.to_owned());
                    number
                }
            };
            table.push(number);
        }
        let codes: Int32Array = codes.unary_opt(|code| table.get(code as usize).copied());
        recoded.push(Some(codes));
    }
    let values = Arc::new(LargeStringArray::from_iter_values(&all));
    for (batch, codes) in batches.iter_mut().zip(recoded) {
        if let (Some(codes), Some(column)) = (codes, batch.columns.get_mut(at)) {
            *column = CodedColumn::Text { codes, values: Arc::clone(&values) };
        }
    }
    Ok(())
}

/// Rows `(batch, row)` of `batches`, in that order. The batches must have one schema and, column by column, be all coded
/// with one dictionary (see [`unify`]) or all plain.
///
/// # Errors
/// [`Error::Arrow`] for a row that is not there.
pub fn gather(schema: &SchemaRef, batches: &[CodedBatch], rows: &[(usize, usize)]) -> Result<CodedBatch> {
    let fail = |source| Error::Arrow { action: "gather rows".into(), source };
    let mut columns = Vec::with_capacity(schema.fields().len());
    for (at, field) in schema.fields().iter().enumerate() {
        let parts: Option<Vec<ArrayRef>> = batches.iter().map(|b| b.columns.get(at).map(CodedColumn::array)).collect();
        let parts = parts.ok_or_else(|| Error::internal("a column of a batch is missing"))?;
        if parts.is_empty() {
            columns.push(CodedColumn::Plain(arrow::array::new_empty_array(field.data_type())));
            continue;
        }
        let gathered = match parts.as_slice() {
            [one] => {
                let rows: UInt32Array = rows.iter().map(|(_, row)| *row as u32).collect();
                take(one, &rows, None).map_err(fail)?
            }
            many => {
                let many: Vec<&dyn Array> = many.iter().map(AsRef::as_ref).collect();
                interleave(&many, rows).map_err(fail)?
            }
        };
        columns.push(match &batches[0].columns[at] {
            CodedColumn::Plain(_) => CodedColumn::Plain(gathered),
            CodedColumn::Text { values, .. } => {
                CodedColumn::Text { codes: gathered.as_primitive::<Int32Type>().clone(), values: Arc::clone(values) }
            }
        });
    }
    CodedBatch::new(Arc::clone(schema), columns, rows.len())
}

/// Rows `rows` of `batch`, in that order.
///
/// # Errors
/// [`Error::Arrow`] for a row that is not there.
pub fn gather_one(batch: &CodedBatch, rows: &UInt32Array) -> Result<CodedBatch> {
    let columns: Result<Vec<CodedColumn>> = (batch.columns.iter())
        .map(|column| {
            let taken = take(&column.array(), rows, None)
                .map_err(|source| Error::Arrow { action: "gather rows".into(), source })?;
            Ok(match column {
                CodedColumn::Plain(_) => CodedColumn::Plain(taken),
                CodedColumn::Text { values, .. } => {
                    CodedColumn::Text { codes: taken.as_primitive::<Int32Type>().clone(), values: Arc::clone(values) }
                }
            })
        })
        .collect();
    CodedBatch::new(Arc::clone(&batch.schema), columns?, rows.len())
}

/// The rows of all `batches`, one after the other; their dictionaries are unified.
///
/// # Errors
/// [`Error::Arrow`] when they do not fit one column, and as [`unify`].
pub fn concat(schema: &SchemaRef, batches: &mut [CodedBatch]) -> Result<CodedBatch> {
    unify(batches)?;
    let rows = batches.iter().map(|b| b.rows).sum();
    let mut columns = Vec::with_capacity(schema.fields().len());
    for at in 0..schema.fields().len() {
        let parts: Option<Vec<ArrayRef>> = batches.iter().map(|b| b.columns.get(at).map(CodedColumn::array)).collect();
        let parts = parts.ok_or_else(|| Error::internal("a column of a batch is missing"))?;
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let whole = arrow::compute::concat(&parts)
            .map_err(|source| Error::Arrow { action: "put a unit together".into(), source })?;
        columns.push(match &batches[0].columns[at] {
            CodedColumn::Plain(_) => CodedColumn::Plain(whole),
            CodedColumn::Text { values, .. } => {
                CodedColumn::Text { codes: whole.as_primitive::<Int32Type>().clone(), values: Arc::clone(values) }
            }
        });
    }
    CodedBatch::new(Arc::clone(schema), columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::{DictionaryArray, Int64Array},
        datatypes::{Field, Schema},
    };

    fn batch(codes: Vec<Option<i32>>, values: Vec<&str>, from: i64) -> CodedBatch {
        let schema = Arc::new(Schema::new(vec![
            Field::new("s", DataType::LargeUtf8, true),
            Field::new("n", DataType::Int64, false),
        ]));
        let rows = codes.len();
        let text: ArrayRef = Arc::new(
            DictionaryArray::<Int32Type>::try_new(codes.into(), Arc::new(LargeStringArray::from(values))).unwrap(),
        );
        let n: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + rows as i64));
        let columns = vec![CodedColumn::from_array(&text).unwrap(), CodedColumn::from_array(&n).unwrap()];
        CodedBatch::new(schema, columns, rows).unwrap()
    }

    #[test]
    fn dictionaries_unify_and_rows_keep_their_values() {
        let mut batches = [
            batch(vec![Some(0), Some(1), None], vec!["a", "b"], 0),
            batch(vec![Some(0), Some(1), Some(2)], vec!["b", "c", "b"], 3),
        ];
        unify(&mut batches).unwrap();
        let schema = Arc::clone(batches[0].schema());
        let rows = gather(&schema, &batches, &[(1, 2), (0, 0), (1, 1), (0, 2), (1, 0)]).unwrap().to_plain().unwrap();
        let text: Vec<Option<&str>> = rows.column(0).as_string::<i64>().iter().collect();
        assert_eq!(text, [Some("b"), Some("a"), Some("c"), None, Some("b")]);
        assert_eq!(rows.column(1).as_primitive::<arrow::datatypes::Int64Type>().values(), &[5, 0, 4, 2, 3]);
        assert_eq!(gather(&schema, &batches[..1], &[(0, 1)]).unwrap().rows(), 1);
        assert!(gather(&schema, &[], &[]).unwrap().rows() == 0);
    }
}
