//! Resampling: how many rows each stratum of a split is to have, to an exact total, and which ranks are copied.
//!
//! Targets are made by largest remainder in exact integers (ties to the earlier stratum), so that they sum to the total
//! and each is the floor or ceiling of its share. Rows left out are spread evenly along the stratum ([`super::interleave`]);
//! copies of a row are neighbours in rank, so that a block of the dealing sends them to different nodes.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Proportions of the values of a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proportions {
    /// Each value as often as the others.
    Balanced,
    /// Each value in proportion to the square root of its rows.
    Sqrt,
    /// Parts in the order of the values, as `inspect` lists them; decimal numbers.
    Parts(Vec<String>),
}

/// How many rows there are to be in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Total {
    /// As many as there were: some values grow, others shrink.
    #[default]
    Same,
    /// The fewest so that no value shrinks: copies only.
    Over,
    /// The most so that no value grows: rows are left out only.
    Under,
}

/// A column's values brought to proportions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resample {
    /// The column, one of the stratify columns.
    pub column: String,
    /// Its target proportions.
    pub to: Proportions,
    /// The total.
    #[serde(default)]
    pub total: Total,
}

impl Resample {
    /// Parses `COLUMN=balanced`, `COLUMN=sqrt` or `COLUMN=0.5,0.5`.
    ///
    /// # Errors
    /// [`Error::Usage`] saying what is wrong.
    pub fn parse(text: &str, total: Total) -> Result<Self> {
        let help = "write --resample COLUMN=balanced, COLUMN=sqrt or COLUMN=0.5,0.3,0.2";
        let (column, to) =
            text.split_once('=').ok_or_else(|| Error::usage(format!("--resample {text} names no target"), help))?;
        let to = match to.trim() {
            "balanced" => Proportions::Balanced,
            "sqrt" => Proportions::Sqrt,
            parts => {
                let parts: Vec<String> = parts.split(',').map(|p| p.trim().to_owned()).collect();
                for part in &parts {
                    decimal(part).ok_or_else(|| {
                        Error::usage(format!("--resample {text}: \"{part}\" is not a proportion"), help)
                    })?;
                }
                Proportions::Parts(parts)
            }
        };
        Ok(Self { column: column.trim().to_owned(), to, total })
    }
}

/// A decimal number in billionths.
fn decimal(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.len() <= 9 && t.bytes().all(|b| b.is_ascii_digit());
    if text.is_empty() || text == "." || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    Some(whole * 1_000_000_000 + fraction)
}

impl Resample {
    /// Rows that each stratum is to have, where stratum c has `rows[c]` rows and value `values[c]` of the column;
    /// `names` are the values, in order. A value without rows stays without.
    ///
    /// # Errors
    /// [`Error::Usage`] when there are not as many proportions as values, or a value with a proportion has no rows.
    pub fn targets(&self, rows: &[u64], values: &[u32], names: &[String]) -> Result<Vec<u64>> {
        let mut of_value = vec![0_u64; names.len()];
        for (n, v) in rows.iter().zip(values) {
            of_value[*v as usize] += n;
        }
        let parts: Vec<u64> = match &self.to {
            Proportions::Balanced => of_value.iter().map(|n| u64::from(*n > 0)).collect(),
            // The root in 2^-16 units: sqrt(n · 2^32) of integers, so that no float decides a count.
            Proportions::Sqrt => of_value.iter().map(|n| (u128::from(*n) << 32).isqrt() as u64).collect(),
            Proportions::Parts(parts) => {
                if parts.len() != names.len() {
                    return Err(Error::usage(
                        format!(
                            "--resample {} has {} proportions, the column has {} values: {}",
                            self.column,
                            parts.len(),
                            names.len(),
                            names.iter().take(12).cloned().collect::<Vec<_>>().join(", ")
                        ),
                        "give one for each, in that order",
                    ));
                }
                parts.iter().map(|p| decimal(p).unwrap_or(0)).collect()
            }
        };
        if let Some(v) = parts.iter().zip(&of_value).position(|(p, n)| *p > 0 && *n == 0) {
            return Err(Error::usage(
                format!("--resample {}: value \"{}\" has a proportion but no rows in the split", self.column, names[v]),
                "give it 0",
            ));
        }
        let total = self.rows(&parts, &of_value)?;
        let by_value = largest_remainder(total, &parts);
        let mut targets = vec![0; rows.len()];
        for (value, target) in by_value.iter().enumerate() {
            let members: Vec<usize> = (0..rows.len()).filter(|c| values[*c] as usize == value).collect();
            let shares: Vec<u64> = members.iter().map(|c| rows[*c]).collect();
            for (c, m) in members.iter().zip(largest_remainder(*target, &shares)) {
                targets[*c] = m;
            }
        }
        Ok(targets)
    }

    fn rows(&self, parts: &[u64], of_value: &[u64]) -> Result<u64> {
        let sum: u128 = parts.iter().map(|p| u128::from(*p)).sum();
        if sum == 0 {
            return Err(Error::usage(
                format!("--resample {}: all proportions are 0", self.column),
                "give at least one value a proportion",
            ));
        }
        let exact =
            parts.iter().zip(of_value).filter(|(p, _)| **p > 0).map(|(p, n)| (u128::from(*n) * sum, u128::from(*p)));
        let total = match self.total {
            Total::Same => of_value.iter().map(|n| u128::from(*n)).sum(),
            Total::Over => exact.map(|(n, p)| n.div_ceil(p)).max().unwrap_or(0),
            Total::Under => exact.map(|(n, p)| n / p).min().unwrap_or(0),
        };
        u64::try_from(total).ok().filter(|t| *t < 1 << 48).ok_or_else(|| {
            Error::usage(
                format!("--resample {} asks for {total} rows", self.column),
                "give milder proportions, or another --resample-total",
            )
        })
    }
}

/// `total` in proportion to `parts`: each its floor, and one more to those with the largest remainders.
fn largest_remainder(total: u64, parts: &[u64]) -> Vec<u64> {
    let sum: u128 = parts.iter().map(|p| u128::from(*p)).sum();
    if sum == 0 {
        return vec![0; parts.len()];
    }
    let product = |p: &u64| u128::from(*p) * u128::from(total);
    let mut rows: Vec<u64> = parts.iter().map(|p| (product(p) / sum) as u64).collect();
    let left = total - rows.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(product(&parts[*i]) % sum), *i));
    for i in order.into_iter().take(left as usize) {
        rows[i] += 1;
    }
    rows
}

/// Ranks among `target` rows that the row of rank `rank` of `rows` (fewer than `target`) takes: at least one.
pub fn copies(rank: u64, rows: u64, target: u64) -> Range<u64> {
    let at = |r: u64| (u128::from(r) * u128::from(target) / u128::from(rows.max(1))) as u64;
    at(rank)..at(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| i.to_string()).collect()
    }

    #[test]
    fn two_classes_to_one_half_each() {
        let rows = [800, 150, 50];
        let half = Resample::parse("label=0.5,0.5", Total::Same).unwrap();
        assert_eq!(half.targets(&rows, &[0, 1, 1], &names(2)).unwrap(), [500, 375, 125]);
        let over = Resample { total: Total::Over, ..half.clone() };
        assert_eq!(over.targets(&rows, &[0, 1, 1], &names(2)).unwrap(), [800, 600, 200]);
        let under = Resample { total: Total::Under, ..half };
        assert_eq!(under.targets(&rows, &[0, 1, 1], &names(2)).unwrap(), [200, 150, 50]);
        let sqrt = Resample::parse("label=sqrt", Total::Same).unwrap();
        assert_eq!(sqrt.targets(&[900, 100], &[0, 1], &names(2)).unwrap(), [750, 250]);
    }

    #[test]
    fn what_cant_be_is_said() {
        for bad in ["label", "label=", "label=a,b", "label=1,-1", "label=."] {
            assert!(Resample::parse(bad, Total::Same).is_err(), "{bad}");
        }
        let three = Resample::parse("label=1,1,1", Total::Same).unwrap();
        assert!(three.targets(&[1, 1], &[0, 1], &names(2)).unwrap_err().to_string().contains("3 proportions"));
        let zero = Resample::parse("label=0,0", Total::Same).unwrap();
        assert!(zero.targets(&[1, 1], &[0, 1], &names(2)).is_err());
        let empty = Resample::parse("label=1,1", Total::Same).unwrap();
        assert!(empty.targets(&[1, 0], &[0, 1], &names(2)).is_err());
    }

    proptest! {
        #[test]
        fn targets_sum_to_the_total_and_copies_partition_it(
            rows in prop::collection::vec(1u64..500, 1..20), values in prop::collection::vec(0u32..4, 20),
            total in prop::sample::select(vec![Total::Same, Total::Over, Total::Under]), sqrt in any::<bool>(),
        ) {
            let values = &values[..rows.len()];
            let to = if sqrt { Proportions::Sqrt } else { Proportions::Balanced };
            let targets = Resample { column: "x".into(), to, total }.targets(&rows, values, &names(4)).unwrap();
            if total == Total::Same {
                prop_assert_eq!(targets.iter().sum::<u64>(), rows.iter().sum::<u64>());
            }
            for (n, m) in rows.iter().zip(&targets) {
                if m > n {
                    let mut next = 0;
                    for rank in 0..*n {
                        let range = copies(rank, *n, *m);
                        prop_assert!(range.start == next && !range.is_empty());
                        next = range.end;
                    }
                    prop_assert_eq!(next, *m);
                }
            }
        }
    }
}
