//! Stable splits: the keyed hash of an identity against the cumulative shares. A row stays in its split whatever rows come
//! or go; shares hold in expectation, with a standard deviation of √(f(1 − f) · identities).

use super::rounding::Shares;
use crate::keys::{Domain, Key};

/// The split of the identity with this hash.
#[must_use]
pub fn stable_split(hash: u64, shares: &Shares, seed: u64) -> u32 {
    let draw = Key::derive(Domain::SplitHash, seed, &[hash]).as_u64();
    let at = ((u128::from(draw) * u128::from(shares.whole())) >> 64) as u64;
    let mut end = 0;
    for (s, part) in shares.parts().iter().enumerate() {
        end += part;
        if at < end {
            return s as u32;
        }
    }
    shares.len() as u32 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_depends_on_the_identity_alone() {
        let shares = Shares::parse("train=0.8,validation=0.1,test=0.1").unwrap();
        let mut rows = [0_i32; 3];
        (0..100_000).for_each(|id| rows[stable_split(id, &shares, 7) as usize] += 1);
        for (n, want) in rows.iter().zip([80_000_i32, 10_000, 10_000]) {
            assert!((n - want).abs() < 500, "{rows:?}");
        }
        assert_ne!(
            (0..64).map(|id| stable_split(id, &shares, 7)).collect::<Vec<_>>(),
            (0..64).map(|id| stable_split(id, &shares, 8)).collect::<Vec<_>>()
        );
    }
}
