//! Splits that an identity decides: each in one split, and, where it was asked for, on one node.

use std::collections::HashMap;

use super::{VerifyReport, file::FileCheck};
use crate::{
    assign::{rounding::Shares, stable::stable_split},
    manifest::{Layout, Manifest, SplitRule},
};

/// The part that each identity was seen in.
pub(super) struct Parts<'a> {
    layout: &'a Layout,
    seed: u64,
    shares: Option<Shares>,
    seen: HashMap<u64, (u32, u32)>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(manifest: &Manifest, layout: &'a Layout) -> Self {
        Self { layout, seed: manifest.seed, shares: layout.shares().ok(), seen: HashMap::new() }
    }

    pub(super) fn add(&mut self, check: &FileCheck, report: &mut VerifyReport) {
        let Some(split) = self.layout.splits.iter().position(|s| s.name == check.split) else {
            report.add(&check.path, format!("its split \"{}\" is not in the layout", check.split));
            return;
        };
        match &self.layout.split_rule {
            SplitRule::Shares => {}
            SplitRule::Stable { column } => {
                let Some(shares) = &self.shares else {
                    report.add(&check.path, "the shares of its splits are not shares".into());
                    return;
                };
                let strays = (check.identities.iter())
                    .filter(|id| stable_split(**id, shares, self.seed) as usize != split)
                    .count();
                if strays > 0 {
                    report.add(&check.path, format!("{strays} values of \"{column}\" belong to another split"));
                }
            }
            SplitRule::Groups { column, on_one_node } => {
                let node =
                    if *on_one_node { self.layout.splits[split].node_of(check.lane, self.layout.nodes) } else { 0 };
                let part = (split as u32, node);
                let strays =
                    (check.identities.iter()).filter(|id| *self.seen.entry(**id).or_insert(part) != part).count();
                if strays > 0 {
                    report.add(&check.path, format!("{strays} groups of \"{column}\" are elsewhere as well"));
                }
            }
        }
    }
}
