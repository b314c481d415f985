//! A typed view on one of cudarc's streams, as long as a guard lives.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{CudaContext, CudaStream, LaunchArgs, PushKernelArg};

use self::sealed::Left;
use super::in_context::{context_of, keep_for_ever, wait_for_context, within};
use super::keep;
use super::stream::{check_device, mean_default, number_of, plain_number};
use crate::driver::MemoryKind;
use crate::error::Error;
use crate::process::thread::Thread;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::DeviceType;
use crate::protocol::stream::{Stream, SyncPolicy};
use crate::view::keep::{Before, Begun};
use crate::view::{
    CaiView, ConsumeGuard, Element, Keeper, ReturnEdge, Unordered, View, ViewMut, check_cuda,
    detach, is_elsewhere, stay_if_done, thread_of, with_driver,
};

/// Keeps a view on a stream: the stream has been made to wait for the data, and when the guard is dropped the
/// producer's stream is made to wait for what the stream holds by then.
///
/// ```no_run
/// use std::sync::Arc;
/// use cai_dlpack::view::{ReturnEdge, View};
/// use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
///
/// fn launch(kernel: &CudaFunction, a: View<'_, f32>, stream: &Arc<CudaStream>) -> Result<(), cai_dlpack::Error> {
///     let guard = a.on(stream)?;
///     // SAFETY: the kernel reads one float of `a` and nothing else.
///     unsafe { stream.launch_builder(kernel).arg(&guard).launch(LaunchConfig::for_num_elems(1)) }?;
///     guard.finish()?;
///     Ok(())
/// }
///
/// /// The address by itself, for a launch that does not go through cudarc's builder.
/// fn by_address(a: View<'_, f32>, stream: &Arc<CudaStream>) -> Result<(), cai_dlpack::Error> {
///     let guard = a.on(stream)?;
///     let (first, elements) = (guard.device_ptr(), guard.view().len());
///     println!("{elements} elements at {first:#x}, on device {}", guard.stream().context().ordinal());
///     println!("their type: {}", guard.descriptor().dtype());
///     if guard.return_edge() == ReturnEdge::Unknown {
///         println!("the producer names no stream: order its next write by yourself");
///     }
///     Ok(())
/// }
/// # let _ = (launch, by_address);
/// ```
///
/// Enqueue the work that uses the data on this stream, and on no other, before the drop. Both edges are
/// events; neither is made if producer and consumer work on one stream, and the host never waits
/// (unless the return edge is refused; then it waits for the stream instead, or, where a capture forbids that, the owner
/// is kept until the stream is done). If the driver refuses that wait, too, or the edge in a capture, so that nothing comes after
/// the work, [`finish`](Self::finish) returns the refusal; after a drop cudarc's next call in the context tells it.
///
/// If the producer's stream is unknown, or it works on none, there is no return edge: the owner of the memory is
/// kept instead until this stream is done, and so is the stream; if it is being captured then, with what it held before the
/// capture.
/// Memory that the host can write (pinned and managed, under any name) is kept so beside every edge, as a host cache
/// gives it away in the order of no stream.
/// During a capture of the stream the graph keeps the owner as well, for its launches: from the use of the guard on
/// ([`device_ptr`](Self::device_ptr), [`as_slice`](Self::as_slice), an argument of a launch), or from the guard's end in the
/// capture if a slice was used before it, until the graph is destroyed, with all that was made of it. Forgetting the guard (`mem::forget`) leaves out the edge and keeps the
/// owner for ever. A thread that holds Python's lock releases it for both edges.
///
/// Drop it on its own thread if the stream is a per-thread default one: on another thread the host waits
/// for the whole context.
///
/// A guard of a [`ViewMut`] waits for the producer's stream too, to which the ends of earlier readers come back, and for
/// those that come back to none, on whichever stream they ended: of this view, of its clones and parts, and copies of them.
/// It is refused in a capture until those are done (`capture-consumer`; `capture-producer` in one that it would enter), and
/// everywhere after a reader whose stream was captured between its work and its end.
///
/// After a [`ViewMut`] was written, the view is ready where its writer left it: on the producer's stream, which
/// waits for the kernel; or, if the producer named none, on this stream, which the view then keeps alive.
#[must_use = "dropping the guard makes the return edge"]
pub struct StreamGuard<'s, V: Consume> {
    /// `None` once it has ended.
    guard: Option<ConsumeGuard>,
    view: V,
    stream: &'s Arc<CudaStream>,
    /// Whose per-thread default stream it is.
    thread: Option<Thread>,
    pointer: CUdeviceptr,
    /// Whether the host can write the memory. Then what uses it anew need not be in the order of any stream.
    may_host_write: bool,
    /// The capture whose graph keeps the owner; 0 if there is none.
    captured: AtomicU64,
    /// Whether cudarc has asked for the address: it runs code of others before it enqueues the work, which may begin a capture.
    is_asked: AtomicBool,
    /// The contexts of other streams that cudarc has used the elements on.
    others: Mutex<Vec<Arc<CudaContext>>>,
}

/// A typed view that a stream can consume: [`View`] or [`ViewMut`]. No other type can be added.
///
/// ```
/// use std::sync::Arc;
/// use cai_dlpack::interop::cudarc::{Consume, StreamGuard, StreamSlice};
/// use cai_dlpack::view::ReturnEdge;
///
/// /// Whether the producer waits for what `guard` does, of either kind of view.
/// fn is_ordered<V: Consume>(guard: &mut StreamGuard<'_, V>) -> bool {
///     let _elements: Option<StreamSlice<'_, '_, V>> = guard.as_slice().ok();
///     guard.return_edge() == ReturnEdge::Event
/// }
/// ```
pub trait Consume: sealed::Consume {}

impl<T: Element> Consume for View<'_, T> {}
impl<T: Element> Consume for ViewMut<'_, T> {}

pub(super) mod sealed {
    use super::{Arc, CaiView, CudaStream, Error};
    use crate::view::Placed;

    /// Where the work of a guard that has ended is.
    pub struct Left {
        pub(crate) at: Placed,
        /// Whether it is on the guard's stream, and not on the producer's, which is it or waits for it.
        pub(crate) is_here: bool,
        /// Whether it may be work of no graph.
        pub(crate) is_eager: bool,
    }

    pub trait Consume {
        /// The element type.
        type Element;

        /// Whether the elements may be written.
        const WRITES: bool;

        fn array(&self) -> &CaiView;

        /// Returns the refusal, which names the view if that has a name.
        fn refusal(&self, refused: Error) -> Error;

        /// Notes that the guard has ended; `None` if the work is done.
        ///
        /// # Errors
        /// Another part of the array may not be ready: the driver's refusal, or `stream-thread`.
        fn ended(&mut self, left: Option<Left>, stream: &Arc<CudaStream>) -> Result<(), Error>;

        /// Whether another part of the array may be written meanwhile.
        fn is_part(&self) -> bool;
    }
}

impl<T: Element> sealed::Consume for View<'_, T> {
    type Element = T;
    const WRITES: bool = false;

    fn array(&self) -> &CaiView {
        self.cai()
    }

    fn refusal(&self, refused: Error) -> Error {
        self.refusal(refused)
    }

    fn ended(&mut self, _left: Option<Left>, _stream: &Arc<CudaStream>) -> Result<(), Error> {
        Ok(())
    }

    fn is_part(&self) -> bool {
        false
    }
}

impl<T: Element> sealed::Consume for ViewMut<'_, T> {
    type Element = T;
    const WRITES: bool = true;

    fn array(&self) -> &CaiView {
        self.cai()
    }

    fn refusal(&self, refused: Error) -> Error {
        self.refusal(refused)
    }

    /// The data was written: sets the stream on which it is ready now. If the work is done, it is ready where it was, and
    /// everywhere.
    fn ended(&mut self, left: Option<Left>, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let Some(left) = left else { return Ok(()) };
        let kept = left.is_here.then(|| stream.keep());
        let mut ended = Vec::new();
        // The current context may be gone, in which no question is answered. The keepers end in the caller's.
        let array = self.array_mut();
        detach(|| {
            let written = within(Arc::clone(stream.context()), |_| {
                array.written(left.at, kept, left.is_eager, &mut ended)
            });
            if let Err(Unordered::Lost(_)) = &written {
                keep_for_ever(array.cai().owner(), stream.context());
            }
            Ok(written?)
        })
    }

    fn is_part(&self) -> bool {
        self.is_part()
    }
}

impl<'a, T: Element> View<'a, T> {
    /// Makes `stream` wait for the data, until the guard's end; see [`StreamGuard`].
    ///
    /// # Errors
    /// `view-device` for memory of the CPU, `stream-device` for a stream of another device; what
    /// [`CaiView::consume`] refuses.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use cai_dlpack::{Error, view::View};
    /// use cudarc::driver::CudaStream;
    ///
    /// fn download(a: View<'_, f32>, stream: &Arc<CudaStream>) -> Result<Vec<f32>, Error> {
    ///     let mut there = a.cuda()?.on(stream)?; // the stream waits for the data
    ///     let copied = stream.clone_dtoh(&there.as_slice()?)?;
    ///     there.finish()?; // the producer's stream waits for the copy
    ///     Ok(copied)
    /// }
    /// # let _ = download;
    /// ```
    pub fn on<'s>(self, stream: &'s Arc<CudaStream>) -> Result<StreamGuard<'s, Self>, Error> {
        StreamGuard::new(self, stream)
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// Makes `stream` wait for the data, to be written there until the guard's end; see [`StreamGuard`].
    ///
    /// # Errors
    /// As [`View::on`].
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use cai_dlpack::{CaiView, Error};
    /// use cudarc::driver::CudaStream;
    ///
    /// /// The view is ready where its last writer left it: its next user waits for the fill.
    /// fn clear(view: &mut CaiView, stream: &Arc<CudaStream>) -> Result<(), Error> {
    ///     let mut there = view.typed_mut::<f32>()?.on(stream)?;
    ///     stream.memset_zeros(&mut there.as_slice()?)?;
    ///     there.finish()?;
    ///     Ok(())
    /// }
    /// # let _ = clear;
    /// ```
    pub fn on<'s>(self, stream: &'s Arc<CudaStream>) -> Result<StreamGuard<'s, Self>, Error> {
        StreamGuard::new(self, stream)
    }
}

impl<'s, V: Consume> StreamGuard<'s, V> {
    fn new(view: V, stream: &'s Arc<CudaStream>) -> Result<Self, Error> {
        let (array, is_part) = (view.array(), view.is_part());
        let number = number_of(stream)?;
        check_cuda(array.descriptor()).map_err(|refused| view.refusal(refused.into()))?;
        check_device(array.device(), stream)?;
        let (pointer, may_host_write) = seen_by_device(array)?;
        let there = match number.is_default() {
            true => mean_default(array, stream)?,
            false => None,
        };
        let mut before = Before::default();
        let entered = Self::enter(array, is_part, stream, number, &mut before);
        let guard = stay_if_done(there, entered);
        if V::WRITES {
            detach(|| drop(before));
        }
        Ok(Self {
            guard: Some(guard?),
            view,
            stream,
            thread: thread_of(number),
            pointer,
            may_host_write,
            captured: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            others: Mutex::default(),
        })
    }

    /// Makes the stream, which its number means, wait for the data, and for a writer for those `before` it.
    fn enter(
        array: &CaiView,
        is_part: bool,
        stream: &CudaStream,
        number: Stream,
        before: &mut Before,
    ) -> Result<ConsumeGuard, Error> {
        let mut guard = if V::WRITES {
            let are_there = keep::before_writer(before, array.owner(), stream, number)?;
            let entered = array.enter_to_write(number, are_there);
            let consumer = match entered {
                // A capture that a writer which waits for nothing may enter.
                Err(Error::Violation(_)) if are_there && keep::is_over(before, stream) => {
                    array.enter_to_write(number, false)?
                }
                entered => {
                    let consumer = entered?;
                    if are_there {
                        keep::wait_for(before, array.owner(), stream, number)?;
                    }
                    consumer
                }
            };
            array.consumed(consumer)
        } else {
            array.consume_with(number, SyncPolicy::Event)?
        };
        guard.check_entry(context_of(stream.context()), is_part);
        Ok(guard)
    }

    /// Returns the address of the element of index 0 for code on the device: the kernel argument. 0 without
    /// elements.
    ///
    /// It is valid until the guard is dropped, for work on the guard's stream: so the reference ends with the guard. A
    /// copy of the number does not. For a launch that is captured, ask for it in the capture, whose graph then keeps the owner:
    /// a graph knows nothing of a reference, or of a launch's argument, from before.
    #[must_use]
    pub fn device_ptr(&self) -> &CUdeviceptr {
        self.keep_in_graph(self.stream);
        &self.pointer
    }

    /// Returns what the elements are, and where.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        self.array().descriptor()
    }

    /// Returns the stream.
    #[must_use]
    pub fn stream(&self) -> &'s Arc<CudaStream> {
        self.stream
    }

    /// Returns what the end of the guard does for the producer.
    #[must_use]
    pub fn return_edge(&self) -> ReturnEdge {
        self.guard
            .as_ref()
            .map_or(ReturnEdge::Unknown, ConsumeGuard::return_edge)
    }

    /// Ends the guard; returns what that did for the producer.
    ///
    /// # Errors
    /// As [`ConsumeGuard::finish`]; the host has waited for the stream then, unless a capture forbids it. If the driver has
    /// refused that wait, too, its refusal, in place of the edge's. `stream-thread` if nothing orders this part of an array after
    /// another one that was written in the same capture, as one of the two was written on another thread's per-thread default
    /// stream.
    pub fn finish(mut self) -> Result<ReturnEdge, Error> {
        let (edge, waited) = self.end();
        waited?;
        edge
    }

    /// Has the graph that `stream` is being captured into keep the owner, if there is one: it is launched later.
    pub(super) fn keep_in_graph(&self, stream: &CudaStream) {
        // Also that of a default stream of a context that is not a primary one, which is asked in that context.
        let number = plain_number(stream);
        // The legacy default stream is captured by nothing.
        if number == Stream::LegacyDefault {
            return;
        }
        let (owner, kept_by) = (self.array().owner(), self.captured.load(Ordering::Relaxed));
        let kept_by = keep::by_graph(stream, number, owner, kept_by);
        // What a capture once held has not run by its end, nor where another thread's stream of the number is asked.
        if kept_by != 0 {
            self.captured.store(kept_by, Ordering::Relaxed);
        }
    }

    /// Notes that cudarc uses the elements on the guard's stream.
    pub(super) fn note_asked(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Notes that cudarc uses the elements on another stream, of this context: the host waits for it then, unless cudarc has
    /// noted an error meanwhile.
    pub(super) fn note_other(&self, context: &Arc<CudaContext>) {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if !others
            .iter()
            .any(|other| other.cu_ctx() == context.cu_ctx())
        {
            others.push(Arc::clone(context));
        }
    }

    /// Whether the stream's number means another stream on this thread.
    pub(super) fn is_elsewhere(&self) -> bool {
        is_elsewhere(self.thread)
    }

    pub(super) fn array(&self) -> &CaiView {
        self.view.array()
    }

    pub(super) fn typed(&self) -> &V {
        &self.view
    }

    pub(super) fn pointer(&self) -> CUdeviceptr {
        self.pointer
    }

    /// Returns what it did for the producer; and the refusal of a wait that nothing else stands for.
    fn end(&mut self) -> (Result<ReturnEdge, Error>, Result<(), Error>) {
        let Some(guard) = self.guard.take() else {
            return (Ok(ReturnEdge::Unknown), Ok(()));
        };
        if self.is_asked.load(Ordering::Relaxed) && !self.is_elsewhere() {
            self.keep_in_graph(self.stream);
        }
        let (edge, here, begun) = (guard.return_edge(), guard.placed(), guard.begun());
        let others =
            std::mem::take(&mut *self.others.lock().unwrap_or_else(PoisonError::into_inner));
        let (array, stream) = (self.array(), self.stream);
        let (owner, device) = (array.owner(), array.device());
        let is_eager = match begun {
            // Work that is not the graph's has the wait below.
            Begun::InCapture(_) if self.is_elsewhere() => false,
            // The capture may have ended meanwhile, and another one begun.
            Begun::InCapture(capture) => !keep::is_in(stream, capture),
            _ => true,
        };
        let mut waited: Result<(), Error> = Ok(());
        for context in others {
            waited = waited.and(detach(|| {
                let waited = wait_for_context(&context, Some(owner));
                // It may be the last share.
                within(context, |_| Ok(waited?))
            }));
        }
        let finished = guard.finish_told();
        let is_in_graph = matches!(finished, Ok((_, true)));
        let is_ordered =
            finished.is_ok() && matches!(edge, ReturnEdge::Event | ReturnEdge::SameStream);
        let begun = if is_ordered { Begun::Ordered } else { begun };
        let producer = array.streams().placed_producer();
        let producer = producer.filter(|_| is_ordered && !is_in_graph);
        let mut left = Some(Left {
            at: producer.unwrap_or(here),
            is_here: producer.is_none(),
            is_eager,
        });
        if self.is_elsewhere() {
            // The stream cannot be named here.
            match detach(|| wait_for_context(stream.context(), Some(owner))) {
                // The work of a capture has not run.
                Ok(()) if is_eager && self.captured.load(Ordering::Relaxed) == 0 => left = None,
                Ok(()) => {}
                Err(_) if is_ordered => {}
                Err(refused) => waited = waited.and(Err(refused.into())),
            }
        } else if let Err(edge) = &finished {
            // Nothing else waits for the work.
            match detach(|| keep::wait_or_keep(owner, device, stream, begun)) {
                Ok(true) => left = None,
                Ok(false) => {
                    // A capture forbids the wait: a rule that refuses the edge is the user's to keep, and `finish` tells it.
                    if let Error::Driver(refused) = edge {
                        waited = waited.and(Err((*refused).into()));
                    }
                }
                Err(refused) => waited = waited.and(Err(refused.into())),
            }
        } else if self.may_host_write
            || is_in_graph
            || matches!(edge, ReturnEdge::Unknown | ReturnEdge::NotNeeded)
        {
            detach(|| keep::until_done(owner, device, stream, begun));
        }
        let waited = waited.and(self.view.ended(left, self.stream));
        (finished.map(|(edge, _)| edge), waited)
    }
}

impl<'a, T: Element> StreamGuard<'_, View<'a, T>> {
    /// Returns the view. A guard of a [`ViewMut`] lends none: on another stream it would be read while this one writes.
    #[must_use]
    pub fn view(&self) -> &View<'a, T> {
        &self.view
    }
}

impl<V: Consume> Drop for StreamGuard<'_, V> {
    fn drop(&mut self) {
        // A refused edge has been answered by a wait, unless a capture forbids that (docs/rust.md).
        if let (_, Err(_)) = self.end() {
            // cudarc's next call tells it, or an error that was noted before.
            let told = Err(cudarc::driver::DriverError(CUresult::CUDA_ERROR_UNKNOWN));
            let context = self.stream.context();
            context.record_err::<()>(context.check_err().and(told));
        }
    }
}

impl<V: Consume> fmt::Debug for StreamGuard<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamGuard")
            .field("pointer", &self.pointer)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}

// SAFETY: the launch reads the pushed address, which lies in the guard that `'b` keeps borrowed.
unsafe impl<'a, 'b: 'a, V: Consume> PushKernelArg<&'b StreamGuard<'_, V>> for LaunchArgs<'a> {
    fn arg(&mut self, guard: &'b StreamGuard<'_, V>) -> &mut Self {
        self.arg(guard.device_ptr())
    }
}

/// Returns the address for device code, since pinned memory may have another one than on the host; and whether the host
/// can write the memory, under whatever name it came.
fn seen_by_device(array: &CaiView) -> Result<(CUdeviceptr, bool), Error> {
    let (data, device_type) = (array.descriptor().data(), array.device().device_type);
    if data == 0 || (device_type == DeviceType::CUDA && !array.may_be_managed()) {
        return Ok((data, false));
    }
    if device_type == DeviceType::CUDA_MANAGED {
        return Ok((data, true));
    }
    let info = with_driver(|driver| driver.pointer_info(data, false))?;
    let is_pinned = device_type == DeviceType::CUDA_HOST && info.device_pointer != 0;
    let pointer = if is_pinned { info.device_pointer } else { data };
    Ok((pointer, info.kind != MemoryKind::Device))
}
