//! torch.distributed's C++ core for Rust programs that use [`tch`].
//!
//! tch binds libtorch's tensors but nothing of `torch.distributed`. Yet the library that tch links,
//! `libtorch_cpu.so`, holds its whole C++ core: the TCP store by which ranks meet, the Gloo process group, and the
//! `Reducer`, which is what DistributedDataParallel runs on. This crate is a thin layer of plain C functions over these
//! classes, and safe Rust over that. A program that uses it meets Python's ranks on equal terms: it runs under
//! `torchrun --no-python`, speaks the same wire protocol, and packs, overlaps and rounds gradients as DDP does.
//!
//! - [`World`], [`Rendezvous`]: who this process is, from torchrun's or SLURM's environment (no libtorch needed).
//! - [`TcpStore`], [`PrefixStore`]: keys and values that all ranks see.
//! - [`ProcessGroup`]: `all_reduce`, `broadcast`, `all_gather`, and a `barrier` that names who is missing.
//! - [`Reducer`]: gradients averaged while the backward pass runs, with accumulation.
//! - [`tensor_from_owned`]: a tensor over a buffer of your own, which is told when libtorch lets go of it.
//! - [`runtime`]: determinism, threads, CPU capability, generator state.
//!
//! # What holds
//!
//! - **Nothing waits for ever.** Each operation has a limit; a peer that is killed or stuck is an [`Error`] that tells
//!   which of the two it looks like, well before a scheduler's limit would end the job.
//! - **No exception crosses.** Each one becomes an [`Error`] with libtorch's text.
//! - **The order of additions is fixed** by the parameters and the number of ranks, so a resumed run is bitwise the
//!   same ([`Reducer`] says how).
//!
//! # Why a shim, and one torch version
//!
//! The classes are C++ with inline parts and private layouts, so they are compiled against the headers of exactly one
//! torch (2.11.0, which is what tch 0.24 wants) by this crate's build script; another version is refused with a message.
//! The wheel has no Gloo headers, and needs none of Gloo's but the few declarations in `csrc/gloo`. Only `torch_cpu` and
//! `c10` are linked: `libtorch.so` would require the CUDA libraries to be there merely to start.
//!
//! # Linking
//!
//! A binary finds libtorch by its rpath, and a dependency can't set that of its dependents. A crate that makes binaries
//! or tests depends on this one directly and has this build script:
//!
//! ```no_run
//! if let Ok(libdir) = std::env::var("DEP_GRISTMILL_C10D_LIBDIR") {
//!     println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
//! }
//! ```
//!
//! Without the feature `torch` (on by default) only [`World`], [`Rendezvous`] and [`Error`] remain.

mod error;
mod world;

#[cfg(feature = "torch")]
mod agreement;
#[cfg(feature = "torch")]
mod ffi;
#[cfg(feature = "torch")]
mod process_group;
#[cfg(feature = "torch")]
mod reducer;
#[cfg(feature = "torch")]
pub mod runtime;
#[cfg(feature = "torch")]
mod store;
#[cfg(feature = "torch")]
mod tensor;

pub use error::{Error, Result};
pub use world::{Rendezvous, World};

#[cfg(feature = "torch")]
pub use process_group::{Backend, GlooAddress, GlooOptions, ProcessGroup, ReduceOp, broadcast_parameters};
#[cfg(feature = "torch")]
pub use reducer::{Reducer, ReducerOptions};
#[cfg(feature = "torch")]
pub use store::{PrefixStore, Store, TcpStore};
#[cfg(feature = "torch")]
pub use tensor::{ALIGNMENT, HostBuffer, tensor_from_owned};
