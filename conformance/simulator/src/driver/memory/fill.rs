//! memset: a pattern of 1, 2 or 4 bytes over a range.
//!
//! "Asynchronous with respect to the host except when the target is pinned host memory or a
//! unified memory region, in which case it is fully synchronous" (API documentation, the calls
//! without `Async`); the `Async` ones never wait.

use std::ptr;

use crate::abi::arguments::{DeviceAddress, StreamHandle};
use crate::abi::codes::{Answer, Code};
use crate::driver::capture;
use crate::driver::stream::{Target, submit};
use crate::entry::enter::{Call, exports};
use crate::memory::place::{Place, Side};
use crate::memory::ranges::Memory;
use crate::run::schedule::{self, Goal};
use crate::state::work::{Task, Work};
use crate::state::world::lock;

exports! {
    Wait 3020 cuMemsetD8_v2(dst: DeviceAddress, value: u8, count: usize) = bytes, per_thread "_ptds";
    Wait 3020 cuMemsetD16_v2(dst: DeviceAddress, value: u16, count: usize) = shorts, per_thread "_ptds";
    Wait 3020 cuMemsetD32_v2(dst: DeviceAddress, value: u32, count: usize) = words, per_thread "_ptds";
    Enqueue 3020 cuMemsetD8Async(dst: DeviceAddress, value: u8, count: usize, stream: StreamHandle) = bytes_async, per_thread "_ptsz";
    Enqueue 3020 cuMemsetD16Async(dst: DeviceAddress, value: u16, count: usize, stream: StreamHandle) = shorts_async, per_thread "_ptsz";
    Enqueue 3020 cuMemsetD32Async(dst: DeviceAddress, value: u32, count: usize, stream: StreamHandle) = words_async, per_thread "_ptsz";
}

/// `count` times the first `unit` bytes of `pattern`.
#[derive(Clone)]
pub(crate) struct Fill {
    pub(crate) dst: Place,
    pub(crate) pattern: [u8; 4],
    pub(crate) unit: usize,
    pub(crate) count: usize,
}

impl Fill {
    pub(crate) fn prepare(&self, memory: &Memory) -> Result<Task, Code> {
        let span = memory.span(&self.dst)?;
        let (pattern, unit, count) = (self.pattern, self.unit, self.count);
        Ok(Task::Memory(Box::new(move || {
            let first = ptr::with_exposed_provenance_mut::<u8>(span.address());
            for index in 0..unit * count {
                let slot = first.wrapping_add(index);
                // SAFETY: the place was checked to hold `unit * count` bytes and the span keeps
                // them mapped.
                unsafe { slot.write(pattern[index % unit]) };
            }
        })))
    }
}

fn bytes(call: &Call, dst: u64, value: u8, count: usize) -> Answer {
    run(
        call,
        dst,
        &value.to_ne_bytes(),
        count,
        StreamHandle::NULL,
        true,
    )
}

fn shorts(call: &Call, dst: u64, value: u16, count: usize) -> Answer {
    run(
        call,
        dst,
        &value.to_ne_bytes(),
        count,
        StreamHandle::NULL,
        true,
    )
}

fn words(call: &Call, dst: u64, value: u32, count: usize) -> Answer {
    run(
        call,
        dst,
        &value.to_ne_bytes(),
        count,
        StreamHandle::NULL,
        true,
    )
}

fn bytes_async(call: &Call, dst: u64, value: u8, count: usize, stream: StreamHandle) -> Answer {
    run(call, dst, &value.to_ne_bytes(), count, stream, false)
}

fn shorts_async(call: &Call, dst: u64, value: u16, count: usize, stream: StreamHandle) -> Answer {
    run(call, dst, &value.to_ne_bytes(), count, stream, false)
}

fn words_async(call: &Call, dst: u64, value: u32, count: usize, stream: StreamHandle) -> Answer {
    run(call, dst, &value.to_ne_bytes(), count, stream, false)
}

fn run(
    call: &Call,
    dst: u64,
    value: &[u8],
    count: usize,
    stream: StreamHandle,
    synchronous: bool,
) -> Answer {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    if synchronous {
        capture::forbid_blocking_call(&mut world, &target)?;
    }
    let unit = value.len();
    let bytes = count.checked_mul(unit).ok_or(Code::INVALID_VALUE)?;
    if !dst.is_multiple_of(unit as u64) {
        return Err(Code::INVALID_VALUE);
    }
    if count == 0 {
        return Ok(());
    }
    let place = world.memory.device_place(dst, bytes)?;
    let waits = synchronous && matches!(world.memory.side(&place), Side::Pinned | Side::Managed);
    let mut pattern = [0u8; 4];
    pattern[..unit].copy_from_slice(value);
    world = submit(
        world,
        &target,
        Vec::new(),
        Work::Fill(Fill {
            dst: place,
            pattern,
            unit,
            count,
        }),
    )?;
    if waits {
        let tail = world.tail(target.queue);
        world = schedule::wait(world, &Goal::Marks(vec![tail]));
    }
    world.context(target.context).map(drop)
}
