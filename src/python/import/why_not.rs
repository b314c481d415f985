//! Explains failures of producers that their own exceptions do not: deleted arrays, tracers, dtypes.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::protocol::dtype::DType;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::errors::{caused_by, raised};
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::release;

/// Returns the error of a producer's method that has failed: `array-deleted` if the array has been deleted (JAX), else
/// the producer's own.
#[cold]
pub(crate) fn failed(object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let is_deleted = release::dropping(|| {
        let answer = object.call_method0("is_deleted");
        answer.is_ok_and(|answer| answer.is_truthy().unwrap_or(false))
    });
    if !is_deleted {
        return error;
    }
    let kind = type_name(object);
    let found = format_args!("an object of type {kind}");
    let violation = Violation::new(Rule::ArrayDeleted, Field::Object, found)
        .with_hint(format!("its producer raised {}", raised(&error)));
    caused_by(violation, error)
}

/// Returns the error for a tracer of JAX: one of the classes of its type is `jax...Tracer`.
#[cold]
pub(crate) fn traced(object: &Bound<'_, PyAny>) -> Option<Violation> {
    let is_tracer = |class: Bound<'_, PyAny>| {
        let class = class.cast_into::<PyType>().ok()?;
        let text = |name| class.getattr(name).ok().map(|name| name.to_string());
        let module = text(&names(class.py()).module)?;
        let is_jax = module == "jax" || module.starts_with("jax.");
        Some(is_jax && text(&names(class.py()).qualname)? == "Tracer")
    };
    let is_traced = release::dropping(|| {
        let classes = object.get_type().getattr("__mro__").ok()?;
        let classes = classes.cast_into::<PyTuple>().ok()?;
        Some(
            classes
                .iter()
                .any(|class| is_tracer(class).unwrap_or(false)),
        )
    });
    is_traced?.then(|| {
        let kind = type_name(object);
        let found = format_args!("an object of type {kind}");
        Violation::new(Rule::ArrayTraced, Field::Object, found)
            .with_hint("call it outside of jit, grad and vmap, or by jax.pure_callback")
    })
}

/// Refuses an array whose `dtype` has no DLPack type, before a producer is called that would end the process.
///
/// # Errors
/// `producer-dtype`; what reading `dtype` raises.
#[cold]
pub(crate) fn check_dtype(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(dtype) = object.getattr_opt(&names(object.py()).dtype)? else {
        return Ok(());
    };
    let Some(name) = dtype.getattr_opt("name")? else {
        return Ok(());
    };
    let is_known = release::dropping(|| {
        let name = name.cast::<PyString>().ok()?.to_cow().ok()?;
        Some(DType::from_name(&name).is_some())
    });
    match is_known {
        Some(true) => Ok(()),
        _ => Err(Violation::new(Rule::ProducerDtype, Field::ObjectDtype, repr(&dtype)).into()),
    }
}
