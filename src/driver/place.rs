//! Locates data, as far as the order of streams depends on it.

use std::thread::ThreadId;

use super::Context;
use crate::protocol::device::Device;
use crate::protocol::stream::{Platform, Request, Situation, Stream, SyncPolicy};

/// Where the data is, and what belongs to its ready stream but not to the stream's number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Whose streams these are.
    pub(crate) platform: Platform,
    /// CUDA's number of the device; negative if it is not known.
    pub(crate) ordinal: i32,
    /// The address of the first element; 0 if there is none (size 0).
    pub(crate) pointer: u64,
    /// The context of the allocation, if an earlier pointer query named it: spares another one
    /// for the default streams.
    pub(crate) context: Option<Context>,
    /// Whether the memory is managed: on some devices the host must not touch it while any work runs.
    pub(crate) managed: bool,
    /// Whose per-thread default stream the data is ready on; `None` for the calling thread's, and
    /// without meaning for other streams.
    pub(crate) thread: Option<ThreadId>,
}

impl Place {
    /// The place of a tensor's data: DLPack's device and the address of the first element.
    ///
    /// For pinned and managed memory DLPack's device id means nothing ("the device id is 0"), so
    /// their ordinal is unknown until the pointer is asked.
    #[inline]
    pub(crate) const fn new(device: Device, pointer: u64) -> Place {
        let platform = match Platform::from_device_type(device.device_type) {
            Some(platform) => platform,
            None => Platform::Host,
        };
        let ordinal = match platform {
            Platform::Cuda | Platform::Rocm => device.id,
            Platform::HostReadable | Platform::Host => -1,
        };
        Place {
            platform,
            managed: device.device_type == Device::CUDA_MANAGED,
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
            context: None,
            managed: false,
            thread: None,
        }
    }

    /// What is known before the driver is asked.
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
            ..Situation::new(ready, request, policy)
        }
    }

    fn is_other_thread(&self) -> bool {
        self.thread
            .is_some_and(|thread| thread != std::thread::current().id())
    }
}
