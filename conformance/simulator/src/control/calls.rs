//! `sim_*`: the call log, faults, counts, the GIL watch. C prototypes are in `cusim.h`.

use std::ffi::c_char;

use crate::abi::arguments::{Out, Text, put_text};
use crate::abi::codes::Code;
use crate::entry::fault::{self, By};
use crate::entry::{gil, log};
use crate::process::{life, python};
use crate::state::world::lock;

/// The version of this C interface; its presence tells a simulator from a driver.
const ABI: u32 = 1;

#[unsafe(no_mangle)]
extern "C" fn sim_abi() -> u32 {
    ABI
}

/// Counts the calls of a function since the log was cleared; of all functions for a null name.
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

/// Writes the log as text, a line for each call; returns the bytes needed, the final NUL included.
#[unsafe(no_mangle)]
extern "C" fn sim_log_text(text: Out<c_char>, capacity: u64) -> u64 {
    let lines: Vec<String> = log::entries().iter().map(log::Entry::text).collect();
    give_text(text, capacity, &lines.join("\n"))
}

/// Writes the calls of cuGetProcAddress: lines of name, version, flags, found (1) or not (0).
#[unsafe(no_mangle)]
extern "C" fn sim_lookups_text(text: Out<c_char>, capacity: u64) -> u64 {
    give_text(text, capacity, &log::lookups())
}

fn give_text(out: Out<c_char>, capacity: u64, text: &str) -> u64 {
    put_text(out, usize::try_from(capacity).unwrap_or(usize::MAX), text);
    text.len() as u64 + 1
}

/// Makes the `nth` call of a function from now return `code` and do nothing else; 1 is the next
/// call. With a `code` of 0 it claims success.
#[unsafe(no_mangle)]
extern "C" fn sim_fault(name: Text, nth: u64, code: u32) -> u32 {
    sim_fault_by(name, nth, code, 0)
}

/// Like `sim_fault`, for the calls of all threads (`by` 0), of this one (1) or of the others (2).
#[unsafe(no_mangle)]
extern "C" fn sim_fault_by(name: Text, nth: u64, code: u32, by: u32) -> u32 {
    let by = match by {
        0 => By::Any,
        1 => By::This,
        2 => By::Other,
        _ => return Code::INVALID_VALUE.0,
    };
    match name.text() {
        Ok(name) => fault::inject(name, nth, Code(code), by),
        Err(_) => return Code::INVALID_VALUE.0,
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn sim_fault_clear() {
    fault::clear();
}

/// Counts the injected faults that have not happened yet.
#[unsafe(no_mangle)]
extern "C" fn sim_fault_pending() -> u64 {
    fault::pending() as u64
}

/// Counts the ranges of memory of any kind, registered ones included.
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

/// Counts the pieces of work that are not done, over all streams.
#[unsafe(no_mangle)]
extern "C" fn sim_pending_work() -> u64 {
    lock()
        .queues
        .values()
        .map(|queue| queue.enqueued - queue.done)
        .sum()
}

/// Switches the GIL watch on or (0) off, and clears it. It notes calls that enqueue, create, destroy
/// or wait with the GIL held; with `names` (separated by commas), calls of those functions only; `*` stands for
/// every function.
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

/// Counts the watched calls that were made with the GIL held.
#[unsafe(no_mangle)]
extern "C" fn sim_gil_count() -> u64 {
    gil::violations().len() as u64
}

/// Writes their names, a line each; returns the bytes needed.
#[unsafe(no_mangle)]
extern "C" fn sim_gil_text(text: Out<c_char>, capacity: u64) -> u64 {
    give_text(text, capacity, &gil::violations().join("\n"))
}

/// Returns 1 if the calling thread holds the GIL of a Python in this process.
#[unsafe(no_mangle)]
extern "C" fn sim_gil_held() -> u32 {
    u32::from(python::holds_gil())
}
