//! Copies: cuMemcpy and its kin, and when they make the host wait.
//!
//! The rules are those of "API synchronization behavior" in the driver API's documentation:
//! - a synchronous copy runs on the default stream. From pageable memory to the device it first
//!   waits for that stream, and returns once the source has been copied away: the bytes may reach
//!   the device later. Device to device does not wait. Everything else returns when it is done.
//! - an asynchronous copy from pageable memory copies the source away at once; into pageable
//!   memory, or from host to host, it returns when it is done; everything else does not wait.
//! - managed memory counts as device memory here (our choice: the documentation does not say).

use std::ptr;
use std::sync::Arc;

use crate::abi::arguments::{ContextHandle, DeviceAddress, HostAddress, In, StreamHandle};
use crate::abi::codes::{Answer, Code};
use crate::driver::capture;
use crate::driver::stream::{Target, submit};
use crate::entry::enter::{Call, exports};
use crate::memory::place::{Place, Side};
use crate::memory::ranges::Memory;
use crate::run::schedule::{self, Goal};
use crate::state::work::{Task, Work};
use crate::state::world::{Guard, lock};

exports! {
    Wait 4000 cuMemcpy(dst: DeviceAddress, src: DeviceAddress, bytes: usize) = any, per_thread "_ptds";
    Enqueue 4000 cuMemcpyAsync(dst: DeviceAddress, src: DeviceAddress, bytes: usize, stream: StreamHandle) = any_async, per_thread "_ptsz";
    Wait 3020 cuMemcpyHtoD_v2(dst: DeviceAddress, src: HostAddress, bytes: usize) = to_device, per_thread "_ptds";
    Wait 3020 cuMemcpyDtoH_v2(dst: HostAddress, src: DeviceAddress, bytes: usize) = to_host, per_thread "_ptds";
    Wait 3020 cuMemcpyDtoD_v2(dst: DeviceAddress, src: DeviceAddress, bytes: usize) = on_device, per_thread "_ptds";
    Enqueue 3020 cuMemcpyHtoDAsync_v2(dst: DeviceAddress, src: HostAddress, bytes: usize, stream: StreamHandle) = to_device_async, per_thread "_ptsz";
    Enqueue 3020 cuMemcpyDtoHAsync_v2(dst: HostAddress, src: DeviceAddress, bytes: usize, stream: StreamHandle) = to_host_async, per_thread "_ptsz";
    Enqueue 3020 cuMemcpyDtoDAsync_v2(dst: DeviceAddress, src: DeviceAddress, bytes: usize, stream: StreamHandle) = on_device_async, per_thread "_ptsz";
    Enqueue 3020 cuMemcpy2DAsync_v2(copy: In<Rectangle>, stream: StreamHandle) = rectangle_async, per_thread "_ptsz";
    Wait 4000 cuMemcpyPeer(dst: DeviceAddress, dst_context: ContextHandle, src: DeviceAddress, src_context: ContextHandle, bytes: usize) = peer, per_thread "_ptds";
    Enqueue 4000 cuMemcpyPeerAsync(dst: DeviceAddress, dst_context: ContextHandle, src: DeviceAddress, src_context: ContextHandle, bytes: usize, stream: StreamHandle) = peer_async, per_thread "_ptsz";
}

/// Rows of bytes, each at a pitch from the one before; a plain copy is one row.
#[derive(Clone)]
pub(crate) struct Copy2d {
    pub(crate) dst: Place,
    pub(crate) src: Place,
    pub(crate) width: usize,
    pub(crate) rows: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) src_pitch: usize,
}

/// The form of a copy: rows, and how far apart they are at either end.
#[derive(Clone, Copy)]
struct Form {
    width: usize,
    rows: usize,
    dst_pitch: usize,
    src_pitch: usize,
}

impl Form {
    fn plain(bytes: usize) -> Form {
        Form {
            width: bytes,
            rows: 1,
            dst_pitch: bytes,
            src_pitch: bytes,
        }
    }

    /// From the first byte of the first row to the last byte of the last, rows `pitch` apart.
    fn span(&self, pitch: usize) -> usize {
        pitch * self.rows.saturating_sub(1) + self.width
    }

    fn between(self, dst: Place, src: Place) -> Copy2d {
        Copy2d {
            dst,
            src,
            width: self.width,
            rows: self.rows,
            dst_pitch: self.dst_pitch,
            src_pitch: self.src_pitch,
        }
    }
}

/// One end of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct End {
    x: usize,
    y: usize,
    kind: u32,
    host: usize,
    device: u64,
    array: usize,
    pitch: usize,
}

impl End {
    /// The address of the first byte; arrays are not simulated.
    fn address(&self) -> Result<u64, Code> {
        let base = match self.kind {
            HOST => self.host as u64,
            DEVICE | UNIFIED => self.device,
            _ => return Err(Code::NOT_SUPPORTED),
        };
        Ok(base + (self.y * self.pitch + self.x) as u64)
    }
}

const HOST: u32 = 1;
const DEVICE: u32 = 2;
const UNIFIED: u32 = 4;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rectangle {
    src: End,
    dst: End,
    width: usize,
    height: usize,
}

impl Copy2d {
    pub(crate) fn prepare(&self, memory: &Memory) -> Result<Task, Code> {
        let (dst, src) = (memory.span(&self.dst)?, memory.span(&self.src)?);
        let (width, rows) = (self.width, self.rows);
        let (dst_pitch, src_pitch) = (self.dst_pitch, self.src_pitch);
        Ok(Task::Memory(Box::new(move || {
            for row in 0..rows {
                move_bytes(
                    dst.address() + row * dst_pitch,
                    src.address() + row * src_pitch,
                    width,
                );
            }
        })))
    }
}

/// memmove between two real addresses.
fn move_bytes(dst: usize, src: usize, bytes: usize) {
    let from = ptr::with_exposed_provenance::<u8>(src);
    let to = ptr::with_exposed_provenance_mut::<u8>(dst);
    // SAFETY: both ranges come from spans: in the table they were checked to hold `bytes` and
    // are kept mapped; pageable ones are promised by the caller of the API until the copy is
    // done. `copy` allows overlap.
    unsafe { ptr::copy(from, to, bytes) };
}

fn any(call: &Call, dst: u64, src: u64, bytes: usize) -> Answer {
    run(call, StreamHandle::NULL, true, bytes, |memory| {
        Ok((memory.place(dst, bytes)?, memory.place(src, bytes)?))
    })
}

fn any_async(call: &Call, dst: u64, src: u64, bytes: usize, stream: StreamHandle) -> Answer {
    run(call, stream, false, bytes, |memory| {
        Ok((memory.place(dst, bytes)?, memory.place(src, bytes)?))
    })
}

fn to_device(call: &Call, dst: u64, src: HostAddress, bytes: usize) -> Answer {
    run(call, StreamHandle::NULL, true, bytes, |memory| {
        Ok((
            memory.device_place(dst, bytes)?,
            memory.host_place(src.0 as u64, bytes)?,
        ))
    })
}

fn to_device_async(
    call: &Call,
    dst: u64,
    src: HostAddress,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    run(call, stream, false, bytes, |memory| {
        Ok((
            memory.device_place(dst, bytes)?,
            memory.host_place(src.0 as u64, bytes)?,
        ))
    })
}

fn to_host(call: &Call, dst: HostAddress, src: u64, bytes: usize) -> Answer {
    run(call, StreamHandle::NULL, true, bytes, |memory| {
        Ok((
            memory.host_place(dst.0 as u64, bytes)?,
            memory.device_place(src, bytes)?,
        ))
    })
}

fn to_host_async(
    call: &Call,
    dst: HostAddress,
    src: u64,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    run(call, stream, false, bytes, |memory| {
        Ok((
            memory.host_place(dst.0 as u64, bytes)?,
            memory.device_place(src, bytes)?,
        ))
    })
}

fn on_device(call: &Call, dst: u64, src: u64, bytes: usize) -> Answer {
    run(call, StreamHandle::NULL, true, bytes, |memory| {
        Ok((
            memory.device_place(dst, bytes)?,
            memory.device_place(src, bytes)?,
        ))
    })
}

fn on_device_async(call: &Call, dst: u64, src: u64, bytes: usize, stream: StreamHandle) -> Answer {
    run(call, stream, false, bytes, |memory| {
        Ok((
            memory.device_place(dst, bytes)?,
            memory.device_place(src, bytes)?,
        ))
    })
}

fn rectangle_async(call: &Call, copy: In<Rectangle>, stream: StreamHandle) -> Answer {
    let Rectangle {
        src,
        dst,
        width,
        height,
    } = copy.get()?;
    if height > 1 && (src.pitch < width || dst.pitch < width) {
        return Err(Code::INVALID_VALUE);
    }
    let form = Form {
        width,
        rows: height,
        dst_pitch: dst.pitch,
        src_pitch: src.pitch,
    };
    let (dst, src) = (dst.address()?, src.address()?);
    run_form(call, stream, false, form, |memory| {
        Ok((
            memory.place(dst, form.span(form.dst_pitch))?,
            memory.place(src, form.span(form.src_pitch))?,
        ))
    })
}

/// Between devices the contexts only have to exist: addresses are unique over all devices.
fn peer(
    call: &Call,
    dst: u64,
    dst_context: ContextHandle,
    src: u64,
    src_context: ContextHandle,
    bytes: usize,
) -> Answer {
    check_contexts(dst_context, src_context)?;
    on_device(call, dst, src, bytes)
}

fn peer_async(
    call: &Call,
    dst: u64,
    dst_context: ContextHandle,
    src: u64,
    src_context: ContextHandle,
    bytes: usize,
    stream: StreamHandle,
) -> Answer {
    check_contexts(dst_context, src_context)?;
    on_device_async(call, dst, src, bytes, stream)
}

fn check_contexts(dst: ContextHandle, src: ContextHandle) -> Answer {
    let world = lock();
    world.contexts.get(dst).ok_or(Code::INVALID_CONTEXT)?;
    world.contexts.get(src).ok_or(Code::INVALID_CONTEXT)?;
    Ok(())
}

fn run(
    call: &Call,
    stream: StreamHandle,
    synchronous: bool,
    bytes: usize,
    places: impl FnOnce(&Memory) -> Result<(Place, Place), Code>,
) -> Answer {
    run_form(call, stream, synchronous, Form::plain(bytes), places)
}

/// Decides how a copy blocks, and carries it out.
fn run_form(
    call: &Call,
    stream: StreamHandle,
    synchronous: bool,
    form: Form,
    places: impl FnOnce(&Memory) -> Result<(Place, Place), Code>,
) -> Answer {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream)?;
    if synchronous {
        capture::forbid_blocking_call(&mut world, &target)?;
    }
    if form.width == 0 || form.rows == 0 {
        return Ok(());
    }
    let (dst, src) = places(&world.memory)?;
    let plan = Plan::new(
        world.memory.side(&dst),
        world.memory.side(&src),
        synchronous,
    );
    if target.is_capturing(&world) {
        return submit(
            world,
            &target,
            Vec::new(),
            Work::Copy(form.between(dst, src)),
        )
        .map(drop);
    }
    if plan.wait_before {
        world = wait_for(world, &target);
    }
    let src = if plan.stage {
        stage(&src, form.span(form.src_pitch))
    } else {
        src
    };
    world = submit(
        world,
        &target,
        Vec::new(),
        Work::Copy(form.between(dst, src)),
    )?;
    if plan.wait_after {
        world = wait_for(world, &target);
    }
    world.context(target.context).map(drop)
}

fn wait_for(world: Guard, target: &Target) -> Guard {
    let tail = world.tail(target.queue);
    schedule::wait(world, &Goal::Marks(vec![tail]))
}

/// How a copy makes the host wait.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    wait_before: bool,
    /// Copy the source away before returning.
    stage: bool,
    wait_after: bool,
}

impl Plan {
    fn new(dst: Side, src: Side, synchronous: bool) -> Plan {
        let host = |side| matches!(side, Side::Pinned | Side::Pageable);
        let from_pageable = src == Side::Pageable && !host(dst);
        let host_to_host = host(dst) && host(src);
        let device_to_device = !host(dst) && !host(src);
        let blocking = synchronous && !device_to_device && !from_pageable;
        Plan {
            wait_before: synchronous && from_pageable,
            stage: from_pageable,
            wait_after: blocking || host_to_host || dst == Side::Pageable,
        }
    }
}

/// Copies pageable bytes away, so that the caller may change them when the call returns.
fn stage(src: &Place, bytes: usize) -> Place {
    let Place::Pageable(address) = src else {
        return src.clone();
    };
    let mut staged = vec![0u8; bytes];
    move_bytes(
        staged.as_mut_ptr().expose_provenance(),
        *address as usize,
        bytes,
    );
    Place::Staged(Arc::from(staged))
}

#[cfg(test)]
mod tests {
    use super::{Plan, Side};

    #[test]
    fn only_copies_that_the_documentation_names_block() {
        use Side::{Device, Managed, Pageable, Pinned};
        let blocks = |dst, src, synchronous| Plan::new(dst, src, synchronous).wait_after;
        assert!(blocks(Pageable, Device, false) && blocks(Pageable, Device, true));
        assert!(blocks(Pinned, Device, true) && !blocks(Pinned, Device, false));
        assert!(blocks(Device, Pinned, true) && !blocks(Device, Pinned, false));
        assert!(!blocks(Device, Device, true) && !blocks(Managed, Device, true));
        assert!(blocks(Pageable, Pageable, false) && blocks(Pinned, Pinned, false));
        assert!(!blocks(Device, Pageable, true) && Plan::new(Device, Pageable, true).stage);
    }
}
