//! Taking turns among many items by integer weights: every prefix has nearly each item's share.
//!
//! The items are leaves of a Huffman tree (Huffman, "A method for the construction of minimum-redundancy codes", 1952).
//! Of the first x turns of a node of weight `tot`, its left child of weight w has `⌊(w·x + phase) / tot⌋`, the rule by
//! which Bresenham draws a line ("Algorithm for computer control of a digital plotter", 1965). At x = tot each child has
//! exactly its weight, so over all turns an item has exactly its weight, and who has turn x is found in one walk down.
//!
//! **Bound.** A child's count deviates from its share of its node's turns by at most δ = 1/2 with the centred phase
//! `⌊tot/2⌋`, and by less than δ = 1 with any other. With w₀ < w₁ < … the weights from an item up to the root, its
//! deviation is below `δ · (1 + w₀/w₁ + w₀/w₂ + …)`. In a Huffman tree w_k₊₂ ≥ w_k₊₁ + w_k (what is merged later was
//! there, or was made of what was there, when the two lightest were taken), so w_k / w₀ is at least the k-th of 1, 1, 2,
//! 3, 5, …, and the sum is below 3.3599, that of the reciprocal Fibonacci numbers. So at every prefix, for any number of
//! items, the deviation is **below 1.68** when centred and below 3.36 with keyed phases.
//!
//! **Expectation.** With keyed phases, uniform in [0, tot) and independent, the expected count of an item among the
//! first x turns is exactly its share: every single turn goes to an item with probability weight / total. That is what
//! lanes need that take turns in lockstep: were they all centred, lanes of equal weights would all have the same item at
//! the same time, and a batch over L lanes would hold L times the same item.

use std::ops::Range;

use gristmill_shard::keys::KeyedRng;

use crate::error::{Error, Result};

/// Turns of weighted items.
#[derive(Debug, Clone)]
pub struct Proportional {
    /// Items, with those of weight 0.
    items: usize,
    nodes: Vec<Node>,
    /// `None` when every weight is 0.
    root: Option<Child>,
    total: u64,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    left: Child,
    right: Child,
    left_weight: u64,
    weight: u64,
    /// Below `weight`.
    phase: u64,
}

/// An item, or `items` + a node.
type Child = usize;

impl Proportional {
    /// Turns with centred phases, the same for every call: deviations are below 1.68.
    ///
    /// # Errors
    /// [`Error::Usage`] when weights sum to 2^64 or more.
    pub fn centred(weights: &[u64]) -> Result<Self> {
        Self::new(weights, |weight| weight / 2)
    }

    /// Turns with phases from `rng`: expectations are exact at every turn, deviations are below 3.36.
    ///
    /// # Errors
    /// [`Error::Usage`] when weights sum to 2^64 or more.
    pub fn keyed(weights: &[u64], rng: &mut KeyedRng) -> Result<Self> {
        Self::new(weights, |weight| rng.below(weight))
    }

    fn new(weights: &[u64], mut phase: impl FnMut(u64) -> u64) -> Result<Self> {
        let items = weights.len();
        let total = weights.iter().try_fold(0_u64, |sum, weight| sum.checked_add(*weight)).ok_or_else(|| {
            Error::usage("the numbers of draws sum to 2^64 or more", "ask for fewer samples, or use more lanes")
        })?;
        let mut leaves: Vec<(u64, Child)> =
            weights.iter().copied().zip(0..).filter(|(weight, _)| *weight > 0).collect();
        leaves.sort_unstable();
        // Two queues, both in order of weight (van Leeuwen, "On the construction of Huffman trees", 1976); leaves first
        // on ties.
        let mut nodes: Vec<Node> = Vec::with_capacity(leaves.len().saturating_sub(1));
        let mut leaves = leaves.into_iter().peekable();
        let mut made = 0;
        let mut lightest = |nodes: &[Node]| match (leaves.peek(), nodes.get(made)) {
            (Some((leaf, _)), Some(node)) if node.weight < *leaf => {
                made += 1;
                Some((node.weight, items + made - 1))
            }
            (None, Some(node)) => {
                made += 1;
                Some((node.weight, items + made - 1))
            }
            _ => leaves.next(),
        };
        let mut first = lightest(&nodes);
        while let Some((left_weight, left)) = first
            && let Some((right_weight, right)) = lightest(&nodes)
        {
            let weight = left_weight + right_weight;
            nodes.push(Node { left, right, left_weight, weight, phase: phase(weight) });
            first = lightest(&nodes);
        }
        Ok(Self { items, nodes, root: first.map(|(_, root)| root), total })
    }

    /// Turns, the sum of the weights.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Who has turn `x`, and how many turns that item has had before; `None` from [`Proportional::total`] on.
    #[must_use]
    pub fn at(&self, x: u64) -> Option<(usize, u64)> {
        if x >= self.total {
            return None;
        }
        let (mut at, mut x) = (self.root?, x);
        while let Some(node) = self.node(at) {
            let before = node.left_of(x);
            (at, x) = if node.left_of(x + 1) > before { (node.left, before) } else { (node.right, x - before) };
        }
        Some((at, x))
    }

    /// Calls `visit` once for every item of positive weight, in the order of the tree, with its turns, ascending. It is
    /// the same order as that of [`Proportional::at`], made by splitting the list of all turns from the root down, which
    /// touches memory in sequence: a few ns a turn and level.
    ///
    /// # Errors
    /// [`Error::Usage`] when there are 2^32 turns or more.
    pub fn for_each_item(&self, mut visit: impl FnMut(usize, &[u32])) -> Result<()> {
        let total = u32::try_from(self.total).map_err(|_| {
            Error::usage(format!("a lane is to have {} draws, and can have 2^32 - 1", self.total), "use more lanes")
        })?;
        let mut turns: Vec<u32> = (0..total).collect();
        let mut rights = vec![0; turns.len()];
        let all = 0..turns.len();
        let mut open: Vec<(Child, Range<usize>)> = self.root.map(|root| (root, all)).into_iter().collect();
        while let Some((at, range)) = open.pop() {
            let Some(node) = self.node(at) else {
                visit(at, turns.get(range).unwrap_or_default());
                continue;
            };
            let middle = range.start + node.split(turns.get_mut(range.clone()).unwrap_or_default(), &mut rights);
            open.push((node.right, middle..range.end));
            open.push((node.left, range.start..middle));
        }
        Ok(())
    }

    fn node(&self, child: Child) -> Option<&Node> {
        self.nodes.get(child.checked_sub(self.items)?)
    }
}

impl Node {
    /// Turns of the left child among the first `x`.
    fn left_of(&self, x: u64) -> u64 {
        match self.left_weight.checked_mul(x).and_then(|product| product.checked_add(self.phase)) {
            Some(sum) => sum / self.weight,
            // At most left_weight, as x is at most weight and the phase is below it.
            None => {
                let sum = u128::from(self.left_weight) * u128::from(x) + u128::from(self.phase);
                (sum / u128::from(self.weight)) as u64
            }
        }
    }

    /// Moves the left child's of these turns before the right child's, both in order; gives the number of the former.
    /// `rights` is room for as many turns.
    fn split(&self, turns: &mut [u32], rights: &mut [u32]) -> usize {
        let (mut sum, mut left, mut right) = (self.phase, 0, 0);
        for i in 0..turns.len().min(rights.len()) {
            // Written to both sides and counted on one, since which one it is can't be foreseen: no jump. `left` is at
            // most i, so that no turn is lost.
            let turn = turns[i];
            sum += self.left_weight;
            let is_left = sum >= self.weight;
            sum -= if is_left { self.weight } else { 0 };
            turns[left] = turn;
            rights[right] = turn;
            left += usize::from(is_left);
            right += usize::from(!is_left);
        }
        turns[left..].copy_from_slice(&rights[..right]);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::keys::{Domain, Key};
    use proptest::prelude::*;

    fn rng(n: u64) -> KeyedRng {
        Key::derive(Domain::Draw, 2, &[n]).rng()
    }

    /// The item at each turn, by splitting.
    fn sequence(turns: &Proportional) -> Vec<usize> {
        let mut out = vec![usize::MAX; usize::try_from(turns.total()).unwrap()];
        turns.for_each_item(|item, positions| positions.iter().for_each(|p| out[*p as usize] = item)).unwrap();
        out
    }

    /// Largest deviation of a count from its share over all prefixes and items, in units of 1 / total.
    fn deviation(weights: &[u64], sequence: &[usize]) -> u64 {
        let total: u64 = weights.iter().sum();
        let mut counts = vec![0_u64; weights.len()];
        let mut largest = 0;
        // Between two turns of an item its deviation changes one way, so it is largest just before or after a turn.
        for (x, item) in (0_u64..).zip(sequence) {
            largest = largest.max((counts[*item] * total).abs_diff(weights[*item] * x));
            counts[*item] += 1;
            largest = largest.max((counts[*item] * total).abs_diff(weights[*item] * (x + 1)));
        }
        largest
    }

    fn weights() -> impl Strategy<Value = Vec<u64>> {
        let few = proptest::collection::vec(prop_oneof![0_u64..4, 0_u64..60], 1..12);
        let many = proptest::collection::vec(prop_oneof![8 => 0_u64..4, 1 => 0_u64..400], 1..1000);
        // Weights that grow as Fibonacci's make the deepest trees.
        let deep = (1_usize..18, 0_u64..3).prop_map(|(n, more)| {
            let step = |(a, b): &mut (u64, u64)| {
                (*a, *b) = (*b, *a + *b);
                Some(*a + more)
            };
            std::iter::repeat_n((), n).scan((1, 1), |s, ()| step(s)).collect()
        });
        prop_oneof![few, many, deep]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn counts_are_exact_and_prefixes_bounded(weights in weights(), n in any::<u64>()) {
            for (turns, bound) in [
                (Proportional::centred(&weights).unwrap(), 168),
                (Proportional::keyed(&weights, &mut rng(n)).unwrap(), 336),
            ] {
                let sequence = sequence(&turns);
                let mut counts = vec![0; weights.len()];
                for (x, item) in (0..).zip(&sequence) {
                    prop_assert_eq!(turns.at(x), Some((*item, counts[*item])));
                    counts[*item] += 1;
                }
                prop_assert_eq!(&counts, &weights);
                prop_assert_eq!(turns.at(turns.total()), None);
                prop_assert!(deviation(&weights, &sequence) * 100 < bound * turns.total().max(1));
            }
        }

        #[test]
        fn turns_far_away_are_found(weights in proptest::collection::vec(0..1_u64 << 58, 2..60), at in any::<u64>(), n in any::<u64>()) {
            prop_assume!(weights.iter().sum::<u64>() > 0);
            let turns = Proportional::keyed(&weights, &mut rng(n)).unwrap();
            let x = at % turns.total();
            let (item, before) = turns.at(x).unwrap();
            let share = u128::from(weights[item]) * u128::from(x);
            prop_assert!((u128::from(before) * u128::from(turns.total())).abs_diff(share) < 4 * u128::from(turns.total()));
            prop_assert!(turns.for_each_item(|_, _| ()).is_err() || turns.total() < 1 << 32);
        }
    }

    #[test]
    fn every_turn_has_the_right_odds() {
        let weights = [5, 1, 3, 3, 8];
        let mut counts = [[0_u32; 5]; 20];
        for n in 0..20_000 {
            for (turn, item) in sequence(&Proportional::keyed(&weights, &mut rng(n)).unwrap()).into_iter().enumerate() {
                counts[turn][item] += 1;
            }
        }
        for counts in counts {
            for (count, weight) in counts.into_iter().zip(weights) {
                // Five standard deviations are at most 5 · √(20,000 / 4) = 354.
                assert!(count.abs_diff(u32::try_from(weight * 1000).unwrap()) < 354, "{counts:?}");
            }
        }
    }

    proptest! {
        /// What the proof of the bound rests on: on every way up, a weight is at least the sum of the two before it.
        #[test]
        fn weights_on_a_way_up_grow_as_fibonacci_numbers(weights in weights()) {
            let turns = Proportional::centred(&weights).unwrap();
            let weight = |child: Child| turns.node(child).map_or_else(|| weights[child], |node| node.weight);
            for node in &turns.nodes {
                for child in [node.left, node.right] {
                    if let Some(inner) = turns.node(child) {
                        let heavier = weight(inner.left).max(weight(inner.right));
                        prop_assert!(node.weight >= inner.weight + heavier);
                    }
                }
            }
        }
    }

    #[test]
    fn golden_turns() {
        assert_eq!(sequence(&Proportional::centred(&[7, 2, 1]).unwrap()), GOLDEN_CENTRED);
        assert_eq!(sequence(&Proportional::keyed(&[7, 2, 1], &mut rng(1)).unwrap()), GOLDEN_KEYED);
    }

    const GOLDEN_CENTRED: [usize; 10] = [0, 1, 0, 0, 2, 0, 0, 0, 1, 0];
    const GOLDEN_KEYED: [usize; 10] = [0, 0, 1, 0, 0, 0, 1, 0, 0, 2];

    #[test]
    fn edges() {
        for weights in [&[][..], &[0, 0]] {
            let turns = Proportional::centred(weights).unwrap();
            assert_eq!((turns.total(), turns.at(0)), (0, None));
            assert_eq!(sequence(&turns), [0_usize; 0]);
        }
        assert_eq!(sequence(&Proportional::centred(&[0, 3, 0]).unwrap()), [1, 1, 1]);
        assert!(Proportional::centred(&[u64::MAX, 1]).is_err());
        let turns = Proportional::centred(&[u64::MAX - 1, 1]).unwrap();
        assert_eq!(turns.at(u64::MAX - 1), Some((0, u64::MAX - 2)));
    }
}
