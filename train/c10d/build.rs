//! Compiles the C++ shim against libtorch and tells the linker, and the crates that depend on this one, where
//! libtorch lies.
//!
//! A dependency's `rustc-link-arg` does not reach the binaries that use it, so each crate that makes binaries states
//! the rpath itself: its own build script reads `DEP_GRISTMILL_C10D_LIBDIR` and prints
//! `cargo::rustc-link-arg=-Wl,-rpath,<that>`.

fn main() -> std::process::ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    match build() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(feature = "torch"))]
fn build() -> Result<(), String> {
    Ok(())
}

#[cfg(feature = "torch")]
const TORCH_VERSION: &str = "2.11.0";

#[cfg(feature = "torch")]
const SOURCES: [&str; 5] = ["store", "process_group", "reducer", "tensor", "runtime"];

#[cfg(feature = "torch")]
const HEADERS: [&str; 10] = [
    "shim.h",
    "guard.h",
    "handles.h",
    "gloo/declarations.h",
    "gloo/algorithm.h",
    "gloo/context.h",
    "gloo/config.h",
    "gloo/common/error.h",
    "gloo/rendezvous/store.h",
    "gloo/transport/device.h",
];

#[cfg(feature = "torch")]
fn build() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    for source in SOURCES {
        println!("cargo::rerun-if-changed=csrc/{source}.cpp");
    }
    for header in HEADERS {
        println!("cargo::rerun-if-changed=csrc/{header}");
    }

    let torch = libtorch()?;
    let lib = torch.join("lib");
    let mut shim = cc::Build::new();
    shim.cpp(true)
        .std("c++20")
        .define("USE_C10D_GLOO", None)
        // The shim only forwards calls; optimizing torch's headers would double the compile time for nothing.
        .opt_level(1)
        .debug(false)
        .include("csrc")
        .include(torch.join("include"))
        .include(torch.join("include/torch/csrc/api/include"))
        // torch's own headers are not free of warnings.
        .warnings(false);
    for source in SOURCES {
        shim.file(format!("csrc/{source}.cpp"));
    }
    shim.try_compile("gristmill_c10d_shim").map_err(|e| {
        format!(
            "the C++ shim did not compile against {}: {e} (a C++20 compiler is needed, g++ 11 or clang 14 at least)",
            torch.display()
        )
        .replace('\n', " ")
    })?;

    // libtorch.so would drag in libtorch_cuda.so and 2.5 GB of CUDA libraries with it.
    println!("cargo::rustc-link-search=native={}", lib.display());
    println!("cargo::rustc-link-lib=dylib=torch_cpu");
    println!("cargo::rustc-link-lib=dylib=c10");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    println!("cargo::metadata=libdir={}", lib.display());
    Ok(())
}

/// The folder that `LIBTORCH` names, once it is known to be usable.
#[cfg(feature = "torch")]
fn libtorch() -> Result<std::path::PathBuf, String> {
    let named = std::env::var_os("LIBTORCH").ok_or_else(|| {
        format!(
            "LIBTORCH is not set: run `make libtorch`, or set it to the torch folder of the torch {TORCH_VERSION} wheel"
        )
    })?;
    let torch = std::path::absolute(&named).map_err(|e| format!("LIBTORCH={}: {e}", named.display()))?;
    let header = torch.join("include/torch/csrc/distributed/c10d/reducer.hpp");
    if !header.is_file() {
        return Err(format!(
            "LIBTORCH={} has no torch.distributed headers ({} is missing): run `make libtorch`, or set LIBTORCH to the \
             torch folder of the torch {TORCH_VERSION} wheel",
            torch.display(),
            header.display()
        ));
    }
    let found = version(&torch)?;
    let release = found.split('+').next().unwrap_or_default();
    if release != TORCH_VERSION {
        return Err(format!(
            "LIBTORCH={} is torch {found}; this crate needs {TORCH_VERSION} exactly, since c10d's C++ interface changes \
             between minor versions: run `make libtorch` with LIBTORCH unset",
            torch.display()
        ));
    }
    Ok(torch)
}

/// `version.py` is in a wheel, `build-version` in a libtorch archive.
#[cfg(feature = "torch")]
fn version(torch: &std::path::Path) -> Result<String, String> {
    let archive = torch.join("build-version");
    if let Ok(text) = std::fs::read_to_string(&archive) {
        return Ok(text.trim().to_owned());
    }
    let wheel = torch.join("version.py");
    let text = std::fs::read_to_string(&wheel)
        .map_err(|e| format!("the version of LIBTORCH={} can't be told: {}: {e}", torch.display(), wheel.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("__version__"))
        .and_then(|rest| rest.split('\'').nth(1))
        .map(str::to_owned)
        .ok_or_else(|| format!("{} states no __version__", wheel.display()))
}
