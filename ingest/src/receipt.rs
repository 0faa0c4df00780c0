//! The receipt of a finished unit: which files it left, and where its rows went.

use gristmill_shard::{
    manifest::IngestCounts,
    parquet_writer::{EncodedFile, EncodedRowGroup},
    tables::FileEntry,
};
use serde::{Deserialize, Serialize};

use crate::rejects::RejectSummary;

/// Folder of the clean files.
pub(crate) const DATA: &str = "data";
/// Folder of the refused rows.
pub(crate) const REJECTS: &str = "rejects";

/// What a finished unit left, as a later run reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) rows_in: u64,
    pub(crate) filtered: u64,
    pub(crate) data: Option<StoredFile>,
    pub(crate) rejects: Option<StoredFile>,
    pub(crate) summary: RejectSummary,
}

/// A file of the output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoredFile {
    pub(crate) path: String,
    rows: u64,
    pub(crate) bytes: u64,
    pub(crate) blake3: String,
    row_groups: Vec<EncodedRowGroup>,
}

impl StoredFile {
    pub(crate) fn new(folder: &str, unit: usize, file: &EncodedFile) -> Self {
        Self {
            path: format!("{folder}/part-{unit:05}-{}.parquet", file.digest8()),
            rows: file.rows,
            bytes: file.bytes.len() as u64,
            blake3: file.blake3.clone(),
            row_groups: file.row_groups.clone(),
        }
    }

    pub(crate) fn entry(&self, sequence: usize) -> FileEntry {
        FileEntry {
            path: self.path.clone(),
            split: String::new(),
            lane: 0,
            sequence: sequence as u32,
            rows: self.rows,
            bytes: self.bytes,
            blake3: self.blake3.clone(),
            version: 1,
            row_groups: self.row_groups.clone(),
        }
    }
}

impl Receipt {
    pub(crate) fn counts(&self) -> IngestCounts {
        IngestCounts {
            rows_in: self.rows_in,
            accepted: self.data.as_ref().map_or(0, |d| d.rows),
            rejected: self.summary.rows(),
            filtered: self.filtered,
        }
    }

    /// Its files.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.data.iter().chain(&self.rejects).map(|f| f.path.clone()).collect()
    }
}
