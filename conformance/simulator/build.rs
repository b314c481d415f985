//! Gives the shared library the name that CUDA programs ask the loader for.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // glibc matches a later `dlopen("libcuda.so.1")` against the SONAME of what is loaded already.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
        // Workers may still run at the last dlclose: the code must stay mapped.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
