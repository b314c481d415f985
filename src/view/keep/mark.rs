//! The threads that mark streams. A mark blocks while the driver takes no more work for its stream: meanwhile another thread
//! makes those of other streams.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::block::{Mark, Use};
use super::room;
use crate::driver::{Driver, OwnThread};
use crate::process::signals;

/// How many streams may block their marks before those of others wait.
const MOST: usize = 8;
/// A mark that takes longer is taken to block.
pub(super) const PATIENCE: Duration = Duration::from_millis(2);

type Job = (&'static dyn Driver, Use);
type Answer = fn(&'static dyn Driver, Use, Mark);

/// As many threads as marks have blocked at once, and one more.
pub(super) struct Markers {
    answer: Answer,
    jobs: Sender<Job>,
    /// Each thread takes its next job from here.
    left: Arc<Mutex<Receiver<Job>>>,
    threads: usize,
}

impl Markers {
    /// Without a thread yet. `answer` is called with each mark, on the thread that has made it.
    pub(super) fn new(answer: Answer) -> Self {
        let (jobs, left) = channel();
        Self {
            answer,
            jobs,
            left: Arc::new(Mutex::new(left)),
            threads: 0,
        }
    }

    /// Has a stream marked; returns false if there is no thread for that.
    pub(super) fn begin(&mut self, driver: &'static dyn Driver, used: Use) -> bool {
        if self.threads == 0 {
            self.add();
        }
        self.threads > 0 && self.jobs.send((driver, used)).is_ok()
    }

    /// Adds a thread if all may be blocked: of the `begun` marks that have no answer the oldest was begun before `waited`.
    pub(super) fn grow(&mut self, begun: usize, waited: Duration) {
        if begun > self.threads && self.threads < MOST && waited > PATIENCE {
            self.add();
        }
    }

    /// How many threads there are.
    pub(super) const fn threads(&self) -> usize {
        self.threads
    }

    fn add(&mut self) {
        let (answer, left) = (self.answer, Arc::clone(&self.left));
        let thread = thread::Builder::new().name("cai-dlpack-mark".into());
        let started = thread.spawn(move || run(answer, &left));
        self.threads += usize::from(started.is_ok());
    }
}

fn run(answer: Answer, left: &Mutex<Receiver<Job>>) {
    signals::block();
    room::enter();
    let mut own = OwnThread::default();
    loop {
        // One waits for the next job, and the others for that one.
        let job = left.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((driver, used)) = job else { return };
        own.relax(driver);
        answer(driver, used, used.mark(driver));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many marks are blocked, there are no more threads than that.
    #[test]
    #[cfg_attr(miri, ignore = "starts threads that block signals")]
    fn threads_are_added_up_to_the_most() {
        let mut markers = Markers::new(|_, _, _| {});
        for begun in 1..4 * MOST {
            markers.grow(begun, PATIENCE * 2);
            assert_eq!(markers.threads(), begun.min(MOST));
        }
        let mut patient = Markers::new(|_, _, _| {});
        patient.grow(1, PATIENCE);
        assert_eq!(patient.threads(), 0);
    }
}
