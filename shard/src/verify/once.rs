//! Every row of the input exactly once, or exactly in the copies that are declared.

use std::collections::HashMap;

use super::{VerifyReport, file::FileCheck};
use crate::{
    schema::ROW_ID,
    tables::{InputEntry, StratumEntry},
};

/// Row ids seen so far: one bit a row of each input file, and the copies of those that have any.
pub(super) struct Once {
    seen: Vec<Vec<u64>>,
    inputs: Vec<InputEntry>,
    resampled: bool,
    /// Number, sum and largest of a row's copies.
    copies: HashMap<i64, (u64, u64, u64)>,
}

impl Once {
    pub(super) fn new(inputs: Vec<InputEntry>, resampled: bool) -> Self {
        let seen = inputs.iter().map(|i| vec![0; usize::try_from(i.rows.div_ceil(64)).unwrap_or(0)]).collect();
        Self { seen, inputs, resampled, copies: HashMap::new() }
    }

    pub(super) fn add(&mut self, check: &FileCheck, report: &mut VerifyReport) {
        let (mut repeated, mut unknown, mut first) = (0_u64, 0_u64, None);
        for (i, id) in check.ids.iter().enumerate() {
            let (file, row) = ((*id as u64 >> 40) as usize, (*id as u64) & ((1 << 40) - 1));
            if *id < 0 || self.inputs.get(file).is_none_or(|n| row >= n.rows) {
                unknown += 1;
                first.get_or_insert(*id);
                continue;
            }
            let copy = check.copies.get(i).copied().unwrap_or(0);
            if copy > 0 {
                let copy = copy as u64;
                let (count, sum, most) = self.copies.entry(*id).or_default();
                (*count, *sum, *most) = (*count + 1, *sum + copy, copy.max(*most));
                continue;
            }
            let word = &mut self.seen[file][(row / 64) as usize];
            if copy < 0 || *word >> (row % 64) & 1 == 1 {
                repeated += 1;
                first.get_or_insert(*id);
            }
            *word |= 1 << (row % 64);
        }
        if repeated > 0 {
            let what = format!("{repeated} rows are in the set a second time (first: {ROW_ID} {})", first.unwrap_or(0));
            report.add(&check.path, what);
        }
        if unknown > 0 {
            report.add(&check.path, format!("{unknown} rows are of no input (first: {ROW_ID} {})", first.unwrap_or(0)));
        }
    }

    pub(super) fn finish(&self, path: &str, strata: &[StratumEntry], report: &mut VerifyReport) {
        let mut missing_rows = 0;
        for (seen, input) in self.seen.iter().zip(&self.inputs) {
            let present: u64 = seen.iter().map(|w| u64::from(w.count_ones())).sum();
            let missing = input.rows.saturating_sub(present);
            missing_rows += missing;
            if missing > 0 && !self.resampled {
                report.add(path, format!("{missing} rows of input {} are in no shard", input.path));
            }
        }
        if !self.resampled {
            return;
        }
        let left_out: u64 = strata.iter().map(|s| s.rows_in.saturating_sub(s.rows)).sum();
        if missing_rows != left_out {
            report.add(path, format!("{missing_rows} rows are in no shard, {left_out} are declared to be left out"));
        }
        // Copies 1 to k of a row: as many as the largest number, and their sum is that of 1 to k.
        let odd = self.copies.iter().find(|(id, (count, sum, most))| {
            let (file, row) = ((**id as u64 >> 40) as usize, (**id as u64) & ((1 << 40) - 1));
            let itself =
                self.seen.get(file).and_then(|s| s.get((row / 64) as usize)).is_some_and(|w| w >> (row % 64) & 1 == 1);
            count != most || *sum != most * (most + 1) / 2 || !itself
        });
        if let Some((id, _)) = odd {
            report.add(path, format!("copies of {ROW_ID} {id} are not numbered 0, 1, 2, …, each once"));
        }
        let copies: u64 = self.copies.values().map(|c| c.0).sum();
        let declared: u64 = strata.iter().map(|s| s.rows.saturating_sub(s.rows_in)).sum();
        if copies != declared {
            report.add(path, format!("{copies} rows are copies, {declared} are declared"));
        }
    }
}
