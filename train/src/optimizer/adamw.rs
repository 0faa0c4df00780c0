//! Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019), with the
//! arithmetic of torch's AdamW.

use tch::Tensor;

use crate::{
    config::OptimizerConfig,
    error::{During, Error, Result},
    model::Parameter,
};

/// The optimizer's state, for parameters in a fixed order.
#[derive(Debug)]
pub struct AdamW {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    steps: u64,
    first: Vec<Tensor>,
    second: Vec<Tensor>,
}

impl AdamW {
    /// A state of zeros for `parameters`.
    ///
    /// # Errors
    /// [`Error::Torch`].
    pub fn new(config: &OptimizerConfig, parameters: &[Parameter]) -> Result<Self> {
        let zeros = || {
            let like = |p: &Parameter| p.tensor.f_detach().and_then(|t| t.f_zeros_like());
            parameters.iter().map(|p| like(p).during("making the optimizer's state")).collect::<Result<Vec<_>>>()
        };
        let [beta1, beta2] = config.betas;
        Ok(Self {
            beta1,
            beta2,
            eps: config.eps,
            weight_decay: config.weight_decay,
            steps: 0,
            first: zeros()?,
            second: zeros()?,
        })
    }

    /// Steps done.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Changes `parameters` by their gradients at learning rate `lr`, and forgets the gradients.
    ///
    /// For a parameter p with gradient g, at step t from 1:
    /// p ← p · (1 − lr · decay), m ← m + (1 − β₁)(g − m), v ← β₂ v + (1 − β₂) g²,
    /// p ← p − lr / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε).
    /// A parameter without a gradient is left as it is.
    ///
    /// # Errors
    /// [`Error::Torch`]; [`Error::Internal`] when the parameters are not those of [`AdamW::new`].
    pub fn step(&mut self, parameters: &[Parameter], lr: f64) -> Result<()> {
        if parameters.len() != self.first.len() {
            return Err(Error::internal("the optimizer was made for other parameters"));
        }
        self.steps += 1;
        // Beyond 2^31 steps both corrections have long been 1.
        let t = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let rate = lr / (1.0 - self.beta1.powi(t));
        let root = (1.0 - self.beta2.powi(t)).sqrt();
        let _no_grad = tch::no_grad_guard();
        for ((parameter, m), v) in parameters.iter().zip(&mut self.first).zip(&mut self.second) {
            let during = format!("updating {}", parameter.name);
            let mut update = || -> std::result::Result<(), tch::TchError> {
                let mut grad = parameter.tensor.f_grad()?;
                if !grad.defined() {
                    return Ok(());
                }
                let mut p = parameter.tensor.shallow_clone();
                let _ = p.f_mul_scalar_(1.0 - lr * self.weight_decay)?;
                let _ = m.f_lerp_(&grad, 1.0 - self.beta1)?;
                let _ = v.f_mul_scalar_(self.beta2)?;
                let scaled = grad.f_mul_scalar(1.0 - self.beta2)?;
                let _ = v.f_addcmul_(&scaled, &grad)?;
                let mut denominator = v.f_sqrt()?;
                let _ = denominator.f_div_scalar_(root)?;
                let _ = denominator.f_add_scalar_(self.eps)?;
                let mut change = m.f_div(&denominator)?;
                let _ = change.f_mul_scalar_(-rate)?;
                let _ = p.f_add_(&change)?;
                // The Reducer's buckets copy into these; zeroing keeps the storage for the next step.
                grad.f_zero_().map(drop)
            };
            update().during(&during)?;
        }
        Ok(())
    }

    /// The state by name: `<parameter>.first` and `<parameter>.second`, shared with the optimizer.
    #[must_use]
    pub fn state(&self, parameters: &[Parameter]) -> Vec<(String, Tensor)> {
        let of = |tensors: &[Tensor], moment: &str| -> Vec<(String, Tensor)> {
            let named = parameters.iter().zip(tensors);
            named.map(|(p, t)| (format!("{}.{moment}", p.name), t.shallow_clone())).collect()
        };
        let mut all = of(&self.first, "first");
        all.extend(of(&self.second, "second"));
        all
    }

    /// Sets the number of steps done, after the tensors of [`AdamW::state`] were written.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    /// The same formula on numbers.
    fn oracle(config: &OptimizerConfig, lr: f64, mut p: f64, grads: &[f64]) -> f64 {
        let [b1, b2] = config.betas;
        let (mut m, mut v) = (0.0, 0.0);
        for (t, g) in grads.iter().enumerate() {
            let t = t as i32 + 1;
            p *= 1.0 - lr * config.weight_decay;
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            let (m_hat, v_hat): (f64, f64) = (m / (1.0 - b1.powi(t)), v / (1.0 - b2.powi(t)));
            p -= lr * m_hat / (v_hat.sqrt() + config.eps);
        }
        p
    }

    fn leaf(value: f64) -> Parameter {
        Parameter { name: "p".into(), tensor: Tensor::from_slice(&[value]).set_requires_grad(true) }
    }

    fn backward(p: &Parameter, grad: f64) {
        (&p.tensor * grad).sum(Kind::Double).backward();
    }

    #[test]
    fn it_follows_the_formula() {
        let config = OptimizerConfig { weight_decay: 0.1, ..OptimizerConfig::default() };
        let grads = [0.3, -2.0, 0.0, 1e-4, 5.0, 5.0];
        let p = [leaf(1.5)];
        let mut adamw = AdamW::new(&config, &p).unwrap();
        for g in grads {
            backward(&p[0], g);
            adamw.step(&p, 0.05).unwrap();
            assert_eq!(p[0].tensor.grad().double_value(&[0]), 0.0, "the gradient is forgotten");
        }
        let want = oracle(&config, 0.05, 1.5, &grads);
        assert!((p[0].tensor.double_value(&[0]) - want).abs() < 1e-12);
        assert_eq!(adamw.steps(), 6);
    }

    #[test]
    fn it_is_torchs_own_adamw() {
        let config = OptimizerConfig { weight_decay: 0.1, ..OptimizerConfig::default() };
        let store = tch::nn::VarStore::new(tch::Device::Cpu);
        let theirs = store.root().var("p", &[1], tch::nn::Init::Const(1.5));
        let builder = tch::nn::AdamW { beta1: 0.9, beta2: 0.999, wd: 0.1, eps: 1e-8, amsgrad: false };
        let mut torch = tch::nn::OptimizerConfig::build(builder, &store, 0.05).unwrap();
        let ours = [Parameter { name: "p".into(), tensor: Tensor::from_slice(&[1.5_f32]).set_requires_grad(true) }];
        let mut adamw = AdamW::new(&config, &ours).unwrap();
        for g in [0.3, -2.0, 0.7, 1e-3] {
            torch.zero_grad();
            (&theirs * g).sum(Kind::Float).backward();
            torch.step();
            (&ours[0].tensor * g).sum(Kind::Float).backward();
            adamw.step(&ours, 0.05).unwrap();
            assert!((theirs.double_value(&[0]) - ours[0].tensor.double_value(&[0])).abs() < 1e-6);
        }
    }

    #[test]
    fn a_restored_state_goes_on_bit_for_bit() {
        let config = OptimizerConfig::default();
        let whole = [leaf(0.7)];
        let mut a = AdamW::new(&config, &whole).unwrap();
        for g in [1.0, 2.0, 3.0] {
            backward(&whole[0], g);
            a.step(&whole, 0.01).unwrap();
        }
        let resumed = [leaf(whole[0].tensor.double_value(&[0]))];
        let mut b = AdamW::new(&config, &resumed).unwrap();
        for ((n1, from), (n2, mut to)) in a.state(&whole).into_iter().zip(b.state(&resumed)) {
            assert_eq!(n1, n2);
            to.copy_(&from);
        }
        b.set_steps(a.steps());
        for g in [0.1, -0.2] {
            backward(&whole[0], g);
            a.step(&whole, 0.01).unwrap();
            backward(&resumed[0], g);
            b.step(&resumed, 0.01).unwrap();
        }
        assert_eq!(whole[0].tensor.double_value(&[0]).to_bits(), resumed[0].tensor.double_value(&[0]).to_bits());
    }

    #[test]
    fn a_rate_of_zero_and_a_missing_gradient_change_nothing() {
        let p = [leaf(2.0)];
        let mut adamw = AdamW::new(&OptimizerConfig::default(), &p).unwrap();
        adamw.step(&p, 0.1).unwrap();
        backward(&p[0], 1.0);
        adamw.step(&p, 0.0).unwrap();
        assert_eq!(p[0].tensor.double_value(&[0]), 2.0);
        assert!(adamw.step(&[], 0.1).is_err());
    }
}
