//! Dealing the rows of a part to its leaves (lanes × files).
//!
//! **Flat** (no weights). A full block, K rows of a stratum for K leaves, gives each leaf one row, by a keyed permutation of
//! the block. The last r < K rows of each stratum go to the r leaves that follow, cyclically, those of the stratum before:
//! stratum c takes leaves `P_c, P_c + 1, …, P_c + r_c − 1 (mod K)` with `P_c = Σ r_c'` over the strata before it in a keyed
//! order. A run of consecutive numbers has floor or ceiling of its share of every residue class, so for **every** divisor m
//! of K (nodes, lanes, files, any machine count that divides the lanes) the children `leaf mod m` have ⌊n_c/m⌋ or ⌈n_c/m⌉
//! rows of each stratum; and since the runs follow one another, leaf v of m has ⌈(n − v)/m⌉ rows in all: sizes differ by at
//! most 1 and `lane = t mod L, position = t div L` is a bijection. The state is one number a stratum.
//!
//! **By nodes first** (weights to balance, labels to spread). A [`NodeChoice`] deals to N nodes with the same two bounds;
//! each node then deals its rows flat to its K/N leaves. Floors and ceilings nest (⌊⌊x/a⌋/b⌋ = ⌊x/ab⌋), so lanes and files
//! keep theirs.

use super::{
    chosen::ChosenNodes,
    weighted::{NodeCache, WeightedNodes},
};
use crate::{
    error::{Error, Result},
    keys::{Domain, Key, KeyedRng},
    permutation::Feistel,
};

const BLOCK: u64 = 3;
const LEFTOVER: u64 = 4;
const ORDER: u64 = 7;
/// Blocks up to this size are shuffled whole; of larger ones single ranks are permuted by a Feistel network, since a
/// unit of work may hold few rows of a large block.
const SHUFFLED: u64 = 256;
/// Strata between two stored states of the nodes' pointers.
const STATES_EVERY: usize = 64;

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

/// Which node each row of a stratum goes to, with floor and ceiling of every share and sizes ⌈(n − d)/N⌉.
#[derive(Debug, Clone)]
pub enum NodeChoice {
    /// So that sums of weights are nearly equal.
    Weighted(WeightedNodes),
    /// So that labels are spread evenly.
    Labels {
        /// The nodes.
        nodes: ChosenNodes,
        /// Largest |rows with a label − share of a node|, in rows.
        worst: f64,
        /// Distinct labels.
        labels: u64,
    },
}

impl NodeChoice {
    fn node(&self, stratum: u32, hash: u64, target: u64, rank: u64, cache: &mut NodeCache) -> Option<u32> {
        match self {
            Self::Weighted(nodes) => nodes.node(stratum, rank, cache),
            Self::Labels { nodes, .. } => nodes.node(stratum, hash, target, rank),
        }
    }

    /// Whether `node` has one of the last n_c mod N rows of `stratum`.
    fn has_leftover(&self, stratum: u32, node: u32) -> bool {
        match self {
            Self::Weighted(nodes) => nodes.has_leftover(stratum, node),
            Self::Labels { nodes, .. } => nodes.has_leftover(stratum, node),
        }
    }
}

/// The dealing of one part.
#[derive(Debug, Clone)]
pub struct Dealing {
    leaves: u32,
    seed: u64,
    part: u64,
    way: Way,
}

#[derive(Debug, Clone)]
enum Way {
    /// `pointers[c]` = P_c.
    Flat {
        pointers: Vec<u32>,
    },
    Nodes(Box<ByNodes>),
}

#[derive(Debug, Clone)]
struct ByNodes {
    choice: NodeChoice,
    nodes: u32,
    targets: Vec<u64>,
    /// Strata in the order of their pointers, and the place of each there.
    order: Vec<u32>,
    place: Vec<u32>,
    /// Pointers of all nodes before strata 0, 64, 128, … of the order.
    states: Vec<u32>,
}

/// The blocks that were used last.
#[derive(Debug, Clone, Default)]
pub struct DealingCache {
    stratum: Option<u32>,
    key: Option<Key>,
    blocks: Vec<Block>,
    node: NodeCache,
}

#[derive(Debug, Clone, Default)]
struct Block {
    block: Option<u64>,
    order: Vec<u32>,
}

impl DealingCache {
    fn enter(&mut self, stratum: u32, hash: u64, seed: u64, part: u64, tables: usize) -> Key {
        if self.stratum != Some(stratum) {
            self.stratum = Some(stratum);
            self.blocks.clear();
            self.blocks.resize(tables, Block::default());
            self.key = Some(Key::derive(Domain::Assign, seed, &[BLOCK, part, hash]));
        }
        self.key.unwrap_or_else(|| Key::derive(Domain::Assign, seed, &[BLOCK, part, hash]))
    }

    /// Where `index` of a block of `size` goes.
    fn permuted(&mut self, table: usize, key: Key, block: u64, size: u64, index: u64) -> u64 {
        let tables = self.blocks.len() as u64;
        let rng = |block: u64| key.rng_at_block(block.wrapping_mul(tables).wrapping_add(table as u64));
        if size > SHUFFLED {
            return Feistel::new(&mut rng(block), size).apply(index);
        }
        let Some(cached) = self.blocks.get_mut(table) else { return index };
        if cached.block != Some(block) || cached.order.len() as u64 != size {
            cached.block = Some(block);
            shuffled(&mut rng(block), size as u32, &mut cached.order);
        }
        cached.order.get(index as usize).map_or(index, |v| u64::from(*v))
    }
}

fn shuffled(rng: &mut KeyedRng, size: u32, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..size);
    rng.shuffle(order);
}

/// Block number of the leftover rows: no full block has it.
const LAST: u64 = u64::MAX >> 20;

impl Dealing {
    /// Deals `targets[c]` rows of strata with `hashes[c]` to `leaves`, flat.
    ///
    /// # Errors
    /// [`Error::Usage`] for no leaves, or more than 2^31.
    pub fn flat(hashes: &[u64], targets: impl Iterator<Item = u64>, leaves: u64, seed: u64, part: u64) -> Result<Self> {
        let leaves = checked(leaves)?;
        let targets: Vec<u64> = targets.collect();
        let mut pointers = vec![0; hashes.len()];
        let mut pointer = 0_u64;
        for c in order(hashes, seed, part) {
            pointers[c as usize] = pointer as u32;
            pointer = (pointer + targets[c as usize] % u64::from(leaves)) % u64::from(leaves);
        }
        Ok(Self { leaves, seed, part, way: Way::Flat { pointers } })
    }

    /// Deals to `nodes` by `choice`, and then flat to the `leaves / nodes` leaves of each.
    ///
    /// # Errors
    /// As [`Dealing::flat`]; [`Error::Internal`] when the leaves are no multiple of the nodes.
    pub fn by_nodes(
        choice: NodeChoice,
        nodes: u32,
        hashes: &[u64],
        targets: Vec<u64>,
        leaves: u64,
        seed: u64,
        part: u64,
    ) -> Result<Self> {
        let leaves = checked(leaves)?;
        if nodes == 0 || !leaves.is_multiple_of(nodes) || targets.len() != hashes.len() {
            return Err(Error::internal("leaves are no multiple of the nodes"));
        }
        let order = order(hashes, seed, part);
        let mut place = vec![0; order.len()];
        for (i, c) in order.iter().enumerate() {
            place[*c as usize] = i as u32;
        }
        let mut by_nodes = ByNodes { choice, nodes, targets, order, place, states: Vec::new() };
        by_nodes.fill_states(leaves / nodes);
        Ok(Self { leaves, seed, part, way: Way::Nodes(Box::new(by_nodes)) })
    }

    /// Number of leaves.
    #[must_use]
    pub fn leaves(&self) -> u32 {
        self.leaves
    }

    /// The choice of nodes, where there is one.
    #[must_use]
    pub fn choice(&self) -> Option<&NodeChoice> {
        match &self.way {
            Way::Flat { .. } => None,
            Way::Nodes(by_nodes) => Some(&by_nodes.choice),
        }
    }

    /// Leaf of the row of rank `rank` among the `target` rows of `stratum` (with hash `hash`) in this part.
    #[must_use]
    pub fn leaf(&self, stratum: u32, hash: u64, target: u64, rank: u64, cache: &mut DealingCache) -> u32 {
        match &self.way {
            Way::Flat { pointers } => {
                let key = cache.enter(stratum, hash, self.seed, self.part, 1);
                let pointer = pointers.get(stratum as usize).copied().unwrap_or(0);
                flat_leaf(key, cache, 0, u64::from(self.leaves), target, rank, || pointer)
            }
            Way::Nodes(by) => {
                let key = cache.enter(stratum, hash, self.seed, self.part, by.nodes as usize);
                let nodes = u64::from(by.nodes);
                let node = by.choice.node(stratum, hash, target, rank, &mut cache.node).unwrap_or(0);
                let full = target / nodes;
                let rank = (rank / nodes).min(full);
                let rows = full + u64::from(by.choice.has_leftover(stratum, node));
                let leaves = self.leaves / by.nodes;
                let leaf = flat_leaf(key, cache, node as usize, u64::from(leaves), rows, rank, || {
                    by.pointer(stratum, node, leaves)
                });
                node + by.nodes * leaf
            }
        }
    }
}

fn flat_leaf(
    key: Key,
    cache: &mut DealingCache,
    table: usize,
    leaves: u64,
    rows: u64,
    rank: u64,
    pointer: impl FnOnce() -> u32,
) -> u32 {
    let (block, full) = (rank / leaves, rows / leaves);
    if block < full {
        return cache.permuted(table, key, block, leaves, rank % leaves) as u32;
    }
    let left = cache.permuted(table, key, LAST, rows % leaves, rank - full * leaves);
    ((u64::from(pointer()) + left) % leaves) as u32
}

fn checked(leaves: u64) -> Result<u32> {
    u32::try_from(leaves).ok().filter(|k| (1..=1 << 31).contains(k)).ok_or_else(|| {
        Error::usage(
            format!("{leaves} files a split (lanes × files of a lane) are not 1 to 2^31"),
            "use fewer lanes or larger --shard-bytes",
        )
    })
}

/// Strata in a keyed order, so that neighbours in value are not neighbours in the dealing.
fn order(hashes: &[u64], seed: u64, part: u64) -> Vec<u32> {
    let salt = Key::derive(Domain::Assign, seed, &[ORDER, part]).as_u64();
    let mut order: Vec<u32> = (0..hashes.len() as u32).collect();
    order.sort_by_cached_key(|c| mixed(hashes[*c as usize] ^ salt));
    order
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014: a bijection of 64 bits.
fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl ByNodes {
    /// Rows of `stratum` on `node` that fill no whole block of `leaves`.
    fn left(&self, stratum: u32, node: u32, leaves: u32) -> u32 {
        let full = self.targets[stratum as usize] / u64::from(self.nodes);
        ((full + u64::from(self.choice.has_leftover(stratum, node))) % u64::from(leaves)) as u32
    }

    fn fill_states(&mut self, leaves: u32) {
        let mut state = vec![0_u32; self.nodes as usize];
        let mut states = Vec::with_capacity(self.order.len().div_ceil(STATES_EVERY) * state.len());
        for (i, c) in self.order.iter().enumerate() {
            if i % STATES_EVERY == 0 {
                states.extend_from_slice(&state);
            }
            for (node, pointer) in state.iter_mut().enumerate() {
                *pointer = (*pointer + self.left(*c, node as u32, leaves)) % leaves;
            }
        }
        self.states = states;
    }

    fn pointer(&self, stratum: u32, node: u32, leaves: u32) -> u32 {
        let place = self.place[stratum as usize] as usize;
        let state = place / STATES_EVERY;
        let stored = self.states[state * self.nodes as usize + node as usize];
        let since = &self.order[state * STATES_EVERY..place];
        since.iter().fold(stored, |pointer, c| (pointer + self.left(*c, node, leaves)) % leaves)
    }
}

impl Dealing {
    /// A key for leftovers elsewhere in assignment.
    #[must_use]
    pub(super) fn leftover_key(seed: u64, part: u64, hash: u64) -> Key {
        Key::derive(Domain::Assign, seed, &[LEFTOVER, part, hash])
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
    fn every_machine_count_that_divides_the_lanes_keeps_the_full_bound() {
        let counts: Vec<u64> = (0..200).map(|i| i * 13 % 197).collect();
        let hashes: Vec<u64> = (0..200).collect();
        let leaves = 48_u32;
        let dealing = Dealing::flat(&hashes, counts.iter().copied(), u64::from(leaves), 3, 0).unwrap();
        let mut on_leaf = vec![vec![0_u64; leaves as usize]; counts.len()];
        let mut cache = DealingCache::default();
        for (c, n) in counts.iter().enumerate() {
            for rank in 0..*n {
                on_leaf[c][dealing.leaf(c as u32, c as u64, *n, rank, &mut cache) as usize] += 1;
            }
        }
        for machines in [1_u64, 2, 3, 4, 6, 8, 12, 16, 24, 48] {
            let mut sizes = vec![0; machines as usize];
            for (c, n) in counts.iter().enumerate() {
                let mut of_machine = vec![0; machines as usize];
                for (leaf, rows) in on_leaf[c].iter().enumerate() {
                    of_machine[leaf % machines as usize] += rows;
                }
                for (m, rows) in of_machine.iter().enumerate() {
                    assert!(*rows == n / machines || *rows == n.div_ceil(machines));
                    sizes[m] += rows;
                }
            }
            let total: u64 = counts.iter().sum();
            for (v, size) in sizes.iter().enumerate() {
                assert_eq!(*size, (total - v as u64).div_ceil(machines), "{machines} machines");
            }
        }
    }
}
