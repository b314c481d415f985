//! `sim_*` calls that put work on a stream, or look at memory past all streams.
//!
//! Streams are the driver's handles, of the calling thread's current context. These calls are not
//! in the call log.

use std::sync::Arc;
use std::time::Duration;

use crate::abi::arguments::{HostAddress, In, Out, StreamHandle, Text};
use crate::abi::codes::{Code, Status, to_c};
use crate::entry::enter::Call;
use crate::memory::bytes;
use crate::memory::kernel::{Element, Kernel};
use crate::process::host_function;
use crate::state::work::Work;
use crate::state::world::{World, announce, lock};
use crate::submit::route::submit;
use crate::submit::target::Target;

const CALL: Call = Call { per_thread: false };

/// Stops the stream here until `sim_open`. Returns the gate's number, 0 on failure.
#[unsafe(no_mangle)]
extern "C" fn sim_gate(stream: StreamHandle) -> u64 {
    let mut world = lock();
    let number = world.fresh_number();
    world.gates.insert(number, false);
    drop(world);
    match enqueue(stream, |_| Ok(Work::Gate(number))) {
        Ok(()) => number,
        Err(_) => 0,
    }
}

/// Opens a gate.
#[unsafe(no_mangle)]
extern "C" fn sim_open(gate: u64) -> u32 {
    let opened = lock().gates.insert(gate, true);
    announce();
    if opened.is_some() {
        0
    } else {
        Code::INVALID_VALUE.0
    }
}

/// Opens every gate: for a test that ends early, so that no call waits for its streams without end.
#[unsafe(no_mangle)]
extern "C" fn sim_open_all() {
    for open in lock().gates.values_mut() {
        *open = true;
    }
    announce();
}

/// Stops all host functions that have not begun; they count as done. For the end of an interpreter,
/// whose functions they may be.
#[unsafe(no_mangle)]
extern "C" fn sim_end_host_functions() {
    host_function::end_all();
}

/// Enqueues a delay. Prefer gates: a time proves little on a busy machine.
#[unsafe(no_mangle)]
extern "C" fn sim_delay(stream: StreamHandle, microseconds: u64) -> u32 {
    to_c(enqueue(stream, |_| {
        Ok(Work::Delay(Duration::from_micros(microseconds)))
    }))
}

/// Enqueues a kernel that writes `bytes` bytes, which are read from `data` now.
#[unsafe(no_mangle)]
extern "C" fn sim_store(stream: StreamHandle, address: u64, data: In<u8>, bytes: u64) -> u32 {
    to_c(enqueue(stream, |world| {
        let count = usize::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
        let copied: Result<Vec<u8>, Code> = (0..count).map(|index| data.get_at(index)).collect();
        let dst = world.memory.device_place(address, count)?;
        Ok(Work::Kernel(Kernel::Store {
            dst,
            bytes: Arc::from(copied?),
        }))
    }))
}

/// Enqueues a kernel that sums `count` elements (`u1`, `i4`, `i8`, `f4`, `f8`) into one i64 or f64.
#[unsafe(no_mangle)]
extern "C" fn sim_sum(
    stream: StreamHandle,
    result: u64,
    source: u64,
    count: u64,
    element: Text,
) -> u32 {
    to_c(enqueue(stream, |world| {
        let element = Element::from_name(element.text()?).ok_or(Code::INVALID_VALUE)?;
        let count = usize::try_from(count).map_err(|_| Code::INVALID_VALUE)?;
        let bytes = count
            .checked_mul(element.bytes())
            .ok_or(Code::INVALID_VALUE)?;
        let dst = world.memory.device_place(result, 8)?;
        let src = world.memory.device_place(source, bytes)?;
        Ok(Work::Kernel(Kernel::Sum {
            dst,
            src,
            count,
            element,
        }))
    }))
}

fn enqueue(stream: StreamHandle, work: impl FnOnce(&World) -> Result<Work, Code>) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, &CALL, stream)?;
    let work = work(&world)?;
    submit(world, &target, work).map(drop)
}

/// Reads memory as it is now, past all streams. Needs no context.
#[unsafe(no_mangle)]
extern "C" fn sim_peek(address: u64, into: HostAddress, bytes: u64) -> u32 {
    to_c(at(address, bytes, |place| {
        bytes::write(into.0, &bytes::read(place, bytes as usize))
    }))
}

/// Writes memory now, past all streams.
#[unsafe(no_mangle)]
extern "C" fn sim_poke(address: u64, from: HostAddress, bytes: u64) -> u32 {
    to_c(at(address, bytes, |place| {
        bytes::write(place, &bytes::read(from.0, bytes as usize))
    }))
}

fn at(address: u64, bytes: u64, act: impl FnOnce(usize)) -> Status {
    let world = lock();
    let count = usize::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
    let place = world.memory.device_place(address, count)?;
    let span = world.memory.span(&place)?;
    act(span.address());
    Ok(())
}

/// Gives the current context a sticky error, as if work had failed with it.
#[unsafe(no_mangle)]
extern "C" fn sim_poison(code: u32) -> u32 {
    let mut world = lock();
    match world.current() {
        Ok(context) => {
            world.poison(context, Code(code));
            0
        }
        Err(code) => code.0,
    }
}

/// Gives the number of pieces of work on a stream, for tests of the launch queue.
#[unsafe(no_mangle)]
extern "C" fn sim_queue_length(stream: StreamHandle, length: Out<u64>) -> u32 {
    let mut world = lock();
    let target = match Target::resolve(&mut world, &CALL, stream) {
        Ok(target) => target,
        Err(code) => return code.0,
    };
    let pending = world
        .queues
        .get(&target.queue)
        .map_or(0, |queue| queue.pending.len());
    to_c(length.put(pending as u64))
}
