//! Weights of rows as integers, and their bins.
//!
//! A bin is a weight with low bits dropped: all bits are kept where weights are few, then 16, 12, … 0 bits after the
//! leading one, then none, as fine as a number of cells allows that depends on the data alone. So the same rows have the
//! same bins on any machine, in any order, cut in any way.

use arrow::{
    array::{Array, AsArray},
    datatypes::{DataType, Float64Type, Int64Type, UInt64Type},
};

use crate::{
    coded::CodedColumn,
    error::{Error, Result},
};

/// Fractional bits of a weight that is a float: its unit is 2^-20, about a millionth.
pub const FRACTION_BITS: u32 = 20;
/// Bits kept after the leading one at each level; `None` is all, the last level keeps nothing at all.
const KEPT: [Option<u32>; 15] = [
    None,
    Some(16),
    Some(12),
    Some(10),
    Some(9),
    Some(8),
    Some(7),
    Some(6),
    Some(5),
    Some(4),
    Some(3),
    Some(2),
    Some(1),
    Some(0),
    Some(0),
];
/// The level at which all weights are one bin.
pub const COARSEST: u8 = KEPT.len() as u8 - 1;

/// The bin of `weight` at `level`; heavier weights have greater bins.
#[must_use]
pub fn bin(weight: u64, level: u8) -> u64 {
    if level >= COARSEST {
        return 0;
    }
    match KEPT[usize::from(level)] {
        None => weight,
        Some(_) if weight == 0 => 0,
        Some(kept) => {
            let exponent = u64::from(63 - weight.leading_zeros());
            let fraction = (weight << weight.leading_zeros()) << 1;
            let fraction = if kept == 0 { 0 } else { fraction >> (64 - kept) };
            1 + ((exponent << kept) | fraction)
        }
    }
}

/// The bin at the coarser level `to` of the weights that `bin` holds at level `from`.
#[must_use]
pub fn coarser(of: u64, from: u8, to: u8) -> u64 {
    if from == to {
        return of;
    }
    if to >= COARSEST {
        return 0;
    }
    match (KEPT[usize::from(from)], KEPT[usize::from(to)]) {
        (None, _) => bin(of, to),
        (Some(_), _) if of == 0 => 0,
        (Some(a), Some(b)) => 1 + ((of - 1) >> (a - b)),
        (Some(_), None) => of,
    }
}

/// Width of a bin at `level`: the largest and the smallest weight in it differ by at most this part of the smaller.
#[must_use]
pub fn width(level: u8) -> f64 {
    match KEPT.get(usize::from(level)).copied().flatten() {
        None => 0.0,
        Some(_) if level >= COARSEST => f64::INFINITY,
        Some(kept) => 0.5_f64.powi(kept as i32),
    }
}

/// Whether a column can hold weights.
#[must_use]
pub fn is_weight(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_floating()
}

/// The weights of a column: integers as they are, floats in units of 2^-[`FRACTION_BITS`].
///
/// # Errors
/// [`Error::Data`] for a null, a negative weight, one that is not finite or too large; `first_row` is the first row's
/// place in `url`.
pub fn weights(column: &CodedColumn, name: &str, url: &str, first_row: u64) -> Result<Vec<u64>> {
    let bad = |row: usize, what: &str| Error::Data {
        url: url.to_owned(),
        what: format!("row {} has {what} in weight column \"{name}\"", first_row + row as u64),
        help: "weights are numbers of 0 and more; mend them at ingest (for example COALESCE(x, 0) in --sql)".into(),
    };
    let CodedColumn::Plain(array) = column else {
        return Err(Error::internal(format!("weight column \"{name}\" is text")));
    };
    if let Some(row) = (0..array.len()).find(|row| array.is_null(*row)) {
        return Err(bad(row, "null"));
    }
    let fail = |source| Error::Arrow { action: format!("read the weights of \"{name}\""), source };
    if array.data_type().is_floating() {
        let scale = (1_u64 << FRACTION_BITS) as f64;
        let values = arrow::compute::cast(array, &DataType::Float64).map_err(fail)?;
        return (values.as_primitive::<Float64Type>().values().iter().enumerate())
            .map(|(row, value)| match value {
                v if !v.is_finite() => Err(bad(row, &v.to_string())),
                v if *v < 0.0 => Err(bad(row, &v.to_string())),
                v if v * scale >= (1_u64 << 63) as f64 => Err(bad(row, &format!("{v}, more than 2^43,"))),
                v => Ok((v * scale).round() as u64),
            })
            .collect();
    }
    if array.data_type() == &DataType::UInt64 {
        return Ok(array.as_primitive::<UInt64Type>().values().to_vec());
    }
    let values = arrow::compute::cast(array, &DataType::Int64).map_err(fail)?;
    (values.as_primitive::<Int64Type>().values().iter().enumerate())
        .map(|(row, value)| u64::try_from(*value).map_err(|_| bad(row, &value.to_string())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bins_keep_the_order_of_weights_and_nest(a in any::<u64>(), b in any::<u64>(), small in 0u64..5000, level in 0u8..=COARSEST) {
            for (a, b) in [(a, b), (small, a), (small, small + 1), (a >> 40, b >> 40)] {
                let (low, high) = (a.min(b), a.max(b));
                prop_assert!(bin(low, level) <= bin(high, level));
                for to in level..=COARSEST {
                    prop_assert_eq!(coarser(bin(a, level), level, to), bin(a, to));
                }
            }
        }
    }

    #[test]
    fn floats_are_fixed_point_and_what_is_no_weight_is_said() {
        let column = |v: Vec<f64>| CodedColumn::Plain(std::sync::Arc::new(arrow::array::Float64Array::from(v)));
        assert_eq!(weights(&column(vec![0.0, 0.5, 3.0]), "w", "x", 0).unwrap(), [0, 1 << 19, 3 << 20]);
        for value in [-1.0, f64::NAN, f64::INFINITY, 1e20] {
            let error = weights(&column(vec![1.0, value]), "w", "f.parquet", 7).unwrap_err().to_string();
            assert!(error.contains("row 8") && error.contains("\"w\""), "{error}");
        }
    }
}
