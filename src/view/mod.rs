//! Room 3: views, and who owns what they show.
//!
//! ```text
//!   producer's memory <-- Owner <-- CaiView --interface()--> CAI dict (borrows; the view must live)
//!                           ^          |
//!                           |          +--to_dlpack(c)--> managed tensor --> consumer
//!                           +--------- share() ----------------|
//! ```
//! A [`CaiView`] is a checked [`Descriptor`], the [`Owner`] of the memory, the *ready stream* (what a
//! consumer must wait for) and the *producer stream* (where the producer goes on working). The memory
//! lives until the view and every managed tensor made from it are gone, in whatever order and on
//! whatever threads that happens.

mod block;
mod consume;
mod element;
mod export;
mod import;
mod kind;
mod memory;
mod nested;
mod node;
mod order;
mod owner;
#[cfg(any(feature = "pyo3", test))]
mod queue;
mod stats;
mod streams;
mod sync;
mod typed;
mod unlocked;

#[cfg(feature = "pyo3")]
pub(crate) use block::header;
pub(crate) use block::{Abi, build};
#[cfg(feature = "pyo3")]
pub(crate) use import::{Imported, check_major, read_tensor};
#[cfg(feature = "pyo3")]
pub(crate) use kind::{Kind, Vtable, Where};
#[cfg(feature = "pyo3")]
pub(crate) use node::Node;
pub(crate) use owner::RawOwner;
#[cfg(feature = "pyo3")]
pub(crate) use queue::{Gate, Queue};
#[cfg(feature = "pyo3")]
pub(crate) use stats::{DRAINED, LEAKED, PANICS, QUEUED, RELEASED};

pub use dlpark::Managed;
/// dlpark's owned tensors and DLPack's two layouts, as they stand in our signatures.
pub use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};

pub use consume::{Consumed, ReturnEdge};
pub use element::{Bool, Element};
pub use import::AnyManaged;
pub use owner::Owner;
pub use stats::{Stats, stats};
pub use typed::{View, ViewMut};

#[cfg(feature = "pyo3")]
pub(crate) use memory::check_range;
#[cfg(feature = "cudarc")]
pub(crate) use typed::check_cuda;
#[cfg(feature = "pyo3")]
pub(crate) use typed::{check_element, check_writable, mismatch};
#[cfg(feature = "pyo3")]
pub(crate) use unlocked::set_unlock;
pub(crate) use unlocked::unlocked;

#[cfg(feature = "pyo3")]
use std::mem::MaybeUninit;

pub(crate) use streams::Streams;
#[cfg(feature = "cudarc")]
pub(crate) use streams::{Kept, is_elsewhere, thread_of};

use crate::driver::order::Place;
use crate::protocol::descriptor::{Descriptor, Device};
use crate::protocol::interface::Interface;
use crate::protocol::rule::Violation;
use crate::protocol::stream::Stream;

/// A strided array in memory that CUDA can reach, with its owner and its place in stream order.
///
/// A clone is another view of the same memory: it shares the owner, and copies no element.
#[derive(Debug)]
pub struct CaiView {
    descriptor: Descriptor,
    streams: Streams,
    owner: Owner,
}

impl Clone for CaiView {
    fn clone(&self) -> Self {
        // SAFETY: the same description of the same memory.
        unsafe { self.derive(self.descriptor.clone()) }
    }
}

/// Room for a view, piece by piece: where all are written, a view stands there.
#[cfg(feature = "pyo3")]
pub(crate) struct Pieces<'a> {
    pub(crate) descriptor: &'a mut MaybeUninit<Descriptor>,
    pub(crate) streams: &'a mut MaybeUninit<Streams>,
    pub(crate) owner: &'a mut MaybeUninit<Owner>,
}

impl CaiView {
    /// A view of memory that `owner` keeps alive.
    ///
    /// `ready` is the stream whose work so far a consumer must wait for; [`Stream::None`] says that
    /// the data is ready now. It has no default: unknown is not the same as none.
    ///
    /// # Safety
    /// While `owner` lives, every element that `descriptor` describes is in memory that may be read
    /// (and, unless it is read-only, written) from its device, and `ready` is a live stream.
    #[inline(always)]
    pub unsafe fn new(descriptor: Descriptor, ready: Stream, owner: Owner) -> Self {
        // SAFETY: the contract is this function's own.
        unsafe { Self::of(descriptor, ready, None, owner) }
    }

    /// The same, where it may be known where the producer goes on working.
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
        Self {
            descriptor,
            streams: Streams::here(ready, producer),
            owner,
        }
    }

    /// The same, of streams that are known together.
    ///
    /// # Safety
    /// As [`CaiView::new`], for both streams.
    #[cfg(feature = "pyo3")]
    pub(crate) unsafe fn on_streams(
        descriptor: Descriptor,
        streams: Streams,
        owner: Owner,
    ) -> Self {
        Self {
            descriptor,
            streams,
            owner,
        }
    }

    /// The pieces of a view that is filled where it is to stand.
    ///
    /// # Safety
    /// `place` has room for a view, which nobody else uses during `'a`.
    #[cfg(feature = "pyo3")]
    #[inline(always)]
    pub(crate) unsafe fn pieces<'a>(place: *mut Self) -> Pieces<'a> {
        // SAFETY: a field of the room that this function is promised.
        let descriptor = unsafe { &raw mut (*place).descriptor };
        // SAFETY: as above.
        let streams = unsafe { &raw mut (*place).streams };
        // SAFETY: as above.
        let owner = unsafe { &raw mut (*place).owner };
        Pieces {
            // SAFETY: room for it, ours during `'a`; nothing need stand there.
            descriptor: unsafe { &mut *descriptor.cast() },
            // SAFETY: as above.
            streams: unsafe { &mut *streams.cast() },
            // SAFETY: as above.
            owner: unsafe { &mut *owner.cast() },
        }
    }

    /// Drops a view where it stands, on a thread that holds the GIL.
    ///
    /// # Safety
    /// A view stands there, which nobody uses afterwards; the GIL is held.
    #[cfg(all(feature = "pyo3", not(Py_LIMITED_API)))]
    #[inline(always)]
    pub(crate) unsafe fn end_at(place: *mut Self) {
        // SAFETY: room for a view, which nobody uses any more.
        let pieces = unsafe { Self::pieces(place) };
        // SAFETY: it stands there, and is dropped once.
        unsafe { pieces.descriptor.assume_init_drop() };
        // SAFETY: as above.
        unsafe { pieces.streams.assume_init_drop() };
        // SAFETY: it stands there, and is moved out once.
        let owner = unsafe { pieces.owner.assume_init_read() };
        // SAFETY: the GIL is held.
        unsafe { owner.end() };
    }

    /// Says on which stream the producer goes on working: the return edge goes there, and is then all that
    /// keeps the memory until a consumer's stream is done with it.
    ///
    /// # Safety
    /// When the owner goes, its memory is freed or used anew only after what `producer` holds by then.
    /// [`Stream::None`], a producer that works on no stream, needs no promise.
    #[must_use]
    pub unsafe fn with_producer(self, producer: Stream) -> Self {
        self.on_producer(producer)
    }

    /// The same, by the producer's own word.
    #[must_use]
    pub(crate) fn on_producer(mut self, producer: Stream) -> Self {
        self.streams = self.streams.with_producer(producer);
        self
    }

    /// Replaces the stream that consumers wait for; the caller has ordered it after the old one.
    #[must_use]
    pub(crate) fn with_ready(mut self, ready: Stream) -> Self {
        self.streams = self.streams.with_ready(ready);
        self
    }

    /// The data was written, and is ready on `ready` now.
    #[cfg(feature = "cudarc")]
    pub(crate) fn set_ready(&mut self, ready: Stream) {
        self.streams = self.streams.with_ready(ready);
    }

    /// The same; `kept` keeps that stream alive for as long as this or a view made from it is ready there.
    #[cfg(feature = "cudarc")]
    pub(crate) fn set_ready_kept(&mut self, ready: Stream, kept: Kept) {
        self.streams = self.streams.with_ready_kept(ready, kept);
    }

    /// Another view, of `descriptor`, that shares this one's owner and streams.
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

    /// The description and the payload, for a managed tensor that takes this view's place.
    ///
    /// The payload is released by nobody until it is put somewhere.
    #[cfg(feature = "pyo3")]
    pub(crate) fn into_parts(self) -> (Descriptor, RawOwner) {
        (self.descriptor, self.owner.into_raw())
    }

    /// Another description of the same memory, made from this one.
    ///
    /// # Safety
    /// As [`CaiView::new`]: what `change` returns describes elements of the same memory.
    #[cfg(feature = "pyo3")]
    pub(crate) unsafe fn try_map<E>(
        mut self,
        change: impl FnOnce(Descriptor) -> Result<Descriptor, E>,
    ) -> Result<Self, E> {
        self.descriptor = change(self.descriptor)?;
        Ok(self)
    }

    /// Shape, strides, dtype, device and flags.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// What keeps the memory alive.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The stream that a consumer must wait for.
    #[must_use]
    #[inline]
    pub fn ready(&self) -> Stream {
        self.streams.ready()
    }

    /// The stream on which the producer goes on working; `None` where nobody said.
    #[must_use]
    #[inline]
    pub fn producer(&self) -> Option<Stream> {
        self.streams.producer()
    }

    /// DLPack's device: type and id.
    #[must_use]
    pub fn device(&self) -> Device {
        self.descriptor.device()
    }

    /// The array as the CUDA Array Interface says it, version 3. No stream is touched: the ready
    /// stream passes through.
    ///
    /// # Errors
    /// A [`Violation`] where CAI has no words: memory that CUDA cannot reach, bfloat16, fp8, packed
    /// sub-byte elements, lanes.
    pub fn interface(&self) -> Result<Interface, Violation> {
        self.descriptor.to_interface(self.ready())
    }

    /// Where the driver finds the context of an event for this array.
    pub(crate) fn place(&self) -> Place {
        Place {
            thread: self.streams.placed_ready().thread,
            ..Place::new(self.device(), self.descriptor.data())
        }
    }
}
