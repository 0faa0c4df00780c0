//! Products, quotients and uniform numbers that don't fit 64 bits.

use gristmill_shard::keys::KeyedRng;

/// Largest divisor of [`mul_div`], exclusive.
pub(super) const DIVISOR_LIMIT: u128 = 1 << 126;

/// Quotient and remainder of `(a · m + add) / w`, exact whatever the size of the product, for `0 < w < 2^126` and
/// `add < w`. A quotient above 2^128 − 1 is given as that; (0, 0) when `w` is 0.
pub(super) fn mul_div(a: u128, m: u64, add: u128, w: u128) -> (u128, u128) {
    if w == 0 {
        return (0, 0);
    }
    if let Some(sum) = a.checked_mul(u128::from(m)).and_then(|product| product.checked_add(add)) {
        return match (u64::try_from(sum), u64::try_from(w)) {
            (Ok(sum), Ok(w)) => (u128::from(sum / w), u128::from(sum % w)),
            _ => (sum / w, sum % w),
        };
    }
    // Long division, one bit of m at a time: the remainder stays below w, so 2 · remainder + a mod w is below 3 · 2^126.
    let (whole, a) = (a / w, a % w);
    let (mut quotient, mut remainder) = (0_u128, 0_u128);
    for bit in (0..64).rev() {
        remainder = 2 * remainder + if m >> bit & 1 == 1 { a } else { 0 };
        quotient = 2 * quotient + remainder / w;
        remainder %= w;
    }
    remainder += add;
    quotient += remainder / w;
    (whole.saturating_mul(u128::from(m)).saturating_add(quotient), remainder % w)
}

/// Uniform in `[0, bound)` without bias; 0 when `bound` is 0.
pub(super) fn below(rng: &mut KeyedRng, bound: u128) -> u128 {
    if let Ok(bound) = u64::try_from(bound) {
        return u128::from(rng.below(bound));
    }
    // Rejection from the next power of two: fewer than two tries on average.
    let mask = u128::MAX >> (bound - 1).leading_zeros();
    loop {
        let draw = (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())) & mask;
        if draw < bound {
            return draw;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::keys::{Domain, Key};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quotients_are_exact(a in any::<u64>(), m in any::<u64>(), w in 1..u64::MAX, add in any::<u64>(), shift in 0_u32..62) {
            let (add, wide) = (u128::from(add % w), u128::from(a) * u128::from(m));
            prop_assert_eq!(
                mul_div(u128::from(a), m, add, u128::from(w)),
                ((wide / u128::from(w)) + (wide % u128::from(w) + add) / u128::from(w), (wide % u128::from(w) + add) % u128::from(w))
            );
            // Both scaled alike: the same quotient, a scaled remainder; the product takes the long way.
            let (quotient, remainder) = mul_div(u128::from(a), m, add, u128::from(w));
            prop_assert_eq!(
                mul_div(u128::from(a) << shift, m, add << shift, u128::from(w) << shift),
                (quotient, remainder << shift)
            );
        }
    }

    #[test]
    fn a_quotient_too_large_saturates() {
        assert_eq!(mul_div(u128::MAX, u64::MAX, 0, 1).0, u128::MAX);
        assert_eq!(mul_div(5, 5, 0, 0), (0, 0));
    }

    #[test]
    fn wide_draws_are_uniform() {
        let mut rng = Key::derive(Domain::Draw, 0, &[]).rng();
        let bound = 3_u128 << 90;
        let mut counts = [0_u32; 3];
        for _ in 0..30_000 {
            counts[usize::try_from(below(&mut rng, bound) >> 90).unwrap()] += 1;
        }
        assert!(counts.iter().all(|c| (9_600..10_400).contains(c)), "{counts:?}");
        assert_eq!(below(&mut rng, 0), 0);
        assert_eq!(below(&mut rng, 1), 0);
    }
}
