//! Memory pools and stream-ordered memory.
//!
//! The address is returned at once; the memory may be touched by work that runs after the
//! allocation and before the free. Work that finds it not alive is an illegal address, which is
//! stricter than hardware: there it would read or write bytes of other memory.

use crate::abi::arguments::{ContextHandle, DeviceAddress, In, Out, PoolHandle, StreamHandle};
use crate::abi::codes::{Code, Status};
use crate::driver::memory::range;
use crate::entry::enter::{Call, exports};
use crate::memory::ranges::Kind;
use crate::state::objects::Pool;
use crate::state::work::Work;
use crate::state::world::{World, lock};
use crate::submit::forbid;
use crate::submit::route::submit;
use crate::submit::target::Target;

exports! {
    Query 11020 cuDeviceGetDefaultMemPool(pool: Out<PoolHandle>, device: i32) = default_of;
    Query 11020 cuDeviceGetMemPool(pool: Out<PoolHandle>, device: i32) = current_of;
    Context 11020 cuDeviceSetMemPool(device: i32, pool: PoolHandle) = set_current;
    Create 11020 cuMemPoolCreate(pool: Out<PoolHandle>, properties: In<[u32; 4]>) = create;
    Destroy 11020 cuMemPoolDestroy(pool: PoolHandle) = destroy;
    Query 11020 cuMemPoolGetAttribute(pool: PoolHandle, attribute: u32, value: Out<u8>) = get_attribute;
    Context 11020 cuMemPoolSetAttribute(pool: PoolHandle, attribute: u32, value: Out<u8>) = set_attribute;
    Context 11020 cuMemPoolTrimTo(pool: PoolHandle, bytes: usize) = trim;
    Enqueue 11020 cuMemAllocAsync(address: Out<DeviceAddress>, bytes: usize, stream: StreamHandle) = alloc_async, per_thread "_ptsz";
    Enqueue 11020 cuMemAllocFromPoolAsync(address: Out<DeviceAddress>, bytes: usize, pool: PoolHandle, stream: StreamHandle) = alloc_from_pool, per_thread "_ptsz";
    Enqueue 11020 cuMemFreeAsync(address: DeviceAddress, stream: StreamHandle) = free_async, per_thread "_ptsz";
}

/// CUmemPool_attribute: 1 to 3 are 32-bit switches, 4 to 8 are 64-bit sizes.
const LAST_SWITCH: u32 = 3;
const RELEASE_THRESHOLD: u32 = 4;
const LAST: u32 = 8;

fn default_of(_: &Call, pool: Out<PoolHandle>, device: i32) -> Status {
    let world = lock();
    pool.put(world.device(device)?.default_pool)
}

fn current_of(_: &Call, pool: Out<PoolHandle>, device: i32) -> Status {
    let world = lock();
    pool.put(world.device(device)?.pool)
}

/// Sets the pool of cuMemAllocAsync; it must be of that device.
fn set_current(_: &Call, device: i32, pool: PoolHandle) -> Status {
    let mut world = lock();
    world.device(device)?;
    let owner = world.pools.get(pool)?.device;
    if owner != device as usize {
        return Err(Code::INVALID_DEVICE);
    }
    world.devices[owner].pool = pool;
    Ok(())
}

/// Makes a pool; only pinned memory (type 1) on a device (location type 1) is modelled.
fn create(_: &Call, pool: Out<PoolHandle>, properties: In<[u32; 4]>) -> Status {
    pool.check()?;
    let [kind, handles, location, device] = properties.get()?;
    if kind != 1 || handles != 0 || location != 1 {
        return Err(Code::NOT_SUPPORTED);
    }
    let mut world = lock();
    world.device(device as i32)?;
    let reuse = world.settings.reuse;
    pool.put(world.pools.insert(reuse, Pool::new(device as usize)))
}

/// Destroys a pool, and replaces it if it is the device's current one. A default pool cannot be
/// destroyed.
fn destroy(_: &Call, pool: PoolHandle) -> Status {
    let mut world = lock();
    let device = world.pools.get(pool)?.device;
    if world.devices[device].default_pool == pool {
        return Err(Code::INVALID_VALUE);
    }
    if world.devices[device].pool == pool {
        world.devices[device].pool = world.devices[device].default_pool;
    }
    world.pools.remove(pool).map(drop)
}

fn get_attribute(_: &Call, pool: PoolHandle, attribute: u32, value: Out<u8>) -> Status {
    value.check()?;
    let world = lock();
    let known = world.pools.get(pool)?;
    let kept = known.attributes.get(&attribute).copied().unwrap_or(0);
    match attribute {
        1..=LAST_SWITCH => value.cast::<u32>().put(kept as u32),
        RELEASE_THRESHOLD => value.cast::<u64>().put(kept),
        5..=LAST => value.cast::<u64>().put(world.memory.used_in_pool(pool)),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Sets an attribute: high-water marks (6 and 8) only back to 0, current sizes not at all.
fn set_attribute(_: &Call, pool: PoolHandle, attribute: u32, value: Out<u8>) -> Status {
    let given = match attribute {
        1..=LAST_SWITCH => u64::from(value.cast::<u32>().get()?),
        RELEASE_THRESHOLD => value.cast::<u64>().get()?,
        6 | 8 if value.cast::<u64>().get()? == 0 => 0,
        _ => return Err(Code::INVALID_VALUE),
    };
    let mut world = lock();
    let known = world.pools.get_mut(pool)?;
    known.attributes.insert(attribute, given);
    Ok(())
}

/// Checks the handle only: pools keep no free memory.
fn trim(_: &Call, pool: PoolHandle, _bytes: usize) -> Status {
    lock().pools.get(pool).map(drop)
}

fn alloc_async(call: &Call, address: Out<u64>, bytes: usize, stream: StreamHandle) -> Status {
    address.check()?;
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let device = world.context(target.context)?.device;
    let pool = world.devices[device].pool;
    drop(world);
    alloc_from_pool(call, address, bytes, pool, stream)
}

/// Allocates memory of a pool, which belongs to no context.
fn alloc_from_pool(
    call: &Call,
    address: Out<u64>,
    bytes: usize,
    pool: PoolHandle,
    stream: StreamHandle,
) -> Status {
    address.check()?;
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    forbid::allocation(&world, &target)?;
    let device = world.pools.get(pool)?.device;
    let base = range::create_on(
        &mut world,
        bytes,
        Kind::Pool(pool),
        ContextHandle::NULL,
        device,
    )?;
    let buffer = buffer_at(&world, base)?;
    let submitted = submit(world, &target, Work::Allocate(buffer));
    if let Err(code) = submitted {
        lock().memory.remove(base);
        return Err(code);
    }
    address.put(base)
}

fn buffer_at(world: &World, base: u64) -> Result<u64, Code> {
    world
        .memory
        .at_base(base)
        .map(|range| range.buffer)
        .ok_or(Code::INVALID_VALUE)
}

/// Frees in stream order; memory of cuMemAlloc may be freed this way too. Null is refused.
fn free_async(call: &Call, address: u64, stream: StreamHandle) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    forbid::allocation(&world, &target)?;
    world.current()?;
    let range = world
        .memory
        .at_base(address)
        .filter(|range| !range.is_host() && range.kind != Kind::Opened);
    let buffer = range.ok_or(Code::INVALID_VALUE)?.buffer;
    submit(world, &target, Work::Free(buffer)).map(drop)
}
