//! Where a run is, in a few numbers: resume is a seek.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    fingerprint::PlanIdentity,
    plan::Plan,
};

/// Version of the saved form.
pub const STATE_VERSION: u64 = 1;

/// A position in a plan. Each batch carries the state *after it*, so that a state never runs ahead with what was
/// prefetched. After the last step of an epoch it is the beginning of the next one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// [`STATE_VERSION`] of the writer.
    pub version: u64,
    /// Fingerprint of the plan, 64 hexadecimal digits.
    pub fingerprint: String,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Samples of the epoch that all ranks together have consumed; bins where rows are packed, steps with a token budget.
    pub index: u64,
    /// The plan's identity, so that a refusal can say what differs.
    pub plan: PlanIdentity,
}

impl State {
    /// The state as JSON, a few hundred bytes.
    ///
    /// # Errors
    /// [`Error::Internal`] when it has no JSON.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::internal(format!("a state has no JSON: {e}")))
    }

    /// Reads a saved state.
    ///
    /// # Errors
    /// [`Error::State`] for anything that is not a state of a known version.
    pub fn from_json(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        let unreadable = |e: serde_json::Error| Error::State {
            what: format!("it is not the JSON of a state ({e})"),
            help: "use an older checkpoint".into(),
        };
        let Version { version } = serde_json::from_str(text).map_err(unreadable)?;
        if version != STATE_VERSION {
            return Err(Error::State {
                what: format!("it has version {version}; this gristmill reads {STATE_VERSION}"),
                help: "resume with the gristmill that saved it".into(),
            });
        }
        serde_json::from_str(text).map_err(unreadable)
    }

    /// Refuses a state of another plan, or one that lies past the end of its epoch.
    ///
    /// # Errors
    /// [`Error::OtherPlan`] with the list of differences, [`Error::State`].
    pub fn check(&self, plan: &Plan) -> Result<()> {
        let (identity, fingerprint) = (plan.identity(), plan.fingerprint());
        let differences = identity.differences(&self.plan);
        if !differences.is_empty() {
            return Err(Error::OtherPlan { differences });
        }
        if self.fingerprint != fingerprint.to_string() {
            return Err(Error::State {
                what: format!("its fingerprint {} is not that of its own fields, {fingerprint}", self.fingerprint),
                help: "it was edited or damaged: use an older checkpoint".into(),
            });
        }
        let units = plan.units(self.epoch)?;
        if self.index > units {
            return Err(Error::State {
                what: format!("it is at {} of an epoch of {units}", self.index),
                help: "it was edited or damaged: use an older checkpoint".into(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fingerprint::{Fingerprint, tests::identity},
        plan::{PlanOptions, tests::plan},
    };

    fn state() -> State {
        let fingerprint = Fingerprint::of(&identity()).unwrap().to_string();
        State { version: STATE_VERSION, fingerprint, epoch: 3, index: 4, plan: identity() }
    }

    #[test]
    fn it_reads_back_and_anything_else_is_refused() {
        let text = state().to_json().unwrap();
        assert_eq!(State::from_json(&text).unwrap(), state());
        for cut in 0..text.len() {
            assert!(State::from_json(&text[..cut]).is_err());
        }
        let newer = text.replacen("\"version\":1", "\"version\":2", 1);
        assert!(State::from_json(&newer).unwrap_err().to_string().contains("version 2"));
        let unknown = text.replacen("\"epoch\":3", "\"epoch\":3,\"more\":1", 1);
        assert!(State::from_json(&unknown).is_err());
    }

    #[test]
    fn another_plan_is_refused_with_its_differences() {
        let plan = plan(10, 2, 1, 5, PlanOptions::new("train", 4));
        let state = plan.state(3, 4).unwrap();
        state.check(&plan).unwrap();
        let mut other = state.clone();
        other.plan.seed = 9;
        let error = other.check(&plan).unwrap_err().to_string();
        assert!(error.contains("seed: the state has 9, this run has 0"), "{error}");
        let damaged = State { fingerprint: "ab".into(), ..state.clone() };
        assert!(matches!(damaged.check(&plan), Err(Error::State { .. })));
        let past = State { index: 11, ..state };
        assert!(matches!(past.check(&plan), Err(Error::State { .. })));
    }
}
