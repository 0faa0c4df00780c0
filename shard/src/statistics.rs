//! Statistics of columns: counts, mean, deviation, quantiles, categories. They merge, and the result depends on the
//! order of the merges only in the last bits of mean and deviation, so merge in a fixed order.

use std::collections::BTreeMap;

use arrow::{
    array::{Array, ArrayRef, AsArray},
    compute::cast,
    datatypes::{DataType, Float64Type, Int64Type},
};

use serde::{Deserialize, Serialize};

use crate::{
    coded::CodedColumn,
    error::{Error, Result},
};

/// The probabilities of [`ColumnStatistics::quantiles`].
pub const QUANTILES: [f64; 7] = [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99];
/// Distinct text values that are kept; beyond it the column has no categories.
pub const MAX_TEXT_CATEGORIES: usize = 1_000_000;
/// Bytes of all distinct text values that are kept; beyond it the column has no categories: it is text, not a class.
pub const MAX_TEXT_CATEGORY_BYTES: usize = 16 << 20;
/// Distinct integer values that are kept; beyond it the column has no categories.
pub const MAX_INTEGER_CATEGORIES: usize = 1_024;

/// Figures of one column. Times are in units of the column since its epoch; truth values are 0 and 1; text and bytes
/// have counts only.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ColumnStatistics {
    /// Rows, nulls included.
    pub rows: u64,
    /// Nulls.
    pub nulls: u64,
    /// NaN and infinities; they enter no other figure.
    pub non_finite: u64,
    /// Least value.
    pub min: Option<f64>,
    /// Greatest value.
    pub max: Option<f64>,
    /// Mean.
    pub mean: Option<f64>,
    /// Population standard deviation.
    pub deviation: Option<f64>,
    /// Quantiles at [`QUANTILES`], within 0.8 % below the value in magnitude (exact for integers up to 256).
    pub quantiles: [Option<f64>; 7],
}

/// Gathers the statistics of one column over batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatisticsBuilder {
    rows: u64,
    nulls: u64,
    non_finite: u64,
    finite: u64,
    mean: f64,
    m2: f64,
    min: f64,
    max: f64,
    bins: BTreeMap<u32, u64>,
    categories: Option<Categories>,
    numeric: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Categories {
    Text(BTreeMap<String, u64>),
    Integer(BTreeMap<i128, u64>),
    Bool([u64; 2]),
}

impl StatisticsBuilder {
    /// A builder for a column of `data_type`.
    #[must_use]
    pub fn new(data_type: &DataType) -> Self {
        let categories = match data_type {
            DataType::LargeUtf8 => Some(Categories::Text(BTreeMap::new())),
            DataType::Boolean => Some(Categories::Bool([0; 2])),
            t if t.is_integer() => Some(Categories::Integer(BTreeMap::new())),
            _ => None,
        };
        Self {
            rows: 0,
            nulls: 0,
            non_finite: 0,
            finite: 0,
            mean: 0.0,
            m2: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            bins: BTreeMap::new(),
            categories,
            numeric: !matches!(data_type, DataType::LargeUtf8 | DataType::LargeBinary),
        }
    }

    /// Adds the values of `column`, of the type given to [`StatisticsBuilder::new`].
    ///
    /// # Errors
    /// [`Error::Arrow`] when the values can't be read as numbers.
    pub fn update(&mut self, column: &ArrayRef) -> Result<()> {
        self.rows += column.len() as u64;
        self.nulls += column.null_count() as u64;
        self.count_categories(column);
        if !self.numeric {
            return Ok(());
        }
        let mut part = Self::new(&DataType::Float64);
        if let Some(values) = column.as_boolean_opt() {
            let (count, ones) = (values.len() - values.null_count(), values.true_count());
            part.count_truth(count as u64, ones as u64);
            self.merge_numbers(&part);
            return Ok(());
        }
        let numbers = as_f64(column)?;
        let numbers = numbers.as_primitive::<Float64Type>();
        if numbers.null_count() == 0 {
            part.count_numbers(numbers.values().iter().copied());
        } else {
            part.count_numbers(numbers.iter().flatten());
        }
        self.merge_numbers(&part);
        Ok(())
    }

    /// As [`StatisticsBuilder::update`], for a column that may be coded.
    ///
    /// # Errors
    /// As [`StatisticsBuilder::update`].
    pub fn update_coded(&mut self, column: &CodedColumn) -> Result<()> {
        let (codes, values) = match column {
            CodedColumn::Plain(array) => return self.update(array),
            CodedColumn::Text { codes, values } => (codes, values),
        };
        self.rows += codes.len() as u64;
        self.nulls += codes.null_count() as u64;
        let Some(Categories::Text(counts)) = &mut self.categories else { return Ok(()) };
        let mut rows = vec![0_u64; values.len()];
        let mut count = |code: i32| {
            if let Some(n) = rows.get_mut(code as usize) {
                *n += 1;
            }
        };
        if codes.null_count() == 0 {
            codes.values().iter().copied().for_each(&mut count);
        } else {
            codes.iter().flatten().for_each(&mut count);
        }
        let mut bytes: usize = counts.keys().map(String::len).sum();
        for (value, n) in values.iter().zip(rows).filter(|(_, n)| *n > 0) {
            let value = value.unwrap_or("");
            match counts.get_mut(value) {
                Some(count) => *count += n,
                None => {
                    bytes += value.len();
                    if bytes > MAX_TEXT_CATEGORY_BYTES {
                        break;
                    }
                    counts.insert(value.to_owned(), n);
                }
            }
        }
        if bytes > MAX_TEXT_CATEGORY_BYTES || counts.len() > MAX_TEXT_CATEGORIES {
            self.categories = None;
        }
        Ok(())
    }

    fn count_truth(&mut self, count: u64, ones: u64) {
        if count == 0 {
            return;
        }
        self.finite = count;
        self.mean = ones as f64 / count as f64;
        self.m2 = ones as f64 * (1.0 - self.mean) * (1.0 - self.mean) + (count - ones) as f64 * self.mean * self.mean;
        self.min = f64::from(u8::from(ones == count));
        self.max = f64::from(u8::from(ones > 0));
        self.bins = [(bin_of(0.0), count - ones), (bin_of(1.0), ones)].into_iter().filter(|b| b.1 > 0).collect();
    }

    fn count_numbers(&mut self, values: impl Iterator<Item = f64> + Clone) {
        let mut sum = 0.0;
        let mut bins = BinCounts::default();
        for value in values.clone() {
            if value.is_finite() {
                self.finite += 1;
                self.min = self.min.min(value);
                self.max = self.max.max(value);
                sum += value;
                bins.add(bin_of(value));
            } else {
                self.non_finite += 1;
            }
        }
        self.bins = bins.finish();
        if self.finite > 0 {
            self.mean = sum / self.finite as f64;
            self.m2 = values.filter(|v| v.is_finite()).map(|v| (v - self.mean) * (v - self.mean)).sum();
        }
    }

    fn count_categories(&mut self, column: &ArrayRef) {
        let full = match &mut self.categories {
            Some(Categories::Text(counts)) => {
                let mut bytes: usize = counts.keys().map(String::len).sum();
                for value in column.as_string::<i64>().iter().flatten() {
                    match counts.get_mut(value) {
                        Some(count) => *count += 1,
                        None => {
                            bytes += value.len();
                            if bytes > MAX_TEXT_CATEGORY_BYTES {
                                break;
                            }
                            counts.insert(value.to_owned(), 1);
                        }
                    }
                }
                bytes > MAX_TEXT_CATEGORY_BYTES || counts.len() > MAX_TEXT_CATEGORIES
            }
            Some(Categories::Bool(counts)) => {
                for value in column.as_boolean().iter().flatten() {
                    counts[usize::from(value)] += 1;
                }
                false
            }
            Some(Categories::Integer(counts)) => {
                let mut full = false;
                if let Some(close) = count_close(column) {
                    for (value, count) in close {
                        *counts.entry(value).or_insert(0) += count;
                    }
                    full = counts.len() > MAX_INTEGER_CATEGORIES;
                } else if let Ok(values) = cast(column, &DataType::Decimal128(38, 0)) {
                    for value in values.as_primitive::<arrow::datatypes::Decimal128Type>().iter().flatten() {
                        *counts.entry(value).or_insert(0) += 1;
                        if counts.len() > MAX_INTEGER_CATEGORIES {
                            full = true;
                            break;
                        }
                    }
                }
                full
            }
            None => false,
        };
        if full {
            self.categories = None;
        }
    }

    /// Adds what `later` gathered, as if its batches had come after this one's.
    pub fn merge(&mut self, later: &Self) {
        self.rows += later.rows;
        self.nulls += later.nulls;
        self.merge_numbers(later);
        let full = match (&mut self.categories, &later.categories) {
            (Some(Categories::Text(mine)), Some(Categories::Text(theirs))) => {
                for (value, count) in theirs {
                    *mine.entry(value.clone()).or_insert(0) += count;
                }
                let bytes: usize = mine.keys().map(String::len).sum();
                bytes > MAX_TEXT_CATEGORY_BYTES || mine.len() > MAX_TEXT_CATEGORIES
            }
            (Some(Categories::Integer(mine)), Some(Categories::Integer(theirs))) => {
                for (value, count) in theirs {
                    *mine.entry(*value).or_insert(0) += count;
                }
                mine.len() > MAX_INTEGER_CATEGORIES
            }
            (Some(Categories::Bool(mine)), Some(Categories::Bool(theirs))) => {
                mine[0] += theirs[0];
                mine[1] += theirs[1];
                false
            }
            (None, None) => false,
            _ => true,
        };
        if full {
            self.categories = None;
        }
    }

    /// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    fn merge_numbers(&mut self, later: &Self) {
        self.non_finite += later.non_finite;
        if later.finite == 0 {
            return;
        }
        let (n, m) = (self.finite as f64, later.finite as f64);
        let delta = later.mean - self.mean;
        self.mean += delta * m / (n + m);
        self.m2 += later.m2 + delta * delta * n * m / (n + m);
        self.finite += later.finite;
        self.min = self.min.min(later.min);
        self.max = self.max.max(later.max);
        for (bin, count) in &later.bins {
            *self.bins.entry(*bin).or_insert(0) += count;
        }
    }

    /// The figures.
    #[must_use]
    pub fn finish(&self) -> ColumnStatistics {
        let any = self.finite > 0;
        ColumnStatistics {
            rows: self.rows,
            nulls: self.nulls,
            non_finite: self.non_finite,
            min: any.then_some(self.min),
            max: any.then_some(self.max),
            mean: any.then_some(self.mean),
            deviation: any.then(|| (self.m2 / self.finite as f64).sqrt()),
            quantiles: QUANTILES.map(|p| self.quantile(p)),
        }
    }

    fn quantile(&self, p: f64) -> Option<f64> {
        let target = ((p * self.finite as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bin, count) in &self.bins {
            seen += count;
            if seen >= target {
                return Some(bin_value(*bin).clamp(self.min, self.max));
            }
        }
        None
    }

    /// Values and their rows, text in byte order and numbers in numeric order; `None` when the column is not
    /// categorical or has too many values.
    #[must_use]
    pub fn categories(&self) -> Option<Vec<(String, u64)>> {
        match self.categories.as_ref()? {
            Categories::Text(counts) => Some(counts.iter().map(|(v, c)| (v.clone(), *c)).collect()),
            Categories::Integer(counts) => Some(counts.iter().map(|(v, c)| (v.to_string(), *c)).collect()),
            Categories::Bool(counts) => Some(
                [("false", counts[0]), ("true", counts[1])]
                    .into_iter()
                    .filter(|(_, c)| *c > 0)
                    .map(|(v, c)| (v.to_owned(), c))
                    .collect(),
            ),
        }
    }
}

/// The values as f64: times in units since the epoch, truth values 0 and 1.
///
/// # Errors
/// [`Error::Arrow`] when there is no such reading.
pub fn as_f64(column: &ArrayRef) -> Result<ArrayRef> {
    let fail = |source| Error::Arrow { action: format!("read {} as numbers", column.data_type()), source };
    match column.data_type() {
        DataType::Date32 => cast(&cast(column, &DataType::Int32).map_err(fail)?, &DataType::Float64).map_err(fail),
        DataType::Timestamp(..) => {
            cast(&cast(column, &DataType::Int64).map_err(fail)?, &DataType::Float64).map_err(fail)
        }
        _ => cast(column, &DataType::Float64).map_err(fail),
    }
}

/// Counts of integers that lie close together, by a table of all that lie between; `None` when they do not.
fn count_close(column: &ArrayRef) -> Option<Vec<(i128, u64)>> {
    const SPAN: i64 = 1 << 16;
    if column.data_type() == &DataType::UInt64 {
        return None;
    }
    let values = cast(column, &DataType::Int64).ok()?;
    let values = values.as_primitive::<Int64Type>();
    let (least, greatest) = (arrow::compute::min(values)?, arrow::compute::max(values)?);
    let span = greatest.checked_sub(least).filter(|s| *s < SPAN)?;
    let mut table = vec![0_u64; usize::try_from(span).ok()? + 1];
    for value in values.iter().flatten() {
        table[(value - least) as usize] += 1;
    }
    Some((i128::from(least)..).zip(table).filter(|(_, count)| *count > 0).collect())
}

/// Counts of bins: a page of 128 for each sign and exponent that occurs.
#[derive(Default)]
struct BinCounts {
    pages: Vec<Option<Box<[u64; PAGE]>>>,
}

const PAGE: usize = 1 << 7;

impl BinCounts {
    fn add(&mut self, bin: u32) {
        let (page, place) = (bin as usize / PAGE, bin as usize % PAGE);
        if page >= self.pages.len() {
            self.pages.resize(page + 1, None);
        }
        if let Some(slot) = self.pages.get_mut(page) {
            slot.get_or_insert_with(|| Box::new([0; PAGE]))[place] += 1;
        }
    }

    fn finish(self) -> BTreeMap<u32, u64> {
        let mut used = BTreeMap::new();
        for (page, counts) in self.pages.into_iter().enumerate() {
            for (place, count) in counts.iter().flat_map(|c| c.iter()).enumerate().filter(|(_, count)| **count > 0) {
                used.insert((page * PAGE + place) as u32, *count);
            }
        }
        used
    }
}

/// Sign, exponent and 7 mantissa bits, mapped so that bins are ordered as their values are.
fn bin_of(value: f64) -> u32 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    let magnitude = ((bits & !(1 << 63)) >> 45) as u32;
    if bits >> 63 == 1 { (1 << 19) - 1 - magnitude } else { (1 << 19) + magnitude }
}

/// The value in the bin nearest to zero that 8 significant bits hold: exact for integers up to 256.
fn bin_value(bin: u32) -> f64 {
    let (negative, magnitude) = if bin < 1 << 19 { (true, (1 << 19) - 1 - bin) } else { (false, bin - (1 << 19)) };
    let value = f64::from_bits(u64::from(magnitude) << 45);
    if negative { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BooleanArray, Float64Array, Int64Array, LargeStringArray};
    use std::sync::Arc;

    fn of(column: ArrayRef) -> StatisticsBuilder {
        let mut builder = StatisticsBuilder::new(column.data_type());
        builder.update(&column).unwrap();
        builder
    }

    #[test]
    fn long_texts_are_no_categories() {
        let text = |from: usize, n: usize| -> ArrayRef {
            Arc::new(LargeStringArray::from_iter_values((from..from + n).map(|i| format!("{i:01000}"))))
        };
        let of = |column: &ArrayRef| {
            let mut builder = StatisticsBuilder::new(&DataType::LargeUtf8);
            builder.update(column).unwrap();
            builder
        };
        assert!(of(&text(0, 20_000)).categories().is_none());
        let mut first = of(&text(0, 10_000));
        assert!(first.categories().is_some());
        first.merge(&of(&text(10_000, 10_000)));
        assert!(first.categories().is_none() && first.finish().rows == 20_000);
    }

    #[test]
    fn small_integers_are_exact() {
        let values: ArrayRef = Arc::new((0..=100).rev().map(Some).chain([None]).collect::<Int64Array>());
        let s = of(Arc::clone(&values)).finish();
        assert_eq!((s.rows, s.nulls, s.min, s.max, s.mean), (102, 1, Some(0.0), Some(100.0), Some(50.0)));
        assert!((s.deviation.unwrap() - 850.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(s.quantiles[3], Some(50.0));
        assert_eq!(of(values).categories().unwrap().len(), 101);
    }

    #[test]
    fn merging_parts_is_reading_the_whole() {
        let all: Vec<f64> = (0..5000).map(|i| f64::from(i * i % 977) - 300.5).collect();
        let whole = of(Arc::new(Float64Array::from(all.clone())));
        let mut parts = StatisticsBuilder::new(&DataType::Float64);
        for chunk in all.chunks(613) {
            parts.merge(&of(Arc::new(Float64Array::from(chunk.to_vec()))));
        }
        let (a, b) = (whole.finish(), parts.finish());
        assert_eq!((a.rows, a.min, a.max, a.quantiles), (b.rows, b.min, b.max, b.quantiles));
        assert!((a.mean.unwrap() - b.mean.unwrap()).abs() < 1e-9);
        assert!((a.deviation.unwrap() - b.deviation.unwrap()).abs() < 1e-9);
    }

    #[test]
    fn many_values_are_binned_as_few_are() {
        let all: Vec<f64> = (0..100_000).map(|i| (f64::from(i) - 30_000.0) * 1e-3_f64.powi(i % 3)).collect();
        let mut parts = StatisticsBuilder::new(&DataType::Float64);
        for chunk in all.chunks(1000) {
            parts.merge(&of(Arc::new(Float64Array::from(chunk.to_vec()))));
        }
        let whole = of(Arc::new(Float64Array::from(all)));
        assert_eq!(whole.bins, parts.bins);
        assert_eq!(bin_of(f64::MAX).max(bin_of(f64::MIN)) >> 20, 0);
    }

    #[test]
    fn nan_is_counted_and_enters_nothing_else() {
        let s = of(Arc::new(Float64Array::from(vec![1.0, f64::NAN, 3.0, f64::INFINITY]))).finish();
        assert_eq!((s.non_finite, s.mean, s.max), (2, Some(2.0), Some(3.0)));
        let s = of(Arc::new(Float64Array::from(vec![f64::NAN]))).finish();
        assert_eq!((s.mean, s.quantiles[0]), (None, None));
    }

    #[test]
    fn categories_are_in_order_and_bounded() {
        let s: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("b"), Some("a"), None, Some("b")]));
        assert_eq!(of(s).categories().unwrap(), [("a".into(), 1), ("b".into(), 2)]);
        let b: ArrayRef = Arc::new(BooleanArray::from(vec![true, true]));
        assert_eq!(of(b).categories().unwrap(), [("true".into(), 2)]);
        let many: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2000));
        assert!(of(many).categories().is_none());
        let negative: ArrayRef = Arc::new(Int64Array::from_iter_values([5, -3, -20]));
        assert_eq!(
            of(negative).categories().unwrap().iter().map(|c| c.0.as_str()).collect::<Vec<_>>(),
            ["-20", "-3", "5"]
        );
    }

    #[test]
    fn quantiles_stay_within_their_stated_error() {
        let s = of(Arc::new(Float64Array::from_iter_values((1..=10_000).map(|i| f64::from(i) * 1.7)))).finish();
        for (q, p) in s.quantiles.iter().zip(QUANTILES) {
            let exact = (p * 10_000.0).ceil() * 1.7;
            assert!((q.unwrap() - exact).abs() <= exact * 0.008, "{p}: {q:?} {exact}");
        }
        let s = of(Arc::new(Float64Array::from_iter_values((1..=1000).map(|i| -f64::from(i))))).finish();
        assert!((s.quantiles[0].unwrap() + 990.0).abs() < 8.0, "{:?}", s.quantiles);
    }
}
