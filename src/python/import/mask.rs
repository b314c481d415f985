//! `split_masked`: views the values and the mask of an array ([`MaskForm`] lists the forms of masks).

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::protocol::device::Device;
use crate::protocol::mask::MaskForm;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::choice::choice;
use crate::python::call::options::{self, Options};
use crate::python::capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors;
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::new::new_tuple;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::tracing::Tracer;
use crate::python::import::cai::AllowCaiOnly;
use crate::python::import::of_view::OfView;
use crate::python::import::traits::Traits;
use crate::python::import::{
    cai, cai_dict, fields, known_types, masked_array, object, route, state, undeclared,
};
use crate::python::trace::trace;

signature! {
    /// Returns the values and the mask of a masked array as two views. Copies nothing.
    ///
    /// Returns
    /// -------
    /// tuple of CaiView and (CaiView or None)
    ///     The values, and the mask; None if the array has none. A mask of bytes is a view of `bool`, of the values'
    ///     shape or one that broadcasts to it; a mask of bits a view of `uint8`, whose lowest bit belongs to the
    ///     first value. A value is valid if its mask is not 0. NumPy's masks state the opposite: of a masked array of
    ///     NumPy the mask is a read-only copy, inverted.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError, BufferError, DriverError
    ///     As `view` does; ValueError if both forms of mask fit and `mask` is "auto".
    SplitMasked = split_masked [
        /// An array with ``__cuda_array_interface__``, a masked array of NumPy, or any array without a mask.
        obj: "ArrayLike",
    ] (
        /// The form of the mask: "bit", "byte", or "auto" to infer it from type and shape.
        mask: "Literal['auto', 'bit', 'byte']" = "auto",
        /// The id of the CUDA device. Saves a call of the driver.
        device_id: "int | DeviceLike | None" = None,
    ) -> "tuple[CaiView, CaiView | None]"
}

impl Function for SplitMasked {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (obj, py) = (arguments.obj, arguments.obj.py());
        let _level = Level::begin(py)?;
        let form = match arguments.mask {
            Some(mask) => choice(&mask, "mask", &FORMS)?,
            None => None,
        };
        let options = Options {
            device: arguments
                .device_id
                .map(options::memory_device)
                .transpose()?,
            ..Options::default()
        };
        if capsule::is_capsule(&obj) {
            // A capsule has no mask. Its tensor is taken last, when there is memory for the rest.
            let both = [true, false].into_iter();
            let both = both.map(|is_values| match is_values {
                true => object::new_view(&obj, &options),
                false => Ok(py.None().into_bound(py)),
            });
            return Ok(new_tuple(py, both)?.into_any());
        }
        let (values, mask) = split_masked(&obj, form, &options)?;
        let values = values.into_object(py)?.into_any();
        let mask = match mask {
            Some(mask) => mask.into_object(py)?.into_any(),
            None => py.None().into_bound(py),
        };
        Ok(new_tuple(py, [Ok(values), Ok(mask)])?.into_any())
    }
}

/// The values of the argument `mask`; `None` infers the form.
const FORMS: [(&str, Option<MaskForm>); 3] = [
    ("auto", None),
    ("bit", Some(MaskForm::Bits)),
    ("byte", Some(MaskForm::Bytes)),
];

fn split_masked<'py>(
    obj: &Bound<'py, PyAny>,
    form: Option<MaskForm>,
    options: &Options<'_, 'py>,
) -> PyResult<(PyCaiView, Option<PyCaiView>)> {
    if let Ok(view) = obj.cast::<PyCaiView>() {
        // A view has no mask, and knows more than its dict.
        undeclared::check_view(view, options)?;
        view.get().check_scope()?;
        let values = route::own(view.get().view().clone(), options)?;
        view.get().follow()?;
        return Ok((PyCaiView::derive(view, values)?, None));
    }
    let facts = known_types::facts_of(obj)?;
    state::check_values(obj, facts.traits)?;
    // A type with a table is not asked for its interface, as by `view`; masks have none, nor has a view of another copy.
    let is_asked = facts.table.is_none() && !facts.traits.intersects(Traits::ANOTHER_COPY);
    let dict = match is_asked {
        true => interface(obj)?,
        false => None,
    };
    let Some(dict) = dict else {
        return without_interface(obj, form, options);
    };
    let mut read = cai::read(obj, &dict, options)?;
    fields::complete(obj, &mut read, options)?;
    let Some(mask) = read.mask.take() else {
        let values = cai::view(obj, read, options, AllowCaiOnly::Yes)?;
        return Ok((PyCaiView::new(values), None));
    };
    let shape = read.interface.shape().to_vec();
    let mask = mask_view(&mask, &shape, form, options)?;
    let values = cai::view(obj, read, options, AllowCaiOnly::Yes)?;
    // The mask may be a view, whose producer may have moved: waited for when nothing is refused any more.
    mask.follow()?;
    Ok((PyCaiView::new(values), Some(mask)))
}

/// Reads `__cuda_array_interface__`; refuses a bare dict, which has no owner.
fn interface<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if object.is_instance_of::<PyDict>() {
        let dict = repr(object);
        let found = format_args!("the dict {dict}");
        return Err(Violation::new(Rule::OwnerMissing, Field::Object, found)
            .with_hint("pass the object that has the dict as __cuda_array_interface__")
            .into());
    }
    cai::attribute(object)
}

/// Splits a masked array of NumPy; any other array has no mask.
fn without_interface<'py>(
    object: &Bound<'py, PyAny>,
    form: Option<MaskForm>,
    options: &Options<'_, 'py>,
) -> PyResult<(PyCaiView, Option<PyCaiView>)> {
    let is_masked = known_types::facts_of(object)?
        .traits
        .intersects(Traits::MASKED);
    if !is_masked || masked_array::mask(object)?.is_none() {
        return Ok((object::value(object, options)?, None));
    }
    if form == Some(MaskForm::Bits) {
        return Err(
            Violation::new(Rule::MaskType, Field::Argument("mask"), "'bit'")
                .with_hint("the masks of NumPy are of bytes")
                .into(),
        );
    }
    let valid = masked_array::valid(object)?;
    let values = object::value(&object.getattr("data")?, options)?;
    let copied = Options {
        read_only: Some(true),
        ..options_of(options)
    };
    let mask = route::import(&valid, &copied)?;
    Ok((values, Some(PyCaiView::new(mask))))
}

/// Views the mask. Nothing waits for a mask that is a view; it keeps what that says of its order, and its consume block.
fn mask_view<'py>(
    mask: &Bound<'py, PyAny>,
    shape: &[i64],
    form: Option<MaskForm>,
    options: &Options<'_, 'py>,
) -> PyResult<PyCaiView> {
    let options = &options_of(options);
    let traits = known_types::facts_of(mask)?.unordered().traits;
    let said = OfView::read(mask, traits, options)?;
    let dict = match said.is_unordered {
        true => cai::unordered(mask)?,
        false => cai::attribute(mask)?,
    };
    let read = match dict {
        Some(dict) => cai_dict::read(&dict, options.is_strict(mask.py())?)?,
        None => {
            let name = type_name(mask);
            let found = format_args!("an object of type {name}");
            let violation = Violation::new(Rule::MaskType, Field::CaiMask, found);
            return Err(errors::absent(violation, mask, "__cuda_array_interface__"));
        }
    };
    let typestr = read.typestr.clone();
    let quoted = |violation: Violation| match violation.rule() {
        Rule::MaskDtype => violation.with_found(repr(&typestr)),
        _ => violation,
    };
    let form = MaskForm::of(&read.interface, shape, form).map_err(quoted)?;
    if !read.interface.is_bits() {
        cai::check(mask, &read)?;
    }
    let device = options.device.unwrap_or(Device::cuda(0));
    let descriptor = form.describe(&read.interface, device)?;
    let (stream, is_stream_known) = (read.interface.stream(), read.is_stream_known());
    let mut view = cai::finish(
        mask,
        descriptor,
        read.address,
        stream,
        is_stream_known,
        options,
    )?;
    said.complete(&mut view, traits, options)?;
    match mask.cast::<PyCaiView>() {
        Ok(parent) => {
            parent.get().check_scope()?;
            PyCaiView::derive(parent, view)
        }
        Err(_) => Ok(PyCaiView::new(view)),
    }
}

/// Returns the options that apply to the mask as well.
fn options_of<'a, 'py>(options: &Options<'a, 'py>) -> Options<'a, 'py> {
    Options {
        device: options.device,
        strict: options.strict,
        ..Options::default()
    }
}
