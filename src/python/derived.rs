//! The methods of `CaiView` that return a view of the same memory.
//!
//! Declared by [`signature!`], so that a wrong call is refused as every other: by rule, argument and value.

use pyo3::Borrowed;
use pyo3::prelude::*;

use crate::protocol::rule::Field;
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::python::call::choice::{choice, flag};
use crate::python::call::stream;
use crate::python::class::awaiting::coroutine;
use crate::python::class::beside::kept;
use crate::python::class::consume::PyConsume;
use crate::python::class::order::Waited;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::release;
use crate::python::cpython::tracing::Tracer;
use crate::python::import::fields;
use crate::python::trace::trace;
use crate::view::PresentAs;

/// Borrows the view of a method's call.
#[inline(always)]
pub(crate) fn view<'a, 'py>(slf: Borrowed<'a, 'py, PyAny>) -> Borrowed<'a, 'py, PyCaiView> {
    // SAFETY: called by a method descriptor of the class alone, which has checked the object's class.
    unsafe { slf.cast_unchecked::<PyCaiView>() }
}

signature! {
    /// Returns a view that is ready on `stream`, by one event, or none if it is ready there already.
    ///
    /// For consumers that take no stream: the data is ready for work that is enqueued on `stream` from now on.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `stream` names no stream.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    On = on [
        /// An int or an object with ``__cuda_stream__``.
        stream: "StreamLike",
    ] () -> "CaiView"
}

impl Function for On {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (slf, stream) = (view(slf), arguments.stream);
        slf.get().check_alive()?;
        let consumer = stream::named(&stream, Field::Argument("stream"))?;
        let request = Request::Stream(consumer);
        // Drops the reference to the stream object if it is not kept.
        let ready =
            release::dropping(|| PyCaiView::ordered(&slf, request, consumer, kept(Some(&stream))))?;
        Ok(ready.into_any())
    }
}

signature! {
    /// Returns a context manager for a consumer's work on `stream`, for `with` and for `async with`.
    ///
    /// Entering returns a view that is ready on `stream`, as `on` does. Leaving makes the producer's stream wait for
    /// the work on `stream`; `return_edge` of that view tells how. Neither makes an event if the streams are the same.
    /// `async with` does the same, and never blocks the event loop.
    ///
    /// Returns
    /// -------
    /// ContextManager and AsyncContextManager of CaiView
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `stream` names no stream.
    /// BufferError
    ///     If the producer's stream is unknown and `strict` is set.
    ///
    /// Examples
    /// --------
    /// >>> with view.consume(stream) as array:  # doctest: +SKIP
    /// ...     kernel(array, stream)
    Consume = consume [
        /// An int or an object with ``__cuda_stream__``.
        stream: "StreamLike",
    ] (
        /// Refuses an array whose producer's stream is unknown.
        strict: "bool" = False,
    ) -> "Consume"
}

impl Function for Consume {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (slf, stream) = (view(slf), arguments.stream);
        slf.get().check_alive()?;
        let consumer = stream::named(&stream, Field::Argument("stream"))?;
        let strict = flag(arguments.strict, "strict")?.unwrap_or(false);
        // Drops the references to the view and the stream object if the block is refused.
        release::dropping(|| {
            let block = PyConsume::new(&slf, consumer, stream.to_owned().unbind(), strict)?;
            Ok(Bound::new(slf.py(), block)?.into_any())
        })
    }
}

/// The values of the argument `kind`.
const KINDS: [(&str, PresentAs); 2] = [("cuda", PresentAs::Cuda), ("host", PresentAs::Host)];

signature! {
    /// Returns a view of the same memory under another device. Copies nothing.
    ///
    /// The device and the host can both access managed, pinned and registered memory.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///
    /// Raises
    /// ------
    /// BufferError
    ///     If that side cannot access the memory.
    AsKind = present_as [
        /// "cuda" for consumers of device memory; "host" for consumers on the CPU, which blocks until the data is
        /// ready.
        kind: "Literal['cuda', 'host']",
    ] () -> "CaiView"
}

impl Function for AsKind {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, slf) = (slf.py(), view(slf));
        slf.get().check_alive()?;
        let side = choice(&arguments.kind, "kind", &KINDS)?;
        if side == PresentAs::Host {
            let this = slf.get().view();
            // Refused before that wait: without one `present_as` itself refuses before it waits.
            if this.foresee_producer(SyncPolicy::Event)?.is_some() {
                this.check_presented(side)?;
            }
            slf.get().follow_by_name(Request::Host)?;
        }
        let presented = slf.get().view().present_as(side)?;
        slf.get().check_scope()?;
        let derived = PyCaiView::derive(&slf, presented)?;
        if side == PresentAs::Cuda {
            slf.get().follow()?;
        }
        Ok(derived.into_object(py)?.into_any())
    }
}

signature! {
    /// Returns one field of a structured array: a strided view of the same memory.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If the array has no such field.
    /// BufferError
    ///     If the array is not structured, or the distance between two items is no multiple of the field's item size.
    OneField = field [
        /// One of `fields`.
        name: "str",
    ] (
        /// The field's element type, if its typestr cannot state it. Reinterprets the bytes and never casts.
        dtype: "DTypeLike | None" = None,
    ) -> "CaiView"
}

impl Function for OneField {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, slf) = (slf.py(), view(slf));
        slf.get().check_alive()?;
        let field = fields::field(&slf, &arguments.name, arguments.dtype.as_deref())?;
        slf.get().check_scope()?;
        Ok(field.into_object(py)?.into_any())
    }
}

signature! {
    /// Blocks until the data is ready, without the GIL.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///     A view with stream None.
    ///
    /// Raises
    /// ------
    /// DriverError
    ///     If a call of the CUDA driver fails.
    Synchronize = synchronize [] () -> "CaiView"
}

impl Function for Synchronize {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        _: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ready = PyCaiView::ordered(&view(slf), Request::Host, Stream::None, None)?;
        Ok(ready.into_any())
    }
}

signature! {
    /// Waits as `synchronize` does, without blocking the event loop: `await view.wait()`.
    ///
    /// For asyncio. The task may be cancelled at any time.
    ///
    /// Returns
    /// -------
    /// Coroutine of CaiView
    ///     A view with stream None.
    ///
    /// Raises
    /// ------
    /// DriverError
    ///     If a call of the CUDA driver fails.
    Wait = wait [] () -> "Coroutine[Any, Any, CaiView]"
}

impl Function for Wait {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        _: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let waited = Waited(view(slf).to_owned().unbind());
        coroutine(slf.py(), "CaiView", "wait", waited)
    }
}
