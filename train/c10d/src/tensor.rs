//! Tensors over memory that Rust owns, without a copy.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Duration;

use tch::{Kind, Tensor};

use crate::ffi::{self, call};
use crate::{Error, Result};

/// Alignment that a buffer must have, in bytes: a cache line, and what the widest vector loads want.
pub const ALIGNMENT: usize = 64;

/// A block of host memory that a tensor may live in.
///
/// # Safety
/// From the first call of [`HostBuffer::as_mut_ptr`] until the value is dropped, the pointer must stay the same and
/// [`HostBuffer::len_bytes`] bytes behind it must be initialized, readable and writable, even when the value itself is
/// moved; nobody else may read or write them (not mapped read-only, not shared with an Arrow array). Dropping the
/// value must not panic.
pub unsafe trait HostBuffer {
    /// First byte, aligned to [`ALIGNMENT`].
    fn as_mut_ptr(&mut self) -> *mut u8;
    /// Bytes that belong to the buffer.
    fn len_bytes(&self) -> usize;
}

/// Makes a contiguous row-major CPU tensor whose storage is the buffer itself.
///
/// The buffer is dropped when libtorch frees the storage: after the last tensor that shares it is gone, views and
/// what autograd has saved included. That may happen on any thread, and only then may a pool use the memory again. On
/// an error it is dropped at once.
///
/// # Errors
/// [`Error::Config`] when a dimension is negative, the shape and kind need another number of bytes than the buffer
/// has, or the buffer is not aligned.
pub fn tensor_from_owned<B>(mut buffer: B, shape: &[i64], kind: Kind) -> Result<Tensor>
where
    B: HostBuffer + Send + 'static,
{
    let op = "tensor over an owned buffer";
    let needed = shape
        .iter()
        .try_fold(kind.elt_size_in_bytes(), |bytes, size| bytes.checked_mul(usize::try_from(*size).ok()?))
        .ok_or_else(|| Error::config(op, format!("the shape {shape:?} is negative or too large to be stored")))?;
    let len = buffer.len_bytes();
    if needed != len {
        let problem = format!("a {kind:?} tensor of shape {shape:?} takes {needed} bytes, but the buffer has {len}");
        return Err(Error::config(op, problem));
    }
    let data = buffer.as_mut_ptr();
    if !data.addr().is_multiple_of(ALIGNMENT) {
        return Err(Error::config(op, format!("the buffer at {data:p} is not aligned to {ALIGNMENT} bytes")));
    }
    let owner: *mut c_void = Box::into_raw(Box::new(buffer)).cast();
    let mut raw = null_mut();
    // SAFETY: `data` is valid for the tensor's bytes as long as the owner lives (the trait's promise; boxing it moved
    // the value, not the memory), and the shim takes the owner over and drops it once with the matching function.
    call(op, Duration::ZERO, |e| unsafe {
        ffi::gm_tensor_from_owned(
            data.cast(),
            shape.as_ptr(),
            shape.len(),
            scalar_type(kind),
            owner,
            drop_owner::<B>,
            &raw mut raw,
            e,
        )
    })?;
    // SAFETY: on success the place holds an at::Tensor of its own, handed over to us.
    Ok(unsafe { Tensor::from_ptr(raw.cast()) })
}

unsafe extern "C" fn drop_owner<B>(owner: *mut c_void) {
    // SAFETY: the pointer came from Box::into_raw of a `Box<B>`, and libtorch lets it go once.
    drop(unsafe { Box::from_raw(owner.cast::<B>()) });
}

/// `c10::ScalarType`'s number of a kind.
pub(crate) fn scalar_type(kind: Kind) -> i32 {
    match kind {
        Kind::Uint8 => 0,
        Kind::Int8 => 1,
        Kind::Int16 => 2,
        Kind::Int => 3,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::ComplexHalf => 8,
        Kind::ComplexFloat => 9,
        Kind::ComplexDouble => 10,
        Kind::Bool => 11,
        Kind::QInt8 => 12,
        Kind::QUInt8 => 13,
        Kind::QInt32 => 14,
        Kind::BFloat16 => 15,
        Kind::Float8e5m2 => 23,
        Kind::Float8e4m3fn => 24,
        Kind::Float8e5m2fnuz => 25,
        Kind::Float8e4m3fnuz => 26,
    }
}

/// The name of a kind by its number, for messages.
pub(crate) fn scalar_type_name(number: i64) -> String {
    const KINDS: [Kind; 10] = [
        Kind::Uint8,
        Kind::Int8,
        Kind::Int16,
        Kind::Int,
        Kind::Int64,
        Kind::Half,
        Kind::Float,
        Kind::Double,
        Kind::Bool,
        Kind::BFloat16,
    ];
    KINDS
        .into_iter()
        .find(|kind| i64::from(scalar_type(*kind)) == number)
        .map_or_else(|| format!("scalar type {number}"), |kind| format!("{kind:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Aligned {
        ptr: *mut u8,
        layout: Layout,
        offset: usize,
        drops: Arc<AtomicUsize>,
    }

    // SAFETY: the memory is this value's alone.
    unsafe impl Send for Aligned {}

    impl Aligned {
        fn new(bytes: usize, drops: &Arc<AtomicUsize>) -> Self {
            // One more line, so that a test may start the buffer a little later.
            let layout = Layout::from_size_align(bytes + ALIGNMENT, ALIGNMENT).unwrap();
            // SAFETY: the layout is not empty.
            let ptr = unsafe { alloc_zeroed(layout) };
            if ptr.is_null() {
                handle_alloc_error(layout);
            }
            Self { ptr, layout, offset: 0, drops: Arc::clone(drops) }
        }
    }

    // SAFETY: zeroed memory, kept until drop, aligned unless a test moves the offset.
    unsafe impl HostBuffer for Aligned {
        fn as_mut_ptr(&mut self) -> *mut u8 {
            self.ptr.wrapping_add(self.offset)
        }
        fn len_bytes(&self) -> usize {
            self.layout.size() - ALIGNMENT
        }
    }

    impl Drop for Aligned {
        fn drop(&mut self) {
            self.drops.fetch_add(1, Ordering::SeqCst);
            // SAFETY: allocated with this layout, freed once.
            unsafe { dealloc(self.ptr, self.layout) };
        }
    }

    #[test]
    fn the_buffer_is_dropped_once_with_the_last_alias() {
        let drops = Arc::new(AtomicUsize::new(0));
        let buffer = Aligned::new(24, &drops);
        let ptr = buffer.ptr;
        let mut tensor = tensor_from_owned(buffer, &[2, 3], Kind::Float).unwrap();
        assert_eq!(tensor.data_ptr().cast::<u8>(), ptr, "no copy");
        let _ = tensor.fill_(2.0);
        let row = tensor.get(1);
        let clone = tensor.shallow_clone();
        drop(tensor);
        drop(clone);
        assert_eq!(drops.load(Ordering::SeqCst), 0, "a view is still alive");
        assert_eq!(f64::try_from(row.sum(Kind::Double)).unwrap(), 6.0);
        std::thread::spawn(move || drop(row)).join().unwrap();
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn autograd_keeps_the_buffer_alive() {
        let drops = Arc::new(AtomicUsize::new(0));
        let x = tensor_from_owned(Aligned::new(32, &drops), &[4], Kind::Double).unwrap() + 0.0;
        assert_eq!(drops.load(Ordering::SeqCst), 1, "x is a result, not an alias");
        let w = Tensor::ones([4], (Kind::Double, tch::Device::Cpu)).set_requires_grad(true);
        let input = tensor_from_owned(Aligned::new(32, &drops), &[4], Kind::Double).unwrap();
        let loss = (&w * &input + &x).sum(Kind::Double);
        drop(input);
        assert_eq!(drops.load(Ordering::SeqCst), 1, "the graph has saved the input");
        loss.backward();
        drop(loss);
        assert_eq!(drops.load(Ordering::SeqCst), 2);
        assert_eq!(f64::try_from(w.grad().sum(Kind::Double)).unwrap(), 0.0);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_dropped() {
        let drops = Arc::new(AtomicUsize::new(0));
        for (n, shape) in [&[2_i64, 4][..], &[-1], &[i64::MAX, 2], &[]].into_iter().enumerate() {
            let error = tensor_from_owned(Aligned::new(24, &drops), shape, Kind::Float).unwrap_err();
            assert!(matches!(error, Error::Config { .. }), "{error}");
            assert_eq!(drops.load(Ordering::SeqCst), n + 1);
        }
    }

    #[test]
    fn an_unaligned_buffer_is_refused() {
        let drops = Arc::new(AtomicUsize::new(0));
        let mut askew = Aligned::new(8, &drops);
        askew.offset = 8;
        let error = tensor_from_owned(askew, &[2], Kind::Float).unwrap_err();
        assert!(error.to_string().contains("aligned"), "{error}");
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_empty_tensor_is_fine() {
        let drops = Arc::new(AtomicUsize::new(0));
        let tensor = tensor_from_owned(Aligned::new(0, &drops), &[0, 5], Kind::Int64).unwrap();
        assert_eq!(tensor.size(), [0, 5]);
        drop(tensor);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}
