//! The order of one lane under a curriculum: sampling without replacement from a growing prefix of its positions in
//! ascending difficulty.
//!
//! Each draw takes one of the positions of the prefix that the pass has not had, all equally likely (Fisher–Yates in
//! place, on a prefix that grows). A pass ends when it has had the whole prefix as it then stands, and the next draw
//! begins another. A prefix that grows in the middle of a pass, the first or a later one, adds its new positions to
//! what the pass has not had. So no position comes twice before all of the prefix have come once, new positions have no
//! precedence over old ones of the pass, and where the draws never exceed the prefix there is one pass and no repeat.

use gristmill_shard::keys::KeyedRng;

use crate::error::{Error, Result};

/// Draws of a lane from one prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Draws of the lane by the end of the stage, those of the stages before among them.
    pub until: u64,
    /// Positions that may be drawn, the easiest of the lane.
    pub pool: u64,
}

/// The order of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolDraws {
    /// Positions as they are drawn.
    pub draws: Vec<u32>,
    /// Draws of a position that was drawn before.
    pub repeated: u64,
    /// Positions that are never drawn.
    pub undrawn: u64,
}

/// The draws of a lane whose positions are `by_difficulty`, the easiest first, in `stages`. With `until ≤ pool` at
/// every stage no position is repeated; with n stages of `until = pool`, one for each draw, it is the order of
/// difficulty.
///
/// # Errors
/// [`Error::Internal`] for stages that shrink, that exceed the positions, or that draw from nothing.
pub fn draw(by_difficulty: &[u32], stages: &[Stage], rng: &mut KeyedRng) -> Result<PoolDraws> {
    let positions = by_difficulty.len();
    // What is shuffled: the positions themselves, or, to tell repeats, their ranks.
    let repeats = stages.iter().any(|stage| stage.until > stage.pool);
    let mut left: Vec<u32> = if repeats {
        (0..u32::try_from(positions).map_err(|_| refused("more than 2^32 − 1 positions"))?).collect()
    } else {
        by_difficulty.to_vec()
    };
    let mut passes = Passes::default();
    // Draws of the passes before, and of this one, which are the first of `left`.
    let (mut before, mut taken) = (0, 0);
    let mut prefix = 0;
    for stage in stages {
        let pool = usize::try_from(stage.pool).ok().filter(|pool| (prefix..=positions).contains(pool));
        prefix = pool.ok_or_else(|| refused("a pool that shrinks or is larger than the lane"))?;
        let mut wanted =
            stage.until.checked_sub(before + taken as u64).ok_or_else(|| refused("stages that go back"))?;
        if wanted > 0 && prefix == 0 {
            return Err(refused("a stage that draws from nothing"));
        }
        let admitted = left.get_mut(..prefix).unwrap_or_default();
        while wanted > 0 {
            if taken == prefix {
                passes.append(by_difficulty, admitted);
                before += taken as u64;
                taken = 0;
            }
            let end = prefix.min(taken.saturating_add(usize::try_from(wanted).unwrap_or(usize::MAX)));
            wanted -= (end - taken) as u64;
            for i in taken..end {
                let j = i + rng.below((prefix - i) as u64) as usize;
                admitted.swap(i, j);
            }
            taken = end;
        }
    }
    left.truncate(taken);
    if !repeats {
        return Ok(PoolDraws { draws: left, repeated: 0, undrawn: (positions - taken) as u64 });
    }
    passes.append(by_difficulty, &left);
    let (draws, distinct) = (passes.draws, passes.distinct);
    Ok(PoolDraws { repeated: (draws.len() - distinct) as u64, undrawn: (positions - distinct) as u64, draws })
}

/// Passes over a lane, one after the other.
#[derive(Default)]
struct Passes {
    draws: Vec<u32>,
    /// Positions drawn so far.
    distinct: usize,
    /// Ranks below this were drawn in the passes so far, and no others.
    whole: usize,
}

impl Passes {
    /// Adds a pass that drew `ranks`: all below their number, or, the last one, some.
    fn append(&mut self, by_difficulty: &[u32], ranks: &[u32]) {
        self.draws.extend(ranks.iter().filter_map(|rank| by_difficulty.get(*rank as usize)));
        self.distinct += ranks.iter().filter(|rank| **rank as usize >= self.whole).count();
        self.whole = ranks.len();
    }
}

fn refused(what: &str) -> Error {
    Error::internal(format!("the order of a lane was asked for {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::keys::{Domain, Key};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn rng(field: u64) -> KeyedRng {
        Key::derive(Domain::Order, 5, &[field]).rng()
    }

    fn stages(pairs: &[(u64, u64)]) -> Vec<Stage> {
        pairs.iter().map(|(until, pool)| Stage { until: *until, pool: *pool }).collect()
    }

    /// Positions of a lane of `n`, in some order of difficulty.
    fn lane(n: u32, seed: u64) -> Vec<u32> {
        let mut positions: Vec<u32> = (0..n).collect();
        rng(seed ^ 0xABCD).shuffle(&mut positions);
        positions
    }

    /// A lane and stages of it: `slack` keeps pools at what is drawn, or above.
    fn lanes(repeats: bool) -> impl Strategy<Value = (Vec<u32>, Vec<Stage>)> {
        let steps = prop::collection::vec((0_u64..40, 0_u64..40), 0..12);
        (0_u32..300, any::<u64>(), steps).prop_map(move |(n, seed, steps)| {
            let n = n + 1;
            let (mut until, mut pool, mut all) = (0, 1, Vec::new());
            for (more, wider) in steps {
                pool = u64::from(n).min(pool + wider);
                until += more;
                if !repeats {
                    until = until.min(u64::from(n));
                    pool = pool.max(until);
                }
                all.push(Stage { until, pool });
            }
            (lane(n, seed), all)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn without_repeats_each_position_comes_once((positions, mut all) in lanes(false), field in any::<u64>()) {
            let n = positions.len() as u64;
            all.push(Stage { until: n, pool: n });
            let made = draw(&positions, &all, &mut rng(field)).unwrap();
            prop_assert_eq!((made.repeated, made.undrawn), (0, 0));
            let mut sorted = made.draws.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..n as u32).collect::<Vec<_>>());
        }

        #[test]
        fn draws_lie_in_their_prefix_and_passes_are_whole((positions, all) in lanes(true), field in any::<u64>()) {
            let made = draw(&positions, &all, &mut rng(field)).unwrap();
            prop_assert_eq!(made.draws.len() as u64, all.last().map_or(0, |stage| stage.until));
            let mut rank = vec![0; positions.len()];
            for (at, position) in positions.iter().enumerate() {
                rank[*position as usize] = at as u64;
            }
            let (mut times, mut in_pass) = (BTreeMap::new(), std::collections::BTreeSet::new());
            let mut from = 0;
            for stage in &all {
                for draw in &made.draws[from..stage.until as usize] {
                    prop_assert!(rank[*draw as usize] < stage.pool, "outside the prefix");
                    if in_pass.len() as u64 == stage.pool {
                        in_pass.clear();
                    }
                    prop_assert!(in_pass.insert(*draw), "twice in a pass");
                    *times.entry(*draw).or_insert(0_u64) += 1;
                }
                from = stage.until as usize;
            }
            prop_assert_eq!(made.repeated + times.len() as u64, made.draws.len() as u64);
            prop_assert_eq!(made.undrawn + times.len() as u64, positions.len() as u64);
        }
    }

    /// Whether all of `outcomes` orders are as frequent as each other over 1000 keys for each: chi-square under
    /// `limit`, the value that 1 set of keys in 1000 exceeds.
    fn assert_uniform(n: u32, pairs: &[(u64, u64)], outcomes: usize, limit: f64) {
        let positions: Vec<u32> = (0..n).collect();
        let mut counts: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
        for field in 0..1000 * outcomes as u64 {
            *counts.entry(draw(&positions, &stages(pairs), &mut rng(field)).unwrap().draws).or_default() += 1.0;
        }
        assert_eq!(counts.len(), outcomes);
        let chi: f64 = counts.values().map(|count| (count - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < limit, "{chi} of {outcomes} outcomes: {counts:?}");
    }

    #[test]
    fn every_order_that_may_come_is_as_likely() {
        // Two first draws, then all orders of the other three.
        assert_uniform(4, &[(1, 2), (4, 4)], 12, 31.26);
        // All orders of four.
        assert_uniform(4, &[(4, 4)], 24, 49.73);
        // Two orders of the first pass, two beginnings of the second, whose rest is then one old and one new position.
        assert_uniform(3, &[(3, 2), (5, 3)], 8, 24.32);
    }

    #[test]
    fn repeats_are_counted() {
        let positions = [7, 3, 9, 1];
        let of = |pairs: &[(u64, u64)]| {
            let made = draw(&positions, &stages(pairs), &mut rng(1)).unwrap();
            (made.draws.len(), made.repeated, made.undrawn)
        };
        assert_eq!(of(&[]), (0, 0, 4));
        assert_eq!(of(&[(3, 1)]), (3, 2, 3));
        assert_eq!(of(&[(3, 1), (3, 4)]), (3, 2, 3));
        assert_eq!(of(&[(6, 2), (10, 4)]), (10, 6, 0));
        assert_eq!(of(&[(2, 2), (4, 4)]), (4, 0, 0));
        assert_eq!(of(&[(11, 4)]), (11, 7, 0));
        let made = draw(&positions, &stages(&[(3, 1)]), &mut rng(1)).unwrap();
        assert_eq!(made.draws, [7, 7, 7]);
    }

    #[test]
    fn pools_that_hold_what_is_drawn_are_the_order_of_difficulty() {
        let positions = lane(200, 3);
        let ordered: Vec<Stage> = (1..=200).map(|at| Stage { until: at, pool: at }).collect();
        assert_eq!(draw(&positions, &ordered, &mut rng(9)).unwrap().draws, positions);
        // Twenty at a time: twenty by twenty the same positions.
        let blocks: Vec<Stage> = (1..=10).map(|at| Stage { until: 20 * at, pool: 20 * at }).collect();
        let made = draw(&positions, &blocks, &mut rng(9)).unwrap().draws;
        assert_ne!(made, positions);
        for (made, want) in made.chunks(20).zip(positions.chunks(20)) {
            let (mut made, mut want) = (made.to_vec(), want.to_vec());
            made.sort_unstable();
            want.sort_unstable();
            assert_eq!(made, want);
        }
    }

    #[test]
    fn golden_orders_never_change() {
        let positions: Vec<u32> = (0..8).collect();
        let once = draw(&positions, &stages(&[(2, 4), (5, 6), (8, 8)]), &mut rng(42)).unwrap();
        let again = draw(&positions, &stages(&[(5, 3), (9, 6)]), &mut rng(42)).unwrap();
        assert_eq!((once.draws, again.draws), (GOLDEN_ONCE.to_vec(), GOLDEN_AGAIN.to_vec()));
    }

    const GOLDEN_ONCE: [u32; 8] = [0, 3, 5, 1, 2, 6, 4, 7];
    const GOLDEN_AGAIN: [u32; 9] = [0, 2, 1, 0, 1, 3, 4, 2, 5];

    #[test]
    fn stages_that_make_no_sense_are_refused() {
        let refused = |pairs: &[(u64, u64)], text: &str| {
            let error = draw(&[0, 1, 2], &stages(pairs), &mut rng(0)).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        refused(&[(1, 4)], "larger than the lane");
        refused(&[(1, 2), (2, 1)], "shrinks");
        refused(&[(2, 2), (1, 2)], "go back");
        refused(&[(1, 0)], "nothing");
        assert!(draw(&[], &stages(&[(0, 0)]), &mut rng(0)).unwrap().draws.is_empty());
    }
}
