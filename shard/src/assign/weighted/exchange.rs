//! Swaps of leftover rows between heavy and light nodes.

use std::collections::BTreeSet;

use super::{Dealt, WeightedStratum, leftover_rows};

/// Most leftovers that take part in swaps.
const SWAPPED: usize = 1 << 20;
/// How many of the heaviest are tried with the lightest leaf, and of the lightest with the heaviest.
const REACH: usize = 8;
/// How many rows on each side of the wanted weight are tried.
const PROBES: usize = 4;
/// Most swaps.
const SWAPS: usize = 1 << 17;

/// A leftover row; ordered by weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leftover {
    weight: u64,
    stratum: u32,
    offset: u16,
}

/// Swaps of leftover rows between leaves.
pub(super) struct Exchange<'a> {
    products: &'a [u32],
    offsets: &'a [usize],
    leftovers: &'a mut [u16],
    /// `held[leaf]`: its rows, ascending.
    held: Vec<Vec<Leftover>>,
    steps: u64,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        strata: &[WeightedStratum],
        full_blocks: &[u64],
        dealt: &[Dealt],
        offsets: &'a [usize],
        leftovers: &'a mut [u16],
        products: &'a [u32],
    ) -> Self {
        let nodes = products.last().copied().unwrap_or(1);
        let mut held = vec![Vec::new(); nodes as usize];
        // When there are too many, half of those that take part are the heaviest strata's, which alone can close a wide
        // gap, and half are spread over the rest.
        let every = (leftovers.len() / (SWAPPED / 2)).max(1);
        let mut count = 0;
        let mut rows = Vec::new();
        for (i, Dealt { stratum, .. }) in dealt.iter().enumerate() {
            let c = *stratum as usize;
            let slots = offsets[c]..offsets[c + 1];
            if count + slots.len() > SWAPPED || (count > SWAPPED / 2 && i % every > 0) {
                continue;
            }
            count += slots.len();
            leftover_rows(&strata[c], full_blocks[c], nodes, slots.len(), &mut rows);
            for (weight, offset) in rows.iter().copied() {
                let leaf = leftovers[slots.start + usize::from(offset)];
                held[usize::from(leaf)].push(Leftover { weight, stratum: *stratum, offset });
            }
        }
        for rows in &mut held {
            rows.sort_unstable();
        }
        Self { products, offsets, leftovers, held, steps: 0 }
    }

    /// Swaps until the spread of `sums` is at most `goal`, nothing helps, or `budget` steps are spent.
    pub(super) fn run(&mut self, sums: &mut [u128], goal: u128, budget: u64) {
        let mut by_sum: BTreeSet<(u128, u16)> =
            sums.iter().enumerate().map(|(leaf, sum)| (*sum, leaf as u16)).collect();
        for _ in 0..SWAPS {
            let heavy: Vec<(u128, u16)> = by_sum.iter().rev().take(REACH).copied().collect();
            let light: Vec<(u128, u16)> = by_sum.iter().take(REACH).copied().collect();
            let ([(high, _), ..], [(low, _), ..]) = (&heavy[..], &light[..]) else { return };
            if high - low <= goal {
                return;
            }
            let pairs = heavy.iter().take(1).flat_map(|h| light.iter().map(move |l| (*h, *l)));
            let others = heavy.iter().skip(1).flat_map(|h| light.iter().take(1).map(move |l| (*h, *l)));
            let mut best: Option<Swap> = None;
            for ((high, heavy), (low, light)) in pairs.chain(others) {
                if self.steps > budget {
                    return;
                }
                let gap = high.saturating_sub(low);
                if let Some(swap) = self.best_swap(heavy, light, gap)
                    && best.as_ref().is_none_or(|best| swap.gain > best.gain)
                {
                    let good = swap.gain >= gap / 4;
                    best = Some(swap);
                    if good {
                        break;
                    }
                }
            }
            let Some(swap) = best else { return };
            for leaf in [swap.heavy, swap.light] {
                by_sum.remove(&(sums[usize::from(leaf)], leaf));
            }
            let difference = u128::from(swap.down.weight - swap.up.weight);
            sums[usize::from(swap.heavy)] -= difference;
            sums[usize::from(swap.light)] += difference;
            for leaf in [swap.heavy, swap.light] {
                by_sum.insert((sums[usize::from(leaf)], leaf));
            }
            self.carry(swap.down, swap.heavy, swap.light);
            self.carry(swap.up, swap.light, swap.heavy);
        }
    }

    pub(super) fn carry(&mut self, row: Leftover, from: u16, to: u16) {
        let rows = &mut self.held[usize::from(from)];
        if let Ok(at) = rows.binary_search(&row) {
            rows.remove(at);
        }
        let moved = rows.len();
        let rows = &mut self.held[usize::from(to)];
        let at = rows.partition_point(|other| *other < row);
        rows.insert(at, row);
        self.steps += 64 + ((moved + rows.len()) / 16) as u64;
        self.leftovers[self.offsets[row.stratum as usize] + usize::from(row.offset)] = to;
    }

    /// The swap of a row of `heavy` with a lighter one of `light` that comes nearest to halving the gap of their sums.
    pub(super) fn best_swap(&mut self, heavy: u16, light: u16, gap: u128) -> Option<Swap> {
        if gap < 2 {
            return None;
        }
        let half = u64::try_from(gap / 2).unwrap_or(u64::MAX);
        let (downs, ups) = (&self.held[usize::from(heavy)], &self.held[usize::from(light)]);
        let lightest = ups.first()?.weight;
        let mut steps = u64::from(usize::BITS);
        let mut best: Option<Swap> = None;
        let wanted = |down: &Leftover| down.weight.saturating_sub(half);
        let mut at = downs.last().map_or(0, |down| ups.partition_point(|up| up.weight < wanted(down)));
        for down in downs.iter().rev() {
            let gain = best.as_ref().map_or(0, |best| best.gain);
            if u128::from(down.weight.saturating_sub(lightest)) <= gain || gain == gap / 2 {
                break;
            }
            let wanted = wanted(down);
            if wanted <= lightest {
                at = 0;
            } else {
                let before = at;
                while at > 0 && ups[at - 1].weight >= wanted {
                    at -= 1;
                }
                steps += (before - at) as u64;
            }
            steps += 4;
            // From the wanted weight outwards the gain falls.
            let above = ups[at..].iter().take(PROBES);
            let below = ups[..at].iter().rev().take(PROBES);
            for side in [&mut above.into_iter() as &mut dyn Iterator<Item = &Leftover>, &mut below.into_iter()] {
                for up in side {
                    let difference = u128::from(down.weight.saturating_sub(up.weight));
                    let gain = difference.min(gap.saturating_sub(difference));
                    if gain <= best.as_ref().map_or(0, |best| best.gain) {
                        break;
                    }
                    if down.stratum == up.stratum
                        || (self.may_move(down.stratum, heavy, light, &mut steps)
                            && self.may_move(up.stratum, light, heavy, &mut steps))
                    {
                        best = Some(Swap { gain, heavy, light, down: *down, up: *up });
                        break;
                    }
                }
            }
        }
        self.steps += steps;
        best
    }

    /// Whether `stratum` keeps ⌊r/m⌋ or ⌈r/m⌉ leftovers at every node of the tree when one goes from leaf `from` to `to`:
    /// wherever the two lie under different nodes of a level, the node of `from` must have the one row more.
    pub(super) fn may_move(&self, stratum: u32, from: u16, to: u16, steps: &mut u64) -> bool {
        let c = stratum as usize;
        let leaves = &self.leftovers[self.offsets[c]..self.offsets[c + 1]];
        self.products.iter().rev().all(|m| {
            let (a, b) = (u32::from(from) % m, u32::from(to) % m);
            *steps += leaves.len() as u64;
            let (mut at_a, mut at_b) = (0, 0);
            for leaf in leaves {
                let prefix = u32::from(*leaf) % m;
                at_a += u32::from(prefix == a);
                at_b += u32::from(prefix == b);
            }
            a == b || at_a > at_b
        })
    }
}

/// A swap of row `down` of leaf `heavy` with row `up` of leaf `light`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Swap {
    /// How far the sums come from the ends of the old gap; more than 0.
    gain: u128,
    heavy: u16,
    light: u16,
    down: Leftover,
    up: Leftover,
}
