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
mod fork;
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
mod sync;
mod typed;
mod unlocked;

#[cfg(feature = "pyo3")]
pub(crate) use block::header;
pub(crate) use block::{Abi, build};
#[cfg(feature = "pyo3")]
pub(crate) use fork::in_child;
pub(crate) use fork::watch as watch_forks;
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
#[cfg(feature = "pyo3")]
pub(crate) use typed::{check_element, check_writable, mismatch};
#[cfg(feature = "pyo3")]
pub(crate) use unlocked::set_unlock;
pub(crate) use unlocked::unlocked;

use std::thread::ThreadId;

use crate::driver::order::Place;
use crate::protocol::descriptor::{Descriptor, Device};
use crate::protocol::interface::Interface;
use crate::protocol::rule::Violation;
use crate::protocol::stream::{Platform, Stream};

/// A strided array in memory that CUDA can reach, with its owner and its place in stream order.
#[derive(Debug)]
pub struct CaiView {
    descriptor: Descriptor,
    ready: Stream,
    producer: Option<Stream>,
    /// Whose per-thread default stream `ready` is; `None` for every other stream.
    thread: Option<ThreadId>,
    /// The same for `producer`.
    producer_thread: Option<ThreadId>,
    owner: Owner,
}

/// The calling thread, where `stream` means it.
fn thread_of(stream: Stream) -> Option<ThreadId> {
    (stream == Stream::PerThreadDefault).then(|| std::thread::current().id())
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
        Self {
            descriptor,
            ready,
            producer: None,
            thread: thread_of(ready),
            producer_thread: None,
            owner,
        }
    }

    /// Says on which stream the producer goes on working: the return edge goes there.
    #[must_use]
    pub fn with_producer(mut self, producer: Stream) -> Self {
        self.producer = Some(producer);
        self.producer_thread = thread_of(producer);
        self
    }

    /// Replaces the stream that consumers wait for; the caller has ordered it after the old one.
    #[must_use]
    pub(crate) fn with_ready(mut self, ready: Stream) -> Self {
        self.thread = thread_of(ready);
        self.ready = ready;
        self
    }

    /// The data was written, and is ready on `ready` now; `keep` lives as long as the view.
    #[cfg(feature = "cudarc")]
    pub(crate) fn set_ready<K: Send + 'static>(&mut self, ready: Stream, keep: K) {
        self.thread = thread_of(ready);
        self.ready = ready;
        if size_of::<K>() > 0 {
            self.owner = Owner::new((self.owner.share(), keep));
        }
    }

    /// Another view, of `descriptor`, that shares this one's owner and streams.
    ///
    /// # Safety
    /// As [`CaiView::new`], for this view's owner: `descriptor` describes elements of the same memory.
    pub(crate) unsafe fn derive(&self, descriptor: Descriptor) -> Self {
        Self {
            descriptor,
            ready: self.ready,
            producer: self.producer,
            thread: self.thread,
            producer_thread: self.producer_thread,
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
    pub fn ready(&self) -> Stream {
        self.ready
    }

    /// The stream on which the producer goes on working; `None` where nobody said.
    #[must_use]
    pub fn producer(&self) -> Option<Stream> {
        self.producer
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
        self.descriptor.to_interface(self.ready)
    }

    /// Where the driver finds the context of an event for this array.
    pub(crate) fn place(&self) -> Place {
        let device = self.device();
        Place {
            platform: Platform::from_device_type(device.device_type).unwrap_or(Platform::Host),
            ordinal: if device.device_type == Device::CUDA {
                device.id
            } else {
                -1
            },
            pointer: self.descriptor.data(),
            context: None,
            managed: device.device_type == Device::CUDA_MANAGED,
            thread: self.thread,
        }
    }
}
