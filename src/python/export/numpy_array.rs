//! `__array__`: a NumPy array of memory that the host can read, also of types that NumPy does not take by DLPack.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Flags;
use crate::protocol::dtype::DType;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::options::Options;
use crate::python::class::dtype::PyDType;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors;
use crate::python::cpython::int::repr;
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_dict, new_str};
use crate::python::cpython::recursion::Level;
use crate::python::export::buffer;
use crate::python::import::route;

/// Reads `dtype` and `copy`, which NumPy passes by position or by name.
///
/// # Errors
/// `argument-count`, `argument-unexpected`.
pub(crate) fn arguments<'py>(
    given: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<[Option<Bound<'py, PyAny>>; 2]> {
    const NAMES: [&str; 2] = ["dtype", "copy"];
    const HINT: &str = "__array__() takes dtype and copy, once each";
    let mut read = [None, None];
    if given.len() > read.len() {
        let count = given.len();
        let found = format_args!("{count} positional arguments");
        let violation = Violation::new(Rule::ArgumentCount, Field::Arguments, found);
        return Err(violation.with_hint(HINT).into());
    }
    for (place, value) in read.iter_mut().zip(given.iter()) {
        *place = Some(value);
    }
    for (name, value) in keywords.into_iter().flat_map(|keywords| keywords.iter()) {
        let name = name.to_string();
        let mut places = NAMES.iter().zip(&mut read);
        match places.find(|(known, place)| **known == name && place.is_none()) {
            Some((_, place)) => *place = Some(value),
            None => return Err(errors::unexpected(&name, &repr(&value), HINT)),
        }
    }
    Ok(read.map(|value| value.filter(|value| !value.is_none())))
}

/// Returns the array, converted to `dtype` if it is given; `copy` is that of `numpy.array`.
///
/// # Errors
/// `scope-ended`, `array-unreadable`, `numpy-dtype`; the exceptions of NumPy.
pub(crate) fn array<'py>(
    this: &Bound<'py, PyCaiView>,
    dtype: Option<Bound<'py, PyAny>>,
    copy: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    this.get().check_alive()?;
    let _level = Level::begin(this.py())?;
    let (py, descriptor) = (this.py(), this.get().view().descriptor());
    if !descriptor.device().is_host_readable() {
        return Err(buffer::unreadable(descriptor, bits_of(descriptor).is_ok()).into());
    }
    let numpy = py.import(new_str(py, "numpy")?)?;
    // `asarray` goes on by another way after an error. Memory of its own, which can be written, is what `from_dlpack` gives
    // an array without elements.
    let importer = match descriptor.len() {
        0 => new_str(py, "asarray")?,
        _ => new_str(py, "from_dlpack")?,
    };
    let array = match bits_of(descriptor)? {
        None if descriptor.cai_only().is_some() => {
            let dtype = PyDType::of(descriptor).numpy(py)?;
            let items = match descriptor.without_fields() {
                None => this.clone(),
                Some(bytes) => {
                    this.get().prepare()?;
                    let mut view = this.get().view().clone();
                    // SAFETY: the same bytes.
                    unsafe { view.set_descriptor(bytes) };
                    PyCaiView::derive(this, view)?.into_object(py)?
                }
            };
            buffer::array_interface(py, items.get())?;
            // NumPy reads the interface, which has just been made, before it calls `__array__` again.
            let array = numpy.call_method1(new_str(py, "asarray")?, (items,))?;
            array.call_method1(new_str(py, "view")?, (dtype,))?
        }
        None => numpy.call_method1(importer, (this,))?,
        Some(bits) => {
            let dtype = PyDType::of(descriptor).numpy(py)?;
            let options = Options {
                dtype: Some(bits),
                ..Options::default()
            };
            this.get().prepare()?;
            let bits = route::own(this.get().view().clone(), &options)?;
            let bits = PyCaiView::derive(this, bits)?;
            let bits = numpy.call_method1(importer, (bits.into_object(py)?,))?;
            bits.call_method1(new_str(py, "view")?, (dtype,))?
        }
    };
    let arguments = new_dict(py)?;
    arguments.set_item(&names(py).dtype, dtype)?;
    // `copy=False` forbids a copy since NumPy 2, and does not before; `asarray` makes one if it is needed.
    let function = match copy {
        Some(copy) => {
            arguments.set_item(&names(py).copy, copy)?;
            "array"
        }
        None => "asarray",
    };
    let made = numpy.call_method(new_str(py, function)?, (array,), Some(&arguments))?;
    // The code of the type may have ended the view's block.
    this.get().check_alive()?;
    Ok(made)
}

/// Returns the unsigned int that NumPy takes by DLPack in place of a type that it does not; `None` if it takes the
/// type, or refuses it for another reason.
fn bits_of(descriptor: &Descriptor) -> Result<Option<DType>, Violation> {
    let dtype = descriptor.dtype();
    if dtype.is_cai_only() || dtype.typestr().is_ok() {
        return Ok(None);
    }
    if dtype.lanes() != 1 {
        let found = format_args!("an array of {dtype}");
        let mut hint = "it has no types of more than one lane".to_owned();
        if let Some(raw) = descriptor.raw_dtype() {
            let presents = format!(
                "; cai_dlpack.view(view, dtype='{raw}') presents an item as one number of its size"
            );
            hint.push_str(&presents);
        }
        return Err(Violation::new(Rule::ArrayUnreadable, Field::Object, found).with_hint(hint));
    }
    Ok(Some(match dtype.itemsize() {
        Some(1) => DType::U8,
        Some(2) => DType::U16,
        Some(_) => DType::U32,
        None if descriptor.flags().contains(Flags::SUBBYTE_PADDED) => DType::U8,
        None => {
            let found = format_args!("an array of {dtype}, packed");
            let violation = Violation::new(Rule::ArrayUnreadable, Field::Object, found);
            return Err(buffer::with_bytes(violation, descriptor.borrowed()));
        }
    }))
}
