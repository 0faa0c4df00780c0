//! A mixture of sources as a function of (epoch, index).
//!
//! Stages are parts of the first epoch only; every later epoch has the weights of the last stage, the same length and
//! takes the same number of rows of each source. Turns start anew at each stage and epoch, so that at every prefix of
//! these each source is within one sample of its share; what one later epoch is off by, all are. Sources keep their own
//! passes: an epoch goes on in each source where the epoch before left it, and so each row of a source is drawn once in
//! each pass. The draws of source s before epoch e ≥ 1 are `first_s + (e − 1)·later_s`, and nothing else needs to be
//! known to begin anywhere.

use std::{ops::Range, sync::Arc};

use crate::{
    error::{Error, Result},
    mixture::{
        options::{MixOptions, Stop},
        schedule::{Schedule, Stage},
        turns::Turns,
        weights::coprime,
    },
};

/// A sample of a mixture: a row of a pass over a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Draw {
    /// Ordinal of the source.
    pub source: u32,
    /// The source's own epoch, from 0.
    pub pass: u64,
    /// Index in that pass, below the source's rows.
    pub index: u64,
}

/// Consecutive indices of a pass over a source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SourceRange {
    /// Ordinal of the source.
    pub source: u32,
    /// The source's own epoch, from 0.
    pub pass: u64,
    /// Indices in that pass; not empty.
    pub range: Range<u64>,
}

/// What an epoch takes of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Taken {
    /// Samples of the epoch that are of the source.
    pub draws: u64,
    /// Passes over the source that are complete at the epoch's end, those of epochs before included.
    pub passes: u64,
}

/// A mixture over all epochs. Clones share the tables of turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixture {
    /// Rows of one pass of each source.
    rows: Vec<u64>,
    first: Schedule,
    later: Schedule,
    /// Epochs at whose end no source has had more than 2^64 − 1 draws, at least 1.
    epochs: u64,
}

impl Mixture {
    /// The mixture `options` of sources of which a pass has `rows` rows, one number for each source.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that contradict each other or `rows`: another number of weights than sources, a
    /// weight above 0 for a source without rows, a source that is in no stage or that would never be drawn, a stage
    /// without samples, a first epoch that ends before the last stage begins, or an epoch longer than 2^64 − 1 samples.
    pub fn new(rows: &[u64], options: &MixOptions) -> Result<Self> {
        check(rows, options)?;
        let mut stages = Vec::with_capacity(options.stages.len());
        for stage in &options.stages {
            stages.push((Arc::new(Turns::new(&coprime(&stage.weights)?)?), stage.samples.unwrap_or(0)));
        }
        let Some((last, _)) = stages.pop() else {
            return Err(no_stages());
        };
        let first = Schedule::new(&stages, Arc::clone(&last), options.stop, rows)?;
        let later = if stages.is_empty() { first.clone() } else { Schedule::new(&[], last, options.stop, rows)? };
        for source in 0..rows.len() {
            let (schedule, which) = if later.has_turns(source as u32) {
                (&later, "an epoch")
            } else {
                (&first, "the first epoch, whose stages alone have it")
            };
            if schedule.taken()[source] == 0 {
                return Err(Error::usage(
                    format!(
                        "source {source} would have none of the {} samples of {which}, so small is its weight",
                        schedule.length()
                    ),
                    "raise its weight, lengthen the epoch or its stage, or leave the source out",
                ));
            }
        }
        let epochs = first.taken().iter().zip(later.taken()).map(|(first, later)| {
            (u64::MAX - first).checked_div(*later).map_or(u64::MAX, |after_first| after_first.saturating_add(1))
        });
        let epochs = epochs.min().unwrap_or(1);
        Ok(Self { rows: rows.to_vec(), first, later, epochs })
    }

    /// Number of sources.
    #[must_use]
    pub fn sources(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Stages of an epoch, at least one.
    #[must_use]
    pub fn stages(&self, epoch: u64) -> &[Stage] {
        self.schedule(epoch).stages()
    }

    /// Samples of an epoch, the same for all after the first; 0 for an epoch by whose end a source would have had more
    /// than 2^64 − 1 draws.
    #[must_use]
    pub fn length(&self, epoch: u64) -> u64 {
        if epoch < self.epochs { self.schedule(epoch).length() } else { 0 }
    }

    /// What sample `t` of an epoch is; `None` past its end.
    #[must_use]
    pub fn at(&self, epoch: u64, t: u64) -> Option<Draw> {
        if t >= self.length(epoch) {
            return None;
        }
        let (source, k) = self.schedule(epoch).at(t);
        let draw = self.drawn(epoch, source) + k;
        let rows = self.rows[source as usize];
        Some(Draw { source, pass: draw / rows, index: draw % rows })
    }

    /// The epoch and the index in it that `draw` has, the inverse of [`Mixture::at`]; `None` when no epoch has it.
    #[must_use]
    pub fn position(&self, draw: Draw) -> Option<(u64, u64)> {
        let rows = self.rows.get(draw.source as usize).copied().filter(|rows| draw.index < *rows)?;
        let drawn = draw.pass.checked_mul(rows)?.checked_add(draw.index)?;
        let source = draw.source as usize;
        let (epoch, k) = match drawn.checked_sub(self.first.taken()[source]) {
            None => (0, drawn),
            Some(after_first) => {
                let later = self.later.taken()[source];
                (after_first.checked_div(later)?.checked_add(1)?, after_first % later)
            }
        };
        let t = self.schedule(epoch).index(draw.source, k)?;
        (epoch < self.epochs).then_some((epoch, t))
    }

    /// What the samples `range` of an epoch, cut off at its end, are: stretches of passes over sources, by source, then
    /// pass. Their order within a source is that of the samples.
    #[must_use]
    pub fn ranges(&self, epoch: u64, range: Range<u64>) -> Vec<SourceRange> {
        let mut ranges = Vec::new();
        for (source, draws) in self.draws(epoch, range) {
            let (rows, before) = (self.rows[source as usize], self.drawn(epoch, source));
            let (mut start, end) = (before + draws.start, before + draws.end);
            while start < end {
                let (pass, index) = (start / rows, start % rows);
                let count = (rows - index).min(end - start);
                ranges.push(SourceRange { source, pass, range: index..index + count });
                start += count;
            }
        }
        ranges
    }

    /// How many of the samples `range` of an epoch, cut off at its end, are of each source.
    #[must_use]
    pub fn realised(&self, epoch: u64, range: Range<u64>) -> Vec<u64> {
        let mut counts = vec![0; self.rows.len()];
        for (source, draws) in self.draws(epoch, range) {
            counts[source as usize] = draws.end - draws.start;
        }
        counts
    }

    /// What an epoch takes of each source; nothing for an epoch of length 0.
    #[must_use]
    pub fn taken(&self, epoch: u64) -> Vec<Taken> {
        if epoch >= self.epochs {
            return Vec::new();
        }
        let of_source = |((source, draws), rows): ((u32, &u64), &u64)| Taken {
            draws: *draws,
            passes: (self.drawn(epoch, source) + draws) / rows,
        };
        (0..).zip(self.schedule(epoch).taken()).zip(&self.rows).map(of_source).collect()
    }

    /// Bytes that the tables of turns take.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        // The later epochs share the table of the last stage.
        self.first.stages().iter().map(|stage| stage.turns().memory_bytes()).sum()
    }

    fn schedule(&self, epoch: u64) -> &Schedule {
        if epoch == 0 { &self.first } else { &self.later }
    }

    /// Draws of `source` before `epoch`, which is below `epochs`.
    fn drawn(&self, epoch: u64, source: u32) -> u64 {
        let source = source as usize;
        epoch
            .checked_sub(1)
            .map_or(0, |after_first| self.first.taken()[source] + after_first * self.later.taken()[source])
    }

    /// The draws of each source, counted from the epoch's begin, that the samples `range` are; none for a range without
    /// samples.
    fn draws(&self, epoch: u64, range: Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> {
        let end = range.end.min(self.length(epoch));
        let sources = if range.start < end { self.sources() } else { 0 };
        let schedule = self.schedule(epoch);
        (0..sources).map(move |source| (source, schedule.before(source, range.start)..schedule.before(source, end)))
    }
}

fn no_stages() -> Error {
    Error::usage("the mixture has no stages", "give one stage, with a weight for each source")
}

/// What can be said of the options without turns.
fn check(rows: &[u64], options: &MixOptions) -> Result<()> {
    let Some((last, before)) = options.stages.split_last() else {
        return Err(no_stages());
    };
    for (at, stage) in options.stages.iter().enumerate() {
        if stage.weights.len() != rows.len() {
            return Err(Error::usage(
                format!("stage {at} has {} weights, and there are {} sources", stage.weights.len(), rows.len()),
                "give one weight for each source, 0 for a source that is not in the stage",
            ));
        }
    }
    if let Some(at) = before.iter().position(|stage| stage.samples.is_none_or(|samples| samples == 0)) {
        return Err(Error::usage(
            format!("stage {at} has no samples, and it is not the last"),
            "give its samples, 1 or more",
        ));
    }
    if let Some(samples) = last.samples {
        return Err(Error::usage(
            format!("the last stage has samples = {samples}, but its weights hold for all that follows"),
            "leave its samples out; the length of an epoch is given by stop = { samples = N }",
        ));
    }
    for (source, rows) in rows.iter().enumerate() {
        if options.stages.iter().all(|stage| stage.weights[source].is_zero()) {
            return Err(Error::usage(
                format!("source {source} has weight 0 in every stage"),
                "give it a weight above 0 in a stage, or leave the source out",
            ));
        }
        if *rows == 0 {
            return Err(Error::usage(
                format!("source {source} has a weight above 0 and no rows"),
                "leave the source out, or give it rows",
            ));
        }
    }
    if options.stop == Stop::Samples(0) {
        return Err(Error::usage(
            "an epoch of the mixture has 0 samples by stop = { samples = 0 }",
            "give the number of samples, 1 or more",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mixture::{StageOptions, Weight};
    use proptest::prelude::*;

    fn stage(samples: Option<u64>, weights: &[u64]) -> StageOptions {
        StageOptions { samples, weights: weights.iter().copied().map(Weight::from).collect() }
    }

    fn one_stage(weights: &[u64], stop: Stop) -> MixOptions {
        MixOptions { stages: vec![stage(None, weights)], stop }
    }

    fn turns(stage: &StageOptions) -> Turns {
        Turns::new(&coprime(&stage.weights).unwrap()).unwrap()
    }

    /// The mixture as it is defined, sample by sample.
    fn by_scan(rows: &[u64], options: &MixOptions, epochs: u64) -> Vec<Vec<Draw>> {
        let (last, before) = options.stages.split_last().unwrap();
        let mut drawn = vec![0; rows.len()];
        let mut all = Vec::new();
        for epoch in 0..epochs {
            let stages: Vec<&StageOptions> = if epoch == 0 { options.stages.iter().collect() } else { vec![last] };
            let asked = |source: usize| (epoch == 0 && !before.is_empty()) || !last.weights[source].is_zero();
            let mut taken = vec![0; rows.len()];
            let mut draws = Vec::new();
            'epoch: for stage in stages {
                let turns = turns(stage);
                for turn in 0..stage.samples.unwrap_or(u64::MAX) {
                    let source = turns.at(turn).0;
                    let s = source as usize;
                    let ends = match options.stop {
                        Stop::FirstExhausted => taken[s] == rows[s],
                        Stop::AllExhausted => (0..rows.len()).all(|s| taken[s] >= rows[s] || !asked(s)),
                        Stop::Samples(samples) => draws.len() as u64 == samples,
                    };
                    if ends {
                        break 'epoch;
                    }
                    draws.push(Draw { source, pass: drawn[s] / rows[s], index: drawn[s] % rows[s] });
                    drawn[s] += 1;
                    taken[s] += 1;
                }
            }
            all.push(draws);
        }
        all
    }

    fn mixtures() -> impl Strategy<Value = (Vec<u64>, MixOptions, Mixture)> {
        let stop = prop_oneof![
            3 => Just(Stop::FirstExhausted),
            3 => Just(Stop::AllExhausted),
            2 => (1_u64..200).prop_map(Stop::Samples),
        ];
        (1_usize..6, 0_usize..4, stop)
            .prop_flat_map(|(sources, before, stop)| {
                let weights = || proptest::collection::vec(prop_oneof![Just(0_u64), 1_u64..9], sources);
                (
                    proptest::collection::vec(1_u64..60, sources),
                    proptest::collection::vec((1_u64..25, weights()), before),
                    proptest::collection::vec(prop_oneof![1 => Just(0_u64), 9 => 1_u64..9], sources),
                    Just(stop),
                )
            })
            .prop_filter_map("the options are refused", |(rows, before, last, stop)| {
                let mut stages: Vec<_> = before.iter().map(|(samples, w)| stage(Some(*samples), w)).collect();
                stages.push(stage(None, &last));
                let options = MixOptions { stages, stop };
                let mixture = Mixture::new(&rows, &options).ok()?;
                Some((rows, options, mixture))
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn every_lookup_is_a_scan((rows, options, mixture) in mixtures(), cuts in any::<[u64; 6]>()) {
            for (epoch, draws) in (0..).zip(by_scan(&rows, &options, 4)) {
                let length = draws.len() as u64;
                prop_assert_eq!(mixture.length(epoch), length, "epoch {}", epoch);
                for (t, draw) in (0..).zip(&draws) {
                    prop_assert_eq!(mixture.at(epoch, t), Some(*draw), "epoch {} sample {}", epoch, t);
                    prop_assert_eq!(mixture.position(*draw), Some((epoch, t)));
                }
                prop_assert_eq!(mixture.at(epoch, length), None);
                for pair in cuts.chunks_exact(2) {
                    let (a, b) = (pair[0] % (length + 1), pair[1] % (length + 1));
                    let range = a.min(b)..a.max(b);
                    let mut part = draws[range.start as usize..range.end as usize].to_vec();
                    let counts: Vec<u64> = (0..rows.len() as u32)
                        .map(|s| part.iter().filter(|draw| draw.source == s).count() as u64)
                        .collect();
                    prop_assert_eq!(mixture.realised(epoch, range.clone()), counts);
                    // Sorted, they are in the order of the samples within a source, which is what ranges promise.
                    part.sort_by_key(|draw| draw.source);
                    let ranges = mixture.ranges(epoch, range);
                    prop_assert!(ranges.iter().all(|r| !r.range.is_empty()));
                    prop_assert!(ranges.is_sorted_by_key(|r| (r.source, r.pass)));
                    let named: Vec<Draw> = ranges
                        .iter()
                        .flat_map(|r| r.range.clone().map(|index| Draw { source: r.source, pass: r.pass, index }))
                        .collect();
                    prop_assert_eq!(named, part);
                }
                prop_assert_eq!(mixture.ranges(epoch, 0..u64::MAX), mixture.ranges(epoch, 0..length));
                prop_assert_eq!(mixture.ranges(epoch, length..u64::MAX), vec![]);
            }
        }

        #[test]
        fn each_row_is_drawn_once_in_each_pass((rows, _, mixture) in mixtures()) {
            let mut drawn = vec![0; rows.len()];
            for epoch in 0..5 {
                let taken = mixture.taken(epoch);
                let mut draws = vec![0; rows.len()];
                for t in 0..mixture.length(epoch) {
                    let draw = mixture.at(epoch, t).unwrap();
                    let (rows, drawn) = (rows[draw.source as usize], &mut drawn[draw.source as usize]);
                    prop_assert!(draw.index < rows);
                    prop_assert_eq!(draw.pass * rows + draw.index, *drawn);
                    *drawn += 1;
                    draws[draw.source as usize] += 1;
                }
                for (s, taken) in taken.iter().enumerate() {
                    prop_assert_eq!(*taken, Taken { draws: draws[s], passes: drawn[s] / rows[s] });
                }
                prop_assert_eq!(mixture.realised(epoch, 0..u64::MAX), draws);
            }
        }

        #[test]
        fn epochs_end_where_they_must((rows, options, mixture) in mixtures()) {
            let last = turns(options.stages.last().unwrap());
            for epoch in 0..4 {
                let (taken, length) = (mixture.taken(epoch), mixture.length(epoch));
                let final_source = mixture.at(epoch, length - 1).unwrap().source as usize;
                match options.stop {
                    Stop::FirstExhausted => {
                        prop_assert!(taken.iter().zip(&rows).all(|(taken, rows)| taken.draws <= *rows));
                        // One sample more would be one too many of its source.
                        let start = mixture.stages(epoch).last().unwrap().start();
                        let next = last.at(length - start).0 as usize;
                        prop_assert_eq!(taken[next].draws, rows[next]);
                        if options.stages.len() == 1 {
                            let no_pass_begun_early = (0..length).all(|t| mixture.at(epoch, t).unwrap().pass <= epoch);
                            prop_assert!(no_pass_begun_early);
                        }
                    }
                    Stop::AllExhausted => {
                        let asked = |s: usize| epoch == 0 || last.part(s as u32) > 0;
                        prop_assert!((0..rows.len()).all(|s| !asked(s) || taken[s].draws >= rows[s]));
                        // One sample fewer would be one too few of its source.
                        prop_assert_eq!(taken[final_source].draws, rows[final_source]);
                        if options.stages.len() == 1 {
                            prop_assert!(taken.iter().all(|taken| taken.passes > epoch));
                        }
                    }
                    Stop::Samples(samples) => prop_assert_eq!(length, samples),
                }
            }
        }

        #[test]
        fn stages_are_as_long_as_asked_and_within_the_bound((_, options, mixture) in mixtures()) {
            for epoch in 0..3 {
                let skipped = if epoch == 0 { 0 } else { options.stages.len() - 1 };
                let stages: Vec<&StageOptions> = options.stages.iter().skip(skipped).collect();
                prop_assert_eq!(mixture.stages(epoch).len(), stages.len());
                let mut start = 0;
                for (options, stage) in stages.iter().zip(mixture.stages(epoch)) {
                    prop_assert_eq!(stage.start(), start);
                    let end = options.samples.map_or(mixture.length(epoch), |samples| start + samples);
                    prop_assert!(end <= mixture.length(epoch));
                    let parts = coprime(&options.weights).unwrap();
                    let q: u64 = parts.iter().sum();
                    let m = parts.iter().filter(|p| **p > 0).count() as u64;
                    let mut taken = vec![0; parts.len()];
                    for t in start..end {
                        taken[mixture.at(epoch, t).unwrap().source as usize] += 1;
                        for (taken, part) in taken.iter().zip(&parts) {
                            let off = (taken * q).abs_diff((t + 1 - start) * part);
                            let within = if m == 1 { off == 0 } else { off * (2 * m - 2) <= q * (2 * m - 3) };
                            prop_assert!(within);
                        }
                    }
                    prop_assert_eq!(mixture.realised(epoch, start..end), taken);
                    start = end;
                }
                prop_assert_eq!(start, mixture.length(epoch));
            }
        }

        #[test]
        fn refusals_are_of_the_options(
            rows in proptest::collection::vec(0_u64..5, 0..4), stages in proptest::collection::vec(
                (proptest::option::of(0_u64..9), proptest::collection::vec(0_u64..4, 0..4)), 0..3),
            stop in prop_oneof![
                Just(Stop::FirstExhausted), Just(Stop::AllExhausted), (0_u64..9).prop_map(Stop::Samples),
            ],
        ) {
            let stages = stages.iter().map(|(samples, weights)| stage(*samples, weights)).collect();
            let made = Mixture::new(&rows, &MixOptions { stages, stop });
            let fine = matches!(made, Ok(_) | Err(Error::Usage { .. }));
            prop_assert!(fine, "{:?}", made);
        }
    }

    #[test]
    fn a_worked_example() {
        // 7 : 2 : 1 is 0 0 1 0 0 2 0 0 1 0. Source 1 would begin its second pass at sample 12, source 0 at 17.
        let rows = [12, 2, 9];
        let mixture = Mixture::new(&rows, &one_stage(&[7, 2, 1], Stop::FirstExhausted)).unwrap();
        assert_eq!((mixture.length(0), mixture.length(1), mixture.length(77)), (12, 12, 12));
        assert_eq!(mixture.at(0, 11), Some(Draw { source: 0, pass: 0, index: 8 }));
        assert_eq!(mixture.at(1, 3), Some(Draw { source: 0, pass: 0, index: 11 }));
        assert_eq!(mixture.at(1, 4), Some(Draw { source: 0, pass: 1, index: 0 }));
        let range = |source, pass, range| SourceRange { source, pass, range };
        assert_eq!(
            mixture.ranges(1, 2..7),
            [range(0, 0, 11..12), range(0, 1, 0..2), range(1, 1, 0..1), range(2, 0, 1..2)]
        );
        assert_eq!(mixture.realised(1, 2..7), [3, 1, 1]);
        let taken = |draws, passes| Taken { draws, passes };
        assert_eq!(mixture.taken(0), [taken(9, 0), taken(2, 1), taken(1, 0)]);
        assert_eq!(mixture.taken(3), [taken(9, 3), taken(2, 4), taken(1, 0)]);
        // Source 2 has its ninth turn at sample 85.
        let all = Mixture::new(&rows, &one_stage(&[7, 2, 1], Stop::AllExhausted)).unwrap();
        assert_eq!((all.length(0), all.length(1)), (86, 86));
        assert_eq!(all.at(0, 85), Some(Draw { source: 2, pass: 0, index: 8 }));
    }

    #[test]
    fn one_source_then_more_mixed_in() {
        let stages = vec![stage(Some(25), &[1, 0, 0]), stage(Some(10), &[4, 1, 0]), stage(None, &[0, 1, 1])];
        let mixture = Mixture::new(&[10, 6, 6], &MixOptions { stages, stop: Stop::Samples(40) }).unwrap();
        assert_eq!(mixture.realised(0, 0..25), [25, 0, 0]);
        assert_eq!(mixture.realised(0, 25..35), [8, 2, 0]);
        assert_eq!(mixture.realised(0, 35..40), [0, 3, 2]);
        assert_eq!(mixture.taken(1), [(0, 3), (20, 4), (20, 3)].map(|(draws, passes)| Taken { draws, passes }));
        assert_eq!(mixture.at(0, 24), Some(Draw { source: 0, pass: 2, index: 4 }));
        assert_eq!(mixture.at(1, 0), Some(Draw { source: 1, pass: 0, index: 5 }));
        assert_eq!(mixture.position(Draw { source: 0, pass: 3, index: 3 }), None);
        assert_eq!(mixture.position(Draw { source: 1, pass: 0, index: 6 }), None);
        assert_eq!(mixture.position(Draw { source: 3, pass: 0, index: 0 }), None);
        let bytes: u64 = mixture.stages(0).iter().map(|stage| stage.turns().memory_bytes()).sum();
        assert_eq!(mixture.memory_bytes(), bytes);
    }

    #[test]
    fn options_that_contradict_are_refused() {
        let error = |rows: &[u64], stages: Vec<StageOptions>, stop| {
            Mixture::new(rows, &MixOptions { stages, stop }).unwrap_err().to_string()
        };
        let first = Stop::FirstExhausted;
        for (message, what) in [
            (error(&[1], vec![], first), "the mixture has no stages"),
            (error(&[], vec![stage(None, &[])], first), "there are no weights"),
            (error(&[1, 1], vec![stage(None, &[1])], first), "stage 0 has 1 weights, and there are 2 sources"),
            (error(&[1], vec![stage(None, &[1]), stage(None, &[1])], first), "stage 0 has no samples"),
            (error(&[1], vec![stage(Some(0), &[1]), stage(None, &[1])], first), "stage 0 has no samples"),
            (error(&[1], vec![stage(Some(5), &[1])], first), "the last stage has samples = 5"),
            (error(&[1, 0], vec![stage(None, &[1, 2])], first), "source 1 has a weight above 0 and no rows"),
            (error(&[1, 1], vec![stage(None, &[1, 0])], first), "source 1 has weight 0 in every stage"),
            (error(&[5, 5], vec![stage(Some(5), &[0, 0]), stage(None, &[1, 1])], first), "all weights are 0"),
            (error(&[1], vec![stage(None, &[1])], Stop::Samples(0)), "an epoch of the mixture has 0 samples"),
            (
                error(&[5, 5], vec![stage(Some(6), &[1, 0]), stage(None, &[1, 1])], first),
                "the first epoch ends after 5 samples by stop = \"first-exhausted\", and its stage 1 begins after 6",
            ),
            (
                error(&[5, 5], vec![stage(Some(6), &[1, 0]), stage(None, &[1, 1])], Stop::Samples(6)),
                "the first epoch ends after 6 samples by stop = { samples = 6 }, and its stage 1 begins after 6",
            ),
            (
                error(&[5, 5], vec![stage(Some(4), &[1, 0]), stage(None, &[0, 1])], Stop::AllExhausted),
                "source 0 has 5 rows, of which the stages draw 4 before they leave it out",
            ),
            (
                error(&[4, 50], vec![stage(None, &[99, 1])], first),
                "source 1 would have none of the 4 samples of an epoch, so small is its weight",
            ),
            (
                error(&[50, 50], vec![stage(Some(4), &[99, 1]), stage(None, &[1, 0])], first),
                "source 1 would have none of the 50 samples of the first epoch, whose stages alone have it",
            ),
            (
                error(&[5], vec![stage(Some(u64::MAX), &[1]), stage(Some(1), &[1]), stage(None, &[1])], first),
                "the stages are longer than 2^64 - 1 samples in all",
            ),
            (
                error(&[5, u64::MAX], vec![stage(None, &[1, 1])], Stop::AllExhausted),
                "an epoch by stop = \"all-exhausted\" would be longer than 2^64 - 1 samples",
            ),
            (
                error(&[u64::MAX, u64::MAX], vec![stage(None, &[1, 1])], first),
                "an epoch by stop = \"first-exhausted\" would be longer than 2^64 - 1 samples",
            ),
        ] {
            assert!(message.starts_with(what) && message.contains("\n  help: "), "{what}: {message}");
        }
    }

    #[test]
    fn counters_never_overflow() {
        let mixture = Mixture::new(&[u64::MAX], &one_stage(&[1], Stop::FirstExhausted)).unwrap();
        assert_eq!((mixture.length(0), mixture.length(1), mixture.length(u64::MAX)), (u64::MAX, 0, 0));
        assert_eq!(mixture.at(0, u64::MAX - 1), Some(Draw { source: 0, pass: 0, index: u64::MAX - 1 }));
        assert_eq!((mixture.at(1, 0), mixture.position(Draw { source: 0, pass: 1, index: 0 })), (None, None));
        assert_eq!((mixture.ranges(1, 0..9), mixture.realised(1, 0..9), mixture.taken(1)), (vec![], vec![0], vec![]));
        let mixture = Mixture::new(&[3, 5], &one_stage(&[1, 1], Stop::Samples(8))).unwrap();
        // The last epoch ends with 4·2^62 − 4 draws of each.
        let last = (1 << 62) - 2;
        assert_eq!((mixture.length(last), mixture.length(last + 1)), (8, 0));
        for t in 0..8 {
            let draw = mixture.at(last, t).unwrap();
            assert_eq!(mixture.position(draw), Some((last, t)));
        }
        assert_eq!(mixture.ranges(last, 0..8).iter().map(|r| r.range.end - r.range.start).sum::<u64>(), 8);
    }
}
