//! The C surface of `csrc/shim.h`, and the few conversions that every call of it needs.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use crate::error::code;
use crate::{Error, Result};

/// Receives bytes that live only during the call.
pub(crate) type Sink = unsafe extern "C" fn(*mut c_void, *const u8, usize);

unsafe extern "C" {
    fn gm_string_free(text: *mut c_char);

    pub(crate) fn gm_tcp_store(
        host: *const c_char,
        port: u16,
        is_server: bool,
        multi_tenant: bool,
        world_size: u64,
        timeout_ms: i64,
        store: *mut *mut c_void,
        bound_port: *mut u16,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_prefix_store(
        prefix: *const c_char,
        store: *const c_void,
        out: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_store_clone(store: *const c_void, out: *mut *mut c_void, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_store_set(
        store: *const c_void,
        key: *const c_char,
        value: *const u8,
        len: usize,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_store_get(
        store: *const c_void,
        key: *const c_char,
        sink: Sink,
        context: *mut c_void,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_store_wait(
        store: *const c_void,
        keys: *const *const c_char,
        n: usize,
        timeout_ms: i64,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_store_check(
        store: *const c_void,
        keys: *const *const c_char,
        n: usize,
        present: *mut bool,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_store_add(
        store: *const c_void,
        key: *const c_char,
        amount: i64,
        sum: *mut i64,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_store_delete(
        store: *const c_void,
        key: *const c_char,
        deleted: *mut bool,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_store_free(store: *mut c_void);

    pub(crate) fn gm_gloo_group(
        store: *const c_void,
        rank: i32,
        size: i32,
        timeout_ms: i64,
        threads: i32,
        address_kind: i32,
        addresses: *const *const c_char,
        n_addresses: usize,
        group: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_all_reduce(
        group: *const c_void,
        tensor: *const c_void,
        op: i32,
        timeout_ms: i64,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_broadcast(
        group: *const c_void,
        tensor: *const c_void,
        root: i32,
        timeout_ms: i64,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_all_gather(
        group: *const c_void,
        tensor: *const c_void,
        timeout_ms: i64,
        out: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_broadcast_coalesced(
        group: *const c_void,
        tensors: *const *const c_void,
        n: usize,
        buffer_bytes: usize,
        root: i32,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_group_free(group: *mut c_void);

    pub(crate) fn gm_reducer(
        group: *const c_void,
        params: *const *const c_void,
        n: usize,
        first_bucket_bytes: i64,
        bucket_cap_bytes: i64,
        find_unused: bool,
        reducer: *mut *mut c_void,
        n_buckets: *mut usize,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_reducer_prepare_forward(reducer: *mut c_void, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_reducer_prepare_backward(
        reducer: *mut c_void,
        outputs: *const *const c_void,
        n: usize,
        error: *mut *mut c_char,
    ) -> i32;
    pub(crate) fn gm_reducer_check_finalized(reducer: *mut c_void, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_reducer_free(reducer: *mut c_void);

    pub(crate) fn gm_tensor_from_owned(
        data: *mut c_void,
        shape: *const i64,
        n_dims: usize,
        scalar_type: i32,
        owner: *mut c_void,
        drop: unsafe extern "C" fn(*mut c_void),
        tensor: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> i32;

    pub(crate) fn gm_set_deterministic_algorithms(on: bool, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_deterministic_algorithms(on: *mut bool, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_cpu_capability(sink: Sink, context: *mut c_void, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_build_config(sink: Sink, context: *mut c_void, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_num_threads(n: *mut i32, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_set_num_threads(n: i32, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_rng_state(sink: Sink, context: *mut c_void, error: *mut *mut c_char) -> i32;
    pub(crate) fn gm_set_rng_state(state: *const u8, len: usize, error: *mut *mut c_char) -> i32;
}

/// Runs one function of the shim, whose last argument is the place for the error's text.
pub(crate) fn call(op: &str, after: Duration, function: impl FnOnce(*mut *mut c_char) -> i32) -> Result<()> {
    let mut text: *mut c_char = null_mut();
    let code = function(&raw mut text);
    let message = if text.is_null() {
        "libtorch gave no message".to_owned()
    } else {
        // SAFETY: a non-null text is a NUL-terminated string that the shim has handed over.
        let message = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: handed over by the shim, and freed once.
        unsafe { gm_string_free(text) };
        message
    };
    if code == code::OK { Ok(()) } else { Err(Error::classify(op, code, message, after)) }
}

/// A [`Sink`] whose context is a `Vec<u8>`.
pub(crate) unsafe extern "C" fn collect(context: *mut c_void, bytes: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: whoever passes this function as a sink passes a `Vec<u8>` as its context.
    let out = unsafe { &mut *context.cast::<Vec<u8>>() };
    // SAFETY: the shim states `len` readable bytes for the duration of this call.
    out.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes, len) });
}

/// # Errors
/// [`Error::Config`] when the text holds a NUL.
pub(crate) fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::config(what, format!("`{}` holds a NUL character", text.escape_debug())))
}

/// Milliseconds as c10d counts them, where 0 would mean no limit and very long ones would overflow its clock.
pub(crate) fn millis(timeout: Duration) -> i64 {
    const TEN_YEARS: u128 = 10 * 365 * 24 * 3600 * 1000;
    i64::try_from(timeout.as_millis().clamp(1, TEN_YEARS)).unwrap_or(i64::MAX)
}
