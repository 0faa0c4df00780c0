//! A dealing to nodes whose leftover rows were placed by somebody else (so that labels are spread evenly).

use std::cmp::Reverse;

use super::deal::Dealing;
use crate::permutation::Feistel;

/// The nodes of the last n_c mod N rows of each stratum, numbered so that node d holds ⌈(n − d)/N⌉ rows.
#[derive(Debug, Clone)]
pub struct ChosenNodes {
    nodes: u32,
    seed: u64,
    part: u64,
    offsets: Vec<usize>,
    /// Ascending within a stratum.
    leftovers: Vec<u16>,
}

impl ChosenNodes {
    /// `leftovers[offsets[c]..offsets[c + 1]]` are distinct nodes for the leftover rows of stratum c; the totals of two
    /// nodes differ by at most 1.
    #[must_use]
    pub fn new(nodes: u32, offsets: Vec<usize>, mut leftovers: Vec<u16>, seed: u64, part: u64) -> Self {
        let mut extras = vec![0_u64; nodes as usize];
        for node in &leftovers {
            extras[usize::from(*node)] += 1;
        }
        let mut by_size: Vec<u16> = (0..nodes).map(|n| n as u16).collect();
        by_size.sort_by_key(|n| (Reverse(extras[usize::from(*n)]), *n));
        let mut number = vec![0_u16; nodes as usize];
        for (i, node) in by_size.iter().enumerate() {
            number[usize::from(*node)] = i as u16;
        }
        for node in &mut leftovers {
            *node = number[usize::from(*node)];
        }
        for range in offsets.windows(2) {
            leftovers[range[0]..range[1]].sort_unstable();
        }
        Self { nodes, seed, part, offsets, leftovers }
    }

    fn of(&self, stratum: u32) -> &[u16] {
        let c = stratum as usize;
        self.offsets.get(c).zip(self.offsets.get(c + 1)).and_then(|(a, b)| self.leftovers.get(*a..*b)).unwrap_or(&[])
    }

    /// Node of the row of rank `rank` among the `target` rows of `stratum` with hash `hash`.
    #[must_use]
    pub fn node(&self, stratum: u32, hash: u64, target: u64, rank: u64) -> Option<u32> {
        let nodes = u64::from(self.nodes);
        let (block, full) = (rank / nodes, target / nodes);
        let key = Dealing::leftover_key(self.seed, self.part, hash);
        if block < full {
            return Some(Feistel::new(&mut key.rng_at_block(block), nodes).apply(rank % nodes) as u32);
        }
        let left = self.of(stratum);
        let at = Feistel::new(&mut key.rng_at_block(u64::MAX), left.len() as u64).apply(rank - full * nodes);
        left.get(usize::try_from(at).ok()?).map(|n| u32::from(*n))
    }

    /// Whether `node` has one of the leftover rows of `stratum`.
    #[must_use]
    pub fn has_leftover(&self, stratum: u32, node: u32) -> bool {
        u16::try_from(node).is_ok_and(|n| self.of(stratum).binary_search(&n).is_ok())
    }
}
