//! Rows with several labels: the distinct combinations of labels are the strata, and what rounding leaves open in each
//! is decided so that the single labels come out even too.
//!
//! Guaranteed, by construction: each combination has floor or ceiling of its share in each part, and the parts' sizes
//! are what they are without labels (nodes within 1 row of each other; splits as controlled rounding made them). Only
//! measured: the deviation of a label, which sums over many combinations. It is at most the number of combinations with
//! the label; [`LabelBalance`] says what it is.
//!
//! Nodes are dealt in the order of iterative stratification (Sechidis, Tsoumakas, Vlahavas, "On the stratification of
//! multi-label data", 2011), on counts instead of rows: the label with the fewest rows left next, its combinations to
//! the nodes that want it most. Then moves make the sizes even, and exchanges of two combinations between two parts,
//! which keep every count above, lower Σ (count − share · n_label)². All sums are exact integers.

use super::part_counts::{PartCounts, mix, number_ids};
use crate::keys::{Domain, Key, KeyedRng};
use std::{cmp::Reverse, collections::BinaryHeap};

/// Stream numbers of these uses within the assign domain.
const NODE_STREAM: u64 = 8;
const SPLIT_STREAM: u64 = 9;
/// Most rows of all combinations together, and most parts of a whole, so that products stay far inside an i128.
const MAX_ROWS: u64 = 1 << 48;
const MAX_WHOLE: u64 = 1 << 48;
/// Exchanges that are tried, and tries in a row without a gain that end the search.
const TRIES: u64 = 1 << 22;
const IDLE_TRIES: u64 = 1 << 19;

/// Distinct combinations of labels with their rows, stored flat.
#[derive(Debug, Clone)]
pub struct Combinations {
    hashes: Vec<u64>,
    rows: Vec<u64>,
    offsets: Vec<usize>,
    labels: Vec<u32>,
}

impl Default for Combinations {
    fn default() -> Self {
        Self { hashes: Vec::new(), rows: Vec::new(), offsets: vec![0], labels: Vec::new() }
    }
}

impl Combinations {
    /// Adds the combination of `labels` (in any order; a repeated one counts once), which `rows` rows have. `hash` is a
    /// hash of its value; the caller merges equal combinations before.
    pub fn push(&mut self, hash: u64, labels: &[u32], rows: u64) {
        let first = self.labels.len();
        self.labels.extend_from_slice(labels);
        self.labels[first..].sort_unstable();
        let mut kept = first;
        for i in first..self.labels.len() {
            if kept == first || self.labels[kept - 1] != self.labels[i] {
                self.labels[kept] = self.labels[i];
                kept += 1;
            }
        }
        self.labels.truncate(kept);
        self.offsets.push(kept);
        self.hashes.push(hash);
        self.rows.push(rows);
    }

    /// Number of combinations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there are no combinations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Rows of each combination.
    #[must_use]
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// Labels of combination `c`, ascending.
    #[must_use]
    pub fn labels(&self, c: usize) -> &[u32] {
        match (self.offsets.get(c), self.offsets.get(c + 1)) {
            (Some(first), Some(end)) => &self.labels[*first..*end],
            _ => &[],
        }
    }

    /// Whether the sum of all rows fits the arithmetic, and the number of combinations its numbering.
    fn fits(&self) -> bool {
        let total: u128 = self.rows.iter().map(|n| u128::from(*n)).sum();
        total <= u128::from(MAX_ROWS) && self.len() < u32::MAX as usize
    }
}

/// Nodes of the leftover rows of each combination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftoverNodes {
    offsets: Vec<usize>,
    nodes: Vec<u16>,
}

impl LeftoverNodes {
    /// The distinct nodes that get one leftover row each of combination `c`, ascending.
    #[must_use]
    pub fn get(&self, c: usize) -> &[u16] {
        match (self.offsets.get(c), self.offsets.get(c + 1)) {
            (Some(first), Some(end)) => &self.nodes[*first..*end],
            _ => &[],
        }
    }

    /// Nodes of all combinations, one after the other; combination c has `offsets[c]..offsets[c + 1]` of them.
    #[must_use]
    pub fn flat(&self) -> (&[usize], &[u16]) {
        (&self.offsets, &self.nodes)
    }
}

/// Deals `leftovers[c]` leftover rows of each combination to as many distinct nodes of `nodes`; full blocks, a row for
/// each node, are even already. Leftovers per node differ by at most 1. The result is a function of the set of
/// (combination, leftovers), `seed` and `split`; the order of combinations does not enter.
///
/// O(combinations · nodes) time, and one bit of memory for each (combination, node).
///
/// Returns `None` when `nodes` is 0 or above 65,536, `leftovers` has another length than `combos` or a number above
/// `nodes`, or the combinations have more than 2^48 rows.
#[must_use]
pub fn nodes(combos: &Combinations, leftovers: &[u32], nodes: u32, seed: u64, split: u64) -> Option<LeftoverNodes> {
    let legal = (1..=1 << 16).contains(&nodes) && leftovers.len() == combos.len() && combos.fits();
    if !legal || leftovers.iter().any(|r| *r > nodes) {
        return None;
    }
    let key = Key::derive(Domain::Assign, seed, &[NODE_STREAM, split]);
    let mut dealing = NodeDealing::new(combos, leftovers, nodes as usize, key.as_u64());
    dealing.deal(leftovers);
    dealing.even_sizes(&mut key.rng());
    let NodeDealing { table, order, .. } = dealing;
    let mut exchange = Exchange {
        table,
        movable: None,
        // Within the leftovers a node is owed 1/nodes of each label. The equal terms p·n drop out of all differences.
        shares: vec![0; nodes as usize],
        whole: 1,
        totals: Vec::new(),
        order,
    };
    exchange.improve(&mut Key::derive(Domain::Assign, seed, &[NODE_STREAM, split, 1]).rng());

    let total = leftovers.iter().map(|r| *r as usize).sum();
    let mut dealt = LeftoverNodes { offsets: Vec::with_capacity(combos.len() + 1), nodes: Vec::with_capacity(total) };
    dealt.offsets.push(0);
    for c in 0..combos.len() {
        exchange.table.extra.row(c).for_each_one(|node| dealt.nodes.push(node));
        dealt.offsets.push(dealt.nodes.len());
    }
    Some(dealt)
}

/// Improves the labels of splits. `counts[c · S + s]` are the rows of combination c in split s of S = `shares.len()`,
/// floor or ceiling of `rows · shares[s] / whole` as controlled rounding gives them. The rows that were rounded up
/// change places in pairs, so each combination keeps floor or ceiling and each split its total. Which of two equal
/// combinations moves does not depend on their order.
///
/// Returns whether the input was as described, with fewer than 2^48 rows and a whole of at most 2^48; if not, nothing
/// is changed.
#[must_use]
pub fn improve_splits(combos: &Combinations, counts: &mut [u64], shares: &[u64], whole: u64, seed: u64) -> bool {
    let Some(floors) = floors(combos, counts, shares, whole) else { return false };
    let parts = shares.len();
    let key = Key::derive(Domain::Assign, seed, &[SPLIT_STREAM]);
    let mut table = Table::new(combos, parts, &vec![parts as u64; combos.len()]);
    let mut movable = Bits::new(combos.len(), parts);
    let mut totals = vec![0_u64; table.label_count];
    for c in 0..combos.len() {
        for label in table.labels(c) {
            totals[*label as usize] += combos.rows[c];
        }
        for s in (0..=u16::MAX).take(parts) {
            let (floor, fraction) = floors(c, usize::from(s));
            for label in &table.label[table.offsets[c]..table.offsets[c + 1]] {
                table.counts.add(*label, s, floor);
            }
            if fraction {
                movable.set(c, s);
                if counts[c * parts + usize::from(s)] > floor {
                    table.give(c, s);
                }
            }
        }
    }
    let order = keyed_order(combos, key.as_u64());
    let shares = shares.iter().map(|p| i128::from(*p)).collect();
    let whole = i128::from(whole);
    let mut exchange = Exchange { table, movable: Some(movable), shares, whole, totals, order };
    exchange.improve(&mut key.rng());
    for c in 0..combos.len() {
        for s in (0..=u16::MAX).take(parts) {
            let extra = u64::from(exchange.table.extra.get(c, s));
            counts[c * parts + usize::from(s)] = floors(c, usize::from(s)).0 + extra;
        }
    }
    true
}

/// Floor of each (combination, split), and whether there is a fraction; `None` when `counts` are not floors or
/// ceilings.
fn floors<'a>(
    combos: &'a Combinations,
    counts: &[u64],
    shares: &'a [u64],
    whole: u64,
) -> Option<impl Fn(usize, usize) -> (u64, bool) + use<'a>> {
    let sum = shares.iter().try_fold(0_u64, |sum, p| sum.checked_add(*p))?;
    let parts = shares.len();
    let legal = sum == whole && (1..=MAX_WHOLE).contains(&whole) && parts <= 1 << 16 && combos.fits();
    if !legal || combos.len().checked_mul(parts) != Some(counts.len()) {
        return None;
    }
    let floor = move |c: usize, s: usize| {
        let owed = u128::from(shares[s]) * u128::from(combos.rows[c]);
        ((owed / u128::from(whole)) as u64, owed % u128::from(whole) > 0)
    };
    let rounded = counts.chunks(parts).enumerate().all(|(c, of_combo)| {
        let near = |(s, count): (usize, &u64)| {
            let (low, fraction) = floor(c, s);
            (low..=low + u64::from(fraction)).contains(count)
        };
        of_combo.iter().enumerate().all(near) && of_combo.iter().sum::<u64>() == combos.rows[c]
    });
    rounded.then_some(floor)
}

/// Combinations in an order that their hashes and the key fix.
fn keyed_order(combos: &Combinations, key: u64) -> Vec<u32> {
    let mut order: Vec<(u64, u64, u32)> =
        (0..).zip(combos.hashes.iter().zip(&combos.rows)).map(|(c, (h, n))| (mix(key ^ h), *n, c)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, _, c)| c).collect()
}

/// One bit for each (combination, part).
#[derive(Debug)]
struct Bits {
    words: usize,
    bits: Vec<u64>,
}

impl Bits {
    fn new(rows: usize, parts: usize) -> Self {
        let words = parts.div_ceil(64);
        Self { words, bits: vec![0; rows * words] }
    }

    fn row(&self, c: usize) -> Row<'_> {
        Row(&self.bits[c * self.words..(c + 1) * self.words])
    }

    fn get(&self, c: usize, part: u16) -> bool {
        self.bits[c * self.words + usize::from(part / 64)] >> (part % 64) & 1 == 1
    }

    fn set(&mut self, c: usize, part: u16) {
        self.bits[c * self.words + usize::from(part / 64)] |= 1 << (part % 64);
    }

    fn clear(&mut self, c: usize, part: u16) {
        self.bits[c * self.words + usize::from(part / 64)] &= !(1 << (part % 64));
    }
}

/// The parts of one combination.
#[derive(Clone, Copy)]
struct Row<'a>(&'a [u64]);

impl Row<'_> {
    fn for_each_one(self, mut visit: impl FnMut(u16)) {
        for (w, word) in (0_u16..).zip(self.0) {
            let mut left = *word;
            while left != 0 {
                visit(w * 64 + left.trailing_zeros() as u16);
                left &= left - 1;
            }
        }
    }

    /// The first part at or after a drawn place, around the end. Parts after a gap come up more often; a search does
    /// not mind.
    fn draw(self, rng: &mut KeyedRng) -> Option<u16> {
        let start = rng.below(self.0.len() as u64 * 64);
        let (first, bit) = ((start / 64) as usize, start % 64);
        let part = |w: usize, word: u64| (word != 0).then(|| (w as u64 * 64) as u16 + word.trailing_zeros() as u16);
        let upper = part(first, self.0[first] >> bit << bit);
        let others = || (first + 1..self.0.len()).chain(0..=first).find_map(|w| part(w, self.0[w]));
        upper.or_else(others)
    }
}

/// Which parts have an extra row of each combination, and the rows of each label in each part.
#[derive(Debug)]
struct Table {
    offsets: Vec<usize>,
    label: Vec<u32>,
    label_count: usize,
    extra: Bits,
    counts: PartCounts,
}

impl Table {
    /// No extras yet; combination c can have up to `reach[c]`.
    fn new(combos: &Combinations, parts: usize, reach: &[u64]) -> Self {
        let (label, distinct) = number_ids(&combos.labels);
        let mut label_reach = vec![0_u64; distinct.len()];
        for (c, window) in combos.offsets.windows(2).enumerate() {
            for l in &label[window[0]..window[1]] {
                label_reach[*l as usize] += reach[c];
            }
        }
        Self {
            offsets: combos.offsets.clone(),
            label,
            label_count: distinct.len(),
            extra: Bits::new(combos.len(), parts),
            counts: PartCounts::new(&label_reach, parts),
        }
    }

    fn labels(&self, c: usize) -> &[u32] {
        &self.label[self.offsets[c]..self.offsets[c + 1]]
    }

    fn give(&mut self, c: usize, part: u16) {
        self.extra.set(c, part);
        for l in &self.label[self.offsets[c]..self.offsets[c + 1]] {
            self.counts.add(*l, part, 1);
        }
    }

    fn shift(&mut self, c: usize, from: u16, to: u16) {
        self.extra.clear(c, from);
        for l in &self.label[self.offsets[c]..self.offsets[c + 1]] {
            self.counts.take(*l, from, 1);
        }
        self.give(c, to);
    }

    /// Growth, halved, of Σ count² over labels and parts when combination c's extra goes from one part to another: with
    /// equal shares, of the sum of squared deviations.
    fn growth(&self, c: usize, from: u16, to: u16) -> i64 {
        let count = |l: u32, part: u16| self.counts.get(l, part) as i64;
        self.labels(c).iter().map(|l| count(*l, to) - count(*l, from) + 1).sum()
    }
}

/// The dealing of leftovers to nodes.
struct NodeDealing {
    table: Table,
    order: Vec<u32>,
    sizes: Vec<u64>,
    ties: Vec<u64>,
}

impl NodeDealing {
    fn new(combos: &Combinations, leftovers: &[u32], nodes: usize, key: u64) -> Self {
        let reach: Vec<u64> = leftovers.iter().map(|r| u64::from(*r)).collect();
        Self {
            table: Table::new(combos, nodes, &reach),
            order: keyed_order(combos, key),
            sizes: vec![0; nodes],
            ties: combos.hashes.iter().map(|h| mix(key ^ h)).collect(),
        }
    }

    /// Iterative stratification: labels by fewest rows left to deal, a combination with the first of its labels.
    fn deal(&mut self, leftovers: &[u32]) {
        let labels = self.table.label_count;
        let mut left = vec![0_u64; labels];
        // Combinations of each label, in keyed order.
        let mut starts = vec![0_usize; labels + 1];
        for l in &self.table.label {
            starts[*l as usize + 1] += 1;
        }
        for l in 0..labels {
            starts[l + 1] += starts[l];
        }
        let mut of_label = vec![0_u32; self.table.label.len()];
        let mut next = starts.clone();
        for c in &self.order {
            for l in self.table.labels(*c as usize) {
                left[*l as usize] += u64::from(leftovers[*c as usize]);
                of_label[next[*l as usize]] = *c;
                next[*l as usize] += 1;
            }
        }
        let mut dealt: Vec<bool> = leftovers.iter().map(|r| *r == 0).collect();
        let mut heap: BinaryHeap<Reverse<(u64, u32)>> = (0_u32..).zip(&left).map(|(l, n)| Reverse((*n, l))).collect();
        let (mut ranked, mut touched, mut changed) = (Vec::new(), Vec::new(), vec![false; labels]);
        while let Some(Reverse((rows, label))) = heap.pop() {
            // Entries of a label go stale when combinations that have it are dealt; the newest one is right.
            if rows == 0 || rows != left[label as usize] {
                continue;
            }
            for c in &of_label[starts[label as usize]..starts[label as usize + 1]] {
                let c = *c as usize;
                if std::mem::replace(&mut dealt[c], true) {
                    continue;
                }
                self.deal_one(c, Some(label), leftovers[c], &mut ranked);
                for l in self.table.labels(c) {
                    left[*l as usize] -= u64::from(leftovers[c]);
                    if !std::mem::replace(&mut changed[*l as usize], true) {
                        touched.push(*l);
                    }
                }
            }
            for l in touched.drain(..) {
                changed[l as usize] = false;
                heap.push(Reverse((left[l as usize], l)));
            }
        }
        // What is left has no labels, and fills up the sizes.
        for c in self.order.clone() {
            if !std::mem::replace(&mut dealt[c as usize], true) {
                self.deal_one(c as usize, None, leftovers[c as usize], &mut ranked);
            }
        }
    }

    /// One row each to the nodes with the fewest rows of `rarest`, then of all the combination's labels and of all
    /// combinations: the greatest desires, since all nodes are owed the same.
    fn deal_one(&mut self, c: usize, rarest: Option<u32>, rows: u32, ranked: &mut Vec<u128>) {
        // One number a node sorts faster than a tuple: rows of the rarest label (32 bits), of all labels (48), size
        // (32), and the node, under a keyed mask that makes equal nodes take turns. There are fewer than 2^32
        // combinations and each gives a node one row at most; the 48 bits hold the sum of up to 2^15 labels.
        let mask = self.ties[c] as u16;
        let (rarest_unit, all_unit) = (1_u128 << 96, 1_u128 << 48);
        let few = self.table.labels(c).len() <= 1 << 15;
        ranked.clear();
        ranked.extend((0..=u16::MAX).zip(&self.sizes).map(|(node, size)| {
            let size = u128::from(*size);
            size << 48 | size << 16 | u128::from(node ^ mask)
        }));
        for l in self.table.labels(c) {
            // The sum of a combination of absurdly many labels leaves its bits to the rarest one.
            let unit = if Some(*l) == rarest { rarest_unit } else { 0 } | if few { all_unit } else { 0 };
            match self.table.counts.dense(*l) {
                Some(of_node) => ranked.iter_mut().zip(of_node).for_each(|(rank, rows)| {
                    *rank = rank.wrapping_add(unit.wrapping_mul(u128::from(*rows)));
                }),
                None => self.table.counts.for_each(*l, |node, rows| {
                    let rank = &mut ranked[usize::from(node)];
                    *rank = rank.wrapping_add(unit.wrapping_mul(u128::from(rows)));
                }),
            }
        }
        let rows = rows as usize;
        if let Some(last) = rows.checked_sub(1).filter(|last| *last < ranked.len()) {
            ranked.select_nth_unstable(last);
        }
        for rank in ranked.iter().take(rows) {
            let node = *rank as u16 ^ mask;
            self.table.give(c, node);
            self.sizes[usize::from(node)] += 1;
        }
    }

    /// Moves extras until the sizes differ by at most 1: first those that harm no label, then those that must.
    ///
    /// Why one pass each is enough at the end: a node that gives until it has ⌊R/N⌋ + 1 and one that takes until then,
    /// both still open after a pass, were open at every combination of it, so the first has no combination that the
    /// other lacks and can't be the larger. The same holds for the second pass, up to ⌊R/N⌋.
    fn even_sizes(&mut self, rng: &mut KeyedRng) {
        let floor = self.sizes.iter().sum::<u64>() / self.sizes.len() as u64;
        let mut order = std::mem::take(&mut self.order);
        for limit in [-1, 0, 1, 2, 4, i64::MAX] {
            if self.even() {
                break;
            }
            rng.shuffle(&mut order);
            self.pass(&order, |size| size > floor + 1, |size| size <= floor, limit);
            self.pass(&order, |size| size > floor, |size| size < floor, limit);
        }
        self.order = order;
    }

    fn even(&self) -> bool {
        let (low, high) = (self.sizes.iter().min(), self.sizes.iter().max());
        low.zip(high).is_none_or(|(low, high)| high - low <= 1)
    }

    /// Moves extras from nodes of a size that `gives` to nodes of a size that `takes`, where Σ count² over labels grows
    /// by at most 2 · `limit`.
    fn pass(&mut self, order: &[u32], gives: impl Fn(u64) -> bool, takes: impl Fn(u64) -> bool, limit: i64) {
        let words = self.table.extra.words;
        let (mut givers, mut takers) = (Bits::new(1, self.sizes.len()), Bits::new(1, self.sizes.len()));
        for (node, size) in (0..=u16::MAX).zip(&self.sizes) {
            if gives(*size) {
                givers.set(0, node);
            } else if takes(*size) {
                takers.set(0, node);
            }
        }
        let (mut from, mut to) = (vec![0_u64; words], vec![0_u64; words]);
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        for c in order {
            let c = *c as usize;
            loop {
                let row = self.table.extra.row(c).0;
                let (mut some_from, mut some_to) = (0, 0);
                for w in 0..words {
                    from[w] = row[w] & givers.bits[w];
                    to[w] = !row[w] & takers.bits[w];
                    some_from |= from[w];
                    some_to |= to[w];
                }
                if some_from == 0 || some_to == 0 {
                    break;
                }
                sources.clear();
                targets.clear();
                Row(&from).for_each_one(|node| sources.push(node));
                Row(&to).for_each_one(|node| targets.push(node));
                // The growth is a sum of a term of the source and one of the target, so the best of each is the best
                // pair.
                let rows =
                    |node: u16| self.table.labels(c).iter().map(|l| self.table.counts.get(*l, node)).sum::<u64>();
                let size = |node: u16| self.sizes[usize::from(node)];
                let source = sources.iter().copied().max_by_key(|j| (rows(*j), size(*j), *j));
                let target = targets.iter().copied().min_by_key(|j| (rows(*j), size(*j), *j));
                let Some((source, target)) = source.zip(target) else { break };
                if self.table.growth(c, source, target) > limit {
                    break;
                }
                self.table.shift(c, source, target);
                self.sizes[usize::from(source)] -= 1;
                self.sizes[usize::from(target)] += 1;
                if !gives(self.sizes[usize::from(source)]) {
                    givers.clear(0, source);
                }
                if !takes(self.sizes[usize::from(target)]) {
                    takers.clear(0, target);
                }
            }
        }
    }
}

/// Search for pairs of combinations that exchange their extras between two parts.
struct Exchange {
    table: Table,
    /// Where extras may lie; anywhere if `None`.
    movable: Option<Bits>,
    shares: Vec<i128>,
    whole: i128,
    totals: Vec<u64>,
    order: Vec<u32>,
}

impl Exchange {
    /// Growth, divided by 2q, of Σ (q·count − p·n)² over labels when c's extra goes `from` → `to` and d's back: labels
    /// that both have stay as they are.
    fn growth(&self, c: usize, d: usize, from: u16, to: u16) -> i128 {
        let apart = self.shares[usize::from(to)] - self.shares[usize::from(from)];
        let term = |l: u32, from: u16, to: u16, apart: i128| {
            let rows = i128::from(self.table.counts.get(l, to)) - i128::from(self.table.counts.get(l, from)) + 1;
            // The totals are empty when all shares are equal and nothing is owed apart.
            let owed = self.totals.get(l as usize).map_or(0, |n| apart.wrapping_mul(i128::from(*n)));
            self.whole.wrapping_mul(rows) - owed
        };
        let (of_c, of_d) = (self.table.labels(c), self.table.labels(d));
        let (mut i, mut j, mut sum) = (0, 0, 0);
        while i < of_c.len() || j < of_d.len() {
            match (of_c.get(i), of_d.get(j)) {
                (Some(a), Some(b)) if a == b => {
                    i += 1;
                    j += 1;
                }
                (Some(a), b) if b.is_none_or(|b| a < b) => {
                    sum += term(*a, from, to, apart);
                    i += 1;
                }
                (_, Some(b)) => {
                    sum += term(*b, to, from, -apart);
                    j += 1;
                }
                (_, None) => break,
            }
        }
        sum
    }

    fn may_take(&self, c: usize, part: u16) -> bool {
        !self.table.extra.get(c, part) && self.movable.as_ref().is_none_or(|m| m.get(c, part))
    }

    fn improve(&mut self, rng: &mut KeyedRng) {
        // Combinations that have an extra and room for it elsewhere.
        let parts = self.shares.len();
        let open: Vec<u32> = self
            .order
            .iter()
            .copied()
            .filter(|c| {
                let ones = |row: Row<'_>| row.0.iter().map(|w| w.count_ones() as usize).sum::<usize>();
                let extras = ones(self.table.extra.row(*c as usize));
                let places = self.movable.as_ref().map_or(parts, |m| ones(m.row(*c as usize)));
                extras > 0 && extras < places
            })
            .collect();
        let n = open.len() as u64;
        if n < 2 || parts < 2 || self.table.label_count == 0 {
            return;
        }
        let patience = n.saturating_mul(n).saturating_mul((parts * parts) as u64).min(IDLE_TRIES);
        let mut idle = 0;
        for _ in 0..TRIES {
            if idle >= patience {
                break;
            }
            idle += 1;
            let c = open[rng.below(n) as usize] as usize;
            let d = open[rng.below(n) as usize] as usize;
            let Some(from) = self.table.extra.row(c).draw(rng) else { continue };
            let Some(to) = self.table.extra.row(d).draw(rng) else { continue };
            if c == d || from == to || !self.may_take(c, to) || !self.may_take(d, from) {
                continue;
            }
            let growth = self.growth(c, d, from, to);
            // Level steps lead off plateaus; only gains count against giving up.
            if growth <= 0 {
                self.table.shift(c, from, to);
                self.table.shift(d, to, from);
            }
            if growth < 0 {
                idle = 0;
            }
        }
    }
}

/// How even labels and sizes are, in rows.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelBalance {
    /// Largest |count − share · n_label| over labels and parts.
    pub worst: f64,
    /// That label; 0 when there are none.
    pub worst_label: u32,
    /// That part.
    pub worst_part: u32,
    /// Largest |rows − share · n| over parts.
    pub size_worst: f64,
    /// Rows of the smallest and the largest part.
    pub sizes: (u64, u64),
}

/// Balance of `counts[c · S + s]`, rows of combination c in part s of S = `shares.len()`, each owed `shares[s]` of Σ
/// shares.
///
/// Returns `None` when the lengths do not fit, there are no shares, or the numbers exceed those of [`improve_splits`].
#[must_use]
pub fn balance(combos: &Combinations, counts: &[u64], shares: &[u64]) -> Option<LabelBalance> {
    let parts = shares.len();
    if parts == 0 || parts > 1 << 16 || combos.len().checked_mul(parts) != Some(counts.len()) || !combos.fits() {
        return None;
    }
    let total: u128 = counts.iter().map(|n| u128::from(*n)).sum();
    if total > u128::from(MAX_ROWS) {
        return None;
    }
    let mut tally = Tally::new(combos, shares)?;
    for (c, of_combo) in counts.chunks(parts).enumerate() {
        for (s, rows) in (0..=u16::MAX).zip(of_combo).filter(|(_, rows)| **rows > 0) {
            tally.add(c, s, *rows);
        }
    }
    Some(tally.balance())
}

/// Balance of nodes with equal shares: the full blocks of each combination and the leftovers as `dealt`.
///
/// Returns `None` when `dealt` does not belong to `combos` and `nodes`.
#[must_use]
pub fn node_balance(combos: &Combinations, dealt: &LeftoverNodes, nodes: u32) -> Option<LabelBalance> {
    if dealt.offsets.len() != combos.len() + 1 || nodes == 0 || nodes > 1 << 16 || !combos.fits() {
        return None;
    }
    if dealt.nodes.iter().any(|node| u32::from(*node) >= nodes) {
        return None;
    }
    let mut tally = Tally::new(combos, &vec![1; nodes as usize])?;
    for c in 0..combos.len() {
        // Full blocks add the same to each node: they shift the sizes, and no deviation.
        let leftovers = dealt.get(c);
        tally.every += combos.rows[c].checked_sub(leftovers.len() as u64)? / u64::from(nodes);
        leftovers.iter().for_each(|node| tally.add(c, *node, 1));
    }
    Some(tally.balance())
}

/// Rows of labels and parts.
struct Tally {
    offsets: Vec<usize>,
    label: Vec<u32>,
    distinct: Vec<u32>,
    shares: Vec<u64>,
    whole: u64,
    counts: PartCounts,
    totals: Vec<u64>,
    sizes: Vec<u64>,
    /// Rows that every part has besides.
    every: u64,
}

impl Tally {
    fn new(combos: &Combinations, shares: &[u64]) -> Option<Self> {
        let whole = shares.iter().try_fold(0_u64, |sum, p| sum.checked_add(*p)).filter(|q| *q > 0)?;
        let (label, distinct) = number_ids(&combos.labels);
        let mut reach = vec![0_u64; distinct.len()];
        for (c, window) in combos.offsets.windows(2).enumerate() {
            for l in &label[window[0]..window[1]] {
                reach[*l as usize] = reach[*l as usize].saturating_add(combos.rows[c]);
            }
        }
        Some(Self {
            offsets: combos.offsets.clone(),
            label,
            counts: PartCounts::new(&reach, shares.len()),
            totals: vec![0; distinct.len()],
            distinct,
            shares: shares.to_vec(),
            whole,
            sizes: vec![0; shares.len()],
            every: 0,
        })
    }

    fn add(&mut self, c: usize, part: u16, rows: u64) {
        self.sizes[usize::from(part)] += rows;
        for l in &self.label[self.offsets[c]..self.offsets[c + 1]] {
            self.counts.add(*l, part, rows);
            self.totals[*l as usize] += rows;
        }
    }

    fn balance(&self) -> LabelBalance {
        let off = |rows: u64, part: usize, n: u64| {
            (u128::from(rows) * u128::from(self.whole)).abs_diff(u128::from(self.shares[part]) * u128::from(n))
        };
        let (mut worst, mut worst_label, mut worst_part) = (0, 0, 0);
        let mut of_part = vec![0_u64; self.shares.len()];
        for (l, (n, label)) in (0_u32..).zip(self.totals.iter().zip(&self.distinct)) {
            of_part.fill(0);
            self.counts.for_each(l, |part, rows| of_part[usize::from(part)] = rows);
            for (part, rows) in of_part.iter().enumerate() {
                let deviation = off(*rows, part, *n);
                if deviation > worst {
                    (worst, worst_label, worst_part) = (deviation, *label, part as u32);
                }
            }
        }
        let n = self.sizes.iter().sum();
        let size_worst = self.sizes.iter().enumerate().map(|(part, rows)| off(*rows, part, n)).max().unwrap_or(0);
        let size = |rows: Option<&u64>| rows.copied().unwrap_or(0).saturating_add(self.every);
        let rows = |scaled: u128| scaled as f64 / self.whole as f64;
        LabelBalance {
            worst: rows(worst),
            worst_label,
            worst_part,
            size_worst: rows(size_worst),
            sizes: (size(self.sizes.iter().min()), size(self.sizes.iter().max())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rounding::{Shares, round_strata};
    use super::*;
    use proptest::prelude::*;

    /// `rows` rows with each of `labels` labels by chance, of one share or of falling ones.
    fn drawn(rows: u64, labels: u32, falling: bool, seed: u64) -> Combinations {
        let mut rng = Key::derive(Domain::Draw, seed, &[3]).rng();
        let mut found = std::collections::BTreeMap::<Vec<u32>, u64>::new();
        for _ in 0..rows {
            let share = |l: u32| if falling { 400_000 / (u64::from(l) + 1) } else { 100_000 };
            *found.entry((0..labels).filter(|l| rng.below(1_000_000) < share(*l)).collect()).or_default() += 1;
        }
        combinations(&found.into_iter().collect::<Vec<_>>())
    }

    fn combinations(list: &[(Vec<u32>, u64)]) -> Combinations {
        let mut combos = Combinations::default();
        for (labels, rows) in list {
            let bytes: Vec<u64> = labels.iter().map(|l| u64::from(*l)).collect();
            combos.push(Key::derive(Domain::SplitHash, 0, &bytes).as_u64(), labels, *rows);
        }
        combos
    }

    fn dealt(name: &str, combos: &Combinations, count: u32) -> LabelBalance {
        let leftovers: Vec<u32> = combos.rows.iter().map(|n| (n % u64::from(count)) as u32).collect();
        let start = std::time::Instant::now();
        let dealt = nodes(combos, &leftovers, count, 0, 0).unwrap();
        let took = start.elapsed();
        for (c, r) in leftovers.iter().enumerate() {
            assert_eq!(dealt.get(c).len(), *r as usize);
            assert!(dealt.get(c).windows(2).all(|w| w[0] < w[1]));
        }
        let b = node_balance(combos, &dealt, count).unwrap();
        println!("{name}: {} combinations, {count} nodes, {took:.2?}, {b:?}", combos.len());
        assert!(b.sizes.1 - b.sizes.0 <= 1);
        b
    }

    #[test]
    fn labels_of_random_rows_are_even_over_nodes() {
        // iterative-stratification's MultilabelStratifiedKFold reaches 0.88 on data like this.
        for (rows, falling) in [(10_000, false), (10_000, true), (50_000, false), (50_000, true)] {
            let b = dealt(&format!("{rows} x 20 {falling}"), &drawn(rows, 20, falling, 1), 8);
            assert!(b.worst < 1.0, "{b:?}");
        }
        let b = dealt("5000 x 100", &drawn(5000, 100, true, 2), 7);
        assert!(b.worst < 2.0, "{b:?}");
    }

    #[test]
    #[ignore = "a million combinations"]
    fn a_million_combinations() {
        let mut combos = Combinations::default();
        let mut rng = Key::derive(Domain::Draw, 4, &[4]).rng();
        for c in 0..1_000_000 {
            let mut label = || rng.clone().below(1 + rng.below(1000)) as u32;
            let labels = [label(), label(), label()];
            combos.push(mix(c), &labels, 1 + rng.below(4));
        }
        for count in [8, 64, 1024] {
            let b = dealt("million", &combos, count);
            assert!(b.worst < 3.0, "{b:?}");
        }
    }

    fn rounded(combos: &Combinations, shares: &[u64], seed: u64) -> Vec<u64> {
        let whole: u64 = shares.iter().sum();
        let positive: Vec<usize> = (0..shares.len()).filter(|s| shares[*s] > 0).collect();
        let text: Vec<String> = positive.iter().map(|s| format!("s{s}={}/{whole}", shares[*s])).collect();
        let counts = round_strata(&combos.rows, &Shares::parse(&text.join(",")).unwrap(), seed).unwrap();
        let mut flat = vec![0; combos.len() * shares.len()];
        for (c, of_combo) in counts.chunks(positive.len()).enumerate() {
            for (s, rows) in positive.iter().zip(of_combo) {
                flat[c * shares.len() + s] = *rows;
            }
        }
        flat
    }

    fn totals(counts: &[u64], parts: usize) -> Vec<u64> {
        (0..parts).map(|s| counts.iter().skip(s).step_by(parts).sum()).collect()
    }

    #[test]
    fn labels_of_splits_improve() {
        let shares = [8, 1, 1];
        for (rows, falling) in [(10_000, false), (10_000, true), (50_000, false), (50_000, true)] {
            let combos = drawn(rows, 20, falling, 5);
            let mut counts = rounded(&combos, &shares, 1);
            let before = balance(&combos, &counts, &shares).unwrap();
            let start = std::time::Instant::now();
            assert!(improve_splits(&combos, &mut counts, &shares, 10, 0));
            let took = start.elapsed();
            let after = balance(&combos, &counts, &shares).unwrap();
            println!("{} combinations: {took:.2?}, {} -> {}", combos.len(), before.worst, after.worst);
            assert!(after.worst < 1.0 && after.size_worst < 1.0, "{after:?}");
        }
    }

    #[test]
    fn bad_input_is_refused() {
        let combos = combinations(&[(vec![0, 1], 5), (vec![], 3)]);
        assert!(nodes(&combos, &[1], 8, 0, 0).is_none());
        assert!(nodes(&combos, &[1, 9], 8, 0, 0).is_none());
        assert!(nodes(&combos, &[1, 1], 0, 0, 0).is_none());
        assert!(nodes(&combos, &[1, 1], 70_000, 0, 0).is_none());
        assert!(nodes(&combos, &[8, 0], 8, 0, 0).is_some());
        assert!(nodes(&Combinations::default(), &[], 65_536, 0, 0).is_some());
        assert!(nodes(&combinations(&[(vec![u32::MAX], 3)]), &[3], 65_536, 0, 0).is_some());
        assert!(nodes(&combinations(&[(vec![1], u64::MAX)]), &[1], 2, 0, 0).is_none());
        let mut counts = [3, 2, 1, 2];
        assert!(improve_splits(&combos, &mut counts, &[1, 1], 2, 0));
        assert!(!improve_splits(&combos, &mut counts, &[1, 1], 3, 0));
        assert!(!improve_splits(&combos, &mut counts, &[1, 1, 1], 3, 0));
        assert!(!improve_splits(&combos, &mut [4, 1, 1, 2], &[1, 1], 2, 0));
        assert!(!improve_splits(&combos, &mut [3, 3, 1, 2], &[1, 1], 2, 0));
        assert!(!improve_splits(&combos, &mut [], &[], 0, 0));
        assert!(!improve_splits(&combos, &mut counts, &[u64::MAX, 1], 0, 0));
        assert!(balance(&combos, &counts, &[]).is_none());
        assert!(balance(&combos, &[u64::MAX; 4], &[1, 1]).is_none());
        assert!(balance(&combos, &counts, &[0, 0]).is_none());
        let other = nodes(&combos, &[5, 3], 8, 0, 0).unwrap();
        assert!(node_balance(&combos, &other, 4).is_none());
        assert!(node_balance(&Combinations::default(), &other, 8).is_none());
        assert_eq!((combos.labels(7), other.get(7)), (&[][..], &[][..]));
    }

    fn some_combinations() -> impl Strategy<Value = Vec<(Vec<u32>, u64)>> {
        let rows = prop_oneof![0_u64..4, 0_u64..40, 0_u64..100_000];
        let labels = prop::collection::btree_set(0_u32..9, 0..5).prop_map(|set| set.into_iter().collect::<Vec<_>>());
        prop::collection::btree_map(labels, rows, 0..60).prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        #[test]
        fn leftovers_go_to_distinct_nodes_of_even_sizes(
            list in some_combinations(), count in prop_oneof![1_u32..10, 60_u32..140], seed in any::<u64>(),
        ) {
            let combos = combinations(&list);
            let of = |combos: &Combinations| {
                let leftovers: Vec<u32> = combos.rows.iter().map(|n| (n % u64::from(count)) as u32).collect();
                nodes(combos, &leftovers, count, seed, 1).unwrap()
            };
            let dealt = of(&combos);
            let mut sizes = vec![0_u64; count as usize];
            for (c, (_, n)) in list.iter().enumerate() {
                prop_assert_eq!(dealt.get(c).len() as u64, n % u64::from(count));
                prop_assert!(dealt.get(c).windows(2).all(|w| w[0] < w[1]));
                dealt.get(c).iter().for_each(|node| sizes[usize::from(*node)] += 1);
            }
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
            let b = node_balance(&combos, &dealt, count).unwrap();
            let rows: u64 = list.iter().map(|c| c.1).sum();
            prop_assert!(b.sizes == (rows / u64::from(count), rows.div_ceil(u64::from(count))));
            let backward: Vec<_> = list.iter().rev().cloned().collect();
            let other = of(&combinations(&backward));
            for c in 0..list.len() {
                prop_assert_eq!(dealt.get(c), other.get(list.len() - 1 - c));
            }
        }

        #[test]
        fn splits_keep_floors_ceilings_and_totals(
            list in some_combinations(), shares in prop::collection::vec(0_u64..12, 1..7), seed in any::<u64>(),
        ) {
            let whole: u64 = shares.iter().sum();
            prop_assume!(whole > 0);
            let combos = combinations(&list);
            let before = rounded(&combos, &shares, seed);
            let mut after = before.clone();
            prop_assert!(improve_splits(&combos, &mut after, &shares, whole, seed));
            prop_assert_eq!(totals(&before, shares.len()), totals(&after, shares.len()));
            let squares = |counts: &[u64]| {
                let mut sum = 0_i128;
                for label in 0..9 {
                    for (s, p) in shares.iter().enumerate() {
                        let has = |c: &usize| list[*c].0.contains(&label);
                        let n: u64 = (0..list.len()).filter(has).map(|c| list[c].1).sum();
                        let rows: u64 = (0..list.len()).filter(has).map(|c| counts[c * shares.len() + s]).sum();
                        sum += (i128::from(rows) * i128::from(whole) - i128::from(*p) * i128::from(n)).pow(2);
                    }
                }
                sum
            };
            prop_assert!(squares(&after) <= squares(&before));
            for (c, (_, n)) in list.iter().enumerate() {
                let of_combo = &after[c * shares.len()..(c + 1) * shares.len()];
                prop_assert_eq!(of_combo.iter().sum::<u64>(), *n);
                for (p, count) in shares.iter().zip(of_combo) {
                    prop_assert!((p * n / whole..=(p * n).div_ceil(whole)).contains(count));
                }
            }
        }
    }
}
