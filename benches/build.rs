//! States where libtorch lies for the benches, since a dependency's link arguments do not reach them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(libdir) = std::env::var("DEP_GRISTMILL_C10D_LIBDIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
    }
}
