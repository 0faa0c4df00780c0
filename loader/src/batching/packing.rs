//! Rows packed into bins of a fixed number of tokens.
//!
//! First fit and best fit pack one window, whose lengths are known, in decreasing order of length (Johnson, Demers,
//! Ullman, Garey and Graham, "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974):
//! rows go into the first, or the fullest, bin that has room. One bin of a window is part-filled whatever is done, so
//! windows of at least 1024 rows are worth it. A row longer than a bin fills whole bins with its first tokens, and its
//! remainder is packed like a row. Concat-and-split has no window: bins are consecutive stretches of the stream of all
//! tokens, all full but the last, and most of them begin inside a row.

use gristmill_shard::{keys::Key, permutation::Permutation};
use serde::{Deserialize, Serialize};

use super::longest_first::longest_first;
use crate::error::{Error, Result};

/// The largest [`Packing::capacity`], in tokens.
pub const CAPACITY_MAX: u32 = 1 << 24;

/// How rows are packed.
// Fields are in byte order of their names: the JSON is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packing {
    /// Tokens of a bin, 1 to [`CAPACITY_MAX`].
    pub capacity: u32,
    /// Rows, or parts of rows, in a bin at most, at least 1; no bound when absent. Not for concat-and-split.
    #[serde(default)]
    pub max_segments: Option<u32>,
    /// The method.
    #[serde(default)]
    pub method: Method,
}

/// Which bin a row goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// In a window, by decreasing length: the first bin that has room.
    FirstFit,
    /// In a window, by decreasing length: the bin with the least room that is enough.
    #[default]
    BestFit,
    /// Bins are consecutive stretches of the stream of all rows, across windows.
    ConcatAndSplit,
}

/// Consecutive tokens of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Ordinal of the row in the window.
    pub row: u32,
    /// The first of the row's tokens.
    pub start: u32,
    /// Tokens; 0 only for a row that has none.
    pub length: u32,
}

/// The bins of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedWindow {
    /// The segments in delivered order.
    pub segments: Vec<Segment>,
    /// Where each bin ends in `segments`.
    pub ends: Vec<u32>,
}

impl PackedWindow {
    /// The segments of bin `number`; none past the last one.
    #[must_use]
    pub fn bin(&self, number: usize) -> &[Segment] {
        let end = |number: usize| self.ends.get(number).map(|end| *end as usize);
        let start = number.checked_sub(1).map_or(Some(0), end);
        start.zip(end(number)).and_then(|(start, end)| self.segments.get(start..end)).unwrap_or_default()
    }
}

/// Bins that rows share, and which one the last part of each row is in.
struct Shared {
    bins: u32,
    /// By row; meaningless for a row that fills whole bins.
    bin_of: Vec<u32>,
}

impl Packing {
    /// Whether the options can be met at all.
    ///
    /// # Errors
    /// A usage error when the capacity is not 1 to [`CAPACITY_MAX`], `max_segments` is 0, or there is one with
    /// concat-and-split.
    pub fn validate(&self) -> Result<()> {
        if !(1..=CAPACITY_MAX).contains(&self.capacity) {
            return Err(Error::usage(
                format!("capacity = {} is not the number of tokens of a bin", self.capacity),
                format!("capacity must be 1 to {CAPACITY_MAX}, usually the length of the model's context"),
            ));
        }
        match (self.max_segments, self.method) {
            (Some(0), _) => Err(Error::usage("max_segments is 0", "max_segments must be at least 1, or be left out")),
            (Some(most), Method::ConcatAndSplit) => Err(Error::usage(
                format!(
                    "max_segments = {most} can't hold for concat-and-split, whose bins are full whatever is in them"
                ),
                "leave max_segments out, or use method = \"best-fit\"",
            )),
            _ => Ok(()),
        }
    }

    /// Bins that [`Packing::pack`] makes of a window of these lengths, in tokens.
    ///
    /// # Errors
    /// As [`Packing::pack`].
    pub fn bins(&self, lengths: &[u32]) -> Result<u64> {
        let (_, whole) = self.check_window(lengths)?;
        Ok(whole + u64::from(self.shared(lengths).bins))
    }

    /// The bins of a window of rows of these `lengths`, in tokens and in plan order.
    ///
    /// Every token is in one segment; a row without tokens is one segment without tokens. Segments of a bin are in plan
    /// order, and the bins are permuted by the key (its stream 0). The parts of a row that is longer than a bin are not
    /// kept together.
    ///
    /// # Errors
    /// A usage error when the options are bad ([`Packing::validate`]); an internal one for concat-and-split, and when
    /// there are more than 2^32 − 1 rows or segments.
    pub fn pack(&self, lengths: &[u32], key: Key) -> Result<PackedWindow> {
        let (segments, whole) = self.check_window(lengths)?;
        let Shared { bins: shared, bin_of } = self.shared(lengths);
        let bins = whole + u64::from(shared);
        let permutation = Permutation::new(key, bins);
        let places: Vec<usize> = (0..bins).map(|bin| permutation.apply(bin) as usize).collect();
        let (shared_places, whole_places) = places.split_at_checked(shared as usize).unwrap_or_default();
        let place_of =
            |row: usize| bin_of.get(row).and_then(|bin| shared_places.get(*bin as usize)).copied().unwrap_or_default();

        // Where each bin begins, by counting; as segments are put in, these become the ends.
        let mut ends = vec![0_u32; bins as usize];
        let mut count = |bin: usize| {
            if let Some(count) = ends.get_mut(bin) {
                *count += 1;
            }
        };
        for (row, length) in lengths.iter().enumerate() {
            if self.remainder(*length).is_some() {
                count(place_of(row));
            }
        }
        whole_places.iter().for_each(|place| count(*place));
        let mut start = 0;
        for end in &mut ends {
            start += std::mem::replace(end, start);
        }
        let mut packed = vec![Segment { row: 0, start: 0, length: 0 }; segments as usize];
        let mut put = |bin: usize, segment: Segment| {
            if let Some(end) = ends.get_mut(bin)
                && let Some(slot) = packed.get_mut(*end as usize)
            {
                *slot = segment;
                *end += 1;
            }
        };
        let mut whole_places = whole_places.iter();
        for (row, length) in (0..).zip(lengths) {
            let mut start = 0;
            for place in whole_places.by_ref().take((length / self.capacity) as usize) {
                put(*place, Segment { row, start, length: self.capacity });
                start += self.capacity;
            }
            if let Some(length) = self.remainder(*length) {
                put(place_of(row as usize), Segment { row, start, length });
            }
        }
        Ok(PackedWindow { segments: packed, ends })
    }

    /// The segments of a window of concat-and-split, in plan order, each with the number of its bin in the stream.
    ///
    /// `first_token` is the number of tokens of the stream before the window. A bin that the window shares with others
    /// is made of what each of them has of it. A row without tokens goes where the token before it went, so that it
    /// never is alone in a bin, unless the stream has no token before it: then it goes to bin 0.
    ///
    /// # Errors
    /// A usage error when the options are bad ([`Packing::validate`]); an internal one for another method, when there
    /// are more than 2^32 − 1 rows, or when the stream has more than 2^64 − 1 tokens.
    pub fn stretch(&self, lengths: &[u32], first_token: u64) -> Result<Vec<(u64, Segment)>> {
        self.validate()?;
        if self.method != Method::ConcatAndSplit {
            return Err(Error::internal("only concat-and-split packs a stream"));
        }
        let tokens: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        if u32::try_from(lengths.len()).is_err() || first_token.checked_add(tokens).is_none() {
            return Err(Error::internal("a window has more than 2^32 - 1 rows or ends after 2^64 - 1 tokens"));
        }
        let capacity = u64::from(self.capacity);
        let mut stretch = Vec::with_capacity(lengths.len());
        // Less than the capacity, so a u32 holds it.
        let (mut bin, mut used) = (first_token / capacity, (first_token % capacity) as u32);
        for (row, row_length) in (0..).zip(lengths) {
            if *row_length == 0 {
                let bin = if used == 0 { bin.saturating_sub(1) } else { bin };
                stretch.push((bin, Segment { row, start: 0, length: 0 }));
            }
            let mut start = 0;
            while start < *row_length {
                let length = (self.capacity - used).min(row_length - start);
                stretch.push((bin, Segment { row, start, length }));
                start += length;
                used += length;
                if used == self.capacity {
                    (bin, used) = (bin + 1, 0);
                }
            }
        }
        Ok(stretch)
    }

    /// What is left of a row after its whole bins, to go with others; `None` when nothing is.
    fn remainder(&self, length: u32) -> Option<u32> {
        let remainder = length % self.capacity.max(1);
        (remainder > 0 || length == 0).then_some(remainder)
    }

    /// Segments of a window, and how many of them are a whole bin.
    fn check_window(&self, lengths: &[u32]) -> Result<(u32, u64)> {
        self.validate()?;
        if self.method == Method::ConcatAndSplit {
            return Err(Error::internal("concat-and-split does not pack by windows"));
        }
        let whole: u64 = lengths.iter().map(|length| u64::from(length / self.capacity)).sum();
        let remainders = lengths.iter().filter(|length| self.remainder(**length).is_some()).count() as u64;
        match (u32::try_from(lengths.len()), u32::try_from(whole.saturating_add(remainders))) {
            (Ok(_), Ok(segments)) => Ok((segments, whole)),
            _ => Err(Error::internal("a window has more than 2^32 - 1 rows or segments")),
        }
    }

    /// Packs the remainders, longest first.
    fn shared(&self, lengths: &[u32]) -> Shared {
        let remainders = (0..).zip(lengths).filter_map(|(row, length)| Some((row, self.remainder(*length)?)));
        let (sorted, rows) = longest_first(remainders);
        let mut bin_of = vec![0; lengths.len()];
        let most = self.max_segments.unwrap_or(u32::MAX);
        let tokens = sorted.iter().map(|length| u64::from(*length)).sum();
        let mut bins = match self.method {
            Method::FirstFit => Bins::First(FirstFit::new(self.capacity, tokens)),
            _ => Bins::Best(BestFit::new(self.capacity)),
        };
        let mut segments: Vec<u32> = Vec::new();
        for (length, row) in sorted.into_iter().zip(rows) {
            let (bin, room) = bins.take(length);
            if bin as usize == segments.len() {
                segments.push(0);
            }
            if let (Some(segments), Some(bin_of)) = (segments.get_mut(bin as usize), bin_of.get_mut(row as usize)) {
                *segments += 1;
                *bin_of = bin;
                bins.put(bin, (*segments < most).then_some(room - length));
            }
        }
        // As many as there are rows at most.
        Shared { bins: segments.len() as u32, bin_of }
    }
}

/// The bins of a window by their room.
enum Bins {
    First(FirstFit),
    Best(BestFit),
}

impl Bins {
    /// A bin with room for `length` tokens, and its room: taken out until it is put back. A new bin has the next
    /// number.
    fn take(&mut self, length: u32) -> (u32, u32) {
        match self {
            Self::First(bins) => bins.take(length),
            Self::Best(bins) => bins.take(length),
        }
    }

    /// Puts back a bin that was taken; `None` when it is closed.
    fn put(&mut self, bin: u32, room: Option<u32>) {
        match self {
            Self::First(bins) => bins.put(bin, room),
            Self::Best(bins) => bins.put(bin, room),
        }
    }
}

/// The first bin that has room, by a tree of maxima over bins in order of their numbers.
struct FirstFit {
    /// Room of a new bin.
    capacity: u32,
    /// A power of two; the leaves are the second half of `tree`.
    leaves: usize,
    /// Node i has the children 2i and 2i + 1. Room + 1 of a bin, 0 of a closed one; of an inner node, the maximum. Bins
    /// that are not in use yet have room like new ones.
    tree: Vec<u32>,
}

impl FirstFit {
    /// No bins, in a tree for about as many as `tokens` fill.
    fn new(capacity: u32, tokens: u64) -> Self {
        let bins = usize::try_from(tokens / u64::from(capacity.max(1))).unwrap_or(0);
        // The tree doubles when the guess was too low.
        let leaves = (bins + bins / 16 + 1).next_power_of_two();
        Self { capacity, leaves, tree: vec![capacity + 1; 2 * leaves] }
    }

    fn take(&mut self, length: u32) -> (u32, u32) {
        // Room + 1 is above the length when the room is enough, and 0 is above no length.
        while self.tree.get(1).is_none_or(|most| *most <= length) {
            self.double();
        }
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            if self.tree[node] <= length {
                node += 1;
            }
        }
        // Fewer bins than rows, which are counted by u32.
        ((node - self.leaves) as u32, self.tree[node] - 1)
    }

    fn put(&mut self, bin: u32, room: Option<u32>) {
        let mut node = self.leaves + bin as usize;
        self.tree[node] = room.map_or(0, |room| room + 1);
        while node > 1 {
            node /= 2;
            let most = self.tree[2 * node].max(self.tree[2 * node + 1]);
            if self.tree[node] == most {
                break;
            }
            self.tree[node] = most;
        }
    }

    fn double(&mut self) {
        let mut tree = vec![self.capacity + 1; 4 * self.leaves];
        tree[2 * self.leaves..3 * self.leaves].copy_from_slice(&self.tree[self.leaves..]);
        self.leaves *= 2;
        for node in (1..self.leaves).rev() {
            tree[node] = tree[2 * node].max(tree[2 * node + 1]);
        }
        self.tree = tree;
    }
}

/// The bin with the least room that is enough, by a stack of bins for each room. Among equals it is the last one put
/// back.
struct BestFit {
    /// By room: 1 + the bin on top of the stack; 0 for none.
    top: Vec<u32>,
    /// By bin: 1 + the bin below it in its stack.
    below: Vec<u32>,
    /// The rooms of which there is a bin.
    rooms: RoomSet,
}

impl BestFit {
    fn new(capacity: u32) -> Self {
        let rooms = capacity as usize + 1;
        Self { top: vec![0; rooms], below: Vec::new(), rooms: RoomSet::new(rooms) }
    }

    fn take(&mut self, length: u32) -> (u32, u32) {
        let Some(room) = self.rooms.first_from(length as usize) else {
            let bin = self.below.len();
            self.below.push(0);
            // Fewer bins than rows, and less room than a capacity: both are u32.
            return (bin as u32, (self.top.len() - 1) as u32);
        };
        let bin = self.top[room] - 1;
        self.top[room] = self.below[bin as usize];
        if self.top[room] == 0 {
            self.rooms.remove(room);
        }
        (bin, room as u32)
    }

    fn put(&mut self, bin: u32, room: Option<u32>) {
        let Some(room) = room.map(|room| room as usize) else { return };
        self.below[bin as usize] = self.top[room];
        self.top[room] = bin + 1;
        self.rooms.insert(room);
    }
}

/// A set of small numbers that finds the next one: bits, and above them a bit for each word that is not 0, and so on.
struct RoomSet {
    /// From the bits of the numbers up to a single word.
    levels: Vec<Vec<u64>>,
}

impl RoomSet {
    /// An empty set of numbers below `numbers`.
    fn new(numbers: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = numbers.div_ceil(64).max(1);
        levels.push(vec![0; words]);
        while words > 1 {
            words = words.div_ceil(64);
            levels.push(vec![0; words]);
        }
        Self { levels }
    }

    fn insert(&mut self, number: usize) {
        let mut at = number;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    fn remove(&mut self, number: usize) {
        let mut at = number;
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                break;
            }
            at /= 64;
        }
    }

    /// The least number that is at least `from`.
    fn first_from(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(at / 64)? & (u64::MAX << (at % 64));
            if word != 0 {
                let found = at / 64 * 64 + word.trailing_zeros() as usize;
                let down = |found: usize, level: &Vec<u64>| found * 64 + level[found].trailing_zeros() as usize;
                return Some(self.levels[..height].iter().rev().fold(found, down));
            }
            at = at / 64 + 1;
        }
        None
    }
}

/// Writes which segment each token of a bin is of: 1, 2, … in the order of `segments`, those without tokens counted,
/// and 0 for padding, as attention masks of packed bins are usually made from.
///
/// # Errors
/// An internal error when the segments are more than `out` holds.
pub fn segment_ids(segments: &[Segment], out: &mut [i32]) -> Result<()> {
    fill(segments, out, |id, tokens| tokens.fill(id))
}

/// Writes the position of each token of a bin in its segment, from 0 on, and 0 for padding. They restart in every
/// segment, in those too that continue a row of another bin: what a bin does not hold can't be attended to.
///
/// # Errors
/// An internal error when the segments are more than `out` holds.
pub fn positions(segments: &[Segment], out: &mut [i32]) -> Result<()> {
    fill(segments, out, |_, tokens| (0..).zip(tokens).for_each(|(position, token)| *token = position))
}

/// Hands each segment's part of `out` to `write`, with the segment's number from 1 on, and writes 0 after the last one.
fn fill(segments: &[Segment], out: &mut [i32], write: impl Fn(i32, &mut [i32])) -> Result<()> {
    let mut rest = out;
    for (id, segment) in (1..=i32::MAX).zip(segments) {
        let Some((tokens, after)) = rest.split_at_mut_checked(segment.length as usize) else {
            return Err(Error::internal("a bin has more tokens than its tensor"));
        };
        write(id, tokens);
        rest = after;
    }
    rest.fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::lognormal_lengths;
    use gristmill_shard::keys::Domain;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn key(n: u64) -> Key {
        Key::derive(Domain::Order, 0, &[n])
    }

    fn packing(capacity: u32, method: Method) -> Packing {
        Packing { capacity, max_segments: None, method }
    }

    fn packings() -> impl Strategy<Value = Packing> {
        let max_segments = prop_oneof![Just(None), (1_u32..6).prop_map(Some)];
        (1_u32..60, max_segments, prop_oneof![Just(Method::FirstFit), Just(Method::BestFit)])
            .prop_map(|(capacity, max_segments, method)| Packing { capacity, max_segments, method })
    }

    fn windows() -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::vec(prop_oneof![Just(0_u32), 0_u32..30, 0_u32..200], 0..150)
    }

    /// The bin of each remainder by a search over all bins; the bin with the least room, among equals the one that was
    /// put into last, or the first that has room.
    fn searched(packing: &Packing, lengths: &[u32]) -> Vec<Option<u32>> {
        let mut rows: Vec<usize> = (0..lengths.len())
            .filter(|row| lengths[*row] == 0 || !lengths[*row].is_multiple_of(packing.capacity))
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(lengths[*row] % packing.capacity));
        // Room, segments, and when it was last put into.
        let mut bins: Vec<(u32, u32, usize)> = Vec::new();
        let mut bin_of = vec![None; lengths.len()];
        for (time, row) in rows.into_iter().enumerate() {
            let length = lengths[row] % packing.capacity;
            let open = |bin: &&usize| {
                let (room, segments, _) = bins[**bin];
                room >= length && packing.max_segments.is_none_or(|most| segments < most)
            };
            let numbers: Vec<usize> = (0..bins.len()).collect();
            let found = match packing.method {
                Method::FirstFit => numbers.iter().find(open),
                _ => numbers.iter().filter(open).min_by_key(|bin| (bins[**bin].0, std::cmp::Reverse(bins[**bin].2))),
            };
            let bin = found.copied().unwrap_or_else(|| {
                bins.push((packing.capacity, 0, 0));
                bins.len() - 1
            });
            bins[bin] = (bins[bin].0 - length, bins[bin].1 + 1, time);
            bin_of[row] = Some(bin as u32);
        }
        bin_of
    }

    proptest! {
        #[test]
        fn every_token_is_packed_once(packing in packings(), lengths in windows(), seed in any::<u64>()) {
            let packed = packing.pack(&lengths, key(seed)).unwrap();
            prop_assert_eq!(packing.bins(&lengths).unwrap(), packed.ends.len() as u64);
            prop_assert_eq!(packed.ends.last().copied().unwrap_or(0) as usize, packed.segments.len());
            for number in 0..packed.ends.len() {
                let bin = packed.bin(number);
                prop_assert!(!bin.is_empty());
                prop_assert!(bin.iter().map(|s| s.length).sum::<u32>() <= packing.capacity);
                prop_assert!(bin.len() <= packing.max_segments.unwrap_or(u32::MAX) as usize);
                prop_assert!(bin.is_sorted_by(|a, b| a.row < b.row));
            }
            prop_assert!(packed.bin(packed.ends.len()).is_empty());
            let mut segments = packed.segments;
            segments.sort_unstable_by_key(|s| (s.row, s.start));
            // Of each row from its first token on: whole bins, then the remainder.
            let mut segments = segments.into_iter().peekable();
            for (row, length) in (0..).zip(&lengths) {
                let mut at = 0;
                loop {
                    let segment = segments.next().unwrap();
                    prop_assert_eq!((segment.row, segment.start), (row, at));
                    prop_assert_eq!(segment.length, packing.capacity.min(length - at));
                    at += segment.length;
                    if at == *length {
                        break;
                    }
                }
            }
            prop_assert_eq!(segments.next(), None);
        }

        #[test]
        fn bins_are_those_that_a_search_finds(packing in packings(), lengths in windows()) {
            let shared = packing.shared(&lengths);
            let searched = searched(&packing, &lengths);
            prop_assert_eq!(shared.bins, searched.iter().flatten().max().map_or(0, |most| most + 1));
            for (bin, searched) in shared.bin_of.iter().zip(searched) {
                prop_assert!(searched.is_none_or(|searched| searched == *bin));
            }
        }

        #[test]
        fn a_stream_is_cut_every_capacity_tokens_whatever_its_windows(
            capacity in 1_u32..60, windows in proptest::collection::vec(windows(), 0..5), before in 0_u64..200,
        ) {
            let packing = packing(capacity, Method::ConcatAndSplit);
            let mut at = before;
            for lengths in &windows {
                let mut segments = packing.stretch(lengths, at).unwrap().into_iter();
                for (row, length) in (0..).zip(lengths) {
                    let mut start = 0;
                    loop {
                        let (bin, segment) = segments.next().unwrap();
                        prop_assert_eq!((segment.row, segment.start), (row, start));
                        let first = if *length == 0 { at.saturating_sub(1) } else { at };
                        prop_assert_eq!(bin, first / u64::from(capacity));
                        start += segment.length;
                        at += u64::from(segment.length);
                        // It ends with its row, or where its bin does.
                        prop_assert!(start == *length || (segment.length > 0 && at % u64::from(capacity) == 0));
                        prop_assert!(segment.length == 0 || (at - 1) / u64::from(capacity) == bin);
                        if start == *length {
                            break;
                        }
                    }
                }
                prop_assert_eq!(segments.next(), None);
            }
            // Any cut of the stream into windows gives the same bins.
            let rows: Vec<u32> = windows.concat();
            let strip = |stretch: Vec<(u64, Segment)>| -> Vec<_> {
                stretch.into_iter().map(|(bin, segment)| (bin, segment.start, segment.length)).collect()
            };
            let mut parts = Vec::new();
            let mut at = before;
            for lengths in &windows {
                parts.extend(strip(packing.stretch(lengths, at).unwrap()));
                at += lengths.iter().map(|length| u64::from(*length)).sum::<u64>();
            }
            prop_assert_eq!(parts, strip(packing.stretch(&rows, before).unwrap()));
        }

        #[test]
        fn the_set_of_rooms_finds_the_next(
            numbers in prop_oneof![1_usize..70, 4000_usize..4200, 262_100_usize..262_200],
            steps in proptest::collection::vec(any::<(bool, prop::sample::Index, prop::sample::Index)>(), 0..80),
        ) {
            let (mut set, mut reference) = (RoomSet::new(numbers), BTreeSet::new());
            for (insert, number, from) in steps {
                let number = number.index(numbers);
                if insert {
                    set.insert(number);
                    reference.insert(number);
                } else if let Some(number) = reference.range(number..).next().copied() {
                    set.remove(number);
                    reference.remove(&number);
                }
                let from = from.index(numbers);
                for from in [from, number, number + 1] {
                    prop_assert_eq!(set.first_from(from), reference.range(from..).next().copied());
                }
            }
        }

        #[test]
        fn ids_and_positions_tell_the_segments(
            lengths in proptest::collection::vec(0_u32..9, 0..9), padding in 0_usize..9,
        ) {
            let segment = |length: &u32| Segment { row: 0, start: 3, length: *length };
            let segments: Vec<Segment> = lengths.iter().map(segment).collect();
            let total = lengths.iter().sum::<u32>() as usize;
            let (mut ids, mut places) = (vec![-1; total + padding], vec![-1; total + padding]);
            segment_ids(&segments, &mut ids).unwrap();
            positions(&segments, &mut places).unwrap();
            let want: Vec<(i32, i32)> = (1..)
                .zip(&lengths)
                .flat_map(|(id, length)| (0..*length as i32).map(move |position| (id, position)))
                .chain(std::iter::repeat_n((0, 0), padding))
                .collect();
            prop_assert!(ids.into_iter().zip(places).eq(want));
            if total > 0 {
                prop_assert!(segment_ids(&segments, &mut vec![0; total - 1]).is_err());
                prop_assert!(positions(&segments, &mut vec![0; total - 1]).is_err());
            }
        }
    }

    #[test]
    fn a_tree_that_was_too_small_doubles() {
        let mut bins = FirstFit::new(10, 0);
        for bin in 0..9 {
            assert_eq!(bins.take(6), (bin, 10));
            bins.put(bin, if bin == 4 { None } else { Some(4) });
        }
        for bin in [0, 1, 2, 3, 5, 6, 7, 8] {
            assert_eq!(bins.take(4), (bin, 4));
            bins.put(bin, Some(0));
        }
        assert_eq!((bins.take(0), bins.take(10)), ((0, 0), (9, 10)));
    }

    #[test]
    fn documents_fill_their_bins() {
        for (window, capacity) in [(1024, 2048), (1024, 4096), (4096, 2048), (4096, 4096)] {
            for method in [Method::FirstFit, Method::BestFit] {
                let (mut tokens, mut room) = (0, 0);
                for seed in 0..4 {
                    let lengths = lognormal_lengths(seed, window);
                    tokens += lengths.iter().map(|length| u64::from(*length)).sum::<u64>();
                    room += packing(capacity, method).bins(&lengths).unwrap() * u64::from(capacity);
                }
                assert!(tokens * 1000 >= room * 993, "{method:?} {window} {capacity}: {tokens} of {room}");
            }
        }
    }

    #[test]
    fn bins_are_permuted_by_the_key() {
        let lengths = lognormal_lengths(0, 500);
        let bins = |seed| {
            let packed = packing(2048, Method::BestFit).pack(&lengths, key(seed)).unwrap();
            (0..packed.ends.len()).map(|number| packed.bin(number).to_vec()).collect::<Vec<_>>()
        };
        let (one, mut other) = (bins(1), bins(2));
        assert_eq!(one, bins(1));
        assert_ne!(one, other);
        let mut sorted = one.clone();
        let order = |bin: &Vec<Segment>| (bin[0].row, bin[0].start);
        sorted.sort_by_key(order);
        other.sort_by_key(order);
        assert_eq!(sorted, other);
    }

    #[test]
    fn reference_values() {
        let lengths = [6, 23, 4, 0, 10, 5, 3, 2];
        let rows = |method| {
            let packed = packing(10, method).pack(&lengths, key(0)).unwrap();
            (0..packed.ends.len())
                .map(|number| packed.bin(number).iter().map(|s| (s.row, s.start, s.length)).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        let whole = [vec![(4, 0, 10)], vec![(1, 0, 10)], vec![(1, 10, 10)]];
        let [a, b, c] = whole.clone();
        let (small, full, last) =
            (vec![(6, 0, 3)], vec![(1, 20, 3), (5, 0, 5), (7, 0, 2)], vec![(0, 0, 6), (2, 0, 4), (3, 0, 0)]);
        assert_eq!(rows(Method::FirstFit), [full, a, b, small.clone(), c, last]);
        // Of two full bins, the row without tokens goes to the one that was put into last.
        let [a, b, c] = whole;
        let (full, last) = (vec![(1, 20, 3), (3, 0, 0), (5, 0, 5), (7, 0, 2)], vec![(0, 0, 6), (2, 0, 4)]);
        assert_eq!(rows(Method::BestFit), [full, a, b, small, c, last]);
    }

    #[test]
    fn rows_without_tokens_go_where_the_token_before_went() {
        let packing = packing(4, Method::ConcatAndSplit);
        let bins = |lengths: &[u32], first| -> Vec<u64> {
            packing.stretch(lengths, first).unwrap().into_iter().map(|(bin, _)| bin).collect()
        };
        assert_eq!(bins(&[0, 4, 0, 0, 5, 0], 0), [0, 0, 0, 0, 1, 2, 2]);
        assert_eq!(bins(&[0], 8), [1]);
        assert_eq!(bins(&[0], 9), [2]);
    }

    #[test]
    fn extremes() {
        for method in [Method::FirstFit, Method::BestFit] {
            let largest = packing(CAPACITY_MAX, method);
            let empty = largest.pack(&[], key(0)).unwrap();
            assert_eq!((empty.ends.len(), largest.bins(&[]).unwrap()), (0, 0));
            // 2^32 − 1 tokens are 255 whole bins and all but one token of another.
            assert_eq!(largest.bins(&[u32::MAX, 1, 0]).unwrap(), 256);
            let last = largest.pack(&[u32::MAX, 1, 0], key(0)).unwrap();
            assert_eq!(last.segments.iter().map(|s| u64::from(s.length)).sum::<u64>(), 1 << 32);
            assert!(packing(1, method).bins(&[u32::MAX, 1]).is_err());
            assert_eq!(packing(1, method).bins(&[u32::MAX]).unwrap(), u64::from(u32::MAX));
            assert_eq!(Packing { max_segments: Some(2), ..packing(9, method) }.bins(&[0; 5]).unwrap(), 3);
            assert!(packing(9, method).stretch(&[1], 0).is_err());
        }
        let stream = packing(7, Method::ConcatAndSplit);
        assert!(stream.bins(&[1]).is_err() && stream.pack(&[1], key(0)).is_err());
        assert!(stream.stretch(&[2], u64::MAX - 1).is_err());
        assert_eq!(stream.stretch(&[1], u64::MAX - 1).unwrap().len(), 1);
    }

    #[test]
    fn bad_options_are_refused() {
        let with = |capacity, max_segments, method| Packing { capacity, max_segments, method };
        for (bad, what) in [
            (with(0, None, Method::BestFit), "capacity = 0"),
            (with(CAPACITY_MAX + 1, None, Method::FirstFit), "capacity = 16777217"),
            (with(5, Some(0), Method::FirstFit), "max_segments is 0"),
            (with(5, Some(3), Method::ConcatAndSplit), "can't hold for concat-and-split"),
        ] {
            let error = bad.validate().unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            assert!(bad.bins(&[1]).is_err() && bad.pack(&[1], key(0)).is_err() && bad.stretch(&[1], 0).is_err());
        }
        with(CAPACITY_MAX, Some(1), Method::FirstFit).validate().unwrap();
    }

    #[test]
    fn options_are_json_in_byte_order_of_their_names() {
        let packing = Packing { max_segments: Some(3), ..packing(2048, Method::FirstFit) };
        let json = r#"{"capacity":2048,"max_segments":3,"method":"first-fit"}"#;
        assert_eq!(serde_json::to_string(&packing).unwrap(), json);
        assert_eq!(serde_json::from_str::<Packing>(json).unwrap(), packing);
        assert_eq!(serde_json::to_string(&Method::ConcatAndSplit).unwrap(), r#""concat-and-split""#);
        let short: Packing = serde_json::from_str(r#"{"capacity":9}"#).unwrap();
        assert_eq!(short, Packing { capacity: 9, max_segments: None, method: Method::BestFit });
        assert!(serde_json::from_str::<Packing>(r#"{"capacity":9,"bins":1}"#).is_err());
    }
}
