//! Locates data, as far as the order of streams depends on it.

use super::Context;
use crate::process::thread::Thread;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::stream::{Platform, Request, Situation, Stream, SyncPolicy};

/// Whose default streams 1 and 2 mean: each context has its own, and neither protocol names the context.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Defaults {
    /// Those of the memory's context: the driver returns it, and it is of the device that the place names; else those of
    /// the device's primary one.
    OfMemory,
    /// Those of the device's primary context: the driver has named none for the memory (a stream-ordered pool's).
    OfPrimary,
    /// Those of the calling thread's context; without one those of the memory's.
    OfCurrent,
    /// Those of this context.
    Of(Context),
    /// The driver has not told the current context, whose they are: no order names them.
    Untold,
}

/// Where the data is, and what belongs to its ready stream but not to the stream's number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Whose streams these are.
    pub(crate) platform: Platform,
    /// CUDA's number of the device; negative if it is not known.
    pub(crate) ordinal: i32,
    /// The address of the first element; 0 if there is none (size 0).
    pub(crate) pointer: u64,
    /// Whose the ready stream is, if it is a default stream.
    pub(crate) ready: Defaults,
    /// Whose the requested stream is, if it is a default stream.
    pub(crate) requested: Defaults,
    /// Whether the memory is managed, or may be under the name of device memory: on some devices the host must not touch
    /// it while any work runs.
    pub(crate) may_be_managed: bool,
    /// The streams that the producer goes on working on, as far as they are known: the import's, and the one of now.
    pub(crate) producers: [Stream; 2],
    /// Whose per-thread default stream the data is ready on; `None` for the calling thread's, and
    /// without meaning for other streams.
    pub(crate) thread: Option<Thread>,
}

impl Place {
    /// The place of a tensor's data: DLPack's device and the address of the first element.
    ///
    /// For pinned and managed memory DLPack's device id means nothing ("the device id is 0"), so
    /// their ordinal is unknown until the pointer is asked; and as every context reaches them, a default
    /// stream that is requested is the current context's, under the CPU's name too.
    #[inline]
    pub(crate) const fn new(device: Device, pointer: u64) -> Place {
        let platform = match Platform::of(device) {
            Some(platform) => platform,
            None => Platform::Host,
        };
        let ordinal = match platform {
            Platform::Cuda | Platform::Rocm => device.id,
            Platform::HostReadable | Platform::Host => -1,
        };
        let requested = match platform {
            Platform::HostReadable | Platform::Host => Defaults::OfCurrent,
            Platform::Cuda | Platform::Rocm => Defaults::OfMemory,
        };
        Place {
            platform,
            requested,
            may_be_managed: matches!(
                device.device_type,
                DeviceType::CUDA | DeviceType::CUDA_MANAGED
            ),
            ..Place::cuda(ordinal, pointer)
        }
    }

    /// Device memory at `pointer` on CUDA device `ordinal` (negative: not known).
    #[inline]
    pub(crate) const fn cuda(ordinal: i32, pointer: u64) -> Place {
        Place {
            platform: Platform::Cuda,
            ordinal,
            pointer,
            ready: Defaults::OfMemory,
            requested: Defaults::OfMemory,
            may_be_managed: false,
            producers: [Stream::None; 2],
            thread: None,
        }
    }

    /// The place of a bare stream: no memory goes with it.
    pub(crate) const fn of_current() -> Place {
        Place {
            ready: Defaults::OfCurrent,
            requested: Defaults::OfCurrent,
            ..Place::cuda(-1, 0)
        }
    }

    /// What is known before the driver is asked: two default streams of one number may be two streams, and a device
    /// may want its managed memory to itself.
    #[inline]
    pub(super) fn situation(
        &self,
        ready: Stream,
        request: Request,
        policy: SyncPolicy,
    ) -> Situation {
        Situation {
            platform: self.platform,
            ready_on_other_thread: ready == Stream::PerThreadDefault && self.is_other_thread(),
            ready_in_other_context: self.ready != self.requested,
            exclusive_managed: self.may_be_managed && request == Request::Host && self.pointer != 0,
            ..Situation::new(ready, request, policy)
        }
    }

    fn is_other_thread(&self) -> bool {
        self.thread
            .is_some_and(|thread| thread != Thread::current())
    }
}
