//! The class `DType`: an element type that NumPy takes for a dtype, without this library importing NumPy.
//!
//! NumPy reads the attribute `__numpy_dtype__` of what it is to take for a dtype (from 2.4 on), else `dtype`: both make
//! NumPy's own dtype, when they are read. A subclass of `str` would be read by its text, which names `bfloat16` only
//! once somebody has imported `ml_dtypes`.
//!
//! | compared with | by |
//! |---|---|
//! | a spelling of a type of DLPack | the name ([`dtype::spelled`]) |
//! | anything else that NumPy takes for a dtype | NumPy's own `==`, if a program has imported NumPy |
//! | a typestr, without NumPy | the typestr |

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple, PyType};

use crate::protocol::descriptor::Descriptor;
use crate::protocol::dtype::{DType, Kind, TypeStr};
use crate::protocol::interface::{Descr, DescrField};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::dtype;
use crate::python::cpython::int::repr;
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_dict, new_ints, new_list, new_str, new_tuple, new_uint};
use crate::python::cpython::thread_exit::entries;
use crate::python::cpython::{errors, getattr, release};
use crate::python::export::array_dict;
use crate::python::import::descr;

/// An element type, which compares equal to every spelling of it.
///
/// NumPy and JAX take it for a dtype: `np.dtype(v.dtype)`, `np.empty(3, v.dtype)`. Its `str` and its hash are those of
/// its name.
///
/// Parameters
/// ----------
/// spelling : DTypeLike
///     A name ("bfloat16", "<f4"), a class (`np.float32`, `jnp.bfloat16`, `float`), or a dtype object of NumPy,
///     ml_dtypes, torch, TensorFlow, Paddle or Numba.
///
/// Raises
/// ------
/// TypeError, ValueError
///     If `spelling` names no type.
///
/// Examples
/// --------
/// >>> cd.DType("float32") == np.float32
/// True
#[pyclass(name = "DType", module = "cai_dlpack", frozen)]
pub(crate) struct PyDType(ElementType);

#[derive(PartialEq)]
enum ElementType {
    /// A type of DLPack.
    Named(DType),
    /// What only CAI and NumPy have: text, dates, the other byte order, and the fields of records.
    Items(TypeStr, Option<Descr>),
}

impl ElementType {
    /// Makes the type of items, as a dict says it.
    fn of_items(typestr: TypeStr, descr: &Descr) -> Self {
        match (descr, typestr.to_dtype()) {
            (Descr::Fields(_), _) => Self::Items(typestr, Some(descr.clone())),
            (Descr::None | Descr::Trivial, Ok(dtype)) => Self::Named(dtype),
            (Descr::None | Descr::Trivial, Err(_)) => Self::Items(typestr, None),
        }
    }
}

/// The objects of types that arrays mostly have: numbers of 8 to 64 bits, by code and size. They are immutable.
static COMMON: [OnceBox<Py<PyDType>>; 28] = [const { OnceBox::new() }; 28];

/// Returns the place of a common type.
fn place_of(dtype: DType) -> Option<&'static OnceBox<Py<PyDType>>> {
    let size = match dtype.bits() {
        8 => 0,
        16 => 1,
        32 => 2,
        64 => 3,
        _ => return None,
    };
    match dtype.lanes() {
        1 => COMMON.get(usize::from(dtype.code()) * 4 + size),
        _ => None,
    }
}

impl PyDType {
    /// Returns the type of an array's elements as an object, which a common type has one of.
    pub(crate) fn object_of<'py>(
        py: Python<'py>,
        descriptor: &Descriptor,
    ) -> PyResult<Bound<'py, Self>> {
        let make = || Bound::new(py, Self::of(descriptor));
        let place = match descriptor.cai_only() {
            None => place_of(descriptor.dtype()),
            Some(_) => None,
        };
        match place {
            None => make(),
            Some(place) => {
                let kept = place.get_or_try_init(|| make().map(|made| Box::new(made.unbind())))?;
                Ok(kept.bind(py).clone())
            }
        }
    }

    /// Makes the type of an array's elements.
    pub(crate) fn of(descriptor: &Descriptor) -> Self {
        Self(match descriptor.cai_only() {
            None => ElementType::Named(descriptor.dtype()),
            Some(only) => ElementType::of_items(only.typestr(), only.descr()),
        })
    }

    fn text(&self) -> String {
        match &self.0 {
            ElementType::Named(dtype) => dtype.to_string(),
            ElementType::Items(typestr, None) => typestr.to_string(),
            ElementType::Items(typestr, Some(_)) => {
                format!("void{}", u64::from(typestr.itemsize()).wrapping_mul(8))
            }
        }
    }

    /// Returns NumPy's dtype.
    ///
    /// # Errors
    /// `numpy-dtype`; `ImportError` without NumPy.
    pub(crate) fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.0 {
            ElementType::Named(dtype) => numpy_dtype(py, *dtype),
            ElementType::Items(typestr, Some(Descr::Fields(fields))) => {
                let numpy = py.import("numpy")?.getattr("dtype")?;
                of_fields(&numpy, fields, typestr.itemsize())
            }
            ElementType::Items(typestr, ..) if typestr.kind() == Kind::Bit => Err(Violation::new(
                Rule::NumpyDtype,
                Field::CaiTypestr,
                format_args!("'{typestr}'"),
            )
            .with_hint("NumPy has no bit fields")
            .into()),
            ElementType::Items(typestr, ..) => {
                let numpy = py.import("numpy")?.getattr("dtype")?;
                let made = numpy.call1((new_str(py, &typestr.to_string())?,));
                made.map_err(|error| lacked(py, *typestr, error))
            }
        }
    }

    /// Whether `other` spells this type; `None` if it spells none.
    fn equals(&self, other: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
        if let Ok(other) = other.cast::<Self>() {
            return Ok(Some(self.0 == other.get().0));
        }
        if let Ok(name) = other.cast::<PyString>()
            && self.text() == name.to_string_lossy()
        {
            return Ok(Some(true));
        }
        if let (ElementType::Named(dtype), Ok(other)) = (&self.0, dtype::spelled(other)?) {
            return Ok(Some(*dtype == other));
        }
        match imported_dtype(other.py())? {
            Some(numpy) => self.equals_by_numpy(&numpy, other),
            None => Ok(self.equals_typestr(other)),
        }
    }

    /// Compares by NumPy, which takes more spellings: `np.longdouble`, `"M8[s]"`, the list of a record's fields.
    fn equals_by_numpy(
        &self,
        class: &Bound<'_, PyAny>,
        other: &Bound<'_, PyAny>,
    ) -> PyResult<Option<bool>> {
        // NumPy reads None as float64. Every dtype of a type of ml_dtypes has been read by its name.
        if other.is_none()
            || matches!(&self.0, ElementType::Named(dtype) if dtype.lane().typestr().is_err())
        {
            return Ok(None);
        }
        let own = match self.numpy(other.py()) {
            Ok(own) => own,
            Err(refused) => {
                release::drop_now(refused);
                return Ok(None);
            }
        };
        let equal = class.call_method1("__eq__", (own, other))?;
        Ok(equal.cast::<PyBool>().ok().map(|equal| equal.is_true()))
    }

    /// Compares with a typestr, which NumPy takes without a byte order too.
    fn equals_typestr(&self, other: &Bound<'_, PyAny>) -> Option<bool> {
        let ElementType::Items(own, None) = &self.0 else {
            return None;
        };
        let name = other.cast::<PyString>().ok()?.to_string_lossy();
        let typestr = TypeStr::parse_any_order(&name);
        let typestr = typestr.or_else(|_| TypeStr::parse_any_order(&format!("={name}")));
        typestr.ok().map(|typestr| *own == typestr)
    }
}

/// Returns NumPy's class of dtypes, if NumPy has been imported.
fn imported_dtype(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    match getattr::imported(&new_str(py, "numpy")?)? {
        Some(numpy) => numpy.getattr_opt(&names(py).dtype),
        None => Ok(None),
    }
}

entries! {
impl PyDType {
    /// Takes any arguments, so that a wrong call is refused by rule as that of a function is.
    #[new]
    #[pyo3(signature = (*given, **keywords), text_signature = "(spelling, /)")]
    fn new(given: &Bound<'_, PyTuple>, keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Ok(Self(ElementType::Named(dtype::dtype(&sole(given, keywords)?)?)))
    }

    /// The name, as NumPy and ml_dtypes spell it: "float32", "bfloat16", "bool"; of short vectors "float32x4", of
    /// records "void96", of other items that DLPack has not the typestr.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_str(py, &self.text())
    }

    /// The size of an element in bytes; None for packed types smaller than a byte.
    #[getter]
    fn itemsize<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let itemsize = match &self.0 {
            ElementType::Named(dtype) => dtype.itemsize(),
            ElementType::Items(typestr, ..) => Some(typestr.itemsize()),
        };
        itemsize.map(|itemsize| new_uint(py, itemsize.into())).transpose()
    }

    /// NumPy's dtype. Imports NumPy, and ml_dtypes for types that NumPy has not. Of short vectors a subarray; of a
    /// packed type the one that ml_dtypes stores in a byte each.
    ///
    /// Raises
    /// ------
    /// TypeError
    ///     If NumPy has no such dtype.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numpy(py)
    }

    /// NumPy's dtype, as `dtype`: what NumPy 2.4 asks for.
    #[getter]
    fn __numpy_dtype__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numpy(py)
    }

    fn __eq__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        Ok(match self.equals(other)? {
            Some(equal) => PyBool::new(py, equal).to_owned().into_any(),
            None => py.NotImplemented().into_bound(py),
        })
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        new_str(py, &self.text())?.hash()
    }

    fn __str__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_str(py, &self.text())
    }

    fn __repr__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_str(py, &format!("DType('{}')", self.text()))
    }

    fn __format__<'py>(&self, spec: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        let py = spec.py();
        new_str(py, &self.text())?.call_method1(new_str(py, "__format__")?, (spec,))
    }

    /// A type is a value: what cannot change is its own copy.
    fn __copy__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Ok(slf)
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        Ok(slf)
    }

    /// Makes the type of items again that a dict describes: what a pickle calls.
    #[classmethod]
    fn _of_items<'py>(class: &Bound<'py, PyType>, typestr: &Bound<'py, PyAny>, descr: Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let name = typestr.str()?;
        let typestr = TypeStr::parse_any_order(&name.to_string_lossy())?;
        let descr = descr::read(Some(descr), typestr)?;
        Bound::new(class.py(), Self(ElementType::of_items(typestr, &descr)))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, class) = (slf.py(), slf.get_type().into_any());
        match &slf.get().0 {
            ElementType::Named(dtype) => {
                let arguments = new_tuple(py, [new_str(py, &dtype.to_string())])?;
                new_tuple(py, [Ok(class), Ok(arguments.into_any())])
            }
            ElementType::Items(typestr, descr) => {
                let again = class.getattr("_of_items");
                let fields = descr.as_ref().map(|descr| array_dict::descr(py, descr));
                let fields = match fields.transpose()?.flatten() {
                    Some(fields) => fields.into_any(),
                    None => py.None().into_bound(py),
                };
                let typestr = new_str(py, &typestr.to_string())?.into_any();
                let arguments = new_tuple(py, [Ok(typestr), Ok(fields)])?;
                new_tuple(py, [again, Ok(arguments.into_any())])
            }
        }
    }
}
}

/// Returns the argument of `DType`.
///
/// # Errors
/// `argument-unexpected`, `argument-missing`, `argument-count`.
fn sole<'py>(
    given: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    const HINT: &str = "DType() takes 1 positional argument; it has no keywords";
    if let Some((name, value)) = keywords.and_then(|keywords| keywords.iter().next()) {
        return Err(errors::unexpected(&name.to_string(), &repr(&value), HINT));
    }
    match given.len() {
        1 => given.get_item(0),
        0 => {
            let field = Field::Argument("spelling");
            Err(Violation::new(Rule::ArgumentMissing, field, "")
                .with_hint(HINT)
                .into())
        }
        count => {
            let found = format_args!("{count} positional arguments");
            let violation = Violation::new(Rule::ArgumentCount, Field::Arguments, found);
            Err(violation.with_hint(HINT).into())
        }
    }
}

/// Returns NumPy's dtype of a type of DLPack.
fn numpy_dtype(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    let numpy = py.import("numpy")?.getattr("dtype")?;
    if dtype.lanes() == 1 {
        return match dtype.typestr() {
            Ok(typestr) => numpy.call1((new_str(py, typestr)?,)),
            Err(_) => numpy.call1((of_ml_dtypes(py, dtype)?,)),
        };
    }
    if dtype.is_sub_byte() {
        return Err(refuse(dtype, "NumPy stores no two elements in one byte"));
    }
    let lane = numpy_dtype(py, dtype.lane())?;
    let subarray = new_tuple(py, [Ok(lane), new_uint(py, dtype.lanes().into())])?;
    numpy.call1((subarray,))
}

/// Returns the class that ml_dtypes has for the type.
fn of_ml_dtypes(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    let found = py
        .import("ml_dtypes")
        .and_then(|module| module.getattr_opt(dtype.name()));
    match found {
        Ok(Some(class)) => Ok(class),
        Ok(None) => Err(refuse(dtype, "this ml_dtypes has no such type: update it")),
        Err(error) if error.is_instance_of::<PyImportError>(py) => {
            release::drop_now(error);
            Err(refuse(dtype, "install ml_dtypes, which has it"))
        }
        Err(error) => Err(error),
    }
}

/// Returns the dtype of a struct, with the offsets of its fields: those without a name are padding.
fn of_fields<'py>(
    numpy: &Bound<'py, PyAny>,
    fields: &[DescrField],
    itemsize: u32,
) -> PyResult<Bound<'py, PyAny>> {
    let py = numpy.py();
    let (names, titles) = (new_list(py)?, new_list(py)?);
    let (formats, offsets) = (new_list(py)?, new_list(py)?);
    for field in fields.iter().filter(|field| !field.name().is_empty()) {
        let typestr = field.typestr();
        let format = match field.nested() {
            Some(inner) => of_fields(numpy, inner, typestr.itemsize())?,
            None => numpy.call1((new_str(py, &typestr.to_string())?,))?,
        };
        // NumPy refuses a text of no characters with a shape, the empty one too.
        let format = match field.shape() {
            [] => format,
            shape => {
                let shape = new_ints(py, shape.iter().copied())?.into_any();
                new_tuple(py, [Ok(format), Ok(shape)])?.into_any()
            }
        };
        names.append(new_str(py, field.name())?)?;
        titles.append(field.title().map(|title| new_str(py, title)).transpose()?)?;
        formats.append(format)?;
        offsets.append(new_uint(py, field.offset().into())?)?;
    }
    if names.is_empty() {
        return numpy.call1((new_str(py, &format!("V{itemsize}"))?,));
    }
    let dict = new_dict(py)?;
    dict.set_item(new_str(py, "names")?, names)?;
    if titles.iter().any(|title| !title.is_none()) {
        dict.set_item(new_str(py, "titles")?, titles)?;
    }
    dict.set_item(new_str(py, "formats")?, formats)?;
    dict.set_item(new_str(py, "offsets")?, offsets)?;
    dict.set_item(new_str(py, "itemsize")?, new_uint(py, itemsize.into())?)?;
    numpy.call1((dict,))
}

/// Returns the error for a typestr that NumPy does not take, as a platform has one size of long doubles only.
#[cold]
fn lacked(py: Python<'_>, typestr: TypeStr, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    let violation = Violation::new(
        Rule::NumpyDtype,
        Field::CaiTypestr,
        format_args!("'{typestr}'"),
    );
    let violation = match typestr.meant() {
        None => violation,
        Some(dtype) => violation.with_hint(format!(
            "cai_dlpack.view(obj, dtype='{dtype}') presents it as a type that ml_dtypes has, if that is its type"
        )),
    };
    errors::caused_by(violation, error)
}

#[cold]
fn refuse(dtype: DType, hint: &'static str) -> PyErr {
    Violation::new(Rule::NumpyDtype, Field::TensorDtype, dtype)
        .with_hint(hint)
        .into()
}
