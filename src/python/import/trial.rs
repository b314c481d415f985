//! Tries an import for `explain`, which is to say what the import does: by the import itself, whose view is dropped.
//!
//! Nothing waits. `__dlpack__` makes a stream wait, unless its device has none or the producer ignores the stream; else
//! it is not called, and the trial ends there. A capsule is read and not taken.

use std::mem::MaybeUninit;

use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::python::call::options::Options;
use crate::python::capsule;
use crate::python::class::beside::Beside;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::{errors, release, warn};
use crate::python::import::cai::AllowCaiOnly;
use crate::python::import::dlpack::Offer;
use crate::python::import::known_types::TypeFacts;
use crate::python::import::notes::noting;
use crate::python::import::traits::Traits;
use crate::python::import::{cai, known_types, route, undeclared};

/// The outcome of a trial.
pub(crate) struct Trial<'py> {
    /// The route that the import has taken, to the end or up to `__dlpack__`.
    pub(crate) route: Option<&'static str>,
    /// The view, or why there is none.
    pub(crate) end: End<'py>,
    /// The warnings that the import would issue.
    pub(crate) warnings: Vec<String>,
}

/// How a trial has ended.
pub(crate) enum End<'py> {
    /// With this view, and the offer whose tensor it does not own.
    View(PyCaiView, Option<Offer<'py>>),
    /// Before `__dlpack__` was called, on this device; with what the array's interface says of it, if it has one.
    Unasked(Device, Option<PyCaiView>),
    Refused(PyErr),
}

/// Tries to import an object.
///
/// # Errors
/// What the type's attributes raise, if it is new.
pub(crate) fn import<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
) -> PyResult<Trial<'py>> {
    let facts = known_types::facts_of(object)?;
    if facts.traits.intersects(Traits::OURS) {
        return Ok(of_view(object, options));
    }
    if capsule::is_capsule(object) {
        return Ok(of_capsule(object, options));
    }
    let (mut by_table, traits) = (false, facts.traits | Traits::TRIED);
    let ((end, notes), warnings) = warn::collecting(object.py(), || {
        noting(object, || {
            let facts = TypeFacts { traits, ..facts };
            foreign(object, facts, options, || by_table = true)
        })
    })?;
    let end = match (end, notes.unasked) {
        (Ok(view), _) => End::View(view, None),
        (Err(stopped), Some(device)) => {
            release::drop_now(stopped);
            End::Unasked(device, by_interface(object, traits, options)?)
        }
        (Err(error), None) => End::Refused(error),
    };
    let route = match &end {
        End::Refused(_) => None,
        End::Unasked(..) => Some("dlpack"),
        End::View(..) if by_table => Some("exchange"),
        End::View(..) if notes.by_array_interface => Some("array_interface"),
        End::View(..) if notes.is_asked => Some("dlpack"),
        End::View(..) => Some("cai"),
    };
    Ok(Trial {
        route,
        end,
        warnings,
    })
}

fn foreign<'py>(
    object: &Bound<'py, PyAny>,
    facts: TypeFacts,
    options: &Options<'_, 'py>,
    by_table: impl FnOnce(),
) -> PyResult<PyCaiView> {
    let mut view = MaybeUninit::uninit();
    let beside = route::foreign_seen(
        &mut view,
        object,
        facts,
        options,
        AllowCaiOnly::Yes,
        by_table,
    )?;
    // SAFETY: written: `foreign_seen` has not failed.
    Ok(PyCaiView::with(unsafe { view.assume_init() }, beside))
}

fn of_view<'py>(object: &Bound<'py, PyAny>, options: &Options<'_, 'py>) -> Trial<'py> {
    let derived = || {
        let view = object.cast::<PyCaiView>()?;
        let this = view.get();
        undeclared::check_view(view, options)?;
        let view = route::own(this.view().clone(), options)?;
        Ok(this.wrap(object.py(), view))
    };
    Trial::known("view", derived().map(|view| (view, None)))
}

fn of_capsule<'py>(object: &Bound<'py, PyAny>, options: &Options<'_, 'py>) -> Trial<'py> {
    let offer = route::offer_of_capsule(object, options);
    let read = offer.map(|offer| {
        let view = PyCaiView::with(offer.unowned(), Beside::default());
        (view, Some(offer))
    });
    Trial::known("capsule", read)
}

impl<'py> Trial<'py> {
    /// The outcome for an object whose route is known by its type.
    fn known(route: &'static str, made: PyResult<(PyCaiView, Option<Offer<'py>>)>) -> Self {
        let (route, end) = match made {
            Ok((view, offer)) => (Some(route), End::View(view, offer)),
            Err(error) => (None, End::Refused(error)),
        };
        Self {
            route,
            end,
            warnings: Vec::new(),
        }
    }
}

/// Reads what the interface of an object says of the array, though it is not the route.
///
/// # Errors
/// Out of memory.
fn by_interface<'py>(
    object: &Bound<'py, PyAny>,
    traits: Traits,
    options: &Options<'_, 'py>,
) -> PyResult<Option<PyCaiView>> {
    let mut view = MaybeUninit::uninit();
    let read = || cai::import(&mut view, object, traits, options, AllowCaiOnly::Yes);
    Ok(match warn::collecting(object.py(), read)?.0 {
        // SAFETY: written: `import` has not failed.
        Ok(beside) => Some(PyCaiView::with(unsafe { view.assume_init() }, beside)),
        Err(error) if errors::is_of_the_process(object.py(), &error) => return Err(error),
        Err(error) => {
            release::drop_now(error);
            None
        }
    })
}
