//! The state of the simulated driver, behind one lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::abi::arguments::{
    ContextHandle, EventHandle, ExecHandle, GraphHandle, PoolHandle, StreamHandle, UserObjectHandle,
};
use crate::abi::codes::Code;
use crate::memory::ranges::Memory;
use crate::process::thread;
use crate::state::graph::{Capture, Graph, UserObject};
use crate::state::objects::{Context, Device, Event, Pool, Primary, Stream};
use crate::state::order::Order;
use crate::state::queue::{CaptureId, Queue, QueueId};
use crate::state::settings::Settings;
use crate::state::shared_event::{Awaited, SharedEvent};
use crate::state::table::{Refusals, Table};
use crate::state::visible;

/// The state of the driver. One lock guards all of it: simplicity is worth more here than speed.
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Table<ContextHandle, Context>,
    pub(crate) streams: Table<StreamHandle, Stream>,
    pub(crate) events: Table<EventHandle, Event>,
    pub(crate) pools: Table<PoolHandle, Pool>,
    pub(crate) graphs: Table<GraphHandle, Graph>,
    pub(crate) executables: Table<ExecHandle, Graph>,
    /// With the references that the caller has.
    pub(crate) user_objects: Table<UserObjectHandle, (Arc<UserObject>, u32)>,
    pub(crate) captures: BTreeMap<CaptureId, Capture>,
    pub(crate) queues: BTreeMap<QueueId, Queue>,
    pub(crate) memory: Memory,
    pub(crate) order: Order,
    /// Gates by number; true once open.
    pub(crate) gates: BTreeMap<u64, bool>,
    /// Events with CU_EVENT_INTERPROCESS, and those that were opened.
    pub(crate) shared_events: Vec<Weak<SharedEvent>>,
    /// Records of other processes that threads wait for, by number of the wait.
    pub(crate) host_waits: BTreeMap<u64, Awaited>,
    next_number: u64,
}

const CONTEXTS: Refusals = Refusals {
    unknown: Code::INVALID_CONTEXT,
    destroyed: Code::CONTEXT_IS_DESTROYED,
    orphaned: Code::CONTEXT_IS_DESTROYED,
};

/// A driver crashes on a stream that was destroyed and on a number that never was one: an error is our choice.
const STREAMS: Refusals = Refusals {
    unknown: Code::INVALID_HANDLE,
    destroyed: Code::INVALID_HANDLE,
    orphaned: Code::INVALID_CONTEXT,
};

const EVENTS: Refusals = Refusals {
    unknown: Code::INVALID_HANDLE,
    destroyed: Code::CONTEXT_IS_DESTROYED,
    orphaned: Code::CONTEXT_IS_DESTROYED,
};

const OTHERS: Refusals = Refusals::all(Code::INVALID_VALUE);

pub(crate) type Guard = MutexGuard<'static, World>;

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::new()));

/// Signalled whenever work is enqueued or finished, a gate opens, or a setting changes.
static CHANGED: Condvar = Condvar::new();

pub(crate) fn lock() -> Guard {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases the lock until the state changes.
pub(crate) fn sleep(world: Guard) -> Guard {
    CHANGED.wait(world).unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the threads in [`sleep`].
pub(crate) fn announce() {
    CHANGED.notify_all();
}

impl World {
    fn new() -> World {
        let settings = Settings::from_environment();
        let mut world = World {
            devices: Vec::new(),
            contexts: Table::new(0xC0DE_0000_0000, CONTEXTS),
            streams: Table::new(0x57EA_0000_0000, STREAMS),
            events: Table::new(0xE7E0_0000_0000, EVENTS),
            pools: Table::new(0x9001_0000_0000, OTHERS),
            graphs: Table::new(0x69A0_0000_0000, OTHERS),
            executables: Table::new(0x69AE_0000_0000, OTHERS),
            user_objects: Table::new(0x0B1E_0000_0000, OTHERS),
            captures: BTreeMap::new(),
            queues: BTreeMap::new(),
            memory: Memory::new(),
            order: Order::new(),
            gates: BTreeMap::new(),
            shared_events: Vec::new(),
            host_waits: BTreeMap::new(),
            next_number: 0,
            settings,
        };
        for (ordinal, physical) in visible::devices(world.settings.devices).enumerate() {
            let pool = world.pools.insert(false, Pool::new(ordinal, None));
            world.devices.push(Device {
                physical,
                primary: Primary::default(),
                default_pool: pool,
                pool,
            });
        }
        world
    }

    /// Returns a number never returned before: contexts, queues, buffers, captures, serials.
    pub(crate) fn fresh_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device, Code> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(Code::INVALID_DEVICE)
    }

    /// Returns a context that exists and has no sticky error.
    pub(crate) fn context(&self, handle: ContextHandle) -> Result<&Context, Code> {
        let context = self
            .contexts
            .get(handle)
            .map_err(|_| Code::CONTEXT_IS_DESTROYED)?;
        match context.poison {
            Some(code) => Err(code),
            None => Ok(context),
        }
    }

    /// Returns the current context if there is one, it is not destroyed and has no sticky error.
    pub(crate) fn current(&self) -> Result<ContextHandle, Code> {
        let handle = thread::current_context().ok_or(Code::INVALID_CONTEXT)?;
        self.context(handle)?;
        Ok(handle)
    }

    /// Gives a context a sticky error; the first one stays.
    pub(crate) fn poison(&mut self, context: ContextHandle, code: Code) {
        if let Ok(context) = self.contexts.get_mut(context) {
            context.poison.get_or_insert(code);
        }
    }
}
