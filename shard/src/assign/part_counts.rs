//! Counts of (key, part), where a key is a class or a label: dense for keys that can reach every part, a short list for
//! rare ones, so that memory follows the number of entries and not keys × parts.

/// Rows of each key in each part.
#[derive(Debug, Clone)]
pub(super) struct PartCounts {
    cells: Vec<Cells>,
}

#[derive(Debug, Clone)]
enum Cells {
    Dense(Box<[u64]>),
    /// (part, rows) by part, without zeros.
    List(Vec<(u16, u64)>),
}

impl PartCounts {
    /// No rows yet; key `k` will have rows in at most `reach[k]` parts of `parts`.
    pub(super) fn new(reach: &[u64], parts: usize) -> Self {
        // A list entry takes two words, so a list pays below half of the parts.
        let dense = |reach: u64| reach.saturating_mul(2) >= parts as u64;
        let cells = reach
            .iter()
            .map(|r| if dense(*r) { Cells::Dense(vec![0; parts].into()) } else { Cells::List(Vec::new()) })
            .collect();
        Self { cells }
    }

    /// Rows of `key` in `part`.
    #[inline]
    pub(super) fn get(&self, key: u32, part: u16) -> u64 {
        match &self.cells[key as usize] {
            Cells::Dense(rows) => rows[usize::from(part)],
            Cells::List(list) => list.binary_search_by_key(&part, |e| e.0).map_or(0, |i| list[i].1),
        }
    }

    /// Rows of `key` by part, if it is not a rare one.
    #[inline]
    pub(super) fn dense(&self, key: u32) -> Option<&[u64]> {
        match &self.cells[key as usize] {
            Cells::Dense(rows) => Some(rows),
            Cells::List(_) => None,
        }
    }

    /// Calls `visit(part, rows)` for the parts of `key` with rows.
    pub(super) fn for_each(&self, key: u32, mut visit: impl FnMut(u16, u64)) {
        match &self.cells[key as usize] {
            Cells::Dense(rows) => {
                for (part, rows) in (0..=u16::MAX).zip(rows.iter()).filter(|(_, rows)| **rows > 0) {
                    visit(part, *rows);
                }
            }
            Cells::List(list) => list.iter().for_each(|(part, rows)| visit(*part, *rows)),
        }
    }

    /// Adds `rows` of `key` to `part`.
    #[inline]
    pub(super) fn add(&mut self, key: u32, part: u16, rows: u64) {
        match &mut self.cells[key as usize] {
            Cells::Dense(of_part) => of_part[usize::from(part)] += rows,
            Cells::List(list) => match list.binary_search_by_key(&part, |e| e.0) {
                Ok(i) => list[i].1 += rows,
                Err(_) if rows == 0 => {}
                Err(i) => list.insert(i, (part, rows)),
            },
        }
    }

    /// Takes `rows` of `key` from `part`, which has them.
    #[inline]
    pub(super) fn take(&mut self, key: u32, part: u16, rows: u64) {
        match &mut self.cells[key as usize] {
            Cells::Dense(of_part) => of_part[usize::from(part)] -= rows,
            Cells::List(list) => {
                if let Ok(i) = list.binary_search_by_key(&part, |e| e.0) {
                    list[i].1 = list[i].1.saturating_sub(rows);
                    if list[i].1 == 0 {
                        list.remove(i);
                    }
                }
            }
        }
    }
}

/// Dense numbers 0.. of `ids`, in order of id; the second vector has the id of each number. Linear where ids are
/// already about dense, O(n log n) in any case, and never more memory than that, whatever the ids.
pub(super) fn number_ids(ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let span = ids.iter().max().map_or(0, |m| *m as usize + 1);
    if span <= 2 * ids.len() + (1 << 16) {
        let mut number = vec![u32::MAX; span];
        for id in ids {
            number[*id as usize] = 0;
        }
        let mut distinct = Vec::new();
        for (id, n) in (0..=u32::MAX).zip(&mut number).filter(|(_, n)| **n == 0) {
            *n = distinct.len() as u32;
            distinct.push(id);
        }
        return (ids.iter().map(|id| number[*id as usize]).collect(), distinct);
    }
    let mut distinct = ids.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    (ids.iter().map(|id| distinct.partition_point(|d| d < id) as u32).collect(), distinct)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): spreads a
/// keyed value where a BLAKE3 hash per (item, part) would cost more than the dealing itself.
#[inline]
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_dense_cells_count_alike() {
        let mut counts = PartCounts::new(&[1, 8], 8);
        for key in 0..2 {
            counts.add(key, 5, 3);
            counts.take(key, 5, 3);
            counts.add(key, 2, 4);
            counts.add(key, 2, 0);
            assert_eq!((counts.get(key, 5), counts.get(key, 2)), (0, 4));
            let mut seen = Vec::new();
            counts.for_each(key, |part, rows| seen.push((part, rows)));
            assert_eq!(seen, [(2, 4)]);
        }
    }

    #[test]
    fn ids_are_numbered_in_order_whatever_their_span() {
        assert_eq!(number_ids(&[]), (vec![], vec![]));
        assert_eq!(number_ids(&[7, 3, 7]), (vec![1, 0, 1], vec![3, 7]));
        assert_eq!(number_ids(&[u32::MAX, 0, u32::MAX]), (vec![1, 0, 1], vec![0, u32::MAX]));
    }
}
