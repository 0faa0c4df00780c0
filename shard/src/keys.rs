//! Keys of every random choice: hashed from (domain, seed, fields), never added; each gives a counter-based generator.
//!
//! `key = BLAKE3 derive_key("gristmill/v1/<domain>", seed ‖ field_0 ‖ field_1 …)`, all fields as little-endian u64.
//! ChaCha8 with that key is the generator (Bernstein, "ChaCha, a variant of Salsa20", 2008): its output at a counter
//! depends on (key, counter) only, so a draw can be made at any index without the draws before it.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// What a key is for. The list is closed: a new use is a new domain, so that no two uses share a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Rows to splits, nodes, lanes and files.
    Assign,
    /// Order of rows inside a file.
    FilePermute,
    /// Stable splits by id.
    SplitHash,
    /// Epoch order.
    Order,
    /// Weighted or class-balanced draws.
    Draw,
    /// Augmentation.
    Augment,
    /// Initial parameters.
    Init,
    /// Dropout masks.
    Dropout,
}

impl Domain {
    fn context(self) -> &'static str {
        match self {
            Self::Assign => "gristmill/v1/assign",
            Self::FilePermute => "gristmill/v1/file-permute",
            Self::SplitHash => "gristmill/v1/split-hash",
            Self::Order => "gristmill/v1/order",
            Self::Draw => "gristmill/v1/draw",
            Self::Augment => "gristmill/v1/augment",
            Self::Init => "gristmill/v1/init",
            Self::Dropout => "gristmill/v1/dropout",
        }
    }
}

/// A 256-bit key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of `domain` for `seed` and `fields`.
    #[must_use]
    pub fn derive(domain: Domain, seed: u64, fields: &[u64]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(domain.context());
        hasher.update(&seed.to_le_bytes());
        for field in fields {
            hasher.update(&field.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The first eight bytes as a number: a keyed hash of the fields.
    #[must_use]
    pub fn as_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(bytes)
    }

    /// The generator of this key for item `block` of a sequence: ChaCha's stream number is `block`, so that every block
    /// has draws of its own without a hash of its own. Block 0 is [`Key::rng`].
    #[must_use]
    pub fn rng_at_block(&self, block: u64) -> KeyedRng {
        let mut rng = ChaCha8Rng::from_seed(self.0);
        rng.set_stream(block);
        KeyedRng(rng)
    }

    /// The generator of this key, at counter 0.
    #[must_use]
    pub fn rng(&self) -> KeyedRng {
        KeyedRng(ChaCha8Rng::from_seed(self.0))
    }
}

/// A counter-based generator.
#[derive(Debug, Clone)]
pub struct KeyedRng(ChaCha8Rng);

impl KeyedRng {
    /// Next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `[0, bound)` without bias (Lemire, "Fast random integer generation in an interval", 2019);
    /// 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        let mut product = u128::from(self.next_u64()) * u128::from(bound);
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// Fisher–Yates shuffle of `items` in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_streams_of_their_own() {
        let key = Key::derive(Domain::Assign, 0, &[5, 0, 9]);
        assert_eq!(key.rng_at_block(0).next_u64(), key.rng().next_u64());
        let mut draws: Vec<u64> = (0..1000).chain([u64::MAX]).map(|block| key.rng_at_block(block).next_u64()).collect();
        assert_eq!([draws[1], draws[999], draws[1000]], GOLDEN_BLOCKS);
        draws.sort_unstable();
        draws.dedup();
        assert_eq!(draws.len(), 1001);
    }

    const GOLDEN_BLOCKS: [u64; 3] = [15_846_360_629_568_140_318, 11_053_342_507_918_245_857, 9_794_388_280_004_842_354];

    #[test]
    fn golden_vectors_never_change() {
        let assign = Key::derive(Domain::Assign, 0, &[]);
        let order = Key::derive(Domain::Order, 7, &[1, 2, 3]);
        let mut rng = order.rng();
        assert_eq!([assign.as_u64(), order.as_u64(), rng.next_u64(), rng.next_u64()], GOLDEN);
    }

    // Made once by this code and committed: a change of any of them silently reorders every data set ever sharded.
    const GOLDEN: [u64; 4] =
        [6_375_394_136_680_152_661, 3_651_807_304_181_705_617, 7_442_265_984_089_990_792, 10_804_628_160_279_310_640];

    #[test]
    fn fields_are_not_added() {
        assert_ne!(Key::derive(Domain::Order, 0, &[1]), Key::derive(Domain::Order, 1, &[0]));
        assert_ne!(Key::derive(Domain::Order, 0, &[1]), Key::derive(Domain::Draw, 0, &[1]));
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let mut rng = Key::derive(Domain::Draw, 1, &[]).rng();
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }
}
