//! One data file: its digest, its row groups, and what its rows say.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::AsArray,
    datatypes::{Int32Type, Int64Type},
};

use crate::{
    coded::CodedBatch,
    control::{Control, compute},
    error::{ErrorKind, Result},
    manifest::{Layout, Manifest, SplitRule},
    parquet_reader::{ParquetFile, RowGroupBytes},
    schema::{COPY, ROW_ID},
    storage::Storage,
    strata::{KeyColumn, StratumKey, classify, hash},
    tables::FileEntry,
    weights,
};

/// What is wanted of the rows of shards.
pub(super) struct Wanted {
    columns: Vec<KeyColumn>,
    copies: bool,
    identity: Option<String>,
    weight: Option<String>,
}

impl Wanted {
    pub(super) fn new(manifest: &Manifest, layout: &Layout) -> Self {
        debug_assert_eq!(manifest.layout.as_ref(), Some(layout));
        Self {
            columns: layout.strata.columns.clone(),
            copies: layout.resampled,
            identity: match &layout.split_rule {
                SplitRule::Shares => None,
                SplitRule::Stable { column } | SplitRule::Groups { column, .. } => Some(column.clone()),
            },
            weight: layout.weight.clone(),
        }
    }
}

/// What was found in a file.
#[derive(Default)]
pub(super) struct FileCheck {
    pub(super) path: String,
    pub(super) split: String,
    pub(super) lane: u32,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) problems: Vec<String>,
    pub(super) ids: Vec<i64>,
    /// Which copy each row is; empty where there are none.
    pub(super) copies: Vec<i32>,
    pub(super) strata: BTreeMap<StratumKey, u64>,
    /// Hashes of the identities that decide splits.
    pub(super) identities: Vec<u64>,
    pub(super) weight: u128,
}

pub(super) async fn check(
    storage: Storage,
    file: FileEntry,
    wanted: Option<Arc<Wanted>>,
    control: &Control,
) -> Result<FileCheck> {
    control.stop.check()?;
    let mut check =
        FileCheck { path: file.path.clone(), split: file.split.clone(), lane: file.lane, ..FileCheck::default() };
    let bytes = match storage.get(&file.path).await {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            check.problems.push("it is missing".into());
            control.progress.advance(file.bytes);
            return Ok(check);
        }
        Err(e) => return Err(e),
    };
    check.bytes = bytes.len() as u64;
    control.progress.advance(file.bytes);
    if check.bytes != file.bytes {
        check.problems.push(format!("it has {} bytes, the manifest says {}", check.bytes, file.bytes));
        return Ok(check);
    }
    // A footer that is not the one written must not be parsed as if it were; the digest comes first.
    let digest = {
        let bytes = bytes.clone();
        compute(move || Ok(blake3::hash(&bytes).to_hex().to_string())).await?
    };
    if digest != file.blake3 {
        check.problems.push("it is not what was written (its digest differs)".into());
        return Ok(check);
    }
    let parquet = match ParquetFile::open(&storage, &file.path).await {
        Ok(parquet) => parquet,
        Err(e) => {
            check.problems.push(e.to_string());
            return Ok(check);
        }
    };
    compute(move || {
        read_rows(&parquet, &file, &RowGroupBytes::new(0, bytes), wanted.as_deref(), &mut check);
        Ok(check)
    })
    .await
}

fn read_rows(
    parquet: &ParquetFile,
    file: &FileEntry,
    bytes: &RowGroupBytes,
    wanted: Option<&Wanted>,
    check: &mut FileCheck,
) {
    let rows: Vec<u64> = file.row_groups.iter().map(|g| g.rows).collect();
    if parquet.row_group_rows() != rows || file.rows != rows.iter().sum::<u64>() {
        check.problems.push("its row groups are not those of the manifest".into());
    }
    for index in 0..rows.len().min(parquet.row_group_rows().len()) {
        let batch = match parquet.decode(index, bytes, None) {
            Ok(batch) => CodedBatch::from_plain(&batch),
            Err(e) => {
                check.problems.push(e.to_string());
                continue;
            }
        };
        check.rows += batch.rows() as u64;
        if let Some(wanted) = wanted
            && let Err(e) = read_batch(&batch, wanted, check)
        {
            check.problems.push(e.to_string());
        }
    }
}

fn read_batch(batch: &CodedBatch, wanted: &Wanted, check: &mut FileCheck) -> Result<()> {
    let column = |name: &str| batch.column(name).map(crate::coded::CodedColumn::to_plain).transpose();
    match column(ROW_ID)?.as_ref().and_then(|c| c.as_primitive_opt::<Int64Type>()) {
        Some(ids) => check.ids.extend_from_slice(ids.values()),
        None => check.problems.push(format!("it has no {ROW_ID} column")),
    }
    if wanted.copies {
        match column(COPY)?.as_ref().and_then(|c| c.as_primitive_opt::<Int32Type>()) {
            Some(copies) => check.copies.extend_from_slice(copies.values()),
            None => check.problems.push(format!("it has no {COPY} column")),
        }
    }
    let classified = classify(batch, &wanted.columns, &check.path)?;
    for (key, n) in classified.into_counts() {
        *check.strata.entry(key).or_insert(0) += n;
    }
    if let Some(identity) = &wanted.identity {
        let of = classify(batch, &[KeyColumn::Value { column: identity.clone() }], &check.path)?;
        check.identities.extend(of.keys.iter().map(|key| hash(key)));
        check.identities.sort_unstable();
        check.identities.dedup();
    }
    if let Some(name) = &wanted.weight {
        let column = batch.column(name).ok_or_else(|| crate::Error::internal(format!("no column \"{name}\"")))?;
        let weights = weights::weights(column, name, &check.path, 0)?;
        check.weight += weights.iter().map(|w| u128::from(*w)).sum::<u128>();
    }
    Ok(())
}
