//! `sim_*`: the call log, faults, counts, the GIL watch. C prototypes are in `cusim.h`.

use std::ffi::c_char;

use crate::abi::arguments::{Out, Text, put_text};
use crate::abi::codes::Code;
use crate::entry::{fault, gil, log};
use crate::process::{life, python};
use crate::state::world::lock;

/// The version of this C interface; its presence tells a simulator from a driver.
const ABI: u32 = 1;

#[unsafe(no_mangle)]
extern "C" fn sim_abi() -> u32 {
    ABI
}

/// Calls of a function since the log was cleared; of all functions for a null name.
#[unsafe(no_mangle)]
extern "C" fn sim_count(name: Text) -> u64 {
    if life::is_forked() {
        0
    } else {
        log::count(name.text().ok())
    }
}

#[unsafe(no_mangle)]
extern "C" fn sim_log_clear() {
    log::clear();
}

/// The log as text, a line for each call; answers the bytes needed, the final NUL included.
#[unsafe(no_mangle)]
extern "C" fn sim_log_text(text: Out<c_char>, capacity: u64) -> u64 {
    let lines: Vec<String> = log::entries().iter().map(log::Entry::text).collect();
    give_text(text, capacity, &lines.join("\n"))
}

/// What cuGetProcAddress was asked: lines of name, version, flags, found (1) or not (0).
#[unsafe(no_mangle)]
extern "C" fn sim_lookups_text(text: Out<c_char>, capacity: u64) -> u64 {
    give_text(text, capacity, &log::lookups())
}

fn give_text(out: Out<c_char>, capacity: u64, text: &str) -> u64 {
    put_text(out, usize::try_from(capacity).unwrap_or(usize::MAX), text);
    text.len() as u64 + 1
}

/// The `nth` call of a function from now answers `code` and does nothing else; 1 is the next call. A
/// `code` of 0 is a lie: the call claims success.
#[unsafe(no_mangle)]
extern "C" fn sim_fault(name: Text, nth: u64, code: u32) -> u32 {
    match name.text() {
        Ok(name) => fault::inject(name, nth, Code(code)),
        Err(_) => return Code::INVALID_VALUE.0,
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn sim_fault_clear() {
    fault::clear();
}

/// Injected faults that have not happened yet.
#[unsafe(no_mangle)]
extern "C" fn sim_fault_pending() -> u64 {
    fault::pending() as u64
}

/// Ranges of memory of any kind, registered ones included.
#[unsafe(no_mangle)]
extern "C" fn sim_live_allocations() -> u64 {
    lock().memory.live_count() as u64
}

#[unsafe(no_mangle)]
extern "C" fn sim_live_streams() -> u64 {
    lock().streams.len() as u64
}

#[unsafe(no_mangle)]
extern "C" fn sim_live_events() -> u64 {
    lock().events.len() as u64
}

#[unsafe(no_mangle)]
extern "C" fn sim_live_contexts() -> u64 {
    lock().contexts.len() as u64
}

/// Pieces of work that have not been done.
#[unsafe(no_mangle)]
extern "C" fn sim_pending_work() -> u64 {
    lock()
        .queues
        .values()
        .map(|queue| queue.enqueued - queue.done)
        .sum()
}

/// Watches calls that enqueue, create, destroy or wait for being made with the GIL held; with
/// `names` (separated by commas), only those functions. Clears what was noted. 0: off.
#[unsafe(no_mangle)]
extern "C" fn sim_gil_watch(on: u32, names: Text) {
    let names = names.text().unwrap_or("");
    gil::watch(
        on != 0,
        names
            .split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    );
}

/// How many watched calls were made with the GIL held.
#[unsafe(no_mangle)]
extern "C" fn sim_gil_count() -> u64 {
    gil::violations().len() as u64
}

/// Their names, a line each; answers the bytes needed.
#[unsafe(no_mangle)]
extern "C" fn sim_gil_text(text: Out<c_char>, capacity: u64) -> u64 {
    give_text(text, capacity, &gil::violations().join("\n"))
}

/// 1 if the calling thread holds the GIL of a Python in this process.
#[unsafe(no_mangle)]
extern "C" fn sim_gil_held() -> u32 {
    u32::from(python::holds_gil())
}
