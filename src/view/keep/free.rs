//! The thread that frees what only a call that waits for the device can free.
//!
//! Behind work that has nothing to do with it, such memory would pile up; so what waits here may be taken by the next
//! copy of its size.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::block::{Block, Home, Memory};
use crate::driver::{Driver, RELAXED};
use crate::process::signals;

/// What waits to be freed, the oldest first.
static SHELF: Mutex<Shelf> = Mutex::new(Shelf {
    waiting: VecDeque::new(),
    state: State::NotStarted,
});
/// Signalled when a block comes, and when one has been freed.
static CHANGED: Condvar = Condvar::new();

struct Shelf {
    waiting: VecDeque<Waiting>,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    NotStarted,
    Idle,
    /// The thread is in a call that frees.
    Busy,
}

/// A block, and whether work of its device may still use it.
struct Waiting {
    block: Block,
    is_in_use: bool,
}

fn lock() -> MutexGuard<'static, Shelf> {
    // Nothing panics under the lock; a poisoned one still holds a sound list.
    SHELF.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(shelf: MutexGuard<'static, Shelf>) -> MutexGuard<'static, Shelf> {
    CHANGED.wait(shelf).unwrap_or_else(PoisonError::into_inner)
}

/// Frees a block once its device has done its work. If `is_in_use`, its use is not over before that.
pub(super) fn later(block: Block, is_in_use: bool) {
    let mut shelf = lock();
    if shelf.state == State::NotStarted {
        let driver = block.driver;
        let thread = std::thread::Builder::new().name("cai-dlpack-free".into());
        if thread.spawn(move || run(driver)).is_err() {
            drop(shelf);
            return end(Waiting { block, is_in_use });
        }
        shelf.state = State::Idle;
    }
    shelf.waiting.push_back(Waiting { block, is_in_use });
    CHANGED.notify_all();
}

/// Takes a block of this size over, which nothing uses any more.
pub(super) fn take(memory: Memory, nbytes: u64, home: Home) -> Option<Block> {
    let mut shelf = lock();
    let at = shelf.waiting.iter().position(|waiting| {
        let block = &waiting.block;
        !waiting.is_in_use && (block.memory, block.nbytes, block.home) == (memory, nbytes, home)
    })?;
    shelf.waiting.remove(at).map(|waiting| waiting.block)
}

/// Blocks until all is freed that waits here.
pub(super) fn drain() {
    let mut shelf = lock();
    while shelf.state == State::Busy || !shelf.waiting.is_empty() {
        shelf = wait(shelf);
    }
}

fn run(driver: &'static dyn Driver) {
    signals::block();
    // What this thread calls is no call that a capture elsewhere forbids.
    let _ = driver.exchange_capture_mode(RELAXED);
    let mut shelf = lock();
    loop {
        let Some(waiting) = shelf.waiting.pop_front() else {
            shelf = wait(shelf);
            continue;
        };
        shelf.state = State::Busy;
        drop(shelf);
        end(waiting);
        shelf = lock();
        shelf.state = State::Idle;
        CHANGED.notify_all();
    }
}

fn end(waiting: Waiting) {
    let Waiting { block, is_in_use } = waiting;
    if is_in_use && !block.free_waits_for_its_use() {
        block.used.settle(block.driver);
    }
    // SAFETY: its use is over, or is work of the device that was just waited for, or that the call waits for.
    unsafe { block.free() };
}
