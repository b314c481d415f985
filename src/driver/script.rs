//! A driver that answers from tables and writes down each call, for tests.
//!
//! It knows streams, contexts, captures and pointers as far as it was told, holds itself to the
//! rules that order depends on (an event is recorded in its own context only; a default stream
//! needs a current context), and can be told to fail. It orders nothing: the simulated driver in
//! conformance/ does that. Its memory is numbers, unless it is told to [have some](Script::with_memory).

mod ipc;

pub(crate) use ipc::ELSEWHERE;

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt::{self, Debug};
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use super::{
    Context, ContextId, Copy2d, Driver, DriverError, Event, Graph, HostFunction, MemoryKind,
    PointerInfo, Pool, Primaries, UserObject,
};
use crate::protocol::stream::{Capture, Stream};

thread_local! {
    static INSTALLED: Cell<Option<&'static dyn Driver>> = const { Cell::new(None) };
}

/// The driver that this thread uses instead of the real one.
pub(super) fn installed() -> Option<&'static dyn Driver> {
    INSTALLED.get()
}

/// Makes `driver` the answer of [`driver()`](super::driver()) on this thread until the guard is dropped.
pub(crate) fn install(driver: &'static dyn Driver) -> Installed {
    Installed {
        before: INSTALLED.replace(Some(driver)),
    }
}

/// Puts the driver back that was there before.
#[must_use = "the driver is uninstalled when this is dropped"]
pub(crate) struct Installed {
    before: Option<&'static dyn Driver>,
}

impl Debug for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Installed")
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        INSTALLED.set(self.before);
    }
}

/// What was leaked, in reach to the end: a leak checker then takes it for what it is.
static KEPT: Mutex<Vec<&'static Script>> = Mutex::new(Vec::new());

/// The scripted driver. Times are not modelled: every call answers at once.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// The idle events.
    pub(crate) pool: Pool,
    primaries: Primaries,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<String>,
    faults: Vec<Fault>,
    /// The stack of each thread; the last one is current.
    current: HashMap<ThreadId, Vec<Context>>,
    streams: HashMap<u64, Context>,
    captures: HashMap<u64, (Capture, u64)>,
    pointers: HashMap<u64, PointerInfo>,
    primaries: HashMap<i32, (Context, u32)>,
    ids: HashMap<Context, u64>,
    events: HashMap<Event, Context>,
    made: u64,
    exclusive: Vec<i32>,
    /// The blocks that are allocated; `None` if memory is only numbers.
    memory: Option<HashMap<u64, Layout>>,
    objects: HashMap<UserObject, Kept>,
    /// The mappings of other processes' memory, each with its count.
    opened: HashMap<u64, u32>,
    handle_types: u64,
    is_mapped: bool,
    /// What graphs keep, by the graph.
    kept: HashMap<Graph, Vec<Kept>>,
}

/// The data of a user object, as an address, and the function that ends it.
#[derive(Debug)]
struct Kept {
    data: usize,
    destroy: HostFunction,
}

#[derive(Debug)]
struct Fault {
    call: &'static str,
    after: u32,
    code: u32,
}

/// Returns each call with the context that is current at it, if this one is at the first.
#[cfg(test)]
pub(crate) fn contexts_at(calls: &[String], current: u64) -> Vec<(&str, u64)> {
    let mut stack = vec![current];
    let mut found = Vec::new();
    for call in calls {
        let (name, argument) = call.split_once(' ').unwrap_or((call, ""));
        let context = || {
            let digits = argument.trim_start_matches("0x");
            u64::from_str_radix(digits, 16).expect("a handle")
        };
        match name {
            "cuCtxPushCurrent" => stack.push(context()),
            "cuCtxPopCurrent" => drop(stack.pop()),
            "cuCtxSetCurrent" => *stack.last_mut().expect("a context") = context(),
            _ => {}
        }
        found.push((call.as_str(), *stack.last().expect("a context")));
    }
    found
}

/// The context with this handle.
///
/// # Panics
/// Where it is 0.
pub(crate) fn context(handle: u64) -> Context {
    Context(NonZeroU64::new(handle).expect("a context's handle is not 0"))
}

impl Script {
    /// A driver that knows nothing yet.
    pub(crate) fn new() -> Script {
        Script::default()
    }

    /// The same, for [`install`]: tests leak it on purpose.
    pub(crate) fn leak() -> &'static Script {
        let script: &'static Script = Box::leak(Box::default());
        KEPT.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(script);
        script
    }

    /// Says that a stream's handle belongs to a context.
    pub(crate) fn stream(&self, handle: u64, of: u64) -> &Self {
        self.lock().streams.insert(handle, context(of));
        self
    }

    /// Makes a context the calling thread's; 0 for none. Not written down.
    pub(crate) fn current(&self, handle: u64) -> &Self {
        self.lock().replace(NonZeroU64::new(handle).map(Context));
        self
    }

    /// The calling thread's contexts; the last one is current. Not written down.
    #[cfg(test)]
    pub(crate) fn stack_now(&self) -> Vec<u64> {
        let mut state = self.lock();
        state
            .stack()
            .iter()
            .map(|context| context.0.get())
            .collect()
    }

    /// The calling thread's context; 0 for none. Not written down.
    pub(crate) fn current_now(&self) -> u64 {
        let current = self.lock().current();
        current.map_or(0, |context| context.0.get())
    }

    /// Says how a stream is being captured, and in which capture.
    pub(crate) fn captured(&self, stream: Stream, capture: Capture, id: u64) -> &Self {
        self.lock().captures.insert(stream.raw(), (capture, id));
        self
    }

    /// Says what is behind an address.
    pub(crate) fn pointer(&self, pointer: u64, info: PointerInfo) -> &Self {
        self.lock().pointers.insert(pointer, info);
        self
    }

    /// Device memory at `pointer`, `nbytes` long, of a device and (0: of no named) context.
    pub(crate) fn device_memory(&self, pointer: u64, nbytes: u64, ordinal: i32, of: u64) -> &Self {
        let info = PointerInfo {
            kind: MemoryKind::Device,
            ordinal,
            device_pointer: pointer,
            host_pointer: 0,
            context: NonZeroU64::new(of).map(Context),
            range: Some((pointer, nbytes)),
            mapped: true,
        };
        self.pointer(pointer, info)
    }

    /// Makes a device's primary context active, with that handle.
    pub(crate) fn primary(&self, ordinal: i32, handle: u64) -> &Self {
        self.lock().primaries.insert(ordinal, (context(handle), 1));
        self
    }

    /// How often a device's primary context is retained now.
    pub(crate) fn primary_count(&self, ordinal: i32) -> u32 {
        self.lock()
            .primaries
            .get(&ordinal)
            .map_or(0, |&(_, count)| count)
    }

    /// Says that the memory at an address is managed.
    pub(crate) fn managed(&self, pointer: u64) -> &Self {
        let mut state = self.lock();
        let info = state.pointers.get_mut(&pointer).expect("memory");
        info.kind = MemoryKind::Managed;
        drop(state);
        self
    }

    /// Says that a device has no concurrent managed access.
    pub(crate) fn exclusive_managed(&self, ordinal: i32) -> &Self {
        self.lock().exclusive.push(ordinal);
        self
    }

    /// Destroys a context and its events and puts another one under the same handle.
    pub(crate) fn replace_context(&self, handle: u64) -> &Self {
        let mut state = self.lock();
        let old = context(handle);
        state.events.retain(|_, of| *of != old);
        *state.ids.entry(old).or_insert(handle) += 0x1_0000;
        drop(state);
        self
    }

    /// Destroys a context's events behind everyone's back: what a reset does on a driver whose
    /// contexts have no identity beyond their handle.
    pub(crate) fn kill_events(&self, handle: u64) -> &Self {
        self.lock().events.retain(|_, of| of.0.get() != handle);
        self
    }

    /// Makes the call named `call` fail with `code`, once, after `after` more calls that succeed.
    pub(crate) fn fault(&self, call: &'static str, after: u32, code: u32) -> &Self {
        self.lock().faults.push(Fault { call, after, code });
        self
    }

    /// Makes no call fail any more.
    pub(crate) fn without_faults(&self) -> &Self {
        self.lock().faults.clear();
        self
    }

    /// Has memory from now on: what is allocated can be read and written, copies are made and host functions run, all at
    /// once. Nothing may be told of an address that is none.
    pub(crate) fn with_memory(&self) -> &Self {
        self.lock().memory.get_or_insert_default();
        self
    }

    /// The number of allocations that have not been freed.
    pub(crate) fn allocated(&self) -> usize {
        self.lock().memory.as_ref().map_or(0, HashMap::len)
    }

    /// Forgets what is behind an address.
    pub(crate) fn forget_pointer(&self, pointer: u64) -> &Self {
        self.lock().pointers.remove(&pointer);
        self
    }

    /// Ends a graph and all that was made of it.
    pub(crate) fn end_graph(&self, number: u64) {
        let graph = NonZeroU64::new(number).map(Graph);
        let kept = graph.and_then(|graph| self.lock().kept.remove(&graph));
        for Kept { data, destroy } in kept.into_iter().flatten() {
            // SAFETY: called once with the data that it was given with, by `user_object_create`'s contract.
            unsafe { destroy(std::ptr::with_exposed_provenance_mut(data)) };
        }
    }

    /// The calls so far, each as its name and its arguments.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    /// The calls so far, which are then forgotten.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().calls)
    }

    /// How many of the calls so far were to this function.
    pub(crate) fn count(&self, call: &str) -> usize {
        self.lock()
            .calls
            .iter()
            .filter(|line| line.split(' ').next() == Some(call))
            .count()
    }

    /// Events that exist.
    pub(crate) fn events_alive(&self) -> usize {
        self.lock().events.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a call down; its scripted failure, if this is the one.
    fn call(
        &self,
        name: &'static str,
        arguments: &str,
    ) -> Result<MutexGuard<'_, State>, DriverError> {
        let mut state = self.lock();
        let line = if arguments.is_empty() {
            name.into()
        } else {
            format!("{name} {arguments}")
        };
        state.calls.push(line);
        if let Some(at) = state.faults.iter().position(|fault| fault.call == name) {
            if state.faults[at].after == 0 {
                return Err(DriverError::new(name, state.faults.swap_remove(at).code));
            }
            state.faults[at].after -= 1;
        }
        Ok(state)
    }
}

impl State {
    /// Allocates, of a context or of a pool.
    fn allocate(&mut self, nbytes: u64, kind: MemoryKind, context: Option<Context>) -> u64 {
        self.made += 1;
        let Some(memory) = &mut self.memory else {
            return 0x7_0000_0000 + (self.made << 20);
        };
        let block = Layout::from_size_align(nbytes.max(1) as usize, 256).expect("a block");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(block) };
        let pointer = start.expose_provenance() as u64;
        memory.insert(pointer, block);
        let host_pointer = match kind {
            MemoryKind::Device => 0,
            _ => pointer,
        };
        let info = PointerInfo {
            kind,
            ordinal: 0,
            device_pointer: pointer,
            host_pointer,
            context,
            range: Some((pointer, nbytes)),
            mapped: true,
        };
        self.pointers.insert(pointer, info);
        pointer
    }

    /// What is behind an address: of memory that is there, also of one within it.
    fn behind(&self, pointer: u64) -> Option<PointerInfo> {
        if let Some(info) = self.pointers.get(&pointer) {
            return Some(*info);
        }
        self.memory.as_ref()?;
        self.within(pointer)
    }

    /// What the allocation is that an address lies in.
    fn within(&self, pointer: u64) -> Option<PointerInfo> {
        self.pointers.values().find_map(|info| {
            let (start, nbytes) = info.range?;
            let offset = pointer.checked_sub(start).filter(|at| *at < nbytes)?;
            let moved = |address: u64| if address == 0 { 0 } else { address + offset };
            Some(PointerInfo {
                device_pointer: moved(info.device_pointer),
                host_pointer: moved(info.host_pointer),
                ..*info
            })
        })
    }

    /// # Safety
    /// `pointer` was allocated here, nothing uses it any more.
    unsafe fn free(&mut self, pointer: u64) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        let block = memory.remove(&pointer).expect("memory that is freed once");
        self.pointers.remove(&pointer);
        let start = std::ptr::with_exposed_provenance_mut(pointer as usize);
        // SAFETY: allocated with this layout, and not freed before: it was in the map.
        unsafe { dealloc(start, block) };
    }

    /// # Safety
    /// If memory is more than numbers, `nbytes` are readable at `from`, writable at `to`, and the two do not overlap.
    unsafe fn copy(&self, to: u64, from: u64, nbytes: u64) {
        if self.memory.is_some() {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
            let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
            // SAFETY: this function's contract.
            unsafe { std::ptr::copy_nonoverlapping(from, to, nbytes as usize) };
        }
    }

    fn thread_context(&self, call: &'static str) -> Result<Context, DriverError> {
        self.current().ok_or(DriverError::new(call, 201))
    }

    fn stack(&mut self) -> &mut Vec<Context> {
        self.current.entry(std::thread::current().id()).or_default()
    }

    fn current(&self) -> Option<Context> {
        let stack = self.current.get(&std::thread::current().id());
        stack.and_then(|stack| stack.last().copied())
    }

    /// Replaces the top of the thread's stack.
    fn replace(&mut self, context: Option<Context>) {
        let stack = self.stack();
        stack.pop();
        stack.extend(context);
    }

    /// The context of a stream as the driver finds it: a default stream is the current context's,
    /// and without a current context it looks for none.
    fn context_of(&self, call: &'static str, stream: Stream) -> Result<Context, DriverError> {
        let current = self.thread_context(call)?;
        match stream {
            Stream::None => Err(DriverError::new(call, 1)),
            Stream::LegacyDefault | Stream::PerThreadDefault => Ok(current),
            Stream::Handle(_) => self
                .streams
                .get(&stream.raw())
                .copied()
                .ok_or(DriverError::new(call, 400)),
        }
    }
}

fn stream_name(stream: Stream) -> String {
    format!("{:#x}", stream.raw())
}

impl Driver for Script {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn primaries(&self) -> &Primaries {
        &self.primaries
    }

    fn device_count(&self) -> Result<i32, DriverError> {
        self.call("cuDeviceGetCount", "").map(|_| 2)
    }

    fn pointer_info(&self, pointer: u64, want_range: bool) -> Result<PointerInfo, DriverError> {
        let what = if want_range { " range" } else { "" };
        let state = self.call("cuPointerGetAttributes", &format!("{pointer:#x}{what}"))?;
        let unknown = PointerInfo {
            kind: MemoryKind::Unknown,
            ordinal: -2,
            device_pointer: 0,
            host_pointer: 0,
            context: None,
            range: None,
            mapped: false,
        };
        let info = state.behind(pointer).unwrap_or(unknown);
        Ok(PointerInfo {
            range: info.range.filter(|_| want_range),
            ..info
        })
    }

    fn capture(&self, stream: Stream) -> Result<Capture, DriverError> {
        let state = self.call("cuStreamIsCapturing", &stream_name(stream))?;
        state.context_of("cuStreamIsCapturing", stream)?;
        Ok(state
            .captures
            .get(&stream.raw())
            .map_or(Capture::Idle, |&(capture, _)| capture))
    }

    fn capture_id(&self, stream: Stream) -> Result<u64, DriverError> {
        let state = self.call("cuStreamGetCaptureInfo", &stream_name(stream))?;
        Ok(state.captures.get(&stream.raw()).map_or(0, |&(_, id)| id))
    }

    fn capture_graph(&self, stream: Stream) -> Result<Option<(u64, Graph)>, DriverError> {
        let id = self.capture_id(stream)?;
        Ok(NonZeroU64::new(id).map(|number| (id, Graph(number))))
    }

    unsafe fn user_object_create(
        &self,
        data: *mut c_void,
        destroy: HostFunction,
    ) -> Result<UserObject, DriverError> {
        let mut state = self.call("cuUserObjectCreate", "")?;
        let number = NonZeroU64::MIN.saturating_add(state.objects.len() as u64);
        let data = data.expose_provenance();
        let kept = Kept { data, destroy };
        state.objects.insert(UserObject(number), kept);
        Ok(UserObject(number))
    }

    fn graph_retain(&self, graph: Graph, object: UserObject) -> Result<(), DriverError> {
        let mut state = self.call("cuGraphRetainUserObject", &format!("{:#x}", graph.0))?;
        let kept = state.objects.remove(&object);
        state.kept.entry(graph).or_default().extend(kept);
        Ok(())
    }

    fn stream_context(&self, stream: Stream) -> Result<Context, DriverError> {
        let state = self.call("cuStreamGetCtx", &stream_name(stream))?;
        state.context_of("cuStreamGetCtx", stream)
    }

    fn context_id(&self, context: Context) -> Result<ContextId, DriverError> {
        let state = self.call("cuCtxGetId", &format!("{:#x}", context.0))?;
        Ok(ContextId(
            state.ids.get(&context).copied().unwrap_or(context.0.get()),
        ))
    }

    fn current_context(&self) -> Result<Option<Context>, DriverError> {
        let state = self.call("cuCtxGetCurrent", "")?;
        Ok(state.current())
    }

    fn push_current_context(&self, context: Context) -> Result<(), DriverError> {
        let mut state = self.call("cuCtxPushCurrent", &format!("{:#x}", context.0))?;
        state.stack().push(context);
        Ok(())
    }

    fn pop_current_context(&self) -> Result<Option<Context>, DriverError> {
        let mut state = self.call("cuCtxPopCurrent", "")?;
        let popped = state.stack().pop();
        popped
            .map(Some)
            .ok_or(DriverError::new("cuCtxPopCurrent", 201))
    }

    fn set_current_context(&self, context: Option<Context>) -> Result<(), DriverError> {
        let handle = context.map_or(0, |context| context.0.get());
        let mut state = self.call("cuCtxSetCurrent", &format!("{handle:#x}"))?;
        state.replace(context);
        Ok(())
    }

    fn current_device(&self) -> Result<i32, DriverError> {
        let state = self.call("cuCtxGetDevice", "")?;
        let current = state.current();
        let mut primaries = state.primaries.iter();
        let of = primaries.find(|(_, (context, _))| Some(*context) == current);
        Ok(of.map_or(0, |(&ordinal, _)| ordinal))
    }

    fn primary_context_active(&self, ordinal: i32) -> Result<bool, DriverError> {
        let state = self.call("cuDevicePrimaryCtxGetState", &ordinal.to_string())?;
        Ok(state
            .primaries
            .get(&ordinal)
            .is_some_and(|&(_, count)| count > 0))
    }

    fn primary_context_retain(&self, ordinal: i32) -> Result<Context, DriverError> {
        let mut state = self.call("cuDevicePrimaryCtxRetain", &ordinal.to_string())?;
        let primary = state.primaries.get_mut(&ordinal);
        let (context, count) = primary.ok_or(DriverError::new("cuDevicePrimaryCtxRetain", 101))?;
        *count += 1;
        Ok(*context)
    }

    fn primary_context_release(&self, ordinal: i32) -> Result<(), DriverError> {
        let mut state = self.call("cuDevicePrimaryCtxRelease", &ordinal.to_string())?;
        let primary = state
            .primaries
            .get_mut(&ordinal)
            .filter(|(_, count)| *count > 0);
        primary
            .ok_or(DriverError::new("cuDevicePrimaryCtxRelease", 201))?
            .1 -= 1;
        Ok(())
    }

    fn event_create(&self) -> Result<Event, DriverError> {
        let mut state = self.call("cuEventCreate", "")?;
        state.new_event("cuEventCreate")
    }

    fn event_record(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let arguments = format!("{:#x} {}", event.0, stream_name(stream));
        let state = self.call("cuEventRecord", &arguments)?;
        let stream_context = state.context_of("cuEventRecord", stream)?;
        match state.events.get(&event) {
            Some(context) if *context == stream_context => Ok(()),
            _ => Err(DriverError::new("cuEventRecord", 400)),
        }
    }

    fn event_wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let arguments = format!("{} {:#x}", stream_name(stream), event.0);
        let state = self.call("cuStreamWaitEvent", &arguments)?;
        state.context_of("cuStreamWaitEvent", stream)?;
        match state.events.contains_key(&event) {
            true => Ok(()),
            false => Err(DriverError::new("cuStreamWaitEvent", 400)),
        }
    }

    fn event_destroy(&self, event: Event) -> Result<(), DriverError> {
        let mut state = self.call("cuEventDestroy", &format!("{:#x}", event.0))?;
        match state.events.remove(&event) {
            Some(_) => Ok(()),
            None => Err(DriverError::new("cuEventDestroy", 400)),
        }
    }

    fn event_query(&self, event: Event) -> Result<bool, DriverError> {
        // `CUDA_ERROR_NOT_READY` tells that the mark has not been reached.
        match self.call("cuEventQuery", &format!("{:#x}", event.0)) {
            Err(error) if error.code() == Some(600) => Ok(false),
            told => told.map(|_| true),
        }
    }

    fn stream_create(&self) -> Result<Stream, DriverError> {
        let mut state = self.call("cuStreamCreate", "")?;
        let context = state.thread_context("cuStreamCreate")?;
        state.made += 1;
        let handle = 0x5_0000 + state.made;
        state.streams.insert(handle, context);
        Ok(Stream::from_raw(handle))
    }

    fn stream_destroy(&self, stream: Stream) -> Result<(), DriverError> {
        let mut state = self.call("cuStreamDestroy", &stream_name(stream))?;
        match state.streams.remove(&stream.raw()) {
            Some(_) => Ok(()),
            None => Err(DriverError::new("cuStreamDestroy", 400)),
        }
    }

    fn stream_id(&self, stream: Stream) -> Result<u64, DriverError> {
        let state = self.call("cuStreamGetId", &stream_name(stream))?;
        state.context_of("cuStreamGetId", stream)?;
        let captured = state.captures.get(&stream.raw());
        let is_idle = captured.is_none_or(|&(capture, _)| capture == Capture::Idle);
        assert!(is_idle, "cuStreamGetId breaks a capture");
        Ok(stream.raw())
    }

    fn stream_synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        let state = self.call("cuStreamSynchronize", &stream_name(stream))?;
        state.context_of("cuStreamSynchronize", stream).map(|_| ())
    }

    fn context_synchronize(&self) -> Result<(), DriverError> {
        let state = self.call("cuCtxSynchronize", "")?;
        state.thread_context("cuCtxSynchronize").map(|_| ())
    }

    fn concurrent_managed_access(&self, ordinal: i32) -> Result<bool, DriverError> {
        let state = self.call("cuDeviceGetAttribute", &format!("89 {ordinal}"))?;
        Ok(!state.exclusive.contains(&ordinal))
    }

    fn exclusive_devices(&self) -> Result<Vec<i32>, DriverError> {
        Ok(self.lock().exclusive.clone())
    }

    fn alloc(&self, nbytes: u64) -> Result<u64, DriverError> {
        let mut state = self.call("cuMemAlloc", &nbytes.to_string())?;
        let context = state.thread_context("cuMemAlloc").ok();
        Ok(state.allocate(nbytes, MemoryKind::Device, context))
    }

    fn alloc_async(&self, nbytes: u64, stream: Stream) -> Result<u64, DriverError> {
        let mut state = self.call(
            "cuMemAllocAsync",
            &format!("{nbytes} {}", stream_name(stream)),
        )?;
        Ok(state.allocate(nbytes, MemoryKind::Device, None))
    }

    fn alloc_managed(&self, nbytes: u64) -> Result<u64, DriverError> {
        let mut state = self.call("cuMemAllocManaged", &nbytes.to_string())?;
        let context = state.thread_context("cuMemAllocManaged").ok();
        Ok(state.allocate(nbytes, MemoryKind::Managed, context))
    }

    fn alloc_pinned(&self, nbytes: u64) -> Result<u64, DriverError> {
        let mut state = self.call("cuMemHostAlloc", &nbytes.to_string())?;
        let context = state.thread_context("cuMemHostAlloc").ok();
        Ok(state.allocate(nbytes, MemoryKind::Pinned, context))
    }

    fn exchange_capture_mode(&self, mode: u32) -> Result<u32, DriverError> {
        let name = "cuThreadExchangeStreamCaptureMode";
        self.call(name, &mode.to_string()).map(|_| 0)
    }

    unsafe fn free(&self, pointer: u64) -> Result<(), DriverError> {
        let mut state = self.call("cuMemFree", &format!("{pointer:#x}"))?;
        // SAFETY: this function's contract.
        unsafe { state.free(pointer) };
        Ok(())
    }

    unsafe fn free_pinned(&self, pointer: u64) -> Result<(), DriverError> {
        let mut state = self.call("cuMemFreeHost", &format!("{pointer:#x}"))?;
        // SAFETY: this function's contract.
        unsafe { state.free(pointer) };
        Ok(())
    }

    unsafe fn copy_async(
        &self,
        to: u64,
        from: u64,
        nbytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError> {
        let arguments = format!("{to:#x} {from:#x} {nbytes} {}", stream_name(stream));
        let state = self.call("cuMemcpyAsync", &arguments)?;
        // SAFETY: this function's contract, for real memory; the copy is made at once.
        unsafe { state.copy(to, from, nbytes) };
        Ok(())
    }

    unsafe fn copy_peer_async(
        &self,
        (to, there): (u64, Context),
        (from, here): (u64, Context),
        nbytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError> {
        let [there, here] = [there, here].map(|context| context.0);
        let stream = stream_name(stream);
        let arguments = format!("{to:#x} {there:#x} {from:#x} {here:#x} {nbytes} {stream}");
        let state = self.call("cuMemcpyPeerAsync", &arguments)?;
        // SAFETY: this function's contract, for real memory; the copy is made at once.
        unsafe { state.copy(to, from, nbytes) };
        Ok(())
    }

    unsafe fn host_function(
        &self,
        stream: Stream,
        function: HostFunction,
        data: *mut c_void,
    ) -> Result<(), DriverError> {
        let state = self.call("cuLaunchHostFunc", &stream_name(stream))?;
        let runs = state.memory.is_some();
        drop(state);
        if runs {
            // SAFETY: called once, by this function's contract.
            unsafe { function(data) };
        }
        Ok(())
    }

    unsafe fn copy_2d_async(&self, copy: &Copy2d, stream: Stream) -> Result<(), DriverError> {
        let Copy2d {
            to,
            to_pitch,
            from,
            from_pitch,
            width,
            height,
        } = copy;
        let stream = stream_name(stream);
        let arguments =
            format!("{to:#x}/{to_pitch} {from:#x}/{from_pitch} {width}x{height} {stream}");
        let state = self.call("cuMemcpy2DAsync", &arguments)?;
        for row in 0..*height {
            // SAFETY: this function's contract, for real memory; the copy is made at once.
            unsafe { state.copy(to + row * to_pitch, from + row * from_pitch, *width) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::driver;

    /// The script that this thread's `driver()` reaches, by the call that it writes down.
    fn is_reached(script: &Script) -> bool {
        let before = script.count("cuCtxGetCurrent");
        let _ = driver().map(|driver| driver.current_context());
        script.count("cuCtxGetCurrent") > before
    }

    #[test]
    fn an_installed_driver_is_this_threads_until_the_guard_goes() {
        let (outer, inner) = (Script::leak(), Script::leak());
        let guard = install(outer);
        assert!(is_reached(outer));
        let nested = install(inner);
        assert!(is_reached(inner) && !is_reached(outer));
        drop(nested);
        assert!(is_reached(outer));
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| is_reached(outer)).join());
        assert!(
            !elsewhere.expect("a thread"),
            "another thread has the real one"
        );
        drop(guard);
        assert!(!is_reached(outer));
    }
}
