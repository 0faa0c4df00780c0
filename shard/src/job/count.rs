//! Counting: how many rows each unit has of each cell. In memory the rows are kept; else only their counts are.

use std::sync::Arc;

use super::{
    Job,
    rows::{Classes, Loaded, UnitRows},
    units::{self, Unit},
};
use crate::{
    cells::{CellTable, Totals, UnitCounts},
    coded::unify,
    error::{Error, Result},
    strata::Strata,
};

use super::RarePolicy;

/// What counting finds.
pub(super) struct Counted {
    pub(super) strata: Strata,
    pub(super) table: CellTable,
    pub(super) units: Vec<UnitCounts>,
    /// The rows themselves, where they are held in memory.
    pub(super) loaded: Vec<Loaded>,
}

impl Job {
    pub(super) async fn count(&self, classes: &Arc<Classes>) -> Result<Counted> {
        let (units, loaded) =
            if self.in_memory { self.load(classes).await? } else { (self.counts(classes).await?, Vec::new()) };
        let mut totals = Totals::default();
        for unit in &units {
            totals.add(unit);
        }
        let options = &self.options;
        let merge_below = if options.rare == RarePolicy::Merge { options.rare_below() } else { 0 };
        let strata = Strata::new(totals.rows_of_keys(), &classes.spec, merge_below)?;
        if options.rare == RarePolicy::Error {
            self.refuse_rare(&strata)?;
        }
        let table = totals.finish(&strata)?;
        Ok(Counted { strata, table, units, loaded })
    }

    async fn counts(&self, classes: &Arc<Classes>) -> Result<Vec<UnitCounts>> {
        let names = classes.columns();
        self.phase("count", "count strata", &self.unit_rows(), self.units_at_once(), |u| {
            let (unit, names, classes) = (&self.units[u], &names, Arc::clone(classes));
            async move {
                let batches = units::read(&self.input, unit, names).await?;
                let (unit, urls) = (unit.clone(), self.urls(unit));
                self.compute(move || Ok(UnitRows::of(&classes, &unit, &urls, &batches)?.counts())).await
            }
        })
        .await
    }

    /// Reads every column of every unit and keeps it.
    async fn load(&self, classes: &Arc<Classes>) -> Result<(Vec<UnitCounts>, Vec<Loaded>)> {
        let names: Vec<String> = self.input.schema.columns.iter().map(|c| c.name.clone()).collect();
        let loaded: Vec<(UnitCounts, Loaded)> = self
            .phase_local("read rows", &self.unit_rows(), self.units_at_once(), |u| {
                let (unit, names, classes) = (&self.units[u], &names, Arc::clone(classes));
                async move {
                    let batches = units::read(&self.input, unit, names).await?;
                    let (unit, urls) = (unit.clone(), self.urls(unit));
                    self.compute(move || {
                        let rows = UnitRows::of(&classes, &unit, &urls, &batches)?;
                        let counts = rows.counts();
                        let batch = batches.into_iter().next().ok_or_else(|| Error::internal("a unit has no rows"))?;
                        Ok((counts, Loaded { rows: Arc::new(rows), batch }))
                    })
                    .await
                }
            })
            .await?;
        let (units, mut loaded): (Vec<_>, Vec<_>) = loaded.into_iter().unzip();
        let mut batches: Vec<_> = loaded.iter().map(|l| l.batch.clone()).collect();
        unify(&mut batches)?;
        for (loaded, batch) in loaded.iter_mut().zip(batches) {
            loaded.batch = batch;
        }
        Ok((units, loaded))
    }

    /// Files of the row groups of `unit`, for messages.
    pub(super) fn urls(&self, unit: &Unit) -> Vec<String> {
        unit.groups.iter().map(|g| self.input.storage.url(g.file.path())).collect()
    }

    fn refuse_rare(&self, strata: &Strata) -> Result<()> {
        let below = self.options.rare_below();
        let rare: Vec<String> = (strata.strata().iter())
            .filter(|s| s.rows < below)
            .map(|s| format!("\"{}\" ({})", s.name, s.rows))
            .collect();
        if rare.is_empty() {
            return Ok(());
        }
        let more = rare.len().saturating_sub(10);
        Err(Error::Data {
            url: self.input.storage.url(""),
            what: format!(
                "{} strata have fewer than {below} rows: {}{}",
                rare.len(),
                rare[..rare.len() - more].join(", "),
                if more > 0 { format!(" and {more} more") } else { String::new() }
            ),
            help: "give --rare spread or --rare merge, another --rare-below, or fewer stratify columns".into(),
        })
    }
}
