//! cubecl's memory of a GPU as views without a copy, and views as its memory by a copy.
//!
//! cubecl names no stream, so the host waits for each order: once for a view, once at its end, once for a copy.

use std::error::Error;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;

use cai_dlpack::CaiView;
use cai_dlpack::interop::cudarc::context;
use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, Flags};
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Element, Owner, View};
use cubecl_cuda::{CudaDevice, CudaRuntime};
use cubecl_runtime::client::ComputeClient;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::Handle;
use cudarc::driver::{CudaContext, DeviceRepr, result::ctx, sys::CUcontext};

type Client = ComputeClient<CudaRuntime>;

/// Leaves the calling thread's context as it was: cudarc and cubecl make their own current.
struct Before(Option<CUcontext>);

impl Before {
    fn now() -> Self {
        Self(ctx::get_current().ok().flatten())
    }

    /// As [`now`](Self::now); on a thread that has no context, the one that is made current stays: cubecl's own waits need
    /// one, also those that the caller makes afterwards.
    fn if_any() -> Option<Self> {
        Some(Self::now()).filter(|before| before.0.is_some())
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        // SAFETY: the context was current when this value was made; null is none.
        let _ = unsafe { ctx::set_current(self.0.unwrap_or(std::ptr::null_mut())) };
    }
}

/// A handle, kept until all who may use its memory are done.
struct Kept {
    handle: ManuallyDrop<Handle>,
    /// `None` once it is being dropped.
    context: Option<Arc<CudaContext>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _before = Before::now();
        // Its last owner makes it current once more: it ends before `_before` does.
        let context = self.context.take();
        // cubecl gives the memory to its next kernel at once, on streams that it does not name. If the wait fails, the
        // handle stays.
        if context.is_some_and(|context| context.synchronize().is_ok()) {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.handle) };
        }
    }
}

/// The memory of a handle as a view in C order, without a copy. It is read-only, and ready: the host waits for cubecl here,
/// and for the whole device before cubecl gets the memory back.
///
/// # Errors
/// A handle of another size than `shape` has; those of cubecl and of the driver.
///
/// # Safety
/// The handle is of `device`, and while the view or what is made of it lives, no kernel writes to its memory.
pub unsafe fn view_of<T: Element>(
    handle: Handle,
    device: &CudaDevice,
    shape: &[i64],
) -> Result<CaiView, Box<dyn Error>> {
    let (_before, context) = opened(device)?;
    let client = CudaRuntime::client(device);
    let resource = client.get_resource(handle.clone())?;
    let on = Device::cuda(i32::try_from(device.index)?);
    let raw = RawTensor::new(resource.resource().ptr, on, T::DTYPE, shape);
    let descriptor = Descriptor::new(&raw.with_flags(Flags::READ_ONLY))?;
    if handle.size_in_used() != descriptor.nbytes() {
        return Err(format!("{handle:?} is no memory of {descriptor}").into());
    }
    all_work(&client, &context)?;
    let handle = ManuallyDrop::new(handle);
    // SAFETY: the owner keeps the handle, and so the memory; the elements are there (the size is checked), and nobody
    // writes them (this function's contract). They are ready.
    Ok(unsafe {
        CaiView::new(
            descriptor,
            Stream::None,
            Owner::new(Kept {
                handle,
                context: Some(context),
            }),
        )
    })
}

/// A copy of a view as memory of cubecl, which has no handles of foreign memory. The host waits for the copy.
///
/// # Errors
/// A view without elements, not in C order, or not in memory of the device, before memory is taken for it; those of cubecl and
/// of the driver.
pub fn handle_of<T: Element + DeviceRepr>(
    view: &View<'_, T>,
    device: &CudaDevice,
) -> Result<Handle, Box<dyn Error>> {
    if view.is_empty() {
        return Err("cubecl has no memory of 0 bytes".into());
    }
    let (_before, context) = opened(device)?;
    let client = CudaRuntime::client(device);
    let stream = context.new_stream()?;
    let mut there = view.clone().c_order()?.on(&stream)?;
    let elements = there.as_slice()?;
    let handle = client.empty(size_of::<T>() * view.len());
    let resource = client.get_resource(handle.clone())?;
    // New memory is there, and used memory free, in the order of a stream of cubecl's: this comes after it.
    all_work(&client, &context)?;
    // Stays if the copy may still run.
    let handle = ManuallyDrop::new(handle);
    // SAFETY: cubecl has allocated so many bytes, which the handle keeps, and nothing works with them; any bytes are a `T`.
    let copy = unsafe { stream.upgrade_device_ptr::<T>(resource.resource().ptr, view.len()) };
    // Not dropped, which would free cubecl's memory.
    let mut copy = ManuallyDrop::new(copy);
    let copied = stream.memcpy_dtod(&elements, &mut *copy);
    stream.synchronize()?;
    // What cudarc has made for it goes: two events, and a count of the stream.
    ManuallyDrop::into_inner(copy).leak();
    let handle = ManuallyDrop::into_inner(handle);
    drop(elements);
    there.finish()?;
    Ok(copied.map(|()| handle)?)
}

/// Opens a device and makes its context current. The first value leaves the caller's as it was, if there was one: it must end
/// after the context, whose end makes it current once more.
fn opened(device: &CudaDevice) -> Result<(Option<Before>, Arc<CudaContext>), Box<dyn Error>> {
    // First, as cudarc panics without a driver; and on another thread, as it makes the context current.
    let open = || context(device.index);
    let context = thread::scope(|scope| scope.spawn(open).join());
    let context = context.map_err(|_| "cudarc panicked as it opened the device")??;
    let before = Before::if_any();
    context.bind_to_thread()?;
    Ok((before, context))
}

/// Waits for what this thread has told cubecl to do, and for what others have: cubecl has a stream for each thread, whose
/// kernels may write to memory of another. The context is current: an event of cubecl's needs one.
fn all_work(client: &Client, context: &CudaContext) -> Result<(), Box<dyn Error>> {
    cubecl_common::future::block_on(client.sync())?;
    Ok(context.synchronize()?)
}
