//! Created contexts, and the stack of each thread. Primary contexts are in `primary`.

use crate::abi::arguments::{ContextHandle, In, Out};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::process::thread;
use crate::run::schedule;
use crate::state::world::{Guard, World, lock};
use crate::submit::forbid;

exports! {
    Create 3020 cuCtxCreate_v2(context: Out<ContextHandle>, flags: u32, device: i32) = create;
    Create 11040 cuCtxCreate_v3(context: Out<ContextHandle>, affinity: In<u8>, count: i32, flags: u32, device: i32) = create_v3;
    Create 12050 cuCtxCreate_v4(context: Out<ContextHandle>, parameters: In<u8>, flags: u32, device: i32) = create_v4;
    Destroy 4000 cuCtxDestroy_v2(context: ContextHandle) = destroy;
    Context 4000 cuCtxPushCurrent_v2(context: ContextHandle) = push;
    Context 4000 cuCtxPopCurrent_v2(context: Out<ContextHandle>) = pop;
    Context 4000 cuCtxSetCurrent(context: ContextHandle) = set_current;
    Query 4000 cuCtxGetCurrent(context: Out<ContextHandle>) = get_current;
    Query 2000 cuCtxGetDevice(device: Out<i32>) = device_of_current;
    Query 13000 cuCtxGetDevice_v2(device: Out<i32>, context: ContextHandle) = device_of;
    Query 7000 cuCtxGetFlags(flags: Out<u32>) = flags;
    Query 3020 cuCtxGetApiVersion(context: ContextHandle, version: Out<u32>) = api_version;
    Query 12000 cuCtxGetId(context: ContextHandle, id: Out<u64>) = id;
    Wait 2000 cuCtxSynchronize() = synchronize;
    Wait 13000 cuCtxSynchronize_v2(context: ContextHandle) = synchronize_given;
    Query 5050 cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) = priority_range;
    Context 4000 cuCtxEnablePeerAccess(peer: ContextHandle, flags: u32) = enable_peer;
    Context 4000 cuCtxDisablePeerAccess(peer: ContextHandle) = disable_peer;
    Query 3010 cuCtxGetLimit(value: Out<usize>, limit: u32) = get_limit;
    Context 3010 cuCtxSetLimit(limit: u32, value: usize) = set_limit;
}

/// All flags: the scheduling bits allow one of four values; MAP_HOST 8, LMEM_RESIZE 16, COREDUMP 32,
/// USER_COREDUMP 64, SYNC_MEMOPS 128.
const FLAGS: u32 = 0xFF;

fn create(_: &Call, context: Out<ContextHandle>, flags: u32, device: i32) -> Status {
    context.check()?;
    let mut world = lock();
    world.device(device)?;
    if flags & !FLAGS != 0 || !matches!(flags & 7, 0 | 1 | 2 | 4) {
        return Err(Code::INVALID_VALUE);
    }
    let handle = world.new_context(device as usize, flags, false, None);
    thread::with_stack(|stack| stack.push(handle));
    context.put(handle)
}

/// Refuses execution affinity: it belongs to MPS and is not modelled.
fn create_v3(
    call: &Call,
    context: Out<ContextHandle>,
    affinity: In<u8>,
    count: i32,
    flags: u32,
    device: i32,
) -> Status {
    if !affinity.is_null() || count != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    create(call, context, flags, device)
}

fn create_v4(
    call: &Call,
    context: Out<ContextHandle>,
    parameters: In<u8>,
    flags: u32,
    device: i32,
) -> Status {
    if !parameters.is_null() {
        return Err(Code::NOT_SUPPORTED);
    }
    create(call, context, flags, device)
}

/// Destroys a created context, also one that is current to threads. It is popped from the calling
/// thread's stack if it is on top; other threads get CONTEXT_IS_DESTROYED from then on.
fn destroy(_: &Call, handle: ContextHandle) -> Status {
    let mut world = lock();
    let context = world.contexts.get(handle)?;
    if context.primary {
        return Err(Code::INVALID_CONTEXT);
    }
    let id = context.id;
    world.clear_context(handle, id);
    thread::with_stack(|stack| {
        if stack.last() == Some(&handle) {
            stack.pop();
        }
    });
    world.contexts.remove(handle).map(drop)
}

fn push(_: &Call, context: ContextHandle) -> Status {
    lock().contexts.get(context)?;
    thread::with_stack(|stack| stack.push(context));
    Ok(())
}

/// Pops the current context. The output may be null; an empty stack is INVALID_CONTEXT.
fn pop(_: &Call, context: Out<ContextHandle>) -> Status {
    let popped = thread::with_stack(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
    context.put_if_wanted(popped);
    Ok(())
}

/// Replaces the top of the stack; null pops it. A destroyed context is no error here: the calls that need it
/// refuse it.
fn set_current(_: &Call, context: ContextHandle) -> Status {
    if context != ContextHandle::NULL {
        match lock().contexts.get(context) {
            Ok(_) | Err(Code::CONTEXT_IS_DESTROYED) => {}
            Err(code) => return Err(code),
        }
    }
    thread::with_stack(|stack| {
        stack.pop();
        if context != ContextHandle::NULL {
            stack.push(context);
        }
    });
    Ok(())
}

/// Gives null, with success, if no context is current.
fn get_current(_: &Call, context: Out<ContextHandle>) -> Status {
    context.put(thread::with_stack(|stack| stack.last().copied()).unwrap_or(ContextHandle::NULL))
}

fn device_of_current(_: &Call, device: Out<i32>) -> Status {
    let world = lock();
    let context = world.current()?;
    device.put(world.context(context)?.device as i32)
}

/// Returns the current context for null, in the calls that take one.
fn given_or_current(world: &World, context: ContextHandle) -> Result<ContextHandle, Code> {
    if context == ContextHandle::NULL {
        return world.current();
    }
    world.contexts.get(context)?;
    Ok(context)
}

fn device_of(_: &Call, device: Out<i32>, context: ContextHandle) -> Status {
    let world = lock();
    let context = given_or_current(&world, context)?;
    device.put(world.context(context)?.device as i32)
}

fn flags(_: &Call, flags: Out<u32>) -> Status {
    let world = lock();
    let context = world.current()?;
    flags.put(world.context(context)?.flags)
}

/// Gives the version of the API that the context was created with: 3020 for every variant here.
fn api_version(_: &Call, context: ContextHandle, version: Out<u32>) -> Status {
    let world = lock();
    given_or_current(&world, context)?;
    version.put(3020)
}

/// Gives a number that is not reused in the life of the process, also if a handle comes back.
fn id(_: &Call, context: ContextHandle, id: Out<u64>) -> Status {
    let world = lock();
    let context = given_or_current(&world, context)?;
    id.put(world.context(context)?.id)
}

/// Waits for all streams of the current context. If one of them captures it is an error, and the
/// capture is invalid afterwards.
fn synchronize(_: &Call) -> Status {
    let world = lock();
    let context = world.current()?;
    wait_for_all(world, context)
}

fn synchronize_given(_: &Call, context: ContextHandle) -> Status {
    let world = lock();
    let context = given_or_current(&world, context)?;
    wait_for_all(world, context)
}

fn wait_for_all(mut world: Guard, handle: ContextHandle) -> Status {
    let id = world.context(handle)?.id;
    forbid::context_wait(&mut world, id)?;
    let marks = world.tails_of_context(id);
    world = schedule::wait_for(world, marks);
    world.context(handle).map(drop)
}

/// Gives 0 for the least priority, -5 for the greatest. Priorities have no effect here.
fn priority_range(_: &Call, least: Out<i32>, greatest: Out<i32>) -> Status {
    lock().current()?;
    least.put_if_wanted(0);
    greatest.put_if_wanted(-5);
    Ok(())
}

fn enable_peer(_: &Call, peer: ContextHandle, flags: u32) -> Status {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let here = world.current()?;
    let peer_device = world.contexts.get(peer)?.device;
    let context = world.contexts.get_mut(here)?;
    if context.device == peer_device {
        return Err(Code::PEER_ACCESS_UNSUPPORTED);
    }
    if context.peers.contains(&peer) {
        return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
    }
    context.peers.push(peer);
    Ok(())
}

fn disable_peer(_: &Call, peer: ContextHandle) -> Status {
    let mut world = lock();
    let here = world.current()?;
    let context = world.contexts.get_mut(here)?;
    let known = context.peers.iter().position(|other| *other == peer);
    context
        .peers
        .remove(known.ok_or(Code::PEER_ACCESS_NOT_ENABLED)?);
    Ok(())
}

/// Gives a limit. Limits are kept and have no effect; eight of them exist (0 to 7).
fn get_limit(_: &Call, value: Out<usize>, limit: u32) -> Status {
    let world = lock();
    let context = world.current()?;
    if limit > 7 {
        return Err(Code::INVALID_VALUE);
    }
    value.put(
        world
            .context(context)?
            .limits
            .get(&limit)
            .copied()
            .unwrap_or(1024),
    )
}

fn set_limit(_: &Call, limit: u32, value: usize) -> Status {
    let mut world = lock();
    let here = world.current()?;
    if limit > 7 {
        return Err(Code::INVALID_VALUE);
    }
    let context = world.contexts.get_mut(here)?;
    context.limits.insert(limit, value);
    Ok(())
}
