//! `to`: hands an array to a library by the best way that the table of partners names.
//!
//! | the library | way |
//! |---|---|
//! | has a class with an exchange table | a tensor goes through the table: no view, no capsule |
//! | any other | the call of its row in the table of partners, with a view, as a user writes it |

mod by_call;
mod by_table;
mod consumer;
mod imported;
mod named;

use std::sync::Arc;

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;

use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::options::{Options, with_options};
use crate::python::call::stream;
use crate::python::capsule;
use crate::python::class::alloc::NewView;
use crate::python::class::beside::{Beside, Rare};
use crate::python::class::recall::Recall;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::Function;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::cpython::tracing::Tracer;
use crate::python::exchange_table::Table;
use crate::python::export::dlpack;
use crate::python::import::{object, route};
use crate::python::to::by_call::LibraryCall;
use crate::python::to::consumer::Consumer;
use crate::python::trace::{mark_array, mark_view, trace};
use crate::view::CaiView;

with_options! {
    /// Returns a library's own array of the same memory, made by the best way that the library has.
    ///
    /// The data is ready where the library works: on its current stream, if its exchange table names one, else as the
    /// library's own call requests it. Copies nothing, unless the library's call does.
    ///
    /// Returns
    /// -------
    /// Any
    ///     What the library's call returns: a `torch.Tensor`, a `jax.Array`. Keeps the array alive.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If an argument or a field of the interface has the wrong type or value, or the library is not known.
    /// BufferError
    ///     If the array is valid and cannot be exported.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    /// ImportError
    ///     If the library is not installed.
    /// Exception
    ///     What the library raises if it refuses the array; `explain` tells before.
    ///
    /// Examples
    /// --------
    /// >>> cd.to(numba_array, torch)  # doctest: +SKIP
    To = to [
        /// Any array that `view` takes.
        obj: "ArrayLike",
        /// The library: its name ("torch"), its module (``torch``), or its class of arrays (``torch.Tensor``).
        library: "str | ModuleType | type",
    ] (
        /// The stream that the library will work on, by the numbers of `CaiView.__dlpack__`: -1 makes no order. None: the
        /// library's own.
        stream: "StreamLike | None" = None,
    ) -> "Any"
}

impl Function for To {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (object, stream) = (arguments.obj, arguments.stream.as_deref());
        let _level = Level::begin(object.py())?;
        let parsed = Options::read(Self::given(&arguments))?;
        let options = parsed.as_ref().unwrap_or(Options::NONE);
        if is_our_class(&arguments.library) {
            return own(&object, options, stream);
        }
        let consumer = Consumer::of(&arguments.library)?;
        if capsule::is_capsule(&object) {
            return of_capsule(&object, options, &consumer, stream);
        }
        let made = match (consumer.sole_function(), stream) {
            (Some(function), None) => {
                let view = object::new_view(&object, options)?;
                mark_view(&view);
                (function.call1((&view,))).map_err(|error| noted_of(&consumer, &view, error))?
            }
            _ => hand_over(&consumer, object::value(&object, options)?, stream)?,
        };
        consumer.checked(made)
    }
}

#[cold]
fn noted_of(consumer: &Consumer<'_>, view: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    match (consumer.partner, view.cast::<PyCaiView>()) {
        (Some(partner), Ok(view)) => by_call::noted(partner, view, error),
        _ => error,
    }
}

/// Hands over an array that is no capsule.
#[inline(always)]
fn hand_over<'py>(
    consumer: &Consumer<'py>,
    view: PyCaiView,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = consumer.py();
    mark_array(view.view());
    let named = requested(stream, view.view())?;
    let Some(table) = consumer.table_for(view.view().descriptor())? else {
        let call = LibraryCall::of(consumer, view.view(), stream, named)?;
        let ready = call.order(py, view.view())?;
        return call.call(&moved(view, ready, stream).into_object(py)?);
    };
    by_table::order(py, view.view(), (consumer, table), named)?;
    // The code of the stream, and of both libraries' tables, may have ended the view's block.
    view.check_alive()?;
    let (view, beside) = view.into_fields();
    if beside.rare().is_some() {
        // PyO3 would keep the stream objects until it is next called.
        release::dropping(|| drop(beside));
    }
    by_table::pass(py, view, table)
}

/// How a library takes the tensor of a capsule, which is ready for it.
enum Way<'a, 'py> {
    Table(Table),
    /// The call, the stream on which the data is ready for it, unless that is the capsule's, and the object of its view.
    Call(LibraryCall<'a, 'py>, Option<Stream>, NewView<'py>),
}

/// Hands over the tensor of a capsule. If the library does not take it, the tensor is put back.
#[cold]
fn of_capsule<'py>(
    capsule: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
    consumer: &Consumer<'py>,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = capsule.py();
    let offer = route::offer_of_capsule(capsule, options)?;
    let offered = offer.unowned();
    mark_array(&offered);
    let named = requested(stream, &offered)?;
    let way = match consumer.table_for(offered.descriptor())? {
        Some(table) => {
            by_table::order(py, &offered, (consumer, table), named)?;
            Way::Table(table)
        }
        None => {
            let call = LibraryCall::of(consumer, &offered, stream, named)?;
            let ready = call.order(py, &offered)?;
            Way::Call(call, ready, NewView::new(py)?)
        }
    };
    let claimed = offer.to_restore();
    let (view, recall) = Recall::of(route::claim_view(offer, options)?);
    let (made, given) = match way {
        Way::Table(table) => (by_table::pass(py, view, table), None),
        Way::Call(call, ready, new) => {
            let view = with_objects(view, options, Some(recall.clone()));
            match new.filled(moved(view, ready, stream)) {
                Ok(view) => (call.call(&view), Some(view)),
                Err(error) => (Err(error), None),
            }
        }
    };
    let made = made.and_then(|made| consumer.checked(made));
    match &made {
        Ok(_) => recall.settle(),
        Err(_) => {
            let is_sole = |view: &Bound<'_, PyCaiView>| view.get().view().owner().is_sole();
            if let Some(owner) = recall.recall(py, given, is_sole) {
                claimed.restore(owner);
            }
        }
    }
    made
}

/// Reads the caller's stream, by the rules of the array's memory.
fn requested(stream: Option<&Bound<'_, PyAny>>, view: &CaiView) -> PyResult<Option<Request>> {
    let platform = Platform::of(view.device());
    let request = |stream| stream::request(Some(stream), platform.unwrap_or(Platform::Host));
    stream.map(request).transpose()
}

/// Whether the library is the class of views: their table does not tell the streams of an array.
pub(crate) fn is_our_class(library: &Bound<'_, PyAny>) -> bool {
    library.as_ptr() == PyCaiView::type_object_raw(library.py()).cast()
}

/// Returns a view, as `view` does, ready on the caller's stream.
fn own<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    // Before a capsule's tensor is taken.
    let new = NewView::new(py)?;
    let (view, ready) = if capsule::is_capsule(object) {
        let offer = route::offer_of_capsule(object, options)?;
        let ready = ordered(py, &offer.unowned(), stream)?;
        (
            with_objects(route::claim_view(offer, options)?, options, None),
            ready,
        )
    } else {
        let view = object::value(object, options)?;
        let ready = ordered(py, view.view(), stream)?;
        (view, ready)
    };
    Ok(new.filled(moved(view, ready, stream))?.into_any())
}

/// Makes the caller's stream wait for the data, and returns it; `None` if no stream was named.
fn ordered(
    py: Python<'_>,
    view: &CaiView,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Stream>> {
    match requested(stream, view)? {
        Some(request @ Request::Stream(named)) => {
            dlpack::order(py, view, request)?;
            Ok(Some(named))
        }
        _ => Ok(None),
    }
}

/// Wraps the view of a capsule with the object of `producer_stream=`.
fn with_objects(
    view: CaiView,
    options: &Options<'_, '_>,
    recall: Option<Arc<Recall>>,
) -> PyCaiView {
    let beside = Beside::new(Rare {
        recall,
        ..Rare::default()
    });
    PyCaiView::with(
        view,
        beside.keeping(None, options.producer_object.as_deref()),
    )
}

/// Makes the view ready on another stream, which has been ordered, and keeps that stream's object.
fn moved(view: PyCaiView, ready: Option<Stream>, object: Option<&Bound<'_, PyAny>>) -> PyCaiView {
    let Some(stream) = ready else {
        return view;
    };
    let (view, beside) = view.into_fields();
    let is_same = view.ready_number() == stream;
    let beside = beside.keeping_renamed((object, is_same), (None, false));
    PyCaiView::with(view.ready_on(stream), beside)
}
