//! Holds an array argument of a Rust function during the call.
//!
//! Each argument has a heap block of its own: PyO3 moves arguments several times, and a view is large; and the ledger
//! of borrows points to it.

use std::alloc::{Layout, alloc, dealloc};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::dtype::DType;
use crate::protocol::rule::{Rule, Violation};
use crate::python::argument::ANY;
use crate::python::call::options::Options;
use crate::python::capsule;
use crate::python::class::view::follow;
use crate::python::cpython::{gil, thread_exit};
use crate::python::exchange_table;
use crate::python::import::cai::AllowCaiOnly;
use crate::python::import::traits::Traits;
use crate::python::import::{known_types, route};
use crate::view;
use crate::view::{
    Borrow, CaiView, Elements, Meeting, check_elements, check_writable, mismatch, one_of,
};

/// The array that a function takes: element types, number of axes, whether it writes, and what it does while another thread
/// uses the memory.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The first of `dtypes`, which is compared at once, and its alignment.
    dtype: DType,
    align: u32,
    dtypes: &'static [DType],
    ndim: usize,
    exclusive: bool,
    meeting: Meeting,
}

impl Wanted {
    pub(super) const fn of<T: Elements, const N: usize>(exclusive: bool, meeting: Meeting) -> Self {
        let dtype = T::DTYPES[0];
        Self {
            dtype,
            align: dtype.align(),
            dtypes: T::DTYPES,
            ndim: N,
            exclusive,
            meeting,
        }
    }

    #[inline(always)]
    fn check(&self, came: &Descriptor) -> Result<(), Violation> {
        let is_wanted = came.dtype() == self.dtype
            && came.ndim() == self.ndim
            && came.data() & u64::from(self.align.wrapping_sub(1)) == 0;
        if !is_wanted {
            self.check_all(came)?;
        }
        if self.exclusive {
            check_writable(came)?;
        }
        Ok(())
    }

    /// Like [`check`](Self::check), of any number of axes and of one of several types.
    #[cold]
    fn check_all(&self, came: &Descriptor) -> Result<(), Violation> {
        let is_typed = self.dtypes.contains(&came.dtype());
        if is_typed && (self.ndim == ANY || came.ndim() == self.ndim) {
            return check_elements(came, self.dtypes);
        }
        let rule = match is_typed {
            true => Rule::ViewNdim,
            false => Rule::ViewDtype,
        };
        let dtypes = one_of(self.dtypes);
        Err(match self.ndim {
            ANY => mismatch(rule, came, format_args!("{dtypes} is wanted")),
            1 => mismatch(rule, came, format_args!("{dtypes} of 1 axis is wanted")),
            ndim => mismatch(
                rule,
                came,
                format_args!("{dtypes} of {ndim} axes is wanted"),
            ),
        })
    }

    /// Makes the borrow of such an array.
    #[inline(always)]
    fn borrow(&self, came: &Descriptor) -> Borrow {
        Borrow::of(came, self.exclusive).meeting(self.meeting)
    }
}

/// A view and its borrow.
struct Held {
    view: CaiView,
    borrow: Borrow,
}

/// An argument: a block with a view, owned.
pub(super) struct Argument(NonNull<Held>);

// SAFETY: the block is owned; a view is `Send`, and the ledger, which points to the borrow, has a lock.
unsafe impl Send for Argument {}
// SAFETY: a shared argument gives references to its view alone, which is `Sync`; only the ledger reads the borrow,
// under its lock.
unsafe impl Sync for Argument {}

impl Argument {
    /// Imports an array, checks it and borrows its memory.
    ///
    /// # Errors
    /// Those of an import; `view-dtype`, `view-ndim` and the rules of elements; `view-in-use`.
    #[inline(never)]
    pub(super) fn take(object: &Bound<'_, PyAny>, wanted: &Wanted) -> PyResult<Self> {
        get_ready(object.py())?;
        if capsule::is_capsule(object) {
            return Self::take_from(object, wanted);
        }
        let memory = Uninit::new()?;
        // SAFETY: memory for a view in a block that is owned here.
        let may_have_moved = unsafe { import_to(memory.view(), object) }?;
        // SAFETY: `import_to`, which has not failed, has written the view.
        let mut this = unsafe { memory.filled() };
        wanted.check(this.view().descriptor())?;
        match this.borrow(wanted) {
            Ok(()) => {
                if may_have_moved {
                    follow(this.view())?;
                }
                Ok(this)
            }
            Err(_) if wanted.meeting != Meeting::Refused => this.wait(object, wanted),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Waits until the memory is free, and borrows it. Then imports the array once more, as what its producer has ordered
    /// before the first import is not what the other thread has enqueued since.
    #[cold]
    fn wait(mut self, object: &Bound<'_, PyAny>, wanted: &Wanted) -> PyResult<Self> {
        let mut borrow = wanted.borrow(self.view().descriptor());
        loop {
            let place = self.place();
            // SAFETY: within the block, and not in the ledger: `borrow` has failed, or has not been called.
            unsafe { place.write(wanted.borrow(self.view().descriptor())) };
            let mut nap = Duration::from_micros(20);
            // SAFETY: written above; the block is freed or reused only after `Borrow::end` has taken it out of the ledger.
            unsafe { Borrow::begin_late(place, || pause(object.py(), &mut nap)) }?;
            let memory = Uninit::new()?;
            // SAFETY: memory for a view in a block that is owned here.
            let may_have_moved = unsafe { import_to(memory.view(), object) }?;
            // SAFETY: `import_to`, which has not failed, has written the view.
            let mut again = unsafe { memory.filled() };
            wanted.check(again.view().descriptor())?;
            if may_have_moved {
                follow(again.view())?;
            }
            let anew = wanted.borrow(again.view().descriptor());
            if anew.is_of_memory_of(&borrow) {
                std::mem::swap(self.view_mut(), again.view_mut());
                return Ok(self);
            }
            // The array is elsewhere by now.
            (self, borrow) = (again, anew);
        }
    }

    /// Like [`Argument::take`], from a capsule: its tensor is taken when nothing can be refused any more. There is no wait:
    /// it was ordered when it was made, and cannot be imported once more.
    #[cold]
    fn take_from(capsule: &Bound<'_, PyAny>, wanted: &Wanted) -> PyResult<Self> {
        let offer = route::offer_of_capsule(capsule, Options::IN_BOUNDS)?;
        wanted.check(&offer.tensor.descriptor)?;
        let memory = Uninit::new()?;
        // SAFETY: the block is owned and lives.
        let place = unsafe { place_in(memory.0) };
        // SAFETY: within the block, which is owned, and not in the ledger: nothing has been borrowed yet.
        unsafe { place.write(wanted.borrow(&offer.tensor.descriptor)) };
        // SAFETY: written above; the block is freed or reused only after `Borrow::end` has taken it out of the ledger.
        unsafe { Borrow::begin(place) }?;
        // SAFETY: aligned memory for a view in a block that is owned here; `MaybeUninit` may be uninitialised.
        let view = unsafe { &mut *memory.view().cast::<MaybeUninit<CaiView>>() };
        match route::claim_decided(view, offer, Options::IN_BOUNDS) {
            Ok(()) => Ok(Self(ManuallyDrop::new(memory).0)),
            Err(error) => {
                // SAFETY: begun above, and ended once.
                unsafe { Borrow::end(place) };
                Err(error)
            }
        }
    }

    #[inline(always)]
    fn borrow(&mut self, wanted: &Wanted) -> Result<(), Violation> {
        let borrow = wanted.borrow(self.view().descriptor());
        let place = self.place();
        // SAFETY: within the block, and not in the ledger: nothing has been borrowed yet.
        unsafe { place.write(borrow) };
        // SAFETY: written above; the block is freed or reused only after `Borrow::end` has taken it out of the ledger.
        unsafe { Borrow::begin(place) }
    }

    #[inline(always)]
    fn place(&self) -> NonNull<Borrow> {
        // SAFETY: the block is owned and lives.
        unsafe { place_in(self.0) }
    }

    #[inline(always)]
    pub(super) fn view(&self) -> &CaiView {
        // SAFETY: a field of the block, which is owned and lives.
        let view = unsafe { &raw const (*self.0.as_ptr()).view };
        // SAFETY: initialised (`filled`), and lives as long as `self`; a mutable reference needs `&mut self`.
        unsafe { &*view }
    }

    #[inline(always)]
    pub(super) fn view_mut(&mut self) -> &mut CaiView {
        // SAFETY: a field of the block, which is owned and lives.
        let view = unsafe { &raw mut (*self.0.as_ptr()).view };
        // SAFETY: initialised (`filled`), and lives as long as `self`, which is borrowed mutably.
        unsafe { &mut *view }
    }

    /// Ends the borrow and returns the view.
    pub(super) fn into_view(self) -> CaiView {
        let this = ManuallyDrop::new(self);
        // SAFETY: initialised: `NONE`, or begun by `borrow` and ended once.
        unsafe { Borrow::end(this.place()) };
        let memory = Uninit(this.0);
        // SAFETY: initialised (`filled`), and moved out once: the block is uninitialised afterwards.
        unsafe { memory.view().read() }
    }
}

impl Drop for Argument {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: initialised: `NONE`, or begun by `borrow` and ended once.
        unsafe { Borrow::end(self.place()) };
        let memory = Uninit(self.0);
        // SAFETY: initialised (`filled`), and dropped once: the block is uninitialised afterwards.
        unsafe { memory.view().drop_in_place() };
    }
}

impl std::fmt::Debug for Argument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view().fmt(f)
    }
}

/// Returns the place of the borrow in a block.
///
/// # Safety
/// The block is allocated.
#[inline(always)]
unsafe fn place_in(block: NonNull<Held>) -> NonNull<Borrow> {
    // SAFETY: a field of an allocated block (this function's contract); nothing is read.
    let place = unsafe { &raw mut (*block.as_ptr()).borrow };
    // SAFETY: a field of a block is not null.
    unsafe { NonNull::new_unchecked(place) }
}

/// Lets other threads go on for a moment, and the interpreter handle signals.
fn pause(py: Python<'_>, nap: &mut Duration) -> PyResult<()> {
    py.detach(|| std::thread::sleep(*nap));
    *nap = (*nap * 2).min(Duration::from_millis(1));
    py.check_signals()
}

/// A block whose view is not written.
struct Uninit(NonNull<Held>);

/// The block that was dropped last, for reuse: most functions have one argument at a time.
static SPARE: AtomicPtr<Held> = AtomicPtr::new(ptr::null_mut());

impl Uninit {
    #[inline(always)]
    fn new() -> Result<Self, Error> {
        match NonNull::new(SPARE.swap(ptr::null_mut(), Ordering::Acquire)) {
            Some(spare) => Ok(Self(spare)),
            None => Self::fresh(),
        }
    }

    #[inline(never)]
    fn fresh() -> Result<Self, Error> {
        // SAFETY: the layout is not of size zero.
        let block = unsafe { alloc(Layout::new::<Held>()) }.cast();
        NonNull::new(block).map(Self).ok_or(Error::OutOfMemory)
    }

    /// Returns the memory for the view.
    #[inline(always)]
    fn view(&self) -> *mut CaiView {
        // SAFETY: a field of the block, which is owned and lives; nothing is read.
        unsafe { &raw mut (*self.0.as_ptr()).view }
    }

    /// Makes the argument, which borrows nothing yet.
    ///
    /// # Safety
    /// The view has been written.
    #[inline(always)]
    unsafe fn filled(self) -> Argument {
        let this = Argument(ManuallyDrop::new(self).0);
        // SAFETY: memory for a borrow in the block, which is owned.
        unsafe { this.place().write(Borrow::NONE) };
        this
    }
}

impl Drop for Uninit {
    #[inline(always)]
    fn drop(&mut self) {
        let spare = SPARE.swap(self.0.as_ptr(), Ordering::AcqRel);
        if !spare.is_null() {
            // SAFETY: allocated by `fresh` with this layout; `swap` has taken it, and no view is in it.
            unsafe { dealloc(spare.cast(), Layout::new::<Held>()) };
        }
    }
}

/// Writes a view of the array, by the route of `cai_dlpack.view`, and nothing if it fails; returns whether the producer may
/// have moved since the array's own import, so that the caller makes the wait for it.
///
/// # Errors
/// Those of an import.
///
/// # Safety
/// `place` is aligned memory for a view, valid for writes, and not used otherwise during the call.
#[inline(always)]
unsafe fn import_to(place: *mut CaiView, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let facts = known_types::facts_of(object)?;
    // SAFETY: aligned, valid and not used otherwise (this function's contract); `MaybeUninit` may be uninitialised.
    let memory = unsafe { &mut *place.cast::<MaybeUninit<CaiView>>() };
    if facts.traits.intersects(Traits::OURS) {
        memory.write(route::import_unordered(object, Options::IN_BOUNDS)?.0);
        return Ok(true);
    }
    let facts = facts.unordered();
    route::foreign(memory, object, facts, Options::IN_BOUNDS, AllowCaiOnly::No)?;
    Ok(facts.traits.intersects(Traits::ANOTHER_COPY))
}

/// Imports any array, without checking its bounds.
///
/// # Errors
/// Those of an import.
pub(super) fn import(object: &Bound<'_, PyAny>) -> PyResult<CaiView> {
    get_ready(object.py())?;
    route::import(object, Options::NONE)
}

/// Set once one-time initialisation has run.
static READY: AtomicBool = AtomicBool::new(false);

/// Does what is done once, before the first array.
///
/// # Errors
/// `ImportError` in another interpreter than the first of the process. Out of memory.
#[inline(always)]
pub(super) fn get_ready(py: Python<'_>) -> PyResult<()> {
    thread_exit::guard();
    if READY.load(Ordering::Acquire) {
        Ok(())
    } else {
        prepare(py)
    }
}

/// This may be the module's first contact with the interpreter, whose lock every call of the driver is made without.
#[cold]
fn prepare(py: Python<'_>) -> PyResult<()> {
    gil::learn(py)?;
    view::set_detach(gil::detach);
    view::set_ask(exchange_table::ask);
    view::watch_forks();
    READY.store(true, Ordering::Release);
    Ok(())
}
