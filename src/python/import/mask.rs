//! `split_masked`: views the values and the mask of an array ([`MaskForm`] lists the forms of masks).

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::protocol::device::Device;
use crate::protocol::mask::MaskForm;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::options::{self, Options, text};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::int::type_name;
use crate::python::cpython::recursion::Level;
use crate::python::import::cai_dict::ParsedDict;
use crate::python::import::{cai, cai_dict};
use crate::view::CaiView;

signature! {
    /// Returns the values and the mask of a masked array as two views. Copies nothing.
    ///
    /// Returns
    /// -------
    /// tuple of CaiView and (CaiView or None)
    ///     The values, and the mask; None if the array has none. A mask of bytes is a view of `bool`, of the values'
    ///     shape or one that broadcasts to it; a mask of bits a view of `uint8`, whose lowest bit belongs to the
    ///     first value. A value is valid if its mask is not 0.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError, BufferError, DriverError
    ///     As `view` does; ValueError if both forms of mask fit and `mask` is "auto".
    SplitMasked = split_masked [
        /// An array with ``__cuda_array_interface__``.
        obj: "object",
    ] (
        /// The form of the mask: "bit", "byte", or "auto" to infer it from type and shape.
        mask: "Literal['auto', 'bit', 'byte']" = "auto",
        /// The id of the CUDA device. Saves a call of the driver.
        device_id: "int | None" = None,
    ) -> "tuple[CaiView, CaiView | None]"
}

impl Function for SplitMasked {
    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (obj, py) = (arguments.obj, arguments.obj.py());
        let _level = Level::begin(py)?;
        let mask = arguments.mask.map(|mask| text(&mask, "mask")).transpose()?;
        let options = Options {
            device_id: arguments.device_id.map(options::device_id).transpose()?,
            ..Options::default()
        };
        let (values, mask) = split_masked(&obj, mask.as_deref().unwrap_or("auto"), &options)?;
        let values = values.into_object(py)?;
        let mask = mask.map(|mask| mask.into_object(py)).transpose()?;
        Ok((values, mask).into_pyobject(py)?.into_any())
    }
}

fn split_masked<'py>(
    obj: &Bound<'py, PyAny>,
    mask: &str,
    options: &Options<'_, 'py>,
) -> PyResult<(PyCaiView, Option<PyCaiView>)> {
    let form = match mask {
        "auto" => None,
        "bit" => Some(MaskForm::Bits),
        "byte" => Some(MaskForm::Bytes),
        _ => {
            let found = format!("'{mask}'");
            return Err(
                Violation::new(Rule::ArgumentValue, Field::Argument("mask"), found)
                    .with_hint("must be \"auto\", \"bit\" or \"byte\"")
                    .into(),
            );
        }
    };
    let mut read = read(obj, options)?;
    let Some(mask) = read.mask.take() else {
        return Ok((PyCaiView::new(cai::view(obj, read, options)?), None));
    };
    let shape = read.interface.shape().to_vec();
    let mask = mask_view(&mask, &shape, form, options)?;
    let values = cai::view(obj, read, options)?;
    Ok((PyCaiView::new(values), Some(PyCaiView::new(mask))))
}

/// Reads the dict of an object; refuses a bare dict, which has no owner.
fn read<'py>(object: &Bound<'py, PyAny>, options: &Options<'_, '_>) -> PyResult<ParsedDict<'py>> {
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
    form: Option<MaskForm>,
    options: &Options<'_, 'py>,
) -> PyResult<CaiView> {
    let read = match cai::attribute(mask)? {
        Some(dict) => cai_dict::read(&dict, options.is_strict(mask.py())?)?,
        None => {
            let name = type_name(mask);
            let found = format_args!("an object of type {name}");
            return Err(Violation::new(Rule::MaskType, Field::CaiMask, found).into());
        }
    };
    let form = MaskForm::of(&read.interface, shape, form)?;
    if !read.interface.is_bits() {
        cai::check(mask, &read)?;
    }
    let device = Device::cuda(options.device_id.unwrap_or(0));
    let descriptor = form.describe(&read.interface, device)?;
    let (stream, is_stream_known) = (read.interface.stream(), read.is_stream_known());
    cai::finish(
        mask,
        descriptor,
        stream,
        is_stream_known,
        &options_of(options),
    )
}

/// Returns the options that apply to the mask as well.
fn options_of<'a, 'py>(options: &Options<'a, 'py>) -> Options<'a, 'py> {
    Options {
        device_id: options.device_id,
        strict: options.strict,
        ..Options::default()
    }
}
