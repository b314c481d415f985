//! Loads the simulated driver (conformance/simulator) for these tests, and runs them on it.
//!
//! The library is loaded once per process and by name, so the tests that need it are ignored ones
//! that [`run_on_it`] starts in a process of their own.

use std::env;
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use cudarc::driver::sys::{self, CUresult::CUDA_SUCCESS};

use crate::driver::{Context, Driver};
use crate::protocol::stream::Stream;

/// Runs this binary's ignored tests whose path contains `filter` and not `skip`, one after the
/// other, with the simulator as `libcuda.so.1`; how many passed.
pub(super) fn run_on_it(filter: &str, skip: &str, schedule: &str) -> usize {
    let folder = prepare(&build());
    let output = Command::new(env::current_exe().expect("the test binary"))
        .args(["--ignored", "--test-threads=1", filter, "--skip", skip])
        .env("LD_LIBRARY_PATH", &folder)
        .env("CUSIM_SCHEDULE", schedule)
        .output()
        .expect("the test binary runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "under the schedule {schedule}:\n{text}\n{errors}"
    );
    text.lines()
        .filter(|line| line.starts_with("test ") && line.ends_with("... ok"))
        .count()
}

/// Builds the simulator beside this test binary's own build; its path.
fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let executable = env::current_exe().expect("the test binary");
    let target = executable
        .ancestors()
        .nth(3)
        .expect("target/debug/deps/test")
        .join("cusim-for-tests");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--package", "cusim", "--locked", "--target-dir"])
        .arg(&target)
        .current_dir(root)
        .output();
    let library = target.join("debug").join("libcusim.so");
    let is_built = built.as_ref().is_ok_and(|output| output.status.success()) && library.exists();
    assert!(
        is_built,
        "these tests run on the simulated driver, which is in the project's repository \
         (conformance/simulator) and needs Linux; `cargo build --package cusim` there says why it \
         does not build: {built:?}"
    );
    library
}

/// A folder in which the library has the driver's name.
fn prepare(library: &Path) -> PathBuf {
    let folder = library.with_file_name("as-libcuda");
    std::fs::create_dir_all(&folder).expect("a folder in the target directory");
    for name in ["libcuda.so", "libcuda.so.1"] {
        let link = folder.join(name);
        if !link.exists() {
            // Two test processes at once: the other one's link is as good.
            let _ = std::os::unix::fs::symlink(library, link);
        }
    }
    folder
}

/// Declares functions of the simulator's control interface.
macro_rules! controls {
    ($(fn $name:ident($($parameter:ident: $type:ty),*) -> $result:ty;)*) => {
        $(pub(super) fn $name($($parameter: $type),*) -> $result {
            // SAFETY: these tests run only where `driver()` has loaded the library.
            let library = unsafe { sys::culib() };
            // SAFETY: the signature is the one in conformance/simulator/src/control.
            let symbol = unsafe {
                library.get::<unsafe extern "C" fn($($type),*) -> $result>(
                    concat!(stringify!($name), "\0").as_bytes(),
                )
            };
            let symbol = symbol.expect("the simulator and not a driver");
            // SAFETY: numbers, and pointers to memory that lives during the call.
            unsafe { symbol($($parameter),*) }
        })*
    };
}

controls! {
    fn sim_abi() -> u32;
    fn sim_log_clear() -> ();
    fn sim_log_text(text: *mut c_char, capacity: u64) -> u64;
    fn sim_gate(stream: u64) -> u64;
    fn sim_open(gate: u64) -> u32;
    fn sim_store(stream: u64, address: u64, data: *const u8, bytes: u64) -> u32;
    fn sim_peek(address: u64, into: *mut u8, bytes: u64) -> u32;
    fn sim_poke(address: u64, from: *const u8, bytes: u64) -> u32;
    fn sim_live_events() -> u64;
    fn sim_set(name: *const c_char, value: u64) -> u32;
    fn sim_fault(name: *const c_char, nth: u64, code: u32) -> u32;
    fn sim_get(name: *const c_char) -> u64;
    fn sim_order_begin(choices: *const u32, count: u64, host_points: u32) -> u32;
    fn sim_order_end(choices: *mut u32, options: *mut u32, capacity: u64) -> u64;
}

/// Calls the driver by cudarc's binding and insists on success.
macro_rules! cu {
    ($name:ident($($argument:expr),*)) => {{
        // SAFETY: handles that the driver gave, and pointers to memory that lives during the call.
        let code = unsafe { sys::$name($($argument),*) };
        assert_eq!(code, CUDA_SUCCESS, stringify!($name));
    }};
}

/// The primary context of a device, retained once more.
pub(super) fn primary(ordinal: i32) -> Context {
    let mut context = ptr::null_mut();
    cu!(cuDevicePrimaryCtxRetain(&mut context, ordinal));
    Context((context.addr() as u64).try_into().expect("not NULL"))
}

/// Destroys the primary context with its streams, events and memory.
pub(super) fn reset(ordinal: i32) {
    cu!(cuDevicePrimaryCtxReset_v2(ordinal));
}

/// A stream of the current context.
pub(super) fn stream(is_blocking: bool) -> Stream {
    let mut stream = ptr::null_mut();
    cu!(cuStreamCreate(&mut stream, u32::from(!is_blocking)));
    Stream::from_raw(stream.addr() as u64)
}

fn raw(stream: Stream) -> sys::CUstream {
    ptr::without_provenance_mut(stream.raw() as usize)
}

pub(super) fn destroy(stream: Stream) {
    cu!(cuStreamDestroy_v2(raw(stream)));
}

/// Destroys a stream that may be gone already.
pub(super) fn destroy_if_alive(stream: Stream) {
    // SAFETY: the simulator answers INVALID_HANDLE to a handle that is gone.
    let _ = unsafe { sys::cuStreamDestroy_v2(raw(stream)) };
}

/// Begins a capture in the thread's own mode.
pub(super) fn begin_capture(stream: Stream) {
    let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    cu!(cuStreamBeginCapture_v2(raw(stream), mode));
}

/// Ends a capture, which only succeeds where nothing has broken it.
pub(super) fn end_capture(stream: Stream) {
    let mut graph = ptr::null_mut();
    cu!(cuStreamEndCapture(raw(stream), &mut graph));
    assert!(!graph.is_null(), "the capture is alive");
    cu!(cuGraphDestroy(graph));
}

/// Managed memory of the current context.
pub(super) fn managed(nbytes: usize) -> u64 {
    let mut pointer = 0;
    cu!(cuMemAllocManaged(&mut pointer, nbytes, 1));
    pointer
}

/// Pinned memory of the current context.
pub(super) fn pinned(nbytes: usize) -> u64 {
    let mut pointer = ptr::null_mut::<c_void>();
    cu!(cuMemHostAlloc(&mut pointer, nbytes, 0));
    pointer.addr() as u64
}

/// Memory as it is now, whatever streams have still to do.
pub(super) fn peek<const N: usize>(address: u64) -> [u8; N] {
    let mut bytes = [0; N];
    assert_eq!(sim_peek(address, bytes.as_mut_ptr(), N as u64), 0);
    bytes
}

/// Writes memory now, past all streams.
pub(super) fn poke(address: u64, bytes: &[u8]) {
    assert_eq!(sim_poke(address, bytes.as_ptr(), bytes.len() as u64), 0);
}

/// Enqueues a kernel that writes `bytes`.
pub(super) fn store(stream: Stream, address: u64, bytes: &[u8]) {
    assert_eq!(
        sim_store(stream.raw(), address, bytes.as_ptr(), bytes.len() as u64),
        0
    );
}

pub(super) fn set(name: &CStr, value: u64) {
    assert_eq!(sim_set(name.as_ptr(), value), 0);
}

pub(super) fn fault(name: &CStr, nth: u64, code: u32) {
    assert_eq!(sim_fault(name.as_ptr(), nth, code), 0);
}

/// Runs `program` once for every order in which its queues may legally be worked through when
/// somebody waits, and with `eagerly` also before any call of the driver (which are many orders);
/// what came of each run.
pub(super) fn in_every_order<T>(eagerly: bool, mut program: impl FnMut() -> T) -> Vec<T> {
    let schedule = sim_get(c"schedule".as_ptr());
    set(c"schedule", 1);
    let mut results = Vec::new();
    let mut next = Some(Vec::new());
    while let Some(prefix) = next {
        let (choices, count) = (prefix.as_ptr(), prefix.len() as u64);
        assert_eq!(sim_order_begin(choices, count, u32::from(eagerly)), 0);
        results.push(program());
        next = advance(end_order());
    }
    set(c"schedule", schedule);
    results
}

/// The choices of the run that ends here, each with the number of its options.
fn end_order() -> Vec<(u32, u32)> {
    const CAPACITY: usize = 256;
    let (mut choices, mut options) = ([0; CAPACITY], [0; CAPACITY]);
    let count = sim_order_end(choices.as_mut_ptr(), options.as_mut_ptr(), CAPACITY as u64);
    assert!(
        count <= CAPACITY as u64,
        "a longer program than this was made for"
    );
    choices
        .into_iter()
        .zip(options)
        .take(count as usize)
        .collect()
}

/// The next sequence of choices in lexical order; `None` after the last.
fn advance(mut taken: Vec<(u32, u32)>) -> Option<Vec<u32>> {
    while taken
        .pop_if(|(choice, options)| *choice + 1 == *options)
        .is_some()
    {}
    taken.last_mut()?.0 += 1;
    Some(taken.into_iter().map(|(choice, _)| choice).collect())
}

/// The calls since the last clear, as the simulator prints them.
pub(super) fn calls() -> Vec<String> {
    let mut text = vec![0_u8; sim_log_text(ptr::null_mut(), 0) as usize];
    sim_log_text(text.as_mut_ptr().cast(), text.len() as u64);
    let text = CStr::from_bytes_until_nul(&text).expect("a final NUL");
    text.to_str()
        .expect("ASCII")
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The names of the calls since the last clear.
pub(super) fn names() -> Vec<String> {
    let name = |call: &String| call.split('(').next().unwrap_or_default().to_owned();
    calls().iter().map(name).collect()
}

/// The driver, which must be the simulator.
pub(super) fn simulator() -> &'static dyn Driver {
    let driver = crate::driver::driver().expect("the simulated driver");
    assert_eq!(sim_abi(), 1);
    driver
}

/// Memory of the current device's pool, usable on `stream`.
pub(super) fn pooled(nbytes: usize, stream: Stream) -> u64 {
    let mut pointer = 0;
    cu!(cuMemAllocAsync(
        &mut pointer,
        nbytes,
        ptr::with_exposed_provenance_mut(stream.raw() as usize)
    ));
    pointer
}
