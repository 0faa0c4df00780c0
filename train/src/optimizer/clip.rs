//! Gradient clipping by the norm of the whole gradient.

use tch::{Kind, Tensor};

use crate::{
    error::{During, Result},
    model::Parameter,
};

/// Scales all gradients so that their joint Euclidean norm is at most `max_norm`, and returns the norm before. As torch
/// does it, the factor is `max_norm / (norm + 1e-6)`, at most 1.
///
/// After the reduction gradients are equal on all ranks, and so are the norm and the result.
///
/// # Errors
/// [`crate::Error::Torch`].
pub fn clip_by_global_norm(parameters: &[Parameter], max_norm: f64) -> Result<f64> {
    let during = "clipping the gradient";
    let mut grads = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let grad = parameter.tensor.f_grad().during(during)?;
        if grad.defined() {
            grads.push(grad);
        }
    }
    let norms = grads
        .iter()
        .map(|g| g.f_norm().and_then(|n| n.f_to_kind(Kind::Double)).during(during))
        .collect::<Result<Vec<Tensor>>>()?;
    if norms.is_empty() {
        return Ok(0.0);
    }
    let norm =
        Tensor::f_stack(&norms, 0).and_then(|n| n.f_norm()).and_then(|n| n.f_double_value(&[])).during(during)?;
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        for grad in &mut grads {
            let _ = grad.f_mul_scalar_(factor).during(during)?;
        }
    }
    Ok(norm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_norm_is_over_all_gradients_together() {
        let leaf = |v: &[f64]| Parameter { name: "p".into(), tensor: Tensor::from_slice(v).set_requires_grad(true) };
        let parameters = [leaf(&[1.0]), leaf(&[1.0, 1.0])];
        let loss = (&parameters[0].tensor * 3.0).sum(Kind::Double) + (&parameters[1].tensor * 4.0).get(0);
        loss.backward();
        assert!((clip_by_global_norm(&parameters, 10.0).unwrap() - 5.0).abs() < 1e-12);
        assert_eq!(parameters[0].tensor.grad().double_value(&[0]), 3.0);
        clip_by_global_norm(&parameters, 1.0).unwrap();
        assert!((parameters[0].tensor.grad().double_value(&[0]) - 0.6).abs() < 1e-6);
        assert!((parameters[1].tensor.grad().double_value(&[0]) - 0.8).abs() < 1e-6);
        assert_eq!(clip_by_global_norm(&[leaf(&[1.0])], 1.0).unwrap(), 0.0);
    }
}
