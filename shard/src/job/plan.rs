//! The plan of a job: from counts to the assignment and the layout. Pure.

use std::{collections::BTreeMap, sync::Arc};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::{GroupScope, Job, count::Counted, prepare::PartRule, rows::Classes};
use crate::{
    assign::{
        Assignment,
        chosen::ChosenNodes,
        deal::{Dealing, NodeChoice, factor_chain},
        interleave::{self, Interleave},
        labels::{self, Combinations},
        resample,
        rounding::round_strata,
        weighted::{WeightRun, WeightedNodes, WeightedStratum},
    },
    cells::CellTable,
    error::{Error, Result},
    input::shard_schema,
    manifest::{Layout, SplitInfo, SplitRule, StrataRule},
    schema::COPY,
    strata::{KeyColumn, KeySpec, Strata, key},
};

/// The assignment and what it is written by.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) assignment: Assignment,
    pub(super) layout: Layout,
    /// Level of the weight bins.
    pub(super) level: u8,
    /// Whether rows are bound to parts before dealing.
    pub(super) bound_parts: bool,
    /// Whether parts are the nodes of the splits.
    node_parts: bool,
    /// Whether rows may be copied or left out.
    pub(super) copies: bool,
    /// Columns of a shard.
    pub(super) schema: SchemaRef,
    /// First destination of each split, and one past the last.
    offsets: Vec<u32>,
    /// Lane that the first row of a new version goes to, by split.
    rotation: Vec<u32>,
}

/// The place of a destination's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) split: usize,
    pub(super) lane: u32,
    /// Ordinal among the files that this version adds to the lane.
    pub(super) file: u32,
}

impl Plan {
    /// Split, destination and node of a leaf of a part.
    pub(super) fn destination(&self, part: u32, leaf: u32) -> (u32, u32, u32) {
        let nodes = self.layout.nodes;
        let (split, leaf) = if self.node_parts { (part / nodes, part % nodes + nodes * leaf) } else { (part, leaf) };
        let first = self.offsets.get(split as usize).copied().unwrap_or(0);
        let place = self.lane_and_file(split as usize, leaf);
        let node = self.layout.splits.get(split as usize).map_or(0, |s| s.node_of(place.0, nodes));
        (split, first + leaf, node)
    }

    /// Number of destinations.
    pub(super) fn destinations(&self) -> u32 {
        self.offsets.last().copied().unwrap_or(0)
    }

    fn lane_and_file(&self, split: usize, leaf: u32) -> (u32, u32) {
        let lanes = self.layout.lanes.max(1);
        let rotation = self.rotation.get(split).copied().unwrap_or(0);
        ((leaf % lanes + rotation) % lanes, leaf / lanes)
    }

    /// Where the file of `destination` lies.
    pub(super) fn place(&self, destination: u32) -> Place {
        let split = self.offsets.partition_point(|first| *first <= destination).saturating_sub(1);
        let leaf = destination - self.offsets.get(split).copied().unwrap_or(0);
        let (lane, file) = self.lane_and_file(split, leaf);
        Place { split, lane, file }
    }

    /// Destinations in the order of the files table: by split, lane and file.
    pub(super) fn in_order(&self) -> Vec<u32> {
        let mut all: Vec<u32> = (0..self.destinations()).collect();
        all.sort_by_key(|d| {
            let place = self.place(*d);
            (place.split, place.lane, place.file)
        });
        all
    }
}

impl Job {
    pub(super) fn plan(&self, counted: &Counted, classes: &Classes) -> Result<Plan> {
        let (strata, table) = (&counted.strata, &counted.table);
        let options = &self.options;
        let splits = options.splits.len();
        let bound_parts = !matches!(classes.rule, PartRule::Dealt);
        let node_parts = matches!(classes.rule, PartRule::Groups { .. }) && options.group_scope == GroupScope::Node;
        let parts = if node_parts { splits * options.nodes as usize } else { splits };
        let counts = if bound_parts {
            let mut counts = vec![0_u64; strata.len() * parts];
            for cell in table.cells() {
                counts[cell.stratum as usize * parts + cell.part as usize] += cell.rows;
            }
            counts
        } else {
            self.dealt_counts(strata, &classes.spec)?
        };
        let targets = self.targets(&counts, parts, strata, &classes.spec)?;
        let hashes: Vec<u64> = strata.strata().iter().map(|s| s.hash).collect();
        let split_rows: Vec<u64> =
            (0..splits).map(|s| rows_of_split(&targets, parts, s, node_parts, options.nodes)).collect();
        let infos = self.split_infos(&split_rows, &targets, parts, node_parts)?;
        let mut dealings = Vec::with_capacity(parts);
        for part in 0..parts {
            let split = if node_parts { part / options.nodes as usize } else { part };
            let files = u64::from(infos[split].files_per_lane);
            let leaves = u64::from(options.lanes()) * files;
            let of_part: Vec<u64> = (0..strata.len()).map(|c| targets[c * parts + part]).collect();
            let context = Context {
                strata,
                table,
                spec: &classes.spec,
                counts: &counts,
                parts,
                part,
                bound_parts,
                hashes: &hashes,
            };
            dealings.push(if node_parts {
                Dealing::flat(
                    &hashes,
                    of_part.into_iter(),
                    leaves / u64::from(options.nodes),
                    options.seed,
                    part as u64,
                )?
            } else {
                self.dealing(&context, of_part, leaves)?
            });
        }
        let mut offsets = vec![0_u32];
        for info in &infos {
            let leaves = u64::from(options.lanes()) * u64::from(info.files_per_lane);
            let next = u64::from(offsets.last().copied().unwrap_or(0)) + leaves;
            offsets.push(u32::try_from(next).map_err(|_| {
                Error::usage("there would be more than 2^32 files", "use fewer lanes or larger --shard-bytes")
            })?);
        }
        let rotation =
            self.appended.rows_before(splits).iter().map(|n| (n % u64::from(options.lanes())) as u32).collect();
        let layout = Layout {
            nodes: options.nodes,
            lanes: options.lanes(),
            strata: StrataRule { columns: classes.spec.columns.clone(), merged: strata.merged() },
            split_rule: match &classes.rule {
                PartRule::Dealt => SplitRule::Shares,
                PartRule::Stable { column, .. } => SplitRule::Stable { column: column.clone() },
                PartRule::Groups { column, .. } => {
                    SplitRule::Groups { column: column.clone(), on_one_node: node_parts }
                }
            },
            weight: options.balance.clone(),
            resampled: options.resamples(),
            splits: infos,
        };
        Ok(Plan {
            assignment: Assignment::new(hashes, counts, targets, dealings, options.seed)?,
            layout,
            level: table.level(),
            bound_parts,
            node_parts,
            copies: options.resamples(),
            schema: shard_columns(&shard_schema(&self.input.schema), options.resamples()),
            offsets,
            rotation,
        })
    }

    /// Rows of each stratum in each split by controlled rounding, and for labels the nearest of those.
    fn dealt_counts(&self, strata: &Strata, spec: &KeySpec) -> Result<Vec<u64>> {
        let rows: Vec<u64> = strata.strata().iter().map(|s| s.rows).collect();
        let shares = &self.options.splits;
        let mut counts = round_strata(&rows, shares, self.options.seed)?;
        if !self.options.labels.is_empty() {
            let combinations = combinations(strata, spec);
            if !labels::improve_splits(&combinations, &mut counts, shares.parts(), shares.whole(), self.options.seed) {
                return Err(Error::internal("label combinations do not fit the splits"));
            }
        }
        Ok(counts)
    }

    /// Rows that each stratum is to have in each part after resampling.
    fn targets(&self, counts: &[u64], parts: usize, strata: &Strata, spec: &KeySpec) -> Result<Vec<u64>> {
        let options = &self.options;
        let mut targets = counts.to_vec();
        for (split, name) in options.splits.names().iter().enumerate().filter(|(_, n)| options.resamples_split(n)) {
            let of_split: Vec<u64> = (0..strata.len()).map(|c| counts[c * parts + split]).collect();
            let mut rows = of_split.clone();
            if let Some(resample) = &options.resample {
                let (values, names) = values_of(strata, spec, &resample.column)?;
                rows = resample.targets(&of_split, &values, &names).map_err(|e| match e {
                    Error::Usage { what, help } => Error::Usage { what: format!("{what} (split \"{name}\")"), help },
                    other => other,
                })?;
            }
            let least = options.at_least.checked_mul(u64::from(options.nodes)).ok_or_else(|| {
                Error::usage(format!("--at-least {} is too much", options.at_least), "give fewer rows a node")
            })?;
            for (c, n) in rows.into_iter().enumerate() {
                targets[c * parts + split] = if of_split[c] > 0 { n.max(least) } else { 0 };
            }
        }
        Ok(targets)
    }

    fn split_infos(&self, rows: &[u64], targets: &[u64], parts: usize, node_parts: bool) -> Result<Vec<SplitInfo>> {
        let (options, lanes) = (&self.options, self.options.lanes());
        let per_node = u64::from(lanes / options.nodes);
        let (total, decoded) = (self.input_rows(), self.decoded_bytes());
        let mut infos = Vec::with_capacity(rows.len());
        let mut before: u64 = 0;
        for (s, name) in options.splits.names().iter().enumerate() {
            let lane_rows = if node_parts {
                let nodes = s * options.nodes as usize..(s + 1) * options.nodes as usize;
                let most = nodes.map(|p| targets.iter().skip(p).step_by(parts).sum::<u64>()).max().unwrap_or(0);
                most.div_ceil(per_node)
            } else {
                rows[s].div_ceil(u64::from(lanes))
            };
            if lane_rows > u64::from(u32::MAX) {
                return Err(Error::usage(
                    format!("a lane of split \"{name}\" has {lane_rows} rows, at most 2^32 fit"),
                    "use more --lanes",
                ));
            }
            let bytes = u128::from(decoded) * u128::from(lane_rows) / u128::from(total.max(1));
            let files = bytes.div_ceil(u128::from(options.shard_bytes)).clamp(1, u128::from(lane_rows.max(1)));
            let first_node = match self.appended.first_node(name) {
                Some(node) => node,
                // Where nodes are fixed from outside they keep their numbers. Else the longer lanes of a split come
                // first; starting each split at the node where the one before ended keeps the machines' totals
                // within one row.
                None if node_parts => 0,
                None => (before % u64::from(options.nodes)) as u32,
            };
            infos.push(SplitInfo {
                name: name.clone(),
                share: options.splits.fraction(s),
                rows: rows[s],
                first_node,
                files_per_lane: u32::try_from(files).unwrap_or(u32::MAX),
            });
            before += rows[s];
        }
        Ok(infos)
    }

    fn dealing(&self, of: &Context<'_>, targets: Vec<u64>, leaves: u64) -> Result<Dealing> {
        let (nodes, seed, part) = (self.options.nodes, self.options.seed, of.part as u64);
        if self.options.balance.is_some() {
            let profiles = of.profiles(&targets, seed);
            let choice = WeightedNodes::new(&profiles, &factor_chain(&[nodes]), 0, seed, of.part);
            return Dealing::by_nodes(NodeChoice::Weighted(choice), nodes, of.hashes, targets, leaves, seed, part);
        }
        if !self.options.labels.is_empty() {
            let combinations = combinations(of.strata, of.spec);
            let leftovers: Vec<u32> = targets.iter().map(|n| (n % u64::from(nodes)) as u32).collect();
            let dealt = labels::nodes(&combinations, &leftovers, nodes, seed, part)
                .ok_or_else(|| Error::internal("label combinations do not fit the nodes"))?;
            let worst = labels::node_balance(&combinations, &dealt, nodes)
                .ok_or_else(|| Error::internal("label combinations do not fit the nodes"))?
                .worst;
            let (offsets, chosen) = dealt.flat();
            let all = (0..combinations.len()).flat_map(|c| combinations.labels(c));
            let choice = NodeChoice::Labels {
                nodes: ChosenNodes::new(nodes, offsets.to_vec(), chosen.to_vec(), seed, part),
                worst,
                labels: all.max().map_or(0, |label| u64::from(*label) + 1),
            };
            return Dealing::by_nodes(choice, nodes, of.hashes, targets, leaves, seed, part);
        }
        Dealing::flat(of.hashes, targets.into_iter(), leaves, seed, part)
    }
}

fn rows_of_split(targets: &[u64], parts: usize, split: usize, node_parts: bool, nodes: u32) -> u64 {
    let of_split = if node_parts { split * nodes as usize..(split + 1) * nodes as usize } else { split..split + 1 };
    of_split.map(|p| targets.iter().skip(p).step_by(parts).sum::<u64>()).sum()
}

/// `_copy` after the others where rows may be copied.
fn shard_columns(schema: &SchemaRef, copies: bool) -> SchemaRef {
    if !copies {
        return Arc::clone(schema);
    }
    let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(COPY, DataType::Int32, false)));
    Arc::new(Schema::new(fields))
}

/// Value of the column in each stratum, and the values' names, in order.
fn values_of(strata: &Strata, spec: &KeySpec, column: &str) -> Result<(Vec<u32>, Vec<String>)> {
    let at = spec.columns.iter().position(|c| c.column() == column);
    let at = at.ok_or_else(|| Error::internal("the resampled column is no key column"))?;
    if strata.merged() > 0 {
        return Err(Error::usage(
            "rare strata were merged, so that their value to resample by is not known",
            "give --rare spread with --resample",
        ));
    }
    let mut parts = Vec::with_capacity(strata.len());
    for key in strata.keys() {
        let part = key::parts(key, &spec.columns, &spec.types).and_then(|p| p.into_iter().nth(at));
        parts.push(part.ok_or_else(|| Error::internal("a stratum's key does not parse"))?);
    }
    let mut numbers: BTreeMap<&key::Part, u32> = parts.iter().map(|p| (p, 0)).collect();
    for (i, number) in numbers.values_mut().enumerate() {
        *number = i as u32;
    }
    let distinct: Vec<&key::Part> = numbers.keys().copied().collect();
    let names = key::shown(&spec.columns[at], &spec.types[at], distinct.into_iter())?;
    Ok((parts.iter().map(|p| numbers.get(p).copied().unwrap_or(0)).collect(), names))
}

/// The labels of each stratum. Columns that are no labels only make strata finer.
fn combinations(strata: &Strata, spec: &KeySpec) -> Combinations {
    let mut labels: BTreeMap<String, u32> = BTreeMap::new();
    let mut of_strata: Vec<Vec<String>> = Vec::with_capacity(strata.len());
    for key in strata.keys() {
        let mut of_stratum = Vec::new();
        for (column, part) in spec.columns.iter().zip(key::parts(key, &spec.columns, &spec.types).unwrap_or_default()) {
            match (column, part) {
                (KeyColumn::Flag { column }, key::Part::Bool(true)) => of_stratum.push(column.clone()),
                (KeyColumn::LabelSet { column, .. }, key::Part::Bytes(bytes)) => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    of_stratum.extend(text.split('\u{1f}').filter(|l| !l.is_empty()).map(|l| format!("{column}: {l}")));
                }
                _ => {}
            }
        }
        labels.extend(of_stratum.iter().map(|l| (l.clone(), 0)));
        of_strata.push(of_stratum);
    }
    for (i, number) in labels.values_mut().enumerate() {
        *number = i as u32;
    }
    let mut combinations = Combinations::default();
    for (stratum, of_stratum) in strata.strata().iter().zip(&of_strata) {
        let ids: Vec<u32> = of_stratum.iter().filter_map(|l| labels.get(l).copied()).collect();
        combinations.push(stratum.hash, &ids, stratum.rows);
    }
    combinations
}

/// One part, as its dealing sees it.
struct Context<'a> {
    strata: &'a Strata,
    table: &'a CellTable,
    spec: &'a KeySpec,
    counts: &'a [u64],
    parts: usize,
    part: usize,
    bound_parts: bool,
    hashes: &'a [u64],
}

impl Context<'_> {
    /// Weights of each stratum's rows in this part, in rank order, as runs of the means of bins.
    fn profiles(&self, targets: &[u64], seed: u64) -> Vec<WeightedStratum> {
        let mut profiles: Vec<WeightedStratum> =
            self.hashes.iter().map(|hash| WeightedStratum { hash: *hash, runs: Vec::new() }).collect();
        let cells = self.table.cells();
        let mut start = 0;
        while start < cells.len() {
            let (part, stratum) = (cells[start].part, cells[start].stratum);
            let length = cells[start..].iter().take_while(|c| (c.part, c.stratum) == (part, stratum)).count();
            let of_stratum = &cells[start..start + length];
            start += length;
            if self.bound_parts && part as usize != self.part {
                continue;
            }
            let c = stratum as usize;
            let counts = &self.counts[c * self.parts..][..self.parts];
            let (rows, target) = (counts[self.part], targets[c]);
            let splits = (!self.bound_parts && self.parts > 1)
                .then(|| Interleave::new(counts, crate::assign::SPLITS, self.hashes[c], seed));
            let kept_counts = [target, rows.saturating_sub(target)];
            let kept = (target < rows)
                .then(|| Interleave::new(&kept_counts, crate::assign::kept_stream(self.part), self.hashes[c], seed));
            let (mut rank, mut before) = (0, 0);
            let runs = &mut profiles[c].runs;
            for cell in of_stratum {
                rank += cell.rows;
                let in_part = splits.as_ref().map_or(rank, |s| interleave::count(&s.among_first(rank), self.part));
                let after = match &kept {
                    Some(kept) => interleave::count(&kept.among_first(in_part), 0),
                    None => resample::copies(in_part, rows, target).start,
                };
                if after > before {
                    let weight = (cell.weight / u128::from(cell.rows.max(1))) as u64;
                    runs.push(WeightRun { weight, rows: after - before });
                    before = after;
                }
            }
        }
        profiles
    }
}
