//! Dealing the rows of a split to lanes and files.
//!
//! A split has K = L·F leaves (lanes × files), reached along a chain of small factors: N's first, then those of L/N,
//! then F's. A full block, K rows of a stratum, gives each leaf one row, by a keyed permutation of the block. The last
//! r < K rows of each stratum go down the chain: at each node of the tree ⌊r/f⌋ to every child and one more to the
//! `r mod f` children that have had the fewest such extras, so siblings differ by at most 1 in class counts and in
//! sizes. Floors and ceilings nest (⌊⌊x/a⌋/b⌋ = ⌊x/ab⌋), so every level, and every machine count that is a prefix
//! product of the chain, has floor or ceiling of its global share.
//!
//! Children are then numbered by decreasing size, and leaf number = little-endian mixed radix of the digits: leaf v of
//! m holds ⌈(n − v)/m⌉ rows at every level, which makes `lane = t mod L, position = t div L` a bijection.

use crate::{
    error::{Error, Result},
    keys::{Domain, Key},
};

const BLOCK_STREAM: u64 = 3;
const LEFTOVER_STREAM: u64 = 4;

/// Prime factors of each number in turn: the chain of a dealing.
#[must_use]
pub fn factor_chain(numbers: &[u32]) -> Vec<u32> {
    let mut chain = Vec::new();
    for number in numbers {
        let mut rest = *number;
        let mut factor = 2;
        while rest > 1 {
            if factor * factor > rest {
                factor = rest;
            }
            while rest % factor == 0 {
                chain.push(factor);
                rest /= factor;
            }
            factor += 1;
        }
    }
    chain
}

/// The dealing of one split.
#[derive(Debug, Clone)]
pub struct Dealing {
    leaves: u32,
    seed: u64,
    split: usize,
    full_blocks: Vec<u64>,
    leftovers: Vec<Box<[u32]>>,
}

/// The permutation of the block a stratum is in.
#[derive(Debug, Default)]
pub struct Leaves {
    block: Option<u64>,
    order: Vec<u32>,
}

impl Dealing {
    /// Deals `counts[c]` rows of strata with `hashes[c]` along `factors`.
    ///
    /// # Errors
    /// [`Error::Usage`] for more leaves than 2^31.
    pub fn new(hashes: &[u64], counts: &[u64], factors: &[u32], seed: u64, split: usize) -> Result<Self> {
        let leaves =
            factors.iter().try_fold(1_u32, |k, f| k.checked_mul(*f)).filter(|k| *k <= 1 << 31).ok_or_else(|| {
                Error::usage("nodes × lanes × files exceed 2^31", "use fewer lanes or larger --shard-bytes")
            })?;
        let mut tree = Tree::new(factors);
        let mut full_blocks = Vec::with_capacity(counts.len());
        let mut leftovers = Vec::with_capacity(counts.len());
        for (hash, count) in hashes.iter().zip(counts) {
            full_blocks.push(count / u64::from(leaves));
            let rows = (count % u64::from(leaves)) as u32;
            let mut taken = Vec::with_capacity(rows as usize);
            if rows > 0 {
                let mut rng = Key::derive(Domain::Assign, seed, &[LEFTOVER_STREAM, split as u64, *hash]).rng();
                tree.deal(rows, rng.next_u64(), &mut taken);
                rng.shuffle(&mut taken);
            }
            leftovers.push(taken);
        }
        let number = tree.numbers_by_size();
        let leftovers =
            leftovers.into_iter().map(|taken| taken.into_iter().map(|leaf| number[leaf as usize]).collect()).collect();
        Ok(Self { leaves, seed, split, full_blocks, leftovers })
    }

    /// Number of leaves.
    #[must_use]
    pub fn leaves(&self) -> u32 {
        self.leaves
    }

    /// Leaf of the row of rank `rank` in stratum `stratum` (with hash `hash`) of this split.
    #[must_use]
    pub fn leaf(&self, stratum: u32, hash: u64, rank: u64, cache: &mut Leaves) -> Option<u32> {
        let k = u64::from(self.leaves);
        let block = rank / k;
        let full = *self.full_blocks.get(stratum as usize)?;
        if block >= full {
            return self.leftovers.get(stratum as usize)?.get(usize::try_from(rank - full * k).ok()?).copied();
        }
        if cache.block != Some(block) {
            cache.block = Some(block);
            cache.order.clear();
            cache.order.extend(0..self.leaves);
            let key = Key::derive(Domain::Assign, self.seed, &[BLOCK_STREAM, self.split as u64, hash, block]);
            key.rng().shuffle(&mut cache.order);
        }
        cache.order.get((rank % k) as usize).copied()
    }

    /// Rows of stratum `stratum` on each leaf, for reports and checks.
    #[must_use]
    pub fn counts(&self, stratum: u32) -> Vec<u64> {
        let full = self.full_blocks.get(stratum as usize).copied().unwrap_or(0);
        let mut counts = vec![full; self.leaves as usize];
        for leaf in self.leftovers.get(stratum as usize).map_or(&[][..], |l| l) {
            counts[*leaf as usize] += 1;
        }
        counts
    }
}

/// Extras that each child of each node of the factor tree has had.
struct Tree {
    factors: Vec<u32>,
    /// `extras[level][node · factor + child]`; node = little-endian prefix.
    extras: Vec<Vec<u64>>,
}

impl Tree {
    fn new(factors: &[u32]) -> Self {
        let mut nodes = 1_usize;
        let mut extras = Vec::with_capacity(factors.len());
        for factor in factors {
            nodes *= *factor as usize;
            extras.push(vec![0; nodes]);
        }
        Self { factors: factors.to_vec(), extras }
    }

    /// Deals `rows` leftover rows of one stratum; `turn` breaks ties, so that equal children take turns at random.
    fn deal(&mut self, rows: u32, turn: u64, taken: &mut Vec<u32>) {
        self.descend(0, 0, 1, rows, turn, taken);
    }

    fn descend(&mut self, level: usize, node: u32, stride: u32, rows: u32, turn: u64, taken: &mut Vec<u32>) {
        let Some(factor) = self.factors.get(level).copied() else {
            taken.extend(std::iter::repeat_n(node, rows as usize));
            return;
        };
        let first = (node * factor) as usize;
        let (each, more) = (rows / factor, (rows % factor) as usize);
        let mut children: Vec<u32> = (0..factor).collect();
        if more > 0 {
            let start = (turn % u64::from(factor)) as u32;
            let extras = &self.extras[level];
            children.sort_by_key(|d| (extras[first + *d as usize], (*d + factor - start) % factor));
        }
        for (i, child) in children.into_iter().enumerate() {
            let extra = u32::from(i < more);
            self.extras[level][first + child as usize] += u64::from(extra);
            if each + extra > 0 {
                let turn = turn.rotate_right(7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                self.descend(level + 1, node + stride * child, stride * factor, each + extra, turn, taken);
            }
        }
    }

    /// New number of each leaf: at each node children by decreasing extras (all else is equal among siblings).
    fn numbers_by_size(&self) -> Vec<u32> {
        let mut numbers = vec![0_u32];
        let mut stride = 1_u32;
        for (level, factor) in self.factors.iter().enumerate() {
            let mut next = vec![0_u32; numbers.len() * *factor as usize];
            for (node, number) in numbers.iter().enumerate() {
                let first = node * *factor as usize;
                let mut children: Vec<u32> = (0..*factor).collect();
                children.sort_by_key(|d| std::cmp::Reverse(self.extras[level][first + *d as usize]));
                for (digit, child) in children.into_iter().enumerate() {
                    next[node + stride as usize * child as usize] = number + stride * digit as u32;
                }
            }
            stride *= factor;
            numbers = next;
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_prime_factors_in_turn() {
        assert_eq!(factor_chain(&[8, 8, 1]), [2; 6]);
        assert_eq!(factor_chain(&[10, 8, 3]), [2, 5, 2, 2, 2, 3]);
        assert_eq!(factor_chain(&[1, 1]), Vec::<u32>::new());
        assert_eq!(factor_chain(&[61, 4]), [61, 2, 2]);
    }

    #[test]
    fn machine_counts_that_are_prefix_products_keep_the_full_bound() {
        let counts: Vec<u64> = (0..200).map(|i| i * 13 % 97).collect();
        let hashes: Vec<u64> = (0..200).collect();
        let dealing = Dealing::new(&hashes, &counts, &factor_chain(&[8, 4]), 3, 0).unwrap();
        for machines in [1_u64, 2, 4, 8, 16, 32] {
            let mut sizes = vec![0; machines as usize];
            for (c, n) in counts.iter().enumerate() {
                let mut of_machine = vec![0; machines as usize];
                for (leaf, rows) in dealing.counts(c as u32).iter().enumerate() {
                    of_machine[leaf % machines as usize] += rows;
                }
                for (m, rows) in of_machine.iter().enumerate() {
                    assert!(*rows == n / machines || *rows == n.div_ceil(machines));
                    sizes[m] += rows;
                }
            }
            let (low, high) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(high - low <= 1, "{sizes:?}");
        }
    }
}
