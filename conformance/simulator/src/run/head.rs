//! Runs the head of a queue: it is prepared under the lock (addresses become spans, lifetimes are
//! checked), runs without it, and is retired under it again.

use std::time::Duration;

use crate::abi::arguments::HostFunction;
use crate::abi::codes::Code;
use crate::memory::place::Job;
use crate::process::host_function;
use crate::state::queue::QueueId;
use crate::state::work::{StreamCallback, Work};
use crate::state::world::{Guard, World, announce, lock};

/// A prepared piece of work: everything that is needed to run it without the lock.
pub(crate) enum Task {
    Nothing,
    Sleep(Duration),
    Memory(Job),
    Host(HostFunction, usize),
    Callback(StreamCallback),
}

impl Task {
    /// Runs the task on the calling thread.
    pub(crate) fn run(self) {
        match self {
            Task::Nothing => {}
            Task::Sleep(length) => std::thread::sleep(length),
            Task::Memory(job) => job(),
            Task::Host(function, data) => {
                if host_function::enter() {
                    function(data);
                    host_function::leave();
                }
            }
            Task::Callback(callback) => {
                if host_function::enter() {
                    (callback.function)(callback.stream, 0, callback.data);
                    host_function::leave();
                }
            }
        }
    }
}

impl World {
    /// Checks the memory that the work touches, and resolves its addresses.
    fn prepare(&mut self, work: &Work) -> Result<Task, Code> {
        match work {
            Work::Nothing | Work::Gate(_) | Work::Await(_) => Ok(Task::Nothing),
            Work::Record(..) => {
                work.note_record();
                Ok(Task::Nothing)
            }
            Work::Copy(copy) => copy.prepare(&self.memory).map(Task::Memory),
            Work::Fill(fill) => fill.prepare(&self.memory).map(Task::Memory),
            Work::Kernel(kernel) => kernel.prepare(&self.memory).map(Task::Memory),
            Work::HostFunction(function, data) => Ok(Task::Host(*function, *data)),
            Work::StreamCallback(callback) => Ok(Task::Callback(*callback)),
            Work::Allocate(buffer) => self.memory.begin_life(*buffer).map(|()| Task::Nothing),
            Work::Free(buffer) => self.memory.end_life(*buffer).map(|()| Task::Nothing),
            Work::Delay(length) => Ok(Task::Sleep(*length)),
        }
    }

    /// Returns whether the head may run: all that it waits for is done, here and in
    /// other processes, and its gate is open.
    pub(crate) fn is_runnable(&self, id: QueueId) -> bool {
        let Some(queue) = self.queues.get(&id) else {
            return false;
        };
        let Some(head) = queue.pending.front() else {
            return false;
        };
        let may_pass = match &head.work {
            Work::Gate(number) => self.gates.get(number).is_none_or(|open| *open),
            Work::Await(awaited) => awaited.is_over(),
            _ => true,
        };
        !queue.running && may_pass && head.after.iter().all(|mark| self.reached(*mark))
    }

    /// Marks the head as running and prepares it. Work of a poisoned context does nothing.
    pub(crate) fn start_head(&mut self, id: QueueId) -> Task {
        let Some(queue) = self.queues.get_mut(&id) else {
            return Task::Nothing;
        };
        queue.running = true;
        let context = queue.context;
        let head = queue.pending.front();
        let work = head.map_or(Work::Nothing, |op| op.work.clone());
        if self.context(context).is_err() {
            work.note_record();
            return Task::Nothing;
        }
        self.prepare(&work).unwrap_or_else(|code| {
            self.poison(context, code);
            Task::Nothing
        })
    }
}

/// Runs the head of a queue on the calling thread.
pub(crate) fn run_head(mut world: Guard, id: QueueId) -> Guard {
    let task = world.start_head(id);
    drop(world);
    task.run();
    finish(id)
}

/// Retires the head of a queue, which has run.
pub(crate) fn finish(id: QueueId) -> Guard {
    let mut world = lock();
    world.retire_head(id);
    announce();
    world
}
