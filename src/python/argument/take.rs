//! An argument of a function in Rust, as long as the function has it.
//!
//! It stands in a block of its own: PyO3 hands arguments on by value, several times, and a view is too large
//! for that; and the ledger of borrows points to it.

use std::alloc::{Layout, alloc, dealloc};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pyo3::prelude::*;

use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::dtype::DType;
use crate::protocol::rule::{Rule, Violation};
use crate::python::call::options::Options;
use crate::python::cpython::{release, thread_exit};
use crate::python::import::cai::AllowStructs;
use crate::python::import::traits::Traits;
use crate::python::import::{known_types, route};
use crate::view;
use crate::view::{Borrow, CaiView, Element, check_element, check_writable, mismatch};

/// What a function wants: elements of a type on so many axes, to be written or only read.
#[derive(Debug)]
pub(super) struct Wanted {
    dtype: DType,
    ndim: usize,
    align: u32,
    exclusive: bool,
}

impl Wanted {
    pub(super) const fn of<T: Element, const N: usize>(exclusive: bool) -> Self {
        Self {
            dtype: T::DTYPE,
            ndim: N,
            align: T::DTYPE.align(),
            exclusive,
        }
    }

    #[inline(always)]
    fn check(&self, came: &Descriptor) -> Result<(), Violation> {
        let is_wanted = came.dtype() == self.dtype
            && came.ndim() == self.ndim
            && came.data() & u64::from(self.align.wrapping_sub(1)) == 0;
        if !is_wanted {
            return self.refuse(came);
        }
        if self.exclusive {
            check_writable(came)?;
        }
        Ok(())
    }

    #[cold]
    fn refuse(&self, came: &Descriptor) -> Result<(), Violation> {
        if came.dtype() == self.dtype && came.ndim() == self.ndim {
            return check_element(came, self.dtype);
        }
        let rule = if came.dtype() == self.dtype {
            Rule::ViewNdim
        } else {
            Rule::ViewDtype
        };
        let axes = if self.ndim == 1 { "axis" } else { "axes" };
        let wanted = format_args!("{} of {} {axes} is wanted", self.dtype, self.ndim);
        Err(mismatch(rule, came, wanted))
    }
}

/// A view and its borrow.
struct Held {
    view: CaiView,
    borrow: Borrow,
}

/// One that is ours.
pub(super) struct Argument(NonNull<Held>);

// SAFETY: a view may be on any thread, and the ledger has a lock.
unsafe impl Send for Argument {}
// SAFETY: shared, it gives a reference to its view, which is `Sync`; nobody reads the borrow but the ledger.
unsafe impl Sync for Argument {}

impl Argument {
    /// AllowStructs an array, if it is as wanted.
    ///
    /// # Errors
    /// Those of an import, and of `wanted`; `view-in-use`.
    #[inline(never)]
    pub(super) fn take(object: &Bound<'_, PyAny>, wanted: &Wanted) -> PyResult<Self> {
        get_ready();
        let room = Room::new()?;
        // SAFETY: room for a view, which is ours.
        unsafe { import_to(room.view(), object) }?;
        // SAFETY: just written.
        let mut this = unsafe { room.filled() };
        wanted.check(this.view().descriptor())?;
        this.borrow(wanted.exclusive)?;
        Ok(this)
    }

    #[inline(always)]
    fn borrow(&mut self, exclusive: bool) -> Result<(), Violation> {
        let borrow = Borrow::of(self.view().descriptor(), exclusive);
        let place = self.place();
        // SAFETY: ours, and in no ledger, since nothing has been borrowed yet.
        unsafe { place.write(borrow) };
        // SAFETY: it stands in our block, and is taken out of the ledger before the block goes (`end`).
        unsafe { Borrow::begin(place) }
    }

    #[inline(always)]
    fn place(&self) -> NonNull<Borrow> {
        // SAFETY: a field of the block that we hold.
        let place = unsafe { &raw mut (*self.0.as_ptr()).borrow };
        // SAFETY: a field of a block is not at address 0.
        unsafe { NonNull::new_unchecked(place) }
    }

    #[inline(always)]
    pub(super) fn view(&self) -> &CaiView {
        // SAFETY: a field of the block that we hold.
        let view = unsafe { &raw const (*self.0.as_ptr()).view };
        // SAFETY: whole, as long as the block; a mutable reference would need `&mut self`.
        unsafe { &*view }
    }

    #[inline(always)]
    pub(super) fn view_mut(&mut self) -> &mut CaiView {
        // SAFETY: a field of the block that we hold.
        let view = unsafe { &raw mut (*self.0.as_ptr()).view };
        // SAFETY: whole, as long as the block, and ours alone.
        unsafe { &mut *view }
    }

    /// The view, which is not borrowed any more.
    pub(super) fn into_view(self) -> CaiView {
        let this = ManuallyDrop::new(self);
        // SAFETY: as `borrow` left it, or `NONE`.
        unsafe { Borrow::end(this.place()) };
        let room = Room(this.0);
        // SAFETY: the view stands there, and is moved out once: what is left is room.
        unsafe { room.view().read() }
    }
}

impl Drop for Argument {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as `borrow` left it, or `NONE`.
        unsafe { Borrow::end(self.place()) };
        let room = Room(self.0);
        // SAFETY: the view stands there, and is dropped once: what is left is room.
        unsafe { room.view().drop_in_place() };
    }
}

impl std::fmt::Debug for Argument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view().fmt(f)
    }
}

/// A block without a view.
struct Room(NonNull<Held>);

/// The block that was let go of last, for the next one: most functions have one argument at a time.
static SPARE: AtomicPtr<Held> = AtomicPtr::new(ptr::null_mut());

impl Room {
    #[inline(always)]
    fn new() -> Result<Self, Error> {
        match NonNull::new(SPARE.swap(ptr::null_mut(), Ordering::Acquire)) {
            Some(spare) => Ok(Self(spare)),
            None => Self::fresh(),
        }
    }

    #[inline(never)]
    fn fresh() -> Result<Self, Error> {
        // SAFETY: not of size zero.
        let block = unsafe { alloc(Layout::new::<Held>()) }.cast();
        NonNull::new(block).map(Self).ok_or(Error::OutOfMemory)
    }

    /// Where the view is to stand.
    #[inline(always)]
    fn view(&self) -> *mut CaiView {
        // SAFETY: a field of the block that we hold.
        unsafe { &raw mut (*self.0.as_ptr()).view }
    }

    /// The argument, which borrows nothing yet.
    ///
    /// # Safety
    /// The view has been written.
    #[inline(always)]
    unsafe fn filled(self) -> Argument {
        let this = Argument(ManuallyDrop::new(self).0);
        // SAFETY: room for it.
        unsafe { this.place().write(Borrow::NONE) };
        this
    }
}

impl Drop for Room {
    #[inline(always)]
    fn drop(&mut self) {
        let spare = SPARE.swap(self.0.as_ptr(), Ordering::AcqRel);
        if !spare.is_null() {
            // SAFETY: allocated by `fresh` with this layout, and nobody's any more. Nothing stands in it.
            unsafe { dealloc(spare.cast(), Layout::new::<Held>()) };
        }
    }
}

/// Writes a view of the array, by the route that `view` takes; nothing if it fails.
///
/// # Errors
/// Those of an import.
///
/// # Safety
/// `place` has room for a view, which is not used otherwise meanwhile.
#[inline(always)]
unsafe fn import_to(place: *mut CaiView, object: &Bound<'_, PyAny>) -> PyResult<()> {
    let facts = known_types::facts_of(object)?;
    // SAFETY: aligned room for a view, not used otherwise meanwhile, and without demands on what stands there.
    let memory = unsafe { &mut *place.cast::<MaybeUninit<CaiView>>() };
    if facts.traits.intersects(Traits::OURS) {
        memory.write(route::import(object, Options::IN_BOUNDS)?);
        return Ok(());
    }
    route::foreign(memory, object, facts, Options::IN_BOUNDS, AllowStructs::No).map(drop)
}

/// A view of any array. Its bounds are not asked for.
///
/// # Errors
/// Those of an import.
pub(super) fn import(object: &Bound<'_, PyAny>) -> PyResult<CaiView> {
    get_ready();
    route::import(object, Options::NONE)
}

/// It has been done what has to be done before the first array comes or goes.
static READY: AtomicBool = AtomicBool::new(false);

#[inline(always)]
pub(super) fn get_ready() {
    thread_exit::guard();
    if !READY.load(Ordering::Acquire) {
        prepare();
    }
}

#[cold]
fn prepare() {
    view::set_detach(detach);
    view::watch_forks();
    READY.store(true, Ordering::Release);
}

/// Lets go of the GIL where this thread holds it.
fn detach(body: &mut (dyn FnMut() + Send)) {
    if release::is_held() {
        // SAFETY: this very thread holds the GIL of the interpreter that we live in.
        unsafe { Python::assume_attached() }.detach(body);
    } else {
        body();
    }
}
