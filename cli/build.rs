//! States where libtorch lies: a dependency's link arguments do not reach a binary.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let libdir = std::env::var("DEP_GRISTMILL_C10D_LIBDIR").unwrap_or_default();
    if !libdir.is_empty() {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
    }
    println!("cargo::rustc-env=BUILT_WITH_LIBTORCH_LIB={libdir}");
}
