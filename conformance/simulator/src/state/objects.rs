//! Records of the objects that the driver's handles name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::abi::arguments::{ContextHandle, PoolHandle};
use crate::abi::codes::Code;
use crate::memory::pool_file::PoolFile;
use crate::process::thread::ThreadKey;
use crate::state::queue::QueueId;
use crate::state::shared_event::{Last, SharedEvent, SharedHandle};
use crate::state::work::Stamp;

/// One simulated device.
pub(crate) struct Device {
    /// Its number on the machine, which CUDA_VISIBLE_DEVICES does not change.
    pub(crate) physical: usize,
    pub(crate) primary: Primary,
    pub(crate) default_pool: PoolHandle,
    /// The pool of cuMemAllocAsync; cuDeviceSetMemPool changes it.
    pub(crate) pool: PoolHandle,
}

/// A device's primary context. Inactive while `count` is 0.
#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) handle: Option<ContextHandle>,
    pub(crate) count: u64,
    pub(crate) flags: u32,
}

/// A context, until it is destroyed. `id` is never reused, the handle may be.
pub(crate) struct Context {
    pub(crate) id: u64,
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) primary: bool,
    /// The sticky error, once there is one.
    pub(crate) poison: Option<Code>,
    pub(crate) legacy: QueueId,
    pub(crate) per_thread: BTreeMap<ThreadKey, QueueId>,
    pub(crate) peers: Vec<ContextHandle>,
    pub(crate) limits: BTreeMap<u32, usize>,
}

/// A created stream.
pub(crate) struct Stream {
    pub(crate) context: ContextHandle,
    pub(crate) queue: QueueId,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

/// An event, until it is destroyed.
pub(crate) struct Event {
    pub(crate) context: ContextHandle,
    pub(crate) flags: u32,
    /// The last record by this handle; [`Event::last_record`] knows those of other processes.
    pub(crate) last: Last,
    pub(crate) stamp: Arc<Stamp>,
    /// With CU_EVENT_INTERPROCESS, and for events that were opened.
    pub(crate) shared: Option<SharedHandle>,
}

impl Event {
    /// Makes the record of an event that was never recorded by this handle.
    pub(crate) fn new(
        context: ContextHandle,
        flags: u32,
        shared: Option<Arc<SharedEvent>>,
    ) -> Event {
        Event {
            context,
            flags,
            last: Last::Never,
            stamp: Arc::default(),
            shared: shared.map(SharedHandle),
        }
    }

    /// Returns the last record by any process. INVALID_HANDLE if the event is another process's, which
    /// has destroyed it.
    pub(crate) fn last_record(&self) -> Result<Last, Code> {
        match (&self.last, &self.shared) {
            (Last::Captured(..), _) | (_, None) => Ok(self.last.clone()),
            (_, Some(shared)) => shared.0.last(),
        }
    }
}

/// A memory pool: a name under which memory is counted, and attributes that are kept.
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// The other devices that reach its memory: what cuMemPoolSetAccess has granted in this process.
    pub(crate) peers: BTreeSet<usize>,
    pub(crate) attributes: BTreeMap<u32, u64>,
    /// What other processes know it by, if it can be exported or was imported.
    pub(crate) file: Option<PoolFile>,
}

impl Pool {
    pub(crate) fn new(device: usize, file: Option<PoolFile>) -> Pool {
        Pool {
            device,
            peers: BTreeSet::new(),
            attributes: BTreeMap::from([(1, 1), (2, 1), (3, 1)]),
            file,
        }
    }

    /// Returns whether work of a device may touch its memory.
    pub(crate) fn is_reached_by(&self, device: usize) -> bool {
        device == self.device || self.peers.contains(&device)
    }

    /// Returns whether the pool is another process's, of which no memory can be allocated here.
    pub(crate) fn is_imported(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.owner.is_some())
    }

    /// CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES of its memory.
    pub(crate) fn handle_types(&self) -> u32 {
        if self.file.is_some() {
            POSIX_FILE_DESCRIPTOR
        } else {
            0
        }
    }
}

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
pub(crate) const POSIX_FILE_DESCRIPTOR: u32 = 1;
