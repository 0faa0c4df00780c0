//! Initial parameters: a function of (seed, name, shape), the same on every rank and for any number of ranks, and
//! independent of libtorch's generators.

use gristmill_shard::keys::{Domain, Key};
use tch::{Device, Kind, Tensor};

use crate::error::{During, Error, Result};

use super::Parameter;

/// Makes initial parameters.
#[derive(Debug, Clone, Copy)]
pub struct Initializer {
    seed: u64,
    kind: Kind,
}

impl Initializer {
    /// Parameters of `kind` from `seed`.
    #[must_use]
    pub fn new(seed: u64, kind: Kind) -> Self {
        Self { seed, kind }
    }

    /// Uniform in [−bound, bound). Values are drawn as f64 and rounded, so f32 and f64 models start alike.
    ///
    /// # Errors
    /// [`Error::Torch`].
    pub fn uniform(&self, name: &str, shape: &[i64], bound: f64) -> Result<Parameter> {
        let name_hash = blake3::hash(name.as_bytes());
        let fields: Vec<u64> =
            name_hash.as_bytes().chunks_exact(8).filter_map(|c| c.try_into().ok().map(u64::from_le_bytes)).collect();
        let mut rng = Key::derive(Domain::Init, self.seed, &fields).rng();
        let n = shape.iter().try_fold(1_usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?));
        let n = n.ok_or_else(|| Error::internal(format!("parameter {name} has the shape {shape:?}")))?;
        // 53 random bits are what a f64 in [0, 1) holds.
        let unit = |bits: u64| (bits >> 11) as f64 / (1_u64 << 53) as f64;
        let values: Vec<f64> = (0..n).map(|_| (2.0 * unit(rng.next_u64()) - 1.0) * bound).collect();
        let tensor = Tensor::f_from_slice(&values)
            .and_then(|t| t.f_reshape(shape))
            .and_then(|t| t.f_to_kind(self.kind))
            .during("making an initial parameter")?;
        leaf(name, tensor)
    }

    /// All zeros.
    ///
    /// # Errors
    /// [`Error::Torch`].
    pub fn zeros(&self, name: &str, shape: &[i64]) -> Result<Parameter> {
        leaf(name, Tensor::f_zeros(shape, (self.kind, Device::Cpu)).during("making an initial parameter")?)
    }
}

fn leaf(name: &str, tensor: Tensor) -> Result<Parameter> {
    let tensor = tensor.f_set_requires_grad(true).during("marking a parameter as trainable")?;
    Ok(Parameter { name: name.to_owned(), tensor })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(p: &Parameter) -> Vec<f64> {
        Vec::<f64>::try_from(p.tensor.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap()
    }

    #[test]
    fn parameters_depend_on_seed_and_name_alone() {
        let init = Initializer::new(1, Kind::Double);
        let a = values(&init.uniform("a", &[40, 50], 0.5).unwrap());
        assert_eq!(a, values(&init.uniform("a", &[50, 40], 0.5).unwrap()));
        assert_ne!(a, values(&init.uniform("b", &[40, 50], 0.5).unwrap()));
        assert_ne!(a, values(&Initializer::new(2, Kind::Double).uniform("a", &[40, 50], 0.5).unwrap()));
        let float = values(&Initializer::new(1, Kind::Float).uniform("a", &[40, 50], 0.5).unwrap());
        assert!(a.iter().zip(&float).all(|(x, y)| f64::from(*x as f32) == *y));
    }

    #[test]
    fn values_fill_the_range_evenly() {
        let p = Initializer::new(3, Kind::Double).uniform("w", &[10_000], 2.0).unwrap();
        assert!(p.tensor.requires_grad() && p.tensor.is_leaf());
        let v = values(&p);
        assert!(v.iter().all(|x| (-2.0..2.0).contains(x)));
        let mean = v.iter().sum::<f64>() / 1e4;
        let square = v.iter().map(|x| x * x).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05 && (square - 4.0 / 3.0).abs() < 0.05, "{mean} {square}");
    }
}
