//! Whether all ranks are in the same call.
//!
//! Gloo trusts its callers: when a rank sends more than another expects, Gloo's network thread throws, which ends that
//! process by SIGABRT, and when it sends less, the other takes what came for the whole. Both happen silently as far as
//! this crate can see, so ranks compare what they are about to do first.

use tch::Tensor;

use crate::tensor::{scalar_type, scalar_type_name};

/// Numbers of a [`Call`] as it is sent.
pub(crate) const LEN: usize = 6;

const NAMES: [&str; 4] = ["all_reduce", "broadcast", "all_gather", "broadcast_all"];

/// One collective call as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call([i64; LEN]);

impl Call {
    /// `detail`: the reduction or the root; it must agree, and is only told to differ.
    pub(crate) fn new(number: u64, name: &str, detail: i64, tensors: &[&Tensor]) -> Self {
        let which = NAMES.iter().position(|known| *known == name).unwrap_or(NAMES.len());
        let kind = tensors.first().map_or(-1, |t| i64::from(scalar_type(t.kind())));
        let mut shapes = vec![detail];
        let mut elements = 0_i64;
        for tensor in tensors {
            let size = tensor.size();
            elements = elements.saturating_add(size.iter().product());
            shapes.extend([i64::from(scalar_type(tensor.kind())), size.len() as i64]);
            shapes.extend(size);
        }
        Self([number.cast_signed(), which as i64, kind, tensors.len() as i64, elements, fingerprint(&shapes)])
    }

    pub(crate) fn from_slice(numbers: &[i64]) -> Option<Self> {
        numbers.try_into().ok().map(Self)
    }

    pub(crate) fn as_slice(&self) -> &[i64] {
        &self.0
    }

    fn in_words(&self) -> String {
        let [number, which, kind, tensors, elements, _] = self.0;
        let name = usize::try_from(which).ok().and_then(|i| NAMES.get(i)).unwrap_or(&"another call");
        let kind = scalar_type_name(kind);
        format!("call {number}, {name} of {tensors} tensor(s), {elements} {kind} elements")
    }
}

/// The first disagreement with rank 0 in words. `None`: all are in the same call.
pub(crate) fn disagreement(calls: &[Call]) -> Option<String> {
    let first = calls.first()?;
    let (rank, other) = calls.iter().enumerate().find(|(_, call)| *call != first)?;
    let (one, two) = (first.in_words(), other.in_words());
    Some(if one == two {
        format!("ranks 0 and {rank} are both in {one}, but with different shapes, root or reduction")
    } else {
        format!("the ranks are not in the same call: rank 0 is in {one}; rank {rank} is in {two}")
    })
}

/// FNV-1a over the bytes: this only has to tell apart what differs by mistake.
pub(crate) fn fingerprint(numbers: &[i64]) -> i64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in numbers.iter().flat_map(|n| n.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn calls_that_differ_are_told_apart() {
        let zeros = |size: &[i64], kind| Tensor::zeros(size, (kind, Device::Cpu));
        let (a, b, c) = (zeros(&[4], Kind::Float), zeros(&[2, 2], Kind::Float), zeros(&[4], Kind::Int64));
        let call = |number, name, detail, tensor: &Tensor| Call::new(number, name, detail, &[tensor]);
        let base = call(3, "all_reduce", 0, &a);
        assert_eq!(disagreement(&[base, call(3, "all_reduce", 0, &a)]), None);
        for other in [call(3, "all_reduce", 1, &a), call(3, "all_reduce", 0, &b)] {
            let text = disagreement(&[base, base, other]).unwrap();
            assert!(text.starts_with("ranks 0 and 2 are both in call 3, all_reduce"), "{text}");
        }
        let text = disagreement(&[base, call(3, "broadcast", 0, &c)]).unwrap();
        assert!(text.contains("rank 0 is in call 3, all_reduce of 1 tensor(s), 4 Float elements"), "{text}");
        assert!(text.contains("rank 1 is in call 3, broadcast of 1 tensor(s), 4 Int64 elements"), "{text}");
        assert!(disagreement(&[base, call(4, "all_reduce", 0, &a)]).unwrap().contains("rank 1 is in call 4"));
        assert_eq!(Call::from_slice(base.as_slice()), Some(base));
        assert_eq!(Call::from_slice(&[1]), None);
    }
}
