//! Sizes of a row of blocks that are mostly alike: where each begins, and which holds an ordinal, in memory for the
//! others only.

/// Sizes of `count` blocks: `common`, but for a list of exceptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    count: u64,
    common: u64,
    /// In order of the block.
    exceptions: Vec<Exception>,
    total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Exception {
    block: u64,
    size: u64,
    /// Sum of the sizes of the blocks before it.
    start: u64,
}

impl Sizes {
    /// Blocks of these sizes.
    #[must_use]
    pub fn of(sizes: &[u64]) -> Self {
        let mut sorted = sizes.to_vec();
        sorted.sort_unstable();
        let runs = sorted.chunk_by(|a, b| a == b);
        let common = runs.max_by_key(|run| run.len()).and_then(|run| run.first()).copied().unwrap_or(0);
        let others = (0..).zip(sizes).filter(|(_, size)| **size != common).map(|(block, size)| (block, *size));
        Self::with_exceptions(sizes.len() as u64, common, others)
    }

    /// `total` in blocks of `size` (at least 1), the last one of what is left.
    #[must_use]
    pub fn cut(total: u64, size: u64) -> Self {
        let size = size.max(1);
        let last = total % size;
        let short = (last > 0).then_some((total / size, last));
        Self::with_exceptions(total.div_ceil(size), size, short)
    }

    /// `count` blocks of `common`, but for `exceptions`, (block, size) in order of the block.
    pub(crate) fn with_exceptions(count: u64, common: u64, exceptions: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut sizes = Self { count, common, exceptions: Vec::new(), total: 0 };
        for (block, size) in exceptions {
            let start = sizes.start(block);
            sizes.exceptions.push(Exception { block, size, start });
        }
        sizes.total = sizes.start(count);
        sizes
    }

    /// Blocks.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of all sizes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Size of `block`; 0 for one that is not there.
    #[must_use]
    pub fn size(&self, block: u64) -> u64 {
        if block >= self.count {
            return 0;
        }
        match self.exceptions.binary_search_by_key(&block, |e| e.block) {
            Ok(at) => self.exceptions.get(at).map_or(self.common, |e| e.size),
            Err(_) => self.common,
        }
    }

    /// Sum of the sizes of the blocks before `block`.
    #[must_use]
    pub fn start(&self, block: u64) -> u64 {
        let block = block.min(self.count);
        let at = self.exceptions.partition_point(|e| e.block < block);
        match at.checked_sub(1).and_then(|at| self.exceptions.get(at)) {
            None => block.saturating_mul(self.common),
            Some(e) => (e.start + e.size).saturating_add((block - e.block - 1).saturating_mul(self.common)),
        }
    }

    /// The block that holds `ordinal`; the number of blocks past the end. Never one of size 0.
    #[must_use]
    pub fn block_of(&self, ordinal: u64) -> u64 {
        if ordinal >= self.total {
            return self.count;
        }
        let at = self.exceptions.partition_point(|e| e.start <= ordinal);
        let common = self.common.max(1);
        match at.checked_sub(1).and_then(|at| self.exceptions.get(at)) {
            None => ordinal / common,
            Some(e) if ordinal < e.start + e.size => e.block,
            Some(e) => e.block + 1 + (ordinal - e.start - e.size) / common,
        }
    }

    /// Sizes, largest first, at most `most` of them.
    pub(crate) fn largest_first(&self, most: usize) -> Vec<u64> {
        let alike = self.count - self.exceptions.len() as u64;
        let alike = usize::try_from(alike).unwrap_or(usize::MAX).min(most);
        let mut sizes: Vec<u64> = self.exceptions.iter().map(|e| e.size).collect();
        sizes.extend(std::iter::repeat_n(self.common, alike));
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.truncate(most);
        sizes
    }

    /// The same blocks in another order: `place` gives where a block goes, and `block` what is at a place. Asks for the
    /// exceptions' places only, or for all blocks where they are few (`all` says so).
    pub(crate) fn permuted(&self, all: bool, block: impl Fn(u64) -> u64, place: impl Fn(u64) -> u64) -> Self {
        if self.exceptions.is_empty() {
            return self.clone();
        }
        let mut moved: Vec<(u64, u64)> = if all {
            let moved = (0..self.count).map(|at| (at, self.size(block(at))));
            moved.filter(|(_, size)| *size != self.common).collect()
        } else {
            self.exceptions.iter().map(|e| (place(e.block), e.size)).collect()
        };
        moved.sort_unstable();
        Self::with_exceptions(self.count, self.common, moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(sizes: &Sizes, want: &[u64]) -> Result<(), TestCaseError> {
        prop_assert_eq!(sizes.count(), want.len() as u64);
        let (mut start, mut ordinal) = (0, 0);
        for (block, size) in (0..).zip(want) {
            prop_assert_eq!((sizes.size(block), sizes.start(block)), (*size, start));
            for _ in 0..*size {
                prop_assert_eq!(sizes.block_of(ordinal), block);
                ordinal += 1;
            }
            start += size;
        }
        prop_assert_eq!((sizes.total(), sizes.start(sizes.count())), (start, start));
        prop_assert_eq!((sizes.block_of(start), sizes.size(sizes.count())), (sizes.count(), 0));
        let mut sorted = want.to_vec();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        prop_assert_eq!(&sizes.largest_first(usize::MAX), &sorted);
        sorted.truncate(2);
        prop_assert_eq!(&sizes.largest_first(2), &sorted);
        Ok(())
    }

    proptest! {
        #[test]
        fn starts_are_sums_and_blocks_hold_their_ordinals(
            want in proptest::collection::vec(prop_oneof![Just(0_u64), Just(3), Just(4), 0_u64..9], 0..20), by in 1_u64..7,
        ) {
            check(&Sizes::of(&want), &want)?;
            let total: u64 = want.iter().sum();
            let cut: Vec<u64> = (0..total.div_ceil(by)).map(|i| by.min(total - i * by)).collect();
            check(&Sizes::cut(total, by), &cut)?;
            // Blocks in another order, asked for in both ways.
            let count = want.len() as u64;
            let turn = |at: u64| (at + 3) % count;
            let back = |block: u64| (block + 3 * count - 3) % count;
            let moved: Vec<u64> = (0..count).map(|at| want[turn(at) as usize]).collect();
            for all in [true, false] {
                check(&Sizes::of(&want).permuted(all, turn, back), &moved)?;
            }
        }
    }

    #[test]
    fn a_trillion_rows_cost_no_memory() {
        let sizes = Sizes::cut(1_000_000_000_001, 65_536);
        assert_eq!(sizes.exceptions.len(), 1);
        let (block, ordinal) = (sizes.block_of(1_000_000_000_000), sizes.start(15_258_789));
        assert_eq!((block, ordinal), (15_258_789, 999_999_995_904));
    }
}
