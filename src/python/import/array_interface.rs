//! Imports by `__array_interface__` the NumPy arrays that NumPy's own `__dlpack__` refuses.
//!
//! | array | view |
//! |---|---|
//! | bfloat16, float8, complex32 of ml_dtypes | of that type: its `typestr` leaves it open, its `dtype` names it |
//! | int4, float4, float6, ... of ml_dtypes | of that type, padded: an element takes a byte |
//! | records, text, dates and times, the other byte order, long double, ... | of these items, which leave by `__array_interface__` again; `dtype="int64"` presents ticks |
//! | objects, fields of objects, and what a `descr` does not say ([`own_descr`]) | refused |
//!
//! Nothing is asked twice on the usual way: NumPy is first asked by `__dlpack__`.

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::protocol::axes::{Axes, Source};
use crate::protocol::device::{Access, Device};
use crate::protocol::dtype::{DType, Kind, TypeStr};
use crate::protocol::interface::{CaiInterface, Descr, Parts, Version};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::python::call::options::Options;
use crate::python::class::beside::Beside;
use crate::python::cpython::errors::{caused_by, raised};
use crate::python::cpython::int::repr;
use crate::python::cpython::names::names;
use crate::python::cpython::release;
use crate::python::cpython::tracing;
use crate::python::import::cai::AllowCaiOnly;
use crate::python::import::traits::Traits;
use crate::python::import::{cai, dtype_hint, known_types, notes, own_descr};
use crate::view::{CaiView, Owner};

/// Imports a NumPy array whose `__dlpack__` has raised `refused`.
///
/// # Errors
/// `refused` for any other object and for another exception than `BufferError`; the rules of the interface.
#[cold]
pub(crate) fn import<'py>(
    object: &Bound<'py, PyAny>,
    refused: PyErr,
    options: &Options<'_, 'py>,
    allow: AllowCaiOnly,
) -> PyResult<(CaiView, Beside)> {
    let is_array = known_types::facts_of(object)?
        .traits
        .intersects(Traits::NDARRAY);
    if !is_array || !refused.is_instance_of::<PyBufferError>(object.py()) {
        return Err(refused);
    }
    let dict = object.getattr("__array_interface__")?;
    let names = names(object.py());
    let text: String = dict.get_item(&names.typestr)?.extract()?;
    let Some((typestr, named)) = element(object, &text)? else {
        let dtype = repr(&object.getattr(&names.dtype)?);
        let violation = Violation::new(Rule::ProducerDtype, Field::ObjectDtype, dtype);
        let said = format!(
            "neither DLPack nor a typestr has it; NumPy raised {}",
            raised(&refused)
        );
        return Err(caused_by(violation.with_hint(said), refused));
    };
    let has_fields = typestr.kind() == Kind::Void && named.is_none() && options.keeps_elements();
    let descr = match has_fields {
        true => own_descr::of_dtype(object, &object.getattr(&names.dtype)?, typestr)?,
        false => Descr::None,
    };
    release::drop_now(refused);
    notes::note_array_interface(object);
    tracing::mark(|marks| marks.route = Some("array_interface"));
    let shape: Vec<i64> = dict.get_item(&names.shape)?.extract()?;
    // The dict has None for every contiguous array, whatever the strides of its axes of extent 1 are.
    let strides: Vec<i64> = object.getattr(&names.strides)?.extract()?;
    let (data, read_only) = dict.get_item(&names.data)?.extract()?;
    let interface = Axes::from_slices(Source::Cai, &shape, Some(&strides)).and_then(|axes| {
        CaiInterface::new(Parts {
            version: Version::V3,
            typestr,
            descr,
            axes,
            data,
            read_only,
            stream: Stream::None,
        })
    });
    let quoted = |violation| in_array(violation, &text);
    let described = interface.and_then(|interface| match named {
        Some(dtype) => options.described(interface.into_named(dtype, Device::HOST)?),
        None if allow == AllowCaiOnly::Yes && options.keeps_elements() => {
            options.described(interface.describe_with(Device::HOST, quoted)?)
        }
        None => {
            let described = cai::describe(interface, options, Device::HOST)?;
            Ok(match options.read_only {
                None => described,
                Some(read_only) => described.with_access(Access::of_flag(read_only)),
            })
        }
    });
    let descriptor = described.map_err(quoted)?;
    let owner = Owner::from_raw(release::own(object.clone())?);
    let producer = options.producer.or(Some(Stream::None));
    // SAFETY: NumPy's interface describes memory of the array, which the owner holds; `Stream::None` is always alive.
    let view = unsafe { CaiView::of(descriptor, Stream::None, producer, owner) };
    Ok((view, Beside::default()))
}

/// Returns the item's typestr, and the type that the array's own dtype names where the typestr leaves it open. `None`
/// for a text that is no typestr (`StringDType()`), unless the dtype names a type (complex32 has `<W4`). That of objects
/// has no size.
fn element(object: &Bound<'_, PyAny>, text: &str) -> PyResult<Option<(TypeStr, Option<DType>)>> {
    let whole = if text == "|O" { "|O8" } else { text };
    if let Ok(typestr) = TypeStr::parse_any_order(whole) {
        return Ok(Some((typestr, dtype_hint::of(object, typestr)?)));
    }
    let itemsize: u32 = object.getattr("itemsize")?.extract()?;
    let named = dtype_hint::special(object, itemsize)?;
    Ok(named.map(|dtype| (TypeStr::void(itemsize), Some(dtype))))
}

/// Names the key of `__array_interface__`, and quotes the typestr as NumPy writes it (`<M8[ns]`).
fn in_array(violation: Violation, typestr: &str) -> Violation {
    let violation = violation.in_interface_of(true);
    match violation.field() {
        Field::ArrayInterface("typestr") => violation.with_found(format!("'{typestr}'")),
        _ => violation,
    }
}
