//! Tensors to safetensors bytes and back, bit for bit.

use std::borrow::Cow;

use safetensors::{
    SafeTensors,
    tensor::{Dtype, View},
};
use tch::{Kind, Tensor};

use crate::{
    error::{During, Error, Result},
    metrics::AucState,
};

struct Bytes {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View for Bytes {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }
    fn data_len(&self) -> usize {
        self.data.len()
    }
}

fn dtype_of(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Float => Dtype::F32,
        Kind::Double => Dtype::F64,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Int64 => Dtype::I64,
        Kind::Int => Dtype::I32,
        Kind::Uint8 => Dtype::U8,
        Kind::Bool => Dtype::BOOL,
        _ => return None,
    })
}

/// A safetensors document of named tensors. The same tensors give the same bytes.
///
/// # Errors
/// [`Error::Internal`] for a kind that safetensors lacks; [`Error::Torch`].
pub fn to_safetensors(tensors: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let views = tensors
        .iter()
        .map(|(name, tensor)| {
            let during = format!("reading {name}");
            let tensor = tensor.f_detach().and_then(|t| t.f_contiguous()).during(&during)?;
            let kind = tensor.f_kind().during(&during)?;
            let dtype = dtype_of(kind)
                .ok_or_else(|| Error::internal(format!("{name} has kind {kind:?}, which safetensors can't hold")))?;
            let shape = tensor
                .size()
                .iter()
                .map(|d| usize::try_from(*d).map_err(|_| Error::internal(format!("{name} has a negative size"))))
                .collect::<Result<Vec<_>>>()?;
            let n = tensor.numel();
            let mut data = vec![0; n * kind.elt_size_in_bytes()];
            tensor.f_copy_data_u8(&mut data, n).during(&during)?;
            Ok((name.as_str(), Bytes { dtype, shape, data }))
        })
        .collect::<Result<Vec<_>>>()?;
    safetensors::serialize(views, None).map_err(|e| Error::internal(format!("writing tensors: {e}")))
}

/// Copies the tensors of a safetensors document into `targets`, which must be the same by name, kind and shape.
///
/// # Errors
/// [`Error::Corrupt`] naming `url` and the tensor.
pub fn read_into(bytes: &[u8], url: &str, targets: &[(String, Tensor)]) -> Result<()> {
    let corrupt = |what: String| Error::corrupt(url, what);
    let document = SafeTensors::deserialize(bytes).map_err(|e| corrupt(format!("it is not safetensors: {e}")))?;
    if document.len() != targets.len() {
        return Err(corrupt(format!("it holds {} tensors, not {}", document.len(), targets.len())));
    }
    let _no_grad = tch::no_grad_guard();
    for (name, target) in targets {
        let view = document.tensor(name).map_err(|e| corrupt(format!("tensor {name}: {e}")))?;
        let size = target.size();
        let same = view.shape().iter().map(|d| *d as i64).eq(size.iter().copied());
        let kind = target.f_kind().during("reading a tensor's kind")?;
        if !same || dtype_of(kind) != Some(view.dtype()) {
            return Err(corrupt(format!(
                "tensor {name} is {:?} {:?}, the model's is {kind:?} {size:?}",
                view.dtype(),
                view.shape()
            )));
        }
        let during = format!("restoring {name}");
        let stored = Tensor::f_from_data_size(view.data(), &size, kind).during(&during)?;
        target.shallow_clone().f_copy_(&stored).during(&during)?;
    }
    Ok(())
}

/// The state as a safetensors document. Exact states are sorted, so equal multisets give equal bytes.
///
/// # Errors
/// [`Error::Torch`].
pub fn auc_to_bytes(state: &AucState) -> Result<Vec<u8>> {
    let during = "saving the scores of the epoch";
    let tensors = match state {
        AucState::Exact { scores, labels } => {
            let mut rows: Vec<(f64, bool)> = scores.iter().copied().zip(labels.iter().copied()).collect();
            rows.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let scores: Vec<f64> = rows.iter().map(|r| r.0).collect();
            let labels: Vec<u8> = rows.iter().map(|r| u8::from(r.1)).collect();
            [
                ("scores".to_owned(), Tensor::f_from_slice(&scores).during(during)?),
                ("labels".to_owned(), Tensor::f_from_slice(&labels).during(during)?),
            ]
        }
        AucState::Binned { positives, negatives } => {
            let signed = |counts: &[u64]| {
                let counts: Vec<i64> = counts.iter().map(|c| c.cast_signed()).collect();
                Tensor::f_from_slice(&counts).during(during)
            };
            [("positives".to_owned(), signed(positives)?), ("negatives".to_owned(), signed(negatives)?)]
        }
    };
    to_safetensors(&tensors)
}

/// Reads [`auc_to_bytes`].
///
/// # Errors
/// [`Error::Corrupt`] naming `url`.
pub fn auc_from_bytes(bytes: &[u8], url: &str) -> Result<AucState> {
    let corrupt = |what: String| Error::corrupt(url, what);
    let document = SafeTensors::deserialize(bytes).map_err(|e| corrupt(format!("it is not safetensors: {e}")))?;
    let pair = |a: &str, b: &str| Some((document.tensor(a).ok()?, document.tensor(b).ok()?));
    let words = |data: &[u8]| -> Vec<[u8; 8]> { data.chunks_exact(8).filter_map(|c| c.try_into().ok()).collect() };
    let state = if let Some((scores, labels)) = pair("scores", "labels") {
        let scores: Vec<f64> = words(scores.data()).into_iter().map(f64::from_le_bytes).collect();
        let labels: Vec<bool> = labels.data().iter().map(|l| *l != 0).collect();
        (scores.len() == labels.len()).then_some(AucState::Exact { scores, labels })
    } else if let Some((positives, negatives)) = pair("positives", "negatives") {
        let counts = |data: &[u8]| -> Vec<u64> { words(data).into_iter().map(u64::from_le_bytes).collect() };
        let (positives, negatives) = (counts(positives.data()), counts(negatives.data()));
        (positives.len() == negatives.len()).then_some(AucState::Binned { positives, negatives })
    } else {
        None
    };
    state.ok_or_else(|| corrupt("it holds no scores".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn tensors_come_back_bit_for_bit() {
        for kind in [Kind::Float, Kind::Double, Kind::Int64, Kind::BFloat16] {
            let tensor = (Tensor::arange(6, (Kind::Double, Device::Cpu)) / 7.0).to_kind(kind).reshape([2, 3]);
            let given = [("b".to_owned(), tensor.shallow_clone()), ("a".to_owned(), tensor.get(1))];
            let bytes = to_safetensors(&given).unwrap();
            assert_eq!(bytes, to_safetensors(&[given[1].clone_pair(), given[0].clone_pair()]).unwrap());
            let targets = [("a".to_owned(), tensor.get(0).zeros_like()), ("b".to_owned(), tensor.zeros_like())];
            read_into(&bytes, "u", &targets).unwrap();
            assert_eq!(targets[1].1, tensor);
            assert_eq!(targets[0].1, tensor.get(1));
        }
    }

    trait ClonePair {
        fn clone_pair(&self) -> (String, Tensor);
    }
    impl ClonePair for (String, Tensor) {
        fn clone_pair(&self) -> (String, Tensor) {
            (self.0.clone(), self.1.shallow_clone())
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let one = |name: &str, n: i64, kind| (name.to_owned(), Tensor::zeros([n], (kind, Device::Cpu)));
        let bytes = to_safetensors(&[one("w", 3, Kind::Float)]).unwrap();
        for (targets, wanted) in [
            (vec![one("w", 4, Kind::Float)], "tensor w"),
            (vec![one("w", 3, Kind::Double)], "tensor w"),
            (vec![one("v", 3, Kind::Float)], "tensor v"),
            (vec![one("w", 3, Kind::Float), one("v", 3, Kind::Float)], "1 tensors, not 2"),
        ] {
            let error = read_into(&bytes, "file", &targets).unwrap_err().to_string();
            assert!(error.contains("file") && error.contains(wanted), "{error}");
        }
        assert!(read_into(&bytes[..bytes.len() - 1], "file", &[one("w", 3, Kind::Float)]).is_err());
        assert!(read_into(b"", "file", &[]).is_err());
    }

    #[test]
    fn score_states_come_back() {
        let mut exact = AucState::exact();
        let mut binned = AucState::binned();
        for (s, l) in [(0.5, true), (-1.0, false), (0.5, false)] {
            exact.push(s, l);
            binned.push(s, l);
        }
        let back = auc_from_bytes(&auc_to_bytes(&exact).unwrap(), "u").unwrap();
        assert_eq!(back, AucState::Exact { scores: vec![-1.0, 0.5, 0.5], labels: vec![false, false, true] });
        assert_eq!(back.finish(), exact.finish());
        assert_eq!(auc_from_bytes(&auc_to_bytes(&binned).unwrap(), "u").unwrap(), binned);
        assert!(auc_from_bytes(&to_safetensors(&[]).unwrap(), "u").is_err());
    }
}
