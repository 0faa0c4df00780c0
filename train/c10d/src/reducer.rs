//! Gradients summed over ranks while the backward pass still runs.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use tch::{Kind, Tensor};

use crate::agreement::fingerprint;
use crate::ffi::{self, call};
use crate::process_group::{ProcessGroup, usable};
use crate::{Error, Result};

/// Settings of a [`Reducer`]; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReducerOptions {
    /// Size of the bucket that fills first, smaller so that communication starts early. At least 1; torch's default
    /// is 1 MiB.
    pub first_bucket_bytes: usize,
    /// Size of the other buckets. At least 1; torch's default is 25 MiB.
    pub bucket_cap_bytes: usize,
    /// Look, at each step, for parameters that the loss does not depend on. Without it such a parameter is an error;
    /// with it each step costs a walk over the graph and one more small all-reduce.
    pub find_unused: bool,
}

impl Default for ReducerOptions {
    fn default() -> Self {
        Self { first_bucket_bytes: 1 << 20, bucket_cap_bytes: 25 << 20, find_unused: false }
    }
}

/// A `c10d::Reducer`: the part of DistributedDataParallel that averages gradients.
///
/// It hooks into the autograd graph of the parameters. Once told, by [`Reducer::prepare_for_backward`], that a backward
/// pass is to be reduced, it packs gradients into buckets as they become ready and all-reduces each bucket while the
/// pass goes on. When the pass returns, the `grad` of every parameter is the **average over the ranks** on every rank.
///
/// ```text
/// reducer.prepare_for_forward()?;
/// let loss = model.forward(&x).mse_loss(&y, Mean);
/// reducer.backward(&loss)?;                        // or prepare_for_backward(&loss), then tch's own backward
/// ```
///
/// **Gradient accumulation.** A backward pass that was not announced is not reduced: gradients add up locally, and the
/// next announced pass reduces the whole sum. So all but the last micro-batch go through
/// [`Reducer::backward_without_reduction`], which is what torch's `no_sync` does.
///
/// **Order.** torch lays its buckets out anew after the first step, in the order in which gradients arrived. Here the
/// layout depends on the parameters and options alone, so the sums of a resumed run are bitwise those of a run that was
/// never stopped (with more than two ranks, the place in a bucket decides the order of the additions).
///
/// Like the group that it works over, it stays on the thread that made it.
#[derive(Debug)]
pub struct Reducer {
    raw: NonNull<c_void>,
    buckets: usize,
    find_unused: bool,
    timeout: Duration,
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Reducer {
    /// Hooks into `params`, after checking that all ranks have the same number of them with the same shapes and kinds.
    /// It does not make their values equal: see [`crate::broadcast_parameters`].
    ///
    /// # Errors
    /// [`Error::Config`], on every rank alike, when the ranks disagree, naming the first parameter that differs; or when
    /// a parameter is not a dense CPU tensor that requires a gradient. [`Error::PeerLost`] and [`Error::Timeout`] as
    /// for any collective.
    pub fn new(params: &[Tensor], group: &ProcessGroup, options: ReducerOptions) -> Result<Self> {
        let op = "reducer";
        let local = check_parameters(op, params, options);
        // A rank that returned early would leave the others waiting: it takes part in the comparison first.
        check_ranks_agree(op, params, group, options, local.is_ok())?;
        let (first, cap) = local?;
        let pointers = pointers(params);
        let (mut raw, mut buckets) = (null_mut(), 0);
        // SAFETY: the group and the parameters are live, and the Reducer keeps references of its own to both.
        call(op, group.timeout(), |e| unsafe {
            ffi::gm_reducer(
                group.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                first,
                cap,
                options.find_unused,
                &raw mut raw,
                &raw mut buckets,
                e,
            )
        })?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::Torch { op: op.to_owned(), message: "no reducer was made".to_owned() })?;
        Ok(Self {
            raw,
            buckets,
            find_unused: options.find_unused,
            timeout: group.timeout(),
            _stays_on_its_thread: PhantomData,
        })
    }

    /// Buckets that the gradients are packed into: all-reduces of a step.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets
    }

    /// Announces a forward pass whose backward pass will be reduced.
    ///
    /// # Errors
    /// [`Error::Torch`] when libtorch refuses.
    pub fn prepare_for_forward(&mut self) -> Result<()> {
        // SAFETY: the handle is live and this thread's.
        call("prepare_for_forward", self.timeout, |e| unsafe { ffi::gm_reducer_prepare_forward(self.raw.as_ptr(), e) })
    }

    /// Announces the backward pass from `loss`: it will be reduced. An announced pass must be run, and by all ranks.
    ///
    /// # Errors
    /// [`Error::Torch`] when the pass announced before did not reach every parameter, or was never run.
    pub fn prepare_for_backward(&mut self, loss: &Tensor) -> Result<()> {
        // The walk over the graph, for which c10d needs the outputs, is only made when unused parameters are looked
        // for.
        let outputs: &[*const c_void] = &[loss.as_ptr().cast()];
        let outputs = if self.find_unused { outputs } else { &[] };
        // SAFETY: the handle is live and this thread's, and so is the loss.
        call("prepare_for_backward", self.timeout, |e| unsafe {
            ffi::gm_reducer_prepare_backward(self.raw.as_ptr(), outputs.as_ptr(), outputs.len(), e)
        })
        .map_err(explain_unused)
    }

    /// Runs the backward pass from `loss` and reduces the gradients, together with what earlier unreduced passes left
    /// in them.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::Timeout`] when a peer is gone or stuck, after which gradients are undefined and
    /// the Reducer and its group of no further use; [`Error::Torch`] when the graph does not reach every parameter.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        self.prepare_for_backward(loss)?;
        self.run_backward(loss)?;
        // SAFETY: the handle is live and this thread's.
        call("backward", self.timeout, |e| unsafe { ffi::gm_reducer_check_finalized(self.raw.as_ptr(), e) })
            .map_err(explain_unused)
    }

    /// Runs the backward pass from `loss` and leaves the gradients to this rank, to be reduced with those of a later
    /// pass.
    ///
    /// # Errors
    /// [`Error::Torch`] when libtorch refuses.
    pub fn backward_without_reduction(&mut self, loss: &Tensor) -> Result<()> {
        self.run_backward(loss)
    }

    fn run_backward(&self, loss: &Tensor) -> Result<()> {
        loss.f_backward().map_err(|e| Error::from_tch("backward", &e, self.timeout))
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: the handle is owned by this value alone, and freed once; it takes its hooks out of the parameters.
        unsafe { ffi::gm_reducer_free(self.raw.as_ptr()) };
    }
}

fn pointers(tensors: &[Tensor]) -> Vec<*const c_void> {
    tensors.iter().map(|t| t.as_ptr().cast()).collect()
}

/// c10d counts parameters in the order that it was given, which is ours reversed.
fn explain_unused(error: Error) -> Error {
    match error {
        Error::Torch { op, message } if message.contains("did not receive grad") => {
            Error::Torch { op, message: format!("{message} (these indices count from the last parameter, which is 0)") }
        }
        other => other,
    }
}

fn check_parameters(op: &str, params: &[Tensor], options: ReducerOptions) -> Result<(i64, i64)> {
    if params.is_empty() {
        return Err(Error::config(op, "there are no parameters"));
    }
    for (i, param) in params.iter().enumerate() {
        usable(&format!("{op}, parameter {i}"), param)?;
        if !param.requires_grad() {
            return Err(Error::config(op, format!("parameter {i} does not require a gradient: leave it out")));
        }
    }
    match (i64::try_from(options.first_bucket_bytes), i64::try_from(options.bucket_cap_bytes)) {
        (Ok(first), Ok(cap)) if first > 0 && cap > 0 => Ok((first, cap)),
        _ => Err(Error::config(op, format!("bucket sizes must be between 1 and 2^63 - 1, but are {options:?}"))),
    }
}

/// Every rank learns every rank's answer, so that all fail alike and none is left waiting.
fn check_ranks_agree(
    op: &str,
    params: &[Tensor],
    group: &ProcessGroup,
    options: ReducerOptions,
    locally_fine: bool,
) -> Result<()> {
    let mine = if locally_fine { describe(params, options) } else { Vec::new() };
    let all = group.all_gather(&Tensor::from_slice(&[mine.len() as i64, fingerprint(&mine)]))?;
    let all: Vec<Vec<i64>> = all.iter().map(|t| integers(op, t)).collect::<Result<_>>()?;
    let broken: Vec<usize> = (0..all.len()).filter(|rank| all[*rank][0] == 0).collect();
    if !broken.is_empty() {
        // The rank itself says what is wrong with its own parameters.
        return if locally_fine {
            Err(Error::config(op, format!("the parameters or options of rank(s) {broken:?} were refused there")))
        } else {
            Ok(())
        };
    }
    if all.iter().all(|one| *one == all[0]) {
        return Ok(());
    }
    // Rare: only now are whole descriptions exchanged, padded to equal length.
    let longest = all.iter().map(|one| one[0]).max().unwrap_or(0);
    let mut padded = mine;
    padded.resize(usize::try_from(longest).unwrap_or(0), PADDING);
    let all = group.all_gather(&Tensor::from_slice(&padded))?;
    let all: Vec<Vec<i64>> = all.iter().map(|t| integers(op, t)).collect::<Result<_>>()?;
    for (rank, one) in all.iter().enumerate() {
        if let Some(difference) = difference(&all[0], one) {
            return Err(Error::config(op, format!("rank 0 and rank {rank} have different models: {difference}")));
        }
    }
    Err(Error::config(op, "the ranks' parameters have different fingerprints"))
}

const PADDING: i64 = i64::MIN;

/// Options, then each parameter as kind, number of dimensions, sizes.
fn describe(params: &[Tensor], options: ReducerOptions) -> Vec<i64> {
    let mut out = vec![
        options.first_bucket_bytes as i64,
        options.bucket_cap_bytes as i64,
        i64::from(options.find_unused),
        params.len() as i64,
    ];
    for param in params {
        let size = param.size();
        out.push(crate::tensor::scalar_type(param.kind()).into());
        out.push(size.len() as i64);
        out.extend(size);
    }
    out
}

/// The first difference of two descriptions, in words.
fn difference(a: &[i64], b: &[i64]) -> Option<String> {
    const HEAD: usize = 4;
    if a == b {
        return None;
    }
    if a.get(..3) != b.get(..3) {
        return Some(format!("their options are {:?} and {:?}", a.get(..3), b.get(..3)));
    }
    let (mut left, mut right) = (parameters(&a[HEAD..]), parameters(&b[HEAD..]));
    for i in 0.. {
        match (left.next(), right.next()) {
            (None, None) => break,
            (one, other) if one == other => {}
            (one, other) => {
                let text = |p: Option<(i64, &[i64])>| match p {
                    Some((kind, size)) => format!("{} {size:?}", crate::tensor::scalar_type_name(kind)),
                    None => "absent".to_owned(),
                };
                return Some(format!("parameter {i} is {} and {}", text(one), text(other)));
            }
        }
    }
    None
}

/// Kind and sizes of each parameter of a description without its head.
fn parameters(mut rest: &[i64]) -> impl Iterator<Item = (i64, &[i64])> {
    std::iter::from_fn(move || {
        let (&[kind, dims], tail) = rest.split_first_chunk::<2>()?;
        if kind == PADDING {
            return None;
        }
        let (size, tail) = tail.split_at_checked(usize::try_from(dims).ok()?)?;
        rest = tail;
        Some((kind, size))
    })
}

fn integers(op: &str, tensor: &Tensor) -> Result<Vec<i64>> {
    debug_assert_eq!(tensor.kind(), Kind::Int64);
    Vec::<i64>::try_from(tensor).map_err(|e| Error::Torch { op: op.to_owned(), message: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn differences_are_named() {
        let options = ReducerOptions::default();
        let param = |size: &[i64], kind| Tensor::zeros(size, (kind, Device::Cpu));
        let base = describe(&[param(&[2, 3], Kind::Float), param(&[3], Kind::Float)], options);
        let shape = describe(&[param(&[2, 3], Kind::Float), param(&[4], Kind::Float)], options);
        let kind = describe(&[param(&[2, 3], Kind::Double), param(&[3], Kind::Float)], options);
        let mut fewer = describe(&[param(&[2, 3], Kind::Float)], options);
        fewer.resize(base.len(), PADDING);
        let other = describe(
            &[param(&[2, 3], Kind::Float), param(&[3], Kind::Float)],
            ReducerOptions { find_unused: true, ..options },
        );
        assert_eq!(difference(&base, &base), None);
        assert_eq!(difference(&base, &shape).unwrap(), "parameter 1 is Float [3] and Float [4]");
        assert_eq!(difference(&base, &kind).unwrap(), "parameter 0 is Float [2, 3] and Double [2, 3]");
        assert_eq!(difference(&base, &fewer).unwrap(), "parameter 1 is Float [3] and absent");
        assert!(difference(&base, &other).unwrap().contains("options"));
        assert_ne!(fingerprint(&base), fingerprint(&shape));
    }
}
