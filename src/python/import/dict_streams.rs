//! Finds who tells the order of an array that comes by its dict: the caller, the dict, a view that is its owner, or the
//! table of partners.

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::protocol::descriptor::Descriptor;
use crate::protocol::stream::Stream;
use crate::python::call::options::Options;
use crate::python::class::view::PyCaiView;
use crate::python::import::traits::Traits;
use crate::python::import::{another_copy, known_types, undeclared};
use crate::view::{PassedStreams, Streams};

/// Returns the ready stream and the producer's: the caller's, else the dict's, else those of a view that is its
/// `owner=`, or those that the table of partners assumes for the library of the object or of the owner.
///
/// # Errors
/// Those of [`undeclared::of_dict`] and of [`of_owner`]; what the type's attributes raise, if it is new.
#[inline(always)]
pub(crate) fn of<'a, 'py>(
    object: &Bound<'py, PyAny>,
    descriptor: &Descriptor,
    named: Stream,
    is_stream_known: bool,
    options: &Options<'a, 'py>,
) -> PyResult<Told<'a, 'py>> {
    if let Some(producer) = options.producer {
        return Ok(Told::Here(Streams::here(producer, Some(producer))));
    }
    let traits = match options.owner {
        Some(owner) if descriptor.data() != 0 => match of_owner(object, owner, named, options)? {
            Speaker::View(told) => return Ok(told),
            Speaker::Library(traits) => traits,
        },
        _ if named == Stream::None => known_types::facts_of(object)?.traits,
        _ => Traits::empty(),
    };
    if named == Stream::None && (!is_stream_known || traits.intersects(Traits::SILENT)) {
        let assumed = undeclared::of_dict(object, descriptor, traits, is_stream_known, options);
        return assumed.map(Told::Here);
    }
    let known = is_stream_known.then_some(named);
    Ok(Told::Here(Streams::here(named, known)))
}

/// The streams of an array, or the view that has them: by the name of its memory, which may be another one.
pub(crate) enum Told<'a, 'py> {
    Here(Streams),
    ByView(Borrowed<'a, 'py, PyCaiView>),
    /// Of another copy's view.
    Passed(PassedStreams),
}

/// Who tells what a dict with `owner=` leaves out about its order.
enum Speaker<'a, 'py> {
    View(Told<'a, 'py>),
    Library(Traits),
}

/// Finds who speaks for a dict. The state of a view, of another copy too, is kept, if the dict names no stream; a bare dict,
/// which is of no object, may name the view's. A container tells nothing of whose the memory is, so that no stream in its
/// dict declares nothing: it is not searched. A view that is imported by its dict tells its streams itself
/// ([`OfView`](super::of_view::OfView)).
///
/// # Errors
/// `stream-undeclared` if the import is strict and such a view is undeclared; `scope-ended`; those of
/// [`another_copy::passed_by`]; what a type's attributes raise.
#[cold]
fn of_owner<'a, 'py>(
    object: &Bound<'py, PyAny>,
    owner: Borrowed<'a, 'py, PyAny>,
    named: Stream,
    options: &Options<'_, 'py>,
) -> PyResult<Speaker<'a, 'py>> {
    let traits = known_types::facts_of(object)?.traits;
    if traits.intersects(Traits::OURS | Traits::ANOTHER_COPY) {
        return Ok(Speaker::Library(Traits::empty()));
    }
    if traits.intersects(Traits::LISTED) && !object.is(owner) {
        // The object's own library speaks, and one that lends it memory may be more doubtful still.
        let beside = known_types::facts_of(&owner)?.traits & Traits::SILENT;
        return Ok(Speaker::Library(traits | beside));
    }
    // A bare dict may be the view's own; one of an object is not.
    let is_dict = object.is_instance_of::<PyDict>();
    let is_of = |ready| named == Stream::None || is_dict && named == ready;
    if let Ok(view) = owner.cast::<PyCaiView>()
        && is_of(view.get().view().ready_number())
    {
        undeclared::check_view(&view, options)?;
        return Ok(Speaker::View(Told::ByView(view)));
    }
    let mut owners = known_types::facts_of(&owner)?.traits;
    if owners.intersects(Traits::ANOTHER_COPY) && (named == Stream::None || is_dict) {
        match another_copy::passed_by(&owner)? {
            Some(passed) if is_of(passed.ready.0) => {
                another_copy::check(&passed, &owner, options)?;
                return Ok(Speaker::View(Told::Passed(passed)));
            }
            Some(_) => {}
            // Of a copy that passes its streams in another layout.
            None => owners |= Traits::SILENT_UNKNOWN,
        }
    }
    if owners.intersects(Traits::CONTAINER) {
        owners |= Traits::SILENT_UNKNOWN;
    }
    Ok(Speaker::Library(traits | owners & Traits::SILENT))
}
