//! The rows of a split from the easiest to the hardest, by a column kept beside the lanes.

use std::sync::{Arc, OnceLock};

use gristmill_shard::sidecar::Sidecar;

use crate::{
    columns::{Column, Columns, Number, order_name},
    error::Result,
    lane_table::LaneTable,
};

/// The order of the rows that take part, lane by lane.
#[derive(Debug)]
pub(crate) struct ByDifficulty {
    table: Arc<LaneTable>,
    column: Column,
    /// The order of all rows, where the set keeps it.
    stored: Option<Column>,
    lanes: Vec<OnceLock<Arc<[u32]>>>,
}

impl ByDifficulty {
    pub(crate) fn new(table: &Arc<LaneTable>, columns: &Columns, name: &str) -> Result<Self> {
        let column = columns.get(name)?.clone();
        let stored = columns.get(&order_name(name)).ok().cloned();
        let lanes = (0..table.lanes()).map(|_| OnceLock::new()).collect();
        Ok(Self { table: Arc::clone(table), column, stored, lanes })
    }

    /// Positions of the rows of `lane` that take part, the easiest first, equal ones by position.
    pub(crate) fn lane(&self, lane: u32) -> Arc<[u32]> {
        let make = || -> Arc<[u32]> {
            let order = match self.stored.as_ref().and_then(|stored| stored.lane(lane)) {
                Some(Sidecar::Order(positions)) => positions.to_vec(),
                _ => self.column.order(lane),
            };
            match self.table.kept(lane) {
                Some(kept) => order.into_iter().filter(|p| kept.contains(u64::from(*p))).collect(),
                None => order.into(),
            }
        };
        match self.lanes.get(lane as usize) {
            Some(cell) => Arc::clone(cell.get_or_init(make)),
            None => Arc::from([]),
        }
    }

    pub(crate) fn lanes(&self) -> u32 {
        self.table.lanes()
    }

    /// Rows of `lane` that take part and are of at most this difficulty.
    pub(crate) fn at_most(&self, lane: u32, difficulty: f64) -> u64 {
        let order = self.lane(lane);
        let limit = Number::Float(difficulty);
        let within = |position: &u32| {
            let value = self.column.value(lane, u64::from(*position));
            value.and_then(|v| v.compare(limit)).is_some_and(std::cmp::Ordering::is_le)
        };
        order.partition_point(within) as u64
    }

    /// Rows of all lanes of at most this difficulty.
    pub(crate) fn at_most_in_all(&self, difficulty: f64) -> u64 {
        (0..self.table.lanes()).map(|lane| self.at_most(lane, difficulty)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::KeptRows;

    #[test]
    fn the_easiest_come_first_whether_the_order_is_stored_or_not() {
        let values = Column::integers(vec![vec![5, 1, 3, 1], vec![2, 9]]);
        let stored = Column::new(vec![Sidecar::Order(vec![1, 3, 2, 0].into()), Sidecar::Order(vec![0, 1].into())]);
        let table = LaneTable::simulated_lanes(&[4, 2], 1, 0, 3).unwrap();
        for with_order in [false, true] {
            let mut columns = vec![("d".to_owned(), values.clone())];
            columns.extend(with_order.then(|| ("order_d".to_owned(), stored.clone())));
            let columns = Columns::new(columns);
            let all = ByDifficulty::new(&Arc::new(table.clone()), &columns, "d").unwrap();
            assert_eq!(all.lane(0).as_ref(), [1, 3, 2, 0]);
            assert_eq!([0.9, 1.0, 4.5, 5.0].map(|d| all.at_most(0, d)), [0, 2, 3, 4]);
            assert_eq!((all.at_most_in_all(2.0), all.lane(7).len()), (3, 0));
            let kept = vec![KeptRows::new(4, |p| p != 3), KeptRows::new(2, |_| true)];
            let some = ByDifficulty::new(&Arc::new(table.filtered(kept).unwrap()), &columns, "d").unwrap();
            assert_eq!((some.lane(0).as_ref(), some.at_most(0, 1.0)), (&[1, 2, 0][..], 1));
        }
    }
}
