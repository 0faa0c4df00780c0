//! How the indices of an epoch are dealt to lanes: each lane in turn has its next sample taken, until it has none left.
//!
//! With lanes of `⌈(n − v) / L⌉` samples, which is how `shard` deals rows, index t is sample `t div L` of lane
//! `t mod L`. Lanes of other lengths (groups that stay on one node) have a table of the distinct lengths
//! 0 = h₀ < h₁ < …: of the A_j lanes longer than h_j, in order of length, index t of [T_j, T_j₊₁) is sample
//! `h_j + (t − T_j) div A_j` of lane number `(t − T_j) mod A_j`, where T_j is the sum of `min(length, h_j)`. The first
//! rule is the second for such lanes, without the search.

use std::ops::Range;

/// Indices of an epoch ⟷ (lane, ordinal in the lane's order), a bijection for any lengths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interleave {
    rows: u64,
    lanes: u32,
    /// `None` for lanes of `⌈(rows − v) / lanes⌉` samples.
    uneven: Option<Uneven>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Uneven {
    /// Lanes by length, longest first, ties by number.
    order: Vec<u32>,
    /// Where each lane is in `order`.
    place: Vec<u32>,
    lengths: Vec<u64>,
    /// Not empty when there is a sample.
    segments: Vec<Segment>,
}

/// Indices over which the same lanes take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// First index, T_j.
    pub(crate) start: u64,
    /// Samples that each of its lanes has had before, h_j.
    pub(crate) before: u64,
    /// Lanes that take turns, A_j, at least 1.
    pub(crate) lanes: u64,
}

impl Interleave {
    /// Lanes of these lengths, in samples; `None` when their sum is above 2^64 − 1 or there are more than 2^32 − 1.
    #[must_use]
    pub fn new(lengths: &[u64]) -> Option<Self> {
        let lanes = u32::try_from(lengths.len()).ok()?;
        let rows = lengths.iter().try_fold(0_u64, |sum, length| sum.checked_add(*length))?;
        let even = |lane: u32| rows.saturating_sub(u64::from(lane)).div_ceil(u64::from(lanes));
        let is_even = (0..lanes).zip(lengths).all(|(lane, length)| *length == even(lane));
        Some(Self { rows, lanes, uneven: (!is_even).then(|| Uneven::new(lanes, lengths)) })
    }

    /// Samples of all lanes.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether lane v has `⌈(n − v) / L⌉` samples, for every v: then lanes take turns to the end of the epoch.
    #[must_use]
    pub fn is_even(&self) -> bool {
        self.uneven.is_none()
    }

    /// Lane and ordinal of index `t`; `None` past the end.
    #[must_use]
    pub fn at(&self, t: u64) -> Option<(u32, u64)> {
        if t >= self.rows {
            return None;
        }
        match &self.uneven {
            None => {
                let lanes = u64::from(self.lanes);
                Some(((t % lanes) as u32, t / lanes))
            }
            Some(uneven) => {
                let segment = uneven.segment_of(t)?;
                let (turn, place) = ((t - segment.start) / segment.lanes, (t - segment.start) % segment.lanes);
                Some((*uneven.order.get(place as usize)?, segment.before + turn))
            }
        }
    }

    /// Index of sample `ordinal` of `lane`, the inverse of [`Interleave::at`]. What an ordinal past the lane's end
    /// gives lies past the lane's last index and is of no further meaning.
    #[must_use]
    pub fn index(&self, lane: u32, ordinal: u64) -> u64 {
        match &self.uneven {
            None => ordinal.saturating_mul(u64::from(self.lanes)).saturating_add(u64::from(lane)),
            Some(uneven) => {
                let at = uneven.segments.partition_point(|s| s.before <= ordinal);
                let Some(segment) = at.checked_sub(1).and_then(|at| uneven.segments.get(at)) else { return 0 };
                let place = uneven.place.get(lane as usize).copied().unwrap_or(0);
                let turns = (ordinal - segment.before).saturating_mul(segment.lanes);
                segment.start.saturating_add(turns).saturating_add(u64::from(place))
            }
        }
    }

    /// Samples of `lane` among the indices below `t`.
    #[must_use]
    pub fn before(&self, lane: u32, t: u64) -> u64 {
        match &self.uneven {
            None => t.min(self.rows).saturating_sub(u64::from(lane)).div_ceil(u64::from(self.lanes.max(1))),
            Some(uneven) => {
                let (Some(place), Some(length)) =
                    (uneven.place.get(lane as usize), uneven.lengths.get(lane as usize).copied())
                else {
                    return 0;
                };
                match uneven.segment_of(t).filter(|s| t < self.rows && u64::from(*place) < s.lanes) {
                    Some(s) => s.before + (t - s.start).saturating_sub(u64::from(*place)).div_ceil(s.lanes),
                    // It has had its last turn.
                    None => length,
                }
            }
        }
    }

    /// Samples of `lane` among the indices `range`, as ordinals of the lane's order.
    #[must_use]
    pub fn ordinals(&self, lane: u32, range: &Range<u64>) -> Range<u64> {
        self.before(lane, range.start)..self.before(lane, range.end)
    }

    /// The stretches of an epoch over which the same lanes take turns, at least one when there is a sample; even lanes
    /// are one.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        match &self.uneven {
            None if self.rows == 0 => Vec::new(),
            None => vec![Segment { start: 0, before: 0, lanes: u64::from(self.lanes).min(self.rows) }],
            Some(uneven) => uneven.segments.clone(),
        }
    }
}

impl Uneven {
    fn new(lanes: u32, lengths: &[u64]) -> Self {
        let mut by_length: Vec<(u64, u32)> = lengths.iter().copied().zip(0..lanes).collect();
        by_length.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let order: Vec<u32> = by_length.iter().map(|(_, lane)| *lane).collect();
        let mut place = vec![0; lengths.len()];
        for (at, lane) in (0..lanes).zip(&order) {
            if let Some(place) = place.get_mut(*lane as usize) {
                *place = at;
            }
        }
        let mut segments = Vec::new();
        let (mut start, mut before) = (0, 0);
        // From the shortest on: those at least as long as a distinct length take turns up to it.
        for (at, (length, _)) in by_length.iter().enumerate().rev() {
            if *length > before {
                let lanes = at as u64 + 1;
                segments.push(Segment { start, before, lanes });
                start += lanes * (length - before);
                before = *length;
            }
        }
        Self { order, place, lengths: lengths.to_vec(), segments }
    }

    /// The segment of index `t`; the last one past the end.
    fn segment_of(&self, t: u64) -> Option<&Segment> {
        let at = self.segments.partition_point(|s| s.start <= t);
        self.segments.get(at.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The order as it is defined: rounds over the lanes that have a sample left, longest lane first.
    fn in_turn(lengths: &[u64]) -> Vec<(u32, u64)> {
        let mut lanes: Vec<u32> = (0..lengths.len() as u32).collect();
        lanes.sort_by_key(|lane| std::cmp::Reverse(lengths[*lane as usize]));
        let rounds = lengths.iter().max().copied().unwrap_or(0);
        let of_round =
            |ordinal| lanes.iter().filter(move |l| lengths[**l as usize] > ordinal).map(move |l| (*l, ordinal));
        (0..rounds).flat_map(of_round).collect()
    }

    fn check(lengths: &[u64]) -> Result<(), TestCaseError> {
        let interleave = Interleave::new(lengths).unwrap();
        let want = in_turn(lengths);
        prop_assert_eq!(interleave.rows(), want.len() as u64);
        for (t, at) in (0..).zip(&want) {
            prop_assert_eq!(interleave.at(t), Some(*at));
            prop_assert_eq!(interleave.index(at.0, at.1), t);
        }
        prop_assert_eq!(interleave.at(interleave.rows()), None);
        prop_assert_eq!(interleave.at(u64::MAX), None);
        let mut before = vec![0; lengths.len()];
        for t in 0..=interleave.rows() + 2 {
            for (lane, count) in (0..).zip(&before) {
                prop_assert_eq!(interleave.before(lane, t), *count, "lane {} before {}", lane, t);
                prop_assert_eq!(interleave.ordinals(lane, &(t / 2..t)), interleave.before(lane, t / 2)..*count);
            }
            if let Some((lane, _)) = want.get(t as usize) {
                before[*lane as usize] += 1;
            }
        }
        let starts: Vec<u64> = interleave.segments().iter().map(|s| s.start).collect();
        prop_assert!(starts.is_sorted() && starts.first().is_none_or(|s| *s == 0));
        Ok(())
    }

    proptest! {
        #[test]
        fn any_lengths_are_dealt_in_turn(lengths in proptest::collection::vec(prop_oneof![Just(0_u64), 0_u64..40], 0..12)) {
            check(&lengths)?;
        }

        #[test]
        fn even_lanes_are_the_table_of_their_lengths(rows in 0_u64..200, lanes in 1_u32..12) {
            let lengths: Vec<u64> =
                (0..lanes).map(|v| rows.saturating_sub(u64::from(v)).div_ceil(u64::from(lanes))).collect();
            let even = Interleave::new(&lengths).unwrap();
            prop_assert!(even.is_even());
            check(&lengths)?;
            let table = Interleave { uneven: Some(Uneven::new(lanes, &lengths)), ..even.clone() };
            for t in 0..rows {
                prop_assert_eq!(even.at(t), table.at(t));
                prop_assert_eq!(even.before((t % 7) as u32 % lanes, t), table.before((t % 7) as u32 % lanes, t));
            }
        }
    }

    #[test]
    fn extremes() {
        assert_eq!(Interleave::new(&[u64::MAX, 1]), None);
        let one = Interleave::new(&[0, u64::MAX, 0]).unwrap();
        assert_eq!(one.at(u64::MAX - 1), Some((1, u64::MAX - 1)));
        assert_eq!((one.at(u64::MAX), one.before(1, u64::MAX), one.before(2, u64::MAX)), (None, u64::MAX, 0));
        assert_eq!(one.index(1, u64::MAX - 1), u64::MAX - 1);
        let none = Interleave::new(&[]).unwrap();
        assert_eq!((none.rows(), none.at(0), none.before(0, 5), none.segments().len()), (0, None, 0, 0));
        assert_eq!(Interleave::new(&[0, 0]).unwrap().segments().len(), 0);
    }
}
