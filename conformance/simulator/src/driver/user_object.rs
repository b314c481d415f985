//! User objects: what a graph keeps alive, and everything that was made of the graph.
//!
//! An object ends with its last reference, on the thread that gives that up; as in a host function, no call of the API is
//! permitted meanwhile. Unlike on a device, a launch that is still running keeps none.

use crate::abi::arguments::{GraphHandle, HostFunction, Out, UserObjectHandle};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::state::graph::UserObject;
use crate::state::world::lock;

exports! {
    Create 11030 cuUserObjectCreate(object: Out<UserObjectHandle>, data: usize, destroy: Option<HostFunction>, count: u32, flags: u32) = create;
    Destroy 11030 cuUserObjectRelease(object: UserObjectHandle, count: u32) = release;
    Context 11030 cuGraphRetainUserObject(graph: GraphHandle, object: UserObjectHandle, count: u32, flags: u32) = retain;
}

/// CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, which must be set.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// CU_GRAPH_USER_OBJECT_MOVE: the references are the caller's, given away.
const MOVE: u32 = 1;

fn create(
    _: &Call,
    object: Out<UserObjectHandle>,
    data: usize,
    destroy: Option<HostFunction>,
    count: u32,
    flags: u32,
) -> Status {
    object.check()?;
    let destroy = destroy.ok_or(Code::INVALID_VALUE)?;
    if count == 0 || flags != NO_DESTRUCTOR_SYNC {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let reuse = world.settings.reuse;
    let made = UserObject::new(destroy, data);
    object.put(world.user_objects.insert(reuse, (made, count)))
}

/// Gives up references of the caller's.
fn release(_: &Call, object: UserObjectHandle, count: u32) -> Status {
    let mut world = lock();
    let owned = &mut world.user_objects.get_mut(object)?.1;
    *owned = owned.checked_sub(count).ok_or(Code::INVALID_VALUE)?;
    let gone = match *owned {
        0 => Some(world.user_objects.remove(object)?),
        _ => None,
    };
    // The destructor may not find the state locked.
    drop(world);
    drop(gone);
    Ok(())
}

/// Gives references to a graph, which may be one that a capture is making.
fn retain(
    _: &Call,
    graph: GraphHandle,
    object: UserObjectHandle,
    count: u32,
    flags: u32,
) -> Status {
    if count == 0 || flags > MOVE {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    world.graphs.get(graph)?;
    let (kept, owned) = world.user_objects.get_mut(object)?;
    let kept = kept.clone();
    if flags == MOVE {
        *owned = owned.checked_sub(count).ok_or(Code::INVALID_VALUE)?;
        if *owned == 0 {
            world.user_objects.remove(object)?;
        }
    }
    world.graphs.get_mut(graph)?.objects.push(kept);
    Ok(())
}
