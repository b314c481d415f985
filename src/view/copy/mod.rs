//! Copies: to memory of the same kind, to another device, and to the CPU.
//!
//! | from | to | the copy runs | ready |
//! |---|---|---|---|
//! | device, managed memory | the same kind | on the consumer's stream, after the data; if that is of another device, on a stream of ours between two events | on the consumer's stream |
//! | | for a consumer that names no stream | on a stream of ours, once the data is ready; the host waits | now |
//! | pinned memory | the same kind | by the host, in the order of the consumer's stream | on the consumer's stream |
//! | | ready, or for a consumer that names no stream | by the host, once the data is ready | now |
//! | memory of the CPU, of another device, pinned, managed | a device | on the consumer's stream, after the data; elements of the CPU are first copied aside by the host | on the consumer's stream |
//! | | for a consumer that names no stream | on a stream of ours, once the data is ready; the host waits | now |
//! | device memory | the CPU | on a stream of ours; the host waits | now |
//! | memory that the host reads | the CPU | by the host, once the data is ready | now |
//!
//! A copy is in C order, writable, and not shared. On a stream the source is read after the call
//! returns; so its producer's stream is made to wait for the copy, and if that is unknown, or there is none, the
//! source's owner is kept until then. The copy's own memory ends after the stream that it was made for
//! ([`keep`](super::keep)).

mod allocation;
mod between;
mod device;
mod empty;
mod host;
mod made;

pub(super) use self::allocation::kept_by_copy;
use self::device::Used;
use super::{CaiView, IntoLiveStream, Kept, detach, memory_kind};
use crate::driver::MemoryKind;
use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::protocol::whole::Whole;

impl CaiView {
    /// Copies the elements, in C order, to new memory of the same kind: the device's, managed or pinned.
    ///
    /// The copy is enqueued on `stream` after the data, and is ready there; for
    /// [`LiveStream::NONE`](super::LiveStream::NONE) it is enqueued on the ready stream, or on the legacy default one if there is none. The producer's stream is made to wait
    /// for it; if that is unknown, or there is none, the source is kept until it has been read, and the caller orders
    /// the next write. Memory of the CPU, and pinned memory that is ready, is copied by the host, at once.
    ///
    /// The memory is freed after what `stream` holds when the last view or tensor of the copy ends; work on
    /// other streams is the caller's to order before that. The copy keeps `stream` alive, and for
    /// [`LiveStream::NONE`](super::LiveStream::NONE) the ready stream of this view, if that has to be kept. It keeps what its memory ends with, too: the device's primary context or, for memory that is of another one, this
    /// view's owner.
    ///
    /// # Errors
    /// - `copy-refused` for memory of other devices than CUDA's, and for packed elements.
    /// - `pointer-unknown`, `pointer-device`, `out-of-bounds` if the memory is not what the view describes.
    /// - `capture-consumer` if `stream` is being captured; what [`CaiView::consume`] refuses.
    /// - The driver's refusal. What was allocated has been freed.
    ///
    /// ```
    /// use cai_dlpack::view::LiveStream;
    /// use cai_dlpack::{CaiView, Error};
    ///
    /// fn snapshot(view: &CaiView) -> Result<CaiView, Error> {
    ///     let copy = view.copy_on(LiveStream::LEGACY_DEFAULT)?;
    ///     assert_eq!(copy.ready(), LiveStream::LEGACY_DEFAULT);
    ///     Ok(copy)
    /// }
    /// # let _ = snapshot;
    /// ```
    pub fn copy_on<'s>(&self, stream: impl IntoLiveStream<'s>) -> Result<Self, Error> {
        let stream = stream.into_live_stream();
        let transfer = Transfer::of(self.device(), self.device())?;
        let is_used = transfer != Transfer::ToHost || self.ready_number() != Stream::None;
        stream.for_memory(self, is_used, |number| {
            let kept = match (transfer, number) {
                (Transfer::ToHost, _) => None,
                (_, Stream::None) => match self.streams.placed_ready() {
                    // Of the memory's context, which the copy keeps.
                    ready if ready.is_placeable() => None,
                    ready => self.ready().keep_for(self, ready)?,
                },
                _ => stream.keep_for(self, self.placed(number)?)?,
            };
            let request = Request::Stream(number);
            transfer.make_used(self, request, SyncPolicy::Event, (kept, false), true)
        })
    }

    /// Copies the elements, in C order, to memory of the CPU. The host waits for the data and for the copy.
    ///
    /// # Errors
    /// - `copy-refused` for memory that neither CUDA nor the host can read, and for packed elements.
    /// - `pointer-unknown`, `pointer-device`, `out-of-bounds` if the memory is not what the view describes.
    /// - What [`CaiView::synchronize`] refuses, the driver's refusal, or [`Error::OutOfMemory`].
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::protocol::device::Access;
    ///
    /// let copy = floats().copy_to_host()?;
    /// assert_eq!(copy.typed::<f32>()?.copy_to_vec()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    /// assert_eq!(copy.descriptor().access(), Access::Writable);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn copy_to_host(&self) -> Result<Self, Error> {
        let transfer = Transfer::of(self.device(), Device::HOST)?;
        transfer.make(self, Request::Host, SyncPolicy::Event)
    }
}

/// Has an array on the CPU, by a copy if the host does not read its memory.
pub(crate) const TO_THE_CPU: &str = "cai_dlpack.from_dlpack(view, device=(1, 0))";

/// A copy that will be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Transfer {
    /// To memory of the same kind, on the same device.
    Alike,
    /// To memory of the CPU.
    ToHost,
    /// To memory of this CUDA device, which is not the array's.
    ToDevice(i32),
}

impl Transfer {
    /// Chooses the copy for `copy=` and `dl_device=` of `__dlpack__`; `None` if the data itself will do. `wanted`
    /// is the device that was asked for, already found to be one that the data gets to.
    ///
    /// # Errors
    /// `copy-needed` if `copy=False` was asked and there is no other way; `copy-refused` for memory that
    /// cannot be copied here.
    pub(crate) fn decide(
        own: Device,
        wanted: Device,
        asked: Option<bool>,
    ) -> Result<Option<Self>, Violation> {
        let shareable = wanted == own || (wanted == Device::HOST && own.is_host_readable());
        match asked {
            None | Some(false) if shareable => Ok(None),
            Some(false) => {
                let found = format_args!("False, with the data on {own}");
                Err(Violation::new(
                    Rule::CopyNeeded,
                    Field::Argument("copy"),
                    found,
                ))
            }
            _ => Self::of(own, wanted).map(Some),
        }
    }

    /// # Errors
    /// `copy-refused` for memory that cannot be copied here.
    fn of(own: Device, wanted: Device) -> Result<Self, Violation> {
        let is_copied_to_host = own.device_type == DeviceType::CUDA || own.is_host_readable();
        match wanted {
            Device::HOST if is_copied_to_host => Ok(Self::ToHost),
            _ if wanted != own && wanted.device_type == DeviceType::CUDA && own.gets_to_cuda() => {
                Ok(Self::ToDevice(wanted.id))
            }
            _ if own.is_cuda_accessible() => Ok(Self::Alike),
            _ => Err(refused(own)),
        }
    }

    /// Whether an array can be copied to memory of its own kind, as far as its description tells.
    #[cfg(feature = "pyo3")]
    pub(crate) fn can_copy(source: &Descriptor) -> bool {
        Self::can_copy_to(source, source.device())
    }

    /// Whether an array can be copied to memory of `wanted`, as far as its description tells.
    pub(crate) fn can_copy_to(source: &Descriptor, wanted: Device) -> bool {
        Self::of(source.device(), wanted).is_ok() && Whole::of(source).is_ok()
    }

    /// Whether an array can be copied to the CPU, as far as its description tells.
    pub(crate) fn can_copy_to_host(source: &Descriptor) -> bool {
        Self::can_copy_to(source, Device::HOST)
    }

    /// Makes the copy: a view of memory that is not shared, ready for the stream or host that `request` names. It is made after
    /// a producer that has moved, by the policy; a finished copy by any.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); why no order can be made, the driver's refusal, or no memory.
    /// What was allocated has been freed.
    pub(crate) fn make(
        self,
        view: &CaiView,
        request: Request,
        policy: SyncPolicy,
    ) -> Result<CaiView, Error> {
        self.make_used(view, request, policy, (None, false), false)
    }

    /// As [`make`](Self::make), for a consumer that may work on other streams than the one that `request` names, too.
    ///
    /// # Errors
    /// Those of [`make`](Self::make).
    #[cfg(feature = "pyo3")]
    #[cold]
    pub(crate) fn make_for_any(
        self,
        view: &CaiView,
        request: Request,
        policy: SyncPolicy,
    ) -> Result<CaiView, Error> {
        self.make_used(view, request, policy, (None, true), false)
    }

    /// As [`make`](Self::make), on a stream that `kept` keeps alive; for a consumer that may work on others, too, if
    /// `is_anywhere`. One that `keeps_contexts` is safe code's: on a stream it is after the ready stream alone.
    fn make_used(
        self,
        view: &CaiView,
        request: Request,
        policy: SyncPolicy,
        (kept, is_anywhere): (Option<Kept>, bool),
        keeps_contexts: bool,
    ) -> Result<CaiView, Error> {
        let (whole, kind) = Self::whole(view.descriptor())?;
        // With the interpreter's lock, and in the caller's context.
        let moved = view.producer_moved()?;
        let mut pending = moved.filter(|_| view.is_ready_where_produced());
        let is_on_stream = matches!(request, Request::Stream(_));
        if let Some(now) = pending
            && (!is_on_stream || self == Self::ToHost)
        {
            // A finished copy is of the data, whatever the policy.
            let policy = match is_on_stream {
                true => policy,
                false => SyncPolicy::Event,
            };
            if let Some(refused) = view.refusal(Request::Host, policy)? {
                return Err(refused.into());
            }
            view.wait_for(now, policy)?;
            pending = None;
        }
        let used = Used {
            pending: pending.filter(|_| !keeps_contexts),
            kept,
            keeps_contexts,
            moved,
            is_anywhere,
            may_host_write: kind != Some(MemoryKind::Device),
        };
        detach(|| match self {
            Self::Alike => device::copy(view, &whole, view.device(), request, policy, used),
            Self::ToDevice(id) => {
                device::copy(view, &whole, Device::cuda(id), request, policy, used)
            }
            Self::ToHost => host::copy(view, &whole, policy),
        })
    }

    /// Checks that a source can be copied, before anything is made or taken.
    ///
    /// # Errors
    /// `copy-refused` for packed elements; the rules of [`check_memory`](super::check_memory); the driver's refusal.
    pub(crate) fn check(source: &Descriptor) -> Result<(), Error> {
        Self::whole(source).map(drop)
    }

    /// Whether memory for a copy on a CUDA device can be allocated now for work on `stream`: it is not being captured.
    #[cfg(feature = "pyo3")]
    pub(crate) fn can_allocate(device: Device, stream: Stream) -> Result<bool, Error> {
        device::is_idle(device, stream)
    }

    /// The driver is asked about the source first: a copy reads all of it, and a pointer that leads
    /// nowhere is a refusal here, not a fault of the GPU (or, on the host, of the process).
    fn whole(source: &Descriptor) -> Result<(Whole, Option<MemoryKind>), Error> {
        let whole = Whole::of(source)?;
        Ok((whole, memory_kind(source)?))
    }
}

#[cold]
fn refused(own: Device) -> Violation {
    let violation = Violation::new(
        Rule::CopyRefused,
        Field::Argument("copy"),
        format_args!("True, with the data on {own}"),
    );
    match own.is_host_readable() {
        // Whether its elements can be copied is not known here.
        true => violation,
        false => violation.with_hint("copy it with the library that owns it"),
    }
}

#[cfg(test)]
mod tests;
