//! Sidecars: each value is that of the row at its position, and orders are orders.

use std::collections::BTreeMap;

use arrow::{
    array::{Array, ArrayRef, AsArray},
    compute::concat,
    datatypes::UInt32Type,
};

use super::VerifyReport;
use crate::{
    control::Control,
    error::{Error, ErrorKind, Result},
    parquet_reader::ParquetFile,
    sidecar::{lane_values, order_of},
    storage::Storage,
    tables::{self, FileEntry, SidecarEntry},
};

pub(super) async fn check(
    storage: &Storage,
    files: &[FileEntry],
    sidecars: &[SidecarEntry],
    control: &Control,
    report: &mut VerifyReport,
) -> Result<()> {
    let mut of_lane: BTreeMap<(&str, u32), Vec<&FileEntry>> = BTreeMap::new();
    for file in files {
        of_lane.entry((&file.split, file.lane)).or_default().push(file);
    }
    for sidecar in sidecars {
        control.stop.check()?;
        let lane = of_lane.get(&(sidecar.split.as_str(), sidecar.lane)).map_or(&[][..], |l| l);
        match check_one(storage, sidecar, lane).await {
            Ok(None) => {}
            Ok(Some(what)) => report.add(&sidecar.path, what),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                report.add(&sidecar.path, e.to_string());
            }
            Err(e) => return Err(e),
        }
        report.files += 1;
        report.bytes += sidecar.bytes;
    }
    Ok(())
}

async fn check_one(storage: &Storage, sidecar: &SidecarEntry, files: &[&FileEntry]) -> Result<Option<String>> {
    let kept = tables::read_digested(storage, &sidecar.path, &sidecar.blake3).await?;
    let Some(kept) = kept.columns().first().cloned() else { return Ok(Some("it has no column".into())) };
    let mut parts = Vec::new();
    for file in files {
        parts.push(column(storage, &file.path, &sidecar.column).await?);
    }
    if parts.is_empty() {
        return Ok(Some("its lane has no rows".into()));
    }
    let values = lane_values(&parts)?;
    if sidecar.name.starts_with("order_") {
        let order = kept.as_primitive_opt::<UInt32Type>().map(|o| o.values().to_vec());
        return Ok((order != Some(order_of(&values))).then(|| "it is not the order of its column".into()));
    }
    Ok((kept.as_ref() != values.as_ref()).then(|| "its values are not those of the rows".into()))
}

/// Column `name` of the file at `path`, whole.
async fn column(storage: &Storage, path: &str, name: &str) -> Result<ArrayRef> {
    let file = ParquetFile::open(storage, path).await?;
    let mut parts = Vec::new();
    for index in 0..file.row_group_rows().len() {
        let bytes = file.fetch(storage, index, Some(&[name])).await?;
        parts.push(file.decode(index, &bytes, Some(&[name]))?.column(0).clone());
    }
    let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
    if parts.is_empty() {
        return Err(Error::corrupt(storage.url(path), "it has no rows"));
    }
    concat(&parts).map_err(|source| Error::Arrow { action: "read a column".into(), source })
}
