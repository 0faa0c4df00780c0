//! Dealing the rows of a split to N nodes so that their weights balance too.
//!
//! The rows of a stratum are known as runs of equal weight in rank order, heaviest first: exact weights when they are
//! few, means of weight bins when they are many. Bounds of classes and sizes are those of [`deal`](super::deal) and hold
//! exactly; weights only choose among the dealings that keep them. With q = ⌊n_c/N⌋, ranks [bN, (b+1)N), b < q, are the
//! full blocks of stratum c, one row for each node; its last n_c mod N ranks, the lightest, are its leftovers.
//!
//! 1. Blocks that straddle runs and have no stored order (see 3) are added first, in their keyed order.
//! 2. Leftovers, strata by heaviest leftover row, descending, go down the chain of factors: at each node of the tree
//!    ⌊r/f⌋ to every child, one more to the r mod f children with the fewest such extras so far, ties to the lightest
//!    subtree. The r nodes reached take the rows heaviest row to lightest node.
//! 3. Of the blocks that straddle runs, those with the largest spread (heaviest − lightest row), as many as
//!    [`STORED_ENTRIES`] permits, are dealt by descending spread, heaviest row to lightest node, and their orders stored.
//!    A block inside one run adds the same to every node: its order is a keyed permutation, computed when it is asked
//!    for. Without it a pattern of period N in the input would be a pattern of the nodes.
//! 4. If node sums still differ by more than mean / 10,000, leftover rows of heavy and light nodes are swapped where
//!    that keeps every count at every level of the tree. Their number and the steps of the search are limited.
//! 5. Siblings are numbered by decreasing size, so that label v holds ⌈(n − v)/N⌉ rows.
//!
//! **Bound.** Let a block with rows a_1 ≥ … ≥ a_N be added to sums x_1 ≤ … ≤ x_N, a_i to x_i. For i < j the new
//! difference is (x_j − x_i) − (a_i − a_j), a number in [0, max x − min x] less a number in [0, a_1 − a_N], so
//! new spread ≤ max(old spread, a_1 − a_N). Hence, D being the spread after steps 1 and 2, the spread after step 3 is at
//! most max(D, largest spread of a stored block); swaps move two sums towards each other and never raise it. That is
//! [`WeightedNodes::bound`].
//!
//! **What no dealing can mend.** With total T, the node that holds a row of weight w weighs at least w and the lightest
//! other at most (T − w)/(N − 1), so the spread is at least w − (T − w)/(N − 1): more than 0 when w exceeds the mean T/N.
//! That, for the heaviest row, is [`WeightedNodes::lower_bound`].
//!
//! Memory is O(strata + leftovers + runs + stored entries), never O(rows). Sums are integers, so that no order of
//! addition and no rounding decides an assignment.

mod exchange;
mod tree;

use std::cmp::Reverse;

use self::{exchange::Exchange, tree::Tree};
use crate::keys::{Domain, Key};

/// Most nodes that rows can be dealt to: labels are stored as `u16`.
pub const MAX_NODES: u32 = 1 << 16;

/// Most entries (block × node, 2 bytes each) of stored block orders.
pub const STORED_ENTRIES: usize = 1 << 22;

/// First field of the keys: 2 to 4 are the other choices of [`Domain::Assign`].
const STREAM: u64 = 5;
/// ChaCha stream of a stratum's leftovers; blocks have the streams 0, 1, …, below 2^64 / N.
const LEFTOVERS: u64 = u64::MAX;
/// Swaps start above mean / `TOLERANCE` and stop at mean / `GOAL`.
const TOLERANCE: u128 = 10_000;
const GOAL: u128 = 10_000_000;
/// Up to this many nodes the leftovers of a stratum are searched in rank order; above, in a sorted copy.
const SEARCHED: u32 = 64;

/// Rows of equal weight that follow each other in rank order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightRun {
    /// Weight of each row, in the unit of the weight column.
    pub weight: u64,
    /// Number of rows.
    pub rows: u64,
}

/// The rows of one stratum in the split that is dealt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedStratum {
    /// Keyed choices depend on this hash of the stratum's value, not on its ordinal.
    pub hash: u64,
    /// In rank order, weights descending. (In another order every bound still holds, but the spread may be larger.)
    pub runs: Vec<WeightRun>,
}

/// The nodes of every row of a split. The default has no nodes.
#[derive(Debug, Clone, Default)]
pub struct WeightedNodes {
    nodes: u32,
    keys: Vec<Key>,
    full_blocks: Vec<u64>,
    /// Leftovers of stratum c are `leftovers[offsets[c]..offsets[c + 1]]`, labels in rank order.
    offsets: Vec<usize>,
    leftovers: Vec<u16>,
    /// The same, sorted within each stratum; empty up to [`SEARCHED`] nodes.
    sorted_leftovers: Vec<u16>,
    /// (stratum, block) of the stored orders, ascending; order i is `entries[i·N..(i + 1)·N]`.
    stored: Vec<(u32, u64)>,
    entries: Vec<u16>,
    /// Label of each node of the tree.
    labels: Vec<u16>,
    sums: Vec<u128>,
    bound: u128,
    lower_bound: u128,
}

/// The current block of a stratum, so that a block's order is found once. One cache belongs to one [`WeightedNodes`];
/// one for each stratum is fastest when strata alternate.
#[derive(Debug, Clone, Default)]
pub struct NodeCache {
    block: Option<(u32, u64)>,
    stored: Option<usize>,
    order: Vec<u16>,
}

impl WeightedNodes {
    /// Deals the rows of `strata` to the product N of `factors` nodes. Label (`first` + v) mod N is the v-th largest node,
    /// with ⌈(n − v)/N⌉ rows: `first` > 0 lets an appended version continue where the version before it ended.
    ///
    /// A product of 0 or above [`MAX_NODES`] has no nodes: [`nodes`](Self::nodes) is 0 and no row has a node.
    #[must_use]
    pub fn new(strata: &[WeightedStratum], factors: &[u32], first: u32, seed: u64, split: usize) -> Self {
        Self::with_limits(strata, factors, first, seed, split, Limits::default())
    }

    fn with_limits(
        strata: &[WeightedStratum],
        factors: &[u32],
        first: u32,
        seed: u64,
        split: usize,
        limits: Limits,
    ) -> Self {
        let Some(mut tree) = Tree::new(factors) else {
            return Self::default();
        };
        let nodes = tree.leaves();
        let keys: Vec<Key> = strata.iter().map(|stratum| stratum_key(seed, split, stratum.hash)).collect();
        let most = limits.stored_entries / nodes as usize;
        let Survey { full_blocks, offsets, dealt, blocks, base, total, heaviest } =
            Survey::new(strata, &keys, most, &mut tree);

        let mut rows = Vec::new();
        let mut leftovers = vec![0_u16; offsets.last().copied().unwrap_or(0)];
        let mut taken = Vec::new();
        for Dealt { heaviest, stratum, equal, .. } in &dealt {
            let c = *stratum as usize;
            let slots = offsets[c]..offsets[c + 1];
            let mut rng = keys[c].rng_at_block(LEFTOVERS);
            tree.choose(slots.len() as u32, equal.then_some(heaviest.0), rng.next_u64(), &mut taken);
            if *equal {
                rng.shuffle(&mut taken);
                leftovers[slots].copy_from_slice(&taken);
            } else {
                leftover_rows(&strata[c], full_blocks[c], nodes, slots.len(), &mut rows);
                tree.match_rows(&rows, &mut taken, &mut rng, &mut leftovers[slots]);
            }
        }
        let bound = spread(tree.sums()).max(blocks.first().map_or(0, |block| u128::from(block.spread)));

        let mut stored: Vec<(u32, u64)> = blocks.iter().map(|block| (block.stratum, block.block)).collect();
        stored.sort_unstable();
        let mut entries = vec![0_u16; stored.len() * nodes as usize];
        let mut order: Vec<u16> = (0..nodes).map(|node| node as u16).collect();
        for block in &blocks {
            let Ok(slot) = stored.binary_search(&(block.stratum, block.block)) else { continue };
            block.rows(strata, nodes, &mut rows);
            let mut rng = keys[block.stratum as usize].rng_at_block(block.block);
            let slots = slot * nodes as usize..(slot + 1) * nodes as usize;
            tree.match_rows(&rows, &mut order, &mut rng, &mut entries[slots]);
        }

        let lower_bound = lower_bound(total, heaviest, nodes);
        let mean = total / u128::from(nodes);
        if spread(tree.sums()) > lower_bound.saturating_add(mean / TOLERANCE) && limits.swaps > 0 {
            let products = tree.products.clone();
            let mut exchange = Exchange::new(strata, &full_blocks, &dealt, &offsets, &mut leftovers, &products);
            exchange.run(tree.sums_mut(), lower_bound.saturating_add(mean / GOAL), limits.swaps);
        }

        let labels: Vec<u16> = tree.numbers_by_size().into_iter().map(|v| rotate(v, first, nodes)).collect();
        for node in leftovers.iter_mut().chain(&mut entries) {
            *node = labels[usize::from(*node)];
        }
        let mut sums = vec![0; nodes as usize];
        for (sum, label) in tree.sums().iter().zip(&labels) {
            sums[usize::from(*label)] = base.saturating_add(*sum);
        }
        let mut sorted_leftovers = Vec::new();
        if nodes > SEARCHED {
            sorted_leftovers.clone_from(&leftovers);
            for slots in offsets.windows(2) {
                sorted_leftovers[slots[0]..slots[1]].sort_unstable();
            }
        }
        Self {
            nodes,
            keys,
            full_blocks,
            offsets,
            leftovers,
            sorted_leftovers,
            stored,
            entries,
            labels,
            sums,
            bound,
            lower_bound,
        }
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Label of the node of row `rank` of `stratum`; `None` for a row that the stratum does not have.
    #[must_use]
    pub fn node(&self, stratum: u32, rank: u64, cache: &mut NodeCache) -> Option<u32> {
        let nodes = u64::from(self.nodes);
        let block = rank.checked_div(nodes)?;
        let c = stratum as usize;
        let full = *self.full_blocks.get(c)?;
        if block >= full {
            let rank = usize::try_from(rank - full * nodes).ok()?;
            return self.leftovers_of(stratum, &self.leftovers).get(rank).map(|label| u32::from(*label));
        }
        if cache.block != Some((stratum, block)) {
            cache.stored = self.stored.binary_search(&(stratum, block)).ok();
            if cache.stored.is_none() {
                permute(self.keys.get(c)?, block, self.nodes, &mut cache.order);
            }
            cache.block = Some((stratum, block));
        }
        let offset = (rank % nodes) as usize;
        let label = match cache.stored {
            Some(slot) => self.entries.get(slot * self.nodes as usize + offset)?,
            None => self.labels.get(usize::from(*cache.order.get(offset)?))?,
        };
        Some(u32::from(*label))
    }

    /// Whether the node with label `node` has one of the leftover rows of `stratum`: ⌊n_c/N⌋ + 1 of its rows, not ⌊n_c/N⌋.
    #[must_use]
    pub fn has_leftover(&self, stratum: u32, node: u32) -> bool {
        let Ok(label) = u16::try_from(node) else { return false };
        if self.nodes > SEARCHED {
            self.leftovers_of(stratum, &self.sorted_leftovers).binary_search(&label).is_ok()
        } else {
            self.leftovers_of(stratum, &self.leftovers).contains(&label)
        }
    }

    fn leftovers_of<'a>(&self, stratum: u32, leftovers: &'a [u16]) -> &'a [u16] {
        let c = stratum as usize;
        let slots = self.offsets.get(c).zip(self.offsets.get(c + 1));
        slots.and_then(|(start, end)| leftovers.get(*start..*end)).unwrap_or(&[])
    }

    /// Sum of the weights of each label's rows, as the runs give them.
    #[must_use]
    pub fn sums(&self) -> &[u128] {
        &self.sums
    }

    /// What largest − smallest of [`sums`](Self::sums) can't exceed; proved at the top of this module.
    #[must_use]
    pub fn bound(&self) -> u128 {
        self.bound
    }

    /// What largest − smallest sum of any dealing must reach, because one row can't be divided; 0 when no row is heavier
    /// than a node's mean.
    #[must_use]
    pub fn lower_bound(&self) -> u128 {
        self.lower_bound
    }
}

/// The keyed permutation of block `block` of the stratum with `hash`: element i is the node of the tree (before nodes
/// are numbered by size) that row i takes. At most [`MAX_NODES`] elements.
pub fn keyed_block(seed: u64, split: usize, hash: u64, block: u64, n: u32, order: &mut Vec<u16>) {
    permute(&stratum_key(seed, split, hash), block, n.min(MAX_NODES), order);
}

fn stratum_key(seed: u64, split: usize, hash: u64) -> Key {
    Key::derive(Domain::Assign, seed, &[STREAM, split as u64, hash])
}

fn permute(key: &Key, block: u64, n: u32, order: &mut Vec<u16>) {
    order.clear();
    order.extend((0..n).map(|node| node as u16));
    key.rng_at_block(block).shuffle(order);
}

fn rotate(number: u32, first: u32, nodes: u32) -> u16 {
    ((u64::from(number) + u64::from(first)) % u64::from(nodes)) as u16
}

fn spread(sums: &[u128]) -> u128 {
    sums.iter().max().zip(sums.iter().min()).map_or(0, |(high, low)| high - low)
}

fn lower_bound(total: u128, heaviest: u64, nodes: u32) -> u128 {
    let heaviest = u128::from(heaviest);
    match u128::from(nodes) {
        0 | 1 => 0,
        n => (n * heaviest).saturating_sub(total).div_ceil(n - 1),
    }
}

/// What may be spent; fixed but for tests.
#[derive(Debug, Clone, Copy)]
struct Limits {
    stored_entries: usize,
    /// Steps of the search for swaps, about a nanosecond each.
    swaps: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stored_entries: STORED_ENTRIES, swaps: 1 << 27 }
    }
}

/// A full block that straddles runs of different weights.
#[derive(Debug, Clone, Copy)]
struct Straddle {
    spread: u64,
    block: u64,
    /// Where the block starts: run and rows of that run before it.
    skip: u64,
    run: usize,
    stratum: u32,
}

impl Straddle {
    /// Order of dealing: by spread, descending, then keyed hash.
    fn rank(&self, keys: &[Key]) -> (Reverse<u64>, u64, u32, u64) {
        (Reverse(self.spread), keys[self.stratum as usize].as_u64(), self.stratum, self.block)
    }

    fn rows(&self, strata: &[WeightedStratum], nodes: u32, rows: &mut Vec<(u64, u16)>) {
        expand(&strata[self.stratum as usize].runs[self.run..], self.skip, nodes as usize, rows);
    }
}

/// (weight, offset) of `count` rows after the first `skip` of `runs`, in rank order.
fn expand(runs: &[WeightRun], mut skip: u64, count: usize, rows: &mut Vec<(u64, u16)>) {
    rows.clear();
    for run in runs {
        let left = run.rows.saturating_sub(skip).min((count - rows.len()) as u64) as usize;
        skip = skip.saturating_sub(run.rows);
        let start = rows.len();
        rows.extend((start..start + left).map(|offset| (run.weight, offset as u16)));
        if rows.len() == count {
            break;
        }
    }
}

fn leftover_rows(stratum: &WeightedStratum, full: u64, nodes: u32, count: usize, rows: &mut Vec<(u64, u16)>) {
    expand(&stratum.runs, full * u64::from(nodes), count, rows);
}

/// A stratum with leftovers; ordered as they are dealt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Dealt {
    heaviest: Reverse<u64>,
    /// Keyed hash of the stratum.
    tie: u64,
    stratum: u32,
    /// Whether all leftovers have the same weight.
    equal: bool,
}

/// One pass over the runs.
struct Survey {
    full_blocks: Vec<u64>,
    offsets: Vec<usize>,
    /// Strata with leftovers, in the order of dealing.
    dealt: Vec<Dealt>,
    /// The blocks to store, in the order of dealing.
    blocks: Vec<Straddle>,
    /// What the blocks of equal rows add to every node.
    base: u128,
    total: u128,
    heaviest: u64,
}

impl Survey {
    /// Adds to `tree` the straddling blocks beyond the `most` of largest spread.
    fn new(strata: &[WeightedStratum], keys: &[Key], most: usize, tree: &mut Tree) -> Self {
        let n = u64::from(tree.leaves());
        let mut survey = Self {
            full_blocks: Vec::with_capacity(strata.len()),
            offsets: Vec::with_capacity(strata.len() + 1),
            dealt: Vec::with_capacity(strata.len()),
            blocks: Vec::new(),
            base: 0,
            total: 0,
            heaviest: 0,
        };
        let mut offset = 0_usize;
        survey.offsets.push(offset);
        for (c, (stratum, key)) in strata.iter().zip(keys).enumerate() {
            let rows = stratum.runs.iter().fold(0_u64, |rows, run| rows.saturating_add(run.rows));
            let (lightest, heaviest) = survey.blocks_of(c as u32, &stratum.runs, rows - rows % n, n);
            if rows % n > 0 {
                let (tie, equal) = (key.as_u64(), lightest == heaviest);
                survey.dealt.push(Dealt { heaviest: Reverse(heaviest), tie, stratum: c as u32, equal });
            }
            offset += (rows % n) as usize;
            survey.offsets.push(offset);
            survey.full_blocks.push(rows / n);
            // Now and then, so that the blocks kept are few at any time and the cost is still linear.
            if survey.blocks.len() > 2 * most + 1024 {
                survey.prune(strata, keys, most, tree);
            }
        }
        survey.prune(strata, keys, most, tree);
        survey.blocks.sort_unstable_by_key(|block| block.rank(keys));
        survey.dealt.sort_unstable();
        survey
    }

    fn prune(&mut self, strata: &[WeightedStratum], keys: &[Key], most: usize, tree: &mut Tree) {
        if self.blocks.len() <= most {
            return;
        }
        self.blocks.select_nth_unstable_by_key(most, |block| block.rank(keys));
        let (mut rows, mut order) = (Vec::new(), Vec::new());
        for block in self.blocks.drain(most..) {
            block.rows(strata, tree.leaves(), &mut rows);
            permute(&keys[block.stratum as usize], block.block, tree.leaves(), &mut order);
            for (leaf, (weight, _)) in order.iter().zip(&rows) {
                tree.add(*leaf, *weight);
            }
        }
    }

    /// Sorts out the blocks of a stratum, which end at rank `end`; the lightest and the heaviest weight after it.
    fn blocks_of(&mut self, stratum: u32, runs: &[WeightRun], end: u64, n: u64) -> (u64, u64) {
        let mut leftovers = (u64::MAX, 0);
        let mut start = 0_u64;
        let mut open: Option<(Straddle, u64, u64)> = None;
        for (i, run) in runs.iter().enumerate().filter(|(_, run)| run.rows > 0) {
            let weight = u128::from(run.weight);
            self.total = self.total.saturating_add(weight.saturating_mul(u128::from(run.rows)));
            self.heaviest = self.heaviest.max(run.weight);
            let after = start.saturating_add(run.rows);
            if after > end {
                leftovers = (leftovers.0.min(run.weight), leftovers.1.max(run.weight));
            }
            let stop = after.min(end);
            let mut at = start;
            if let Some((block, low, high)) = &mut open
                && at < stop
            {
                (*low, *high) = ((*low).min(run.weight), (*high).max(run.weight));
                block.spread = *high - *low;
                at = ((block.block + 1) * n).min(stop);
                if at == (block.block + 1) * n {
                    if block.spread > 0 {
                        self.blocks.push(*block);
                    } else {
                        self.base = self.base.saturating_add(weight);
                    }
                    open = None;
                }
            }
            if at < stop {
                let inside = (stop - at) / n;
                self.base = self.base.saturating_add(weight.saturating_mul(u128::from(inside)));
                at += inside * n;
                if at < stop {
                    let block = Straddle { spread: 0, block: at / n, skip: at - start, run: i, stratum };
                    open = Some((block, run.weight, run.weight));
                }
            }
            start = after;
        }
        leftovers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyedRng;
    use proptest::prelude::*;

    fn chain(mut n: u32) -> Vec<u32> {
        let mut chain = Vec::new();
        let mut factor = 2;
        while n > 1 {
            while n.is_multiple_of(factor) {
                chain.push(factor);
                n /= factor;
            }
            factor += 1;
        }
        chain
    }

    /// Rows in rank order with the given weights.
    fn runs(mut weights: Vec<u64>) -> Vec<WeightRun> {
        weights.sort_unstable_by(|a, b| b.cmp(a));
        weights.chunk_by(|a, b| a == b).map(|w| WeightRun { weight: w[0], rows: w.len() as u64 }).collect()
    }

    fn strata(of: Vec<Vec<u64>>) -> Vec<WeightedStratum> {
        of.into_iter().enumerate().map(|(c, w)| WeightedStratum { hash: c as u64 * 77 + 5, runs: runs(w) }).collect()
    }

    fn uniform(rng: &mut KeyedRng) -> f64 {
        (rng.below(1 << 52) + 1) as f64 / (1_u64 << 52) as f64
    }

    fn lognormal(rng: &mut KeyedRng) -> u64 {
        let normal = (-2.0 * uniform(rng).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos();
        (5.9 + 0.871 * normal).exp() as u64 + 1
    }

    fn lognormal_fine(rng: &mut KeyedRng) -> u64 {
        let normal = (-2.0 * uniform(rng).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos();
        (1e6 * (0.871 * normal).exp()) as u64 + 1
    }

    fn pareto(rng: &mut KeyedRng) -> u64 {
        (100.0 * uniform(rng).powf(-1.0 / 1.1)) as u64
    }

    fn generator(name: &str, seed: u64) -> KeyedRng {
        Key::derive(Domain::Draw, seed, &[name.len() as u64]).rng()
    }

    /// Checks every promise of a dealing against its rows, one by one; the spread.
    fn check(strata: &[WeightedStratum], factors: &[u32], first: u32, nodes: &WeightedNodes) -> u128 {
        let n = factors.iter().product::<u32>();
        assert_eq!(nodes.nodes(), n);
        let total: u64 = strata.iter().flat_map(|s| &s.runs).map(|run| run.rows).sum();
        let products: Vec<u32> = factors
            .iter()
            .scan(1, |m, factor| {
                *m *= factor;
                Some(*m)
            })
            .collect();
        let mut sizes = vec![0_u64; n as usize];
        let mut sums = vec![0_u128; n as usize];
        let mut cache = NodeCache::default();
        for (c, stratum) in strata.iter().enumerate() {
            let mut counts = vec![0_u64; n as usize];
            let mut rank = 0;
            for run in &stratum.runs {
                for _ in 0..run.rows {
                    let label = nodes.node(c as u32, rank, &mut cache).unwrap() as usize;
                    counts[label] += 1;
                    sums[label] += u128::from(run.weight);
                    rank += 1;
                }
            }
            assert_eq!(nodes.node(c as u32, rank, &mut cache), None);
            for m in &products {
                let mut at = vec![0_u64; *m as usize];
                for (label, count) in counts.iter().enumerate() {
                    at[label % *m as usize] += count;
                }
                let m = u64::from(*m);
                assert!(at.iter().all(|rows| *rows == rank / m || *rows == rank.div_ceil(m)), "{rank} rows: {at:?}");
            }
            for (label, count) in counts.iter().enumerate() {
                assert_eq!(nodes.has_leftover(c as u32, label as u32), *count > rank / u64::from(n));
                sizes[label] += count;
            }
        }
        for (label, size) in sizes.iter().enumerate() {
            let v = (label as u64 + u64::from(n) - u64::from(first % n)) % u64::from(n);
            assert_eq!(*size, total.saturating_sub(v).div_ceil(u64::from(n)), "size of label {label}");
        }
        assert_eq!(sums, nodes.sums());
        let spread = spread(&sums);
        assert!(spread <= nodes.bound(), "{spread} > {}", nodes.bound());
        assert!(spread >= nodes.lower_bound(), "{spread} < {}", nodes.lower_bound());
        spread
    }

    /// Spread as a fraction of the mean.
    fn relative(nodes: &WeightedNodes) -> f64 {
        let mean = nodes.sums().iter().sum::<u128>() as f64 / f64::from(nodes.nodes());
        spread(nodes.sums()) as f64 / mean
    }

    fn arbitrary(count: usize, sizes: u8, weights: u8, seed: u64) -> Vec<WeightedStratum> {
        let mut rng = generator("arbitrary", seed);
        let of = (0..count).map(|c| {
            let rows = match sizes {
                0 => rng.below(4),
                1 => rng.below(90),
                2 => 20_000 / (c as u64 + 1).pow(2),
                _ => 64,
            };
            let weight = |rng: &mut KeyedRng| match weights {
                0 => pareto(rng),
                1 => lognormal(rng),
                2 => 1 << rng.below(6),
                3 => rng.below(3),
                _ => 7,
            };
            (0..rows).map(|_| weight(&mut rng)).collect()
        });
        strata(of.collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn every_bound_holds(
            count in prop_oneof![8 => 1_usize..60, 1 => 60_usize..2000], sizes in 0_u8..4, weights in 0_u8..5,
            n in 1_u32..=64, first in prop_oneof![Just(0_u32), any::<u32>()], seed: u64, split in 0_usize..3,
            stored_entries in prop_oneof![Just(STORED_ENTRIES), 0_usize..2000],
        ) {
            let strata = arbitrary(count, sizes, weights, seed);
            let limits = Limits { stored_entries, ..Limits::default() };
            let nodes = WeightedNodes::with_limits(&strata, &chain(n), first, seed, split, limits);
            let spread = check(&strata, &chain(n), first, &nodes);
            let without = Limits { stored_entries, swaps: 0 };
            let without = WeightedNodes::with_limits(&strata, &chain(n), first, seed, split, without);
            prop_assert!(spread <= check(&strata, &chain(n), first, &without));
            let again = WeightedNodes::with_limits(&strata, &chain(n), first, seed, split, limits);
            prop_assert_eq!((&nodes.leftovers, &nodes.entries, nodes.sums()), (&again.leftovers, &again.entries, again.sums()));
        }

        #[test]
        fn weights_in_any_order_and_of_any_size_keep_every_bound(
            given in prop::collection::vec(prop::collection::vec((any::<u64>(), 0_u64..150), 0..6), 0..20),
            factors in prop::collection::vec(1_u32..6, 0..4), first: u32, seed: u64,
        ) {
            let strata: Vec<WeightedStratum> = given.into_iter().enumerate().map(|(c, runs)| WeightedStratum {
                hash: c as u64,
                runs: runs.into_iter().map(|(weight, rows)| WeightRun { weight, rows }).collect(),
            }).collect();
            check(&strata, &factors, first, &WeightedNodes::new(&strata, &factors, first, seed, 0));
        }
    }

    #[test]
    fn many_nodes_keep_every_bound() {
        let mut rng = generator("many nodes", 1);
        let strata = strata((0..30).map(|_| (0..rng.below(5000)).map(|_| pareto(&mut rng)).collect()).collect());
        for factors in [vec![2; 10], vec![997], vec![7, 1, 11, 13]] {
            check(&strata, &factors, 5, &WeightedNodes::new(&strata, &factors, 5, 3, 0));
        }
        let largest = WeightedNodes::new(&strata, &[2; 16], 0, 3, 0);
        check(&strata, &[2; 16], 0, &largest);
    }

    #[test]
    fn absurd_input_is_no_panic() {
        for factors in [vec![0], vec![2, 0], vec![u32::MAX, u32::MAX], vec![65_537]] {
            let nodes = WeightedNodes::new(&strata(vec![vec![1, 2]]), &factors, 0, 0, 0);
            assert_eq!((nodes.nodes(), nodes.node(0, 0, &mut NodeCache::default())), (0, None));
            assert!(!nodes.has_leftover(0, 0));
        }
        let run = WeightRun { weight: u64::MAX, rows: u64::MAX };
        let huge = vec![WeightedStratum { hash: 0, runs: vec![run, WeightRun { weight: 1, rows: 9 }, run] }; 3];
        for n in [1, 2, 3, 64, 65_536] {
            let nodes = WeightedNodes::new(&huge, &chain(n), u32::MAX, u64::MAX, usize::MAX);
            assert!(nodes.node(2, u64::MAX / 2, &mut NodeCache::default()).is_some_and(|label| label < n));
            assert_eq!(nodes.node(3, 0, &mut NodeCache::default()), None);
            assert!(spread(nodes.sums()) <= nodes.bound());
        }
        let empty = WeightedNodes::new(&[], &[2, 2], 0, 0, 0);
        assert_eq!((empty.sums(), empty.bound(), empty.lower_bound()), (&[0; 4][..], 0, 0));
    }

    #[test]
    fn a_row_heavier_than_the_mean_is_the_lower_bound() {
        let strata = strata(vec![vec![1000], vec![10; 63]]);
        let nodes = WeightedNodes::new(&strata, &chain(8), 0, 0, 0);
        // Eight rows a node: 1000 + 70 beside 80, of which the row of 1000 alone makes 1000 − ⌊630 / 7⌋.
        assert_eq!((check(&strata, &chain(8), 0, &nodes), nodes.lower_bound()), (990, 910));
    }

    #[test]
    fn heavy_tails_in_zipf_strata_balance_to_a_ten_thousandth() {
        let mut rng = generator("zipf", 0);
        let shares: Vec<f64> = (1..=1000).map(|c| f64::from(c).powf(-1.3)).collect();
        let scale = 300_000.0 / shares.iter().sum::<f64>();
        let of = shares.iter().map(|s| (0..(s * scale).round() as u64).map(|_| lognormal_fine(&mut rng)).collect());
        let strata = strata(of.collect());
        for n in [8, 64] {
            let nodes = WeightedNodes::new(&strata, &chain(n), 0, 0, 0);
            check(&strata, &chain(n), 0, &nodes);
            assert!(relative(&nodes) <= 1e-4, "{n} nodes: {}", relative(&nodes));
        }
    }

    #[test]
    fn swaps_balance_what_is_all_leftovers() {
        let mut rng = generator("leftovers", 0);
        let triples = strata((0..10_000).map(|_| (0..3).map(|_| lognormal_fine(&mut rng)).collect()).collect());
        let singletons = strata((0..5000).map(|_| vec![lognormal_fine(&mut rng)]).collect());
        for strata in [triples, singletons] {
            let with = WeightedNodes::new(&strata, &chain(64), 0, 0, 0);
            let without = Limits { swaps: 0, ..Limits::default() };
            let without = WeightedNodes::with_limits(&strata, &chain(64), 0, 0, 0, without);
            check(&strata, &chain(64), 0, &with);
            check(&strata, &chain(64), 0, &without);
            assert!(relative(&without) > 1e-3, "{}", relative(&without));
            assert!(relative(&with) <= 1e-4, "{} with, {} without", relative(&with), relative(&without));
        }
    }

    #[test]
    fn a_pattern_of_the_input_is_not_a_pattern_of_the_nodes() {
        let n = 80_000;
        let run = |weight, rows| WeightRun { weight, rows };
        // One run; and so many runs that every block straddles two, half of it in each.
        let whole = vec![WeightedStratum { hash: 1, runs: vec![run(5, n)] }];
        let halves = (0..n / 8)
            .map(|i| run(1_000_000 - i, if i == 0 { 4 } else { 8 }))
            .chain([run(1_000_000 - n / 8, 4)])
            .collect();
        for strata in [whole, vec![WeightedStratum { hash: 1, runs: halves }]] {
            let nodes = WeightedNodes::new(&strata, &chain(8), 0, 0, 0);
            let mut cache = NodeCache::default();
            let mut with = [0_u32; 8];
            for rank in (0..n).step_by(8) {
                with[nodes.node(0, rank, &mut cache).unwrap() as usize] += 1;
            }
            assert!(with.iter().all(|w| (1_100..1_400).contains(w)), "{with:?}");
        }
    }

    #[test]
    fn rows_of_equal_weight_do_not_follow_the_sums_of_the_nodes() {
        let mut tree = Tree::new(&chain(8)).unwrap();
        (0..8).for_each(|leaf| tree.add(leaf, u64::from(leaf) * 1_000_000));
        let rows: Vec<(u64, u16)> = (0..8).map(|offset| (2 - u64::from(offset) / 4, offset)).collect();
        let mut firsts = [0_u32; 8];
        for block in 0..4000 {
            let mut out = [0; 8];
            tree.match_rows(&rows, &mut [0, 1, 2, 3, 4, 5, 6, 7], &mut generator("blocks", block), &mut out);
            firsts[usize::from(out[0])] += 1;
        }
        // The four lightest take the heavier rows, in any order.
        assert!(firsts[..4].iter().all(|n| (850..1150).contains(n)) && firsts[4..] == [0; 4], "{firsts:?}");
    }

    #[test]
    fn a_keyed_block_is_what_a_block_inside_a_run_takes() {
        let strata = [WeightedStratum { hash: 9, runs: vec![WeightRun { weight: 3, rows: 6000 }] }];
        let nodes = WeightedNodes::new(&strata, &[2, 3], 1, 4, 2);
        let (mut order, mut cache) = (Vec::new(), NodeCache::default());
        for block in [999, 0, 500] {
            keyed_block(4, 2, 9, block, 6, &mut order);
            for (offset, node) in (0_u64..).zip(&order) {
                let label = nodes.node(0, block * 6 + offset, &mut cache);
                assert_eq!(label, Some(u32::from(nodes.labels[usize::from(*node)])));
            }
        }
    }

    #[test]
    fn golden_nodes_never_change() {
        let mut rng = generator("golden", 0);
        let of = (0..40).map(|c| (0..c * 7 % 90).map(|_| rng.below(1 << (c % 9))).collect()).collect();
        let strata = strata(of);
        let golden = [(8, 0, 0), (12, 5, 1), (64, 0, 2)].map(|(n, first, split)| {
            let nodes = WeightedNodes::new(&strata, &chain(n), first, 7, split);
            let mut cache = NodeCache::default();
            let labels = strata.iter().enumerate().flat_map(|(c, stratum)| {
                (0..stratum.runs.iter().map(|run| run.rows).sum()).map(move |rank| (c as u32, rank))
            });
            labels.fold(0_u64, |hash, (c, rank)| {
                let label = nodes.node(c, rank, &mut cache).unwrap();
                (hash ^ u64::from(label)).wrapping_mul(0x0100_0000_01B3)
            })
        });
        assert_eq!(golden, GOLDEN);
    }

    // Made once by this code: a change of any of them moves rows of data sets that were sharded before.
    const GOLDEN: [u64; 3] = [1_014_896_702_290_663_732, 8_281_939_405_105_096_690, 3_846_280_091_034_558_018];

    #[test]
    fn memory_does_not_grow_with_rows() {
        let runs = (0..256).rev().map(|w| WeightRun { weight: 1 << (w / 8), rows: 1_000_000_007 }).collect();
        let strata = [WeightedStratum { hash: 0, runs }];
        let nodes = WeightedNodes::new(&strata, &chain(64), 0, 0, 0);
        assert!(nodes.stored.len() < 256);
        assert!(spread(nodes.sums()) <= nodes.bound());
        assert!(nodes.node(0, 255_999_999_999, &mut NodeCache::default()).is_some());
    }
}
