//! libcuda, loaded on first use, each function looked up once by its exported name.
//!
//! # Why not cudarc's own wrappers
//! 1. They panic if a function is missing, and a driver older than the caller's expectation is
//!    a fact of life: here each function is an `Option`.
//! 2. They exist or not by the CUDA version feature that the *final* crate picks (two of them
//!    together do not compile), so a library that must build under every version cannot name them.
//! 3. They return `CUresult` as a Rust enum; a code that a newer driver invents would be undefined
//!    behaviour. Here it is a `u32`.
//! 4. Their `Display` does not say which call failed.
//!
//! Exported names keep their binary interface for ever (`cuEventDestroy_v2`); only the header's
//! macros move on. The signatures below are those of the CUDA Driver API reference.

mod ipc;
mod library;
// Miri calls no library.
#[cfg(all(test, not(miri)))]
mod simulated;
#[cfg(all(test, not(miri)))]
mod simulator;

use std::ffi::c_void;
use std::mem;
use std::num::NonZeroU64;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

pub(super) use library::loads;

use super::ipc::{EventHandle, MemoryHandle, Uuid};
use super::{
    Context, ContextId, Copy2d, Driver, DriverError, Event, Graph, HostFunction, MemoryKind,
    PointerInfo, Pool, Primaries, Relaxed, UserObject, calls,
};
use crate::process::fork;
use crate::protocol::stream::{Capture, Stream};

/// The driver, once it has been loaded. No cell that a second thread waits for: a thread of Rust's loads
/// without the GIL, so that another one may fork meanwhile, and the child would wait for ever.
static LOADED: AtomicPtr<Cuda> = AtomicPtr::new(ptr::null_mut());

fn loaded() -> Option<&'static Cuda> {
    // SAFETY: null, or from a box that `driver` gave up for the life of the process.
    unsafe { LOADED.load(Ordering::Acquire).as_ref() }
}

/// The process's driver, if it has been loaded.
pub(super) fn in_use() -> Option<&'static Cuda> {
    loaded().filter(|cuda| cuda.generation == fork::generation())
}

/// Whether any memory may be a device's: false if the process has loaded no driver since a search found none.
pub(super) fn may_have_memory() -> bool {
    loaded().is_some() || library::may_be_loaded()
}

/// The process's driver: loaded and initialised by the first call that succeeds.
///
/// A forked child is refused its parent's: no call of it would succeed, and a lock of the pool may have been
/// another thread's at the fork, which no thread of the child gives back.
pub(super) fn driver() -> Result<&'static Cuda, DriverError> {
    match loaded() {
        Some(cuda) if cuda.generation == fork::generation() => Ok(cuda),
        Some(_) => Err(DriverError::FORKED),
        None => Cuda::load().map(keep),
    }
}

/// Keeps the driver for the process, or the one that another thread has kept meanwhile.
#[cold]
fn keep(cuda: Cuda) -> &'static Cuda {
    let own = Box::into_raw(Box::new(cuda));
    let (none, keeps) = (ptr::null_mut(), (Ordering::AcqRel, Ordering::Acquire));
    let kept = match LOADED.compare_exchange(none, own, keeps.0, keeps.1) {
        Ok(_) => own,
        Err(other) => {
            // SAFETY: from `Box::into_raw`, and no other thread has seen it.
            drop(unsafe { Box::from_raw(own) });
            other
        }
    };
    // SAFETY: a live box that is never dropped.
    unsafe { &*kept }
}

/// `CUresult`.
type Code = u32;
/// `CUstream`, `CUcontext`, `CUevent`: opaque pointers.
type Handle = *mut c_void;

/// Declares the driver's functions: field, name in errors, exported name, parameters.
macro_rules! functions {
    ($($field:ident $name:literal $exported:literal ($($parameter:ty),*);)*) => {
        /// The driver's functions; `None` if this driver has none of that name.
        struct Functions {
            $($field: Option<unsafe extern "C" fn($($parameter),*) -> Code>,)*
        }

        impl Functions {
            /// Looks every name up in the library, which must stay loaded while they are called.
            fn find(library: &Library) -> Functions {
                Functions {
                    $($field: {
                        // SAFETY: the exported name has this signature (Driver API reference); a
                        // nullable function pointer is one pointer wide, as a symbol is.
                        let found = unsafe { library.get(concat!($exported, "\0").as_bytes()) };
                        found.ok().and_then(|symbol| *symbol)
                    },)*
                }
            }

            $(fn $field(&self) -> Result<unsafe extern "C" fn($($parameter),*) -> Code, DriverError> {
                let call = self.$field.ok_or(DriverError::missing($name))?;
                calls::note($name);
                Ok(call)
            })*
        }
    };
}

functions! {
    init "cuInit" "cuInit" (u32);
    device_get "cuDeviceGet" "cuDeviceGet" (*mut i32, i32);
    device_count "cuDeviceGetCount" "cuDeviceGetCount" (*mut i32);
    device_attribute "cuDeviceGetAttribute" "cuDeviceGetAttribute" (*mut i32, u32, i32);
    pointer_attributes "cuPointerGetAttributes" "cuPointerGetAttributes"
        (u32, *const u32, *const *mut u64, u64);
    is_capturing "cuStreamIsCapturing" "cuStreamIsCapturing" (Handle, *mut u32);
    capture_info "cuStreamGetCaptureInfo" "cuStreamGetCaptureInfo" (Handle, *mut u32, *mut u64);
    capture_info_v2 "cuStreamGetCaptureInfo" "cuStreamGetCaptureInfo_v2"
        (Handle, *mut u32, *mut u64, *mut Handle, *mut *const Handle, *mut usize);
    user_object "cuUserObjectCreate" "cuUserObjectCreate"
        (*mut Handle, *mut c_void, HostFunction, u32, u32);
    graph_retain "cuGraphRetainUserObject" "cuGraphRetainUserObject" (Handle, Handle, u32, u32);
    stream_context "cuStreamGetCtx" "cuStreamGetCtx" (Handle, *mut Handle);
    context_id "cuCtxGetId" "cuCtxGetId" (Handle, *mut u64);
    current_context "cuCtxGetCurrent" "cuCtxGetCurrent" (*mut Handle);
    push_current_context "cuCtxPushCurrent" "cuCtxPushCurrent_v2" (Handle);
    pop_current_context "cuCtxPopCurrent" "cuCtxPopCurrent_v2" (*mut Handle);
    set_current_context "cuCtxSetCurrent" "cuCtxSetCurrent" (Handle);
    current_device "cuCtxGetDevice" "cuCtxGetDevice" (*mut i32);
    context_synchronize "cuCtxSynchronize" "cuCtxSynchronize" ();
    primary_state "cuDevicePrimaryCtxGetState" "cuDevicePrimaryCtxGetState"
        (i32, *mut u32, *mut i32);
    primary_retain "cuDevicePrimaryCtxRetain" "cuDevicePrimaryCtxRetain" (*mut Handle, i32);
    primary_release "cuDevicePrimaryCtxRelease" "cuDevicePrimaryCtxRelease_v2" (i32);
    event_create "cuEventCreate" "cuEventCreate" (*mut Handle, u32);
    event_record "cuEventRecord" "cuEventRecord" (Handle, Handle);
    event_wait "cuStreamWaitEvent" "cuStreamWaitEvent" (Handle, Handle, u32);
    event_destroy "cuEventDestroy" "cuEventDestroy_v2" (Handle);
    event_query "cuEventQuery" "cuEventQuery" (Handle);
    stream_create "cuStreamCreate" "cuStreamCreate" (*mut Handle, u32);
    stream_destroy "cuStreamDestroy" "cuStreamDestroy_v2" (Handle);
    stream_id "cuStreamGetId" "cuStreamGetId" (Handle, *mut u64);
    stream_synchronize "cuStreamSynchronize" "cuStreamSynchronize" (Handle);
    host_function "cuLaunchHostFunc" "cuLaunchHostFunc" (Handle, HostFunction, *mut c_void);
    alloc "cuMemAlloc" "cuMemAlloc_v2" (*mut u64, usize);
    alloc_async "cuMemAllocAsync" "cuMemAllocAsync" (*mut u64, usize, Handle);
    alloc_managed "cuMemAllocManaged" "cuMemAllocManaged" (*mut u64, usize, u32);
    alloc_pinned "cuMemHostAlloc" "cuMemHostAlloc" (*mut u64, usize, u32);
    capture_mode "cuThreadExchangeStreamCaptureMode" "cuThreadExchangeStreamCaptureMode" (*mut u32);
    free_pinned "cuMemFreeHost" "cuMemFreeHost" (u64);
    free "cuMemFree" "cuMemFree_v2" (u64);
    copy_async "cuMemcpyAsync" "cuMemcpyAsync" (u64, u64, usize, Handle);
    copy_peer_async "cuMemcpyPeerAsync" "cuMemcpyPeerAsync" (u64, Handle, u64, Handle, usize, Handle);
    device_uuid "cuDeviceGetUuid" "cuDeviceGetUuid_v2" (*mut Uuid, i32);
    ipc_memory_get "cuIpcGetMemHandle" "cuIpcGetMemHandle" (*mut MemoryHandle, u64);
    ipc_memory_open "cuIpcOpenMemHandle" "cuIpcOpenMemHandle_v2" (*mut u64, MemoryHandle, u32);
    ipc_memory_close "cuIpcCloseMemHandle" "cuIpcCloseMemHandle" (u64);
    ipc_event_get "cuIpcGetEventHandle" "cuIpcGetEventHandle" (*mut EventHandle, Handle);
    ipc_event_open "cuIpcOpenEventHandle" "cuIpcOpenEventHandle" (*mut Handle, EventHandle);
    copy_2d_async "cuMemcpy2DAsync" "cuMemcpy2DAsync_v2" (*const Memcpy2d, Handle);
}

impl Functions {
    fn start(&self) -> Result<(), DriverError> {
        let init = self.init()?;
        // SAFETY: flags must be 0; the call may be repeated and comes before any other.
        check("cuInit", unsafe { init(0) })
    }
}

/// `CUDA_MEMCPY2D`, in the layout of `cuMemcpy2DAsync_v2`.
#[repr(C)]
struct Memcpy2d {
    source: Side<*const c_void>,
    target: Side<*mut c_void>,
    width_in_bytes: usize,
    height: usize,
}

/// The source or target half of [`Memcpy2d`].
#[repr(C)]
struct Side<P> {
    x_in_bytes: usize,
    y: usize,
    memory_type: u32,
    host: P,
    device: u64,
    array: Handle,
    pitch: usize,
}

/// `CU_MEMORYTYPE_UNIFIED`: `device` is an address of the unified address space, on either side.
const UNIFIED: u32 = 4;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: the only flag, which must be set.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: Code = 600;
/// `CU_MEM_ATTACH_GLOBAL`.
const ATTACH_GLOBAL: u32 = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`.
const HOST_ALLOC_PORTABLE: u32 = 1;
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
const CONCURRENT_MANAGED_ACCESS: u32 = 89;
/// `CUDA_ERROR_STUB_LIBRARY`.
const STUB_LIBRARY: Code = 34;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`.
const CAPTURE_IMPLICIT: Code = 906;
/// `CUDA_ERROR_UNKNOWN`: for an answer that the reference does not allow.
const UNKNOWN: Code = 999;

/// `CUpointer_attribute`, in the order of the answers: context, memory type, device pointer, host
/// pointer, managed, ordinal, mapped; and with bounds, start and size of the range.
const ATTRIBUTES: [u32; 9] = [1, 2, 3, 4, 8, 9, 13, 11, 12];
/// How many of them are asked when bounds are not.
const WITHOUT_RANGE: usize = 7;

/// The real driver.
pub(super) struct Cuda {
    functions: Functions,
    pool: Pool,
    primaries: Primaries,
    /// The `CUdevice` of each ordinal that was asked for: it never changes.
    devices: Mutex<Vec<(i32, i32)>>,
    /// Whether some device has no concurrent managed access, once asked.
    exclusive_devices: OnceLock<Vec<i32>>,
    /// The process that loaded it.
    generation: u32,
}

impl Cuda {
    fn load() -> Result<Cuda, DriverError> {
        fork::watch();
        let generation = fork::generation();
        let library = library::open().ok_or(DriverError::ABSENT)?;
        let functions = Functions::find(&library);
        let started = functions.start();
        // A driver stays loaded, whether it started or not. A stub has a driver's soname: while it is loaded, no
        // search of the process finds the driver.
        if !matches!(&started, Err(error) if error.code() == Some(STUB_LIBRARY)) {
            mem::forget(library);
        }
        started?;
        Ok(Cuda {
            functions,
            pool: Pool::new(),
            primaries: Primaries::new(),
            devices: Mutex::default(),
            exclusive_devices: OnceLock::new(),
            generation,
        })
    }

    /// `CUdevice` of an ordinal; asked once.
    fn device(&self, ordinal: i32) -> Result<i32, DriverError> {
        let devices = || self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let known = devices()
            .iter()
            .find(|(known, _)| *known == ordinal)
            .copied();
        if let Some((_, device)) = known {
            return Ok(device);
        }
        let device_get = self.functions.device_get()?;
        let mut device = 0;
        // SAFETY: writes one `CUdevice` to a live local.
        check("cuDeviceGet", unsafe { device_get(&mut device, ordinal) })?;
        devices().push((ordinal, device));
        Ok(device)
    }
}

fn check(call: &'static str, code: Code) -> Result<(), DriverError> {
    match code {
        0 => Ok(()),
        code => Err(DriverError::new(call, code)),
    }
}

fn stream_handle(stream: Stream) -> Handle {
    ptr::without_provenance_mut(stream.raw() as usize)
}

fn handle(number: NonZeroU64) -> Handle {
    ptr::without_provenance_mut(number.get() as usize)
}

/// A handle that a successful call has written, which is then not NULL.
fn made(call: &'static str, handle: Handle) -> Result<NonZeroU64, DriverError> {
    NonZeroU64::new(handle.addr() as u64).ok_or(DriverError::new(call, UNKNOWN))
}

/// The kind of memory, by two attributes of a pointer to it.
const fn pointer_kind(managed: u64, memory_type: u64) -> MemoryKind {
    match (managed as u32, memory_type as u32) {
        (0, 1) => MemoryKind::Pinned,
        (0, 2) => MemoryKind::Device,
        (0, _) => MemoryKind::Unknown,
        _ => MemoryKind::Managed,
    }
}

fn pointer_info(slots: [u64; ATTRIBUTES.len()]) -> PointerInfo {
    let [
        context,
        memory_type,
        device_pointer,
        host_pointer,
        managed,
        ordinal,
        mapped,
        start,
        size,
    ] = slots;
    PointerInfo {
        kind: pointer_kind(managed, memory_type),
        ordinal: ordinal as u32 as i32,
        device_pointer,
        host_pointer,
        context: NonZeroU64::new(context).map(Context),
        range: (size != 0).then_some((start, size)),
        mapped: mapped as u32 != 0,
    }
}

impl Driver for Cuda {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn primaries(&self) -> &Primaries {
        &self.primaries
    }

    fn device_count(&self) -> Result<i32, DriverError> {
        let call = self.functions.device_count()?;
        let mut count = 0;
        // SAFETY: writes one int to a live local.
        check("cuDeviceGetCount", unsafe { call(&mut count) })?;
        Ok(count)
    }

    fn pointer_info(&self, pointer: u64, want_range: bool) -> Result<PointerInfo, DriverError> {
        let call = self.functions.pointer_attributes()?;
        let asked = if want_range {
            ATTRIBUTES.len()
        } else {
            WITHOUT_RANGE
        };
        let mut slots = [0_u64; ATTRIBUTES.len()];
        let slot_pointers = slots.each_mut().map(ptr::from_mut);
        // SAFETY: reads `asked` attribute numbers and writes each attribute to its slot. None is
        // wider than 8 bytes (handles, addresses, sizes, ints); a narrower one lands in the low
        // bytes, as every host of CUDA is little-endian, and the rest stays 0. The pointer is not
        // followed: "the attributes are assigned default NULL values" where it is not CUDA's.
        let code = unsafe {
            call(
                asked as u32,
                ATTRIBUTES.as_ptr(),
                slot_pointers.as_ptr(),
                pointer,
            )
        };
        check("cuPointerGetAttributes", code)?;
        Ok(pointer_info(slots))
    }

    fn capture(&self, stream: Stream) -> Result<Capture, DriverError> {
        let call = self.functions.is_capturing()?;
        let mut status = 0;
        // SAFETY: writes one enum to a live local; the stream is a handle that its holder vouches
        // for (`driver`, "Handles").
        match unsafe { call(stream_handle(stream), &mut status) } {
            CAPTURE_IMPLICIT => return Ok(Capture::BlocksLegacy),
            code => check("cuStreamIsCapturing", code)?,
        }
        match status {
            0 => Ok(Capture::Idle),
            1 => Ok(Capture::Active),
            2 => Ok(Capture::Invalidated),
            _ => Err(DriverError::new("cuStreamIsCapturing", UNKNOWN)),
        }
    }

    fn capture_id(&self, stream: Stream) -> Result<u64, DriverError> {
        let stream = stream_handle(stream);
        let (mut status, mut id) = (0, 0);
        let code = match self.functions.capture_info_v2() {
            Ok(call) => {
                let (graph, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
                // SAFETY: writes status and id to live locals; the other outputs are optional and
                // NULL; the stream is a handle that its holder vouches for.
                unsafe { call(stream, &mut status, &mut id, graph, nodes, count) }
            }
            Err(_) => {
                let call = self.functions.capture_info()?;
                // SAFETY: writes status and id to live locals; the stream is a handle that its
                // holder vouches for.
                unsafe { call(stream, &mut status, &mut id) }
            }
        };
        check("cuStreamGetCaptureInfo", code)?;
        Ok(if status == 0 { 0 } else { id })
    }

    fn capture_graph(&self, stream: Stream) -> Result<Option<(u64, Graph)>, DriverError> {
        let call = self.functions.capture_info_v2()?;
        let (mut status, mut id, mut graph) = (0, 0, ptr::null_mut());
        let (nodes, count) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: writes status, id and a handle to live locals; the other outputs are optional and NULL; the stream is a
        // handle that its holder vouches for.
        let code = unsafe {
            call(
                stream_handle(stream),
                &mut status,
                &mut id,
                &mut graph,
                nodes,
                count,
            )
        };
        check("cuStreamGetCaptureInfo", code)?;
        match status {
            0 => Ok(None),
            _ => made("cuStreamGetCaptureInfo", graph).map(|graph| Some((id, Graph(graph)))),
        }
    }

    unsafe fn user_object_create(
        &self,
        data: *mut c_void,
        destroy: HostFunction,
    ) -> Result<UserObject, DriverError> {
        let call = self.functions.user_object()?;
        let mut object = ptr::null_mut();
        // SAFETY: writes one handle to a live local; function and data are as this function's contract demands.
        let code = unsafe { call(&mut object, data, destroy, 1, NO_DESTRUCTOR_SYNC) };
        check("cuUserObjectCreate", code)?;
        made("cuUserObjectCreate", object).map(UserObject)
    }

    fn graph_retain(&self, graph: Graph, object: UserObject) -> Result<(), DriverError> {
        let call = self.functions.graph_retain()?;
        // SAFETY: both are handles that the driver gave; the graph's capture goes on, so that it is alive.
        let code = unsafe { call(handle(graph.0), handle(object.0), 1, MOVE) };
        check("cuGraphRetainUserObject", code)
    }

    fn stream_context(&self, stream: Stream) -> Result<Context, DriverError> {
        let call = self.functions.stream_context()?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle to a live local; the stream is a handle that its holder vouches
        // for.
        check("cuStreamGetCtx", unsafe {
            call(stream_handle(stream), &mut context)
        })?;
        made("cuStreamGetCtx", context).map(Context)
    }

    fn context_id(&self, context: Context) -> Result<ContextId, DriverError> {
        let Ok(call) = self.functions.context_id() else {
            return Ok(ContextId(context.0.get()));
        };
        let mut id = 0;
        // SAFETY: writes one integer to a live local; the context is a handle that the driver gave.
        check("cuCtxGetId", unsafe { call(handle(context.0), &mut id) })?;
        Ok(ContextId(id))
    }

    fn current_context(&self) -> Result<Option<Context>, DriverError> {
        let call = self.functions.current_context()?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle to a live local.
        check("cuCtxGetCurrent", unsafe { call(&mut context) })?;
        Ok(NonZeroU64::new(context.addr() as u64).map(Context))
    }

    fn push_current_context(&self, context: Context) -> Result<(), DriverError> {
        let call = self.functions.push_current_context()?;
        // SAFETY: the context is a handle that the driver gave.
        check("cuCtxPushCurrent", unsafe { call(handle(context.0)) })
    }

    fn pop_current_context(&self) -> Result<Option<Context>, DriverError> {
        let call = self.functions.pop_current_context()?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle to a live local.
        check("cuCtxPopCurrent", unsafe { call(&mut context) })?;
        Ok(NonZeroU64::new(context.addr() as u64).map(Context))
    }

    fn set_current_context(&self, context: Option<Context>) -> Result<(), DriverError> {
        let call = self.functions.set_current_context()?;
        let context = context.map_or(ptr::null_mut(), |context| handle(context.0));
        // SAFETY: the context is a handle that the driver gave, or NULL for none.
        check("cuCtxSetCurrent", unsafe { call(context) })
    }

    fn current_device(&self) -> Result<i32, DriverError> {
        let call = self.functions.current_device()?;
        let mut device = 0;
        // SAFETY: writes one integer to a live local.
        check("cuCtxGetDevice", unsafe { call(&mut device) })?;
        Ok(device)
    }

    fn primary_context_active(&self, ordinal: i32) -> Result<bool, DriverError> {
        let device = self.device(ordinal)?;
        let call = self.functions.primary_state()?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: writes two integers to live locals; the device is one that the driver gave.
        let code = unsafe { call(device, &mut flags, &mut active) };
        check("cuDevicePrimaryCtxGetState", code)?;
        Ok(active != 0)
    }

    fn primary_context_retain(&self, ordinal: i32) -> Result<Context, DriverError> {
        let device = self.device(ordinal)?;
        let call = self.functions.primary_retain()?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle to a live local; the device is one that the driver gave.
        check("cuDevicePrimaryCtxRetain", unsafe {
            call(&mut context, device)
        })?;
        made("cuDevicePrimaryCtxRetain", context).map(Context)
    }

    fn primary_context_release(&self, ordinal: i32) -> Result<(), DriverError> {
        let device = self.device(ordinal)?;
        let call = self.functions.primary_release()?;
        // SAFETY: the device is one that the driver gave.
        check("cuDevicePrimaryCtxRelease", unsafe { call(device) })
    }

    fn event_create(&self) -> Result<Event, DriverError> {
        let call = self.functions.event_create()?;
        let mut event = ptr::null_mut();
        // SAFETY: writes one handle to a live local.
        check("cuEventCreate", unsafe { call(&mut event, DISABLE_TIMING) })?;
        made("cuEventCreate", event).map(Event)
    }

    fn event_record(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let call = self.functions.event_record()?;
        // SAFETY: the event came from `event_create`; the stream is a handle that its holder vouches
        // for.
        check("cuEventRecord", unsafe {
            call(handle(event.0), stream_handle(stream))
        })
    }

    fn event_wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let call = self.functions.event_wait()?;
        // SAFETY: the event came from `event_create`; the stream is a handle that its holder vouches
        // for; flags 0 is `CU_EVENT_WAIT_DEFAULT`.
        check("cuStreamWaitEvent", unsafe {
            call(stream_handle(stream), handle(event.0), 0)
        })
    }

    fn event_destroy(&self, event: Event) -> Result<(), DriverError> {
        let call = self.functions.event_destroy()?;
        // SAFETY: the event came from `event_create`; "the resources are released asynchronously
        // at completion" where it is still waited for.
        check("cuEventDestroy", unsafe { call(handle(event.0)) })
    }

    fn event_query(&self, event: Event) -> Result<bool, DriverError> {
        let call = self.functions.event_query()?;
        // SAFETY: the event came from `event_create`.
        match unsafe { call(handle(event.0)) } {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    fn stream_create(&self) -> Result<Stream, DriverError> {
        let call = self.functions.stream_create()?;
        let mut stream = ptr::null_mut();
        // SAFETY: writes one handle to a live local.
        check("cuStreamCreate", unsafe { call(&mut stream, NON_BLOCKING) })?;
        made("cuStreamCreate", stream).map(|stream| Stream::from_raw(stream.get()))
    }

    fn stream_destroy(&self, stream: Stream) -> Result<(), DriverError> {
        let call = self.functions.stream_destroy()?;
        // SAFETY: the stream came from `stream_create`; "the resources associated with hStream will be released
        // automatically once the device has completed all work" where it has some.
        check("cuStreamDestroy", unsafe { call(stream_handle(stream)) })
    }

    fn stream_id(&self, stream: Stream) -> Result<u64, DriverError> {
        let call = self.functions.stream_id()?;
        let mut id = 0;
        // SAFETY: writes one integer to a live local; the stream is a handle that its holder vouches for.
        check("cuStreamGetId", unsafe {
            call(stream_handle(stream), &mut id)
        })?;
        Ok(id)
    }

    fn stream_synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        let _relaxed = Relaxed::new(self)?;
        let call = self.functions.stream_synchronize()?;
        // SAFETY: the stream is a handle that its holder vouches for.
        check("cuStreamSynchronize", unsafe {
            call(stream_handle(stream))
        })
    }

    fn context_synchronize(&self) -> Result<(), DriverError> {
        let call = self.functions.context_synchronize()?;
        // SAFETY: takes nothing and blocks.
        check("cuCtxSynchronize", unsafe { call() })
    }

    fn concurrent_managed_access(&self, ordinal: i32) -> Result<bool, DriverError> {
        let device = self.device(ordinal)?;
        let call = self.functions.device_attribute()?;
        let mut value = 0;
        // SAFETY: writes one int to a live local; the device is one that the driver gave.
        let code = unsafe { call(&mut value, CONCURRENT_MANAGED_ACCESS, device) };
        check("cuDeviceGetAttribute", code)?;
        Ok(value != 0)
    }

    fn exclusive_devices(&self) -> Result<Vec<i32>, DriverError> {
        if let Some(known) = self.exclusive_devices.get() {
            return Ok(known.clone());
        }
        let mut found = Vec::new();
        for ordinal in 0..self.device_count()? {
            if !self.concurrent_managed_access(ordinal)? {
                found.push(ordinal);
            }
        }
        Ok(self.exclusive_devices.get_or_init(|| found).clone())
    }

    fn alloc(&self, nbytes: u64) -> Result<u64, DriverError> {
        let call = self.functions.alloc()?;
        let mut pointer = 0;
        // SAFETY: writes one address to a live local.
        check("cuMemAlloc", unsafe { call(&mut pointer, nbytes as usize) })?;
        Ok(pointer)
    }

    fn alloc_async(&self, nbytes: u64, stream: Stream) -> Result<u64, DriverError> {
        let call = self.functions.alloc_async()?;
        let mut pointer = 0;
        // SAFETY: writes one address to a live local; the stream is a handle that its holder vouches for.
        check("cuMemAllocAsync", unsafe {
            call(&mut pointer, nbytes as usize, stream_handle(stream))
        })?;
        Ok(pointer)
    }

    fn alloc_managed(&self, nbytes: u64) -> Result<u64, DriverError> {
        let call = self.functions.alloc_managed()?;
        let mut pointer = 0;
        // SAFETY: writes one address to a live local.
        let code = unsafe { call(&mut pointer, nbytes as usize, ATTACH_GLOBAL) };
        check("cuMemAllocManaged", code)?;
        Ok(pointer)
    }

    fn alloc_pinned(&self, nbytes: u64) -> Result<u64, DriverError> {
        let call = self.functions.alloc_pinned()?;
        let mut pointer = 0;
        // SAFETY: writes one address, which is as wide as a `u64`, to a live local.
        let code = unsafe { call(&mut pointer, nbytes as usize, HOST_ALLOC_PORTABLE) };
        check("cuMemHostAlloc", code)?;
        Ok(pointer)
    }

    fn exchange_capture_mode(&self, mode: u32) -> Result<u32, DriverError> {
        let call = self.functions.capture_mode()?;
        let mut mode = mode;
        // SAFETY: reads and writes one int, a live local.
        let code = unsafe { call(&mut mode) };
        check("cuThreadExchangeStreamCaptureMode", code)?;
        Ok(mode)
    }

    unsafe fn free(&self, pointer: u64) -> Result<(), DriverError> {
        let call = self.functions.free()?;
        // SAFETY: the caller vouches for the allocation and that nothing uses it any more.
        check("cuMemFree", unsafe { call(pointer) })
    }

    unsafe fn free_pinned(&self, pointer: u64) -> Result<(), DriverError> {
        let call = self.functions.free_pinned()?;
        // SAFETY: the caller vouches for the allocation and that nothing uses it any more.
        check("cuMemFreeHost", unsafe { call(pointer) })
    }

    unsafe fn copy_async(
        &self,
        to: u64,
        from: u64,
        nbytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError> {
        let call = self.functions.copy_async()?;
        // SAFETY: the caller vouches for `nbytes` at both ends until the copy is done.
        check("cuMemcpyAsync", unsafe {
            call(to, from, nbytes as usize, stream_handle(stream))
        })
    }

    unsafe fn copy_peer_async(
        &self,
        (to, there): (u64, Context),
        (from, here): (u64, Context),
        nbytes: u64,
        stream: Stream,
    ) -> Result<(), DriverError> {
        let call = self.functions.copy_peer_async()?;
        let [there, here] = [there, here].map(|context| handle(context.0));
        // SAFETY: the caller vouches for `nbytes` at both ends until the copy is done.
        check("cuMemcpyPeerAsync", unsafe {
            call(
                to,
                there,
                from,
                here,
                nbytes as usize,
                stream_handle(stream),
            )
        })
    }

    unsafe fn host_function(
        &self,
        stream: Stream,
        function: HostFunction,
        data: *mut c_void,
    ) -> Result<(), DriverError> {
        let call = self.functions.host_function()?;
        // SAFETY: the caller vouches for the function and its argument until the stream's work is done; the stream
        // is a handle that its holder vouches for.
        check("cuLaunchHostFunc", unsafe {
            call(stream_handle(stream), function, data)
        })
    }

    unsafe fn copy_2d_async(&self, copy: &Copy2d, stream: Stream) -> Result<(), DriverError> {
        let call = self.functions.copy_2d_async()?;
        let rows = Memcpy2d {
            source: Side::new(ptr::null(), copy.from, copy.from_pitch),
            target: Side::new(ptr::null_mut(), copy.to, copy.to_pitch),
            width_in_bytes: copy.width as usize,
            height: copy.height as usize,
        };
        // SAFETY: the description is read during the call only; the caller vouches for every row
        // at both ends until the copy is done.
        check("cuMemcpy2DAsync", unsafe {
            call(&rows, stream_handle(stream))
        })
    }
}

impl<P> Side<P> {
    /// An address of the unified address space with rows `pitch` bytes apart; `host` is NULL.
    fn new(host: P, device: u64, pitch: u64) -> Side<P> {
        let array = ptr::null_mut();
        let pitch = pitch as usize;
        Side {
            x_in_bytes: 0,
            y: 0,
            memory_type: UNIFIED,
            host,
            device,
            array,
            pitch,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use cudarc::driver::sys;

    use super::*;

    #[test]
    fn the_2d_copy_has_the_layout_of_cudarcs_bindings() {
        assert_eq!(size_of::<Memcpy2d>(), size_of::<sys::CUDA_MEMCPY2D>());
        let ours = [
            offset_of!(Memcpy2d, source.memory_type),
            offset_of!(Memcpy2d, source.device),
            offset_of!(Memcpy2d, source.pitch),
            offset_of!(Memcpy2d, target.memory_type),
            offset_of!(Memcpy2d, target.device),
            offset_of!(Memcpy2d, target.pitch),
            offset_of!(Memcpy2d, width_in_bytes),
            offset_of!(Memcpy2d, height),
        ];
        let theirs = [
            offset_of!(sys::CUDA_MEMCPY2D, srcMemoryType),
            offset_of!(sys::CUDA_MEMCPY2D, srcDevice),
            offset_of!(sys::CUDA_MEMCPY2D, srcPitch),
            offset_of!(sys::CUDA_MEMCPY2D, dstMemoryType),
            offset_of!(sys::CUDA_MEMCPY2D, dstDevice),
            offset_of!(sys::CUDA_MEMCPY2D, dstPitch),
            offset_of!(sys::CUDA_MEMCPY2D, WidthInBytes),
            offset_of!(sys::CUDA_MEMCPY2D, Height),
        ];
        assert_eq!(ours, theirs);
    }

    #[test]
    fn the_numbers_are_those_of_cudarcs_bindings() {
        use sys::CUpointer_attribute_enum as A;
        let theirs = [
            A::CU_POINTER_ATTRIBUTE_CONTEXT,
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            A::CU_POINTER_ATTRIBUTE_HOST_POINTER,
            A::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            A::CU_POINTER_ATTRIBUTE_MAPPED,
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        assert_eq!(ATTRIBUTES, theirs.map(|attribute| attribute as u32));
        assert_eq!(
            UNIFIED,
            sys::CUmemorytype_enum::CU_MEMORYTYPE_UNIFIED as u32
        );
        assert_eq!(
            DISABLE_TIMING,
            sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
        );
        assert_eq!(
            CAPTURE_IMPLICIT,
            sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as u32
        );
        assert_eq!(STUB_LIBRARY, sys::CUresult::CUDA_ERROR_STUB_LIBRARY as u32);
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        assert_eq!(CONCURRENT_MANAGED_ACCESS, attribute as u32);
    }

    /// What a driver writes for device, pinned, managed, unknown and pool memory.
    #[rstest::rstest]
    #[case::device([7, 2, 0x100, 0, 0, 1, 1, 0x100, 64], MemoryKind::Device, 1)]
    #[case::pinned([7, 1, 0x100, 0x100, 0, 0, 1, 0x100, 64], MemoryKind::Pinned, 0)]
    #[case::managed([7, 2, 0x100, 0x100, 1, 0, 1, 0x100, 64], MemoryKind::Managed, 0)]
    #[case::unknown([0, 0, 0, 0, 0, 0xffff_fffe, 0, 0, 0], MemoryKind::Unknown, -2)]
    fn attributes_become_info(
        #[case] slots: [u64; 9],
        #[case] kind: MemoryKind,
        #[case] ordinal: i32,
    ) {
        let info = pointer_info(slots);
        assert_eq!((info.kind, info.ordinal), (kind, ordinal));
        assert_eq!(info.range, (slots[8] != 0).then_some((slots[7], slots[8])));
        assert_eq!(
            info.context.map(|context| context.0.get()),
            (slots[0] != 0).then_some(slots[0])
        );
        assert_eq!(info.mapped, slots[6] != 0);
    }
}
