//! The methods and attributes of `CaiView`.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{Borrowed, ffi};

use crate::protocol::device::{Access, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::blocks;
use crate::python::class::dtype::PyDType;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors::as_attribute_error;
use crate::python::cpython::fastcall::{self, Function, signature};
use crate::python::cpython::getter::{self, Definition, Getter};
use crate::python::cpython::new::{new_int_pair, new_ints, new_str, new_uint};
use crate::python::cpython::thread_exit::entries;
use crate::python::cpython::tracing::Tracer;
use crate::python::derived::{self, AsKind, Consume, On, OneField, Synchronize, Wait};
use crate::python::export::dlpack::{DlpackRequest, Export};
use crate::python::export::{buffer, cai_dict, exchange, numpy_array};
use crate::python::import::{another_copy, fields};
use crate::python::shown;
use crate::python::trace::{Origin, QuietCall, trace};
use crate::view::{CaiView, Transfer};

entries! {
impl PyCaiView {
    /// The number of axes.
    #[getter]
    fn ndim<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        new_uint(py, self.view().descriptor().ndim() as u64)
    }

    /// The extents, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        new_ints(py, self.view().descriptor().shape().iter().copied())
    }

    /// The number of elements: 1 for an array without axes.
    #[getter]
    fn size<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        new_uint(py, self.view().descriptor().len())
    }

    /// The element type. Equals every spelling of it: "float32", `np.float32`, `torch.float32`.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDType>> {
        PyDType::object_of(py, self.view().descriptor())
    }

    /// NumPy's dtype of the elements, by which `np.result_type(v)` and `jnp.asarray(v)` know it (from NumPy 2.4 on).
    ///
    /// Raises
    /// ------
    /// TypeError
    ///     If NumPy has no such dtype.
    #[getter]
    fn __numpy_dtype__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyDType::of(self.view().descriptor()).numpy(py)
    }

    /// The size of an element in bytes; None for packed types smaller than a byte.
    #[getter]
    fn itemsize<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let itemsize = self.view().descriptor().itemsize();
        itemsize.map(|itemsize| new_uint(py, itemsize.into())).transpose()
    }

    /// The size of all elements in bytes, as if they were contiguous.
    #[getter]
    fn nbytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        new_uint(py, self.view().descriptor().nbytes())
    }

    /// The strides in bytes, one for each axis; None for packed types smaller than a byte.
    #[getter]
    fn byte_strides<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let strides = self.view().descriptor().byte_strides();
        strides.map(|strides| new_ints(py, strides)).transpose()
    }

    /// The strides in elements, one for each axis; None if one is no whole number, which only CAI can say.
    #[getter]
    fn elem_strides<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let descriptor = self.view().descriptor();
        let strides = descriptor.elem_strides();
        let is_even = strides.len() == descriptor.ndim();
        is_even
            .then(|| new_ints(py, strides.iter().copied()))
            .transpose()
    }

    /// Whether the elements are adjacent, the last axis fastest; so are those of an array without elements.
    #[getter]
    fn is_c_contiguous(&self) -> Option<bool> {
        Some(self.view().descriptor().layout().is_c_contiguous())
    }

    /// Whether the elements are adjacent, the first axis fastest; so are those of an array without elements.
    #[getter]
    fn is_f_contiguous(&self) -> Option<bool> {
        Some(self.view().descriptor().layout().is_f_contiguous())
    }

    /// The address of the first element (index 0 on every axis); 0 for an array of size 0. On a device whose memory
    /// has handles instead of addresses (OpenCL, Vulkan, Metal, WebGPU), the handle.
    #[getter]
    fn ptr<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.give_address()?;
        new_uint(py, self.view().descriptor().data())
    }

    /// The distance in bytes from a handle to the first element; 0 if `ptr` is an address.
    #[getter]
    fn byte_offset<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        new_uint(py, self.view().descriptor().byte_offset())
    }

    /// DLPack's device, as (type, id): 1 is the CPU, 2 CUDA, 3 pinned host memory, 13 managed memory.
    #[getter]
    fn device<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let device = self.view().device();
        new_int_pair(py, device.to_dlpack())
    }

    /// The kind of memory: "device", "pinned", "managed" or "host".
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_str(py, shown::memory_name(self.view().device()))
    }

    /// The stream on which the data is ready: 1 is the legacy default stream, 2 the per-thread one, any other a
    /// handle. None: the data is ready.
    #[getter]
    fn stream<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let stream = self.view().ready_number().to_cai();
        stream.map(|stream| new_uint(py, stream)).transpose()
    }

    /// The stream on which the producer goes on working: an int, None if it has no work pending, "unknown" if it
    /// does not name one. A producer that can be asked (by DLPack's C Exchange API) is asked each time.
    #[getter]
    fn producer_stream<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.view().producer_now()?.map(Stream::to_cai) {
            None => Ok(Some(new_str(py, "unknown")?.into_any())),
            Some(None) => Ok(None),
            Some(Some(stream)) => new_uint(py, stream).map(Some),
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
    fn owner_object<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.owner(py))
    }

    /// Tells another copy of this library what this is, whatever module it is named by.
    #[classattr]
    fn _is_cai_view() -> PyResult<bool> {
        Ok(true)
    }

    /// The dict without a stream, for who takes the view's own ([`OfView`](crate::python::import::of_view::OfView)), and makes
    /// the wait for a producer that has moved itself.
    #[getter]
    fn _interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.interface(py, |_| Ok(Stream::None), |_| Ok(()))
    }

    /// Tells another copy of this library the streams, of which the dict of a view names one.
    #[getter]
    fn _streams<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check_alive()?;
        another_copy::capsule(py, self.view())
    }

    #[classattr]
    fn __cuda_array_interface__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        getter::descriptor::<Interface>(&py.get_type::<Self>())
    }

    /// Declared below, as the next two are.
    #[classattr]
    fn to_cai(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<ToCai>(&py.get_type::<Self>())
    }

    /// NumPy's array interface, version 3, for memory that the host can read. Blocks until the data is ready.
    ///
    /// Raises
    /// ------
    /// AttributeError
    ///     If the host cannot read the memory, or the interface cannot represent the type.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let call = QuietCall::begin(py);
        let read = || {
            self.check_alive()?;
            buffer::array_interface(py, self)
        };
        let dict = read();
        call.end("__array_interface__", Origin::View, dict.is_ok().then(|| self.view()));
        dict
    }

    /// Fills a buffer of memory that the host can read, without a copy. Blocks until the data is ready.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        let call = QuietCall::begin(slf.py());
        // SAFETY: CPython passes a buffer that is valid for writes.
        let filled = unsafe { buffer::get_buffer(slf, buffer, flags) };
        call.end("__buffer__", Origin::View, filled.is_ok().then(|| slf.get().view()));
        filled
    }

    unsafe fn __releasebuffer__(&self, buffer: *mut ffi::Py_buffer) -> () {
        // SAFETY: CPython releases each buffer once, on the object that has filled it, whose number of axes is fixed.
        unsafe { buffer::release_buffer(self.view().descriptor().ndim(), buffer) };
    }

    /// The names of the fields of a structured array; empty for any other.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        fields::field_names(py, self.view().descriptor())
    }

    /// The C Exchange API (DLPack 1.3): a capsule around a table of C functions.
    #[classattr]
    fn __dlpack_c_exchange_api__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        exchange::capsule(py)
    }

    #[classattr]
    fn __dlpack_device__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<DlpackDevice>(&py.get_type::<Self>())
    }

    #[classattr]
    fn __dlpack__(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<Dlpack>(&py.get_type::<Self>())
    }

    /// Declared in `derived`, as the next five are.
    #[classattr]
    fn on(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<On>(&py.get_type::<Self>())
    }

    #[classattr]
    fn consume(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<Consume>(&py.get_type::<Self>())
    }

    #[classattr]
    fn present_as(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<AsKind>(&py.get_type::<Self>())
    }

    #[classattr]
    fn field(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<OneField>(&py.get_type::<Self>())
    }

    #[classattr]
    fn synchronize(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<Synchronize>(&py.get_type::<Self>())
    }

    #[classattr]
    fn wait(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        fastcall::method::<Wait>(&py.get_type::<Self>())
    }

    /// The effect of leaving the `consume` block of this view; None for a view of no block.
    ///
    /// "event": the producer's stream waits for an event; if the block was entered under `policy(sync="none")`, that
    /// order is yours to make. "same-stream": nothing needs to wait. "not-needed": the producer has no work on any
    /// stream. "unknown": the producer's stream is unknown; order later work yourself.
    /// Raises BufferError on a thread on which leaving the block would be refused `[stream-thread]`.
    #[getter]
    fn return_edge<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        let Some(scope) = self.scope() else {
            return Ok(None);
        };
        let edge = self.view().return_edge(scope.consumer())?;
        new_str(py, edge.name()).map(Some)
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
    #[pyo3(signature = (*given, **keywords), text_signature = "($self, dtype=None, copy=None)")]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        given: &Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let [dtype, copy] = numpy_array::arguments(given, keywords)?;
        numpy_array::array(slf, dtype, copy)
    }

    /// Shows the owner to the collector: an owner that refers to its view makes a cycle. The cycle is cleared at the
    /// owner's dict, so that a view stays valid while anything refers to it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.visit(&visit)
    }

    /// Returns the view itself, which is immutable.
    fn __copy__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Ok(slf.clone())
    }

    #[pyo3(signature = (_memo, /))]
    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_alive()?;
        let violation = Violation::new(Rule::DeepCopy, Field::Object, "a CaiView");
        let hint = "cai_dlpack.from_dlpack(view, copy=True) copies the memory";
        Err(match Transfer::can_copy(self.view().descriptor()) {
            true => violation.with_hint(hint).into(),
            false => violation.into(),
        })
    }

    fn __reduce__(&self) -> PyResult<()> {
        self.check_alive()?;
        let violation = Violation::new(Rule::Pickle, Field::Object, "a CaiView");
        let array = self.view().descriptor();
        let is_of_device = array.device().device_type == DeviceType::CUDA;
        let shared = (is_of_device && array.check_dlpack().is_ok())
            .then(|| "pickle the handle of `with cai_dlpack.share(view) as handle`".to_owned());
        let copied = buffer::as_numpy(array).map(|array| format!("pickle {array}"));
        let ways: Vec<_> = copied.into_iter().chain(shared).collect();
        Err(match ways.is_empty() {
            false => violation.with_hint(ways.join("; or ")).into(),
            true => violation.into(),
        })
    }

    fn __repr__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_str(py, &shown::text(self, py))
    }

    /// The view in a notebook: its facts, and where its first elements lie, in elements from the first one.
    fn _repr_html_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_str(py, &shown::html(self, py))
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
        stream: "StreamLike | None" = None,
        /// (1, 0) or later: a versioned tensor (1.3), else a legacy one.
        max_version: "tuple[int, int] | None" = None,
        /// The view's own device; (1, 0) for the CPU: without a copy if the host can read the memory, else a copy; or
        /// another CUDA device, by a copy.
        dl_device: "DeviceLike | None" = None,
        /// True makes a copy, False refuses an export that needs one.
        copy: "bool | None" = None,
    ) -> "CapsuleType"
}

signature! {
    /// Returns DLPack's device, as (type, id).
    ///
    /// Returns
    /// -------
    /// tuple of int and int
    DlpackDevice = __dlpack_device__ [] () -> "tuple[int, int]"
}

impl Function for DlpackDevice {
    #[inline(always)]
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        _: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let device = derived::view(slf).get().view().device();
        Ok(new_int_pair(slf.py(), device.to_dlpack())?.into_any())
    }
}

signature! {
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
    ToCai = to_cai [] () -> "dict[str, Any]"
}

impl Function for ToCai {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        _: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let this = derived::view(slf).get();
        this.check_alive()?;
        let items = this.view().descriptor().check_interface()?;
        let ready = this.view().ready_by_number()?;
        this.follow()?;
        this.check_scope()?;
        Ok(cai_dict::of(slf.py(), this.view(), items, ready)?.into_any())
    }
}

impl PyCaiView {
    /// Makes the dict, which names the stream that `ready` returns, and in whose order `follow` brings what the producer has
    /// written elsewhere.
    ///
    /// # Errors
    /// `AttributeError` for what the interface cannot represent; those of `follow`; `scope-ended`.
    #[inline(always)]
    fn interface<'py>(
        &self,
        py: Python<'py>,
        ready: impl FnOnce(&CaiView) -> Result<Stream, Violation>,
        follow: impl FnOnce(&Self) -> PyResult<()>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_alive()?;
        let view = self.view();
        let items = view.descriptor().check_interface();
        match items.and_then(|items| Ok((items, ready(view)?))) {
            Ok((items, ready)) => {
                follow(self)?;
                self.check_scope()?;
                Ok(cai_dict::of(py, view, items, ready)?.into_any())
            }
            Err(violation) => Err(as_attribute_error(&violation)),
        }
    }
}

/// `__cuda_array_interface__`.
struct Interface;

impl Getter for Interface {
    const TRACER: Tracer = trace;

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
        slf.get()
            .interface(slf.py(), CaiView::ready_by_number, PyCaiView::follow)
    }
}

impl Function for Dlpack {
    const TRACER: Option<Tracer> = Some(trace);

    #[inline(always)]
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let slf = derived::view(slf);
        let (py, this) = (slf.py(), slf.get());
        let request = DlpackRequest {
            stream: arguments.stream,
            max_version: arguments.max_version,
            dl_device: arguments.dl_device,
            copy: arguments.copy,
            writable: false,
            on_host: false,
        };
        this.check_array()?;
        // Once: what the arguments call may convert the view again.
        let mut export = Export::decide(this.view().descriptor().borrowed(), &request)
            .map_err(|refused| request.first_refusal(py, this.view(), refused))?;
        // After the arguments, whose code may end the view's block.
        this.check_alive()?;
        let for_block = match blocks::are_open() {
            true => request.order_for_block(py, this, &export)?,
            false => None,
        };
        if for_block == Some(true) {
            export = export.ordered();
        }
        if export.wants_order() && for_block.is_none() {
            export
                .follow(this.view())
                .map_err(|refused| request.unnamed(py, this.view(), refused))?;
        }
        if let Some(transfer) = export.transfer() {
            this.check_alive()?;
            // A copy has memory of its own: nothing of the view's is kept once it has been made.
            let copy = request.copy_for_block(py, &export, transfer, &this.lend(py)?)?;
            // It has asked the producer where that works: the block may have ended before the memory was read.
            this.check_alive()?;
            let (descriptor, owner) = copy.into_parts();
            return export.capsule(py, descriptor.borrowed(), owner);
        }
        export
            .order_followed(py, this.view())
            .map_err(|refused| request.unnamed(py, this.view(), refused))?;
        let owner = PyCaiView::keep(slf)?;
        let capsule = export.capsule(py, this.view().descriptor().borrowed(), owner)?;
        this.note(&capsule);
        Ok(capsule)
    }
}
