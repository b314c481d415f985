//! Masks, which DLPack has no words for: the values and the mask of an array as two.
//!
//! A mask says which values are valid: where it is not zero (or its bit is 1). Two forms are in use.
//!
//! | form | typestr | shape | answered as |
//! |---|---|---|---|
//! | bytes, one for each value | `|b1`, `|u1`, `|i1` | broadcasts to the values' | `bool`, as it is |
//! | bits, one for each value, the lowest first | `|t1` | counts bits | `uint8`, one axis of bytes |
//! | the same, as cuDF labels it | `|u1` | counts bytes: n/8 rounded up, or that padded to 64 | `uint8`, as it is |

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::protocol::descriptor::{Descriptor, Device, Flags};
use crate::protocol::dtype::{DType, Kind};
use crate::protocol::interface::Interface;
use crate::protocol::layout::{Axes, Layout, Source};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::options::{self, Options};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::thread_exit;
use crate::python::import::cai_dict::Read;
use crate::python::import::{cai, cai_dict};
use crate::view::CaiView;

/// cuDF allocates masks in multiples of this.
const PADDED_TO: i64 = 64;

/// The form of a mask.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Bits,
    Bytes,
}

/// The values and the mask of a masked array, as a pair of views.
///
/// The mask is None where the array has none. Of bytes it is a view of `bool`, of the values' shape or one
/// that broadcasts to it; of bits a view of `uint8`, whose lowest bit belongs to the first value. Where it
/// is not 0 the value is valid.
///
/// mask: "bit" or "byte" says which form it has; "auto" finds out, and refuses where both are possible.
/// ordinal: the CUDA device, known: the driver is not asked.
#[pyfunction]
#[pyo3(signature = (obj, /, *, mask="auto", ordinal=None))]
pub(crate) fn split_masked<'py>(
    obj: &Bound<'py, PyAny>,
    mask: &str,
    ordinal: Option<&Bound<'py, PyAny>>,
) -> PyResult<(PyCaiView, Option<PyCaiView>)> {
    thread_exit::stays();
    let form = match mask {
        "auto" => None,
        "bit" => Some(Form::Bits),
        "byte" => Some(Form::Bytes),
        _ => {
            let found = format!("'{mask}'");
            return Err(
                Violation::new(Rule::ArgumentValue, Field::Argument("mask"), found)
                    .with_hint("it is \"auto\", \"bit\" or \"byte\"")
                    .into(),
            );
        }
    };
    let options = Options {
        ordinal: ordinal
            .map(|value| options::ordinal(value.as_borrowed()))
            .transpose()?,
        ..Options::default()
    };
    let mut read = read(obj, &options)?;
    let Some(mask) = read.mask.take() else {
        return Ok((PyCaiView::new(cai::view(obj, read, &options)?), None));
    };
    let shape = read.interface.shape().to_vec();
    let mask = mask_view(&mask, &shape, form, &options)?;
    let values = cai::view(obj, read, &options)?;
    Ok((PyCaiView::new(values), Some(PyCaiView::new(mask))))
}

/// The dict of an object; a bare one has no owner and is refused.
fn read<'py>(object: &Bound<'py, PyAny>, options: &Options<'_, '_>) -> PyResult<Read<'py>> {
    if object.is_instance_of::<PyDict>() {
        let found = "a bare dict";
        return Err(Violation::new(Rule::OwnerMissing, Field::Object, found).into());
    }
    match cai::attribute(object)? {
        Some(dict) => cai::read(object, &dict, options),
        None => Err(cai::missing(object)),
    }
}

fn mask_view<'py>(
    mask: &Bound<'py, PyAny>,
    shape: &[i64],
    asked: Option<Form>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let read = match cai::attribute(mask)? {
        Some(dict) => cai_dict::read(&dict, options.strict)?,
        None => {
            let name = type_name(mask);
            let found = format_args!("an object of type {name}");
            return Err(Violation::new(Rule::MaskType, Field::CaiMask, found).into());
        }
    };
    let form = find_form(&read.interface, shape, asked)?;
    let is_typed_bits = read.interface.is_bits();
    if is_typed_bits {
        return bits_as_bytes(mask, read, options);
    }
    let dtype = match form {
        Form::Bits => "uint8",
        Form::Bytes => "bool",
    };
    let kind = read.interface.typestr().kind();
    let view = cai::view(mask, read, &options_of(options))?;
    if kind == Kind::Bool && form == Form::Bytes {
        return Ok(view);
    }
    relabelled(view, dtype)
}

/// The options that hold for the mask as well.
fn options_of<'a, 'py>(options: &Options<'a, 'py>) -> Options<'a, 'py> {
    Options {
        ordinal: options.ordinal,
        strict: options.strict,
        ..Options::default()
    }
}

/// The same bytes by another name: each of them is a byte of the mask, whatever its label.
fn relabelled(view: CaiView, name: &str) -> PyResult<CaiView> {
    let Some(dtype) = DType::from_name(name) else {
        return Ok(view);
    };
    // SAFETY: the same bytes; one-byte types have neither order nor alignment.
    let view = unsafe {
        view.try_map(|old| {
            let layout = old.layout().clone();
            Descriptor::from_layout(old.data(), old.device(), dtype, old.flags(), layout)
        })
    }?;
    Ok(view)
}

/// A mask of the bit type: its shape counts bits, and the view's counts bytes.
fn bits_as_bytes<'py>(
    mask: &Bound<'py, PyAny>,
    read: Read<'py>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let nbytes = read.interface.nbytes();
    let mut axes = Axes::new(Source::Cai);
    axes.push_extent(i64::try_from(nbytes).unwrap_or(i64::MAX))?;
    let layout = Layout::from_elem_axes(axes, 1)?;
    let data = read.interface.data();
    let device = Device::cuda(options.ordinal.unwrap_or(0));
    let Some(dtype) = DType::from_name("uint8") else {
        return Err(wrong_dtype(&read.interface).into());
    };
    let flags = Flags::NONE.with(Flags::READ_ONLY, read.interface.read_only());
    let descriptor = Descriptor::from_layout(data, device, dtype, flags, layout)?;
    let (stream, known) = (read.interface.stream(), read.knows_stream());
    cai::finish(mask, descriptor, stream, known, &options_of(options))
}

/// # Errors
/// `mask-dtype`, `mask-shape`, and `mask-ambiguous` where nobody said and both forms fit.
fn find_form(mask: &Interface, shape: &[i64], asked: Option<Form>) -> Result<Form, Violation> {
    let (bits, bytes) = match mask.typestr().kind() {
        Kind::Bit => (fits_bits(mask, shape, 1), false),
        Kind::Bool => (false, broadcasts(mask.shape(), shape)),
        Kind::UInt | Kind::Int if mask.typestr().itemsize() == 1 => {
            (fits_bits(mask, shape, 8), broadcasts(mask.shape(), shape))
        }
        _ => return Err(wrong_dtype(mask)),
    };
    match (asked, bits, bytes) {
        (Some(Form::Bits), true, _) | (None, true, false) => Ok(Form::Bits),
        (Some(Form::Bytes), _, true) | (None, false, true) => Ok(Form::Bytes),
        (None, true, true) => {
            let found = format_args!(
                "{} of shape {:?} for values of shape {shape:?}",
                mask.typestr_str(),
                mask.shape()
            );
            Err(Violation::new(Rule::MaskAmbiguous, Field::CaiMask, found)
                .with_hint("say which it is by mask=\"bit\" or mask=\"byte\""))
        }
        _ => {
            let found = format_args!(
                "{} of shape {:?} for values of shape {shape:?}",
                mask.typestr_str(),
                mask.shape()
            );
            Err(Violation::new(Rule::MaskShape, Field::CaiMask, found))
        }
    }
}

#[cold]
fn wrong_dtype(mask: &Interface) -> Violation {
    Violation::new(Rule::MaskDtype, Field::CaiMask, mask.typestr_str())
}

/// Whether a mask of one axis, of `bits_each` per item, has a bit for each value: exactly enough items,
/// or as many as cuDF allocates.
fn fits_bits(mask: &Interface, shape: &[i64], bits_each: i64) -> bool {
    let [items] = mask.shape() else {
        return false;
    };
    let values = shape
        .iter()
        .fold(1_i64, |all, extent| all.saturating_mul(*extent));
    let exact = values.saturating_add(bits_each - 1) / bits_each;
    if !mask.layout().is_c_contiguous() {
        return false;
    }
    if bits_each == 1 {
        return *items >= values;
    }
    let padded = exact.saturating_add(PADDED_TO - 1) / PADDED_TO * PADDED_TO;
    *items == exact || *items == padded
}

/// NumPy's rule, with the values' shape as the result.
fn broadcasts(mask: &[i64], shape: &[i64]) -> bool {
    mask.len() <= shape.len()
        && shape
            .iter()
            .rev()
            .zip(mask.iter().rev())
            .all(|(array, mask)| array == mask || *mask == 1)
}
