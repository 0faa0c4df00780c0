//! Host tensors and batches of them: what the loader hands over, without libtorch.

use std::ops::Range;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::{
    buffer_pool::HostBuffer,
    error::{Error, Result},
    state::State,
};

/// Name of the tensor of row ids, i64 `[B]`; -1 in filler slots.
pub const ROW_ID: &str = "_row_id";
/// Name of the tensor that tells copies of a row apart, i32 `[B]`: 0 the row itself, 1, 2, … copies of it; 0 in filler
/// slots.
pub const COPY: &str = "_copy";
/// Name of the tensor that tells samples from fillers, f32 `[B]`: 1 a sample, 0 a filler.
pub const MASK: &str = "_mask";

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Signed, 64 bits.
    I64,
    /// Signed, 32 bits.
    I32,
    /// Signed, 16 bits.
    I16,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether elements are floating point.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::Bool => "bool",
        })
    }
}

/// A Rust type that is the element of some [`DType`] other than `Bool`.
pub trait Element: Copy + sealed::Sealed + 'static {
    /// Its [`DType`].
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
element!(f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, i16 => I16, i8 => I8, u8 => U8);

/// A tensor in host memory: contiguous, row-major, 64-byte aligned, uniquely owned, writable.
#[derive(Debug)]
pub struct HostTensor {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    buffer: HostBuffer,
}

/// A tensor taken apart, for handing it to another library without a copy.
pub struct HostTensorParts {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape, row-major.
    pub shape: Vec<usize>,
    /// First byte, 64-byte aligned; valid for reads and writes of `len_bytes` bytes while `owner` lives.
    pub pointer: *mut u8,
    /// Bytes.
    pub len_bytes: usize,
    /// Keeps the memory; dropping it (on any thread) returns it to its pool.
    pub owner: Box<dyn Send>,
}

impl HostTensor {
    /// A tensor over the first bytes of `buffer`.
    ///
    /// # Errors
    /// [`Error::Internal`] when the buffer's length is not that of the shape.
    pub fn new(name: impl Into<String>, dtype: DType, shape: Vec<usize>, buffer: HostBuffer) -> Result<Self> {
        let name = name.into();
        let bytes = shape.iter().try_fold(dtype.size(), |n, d| n.checked_mul(*d));
        if bytes != Some(buffer.len_bytes()) {
            return Err(Error::internal(format!(
                "tensor \"{name}\" of {dtype} {shape:?} has {} bytes",
                buffer.len_bytes()
            )));
        }
        Ok(Self { name, dtype, shape, buffer })
    }

    /// Name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape, row-major.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes, in the machine's byte order.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buffer.as_slice()
    }

    /// The bytes, writable.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut_slice()
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::Usage`] when `T` is not the tensor's element type.
    pub fn elements<T: Element>(&self) -> Result<&[T]> {
        if T::DTYPE != self.dtype {
            return Err(Error::usage(
                format!("tensor \"{}\" holds {}, not {}", self.name, self.dtype, T::DTYPE),
                "read it by its own type",
            ));
        }
        let bytes = self.buffer.as_slice();
        // SAFETY: the buffer is 64-byte aligned and initialised, its length is a multiple of the element's size
        // (checked in `new`), and every bit pattern is a value of the numeric types that implement `Element`.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), bytes.len() / size_of::<T>()) })
    }

    /// Takes the tensor apart. The memory is not copied and not returned to its pool until the owner is dropped.
    #[must_use]
    pub fn into_parts(self) -> HostTensorParts {
        let Self { name, dtype, shape, mut buffer } = self;
        let (pointer, len_bytes) = (buffer.as_mut_ptr(), buffer.len_bytes());
        HostTensorParts { name, dtype, shape, pointer, len_bytes, owner: Box::new(buffer) }
    }
}

/// A rank's micro-batch: tensors in the order of the batch's specification, all with the same first dimension.
#[derive(Debug)]
pub struct HostBatch {
    pub(crate) tensors: Vec<HostTensor>,
    pub(crate) epoch: u64,
    pub(crate) range: Range<u64>,
    pub(crate) micro: u32,
    pub(crate) micros: u32,
    pub(crate) rows: usize,
    pub(crate) slots: usize,
    pub(crate) state: State,
}

impl HostBatch {
    /// The tensors in order.
    #[must_use]
    pub fn tensors(&self) -> &[HostTensor] {
        &self.tensors
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&HostTensor> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// Takes the tensor called `name` out.
    pub fn take(&mut self, name: &str) -> Option<HostTensor> {
        let at = self.tensors.iter().position(|t| t.name == name)?;
        Some(self.tensors.remove(at))
    }

    /// Takes all tensors.
    #[must_use]
    pub fn into_tensors(self) -> Vec<HostTensor> {
        self.tensors
    }

    /// Epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Indices of the epoch that this step consumes over all ranks.
    #[must_use]
    pub fn global_range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Samples of this step over all ranks and micro-batches: the divisor of a mean over the global batch.
    #[must_use]
    pub fn global_rows(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Which micro-batch of its step this is, from 0.
    #[must_use]
    pub fn micro(&self) -> u32 {
        self.micro
    }

    /// Micro-batches of its step, the same on every rank.
    #[must_use]
    pub fn micros(&self) -> u32 {
        self.micros
    }

    /// Whether it is the last micro-batch of its step.
    #[must_use]
    pub fn is_last_micro(&self) -> bool {
        self.micro + 1 == self.micros
    }

    /// Samples in this micro-batch; its other slots are fillers.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Slots: the first dimension of every tensor, at least 1.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of its tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes().len() as u64).sum()
    }

    /// The state after this batch. Before the last micro-batch of a step it is the state before the step: a step that
    /// was not finished is done again as a whole.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Ids of its samples, in order of their slots.
    ///
    /// # Errors
    /// [`Error::Usage`] when the specification leaves row ids out.
    pub fn row_ids(&self) -> Result<&[i64]> {
        let ids = self
            .get(ROW_ID)
            .ok_or_else(|| Error::usage("the batch has no row ids", "set row_id in the batch specification"))?;
        Ok(ids.elements::<i64>()?.get(..self.rows).unwrap_or(&[]))
    }

    /// Which copy of its row each sample is, in order of their slots: 0 the row itself, 1, 2, … copies.
    ///
    /// # Errors
    /// [`Error::Usage`] when the specification leaves them out.
    pub fn copies(&self) -> Result<&[i32]> {
        let copies = self.get(COPY).ok_or_else(|| {
            Error::usage("the batch has no ordinals of copies", "set copy in the batch specification")
        })?;
        Ok(copies.elements::<i32>()?.get(..self.rows).unwrap_or(&[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer_pool::BufferPool;

    #[test]
    fn a_tensor_comes_apart_without_a_copy() {
        let pool = BufferPool::new(1 << 20);
        let mut tensor = HostTensor::new("x", DType::F32, vec![3, 2], pool.take(24)).unwrap();
        tensor.bytes_mut()[20..].copy_from_slice(&2.5_f32.to_ne_bytes());
        assert_eq!(tensor.elements::<f32>().unwrap()[5], 2.5);
        assert!(tensor.elements::<i32>().is_err());
        let at = tensor.bytes().as_ptr();
        let parts = tensor.into_parts();
        assert_eq!((parts.pointer.cast_const(), parts.len_bytes), (at, 24));
        assert_eq!(pool.free_bytes(), 0);
        std::thread::spawn(move || drop(parts.owner)).join().unwrap();
        assert!(pool.free_bytes() > 0);
    }

    #[test]
    fn a_shape_that_is_not_its_bytes_is_refused() {
        assert!(HostTensor::new("x", DType::F64, vec![2], HostBuffer::zeroed(8)).is_err());
        assert!(HostTensor::new("x", DType::F64, vec![usize::MAX, 2], HostBuffer::zeroed(8)).is_err());
    }
}
