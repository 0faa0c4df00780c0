//! The tree of factors that leftovers go down.

use std::cmp::Reverse;

use super::MAX_NODES;
use crate::keys::KeyedRng;

/// The tree of factors. A node at a level is named by its little-endian prefix: leaf mod the product of the factors down
/// to that level. Node `prefix` of `level` is element `starts[level] + prefix` of what is kept for each node.
pub(super) struct Tree {
    factors: Vec<u32>,
    pub(super) products: Vec<u32>,
    starts: Vec<usize>,
    /// Rows that each node had beyond its siblings' common share.
    extras: Vec<u64>,
    /// Sum of the rows that each node had, blocks of equal rows aside.
    weights: Vec<u128>,
    /// `ancestors[leaf · levels + level]`: element of the leaf's node at that level.
    ancestors: Vec<u32>,
    frontier: Vec<(u32, u32)>,
    next: Vec<(u32, u32)>,
    ranked: Vec<(u64, u128, u32)>,
}

impl Tree {
    pub(super) fn new(factors: &[u32]) -> Option<Self> {
        let mut factors: Vec<u32> = factors.iter().copied().filter(|factor| *factor != 1).collect();
        if factors.is_empty() {
            factors.push(1);
        }
        let (mut products, mut starts) = (Vec::new(), Vec::new());
        let (mut leaves, mut start) = (1_u32, 0_u32);
        for factor in &factors {
            leaves = leaves.checked_mul(*factor).filter(|leaves| (1..=MAX_NODES).contains(leaves))?;
            products.push(leaves);
            starts.push(start);
            start += leaves;
        }
        let levels = || products.iter().zip(&starts);
        Some(Self {
            extras: vec![0; start as usize],
            weights: vec![0; start as usize],
            ancestors: (0..leaves).flat_map(|leaf| levels().map(move |(m, start)| start + leaf % m)).collect(),
            starts: starts.iter().map(|start| *start as usize).collect(),
            factors,
            products,
            frontier: Vec::new(),
            next: Vec::new(),
            ranked: Vec::new(),
        })
    }

    pub(super) fn leaves(&self) -> u32 {
        self.products.last().copied().unwrap_or(1)
    }

    /// Sum of each leaf, blocks of equal rows aside.
    pub(super) fn sums(&self) -> &[u128] {
        &self.weights[self.starts.last().copied().unwrap_or(0)..]
    }

    pub(super) fn sums_mut(&mut self) -> &mut [u128] {
        &mut self.weights[self.starts.last().copied().unwrap_or(0)..]
    }

    pub(super) fn add(&mut self, leaf: u16, weight: u64) {
        let levels = self.factors.len();
        for ancestor in &self.ancestors[usize::from(leaf) * levels..][..levels] {
            self.weights[*ancestor as usize] += u128::from(weight);
        }
    }

    /// Leaves that take `rows` < N leftover rows of a stratum, into `taken`. A `weight` that all of them have is added
    /// at once; else [`match_rows`](Self::match_rows) does. `turn` breaks ties, so that equal children take turns at random.
    pub(super) fn choose(&mut self, rows: u32, weight: Option<u64>, mut turn: u64, taken: &mut Vec<u16>) {
        self.frontier.clear();
        self.frontier.push((0, rows));
        let mut stride = 1;
        for (level, factor) in self.factors.iter().copied().enumerate() {
            self.next.resize(self.frontier.len() * factor as usize, (0, 0));
            let mut count = 0;
            let first = self.starts[level];
            let (extras, weights) = (&mut self.extras[first..], &mut self.weights[first..]);
            let start = (turn % u64::from(factor)) as u32;
            for (node, rows) in self.frontier.iter().copied() {
                if factor == 2 {
                    // As below; most chains are of twos, and which child is next is a coin toss to a branch predictor.
                    let (a, b) = (node as usize, (node + stride) as usize);
                    let odd = rows % 2;
                    let by_weight = (weights[b] < weights[a]) | ((weights[b] == weights[a]) & (start == 1));
                    let second = u32::from((extras[b] < extras[a]) | ((extras[b] == extras[a]) & by_weight));
                    extras[a] += u64::from(odd & (1 - second));
                    extras[b] += u64::from(odd & second);
                    for child in [(node, rows / 2 + (odd & (1 - second))), (node + stride, rows / 2 + (odd & second))] {
                        self.next[count] = child;
                        count += usize::from(child.1 > 0);
                    }
                    continue;
                }
                let (each, more) = (rows / factor, (rows % factor) as usize);
                self.ranked.clear();
                if more > 0 {
                    self.ranked.extend((0..factor).map(|child| {
                        let prefix = (node + stride * child) as usize;
                        (extras[prefix], weights[prefix], (child + factor - start) % factor)
                    }));
                    self.ranked.select_nth_unstable(more - 1);
                    self.ranked.truncate(more);
                    self.ranked.sort_unstable_by_key(|(_, _, turn)| (turn + start) % factor);
                }
                let mut chosen = self.ranked.iter().map(|(_, _, turn)| (turn + start) % factor).peekable();
                for child in 0..factor {
                    let more = chosen.next_if_eq(&child).is_some();
                    let (prefix, rows) = (node + stride * child, each + u32::from(more));
                    extras[prefix as usize] += u64::from(more);
                    self.next[count] = (prefix, rows);
                    count += usize::from(rows > 0);
                }
            }
            self.next.truncate(count);
            if let Some(weight) = weight {
                for (prefix, rows) in &self.next {
                    weights[*prefix as usize] += u128::from(weight) * u128::from(*rows);
                }
            }
            turn = turn.rotate_right(7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            stride *= factor;
            std::mem::swap(&mut self.frontier, &mut self.next);
        }
        taken.clear();
        taken.extend(self.frontier.iter().map(|(leaf, _)| *leaf as u16));
    }

    /// Gives `rows` to `leaves`, heaviest row to lightest leaf, ties at random, and writes the leaf of each row's offset
    /// to `out`. Among rows of equal weight the leaves are shuffled: the order of the input would else follow their sums.
    pub(super) fn match_rows(&mut self, rows: &[(u64, u16)], leaves: &mut [u16], rng: &mut KeyedRng, out: &mut [u16]) {
        let mut sorted;
        let rows = if rows.is_sorted_by(|a, b| a.0 >= b.0) {
            rows
        } else {
            sorted = rows.to_vec();
            sorted.sort_by_key(|(weight, _)| Reverse(*weight));
            &sorted
        };
        if rows.first().map(|row| row.0) != rows.last().map(|row| row.0) {
            rng.shuffle(leaves);
            let sums = self.sums();
            leaves.sort_by_key(|leaf| sums[usize::from(*leaf)]);
        }
        let mut rest = leaves;
        for equal in rows.chunk_by(|a, b| a.0 == b.0) {
            let (leaves, others) = rest.split_at_mut(equal.len());
            rest = others;
            rng.shuffle(leaves);
            for ((weight, offset), leaf) in equal.iter().zip(leaves) {
                self.add(*leaf, *weight);
                out[usize::from(*offset)] = *leaf;
            }
        }
    }

    /// Number of each leaf: at each node, children by decreasing extras (all else is equal among siblings).
    pub(super) fn numbers_by_size(&self) -> Vec<u32> {
        let mut numbers = vec![0_u32];
        let mut stride = 1_u32;
        for (start, factor) in self.starts.iter().zip(&self.factors) {
            let mut next = vec![0_u32; numbers.len() * *factor as usize];
            for (node, number) in numbers.iter().enumerate() {
                let mut children: Vec<usize> = (0..*factor as usize).map(|d| node + stride as usize * d).collect();
                children.sort_by_key(|prefix| Reverse(self.extras[start + prefix]));
                for (digit, prefix) in children.into_iter().enumerate() {
                    next[prefix] = number + stride * digit as u32;
                }
            }
            stride *= factor;
            numbers = next;
        }
        numbers
    }
}
