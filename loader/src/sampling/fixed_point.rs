//! Weights of rows as integers. Floats become fixed point with one power-of-two scale for all lanes, so that lanes agree
//! and no float decides a draw.
//!
//! One pass over a lane gives its [`FloatTotal`]; the totals of all lanes give the scale ([`common_scale`]) and, at that
//! scale, what each lane weighs. The heaviest lane then weighs 2^61 to 2^62 units, so that a weight is off by at most one
//! unit, a share of 2^−61 of that lane; a positive weight stays positive.

use crate::error::{Error, Result};

/// What the floating-point weights of one lane sum to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloatTotal {
    /// The sum in units of 2^−`scale`, each weight rounded up to one.
    total: u128,
    /// Chosen by the lane's heaviest weight, which is 2^62 to 2^63 units.
    scale: i32,
    /// Rows of positive weight.
    positive: u64,
}

impl FloatTotal {
    /// The total of `weights`, the column of `lane`.
    ///
    /// # Errors
    /// [`Error::Usage`] for a negative, infinite or missing number, naming lane and position, and for 2^32 rows or more.
    pub fn of(lane: u32, weights: &[f64]) -> Result<Self> {
        if u32::try_from(weights.len()).is_err() {
            return Err(Error::usage(format!("lane {lane} has 2^32 rows or more"), "use more lanes"));
        }
        let mut largest = 0_f64;
        for (position, weight) in weights.iter().enumerate() {
            // The comparison is false for NaN.
            let allowed = *weight >= 0.0 && weight.is_finite();
            if !allowed {
                return Err(refused(lane, position, weight));
            }
            largest = largest.max(*weight);
        }
        let (mantissa, exponent) = parts(largest);
        // Both of small size: a mantissa has at most 53 bits, an exponent is between -1074 and 971.
        let scale = 63 - (64 - mantissa.leading_zeros() as i32) - exponent;
        let (mut total, mut positive) = (0_u128, 0_u64);
        for weight in weights.iter().filter(|weight| **weight > 0.0) {
            let (mantissa, exponent) = parts(*weight);
            total += shifted_up(u128::from(mantissa), exponent + scale);
            positive += 1;
        }
        Ok(Self { total, scale, positive })
    }

    /// Rows of positive weight: how many distinct rows can be drawn.
    #[must_use]
    pub fn positive(&self) -> u64 {
        self.positive
    }

    /// What the lane weighs in units of 2^−`scale`, rounded up, for a scale of [`common_scale`]. It is what
    /// [`allocate`](super::allocate::allocate) shares draws by; [`fixed_point`] sums to it within half a unit a row.
    #[must_use]
    pub fn at(&self, scale: i32) -> u128 {
        shifted_up(self.total, scale.saturating_sub(self.scale))
    }
}

/// The scale at which the heaviest lane weighs 2^61 to 2^62 units of 2^−scale; `None` when every weight is 0.
#[must_use]
pub fn common_scale(lanes: &[FloatTotal]) -> Option<i32> {
    lanes.iter().filter(|lane| lane.total > 0).map(|lane| lane.scale + lane.total.leading_zeros() as i32 - 66).min()
}

/// `weights`, the column of `lane`, in units of 2^−`scale`, rounded to the nearest, a positive weight to 1 at least.
///
/// # Errors
/// [`Error::Usage`] as [`FloatTotal::of`]; [`Error::Internal`] for a weight of 2^63 units or more, which no scale of
/// [`common_scale`] gives.
pub fn fixed_point(lane: u32, weights: &[f64], scale: i32) -> Result<Vec<u64>> {
    let unit = |(position, weight): (usize, &f64)| {
        let allowed = *weight >= 0.0 && weight.is_finite();
        if !allowed {
            return Err(refused(lane, position, weight));
        }
        let (mantissa, exponent) = parts(*weight);
        if mantissa == 0 {
            return Ok(0);
        }
        // Nearest, halves up: one more bit is kept, then 1 added and the bit dropped.
        let shift = exponent.saturating_add(scale).saturating_add(1);
        let by = shift.unsigned_abs();
        let doubled = if shift < 0 {
            mantissa.checked_shr(by).unwrap_or(0)
        } else if by <= mantissa.leading_zeros() {
            mantissa << by
        } else {
            return Err(Error::internal(format!(
                "lane {lane}, position {position}: {weight} is too large for 2^{scale}"
            )));
        };
        Ok(doubled.div_ceil(2).max(1))
    };
    weights.iter().enumerate().map(unit).collect()
}

/// `weights`, integers of the column of `lane`, as they are.
///
/// # Errors
/// [`Error::Usage`] for a negative weight, naming lane and position.
pub fn integers(lane: u32, weights: &[i64]) -> Result<Vec<u64>> {
    let unit = |(position, weight): (usize, &i64)| u64::try_from(*weight).map_err(|_| refused(lane, position, weight));
    weights.iter().enumerate().map(unit).collect()
}

fn refused(lane: u32, position: usize, weight: &dyn std::fmt::Display) -> Error {
    Error::usage(
        format!("lane {lane}, position {position}: {weight} is not a weight"),
        "weights are finite numbers, 0 or larger: correct the column, or write 0 where a row is never to be drawn",
    )
}

/// Mantissa and exponent of a finite positive number or 0: `weight = mantissa · 2^exponent`.
fn parts(weight: f64) -> (u64, i32) {
    let bits = weight.to_bits();
    let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7FF) as i32);
    if exponent == 0 { (fraction, -1074) } else { (fraction | 1 << 52, exponent - 1075) }
}

/// `⌈value · 2^shift⌉`; the bits that leave at the top are those of no total (see [`FloatTotal::of`]).
fn shifted_up(value: u128, shift: i32) -> u128 {
    let by = shift.unsigned_abs();
    if shift >= 0 {
        return value.checked_shl(by).unwrap_or(0);
    }
    let down = value.checked_shr(by).unwrap_or(0);
    if down.checked_shl(by).unwrap_or(0) == value { down } else { down + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lanes() -> impl Strategy<Value = Vec<Vec<f64>>> {
        let weight = prop_oneof![
            2 => Just(0.0), 4 => 0.0..10.0_f64, 1 => Just(f64::MIN_POSITIVE), 1 => Just(5e-324), 1 => 0.0..1e300_f64,
            2 => (-60_i32..60).prop_map(|e| 2_f64.powi(e)),
        ];
        let one_size = proptest::collection::vec(0.5..2.0_f64, 0..50);
        proptest::collection::vec(prop_oneof![proptest::collection::vec(weight, 0..50), one_size], 1..8)
    }

    proptest! {
        #[test]
        fn lanes_agree_and_shares_are_kept(lanes in lanes()) {
            let totals: Vec<FloatTotal> =
                lanes.iter().zip(0..).map(|(weights, lane)| FloatTotal::of(lane, weights).unwrap()).collect();
            let Some(scale) = common_scale(&totals) else {
                prop_assert!(lanes.iter().flatten().all(|w| *w == 0.0));
                return Ok(());
            };
            let units: Vec<Vec<u64>> = lanes.iter().map(|weights| fixed_point(0, weights, scale).unwrap()).collect();
            let heaviest = totals.iter().map(|t| t.at(scale)).max().unwrap();
            prop_assert!((1 << 61..=1 << 62).contains(&heaviest), "{}", heaviest);
            for ((weights, units), total) in lanes.iter().zip(&units).zip(&totals) {
                let sum: u128 = units.iter().map(|u| u128::from(*u)).sum();
                prop_assert!(sum.abs_diff(total.at(scale)) <= units.len() as u128 + 1);
                prop_assert_eq!(units.iter().filter(|u| **u > 0).count() as u64, total.positive());
                for (weight, unit) in weights.iter().zip(units) {
                    // Exact in f64 as far as the comparison goes: scaling by powers of two, in two steps.
                    let exact = weight * 2_f64.powi(scale / 2) * 2_f64.powi(scale - scale / 2);
                    prop_assert!((*unit as f64 - exact).abs() <= 1.0 + exact * 1e-15);
                    prop_assert_eq!(*unit == 0, *weight == 0.0);
                }
            }
        }
    }

    #[test]
    fn golden_units() {
        let (a, b) = ([1.0, 0.0, 3.0], [0.5, 1e-30]);
        let totals = [FloatTotal::of(0, &a).unwrap(), FloatTotal::of(1, &b).unwrap()];
        // 4 = 2^2 is the heaviest: 2^62 would have one bit too many.
        let scale = common_scale(&totals).unwrap();
        assert_eq!(scale, 59);
        assert_eq!(fixed_point(0, &a, scale).unwrap(), [1 << 59, 0, 3 << 59]);
        assert_eq!(fixed_point(1, &b, scale).unwrap(), [1 << 58, 1]);
        assert_eq!(totals.map(|t| t.at(scale)), [1 << 61, (1 << 58) + 1]);
        // The smallest of all floats alone is as good a weight as any.
        let least = [FloatTotal::of(0, &[5e-324]).unwrap()];
        let scale_of_least = common_scale(&least).unwrap();
        assert_eq!(fixed_point(0, &[5e-324], scale_of_least).unwrap(), [1 << 61]);
        // Halves go up.
        assert_eq!(fixed_point(0, &[0.5, 1.25, 1.5, 2.5, 0.1], 0).unwrap(), [1, 1, 2, 3, 1]);
        assert_eq!(integers(0, &[0, 7, i64::MAX]).unwrap(), [0, 7, i64::MAX as u64]);
    }

    #[test]
    fn what_is_no_weight_is_refused_by_place() {
        for bad in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -5e-324] {
            for text in [
                FloatTotal::of(7, &[1.0, bad]).unwrap_err().to_string(),
                fixed_point(7, &[1.0, bad], 3).unwrap_err().to_string(),
            ] {
                assert!(text.starts_with("lane 7, position 1: ") && text.contains("is not a weight"), "{text}");
            }
        }
        assert!(
            integers(2, &[1, 2, -3]).unwrap_err().to_string().starts_with("lane 2, position 2: -3 is not a weight")
        );
        assert!(fixed_point(0, &[1.0], 63).is_err());
        assert_eq!(common_scale(&[FloatTotal::of(0, &[0.0, -0.0]).unwrap()]), None);
    }
}
