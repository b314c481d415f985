//! memset: a pattern of 1, 2 or 4 bytes over a range.
//!
//! "Asynchronous with respect to the host except when the target is pinned host memory or a
//! unified memory region, in which case it is fully synchronous" (API documentation, the calls
//! without `Async`); the `Async` ones never wait.

use crate::abi::arguments::{DeviceAddress, StreamHandle, Word};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::memory::fill::Fill;
use crate::memory::place::Side;
use crate::state::work::Work;
use crate::state::world::lock;
use crate::submit::forbid;
use crate::submit::route::{submit, wait_for_tail};
use crate::submit::target::Target;

exports! {
    Wait 3020 cuMemsetD8_v2(dst: DeviceAddress, value: u8, count: usize) = fill, per_thread "_ptds";
    Wait 3020 cuMemsetD16_v2(dst: DeviceAddress, value: u16, count: usize) = fill, per_thread "_ptds";
    Wait 3020 cuMemsetD32_v2(dst: DeviceAddress, value: u32, count: usize) = fill, per_thread "_ptds";
    Enqueue 3020 cuMemsetD8Async(dst: DeviceAddress, value: u8, count: usize, stream: StreamHandle) = fill_async, per_thread "_ptsz";
    Enqueue 3020 cuMemsetD16Async(dst: DeviceAddress, value: u16, count: usize, stream: StreamHandle) = fill_async, per_thread "_ptsz";
    Enqueue 3020 cuMemsetD32Async(dst: DeviceAddress, value: u32, count: usize, stream: StreamHandle) = fill_async, per_thread "_ptsz";
}

fn fill(call: &Call, dst: u64, value: impl Word, count: usize) -> Status {
    run(call, dst, value, count, None)
}

fn fill_async(
    call: &Call,
    dst: u64,
    value: impl Word,
    count: usize,
    stream: StreamHandle,
) -> Status {
    run(call, dst, value, count, Some(stream))
}

/// Runs a memset: on the default stream and synchronously if no stream is given.
fn run(
    call: &Call,
    dst: u64,
    value: impl Word,
    count: usize,
    stream: Option<StreamHandle>,
) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream.unwrap_or(StreamHandle::NULL))?;
    if stream.is_none() {
        forbid::uncaptured(&mut world, &target)?;
    }
    let unit = size_of_val(&value);
    let bytes = count.checked_mul(unit).ok_or(Code::INVALID_VALUE)?;
    if !dst.is_multiple_of(unit as u64) {
        return Err(Code::INVALID_VALUE);
    }
    if count == 0 {
        return Ok(());
    }
    let dst = world.memory.device_place(dst, bytes)?;
    target.reaches(&world, &dst)?;
    let side = world.memory.side(&dst);
    let fill = Fill {
        dst,
        // Device memory is little-endian: the first `unit` bytes are the value.
        pattern: value.word().to_le_bytes(),
        unit,
        count,
    };
    world = submit(world, &target, Work::Fill(fill))?;
    if stream.is_none() && matches!(side, Side::Pinned | Side::Managed) {
        world = wait_for_tail(world, &target);
    }
    world.context(target.context).map(drop)
}
