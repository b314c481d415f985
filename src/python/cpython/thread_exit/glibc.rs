//! See [`super`].

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::process::fork;
use crate::python::cpython::gil;

/// The thread that last said [`guard`] and has its handler; 0 for none.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// From now on this thread, which is attached, stays where it is if it is killed inside our code. Said
/// before our code calls Python; three instructions where it was this thread that said it last.
#[inline(always)]
pub(crate) fn guard() {
    if LAST.load(Ordering::Relaxed) != this_thread() {
        add_handler();
    }
}

#[cold]
#[inline(never)]
fn add_handler() {
    // A thread at its end has no values of its own any more, and goes unguarded.
    if HANDLER.try_with(|_| ()).is_ok() {
        LAST.store(this_thread(), Ordering::Relaxed);
    }
}

/// The address of this thread's control block, by which it is known while it runs.
#[inline(always)]
fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let block: usize;
        // SAFETY: reads the word at fs:0, which by the ABI of thread-local storage is there and is its
        // own address. Touches nothing else.
        unsafe {
            std::arch::asm!(
                "mov {}, fs:0",
                out(reg) block,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        block
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: may be called on any thread, at any time.
        unsafe { libc::pthread_self() as usize }
    }
}

thread_local! {
    static HANDLER: Handler = Handler::add();
}

/// This thread's handler, from the first [`guard`] to the thread's end.
struct Handler {
    record: *mut Record,
    functions: Option<Functions>,
}

/// `struct _pthread_cleanup_buffer` of `pthread.h`, which glibc fills.
#[repr(C)]
struct Record {
    routine: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
    cancel_type: c_int,
    previous: *mut Record,
}

type Push = unsafe extern "C" fn(*mut Record, unsafe extern "C" fn(*mut c_void), *mut c_void);
type Pop = unsafe extern "C" fn(*mut Record, c_int);

/// glibc's, since its first version; looked up, as its headers do not show them any more.
#[derive(Clone, Copy)]
struct Functions {
    push: Push,
    pop: Pop,
}

impl Handler {
    fn add() -> Self {
        watch_children();
        // What `stay` will ask, found while nothing is wrong yet.
        gil::is_ending();
        let functions = Functions::find();
        let record = Box::into_raw(Box::new(Record::EMPTY));
        if let Some(functions) = functions {
            // SAFETY: a record that lives as long as it is on this thread's list (`drop`).
            unsafe { (functions.push)(record, stay, ptr::null_mut()) };
        }
        Self { record, functions }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // Another thread may come to have this address.
        let this = this_thread();
        let _ = LAST.compare_exchange(this, 0, Ordering::Relaxed, Ordering::Relaxed);
        if let Some(functions) = self.functions {
            if functions.top() != self.record {
                // A thread that ends by `pthread_exit` has no list any more: some bytes are leaked rather
                // than to ask in what state it is.
                return;
            }
            // SAFETY: the record is the top of this thread's list; 0: its handler is not called.
            unsafe { (functions.pop)(self.record, 0) };
        }
        // SAFETY: made by `add`, and on no list.
        drop(unsafe { Box::from_raw(self.record) });
    }
}

impl Record {
    const EMPTY: Self = Self {
        routine: None,
        argument: ptr::null_mut(),
        cancel_type: 0,
        previous: ptr::null_mut(),
    };
}

impl Functions {
    fn find() -> Option<Self> {
        let push = gil::find(&[c"_pthread_cleanup_push"])?;
        let pop = gil::find(&[c"_pthread_cleanup_pop"])?;
        Some(Self {
            // SAFETY: glibc's function of this name, which has this signature.
            push: unsafe { std::mem::transmute::<*mut c_void, Push>(push) },
            // SAFETY: as above.
            pop: unsafe { std::mem::transmute::<*mut c_void, Pop>(pop) },
        })
    }

    /// The top of this thread's list.
    fn top(self) -> *mut Record {
        let mut above = Record::EMPTY;
        // SAFETY: a record that is on the list until the next line.
        unsafe { (self.push)(&raw mut above, stay, ptr::null_mut()) };
        // SAFETY: the record that was just pushed; 0: its handler is not called.
        unsafe { (self.pop)(&raw mut above, 0) };
        above.previous
    }
}

/// In a forked child a new thread may come to have the address of one that is not there.
fn watch_children() {
    extern "C" fn forget() {
        LAST.store(0, Ordering::Relaxed);
    }
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: `forget` stores an atomic.
        unsafe { fork::in_child(forget) };
    }
}

/// The handler: for ever, where the interpreter ends and our code is on this thread's stack.
unsafe extern "C" fn stay(_: *mut c_void) {
    if gil::is_ending() && is_inside() {
        loop {
            // SAFETY: waits for a signal; the thread holds no lock and owes nobody an answer.
            unsafe { libc::pause() };
        }
    }
}

/// Whether the stack below this handler has a frame of the library that we are part of.
fn is_inside() -> bool {
    let mut walk = Walk {
        ours: library_of(is_inside as *const () as usize),
        has_left: false,
        is_inside: false,
    };
    // SAFETY: `look` gets the walk, which lives during the call.
    unsafe { _Unwind_Backtrace(look, (&raw mut walk).cast()) };
    walk.is_inside
}

struct Walk {
    ours: usize,
    /// The innermost frames are the handler's own.
    has_left: bool,
    is_inside: bool,
}

const GO_ON: c_int = 0;
const STOP: c_int = 4;

unsafe extern "C" {
    /// Calls `look` for each frame, the innermost first. Of the library that Rust unwinds with.
    fn _Unwind_Backtrace(
        look: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        walk: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

unsafe extern "C" fn look(frame: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: what `is_inside` has passed, and nobody else uses meanwhile.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    // SAFETY: a frame, given by `_Unwind_Backtrace`.
    let is_ours = library_of(unsafe { _Unwind_GetIP(frame) }) == walk.ours;
    walk.is_inside = is_ours && walk.has_left;
    walk.has_left |= !is_ours;
    if walk.is_inside { STOP } else { GO_ON }
}

/// Where the library that has this address begins; 0 for none.
fn library_of(address: usize) -> usize {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; there is room for the answer.
    unsafe { libc::dladdr(address as *const c_void, found.as_mut_ptr()) };
    // SAFETY: filled or all zero, which is valid: pointers that may be null.
    unsafe { found.assume_init() }.dli_fbase as usize
}
