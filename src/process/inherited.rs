//! Files that a forked child does not keep: what a lock of the file means is the parent's.
//!
//! `O_CLOEXEC` closes a file in a child that starts another program. One that goes on as it is keeps each file, and the
//! locks of its description with it, also after the parent has ended.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::thread;

use super::fork;

/// A place for a number; never freed, as a child may walk the list at any time.
struct Slot {
    /// The file's number; [`FREE`] for none.
    file: AtomicI32,
    next: *mut Slot,
}

const FREE: i32 = -1;

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

/// A file that is closed in each forked child.
#[derive(Debug)]
pub(crate) struct Own {
    file: File,
    slot: &'static AtomicI32,
}

/// Whether a thread is opening a file that is not in a slot yet, or forks.
static GATE: AtomicBool = AtomicBool::new(false);

extern "C" fn shut() {
    while GATE.swap(true, Ordering::Acquire) {
        thread::yield_now();
    }
}

extern "C" fn admit() {
    GATE.store(false, Ordering::Release);
}

impl Own {
    /// Opens a file by `open`, which neither waits nor panics; no thread forks meanwhile.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn open(open: impl FnOnce() -> io::Result<File>) -> io::Result<Self> {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: `close_all` loads atomics and calls `close`, which is async-signal-safe.
            unsafe { fork::in_child(close_all) };
            // SAFETY: atomics, and a system call that yields. The gate is shut for a moment by the thread that opens,
            // which does not fork meanwhile.
            unsafe { fork::around_forks(shut, admit) };
        });
        shut();
        let own = open().map(|file| {
            let slot = take(file.as_raw_fd());
            Self { file, slot }
        });
        admit();
        own
    }
}

impl Deref for Own {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Own {
    /// Frees the slot before the number: a child must not close what another thread has opened under it.
    fn drop(&mut self) {
        self.slot.store(FREE, Ordering::SeqCst);
    }
}

/// Walks the slots.
fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut next = SLOTS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a box that was given up for the life of the process.
        let slot = unsafe { next.as_ref() }?;
        next = slot.next;
        Some(slot)
    })
}

/// Puts a number into a slot.
fn take(file: i32) -> &'static AtomicI32 {
    let exchange = |slot: &&Slot| {
        let free = (FREE, Ordering::SeqCst, Ordering::Relaxed);
        slot.file
            .compare_exchange(free.0, file, free.1, free.2)
            .is_ok()
    };
    if let Some(slot) = slots().find(exchange) {
        return &slot.file;
    }
    let new = Box::into_raw(Box::new(Slot {
        file: AtomicI32::new(file),
        next: ptr::null_mut(),
    }));
    let mut head = SLOTS.load(Ordering::Acquire);
    loop {
        // SAFETY: the slot is ours until the exchange below publishes it.
        unsafe { (*new).next = head };
        match SLOTS.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: a box that was given up for the life of the process.
            Ok(_) => return unsafe { &(*new).file },
            Err(now) => head = now,
        }
    }
}

extern "C" fn close_all() {
    for slot in slots() {
        let file = slot.file.swap(FREE, Ordering::SeqCst);
        if file != FREE {
            // SAFETY: the parent's number, open in this child too, where only an `Own` knows it: what this process
            // inherits is never dropped (`fork`), and no other code closes it.
            unsafe { libc::close(file) };
        }
    }
}
