//! Memory and events between processes: cuIpc*.
//!
//! A handle names a file of the exporting process (`process::token`). Exporting moves the bytes of
//! an allocation into such a file, at the same address, so what the exporter's streams still do to
//! the memory happens to the bytes that others have mapped.

use std::sync::Arc;

use crate::abi::arguments::{ContextHandle, DeviceAddress, EventHandle, IpcHandle, Out};
use crate::abi::codes::{Code, Status};
use crate::driver::event::{DISABLE_TIMING, INTERPROCESS};
use crate::driver::memory::range;
use crate::entry::enter::{Call, exports};
use crate::memory::backing::Backing;
use crate::memory::ranges::{Allocation, Kind, Life, Origin};
use crate::memory::segment::{Segment, Shared};
use crate::process::peer::{Identity, Peer};
use crate::process::token::{Names, Token};
use crate::run::service;
use crate::state::objects::Event;
use crate::state::shared_event::{SharedEvent, is_own};
use crate::state::world::{Guard, World, lock, sleep};

exports! {
    Create 4010 cuIpcGetMemHandle(handle: Out<IpcHandle>, address: DeviceAddress) = get_memory;
    Create 4010 cuIpcOpenMemHandle(address: Out<DeviceAddress>, handle: IpcHandle, flags: u32) = open_memory;
    Create 11000 cuIpcOpenMemHandle_v2(address: Out<DeviceAddress>, handle: IpcHandle, flags: u32) = open_memory;
    Destroy 4010 cuIpcCloseMemHandle(address: DeviceAddress) = close_memory;
    Create 4010 cuIpcGetEventHandle(handle: Out<IpcHandle>, event: EventHandle) = get_event;
    Create 4010 cuIpcOpenEventHandle(event: Out<EventHandle>, handle: IpcHandle) = open_event;
}

const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

/// Gives a handle of the allocation that an address lies in; of cuMemAlloc's memory only. A later
/// allocation at the same address has another handle.
fn get_memory(_: &Call, handle: Out<IpcHandle>, address: u64) -> Status {
    handle.check()?;
    let world = lock();
    world.current()?;
    let (_world, token) = exported(world, address, |range| range.kind == Kind::Device)?;
    handle.put(IpcHandle(token.bytes(Names::Memory)))
}

/// Moves an allocation into a file that other processes can open, unless it is in one, and returns
/// what names it. Work that touches it right now is waited for; no other is.
pub(crate) fn exported(
    mut world: Guard,
    address: u64,
    wanted: impl Fn(&Allocation) -> bool,
) -> Result<(Guard, Token), Code> {
    loop {
        let range = world.memory.find(address);
        let range = range.filter(|range| range.origin.is_none() && wanted(range));
        let (base, device, bytes) = range
            .map(|range| (range.base, range.device, range.bytes))
            .ok_or(Code::INVALID_VALUE)?;
        let physical = world.devices[device].physical;
        let range = world.memory.at_base_mut(base).ok_or(Code::INVALID_VALUE)?;
        let life = match range.life {
            Life::Unborn => Shared::Unborn,
            Life::Alive => Shared::Alive,
        };
        let backing = range.backing.as_mut().ok_or(Code::INVALID_VALUE)?;
        if backing.segment().is_none() {
            // Only running work holds the backing too, and announces its end.
            let Some(backing) = Arc::get_mut(backing) else {
                world = sleep(world);
                continue;
            };
            let segment = Segment::create(bytes, physical, life).ok_or(Code::OUT_OF_MEMORY)?;
            backing.export(segment).ok_or(Code::MAP_FAILED)?;
        }
        let segment = backing.segment().ok_or(Code::MAP_FAILED)?;
        let token = Token::own(segment.number(), segment.inode(), 0);
        return Ok((world, token.ok_or(Code::OPERATING_SYSTEM)?));
    }
}

/// Maps memory of another process, or counts one more opening of it by this context. The only flag,
/// LAZY_ENABLE_PEER_ACCESS (1), is required. Bytes that are no handle of this machine are
/// INVALID_HANDLE, the exporting process gets INVALID_CONTEXT, memory that was freed or whose
/// process has ended is MAP_FAILED.
fn open_memory(_: &Call, address: Out<u64>, handle: IpcHandle, flags: u32) -> Status {
    address.check()?;
    if flags != LAZY_ENABLE_PEER_ACCESS {
        return Err(Code::INVALID_VALUE);
    }
    let mut world = lock();
    let context = world.current()?;
    let token = Token::read(&handle.0, Names::Memory).ok_or(Code::INVALID_HANDLE)?;
    if is_own(&token) {
        return Err(Code::INVALID_CONTEXT);
    }
    let (owner, segment) = opened(&token)?;
    let device = segment.device();
    if let Some(base) = world.mapped(Kind::Opened, context, token.inode) {
        let range = world.memory.at_base_mut(base);
        let origin = range.and_then(|range| range.origin.as_mut());
        origin.ok_or(Code::INVALID_HANDLE)?.opens += 1;
        return address.put(base);
    }
    world.only_context(context, token.owner, device)?;
    let origin = Origin {
        owner,
        device,
        opens: 1,
    };
    address.put(world.import(segment, Kind::Opened, context, origin)?)
}

/// Opens the file of a handle, if its process lives and the memory has not been freed.
pub(crate) fn opened(token: &Token) -> Result<(Arc<Peer>, Segment), Code> {
    let owner = Peer::find(token.owner).ok_or(Code::MAP_FAILED)?;
    let file = token.open().ok_or(Code::MAP_FAILED)?;
    let segment = Segment::open(file).ok_or(Code::INVALID_HANDLE)?;
    if segment.life() == Shared::Freed {
        return Err(Code::MAP_FAILED);
    }
    Ok((Arc::new(owner), segment))
}

impl World {
    /// Returns the base of memory of another process that is mapped already.
    pub(crate) fn mapped(&self, kind: Kind, context: ContextHandle, inode: u64) -> Option<u64> {
        let range = self.memory.find_by(|range| {
            let segment = range.backing.as_ref().and_then(|backing| backing.segment());
            range.origin.is_some()
                && range.kind == kind
                && range.context == context
                && segment.is_some_and(|segment| segment.inode() == inode)
        });
        range.map(|range| range.base)
    }

    /// Refuses a second context: handles "from each CUdevice in a given process may only be opened by
    /// one CUcontext per CUdevice per other process".
    fn only_context(&self, context: ContextHandle, owner: Identity, device: usize) -> Status {
        let here = self.context(context)?.device;
        let elsewhere = self.memory.find_by(|range| {
            let from_there = range
                .origin
                .as_ref()
                .is_some_and(|origin| origin.owner.identity == owner && origin.device == device);
            let its_device = self.contexts.get(range.context).map(|other| other.device);
            range.kind == Kind::Opened
                && range.context != context
                && from_there
                && its_device == Ok(here)
        });
        match elsewhere {
            Some(_) => Err(Code::INVALID_CONTEXT),
            None => Ok(()),
        }
    }

    /// Maps a segment of another process, and returns its address here. Its device is the exporter's,
    /// or the context's if that one is not visible here.
    pub(crate) fn import(
        &mut self,
        segment: Segment,
        kind: Kind,
        context: ContextHandle,
        origin: Origin,
    ) -> Result<u64, Code> {
        let visible = self
            .devices
            .iter()
            .position(|device| device.physical == origin.device);
        let device = match visible {
            Some(device) => device,
            None => self.context(context)?.device,
        };
        let bytes = segment.bytes();
        let (protect, reuse) = (self.settings.protect, self.settings.reuse);
        let backing = Backing::import(segment, protect, reuse).ok_or(Code::MAP_FAILED)?;
        let base = backing.base() as u64;
        let buffer = self.fresh_number();
        self.memory.insert(Allocation {
            buffer,
            base,
            bytes,
            kind,
            device,
            context,
            life: Life::Alive,
            backing: Some(Arc::new(backing)),
            sync_memops: false,
            origin: Some(origin),
        });
        Ok(base)
    }
}

/// Counts one opening less. The last one waits for the work of the context as cuMemFree does, and
/// unmaps the memory. The documentation does not speak of waiting; Numba relies on it, which copies
/// from the memory asynchronously and closes it.
fn close_memory(_: &Call, address: u64) -> Status {
    let mut world = lock();
    world.current()?;
    let range = world.memory.at_base_mut(address);
    let range = range.filter(|range| range.kind == Kind::Opened);
    let origin = range.and_then(|range| range.origin.as_mut());
    let origin = origin.ok_or(Code::INVALID_VALUE)?;
    if origin.opens > 1 {
        origin.opens -= 1;
        return Ok(());
    }
    let is_opened = |range: &Allocation| range.kind == Kind::Opened;
    range::free(world, address, is_opened, Code::INVALID_VALUE)
}

/// Gives a handle of an event with CU_EVENT_INTERPROCESS that this process has created; any other is
/// INVALID_HANDLE.
fn get_event(_: &Call, handle: Out<IpcHandle>, event: EventHandle) -> Status {
    handle.check()?;
    let world = lock();
    world.current()?;
    let shared = world.events.get(event)?.shared.as_ref();
    let token = shared.and_then(|shared| shared.0.token());
    service::ensure()?;
    handle.put(IpcHandle(token.ok_or(Code::INVALID_HANDLE)?))
}

/// Opens an event of another process: one of this context, without timing. The errors are those of
/// cuIpcOpenMemHandle.
fn open_event(_: &Call, event: Out<EventHandle>, handle: IpcHandle) -> Status {
    event.check()?;
    let mut world = lock();
    let context = world.current()?;
    let token = Token::read(&handle.0, Names::Event).ok_or(Code::INVALID_HANDLE)?;
    if is_own(&token) {
        return Err(Code::INVALID_CONTEXT);
    }
    let shared = match world.shared_event(token.inode) {
        Some(shared) => {
            shared.check().map_err(|_| Code::MAP_FAILED)?;
            shared
        }
        None => {
            let shared = SharedEvent::open(&token)?;
            world.share_event(&shared);
            shared
        }
    };
    service::ensure()?;
    let opened = Event::new(context, DISABLE_TIMING | INTERPROCESS, Some(shared));
    let reuse = world.settings.reuse;
    event.put(world.events.insert(reuse, opened))
}
