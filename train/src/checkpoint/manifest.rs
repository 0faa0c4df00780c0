//! What a checkpoint is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    report::EpochScores,
};

/// Format version written, and the only one read.
pub const CHECKPOINT_VERSION: u64 = 1;

/// `manifest.json` of a checkpoint. It carries no clock and no URL: the same run writes the same bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointManifest {
    /// [`CHECKPOINT_VERSION`] of the writer.
    pub format_version: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Epoch to go on in, from 0.
    pub epoch: u64,
    /// Steps of that epoch that are done.
    pub epoch_step: u64,
    /// Digest of the settings and data that the run is of.
    pub config_digest: String,
    /// Identity of the order of the train split.
    pub plan_fingerprint: String,
    /// Where the loader goes on; null at the start of an epoch.
    pub loader_state: serde_json::Value,
    /// Figures of the epoch that is under way.
    pub progress: EpochProgress,
    /// Scores of the epochs that are done.
    pub history: Vec<EpochScores>,
    /// Under which conditions going on gives the same bytes.
    pub conditions: Conditions,
    /// Data files by what they hold: `parameters`, `optimizer`, `log`, `scores`.
    pub files: BTreeMap<String, FileRef>,
}

/// Figures of an epoch that is under way, over all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochProgress {
    /// Sum of the losses.
    pub loss_sum: f64,
    /// Samples.
    pub rows: u64,
    /// Samples that the model got right.
    pub correct: u64,
}

/// Conditions under which the same steps give the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Version of gristmill.
    pub gristmill: String,
    /// Version of libtorch.
    pub libtorch: String,
    /// Instruction set of libtorch's kernels.
    pub cpu_capability: String,
    /// Threads of libtorch in a rank.
    pub threads: u64,
    /// Ranks.
    pub world_size: u64,
    /// Largest micro-batch, where one is set.
    pub micro_batch: Option<u64>,
}

impl Conditions {
    /// What differs between those of a checkpoint and `now`, each as one phrase.
    #[must_use]
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let pairs = [
            ("gristmill", self.gristmill.clone(), now.gristmill.clone()),
            ("libtorch", self.libtorch.clone(), now.libtorch.clone()),
            ("CPU capability", self.cpu_capability.clone(), now.cpu_capability.clone()),
            ("threads", self.threads.to_string(), now.threads.to_string()),
            ("world size", self.world_size.to_string(), now.world_size.to_string()),
            ("micro-batch", optional(self.micro_batch), optional(now.micro_batch)),
        ];
        pairs
            .into_iter()
            .filter(|(_, then, now)| then != now)
            .map(|(what, then, now)| format!("{what} was {then} and is {now}"))
            .collect()
    }
}

fn optional(value: Option<u64>) -> String {
    value.map_or_else(|| "unset".to_owned(), |v| v.to_string())
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRef {
    /// Name in the checkpoint's folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the content.
    pub blake3: String,
}

impl FileRef {
    /// Describes `content`, a file that holds `role`.
    #[must_use]
    pub fn of(role: &str, extension: &str, content: &[u8]) -> Self {
        let blake3 = blake3::hash(content).to_hex().to_string();
        let digest8 = blake3.get(..8).unwrap_or(&blake3);
        Self { name: format!("{role}-{digest8}.{extension}"), bytes: content.len() as u64, blake3 }
    }

    /// What is wrong with `content`, if anything.
    #[must_use]
    pub fn fault(&self, content: &[u8]) -> Option<String> {
        if content.len() as u64 != self.bytes {
            return Some(format!("it has {} bytes, {} were written", content.len(), self.bytes));
        }
        let found = blake3::hash(content).to_hex().to_string();
        (found != self.blake3).then(|| format!("its BLAKE3 is {found}, not {}", self.blake3))
    }
}

/// Reads a JSON document whose `format_version` must be `supported`, before anything else of it is looked at.
pub(crate) fn read_versioned<T: serde::de::DeserializeOwned>(bytes: &[u8], url: &str, supported: u64) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        format_version: u64,
    }
    let corrupt = |e: serde_json::Error| Error::corrupt(url, format!("it is not the JSON it should be: {e}"));
    let Version { format_version } = serde_json::from_slice(bytes).map_err(corrupt)?;
    if format_version != supported {
        return Err(Error::FormatVersion { url: url.to_owned(), found: format_version, supported });
    }
    serde_json::from_slice(bytes).map_err(corrupt)
}

/// Indented JSON with a newline at its end.
pub(crate) fn to_json<T: Serialize>(value: &T, what: &str) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|e| Error::internal(format!("{what}: {e}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let a = Conditions {
            gristmill: "0.1.0".into(),
            libtorch: "2.11.0".into(),
            cpu_capability: "AVX2".into(),
            threads: 2,
            world_size: 1,
            micro_batch: None,
        };
        assert!(a.differences(&a).is_empty());
        let b = Conditions { threads: 3, micro_batch: Some(8), ..a.clone() };
        assert_eq!(a.differences(&b), ["threads was 2 and is 3", "micro-batch was unset and is 8"]);
    }

    #[test]
    fn a_changed_byte_or_length_is_a_fault() {
        let file = FileRef::of("parameters", "safetensors", b"abc");
        assert!(file.name.starts_with("parameters-") && file.name.ends_with(".safetensors"));
        assert_eq!(file.fault(b"abc"), None);
        assert!(file.fault(b"abd").is_some_and(|f| f.contains("BLAKE3")));
        assert!(file.fault(b"ab").is_some_and(|f| f.contains("2 bytes")));
    }
}
