//! Primary contexts: one for each device, counted, shared by the whole process.
//!
//! The handle of a device's primary context is the same for the life of the process; the context
//! behind it is a new one, with a new cuCtxGetId, each time it becomes active again.

use crate::abi::arguments::{ContextHandle, Out};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::state::objects::Primary;
use crate::state::world::{World, lock};

exports! {
    Create 7000 cuDevicePrimaryCtxRetain(context: Out<ContextHandle>, device: i32) = retain;
    Destroy 11000 cuDevicePrimaryCtxRelease_v2(device: i32) = release;
    Destroy 7000 cuDevicePrimaryCtxRelease(device: i32) = release;
    Destroy 11000 cuDevicePrimaryCtxReset_v2(device: i32) = reset;
    Destroy 7000 cuDevicePrimaryCtxReset(device: i32) = reset;
    Query 7000 cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) = state;
    Context 11000 cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) = set_flags;
    Context 7000 cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) = set_flags_inactive;
}

/// Returns the primary context if it is active.
fn active_context(world: &World, primary: &Primary) -> Option<ContextHandle> {
    primary
        .handle
        .filter(|handle| world.contexts.get(*handle).is_ok())
}

/// Counts one more holder; activates the context if it is inactive.
fn retain(_: &Call, context: Out<ContextHandle>, device: i32) -> Status {
    context.check()?;
    let mut world = lock();
    let primary = &world.device(device)?.primary;
    let (handle, flags) = (primary.handle, primary.flags);
    let handle = match active_context(&world, primary) {
        Some(handle) => handle,
        None => world.new_context(device as usize, flags, true, handle),
    };
    let primary = &mut world.devices[device as usize].primary;
    primary.handle = Some(handle);
    primary.count += 1;
    context.put(handle)
}

/// Counts one holder less, and resets the context with the last one; INVALID_CONTEXT if there is
/// none.
fn release(_: &Call, device: i32) -> Status {
    let mut world = lock();
    world.device(device)?;
    let primary = &mut world.devices[device as usize].primary;
    if primary.count == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    primary.count -= 1;
    if primary.count == 0 {
        deactivate(&mut world, device as usize);
    }
    Ok(())
}

/// Resets the context and the count of its holders.
fn reset(_: &Call, device: i32) -> Status {
    let mut world = lock();
    world.device(device)?;
    world.devices[device as usize].primary.count = 0;
    deactivate(&mut world, device as usize);
    Ok(())
}

fn deactivate(world: &mut World, device: usize) {
    let Some(handle) = world.devices[device].primary.handle else {
        return;
    };
    let Ok(id) = world.contexts.get(handle).map(|context| context.id) else {
        return;
    };
    world.clear_context(handle, id);
    world.contexts.suspend(handle);
}

fn state(_: &Call, device: i32, flags: Out<u32>, active: Out<i32>) -> Status {
    let world = lock();
    let primary = &world.device(device)?.primary;
    let is_active = active_context(&world, primary).is_some();
    flags.put(primary.flags)?;
    active.put(i32::from(is_active))
}

fn set_flags(_: &Call, device: i32, flags: u32) -> Status {
    let mut world = lock();
    world.device(device)?;
    world.devices[device as usize].primary.flags = flags;
    let handle = world.devices[device as usize].primary.handle;
    if let Some(context) = handle.and_then(|handle| world.contexts.get_mut(handle).ok()) {
        context.flags = flags;
    }
    Ok(())
}

/// Sets the flags of an inactive context: before CUDA 11 those of an active one could not change.
fn set_flags_inactive(call: &Call, device: i32, flags: u32) -> Status {
    let world = lock();
    let primary = &world.device(device)?.primary;
    if active_context(&world, primary).is_some() && primary.flags != flags {
        return Err(Code::PRIMARY_CONTEXT_ACTIVE);
    }
    drop(world);
    set_flags(call, device, flags)
}
