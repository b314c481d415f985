//! The exchange table of `CaiView`: `__dlpack_c_exchange_api__`.
//!
//! A consumer that imports a tensor through a table works on the stream that `current_work_stream` returns, which takes
//! no array. It returns the caller's work stream (`use_stream`, else the legacy default stream), and every view that is
//! exported through the table is made ready there.
//!
//! | function | does | refuses |
//! |---|---|---|
//! | `managed_tensor_from_py_object_no_sync` | a versioned tensor that keeps the view alive, flags and all | any other object |
//! | `dltensor_from_py_object_no_sync` | shape and strides lie in the view itself | read-only data, and padded elements, as a `DLTensor` has no flags |
//! | `managed_tensor_to_py_object_no_sync` | a view that owns the tensor, which is taken even on failure | as `from_dlpack` |
//! | `current_work_stream` | the caller's work stream; NULL for the CPU | nothing |
//! | `managed_tensor_allocator` | memory for a result, on the caller's work stream; zeros on the CPU | devices of neither CUDA nor the CPU |

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use dlpark::ManagedTensorBase;
use dlpark::ffi::{
    DLDeviceType, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION,
    DLPackExchangeAPI, DLPackExchangeAPIHeader, DLPackVersion, DLTensor,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, DeviceType, Flags};
use crate::protocol::rule::{Class, Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::use_stream::Work;
use crate::python::call::{blocks, use_stream};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::{gil, panic, release, thread_exit};
use crate::python::exchange_table::NAME;
use crate::python::export::dlpack;
use crate::python::trace::{Origin, QuietCall};
use crate::view;
use crate::view::{CaiView, build, locate, read_tensor};

/// DLPack's header speaks of data that is aligned to 256 bytes.
const ALIGN: usize = 256;

/// The table, which DLPack requires to be static.
struct Static(DLPackExchangeAPI);

// SAFETY: never written; its one pointer is NULL.
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

/// Makes a capsule of the table.
pub(crate) fn capsule(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let table = (&raw const TABLE.0).cast_mut().cast();
    // SAFETY: not NULL; table and name are static, and need no destructor.
    let capsule = unsafe { ffi::PyCapsule_New(table, NAME.as_ptr(), None) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Runs the body of a callback, and returns 0, or -1 with an exception set. Catches a panic, which must not unwind into
/// C.
fn run(py: Python<'_>, body: impl FnOnce() -> PyResult<()>) -> c_int {
    thread_exit::guard();
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(payload) => panicked(&*payload),
    };
    // Also releases what was dropped on the way to the error, as PyO3 does not count this call.
    release::dropping(|| error.restore(py));
    -1
}

/// Makes the exception of a panic, and counts it unless memory was short.
#[cold]
fn panicked(payload: &(dyn Any + Send)) -> PyErr {
    if panic::is_out_of_memory(payload) {
        return panic::caught(payload);
    }
    view::PANICS.add();
    PyRuntimeError::new_err("a panic inside cai_dlpack; please report it")
}

unsafe extern "C" fn from_object(
    object: *mut c_void,
    out: *mut *mut DLManagedTensorVersioned,
) -> c_int {
    // SAFETY: DLPack 1.3: functions of Python objects are called with the GIL held.
    let py = unsafe { Python::assume_attached() };
    run(py, || {
        // SAFETY: DLPack 1.3: a Python object, alive during the call.
        let view = unsafe { cast(py, &object) }?;
        let call = QuietCall::begin(py);
        let tensor = owning(view);
        let handed = tensor.is_ok().then(|| view.get().view());
        call.end(
            "managed_tensor_from_py_object_no_sync",
            Origin::View,
            handed,
        );
        let tensor = tensor?;
        // SAFETY: DLPack 1.3: `out` is valid for a write.
        unsafe { out.write(tensor.as_ptr()) };
        Ok(())
    })
}

unsafe extern "C" fn borrow(object: *mut c_void, out: *mut DLTensor) -> c_int {
    // SAFETY: DLPack 1.3: functions of Python objects are called with the GIL held.
    let py = unsafe { Python::assume_attached() };
    run(py, || {
        // SAFETY: DLPack 1.3: a Python object, alive during the call.
        let view = unsafe { cast(py, &object) }?;
        let call = QuietCall::begin(py);
        let tensor = borrowed(view);
        let handed = tensor.is_ok().then(|| view.get().view());
        call.end("dltensor_from_py_object_no_sync", Origin::View, handed);
        let tensor = tensor?;
        // SAFETY: DLPack 1.3: `out` is valid for a write.
        unsafe { out.write(tensor) };
        Ok(())
    })
}

unsafe extern "C" fn to_object(
    tensor: *mut DLManagedTensorVersioned,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: DLPack 1.3: functions of Python objects are called with the GIL held.
    let py = unsafe { Python::assume_attached() };
    run(py, || {
        let call = QuietCall::begin(py);
        // SAFETY: DLPack 1.3: an initialised tensor, whose "ownership [...] is stolen".
        let view = unsafe { adopt(py, tensor) };
        let made = view.as_ref().ok().map(|view| view.get().view());
        call.end("managed_tensor_to_py_object_no_sync", Origin::Tensor, made);
        let view = view?;
        // SAFETY: DLPack 1.3: `out` is valid for a write.
        unsafe { out.write(view.into_ptr().cast()) };
        Ok(())
    })
}

unsafe extern "C" fn work_stream(
    device_type: DLDeviceType,
    device_id: i32,
    out: *mut *mut c_void,
) -> c_int {
    thread_exit::guard();
    // The legacy default stream, and no stream, as a driver's handle.
    // SAFETY: DLPack 1.3: `out` is valid for a write.
    unsafe { out.write(ptr::null_mut()) };
    if !blocks::are_open() {
        return 0;
    }
    let device = Device::new(
        DeviceType::from_dlpack(device_type.0.cast_signed()),
        device_id,
    );
    let read = |py: Python<'_>| match work_stream_of(py, device)?.stream {
        Stream::None | Stream::LegacyDefault => Ok(()),
        named => {
            let handle = ptr::without_provenance_mut(named.raw() as usize);
            // SAFETY: DLPack 1.3: `out` is valid for a write.
            unsafe { out.write(handle) };
            Ok(())
        }
    };
    // DLPack does not state that the caller holds the GIL.
    gil::attached(|py| run(py, || read(py))).unwrap_or(0)
}

unsafe extern "C" fn allocate(
    prototype: *mut DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    error_context: *mut c_void,
    set_error: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>,
) -> c_int {
    thread_exit::guard();
    // SAFETY: DLPack 1.3: a description that lives during the call, or NULL.
    let made = catch_unwind(|| unsafe { result_like(prototype) });
    let (tensor, refused) = match made {
        Ok(Ok(tensor)) => (tensor.as_ptr(), None),
        Ok(Err(error)) => (ptr::null_mut(), Some((kind(&error), error.to_string()))),
        Err(_) => {
            view::PANICS.add();
            let text = "a panic inside cai_dlpack; please report it".to_owned();
            (ptr::null_mut(), Some((c"RuntimeError", text)))
        }
    };
    if !out.is_null() {
        // SAFETY: DLPack 1.3: `out` is valid for a write, if it is not NULL.
        unsafe { out.write(tensor) };
    } else if !tensor.is_null() {
        // SAFETY: made above, and not passed on.
        unsafe { DLManagedTensorVersioned::drop_raw(tensor) };
    }
    let Some((kind, text)) = refused else {
        return 0;
    };
    if let Some(set_error) = set_error {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the caller's function with its own context; both strings live during the call.
        unsafe { set_error(error_context, kind.as_ptr(), text.as_ptr()) };
    }
    -1
}

/// Returns the name of the Python exception for an error.
fn kind(error: &Error) -> &'static CStr {
    match error {
        Error::Violation(violation) => match violation.rule().class() {
            Class::Type => c"TypeError",
            Class::Value => c"ValueError",
            Class::Buffer => c"BufferError",
            Class::Runtime => c"RuntimeError",
        },
        Error::Driver(_) | Error::Producer(_) => c"RuntimeError",
        Error::OutOfMemory => c"MemoryError",
        Error::Os(_) => c"OSError",
    }
}

/// Makes a tensor for a consumer's result: unwritten memory, for work on the caller's work stream. Called with the GIL
/// or without.
///
/// # Safety
/// `prototype` is NULL, or points to a tensor whose device, element type, ndim and shape are set.
unsafe fn result_like(
    prototype: *const DLTensor,
) -> Result<NonNull<DLManagedTensorVersioned>, Error> {
    let prototype = locate(prototype.cast_mut(), Field::ExchangeApi)?;
    // SAFETY: aligned (`locate`), and a tensor that lives during the call (this function's contract).
    let prototype = unsafe { prototype.as_ref() };
    let described = DLTensor {
        // "Only the dtype, ndim, shape, and device fields are used": an address that every rule accepts.
        data: ptr::without_provenance_mut(ALIGN),
        strides: ptr::null_mut(),
        byte_offset: 0,
        ..*prototype
    };
    // SAFETY: the shape is the prototype's, readable during the call (this function's contract); no strides.
    let described = unsafe { read_tensor(&described, Flags::NONE) }?;
    let made = CaiView::allocated_like(&described, stream_for_result(described.device())?)?;
    let (descriptor, owner) = made.into_parts();
    build(descriptor.borrowed(), Flags::NONE.bits(), owner).inspect_err(|_| {
        // SAFETY: `build` has failed and not taken the owner, which is released once.
        unsafe { owner.release() };
    })
}

/// Returns the caller's work stream, with the GIL or without.
fn stream_for_result(device: Device) -> Result<Stream, Error> {
    if !blocks::are_open() {
        return Ok(default_stream_of(device));
    }
    let device_id = use_stream::blocks_of(device)?;
    let read = |py: Python<'_>| match has_work_stream(device) {
        true => use_stream::of_blocks(py, device_id)
            .map(|work| work.stream)
            .map_err(release::drop_now),
        false => Ok(default_stream_of(device)),
    };
    // Reading a context variable fails for want of memory only.
    gil::attached(read)
        .unwrap_or_else(|| Ok(default_stream_of(device)))
        .map_err(|()| Error::OutOfMemory)
}

/// Borrows a `CaiView`, or refuses the object.
///
/// # Safety
/// `object` is NULL or a Python object that lives during `'a`.
unsafe fn cast<'a, 'py>(
    py: Python<'py>,
    object: &'a *mut c_void,
) -> PyResult<&'a Bound<'py, PyCaiView>> {
    if object.is_null() {
        return Err(no_view("NULL"));
    }
    // SAFETY: pointers to `c_void` and `PyObject` have one layout; the reference lives as long as `object`.
    let object = unsafe { &*ptr::from_ref(object).cast::<*mut ffi::PyObject>() };
    // SAFETY: not null (checked above), and a Python object that lives during `'a` (this function's contract).
    let object = unsafe { Bound::ref_from_ptr(py, object) };
    (object.cast::<PyCaiView>())
        .map_err(|_| no_view(&format!("an object of type {}", type_name(object))))
}

/// Builds the error for an object of another class than the table's.
#[cold]
fn no_view(found: &str) -> PyErr {
    Violation::new(Rule::ArgumentType, Field::Object, found)
        .with_hint("this table is CaiView's")
        .into()
}

/// Returns the caller's work stream; [`Stream::None`] if the device has no streams.
fn work_stream_of(py: Python<'_>, device: Device) -> PyResult<Work<'_>> {
    match blocks::are_open() && has_work_stream(device) {
        true => use_stream::work_stream(py, device),
        false => Ok(Work {
            stream: default_stream_of(device),
            object: None,
        }),
    }
}

/// Whether `use_stream` can name the stream of such memory.
#[inline(always)]
fn has_work_stream(device: Device) -> bool {
    matches!(
        Platform::of(device),
        Some(Platform::Cuda | Platform::HostReadable)
    )
}

/// Returns the work stream if no `use_stream` block names another one.
fn default_stream_of(device: Device) -> Stream {
    match Platform::of(device) {
        Some(Platform::Cuda | Platform::HostReadable | Platform::Rocm) => Stream::LegacyDefault,
        Some(Platform::Host) | None => Stream::None,
    }
}

/// Makes a view ready on the caller's work stream; memory of the host for the host. The work stream is that of the call's
/// beginning: the producer's code, which `follow` runs, may enter a block.
#[inline]
fn make_ready(view: &Bound<'_, PyCaiView>) -> PyResult<()> {
    let (py, this) = (view.py(), view.get());
    this.check_array()?;
    let view = this.view();
    let request = match Platform::of(view.device()) {
        // It may be managed memory, which each reader waits for.
        Some(Platform::Host) => Request::Host,
        _ if blocks::are_open() => return make_ready_in_block(py, this),
        _ => Request::Stream(default_stream_of(view.device())),
    };
    this.follow()?;
    dlpack::order(py, view, request)
}

#[cold]
fn make_ready_in_block(py: Python<'_>, this: &PyCaiView) -> PyResult<()> {
    let work = work_stream_of(py, this.view().device())?;
    this.follow()?;
    dlpack::order(py, this.view(), Request::Stream(work.stream))
}

fn owning(view: &Bound<'_, PyCaiView>) -> PyResult<NonNull<DLManagedTensorVersioned>> {
    make_ready(view)?;
    let descriptor = view.get().view().descriptor();
    let owner = PyCaiView::keep(view.as_borrowed())?;
    // The view shares the memory, so that the tensor is no copy.
    let flags = descriptor.flags().with(Flags::IS_COPIED, false);
    build(descriptor.borrowed(), flags.bits(), owner).map_err(|error| {
        // SAFETY: `build` has failed and not taken the owner, which is released once.
        unsafe { owner.release() };
        error.into()
    })
}

/// Makes a description that points into the view, which is immutable, and is valid as long as it.
fn borrowed(view: &Bound<'_, PyCaiView>) -> PyResult<DLTensor> {
    view.get().check_alive()?;
    let descriptor = view.get().view().descriptor();
    // As in a legacy tensor, unknown access is expressed by the lack of flags.
    if descriptor.access() == Access::ReadOnly {
        // What no assertion remedies comes first.
        descriptor.check_dlpack()?;
        return Err(read_only(descriptor));
    }
    view::refuse_padded(descriptor.borrowed(), Field::ExchangeApi)?;
    make_ready(view)?;
    view.get().check_scope()?;
    Ok(view::header(
        descriptor.borrowed(),
        descriptor.ndim(),
        descriptor.shape().as_ptr().cast_mut(),
        descriptor.elem_strides().as_ptr().cast_mut(),
    ))
}

#[cold]
fn read_only(array: &Descriptor) -> PyErr {
    Violation::new(
        Rule::ReadOnlyWriter,
        Field::ExchangeApi,
        "a borrowed DLTensor",
    )
    .with_hint(match view::refuse_padded(array.borrowed(), Field::ExchangeApi) {
        Ok(()) => {
            "the owning function carries the flag; read_only=False on import asserts that the consumer may write"
        }
        Err(_) => "the owning function carries the flag",
    })
    .into()
}

/// Makes a view that owns the tensor.
///
/// # Safety
/// `tensor` is NULL, or initialised with its ownership given up by the caller.
unsafe fn adopt(
    py: Python<'_>,
    tensor: *mut DLManagedTensorVersioned,
) -> PyResult<Bound<'_, PyCaiView>> {
    let tensor = locate(tensor, Field::ExchangeApi)?;
    release::prepare(py).inspect_err(|_| {
        // SAFETY: aligned (`locate`); initialised, and owned here (this function's contract); dropped once.
        unsafe { DLManagedTensorVersioned::drop_raw(tensor.as_ptr()) };
    })?;
    // SAFETY: aligned (`locate`); initialised, and owned here (this function's contract).
    let imported = unsafe { release::own_tensor(tensor) };
    let descriptor = imported.descriptor()?;
    let work = work_stream_of(py, descriptor.device())?;
    let ready = work.stream;
    // SAFETY: DLPack: the data is valid until the deleter of the tensor runs, which is the owner. It is ready on the
    // work stream, on which its maker works.
    let view = unsafe { CaiView::of(descriptor, ready, Some(ready), imported.into_owner()) };
    PyCaiView::new(view).into_object(py)
}
