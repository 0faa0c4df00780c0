//! Placing: where each row of a unit goes, from its rank in its cell. Pure.

use crate::{assign::Placement, cells::UnitCell, error::Result, strata::Strata, weights::bin};

use super::{plan::Plan, rows::UnitRows};
use hashbrown::HashMap;

/// A unit's rows sorted by destination.
#[derive(Debug, Clone, Default)]
pub(super) struct Placed {
    /// Rows of the unit; those of one destination stay in the order of the input.
    pub(super) rows: Vec<u32>,
    /// For each, 0 for the row itself and 1, 2, … for copies; empty where nothing is resampled.
    pub(super) copies: Vec<u32>,
    /// Where each destination's rows lie in `rows`, by destination.
    pub(super) slices: Vec<PlacedSlice>,
    /// Sum of weights on each node of each split, `[split · nodes + node]`; empty without weights.
    pub(super) node_weights: Vec<u128>,
}

/// Rows of one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlacedSlice {
    pub(super) destination: u32,
    pub(super) start: u32,
    pub(super) rows: u32,
}

/// Places the rows of a unit, whose cells begin at the ranks of `cells`; `url` is for messages.
pub(super) fn place(plan: &Plan, strata: &Strata, rows: &UnitRows, cells: &[UnitCell], url: &str) -> Result<Placed> {
    let of_row = cells_of_rows(plan, strata, rows, cells).ok_or_else(|| super::changed(url))?;
    let mut starts = vec![0_usize; cells.len() + 1];
    for cell in &of_row {
        starts[*cell as usize + 1] += 1;
    }
    if starts[1..].iter().zip(cells).any(|(n, cell)| *n as u64 != cell.rows) {
        return Err(super::changed(url));
    }
    for i in 0..cells.len() {
        starts[i + 1] += starts[i];
    }
    let mut by_cell = vec![0_u32; of_row.len()];
    let mut next = starts.clone();
    for (row, cell) in of_row.iter().enumerate() {
        by_cell[next[*cell as usize]] = row as u32;
        next[*cell as usize] += 1;
    }
    let mut sums = NodeWeights::new(plan, rows.weights.as_deref());
    let bound = plan.bound_parts;
    let mut assigner = plan.assignment.assigner();
    let resampled = plan.copies;
    let mut one = if resampled { Vec::new() } else { vec![u32::MAX; of_row.len()] };
    let mut several: Vec<(u32, u32, u32)> = Vec::new();
    for (i, cell) in cells.iter().enumerate() {
        let of_cell = &by_cell[starts[i]..starts[i + 1]];
        let ranks = cell.first_rank..cell.first_rank + cell.rows;
        assigner.place(bound.then_some(cell.part), cell.stratum, ranks, |p: Placement| {
            let row = of_cell[p.at];
            let (split, destination, node) = plan.destination(p.part, p.leaf);
            sums.add(split, node, row);
            if resampled {
                several.push((destination, row, p.copy));
            } else {
                one[row as usize] = destination;
            }
        })?;
    }
    let node_weights = sums.sums;
    if !resampled {
        let (rows, slices) = sorted(&one, plan.destinations());
        return Ok(Placed { rows, copies: Vec::new(), slices, node_weights });
    }
    several.sort_unstable();
    let mut slices: Vec<PlacedSlice> = Vec::new();
    for (i, (destination, ..)) in several.iter().enumerate() {
        match slices.last_mut() {
            Some(last) if last.destination == *destination => last.rows += 1,
            _ => slices.push(PlacedSlice { destination: *destination, start: i as u32, rows: 1 }),
        }
    }
    let rows = several.iter().map(|s| s.1).collect();
    Ok(Placed { rows, copies: several.iter().map(|s| s.2).collect(), slices, node_weights })
}

/// The cell of each row, as a place in `cells`; `None` when a row is of a cell that was not counted.
fn cells_of_rows(plan: &Plan, strata: &Strata, rows: &UnitRows, cells: &[UnitCell]) -> Option<Vec<u32>> {
    let stratum_of: Option<Vec<u32>> = rows.keys.iter().map(|key| strata.of_key(key)).collect();
    let stratum_of = stratum_of?;
    if rows.weights.is_none() && rows.parts.is_none() {
        let place: Option<Vec<u32>> = (stratum_of.iter())
            .map(|stratum| cells.binary_search_by_key(stratum, |c| c.stratum).ok().map(|at| at as u32))
            .collect();
        let place = place?;
        return Some(rows.of_row.iter().map(|local| place[*local as usize]).collect());
    }
    let table: HashMap<(u32, u32, u64), u32> =
        cells.iter().enumerate().map(|(i, c)| ((c.part, c.stratum, c.bin), i as u32)).collect();
    (rows.of_row.iter().enumerate())
        .map(|(row, local)| {
            let weight = rows.weights.as_ref().and_then(|w| w.get(row)).map_or(0, |w| bin(*w, plan.level));
            let part = rows.parts.as_ref().and_then(|p| p.get(row)).copied().unwrap_or(0);
            table.get(&(part, stratum_of[*local as usize], weight)).copied()
        })
        .collect()
}

/// Rows sorted by destination, in the order of the input within one; `u32::MAX` is no destination.
fn sorted(destinations: &[u32], count: u32) -> (Vec<u32>, Vec<PlacedSlice>) {
    let mut slices: Vec<PlacedSlice> = Vec::new();
    // A table of all destinations pays unless there are many more of them than rows.
    if count as usize <= destinations.len().saturating_mul(4) {
        let mut next = vec![0_u32; count as usize + 1];
        for destination in destinations.iter().filter(|d| **d != u32::MAX) {
            next[*destination as usize + 1] += 1;
        }
        for d in 0..count as usize {
            let rows = next[d + 1];
            next[d + 1] += next[d];
            if rows > 0 {
                slices.push(PlacedSlice { destination: d as u32, start: next[d], rows });
            }
        }
        let mut rows = vec![0; next[count as usize] as usize];
        for (row, destination) in destinations.iter().enumerate().filter(|(_, d)| **d != u32::MAX) {
            let at = &mut next[*destination as usize];
            rows[*at as usize] = row as u32;
            *at += 1;
        }
        return (rows, slices);
    }
    let mut keyed: Vec<(u32, u32)> =
        (destinations.iter().enumerate()).filter(|(_, d)| **d != u32::MAX).map(|(row, d)| (*d, row as u32)).collect();
    keyed.sort_unstable();
    for (i, (destination, _)) in keyed.iter().enumerate() {
        match slices.last_mut() {
            Some(last) if last.destination == *destination => last.rows += 1,
            _ => slices.push(PlacedSlice { destination: *destination, start: i as u32, rows: 1 }),
        }
    }
    (keyed.into_iter().map(|k| k.1).collect(), slices)
}

struct NodeWeights<'a> {
    nodes: usize,
    weights: Option<&'a [u64]>,
    sums: Vec<u128>,
}

impl<'a> NodeWeights<'a> {
    fn new(plan: &Plan, weights: Option<&'a [u64]>) -> Self {
        let nodes = plan.layout.nodes as usize;
        let length = if weights.is_some() { nodes * plan.layout.splits.len() } else { 0 };
        Self { nodes, weights, sums: vec![0; length] }
    }

    fn add(&mut self, split: u32, node: u32, row: u32) {
        if let Some(weight) = self.weights.and_then(|w| w.get(row as usize))
            && let Some(sum) = self.sums.get_mut(split as usize * self.nodes + node as usize)
        {
            *sum += u128::from(*weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_sorting_agree() {
        let destinations: Vec<u32> = (0..500_u32).map(|i| if i % 11 == 0 { u32::MAX } else { i * 7919 % 40 }).collect();
        let (rows, slices) = sorted(&destinations, 40);
        assert_eq!((rows.clone(), slices.clone()), sorted(&destinations, 1 << 30));
        assert_eq!(slices.iter().map(|s| s.rows).sum::<u32>() as usize, rows.len());
        for slice in slices {
            let of = &rows[slice.start as usize..(slice.start + slice.rows) as usize];
            assert!(of.windows(2).all(|w| w[0] < w[1]));
            assert!(of.iter().all(|row| destinations[*row as usize] == slice.destination));
        }
    }
}
