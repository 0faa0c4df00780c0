//! Embeddings of the categories beside the numbers, then fully connected layers, one logit.

use tch::{Kind, Tensor};

use crate::{
    batch::{self, Batch, FeatureSpec},
    config::{Activation, FloatType, ModelConfig},
    error::{During, Error, Result},
};

use super::{DropoutMasks, Forward, Initializer, Model, Parameter, Pass};

/// Half the width of the uniform distribution that embeddings start from, as in Keras.
const EMBEDDING_BOUND: f64 = 0.05;

/// A two-class model of numbers and categories.
///
/// # Shapes
/// With B rows, F numbers and C categories with vocabularies K₁ … K_C:
/// - `embedding.<column>`: [K + 1, D]; row 0 is null and unseen;
/// - x = numbers [B, F] beside each category's embedding [B, D]: [B, F + ΣD];
/// - `hidden.<i>.weight`: [out, in], `hidden.<i>.bias`: [out]; x ← dropout(activation(x · weightᵀ + bias));
/// - `output.weight`: [1, in], `output.bias`: [1]; logits [B].
///
/// Hidden weights start uniform within √(6 / in) (He and others, 2015), the output's within 1 / √in, biases at 0.
#[derive(Debug)]
pub struct Tabular {
    parameters: Vec<Parameter>,
    /// Embeddings, in the order of the categories.
    embeddings: usize,
    hidden: usize,
    numbers: bool,
    activation: Activation,
    dropout: f64,
    kind: Kind,
}

/// libtorch's number type.
pub(crate) fn kind_of(dtype: FloatType) -> Kind {
    match dtype {
        FloatType::F32 => Kind::Float,
        FloatType::F64 => Kind::Double,
    }
}

impl Tabular {
    /// A new model for `features`, with initial parameters from `seed`.
    ///
    /// # Errors
    /// [`Error::Usage`] without features, [`Error::Torch`] when memory does not suffice.
    pub fn new(config: &ModelConfig, features: &FeatureSpec, seed: u64) -> Result<Self> {
        let kind = kind_of(config.dtype);
        let init = Initializer::new(seed, kind);
        let mut parameters = Vec::new();
        let mut width = features.numbers.len() as i64;
        for category in &features.categories {
            let dim = config.embedding_dim.width(category.values.len());
            let shape = [category.values.len() as i64 + 1, dim];
            parameters.push(init.uniform(&format!("embedding.{}", category.column), &shape, EMBEDDING_BOUND)?);
            width += dim;
        }
        if width == 0 {
            return Err(Error::usage("the model has no features", "list columns under features"));
        }
        for (i, out) in config.hidden.iter().enumerate() {
            let bound = (6.0 / width as f64).sqrt();
            parameters.push(init.uniform(&format!("hidden.{i}.weight"), &[*out, width], bound)?);
            parameters.push(init.zeros(&format!("hidden.{i}.bias"), &[*out])?);
            width = *out;
        }
        parameters.push(init.uniform("output.weight", &[1, width], 1.0 / (width as f64).sqrt())?);
        parameters.push(init.zeros("output.bias", &[1])?);
        Ok(Self {
            parameters,
            embeddings: features.categories.len(),
            hidden: config.hidden.len(),
            numbers: !features.numbers.is_empty(),
            activation: config.activation,
            dropout: config.dropout,
            kind,
        })
    }

    /// Input of the first layer: [B, F + ΣD].
    fn input(&self, batch: &Batch) -> Result<Tensor> {
        let mut parts = Vec::with_capacity(self.embeddings + 1);
        if self.numbers {
            parts.push(batch.tensor(batch::NUMBERS)?.shallow_clone());
        }
        if self.embeddings > 0 {
            let codes = batch.tensor(batch::CATEGORIES)?;
            for (i, table) in self.parameters.iter().take(self.embeddings).enumerate() {
                let column = codes.f_select(1, i as i64).during("taking a column of codes")?;
                let embedded = Tensor::f_embedding(&table.tensor, &column, -1, false, false);
                parts.push(embedded.during(&format!("looking up {}", table.name))?);
            }
        }
        Tensor::f_cat(&parts, 1).during("putting features side by side")
    }

    fn linear(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let at = self.embeddings + 2 * layer;
        match (self.parameters.get(at), self.parameters.get(at + 1)) {
            (Some(weight), Some(bias)) => {
                x.f_linear(&weight.tensor, Some(&bias.tensor)).during(&format!("applying {}", weight.name))
            }
            _ => Err(Error::internal(format!("the model has no layer {layer}"))),
        }
    }

    fn activate(&self, x: &Tensor) -> Result<Tensor> {
        match self.activation {
            Activation::Relu => x.f_relu(),
            Activation::Gelu => x.f_gelu("none"),
            Activation::Silu => x.f_silu(),
            Activation::Tanh => x.f_tanh(),
        }
        .during("applying the activation")
    }
}

impl Model for Tabular {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn forward(&self, batch: &Batch, pass: Pass) -> Result<Forward> {
        let masks = match pass {
            Pass::Train { seed, step } if self.dropout > 0.0 => {
                Some(DropoutMasks::new(seed, step, &batch.row_ids, self.dropout)?)
            }
            _ => None,
        };
        let mut x = self.input(batch)?;
        for layer in 0..self.hidden {
            x = self.activate(&self.linear(&x, layer)?)?;
            if let Some(masks) = &masks {
                let width = x.size().get(1).copied().unwrap_or(0);
                let mask = masks.layer(layer as u64, width, self.kind)?;
                x = x.f_mul(&mask).during("dropping units")?;
            }
        }
        let logits = self.linear(&x, self.hidden)?.f_squeeze_dim(1).during("taking the logits")?;
        let labels = batch.tensor(batch::LABEL)?;
        let losses = logits
            .f_binary_cross_entropy_with_logits(labels, None::<&Tensor>, None::<&Tensor>, tch::Reduction::None)
            .during("computing the loss")?;
        let logits = logits.f_detach().during("taking the logits")?;
        Ok(Forward { losses, logits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{CategoryFeature, LabelSpec, NumberFeature};
    use crate::config::EmbeddingDim;

    pub(crate) fn features() -> FeatureSpec {
        FeatureSpec {
            numbers: vec![NumberFeature { column: "x".into(), mean: 0.0, deviation: 1.0 }],
            categories: vec![CategoryFeature { column: "c".into(), values: vec!["a".into(), "b".into()] }],
            label: LabelSpec { column: "y".into(), classes: ["0".into(), "1".into()] },
            baseline: None,
        }
    }

    fn batch(codes: &[i64]) -> Batch {
        let n = codes.len() as i64;
        Batch {
            tensors: vec![
                (batch::NUMBERS.into(), Tensor::arange(n, (Kind::Double, tch::Device::Cpu)).reshape([n, 1])),
                (batch::CATEGORIES.into(), Tensor::from_slice(codes).reshape([n, 1])),
                (batch::LABEL.into(), Tensor::ones([n], (Kind::Double, tch::Device::Cpu))),
            ],
            mask: Tensor::ones([n], (Kind::Float, tch::Device::Cpu)),
            row_ids: Tensor::arange(n, (Kind::Int64, tch::Device::Cpu)),
            global_rows: n as u64,
            largest_part: n as u64,
            state: serde_json::Value::Null,
        }
    }

    fn config(dropout: f64) -> ModelConfig {
        ModelConfig {
            hidden: vec![5],
            dropout,
            dtype: FloatType::F64,
            embedding_dim: EmbeddingDim::Fixed(3),
            ..ModelConfig::default()
        }
    }

    #[test]
    fn shapes_and_the_formula_are_as_documented() {
        let model = Tabular::new(&config(0.0), &features(), 1).unwrap();
        let named: Vec<_> = model.parameters().iter().map(|p| (p.name.as_str(), p.tensor.size())).collect();
        assert_eq!(
            named,
            [
                ("embedding.c", vec![3, 3]),
                ("hidden.0.weight", vec![5, 4]),
                ("hidden.0.bias", vec![5]),
                ("output.weight", vec![1, 5]),
                ("output.bias", vec![1])
            ]
        );
        assert_eq!(super::super::parameter_count(&model), 9 + 20 + 5 + 5 + 1);

        let value = |i: usize| model.parameters()[i].tensor.detach();
        let out = model.forward(&batch(&[2, 0]), Pass::Evaluate).unwrap();
        // Row 1: x = 1, code 0.
        let x = Tensor::cat(&[Tensor::from_slice(&[1.0]), value(0).get(0)], 0);
        let h = (value(1).matmul(&x) + value(2)).relu();
        let logit = f64::try_from(value(3).matmul(&h) + value(4)).unwrap();
        assert!((out.logits.double_value(&[1]) - logit).abs() < 1e-12);
        assert!((out.losses.double_value(&[1]) - (1.0 + (-logit).exp()).ln()).abs() < 1e-12);
        assert!(!out.logits.requires_grad() && out.losses.requires_grad());
    }

    #[test]
    fn dropout_acts_only_in_training_and_follows_its_key() {
        let model = Tabular::new(&config(0.5), &features(), 1).unwrap();
        let b = batch(&[1; 8]);
        let logits = |pass| Vec::<f64>::try_from(model.forward(&b, pass).unwrap().logits).unwrap();
        assert_eq!(logits(Pass::Evaluate), logits(Pass::Evaluate));
        let first = logits(Pass::Train { seed: 1, step: 0 });
        assert_eq!(first, logits(Pass::Train { seed: 1, step: 0 }));
        assert_ne!(first, logits(Pass::Train { seed: 1, step: 1 }));
        assert_ne!(first, logits(Pass::Evaluate));
    }

    #[test]
    fn a_code_beyond_the_vocabulary_is_an_error() {
        let model = Tabular::new(&config(0.0), &features(), 1).unwrap();
        let error = model.forward(&batch(&[3]), Pass::Evaluate).unwrap_err();
        assert!(error.to_string().contains("embedding.c"), "{error}");
    }

    #[test]
    fn every_activation_runs() {
        for activation in [Activation::Relu, Activation::Gelu, Activation::Silu, Activation::Tanh] {
            let config = ModelConfig { activation, ..config(0.0) };
            let model = Tabular::new(&config, &features(), 1).unwrap();
            let losses = model.forward(&batch(&[1]), Pass::Evaluate).unwrap().losses;
            assert!(losses.double_value(&[0]).is_finite());
        }
    }
}
