//! CUDA IPC by libcuda.

use std::num::NonZeroU64;
use std::ptr;

use super::{Cuda, DISABLE_TIMING, check, handle, made, pointer_kind};
use crate::driver::ipc::{EventHandle, Ipc, MemoryHandle, Sharing, Uuid};
use crate::driver::{DriverError, Event};

/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the only flag.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

/// `CUpointer_attribute`, in the order of the answers: memory type, managed, ordinal, IPC by handle, start and size of
/// the range, allowed handle types, pool.
const ATTRIBUTES: [u32; 8] = [2, 8, 9, 10, 11, 12, 14, 17];

impl Ipc for Cuda {
    fn device_uuid(&self, ordinal: i32) -> Result<Uuid, DriverError> {
        let call = self.functions.device_uuid()?;
        let device = self.device(ordinal)?;
        let mut uuid = Uuid([0; 16]);
        // SAFETY: writes 16 bytes to a live local; the device is one that the driver gave.
        check("cuDeviceGetUuid", unsafe { call(&mut uuid, device) })?;
        Ok(uuid)
    }

    fn sharing(&self, pointer: u64) -> Result<Sharing, DriverError> {
        let call = self.functions.pointer_attributes()?;
        let mut slots = [0_u64; ATTRIBUTES.len()];
        let slot_pointers = slots.each_mut().map(ptr::from_mut);
        // SAFETY: reads as many attribute numbers as there are, and writes each attribute to its slot, as in
        // `pointer_info`: none is wider than 8 bytes. The pointer is not followed.
        let code = unsafe {
            call(
                ATTRIBUTES.len() as u32,
                ATTRIBUTES.as_ptr(),
                slot_pointers.as_ptr(),
                pointer,
            )
        };
        check("cuPointerGetAttributes", code)?;
        let [
            memory_type,
            managed,
            ordinal,
            has_handle,
            start,
            size,
            types,
            pool,
        ] = slots;
        Ok(Sharing {
            kind: pointer_kind(managed, memory_type),
            ordinal: ordinal as u32 as i32,
            has_handle: has_handle as u32 != 0,
            handle_types: types,
            is_of_pool: pool != 0,
            range: (start, size),
        })
    }

    fn memory_handle(&self, base: u64) -> Result<MemoryHandle, DriverError> {
        let call = self.functions.ipc_memory_get()?;
        let mut named = MemoryHandle([0; 64]);
        // SAFETY: writes 64 bytes to a live local; the driver checks the address.
        check("cuIpcGetMemHandle", unsafe { call(&mut named, base) })?;
        Ok(named)
    }

    fn memory_open(&self, named: MemoryHandle) -> Result<u64, DriverError> {
        let call = self.functions.ipc_memory_open()?;
        let mut pointer = 0;
        // SAFETY: writes one address to a live local; the driver checks the handle, which it made.
        let code = unsafe { call(&mut pointer, named, LAZY_ENABLE_PEER_ACCESS) };
        check("cuIpcOpenMemHandle", code)?;
        Ok(pointer)
    }

    unsafe fn memory_close(&self, pointer: u64) -> Result<(), DriverError> {
        let call = self.functions.ipc_memory_close()?;
        // SAFETY: the caller vouches for the mapping and that nothing uses it any more.
        check("cuIpcCloseMemHandle", unsafe { call(pointer) })
    }

    fn shared_event_create(&self) -> Result<Event, DriverError> {
        let call = self.functions.event_create()?;
        let mut event = ptr::null_mut();
        // SAFETY: writes one handle to a live local.
        let code = unsafe { call(&mut event, INTERPROCESS | DISABLE_TIMING) };
        check("cuEventCreate", code)?;
        made("cuEventCreate", event).map(Event)
    }

    fn event_handle(&self, Event(event): Event) -> Result<EventHandle, DriverError> {
        let call = self.functions.ipc_event_get()?;
        let mut named = EventHandle([0; 64]);
        let event: NonZeroU64 = event;
        // SAFETY: writes 64 bytes to a live local; the event came from `shared_event_create`.
        let code = unsafe { call(&mut named, handle(event)) };
        check("cuIpcGetEventHandle", code)?;
        Ok(named)
    }

    fn event_open(&self, named: EventHandle) -> Result<Event, DriverError> {
        let call = self.functions.ipc_event_open()?;
        let mut event = ptr::null_mut();
        // SAFETY: writes one handle to a live local; the driver checks the handle, which it made.
        check("cuIpcOpenEventHandle", unsafe { call(&mut event, named) })?;
        made("cuIpcOpenEventHandle", event).map(Event)
    }
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_cudarcs_bindings() {
        use sys::CUpointer_attribute_enum as A;
        let theirs = [
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            A::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
            A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        ];
        assert_eq!(ATTRIBUTES, theirs.map(|attribute| attribute as u32));
        let interprocess = sys::CUevent_flags_enum::CU_EVENT_INTERPROCESS as u32;
        assert_eq!(INTERPROCESS, interprocess);
        let lazy = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        assert_eq!(LAZY_ENABLE_PEER_ACCESS, lazy);
        let ours = (
            size_of::<MemoryHandle>(),
            size_of::<EventHandle>(),
            size_of::<Uuid>(),
        );
        let theirs = (
            size_of::<sys::CUipcMemHandle>(),
            size_of::<sys::CUipcEventHandle>(),
            size_of::<sys::CUuuid>(),
        );
        assert_eq!(ours, theirs);
    }
}
