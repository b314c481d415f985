//! Hands a view to a library by the call of its row in the table of partners.

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

use crate::partners::{Partner, Reads, Waits};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::library;
use crate::python::call::use_stream;
use crate::python::call::use_stream::UseStream;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::new::{new_int, new_uint};
use crate::python::cpython::release;
use crate::python::export::dlpack;
use crate::python::to::consumer::Consumer;
use crate::view::CaiView;

/// The call of a library.
pub(super) struct LibraryCall<'a, 'py> {
    partner: &'static Partner,
    /// Takes the view and, if the call passes one, the stream.
    function: &'static Py<PyAny>,
    stream: Option<&'a Bound<'py, PyAny>>,
    request: Option<Request>,
}

impl<'a, 'py> LibraryCall<'a, 'py> {
    /// Finds the call; `request` is what `stream`, if it is given, requests.
    ///
    /// # Errors
    /// `device-unknown` for a class that only its table serves; `transfer-refused` for an array at which the library may
    /// end the process; `argument-value` for a library without arrays.
    pub(super) fn of(
        consumer: &Consumer<'py>,
        view: &CaiView,
        stream: Option<&'a Bound<'py, PyAny>>,
        request: Option<Request>,
    ) -> PyResult<Self> {
        let Some(partner) = consumer.partner else {
            let (field, device) = (Field::Argument("library"), view.device());
            return Err(Violation::new(Rule::DeviceUnknown, field, device).into());
        };
        if let Some(refused) = partner.call.abort(view.descriptor()) {
            return Err(library::aborts(partner, refused).into());
        }
        Ok(Self {
            partner,
            function: consumer.function(partner)?,
            stream,
            request,
        })
    }

    /// Makes the order that the library does not request, and returns the stream on which the data is ready then;
    /// `None` if the view stays as it is.
    ///
    /// # Errors
    /// The rules of the order, of one that the library makes too; the driver's errors.
    pub(super) fn order(&self, py: Python<'py>, view: &CaiView) -> PyResult<Option<Stream>> {
        let is_pending =
            view.ready_number() != Stream::None && self.request != Some(Request::NoSync);
        let request = self.request.filter(|_| !self.partner.call.passes_stream);
        if !is_pending && request.is_none() {
            // The order does not depend on who waits.
            return Ok(None);
        }
        let call = library::as_set(py, &self.partner.call);
        if call.waits_unasked() && is_pending {
            // The library would wait for a default stream of the context that is current, and beside any capture.
            dlpack::order(py, view, Request::Host)?;
            return Ok(Some(Stream::None));
        }
        let Some(request) = request else {
            return Ok(None);
        };
        match (request, call.waits) {
            (Request::NoSync, _) => Ok(Some(Stream::None)),
            // Of the host, which waits for the producer: the data is ready on every stream then. Of the library, which
            // asks for the work stream: it finds the caller's.
            (_, Waits::Host | Waits::WorkStream) => Ok(None),
            (Request::Stream(stream), _) => {
                dlpack::order(py, view, request)?;
                Ok(Some(stream))
            }
            (Request::Host, _) => Ok(None),
        }
    }

    /// Makes the call.
    ///
    /// # Errors
    /// The library's exception; those of [`UseStream::around`]; the driver's.
    pub(super) fn call(&self, view: &Bound<'py, PyCaiView>) -> PyResult<Bound<'py, PyAny>> {
        self.made(view)
            .map_err(|error| noted(self.partner, view, error))
    }

    fn made(&self, view: &Bound<'py, PyCaiView>) -> PyResult<Bound<'py, PyAny>> {
        let py = view.py();
        let function = self.function.bind(py);
        if self.partner.call.passes_stream {
            let (stream, _kept) = self.passed(view)?;
            return function.call1((view, stream));
        }
        match (self.stream, self.request, self.partner.call.waits) {
            (
                Some(object),
                Some(Request::Stream(stream)),
                Waits::WorkStream | Waits::LegacyDefault,
            ) => UseStream::around((stream, object), || function.call1((view,))),
            _ => function.call1((view,)),
        }
    }

    /// Returns the stream for a call that passes one: the caller's, else the work stream of the array's device, with what keeps
    /// that alive.
    fn passed(
        &self,
        view: &Bound<'py, PyCaiView>,
    ) -> PyResult<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let (py, device) = (view.py(), view.get().view().device());
        match (self.stream, Platform::of(device)) {
            (Some(stream), _) => Ok((stream.clone(), None)),
            (None, Some(Platform::Cuda | Platform::HostReadable)) => {
                let work = use_stream::work_stream(py, device)?;
                Ok((new_uint(py, work.stream.raw())?, work.object))
            }
            (None, _) => Ok((new_int(py, -1)?, None)),
        }
    }
}

/// Adds a note to a library's error, if the library reads a property that the view does not have: it then tells nothing but
/// the lack.
#[cold]
pub(super) fn noted(partner: &Partner, view: &Bound<'_, PyCaiView>, error: PyErr) -> PyErr {
    let (py, of) = (view.py(), view.get().view());
    let lack =
        (of.descriptor().check_interface().map(drop)).and_then(|()| of.ready_by_number().map(drop));
    let (Reads::Interface, Err(violation)) = (partner.call.reads, lack) else {
        return error;
    };
    let value = error.value(py);
    let is_ours = value.hasattr("rule").unwrap_or(false);
    if !is_ours && !error.is_instance_of::<PyMemoryError>(py) {
        let note = format!("cai_dlpack: the view has no __cuda_array_interface__: {violation}");
        // Before Python 3.11 errors have no notes.
        if let Err(failed) = value.call_method1("add_note", (note,)) {
            release::drop_now(failed);
        }
    }
    error
}
