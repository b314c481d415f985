//! Converts errors into Python exceptions.
//!
//! A [`Violation`] becomes a `Refusal` that is also a `TypeError`, `ValueError`, `BufferError` or `RuntimeError`, by the
//! class of its rule, with the attributes `rule` (the id, an anchor in docs/rules.md), `field` and `hint`. A failure of the driver becomes a
//! `DriverError`. A producer's own exception passes through unchanged.

use once_cell::race::OnceBox;
use pyo3::exceptions::{
    PyAttributeError, PyBufferError, PyException, PyMemoryError, PyRecursionError, PyRuntimeError,
    PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::driver::{self, DriverError};
use crate::error::Error;
use crate::protocol::rule::{Class, Rule, Violation};
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_str, new_uint};
use crate::python::cpython::text::text;
use crate::python::cpython::{getattr, gil, own_module, release, tracing};

impl From<Violation> for PyErr {
    #[cold]
    fn from(violation: Violation) -> Self {
        refused(&violation, Kind::of(violation.rule().class()))
    }
}

/// Raises a violation as an `AttributeError`, for a property whose absence makes a consumer try another protocol.
#[cold]
pub(crate) fn as_attribute_error(violation: &Violation) -> PyErr {
    refused(violation, Kind::Attribute)
}

/// Builds the error for a keyword that the function does not have, whose name is the caller's.
#[cold]
pub(crate) fn unexpected(name: &str, found: &str, hint: &str) -> PyErr {
    let rule = Rule::ArgumentUnexpected;
    let (sentence, id) = (rule.sentence(), rule.id());
    let message = format!("argument '{name}' = {found}: {sentence}; {hint} [{id}]");
    gil::with(|py| refusal(py, Kind::Type, &message, (rule, name, Some(hint))))
}

fn refused(violation: &Violation, kind: Kind) -> PyErr {
    let facts = (violation.rule(), violation.field().name(), violation.hint());
    gil::with(|py| refusal(py, kind, &violation.to_string(), facts))
}

/// Formats an exception for a message: class and text, the first line of it.
#[cold]
pub(crate) fn raised(error: &PyErr) -> String {
    gil::with(|py| {
        let value = error.value(py).as_any();
        let class = value.get_type().qualname();
        let class = class.ok().and_then(|name| text(&name));
        let class = class.unwrap_or_else(|| "an exception".to_owned());
        let text = text(value).unwrap_or_else(|| "<its text could not be made>".to_owned());
        match text.lines().next() {
            Some(line) if !line.is_empty() => format!("{class}: {line}"),
            _ => class,
        }
    })
}

/// Sets the exception that an error was made of.
#[cold]
pub(crate) fn caused_by(error: Violation, cause: PyErr) -> PyErr {
    let error = PyErr::from(error);
    gil::with(|py| error.set_cause(py, Some(cause)));
    error
}

/// Builds the error for an attribute that cannot be read. If the object's type has it, a property has raised: its
/// exception becomes the cause.
#[cold]
pub(crate) fn absent(violation: Violation, object: &Bound<'_, PyAny>, name: &str) -> PyErr {
    if !object.get_type().hasattr(name).unwrap_or(false) {
        return violation.into();
    }
    match object.getattr(name) {
        Ok(_) => violation.into(),
        Err(cause) if is_of_the_process(object.py(), &cause) => cause,
        Err(cause) => {
            let hint = format!("reading its {name} raised {}", raised(&cause));
            caused_by(violation.with_hint(hint), cause)
        }
    }
}

impl From<DriverError> for PyErr {
    #[cold]
    fn from(error: DriverError) -> Self {
        gil::with(|py| {
            let make = || {
                let (call, name) = (new_str(py, error.call())?, new_str(py, error.name())?);
                let class = driver_error(py)?;
                let mut text = error.to_string();
                if error.is_absent() && driver::is_rocm() {
                    text.push_str("; memory of ROCm is named by device_id=(10, 0)");
                }
                let value = class.call1((new_str(py, &text)?,))?;
                value.setattr(new_str(py, "call")?, call)?;
                let code = error.code().map(|code| new_uint(py, code.into()));
                value.setattr(new_str(py, "code")?, code.transpose()?)?;
                value.setattr(&names(py).name, name)?;
                // By class and value, which CPython raises with the `__context__` of that moment.
                Ok(PyErr::from_type(class.clone(), value.unbind()))
            };
            make().unwrap_or_else(|failed| failed)
        })
    }
}

impl From<Error> for PyErr {
    #[cold]
    fn from(error: Error) -> Self {
        match error {
            Error::Violation(violation) => violation.into(),
            Error::Driver(error) => error.into(),
            Error::OutOfMemory => PyMemoryError::new_err(error.to_string()),
            Error::Os(error) => error.into(),
            Error::Producer(error) => match error.downcast::<Self>() {
                Ok(raised) => *raised,
                Err(other) => PyRuntimeError::new_err(other.to_string()),
            },
        }
    }
}

/// Makes the exception of a refusal, or that of what failed meanwhile.
fn refusal(
    py: Python<'_>,
    kind: Kind,
    message: &str,
    (rule, field, hint): (Rule, &str, Option<&str>),
) -> PyErr {
    tracing::mark(|marks| marks.rule = Some(rule.id()));
    let refusals = REFUSALS.get().or_else(|| Refusals::adopt(py));
    let class = match refusals {
        Some(refusals) => refusals.of_kind[kind as usize].bind(py).clone(),
        None => kind.builtin(py),
    };
    let make = || {
        let value = class.call1((new_str(py, message)?,))?;
        value.setattr(new_str(py, "rule")?, new_str(py, rule.id())?)?;
        value.setattr(new_str(py, "field")?, new_str(py, field)?)?;
        let hint = hint.map(|hint| new_str(py, hint)).transpose()?;
        value.setattr(new_str(py, "hint")?, hint)?;
        // By class and value, which CPython raises with the `__context__` of that moment.
        Ok(PyErr::from_type(class.clone(), value.unbind()))
    };
    make().unwrap_or_else(|failed| failed)
}

/// The builtin class that a refusal is of.
#[derive(Clone, Copy)]
enum Kind {
    Type,
    Value,
    Buffer,
    Runtime,
    Attribute,
}

impl Kind {
    const ALL: [(Self, &str); 5] = [
        (Self::Type, "TypeRefusal"),
        (Self::Value, "ValueRefusal"),
        (Self::Buffer, "BufferRefusal"),
        (Self::Runtime, "RuntimeRefusal"),
        (Self::Attribute, "AttributeRefusal"),
    ];

    const fn of(class: Class) -> Self {
        match class {
            Class::Type => Self::Type,
            Class::Value => Self::Value,
            Class::Buffer => Self::Buffer,
            Class::Runtime => Self::Runtime,
        }
    }

    fn builtin(self, py: Python<'_>) -> Bound<'_, PyType> {
        match self {
            Self::Type => py.get_type::<PyTypeError>(),
            Self::Value => py.get_type::<PyValueError>(),
            Self::Buffer => py.get_type::<PyBufferError>(),
            Self::Runtime => py.get_type::<PyRuntimeError>(),
            Self::Attribute => py.get_type::<PyAttributeError>(),
        }
    }
}

/// The classes of refusals: `Refusal`, and one of it and of each builtin class.
struct Refusals {
    base: Py<PyType>,
    /// In the order of [`Kind::ALL`].
    of_kind: [Py<PyType>; Kind::ALL.len()],
}

/// An extension module that takes arrays by this crate and does not `register` shares those of the package `cai_dlpack`
/// from the first refusal on before which it was imported. Until then its refusals are of the builtin classes alone, since
/// no name of such a module would lead to another class, to catch it or to unpickle it.
static REFUSALS: OnceBox<Refusals> = OnceBox::new();

impl Refusals {
    /// Returns the package's classes from now on; `None` if it has not been imported, or its classes are others.
    fn adopt(py: Python<'_>) -> Option<&'static Self> {
        let base = of_package(py, "Refusal", &py.get_type::<PyException>())?;
        let adopted = Kind::ALL.map(|(kind, name)| {
            let class = of_package(py, name, &base)?;
            let is_builtin = class.is_subclass(&kind.builtin(py));
            is_builtin.unwrap_or(false).then(|| class.unbind())
        });
        let [Some(a), Some(b), Some(c), Some(d), Some(e)] = adopted else {
            return None;
        };
        let (base, of_kind) = (base.unbind(), [a, b, c, d, e]);
        Some(REFUSALS.get_or_init(|| Box::new(Self { base, of_kind })))
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let doc = "The base class of every refusal; each is also a builtin exception.

Attributes
----------
rule : str
    The id of the rule, an anchor in docs/rules.md.
field : str
    What breaks it: a key, an attribute, an argument.
hint : str | None
    What to do instead; None if there is nothing to do.";
        let base = class(py, "Refusal", doc, &[&py.get_type::<PyException>()])?;
        let mut of_kind = Vec::new();
        for (kind, name) in Kind::ALL {
            let builtin = kind.builtin(py);
            let doc = format!("A refusal, caught as `{}` too.", builtin.name()?);
            of_kind.push(class(py, name, &doc, &[&base, &builtin])?.unbind());
        }
        let of_kind = of_kind.try_into();
        let of_kind = of_kind.map_err(|_| PyRuntimeError::new_err("one class for each kind"))?;
        let base = base.unbind();
        Ok(Self { base, of_kind })
    }
}

/// Makes the classes of refusals, and adds them to a module: from then on refusals are of them.
///
/// # Errors
/// Making a class can fail.
pub(crate) fn add_refusals(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let refusals = REFUSALS.get_or_try_init(|| Refusals::new(py).map(Box::new))?;
    module.add("Refusal", &refusals.base)?;
    for ((_, name), class) in Kind::ALL.iter().zip(&refusals.of_kind) {
        module.add(*name, class)?;
    }
    Ok(())
}

/// Makes a class of this package.
///
/// # Errors
/// Out of memory.
pub(crate) fn class<'py>(
    py: Python<'py>,
    name: &str,
    doc: &str,
    bases: &[&Bound<'py, PyType>],
) -> PyResult<Bound<'py, PyType>> {
    let namespace = PyDict::new(py);
    namespace.set_item("__module__", "cai_dlpack")?;
    namespace.set_item("__doc__", doc)?;
    let arguments = (name, PyTuple::new(py, bases)?, namespace);
    let class = py.get_type::<PyType>().call1(arguments)?;
    Ok(class.cast_into()?)
}

/// Returns the class of this name of the package `cai_dlpack`; `None` if the package has not been imported, or has no such
/// class, derived from `base`. Nothing is imported for it.
pub(crate) fn of_package<'py>(
    py: Python<'py>,
    name: &str,
    base: &Bound<'py, PyType>,
) -> Option<Bound<'py, PyType>> {
    let find = || -> PyResult<Option<Bound<'py, PyType>>> {
        let package = getattr::imported(&new_str(py, "cai_dlpack")?)?;
        let class = package.map(|package| package.getattr(name)).transpose()?;
        Ok(class.map(Bound::cast_into).transpose()?)
    };
    let class = release::dropping(|| find().ok().flatten())?;
    class.is_subclass(base).unwrap_or(false).then_some(class)
}

/// Whether an error tells of the process rather than of the object: a lack of memory or of stack, an interrupt.
pub(crate) fn is_of_the_process(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py)
        || error.is_instance_of::<PyMemoryError>(py)
        || error.is_instance_of::<PyRecursionError>(py)
}

/// Whether an error is a `DriverError`, and there is no driver.
#[cold]
pub(crate) fn is_of_no_driver(py: Python<'_>, error: &PyErr) -> bool {
    driver_error(py).is_ok_and(|class| error.is_instance(py, class))
        && driver::driver().is_err_and(|error| error == DriverError::ABSENT)
}

/// Returns the class of the driver's errors that are raised now: a `RuntimeError` with `call`, `code` (an int, or None without
/// a driver) and `name`.
///
/// It is the class `DriverError` of the package `cai_dlpack` if that has been imported, so that one `except` catches the
/// errors of all modules; else this module's own. If the package is imported after this module's own class was made, the class
/// is one of both, so that each name catches it.
///
/// # Errors
/// Making a class can fail.
///
/// ```no_run
/// use cai_dlpack::python::driver_error;
/// use pyo3::prelude::*;
///
/// /// Whether a call into Python has failed by the driver.
/// fn is_of_the_driver(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
///     Ok(error.is_instance(py, driver_error(py)?))
/// }
/// # let _ = is_of_the_driver;
/// ```
pub fn driver_error(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static OWN: OnceBox<Py<PyType>> = OnceBox::new();
    static SHARED: OnceBox<Py<PyType>> = OnceBox::new();
    let base = py.get_type::<PyRuntimeError>();
    if let Some(shared) = SHARED.get() {
        return Ok(shared.bind(py));
    }
    // Looked up until it is found, as `Refusals::adopt` does: the package may be imported at any time.
    if let Some(shared) = of_package(py, DRIVER_ERROR, &base) {
        let class = match OWN.get().map(|own| own.bind(py)) {
            Some(own) if !own.is_subclass(&shared)? => class_of_both(own, &shared)?,
            _ => shared,
        };
        return Ok(SHARED.get_or_init(|| Box::new(class.unbind())).bind(py));
    }
    let own = OWN.get_or_try_init(|| {
        let own = class(py, DRIVER_ERROR, DRIVER_ERROR_DOC, &[&base])?;
        own_module::rename(&own);
        Ok::<_, PyErr>(Box::new(own.unbind()))
    })?;
    Ok(own.bind(py))
}

const DRIVER_ERROR: &str = "DriverError";
const DRIVER_ERROR_DOC: &str = "A call of the CUDA driver failed, or no driver is installed.

Attributes
----------
call : str
    The name of the driver's function.
code : int | None
    CUDA's number of the error; None without a driver.
name : str
    CUDA's name of the error.";

/// Makes the class for errors of a module whose own class its users may have by name already.
#[cold]
fn class_of_both<'py>(
    own: &Bound<'py, PyType>,
    shared: &Bound<'py, PyType>,
) -> PyResult<Bound<'py, PyType>> {
    let both = class(own.py(), DRIVER_ERROR, DRIVER_ERROR_DOC, &[own, shared])?;
    own_module::rename(&both);
    Ok(both)
}
