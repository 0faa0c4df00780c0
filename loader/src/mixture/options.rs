//! What a mixture is asked to be.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    mixture::weights::{Weight, coprime},
};

/// Settings of a mixture. Fields are in byte order of their names, so that their JSON has one form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MixOptions {
    /// Stages of the first epoch, in order, at least one; later epochs have the weights of the last.
    pub stages: Vec<StageOptions>,
    /// Where an epoch ends.
    #[serde(default)]
    pub stop: Stop,
}

/// Settings of a stage, fields in byte order of their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StageOptions {
    /// Samples of the stage, at least 1; none for the last stage, which goes on to the end of the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// One weight a source; a source of weight 0 is not in this stage.
    pub weights: Vec<Weight>,
}

impl MixOptions {
    /// The same weights throughout.
    #[must_use]
    pub fn new(weights: Vec<Weight>, stop: Stop) -> Self {
        Self { stages: vec![StageOptions { samples: None, weights }], stop }
    }

    /// The same mixture with weights as coprime integers: equal for any two settings of the same mixture, so that this
    /// is what a fingerprint is to be of.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::error::Error::Usage) for weights that [`coprime`] refuses.
    pub fn canonical(&self) -> Result<Self> {
        let canonical = |stage: &StageOptions| {
            let weights = coprime(&stage.weights)?.into_iter().map(Weight::from).collect();
            Ok(StageOptions { samples: stage.samples, weights })
        };
        Ok(Self { stages: self.stages.iter().map(canonical).collect::<Result<_>>()?, stop: self.stop })
    }
}

/// Where an epoch of a mixture ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Stop {
    /// Just before an epoch would take more of a source than its rows. So no source begins a second pass in the first
    /// epoch, nor pass e + 1, from 0, within e + 1 epochs of one stage.
    #[default]
    FirstExhausted,
    /// As soon as an epoch has taken, of each source, its rows at least once; shorter sources go on in further passes.
    /// So e epochs of one stage pass through each source at least e times. Epochs after the first count the sources of
    /// the last stage only.
    AllExhausted,
    /// After this many samples, at least 1.
    Samples(u64),
}

/// As it is written in a configuration.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstExhausted => f.write_str("\"first-exhausted\""),
            Self::AllExhausted => f.write_str("\"all-exhausted\""),
            Self::Samples(samples) => write!(f, "{{ samples = {samples} }}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_read_and_write() {
        let written =
            r#"{"stop":"all-exhausted","stages":[{"weights":[1,0],"samples":1000},{"weights":[0.7,"3/10"]}]}"#;
        let options: MixOptions = serde_json::from_str(written).unwrap();
        let json =
            r#"{"stages":[{"samples":1000,"weights":["1","0"]},{"weights":["0.7","0.3"]}],"stop":"all-exhausted"}"#;
        assert_eq!(serde_json::to_string(&options).unwrap(), json);
        assert_eq!(serde_json::from_str::<MixOptions>(json).unwrap(), options);
        let default: MixOptions = serde_json::from_str(r#"{"stages":[{"weights":[1,2]}]}"#).unwrap();
        assert_eq!(default.stop, Stop::FirstExhausted);
        let samples: MixOptions = serde_json::from_str(r#"{"stages":[],"stop":{"samples":5}}"#).unwrap();
        assert_eq!(samples.stop, Stop::Samples(5));
        for unknown in [
            r#"{"stages":[],"stopp":"first-exhausted"}"#,
            r#"{"stages":[{"weights":[1],"sample":5}]}"#,
            r#"{"stages":[],"stop":"never"}"#,
        ] {
            assert!(serde_json::from_str::<MixOptions>(unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn stops_are_shown_as_they_are_written() {
        assert_eq!(Stop::FirstExhausted.to_string(), "\"first-exhausted\"");
        assert_eq!(Stop::AllExhausted.to_string(), "\"all-exhausted\"");
        assert_eq!(Stop::Samples(12).to_string(), "{ samples = 12 }");
    }

    #[test]
    fn equal_mixtures_have_one_canonical_form() {
        let of = |weights: &[&str]| {
            MixOptions::new(weights.iter().map(|w| w.parse().unwrap()).collect(), Stop::Samples(5)).canonical()
        };
        let canonical = of(&["7", "0", "3"]).unwrap();
        assert_eq!(of(&["0.7", "0", "0.30"]).unwrap(), canonical);
        assert_eq!(of(&["7/10", "0", "3e-1"]).unwrap(), canonical);
        assert_eq!(canonical.canonical().unwrap(), canonical);
        assert_ne!(of(&["0.7", "0", "0.2"]).unwrap(), canonical);
        assert!(of(&["0", "0"]).is_err());
    }
}
