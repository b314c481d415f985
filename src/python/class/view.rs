//! `CaiView` as Python sees it.

use std::mem::ManuallyDrop;

use pyo3::exceptions::PyAttributeError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString, PyTuple};

use crate::protocol::descriptor::Device;
use crate::protocol::interface::Descr;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, Stream, SyncPolicy};
use crate::python::call::stream;
use crate::python::class::alloc;
use crate::python::class::consume::{PyConsume, Scope};
use crate::python::cpython::names::keys;
use crate::python::cpython::release::PYTHON;
use crate::python::cpython::{release, thread_exit};
use crate::python::export::dlpack::{Asked, Export};
use crate::python::export::exchange as table;
use crate::python::export::{buffer, cai_dict};
use crate::python::import::exchange::{Exchanged, WorkStream};
use crate::python::import::fields;
use crate::python::import::known_types::Table;
use crate::view::CaiView;

/// A strided array in memory that CUDA (or, from DLPack, the host) can reach, and whose owner is kept
/// alive. Made by `view`, `from_cai` and `from_dlpack`.
///
/// It speaks both protocols: pass it to any consumer of `__dlpack__` or `__cuda_array_interface__`.
/// It is immutable and copies nothing. It has neither a length nor items, since consumers that find
/// them copy element by element.
#[pyclass(name = "CaiView", module = "cai_dlpack", frozen, weakref)]
#[derive(Debug)]
pub struct PyCaiView {
    view: CaiView,
    /// What few views have; apart, since a view's size is paid for by every one of them.
    rare: Option<Box<Rare>>,
    /// Where to ask the producer again which stream it works on, for a view that is ready there.
    table: Option<Table>,
}

#[derive(Debug, Default)]
struct Rare {
    /// A stream object that the view's ready stream belongs to.
    stream_object: Option<Py<PyAny>>,
    /// A stream object that the producer's stream belongs to, where the caller named it.
    producer_object: Option<Py<PyAny>>,
    /// The loan that it belongs to.
    scope: Option<Scope>,
    /// The fields of a struct.
    fields: Descr,
    /// The device that the producer's table knows it by, where it goes by another name.
    known_as: Option<Device>,
}

impl Rare {
    /// Drops it with the GIL held, in a call that PyO3 does not count, where it would keep the objects until
    /// the next that it does; after the interpreter's end there is none.
    #[cfg(not(Py_LIMITED_API))]
    #[cold]
    fn end(mut self) {
        for object in [self.stream_object.take(), self.producer_object.take()] {
            let object = object.map_or(std::ptr::null_mut(), Py::into_ptr);
            // SAFETY: the GIL is held; NULL, or a reference that is ours to give up.
            unsafe { ffi::Py_XDECREF(object) };
        }
    }

    /// Nothing where there is nothing to keep.
    fn boxed(self) -> Option<Box<Self>> {
        let is_empty = self.stream_object.is_none()
            && self.producer_object.is_none()
            && self.scope.is_none()
            && self.known_as.is_none()
            && self.fields == Descr::None;
        (!is_empty).then(|| Box::new(self))
    }
}

impl PyCaiView {
    /// Wraps a view.
    #[inline(always)]
    pub(crate) fn new(view: CaiView) -> Self {
        Self {
            view,
            rare: None,
            table: None,
        }
    }

    /// Where the view stands in an object that is filled piece by piece.
    ///
    /// # Safety
    /// `place` has room for a `PyCaiView`.
    #[inline(always)]
    pub(crate) unsafe fn view_at(place: *mut Self) -> *mut CaiView {
        // SAFETY: a field of the room that this function is promised.
        unsafe { &raw mut (*place).view }
    }

    /// Drops what stands there.
    ///
    /// # Safety
    /// A `PyCaiView` stands there, which nobody uses afterwards; the GIL is held.
    #[cfg(not(Py_LIMITED_API))]
    #[inline(always)]
    pub(crate) unsafe fn end_at(place: *mut Self) {
        // SAFETY: a field of what stands there.
        let rare = unsafe { &raw mut (*place).rare };
        // SAFETY: it stands there, and is moved out once.
        let rare = unsafe { rare.read() };
        if let Some(rare) = rare {
            rare.end();
        }
        // SAFETY: as this function is promised.
        let view = unsafe { Self::view_at(place) };
        // SAFETY: a view stands there, and nobody uses it afterwards.
        unsafe { CaiView::end_at(view) };
    }

    /// Fills what stands beside the view: a table that can be asked again where the producer works.
    ///
    /// # Safety
    /// `place` has room for a `PyCaiView`.
    #[inline(always)]
    pub(crate) unsafe fn complete_at(place: *mut Self, table: Option<Table>) {
        // SAFETY: a field of the room that this function is promised.
        let rare = unsafe { &raw mut (*place).rare };
        // SAFETY: room for it.
        unsafe { rare.write(None) };
        // SAFETY: a field of the room that this function is promised.
        let place = unsafe { &raw mut (*place).table };
        // SAFETY: room for it.
        unsafe { place.write(table) };
    }

    /// Keeps the stream objects that the caller named: a stream lives as long as the views that are
    /// ordered by it. Ints are nobody's to keep.
    #[inline(always)]
    pub(crate) fn keeping(
        mut self,
        ready: Option<&Bound<'_, PyAny>>,
        producer: Option<&Bound<'_, PyAny>>,
    ) -> Self {
        if ready.is_some() || producer.is_some() {
            self.keep(ready, producer);
        }
        self
    }

    #[cold]
    fn keep(&mut self, ready: Option<&Bound<'_, PyAny>>, producer: Option<&Bound<'_, PyAny>>) {
        let mut rare = self.rare.take().map_or_else(Rare::default, |rare| *rare);
        release::dropping(|| {
            if ready.is_some() {
                rare.stream_object = kept(ready);
            }
            if producer.is_some() {
                rare.producer_object = kept(producer);
            }
            self.rare = rare.boxed();
        });
    }

    /// Wraps what came by the route that knows the producer.
    #[inline(always)]
    pub(crate) fn from_route(found: Exchanged) -> Self {
        let view = Self {
            table: found.table,
            ..Self::new(found.view)
        };
        match found.fields {
            None => view,
            Some(fields) => view.with_fields(*fields),
        }
    }

    /// Says which fields the items of a struct have.
    #[cold]
    pub(crate) fn with_fields(mut self, fields: Descr) -> Self {
        let mut rare = self.rare.take().map_or_else(Rare::default, |rare| *rare);
        rare.fields = fields;
        self.rare = rare.boxed();
        self
    }

    /// The fields of a struct.
    pub(crate) fn descr(&self) -> &Descr {
        self.rare.as_ref().map_or(&Descr::None, |rare| &rare.fields)
    }

    /// The same memory described anew: in the same loan, on the same stream, of the same producer.
    pub(crate) fn described(&self, py: Python<'_>, view: CaiView) -> Self {
        // `dtype=` makes an array of a struct.
        let fields = match view.descriptor().dtype().is_structure() {
            true => self.descr().clone(),
            false => Descr::None,
        };
        let table = self.table.filter(|_| view.ready() == self.view.ready());
        let known_as = self.known_as();
        let rare = Rare {
            stream_object: clone(py, self.stream_object()),
            producer_object: clone(py, self.producer_object()),
            scope: self.scope().cloned(),
            fields,
            known_as: (table.is_some() && known_as != view.device()).then_some(known_as),
        };
        Self {
            table,
            view,
            rare: rare.boxed(),
        }
    }

    /// A view that is ready on a consumer's stream until `scope` ends.
    pub(crate) fn lent(
        &self,
        py: Python<'_>,
        view: &CaiView,
        stream_object: Py<PyAny>,
        scope: Scope,
    ) -> Self {
        // SAFETY: the same description of the same memory.
        let view = unsafe { view.derive(view.descriptor().clone()) };
        Self {
            view,
            rare: Some(Box::new(Rare {
                stream_object: Some(stream_object),
                producer_object: clone(py, self.producer_object()),
                scope: Some(scope),
                fields: self.descr().clone(),
                known_as: None,
            })),
            table: None,
        }
    }

    /// The view itself.
    #[must_use]
    pub fn view(&self) -> &CaiView {
        &self.view
    }

    /// The same array on a stream that waits for it already; the view itself where it is ready there.
    pub(crate) fn ready_on<'py>(
        slf: &Bound<'py, Self>,
        stream: Stream,
        object: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        if !Request::Stream(stream).needs_order(this.view.ready()) {
            return Ok(slf.clone());
        }
        this.moved(slf.py(), stream, kept(object))
            .into_object(slf.py())
    }

    fn scope(&self) -> Option<&Scope> {
        self.rare.as_ref()?.scope.as_ref()
    }

    /// The device that the producer's table knows the memory by.
    fn known_as(&self) -> Device {
        let rare = self.rare.as_ref().and_then(|rare| rare.known_as);
        rare.unwrap_or_else(|| self.view.device())
    }

    fn work(&self) -> Option<WorkStream> {
        let table = self.table?;
        Some(WorkStream::new(table, self.known_as()))
    }

    fn stream_object(&self) -> Option<&Py<PyAny>> {
        self.rare.as_ref()?.stream_object.as_ref()
    }

    /// Whether the collector can see anything in it: an import by DLPack holds no Python object.
    #[inline(always)]
    pub(crate) fn may_be_in_a_cycle(&self) -> bool {
        self.rare.is_some() || self.view.owner().payload(&PYTHON).is_some()
    }

    /// The object of a view.
    ///
    /// # Errors
    /// Out of memory.
    #[inline(always)]
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        alloc::of(py, self)
    }

    fn producer_object(&self) -> Option<&Py<PyAny>> {
        self.rare.as_ref()?.producer_object.as_ref()
    }

    /// Refuses a view whose loan has ended: nothing orders its use any more.
    #[inline]
    pub(crate) fn check_scope(&self) -> PyResult<()> {
        self.scope().map_or(Ok(()), Scope::check)
    }

    /// Refuses what no consumer can be given: a view whose loan has ended, a struct as a whole.
    #[inline]
    pub(crate) fn check_array(&self) -> PyResult<()> {
        match &self.rare {
            None => Ok(()),
            Some(rare) => {
                self.check_scope()?;
                rare.fields.refusal().map_or(Ok(()), |why| Err(why.into()))
            }
        }
    }

    /// What goes before every export: [`check_array`](Self::check_array), [`prepare`](Self::prepare).
    #[inline]
    pub(crate) fn prepare_array(&self, py: Python<'_>) -> PyResult<()> {
        self.check_array()?;
        self.follow(py)
    }

    /// What goes before every use: the loan has not ended, and the ready stream knows of all that the
    /// producer has done.
    ///
    /// # Errors
    /// `scope-ended`; what the producer's table raises; why no order can be made.
    #[inline]
    pub(crate) fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        self.check_scope()?;
        self.follow(py)
    }

    /// Has the ready stream wait where the producer has moved to another one.
    #[inline]
    pub(crate) fn follow(&self, py: Python<'_>) -> PyResult<()> {
        match self.work() {
            None => Ok(()),
            Some(work) => work.follow(py, &self.view),
        }
    }

    /// The stream that the producer has moved to since the import, where it can be asked.
    ///
    /// # Errors
    /// What the producer's table raises.
    pub(crate) fn producer_moved(&self) -> PyResult<Option<Stream>> {
        match self.work() {
            None => Ok(None),
            Some(work) => work.moved(&self.view),
        }
    }

    /// The view after `request` has been answered, ready on `stream`.
    fn ordered<'py>(
        slf: &Bound<'py, Self>,
        request: Request,
        stream: Stream,
        object: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let (py, this) = (slf.py(), slf.get());
        this.prepare(py)?;
        // An explicit wish: the policy is about what happens without one.
        if !this.view.needs_order(request, SyncPolicy::Event) {
            return Ok(slf.clone());
        }
        py.detach(|| this.view.order(request, SyncPolicy::Event))?;
        this.moved(py, stream, object).into_object(py)
    }

    /// The same view on another ready stream, by then ordered there.
    fn moved(&self, py: Python<'_>, stream: Stream, stream_object: Option<Py<PyAny>>) -> Self {
        Self {
            view: self.view.ready_on(stream),
            rare: Rare {
                stream_object,
                producer_object: clone(py, self.producer_object()),
                scope: self.scope().cloned(),
                fields: self.descr().clone(),
                known_as: None,
            }
            .boxed(),
            table: None,
        }
    }
}

/// A stream object to keep; nothing for an int.
#[inline]
fn kept(stream: Option<&Bound<'_, PyAny>>) -> Option<Py<PyAny>> {
    stream
        .filter(|stream| !stream.is_exact_instance_of::<PyInt>())
        .map(|stream| stream.clone().unbind())
}

#[inline]
fn clone(py: Python<'_>, object: Option<&Py<PyAny>>) -> Option<Py<PyAny>> {
    object.map(|object| object.clone_ref(py))
}

#[pymethods]
impl PyCaiView {
    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.view.descriptor().ndim()
    }

    /// Extents, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        thread_exit::stays();
        PyTuple::new(py, self.view.descriptor().shape())
    }

    /// Name of the element type, as NumPy and ml_dtypes spell it: "float32", "bfloat16", "bool", ...
    #[getter]
    fn dtype(&self) -> String {
        self.view.descriptor().dtype().to_string()
    }

    /// Bytes per element; None for packed types smaller than a byte.
    #[getter]
    fn itemsize(&self) -> Option<u32> {
        self.view.descriptor().dtype().itemsize()
    }

    /// Bytes of all elements, as if they were contiguous.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.view.descriptor().nbytes()
    }

    /// Strides in bytes, one per axis; None for packed types smaller than a byte.
    #[getter]
    fn byte_strides<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        thread_exit::stays();
        let descriptor = self.view.descriptor();
        descriptor
            .dtype()
            .itemsize()
            .map(|itemsize| PyTuple::new(py, descriptor.layout().byte_strides(itemsize)))
            .transpose()
    }

    /// Strides in elements, one per axis.
    #[getter]
    fn elem_strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        thread_exit::stays();
        PyTuple::new(py, self.view.descriptor().elem_strides())
    }

    /// Address of the element of index 0; 0 where there are no elements.
    #[getter]
    fn ptr(&self) -> u64 {
        self.view.descriptor().data()
    }

    /// DLPack's device: (type, id). CUDA is 2, pinned host memory 3, managed memory 13, the CPU 1.
    #[getter]
    fn device(&self) -> (i32, i32) {
        thread_exit::stays();
        let device = self.view.device();
        (device.device_type, device.id)
    }

    /// Kind of memory: "device", "pinned", "managed" or "host".
    #[getter]
    fn memory(&self) -> &'static str {
        match self.view.device().device_type {
            Device::CPU => "host",
            Device::CUDA_HOST | Device::ROCM_HOST => "pinned",
            Device::CUDA_MANAGED => "managed",
            _ => "device",
        }
    }

    /// The stream that a consumer must wait for: 1 the legacy default stream, 2 the per-thread one,
    /// else a handle; None where the data is ready.
    #[getter]
    fn stream(&self) -> Option<u64> {
        self.view.ready().to_cai()
    }

    /// The stream on which the producer goes on working: an int, None where it has nothing enqueued, or
    /// "unknown" where nobody said.
    #[getter]
    fn producer_stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.view.producer() {
            None => Ok(PyString::intern(py, "unknown").into_any()),
            Some(stream) => Ok(stream.to_cai().into_pyobject(py)?),
        }
    }

    /// Whether consumers must not write.
    #[getter]
    fn read_only(&self) -> bool {
        self.view.descriptor().read_only()
    }

    /// The Python object that keeps the memory alive; None where a DLPack tensor does.
    #[getter]
    fn owner<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let payload = self.view.owner().payload(&PYTHON)?;
        // SAFETY: the payload of this kind is a strong reference, which the view keeps.
        Some(unsafe { Bound::from_borrowed_ptr(py, payload.cast::<ffi::PyObject>().as_ptr()) })
    }

    /// The CUDA Array Interface, version 3: a fresh dict.
    ///
    /// Raises AttributeError where the interface cannot say what this is (memory that CUDA cannot reach,
    /// bfloat16, float8, packed types), so that a probe falls through to DLPack. `to_cai` raises
    /// BufferError instead.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        thread_exit::stays();
        self.prepare(py)?;
        if let Some(refused) = self.descr().refusal() {
            return Err(PyAttributeError::new_err(refused.to_string()));
        }
        match self.view.descriptor().check_interface() {
            Ok(typestr) => cai_dict::of(py, &self.view, typestr),
            Err(violation) => Err(PyAttributeError::new_err(violation.to_string())),
        }
    }

    /// The CUDA Array Interface, version 3: a fresh dict. Its memory lives as long as this view.
    ///
    /// Raises BufferError where the interface cannot say what this is.
    fn to_cai<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        thread_exit::stays();
        self.check_array()?;
        let typestr = self.view.descriptor().check_interface()?;
        self.follow(py)?;
        cai_dict::of(py, &self.view, typestr)
    }

    /// NumPy's array interface, version 3, of memory that the host can read; waits until it may.
    ///
    /// Raises AttributeError for other memory, and for types that it cannot say.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        thread_exit::stays();
        self.prepare(py)?;
        buffer::array_interface(py, self)
    }

    /// A buffer of memory that the host can read, without a copy; waits until it may be read.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        // SAFETY: CPython gives a place for the answer.
        unsafe { buffer::get_buffer(slf, buffer, flags) }
    }

    unsafe fn __releasebuffer__(&self, buffer: *mut ffi::Py_buffer) {
        // SAFETY: CPython releases each buffer that this view has filled once.
        unsafe { buffer::release_buffer(self.view.descriptor().ndim(), buffer) };
    }

    /// The same memory under its other name, without a copy: managed, pinned and registered memory is
    /// reachable from the device and from the host.
    ///
    /// kind: "cuda" for consumers that take device memory alone; "host" for those of the CPU, which waits
    /// until the host may read.
    /// Raises BufferError where the memory is not reachable from there.
    #[pyo3(signature = (kind, /))]
    fn present_as(&self, py: Python<'_>, kind: &str) -> PyResult<Self> {
        thread_exit::stays();
        self.prepare(py)?;
        Ok(self.described(py, buffer::present_as(py, &self.view, kind)?))
    }

    /// The names of the fields of a structured array; empty for any other.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        fields::names(py, self.descr())
    }

    /// One field of a structured array: a strided view of the same memory, for every consumer.
    ///
    /// dtype: the field's element type, where its typestr cannot say it; it reinterprets and never casts.
    /// Raises ValueError for a name that it does not have, BufferError where the array is not structured
    /// or the distance between two items is no multiple of the field's item size.
    #[pyo3(signature = (name, /, *, dtype=None))]
    fn field(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        thread_exit::stays();
        self.check_scope()?;
        fields::field(py, self, name, dtype)
    }

    /// The C Exchange API (DLPack 1.3): a capsule around a table of C functions.
    #[classattr]
    fn __dlpack_c_exchange_api__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        table::capsule(py)
    }

    /// DLPack's device: (type, id).
    fn __dlpack_device__(&self) -> (i32, i32) {
        thread_exit::stays();
        self.device()
    }

    /// A DLPack capsule (array API 2024.12).
    ///
    /// stream: the consumer's stream, which is made to wait for the data by an event: None or 1 the legacy
    /// default stream, 2 the per-thread one, -1 no synchronisation, else a handle, or an object with
    /// __cuda_stream__. For pinned and managed memory None blocks until the host may read.
    /// max_version: (1, 0) or later gives a versioned tensor (1.3), else a legacy one.
    /// dl_device: this view's own device, or (1, 0) for the CPU: shared where the host reads the memory,
    /// else a copy.
    /// copy: True makes one, False refuses where one is needed. A copy is in C order and writable; on the
    /// device it runs on `stream`.
    ///
    /// Raises BufferError for what cannot be exported so, ValueError and TypeError for bad arguments,
    /// DriverError where the driver refuses.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    pub(crate) fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<&Bound<'py, PyAny>>,
        copy: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        this.check_array()?;
        let asked = Asked {
            stream,
            max_version,
            dl_device,
            copy,
            writable: false,
            on_host: false,
        };
        let export = Export::decide(this.view.descriptor().described(), &asked)?;
        if export.wants_order() {
            this.follow(py)?;
        }
        if let Some(copy) = export.copied(py, &this.view)? {
            let (descriptor, owner) = copy.into_parts();
            return export.capsule(py, descriptor.described(), owner);
        }
        export.order(py, &this.view)?;
        // The tensor keeps this view, and the view keeps the rest: one reference, no count to share.
        let owner = release::own(slf.clone().into_any())?;
        export.capsule(py, this.view.descriptor().described(), owner)
    }

    /// A view that is ready on `stream`: by one event, or none where it is ready there already.
    ///
    /// For consumers that ignore streams: work enqueued on `stream` from now on finds the data ready.
    #[pyo3(signature = (stream, /))]
    fn on<'py>(slf: &Bound<'py, Self>, stream: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        thread_exit::stays();
        let consumer = stream::named(stream, Field::Argument("stream"))?;
        Self::ordered(slf, Request::Stream(consumer), consumer, kept(Some(stream)))
    }

    /// Lends the data to `stream` for the duration of a `with` block.
    ///
    /// Entering gives a view that is ready on `stream` (as `on` does); leaving makes the producer's stream
    /// wait for what `stream` holds by then. Both cost nothing where the streams are the same.
    /// `t.return_edge` says what leaving does: "event", "same-stream", "not-needed" (the producer has no
    /// work in any stream) or "unknown" (nobody said where it works: order what comes after yourself).
    ///
    /// strict: refuse an unknown producer stream.
    #[pyo3(signature = (stream, /, *, strict=false))]
    fn consume(
        slf: &Bound<'_, Self>,
        stream: &Bound<'_, PyAny>,
        strict: bool,
    ) -> PyResult<PyConsume> {
        thread_exit::stays();
        slf.get().check_scope()?;
        let consumer = stream::named(stream, Field::Argument("stream"))?;
        PyConsume::new(slf, consumer, stream.clone().unbind(), strict)
    }

    /// What leaving the `consume` block of this view does; None for a view of no such block.
    #[getter]
    fn return_edge(&self) -> Option<&'static str> {
        self.scope().map(|scope| scope.edge().name())
    }

    /// Blocks until the data is ready, without the GIL; a view with stream None.
    fn synchronize<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        thread_exit::stays();
        Self::ordered(slf, Request::Host, Stream::None, None)
    }

    /// A NumPy array of memory that the host can read (pinned, managed, the CPU's), without a copy unless
    /// `dtype` or `copy` asks for one.
    ///
    /// Raises TypeError for device memory: NumPy would copy it element by element otherwise.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        thread_exit::stays();
        let (py, device) = (slf.py(), slf.get().view.device());
        if !device.is_host_readable() {
            return Err(buffer::unreadable(device).into());
        }
        let numpy = py.import("numpy")?;
        let array = numpy.call_method1("from_dlpack", (slf,))?;
        let arguments = PyDict::new(py);
        arguments.set_item("dtype", dtype)?;
        arguments.set_item(
            &keys(py).copy,
            copy.unwrap_or_else(|| {
                false
                    .into_pyobject(py)
                    .map_or_else(|never| match never {}, |no| no.to_owned().into_any())
            }),
        )?;
        numpy.call_method("array", (array,), Some(&arguments))
    }

    /// An owner that refers back to its view makes a cycle, which the collector can see here. Its other
    /// half, the owner's own dict, is what it clears: a view stays whole while anybody has it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(rare) = &self.rare {
            visit.call(&rare.stream_object)?;
            visit.call(&rare.producer_object)?;
        }
        let Some(payload) = self.view.owner().sole_payload(&PYTHON) else {
            return Ok(());
        };
        // SAFETY: the collector runs with the GIL; the token is used for nothing but the next line.
        let py = unsafe { Python::assume_attached() };
        // SAFETY: the payload is a strong reference that the owner keeps: it is lent here, neither
        // counted nor, by `ManuallyDrop`, given up.
        let owner = unsafe { Bound::from_owned_ptr(py, payload.as_ptr().cast()) };
        visit.call(&*ManuallyDrop::new(owner.unbind()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(Violation::new(Rule::Pickle, Field::Object, "a CaiView").into())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        thread_exit::stays();
        let descriptor = self.view.descriptor();
        let device = descriptor.device();
        Ok(format!(
            "<CaiView shape={} dtype={} ptr={:#x} device=({}, {}) stream={}{}>",
            self.shape(py)?,
            descriptor.dtype(),
            descriptor.data(),
            device.device_type,
            device.id,
            self.stream().into_pyobject(py)?,
            if descriptor.read_only() {
                " read-only"
            } else {
                ""
            },
        ))
    }
}
