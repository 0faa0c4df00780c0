//! What must be known before rows can be counted: edges of quantile bins, and the part of each group.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{Array, AsArray},
    datatypes::Float64Type,
};
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::{GroupScope, Job, rows::UnitRows, units};
use crate::{
    assign::{
        groups::{self, GroupBalance, Groups},
        rounding::Shares,
        stable::stable_split,
    },
    coded::{CodedBatch, CodedColumn},
    error::{Error, Result},
    statistics::as_f64,
    strata::{self, KeyColumn, KeySpec, StratumKey, classify},
};

/// Cells of a histogram for quantiles: with more, values that differ only in low bits are counted together.
const HISTOGRAM_CELLS: usize = 1 << 16;
/// Bytes of a group and stratum while groups are gathered, and of a group while they are assigned.
const GROUP_BYTES: u64 = 48;

/// Counts of values by their bits, the low `shift` dropped, in the order of the values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Histogram {
    shift: u32,
    counts: BTreeMap<u64, u64>,
}

impl Histogram {
    fn add(&mut self, value: f64, rows: u64) {
        self.add_bits(ordered_bits(value), rows);
    }

    fn add_bits(&mut self, bits: u64, rows: u64) {
        *self.counts.entry(bits >> self.shift).or_insert(0) += rows;
        while self.counts.len() > HISTOGRAM_CELLS {
            self.coarsen(self.shift + 1);
        }
    }

    fn coarsen(&mut self, shift: u32) {
        let by = shift - self.shift;
        let mut counts = BTreeMap::new();
        for (bits, rows) in &self.counts {
            *counts.entry(bits >> by).or_insert(0) += rows;
        }
        (self.shift, self.counts) = (shift, counts);
    }

    fn merge(&mut self, other: &Self) {
        if other.shift > self.shift {
            self.coarsen(other.shift);
        }
        for (bits, rows) in &other.counts {
            self.add_bits(bits << other.shift, *rows);
        }
    }

    /// Inner edges of `bins` bins of nearly equal rows: edge i is the least value with at least i/bins of the rows below
    /// it. Fewer where values repeat so often that bins would be empty.
    fn edges(&self, bins: u32) -> Vec<f64> {
        let total: u128 = self.counts.values().map(|n| u128::from(*n)).sum();
        let mut edges = Vec::new();
        let (mut below, mut next) = (0_u128, 1_u128);
        for (bits, rows) in &self.counts {
            if below > 0 && next < u128::from(bins) && below * u128::from(bins) >= next * total {
                edges.push(from_ordered_bits(bits << self.shift));
                while next < u128::from(bins) && below * u128::from(bins) >= next * total {
                    next += 1;
                }
            }
            below += u128::from(*rows);
        }
        edges
    }
}

/// The bits of `value` so that their order is that of the values; −0 is 0.
fn ordered_bits(value: f64) -> u64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

fn from_ordered_bits(bits: u64) -> f64 {
    f64::from_bits(if bits >> 63 == 1 { bits & !(1 << 63) } else { !bits })
}

/// Which part a row is bound to, before any dealing.
#[derive(Debug, Clone)]
pub(super) enum PartRule {
    /// None: splits interleave along each stratum.
    Dealt,
    /// The split that the keyed hash of `column` falls into.
    Stable { column: String, shares: Shares, seed: u64 },
    /// The part that the group in `column` was assigned to.
    Groups { column: String, parts: Arc<HashMap<u64, u16>>, balance: Arc<GroupBalance> },
}

impl PartRule {
    /// The column that decides.
    pub(super) fn column(&self) -> Option<&str> {
        match self {
            Self::Dealt => None,
            Self::Stable { column, .. } | Self::Groups { column, .. } => Some(column),
        }
    }

    /// The part of each row of `batch`, whose first row is row `first_row` of `url`.
    pub(super) fn parts(&self, batch: &CodedBatch, url: &str, first_row: u64) -> Result<Option<Vec<u32>>> {
        let Some(column) = self.column() else { return Ok(None) };
        let (hashes, of_row) = identities(batch, column, url, first_row)?;
        let of_hash = match self {
            Self::Dealt => return Ok(None),
            Self::Stable { shares, seed, .. } => hashes.iter().map(|h| stable_split(*h, shares, *seed)).collect(),
            Self::Groups { parts, .. } => (hashes.iter())
                .map(|h| parts.get(h).map(|p| u32::from(*p)).ok_or_else(|| super::changed(url)))
                .collect::<Result<Vec<u32>>>()?,
        };
        Ok(Some(of_row.into_iter().map(|value| of_hash[value as usize]).collect()))
    }
}

/// Hashes of the distinct values of an identity column, and which one each row has.
fn identities(batch: &CodedBatch, column: &str, url: &str, first_row: u64) -> Result<(Vec<u64>, Vec<u32>)> {
    let nulls = match units::column(batch, column)? {
        CodedColumn::Plain(array) => array.logical_nulls(),
        CodedColumn::Text { codes, .. } => codes.nulls().cloned(),
    };
    if let Some(row) = nulls.and_then(|n| n.iter().position(|valid| !valid)) {
        return Err(Error::Data {
            url: url.to_owned(),
            what: format!(
                "row {} has null in column \"{column}\", which says what belongs together",
                first_row + row as u64
            ),
            help: "give such rows an identity of their own at ingest, or leave them out".into(),
        });
    }
    let classified = classify(batch, &[KeyColumn::Value { column: column.to_owned() }], url)?;
    Ok((classified.keys.iter().map(|key| strata::hash(key)).collect(), classified.of_row))
}

/// Rows of each group and stratum of one unit.
#[derive(Debug, Default, Serialize, Deserialize)]
struct UnitGroups {
    keys: Vec<StratumKey>,
    rows: Vec<(u64, u32, u64)>,
}

impl Job {
    /// The key columns, with the edges of their quantile bins.
    pub(super) async fn with_edges(&self, spec: KeySpec) -> Result<KeySpec> {
        if self.options.bins.is_empty() {
            return Ok(spec);
        }
        let binned: Vec<String> = self.options.bins.keys().cloned().collect();
        let found: Vec<Vec<Histogram>> = self
            .phase("quantiles", "find quantiles", &self.unit_rows(), self.units_at_once(), |u| {
                self.histograms(u, &binned)
            })
            .await?;
        let mut edges = BTreeMap::new();
        for (i, column) in binned.iter().enumerate() {
            let mut all = Histogram::default();
            for unit in &found {
                if let Some(part) = unit.get(i) {
                    all.merge(part);
                }
            }
            let bins = self.options.bins.get(column).copied().unwrap_or(2);
            edges.insert(column.clone(), all.edges(bins));
        }
        self.options.key(&self.input.schema, &edges)
    }

    async fn histograms(&self, unit: usize, columns: &[String]) -> Result<Vec<Histogram>> {
        let batches = units::read(&self.input, &self.units[unit], columns).await?;
        let columns = columns.to_vec();
        self.compute(move || {
            let mut histograms = vec![Histogram::default(); columns.len()];
            for batch in &batches {
                for (histogram, column) in histograms.iter_mut().zip(&columns) {
                    let CodedColumn::Plain(array) = units::column(batch, column)? else { continue };
                    for value in as_f64(array)?.as_primitive::<Float64Type>().iter().flatten().filter(|v| !v.is_nan()) {
                        histogram.add(value, 1);
                    }
                }
            }
            Ok(histograms)
        })
        .await
    }

    /// What binds rows to parts.
    pub(super) async fn part_rule(&self, spec: &KeySpec) -> Result<PartRule> {
        if let Some(column) = &self.options.split_by {
            let (column, shares) = (column.clone(), self.options.splits.clone());
            return Ok(PartRule::Stable { column, shares, seed: self.options.seed });
        }
        let Some(column) = self.options.group.clone() else { return Ok(PartRule::Dealt) };
        let found: Vec<UnitGroups> = self
            .phase("groups", "gather groups", &self.unit_rows(), self.units_at_once(), |u| {
                self.unit_groups(u, spec, &column)
            })
            .await?;
        let gathered = self.gathered(found)?;
        let shares = self.part_shares();
        let seed = self.options.seed;
        let (parts, balance) = self
            .compute(move || {
                let unfit = || Error::internal("groups do not fit their parts");
                let parts = groups::assign(&gathered, &shares, seed).ok_or_else(unfit)?;
                let balance = groups::balance(&gathered, &parts, &shares).ok_or_else(unfit)?;
                let hashes = (0..gathered.len()).filter_map(|g| gathered.get(g).map(|g| g.0));
                let table: HashMap<u64, u16> = hashes.zip(parts).collect();
                Ok((table, balance))
            })
            .await?;
        if let Some(most) = self.options.max_imbalance
            && balance.imbalance > most
        {
            return Err(Error::Data {
                url: self.input.storage.url(""),
                what: format!(
                    "groups of \"{column}\" force a part {:.4} above its share, --max-imbalance is {most}; the largest group has {} rows, no assignment is nearer than {:.1} rows",
                    balance.imbalance, balance.largest_group, balance.lower_bound
                ),
                help: "allow more, use fewer parts, or cut the largest groups".into(),
            });
        }
        Ok(PartRule::Groups { column, parts: Arc::new(parts), balance: Arc::new(balance) })
    }

    /// Shares of the parts: of the splits, or of the nodes in them.
    fn part_shares(&self) -> Vec<u64> {
        let parts = self.options.splits.parts();
        match self.options.group_scope {
            GroupScope::Split => parts.to_vec(),
            GroupScope::Node => {
                parts.iter().flat_map(|p| std::iter::repeat_n(*p, self.options.nodes as usize)).collect()
            }
        }
    }

    async fn unit_groups(&self, unit: usize, spec: &KeySpec, column: &str) -> Result<UnitGroups> {
        let mut names = spec.column_names();
        if !names.iter().any(|n| n == column) {
            names.push(column.to_owned());
        }
        let unit = &self.units[unit];
        let batches = units::read(&self.input, unit, &names).await?;
        let places: Vec<(String, u64)> =
            unit.groups.iter().map(|g| (self.input.storage.url(g.file.path()), g.first_row)).collect();
        let (columns, column) = (spec.columns.clone(), column.to_owned());
        self.compute(move || {
            let mut rows: HashMap<(u64, u32), u64> = HashMap::new();
            let mut all = UnitRows::default();
            for (batch, (url, first_row)) in batches.iter().zip(&places) {
                let classified = classify(batch, &columns, url)?;
                let (hashes, of_row) = identities(batch, &column, url, *first_row)?;
                let local = all.ordinals(classified.keys);
                for (stratum, value) in classified.of_row.iter().zip(of_row) {
                    *rows.entry((hashes[value as usize], local[*stratum as usize])).or_insert(0) += 1;
                }
            }
            let rows = rows.into_iter().map(|((hash, stratum), n)| (hash, stratum, n)).collect();
            Ok(UnitGroups { keys: all.keys, rows })
        })
        .await
    }

    fn gathered(&self, found: Vec<UnitGroups>) -> Result<Groups> {
        let mut ordinals: HashMap<StratumKey, u32> = HashMap::new();
        let mut all: Vec<(u64, u32, u64)> = Vec::new();
        let limit = usize::try_from(self.options.memory_bytes / 4 / GROUP_BYTES).unwrap_or(usize::MAX);
        for unit in found {
            let local: Vec<u32> = (unit.keys.into_iter())
                .map(|key| {
                    let next = ordinals.len() as u32;
                    *ordinals.entry(key).or_insert(next)
                })
                .collect();
            all.extend(unit.rows.iter().map(|(hash, stratum, rows)| (*hash, local[*stratum as usize], *rows)));
            if all.len() > limit {
                merge(&mut all);
                if all.len() > limit {
                    return Err(Error::usage(
                        format!("there are more than {limit} groups and strata of theirs, --memory does not hold them"),
                        format!("give --memory at least {}", all.len() as u64 * GROUP_BYTES * 8),
                    ));
                }
            }
        }
        merge(&mut all);
        let mut groups = Groups::default();
        for of_group in all.chunk_by(|a, b| a.0 == b.0) {
            let classes: Vec<(u32, u64)> = of_group.iter().map(|g| (g.1, g.2)).collect();
            groups.push(of_group[0].0, &classes);
        }
        Ok(groups)
    }
}

fn merge(all: &mut Vec<(u64, u32, u64)>) {
    all.sort_unstable();
    let mut kept: usize = 0;
    for i in 0..all.len() {
        let (hash, stratum, rows) = all[i];
        match kept.checked_sub(1).and_then(|last| all.get_mut(last)).filter(|l| (l.0, l.1) == (hash, stratum)) {
            Some(last) => last.2 += rows,
            None => {
                all[kept] = (hash, stratum, rows);
                kept += 1;
            }
        }
    }
    all.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantile_bins_are_even_and_do_not_depend_on_the_order(mut values in prop::collection::vec(-1e6f64..1e6, 100..2000), bins in 2u32..20) {
            let of = |values: &[f64], cuts: usize| {
                let mut all = Histogram::default();
                for part in values.chunks(values.len().div_ceil(cuts)) {
                    let mut histogram = Histogram::default();
                    part.iter().for_each(|v| histogram.add(*v, 1));
                    all.merge(&histogram);
                }
                all.edges(bins)
            };
            let edges = of(&values, 1);
            values.reverse();
            prop_assert_eq!(&edges, &of(&values, 7));
            prop_assert_eq!(edges.len() as u32, bins - 1);
            let mut counts = vec![0_usize; bins as usize];
            values.iter().for_each(|v| counts[strata::codes::bin_of(&edges, *v) as usize] += 1);
            let (low, high) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            prop_assert!(high - low <= 1, "{:?}", counts);
        }
    }

    #[test]
    fn repeated_values_make_fewer_bins() {
        let mut histogram = Histogram::default();
        for value in [0.0, 0.0, 0.0, 0.0, 0.0, -0.0, 1.0, 2.0] {
            histogram.add(value, 1);
        }
        assert_eq!(histogram.edges(4), [1.0]);
        assert_eq!(Histogram::default().edges(4), Vec::<f64>::new());
        let mut many = Histogram::default();
        (0..200_000).for_each(|i| many.add(f64::from(i), 1));
        assert!(many.counts.len() <= HISTOGRAM_CELLS);
        let edges = many.edges(4);
        assert!(
            edges.iter().zip([50_000.0, 100_000.0, 150_000.0]).all(|(e, want)| (e / want - 1.0).abs() < 0.001),
            "{edges:?}"
        );
    }
}
