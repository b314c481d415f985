//! The CUDA driver, as little of it as array interchange needs.
//!
//! Nothing here panics because a library, a symbol or a device is missing: everything works without a
//! driver until it needs one, and then returns a [`DriverError`], which is all that is public here. The calls
//! themselves stay inside: a driver believes the handles that it is given.
//!
//! ```
//! use cai_dlpack::driver::DriverError;
//!
//! // The error of a call that needs a driver, on a machine without one.
//! let error = DriverError::ABSENT;
//! assert!(error.is_absent());
//! assert_eq!((error.call(), error.code()), ("cuInit", None));
//! ```
//!
//! # Handles
//! Streams, contexts and events are numbers here, as they are in both protocols: a CAI dict says
//! `'stream': 94143`, and nothing can prove that this is still a stream. The driver checks what it
//! can and returns `CUDA_ERROR_INVALID_HANDLE`; that the handle lives is the producer's promise
//! (CAI v3, "Lifetime management": the stream lives as long as the object that exported it), and in Rust
//! that of a [`LiveStream`](crate::view::LiveStream), which the safe functions take.
//!
//! **Features.** What only Python's side asks (`join`, `in_use`) stands here without a `cfg` of its own: a build
//! without the feature `pyo3` leaves it unused, and is told so once, below.
#![cfg_attr(
    not(feature = "pyo3"),
    allow(
        dead_code,
        unused_imports,
        reason = "questions that only Python's side asks"
    )
)]

// `Driver` is the seam. Behind it stand libcuda (`cuda.rs`, loaded on first use) and, in tests,
// `script::Script`, which answers from tables and writes down every call. `order()` carries out what
// `protocol::stream::plan` decides.

use std::ffi::c_void;
use std::num::NonZeroU64;

use crate::protocol::stream::{Capture, Stream};

mod calls;
mod context;
mod copy_plan;
mod cuda;
mod error;
pub(crate) mod ipc;
mod join;
mod lease;
pub(crate) mod order;
mod pending;
mod place;
mod pool;
mod relaxed;
mod rocm;
#[cfg(test)]
pub(crate) mod script;

pub(crate) use calls::Noting;
pub(crate) use context::{ContextGuard, KeptPrimary, Primaries, UNTOLD, context_meant, is_primary};
pub(crate) use copy_plan::{CopyPlan, copy_strided};
pub use error::DriverError;
pub(crate) use error::{Refusal, twice, unless_ended};
#[cfg(feature = "pyo3")]
pub(crate) use join::check_join;
pub(crate) use join::{Joined, join};
pub(crate) use lease::{Lease, PrivateStream};
pub(crate) use order::foresee;
pub(crate) use order::{Back, Done, begin, needed, order, order_within, refused, synchronize};
pub(crate) use pending::Pending;
pub(crate) use place::{Defaults, Place};
pub(crate) use pool::Pool;
pub(crate) use relaxed::{OwnThread, Relaxed};
pub(crate) use rocm::is_rocm;

/// A `CUcontext`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Context(pub NonZeroU64);

/// What a context is, as opposed to the handle that it has: `cuCtxGetId`'s answer, which is unique
/// for the life of the process, or the handle itself on drivers before CUDA 12.0.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ContextId(pub u64);

/// A `CUevent`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Event(pub NonZeroU64);

/// A `CUgraph`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Graph(pub NonZeroU64);

/// A `CUuserObject`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct UserObject(pub NonZeroU64);

/// What kind of memory a pointer points to.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum MemoryKind {
    /// Memory of one device.
    Device,
    /// Memory that moves between host and devices (`cuMemAllocManaged`).
    Managed,
    /// Host memory known to the driver: page-locked, registered or mapped.
    Pinned,
    /// Not known to the driver.
    Unknown,
}

/// The result of one `cuPointerGetAttributes` call.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct PointerInfo {
    /// What kind of memory it is.
    pub(crate) kind: MemoryKind,
    /// The device that the memory belongs to; negative if the pointer is unknown.
    pub(crate) ordinal: i32,
    /// The address to use in device code; 0 if there is none.
    pub(crate) device_pointer: u64,
    /// The address to use on the host; 0 if there is none.
    pub(crate) host_pointer: u64,
    /// The context of the allocation; `None` if the driver does not name one (memory of a
    /// stream-ordered pool, virtual memory management).
    pub(crate) context: Option<Context>,
    /// Start and size in bytes of the allocation; `None` if it was not asked for, or if the
    /// driver does not know it.
    pub(crate) range: Option<(u64, u64)>,
    /// Whether memory stands behind the address; false for a reserved range with nothing mapped.
    pub(crate) mapped: bool,
}

/// One rectangular copy: `height` rows of `width` bytes, `pitch` bytes apart at either end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Copy2d {
    /// The first byte to write.
    pub(crate) to: u64,
    /// Bytes from one written row to the next.
    pub(crate) to_pitch: u64,
    /// The first byte to read.
    pub(crate) from: u64,
    /// Bytes from one read row to the next.
    pub(crate) from_pitch: u64,
    /// Bytes in a row, at most the smaller pitch.
    pub(crate) width: u64,
    /// Rows.
    pub(crate) height: u64,
}

/// The calls of the CUDA driver that array interchange needs.
///
/// Every function is one driver call unless documented otherwise, does not lock, and may be called
/// from any thread. Every error is a [`DriverError`] that names the call and carries the driver's code,
/// or tells that the driver or the function is not there.
/// Contexts are per thread, as in the driver: "current" means the calling thread's.
pub(crate) trait Driver: ipc::Ipc + Send + Sync {
    /// The idle events and streams of this driver: they live as long as it does. Not a driver call.
    fn pool(&self) -> &Pool;

    /// The primary contexts that were met. Not a driver call.
    fn primaries(&self) -> &Primaries;

    /// The number of devices. Source: `cuDeviceGetCount`.
    fn device_count(&self) -> Result<i32, DriverError>;

    /// Kind, device, context and, with `want_range`, bounds of the allocation behind an address.
    /// An address that the driver does not know is no error: [`MemoryKind::Unknown`].
    /// Needs no current context. Source: `cuPointerGetAttributes`.
    fn pointer_info(&self, pointer: u64, want_range: bool) -> Result<PointerInfo, DriverError>;

    /// Returns whether the stream is being captured. The documented codes that are states, not failures,
    /// come back as such: `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` is [`Capture::BlocksLegacy`] ("the
    /// blocking stream capture is not invalidated" by the question).
    /// A default stream is the current context's. Source: `cuStreamIsCapturing`.
    fn capture(&self, stream: Stream) -> Result<Capture, DriverError>;

    /// The number of the capture that a capturing stream takes part in, unique in the process; 0
    /// if it is not capturing. Source: `cuStreamGetCaptureInfo`, in the version that is there.
    fn capture_id(&self, stream: Stream) -> Result<u64, DriverError>;

    /// The number of the capture that a capturing stream takes part in, and the graph that it makes; `None` if it is not
    /// capturing. Source: `cuStreamGetCaptureInfo_v2` (CUDA 11.3).
    fn capture_graph(&self, stream: Stream) -> Result<Option<(u64, Graph)>, DriverError>;

    /// An object with one reference. Source: `cuUserObjectCreate` (CUDA 11.3).
    ///
    /// # Safety
    /// - `destroy` may be called with `data` once, on any thread.
    /// - It calls no function of the driver.
    unsafe fn user_object_create(
        &self,
        data: *mut c_void,
        destroy: HostFunction,
    ) -> Result<UserObject, DriverError>;

    /// Gives a graph the caller's reference to an object: the object stays until the graph, its clones, what was
    /// instantiated of them, and their launches are gone. Source: `cuGraphRetainUserObject` with
    /// `CU_GRAPH_USER_OBJECT_MOVE` (CUDA 11.3).
    fn graph_retain(&self, graph: Graph, object: UserObject) -> Result<(), DriverError>;

    /// The context that a stream with a handle was created in. Source: `cuStreamGetCtx`.
    fn stream_context(&self, stream: Stream) -> Result<Context, DriverError>;

    /// What a context is, beyond its handle. Source: `cuCtxGetId` (CUDA 12.0); without it the
    /// handle, and no call.
    fn context_id(&self, context: Context) -> Result<ContextId, DriverError>;

    /// The calling thread's context. Source: `cuCtxGetCurrent`.
    fn current_context(&self) -> Result<Option<Context>, DriverError>;

    /// Makes a context current above the calling thread's. Source: `cuCtxPushCurrent`.
    fn push_current_context(&self, context: Context) -> Result<(), DriverError>;

    /// Takes the current context away, and returns it: the one below is current, whether it is alive or not.
    /// Source: `cuCtxPopCurrent`.
    fn pop_current_context(&self) -> Result<Option<Context>, DriverError>;

    /// Replaces the calling thread's context, which must be alive: the driver reads what it is; `None` takes it away.
    /// Source: `cuCtxSetCurrent`.
    fn set_current_context(&self, context: Option<Context>) -> Result<(), DriverError>;

    /// The device of the calling thread's context. Source: `cuCtxGetDevice`.
    fn current_device(&self) -> Result<i32, DriverError>;

    /// Whether anyone keeps the device's primary context alive. Source: `cuDevicePrimaryCtxGetState`.
    fn primary_context_active(&self, ordinal: i32) -> Result<bool, DriverError>;

    /// The device's primary context, kept alive until released. Source: `cuDevicePrimaryCtxRetain`.
    fn primary_context_retain(&self, ordinal: i32) -> Result<Context, DriverError>;

    /// Undoes one retain. Source: `cuDevicePrimaryCtxRelease`.
    fn primary_context_release(&self, ordinal: i32) -> Result<(), DriverError>;

    /// An event of the current context that takes no time stamps. Source: `cuEventCreate` with
    /// `CU_EVENT_DISABLE_TIMING`.
    fn event_create(&self) -> Result<Event, DriverError>;

    /// Marks what is enqueued on `stream` now. Event and stream must be of one context.
    /// Source: `cuEventRecord`.
    fn event_record(&self, event: Event, stream: Stream) -> Result<(), DriverError>;

    /// Makes all later work of `stream` wait for the event's latest mark; other contexts and
    /// devices are legal. The event may be marked anew or destroyed right away.
    /// Source: `cuStreamWaitEvent`.
    fn event_wait(&self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Destroys an event; marks that streams wait for stay valid. Source: `cuEventDestroy`.
    fn event_destroy(&self, event: Event) -> Result<(), DriverError>;

    /// Returns whether the event's latest mark has been reached. Source: `cuEventQuery`.
    fn event_query(&self, event: Event) -> Result<bool, DriverError>;

    /// Creates a stream of the current context that is not ordered with the default streams. Source:
    /// `cuStreamCreate` with `CU_STREAM_NON_BLOCKING`.
    fn stream_create(&self) -> Result<Stream, DriverError>;

    /// Destroys a stream of [`stream_create`](Self::stream_create). Source: `cuStreamDestroy`.
    fn stream_destroy(&self, stream: Stream) -> Result<(), DriverError>;

    /// Returns what a stream is, beyond its handle: unique for the life of the process. Source:
    /// `cuStreamGetId` (CUDA 12.0).
    fn stream_id(&self, stream: Stream) -> Result<u64, DriverError>;

    /// Blocks until the stream's work is done. A default stream is the current context's. Made in [`Relaxed`] mode: in its
    /// own the thread is refused beside a capture, another thread's too, which the call breaks. Source:
    /// `cuStreamSynchronize`.
    fn stream_synchronize(&self, stream: Stream) -> Result<(), DriverError>;

    /// Blocks until all work of the current context is done. Source: `cuCtxSynchronize`.
    fn context_synchronize(&self) -> Result<(), DriverError>;

    /// Whether the host may touch managed memory while the device works. Source:
    /// `cuDeviceGetAttribute` of `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
    fn concurrent_managed_access(&self, ordinal: i32) -> Result<bool, DriverError>;

    /// The devices that want managed memory to themselves while they work. Asked once, by the call above for each
    /// device; not a driver call afterwards.
    fn exclusive_devices(&self) -> Result<Vec<i32>, DriverError>;

    /// `nbytes` of the current context's memory; the address. Source: `cuMemAlloc`.
    fn alloc(&self, nbytes: u64) -> Result<u64, DriverError>;

    /// `nbytes` of the pool of the stream's device, for work that comes after on `stream`. Source:
    /// `cuMemAllocAsync` (CUDA 11.2).
    fn alloc_async(&self, nbytes: u64, stream: Stream) -> Result<u64, DriverError>;

    /// `nbytes` of managed memory, reachable from the host and every device. Source:
    /// `cuMemAllocManaged` with `CU_MEM_ATTACH_GLOBAL`.
    fn alloc_managed(&self, nbytes: u64) -> Result<u64, DriverError>;

    /// `nbytes` of pinned host memory, for every context. Source: `cuMemHostAlloc` with
    /// `CU_MEMHOSTALLOC_PORTABLE`.
    fn alloc_pinned(&self, nbytes: u64) -> Result<u64, DriverError>;

    /// Which calls a capture forbids this thread, from now on; what held before. To allocate, to free, to wait for a stream
    /// or an event and to ask whether it is done is forbidden by another thread's capture too, and invalidates it, unless
    /// this thread's mode is [`Relaxed`]. Source: `cuThreadExchangeStreamCaptureMode`, and a driver's answers
    /// (docs/cusim.md).
    fn exchange_capture_mode(&self, mode: u32) -> Result<u32, DriverError>;

    /// Gives memory back; waits for all work of the context that it was allocated in, and for no other's on that device.
    /// Source: `cuMemFree`: "causes the GPU to synchronize across all executing CUDA streams" (CUDA programming guide,
    /// stream-ordered allocator), and a driver's answer (docs/cusim.md). Memory of a pool is freed without a wait: "the
    /// driver assumes that all accesses to the allocation are complete and performs no further synchronization" (the
    /// guide).
    ///
    /// # Safety
    /// - `pointer` came from [`alloc`](Self::alloc), [`alloc_async`](Self::alloc_async) or
    ///   [`alloc_managed`](Self::alloc_managed) and was not freed.
    /// - Memory of a pool: no work that uses it is pending.
    /// - Nothing uses the memory later.
    unsafe fn free(&self, pointer: u64) -> Result<(), DriverError>;

    /// Gives pinned memory back, as [`free`](Self::free) does. Source: `cuMemFreeHost`.
    ///
    /// # Safety
    /// - `pointer` came from [`alloc_pinned`](Self::alloc_pinned) and was not freed.
    /// - Nothing uses the memory later.
    unsafe fn free_pinned(&self, pointer: u64) -> Result<(), DriverError>;

    /// Copies `nbytes` between any two addresses of the unified address space, in stream order.
    /// Source: `cuMemcpyAsync`.
    ///
    /// # Safety
    /// - `nbytes` are readable at `from` and writable at `to` until the copy is done, and nothing
    ///   else writes to either meanwhile.
    unsafe fn copy_async(
        &self,
        to: u64,
        from: u64,
        nbytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError>;

    /// Copies `nbytes` from memory of one device to memory of another, in stream order, whether or not the devices reach
    /// each other's: `cuMemcpyAsync` does not copy memory of a pool between devices that do not. Each end has its memory's
    /// context. Source: `cuMemcpyPeerAsync`.
    ///
    /// # Safety
    /// - As [`copy_async`](Self::copy_async).
    unsafe fn copy_peer_async(
        &self,
        to: (u64, Context),
        from: (u64, Context),
        nbytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError>;

    /// Runs `function` on a thread of the driver, in stream order, unless the stream's work has failed before.
    /// Source: `cuLaunchHostFunc`.
    ///
    /// # Safety
    /// - `function` may be called with `data` once, on any thread, until the stream's work is done.
    /// - It calls no function of the driver.
    unsafe fn host_function(
        &self,
        stream: Stream,
        function: HostFunction,
        data: *mut c_void,
    ) -> Result<(), DriverError>;

    /// Copies rows, in stream order. Source: `cuMemcpy2DAsync` with `CU_MEMORYTYPE_UNIFIED`.
    ///
    /// # Safety
    /// - Every row is readable and writable as [`copy_async`](Self::copy_async) demands.
    unsafe fn copy_2d_async(&self, copy: &Copy2d, stream: Stream) -> Result<(), DriverError>;
}

/// `CUhostFn`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The process's CUDA driver, loaded and initialised on first use.
///
/// Success is remembered; absence is not, so that a driver that appears later is found.
///
/// # Errors
/// A [`DriverError`] that names what is missing: the library, a function of it, or a device
/// (`cuInit`'s own code).
pub(crate) fn driver() -> Result<&'static dyn Driver, DriverError> {
    #[cfg(test)]
    if let Some(script) = script::installed() {
        return Ok(script);
    }
    cuda::driver().map(|driver| driver as &dyn Driver)
}

/// The driver, if this library has used it already: nothing is loaded.
pub(crate) fn in_use() -> Option<&'static dyn Driver> {
    cuda::in_use().map(|driver| driver as &dyn Driver)
}

/// Whether any memory may be a device's: false if the process has loaded no driver since a search found none.
pub(crate) fn may_have_memory() -> bool {
    cuda::may_have_memory()
}

/// Compiles and runs the Rust blocks of docs/streams.md.
#[cfg(doctest)]
#[doc = include_str!("../../docs/streams.md")]
struct StreamsPage;
