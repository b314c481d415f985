//! Recalls the tensor of a capsule from the view that a library was given, if the library refuses it.
//!
//! An exception of the library keeps the view in many places: in the frames of its traceback, in `AttributeError.obj`, in
//! its arguments. The view may therefore live on. Its tensor is taken out of it, and every later use of it is refused.
//!
//! | the library has | then |
//! |---|---|
//! | the view alone | the tensor is recalled, and the view has ended |
//! | a capsule of the view, made on this thread, that no one has consumed | it is consumed here, and the tensor recalled |
//! | a tensor of the view, or any other share of its owner | the library has taken it |
//! | used the view in any other way: read its address, made a view of it | it has taken it, unless the view is gone |

use std::mem;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::process::thread::Thread;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::capsule;
use crate::python::cpython::release;
use crate::view::{CaiView, EndsOn, Kind, Owner, RawOwner, Shows, Vtable};

/// The owner of a tensor that may be recalled: held by the view, by its shares, and by who recalls it.
#[derive(Debug)]
pub(crate) struct Recall(Mutex<Lent>);

#[derive(Debug)]
struct Lent {
    state: State,
    /// `None` once the tensor is recalled.
    owner: Option<Owner>,
    /// The capsules that the view has exported on `thread` while the library's call runs. Another thread may be consuming
    /// its own just now, which no lock tells.
    capsules: Vec<Py<PyAny>>,
    /// The thread of the library's call.
    thread: Thread,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The memory has left the view by shares of its owner alone, if at all.
    Open,
    /// The library keeps the memory as long as it keeps the view.
    Taken,
    /// The tensor is its capsule's again.
    Recalled,
}

impl Recall {
    /// Makes the owner of a view one that may be recalled. Nothing shares it yet.
    pub(crate) fn of(view: CaiView) -> (CaiView, Arc<Self>) {
        let recall = Arc::new(Self(Mutex::new(Lent {
            state: State::Open,
            owner: Some(view.owner().share()),
            capsules: Vec::new(),
            thread: Thread::current(),
        })));
        let count = Arc::into_raw(recall.clone()).cast_mut();
        // SAFETY: pointers from `Arc::into_raw` are not null.
        let payload = unsafe { NonNull::new_unchecked(count) }.cast();
        let owner = Owner::from_raw(RawOwner::again(payload, &RECALL));
        // SAFETY: it holds a share of the view's owner until no view uses the memory: they are refused once it is
        // recalled, and nothing else shares it then (`recall`). A tensor from a capsule keeps no streams.
        (unsafe { view.kept_by(owner) }, recall)
    }

    /// Neither Python nor an owner's end runs under the lock.
    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// `scope-ended` once the tensor is recalled.
    #[cold]
    pub(crate) fn check(&self) -> PyResult<()> {
        match self.lock().state {
            State::Recalled => Err(recalled()),
            State::Open | State::Taken => Ok(()),
        }
    }

    /// Marks a use after which the view alone may keep the memory.
    ///
    /// # Errors
    /// `scope-ended` once the tensor is recalled.
    #[cold]
    pub(crate) fn take(&self) -> PyResult<()> {
        let mut lent = self.lock();
        if lent.state == State::Recalled {
            return Err(recalled());
        }
        lent.state = State::Taken;
        Ok(())
    }

    /// Calls `share`, which shares the owner of the view: this one.
    ///
    /// # Errors
    /// `scope-ended` once the tensor is recalled.
    #[cold]
    pub(crate) fn share<T>(&self, share: impl FnOnce() -> T) -> PyResult<T> {
        let lent = self.lock();
        match lent.state {
            State::Recalled => Err(recalled()),
            // Under the lock: `recall` sees the share, or this call its end.
            State::Open | State::Taken => Ok(share()),
        }
    }

    /// Notes a capsule that holds a share.
    #[cold]
    pub(crate) fn note(&self, capsule: &Bound<'_, PyAny>) {
        let mut lent = self.lock();
        if lent.state == State::Open && lent.thread == Thread::current() {
            lent.capsules.push(capsule.clone().unbind());
        }
    }

    /// Leaves the tensor with the library.
    pub(crate) fn settle(&self) {
        let mut lent = self.lock();
        lent.state = State::Taken;
        let capsules = mem::take(&mut lent.capsules);
        drop(lent);
        release::dropping(|| drop(capsules));
    }

    /// Takes the tensor from the library; `None` if the library has taken it. `is_sole` tells whether the view has the only
    /// share of its owner.
    pub(crate) fn recall<V>(
        self: Arc<Self>,
        py: Python<'_>,
        view: Option<V>,
        is_sole: impl FnOnce(&V) -> bool,
    ) -> Option<Owner> {
        let capsules = mem::take(&mut self.lock().capsules);
        for capsule in capsules {
            capsule::revoke(capsule.into_bound(py));
        }
        if let Some(view) = view {
            let mut lent = self.lock();
            if lent.state == State::Open && is_sole(&view) {
                lent.state = State::Recalled;
                return lent.owner.take();
            }
            lent.state = State::Taken;
            drop(lent);
            drop(view);
        }
        let lent = Arc::try_unwrap(self).ok()?.0.into_inner();
        lent.unwrap_or_else(PoisonError::into_inner).owner
    }
}

#[cold]
fn recalled() -> PyErr {
    let found = "a view whose tensor is in its capsule again";
    let violation = Violation::new(Rule::ScopeEnded, Field::Object, found);
    violation
        .with_hint("the library that it was passed to has refused it")
        .into()
}

static RECALL: Vtable = Vtable::of::<Recall>();

impl Kind for Recall {
    const ENDS_ON: EndsOn = EndsOn::AnyThread;

    // A count of an `Arc` is this process's own memory; the owner in it knows its own process.
    const SURVIVES_FORK: bool = true;

    // A tensor shows the collector no object.
    const SHOWS: Shows = Shows::Nothing;

    fn vtable() -> &'static Vtable {
        &RECALL
    }

    unsafe fn end(payload: NonNull<()>) {
        let count = payload.cast::<Self>().as_ptr().cast_const();
        // SAFETY: one count, which came from `Arc::into_raw` (`of`).
        unsafe { Arc::decrement_strong_count(count) };
    }
}
