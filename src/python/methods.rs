//! The methods and attributes of `CaiView`.

use pyo3::exceptions::PyAttributeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{Borrowed, ffi};

use crate::protocol::device::{Access, Device};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, Stream};
use crate::python::call::stream;
use crate::python::class::awaiting::coroutine;
use crate::python::class::beside::kept;
use crate::python::class::consume::PyConsume;
use crate::python::class::order::Waited;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::{self, Function, signature};
use crate::python::cpython::getter::{self, Definition, Getter};
use crate::python::cpython::names::names;
use crate::python::cpython::release;
use crate::python::cpython::thread_exit::entries;
use crate::python::export::dlpack::{DlpackRequest, Export};
use crate::python::export::{buffer, cai_dict, exchange};
use crate::python::import::fields;

entries! {
impl PyCaiView {
    /// The number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.view().descriptor().ndim()
    }

    /// The extents, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view().descriptor().shape())
    }

    /// The name of the element type, as NumPy and ml_dtypes spell it: "float32", "bfloat16", "bool", ...
    #[getter]
    fn dtype(&self) -> String {
        self.view().descriptor().dtype().to_string()
    }

    /// The size of an element in bytes; None for packed types smaller than a byte.
    #[getter]
    fn itemsize(&self) -> Option<u32> {
        self.view().descriptor().dtype().itemsize()
    }

    /// The size of all elements in bytes, as if they were contiguous.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.view().descriptor().nbytes()
    }

    /// The strides in bytes, one for each axis; None for packed types smaller than a byte.
    #[getter]
    fn byte_strides<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let descriptor = self.view().descriptor();
        descriptor
            .dtype()
            .itemsize()
            .map(|itemsize| PyTuple::new(py, descriptor.layout().byte_strides(itemsize)))
            .transpose()
    }

    /// The strides in elements, one for each axis.
    #[getter]
    fn elem_strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view().descriptor().elem_strides())
    }

    /// The address of the first element (index 0 on every axis); 0 for an array of size 0. On a device whose memory
    /// has handles instead of addresses (OpenCL, Vulkan, Metal, WebGPU), the handle.
    #[getter]
    fn ptr(&self) -> u64 {
        self.view().descriptor().data()
    }

    /// The distance in bytes from a handle to the first element; 0 if `ptr` is an address.
    #[getter]
    fn byte_offset(&self) -> u64 {
        self.view().descriptor().byte_offset()
    }

    /// DLPack's device, as (type, id): 1 is the CPU, 2 CUDA, 3 pinned host memory, 13 managed memory.
    #[getter]
    fn device(&self) -> (i32, i32) {
        let device = self.view().device();
        (device.device_type, device.id)
    }

    /// The kind of memory: "device", "pinned", "managed" or "host".
    #[getter]
    fn memory(&self) -> &'static str {
        match self.view().device().device_type {
            Device::CPU => "host",
            Device::CUDA_HOST | Device::ROCM_HOST => "pinned",
            Device::CUDA_MANAGED => "managed",
            _ => "device",
        }
    }

    /// The stream on which the data is ready: 1 is the legacy default stream, 2 the per-thread one, any other a
    /// handle. None: the data is ready.
    #[getter]
    fn stream(&self) -> Option<u64> {
        self.view().ready().to_cai()
    }

    /// The stream on which the producer goes on working: an int, None if it has no work pending, "unknown" if it
    /// does not name one.
    #[getter]
    fn producer_stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.view().producer() {
            None => Ok(PyString::intern(py, "unknown").into_any()),
            Some(stream) => Ok(stream.to_cai().into_pyobject(py)?),
        }
    }

    /// Whether consumers must not write: True, False, or None if the producer could not state it. Consumers that can
    /// be told are then told not to.
    #[getter]
    fn read_only(&self) -> Option<bool> {
        match self.view().descriptor().access() {
            Access::Writable => Some(false),
            Access::ReadOnly => Some(true),
            Access::Unknown => None,
        }
    }

    /// The Python object that keeps the memory alive; None if a DLPack tensor does.
    #[getter]
    #[pyo3(name = "owner")]
    fn owner_object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.owner(py)
    }

    #[classattr]
    fn __cuda_array_interface__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        getter::descriptor::<Interface>(&py.get_type::<Self>())
    }

    /// Returns the CUDA Array Interface, version 3: a new dict. Its memory lives as long as this view.
    ///
    /// Returns
    /// -------
    /// dict
    ///
    /// Raises
    /// ------
    /// BufferError
    ///     If the interface cannot represent the array.
    fn to_cai<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_array()?;
        let typestr = self.view().descriptor().check_interface()?;
        self.follow()?;
        cai_dict::of(py, self.view(), typestr, self.view().ready_by_number()?)
    }

    /// NumPy's array interface, version 3, for memory that the host can read. Blocks until the data is ready.
    ///
    /// Raises
    /// ------
    /// AttributeError
    ///     If the host cannot read the memory, or the interface cannot represent the type.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.prepare()?;
        buffer::array_interface(py, self)
    }

    /// Fills a buffer of memory that the host can read, without a copy. Blocks until the data is ready.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        // SAFETY: CPython passes a buffer that is valid for writes.
        unsafe { buffer::get_buffer(slf, buffer, flags) }
    }

    unsafe fn __releasebuffer__(&self, buffer: *mut ffi::Py_buffer) {
        // SAFETY: CPython releases each buffer once, on the object that has filled it, whose number of axes is fixed.
        unsafe { buffer::release_buffer(self.view().descriptor().ndim(), buffer) };
    }

    /// Returns a view of the same memory under another device. Copies nothing.
    ///
    /// The device and the host can both access managed, pinned and registered memory.
    ///
    /// Parameters
    /// ----------
    /// kind : {'cuda', 'host'}
    ///     "cuda" for consumers of device memory; "host" for consumers on the CPU, which blocks until the data is
    ///     ready.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///
    /// Raises
    /// ------
    /// BufferError
    ///     If that side cannot access the memory.
    #[pyo3(signature = (kind, /))]
    fn present_as(slf: &Bound<'_, Self>, kind: &str) -> PyResult<Self> {
        let this = slf.get();
        this.prepare()?;
        Self::derive(slf, buffer::present_as(this.view(), kind)?)
    }

    /// The names of the fields of a structured array; empty for any other.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        fields::field_names(py, self.descr())
    }

    /// Returns one field of a structured array: a strided view of the same memory.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     One of `fields`.
    /// dtype : DTypeLike | None, default None
    ///     The field's element type, if its typestr cannot state it. Reinterprets the bytes and never casts.
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
    #[pyo3(signature = (name, /, *, dtype=None))]
    fn field(
        slf: &Bound<'_, Self>,
        name: &str,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        slf.get().check_scope()?;
        fields::field(slf, name, dtype)
    }

    /// The C Exchange API (DLPack 1.3): a capsule around a table of C functions.
    #[classattr]
    fn __dlpack_c_exchange_api__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        exchange::capsule(py)
    }

    /// Returns DLPack's device, as (type, id).
    fn __dlpack_device__(&self) -> (i32, i32) {
        self.device()
    }

    /// Declared below; made with the class.
    #[classattr]
    fn __dlpack__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<Dlpack>(&py.get_type::<Self>())
    }

    /// Returns a view that is ready on `stream`, by one event, or none if it is ready there already.
    ///
    /// For consumers that take no stream: the data is ready for work that is enqueued on `stream` from now on.
    ///
    /// Parameters
    /// ----------
    /// stream : StreamLike
    ///     An int or an object with ``__cuda_stream__``.
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
    #[pyo3(signature = (stream, /))]
    fn on<'py>(slf: &Bound<'py, Self>, stream: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let consumer = stream::named(stream, Field::Argument("stream"))?;
        Self::ordered(slf, Request::Stream(consumer), consumer, kept(Some(stream)))
    }

    /// Returns a context manager for a consumer's work on `stream`, for `with` and for `async with`.
    ///
    /// Entering returns a view that is ready on `stream`, as `on` does. Leaving makes the producer's stream wait for
    /// the work on `stream`; `return_edge` of that view tells how. Neither makes an event if the streams are the same.
    /// `async with` does the same, and never blocks the event loop.
    ///
    /// Parameters
    /// ----------
    /// stream : StreamLike
    ///     An int or an object with ``__cuda_stream__``.
    /// strict : bool, default False
    ///     Refuses an array whose producer's stream is unknown.
    ///
    /// Returns
    /// -------
    /// ContextManager and AsyncContextManager of CaiView
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `stream` names no stream, or the producer's is unknown and `strict` is set.
    ///
    /// Examples
    /// --------
    /// >>> with view.consume(stream) as array:  # doctest: +SKIP
    /// ...     kernel(array, stream)
    #[pyo3(signature = (stream, /, *, strict=false))]
    fn consume(
        slf: &Bound<'_, Self>,
        stream: &Bound<'_, PyAny>,
        strict: bool,
    ) -> PyResult<PyConsume> {
        slf.get().check_scope()?;
        let consumer = stream::named(stream, Field::Argument("stream"))?;
        PyConsume::new(slf, consumer, stream.clone().unbind(), strict)
    }

    /// The effect of leaving the `consume` block of this view; None for a view of no block.
    ///
    /// "event": the producer's stream waits for an event. "same-stream": nothing needs to wait. "not-needed": the
    /// producer has no work on any stream. "unknown": the producer's stream is unknown; order later work yourself.
    #[getter]
    fn return_edge(&self) -> Option<&'static str> {
        self.scope().map(|scope| scope.edge().name())
    }

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
    fn synchronize<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Self::ordered(slf, Request::Host, Stream::None, None)
    }

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
    fn wait<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        coroutine(slf.py(), "CaiView", "wait", Waited(slf.clone().unbind()))
    }

    /// Returns a NumPy array of memory that the host can read: pinned, managed or CPU memory.
    ///
    /// Parameters
    /// ----------
    /// dtype : data-type, optional
    ///     Converts to this type, which copies.
    /// copy : bool, optional
    ///     As in `numpy.asarray`.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///
    /// Raises
    /// ------
    /// TypeError
    ///     If the array is in device memory, which NumPy would copy element by element.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, device) = (slf.py(), slf.get().view().device());
        if !device.is_host_readable() {
            return Err(buffer::unreadable(device).into());
        }
        let numpy = py.import("numpy")?;
        let array = numpy.call_method1("from_dlpack", (slf,))?;
        let arguments = PyDict::new(py);
        arguments.set_item("dtype", dtype)?;
        arguments.set_item(
            &names(py).copy,
            copy.unwrap_or_else(|| {
                false
                    .into_pyobject(py)
                    .map_or_else(|never| match never {}, |no| no.to_owned().into_any())
            }),
        )?;
        numpy.call_method("array", (array,), Some(&arguments))
    }

    /// Shows the owner to the collector: an owner that refers to its view makes a cycle. The cycle is cleared at the
    /// owner's dict, so that a view stays valid while anything refers to it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.visit(&visit)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(Violation::new(Rule::Pickle, Field::Object, "a CaiView").into())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let descriptor = self.view().descriptor();
        let device = descriptor.device();
        Ok(format!(
            "<CaiView shape={} dtype={} ptr={:#x} device=({}, {}) stream={}{}>",
            self.shape(py)?,
            descriptor.dtype(),
            descriptor.data(),
            device.device_type,
            device.id,
            self.stream().into_pyobject(py)?,
            match descriptor.access() {
                Access::Writable => "",
                Access::ReadOnly => " read-only",
                Access::Unknown => " perhaps read-only",
            },
        ))
    }
}
}

signature! {
    /// Returns a DLPack capsule (array API 2024.12).
    ///
    /// Returns
    /// -------
    /// CapsuleType
    ///     Owns this view until it is consumed or destroyed. A copy is in C order and writable, and is made on `stream`
    ///     if it is on the device.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If an argument has the wrong type or value.
    /// BufferError
    ///     If the array cannot be exported with these arguments.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    Dlpack = __dlpack__ [] (
        /// The consumer's stream, which waits for the data by an event: None or 1 is the legacy default stream, 2 the
        /// per-thread one, -1 no synchronisation, else a handle, or an object with ``__cuda_stream__``. For pinned and
        /// managed memory None blocks until the host may read.
        stream: "_StreamLike | None" = None,
        /// (1, 0) or later: a versioned tensor (1.3), else a legacy one.
        max_version: "tuple[int, int] | None" = None,
        /// The view's own device, or (1, 0) for the CPU: without a copy if the host can read the memory, else a copy.
        dl_device: "_DeviceLike | None" = None,
        /// True makes a copy, False refuses an export that needs one.
        copy: "bool | None" = None,
    ) -> "CapsuleType"
}

/// `__cuda_array_interface__`.
struct Interface;

impl Getter for Interface {
    const DEFINITION: &'static Definition = &Definition::new::<Self>(
        c"__cuda_array_interface__",
        c"The CUDA Array Interface, version 3: a new dict.

Raises
------
AttributeError
    If the interface cannot represent the array (memory that CUDA cannot access, bfloat16, float8, packed
    types, another thread's default stream), so that a probe goes on to DLPack. `to_cai` raises BufferError
    instead.",
    );

    #[inline(always)]
    fn get<'py>(slf: Borrowed<'_, 'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: called by a descriptor of the class alone, which has checked the object's class.
        let slf = unsafe { slf.cast_unchecked::<PyCaiView>() };
        let (py, this) = (slf.py(), slf.get());
        if let Some(refused) = this.refusal()? {
            return Err(PyAttributeError::new_err(refused.to_string()));
        }
        this.follow()?;
        let view = this.view();
        let named = view.descriptor().check_interface();
        match named.and_then(|typestr| Ok((typestr, view.ready_by_number()?))) {
            Ok((typestr, ready)) => Ok(cai_dict::of(py, view, typestr, ready)?.into_any()),
            Err(violation) => Err(PyAttributeError::new_err(violation.to_string())),
        }
    }
}

impl Function for Dlpack {
    #[inline(always)]
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: called by a method descriptor of the class alone, which has checked the object's class.
        let slf = unsafe { slf.cast_unchecked::<PyCaiView>() };
        let (py, this) = (slf.py(), slf.get());
        this.check_array()?;
        let request = DlpackRequest {
            stream: arguments.stream,
            max_version: arguments.max_version,
            dl_device: arguments.dl_device,
            copy: arguments.copy,
            writable: false,
            on_host: false,
        };
        let export = Export::decide(this.view().descriptor().borrowed(), &request)?;
        if export.wants_order() {
            this.follow()?;
        }
        if let Some(transfer) = export.transfer() {
            let copy = export.copy(py, transfer, this.view())?;
            let (descriptor, owner) = copy.into_parts();
            return export.capsule(py, descriptor.borrowed(), owner);
        }
        export.order(py, this.view())?;
        // The tensor owns a reference to this view, which keeps the memory: no shared count is needed.
        let owner = release::own(slf.to_owned().into_any())?;
        export.capsule(py, this.view().descriptor().borrowed(), owner)
    }
}
