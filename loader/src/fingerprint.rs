//! What a plan is, as a few fields and a digest of them: two plans of one fingerprint give the same order.

use serde::{Deserialize, Serialize};

use crate::{
    batching::options::Batching,
    curriculum::Curriculum,
    error::{Error, Result},
    mixture::MixOptions,
    options::{Shuffle, Tail},
    sampling::options::Sampling,
};

/// Version of the rules that turn an identity into an order. It changes when any order changes.
pub const PLAN_VERSION: u64 = 1;

/// The fields that decide the order of an epoch. World size, micro-batch, threads, memory, URLs and a fixed global
/// batch size are not among them: a run may resume with others.
//
// Fields are in byte order of their names: the serialised text is then canonical by construction, whatever features
// serde_json is built with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanIdentity {
    /// How epochs are cut into steps.
    pub batching: BatchingIdentity,
    /// The order by difficulty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curriculum: Option<CurriculumIdentity>,
    /// Conditions of the filter, each with the number that it came to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
    /// BLAKE3 of the shard set's manifest.
    pub manifest: String,
    /// How sources are mixed, weights as coprime integers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<MixOptions>,
    /// The sources after the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_sources: Vec<SourceIdentity>,
    /// [`PLAN_VERSION`].
    pub plan_version: u64,
    /// Rows of the split.
    pub rows: u64,
    /// Weighted or class-balanced draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Seed.
    pub seed: u64,
    /// Shuffling.
    pub shuffle: Shuffle,
    /// Name of the split.
    pub split: String,
}

/// A source after the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceIdentity {
    /// Conditions of the filter, each with the number that it came to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
    /// BLAKE3 of the shard set's manifest.
    pub manifest: String,
    /// Rows of the split.
    pub rows: u64,
    /// Name of the split.
    pub split: String,
}

/// An order by difficulty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurriculumIdentity {
    /// BLAKE3 of the tables of levels that the pacing came to, for each source and epoch.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub levels: String,
    /// The settings.
    pub options: Curriculum,
}

/// The batching rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BatchingIdentity {
    /// A fixed number of samples a step; the number itself is not part of the identity.
    Fixed {
        /// What happens to the samples left over at the end.
        tail: Tail,
    },
    /// Steps or bins made of windows of rows.
    Windows {
        /// The settings.
        options: Batching,
        /// What happens to the bins left over at the end.
        tail: Tail,
    },
}

/// BLAKE3 of the canonical JSON of a [`PlanIdentity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of `identity`.
    ///
    /// # Errors
    /// [`Error::Internal`] when the identity can't be written as JSON.
    pub fn of(identity: &PlanIdentity) -> Result<Self> {
        let text = serde_json::to_vec(identity).map_err(|e| Error::internal(format!("a plan has no JSON: {e}")))?;
        Ok(Self(*blake3::hash(&text).as_bytes()))
    }

    /// The digest as four numbers, as keys take them.
    #[must_use]
    pub fn words(&self) -> [u64; 4] {
        std::array::from_fn(|i| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.0[i * 8..i * 8 + 8]);
            u64::from_le_bytes(word)
        })
    }
}

impl std::fmt::Display for Fingerprint {
    /// 64 hexadecimal digits.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl PlanIdentity {
    /// The fields in which `saved` differs from this plan, one line each; empty when there are none.
    #[must_use]
    pub fn differences(&self, saved: &Self) -> Vec<String> {
        fn json(value: &impl Serialize) -> String {
            serde_json::to_string(value).unwrap_or_else(|e| e.to_string())
        }
        let optional = |text: String| if text == "null" { "none".to_owned() } else { text };
        let as_text = |identity: &Self| {
            [
                ("manifest", identity.manifest.clone()),
                ("split", identity.split.clone()),
                ("rows", identity.rows.to_string()),
                ("seed", identity.seed.to_string()),
                ("filters", json(&identity.filters)),
                ("shuffle", json(&identity.shuffle)),
                ("curriculum", optional(json(&identity.curriculum))),
                ("sampling", optional(json(&identity.sampling))),
                ("mix", optional(json(&identity.mix))),
                ("more_sources", json(&identity.more_sources)),
                ("batching", json(&identity.batching)),
                ("plan_version", identity.plan_version.to_string()),
            ]
        };
        as_text(self)
            .into_iter()
            .zip(as_text(saved))
            .filter(|((_, now), (_, then))| now != then)
            .map(|((name, now), (_, then))| format!("{name}: the state has {then}, this run has {now}"))
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn identity() -> PlanIdentity {
        PlanIdentity {
            batching: BatchingIdentity::Fixed { tail: Tail::Exact },
            curriculum: None,
            filters: Vec::new(),
            manifest: "00".into(),
            mix: None,
            more_sources: Vec::new(),
            plan_version: PLAN_VERSION,
            rows: 10,
            sampling: None,
            seed: 0,
            shuffle: Shuffle::ShardBlock { window_blocks: 2 },
            split: "train".into(),
        }
    }

    #[test]
    fn the_text_is_canonical_and_the_digest_never_changes() {
        let text = serde_json::to_string(&identity()).unwrap();
        assert_eq!(
            text,
            r#"{"batching":{"kind":"fixed","tail":"exact"},"manifest":"00","plan_version":1,"rows":10,"seed":0,"shuffle":{"kind":"shard-block","window_blocks":2},"split":"train"}"#
        );
        assert_eq!(Fingerprint::of(&identity()).unwrap().to_string(), blake3::hash(text.as_bytes()).to_hex().as_str());
    }

    #[test]
    fn differences_name_the_fields() {
        let mut other = identity();
        assert!(identity().differences(&other).is_empty());
        other.seed = 7;
        other.shuffle = Shuffle::Global;
        let lines = identity().differences(&other);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], "seed: the state has 7, this run has 0");
        assert!(lines[1].contains("global"));
    }
}
