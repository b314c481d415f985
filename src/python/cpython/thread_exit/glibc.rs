//! The guard for glibc: see [`super`].

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::process::fork;
use crate::python::cpython::gil;

/// The thread that called [`guard`] last, and has its handler; 0 for none.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Hangs this thread, which is attached, if it is killed inside this library from now on. Called before this library
/// calls Python; three instructions if the same thread called it last.
#[inline(always)]
pub(crate) fn guard() {
    if LAST.load(Ordering::Relaxed) != this_thread() {
        add_handler();
    }
}

#[cold]
#[inline(never)]
fn add_handler() {
    // An ending thread has no thread-local values any more, and goes unguarded.
    if HANDLER.try_with(Handler::put_back).is_ok() {
        LAST.store(this_thread(), Ordering::Relaxed);
    }
}

/// Returns the address of this thread's control block, which identifies it while it runs.
#[inline(always)]
fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let block: usize;
        // SAFETY: reads the word at fs:0, which by the ABI of thread-local storage exists and holds its own address;
        // touches nothing else, as the options state.
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

/// `struct _pthread_cleanup_buffer` of `pthread.h`, filled by glibc.
#[repr(C)]
struct Record {
    routine: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
    cancel_type: c_int,
    previous: *mut Record,
}

type Push = unsafe extern "C" fn(*mut Record, unsafe extern "C" fn(*mut c_void), *mut c_void);
type Pop = unsafe extern "C" fn(*mut Record, c_int);

/// glibc's functions, exported since its first version; found by name, as its headers do not declare them any more.
#[derive(Clone, Copy)]
struct Functions {
    push: Push,
    pop: Pop,
}

impl Handler {
    fn add() -> Self {
        watch_children();
        // Finds the functions that `stay` calls, while the interpreter still runs.
        gil::is_ending();
        let functions = Functions::find();
        let record = Box::into_raw(Box::new(Record::EMPTY));
        if let Some(functions) = functions {
            // SAFETY: the record is freed only after it is off this thread's list (`drop`), and `stay` takes any
            // argument.
            unsafe { (functions.push)(record, stay, ptr::null_mut()) };
        }
        Self { record, functions }
    }
}

impl Handler {
    /// Puts the record back on the list if the list is empty. A `longjmp` on this thread empties it: glibc takes a record
    /// outside the stack for one of a frame that the jump has left, and for the last one. So does the end of a region with
    /// a record (`pthread_once`) that was open when ours was added, by restoring the list of its beginning. If the list is
    /// not empty ours may be in it, further down; others' records are not read, as one may be of a frame that has gone.
    fn put_back(&self) {
        if let Some(functions) = self.functions
            && functions.top().is_null()
        {
            // SAFETY: the record is on no list, as this thread's is empty; for the rest see `add`.
            unsafe { (functions.push)(self.record, stay, ptr::null_mut()) };
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // Another thread may get this address later.
        let this = this_thread();
        let _ = LAST.compare_exchange(this, 0, Ordering::Relaxed, Ordering::Relaxed);
        if let Some(functions) = self.functions {
            let top = functions.top();
            if top == self.record {
                // SAFETY: the record is the top of this thread's list; 0: its handler is not called.
                unsafe { (functions.pop)(self.record, 0) };
            } else if !top.is_null() {
                // Another record, which nothing has taken off: ours may be below it, and is leaked.
                return;
            }
        }
        // SAFETY: a box of `add`, on no list any more: just taken off, or the list is empty, as after `pthread_exit`.
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
            // SAFETY: glibc's function of this name, which has this signature.
            pop: unsafe { std::mem::transmute::<*mut c_void, Pop>(pop) },
        })
    }

    /// Returns the top of this thread's list.
    fn top(self) -> *mut Record {
        let mut above = Record::EMPTY;
        // SAFETY: the record lives until the next line takes it off the list; `stay` takes any argument.
        unsafe { (self.push)(&raw mut above, stay, ptr::null_mut()) };
        // SAFETY: the record that was just pushed; 0: its handler is not called.
        unsafe { (self.pop)(&raw mut above, 0) };
        above.previous
    }
}

/// Forgets the last thread in every forked child, where a new thread may get its address.
fn watch_children() {
    extern "C" fn forget() {
        LAST.store(0, Ordering::Relaxed);
    }
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: `forget` stores an atomic, and does nothing else.
        unsafe { fork::in_child(forget) };
    }
}

/// The handler: hangs the thread if the interpreter ends and this library is on the thread's stack.
unsafe extern "C" fn stay(_: *mut c_void) {
    if gil::is_ending() && is_inside() {
        loop {
            // SAFETY: may be called at any time; waits for a signal.
            unsafe { libc::pause() };
        }
    }
}

/// Whether the stack below the handler has a frame of this library.
fn is_inside() -> bool {
    let mut walk = Walk {
        ours: library_of(is_inside as *const () as usize),
        has_left: false,
        is_inside: false,
    };
    // SAFETY: `look` takes a pointer to a `Walk`, which lives during the call and is not used otherwise.
    unsafe { _Unwind_Backtrace(look, (&raw mut walk).cast()) };
    walk.is_inside
}

struct Walk {
    ours: usize,
    /// Whether a frame of another library was seen: the innermost frames are the handler's own.
    has_left: bool,
    is_inside: bool,
}

const GO_ON: c_int = 0;
const STOP: c_int = 4;

unsafe extern "C" {
    /// Calls `look` for each frame, the innermost first; a function of the unwinder that Rust links.
    fn _Unwind_Backtrace(
        look: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        walk: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

unsafe extern "C" fn look(frame: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: the walk of `is_inside`, which lives during the call and is not used otherwise.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    // SAFETY: a frame of `_Unwind_Backtrace`, during its callback.
    let is_ours = library_of(unsafe { _Unwind_GetIP(frame) }) == walk.ours;
    walk.is_inside = is_ours && walk.has_left;
    walk.has_left |= !is_ours;
    if walk.is_inside { STOP } else { GO_ON }
}

/// Returns the base address of the library that contains `address`; 0 for none.
fn library_of(address: usize) -> usize {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: takes any address; the second pointer is valid for a write.
    unsafe { libc::dladdr(address as *const c_void, found.as_mut_ptr()) };
    // SAFETY: filled or all zero, which is valid: every field is a pointer that may be null.
    unsafe { found.assume_init() }.dli_fbase as usize
}
