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
mod order;

use std::mem::MaybeUninit;

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;

use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::options::{Options, with_options};
use crate::python::call::stream;
use crate::python::capsule;
use crate::python::class::beside::Beside;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::Function;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::import::{object, route};
use crate::python::to::by_call::LibraryCall;
use crate::python::to::consumer::Consumer;
use crate::python::to::order::by_policy;
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
        obj: "object",
        /// The library: its name ("torch"), its module (``torch``), or its class of arrays (``torch.Tensor``).
        library: "str | ModuleType | type",
    ] (
        /// The stream that the library will work on, by the numbers of `CaiView.__dlpack__`: -1 makes no order. None: the
        /// library's own.
        stream: "_StreamLike | None" = None,
    ) -> "Any"
}

impl Function for To {
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
        let made = if capsule::is_capsule(&object) {
            of_capsule(&object, options, &consumer, stream)?
        } else if let (Some(function), None) = (consumer.sole_function(), stream) {
            function.call1((object::new_view(&object, options)?,))?
        } else {
            hand_over(&consumer, object::value(&object, options)?, stream)?
        };
        consumer.checked(made)
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
    let named = requested(stream, view.view())?;
    let Some(table) = consumer.table_for(view.view().descriptor()) else {
        let call = LibraryCall::of(consumer, view.view(), stream, named)?;
        let ready = call.order(py, view.view())?;
        return call.call(&moved(view, ready, stream).into_object(py)?);
    };
    by_table::order(py, view.view(), (consumer, table), named)?;
    let (view, beside) = view.into_fields();
    if beside.rare().is_some() {
        // PyO3 would keep the stream objects until it is next called.
        release::dropping(|| drop(beside));
    }
    by_table::pass(py, view, table)
}

/// Hands over the tensor of a capsule, which is taken when nothing but the library can refuse it any more.
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
    let named = requested(stream, &offered)?;
    let mut view = MaybeUninit::uninit();
    let Some(table) = consumer.table_for(offered.descriptor()) else {
        let call = LibraryCall::of(consumer, &offered, stream, named)?;
        let ready = call.order(py, &offered)?;
        route::claim_decided(&mut view, offer, options)?;
        // SAFETY: `claim_decided` has not failed, and so has written the view.
        let view = unsafe { view.assume_init() };
        let beside = Beside::default().keeping(None, options.producer_object.as_deref());
        let view = PyCaiView::with(view, beside);
        return call.call(&moved(view, ready, stream).into_object(py)?);
    };
    by_table::order(py, &offered, (consumer, table), named)?;
    route::claim_decided(&mut view, offer, options)?;
    // SAFETY: `claim_decided` has not failed, and so has written the view.
    by_table::pass(py, unsafe { view.assume_init() }, table)
}

/// Reads the caller's stream, by the rules of the array's memory.
fn requested(stream: Option<&Bound<'_, PyAny>>, view: &CaiView) -> PyResult<Option<Request>> {
    let platform = Platform::from_device_type(view.device().device_type);
    let request = |stream| stream::request(Some(stream), platform.unwrap_or(Platform::Host));
    stream.map(request).transpose()
}

/// Whether the library is the class of views: their table does not tell the streams of an array.
fn is_our_class(library: &Bound<'_, PyAny>) -> bool {
    library.as_ptr() == PyCaiView::type_object_raw(library.py()).cast()
}

/// Returns a view, as `view` does, ready on the caller's stream.
fn own<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let view = object::value(object, options)?;
    let ready = match requested(stream, view.view())? {
        None => None,
        Some(Request::Stream(named)) => {
            by_policy(object.py(), view.view(), Request::Stream(named))?;
            Some(named)
        }
        Some(_) => None,
    };
    Ok(moved(view, ready, stream)
        .into_object(object.py())?
        .into_any())
}

/// Makes the view ready on another stream, which has been ordered, and keeps that stream's object.
fn moved(view: PyCaiView, ready: Option<Stream>, object: Option<&Bound<'_, PyAny>>) -> PyCaiView {
    let Some(stream) = ready else {
        return view;
    };
    let (view, beside) = view.into_fields();
    PyCaiView::with(view.ready_on(stream), beside.keeping(object, None))
}
