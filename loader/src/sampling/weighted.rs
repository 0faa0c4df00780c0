//! Weighted draws of one lane, with and without replacement, in exact integers.
//!
//! A draw is a uniform number below the total weight, looked up in the running sums with a guide table (Chen and Asau,
//! "On generating random variates from an empirical distribution", 1974): 2^k equal parts of the total, at least as many
//! as rows, each with the first row that reaches into it. The expected number of rows of a part that is hit is at most
//! one, whatever the weights.
//!
//! Without replacement these are successive draws: each in proportion to the weights of the rows not drawn yet. Drawing
//! with replacement and passing over rows already drawn gives exactly that law. When as many draws were passed over as
//! half the rows that are left, the table is made anew of the rows that are left, so that no tail of drawn weight is
//! waited for.
//!
//! **What is exact.** Given how many draws a lane has, the law of its draws is exact, as far as ChaCha is random. How many
//! it has is fixed by [`allocate`](super::allocate) to the floor or ceiling of its share, so over the whole split each
//! draw with replacement picks row i with probability w_i / W exactly, but draws of different lanes are not independent:
//! counts vary less than in independent draws. Without replacement the whole is a stratified sample, lanes being the
//! strata, and not one successive sample of the split.

use gristmill_shard::keys::{Key, KeyedRng};

use super::allocate::{nothing_to_draw, too_many};
use crate::error::{Error, Result};

/// `draws` independent draws: positions of `weights`, each with probability weight / total.
///
/// Memory: 24 to 28 bytes a row of the lane while it is drawn from, and 4 a draw.
///
/// # Errors
/// [`Error::Usage`] when weights sum to 2^64 or more, there are 2^32 rows or more, or there are draws and every weight
/// is 0.
pub fn with_replacement(weights: &[u64], draws: u64, key: Key) -> Result<Vec<u32>> {
    let rows = positive_rows(weights)?;
    let table = GuideTable::new(rows, weights)?;
    if draws > 0 && table.total == 0 {
        return Err(nothing_to_draw());
    }
    let mut rng = key.rng();
    let mut out = Vec::new();
    let mut left = usize::try_from(draws).map_err(|_| Error::internal("more draws than memory has addresses"))?;
    let mut block = [0; BLOCK];
    while left > 0 {
        table.draw(&mut rng, &mut block);
        let taken = left.min(BLOCK);
        out.extend_from_slice(&block[..taken]);
        left -= taken;
    }
    Ok(out)
}

/// `draws` distinct positions of `weights`, in the order of successive draws: each with probability weight / total over
/// the rows not drawn yet. A row of weight 0 is never drawn.
///
/// # Errors
/// [`Error::Usage`] as [`with_replacement`], and when there are fewer rows of positive weight than draws.
pub fn without_replacement(weights: &[u64], draws: u64, key: Key) -> Result<Vec<u32>> {
    let rows = positive_rows(weights)?;
    if draws > rows.len() as u64 {
        return Err(too_many(draws, rows.len() as u128));
    }
    let count = usize::try_from(draws).map_err(|_| Error::internal("more draws than memory has addresses"))?;
    let mut out = Vec::with_capacity(count);
    let mut drawn = Marks::new(weights.len());
    let mut left = rows.len();
    let mut table = GuideTable::new(rows, weights)?;
    let mut passed_over = 0;
    let mut rng = key.rng();
    let mut block = [0; BLOCK];
    while out.len() < count {
        if passed_over > left / 2 {
            let rows = table.rows().filter(|row| !drawn.has(*row)).collect();
            table = GuideTable::new(rows, weights)?;
            passed_over = 0;
        }
        // Draws of a block that are not needed are of no consequence: the next ones are independent of them.
        table.draw(&mut rng, &mut block);
        for row in block {
            if drawn.set(row) {
                passed_over += 1;
            } else if out.len() < count {
                out.push(row);
                left -= 1;
            }
        }
    }
    Ok(out)
}

/// Rows of positive weight, ascending.
fn positive_rows(weights: &[u64]) -> Result<Vec<u32>> {
    let count =
        u32::try_from(weights.len()).map_err(|_| Error::usage("a lane has 2^32 rows or more", "use more lanes"))?;
    Ok((0..count).zip(weights).filter(|(_, weight)| **weight > 0).map(|(row, _)| row).collect())
}

/// A bit a row.
#[derive(Debug)]
struct Marks(Vec<u64>);

impl Marks {
    fn new(rows: usize) -> Self {
        Self(vec![0; rows.div_ceil(64)])
    }

    fn has(&self, row: u32) -> bool {
        self.0.get(row as usize / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    /// Sets the mark of `row`; whether it was set.
    fn set(&mut self, row: u32) -> bool {
        let was = self.has(row);
        if let Some(word) = self.0.get_mut(row as usize / 64) {
            *word |= 1 << (row % 64);
        }
        was
    }
}

/// Draws looked up together.
const BLOCK: usize = 64;

/// Running sums of the weights of some rows.
#[derive(Debug)]
struct GuideTable {
    /// Each row with the sum of the weights up to and with its own.
    ends: Vec<(u64, u32)>,
    /// For part b of 2^shift units, the first row that reaches into it.
    guide: Vec<u32>,
    shift: u32,
    total: u64,
}

impl GuideTable {
    fn new(rows: Vec<u32>, weights: &[u64]) -> Result<Self> {
        let mut total = 0_u64;
        let mut ends = Vec::with_capacity(rows.len());
        for row in rows {
            let weight = weights.get(row as usize).copied().unwrap_or(0);
            total = total.checked_add(weight).ok_or_else(|| {
                Error::usage("the weights of a lane sum to 2^64 or more", "divide all weights by the same number")
            })?;
            ends.push((total, row));
        }
        // As many parts as rows, up to twice as many; fewer only when the total has fewer units.
        let mut shift = 0;
        while total >> shift > 2 * ends.len() as u64 {
            shift += 1;
        }
        let mut guide = Vec::with_capacity((total >> shift) as usize + 1);
        for (i, (end, _)) in (0..).zip(&ends) {
            // The parts up to that of this row's last unit which rows before do not reach into.
            let parts = (end.saturating_sub(1) >> shift) as usize + 1;
            if parts > guide.len() {
                guide.resize(parts, i);
            }
        }
        Ok(Self { ends, guide, shift, total })
    }

    fn rows(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().map(|(_, row)| *row)
    }

    /// Independent draws. Each step is taken for the whole block, so that its reads of memory overlap.
    fn draw(&self, rng: &mut KeyedRng, block: &mut [u32; BLOCK]) {
        let units: [u64; BLOCK] = std::array::from_fn(|_| rng.below(self.total));
        let firsts = units.map(|unit| self.first(unit));
        let nearest = firsts.map(|first| self.ends.get(first).copied().unwrap_or_default());
        for (((row, unit), first), (end, nearest)) in block.iter_mut().zip(units).zip(firsts).zip(nearest) {
            *row = if unit < end { nearest } else { self.row_from(first + 1, unit) };
        }
    }

    /// Where the search for the row of `unit` begins.
    fn first(&self, unit: u64) -> usize {
        self.guide.get((unit >> self.shift) as usize).map_or(0, |first| *first as usize)
    }

    /// The row whose weight holds `unit`, which is not before number `first`. Few rows share a part where draws fall,
    /// but a part that is seldom hit may have very many: hence first by steps, then by halves.
    fn row_from(&self, first: usize, unit: u64) -> u32 {
        let ends = self.ends.get(first..).unwrap_or_default();
        let near = ends.get(..8).unwrap_or(ends).iter().find(|(end, _)| *end > unit);
        let row = near.or_else(|| ends.get(ends.partition_point(|(end, _)| *end <= unit)));
        row.map_or(0, |(_, row)| *row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::keys::Domain;
    use proptest::prelude::*;

    fn key(n: u64) -> Key {
        Key::derive(Domain::Draw, 3, &[n])
    }

    fn weights() -> impl Strategy<Value = Vec<u64>> {
        let any = proptest::collection::vec(prop_oneof![Just(0), 0..4_u64, 0..1000_u64, 0..1_u64 << 50], 0..200);
        let few_units = proptest::collection::vec(0..2_u64, 0..50);
        // From 2^0 to 2^56, so that most weight is drawn in the first draws.
        let skewed = proptest::collection::vec((0_u32..57).prop_map(|e| 1 << e), 1..120);
        prop_oneof![any, few_units, skewed]
    }

    proptest! {
        #[test]
        fn every_unit_finds_its_row(weights in weights(), units in proptest::collection::vec(any::<u64>(), 50)) {
            let table = GuideTable::new(positive_rows(&weights).unwrap(), &weights).unwrap();
            prop_assume!(table.total > 0);
            prop_assert!(table.guide.len() <= 2 * weights.len() + 1);
            let edges: Vec<u64> = table.ends.iter().flat_map(|(end, _)| [end - 1, end % table.total]).collect();
            for unit in units.into_iter().map(|u| u % table.total).chain(edges) {
                let mut sum = 0;
                let row = weights.iter().position(|w| { sum += w; unit < sum }).unwrap();
                prop_assert_eq!(table.row_from(table.first(unit), unit) as usize, row);
            }
        }

        #[test]
        fn draws_without_replacement_are_distinct_and_all_come(weights in weights(), part in 0..=100_u64, n in any::<u64>()) {
            let positive = weights.iter().filter(|w| **w > 0).count() as u64;
            let draws = without_replacement(&weights, positive * part / 100, key(n)).unwrap();
            prop_assert_eq!(draws.len() as u64, positive * part / 100);
            prop_assert!(draws.iter().all(|row| weights[*row as usize] > 0));
            let mut sorted = draws.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), draws.len());
            // Fewer draws are a prefix of more.
            prop_assert_eq!(&without_replacement(&weights, positive, key(n)).unwrap()[..draws.len()], &draws[..]);
            prop_assert!(without_replacement(&weights, positive + 1, key(n)).is_err());
        }

        #[test]
        fn draws_depend_on_key_and_weights_only(weights in weights(), draws in 0..100_u64, n in any::<u64>()) {
            prop_assume!(weights.iter().any(|w| *w > 0));
            let once = with_replacement(&weights, draws, key(n)).unwrap();
            prop_assert_eq!(once.len() as u64, draws);
            prop_assert!(once.iter().all(|row| weights[*row as usize] > 0));
            prop_assert_eq!(once, with_replacement(&weights, draws, key(n)).unwrap());
        }
    }

    #[test]
    fn counts_with_replacement_follow_the_weights() {
        // 60 rows from 0 to 59², 100 keys of 2000 draws: chi-square of 58 degrees of freedom, mean 58, deviation 10.8.
        let weights: Vec<u64> = (0..60).map(|i| i * i).collect();
        let total: u64 = weights.iter().sum();
        let mut counts = [0_u64; 60];
        for n in 0..100 {
            for row in with_replacement(&weights, 2000, key(n)).unwrap() {
                counts[row as usize] += 1;
            }
        }
        assert_eq!(counts[0], 0);
        let term = |(count, weight): (u64, u64)| {
            let expected = 200_000.0 * weight as f64 / total as f64;
            (count as f64 - expected).powi(2) / expected
        };
        let chi_square: f64 = counts.into_iter().zip(weights).skip(1).map(term).sum();
        assert!((26.0..90.0).contains(&chi_square), "{chi_square}");
    }

    #[test]
    fn successive_draws_have_their_exact_odds() {
        // Every order of 4 rows of 5, against the product of weight / (weight left); 240,000 keys. The table is made
        // anew on the way for most of them.
        let weights = [1_u64, 2, 0, 9, 3];
        let rows = [0_usize, 1, 3, 4];
        const KEYS: u32 = 240_000;
        let mut counts = std::collections::HashMap::new();
        for n in 0..u64::from(KEYS) {
            *counts.entry(without_replacement(&weights, 4, key(n)).unwrap()).or_insert(0_u32) += 1;
        }
        let mut chi_square = 0.0;
        let mut orders = 0;
        for a in rows {
            for b in rows.into_iter().filter(|b| *b != a) {
                for c in rows.into_iter().filter(|c| ![a, b].contains(c)) {
                    let d = rows.into_iter().find(|d| ![a, b, c].contains(d)).unwrap();
                    let (mut left, mut odds) = (15.0, 1.0);
                    for row in [a, b, c, d] {
                        odds *= weights[row] as f64 / left;
                        left -= weights[row] as f64;
                    }
                    let order: Vec<u32> = [a, b, c, d].map(|row| row as u32).to_vec();
                    let (count, expected) = (f64::from(counts[&order]), odds * f64::from(KEYS));
                    chi_square += (count - expected).powi(2) / expected;
                    orders += 1;
                }
            }
        }
        assert_eq!(orders, 24);
        // 23 degrees of freedom: mean 23, deviation 6.8.
        assert!((7.0..50.0).contains(&chi_square), "{chi_square}");
    }

    #[test]
    fn golden_draws() {
        let weights = [5, 0, 1, 2, 40, 3, 3];
        assert_eq!(with_replacement(&weights, 8, key(1)).unwrap(), GOLDEN_WITH);
        assert_eq!(without_replacement(&weights, 6, key(1)).unwrap(), GOLDEN_WITHOUT);
    }

    const GOLDEN_WITH: [u32; 8] = [4, 4, 2, 5, 3, 4, 4, 4];
    const GOLDEN_WITHOUT: [u32; 6] = [4, 2, 5, 3, 0, 6];

    #[test]
    fn bad_requests_are_refused() {
        let text = |r: Result<Vec<u32>>| r.unwrap_err().to_string();
        assert!(text(with_replacement(&[0, 0], 1, key(0))).contains("every weight is 0"));
        assert!(text(with_replacement(&[u64::MAX, 1], 1, key(0))).contains("2^64"));
        assert!(text(without_replacement(&[4, 0, 4], 3, key(0))).contains("at most 2"));
        assert_eq!(with_replacement(&[], 0, key(0)).unwrap(), [0_u32; 0]);
        assert_eq!(with_replacement(&[0, u64::MAX], 2, key(0)).unwrap(), [1, 1]);
        assert_eq!(without_replacement(&[0], 0, key(0)).unwrap(), [0_u32; 0]);
    }
}
