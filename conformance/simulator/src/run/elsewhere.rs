//! What work here waits for in other processes, and how the service thread learns of it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::doorbell::Doorbell;
use crate::run::schedule::Goal;
use crate::state::queue::QueueId;
use crate::state::shared_event::Awaited;
use crate::state::work::Work;
use crate::state::world::World;

/// True once the service thread runs.
pub(crate) static STARTED: AtomicBool = AtomicBool::new(false);
/// True while it looks at intervals.
pub(crate) static WATCHING: AtomicBool = AtomicBool::new(false);

/// Has the service thread look again, and go on at intervals for as long as something is awaited.
pub(crate) fn watch() {
    if !WATCHING.swap(true, Ordering::AcqRel) {
        wake();
    }
}

/// Has the service thread look again, if it runs.
pub(crate) fn wake() {
    if STARTED.load(Ordering::Acquire)
        && let Some(bell) = Doorbell::own()
    {
        bell.ring();
    }
}

impl World {
    /// Asks other processes for the records that block a goal.
    pub(crate) fn demand(&mut self, goal: &Goal) {
        let blocking: Vec<Awaited> = match goal {
            Goal::Elsewhere(awaited) => vec![awaited.clone()],
            _ => {
                let needed = self.needed(goal.marks(self));
                needed
                    .into_keys()
                    .filter_map(|queue| self.blocked_by(queue))
                    .collect()
            }
        };
        if !blocking.is_empty() {
            blocking.iter().for_each(Awaited::demand);
            watch();
        }
    }

    /// Returns the record of another process that the head of a queue waits for, if nothing else is
    /// before it.
    pub(crate) fn blocked_by(&self, queue: QueueId) -> Option<Awaited> {
        let head = self.queues.get(&queue)?.pending.front()?;
        match &head.work {
            Work::Await(awaited) if head.after.iter().all(|mark| self.reached(*mark)) => {
                Some(awaited.clone())
            }
            _ => None,
        }
    }
}
