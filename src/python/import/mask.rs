//! `split_masked`: the values and the mask of an array as two views ([`MaskForm`] has the forms of masks).

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::protocol::device::Device;
use crate::protocol::mask::MaskForm;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::options::{self, Options};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::thread_exit;
use crate::python::import::cai_dict::Read;
use crate::python::import::{cai, cai_dict};
use crate::view::CaiView;

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
        "bit" => Some(MaskForm::Bits),
        "byte" => Some(MaskForm::Bytes),
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
    asked: Option<MaskForm>,
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
    let form = MaskForm::of(&read.interface, shape, asked)?;
    if !read.interface.is_bits() {
        cai::check(mask, &read)?;
    }
    let device = Device::cuda(options.ordinal.unwrap_or(0));
    let descriptor = form.describe(&read.interface, device)?;
    let (stream, known) = (read.interface.stream(), read.knows_stream());
    cai::finish(mask, descriptor, stream, known, &options_of(options))
}

/// The options that hold for the mask as well.
fn options_of<'a, 'py>(options: &Options<'a, 'py>) -> Options<'a, 'py> {
    Options {
        ordinal: options.ordinal,
        strict: options.strict,
        ..Options::default()
    }
}
