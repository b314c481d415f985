//! Finds the loaded driver, and tells the simulator from a real one.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr;

use crate::prototypes::Prototypes;

/// The names by which programs ask for the driver; the first one is the SONAME.
const NAMES: [&CStr; 2] = [c"libcuda.so.1", c"libcuda.so"];

/// The version of the `sim_*` interface that this crate speaks.
const ABI: u32 = 1;

/// Why this process does not run on the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSimulated {
    /// The loader finds no CUDA driver.
    NoDriver,
    /// The driver that the loader finds is a real one; the name it was found by.
    RealDriver(&'static str),
    /// The file cannot be loaded; the loader's message.
    NotLoaded(String),
    /// The simulator's interface has another version, or lacks a function.
    OtherVersion(String),
    /// The library could not be built: cargo failed, or its sources are not here; why, and what to do instead.
    NotBuilt(String),
}

impl fmt::Display for NotSimulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotSimulated::NoDriver => {
                write!(f, "no libcuda.so.1: start the process on the simulator")
            }
            NotSimulated::RealDriver(name) => write!(
                f,
                "{name} is a real CUDA driver: start the process with the simulator's folder in LD_LIBRARY_PATH"
            ),
            NotSimulated::NotLoaded(reason) => {
                write!(f, "the simulator cannot be loaded: {reason}")
            }
            NotSimulated::OtherVersion(what) => {
                write!(f, "the simulator does not fit this crate: {what}")
            }
            NotSimulated::NotBuilt(why) => write!(f, "the simulator cannot be built: {why}"),
        }
    }
}

impl std::error::Error for NotSimulated {}

/// Returns the driver that the loader gives this process.
pub(crate) fn attach() -> Result<Prototypes, NotSimulated> {
    match refuse_real_drivers()? {
        Some(library) => find(library),
        None => Err(NotSimulated::NoDriver),
    }
}

/// Loads a file; later loads of the SONAME get it too.
pub(crate) fn load(path: &Path) -> Result<Prototypes, NotSimulated> {
    refuse_real_drivers()?;
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| NotSimulated::NotLoaded("a NUL in the path".into()))?;
    let library = open(&name)
        .ok_or_else(|| NotSimulated::NotLoaded(format!("{}: {}", path.display(), last_error())))?;
    if !is_simulator(library) {
        return Err(NotSimulated::NotLoaded(format!(
            "{}: not the simulator",
            path.display()
        )));
    }
    find(library)
}

/// Returns the simulator if the loader finds it by any of the names; fails for a real driver, which
/// a program could get instead.
fn refuse_real_drivers() -> Result<Option<*mut c_void>, NotSimulated> {
    let mut found = None;
    for name in NAMES {
        if let Some(library) = open(name) {
            if !is_simulator(library) {
                return Err(NotSimulated::RealDriver(name.to_str().unwrap_or("libcuda")));
            }
            found = found.or(Some(library));
        }
    }
    Ok(found)
}

/// Builds the library, which costs little if it is built already, and returns its path. Tests
/// cannot depend on it: cargo builds no cdylib for the tests of another package.
pub(crate) fn built() -> Result<PathBuf, NotSimulated> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    check_sources(Path::new(manifest))?;
    let arguments = [
        "build",
        "--quiet",
        "--message-format=json-render-diagnostics",
        "--manifest-path",
        manifest,
    ];
    let done = Command::new(cargo)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output();
    let failed = |why: &dyn fmt::Display| NotSimulated::NotBuilt(format!("cargo build: {why}"));
    let done = done.map_err(|why| failed(&why))?;
    let artifacts = String::from_utf8_lossy(&done.stdout);
    match library_among(&artifacts) {
        Some(path) if done.status.success() => Ok(path),
        _ => Err(failed(&done.status)),
    }
}

/// Refuses a manifest that is not the simulator's: a crate from a registry lies beside others, or beside nothing.
fn check_sources(manifest: &Path) -> Result<(), NotSimulated> {
    let text = std::fs::read_to_string(manifest).unwrap_or_default();
    if text.lines().any(|line| line == r#"name = "cusim""#) {
        return Ok(());
    }
    Err(NotSimulated::NotBuilt(format!(
        "its sources are not at {}; `pip install cai-conformance`, then start the process with \
         LD_LIBRARY_PATH=\"$(python -m cai_conformance library-path)\"",
        manifest.display()
    )))
}

/// Returns the shared library among the paths that cargo's messages name, each in quotes.
fn library_among(messages: &str) -> Option<PathBuf> {
    let quoted = messages.split('"');
    quoted
        .filter(|text| text.ends_with("/libcusim.so"))
        .map(PathBuf::from)
        .next_back()
}

fn open(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a NUL-terminated name and flags of dlopen. Loading runs the library's constructors:
    // those of a CUDA driver are what the caller asks for.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    (!library.is_null()).then_some(library)
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: `library` came from dlopen and is never closed; the name is NUL-terminated.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

fn is_simulator(library: *mut c_void) -> bool {
    !symbol(library, c"sim_abi").is_null()
}

fn find(library: *mut c_void) -> Result<Prototypes, NotSimulated> {
    let address = symbol(library, c"sim_abi");
    // SAFETY: callers have found `sim_abi`, which takes nothing and returns 32 bits in every
    // version of the interface.
    let abi = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(address) };
    let version = abi();
    if version != ABI {
        return Err(NotSimulated::OtherVersion(format!(
            "interface {version}, not {ABI}"
        )));
    }
    Prototypes::find(|name| symbol(library, name))
        .map_err(|missing| NotSimulated::OtherVersion(format!("{missing} is missing")))
}

fn last_error() -> String {
    // SAFETY: dlerror takes nothing; it returns null or a string of the calling thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: not null, NUL-terminated, and valid until this thread's next dl* call.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Reads a text in two calls, one for the length and one for the bytes; again while it grows.
pub(crate) fn text(ask: impl Fn(*mut c_char, u64) -> u64) -> String {
    let mut size = ask(ptr::null_mut(), 0) as usize;
    loop {
        let mut buffer = vec![0u8; size];
        let needed = ask(buffer.as_mut_ptr().cast(), size as u64) as usize;
        if needed <= size {
            buffer.truncate(needed.saturating_sub(1));
            return String::from_utf8_lossy(&buffer).into_owned();
        }
        size = needed;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{NotSimulated, check_sources, library_among};

    #[test]
    fn without_the_sources_the_advice_is_the_kit() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(check_sources(&here.join("../Cargo.toml")), Ok(()));
        // A crate from a registry: no file beside it, or another crate's.
        for absent in ["../nothing/Cargo.toml", "Cargo.toml"] {
            let refused = check_sources(&here.join(absent)).unwrap_err();
            assert!(matches!(refused, NotSimulated::NotBuilt(_)));
            let said = refused.to_string();
            assert!(said.contains("pip install cai-conformance"), "{said}");
            assert!(said.contains("LD_LIBRARY_PATH"), "{said}");
        }
    }

    #[test]
    fn the_library_is_named_in_cargos_messages() {
        let messages = r#"{"filenames":["/t/debug/build/x"]}
            {"reason":"compiler-artifact","filenames":["/t/debug/libcusim.so"],"executable":null}"#;
        assert_eq!(library_among(messages), Some("/t/debug/libcusim.so".into()));
        assert_eq!(library_among("{}"), None);
    }
}
