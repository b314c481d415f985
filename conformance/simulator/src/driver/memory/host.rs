//! Page-locked host memory: allocated (cuMemHostAlloc) and registered (cuMemHostRegister).
//!
//! Addresses are unified: the device address of such memory is its host address.

use crate::abi::arguments::{DeviceAddress, HostAddress, Out};
use crate::abi::codes::{Code, Status};
use crate::driver::memory::range;
use crate::entry::enter::{Call, exports};
use crate::memory::ranges::{Allocation, Kind, Life};
use crate::state::world::lock;

exports! {
    Create 3020 cuMemAllocHost_v2(address: Out<HostAddress>, bytes: usize) = alloc_plain;
    Create 2020 cuMemHostAlloc(address: Out<HostAddress>, bytes: usize, flags: u32) = alloc;
    Destroy 2000 cuMemFreeHost(address: HostAddress) = free;
    Query 3020 cuMemHostGetDevicePointer_v2(device: Out<DeviceAddress>, address: HostAddress, flags: u32) = device_pointer;
    Query 2030 cuMemHostGetFlags(flags: Out<u32>, address: HostAddress) = flags_of;
    Create 6050 cuMemHostRegister_v2(address: HostAddress, bytes: usize, flags: u32) = register;
    Destroy 4000 cuMemHostUnregister(address: HostAddress) = unregister;
}

/// Flags of cuMemHostAlloc: PORTABLE 1, DEVICEMAP 2, WRITECOMBINED 4.
const ALLOC_FLAGS: u32 = 7;
/// Flags of cuMemHostRegister: PORTABLE 1, DEVICEMAP 2, IOMEMORY 4 (not modelled), READ_ONLY 8.
const REGISTER_FLAGS: u32 = 1 | 2 | 8;
const IO_MEMORY: u32 = 4;
const DEVICE_MAP: u32 = 2;

fn alloc_plain(call: &Call, address: Out<HostAddress>, bytes: usize) -> Status {
    alloc(call, address, bytes, 0)
}

fn alloc(_: &Call, address: Out<HostAddress>, bytes: usize, flags: u32) -> Status {
    address.check()?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let base = range::create(bytes, Kind::Pinned(flags))?;
    address.put(HostAddress(base as usize))
}

/// Frees page-locked memory, after the work of its context is done, as cuMemFree does.
fn free(_: &Call, address: HostAddress) -> Status {
    let (world, _) = range::begin()?;
    let allocated = |range: &Allocation| matches!(range.kind, Kind::Pinned(_));
    range::free(world, address.0 as u64, allocated, Code::INVALID_VALUE)
}

fn device_pointer(_: &Call, device: Out<u64>, address: HostAddress, flags: u32) -> Status {
    device.check()?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let world = lock();
    world.current()?;
    let range = world
        .memory
        .find(address.0 as u64)
        .filter(|range| range.is_host());
    range.ok_or(Code::INVALID_VALUE)?;
    device.put(address.0 as u64)
}

/// Gives the flags, DEVICEMAP always among them: with unified addressing the device can reach all
/// page-locked memory.
fn flags_of(_: &Call, flags: Out<u32>, address: HostAddress) -> Status {
    flags.check()?;
    let world = lock();
    world.current()?;
    match world.memory.find(address.0 as u64).map(|range| range.kind) {
        Some(Kind::Pinned(given) | Kind::Registered(given)) => flags.put(given | DEVICE_MAP),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Registers a range; one that overlaps page-locked memory is refused.
fn register(_: &Call, address: HostAddress, bytes: usize, flags: u32) -> Status {
    if address.0 == 0 || bytes == 0 || flags & !(REGISTER_FLAGS | IO_MEMORY) != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if flags & IO_MEMORY != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let (mut world, context) = range::begin()?;
    let base = address.0 as u64;
    if world.memory.overlapping(base, bytes).is_some() {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let device = world.context(context)?.device;
    let buffer = world.fresh_number();
    world.memory.insert(Allocation {
        buffer,
        base,
        bytes,
        kind: Kind::Registered(flags),
        device,
        context,
        life: Life::Alive,
        backing: None,
        sync_memops: false,
        origin: None,
    });
    Ok(())
}

fn unregister(_: &Call, address: HostAddress) -> Status {
    let (world, _) = range::begin()?;
    let registered = |range: &Allocation| matches!(range.kind, Kind::Registered(_));
    let refusal = Code::HOST_MEMORY_NOT_REGISTERED;
    range::free(world, address.0 as u64, registered, refusal)
}
