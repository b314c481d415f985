//! What must not compile: each program misuses one lifetime or one kind of borrow.
//!
//! The compiler's words are compared with the `.stderr` beside each program, by the compiler and with the
//! features that wrote them: `TRYBUILD=overwrite cargo test --features half,num-complex uncompilable` writes them anew.
//! Another compiler has other words, and without these it lists fewer elements, so there the programs
//! must fail to compile, and that is all. Programs of a feature lie in a folder of its name.

use std::fs;
use std::path::Path;
use std::process::Command;

const PROGRAMS: &str = "conformance/rust/uncompilable";
/// Where programs lie that compile, or not, with these features.
const FOLDERS: &[&str] = &[
    "",
    #[cfg(feature = "cudarc")]
    "cudarc",
    #[cfg(feature = "pyo3")]
    "pyo3",
];
/// The compiler that wrote the words.
const WRITTEN_BY: &str = "rustc 1.95.";

#[test]
fn programs_that_must_not_compile() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .expect("rustc runs");
    if cfg!(all(
        feature = "half",
        feature = "ndarray",
        feature = "num-complex"
    )) && version.stdout.starts_with(WRITTEN_BY.as_bytes())
    {
        let cases = trybuild::TestCases::new();
        for folder in FOLDERS {
            cases.compile_fail(format!("{PROGRAMS}/{folder}/*.rs"));
        }
        return;
    }
    let own = std::env::current_exe().expect("the test binary");
    let status = Command::new(own)
        .args([
            "--exact",
            "uncompilable::whatever_the_compiler_says",
            "--ignored",
        ])
        .env("TRYBUILD", "overwrite")
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "one of {PROGRAMS} compiles"
    );
}

#[test]
#[ignore = "run by programs_that_must_not_compile with a compiler of other words"]
fn whatever_the_compiler_says() {
    let copies = Path::new(env!("CARGO_TARGET_TMPDIR")).join("uncompilable");
    fs::create_dir_all(&copies).expect("a folder");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join(PROGRAMS);
    for folder in FOLDERS {
        for entry in fs::read_dir(programs.join(folder)).expect("the programs") {
            let program = entry.expect("an entry").path();
            let name = program.file_name().expect("a name");
            if program.extension().is_some_and(|is| is == "rs") {
                fs::copy(&program, copies.join(name)).expect("a copy");
            }
        }
    }
    trybuild::TestCases::new().compile_fail(format!("{}/*.rs", copies.display()));
}
