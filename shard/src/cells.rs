//! Counts that assignment is made from: rows of each cell, a (part, stratum, weight bin).
//!
//! Each unit of the input counts its own cells; the sums over all units say how many rows a cell has, and the sums over
//! the units before it what rank its first row has. So each unit can be placed on its own.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    strata::{Strata, StratumKey},
    weights::{COARSEST, bin, coarser},
};

/// Cells that weights may make: with more the bins are coarsened.
pub const MAX_WEIGHT_CELLS: usize = 1 << 20;

/// Rows of one cell of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Part that the rows are bound to; 0 where the dealing decides.
    pub part: u32,
    /// Stratum; in a unit's counts the ordinal of its key there.
    pub stratum: u32,
    /// Weight bin.
    pub bin: u64,
    /// Rows.
    pub rows: u64,
    /// Sum of their weights.
    pub weight: u128,
}

/// The cells of one unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitCounts {
    /// Keys of the strata.
    pub keys: Vec<StratumKey>,
    /// Level of the bins.
    pub level: u8,
    /// The cells.
    pub cells: Vec<Cell>,
}

/// Cells by (part, stratum, bin) while they are summed, as coarse as [`MAX_WEIGHT_CELLS`] asks.
#[derive(Debug, Default)]
struct Sums {
    level: u8,
    cells: HashMap<(u32, u32, u64), (u64, u128)>,
}

impl Sums {
    fn add(&mut self, cell: &Cell, level: u8) {
        while self.level < level {
            self.coarsen();
        }
        let sum = self.cells.entry((cell.part, cell.stratum, coarser(cell.bin, level, self.level))).or_default();
        sum.0 += cell.rows;
        sum.1 += cell.weight;
        // At the coarsest level there is one cell a stratum and part: that many are needed.
        while self.cells.len() > MAX_WEIGHT_CELLS && self.level < COARSEST {
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        let (from, to) = (self.level, self.level + 1);
        let mut cells = HashMap::with_capacity(self.cells.len() / 2);
        for ((part, stratum, bin), (rows, weight)) in self.cells.drain() {
            let sum: &mut (u64, u128) = cells.entry((part, stratum, coarser(bin, from, to))).or_default();
            sum.0 += rows;
            sum.1 += weight;
        }
        (self.level, self.cells) = (to, cells);
    }

    fn into_cells(self) -> (u8, Vec<Cell>) {
        let mut cells: Vec<Cell> = (self.cells.into_iter())
            .map(|((part, stratum, bin), (rows, weight))| Cell { part, stratum, bin, rows, weight })
            .collect();
        sort(&mut cells);
        (self.level, cells)
    }
}

/// By part and stratum, heaviest bin first.
fn sort(cells: &mut [Cell]) {
    cells.sort_unstable_by_key(|c| (c.part, c.stratum, std::cmp::Reverse(c.bin)));
}

impl UnitCounts {
    /// Of rows whose strata are `of_row` (ordinals into `keys`), with their weights and parts where there are any.
    #[must_use]
    pub fn count(keys: Vec<StratumKey>, of_row: &[u32], weights: Option<&[u64]>, parts: Option<&[u32]>) -> Self {
        if weights.is_none() && parts.is_none() {
            let mut rows = vec![0_u64; keys.len()];
            for stratum in of_row {
                rows[*stratum as usize] += 1;
            }
            let cells = rows.into_iter().enumerate();
            let cells = cells.map(|(c, rows)| Cell { part: 0, stratum: c as u32, bin: 0, rows, weight: 0 }).collect();
            return Self { keys, level: if weights.is_none() { COARSEST } else { 0 }, cells };
        }
        let mut sums = Sums { level: if weights.is_some() { 0 } else { COARSEST }, ..Sums::default() };
        for (row, stratum) in of_row.iter().enumerate() {
            let weight = weights.and_then(|w| w.get(row)).copied().unwrap_or(0);
            let part = parts.and_then(|p| p.get(row)).copied().unwrap_or(0);
            let level = sums.level;
            let bin = bin(weight, level);
            sums.add(&Cell { part, stratum: *stratum, bin, rows: 1, weight: u128::from(weight) }, level);
        }
        let (level, cells) = sums.into_cells();
        Self { keys, level, cells }
    }
}

/// The sums over all units, while they come.
#[derive(Debug, Default)]
pub struct Totals {
    ordinals: HashMap<StratumKey, u32>,
    sums: Sums,
}

impl Totals {
    /// Adds a unit.
    pub fn add(&mut self, unit: &UnitCounts) {
        let mut ordinals = Vec::with_capacity(unit.keys.len());
        for key in &unit.keys {
            let next = self.ordinals.len() as u32;
            ordinals.push(match self.ordinals.get(key) {
                Some(ordinal) => *ordinal,
                None => {
                    self.ordinals.insert(key.clone(), next);
                    next
                }
            });
        }
        while self.sums.level < unit.level {
            self.sums.coarsen();
        }
        for cell in &unit.cells {
            self.sums.add(&Cell { stratum: ordinals[cell.stratum as usize], ..*cell }, unit.level);
        }
    }

    /// Rows of each key.
    #[must_use]
    pub fn rows_of_keys(&self) -> Vec<(StratumKey, u64)> {
        let mut rows = vec![0_u64; self.ordinals.len()];
        for ((_, stratum, _), (n, _)) in &self.sums.cells {
            rows[*stratum as usize] += n;
        }
        self.ordinals.iter().map(|(key, ordinal)| (key.clone(), rows[*ordinal as usize])).collect()
    }

    /// The table of all cells, by the final strata.
    ///
    /// # Errors
    /// [`Error::Internal`] when a key has no stratum.
    pub fn finish(self, strata: &Strata) -> Result<CellTable> {
        let mut stratum_of = vec![0; self.ordinals.len()];
        for (key, ordinal) in &self.ordinals {
            stratum_of[*ordinal as usize] =
                strata.of_key(key).ok_or_else(|| Error::internal("a key has no stratum"))?;
        }
        let mut merged = Sums { level: self.sums.level, ..Sums::default() };
        for ((part, stratum, bin), (rows, weight)) in self.sums.cells {
            let sum = merged.cells.entry((part, stratum_of[stratum as usize], bin)).or_default();
            sum.0 += rows;
            sum.1 += weight;
        }
        let (level, cells) = merged.into_cells();
        let mut first_ranks = Vec::with_capacity(cells.len());
        let mut rank = 0;
        for (i, cell) in cells.iter().enumerate() {
            if i > 0 && (cells[i - 1].part, cells[i - 1].stratum) != (cell.part, cell.stratum) {
                rank = 0;
            }
            first_ranks.push(rank);
            rank += cell.rows;
        }
        Ok(CellTable { level, cells, first_ranks })
    }
}

/// All cells, by part and stratum, heaviest bin first, with the rank of the first row of each in its (part, stratum).
#[derive(Debug, Clone, Default)]
pub struct CellTable {
    level: u8,
    cells: Vec<Cell>,
    first_ranks: Vec<u64>,
}

/// The rows that a unit has of a cell: ranks `first_rank..first_rank + rows` of its (part, stratum).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitCell {
    /// Part.
    pub part: u32,
    /// Stratum.
    pub stratum: u32,
    /// Bin.
    pub bin: u64,
    /// Rank of the unit's first row of the cell.
    pub first_rank: u64,
    /// Rows.
    pub rows: u64,
}

impl CellTable {
    /// Level of the bins.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// The cells.
    #[must_use]
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Where units begin: call [`Cursor::next`] for each unit in order.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { table: self, next: self.first_ranks.clone() }
    }
}

/// Goes through the units in order and says where each begins.
#[derive(Debug)]
pub struct Cursor<'a> {
    table: &'a CellTable,
    next: Vec<u64>,
}

impl Cursor<'_> {
    /// The cells of the next unit, in the order of the table.
    ///
    /// # Errors
    /// [`Error::Internal`] when the unit has a cell that the totals do not.
    pub fn next(&mut self, unit: &UnitCounts, strata: &Strata) -> Result<Vec<UnitCell>> {
        let strange = || Error::internal("a unit has a cell that the totals do not have");
        let stratum_of: Option<Vec<u32>> = unit.keys.iter().map(|key| strata.of_key(key)).collect();
        let stratum_of = stratum_of.ok_or_else(strange)?;
        let level = self.table.level;
        let mut cells: Vec<Cell> = (unit.cells.iter())
            .map(|c| Cell { stratum: stratum_of[c.stratum as usize], bin: coarser(c.bin, unit.level, level), ..*c })
            .collect();
        sort(&mut cells);
        let mut of_unit: Vec<UnitCell> = Vec::with_capacity(cells.len());
        for cell in cells {
            match of_unit.last_mut() {
                Some(last) if (last.part, last.stratum, last.bin) == (cell.part, cell.stratum, cell.bin) => {
                    last.rows += cell.rows;
                }
                _ => of_unit.push(UnitCell {
                    part: cell.part,
                    stratum: cell.stratum,
                    bin: cell.bin,
                    first_rank: 0,
                    rows: cell.rows,
                }),
            }
        }
        for cell in &mut of_unit {
            let key = (cell.part, cell.stratum, std::cmp::Reverse(cell.bin));
            let at = (self.table.cells.binary_search_by_key(&key, |c| (c.part, c.stratum, std::cmp::Reverse(c.bin))))
                .map_err(|_| strange())?;
            cell.first_rank = self.next[at];
            self.next[at] += cell.rows;
        }
        Ok(of_unit)
    }
}
