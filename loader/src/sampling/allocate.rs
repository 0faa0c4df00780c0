//! Draws dealt to lanes or classes in proportion to their weights: each gets the floor or ceiling of its share.
//!
//! Systematic sampling (Madow, "On the theory of systematic sampling II", 1949): with cumulative weights C_v, total W and
//! one keyed offset r, uniform in [0, W), part v gets `⌊(m·C_v + r) / W⌋ − ⌊(m·C_v₋₁ + r) / W⌋` of m draws. The sum is
//! exactly m, every part (and every run of consecutive parts) is the floor or ceiling of its share, and the expectation
//! over keys is exactly the share. So numbers of draws vary less than in independent draws from the whole split, whose
//! part v would vary with standard deviation `√(m p (1 − p))`.

use gristmill_shard::keys::KeyedRng;

use super::wide::{DIVISOR_LIMIT, below, mul_div};
use crate::error::{Error, Result};

/// `draws` dealt in proportion to `weights`: each part is ⌊share⌋ or ⌈share⌉, the sum exact, the expectation exact.
///
/// # Errors
/// [`Error::Usage`] when there are draws and every weight is 0, or weights sum to 2^126 or more.
pub fn allocate(weights: &[u128], draws: u64, rng: &mut KeyedRng) -> Result<Vec<u64>> {
    let total = total(weights)?;
    if draws == 0 {
        return Ok(vec![0; weights.len()]);
    }
    if total == 0 {
        return Err(nothing_to_draw());
    }
    let offset = below(rng, total);
    let (mut cumulative, mut before) = (0, 0);
    weights
        .iter()
        .map(|weight| {
            cumulative += weight;
            let (upto, _) = mul_div(cumulative, draws, offset, total);
            let part = upto - before;
            before = upto;
            u64::try_from(part).map_err(|_| Error::internal("a part of the draws is larger than the whole"))
        })
        .collect()
}

/// [`allocate`] where part v can have at most `limits[v]` draws: parts whose share is above their limit get the limit,
/// and the others share the rest in proportion, until none is above. Expectations are those shares, exactly.
///
/// # Errors
/// [`Error::Usage`] as of [`allocate`], and when the limits of the parts with weight sum to fewer than `draws`, which is
/// said with the largest possible number. [`Error::Internal`] when there are not as many limits as weights.
pub fn allocate_limited(weights: &[u128], limits: &[u64], draws: u64, rng: &mut KeyedRng) -> Result<Vec<u64>> {
    if weights.len() != limits.len() {
        return Err(Error::internal(format!("{} weights have {} limits", weights.len(), limits.len())));
    }
    total(weights)?;
    let possible: u128 = weights.iter().zip(limits).filter(|(w, _)| **w > 0).map(|(_, l)| u128::from(*l)).sum();
    if u128::from(draws) > possible {
        return Err(too_many(draws, possible));
    }
    let mut open = weights.to_vec();
    let mut parts = vec![0; weights.len()];
    let mut rest = draws;
    loop {
        let total: u128 = open.iter().sum();
        let left = rest;
        for ((weight, limit), part) in open.iter_mut().zip(limits).zip(&mut parts) {
            let (floor, remainder) = mul_div(*weight, left, 0, total);
            if floor > u128::from(*limit) || floor == u128::from(*limit) && remainder > 0 {
                // Its share is above its limit: so is the sum of the shares of all such parts, and rest stays positive.
                (*part, *weight) = (*limit, 0);
                rest -= limit;
            }
        }
        if rest == left && open.iter().sum::<u128>() == total {
            break;
        }
    }
    for (part, more) in parts.iter_mut().zip(allocate(&open, rest, rng)?) {
        *part += more;
    }
    Ok(parts)
}

/// The largest number of draws for which every class's ⌈share⌉ is at most its `rows`: the least of
/// `⌊rows · Σ shares / share⌋` over the classes with a share. 0 when no class has one.
#[must_use]
pub fn largest_without_repeats(rows: &[u64], shares: &[u64]) -> u64 {
    let total: u128 = shares.iter().map(|s| u128::from(*s)).sum();
    let of_class = |(rows, share): (&u64, &u64)| mul_div(total, *rows, 0, u128::from(*share)).0;
    let least = rows.iter().zip(shares).filter(|(_, share)| **share > 0).map(of_class).min().unwrap_or(0);
    u64::try_from(least).unwrap_or(u64::MAX)
}

fn total(weights: &[u128]) -> Result<u128> {
    let sum = weights.iter().try_fold(0_u128, |sum, weight| sum.checked_add(*weight));
    sum.filter(|sum| *sum < DIVISOR_LIMIT).ok_or_else(|| {
        Error::usage("the weights of the lanes sum to 2^126 or more", "divide all weights by the same number")
    })
}

pub(super) fn nothing_to_draw() -> Error {
    Error::usage("every weight is 0, so there is nothing to draw", "give at least one row a positive weight")
}

pub(super) fn too_many(draws: u64, possible: u128) -> Error {
    Error::usage(
        format!("samples is {draws}, and without drawing a row twice an epoch has at most {possible}"),
        format!("ask for {possible} samples or fewer, or allow rows to be drawn again"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::keys::{Domain, Key};
    use proptest::prelude::*;

    fn rng(n: u64) -> KeyedRng {
        Key::derive(Domain::Draw, 0, &[n]).rng()
    }

    fn weights() -> impl Strategy<Value = Vec<u128>> {
        let weight = prop_oneof![Just(0), 0..5_u128, 0..1_u128 << 40, 0..1_u128 << 96];
        proptest::collection::vec(weight, 1..40)
    }

    /// Whether `part` is the floor or ceiling of `draws · weight / total`.
    fn is_rounded(part: u64, weight: u128, draws: u64, total: u128) -> bool {
        let (floor, remainder) = mul_div(weight, draws, 0, total);
        u128::from(part) == floor || remainder > 0 && u128::from(part) == floor + 1
    }

    proptest! {
        #[test]
        fn parts_are_floors_or_ceilings_and_sum_to_the_draws(
            weights in weights(), draws in prop_oneof![0..100_u64, any::<u64>()], n in any::<u64>(),
        ) {
            let total: u128 = weights.iter().sum();
            prop_assume!(total > 0);
            let parts = allocate(&weights, draws, &mut rng(n)).unwrap();
            prop_assert_eq!(parts.iter().map(|p| u128::from(*p)).sum::<u128>(), u128::from(draws));
            for (part, weight) in parts.iter().zip(&weights) {
                prop_assert!(is_rounded(*part, *weight, draws, total));
            }
            prop_assert_eq!(parts, allocate(&weights, draws, &mut rng(n)).unwrap());
        }

        #[test]
        fn limits_hold_and_what_is_below_them_stays_in_proportion(
            parts in proptest::collection::vec((0..1000_u128, 0..50_u64), 1..30), draws in 0..400_u64, n in any::<u64>(),
        ) {
            let (weights, limits): (Vec<u128>, Vec<u64>) = parts.into_iter().unzip();
            let possible: u64 = weights.iter().zip(&limits).filter(|(w, _)| **w > 0).map(|(_, l)| l).sum();
            match allocate_limited(&weights, &limits, draws, &mut rng(n)) {
                Err(error) => {
                    prop_assert!(draws > possible);
                    let most = format!("at most {possible}");
                    prop_assert!(error.to_string().contains(&most));
                }
                Ok(parts) => {
                    prop_assert!(draws <= possible);
                    prop_assert_eq!(parts.iter().sum::<u64>(), draws);
                    prop_assert!(parts.iter().zip(&limits).all(|(p, l)| p <= l));
                    // A part below its limit has at least its share of the whole, as what others can't have comes to it.
                    let total = weights.iter().sum::<u128>();
                    for ((part, limit), weight) in parts.iter().zip(&limits).zip(&weights) {
                        prop_assert!(part == limit || u128::from(*part) >= mul_div(*weight, draws, 0, total).0);
                    }
                    // Parts below their limits share in proportion: per unit of weight they differ by one draw at most.
                    let open: Vec<_> = parts.iter().zip(&limits).zip(&weights).filter(|((p, l), _)| *p < l).collect();
                    for ((p, _), w) in &open {
                        for ((q, _), v) in &open {
                            prop_assert!((u128::from(**p).saturating_sub(1)) * **v <= (u128::from(**q) + 1) * **w);
                        }
                    }
                }
            }
        }

        #[test]
        fn the_largest_epoch_without_repeats_is_the_largest(
            classes in proptest::collection::vec((0..60_u64, 0..9_u64), 1..12), n in any::<u64>(),
        ) {
            let (rows, shares): (Vec<u64>, Vec<u64>) = classes.into_iter().unzip();
            let total: u64 = shares.iter().sum();
            prop_assume!(total > 0);
            let largest = largest_without_repeats(&rows, &shares);
            let fits = |m: u64| rows.iter().zip(&shares).all(|(rows, share)| (m * share).div_ceil(total) <= *rows);
            prop_assert!(fits(largest) && !fits(largest + 1));
            let wide: Vec<u128> = shares.iter().map(|s| u128::from(*s)).collect();
            let parts = allocate(&wide, largest, &mut rng(n)).unwrap();
            prop_assert!(parts.iter().zip(&rows).all(|(part, rows)| part <= rows));
        }
    }

    #[test]
    fn expectations_are_exact_over_all_offsets() {
        // 7 draws over weights 3, 0, 5, 1 of 9: over keys, parts average to the shares.
        let weights = [3, 0, 5, 1];
        let mut sums = [0_u64; 4];
        for n in 0..9_000 {
            for (sum, part) in sums.iter_mut().zip(allocate(&weights, 7, &mut rng(n)).unwrap()) {
                *sum += part;
            }
        }
        for (sum, weight) in sums.iter().zip(weights) {
            let expected = 7_000 * u64::try_from(weight).unwrap();
            assert!(sum.abs_diff(expected) <= 170, "{sum} {expected}");
        }
    }

    #[test]
    fn golden_parts() {
        assert_eq!(allocate(&[7, 2, 1], 5, &mut rng(1)).unwrap(), GOLDEN_PARTS);
        // The first may have only one: the rest, 4, goes 2 : 1 to the others.
        let parts = allocate_limited(&[7, 2, 1], &[1, 9, 9], 7, &mut rng(1)).unwrap();
        assert_eq!(parts, [1, 4, 2]);
    }

    const GOLDEN_PARTS: [u64; 3] = [4, 1, 0];

    #[test]
    fn bad_requests_are_refused() {
        let text = |r: Result<Vec<u64>>| r.unwrap_err().to_string();
        assert!(text(allocate(&[0, 0], 1, &mut rng(0))).contains("every weight is 0"));
        assert!(text(allocate(&[u128::MAX, 1], 1, &mut rng(0))).contains("2^126"));
        assert!(text(allocate(&[DIVISOR_LIMIT], 1, &mut rng(0))).contains("2^126"));
        assert!(text(allocate_limited(&[1, 0], &[3, 9], 4, &mut rng(0))).contains("at most 3"));
        assert!(text(allocate_limited(&[1], &[], 0, &mut rng(0))).contains("1 weights have 0 limits"));
        assert_eq!(allocate(&[0, 0], 0, &mut rng(0)).unwrap(), [0, 0]);
        assert_eq!(allocate_limited(&[], &[], 0, &mut rng(0)).unwrap(), [0_u64; 0]);
        assert_eq!(largest_without_repeats(&[5, 9], &[0, 0]), 0);
        assert_eq!(largest_without_repeats(&[u64::MAX; 2], &[1, u64::MAX]), u64::MAX);
    }
}
