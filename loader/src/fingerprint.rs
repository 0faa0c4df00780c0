//! What a plan is, as a few fields and a digest of them: two plans of one fingerprint give the same order.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    plan::{Shuffle, Tail},
};

/// Version of the rules that turn an identity into an order. It changes when any order changes.
pub const PLAN_VERSION: u64 = 1;

/// The fields that decide the order of an epoch. World size, micro-batch, threads, memory, URLs and a fixed global
/// batch size are not among them: a run may resume with others.
//
// Fields are in byte order of their names: the serialised text is then canonical by construction, whatever features
// serde_json is built with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanIdentity {
    /// How epochs are cut into steps.
    pub batching: Batching,
    /// BLAKE3 of the shard set's manifest.
    pub manifest: String,
    /// [`PLAN_VERSION`].
    pub plan_version: u64,
    /// Rows of the split.
    pub rows: u64,
    /// Seed.
    pub seed: u64,
    /// Shuffling.
    pub shuffle: Shuffle,
    /// Name of the split.
    pub split: String,
}

/// The batching rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Batching {
    /// A fixed number of samples a step; the number itself is not part of the identity.
    Fixed {
        /// What happens to the samples left over at the end.
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
        let as_text = |identity: &Self| {
            let json = |value: serde_json::Result<String>| value.unwrap_or_else(|e| e.to_string());
            [
                ("manifest", identity.manifest.clone()),
                ("split", identity.split.clone()),
                ("rows", identity.rows.to_string()),
                ("seed", identity.seed.to_string()),
                ("shuffle", json(serde_json::to_string(&identity.shuffle))),
                ("batching", json(serde_json::to_string(&identity.batching))),
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
            batching: Batching::Fixed { tail: Tail::Exact },
            manifest: "00".into(),
            plan_version: PLAN_VERSION,
            rows: 10,
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
