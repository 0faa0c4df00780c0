//! Process-wide switches and facts of libtorch.

use std::ffi::c_char;
use std::time::Duration;

use crate::ffi::{self, call, collect};
use crate::{Error, Result};

/// Lets libtorch use only operations whose result is the same on every run, at some cost in time; an operation that has
/// no such form is an error from then on.
///
/// # Errors
/// [`Error::Torch`] when libtorch refuses.
pub fn set_deterministic_algorithms(on: bool) -> Result<()> {
    // SAFETY: the call takes no pointers but the error's place.
    run("set_deterministic_algorithms", |e| unsafe { ffi::gm_set_deterministic_algorithms(on, e) })
}

/// Whether [`set_deterministic_algorithms`] is on.
///
/// # Errors
/// [`Error::Torch`] when libtorch refuses.
pub fn deterministic_algorithms() -> Result<bool> {
    let mut on = false;
    // SAFETY: the out place outlives the call.
    run("deterministic_algorithms", |e| unsafe { ffi::gm_deterministic_algorithms(&raw mut on, e) })?;
    Ok(on)
}

/// The instruction set that libtorch's kernels use on this CPU, such as `AVX2` or `AVX512`. Results differ in the last
/// bits between them.
///
/// # Errors
/// [`Error::Torch`] when libtorch refuses.
pub fn cpu_capability() -> Result<String> {
    text("cpu_capability", ffi::gm_cpu_capability)
}

/// How the loaded libtorch was built: compiler, BLAS, flags, several lines.
///
/// # Errors
/// [`Error::Torch`] when libtorch refuses.
pub fn build_config() -> Result<String> {
    text("build_config", ffi::gm_build_config)
}

/// The version of the libtorch that was loaded, such as `2.11.0`, which need not be the one that was compiled against.
///
/// # Errors
/// [`Error::Torch`] when the library does not state it.
pub fn torch_version() -> Result<String> {
    let config = build_config()?;
    config
        .split("TORCH_VERSION=")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| c == ',' || c.is_whitespace()).next())
        .filter(|version| !version.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| Error::Torch {
            op: "torch_version".to_owned(),
            message: format!("the build configuration names no TORCH_VERSION: {config}"),
        })
}

/// Threads that one operation may use.
///
/// # Errors
/// [`Error::Torch`] when libtorch refuses.
pub fn num_threads() -> Result<usize> {
    let mut n = 0;
    // SAFETY: the out place outlives the call.
    run("num_threads", |e| unsafe { ffi::gm_num_threads(&raw mut n, e) })?;
    usize::try_from(n)
        .map_err(|_| Error::Torch { op: "num_threads".to_owned(), message: format!("libtorch answered {n}") })
}

/// Sets the threads that one operation may use, at least 1. Sums over many elements round differently with another
/// number.
///
/// # Errors
/// [`Error::Config`] for 0 or more than `i32::MAX`.
pub fn set_num_threads(n: usize) -> Result<()> {
    let op = "set_num_threads";
    let threads = match i32::try_from(n) {
        Ok(threads) if threads > 0 => threads,
        _ => return Err(Error::config(op, format!("{n} is not a number of threads"))),
    };
    // SAFETY: the call takes no pointers but the error's place.
    run(op, |e| unsafe { ffi::gm_set_num_threads(threads, e) })
}

/// The state of the default CPU generator (a few kB, opaque), from which dropout and initialization draw.
///
/// # Errors
/// [`Error::Torch`] when libtorch refuses.
pub fn rng_state() -> Result<Vec<u8>> {
    bytes("rng_state", ffi::gm_rng_state)
}

/// Puts the default CPU generator back into a state that [`rng_state`] gave.
///
/// # Errors
/// [`Error::Torch`] when the bytes are not such a state.
pub fn set_rng_state(state: &[u8]) -> Result<()> {
    // SAFETY: the state is readable for its length.
    run("set_rng_state", |e| unsafe { ffi::gm_set_rng_state(state.as_ptr(), state.len(), e) })
}

fn run(op: &str, function: impl FnOnce(*mut *mut c_char) -> i32) -> Result<()> {
    call(op, Duration::ZERO, function)
}

type Giver = unsafe extern "C" fn(ffi::Sink, *mut std::ffi::c_void, *mut *mut c_char) -> i32;

fn bytes(op: &str, giver: Giver) -> Result<Vec<u8>> {
    let mut out: Vec<u8> = Vec::new();
    // SAFETY: `collect` is given the Vec that it expects.
    run(op, |e| unsafe { giver(collect, (&raw mut out).cast(), e) })?;
    Ok(out)
}

fn text(op: &str, giver: Giver) -> Result<String> {
    String::from_utf8(bytes(op, giver)?).map_err(|e| Error::Torch { op: op.to_owned(), message: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_says_what_it_is() {
        assert_eq!(torch_version().unwrap(), "2.11.0");
        assert!(!cpu_capability().unwrap().is_empty());
    }

    // One test: these are settings of the whole process.
    #[test]
    fn settings_are_kept() {
        set_num_threads(1).unwrap();
        assert_eq!(num_threads().unwrap(), 1);
        assert!(matches!(set_num_threads(0), Err(Error::Config { .. })));
        set_deterministic_algorithms(true).unwrap();
        assert!(deterministic_algorithms().unwrap());
        set_deterministic_algorithms(false).unwrap();
        assert!(!deterministic_algorithms().unwrap());

        let draw = || Vec::<f64>::try_from(tch::Tensor::rand([3], (tch::Kind::Double, tch::Device::Cpu))).unwrap();
        let state = rng_state().unwrap();
        let first = draw();
        assert_ne!(draw(), first);
        set_rng_state(&state).unwrap();
        assert_eq!(draw(), first);
        let error = set_rng_state(&[1, 2, 3]).unwrap_err();
        assert!(matches!(error, Error::Torch { .. }), "{error}");
    }
}
