//! CUDA IPC by the script: a handle holds the address, and the memory is the same wherever it is opened.

use std::num::NonZeroU64;

use super::{Script, State};
use crate::driver::ipc::{EventHandle, Ipc, MemoryHandle, Sharing, Uuid};
use crate::driver::{DriverError, Event, MemoryKind};

/// How far from the allocation another process has its memory.
pub(crate) const ELSEWHERE: u64 = 0x100_0000_0000;

fn named(number: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn number(bytes: &[u8; 64]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("64 bytes"))
}

impl State {
    pub(super) fn new_event(&mut self, call: &'static str) -> Result<Event, DriverError> {
        let context = self.thread_context(call)?;
        self.made += 1;
        let event = Event(NonZeroU64::MIN.saturating_add(0xe000 + self.made - 1));
        self.events.insert(event, context);
        Ok(event)
    }
}

impl Ipc for Script {
    fn device_uuid(&self, ordinal: i32) -> Result<Uuid, DriverError> {
        drop(self.call("cuDeviceGetUuid", &ordinal.to_string())?);
        Ok(Uuid([0xd0 + ordinal as u8; 16]))
    }

    fn sharing(&self, pointer: u64) -> Result<Sharing, DriverError> {
        let arguments = format!("{pointer:#x} sharing");
        let state = self.call("cuPointerGetAttributes", &arguments)?;
        let info = state.within(pointer);
        let kind = info.map_or(MemoryKind::Unknown, |info| info.kind);
        // As for the driver's own: memory of a pool, and mapped memory, have no context.
        let has_context = info.is_some_and(|info| info.context.is_some());
        Ok(Sharing {
            kind,
            ordinal: info.map_or(-2, |info| info.ordinal),
            has_handle: kind == MemoryKind::Device && has_context,
            handle_types: state.handle_types,
            is_of_pool: kind == MemoryKind::Device && !has_context && !state.is_mapped,
            range: info.and_then(|info| info.range).unwrap_or_default(),
        })
    }

    fn memory_handle(&self, base: u64) -> Result<MemoryHandle, DriverError> {
        drop(self.call("cuIpcGetMemHandle", &format!("{base:#x}"))?);
        Ok(MemoryHandle(named(base)))
    }

    fn memory_open(&self, handle: MemoryHandle) -> Result<u64, DriverError> {
        let base = number(&handle.0);
        let mut state = self.call("cuIpcOpenMemHandle", &format!("{base:#x}"))?;
        let context = state.thread_context("cuIpcOpenMemHandle")?;
        let exported = state.pointers.get(&base).copied();
        let mut info = exported.ok_or(DriverError::new("cuIpcOpenMemHandle", 400))?;
        let pointer = base + ELSEWHERE;
        info.device_pointer = pointer;
        info.context = Some(context);
        info.range = info.range.map(|(_, nbytes)| (pointer, nbytes));
        state.pointers.insert(pointer, info);
        *state.opened.entry(pointer).or_default() += 1;
        Ok(pointer)
    }

    unsafe fn memory_close(&self, pointer: u64) -> Result<(), DriverError> {
        let mut state = self.call("cuIpcCloseMemHandle", &format!("{pointer:#x}"))?;
        let count = state.opened.get_mut(&pointer);
        let count = count.ok_or(DriverError::new("cuIpcCloseMemHandle", 1))?;
        *count -= 1;
        if *count == 0 {
            state.opened.remove(&pointer);
            state.pointers.remove(&pointer);
        }
        Ok(())
    }

    fn shared_event_create(&self) -> Result<Event, DriverError> {
        let mut state = self.call("cuEventCreate", "interprocess")?;
        state.new_event("cuEventCreate")
    }

    fn event_handle(&self, event: Event) -> Result<EventHandle, DriverError> {
        drop(self.call("cuIpcGetEventHandle", &format!("{:#x}", event.0))?);
        Ok(EventHandle(named(event.0.get())))
    }

    fn event_open(&self, handle: EventHandle) -> Result<Event, DriverError> {
        let arguments = format!("{:#x}", number(&handle.0));
        let mut state = self.call("cuIpcOpenEventHandle", &arguments)?;
        state.new_event("cuIpcOpenEventHandle")
    }
}

impl Script {
    /// The mappings of other processes' memory that are open.
    pub(crate) fn opened(&self) -> usize {
        self.lock().opened.len()
    }

    /// Says what kinds of handles memory without one of its own can be exported by, and whether it is mapped memory and
    /// no pool's.
    pub(crate) fn exportable(&self, handle_types: u64, is_mapped: bool) -> &Self {
        let mut state = self.lock();
        (state.handle_types, state.is_mapped) = (handle_types, is_mapped);
        drop(state);
        self
    }
}
