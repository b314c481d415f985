//! Imports an array as a `CaiView`: the Python object, or its value for what makes none.

use std::mem::MaybeUninit;

use pyo3::prelude::*;

use crate::python::call::options::Options;
use crate::python::class::alloc::NewView;
use crate::python::class::view::{PyCaiView, kept_by_parent};
use crate::python::import::cai::AllowCaiOnly;
use crate::python::import::known_types::TypeFacts;
use crate::python::import::traits::Traits;
use crate::python::import::{known_types, route, undeclared};

/// Imports an array as a view.
///
/// # Errors
/// Those of [`route::foreign`]; out of memory.
#[inline(never)]
pub(crate) fn new_view<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let facts = known_types::facts_of(object)?;
    if facts.traits.intersects(Traits::OURS) {
        let view = derived(object, options)?.into_object(object.py())?;
        return Ok(view.into_any());
    }
    of_foreign(object, facts, options)
}

/// Imports an array that is no `CaiView` as a view, without the wait for a producer that has moved, which the caller makes.
///
/// # Errors
/// Those of [`route::foreign`]; out of memory.
pub(crate) fn new_view_unordered<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let facts = known_types::facts_of(object)?.unordered();
    of_foreign(object, facts, Options::NONE)
}

#[inline(always)]
fn of_foreign<'py>(
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    options: &Options<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut new = NewView::new(object.py())?;
    let beside = route::foreign(new.view(), object, facts, options, AllowCaiOnly::Yes)?;
    let beside = beside.keeping(None, options.producer_object.as_deref());
    // SAFETY: written: `foreign` has not failed.
    Ok(unsafe { new.finish(beside) }?.into_any())
}

/// Imports an array as the value of a view that is no Python object yet.
///
/// # Errors
/// Those of [`route::foreign`].
#[inline(never)]
pub(crate) fn value<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<PyCaiView> {
    let facts = known_types::facts_of(object)?;
    if facts.traits.intersects(Traits::OURS) {
        return derived(object, options);
    }
    let mut view = MaybeUninit::uninit();
    let beside = route::foreign(&mut view, object, facts, options, AllowCaiOnly::Yes)?;
    // SAFETY: written: `foreign` has not failed.
    let view = unsafe { view.assume_init() };
    let beside = beside.keeping(None, options.producer_object.as_deref());
    // The caller runs other code before it makes an object of the view, which may leave the block.
    PyCaiView::with(view, beside).in_blocks(object.py())
}

/// Whether a view of a `CaiView`, by no options, would be equal to it for ever: views are immutable, and this one neither
/// ends with a block nor holds stream objects.
///
/// # Errors
/// Those of [`derived`].
pub(crate) fn is_its_own_view(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let parent = object.cast::<PyCaiView>()?;
    undeclared::check_view(parent, Options::NONE)?;
    parent.get().prepare()?;
    Ok(parent.get().is_plain())
}

/// Derives a view from a `CaiView`.
pub(crate) fn derived<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<PyCaiView> {
    let parent = object.cast::<PyCaiView>()?;
    let this = parent.get();
    undeclared::check_view(parent, options)?;
    let view = route::own(kept_by_parent(parent, this.view().clone())?, options)?;
    // Where the data is ready is the caller's word.
    if options.producer.is_none() {
        this.follow()?;
    }
    // A view whose tensor may be recalled is used from here on: nothing is refused any more.
    this.check_scope()?;
    let (view, beside) = this.wrap(object.py(), view).into_fields();
    let named = options.producer_object.as_deref();
    let is_ready = this.view().ready_number() == view.ready_number();
    let is_producer = this.view().producer_number() == view.producer_number();
    let beside = beside.keeping_renamed((named, is_ready), (named, is_producer));
    Ok(PyCaiView::with(view, beside))
}
