//! Four threads on two devices through the exported functions, in one process with the workers: for
//! the thread sanitizer (`make soak PARTS=tsan`), which instruments this test binary only.

use std::ptr;

type Handle = *mut u8;

// As a C program declares them; the linker finds this library's own.
unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> u32;
    fn cuDevicePrimaryCtxRelease_v2(device: i32) -> u32;
    fn cuCtxSetCurrent(context: Handle) -> u32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemFree_v2(address: u64) -> u32;
    fn cuStreamCreate(stream: *mut Handle, flags: u32) -> u32;
    fn cuStreamDestroy_v2(stream: Handle) -> u32;
    fn cuStreamSynchronize(stream: Handle) -> u32;
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) -> u32;
    fn cuEventCreate(event: *mut Handle, flags: u32) -> u32;
    fn cuEventRecord(event: Handle, stream: Handle) -> u32;
    fn cuEventDestroy_v2(event: Handle) -> u32;
    fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: Handle) -> u32;
    fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: Handle) -> u32;
    fn cuMemcpyDtoH_v2(target: *mut u8, source: u64, bytes: usize) -> u32;
    fn cuLaunchHostFunc(stream: Handle, function: extern "C" fn(*mut u8), data: *mut u8) -> u32;
}

const NON_BLOCKING: u32 = 1;
const BYTES: usize = 256;
const ROUNDS: u8 = 100;

macro_rules! ok {
    ($call:expr) => {
        // SAFETY: each function has the C prototype declared above; pointers are to live locals,
        // handles and addresses are those that this thread got and has not given back.
        assert_eq!(unsafe { $call }, 0, stringify!($call))
    };
}

extern "C" fn count(data: *mut u8) {
    // SAFETY: `data` is the counter of the thread that enqueued this. It lives until that thread
    // has waited for the stream, and nothing else touches it meanwhile: the thread reads it after
    // the wait, and one stream runs its functions one at a time.
    unsafe { *data += 1 };
}

/// Writes on one stream, copies on another one that waits for it, and checks the bytes.
fn work(device: i32) {
    let (mut context, mut event) = (ptr::null_mut(), ptr::null_mut());
    let (mut writer, mut reader) = (ptr::null_mut(), ptr::null_mut());
    let (mut source, mut target, mut called) = (0, 0, 0);
    ok!(cuDevicePrimaryCtxRetain(&mut context, device));
    ok!(cuCtxSetCurrent(context));
    ok!(cuStreamCreate(&mut writer, NON_BLOCKING));
    ok!(cuStreamCreate(&mut reader, NON_BLOCKING));
    ok!(cuEventCreate(&mut event, 0));
    ok!(cuMemAlloc_v2(&mut source, BYTES));
    ok!(cuMemAlloc_v2(&mut target, BYTES));
    for round in 1..=ROUNDS {
        ok!(cuMemsetD8Async(source, round, BYTES, writer));
        ok!(cuEventRecord(event, writer));
        ok!(cuStreamWaitEvent(reader, event, 0));
        ok!(cuMemcpyDtoDAsync_v2(target, source, BYTES, reader));
        ok!(cuLaunchHostFunc(reader, count, &raw mut called));
        ok!(cuStreamSynchronize(reader));
        let mut seen = [0; BYTES];
        ok!(cuMemcpyDtoH_v2(seen.as_mut_ptr(), target, BYTES));
        assert_eq!((seen, called), ([round; BYTES], round));
    }
    ok!(cuMemFree_v2(source));
    ok!(cuMemFree_v2(target));
    ok!(cuEventDestroy_v2(event));
    ok!(cuStreamDestroy_v2(writer));
    ok!(cuStreamDestroy_v2(reader));
    ok!(cuDevicePrimaryCtxRelease_v2(device));
}

#[test]
fn threads_on_two_devices_read_what_was_written() {
    ok!(cuInit(0));
    let threads: Vec<_> = [0, 1, 0, 1]
        .into_iter()
        .map(|device| std::thread::spawn(move || work(device)))
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
}
