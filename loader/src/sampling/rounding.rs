//! Draws of each class dealt to lanes: floor or ceiling of the share in every cell and in every lane's total, unbiased.
//!
//! Class c has m_c draws and n_cv rows in lane v, so cell (c, v) is to have `m_c · n_cv / n_c`. Controlled rounding
//! (Bacharach, "Matrix rounding problems", 1966; Cox, "A constructive procedure for unbiased controlled rounding", 1987):
//! the fractional parts are edges of a bipartite graph of classes and lanes. Around a cycle, alternately +d and −d, with
//! the largest d that keeps all between 0 and 1 in one direction or the other, chosen with odds that keep every
//! expectation: sums stay, and an edge becomes whole and leaves. A last class of what lanes lack to whole totals lets the
//! graph empty itself. The edges kept between two classes are a forest, so at most one class fewer than there are lanes
//! is pending, and a cell costs a walk of that forest.

use gristmill_shard::keys::KeyedRng;

use super::wide::mul_div;
use crate::error::{Error, Result};

/// One, in the fixed point of fractions.
const ONE: u64 = 1 << 62;
const NONE: usize = usize::MAX;

/// Rows of a class in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The class, from 0.
    pub class: u32,
    /// The lane, from 0.
    pub lane: u32,
    /// Rows, n_cv.
    pub rows: u64,
}

/// Draws of each cell, in the order of `cells`, which are ordered by class; lanes are numbered below `lanes` and occur at
/// most once in a class. `draws[c]` is what class c has in all.
///
/// - The cells of a class sum to its draws exactly.
/// - A cell is ⌊m_c n_cv / n_c⌋ or ⌈m_c n_cv / n_c⌉: 0 without rows, at most n_cv when m_c ≤ n_c, and whole shares are
///   met exactly. So every row of a class is drawn ⌊m_c / n_c⌋ or ⌈m_c / n_c⌉ times where each lane goes round its rows.
/// - A lane's total is the floor or ceiling of the sum of its shares, computed in units of 2^−62 of a draw. Lanes are
///   as even as these sums, which are even when classes are dealt evenly to lanes; a class of fewer rows than lanes
///   whose rows are drawn many times makes the lanes that hold them longer.
/// - The expectation of a cell is its share, within 2^−62.
///
/// # Errors
/// [`Error::Usage`] for draws of a class that has no rows; [`Error::Internal`] for cells out of order or out of range.
pub fn allocate_cells(cells: &[Cell], lanes: u32, draws: &[u64], rng: &mut KeyedRng) -> Result<Vec<u64>> {
    let mut out = Vec::with_capacity(cells.len());
    let mut forest = Forest::new(lanes as usize);
    // What each lane's fractions lack to a whole number.
    let mut lack = vec![0_u64; lanes as usize];
    let mut rest = cells;
    for (class, draws) in draws.iter().enumerate() {
        let count = rest.iter().take_while(|cell| cell.class as usize == class).count();
        let (of_class, after) = rest.split_at(count);
        rest = after;
        let rows: u128 = of_class.iter().map(|cell| u128::from(cell.rows)).sum();
        if rows == 0 && *draws > 0 {
            return Err(Error::usage(
                format!("class number {class} is to have {draws} samples and has no rows"),
                "give it the share 0",
            ));
        }
        let node = forest.open();
        let (mut remainders, mut before) = (0_u128, 0_u128);
        for cell in of_class {
            let lane = cell.lane as usize;
            let lack = lack.get_mut(lane).ok_or_else(|| Error::internal(format!("lane {lane} of {lanes}")))?;
            let (floor, remainder) = mul_div(u128::from(cell.rows), *draws, 0, rows);
            out.push(u64::try_from(floor).map_err(|_| Error::internal("a cell has more draws than its class"))?);
            // Remainders of a class sum to a multiple of its rows. Rounding their running sum keeps it so in fixed
            // point, and fractions stay within one unit of the exact ones.
            remainders += remainder;
            let (upto, _) = mul_div(remainders, ONE, 0, rows);
            let fraction = if remainder == 0 { 0 } else { u64::try_from(upto - before).unwrap_or(ONE).min(ONE) };
            before = upto;
            *lack = (*lack + ONE - fraction) % ONE;
            forest.add(node, lane, Edge { fraction, cell: out.len() - 1 }, &mut out, rng);
        }
        forest.close(node);
    }
    if let Some(cell) = rest.first() {
        return Err(Error::internal(format!("a cell of class {} is out of order", cell.class)));
    }
    let node = forest.open();
    for (lane, fraction) in lack.into_iter().enumerate() {
        forest.add(node, lane, Edge { fraction, cell: NONE }, &mut out, rng);
    }
    if forest.has_edges() {
        return Err(Error::internal("controlled rounding left a fraction"));
    }
    Ok(out)
}

/// A fraction that is still to be rounded.
#[derive(Debug, Clone, Copy)]
struct Edge {
    /// Between 0 and [`ONE`].
    fraction: u64,
    /// Index of the cell; [`NONE`] for what a lane lacks.
    cell: usize,
}

/// Lanes (nodes below `lanes`) and pending classes, each tree with a root, every other node with the edge to its parent.
#[derive(Debug)]
struct Forest {
    lanes: usize,
    parents: Vec<usize>,
    edges: Vec<Edge>,
    /// Edges of each pending class.
    degrees: Vec<usize>,
    free: Vec<usize>,
}

impl Forest {
    fn new(lanes: usize) -> Self {
        let edges = vec![Edge { fraction: 0, cell: NONE }; lanes];
        Self { lanes, parents: vec![NONE; lanes], edges, degrees: Vec::new(), free: Vec::new() }
    }

    /// A class without edges.
    fn open(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.parents.push(NONE);
            self.edges.push(Edge { fraction: 0, cell: NONE });
            self.degrees.push(0);
            self.parents.len() - 1
        })
    }

    /// Called when class `node` has all its edges.
    fn close(&mut self, node: usize) {
        if self.degrees[node - self.lanes] == 0 {
            self.free.push(node);
        }
    }

    fn has_edges(&self) -> bool {
        self.parents.iter().any(|parent| *parent != NONE)
    }

    /// Adds an edge from `class`, the root of its tree, to `lane`, and rounds the cycle that it closes.
    fn add(&mut self, class: usize, lane: usize, mut edge: Edge, out: &mut [u64], rng: &mut KeyedRng) {
        if edge.fraction > 0 && edge.fraction < ONE && self.root(lane) == class {
            self.cancel(class, lane, &mut edge, out, rng);
        }
        if whole(edge, out) {
            return;
        }
        self.make_root(lane);
        self.parents[lane] = class;
        self.edges[lane] = edge;
        self.degrees[class - self.lanes] += 1;
    }

    fn root(&self, mut node: usize) -> usize {
        while self.parents[node] != NONE {
            node = self.parents[node];
        }
        node
    }

    /// Turns the edges on the way from `node` to its root.
    fn make_root(&mut self, mut node: usize) {
        let (mut parent, mut edge) = (NONE, self.edges[node]);
        while node != NONE {
            let above = std::mem::replace(&mut self.parents[node], parent);
            let edge_above = std::mem::replace(&mut self.edges[node], edge);
            (parent, node, edge) = (node, above, edge_above);
        }
    }

    /// Rounds the cycle of `new` (from `class` to `lane`) and the way from `lane` to its root, `class`. Edges that
    /// become whole leave; at least one does.
    fn cancel(&mut self, class: usize, lane: usize, new: &mut Edge, out: &mut [u64], rng: &mut KeyedRng) {
        // The largest step with `new` growing, and with it shrinking. Signs alternate along the cycle, which is even.
        let (mut grow, mut shrink) = (ONE - new.fraction, new.fraction);
        let (mut node, mut up) = (lane, false);
        while node != class {
            let fraction = self.edges[node].fraction;
            let (above, below) = if up { (ONE - fraction, fraction) } else { (fraction, ONE - fraction) };
            (grow, shrink) = (grow.min(above), shrink.min(below));
            (node, up) = (self.parents[node], !up);
        }
        // Growing by `grow` with probability shrink / (grow + shrink) keeps the expectation.
        let grows = rng.below(grow + shrink) < shrink;
        let step = if grows { grow } else { shrink };
        let moved = |fraction: u64, up: bool| if up == grows { fraction + step } else { fraction - step };
        new.fraction = moved(new.fraction, true);
        let (mut node, mut up) = (lane, false);
        while node != class {
            let parent = self.parents[node];
            self.edges[node].fraction = moved(self.edges[node].fraction, up);
            if whole(self.edges[node], out) {
                self.parents[node] = NONE;
                let end = node.max(parent);
                self.degrees[end - self.lanes] -= 1;
                if self.degrees[end - self.lanes] == 0 && end != class {
                    self.free.push(end);
                }
            }
            (node, up) = (parent, !up);
        }
    }
}

/// Whether a fraction is 0 or 1; a 1 is added to its cell.
fn whole(edge: Edge, out: &mut [u64]) -> bool {
    if edge.fraction == ONE
        && let Some(cell) = out.get_mut(edge.cell)
    {
        *cell += 1;
    }
    edge.fraction == 0 || edge.fraction == ONE
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::keys::{Domain, Key};
    use proptest::prelude::*;

    fn rng(n: u64) -> KeyedRng {
        Key::derive(Domain::Draw, 1, &[n]).rng()
    }

    /// Cells of a table `rows[class][lane]`, those without rows left out.
    fn cells(table: &[Vec<u64>]) -> Vec<Cell> {
        let row = |(class, row): (usize, &Vec<u64>)| {
            let cell = move |(lane, rows): (usize, &u64)| Cell { class: class as u32, lane: lane as u32, rows: *rows };
            row.iter().enumerate().filter(|(_, rows)| **rows > 0).map(cell).collect::<Vec<_>>()
        };
        table.iter().enumerate().flat_map(row).collect()
    }

    fn tables() -> impl Strategy<Value = (Vec<Vec<u64>>, Vec<u64>)> {
        (1_usize..12, 1_usize..40).prop_flat_map(|(lanes, classes)| {
            let rows = prop_oneof![2 => 0_u64..4, 2 => 0_u64..100, 1 => 0..1_u64 << 50];
            let table = proptest::collection::vec(proptest::collection::vec(rows, lanes), classes);
            let draws = proptest::collection::vec(prop_oneof![0_u64..5, 0_u64..300, 0..1_u64 << 50], classes);
            (table, draws)
        })
    }

    proptest! {
        #[test]
        fn cells_and_totals_are_floors_or_ceilings((table, mut draws) in tables(), n in any::<u64>()) {
            for (draws, row) in draws.iter_mut().zip(&table) {
                if row.iter().sum::<u64>() == 0 {
                    *draws = 0;
                }
            }
            let cells = cells(&table);
            let lanes = table[0].len();
            let out = allocate_cells(&cells, lanes as u32, &draws, &mut rng(n)).unwrap();
            let mut sums = vec![0_u64; draws.len()];
            let mut totals = vec![0_u128; lanes];
            // Shares of a lane in units of 2^-62, each at most one unit above the exact one.
            let mut shares = vec![0_u128; lanes];
            for (cell, part) in cells.iter().zip(&out) {
                let (class, lane) = (cell.class as usize, cell.lane as usize);
                let rows: u64 = table[class].iter().sum();
                let product = u128::from(draws[class]) * u128::from(cell.rows);
                let (floor, remainder) = (product / u128::from(rows), product % u128::from(rows));
                prop_assert!(u128::from(*part) == floor || remainder > 0 && u128::from(*part) == floor + 1);
                if draws[class] <= rows {
                    prop_assert!(*part <= cell.rows);
                }
                sums[class] += part;
                totals[lane] += u128::from(*part);
                shares[lane] += (floor << 62) + mul_div(remainder, ONE, 0, u128::from(rows)).0;
            }
            prop_assert_eq!(sums, draws);
            for (total, share) in totals.iter().zip(&shares) {
                prop_assert!((total << 62).abs_diff(*share) < u128::from(ONE) + 2 * table.len() as u128);
            }
        }
    }

    #[test]
    fn expectations_are_the_shares() {
        // Shares of lane 0, 1, 2: 1/3, 2/3, 1 of class 0 (2 draws), 1.2, 0, 1.8 of class 1, 1/3 each of class 2, and so on.
        let table = [vec![1, 2, 3], vec![2, 0, 3], vec![1, 1, 1], vec![5, 1, 1], vec![1, 4, 2]];
        let draws = [2, 3, 1, 1, 3];
        let cells = cells(&table);
        let mut sums = vec![0_u64; cells.len()];
        const KEYS: u64 = 40_000;
        for n in 0..KEYS {
            let parts = allocate_cells(&cells, 3, &draws, &mut rng(n)).unwrap();
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        for (cell, sum) in cells.iter().zip(sums) {
            let class = cell.class as usize;
            let expected = KEYS * draws[class] * cell.rows / table[class].iter().sum::<u64>();
            // Five standard deviations of a coin with any odds: 5 · √(40,000 / 4) = 500.
            assert!(sum.abs_diff(expected) <= 500, "{cell:?}: {sum} for {expected}");
        }
    }

    #[test]
    fn even_lanes_stay_even() {
        // 1000 classes of 1 to 50 rows dealt in turn to 16 lanes: shares of lanes differ, totals follow them.
        let mut turn = 0;
        let mut table = vec![vec![0_u64; 16]; 1000];
        for (class, row) in table.iter_mut().enumerate() {
            for _ in 0..class % 50 + 1 {
                row[turn % 16] += 1;
                turn += 1;
            }
        }
        let out = allocate_cells(&cells(&table), 16, &[10; 1000], &mut rng(3)).unwrap();
        let mut totals = [0_u64; 16];
        cells(&table).iter().zip(&out).for_each(|(cell, part)| totals[cell.lane as usize] += part);
        assert_eq!(totals.iter().sum::<u64>(), 10_000);
        assert!(totals.iter().all(|t| (560..690).contains(t)), "{totals:?}");
    }

    #[test]
    fn bad_cells_are_refused() {
        let text =
            |cells: &[Cell], draws: &[u64]| allocate_cells(cells, 2, draws, &mut rng(0)).unwrap_err().to_string();
        let cell = |class, lane| Cell { class, lane, rows: 4 };
        assert!(text(&[cell(0, 0)], &[1, 1]).contains("class number 1 is to have 1 samples and has no rows"));
        assert!(text(&[cell(0, 2)], &[1]).contains("lane 2 of 2"));
        assert!(text(&[cell(1, 0), cell(0, 0)], &[0, 1]).contains("out of order"));
        assert!(text(&[cell(7, 0)], &[0, 0]).contains("out of order"));
        assert_eq!(allocate_cells(&[], 3, &[0], &mut rng(0)).unwrap(), [0_u64; 0]);
        assert_eq!(allocate_cells(&[], 0, &[], &mut rng(0)).unwrap(), [0_u64; 0]);
    }
}
