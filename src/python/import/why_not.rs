//! Explains failures of producers that their own exceptions do not: deleted arrays, tracers, dtypes.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::protocol::dtype::DType;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::errors::{caused_by, is_of_the_process, raised};
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::text::text;
use crate::python::cpython::{getattr, release};

/// Returns the error of a producer's method that has failed: `array-deleted` if the array has been deleted (JAX),
/// `not-strided` if it is of another layout (torch, Paddle), else the producer's own.
#[cold]
pub(crate) fn failed(object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    // What is asked of the object may convert it again: after a RecursionError at each level anew.
    if is_of_the_process(object.py(), &error) {
        return error;
    }
    match state(object, &error) {
        Ok(Some(violation)) => caused_by(violation, error),
        Ok(None) => error,
        Err(of_the_process) => of_the_process,
    }
}

/// Asks an object for what explains a failure; `None` if the answer raises.
///
/// # Errors
/// One that tells of the process ([`is_of_the_process`]): the answer may convert the object again, whose own failure is
/// explained too. After a `RecursionError` each level would ask anew, so that the calls double at each.
#[cold]
fn asked<T>(py: Python<'_>, question: impl FnOnce() -> PyResult<T>) -> PyResult<Option<T>> {
    release::dropping(|| match question() {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_of_the_process(py, &error) => Err(error),
        Err(_) => Ok(None),
    })
}

/// Returns the rule that an object's state breaks, of which its producer has raised `error`.
///
/// # Errors
/// Those of [`asked`].
#[cold]
pub(crate) fn state(object: &Bound<'_, PyAny>, error: &PyErr) -> PyResult<Option<Violation>> {
    let kind = type_name(object);
    Ok(if is_true(object, "is_deleted")? {
        let found = format_args!("an object of type {kind}");
        let violation = Violation::new(Rule::ArrayDeleted, Field::Object, found);
        Some(violation.with_hint(format!("its producer raised {}", raised(error))))
    } else if let Some(layout) = other_layout(object)? {
        let found = format_args!("an object of type {kind} in the layout {layout}");
        Some(Violation::new(Rule::NotStrided, Field::Object, found).with_hint(format!(
            "obj.to_dense() makes a strided one (of a nested tensor obj.to_padded_tensor(value)); the parts of a sparse \
             one, such as obj.values(), are arrays of their own; its producer raised {}",
            raised(error)
        )))
    } else {
        None
    })
}

/// Whether a method without arguments returns what is true.
fn is_true(object: &Bound<'_, PyAny>, method: &str) -> PyResult<bool> {
    let answer = asked(object.py(), || object.call_method0(method)?.is_truthy())?;
    Ok(answer == Some(true))
}

/// Returns the name of an array's layout that has no strides: that of torch's attribute `layout`, or of a method.
fn other_layout(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let layout = asked(object.py(), || {
        object.get_type().getattr("layout")?;
        let layout = object.getattr("layout")?;
        Ok(layout.str()?.to_string_lossy().into_owned())
    })?;
    Ok(match layout {
        Some(layout) if layout.starts_with("torch.") && layout != "torch.strided" => Some(layout),
        _ if is_true(object, "is_sparse")? => Some("sparse".to_owned()),
        // Nested tensors call themselves strided.
        Some(layout) if layout == "torch.strided" => {
            let is_nested = asked(object.py(), || object.getattr("is_nested")?.is_truthy())?;
            (is_nested == Some(true)).then(|| "nested".to_owned())
        }
        _ => None,
    })
}

/// Returns the error of a call of an attribute that is no function, as an absent one; else the producer's own
/// ([`failed`]).
#[cold]
pub(crate) fn failed_call(
    object: &Bound<'_, PyAny>,
    name: &Py<PyString>,
    rule: Rule,
    field: Field,
    error: PyErr,
) -> PyErr {
    if !error.is_instance_of::<PyTypeError>(object.py()) {
        return failed(object, error);
    }
    let attribute = match asked(object.py(), || getattr::optional(object, name)) {
        Ok(attribute) => attribute.flatten(),
        Err(of_the_process) => return of_the_process,
    };
    if let Some(attribute) = attribute
        && !attribute.is_callable()
    {
        release::drop_now(error);
        let (kind, attribute) = (type_name(object), repr(&attribute));
        let found = format_args!("an object of type {kind}, of which it is {attribute}");
        return Violation::new(rule, field, found).into();
    }
    failed(object, error)
}

/// Whether an object has an attribute, for a remedy.
///
/// # Errors
/// Those of [`asked`].
#[cold]
pub(crate) fn seems_to_have(object: &Bound<'_, PyAny>, name: &Py<PyString>) -> PyResult<bool> {
    let answer = asked(object.py(), || getattr::has(object, name))?;
    Ok(answer == Some(true))
}

/// Builds the error, with the remedy for an object that has `__dlpack__` though its type has none: `weakref.proxy`, a
/// wrapper with `__getattr__`.
#[cold]
pub(crate) fn with_type_hint(violation: Violation, object: &Bound<'_, PyAny>) -> PyErr {
    let dlpack = &names(object.py()).dlpack;
    let is_there = seems_to_have(object, dlpack).and_then(|is_there| {
        let of_type = asked(object.py(), || getattr::type_has(object, dlpack))?;
        Ok(is_there && of_type == Some(false))
    });
    match is_there {
        Ok(true) => (violation.with_hint(
            "the object has __dlpack__ and its type does not: pass the array that it stands for, or give its type the \
             method",
        ))
        .into(),
        Ok(false) => violation.into(),
        Err(of_the_process) => of_the_process,
    }
}

/// Builds the error for a class in place of an array.
#[cold]
pub(crate) fn class(object: &Bound<'_, PyAny>) -> Violation {
    Violation::new(Rule::ClassNotInstance, Field::Object, repr(object))
}

/// Returns the error for a tracer of JAX: one of the classes of its type is `jax...Tracer`.
#[cold]
pub(crate) fn traced(object: &Bound<'_, PyAny>) -> Option<Violation> {
    let is_tracer = |class: Bound<'_, PyAny>| {
        let class = class.cast_into::<PyType>().ok()?;
        let read = |name| text(&class.getattr(name).ok()?);
        let module = read(&names(class.py()).module)?;
        let is_jax = module == "jax" || module.starts_with("jax.");
        Some(is_jax && read(&names(class.py()).qualname)? == "Tracer")
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
