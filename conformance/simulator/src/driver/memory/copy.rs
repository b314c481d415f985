//! Copies: the functions cuMemcpy*, and when they make the host wait.
//!
//! The rules are those of "API synchronization behavior" in the driver API's documentation:
//! - a synchronous copy runs on the default stream. From pageable memory to the device it first
//!   waits for that stream, and returns once the source has been copied away: the bytes may reach
//!   the device later. Device to device does not wait. Everything else returns when it is done.
//! - an asynchronous copy from pageable memory copies the source away at once; into pageable
//!   memory, or from host to host, it returns when it is done; everything else does not wait.
//! - managed memory counts as device memory here (our choice: the documentation leaves it open).

use crate::abi::arguments::{
    ContextHandle, DeviceAddress, HostAddress, In, Out, StreamHandle, UnifiedAddress,
};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::memory::bytes::read;
use crate::memory::copy::{Copy2d, Form};
use crate::memory::place::{Place, Side};
use crate::memory::ranges::Memory;
use crate::state::work::Work;
use crate::state::world::lock;
use crate::submit::forbid;
use crate::submit::route::{submit, wait_for_tail};
use crate::submit::target::Target;

exports! {
    Wait 4000 cuMemcpy(dst: UnifiedAddress, src: UnifiedAddress, bytes: usize) = copy, per_thread "_ptds";
    Enqueue 4000 cuMemcpyAsync(dst: UnifiedAddress, src: UnifiedAddress, bytes: usize, stream: StreamHandle) = copy_async, per_thread "_ptsz";
    Wait 3020 cuMemcpyHtoD_v2(dst: DeviceAddress, src: HostAddress, bytes: usize) = copy, per_thread "_ptds";
    Wait 3020 cuMemcpyDtoH_v2(dst: HostAddress, src: DeviceAddress, bytes: usize) = copy, per_thread "_ptds";
    Wait 3020 cuMemcpyDtoD_v2(dst: DeviceAddress, src: DeviceAddress, bytes: usize) = copy, per_thread "_ptds";
    Enqueue 3020 cuMemcpyHtoDAsync_v2(dst: DeviceAddress, src: HostAddress, bytes: usize, stream: StreamHandle) = copy_async, per_thread "_ptsz";
    Enqueue 3020 cuMemcpyDtoHAsync_v2(dst: HostAddress, src: DeviceAddress, bytes: usize, stream: StreamHandle) = copy_async, per_thread "_ptsz";
    Enqueue 3020 cuMemcpyDtoDAsync_v2(dst: DeviceAddress, src: DeviceAddress, bytes: usize, stream: StreamHandle) = copy_async, per_thread "_ptsz";
    Enqueue 3020 cuMemcpy2DAsync_v2(copy: In<Rectangle>, stream: StreamHandle) = rectangle_async, per_thread "_ptsz";
    Enqueue 12080 cuMemcpyBatchAsync(dst: In<UnifiedAddress>, src: In<UnifiedAddress>, bytes: In<usize>, count: usize, attributes: usize, starts: In<usize>, attribute_count: usize, failed: Out<usize>, stream: StreamHandle) = batch, per_thread "_ptsz";
    Enqueue 13000 cuMemcpyBatchAsync_v2(dst: In<UnifiedAddress>, src: In<UnifiedAddress>, bytes: In<usize>, count: usize, attributes: usize, starts: In<usize>, attribute_count: usize, stream: StreamHandle) = batch_v2, per_thread "_ptsz";
    Wait 4000 cuMemcpyPeer(dst: DeviceAddress, dst_context: ContextHandle, src: DeviceAddress, src_context: ContextHandle, bytes: usize) = peer, per_thread "_ptds";
    Enqueue 4000 cuMemcpyPeerAsync(dst: DeviceAddress, dst_context: ContextHandle, src: DeviceAddress, src_context: ContextHandle, bytes: usize, stream: StreamHandle) = peer_async, per_thread "_ptsz";
}

/// An address in an argument of a copy; its type tells which memory it may name.
trait Address {
    /// Checks that the address may be an end of a copy of `bytes` bytes.
    fn place(self, memory: &Memory, bytes: usize) -> Result<Place, Code>;
}

impl Address for DeviceAddress {
    fn place(self, memory: &Memory, bytes: usize) -> Result<Place, Code> {
        memory.device_place(self, bytes)
    }
}

impl Address for HostAddress {
    fn place(self, memory: &Memory, bytes: usize) -> Result<Place, Code> {
        memory.host_place(self.0 as u64, bytes)
    }
}

impl Address for UnifiedAddress {
    fn place(self, memory: &Memory, bytes: usize) -> Result<Place, Code> {
        memory.place(self.0 as u64, bytes)
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
    /// Returns the address of the first byte; arrays are not simulated.
    fn address(&self) -> Result<UnifiedAddress, Code> {
        let base = match self.kind {
            HOST => self.host,
            DEVICE | UNIFIED => self.device as usize,
            _ => return Err(Code::NOT_SUPPORTED),
        };
        Ok(UnifiedAddress(base + self.y * self.pitch + self.x))
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

fn copy(call: &Call, dst: impl Address, src: impl Address, bytes: usize) -> Status {
    let form = Form::plain(bytes);
    run(call, None, form, dst, src, Reach::OfTheStream)
}

fn copy_async(
    call: &Call,
    dst: impl Address,
    src: impl Address,
    bytes: usize,
    stream: StreamHandle,
) -> Status {
    let form = Form::plain(bytes);
    run(call, Some(stream), form, dst, src, Reach::OfTheStream)
}

/// Copies one after the other on one stream, which the legacy default stream cannot be; the order within a batch is not
/// promised, and the attributes' hints change nothing here.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
fn batch_v2(
    call: &Call,
    dst: In<UnifiedAddress>,
    src: In<UnifiedAddress>,
    bytes: In<usize>,
    count: usize,
    attributes: usize,
    starts: In<usize>,
    attribute_count: usize,
    stream: StreamHandle,
) -> Status {
    let has_attributes = attributes != 0 && (1..=count).contains(&attribute_count);
    if !has_attributes || starts.get()? != 0 || stream == StreamHandle::NULL {
        return Err(Code::INVALID_VALUE);
    }
    (0..count).try_for_each(|index| {
        let (dst, src, bytes) = (dst.get_at(index)?, src.get_at(index)?, bytes.get_at(index)?);
        copy_async(call, dst, src, bytes, stream)
    })
}

/// As `batch_v2`; on an error `failed` is SIZE_MAX: it does not say which copy failed.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
fn batch(
    call: &Call,
    dst: In<UnifiedAddress>,
    src: In<UnifiedAddress>,
    bytes: In<usize>,
    count: usize,
    attributes: usize,
    starts: In<usize>,
    attribute_count: usize,
    failed: Out<usize>,
    stream: StreamHandle,
) -> Status {
    let done = batch_v2(
        call,
        dst,
        src,
        bytes,
        count,
        attributes,
        starts,
        attribute_count,
        stream,
    );
    match done {
        Err(_) => failed.put(usize::MAX).and(done),
        Ok(()) => done,
    }
}

fn rectangle_async(call: &Call, copy: In<Rectangle>, stream: StreamHandle) -> Status {
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
    run(call, Some(stream), form, dst, src, Reach::OfTheStream)
}

/// Copies between devices. The contexts only have to exist: addresses are unique over all devices.
fn peer(
    call: &Call,
    dst: DeviceAddress,
    dst_context: ContextHandle,
    src: DeviceAddress,
    src_context: ContextHandle,
    bytes: usize,
) -> Status {
    check_contexts(dst_context, src_context)?;
    let form = Form::plain(bytes);
    run(call, None, form, dst, src, Reach::OfTheContexts)
}

fn peer_async(
    call: &Call,
    dst: DeviceAddress,
    dst_context: ContextHandle,
    src: DeviceAddress,
    src_context: ContextHandle,
    bytes: usize,
    stream: StreamHandle,
) -> Status {
    check_contexts(dst_context, src_context)?;
    let form = Form::plain(bytes);
    run(call, Some(stream), form, dst, src, Reach::OfTheContexts)
}

fn check_contexts(dst: ContextHandle, src: ContextHandle) -> Status {
    let world = lock();
    world.contexts.get(dst)?;
    world.contexts.get(src)?;
    Ok(())
}

/// Which device has to reach the memory of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// That of the stream.
    OfTheStream,
    /// Each end its own: cuMemcpyPeer names their contexts, and needs no access.
    OfTheContexts,
}

/// Runs a copy: on the default stream and synchronously if no stream is given. A copy that is
/// captured does not block.
fn run(
    call: &Call,
    stream: Option<StreamHandle>,
    form: Form,
    dst: impl Address,
    src: impl Address,
    reach: Reach,
) -> Status {
    let mut world = lock();
    let target = Target::resolve(&mut world, call, stream.unwrap_or(StreamHandle::NULL))?;
    if stream.is_none() {
        forbid::uncaptured(&mut world, &target)?;
    }
    if form.width == 0 || form.rows == 0 {
        return Ok(());
    }
    let dst = dst.place(&world.memory, form.span(form.dst_pitch))?;
    let src = src.place(&world.memory, form.span(form.src_pitch))?;
    if reach == Reach::OfTheStream {
        target.reaches(&world, &dst)?;
        target.reaches(&world, &src)?;
    }
    let (to, from) = (world.memory.side(&dst), world.memory.side(&src));
    let plan = if target.is_capturing(&world) {
        Plan::default()
    } else {
        Plan::new(to, from, stream.is_none())
    };
    if plan.wait_before {
        world = wait_for_tail(world, &target);
    }
    let src = match src {
        Place::Pageable(address) if plan.stage => {
            Place::Staged(read(address as usize, form.span(form.src_pitch)).into())
        }
        src => src,
    };
    world = submit(world, &target, Work::Copy(Copy2d { dst, src, form }))?;
    if plan.wait_after {
        world = wait_for_tail(world, &target);
    }
    world.context(target.context).map(drop)
}

/// How a copy blocks the host.
#[derive(Default)]
struct Plan {
    wait_before: bool,
    /// Copies the source away before returning, so that the caller may change it then.
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
