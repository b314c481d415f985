//! The loan of a typed view to one of cudarc's streams.

use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, LaunchArgs, PushKernelArg};

use super::keep::{self, InContext};
use super::{OnSlice, number_of};
use crate::driver;
use crate::error::Error;
use crate::protocol::descriptor::Device;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::view::{
    CaiView, Consumed, Element, Kept, ReturnEdge, View, ViewMut, check_cuda, is_elsewhere,
    thread_of, unlocked,
};

/// A view on a stream: the stream has been made to wait for the data, and when this is dropped the
/// producer's stream is made to wait for what the stream holds by then.
///
/// Enqueue the work that uses the data on this stream, and on no other, before the drop. Both edges are
/// events; neither is made where producer and consumer work on one stream, and the host never waits
/// (unless the return edge is refused; then it waits for the stream instead).
///
/// Where nobody said on which stream the producer works, or it works on none, there is no return edge: the
/// owner of the memory is kept instead until this stream is done. Forgetting the guard (`mem::forget`) leaves
/// out the edge and keeps the owner for ever. A thread that holds Python's lock lets go of it for both edges.
///
/// Drop it on its own thread where the stream is a per-thread default one: on another thread the host waits
/// for the whole context.
///
/// After a *mutable* loan the view is ready where its writer left it: on the producer's stream, which
/// waits for the kernel; or on this stream, which the view then keeps alive, where the producer named
/// none.
#[must_use = "dropping the guard ends the loan"]
pub struct On<'s, V: Lend> {
    /// `None` once the loan has ended.
    loan: Option<Consumed>,
    view: V,
    stream: &'s Arc<CudaStream>,
    /// Whose per-thread default stream it is.
    thread: Option<ThreadId>,
    pointer: CUdeviceptr,
}

/// [`View`] or [`ViewMut`]: what can be lent to a stream. No other type can be added.
pub trait Lend: sealed::Lend {}

impl<T: Element> Lend for View<'_, T> {}
impl<T: Element> Lend for ViewMut<'_, T> {}

pub(super) mod sealed {
    use super::{Arc, CaiView, CudaStream, ReturnEdge};

    pub trait Lend {
        /// The element type.
        type Element;

        fn array(&self) -> &CaiView;

        /// The loan has ended with this return edge.
        fn ended(&mut self, edge: ReturnEdge, stream: &Arc<CudaStream>);
    }
}

impl<T: Element> sealed::Lend for View<'_, T> {
    type Element = T;

    fn array(&self) -> &CaiView {
        self.cai()
    }

    fn ended(&mut self, _edge: ReturnEdge, _stream: &Arc<CudaStream>) {}
}

impl<T: Element> sealed::Lend for ViewMut<'_, T> {
    type Element = T;

    fn array(&self) -> &CaiView {
        self.cai()
    }

    /// The data was written: say on which stream it is ready now.
    fn ended(&mut self, edge: ReturnEdge, stream: &Arc<CudaStream>) {
        let producer = self.cai().producer();
        let cai = self.cai_mut();
        match (edge, producer) {
            (ReturnEdge::Event | ReturnEdge::SameStream, Some(producer)) => cai.set_ready(producer),
            _ => {
                let number = number_of(stream).unwrap_or(Stream::None);
                let kept = InContext::new(Arc::clone(stream), stream.context());
                cai.set_ready_kept(number, Kept(Arc::new(kept)));
            }
        }
    }
}

impl<'a, T: Element> View<'a, T> {
    /// Lends the data to `stream`, which waits for it now; see [`On`].
    ///
    /// # Errors
    /// `view-device` for memory of the CPU, `stream-device` for a stream of another device; what
    /// [`CaiView::consume`] refuses.
    pub fn on<'s>(self, stream: &'s Arc<CudaStream>) -> Result<On<'s, Self>, Error> {
        On::new(self, stream)
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// Lends the data to `stream`, to be written there; see [`On`].
    ///
    /// # Errors
    /// As [`View::on`].
    pub fn on<'s>(self, stream: &'s Arc<CudaStream>) -> Result<On<'s, Self>, Error> {
        On::new(self, stream)
    }
}

impl<'s, V: Lend> On<'s, V> {
    fn new(view: V, stream: &'s Arc<CudaStream>) -> Result<Self, Error> {
        let array = view.array();
        let number = number_of(stream)?;
        check_cuda(array.descriptor())?;
        check_device(array.device(), stream)?;
        let pointer = device_pointer(array)?;
        let loan = unlocked(|| array.consume(number))?;
        Ok(Self {
            loan: Some(loan),
            view,
            stream,
            thread: thread_of(number),
            pointer,
        })
    }

    /// The address of the element of index 0 for code on the device: the kernel argument. 0 without
    /// elements.
    ///
    /// It is good until the guard is gone, for work on the guard's stream.
    #[must_use]
    pub fn device_ptr(&self) -> CUdeviceptr {
        self.pointer
    }

    /// The view that is lent.
    #[must_use]
    pub fn view(&self) -> &V {
        &self.view
    }

    /// The stream that the view is lent to.
    #[must_use]
    pub fn stream(&self) -> &'s Arc<CudaStream> {
        self.stream
    }

    /// What the end of the loan does for the producer.
    #[must_use]
    pub fn return_edge(&self) -> ReturnEdge {
        self.loan
            .as_ref()
            .map_or(ReturnEdge::Unknown, Consumed::return_edge)
    }

    /// The elements as cudarc's own functions take them, which want them contiguous.
    ///
    /// # Errors
    /// `view-contiguous`.
    pub fn as_slice(&mut self) -> Result<OnSlice<'_, 's, V>, Violation> {
        OnSlice::new(self)
    }

    /// Ends the loan, and says what that did.
    ///
    /// # Errors
    /// As [`Consumed::finish`]; the host has waited for the stream then.
    pub fn finish(mut self) -> Result<ReturnEdge, Error> {
        self.end()
    }

    /// Whether the stream's number means another stream on this thread.
    pub(super) fn is_elsewhere(&self) -> bool {
        is_elsewhere(self.thread)
    }

    pub(super) fn array(&self) -> &CaiView {
        self.view.array()
    }

    fn end(&mut self) -> Result<ReturnEdge, Error> {
        let Some(loan) = self.loan.take() else {
            return Ok(ReturnEdge::Unknown);
        };
        let edge = loan.return_edge();
        let finished = unlocked(|| loan.finish());
        if finished.is_err() || self.is_elsewhere() {
            // Nothing waits for the work: so the host does.
            let (stream, is_elsewhere) = (self.stream, self.is_elsewhere());
            unlocked(|| wait(stream, is_elsewhere));
        } else if matches!(edge, ReturnEdge::Unknown | ReturnEdge::NotNeeded) {
            let (owner, stream) = (self.array().owner().share(), self.stream);
            unlocked(|| keep::until_done(owner, stream));
        }
        self.view.ended(edge, self.stream);
        finished
    }
}

impl<V: Lend> Drop for On<'_, V> {
    fn drop(&mut self) {
        // A refusal has been answered by a wait.
        let _ = self.end();
    }
}

impl<V: Lend> fmt::Debug for On<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("On")
            .field("pointer", &self.pointer)
            .field("loan", &self.loan)
            .finish_non_exhaustive()
    }
}

// SAFETY: the launch reads the pushed address, which lies in the guard that `'b` keeps borrowed.
unsafe impl<'a, 'b: 'a, V: Lend> PushKernelArg<&'b On<'_, V>> for LaunchArgs<'a> {
    fn arg(&mut self, on: &'b On<'_, V>) -> &mut Self {
        self.arg(&on.pointer)
    }
}

/// The host waits for the stream, or its whole context. cudarc keeps an error of its own.
fn wait(stream: &CudaStream, is_elsewhere: bool) {
    let context = stream.context();
    context.record_err(if is_elsewhere {
        context.synchronize()
    } else {
        stream.synchronize()
    });
}

/// The stream must be one of the device that the memory belongs to.
fn check_device(device: Device, stream: &CudaStream) -> Result<(), Violation> {
    let field = Field::Argument("stream");
    let ordinal = stream.context().ordinal();
    if device.device_type == Device::CUDA && usize::try_from(device.id) != Ok(ordinal) {
        let found = format_args!("a stream of device {ordinal} for memory on {device}");
        return Err(Violation::new(Rule::StreamDevice, field, found));
    }
    Ok(())
}

/// The address for device code. Pinned memory may have another one than on the host.
fn device_pointer(array: &CaiView) -> Result<CUdeviceptr, Error> {
    let data = array.descriptor().data();
    if array.device().device_type != Device::CUDA_HOST || data == 0 {
        return Ok(data);
    }
    let info = driver::driver()?.pointer_info(data, false)?;
    Ok(match info.device_pointer {
        0 => data,
        pointer => pointer,
    })
}
