//! CUDA IPC: memory and events of one process, named for another one of the same machine.
//!
//! A handle is 64 bytes that mean something to the driver alone. That of memory names an *allocation*, whatever pointer
//! into it was given; the offset travels beside it. "cuIpcMemHandles from each CUdevice in a given process may only be
//! opened by one CUcontext per CUdevice per other process" (driver API, `cuIpcOpenMemHandle`).

use super::{DriverError, Event, MemoryKind};

/// A `CUipcMemHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct MemoryHandle(pub(crate) [u8; 64]);

/// A `CUipcEventHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct EventHandle(pub(crate) [u8; 64]);

/// A `CUuuid`: which device this is, whatever its number is in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

/// What the driver says about memory that is to be shared, by one query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// What kind of memory it is.
    pub(crate) kind: MemoryKind,
    /// The device of the memory; negative if the pointer is unknown.
    pub(crate) ordinal: i32,
    /// Whether [`Ipc::memory_handle`] takes it.
    pub(crate) has_handle: bool,
    /// The kinds of handles that its allocation or its pool may be exported by (`CUmemAllocationHandleType`); 0 for none.
    pub(crate) handle_types: u64,
    /// Whether it is memory of a stream-ordered pool.
    pub(crate) is_of_pool: bool,
    /// Start and size in bytes of the allocation; the size is 0 if the driver does not know it.
    pub(crate) range: (u64, u64),
}

/// The calls of CUDA IPC. Source of each: the function of that name of the driver API.
pub(crate) trait Ipc {
    /// Returns which device this is. Source: `cuDeviceGetUuid_v2`, which tells the parts of a divided device apart.
    fn device_uuid(&self, ordinal: i32) -> Result<Uuid, DriverError>;

    /// Asks about memory that is to be shared. Source: `cuPointerGetAttributes`.
    fn sharing(&self, pointer: u64) -> Result<Sharing, DriverError>;

    /// Names an allocation for other processes. Source: `cuIpcGetMemHandle`.
    fn memory_handle(&self, base: u64) -> Result<MemoryHandle, DriverError>;

    /// Maps another process's allocation into the current context; its address here. Each call counts. Source:
    /// `cuIpcOpenMemHandle` with `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
    fn memory_open(&self, handle: MemoryHandle) -> Result<u64, DriverError>;

    /// Undoes one [`memory_open`](Self::memory_open), in its context. Source: `cuIpcCloseMemHandle`.
    ///
    /// # Safety
    /// `pointer` came from [`memory_open`](Self::memory_open), and was not closed as often; if this is its last, nothing
    /// uses the memory later, and no work that does is pending.
    unsafe fn memory_close(&self, pointer: u64) -> Result<(), DriverError>;

    /// An event of the current context that other processes can open. Source: `cuEventCreate` with
    /// `CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING`.
    fn shared_event_create(&self) -> Result<Event, DriverError>;

    /// Names such an event for other processes. Source: `cuIpcGetEventHandle`.
    fn event_handle(&self, event: Event) -> Result<EventHandle, DriverError>;

    /// Opens another process's event in the current context. Source: `cuIpcOpenEventHandle`.
    fn event_open(&self, handle: EventHandle) -> Result<Event, DriverError>;
}
