//! Reads an element type in the spelling of any library, importing none of them.
//!
//! | spelling | read by |
//! |---|---|
//! | `"bfloat16"`, `"half"`, `"<f4"`, `"float4_e2m1fnx2"` | itself ([`DType::from_name`]) |
//! | `np.float32`, `jnp.bfloat16`, `ml_dtypes.int4`, `warp.float32` | the class's `__name__` |
//! | `bool`, `int`, `float`, `complex` | what NumPy and torch make of them: `bool`, `int64`, `float64`, `complex128` |
//! | `np.dtype("f4")`, `tf.bfloat16`, `numba.float32`, a `DType` | its `name` |
//! | `torch.bfloat16`, `paddle.float32` | the last part of its `str` |

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyString, PyType};

use crate::protocol::dtype::{DType, TypeStr};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::getattr;
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::recursion::Level;

/// Reads the argument `dtype`.
///
/// # Errors
/// `dtype-argument-type`, `dtype-argument`; the exceptions of the object's attributes.
pub(crate) fn dtype(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    spelled(value)?.map_err(|rule| {
        let violation = Violation::new(rule, Field::Argument("dtype"), repr(value));
        match is_swapped(value) {
            Ok(true) => violation.with_hint(SWAPPED).into(),
            Ok(false) => match value.cast::<PyString>() {
                Ok(name) => with_reason(violation, &name.to_string_lossy()).into(),
                Err(_) => violation.into(),
            },
            Err(error) => error,
        }
    })
}

const SWAPPED: &str = "this one has the other byte order";

/// Adds why a name names no type.
#[cold]
fn with_reason(violation: Violation, name: &str) -> Violation {
    if DType::is_disputed(name) {
        return violation
            .with_hint("NumPy, torch and C disagree about this one: give its size, as in 'int64'");
    }
    // NumPy's typestrs go without an order too: `M8[ns]`.
    let typestr = TypeStr::parse_any_order(name);
    match typestr.or_else(|_| TypeStr::parse_any_order(&format!("={name}"))) {
        Ok(typestr) => match typestr.to_dtype() {
            Err(refused) => violation.with_hint(refused.rule().sentence()),
            Ok(_) => violation,
        },
        Err(_) => violation,
    }
}

/// Returns the type that an object spells, or the rule that it breaks.
///
/// # Errors
/// The exceptions of the object's attributes.
pub(crate) fn spelled(value: &Bound<'_, PyAny>) -> PyResult<Result<DType, Rule>> {
    let _level = Level::begin(value.py())?;
    if let Ok(name) = value.cast::<PyString>() {
        return Ok(named(name));
    }
    let names = names(value.py());
    if let Ok(class) = value.cast::<PyType>() {
        return match builtin(class) {
            Some(dtype) => Ok(Ok(dtype)),
            None => Ok(named(&class.getattr(&names.dunder_name)?.str()?)),
        };
    }
    let name = getattr::optional(value, &names.name)?;
    let by_name = match name.as_ref().map(|name| name.cast::<PyString>()) {
        Some(Ok(name)) => named(name),
        _ => Err(Rule::DtypeArgumentType),
    };
    match by_name {
        // NumPy names a type of the other byte order as the native one.
        Ok(_) if is_swapped(value)? => Ok(Err(Rule::DtypeArgument)),
        Ok(dtype) => Ok(Ok(dtype)),
        Err(rule) => {
            let text = value.str()?;
            let text = text.to_string_lossy();
            let last = text
                .rsplit_once('.')
                .and_then(|(_, last)| DType::from_name(last));
            Ok(
                last.ok_or_else(|| match type_name(value).ends_with(".dtype") {
                    // torch's, which have no name.
                    true => Rule::DtypeArgument,
                    false => rule,
                }),
            )
        }
    }
}

fn named(name: &Bound<'_, PyString>) -> Result<DType, Rule> {
    DType::from_name(&name.to_string_lossy()).ok_or(Rule::DtypeArgument)
}

/// Returns the type for a class of Python's own.
fn builtin(class: &Bound<'_, PyType>) -> Option<DType> {
    let py = class.py();
    let builtins = [
        (py.get_type::<PyBool>(), DType::BOOL),
        (py.get_type::<PyInt>(), DType::I64),
        (py.get_type::<PyFloat>(), DType::F64),
        (py.get_type::<PyComplex>(), DType::C128),
    ];
    let found = builtins.into_iter().find(|(builtin, _)| class.is(builtin));
    found.map(|(_, dtype)| dtype)
}

fn is_swapped(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    match getattr::optional(value, &names(value.py()).isnative)? {
        Some(is_native) => Ok(!is_native.is_truthy()?),
        None => Ok(false),
    }
}
