//! Makes and frees ranges of memory, for `alloc`, `host` and `pool`.

use std::sync::Arc;

use crate::abi::arguments::ContextHandle;
use crate::abi::codes::{Code, Status};
use crate::memory::backing::Backing;
use crate::memory::ranges::{Allocation, Kind, Life};
use crate::run::schedule;
use crate::state::world::{Guard, World, lock};
use crate::submit::forbid;

/// Locks the world for a call that makes or frees memory, and returns the current context: there
/// must be one, and no capture that forbids a potentially unsafe call.
pub(crate) fn begin() -> Result<(Guard, ContextHandle), Code> {
    let mut world = lock();
    let context = world.current()?;
    forbid::unsafe_call(&mut world)?;
    Ok((world, context))
}

/// Makes a range in the current context, and returns its base.
pub(crate) fn create(bytes: usize, kind: Kind) -> Result<u64, Code> {
    let (mut world, context) = begin()?;
    let device = world.context(context)?.device;
    create_on(&mut world, bytes, kind, context, device)
}

/// Makes a range on a device. Size 0 is refused, and more than the device has left.
pub(crate) fn create_on(
    world: &mut World,
    bytes: usize,
    kind: Kind,
    context: ContextHandle,
    device: usize,
) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let on_device = !matches!(kind, Kind::Pinned(_) | Kind::Registered(_));
    let left = world
        .settings
        .device_memory
        .saturating_sub(world.memory.used_on(device));
    if on_device && bytes as u64 > left {
        return Err(Code::OUT_OF_MEMORY);
    }
    let protect = world.settings.protect && matches!(kind, Kind::Device | Kind::Pool(_));
    let backing = Backing::map(bytes, protect, world.settings.reuse).ok_or(Code::OUT_OF_MEMORY)?;
    let base = backing.base() as u64;
    let buffer = world.fresh_number();
    let life = if matches!(kind, Kind::Pool(_)) {
        Life::Unborn
    } else {
        Life::Alive
    };
    world.memory.insert(Allocation {
        buffer,
        base,
        bytes,
        kind,
        device,
        context,
        life,
        backing: Some(Arc::new(backing)),
        sync_memops: false,
        origin: None,
    });
    Ok(base)
}

/// Frees the range at `base`, after the work of its context is done. Fails with `refusal` unless
/// there is one and `wanted` holds for it. Work of other contexts is not waited for, also on the same
/// device: driver 580.159.04 does not, and what touches the memory later is an illegal address. Memory of
/// a pool is freed without waiting: its user must have made sure that all work on it is done.
pub(crate) fn free(
    mut world: Guard,
    base: u64,
    wanted: impl FnOnce(&Allocation) -> bool,
    refusal: Code,
) -> Status {
    let range = world.memory.at_base(base).filter(|range| wanted(range));
    let range = range.ok_or(refusal)?;
    let buffer = range.buffer;
    if !matches!(range.kind, Kind::Pool(_)) {
        let context_id = world.contexts.get(range.context).map(|context| context.id);
        let marks = context_id.map_or(Vec::new(), |id| world.tails_of_context(id));
        world = schedule::wait_for(world, marks);
    }
    // Its context may have ended during the wait, and the address been used again.
    let left = world.memory.at_base(base);
    if left.is_none_or(|range| range.buffer != buffer) {
        return Err(refusal);
    }
    world.memory.remove(base).map(drop).ok_or(refusal)
}
