//! Streams: create, destroy, wait, query, and host functions on them.

use crate::abi::arguments::{
    ContextHandle, EventHandle, HostFunction, Out, StreamCallbackFunction, StreamHandle,
};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::run::schedule;
use crate::state::objects::Stream;
use crate::state::queue::{Kind, Mark};
use crate::state::work::{StreamCallback, Work};
use crate::state::world::{World, lock};
use crate::submit::route::submit;
use crate::submit::target::Target;
use crate::submit::{forbid, route};

exports! {
    Create 2000 cuStreamCreate(stream: Out<StreamHandle>, flags: u32) = create;
    Create 5050 cuStreamCreateWithPriority(stream: Out<StreamHandle>, flags: u32, priority: i32) = create_with_priority;
    Destroy 4000 cuStreamDestroy_v2(stream: StreamHandle) = destroy;
    Wait 2000 cuStreamSynchronize(stream: StreamHandle) = synchronize, per_thread "_ptsz";
    Query 2000 cuStreamQuery(stream: StreamHandle) = query, per_thread "_ptsz";
    Enqueue 3020 cuStreamWaitEvent(stream: StreamHandle, event: EventHandle, flags: u32) = wait_event, per_thread "_ptsz";
    Enqueue 10000 cuLaunchHostFunc(stream: StreamHandle, function: Option<HostFunction>, data: usize) = launch_host_function, per_thread "_ptsz";
    Enqueue 13020 cuLaunchHostFunc_v2(stream: StreamHandle, function: Option<HostFunction>, data: usize, mode: u32) = launch_host_function_v2, per_thread "_ptsz";
    Enqueue 5000 cuStreamAddCallback(stream: StreamHandle, function: Option<StreamCallbackFunction>, data: usize, flags: u32) = add_callback, per_thread "_ptsz";
    Query 5050 cuStreamGetFlags(stream: StreamHandle, flags: Out<u32>) = flags, per_thread "_ptsz";
    Query 5050 cuStreamGetPriority(stream: StreamHandle, priority: Out<i32>) = priority, per_thread "_ptsz";
    Query 9020 cuStreamGetCtx(stream: StreamHandle, context: Out<ContextHandle>) = context_of, per_thread "_ptsz";
    Query 12050 cuStreamGetCtx_v2(stream: StreamHandle, context: Out<ContextHandle>, green: Out<usize>) = context_of_v2, per_thread "_ptsz";
    Query 12000 cuStreamGetId(stream: StreamHandle, id: Out<u64>) = id, per_thread "_ptsz";
    Query 12080 cuStreamGetDevice(stream: StreamHandle, device: Out<i32>) = device_of, per_thread "_ptsz";
    Enqueue 6000 cuStreamAttachMemAsync(stream: StreamHandle, address: u64, bytes: usize, flags: u32) = attach, per_thread "_ptsz";
}

const NON_BLOCKING: u32 = 1;

fn create(call: &Call, stream: Out<StreamHandle>, flags: u32) -> Status {
    create_with_priority(call, stream, flags, 0)
}

/// Makes a stream. Flags are 0 or NON_BLOCKING (1); a priority out of range is clamped, as
/// documented.
fn create_with_priority(_: &Call, stream: Out<StreamHandle>, flags: u32, priority: i32) -> Status {
    stream.check()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let context = world.current()?;
    let id = world.context(context)?.id;
    let kind = if flags & NON_BLOCKING != 0 {
        Kind::NonBlocking
    } else {
        Kind::Blocking
    };
    let queue = world.new_queue(context, id, kind);
    let reuse = world.settings.reuse;
    let created = Stream {
        context,
        queue,
        flags,
        priority: priority.clamp(-5, 0),
    };
    stream.put(world.streams.insert(reuse, created))
}

/// Destroys a stream and returns at once; its work still runs. The default streams cannot be
/// destroyed. The capture of a stream that captures becomes invalid.
fn destroy(_: &Call, stream: StreamHandle) -> Status {
    let mut world = lock();
    world.current()?;
    let created = world.streams.remove(stream)?;
    route::stream_destroyed(&mut world, created.queue);
    world.close_queue(created.queue);
    Ok(())
}

/// Waits for all work that the stream holds now.
fn synchronize(call: &Call, stream: StreamHandle) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    forbid::wait(&mut world, &target)?;
    let marks = marks_before(&world, &target);
    world = schedule::wait_for(world, marks);
    world.context(target.context).map(drop)
}

/// Returns the marks that a wait for a stream waits for: for the legacy stream also those of the
/// streams that it is implicitly ordered after.
fn marks_before(world: &World, target: &Target) -> Vec<Mark> {
    let mut marks = vec![world.tail(target.queue)];
    if target.kind == Kind::Legacy {
        let id = world
            .contexts
            .get(target.context)
            .map_or(0, |context| context.id);
        marks.extend(world.tails(|queue| queue.context_id == id && queue.is_blocking()));
    }
    marks
}

/// Returns NOT_READY while work is pending.
fn query(call: &Call, stream: StreamHandle) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    forbid::wait(&mut world, &target)?;
    let marks = marks_before(&world, &target);
    schedule::poll(world, marks)
}

/// Makes the stream wait for the event's last record as it is now; a later record changes nothing.
/// An event that was never recorded is no wait. The event may be of another context or device.
fn wait_event(call: &Call, stream: StreamHandle, event: EventHandle, flags: u32) -> Status {
    if flags & !1 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let awaited = world.events.get(event)?.last_record()?;
    route::wait_event(world, &target, awaited)
}

fn launch_host_function(
    call: &Call,
    stream: StreamHandle,
    function: Option<HostFunction>,
    data: usize,
) -> Status {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    submit(world, &target, Work::HostFunction(function, data)).map(drop)
}

/// Ignores the mode: it selects how the driver's thread waits.
fn launch_host_function_v2(
    call: &Call,
    stream: StreamHandle,
    function: Option<HostFunction>,
    data: usize,
    _mode: u32,
) -> Status {
    launch_host_function(call, stream, function, data)
}

/// Enqueues a callback; it cannot be captured, as documented.
fn add_callback(
    call: &Call,
    stream: StreamHandle,
    function: Option<StreamCallbackFunction>,
    data: usize,
    flags: u32,
) -> Status {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    forbid::uncaptured(&mut world, &target)?;
    let callback = StreamCallback {
        function,
        stream: stream.0,
        data,
    };
    submit(world, &target, Work::StreamCallback(callback)).map(drop)
}

/// A driver tells no flags of a stream that is being captured, and asking breaks the capture (580.159.04).
fn flags(call: &Call, stream: StreamHandle, flags: Out<u32>) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    forbid::uncaptured(&mut world, &target)?;
    flags.put(world.streams.get(stream).map_or(0, |created| created.flags))
}

fn priority(call: &Call, stream: StreamHandle, priority: Out<i32>) -> Status {
    let mut world = lock();
    Target::resolve(&mut world, call, stream)?;
    priority.put(
        world
            .streams
            .get(stream)
            .map_or(0, |created| created.priority),
    )
}

fn context_of(call: &Call, stream: StreamHandle, context: Out<ContextHandle>) -> Status {
    let mut world = lock();
    context.put(Target::resolve(&mut world, call, stream)?.context)
}

/// Gives null for the green context: they are not modelled.
fn context_of_v2(
    call: &Call,
    stream: StreamHandle,
    context: Out<ContextHandle>,
    green: Out<usize>,
) -> Status {
    context_of(call, stream, context)?;
    green.put_if_wanted(0);
    Ok(())
}

/// A driver tells no id of a stream that is being captured, and asking breaks the capture (580.159.04).
fn id(call: &Call, stream: StreamHandle, id: Out<u64>) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    forbid::uncaptured(&mut world, &target)?;
    id.put(target.queue.0)
}

fn device_of(call: &Call, stream: StreamHandle, device: Out<i32>) -> Status {
    let mut world = lock();
    let context = Target::resolve(&mut world, call, stream)?.context;
    device.put(world.context(context)?.device as i32)
}

/// Checks the arguments only: managed memory is visible to all streams here.
fn attach(call: &Call, stream: StreamHandle, address: u64, _bytes: usize, flags: u32) -> Status {
    if !matches!(flags, 1 | 2 | 4) {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    forbid::uncaptured(&mut world, &target)?;
    world.memory.find(address).ok_or(Code::INVALID_VALUE)?;
    submit(world, &target, Work::Nothing).map(drop)
}
