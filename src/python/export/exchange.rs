//! Our own table: `CaiView.__dlpack_c_exchange_api__`.
//!
//! A consumer that takes a tensor through a table works on the stream that `current_work_stream` names,
//! without saying for which array. We answer the thread's work stream (`use_stream`, else the legacy
//! default stream), and make every view that goes through the table ready there.
//!
//! | function | does | refuses |
//! |---|---|---|
//! | `managed_tensor_from_py_object_no_sync` | a versioned tensor that keeps the view alive, flags and all | what is no `CaiView` |
//! | `dltensor_from_py_object_no_sync` | shape and strides lie in the view itself | read-only data: a `DLTensor` has no flags, so a writer could not know |
//! | `managed_tensor_to_py_object_no_sync` | a view that owns the tensor, taken even on failure | what `from_dlpack` refuses |
//! | `current_work_stream` | the thread's work stream; NULL for the CPU | nothing |
//! | `managed_tensor_allocator` | nothing | everything: a bridge owns no memory |

use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use dlpark::ManagedTensorBase;
use dlpark::ffi::{
    DLDeviceType, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION,
    DLPackExchangeAPI, DLPackExchangeAPIHeader, DLPackVersion, DLTensor,
};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::protocol::device::{Device, Flags};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::policy;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::{release, thread_exit};
use crate::python::exchange_table::NAME;
use crate::view;
use crate::view::{CaiView, build};

/// The table, as static as DLPack asks.
struct Static(DLPackExchangeAPI);

// SAFETY: nobody writes to it; its one pointer is NULL.
unsafe impl Sync for Static {}

static TABLE: Static = Static(DLPackExchangeAPI {
    header: DLPackExchangeAPIHeader {
        version: DLPackVersion {
            major: DLPACK_MAJOR_VERSION,
            minor: DLPACK_MINOR_VERSION,
        },
        prev_api: ptr::null_mut(),
    },
    managed_tensor_allocator: Some(allocate),
    managed_tensor_from_py_object_no_sync: Some(from_object),
    managed_tensor_to_py_object_no_sync: Some(to_object),
    dltensor_from_py_object_no_sync: Some(borrow),
    current_work_stream: Some(work_stream),
});

/// The class attribute: a capsule around the table.
pub(crate) fn capsule(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let table = (&raw const TABLE.0).cast_mut().cast();
    // SAFETY: not NULL; table and name live for ever, and there is nothing to destroy.
    let capsule = unsafe { ffi::PyCapsule_New(table, NAME.as_ptr(), None) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Runs the body of a callback: 0, or -1 with an exception set. Nothing unwinds into C.
fn answer(py: Python<'_>, body: impl FnOnce() -> PyResult<()>) -> c_int {
    thread_exit::guard();
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(_) => {
            view::PANICS.add();
            PyRuntimeError::new_err("a panic inside cai_dlpack; please report it")
        }
    };
    // With all that was dropped on the way to the error: PyO3 does not count this call as its own.
    release::dropping(|| error.restore(py));
    -1
}

unsafe extern "C" fn from_object(
    object: *mut c_void,
    out: *mut *mut DLManagedTensorVersioned,
) -> c_int {
    // SAFETY: DLPack 1.3: functions that take Python objects are called with the GIL.
    let py = unsafe { Python::assume_attached() };
    answer(py, || {
        // SAFETY: a Python object, by the function's contract; borrowed during the call.
        let view = unsafe { cast(py, &object) }?;
        let tensor = owning(view)?;
        // SAFETY: a place for the answer, by the function's contract.
        unsafe { out.write(tensor.as_ptr()) };
        Ok(())
    })
}

unsafe extern "C" fn borrow(object: *mut c_void, out: *mut DLTensor) -> c_int {
    // SAFETY: as in `from_object`.
    let py = unsafe { Python::assume_attached() };
    answer(py, || {
        // SAFETY: as in `from_object`.
        let view = unsafe { cast(py, &object) }?;
        let tensor = borrowed(view)?;
        // SAFETY: a place for the answer, by the function's contract.
        unsafe { out.write(tensor) };
        Ok(())
    })
}

unsafe extern "C" fn to_object(
    tensor: *mut DLManagedTensorVersioned,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: as in `from_object`.
    let py = unsafe { Python::assume_attached() };
    answer(py, || {
        // SAFETY: an initialised tensor, given away ("the ownership of the tensor is stolen").
        let view = unsafe { adopt(py, tensor) }?;
        // SAFETY: a place for the answer, by the function's contract.
        unsafe { out.write(view.into_ptr().cast()) };
        Ok(())
    })
}

unsafe extern "C" fn work_stream(
    device_type: DLDeviceType,
    device_id: i32,
    out: *mut *mut c_void,
) -> c_int {
    let stream = work_stream_of(device_type.0.cast_signed(), device_id);
    // A driver's handle, where the legacy default stream is 0.
    let handle = match stream {
        Stream::None | Stream::LegacyDefault => 0,
        named => named.raw(),
    };
    // SAFETY: a place for the answer, by the function's contract.
    unsafe { out.write(ptr::without_provenance_mut(handle as usize)) };
    0
}

unsafe extern "C" fn allocate(
    _prototype: *mut DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    error_context: *mut c_void,
    set_error: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>,
) -> c_int {
    if !out.is_null() {
        // SAFETY: a place for the answer.
        unsafe { out.write(ptr::null_mut()) };
    }
    let violation = Violation::new(Rule::ExchangeAllocator, Field::ExchangeApi, "");
    let message = CString::new(violation.to_string()).unwrap_or_default();
    if let Some(set_error) = set_error {
        // SAFETY: the caller's function and context; the two strings live during the call.
        unsafe { set_error(error_context, c"BufferError".as_ptr(), message.as_ptr()) };
    }
    -1
}

/// # Safety
/// `object` is NULL or a Python object that lives during `'a`.
unsafe fn cast<'a, 'py>(
    py: Python<'py>,
    object: &'a *mut c_void,
) -> PyResult<&'a Bound<'py, PyCaiView>> {
    if object.is_null() {
        return Err(PyTypeError::new_err("NULL, not a CaiView"));
    }
    // SAFETY: `*mut c_void` and `*mut PyObject` have one layout.
    let object = unsafe { &*ptr::from_ref(object).cast::<*mut ffi::PyObject>() };
    // SAFETY: a Python object that lives during `'a`, by this function's contract.
    let object = unsafe { Bound::ref_from_ptr(py, object) };
    object.cast::<PyCaiView>().map_err(|_| {
        let found = format!(
            "this table is CaiView's, and the object a {}",
            type_name(object)
        );
        PyTypeError::new_err(found)
    })
}

/// The stream that this thread works on; [`Stream::None`] where the device has no CUDA streams.
fn work_stream_of(device_type: i32, device_id: i32) -> Stream {
    match Platform::from_device_type(device_type) {
        Some(Platform::Cuda | Platform::HostReadable) => policy::work_stream(device_id),
        Some(Platform::Rocm) => Stream::LegacyDefault,
        Some(Platform::Host) | None => Stream::None,
    }
}

/// Makes a view ready on the thread's work stream.
#[inline]
fn make_ready(view: &Bound<'_, PyCaiView>) -> PyResult<()> {
    let (py, this) = (view.py(), view.get());
    this.prepare_array(py)?;
    let view = this.view();
    let device = view.device();
    let request = Request::Stream(work_stream_of(device.device_type, device.id));
    let policy = policy::policy();
    if view.needs_order(request, policy) {
        py.detach(|| view.order(request, policy))?;
    }
    Ok(())
}

fn owning(view: &Bound<'_, PyCaiView>) -> PyResult<NonNull<DLManagedTensorVersioned>> {
    make_ready(view)?;
    let descriptor = view.get().view().descriptor();
    let owner = release::own(view.clone().into_any())?;
    // The view holds the memory too: whoever made it, here it is no copy.
    let flags = descriptor.flags().with(Flags::IS_COPIED, false);
    build(descriptor.borrowed(), flags.bits(), owner).map_err(|error| {
        // SAFETY: `build` did not take the owner, so that it is still ours to end.
        unsafe { owner.release() };
        error.into()
    })
}

/// A description whose arrays are the view's own: it lives as long as the view, which is immutable.
fn borrowed(view: &Bound<'_, PyCaiView>) -> PyResult<DLTensor> {
    let descriptor = view.get().view().descriptor();
    if descriptor.read_only() {
        return Err(read_only());
    }
    make_ready(view)?;
    Ok(view::header(
        descriptor.borrowed(),
        descriptor.ndim(),
        descriptor.shape().as_ptr().cast_mut(),
        descriptor.elem_strides().as_ptr().cast_mut(),
    ))
}

#[cold]
fn read_only() -> PyErr {
    Violation::new(
        Rule::ReadOnlyWriter,
        Field::ExchangeApi,
        "a borrowed DLTensor",
    )
    .with_hint("the owning function carries the flag; read_only=False asserts that writing is fine")
    .into()
}

/// # Safety
/// `tensor` is NULL, or initialised, the caller's and given away.
unsafe fn adopt(
    py: Python<'_>,
    tensor: *mut DLManagedTensorVersioned,
) -> PyResult<Bound<'_, PyCaiView>> {
    let Some(tensor) = NonNull::new(tensor) else {
        return Err(Violation::new(Rule::CapsuleNull, Field::ExchangeApi, "NULL").into());
    };
    release::prepare(py).inspect_err(|_| {
        // SAFETY: initialised and given away, and nobody has taken it over.
        unsafe { DLManagedTensorVersioned::drop_raw(tensor.as_ptr()) };
    })?;
    // SAFETY: by this function's contract.
    let imported = unsafe { release::own_tensor(tensor) };
    let descriptor = imported.descriptor()?;
    let Device { device_type, id } = descriptor.device();
    let ready = work_stream_of(device_type, id);
    // SAFETY: the owner is the tensor, whose data is valid until its deleter runs (DLPack). No
    // synchronisation: its maker works on the stream that we name.
    let view = unsafe { CaiView::of(descriptor, ready, Some(ready), imported.into_owner()) };
    PyCaiView::new(view).into_object(py)
}
