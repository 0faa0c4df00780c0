//! A keyed permutation of `[0, m)` that can be evaluated at one index.
//!
//! Up to 65,536 elements it is a seeded Fisher–Yates table (exact: every permutation equally likely). Above, it is a
//! Feistel network on a rectangle `a × b ≥ m` with additive round functions, `a = ⌈√m⌉`, `b = ⌈m/a⌉`, eight rounds and
//! cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): memory does not grow with `m` and
//! an evaluation costs fewer than `1 + 2/√m` passes. Few rounds on small domains are badly biased, hence the table.

use crate::keys::{Key, KeyedRng};

/// Largest domain that gets an exact table (256 KiB of u32).
pub const TABLE_MAX: u64 = 65_536;
const ROUNDS: usize = 8;

/// A permutation of `[0, m)`, fixed by a key.
#[derive(Debug, Clone)]
pub struct Permutation(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Table(Box<[u32]>),
    Feistel(Feistel),
}

/// A Feistel permutation of `[0, m)`, whatever m: evaluated without a table.
#[derive(Debug, Clone)]
pub struct Feistel {
    m: u64,
    a: u64,
    b: u64,
    round_keys: [u64; ROUNDS],
}

impl Feistel {
    /// The permutation of `[0, m)` whose round keys `rng` draws.
    #[must_use]
    pub fn new(rng: &mut KeyedRng, m: u64) -> Self {
        let root = m.isqrt();
        let a = if root * root == m { root } else { root + 1 };
        let b = m.div_ceil(a.max(1));
        Self { m, a, b, round_keys: std::array::from_fn(|_| rng.next_u64()) }
    }

    /// Where `index` goes. An index outside the domain is returned as it is.
    #[must_use]
    pub fn apply(&self, index: u64) -> u64 {
        if index >= self.m {
            return index;
        }
        let mut x = index;
        loop {
            x = rounds(x, self.a, self.b, &self.round_keys);
            if x < self.m {
                return x;
            }
        }
    }
}

impl Feistel {
    /// Where `value` comes from: the inverse of [`Feistel::apply`].
    #[must_use]
    pub fn invert(&self, value: u64) -> u64 {
        if value >= self.m {
            return value;
        }
        let mut x = value;
        loop {
            x = rounds_back(x, self.a, self.b, &self.round_keys);
            if x < self.m {
                return x;
            }
        }
    }
}

impl Permutation {
    /// The permutation of `[0, m)` that `key` fixes. `m` may be 0.
    #[must_use]
    pub fn new(key: Key, m: u64) -> Self {
        let mut rng = key.rng();
        if m <= TABLE_MAX {
            let mut table: Box<[u32]> = (0..m as u32).collect();
            rng.shuffle(&mut table);
            return Self(Kind::Table(table));
        }
        Self(Kind::Feistel(Feistel::new(&mut rng, m)))
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.0 {
            Kind::Table(table) => table.len() as u64,
            Kind::Feistel(feistel) => feistel.m,
        }
    }

    /// Whether the domain is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where `index` goes. An index outside the domain is returned as it is.
    #[must_use]
    pub fn apply(&self, index: u64) -> u64 {
        match &self.0 {
            Kind::Table(table) => {
                usize::try_from(index).ok().and_then(|i| table.get(i)).map_or(index, |v| u64::from(*v))
            }
            Kind::Feistel(feistel) => feistel.apply(index),
        }
    }

    /// Where `value` comes from: the inverse of [`Permutation::apply`]. A table (up to [`TABLE_MAX`] elements) is
    /// searched for it.
    #[must_use]
    pub fn invert(&self, value: u64) -> u64 {
        match &self.0 {
            Kind::Table(table) => {
                let at = table.iter().position(|v| u64::from(*v) == value);
                at.map_or(value, |at| at as u64)
            }
            Kind::Feistel(feistel) => feistel.invert(value),
        }
    }
}

/// The inverse of [`rounds`].
fn rounds_back(x: u64, a: u64, b: u64, keys: &[u64; ROUNDS]) -> u64 {
    let (mut left, mut right) = (x / b, x % b);
    for pair in keys.chunks_exact(2).rev() {
        right = subtract_mod(right, round(pair[1], left), b);
        left = subtract_mod(left, round(pair[0], right), a);
    }
    left * b + right
}

/// One pass of the network over the rectangle: `x = left · b + right`, `left < a`, `right < b`.
fn rounds(x: u64, a: u64, b: u64, keys: &[u64; ROUNDS]) -> u64 {
    let (mut left, mut right) = (x / b, x % b);
    for pair in keys.chunks_exact(2) {
        left = add_mod(left, round(pair[0], right), a);
        right = add_mod(right, round(pair[1], left), b);
    }
    left * b + right
}

/// `(x + r mod n) mod n` for `x < n`, by multiply-high instead of division.
fn add_mod(x: u64, r: u64, n: u64) -> u64 {
    let r = ((u128::from(r) * u128::from(n)) >> 64) as u64;
    let sum = x + r;
    if sum >= n { sum - n } else { sum }
}

/// `(x − r mod n) mod n` for `x < n`, where `r mod n` is that of [`add_mod`].
fn subtract_mod(x: u64, r: u64, n: u64) -> u64 {
    let r = ((u128::from(r) * u128::from(n)) >> 64) as u64;
    if x >= r { x - r } else { x + n - r }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014) over key ⊕ value · odd constant.
fn round(key: u64, value: u64) -> u64 {
    let mut z = key ^ value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Domain;
    use proptest::prelude::*;

    fn key(n: u64) -> Key {
        Key::derive(Domain::Order, 0, &[n])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_a_bijection(seed in any::<u64>(), m in prop_oneof![0u64..300, 65_530u64..65_545, 65_536u64..200_000]) {
            let permutation = Permutation::new(key(seed), m);
            let mut seen = vec![false; m as usize];
            for i in 0..m {
                let j = permutation.apply(i);
                prop_assert!(j < m && !seen[j as usize]);
                seen[j as usize] = true;
            }
            for i in (0..m).step_by((m as usize / 50).max(1)) {
                prop_assert_eq!(permutation.invert(permutation.apply(i)), i);
            }
            prop_assert_eq!((permutation.invert(m), permutation.apply(m)), (m, m));
        }
    }

    #[test]
    fn huge_domains_cost_no_memory_and_stay_in_range() {
        let m = 1_000_000_000_039;
        let permutation = Permutation::new(key(1), m);
        let mut images: Vec<u64> = (0..1000).map(|i| permutation.apply(m - 1 - i)).collect();
        assert!(images.iter().all(|x| *x < m));
        images.sort_unstable();
        images.dedup();
        assert_eq!(images.len(), 1000);
    }

    #[test]
    fn neighbours_do_not_stay_neighbours() {
        let m = 100_003;
        let permutation = Permutation::new(key(2), m);
        let adjacent = (0..m - 1).filter(|i| permutation.apply(i + 1).abs_diff(permutation.apply(*i)) == 1).count();
        // A random permutation of m elements has 2 such pairs expected, whatever m.
        assert!(adjacent < 12, "{adjacent}");
    }
}
