//! Which rows take part: predicates on columns kept beside the lanes, applied when the plan is made, so that every rank
//! still knows its steps before the first.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    columns::{Column, Columns, Number},
    error::{Error, Result},
    kept::KeptRows,
    lane_table::LaneTable,
};

/// A condition on a column, as text: `words<=512`, `late=1`, `words<=p99` (percentile of the split's values, by
/// nearest rank), `delay<mean+3sd` (mean and population deviation of the split's values). A row whose value is NaN meets
/// no condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Predicate {
    column: String,
    operator: Operator,
    threshold: Threshold,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    Unequal,
}

const MILLION: u64 = 1_000_000;

/// Longer ones first, so that `<=` is not taken for `<`.
const OPERATORS: [(&str, Operator); 7] = [
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("!=", Operator::Unequal),
    ("==", Operator::Equal),
    ("<", Operator::Less),
    (">", Operator::Greater),
    ("=", Operator::Equal),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Threshold {
    Value(Number),
    /// In millionths of a percent, 0 to 10^8.
    Percentile(u64),
    /// Mean and so many deviations.
    Deviations(f64),
}

impl Operator {
    fn holds(self, order: Option<Ordering>) -> bool {
        let Some(order) = order else { return false };
        match self {
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::AtLeast => order.is_ge(),
            Self::Equal => order.is_eq(),
            Self::Unequal => order.is_ne(),
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
            Self::Equal => "=",
            Self::Unequal => "!=",
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Percentile(millionths) => {
                let (whole, part) = (millionths / MILLION, millionths % MILLION);
                let digits = format!("{part:06}");
                let digits = digits.trim_end_matches('0');
                write!(f, "p{whole}{}{digits}", if digits.is_empty() { "" } else { "." })
            }
            Self::Deviations(0.0) => f.write_str("mean"),
            Self::Deviations(times) => write!(f, "mean{times:+}sd"),
        }
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.column, self.operator.symbol(), self.threshold)
    }
}

impl From<Predicate> for String {
    fn from(predicate: Predicate) -> Self {
        predicate.to_string()
    }
}

impl TryFrom<String> for Predicate {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for Predicate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |what: String| {
            let help = "write a column, one of < <= > >= = != and a number, pN (a percentile), mean or mean+Ksd, such as \
                        words<=512, words<=p99 or delay<mean+3sd";
            Error::usage(format!("filter \"{text}\": {what}"), help)
        };
        let first = text.find(['<', '>', '=', '!']).ok_or_else(|| refuse("it compares nothing".into()))?;
        let (column, rest) = text.split_at(first);
        let found = OPERATORS.iter().find_map(|(symbol, op)| Some((*op, rest.strip_prefix(symbol)?)));
        let (operator, value) = found.ok_or_else(|| refuse("\"!\" alone is no comparison".into()))?;
        let (column, value) = (column.trim(), value.trim());
        if column.is_empty() {
            return Err(refuse("the column is missing".into()));
        }
        let threshold = threshold(value).map_err(refuse)?;
        Ok(Self { column: column.to_owned(), operator, threshold })
    }
}

/// A percentile in millionths of a percent, exact: a float would put p7 of 100 values after the eighth.
fn percentile(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 3 || part.len() > 6 || !digits(whole) || !digits(part) {
        return None;
    }
    let part: u64 = format!("{part:0<6}").parse().ok()?;
    Some(whole.parse::<u64>().ok()? * MILLION + part).filter(|p| *p <= 100 * MILLION)
}

fn threshold(text: &str) -> Result<Threshold, String> {
    let number = |text: &str| {
        let value: f64 = text.parse().map_err(|_| format!("\"{text}\" is no number"))?;
        if value.is_finite() { Ok(value) } else { Err(format!("{text} is not finite")) }
    };
    if let Some(percent) = text.strip_prefix('p') {
        return percentile(percent)
            .map(Threshold::Percentile)
            .ok_or_else(|| format!("p{percent} is no percentile from p0 to p100 with at most six decimals"));
    }
    if let Some(rest) = text.strip_prefix("mean") {
        return match rest.strip_suffix("sd") {
            None if rest.is_empty() => Ok(Threshold::Deviations(0.0)),
            Some(times) if times.starts_with(['+', '-']) => Ok(Threshold::Deviations(number(times)?)),
            _ => Err(format!("\"{text}\" is not mean, mean+Ksd or mean-Ksd")),
        };
    }
    Ok(Threshold::Value(match text.parse() {
        Ok(value) => Number::Integer(value),
        Err(_) => Number::Float(number(text)?),
    }))
}

impl Predicate {
    /// The column.
    #[must_use]
    pub fn column(&self) -> &str {
        &self.column
    }

    /// The number that values of `column` are compared with.
    ///
    /// # Errors
    /// [`Error::Usage`] for a percentile or a mean of no values, or of values that are not finite.
    fn resolve(&self, column: &Column) -> Result<Number> {
        let none = || {
            Error::usage(
                format!("filter \"{self}\": the split has no such values, or some that are not finite"),
                "compare with a number, or leave the filter out",
            )
        };
        match self.threshold {
            Threshold::Value(value) => Ok(value),
            Threshold::Percentile(percent) => {
                let (mut integers, mut floats) = (Vec::new(), Vec::new());
                for value in column.values() {
                    match value {
                        Number::Integer(value) => integers.push(value),
                        Number::Float(value) if value.is_nan() => {}
                        Number::Float(value) => floats.push(value),
                    }
                }
                // Lanes are of one type, unless one of them has no rows.
                if floats.is_empty() {
                    let at = nearest_rank(percent, integers.len()).ok_or_else(none)?;
                    return Ok(Number::Integer(*integers.select_nth_unstable(at).1));
                }
                floats.extend(integers.into_iter().map(|value| value as f64));
                let at = nearest_rank(percent, floats.len()).ok_or_else(none)?;
                Ok(Number::Float(*floats.select_nth_unstable_by(at, f64::total_cmp).1))
            }
            Threshold::Deviations(times) => {
                let (mut n, mut mean, mut squares) = (0.0, 0.0, 0.0);
                for value in column.values().map(Number::as_f64).filter(|v| !v.is_nan()) {
                    // Welford, "Note on a method for calculating corrected sums of squares and products", 1962.
                    n += 1.0;
                    let distance = value - mean;
                    mean += distance / n;
                    squares += distance * (value - mean);
                }
                let value = mean + times * (squares / n).sqrt();
                if value.is_finite() { Ok(Number::Float(value)) } else { Err(none()) }
            }
        }
    }
}

/// Place of a percentile among `count` sorted values; `None` of no values.
fn nearest_rank(millionths: u64, count: usize) -> Option<usize> {
    let rank = (u128::from(millionths) * count as u128).div_ceil(u128::from(100 * MILLION));
    Some((rank as usize).saturating_sub(1).min(count.checked_sub(1)?))
}

/// What the predicates keep of a split.
#[derive(Debug, Clone)]
pub(crate) struct Filtered {
    /// By lane.
    pub(crate) lanes: Vec<KeptRows>,
    /// Each predicate with the number that it came to, for the plan's identity.
    pub(crate) resolved: Vec<String>,
}

/// Applies `predicates`, all of which a row must meet.
///
/// # Errors
/// [`Error::Usage`] for a column that is not there, or a threshold that has no value.
pub(crate) fn filter(table: &LaneTable, columns: &Columns, predicates: &[Predicate]) -> Result<Filtered> {
    let mut tests = Vec::with_capacity(predicates.len());
    let mut resolved = Vec::with_capacity(predicates.len());
    for predicate in predicates {
        let column = columns.get(&predicate.column)?;
        let value = predicate.resolve(column)?;
        resolved.push(match predicate.threshold {
            Threshold::Value(_) => predicate.to_string(),
            _ => format!("{predicate} ({value})"),
        });
        tests.push((column, predicate.operator, value));
    }
    // All hold: their order says nothing.
    resolved.sort_unstable();
    let lanes = (0..table.lanes()).map(|lane| {
        KeptRows::new(table.stored_rows(lane), |position| {
            tests.iter().all(|(column, operator, value)| {
                operator.holds(column.value(lane, position).and_then(|v| v.compare(*value)))
            })
        })
    });
    Ok(Filtered { lanes: lanes.collect(), resolved })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(predicate: &str, values: Column) -> Vec<u64> {
        let rows: Vec<u64> = (0..2).map(|lane| values.lane(lane).map_or(0, |v| v.len() as u64)).collect();
        let table = LaneTable::simulated_lanes(&rows, 1, 0, 3).unwrap();
        let columns = Columns::new([("x".to_owned(), values)]);
        let filtered = filter(&table, &columns, &[predicate.parse().unwrap()]).unwrap();
        (0..)
            .zip(&filtered.lanes)
            .flat_map(|(lane, kept)| (0..kept.count()).map(move |k| lane * 10 + kept.select(k)))
            .collect()
    }

    #[test]
    fn every_comparison_is_what_it_says() {
        let integers = || Column::integers(vec![vec![1, 2, 3], vec![2, 5]]);
        for (predicate, want) in [
            ("x<2", vec![0]),
            ("x<=2", vec![0, 1, 10]),
            ("x > 2", vec![2, 11]),
            ("x>=2", vec![1, 2, 10, 11]),
            ("x=2", vec![1, 10]),
            ("x==2.0", vec![1, 10]),
            ("x!=2", vec![0, 2, 11]),
            ("x<2.5", vec![0, 1, 10]),
            // Sorted: 1 2 2 3 5.
            ("x<=p0", vec![0]),
            ("x<=p60", vec![0, 1, 10]),
            ("x<=p60.1", vec![0, 1, 2, 10]),
            ("x<p100", vec![0, 1, 2, 10]),
            // Mean 2.6, deviation 1.356.
            ("x<mean", vec![0, 1, 10]),
            ("x<mean+1sd", vec![0, 1, 2, 10]),
            ("x<mean-1sd", vec![0]),
        ] {
            assert_eq!(kept(predicate, integers()), want, "{predicate}");
        }
        let floats = || Column::floats(vec![vec![1.5, f64::NAN, -0.0], vec![]]);
        assert_eq!(kept("x!=7", floats()), [0, 2]);
        assert_eq!(kept("x=0", floats()), [2]);
        assert_eq!(kept("x>=p100", floats()), [0]);
    }

    #[test]
    fn a_percentile_of_a_hundred_values_is_as_many_of_them() {
        for percent in 1..=100 {
            let values = Column::integers(vec![(1..=50).collect(), (51..=100).collect()]);
            let table = LaneTable::simulated_lanes(&[50, 50], 1, 0, 7).unwrap();
            let columns = Columns::new([("x".to_owned(), values)]);
            let filtered = filter(&table, &columns, &[format!("x<=p{percent}").parse().unwrap()]).unwrap();
            assert_eq!(filtered.lanes.iter().map(KeptRows::count).sum::<u64>(), percent);
        }
    }

    #[test]
    fn what_is_no_predicate_is_refused_with_the_reason() {
        for (text, why) in [
            ("x", "compares nothing"),
            ("<3", "column is missing"),
            ("x!3", "no comparison"),
            ("x<", "no number"),
            ("x<y", "no number"),
            ("x<inf", "not finite"),
            ("x<p101", "percentile"),
            ("x<p-1", "percentile"),
            ("x<p1.1234567", "percentile"),
            ("x<mean3sd", "mean+Ksd"),
            ("x=<3", "no number"),
        ] {
            let error = text.parse::<Predicate>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("words<=512"), "{text}: {error}");
        }
        let table = LaneTable::simulated(0, 1, 1, 0, 1).unwrap();
        let columns = Columns::new([("x".to_owned(), Column::integers(vec![vec![]]))]);
        for text in ["x<p50", "x<mean"] {
            let error = filter(&table, &columns, &[text.parse().unwrap()]).unwrap_err().to_string();
            assert!(error.contains("no such values"), "{error}");
        }
        let error = filter(&table, &columns, &["y<3".parse().unwrap()]).unwrap_err().to_string();
        assert!(error.contains("\"y\"") && error.contains("--sidecar"), "{error}");
    }

    #[test]
    fn texts_read_back() {
        for text in ["x<=512", "x!=p99.5", "x<mean+3sd", "x>mean-0.5sd", "x=mean", "x>=-1.5"] {
            let predicate: Predicate = text.parse().unwrap();
            assert_eq!(predicate.to_string(), text);
            let json = serde_json::to_string(&predicate).unwrap();
            assert_eq!(serde_json::from_str::<Predicate>(&json).unwrap(), predicate);
        }
    }
}
