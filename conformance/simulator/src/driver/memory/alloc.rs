//! Device and managed memory: cuMemAlloc, cuMemFree, cuMemAllocManaged, ranges, sizes.

use crate::abi::arguments::{DeviceAddress, Out, StreamHandle};
use crate::abi::codes::{Code, Status};
use crate::driver::memory::range;
use crate::entry::enter::{Call, exports};
use crate::memory::ranges::Kind;
use crate::state::world::{World, lock};
use crate::submit::target::Target;

exports! {
    Create 3020 cuMemAlloc_v2(address: Out<DeviceAddress>, bytes: usize) = alloc;
    Create 3020 cuMemAllocPitch_v2(address: Out<DeviceAddress>, pitch: Out<usize>, width: usize, height: usize, element: u32) = alloc_pitch;
    Create 6000 cuMemAllocManaged(address: Out<DeviceAddress>, bytes: usize, flags: u32) = alloc_managed;
    Destroy 3020 cuMemFree_v2(address: DeviceAddress) = free;
    Query 3020 cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) = info;
    Query 3020 cuMemGetAddressRange_v2(base: Out<DeviceAddress>, bytes: Out<usize>, address: DeviceAddress) = address_range;
    Enqueue 8000 cuMemPrefetchAsync(address: DeviceAddress, bytes: usize, device: i32, stream: StreamHandle) = prefetch, per_thread "_ptsz";
    Enqueue 12020 cuMemPrefetchAsync_v2(address: DeviceAddress, bytes: usize, location: u64, flags: u32, stream: StreamHandle) = prefetch_v2, per_thread "_ptsz";
    Context 8000 cuMemAdvise(address: DeviceAddress, bytes: usize, advice: u32, device: i32) = advise;
    Context 12020 cuMemAdvise_v2(address: DeviceAddress, bytes: usize, advice: u32, location: u64) = advise_v2;
}

/// Rows of a pitched allocation start at multiples of this.
const PITCH: usize = 512;

fn alloc(_: &Call, address: Out<u64>, bytes: usize) -> Status {
    address.check()?;
    address.put(range::create(bytes, Kind::Device)?)
}

fn alloc_pitch(
    call: &Call,
    address: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Status {
    if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let row = width
        .checked_next_multiple_of(PITCH)
        .ok_or(Code::INVALID_VALUE)?;
    alloc(
        call,
        address,
        row.checked_mul(height).ok_or(Code::INVALID_VALUE)?,
    )?;
    pitch.put(row)
}

/// Allocates managed memory: flags are 1 (global) or 2 (host).
fn alloc_managed(_: &Call, address: Out<u64>, bytes: usize, flags: u32) -> Status {
    address.check()?;
    if !matches!(flags, 1 | 2) {
        return Err(Code::INVALID_VALUE);
    }
    address.put(range::create(bytes, Kind::Managed)?)
}

/// Frees memory of cuMemAlloc, cuMemAllocManaged or a pool, after the work of the memory's context is
/// done: "this API may perform implicit synchronization", and drivers do.
/// A null pointer is fine. Anything but the base of a range is INVALID_VALUE, and so is memory that
/// cuIpcOpenMemHandle has opened: cuIpcCloseMemHandle closes it.
fn free(_: &Call, address: u64) -> Status {
    let (world, _) = range::begin()?;
    if address == 0 {
        return Ok(());
    }
    range::free(
        world,
        address,
        |range| !range.is_host() && range.kind != Kind::Opened,
        Code::INVALID_VALUE,
    )
}

fn info(_: &Call, free: Out<usize>, total: Out<usize>) -> Status {
    let world = lock();
    let context = world.current()?;
    let device = world.context(context)?.device;
    let all = world.settings.device_memory;
    free.put(all.saturating_sub(world.memory.used_on(device)) as usize)?;
    total.put(all as usize)
}

/// Gives the range of an address. Both outputs may be null; an address in no range is NOT_FOUND.
fn address_range(_: &Call, base: Out<u64>, bytes: Out<usize>, address: u64) -> Status {
    let world = lock();
    world.current()?;
    let range = world.memory.find(address).ok_or(Code::NOT_FOUND)?;
    base.put_if_wanted(range.base);
    bytes.put_if_wanted(range.bytes);
    Ok(())
}

/// Checks the arguments only: there is nowhere to move the memory.
fn prefetch(call: &Call, address: u64, bytes: usize, _device: i32, stream: StreamHandle) -> Status {
    let mut world = lock();
    Target::resolve(&mut world, call, stream)?;
    managed_range(&world, address, bytes)
}

/// Ignores the location (type and id, two 32-bit fields in one register).
fn prefetch_v2(
    call: &Call,
    address: u64,
    bytes: usize,
    _location: u64,
    flags: u32,
    stream: StreamHandle,
) -> Status {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    prefetch(call, address, bytes, 0, stream)
}

fn advise_v2(call: &Call, address: u64, bytes: usize, advice: u32, _location: u64) -> Status {
    advise(call, address, bytes, advice, 0)
}

/// Checks the arguments only: advice has no effect.
fn advise(_: &Call, address: u64, bytes: usize, _advice: u32, _device: i32) -> Status {
    let world = lock();
    world.current()?;
    managed_range(&world, address, bytes)
}

fn managed_range(world: &World, address: u64, bytes: usize) -> Status {
    let range = world
        .memory
        .find(address)
        .filter(|range| range.kind == Kind::Managed);
    let range = range.ok_or(Code::INVALID_VALUE)?;
    let offset = (address - range.base) as usize;
    if bytes == 0 || bytes > range.bytes - offset {
        Err(Code::INVALID_VALUE)
    } else {
        Ok(())
    }
}
