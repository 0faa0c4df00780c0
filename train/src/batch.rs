//! What the trainer knows of data: batches of tensors in a planned order, of which each rank gets its part.

use gristmill_c10d::World;
use tch::Tensor;

use crate::error::{During, Error, Result};

/// Tensor of the numeric features: [rows, numbers], the model's number type, normalised.
pub const NUMBERS: &str = "numbers";
/// Tensor of the categorical features: [rows, categories], i64 codes, 0 = null or unseen.
pub const CATEGORIES: &str = "categories";
/// Tensor of the labels: [rows], the model's number type, 0 or 1.
pub const LABEL: &str = "label";
/// Tensor of the baseline column: [rows], i64 codes, 0 = null or unseen.
pub const BASELINE: &str = "baseline";

/// A rank's part of one global batch. It has at least one row: a rank without samples gets one filler row.
#[derive(Debug)]
pub struct Batch {
    /// Named tensors whose first dimension is the rows.
    pub tensors: Vec<(String, Tensor)>,
    /// [rows], f32: 1 for a sample, 0 for a filler or a slot whose record was bad.
    pub mask: Tensor,
    /// [rows], i64: identity of the row in its data set; of a filler anything.
    pub row_ids: Tensor,
    /// Unmasked samples of the global batch, over all ranks and micro-batches.
    pub global_rows: u64,
    /// Rows, fillers included, of the largest part that any rank has of this global batch.
    pub largest_part: u64,
    /// Where the source goes on after this batch; opaque to the trainer.
    pub state: serde_json::Value,
}

impl Batch {
    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`Error::Internal`] when the source does not deliver it.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors
            .iter()
            .find_map(|(n, t)| (n == name).then_some(t))
            .ok_or_else(|| Error::internal(format!("the batch has no tensor \"{name}\"")))
    }

    /// Rows, fillers included.
    #[must_use]
    pub fn rows(&self) -> i64 {
        self.mask.size().first().copied().unwrap_or(0)
    }

    /// Rows `start .. start + length` as views. Beyond the end it is the first row with mask 0: a filler, so that every
    /// rank runs the same number of micro-batches.
    ///
    /// # Errors
    /// [`Error::Torch`].
    pub fn part(&self, start: i64, length: i64) -> Result<Self> {
        let rows = self.rows();
        if start == 0 && length >= rows {
            return self.view(0, rows);
        }
        if start >= rows {
            let mut filler = self.view(0, 1)?;
            filler.mask = filler.mask.f_zeros_like().during("making a filler row")?;
            return Ok(filler);
        }
        self.view(start, length.min(rows - start))
    }

    fn view(&self, start: i64, length: i64) -> Result<Self> {
        let cut = |t: &Tensor| t.f_narrow(0, start, length).during("cutting a batch into micro-batches");
        Ok(Self {
            tensors: self.tensors.iter().map(|(n, t)| Ok((n.clone(), cut(t)?))).collect::<Result<_>>()?,
            mask: cut(&self.mask)?,
            row_ids: cut(&self.row_ids)?,
            global_rows: self.global_rows,
            largest_part: self.largest_part,
            state: serde_json::Value::Null,
        })
    }
}

/// What a source delivers: the same for every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanSummary {
    /// Identity of the order; ranks compare it, and a saved state belongs to it.
    pub fingerprint: String,
    /// Samples of one epoch over all ranks.
    pub samples: u64,
    /// Steps of one epoch, the same on every rank.
    pub steps: u64,
}

/// Batches of one split, for one rank.
///
/// In every epoch it delivers `steps` batches on every rank, whose unmasked rows over all ranks are each sample of the
/// plan once. What it delivers is a function of (fingerprint, epoch, step, rank, world size).
pub trait BatchSource {
    /// What it delivers.
    ///
    /// # Errors
    /// What its making fails with.
    fn plan(&self) -> Result<PlanSummary>;

    /// Goes to the start of an epoch.
    ///
    /// # Errors
    /// Whatever reading can fail with.
    fn start(&mut self, epoch: u64) -> Result<()>;

    /// Goes to where [`Batch::state`] was taken, at this or another world size.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the state belongs to another order; else as [`BatchSource::start`].
    fn restore(&mut self, state: &serde_json::Value) -> Result<()>;

    /// The next batch; `None` at the end of the epoch. It blocks.
    ///
    /// # Errors
    /// Whatever reading can fail with.
    fn next(&mut self) -> Result<Option<Batch>>;
}

/// Which columns a source delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// What the model needs.
    Model,
    /// That, and [`BASELINE`] where one is configured.
    ModelAndBaseline,
    /// [`LABEL`], and [`BASELINE`] where one is configured.
    Baseline,
}

/// Opens the splits of the data that a run is over.
pub trait Sources {
    /// Identity of the data: digest of their manifest.
    fn digest(&self) -> String;

    /// The inputs of the model.
    fn features(&self) -> &FeatureSpec;

    /// The train split, in its planned order.
    ///
    /// # Errors
    /// Whatever opening can fail with.
    fn train(&self, world: World) -> Result<Box<dyn BatchSource>>;

    /// Any split, once, in the order in which it is stored.
    ///
    /// # Errors
    /// Whatever opening can fail with.
    fn scan(&self, split: &str, columns: Columns, world: World) -> Result<Box<dyn BatchSource>>;

    /// The split that is scored after each epoch, and the one at the end.
    fn evaluation_splits(&self) -> (Option<String>, Option<String>);
}

/// The inputs of the model, as they are resolved from the statistics of the train split; saved with the model, so that
/// others can feed it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureSpec {
    /// Columns of [`NUMBERS`].
    pub numbers: Vec<NumberFeature>,
    /// Columns of [`CATEGORIES`].
    pub categories: Vec<CategoryFeature>,
    /// The label.
    pub label: LabelSpec,
    /// Values of the baseline column, by code − 1.
    pub baseline: Option<CategoryFeature>,
}

/// A numeric feature: (x − mean) / deviation, null as 0.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberFeature {
    /// Column.
    pub column: String,
    /// Mean over the train split.
    pub mean: f64,
    /// Deviation over the train split; 1 for a constant column.
    pub deviation: f64,
}

/// A categorical feature: code i + 1 for `values[i]`, 0 for null or any other.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategoryFeature {
    /// Column.
    pub column: String,
    /// Values in the train split.
    pub values: Vec<String>,
}

/// The label.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSpec {
    /// Column.
    pub column: String,
    /// The values that stand for 0 and 1.
    pub classes: [String; 2],
}
