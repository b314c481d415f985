//! Memory pools and stream-ordered memory.
//!
//! The address is returned at once; the memory may be touched by work that runs after the
//! allocation and before the free. Work that finds it not alive is an illegal address, which is
//! stricter than hardware: there it would read or write bytes of other memory.

use crate::abi::arguments::{
    ContextHandle, DeviceAddress, In, IpcHandle, Out, PoolHandle, StreamHandle,
};
use crate::abi::codes::{Code, Status};
use crate::driver::ipc::{exported, opened};
use crate::driver::memory::range;
use crate::entry::enter::{Call, exports};
use crate::memory::pool_file::PoolFile;
use crate::memory::ranges::{Kind, Origin};
use crate::process::token::{Names, Token};
use crate::state::objects::{POSIX_FILE_DESCRIPTOR, Pool};
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
    Context 11020 cuMemPoolSetAccess(pool: PoolHandle, wanted: In<[u32; 3]>, count: usize) = set_access;
    Query 11020 cuMemPoolGetAccess(flags: Out<u32>, pool: PoolHandle, location: In<[u32; 2]>) = get_access;
    Context 11020 cuMemPoolTrimTo(pool: PoolHandle, bytes: usize) = trim;
    Enqueue 11020 cuMemAllocAsync(address: Out<DeviceAddress>, bytes: usize, stream: StreamHandle) = alloc_async, per_thread "_ptsz";
    Enqueue 11020 cuMemAllocFromPoolAsync(address: Out<DeviceAddress>, bytes: usize, pool: PoolHandle, stream: StreamHandle) = alloc_from_pool, per_thread "_ptsz";
    Enqueue 11020 cuMemFreeAsync(address: DeviceAddress, stream: StreamHandle) = free_async, per_thread "_ptsz";
    Create 11020 cuMemPoolExportToShareableHandle(handle: Out<i32>, pool: PoolHandle, kind: u32, flags: u64) = export;
    Create 11020 cuMemPoolImportFromShareableHandle(pool: Out<PoolHandle>, handle: usize, kind: u32, flags: u64) = import;
    Create 11020 cuMemPoolExportPointer(data: Out<IpcHandle>, address: DeviceAddress) = export_pointer;
    Create 11020 cuMemPoolImportPointer(address: Out<DeviceAddress>, pool: PoolHandle, data: In<IpcHandle>) = import_pointer;
}

/// CUmemPool_attribute: 1 to 3 are 32-bit switches, 4 to 8 are 64-bit sizes.
const LAST_SWITCH: u32 = 3;
const RELEASE_THRESHOLD: u32 = 4;
const LAST: u32 = 8;

/// CU_MEM_LOCATION_TYPE_DEVICE.
const ON_DEVICE: u32 = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_NONE and READWRITE.
const NONE: u32 = 0;
const READ_WRITE: u32 = 3;

fn default_of(_: &Call, pool: Out<PoolHandle>, device: i32) -> Status {
    let world = lock();
    pool.put(world.device(device)?.default_pool)
}

fn current_of(_: &Call, pool: Out<PoolHandle>, device: i32) -> Status {
    let world = lock();
    pool.put(world.device(device)?.pool)
}

/// Sets the pool of cuMemAllocAsync; it must be of that device, and this process's.
fn set_current(_: &Call, device: i32, pool: PoolHandle) -> Status {
    let mut world = lock();
    world.device(device)?;
    let chosen = world.pools.get(pool)?;
    let owner = chosen.device;
    if owner != device as usize {
        return Err(Code::INVALID_DEVICE);
    }
    if chosen.is_imported() {
        return Err(Code::INVALID_VALUE);
    }
    world.devices[owner].pool = pool;
    Ok(())
}

/// Makes a pool; only pinned memory (type 1) on a device (location type 1) is modelled, and of the
/// handles by which it may be exported only POSIX file descriptors.
fn create(_: &Call, pool: Out<PoolHandle>, properties: In<[u32; 4]>) -> Status {
    pool.check()?;
    let [kind, handles, location, device] = properties.get()?;
    if kind != 1 || !matches!(handles, 0 | POSIX_FILE_DESCRIPTOR) || location != ON_DEVICE {
        return Err(Code::NOT_SUPPORTED);
    }
    let mut world = lock();
    let physical = world.device(device as i32)?.physical;
    let file = match handles {
        0 => None,
        _ => Some(PoolFile::create(physical).ok_or(Code::OUT_OF_MEMORY)?),
    };
    let reuse = world.settings.reuse;
    let made = Pool::new(device as usize, file);
    pool.put(world.pools.insert(reuse, made))
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

/// Grants the memory of a pool to other devices, or takes it from them: all of the list, or nothing of it. A device's
/// own access "cannot be revoked" (CUDA Programming Guide). An imported pool starts without the exporter's grants, and
/// grants for itself.
fn set_access(_: &Call, pool: PoolHandle, wanted: In<[u32; 3]>, count: usize) -> Status {
    let mut world = lock();
    let own = world.pools.get(pool)?.device;
    let mut changes = Vec::new();
    for index in 0..count {
        let [location, device, flags] = wanted.get_at(index)?;
        let device = peer_at(&world, location, device)?;
        match flags {
            NONE if device == own => return Err(Code::INVALID_VALUE),
            NONE | READ_WRITE => changes.push((device, flags == READ_WRITE)),
            _ => return Err(Code::NOT_SUPPORTED),
        }
    }
    let pool = world.pools.get_mut(pool)?;
    for (device, granted) in changes {
        if granted {
            pool.peers.insert(device);
        } else {
            pool.peers.remove(&device);
        }
    }
    Ok(())
}

fn get_access(_: &Call, flags: Out<u32>, pool: PoolHandle, location: In<[u32; 2]>) -> Status {
    flags.check()?;
    let [location, device] = location.get()?;
    let world = lock();
    let device = peer_at(&world, location, device)?;
    let reached = world.pools.get(pool)?.is_reached_by(device);
    flags.put(if reached { READ_WRITE } else { NONE })
}

/// Returns the device of a CUmemLocation; the host's access to a pool is not modelled.
fn peer_at(world: &World, location: u32, device: u32) -> Result<usize, Code> {
    if location != ON_DEVICE {
        return Err(Code::NOT_SUPPORTED);
    }
    world.device(device as i32)?;
    Ok(device as usize)
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

/// Allocates memory of a pool, which belongs to no context. "Imported memory pools do not support
/// creating new allocations."
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
    forbid::allocation(&mut world, &target)?;
    let chosen = world.pools.get(pool)?;
    if chosen.is_imported() {
        return Err(Code::INVALID_VALUE);
    }
    let device = chosen.device;
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
    forbid::allocation(&mut world, &target)?;
    world.current()?;
    let range = world
        .memory
        .at_base(address)
        .filter(|range| !range.is_host() && range.kind != Kind::Opened);
    let buffer = range.ok_or(Code::INVALID_VALUE)?.buffer;
    submit(world, &target, Work::Free(buffer)).map(drop)
}

/// Gives a new descriptor of the pool's file, which the caller sends to another process and closes.
fn export(_: &Call, handle: Out<i32>, pool: PoolHandle, kind: u32, flags: u64) -> Status {
    handle.check()?;
    let world = lock();
    let pool = world.pools.get(pool)?;
    if kind != POSIX_FILE_DESCRIPTOR || flags != 0 || pool.is_imported() {
        return Err(Code::INVALID_VALUE);
    }
    let file = pool.file.as_ref().ok_or(Code::INVALID_VALUE)?;
    handle.put(file.file.to_send().ok_or(Code::OPERATING_SYSTEM)?)
}

/// Imports a pool by a descriptor, which stays the caller's. Its device must be visible.
fn import(_: &Call, pool: Out<PoolHandle>, handle: usize, kind: u32, flags: u64) -> Status {
    pool.check()?;
    if kind != POSIX_FILE_DESCRIPTOR || flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let number = i32::try_from(handle).map_err(|_| Code::INVALID_VALUE)?;
    let (file, physical) = PoolFile::received(number).ok_or(Code::INVALID_VALUE)?;
    let mut world = lock();
    let mut devices = world.devices.iter();
    let device = devices.position(|device| device.physical == physical);
    let imported = Pool::new(device.ok_or(Code::INVALID_DEVICE)?, Some(file));
    let reuse = world.settings.reuse;
    pool.put(world.pools.insert(reuse, imported))
}

/// Names an allocation of a pool that can be exported, by its base.
fn export_pointer(_: &Call, data: Out<IpcHandle>, address: u64) -> Status {
    data.check()?;
    let world = lock();
    let Some(Kind::Pool(pool)) = world.memory.at_base(address).map(|range| range.kind) else {
        return Err(Code::INVALID_VALUE);
    };
    let file = world.pools.get(pool)?.file.as_ref();
    let part_of = file
        .map(|file| file.file.inode())
        .ok_or(Code::INVALID_VALUE)?;
    let (_world, token) = exported(world, address, |range| range.kind == Kind::Pool(pool))?;
    let token = Token { part_of, ..token };
    data.put(IpcHandle(token.bytes(Names::PoolMemory)))
}

/// Maps an allocation of an imported pool; memory of another pool is INVALID_VALUE. A second import
/// gives the same address again, and the first free ends both: drivers do not count them (NVIDIA's bug
/// 5570902, as cuda.core describes it).
fn import_pointer(_: &Call, address: Out<u64>, pool: PoolHandle, data: In<IpcHandle>) -> Status {
    address.check()?;
    let token = Token::read(&data.get()?.0, Names::PoolMemory).ok_or(Code::INVALID_VALUE)?;
    let mut world = lock();
    let file = world.pools.get(pool)?.file.as_ref();
    let file = file.filter(|file| file.owner.is_some() && file.file.inode() == token.part_of);
    file.ok_or(Code::INVALID_VALUE)?;
    if let Some(base) = world.mapped(Kind::Pool(pool), ContextHandle::NULL, token.inode) {
        return address.put(base);
    }
    let (owner, segment) = opened(&token)?;
    let origin = Origin {
        owner,
        device: segment.device(),
        opens: 1,
    };
    address.put(world.import(segment, Kind::Pool(pool), ContextHandle::NULL, origin)?)
}
