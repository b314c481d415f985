//! Exports to the host: `__array_interface__` and the buffer protocol.
//!
//! NumPy and consumers of buffers read pinned, managed and CPU memory without DLPack, after the host has waited for the
//! data. For other memory `__array_interface__` raises AttributeError and a buffer TypeError, as objects without them
//! do, so that consumers try the next protocol.

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::protocol::convert::Items;
use crate::protocol::descriptor::{Descriptor, DescriptorRef};
use crate::protocol::device::{Access, DeviceType, Flags};
use crate::protocol::interface::Descr;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, SyncPolicy};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors::as_attribute_error;
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_address_and_flag, new_dict, new_int, new_ints, new_str};
use crate::python::export::array_dict;
use crate::view::{CaiView, TO_THE_CPU, Transfer};

/// Blocks until the host may read the data.
pub(crate) fn wait(view: &CaiView) -> PyResult<()> {
    let (request, policy) = (Request::Host, SyncPolicy::Event);
    if view.needs_order(request, policy) {
        view.order(request, policy)?;
    }
    Ok(())
}

/// Builds the error for memory that the host cannot read; `is_taken`: what was asked for takes these elements on the CPU.
#[cold]
pub(crate) fn unreadable(array: &Descriptor, is_taken: bool) -> Violation {
    let device = array.device();
    let pair = device.to_dlpack();
    let found = format_args!("memory on {pair:?}");
    let copied = (is_taken && Transfer::can_copy_to_host(array)).then_some(TO_THE_CPU);
    let passed = "pass this view to a library that reads memory of this device";
    let hint = match copied {
        Some(copied) => format!("{copied} copies it to the CPU; or {passed}"),
        None => passed.to_owned(),
    };
    Violation::new(Rule::ArrayUnreadable, Field::Object, found).with_hint(hint)
}

/// Returns what to pickle instead of a view: a NumPy array of its elements, if NumPy has them.
#[cold]
pub(crate) fn as_numpy(array: &Descriptor) -> Option<String> {
    let is_packed = array.dtype().itemsize().is_none();
    let has_numpy = match array.cai_only() {
        Some(only) => only.typestr().has_numpy(),
        None => {
            array.dtype().lanes() == 1
                && (!is_packed || array.flags().contains(Flags::SUBBYTE_PADDED))
        }
    };
    match array.device().is_host_readable() {
        _ if !has_numpy => None,
        // The host cannot wait for a stream of ROCm; by DLPack it is the consumer's to wait.
        true if array.device().device_type == DeviceType::ROCM_HOST => {
            let by_dlpack = array.cai_only().is_none() && array.dtype().typestr().is_ok();
            by_dlpack.then(|| "numpy.from_dlpack(view)".to_owned())
        }
        true => Some("numpy.asarray(view)".to_owned()),
        false if Transfer::can_copy_to_host(array) => Some(format!("numpy.asarray({TO_THE_CPU})")),
        false => None,
    }
}

/// Makes NumPy's array interface, version 3.
///
/// # Errors
/// `AttributeError` for memory that the host cannot read, and for a type without a typestr.
pub(crate) fn array_interface<'py>(
    py: Python<'py>,
    this: &PyCaiView,
) -> PyResult<Bound<'py, PyDict>> {
    let (view, descriptor) = (this.view(), this.view().descriptor());
    if !descriptor.device().is_host_readable() {
        return Err(as_attribute_error(&unreadable(
            descriptor,
            descriptor.items().is_ok(),
        )));
    }
    // NumPy reads padding as fields, `f1` and so on, though the array interface gives such bytes no name.
    if let Some(only) = descriptor.cai_only()
        && only.descr().has_padding()
    {
        let (rule, field) = (Rule::DescrUnsaid, Field::ArrayInterface("descr"));
        let violation = Violation::new(rule, field, "a record with padding")
            .with_hint("numpy.asarray(view) takes it by __array__");
        return Err(as_attribute_error(&violation));
    }
    let items = descriptor
        .items()
        .map_err(|violation| as_attribute_error(&violation))?;
    // NumPy reads this dict before it calls `__array__`, and refuses a typestr that it lacks without a rule.
    if let Items::CaiOnly(only) = &items
        && !only.typestr().has_numpy()
    {
        let (field, typestr) = (Field::ArrayInterface("typestr"), only.typestr());
        let violation = Violation::new(Rule::NumpyDtype, field, format_args!("'{typestr}'"));
        return Err(as_attribute_error(&violation));
    }
    this.check_scope()?;
    this.follow_by_name(Request::Host)?;
    wait(view)?;
    // Another thread may have ended its block meanwhile.
    this.check_alive()?;
    let names = names(py);
    let dict = new_dict(py)?;
    dict.set_item(
        &names.shape,
        new_ints(py, descriptor.shape().iter().copied())?,
    )?;
    match items {
        Items::Typed(typestr) => dict.set_item(&names.typestr, new_str(py, typestr)?)?,
        Items::CaiOnly(only) => {
            dict.set_item(&names.typestr, new_str(py, &only.typestr().to_string())?)?;
            if let Some(descr) = array_dict::descr(py, only.descr())? {
                dict.set_item(&names.descr, descr)?;
            }
        }
    }
    let is_read_only = descriptor.access() != Access::Writable;
    // Of address 0 NumPy allocates memory, which it lets everyone write.
    let start = start(descriptor).addr() as u64;
    dict.set_item(&names.data, new_address_and_flag(py, start, is_read_only)?)?;
    dict.set_item(&names.strides, strides_of_dict(py, descriptor)?)?;
    dict.set_item(&names.version, new_int(py, 3)?)?;
    Ok(dict)
}

/// Returns the strides of the array interface: `None` for those of C order, each one included.
fn strides_of_dict<'py>(
    py: Python<'py>,
    descriptor: &Descriptor,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some(itemsize) = descriptor.itemsize() else {
        return Ok(None);
    };
    let layout = descriptor.layout();
    let is_usual = layout.is_c_contiguous()
        && in_c_order(layout.shape(), itemsize)
            .iter()
            .copied()
            .eq(layout.byte_strides(itemsize));
    let strides = (!is_usual).then(|| new_ints(py, layout.byte_strides(itemsize)));
    strides.transpose()
}

/// Fills a `Py_buffer`, which owns a reference to the view.
///
/// # Errors
/// `TypeError` if the array has no buffer (device memory, a type without a format); `BufferError` if it does not fit
/// the request (writable, contiguous).
///
/// # Safety
/// `buffer` is valid for writes.
pub(crate) unsafe fn get_buffer(
    object: &Bound<'_, PyCaiView>,
    buffer: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let this = object.get();
    // SAFETY: valid for writes (this function's contract). CPython requires NULL after a failure (`bf_getbuffer`).
    unsafe { (*buffer).obj = std::ptr::null_mut() };
    this.check_alive()?;
    let descriptor = this.view().descriptor();
    if !descriptor.device().is_host_readable() {
        let is_taken = descriptor.dtype().format().is_some();
        return Err(unreadable(descriptor, is_taken).into());
    }
    let (Some(format), Some(itemsize)) =
        (descriptor.dtype().format(), descriptor.dtype().itemsize())
    else {
        return Err(without_format(descriptor).into());
    };
    check_request(descriptor, flags)?;
    this.prepare_by_name(Request::Host)?;
    wait(this.view())?;
    // Another thread may have ended its block meanwhile.
    this.check_alive()?;
    let wants = |flag| flags & flag == flag;
    // A buffer without a shape is one axis of bytes, as `memoryview` has it, and one of no axes has neither array.
    let (has_shape, ndim) = (wants(ffi::PyBUF_ND), descriptor.ndim());
    let strides = if wants(ffi::PyBUF_STRIDES) && ndim > 0 {
        Box::into_raw(strides_of(descriptor, flags)).cast()
    } else {
        std::ptr::null_mut()
    };
    let filled = ffi::Py_buffer {
        buf: start(descriptor),
        obj: object.clone().into_ptr().cast(),
        len: descriptor.nbytes() as _,
        itemsize: itemsize as _,
        readonly: c_int::from(descriptor.access() != Access::Writable),
        ndim: if has_shape { ndim as c_int } else { 1 },
        format: if wants(ffi::PyBUF_FORMAT) {
            format.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        },
        shape: if has_shape && ndim > 0 {
            descriptor.shape().as_ptr().cast_mut().cast()
        } else {
            std::ptr::null_mut()
        },
        strides,
        suboffsets: std::ptr::null_mut(),
        // The consumer may change the other fields.
        internal: strides.cast(),
    };
    // SAFETY: valid for writes (this function's contract).
    unsafe { buffer.write(filled) };
    Ok(())
}

/// Builds the error for elements that no format describes, or whose address or strides a typed buffer cannot have.
#[cold]
fn without_format(descriptor: &Descriptor) -> Violation {
    let kind = descriptor.type_name();
    let found = format_args!("an array of {kind}");
    let violation = Violation::new(Rule::BufferItems, Field::Object, found);
    let Some(only) = descriptor.cai_only() else {
        return match descriptor.raw_dtype() {
            Some(raw) => {
                let presents = format!("cai_dlpack.view(view, dtype='{raw}') presents the bits");
                violation.with_hint(presents)
            }
            None => with_bytes(violation, descriptor.borrowed()),
        };
    };
    match only.descr() {
        Descr::Fields(_) => violation
            .with_hint("numpy.asarray(view) takes it; view.field('name') views a field of records"),
        _ if only.typestr().has_numpy() => violation.with_hint("numpy.asarray(view) takes it"),
        _ => match only.typestr().meant() {
            None => violation,
            Some(dtype) => violation.with_hint(format!(
                "cai_dlpack.view(view, dtype='{dtype}') presents it, if that is its type"
            )),
        },
    }
}

/// Adds what presents the bytes of elements smaller than a byte, if `dtype=` and `shape=` do.
pub(crate) fn with_bytes(refused: Violation, source: DescriptorRef<'_>) -> Violation {
    match (source.dtype.is_sub_byte(), source.is_padded()) {
        (true, true) if source.dtype.lanes() == 1 => {
            refused.with_hint("cai_dlpack.view(view, dtype='uint8') presents the bytes")
        }
        (true, false) if source.is_c_contiguous() => refused.with_hint(PACKED),
        _ => refused,
    }
}

/// Presents packed elements.
pub(crate) const PACKED: &str =
    "cai_dlpack.view(view, dtype='uint8', shape=(view.nbytes,)) presents the bytes";

/// Returns the address of the first element; of an array without elements some other address, since consumers refuse
/// NULL (pyarrow aborts the process).
fn start(descriptor: &Descriptor) -> *mut c_void {
    static NOTHING: u128 = 0;
    match descriptor.data() {
        0 => (&raw const NOTHING).cast_mut().cast(),
        data => std::ptr::with_exposed_provenance_mut(data as usize),
    }
}

/// Returns the strides in bytes: those of the array, for a consumer that takes any. For one that asks for an order they
/// are the ones of this order, as NumPy has them: consumers compare them also for an axis of extent 1, and without
/// elements, where an array may have any. In both orders at once it is C order, unless F order is asked for.
fn strides_of(descriptor: &Descriptor, flags: c_int) -> Box<[ffi::Py_ssize_t]> {
    const ORDERS: c_int =
        (ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_F_CONTIGUOUS | ffi::PyBUF_ANY_CONTIGUOUS)
            & !ffi::PyBUF_STRIDES;
    let (layout, shape) = (descriptor.layout(), descriptor.shape());
    let itemsize = descriptor.dtype().itemsize().unwrap_or(1);
    if flags & ORDERS == 0 {
        let own = layout.byte_strides(itemsize);
        return own.map(|stride| stride as _).collect();
    }
    let wants_f_order = flags & ffi::PyBUF_F_CONTIGUOUS == ffi::PyBUF_F_CONTIGUOUS;
    // `check_request` has refused an array in neither order.
    let adjacent = match layout.is_c_contiguous() && !(wants_f_order && layout.is_f_contiguous()) {
        true => in_c_order(shape, itemsize),
        false => adjacent(shape.iter(), itemsize).collect(),
    };
    adjacent.iter().map(|stride| *stride as _).collect()
}

fn in_c_order(shape: &[i64], itemsize: u32) -> Box<[i64]> {
    let mut strides: Box<[_]> = adjacent(shape.iter().rev(), itemsize).collect();
    strides.reverse();
    strides
}

/// Returns the strides in bytes of adjacent elements, the first axis fastest.
fn adjacent<'a>(shape: impl Iterator<Item = &'a i64>, itemsize: u32) -> impl Iterator<Item = i64> {
    // A product of extents may exceed 64 bits in an array without elements.
    shape.scan(i64::from(itemsize), |stride, extent| {
        let this = *stride;
        *stride = this.saturating_mul(*extent);
        Some(this)
    })
}

/// Refuses a writable buffer of data that is not known to be writable, a layout other than the array's, and a format
/// without a shape.
fn check_request(descriptor: &Descriptor, flags: c_int) -> Result<(), Violation> {
    let wants = |flag| flags & flag == flag;
    if wants(ffi::PyBUF_WRITABLE) && descriptor.access() != Access::Writable {
        let found = "a writable buffer";
        return Err(Violation::new(Rule::ReadOnlyWriter, Field::Object, found));
    }
    let layout = descriptor.layout();
    let (c, f) = (layout.is_c_contiguous(), layout.is_f_contiguous());
    let fits = (c || (wants(ffi::PyBUF_STRIDES) && !wants(ffi::PyBUF_C_CONTIGUOUS)))
        && (f || !wants(ffi::PyBUF_F_CONTIGUOUS))
        && (c || f || !wants(ffi::PyBUF_ANY_CONTIGUOUS));
    if !fits {
        let found = "a contiguous buffer";
        return Err(Violation::new(Rule::BufferLayout, Field::Object, found));
    }
    if wants(ffi::PyBUF_FORMAT) && !wants(ffi::PyBUF_ND) {
        let found = "PyBUF_FORMAT";
        return Err(Violation::new(Rule::BufferFormat, Field::Object, found));
    }
    Ok(())
}

/// Frees what [`get_buffer`] allocated.
///
/// # Safety
/// `buffer` was filled by [`get_buffer`] for a view of `ndim` axes, and is released once.
pub(crate) unsafe fn release_buffer(ndim: usize, buffer: *mut ffi::Py_buffer) {
    // SAFETY: filled (this function's contract).
    let strides = unsafe { (*buffer).internal };
    if !strides.is_null() {
        let whole = std::ptr::slice_from_raw_parts_mut(strides.cast::<ffi::Py_ssize_t>(), ndim);
        // SAFETY: leaked by `get_buffer` as a box of this length, and freed once (this function's contract).
        drop(unsafe { Box::from_raw(whole) });
    }
}
