//! Streams: created ones, the two default ones, and putting work on any of them.

use crate::abi::arguments::{ContextHandle, EventHandle, HostFunction, Out, StreamHandle, Word};
use crate::abi::codes::{Answer, Code};
use crate::driver::capture::{self, Placement};
use crate::driver::context::{self, thread_key};
use crate::entry::enter::{Call, exports};
use crate::run::schedule::{self, Goal};
use crate::state::queue::{Kind, Mark, QueueId, enqueue};
use crate::state::settings::Schedule;
use crate::state::work::{StreamCallback, StreamCallbackFunction, Work};
use crate::state::world::{Guard, World, lock};

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

const LEGACY: StreamHandle = StreamHandle(1);
const PER_THREAD: StreamHandle = StreamHandle(2);
const NON_BLOCKING: u32 = 1;

/// A created stream.
pub(crate) struct Stream {
    pub(crate) context: ContextHandle,
    pub(crate) queue: QueueId,
    flags: u32,
    priority: i32,
}

impl Word for Option<StreamCallbackFunction> {
    fn word(self) -> u64 {
        self.map_or(0, |function| function as usize as u64)
    }
}

/// A stream argument, resolved: the queue that it means and the context that it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) queue: QueueId,
    pub(crate) context: ContextHandle,
    pub(crate) kind: Kind,
}

impl Target {
    /// 0 is the legacy stream, or the per-thread one in the `_ptsz` variants; 1 and 2 are those
    /// two by name; all of them belong to the current context. Every call needs a current
    /// context; a created stream may belong to another one.
    pub(crate) fn resolve(
        world: &mut World,
        call: &Call,
        stream: StreamHandle,
    ) -> Result<Target, Code> {
        let current = context::current(world)?;
        let per_thread = stream == PER_THREAD || (stream == StreamHandle::NULL && call.per_thread);
        if per_thread {
            return Target::per_thread(world, current);
        }
        if stream == StreamHandle::NULL || stream == LEGACY {
            let queue = world.context(current)?.legacy;
            return Ok(Target {
                queue,
                context: current,
                kind: Kind::Legacy,
            });
        }
        let (queue, context) = match world.streams.get(stream) {
            Some(created) => (created.queue, created.context),
            None => return Err(Code::INVALID_HANDLE),
        };
        world.context(context)?;
        let kind = world.queues.get(&queue).ok_or(Code::INVALID_HANDLE)?.kind;
        Ok(Target {
            queue,
            context,
            kind,
        })
    }

    fn per_thread(world: &mut World, current: ContextHandle) -> Result<Target, Code> {
        let key = thread_key();
        let kind = Kind::PerThread(key);
        let context = world.context(current)?;
        let queue = match context.per_thread.get(&key) {
            Some(queue) => *queue,
            None => {
                let id = context.id;
                let queue = world.new_queue(current, id, kind);
                if let Some(context) = world.contexts.get_mut(current) {
                    context.per_thread.insert(key, queue);
                }
                queue
            }
        };
        Ok(Target {
            queue,
            context: current,
            kind,
        })
    }

    pub(crate) fn is_capturing(&self, world: &World) -> bool {
        world
            .queues
            .get(&self.queue)
            .is_some_and(|queue| queue.capture.is_some())
    }
}

/// Puts work on a stream, or into the graph that the stream is capturing into.
pub(crate) fn submit(
    mut world: Guard,
    target: &Target,
    after: Vec<Mark>,
    work: Work,
) -> Result<Guard, Code> {
    match capture::placement(&mut world, target)? {
        Placement::Queue => enqueue(world, target.queue, after, work),
        Placement::Capture(id) => {
            capture::append(&mut world, id, target.queue, work);
            Ok(world)
        }
    }
}

fn create(call: &Call, stream: Out<StreamHandle>, flags: u32) -> Answer {
    create_with_priority(call, stream, flags, 0)
}

/// Flags are 0 or NON_BLOCKING (1). A priority out of range is clamped, as documented.
fn create_with_priority(_: &Call, stream: Out<StreamHandle>, flags: u32, priority: i32) -> Answer {
    stream.check()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let context = context::current(&world)?;
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

/// Returns at once; the work that the stream holds still runs. The default streams cannot be
/// destroyed. Destroying a stream that captures invalidates the capture.
fn destroy(_: &Call, stream: StreamHandle) -> Answer {
    let mut world = lock();
    context::current(&world)?;
    let created = world.streams.remove(stream).ok_or(Code::INVALID_HANDLE)?;
    capture::stream_destroyed(&mut world, created.queue);
    world.close_queue(created.queue);
    Ok(())
}

/// Waits for all work that the stream holds now. Not allowed while the stream captures.
fn synchronize(call: &Call, stream: StreamHandle) -> Answer {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    capture::forbid_wait(&mut world, &target)?;
    let marks = marks_before(&world, &target);
    world = schedule::wait(world, &Goal::Marks(marks));
    world.context(target.context).map(drop)
}

/// Waiting for the legacy stream also waits for what it is implicitly ordered after.
fn marks_before(world: &World, target: &Target) -> Vec<Mark> {
    let mut marks = vec![world.tail(target.queue)];
    if target.kind == Kind::Legacy {
        let id = world
            .contexts
            .get(target.context)
            .map_or(0, |context| context.id);
        let blocking = world
            .queues
            .iter()
            .filter(|(_, queue)| queue.context_id == id && queue.is_blocking());
        marks.extend(blocking.map(|(id, queue)| Mark {
            queue: *id,
            position: queue.enqueued,
        }));
    }
    marks
}

/// NOT_READY while work is pending. Under the lazy schedule a query lets one needed piece of
/// work run after it has looked, so that a loop of queries ends.
fn query(call: &Call, stream: StreamHandle) -> Answer {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    capture::forbid_wait(&mut world, &target)?;
    let marks = marks_before(&world, &target);
    poll(world, marks)
}

/// The answer of a query for `marks`.
pub(crate) fn poll(world: Guard, marks: Vec<Mark>) -> Answer {
    if marks.iter().all(|mark| world.reached(*mark)) {
        return Ok(());
    }
    if world.settings.schedule == Schedule::Lazy {
        drop(schedule::nudge(world, &Goal::Marks(marks)));
    }
    Err(Code::NOT_READY)
}

/// The stream waits for the event's last record, as it is now; a later record changes nothing.
/// An event that was never recorded is no wait. The event may be of another context or device.
fn wait_event(call: &Call, stream: StreamHandle, event: EventHandle, flags: u32) -> Answer {
    if flags & !1 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    let awaited = world.events.get(event).ok_or(Code::INVALID_HANDLE)?.last;
    capture::wait_event(world, &target, awaited)
}

fn launch_host_function(
    call: &Call,
    stream: StreamHandle,
    function: Option<HostFunction>,
    data: usize,
) -> Answer {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    submit(
        world,
        &target,
        Vec::new(),
        Work::HostFunction(function, data),
    )
    .map(drop)
}

/// The mode says how the driver's thread waits, which makes no difference here.
fn launch_host_function_v2(
    call: &Call,
    stream: StreamHandle,
    function: Option<HostFunction>,
    data: usize,
    _mode: u32,
) -> Answer {
    launch_host_function(call, stream, function, data)
}

/// Cannot be captured, as documented.
fn add_callback(
    call: &Call,
    stream: StreamHandle,
    function: Option<StreamCallbackFunction>,
    data: usize,
    flags: u32,
) -> Answer {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    capture::forbid_wait(&mut world, &target)?;
    let callback = StreamCallback {
        function,
        stream: stream.0,
        data,
    };
    submit(world, &target, Vec::new(), Work::StreamCallback(callback)).map(drop)
}

fn flags(call: &Call, stream: StreamHandle, flags: Out<u32>) -> Answer {
    let mut world = lock();
    Target::resolve(&mut world, call, stream)?;
    flags.put(world.streams.get(stream).map_or(0, |created| created.flags))
}

fn priority(call: &Call, stream: StreamHandle, priority: Out<i32>) -> Answer {
    let mut world = lock();
    Target::resolve(&mut world, call, stream)?;
    priority.put(
        world
            .streams
            .get(stream)
            .map_or(0, |created| created.priority),
    )
}

fn context_of(call: &Call, stream: StreamHandle, context: Out<ContextHandle>) -> Answer {
    let mut world = lock();
    context.put(Target::resolve(&mut world, call, stream)?.context)
}

/// Green contexts are not modelled: null is answered for them.
fn context_of_v2(
    call: &Call,
    stream: StreamHandle,
    context: Out<ContextHandle>,
    green: Out<usize>,
) -> Answer {
    context_of(call, stream, context)?;
    green.put_if_wanted(0);
    Ok(())
}

fn id(call: &Call, stream: StreamHandle, id: Out<u64>) -> Answer {
    let mut world = lock();
    id.put(Target::resolve(&mut world, call, stream)?.queue.0)
}

fn device_of(call: &Call, stream: StreamHandle, device: Out<i32>) -> Answer {
    let mut world = lock();
    let context = Target::resolve(&mut world, call, stream)?.context;
    device.put(world.context(context)?.device as i32)
}

/// Managed memory is visible to all streams here, whatever it is attached to.
fn attach(call: &Call, stream: StreamHandle, address: u64, _bytes: usize, flags: u32) -> Answer {
    if !matches!(flags, 1 | 2 | 4) {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    capture::forbid_wait(&mut world, &target)?;
    world.memory.find(address).ok_or(Code::INVALID_VALUE)?;
    submit(world, &target, Vec::new(), Work::Nothing).map(drop)
}
