//! Views, and who owns what they show.
//!
//! ```text
//!   producer's memory <-- Owner <-- CaiView --interface()--> CAI dict (borrows; the view must live)
//!                           ^          |
//!                           |          +--to_dlpack(c)--> managed tensor --> consumer
//!                           +--------- share() ----------------|
//! ```
//! A [`CaiView`] is a checked [`Descriptor`], the [`Owner`] of the memory, the *ready stream* (a consumer must
//! wait for it) and the *producer stream* (the producer goes on working there). The memory lives until the view
//! and every managed tensor made from it are gone, in whatever order and on whatever threads that happens.
//!
//! **Features.** The queue and the gate, the builder `Uninit` and what else only Python's side calls stand here
//! without a `cfg` of their own: a build without the feature `pyo3` leaves them unused, and is told so once,
//! below. The stable ABI (`Py_LIMITED_API`) leaves the deallocation of views to PyO3, and so `end` unused.
#![cfg_attr(
    any(not(all(feature = "cudarc", feature = "pyo3")), Py_LIMITED_API),
    allow(
        dead_code,
        unused_imports,
        reason = "what only Python's side calls, or cudarc's"
    )
)]

/// `floats()`, a view of two rows of three numbers, for the examples of this folder's documentation.
#[rustfmt::skip]
macro_rules! floats {
    () => {
"# use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
# use cai_dlpack::protocol::device::Device;
# use cai_dlpack::protocol::dtype::DType;
# use cai_dlpack::protocol::stream::Stream;
# use cai_dlpack::view::{CaiView, Owner};
# fn floats() -> CaiView {
#     let values = vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
#     let data = values.as_ptr().expose_provenance() as u64;
#     let tensor = RawTensor::new(data, Device::HOST, DType::F32, &[2, 3]);
#     let descriptor = Descriptor::new(&tensor).expect(\"a valid tensor\");
#     // SAFETY: the elements lie in the vector, which the owner keeps; nothing works on a stream.
#     unsafe { CaiView::new(descriptor, Stream::None, Owner::new(values)).with_producer(Stream::None) }
# }"
    };
}

mod block;
mod borrow;
mod consume;
mod copy;
mod detach;
mod element;
mod elements;
mod export;
mod fields;
mod host;
mod import;
pub(crate) mod keep;
mod kinds;
mod live;
mod load;
mod loom;
mod memory;
mod order;
mod owner;
mod part;
#[cfg(feature = "pyo3")]
mod passed;
mod payload;
mod present;
mod producer;
#[cfg(test)]
mod programs;
mod queue;
mod stats;
mod streams;
mod tensor;
mod ticket;
mod typed;
mod uninit;
mod worker;

pub use dlpark::Managed;
/// dlpark's owned tensors and DLPack's two layouts, as they stand in our signatures.
pub use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};

pub use borrow::MemoryBorrow;
pub(crate) use consume::Consumer;
#[cfg(feature = "pyo3")]
pub(crate) use consume::Dropped;
pub use consume::{ConsumeGuard, ReturnEdge};
pub use element::{Bool, Element};
pub use elements::{Elements, Lent, LentMut};
pub use live::{IntoLiveStream, LiveStream};
pub use owner::Owner;
pub use present::PresentAs;
pub use stats::{Stats, stats};
pub use tensor::DlpackTensor;
pub use typed::{View, ViewMut};

pub(crate) use block::{Abi, Heap, Memory, build, build_in_capsule, header};
pub(crate) use borrow::{Borrow, Meeting, watch_forks};
pub(crate) use copy::{TO_THE_CPU, Transfer};
pub(crate) use detach::{defaults_now, detach, end_own, set_detach, set_end_own, with_driver};
#[cfg(feature = "pyo3")]
pub(crate) use elements::{check_elements, one_of};
#[cfg(feature = "pyo3")]
pub(crate) use export::{refuse_packed, refuse_padded};
pub use import::Tensor;
pub(crate) use import::{Imported, KnownTensor, locate, read_tensor};
#[cfg(feature = "cudarc")]
pub(crate) use live::Keeper;
#[cfg(feature = "cudarc")]
pub(crate) use live::stay_if_done;
pub(crate) use memory::{check_memory, check_range, memory_kind, prove_memory};
pub(crate) use order::Unordered;
#[cfg(feature = "cudarc")]
pub(crate) use part::check_len;
#[cfg(any(feature = "cudarc", feature = "ndarray"))]
pub(crate) use part::extents;
#[cfg(feature = "pyo3")]
pub(crate) use passed::PassedStreams;
pub(crate) use payload::{EndsOn, Kind, Node, RawOwner, Shows, Vtable};
pub(crate) use queue::{Gate, Queue};
pub(crate) use stats::{CREATED, Counter, DRAINED, LEAKED, PANICS, QUEUED, RELEASED};
pub(crate) use streams::{Kept, Placed, Streams, is_elsewhere, thread_of};
pub(crate) use ticket::Ticket;
pub(crate) use typed::{check_cuda, check_element, check_writable, mismatch};
pub(crate) use uninit::Uninit;
#[cfg(feature = "pyo3")]
pub(crate) use worker::WorkStream;
pub(crate) use worker::{Worker, set_ask};

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;

use crate::driver::{Defaults, DriverError, Place, UNTOLD};
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Access, Device, DeviceType, Flags};
use crate::protocol::interface::CaiInterface;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;

/// A strided array in memory that CUDA can reach, with its owner and its place in stream order.
///
/// A clone is another view of the same memory: it shares the owner, and copies no element.
///
/// ```
#[doc = floats!()]
/// let view = floats();
/// assert_eq!(view.descriptor().shape(), [2, 3]);
/// assert_eq!(view.device(), Device::HOST);
/// assert_eq!(view.ready(), Stream::None);
/// ```
pub struct CaiView {
    descriptor: Descriptor,
    owner: Owner,
    /// Dropped after the owner, which may use them until its end.
    streams: Streams,
}

impl fmt::Debug for CaiView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("CaiView");
        shown
            .field("descriptor", &self.descriptor)
            .field("ready", &self.ready_number())
            .field("producer", &self.producer_number())
            .field("owner", &self.owner);
        if let Some(kept) = self.streams.kept() {
            shown.field("stream", kept);
        }
        shown.finish()
    }
}

/// Element type, shape, strides and device, and the stream that a consumer waits for.
impl fmt::Display for CaiView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.descriptor.fmt(f)?;
        match self.ready_number() {
            Stream::None => Ok(()),
            ready => write!(f, ", ready on {ready}"),
        }
    }
}

impl Clone for CaiView {
    fn clone(&self) -> Self {
        // SAFETY: the same description of the same memory.
        unsafe { self.derive(self.descriptor.clone()) }
    }
}

impl CaiView {
    /// Makes a view of memory that `owner` keeps alive.
    ///
    /// `ready` is the stream whose work so far a consumer must wait for; [`Stream::None`] means that
    /// the data is ready now. It has no default: unknown is not the same as none.
    ///
    /// # Safety
    /// While `owner` lives:
    /// - every element that `descriptor` describes is in memory that may be read (and, if it is
    ///   [writable](Access::Writable), written) from its device;
    /// - other code of the host that writes to the elements is not Rust's, or writes by atomic operations of the size of
    ///   the element type's alignment, if this library may be copying them ([`copy_to_host`](Self::copy_to_host),
    ///   [`View::copy_to_vec`]);
    /// - `ready` is a live stream; of a default stream, its context is alive: that of the memory or, for pinned and managed
    ///   memory, the current one.
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    /// use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
    /// use cai_dlpack::protocol::device::Device;
    /// use cai_dlpack::protocol::dtype::DType;
    /// use cai_dlpack::protocol::stream::Stream;
    /// use cai_dlpack::view::Owner;
    ///
    /// let values = vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// let data = values.as_ptr().expose_provenance() as u64;
    /// let descriptor = Descriptor::new(&RawTensor::new(data, Device::HOST, DType::F32, &[2, 3]))?;
    /// // SAFETY: the elements lie in the vector, which the owner keeps; `Stream::None` is always alive.
    /// let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(values)) };
    /// assert_eq!(view.typed::<f32>()?.copy_to_vec()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    #[inline(always)]
    pub unsafe fn new(descriptor: Descriptor, ready: Stream, owner: Owner) -> Self {
        // SAFETY: this function's contract is the same, for the one stream that there is.
        unsafe { Self::of(descriptor, ready, None, owner) }
    }

    /// Makes a view of an array without elements, which needs no memory.
    ///
    /// # Errors
    /// `view-shape` for a shape with elements, and the rules of shapes and devices.
    ///
    /// ```
    /// use cai_dlpack::CaiView;
    /// use cai_dlpack::protocol::device::Device;
    ///
    /// let view = CaiView::empty::<f32>(Device::cuda(0), [2, 0])?;
    /// assert_eq!(view.interface()?.shape(), [2, 0]);
    /// assert!(CaiView::empty::<f32>(Device::cuda(0), [2, 3]).is_err());
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn empty<T: Element>(
        device: Device,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, Violation> {
        let shape = part::extents(shape.as_ref())?;
        if !shape.contains(&0) {
            let found = format_args!("{shape:?}");
            let hint = "one of its extents is 0 in an array without elements";
            let field = Field::Argument("shape");
            return Err(Violation::new(Rule::ViewShape, field, found).with_hint(hint));
        }
        let descriptor = Descriptor::new(&RawTensor::new(0, device, T::DTYPE, &shape))?;
        // SAFETY: there is no element, and no stream.
        let view = unsafe { Self::new(descriptor, Stream::None, Owner::new(())) };
        Ok(view.on_producer(Stream::None))
    }

    /// Like [`CaiView::new`], with the producer's stream if that is known.
    ///
    /// # Safety
    /// As [`CaiView::new`], for both streams.
    #[inline(always)]
    pub(crate) unsafe fn of(
        descriptor: Descriptor,
        ready: Stream,
        producer: Option<Stream>,
        owner: Owner,
    ) -> Self {
        // SAFETY: this function's contract is the same.
        unsafe { Self::on_streams(descriptor, Streams::here(ready, producer), owner) }
    }

    /// Like [`CaiView::of`], with both streams in one.
    ///
    /// # Safety
    /// As [`CaiView::new`], for both streams.
    #[inline(always)]
    pub(crate) unsafe fn on_streams(
        descriptor: Descriptor,
        streams: Streams,
        owner: Owner,
    ) -> Self {
        let mut view = Self {
            descriptor,
            streams,
            owner,
        };
        view.remember_context();
        view
    }

    /// Remembers the current context for the default streams of memory that every context reaches.
    #[inline(always)]
    pub(crate) fn remember_context(&mut self) {
        if self.is_shared_by_contexts() && self.streams.has_placeable() {
            self.streams = self.streams.with_defaults(defaults_now());
        }
    }

    /// Whether the memory is pinned or managed: then a default stream is the current context's, and not the memory's.
    #[inline(always)]
    pub(crate) fn is_shared_by_contexts(&self) -> bool {
        let device_type = self.descriptor.device().device_type;
        matches!(
            device_type,
            DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED
        )
    }

    /// Whether a default stream that a caller names is the current context's, and not the memory's: the CPU's name may be one
    /// of pinned or managed memory.
    pub(crate) fn means_current_context(&self) -> bool {
        self.is_shared_by_contexts() || self.device().device_type == DeviceType::CPU
    }

    /// Whether the memory is managed, or may be: any library may call managed memory its device's, and so may the
    /// caller. The driver is asked, if some device of the machine wants its managed memory to itself.
    pub(crate) fn may_be_managed(&self) -> bool {
        let flags = self.descriptor.flags();
        match self.descriptor.device().device_type {
            DeviceType::CUDA_MANAGED => true,
            DeviceType::CUDA => !flags.contains(Flags::OF_DEVICE),
            _ => flags.contains(Flags::MANAGED),
        }
    }

    /// Returns `stream` as the calling thread means it, for an array in this memory.
    ///
    /// # Errors
    /// The driver does not tell the current context, whose default stream it is.
    pub(crate) fn placed(&self, stream: Stream) -> Result<Placed, DriverError> {
        let placed = self.placed_or_untold(stream);
        match placed.whose {
            Defaults::Untold => Err(UNTOLD),
            _ => Ok(placed),
        }
    }

    /// Like [`placed`](Self::placed); each order that names the stream is refused then.
    fn placed_or_untold(&self, stream: Stream) -> Placed {
        let placed = Placed::here(stream);
        match stream.is_default() && self.means_current_context() {
            true => placed.of(defaults_now()),
            false => placed.of(self.streams.memory_defaults()),
        }
    }

    /// Remembers that the driver has named no context for the memory: its default streams are the primary context's,
    /// and it need not be asked again.
    #[cold]
    pub(crate) fn remember_primary(&mut self) {
        if self.streams.has_placeable() && !self.is_shared_by_contexts() {
            self.streams = self.streams.with_defaults(Defaults::OfPrimary);
        }
    }

    /// Drops a view, on a thread where every kind of payload may end.
    ///
    /// # Safety
    /// - Nobody uses `view` afterwards.
    /// - For payloads that end with the GIL only: it is held.
    #[inline(always)]
    pub(crate) unsafe fn end(view: &mut ManuallyDrop<Self>) {
        // SAFETY: a field of a view, aligned and initialised; dropped once, as nobody uses it afterwards.
        unsafe { ptr::drop_in_place(&raw mut view.descriptor) };
        // SAFETY: a field of a view, aligned and initialised; moved out once, as nobody uses it afterwards.
        let owner = unsafe { ptr::read(&raw const view.owner) };
        // SAFETY: the GIL by this function's contract.
        unsafe { owner.end() };
        // SAFETY: a field of a view, aligned and initialised; dropped once, as nobody uses it afterwards.
        unsafe { ptr::drop_in_place(&raw mut view.streams) };
    }

    /// Names the stream on which the producer goes on working: the return edge goes there, and is then all that
    /// keeps the memory until a consumer's stream is done with it.
    ///
    /// # Safety
    /// - While the owner lives, `producer` is a live stream; of a default stream, its context is alive.
    /// - When the owner goes, its memory is freed or used anew only after what `producer` holds by then.
    ///
    /// [`Stream::None`], a producer that works on no stream, needs no promise.
    ///
    /// ```
    /// # use cai_dlpack::{CaiView, protocol::stream::Stream};
    /// fn of_a_file(view: CaiView) -> CaiView {
    ///     // SAFETY: `Stream::None` needs no promise: a file is read on no stream.
    ///     unsafe { view.with_producer(Stream::None) }
    /// }
    /// # let _ = of_a_file;
    /// ```
    #[must_use]
    pub unsafe fn with_producer(self, producer: Stream) -> Self {
        self.on_producer(producer)
    }

    /// Names the stream on which the producer goes on working, as the producer itself has named it.
    #[must_use]
    pub(crate) fn on_producer(mut self, producer: Stream) -> Self {
        self.set_producer(producer);
        self
    }

    /// As [`on_producer`](Self::on_producer), where the view stands.
    pub(crate) fn set_producer(&mut self, producer: Stream) {
        self.streams = self.streams.with_producer(self.placed_or_untold(producer));
    }

    /// Declares the stream that writes the data: it is ready there, and the producer goes on working there.
    #[must_use]
    pub(crate) fn declared_on(mut self, producer: Stream) -> Self {
        self.streams = Streams::declared(self.placed_or_untold(producer));
        self
    }

    /// Whether no one has declared the stream that the data is ready on: [`ready`](Self::ready) is assumed then.
    #[inline(always)]
    pub(crate) fn is_undeclared(&self) -> bool {
        self.streams.are_undeclared()
    }

    /// Returns the two streams and what is known of them.
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Takes the streams of another view of the same memory.
    pub(crate) fn set_streams(&mut self, streams: Streams) {
        self.streams = streams;
    }

    /// Declares whether the elements may be written: a legacy tensor leaves it [unknown](Access::Unknown),
    /// which [`typed_mut`](Self::typed_mut) refuses.
    ///
    /// # Safety
    /// If `access` is [`Access::Writable`], every element is in memory that may be written from its device.
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::protocol::device::Access;
    ///
    /// use cai_dlpack::view::LiveStream;
    ///
    /// let tensor = floats().to_dlpack_legacy(LiveStream::NONE)?; // which has no flags
    /// let view = CaiView::from_dlpack(tensor, LiveStream::NONE)?;
    /// assert_eq!(view.descriptor().access(), Access::Unknown);
    /// // SAFETY: a vector of ours, which may be written.
    /// let mut view = unsafe { view.with_access(Access::Writable) };
    /// assert!(view.typed_mut::<f32>().is_ok());
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    #[must_use]
    pub unsafe fn with_access(mut self, access: Access) -> Self {
        self.descriptor.set_access(access);
        self
    }

    /// Keeps `other` alive as long as the memory, and drops it after the memory's owner.
    pub(crate) fn keep_beside(&mut self, other: Owner) {
        self.owner = self.owner.share().beside(other);
    }

    /// Replaces the owner by another one of the same memory.
    ///
    /// # Safety
    /// `owner` keeps the present owner's memory alive, and its streams.
    #[must_use]
    pub(crate) unsafe fn kept_by(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Replaces the stream that consumers wait for; the caller has ordered it after the old one.
    #[must_use]
    pub(crate) fn with_ready(mut self, ready: Stream) -> Self {
        self.set_ready(ready);
        self
    }

    /// Sets the stream on which data that was just written is ready.
    pub(crate) fn set_ready(&mut self, ready: Stream) {
        self.streams = self.streams.with_ready(self.placed_or_untold(ready));
    }

    /// Like [`set_ready`](Self::set_ready); `kept` keeps the stream alive as long as this view, or one that is
    /// made from it, is ready there.
    pub(crate) fn set_ready_kept(&mut self, ready: Placed, kept: Option<Kept>) {
        self.streams = self.streams.with_ready_kept(ready, kept);
    }

    /// Makes a view of `descriptor` that shares this one's owner and streams.
    ///
    /// # Safety
    /// As [`CaiView::new`], for this view's owner: `descriptor` describes elements of the same memory.
    pub(crate) unsafe fn derive(&self, descriptor: Descriptor) -> Self {
        Self {
            descriptor,
            streams: self.streams.clone(),
            owner: self.owner.share(),
        }
    }

    /// Takes the view apart, for a managed tensor that takes its place.
    ///
    /// Nothing releases the payload until it is put somewhere.
    pub(crate) fn into_parts(self) -> (Descriptor, RawOwner) {
        (self.descriptor, self.owner.into_raw())
    }

    /// Replaces the description by another one of the same memory.
    ///
    /// # Safety
    /// As [`CaiView::new`]: it describes elements of the same memory.
    pub(crate) unsafe fn set_descriptor(&mut self, descriptor: Descriptor) {
        self.descriptor = descriptor;
    }

    /// Returns shape, strides, element type, device and flags.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Returns the extents, in elements: those of the [`descriptor`](Self::descriptor), which has DLPack's integers.
    ///
    /// ```
    #[doc = floats!()]
    /// assert_eq!(floats().shape(), [2, 3]);
    /// ```
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        // Of one size on the platforms that this crate is for, and not negative (`Descriptor`).
        bytemuck::cast_slice(self.descriptor.shape())
    }

    /// Returns one stride per axis, in elements.
    ///
    /// ```
    #[doc = floats!()]
    /// assert_eq!(floats().elem_strides(), [3, 1]);
    /// ```
    #[must_use]
    pub fn elem_strides(&self) -> &[isize] {
        bytemuck::cast_slice(self.descriptor.elem_strides())
    }

    /// Returns what keeps the memory alive.
    ///
    /// ```
    #[doc = floats!()]
    /// // Another view of the same memory, by hand: of its first row.
    /// let view = floats();
    /// let data = view.descriptor().data();
    /// let row = Descriptor::new(&RawTensor::new(data, Device::HOST, DType::F32, &[3]))?;
    /// // SAFETY: elements of `view`, which the shared owner keeps; they are ready.
    /// let row = unsafe { CaiView::new(row, Stream::None, view.owner().share()) };
    /// drop(view);
    /// assert_eq!(row.typed::<f32>()?.copy_to_vec()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns the stream that a consumer must wait for, which lives as long as this view.
    ///
    /// ```
    #[doc = floats!()]
    /// let view = floats();
    /// assert_eq!(view.ready(), Stream::None);
    /// assert!(view.on(view.ready()).is_ok());
    /// ```
    #[must_use]
    pub fn ready(&self) -> LiveStream<'_> {
        LiveStream::of_view(self, self.streams.placed_ready())
    }

    /// Returns the stream on which the producer goes on working, which lives as long as this view; `None` if it is
    /// unknown. Of a producer that can be asked (DLPack's C Exchange API), it is the one that the import has found; the
    /// return edge of [`consume`](Self::consume) goes to the one on which it works by then, too.
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::view::LiveStream;
    ///
    /// assert_eq!(floats().producer(), Some(LiveStream::NONE)); // the vector is written on no stream
    /// let tensor = floats().to_dlpack(LiveStream::NONE)?;
    /// let taken = CaiView::from_dlpack(tensor, LiveStream::NONE)?;
    /// assert_eq!(taken.producer(), None); // a tensor does not state it
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    #[must_use]
    pub fn producer(&self) -> Option<LiveStream<'_>> {
        let producer = self.streams.placed_producer();
        producer.map(|placed| LiveStream::of_view(self, placed))
    }

    /// The number of the stream that a consumer must wait for.
    #[inline]
    pub(crate) fn ready_number(&self) -> Stream {
        self.streams.ready()
    }

    /// The number of the stream on which the producer goes on working; `None` if it is unknown.
    #[inline]
    pub(crate) fn producer_number(&self) -> Option<Stream> {
        self.streams.producer()
    }

    /// Returns DLPack's device: type and id.
    #[must_use]
    pub fn device(&self) -> Device {
        self.descriptor.device()
    }

    /// Returns the array as a CUDA Array Interface of version 3. No stream is touched: the ready
    /// stream passes through.
    ///
    /// # Errors
    /// A [`Violation`] for what CAI cannot express: memory that CUDA cannot reach, bfloat16, fp8, packed
    /// sub-byte elements, lanes; `stream-thread` for another thread's per-thread default stream.
    ///
    /// ```
    /// use cai_dlpack::protocol::rule::Rule;
    #[doc = floats!()]
    /// let refused = floats().interface().unwrap_err();
    /// assert_eq!(refused.rule(), Rule::CaiDevice);
    /// ```
    pub fn interface(&self) -> Result<CaiInterface, Violation> {
        self.descriptor.to_interface(self.ready_by_number()?)
    }

    /// Returns where the data is, as far as the order of streams depends on it.
    pub(crate) fn place(&self) -> Place {
        let Placed { thread, whose, .. } = self.streams.placed_ready();
        let place = Place::new(self.device(), self.descriptor.data());
        Place {
            thread,
            ready: whose,
            may_be_managed: self.may_be_managed(),
            producers: [self.producer_number().unwrap_or(Stream::None), Stream::None],
            // That of another context, for memory under another name, is no default stream of this one's.
            requested: match (place.requested, whose) {
                (Defaults::OfMemory, Defaults::OfPrimary) => whose,
                (requested, _) => requested,
            },
            ..place
        }
    }
}
