//! Rows by length, longest first.

/// The lengths of `rows`, pairs (row, length), from the longest on, and beside them the rows; ties by row.
pub(super) fn longest_first(rows: impl Iterator<Item = (u32, u32)>) -> (Vec<u32>, Vec<u32>) {
    // One word a row is sorted several times faster than an index that looks lengths up.
    let mut keys: Vec<u64> = rows.map(|(row, length)| (u64::from(!length) << 32) | u64::from(row)).collect();
    keys.sort_unstable();
    // The two halves of a key: no bit is lost.
    keys.iter().map(|key| (!((key >> 32) as u32), *key as u32)).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_are_in_order_of_rows() {
        let rows = [(9, 5), (2, 0), (1, 7), (4, 5), (0, u32::MAX)];
        assert_eq!(longest_first(rows.into_iter()), (vec![u32::MAX, 7, 5, 5, 0], vec![0, 1, 4, 9, 2]));
        assert_eq!(longest_first(std::iter::empty()), (vec![], vec![]));
    }
}
