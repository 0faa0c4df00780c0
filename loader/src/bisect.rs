//! The place in a range of numbers where a condition begins to hold.

/// The first of `[low, high)` for which `holds`, which holds for all after it too; `high` when there is none.
pub(crate) fn first_where(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_first_that_holds_or_the_end() {
        for first in 0..=9 {
            assert_eq!(first_where(2, 7, |n| n >= first), first.clamp(2, 7));
        }
        assert_eq!(first_where(5, 5, |_| true), 5);
        assert_eq!(first_where(0, u64::MAX, |n| n == u64::MAX), u64::MAX);
    }
}
