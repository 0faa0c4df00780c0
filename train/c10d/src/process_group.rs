//! Groups of ranks and the collectives between them.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use tch::{Device, Tensor};

use crate::agreement::{self, Call};
use crate::ffi::{self, c_string, call, millis};
use crate::store::{PrefixStore, Store};
use crate::{Error, Rendezvous, Result};

/// How the parts of the ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their sum over the number of ranks; floating-point tensors only.
    Average,
    /// Their product.
    Product,
    /// The least of each element.
    Min,
    /// The greatest of each element.
    Max,
}

/// What carries the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// TCP between CPUs.
    Gloo(GlooOptions),
    /// NVLink and InfiniBand between GPUs. Not built in: it lives in `libtorch_cuda.so`, which is only to be loaded
    /// on machines that have a GPU. Asking for it is [`Error::BackendUnavailable`].
    Nccl,
}

/// The network address that a rank listens on for its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GlooAddress {
    /// The address that this machine's host name resolves to, else loopback.
    HostName,
    /// A host name or address of this machine.
    Host(String),
    /// Network interfaces by name, such as `eth0`; all are used in turn.
    Interfaces(Vec<String>),
}

/// Settings of a Gloo group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlooOptions {
    /// Limit of each operation, and of forming the group. At least 1 ms; torch's default is 30 minutes.
    pub timeout: Duration,
    /// Where to listen.
    pub address: GlooAddress,
    /// Threads that run collectives, at least 1. The Reducer has as many buckets in flight.
    pub threads: usize,
    /// Compare, before each call, what the ranks are about to do: call, shape, kind, root, reduction. A program whose
    /// ranks disagree then gets [`Error::Config`] on each of them, where Gloo would end the process or return another
    /// shape's data. It costs one exchange of 48 bytes a call; the Reducer's own all-reduces, whose shapes are checked
    /// once, never have it. Equal on all ranks.
    pub check_calls: bool,
}

impl GlooOptions {
    /// Two threads, calls checked, listening where the machine's host name resolves to.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, address: GlooAddress::HostName, threads: 2, check_calls: true }
    }

    /// For ranks that meet on this machine only.
    #[must_use]
    pub fn loopback(timeout: Duration) -> Self {
        Self { address: GlooAddress::Host("127.0.0.1".to_owned()), ..Self::new(timeout) }
    }

    /// Loopback when the ranks meet there; else the interfaces that `GLOO_SOCKET_IFNAME` lists (comma-separated), as
    /// torch reads it; else the host name's address.
    #[must_use]
    pub fn for_rendezvous(rendezvous: &Rendezvous, timeout: Duration) -> Self {
        if rendezvous.is_loopback() {
            return Self::loopback(timeout);
        }
        let names = std::env::var("GLOO_SOCKET_IFNAME").unwrap_or_default();
        let names: Vec<String> = names.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        let address = if names.is_empty() { GlooAddress::HostName } else { GlooAddress::Interfaces(names) };
        Self { address, ..Self::new(timeout) }
    }
}

/// A `c10d::ProcessGroup`: the ranks that take part in a collective.
///
/// Every rank must make the same calls in the same order (see [`GlooOptions::check_calls`]). Every call has a limit: when a peer has ended or is stuck,
/// the others get [`Error::PeerLost`] or [`Error::Timeout`]. After such an error the ranks may disagree on which calls
/// were done, so the group is of no further use: end the process, or make a group anew under another key prefix.
///
/// c10d numbers the calls of a group without a lock, so a group (and each [`crate::Reducer`] over it) stays on the
/// thread that made it. A second thread makes a second group, under a prefix of its own.
#[derive(Debug)]
pub struct ProcessGroup {
    raw: NonNull<c_void>,
    rank: usize,
    size: usize,
    timeout: Duration,
    barriers: PrefixStore,
    barrier: Cell<u64>,
    check_calls: bool,
    calls: Cell<u64>,
}

impl ProcessGroup {
    /// Forms a group over a backend. See [`ProcessGroup::gloo`].
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] for a backend that is not part of this build; else as [`ProcessGroup::gloo`].
    pub fn new(store: &Store, rank: usize, size: usize, backend: &Backend) -> Result<Self> {
        match backend {
            Backend::Gloo(options) => Self::gloo(store, rank, size, options),
            Backend::Nccl => Err(Error::BackendUnavailable { backend: "nccl" }),
        }
    }

    /// Forms a Gloo group of `size` ranks, of which this is `rank`, and waits until all are there. Two groups over one
    /// store need a [`PrefixStore`] each.
    ///
    /// # Errors
    /// [`Error::Config`] for a rank that is not below the size; [`Error::Timeout`] when not all ranks arrive;
    /// [`Error::Torch`] when the address is not one of this machine.
    pub fn gloo(store: &Store, rank: usize, size: usize, options: &GlooOptions) -> Result<Self> {
        let op = format!("form a gloo group of {size} ranks");
        let (Ok(c_rank), Ok(c_size)) = (i32::try_from(rank), i32::try_from(size)) else {
            return Err(Error::config(op, format!("rank {rank} or size {size} is beyond what torch can count")));
        };
        if rank >= size {
            return Err(Error::config(op, format!("rank {rank} is not below the size")));
        }
        let threads = i32::try_from(options.threads).unwrap_or(0);
        if threads < 1 {
            return Err(Error::config(op, format!("threads is {}, but must be at least 1", options.threads)));
        }
        let (kind, names): (i32, &[String]) = match &options.address {
            GlooAddress::HostName => (0, &[]),
            GlooAddress::Host(host) => (1, std::slice::from_ref(host)),
            GlooAddress::Interfaces(names) => (2, names),
        };
        if kind != 0 && names.is_empty() {
            return Err(Error::config(op, "the list of network interfaces is empty"));
        }
        let names: Vec<CString> = names.iter().map(|name| c_string(&op, name)).collect::<Result<_>>()?;
        let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let mut raw = null_mut();
        // SAFETY: the store is live, `names` keeps the addresses until the call is over, the out place outlives it.
        call(&op, options.timeout, |e| unsafe {
            ffi::gm_gloo_group(
                store.as_ptr(),
                c_rank,
                c_size,
                millis(options.timeout),
                threads,
                kind,
                pointers.as_ptr(),
                pointers.len(),
                &raw mut raw,
                e,
            )
        })?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::Torch { op: op.clone(), message: "no group was made".to_owned() })?;
        let barriers = PrefixStore::new("barrier", store);
        let barriers = match barriers {
            Ok(barriers) => barriers,
            Err(error) => {
                // SAFETY: made above and not given to anyone.
                unsafe { ffi::gm_group_free(raw.as_ptr()) };
                return Err(error);
            }
        };
        Ok(Self {
            raw,
            rank,
            size,
            timeout: options.timeout,
            barriers,
            barrier: Cell::new(0),
            check_calls: options.check_calls,
            calls: Cell::new(0),
        })
    }

    /// The Gloo group of all ranks of a run. `name` keeps several groups of one run apart.
    ///
    /// # Errors
    /// As [`ProcessGroup::gloo`].
    pub fn of_run(rendezvous: &Rendezvous, store: &Store, name: &str, timeout: Duration) -> Result<Self> {
        let store = PrefixStore::new(name, store)?;
        let options = GlooOptions::for_rendezvous(rendezvous, timeout);
        Self::gloo(&store, rendezvous.world.rank, rendezvous.world.world_size, &options)
    }

    /// This process's number in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks in the group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Limit of each operation.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.raw.as_ptr()
    }

    /// Combines the ranks' tensors, of equal shape and kind, element by element; every rank ends with the result in
    /// place.
    ///
    /// # Errors
    /// [`Error::Config`] for an unsuitable tensor; [`Error::PeerLost`] or [`Error::Timeout`] when a peer is gone or
    /// stuck, in which case the tensor's content is undefined.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
        let name = "all_reduce";
        in_place(name, tensor)?;
        if op == ReduceOp::Average && !is_floating(tensor) {
            let problem = format!("the average of {:?} tensors is not defined: sum them and divide", tensor.kind());
            return Err(Error::config(name, problem));
        }
        let code = match op {
            ReduceOp::Sum | ReduceOp::Average => 0,
            ReduceOp::Product => 1,
            ReduceOp::Min => 2,
            ReduceOp::Max => 3,
        };
        self.agree(name, op as i64, &[tensor])?;
        // SAFETY: the group and the tensor are live, and the tensor is borrowed exclusively.
        call(name, self.timeout, |e| unsafe {
            ffi::gm_all_reduce(self.as_ptr(), tensor.as_ptr().cast(), code, millis(self.timeout), e)
        })?;
        if op == ReduceOp::Average {
            // Gloo has no average. Group sizes are far below 2^53.
            let size = self.size as f64;
            let _same =
                tch::no_grad(|| tensor.f_div_scalar_(size)).map_err(|e| Error::from_tch(name, &e, self.timeout))?;
        }
        Ok(())
    }

    /// Copies the tensor of rank `root` into those of all others, of equal shape and kind.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; [`Error::Config`] for a root that is not below the size.
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        let name = "broadcast";
        in_place(name, tensor)?;
        let root = self.root(name, root)?;
        self.agree(name, root.into(), &[tensor])?;
        // SAFETY: the group and the tensor are live, and the tensor is borrowed exclusively.
        call(name, self.timeout, |e| unsafe {
            ffi::gm_broadcast(self.as_ptr(), tensor.as_ptr().cast(), root, millis(self.timeout), e)
        })
    }

    /// The tensors of all ranks, of equal shape and kind, in the order of the ranks.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`].
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        let name = "all_gather";
        usable(name, tensor)?;
        self.agree(name, 0, &[tensor])?;
        self.gather(name, tensor)
    }

    fn gather(&self, name: &str, tensor: &Tensor) -> Result<Vec<Tensor>> {
        let mut out: Vec<*mut c_void> = vec![null_mut(); self.size];
        // SAFETY: the group and the tensor are live, and `out` has a place for each rank.
        call(name, self.timeout, |e| unsafe {
            ffi::gm_all_gather(self.as_ptr(), tensor.as_ptr().cast(), millis(self.timeout), out.as_mut_ptr(), e)
        })?;
        // SAFETY: on success each place holds an at::Tensor of its own, handed over to us.
        Ok(out.into_iter().map(|raw| unsafe { Tensor::from_ptr(raw.cast()) }).collect())
    }

    /// Copies the tensors of rank `root` into those of all others, many in one message. Shapes and kinds must agree;
    /// [`crate::Reducer::new`] checks that for a model's parameters.
    ///
    /// # Errors
    /// As [`ProcessGroup::broadcast`].
    pub fn broadcast_all(&self, tensors: &[Tensor], root: usize) -> Result<()> {
        // torch's DistributedDataParallel sends as much at a time.
        const BUFFER_BYTES: usize = 250 << 20;
        let name = "broadcast_all";
        for tensor in tensors {
            usable(name, tensor)?;
        }
        let root = self.root(name, root)?;
        self.agree(name, root.into(), &tensors.iter().collect::<Vec<_>>())?;
        let pointers: Vec<*const c_void> = tensors.iter().map(|t| t.as_ptr().cast()).collect();
        // SAFETY: the group and the tensors are live. Writing through shared references is what tch's own in-place
        // operations on shallow clones come to.
        call(name, self.timeout, |e| unsafe {
            ffi::gm_broadcast_coalesced(self.as_ptr(), pointers.as_ptr(), pointers.len(), BUFFER_BYTES, root, e)
        })
    }

    /// Waits until every rank is here, and names those that are not when the time is up.
    ///
    /// It goes by the store, not by the group's connections, so it also tells a rank that never came from one that
    /// is lost.
    ///
    /// # Errors
    /// [`Error::MissingRanks`] when ranks are late; [`Error::PeerLost`] or [`Error::Store`] when the store's host is
    /// gone.
    pub fn barrier(&self, timeout: Duration) -> Result<()> {
        let number = self.barrier.get();
        self.barrier.set(number + 1);
        let keys: Vec<String> = (0..self.size).map(|rank| format!("{number}/{rank}")).collect();
        self.barriers.set(&keys[self.rank], b"1")?;
        match self.barriers.wait(&keys, timeout) {
            Ok(()) => {}
            Err(Error::Timeout { what, after, message }) => {
                let mut missing = Vec::new();
                for (rank, key) in keys.iter().enumerate() {
                    if !self.barriers.check(&[key])? {
                        missing.push(rank);
                    }
                }
                // All may have come between the two looks; the others will have seen them, and went on.
                if missing.is_empty() {
                    return Err(Error::Timeout { what, after, message });
                }
                return Err(Error::MissingRanks { missing, world_size: self.size, after });
            }
            Err(error) => return Err(error),
        }
        // Whoever is here has left the barrier before, so nobody will look at its keys again.
        if let Some(before) = number.checked_sub(1) {
            self.barriers.delete_key(&format!("{before}/{}", self.rank))?;
        }
        Ok(())
    }

    /// Fails on every rank alike when not all are about to do the same.
    fn agree(&self, name: &str, detail: i64, tensors: &[&Tensor]) -> Result<()> {
        if !self.check_calls || self.size == 1 {
            return Ok(());
        }
        let number = self.calls.get();
        self.calls.set(number + 1);
        let mine = Call::new(number, name, detail, tensors);
        let all = self.gather(name, &Tensor::from_slice(mine.as_slice()))?;
        let mut calls = Vec::with_capacity(all.len());
        for tensor in &all {
            let numbers = Vec::<i64>::try_from(tensor).map_err(|e| Error::from_tch(name, &e, self.timeout))?;
            let call = Call::from_slice(&numbers);
            calls.push(
                call.ok_or_else(|| Error::config(name, "a rank does not check its calls: set check_calls alike"))?,
            );
        }
        match agreement::disagreement(&calls) {
            None => Ok(()),
            Some(problem) => Err(Error::config(name, problem)),
        }
    }

    fn root(&self, name: &str, root: usize) -> Result<i32> {
        match i32::try_from(root) {
            Ok(number) if root < self.size => Ok(number),
            _ => Err(Error::config(name, format!("root {root} is not a rank of a group of {}", self.size))),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // SAFETY: the handle is owned by this value alone, and freed once.
        unsafe { ffi::gm_group_free(self.raw.as_ptr()) };
    }
}

/// Makes all ranks start from the values of rank `root`: parameters and buffers of a model.
///
/// # Errors
/// As [`ProcessGroup::broadcast_all`].
pub fn broadcast_parameters(group: &ProcessGroup, tensors: &[Tensor], root: usize) -> Result<()> {
    group.broadcast_all(tensors, root)
}

/// Gloo writes `numel` elements from the first one on, wherever the strides point.
fn in_place(name: &str, tensor: &Tensor) -> Result<()> {
    usable(name, tensor)?;
    if tensor.is_contiguous() {
        Ok(())
    } else {
        Err(Error::config(name, "the tensor is not contiguous, so the result can't be put in its place: copy it first"))
    }
}

/// Gloo takes dense CPU tensors; on others some of its paths read memory that they should not.
pub(crate) fn usable(name: &str, tensor: &Tensor) -> Result<()> {
    if !tensor.defined() {
        return Err(Error::config(name, "the tensor is not defined"));
    }
    if tensor.is_sparse() {
        return Err(Error::config(name, "the tensor is sparse; make it dense first"));
    }
    if let Err(error) = tensor.f_kind() {
        return Err(Error::config(name, format!("tch does not know the tensor's kind: {error}")));
    }
    if tensor.device() != Device::Cpu {
        let problem = format!("the tensor is on {:?}, and Gloo works on the CPU: move it there first", tensor.device());
        return Err(Error::config(name, problem));
    }
    Ok(())
}

fn is_floating(tensor: &Tensor) -> bool {
    tensor.f_is_floating_point().unwrap_or(false)
}
