//! Declares Python functions and methods, each in one place.
//!
//! [`signature!`] takes a function's name, parameters, defaults, types and docstring. It generates the struct of
//! arguments, the interned names, the look-up of keywords, CPython's own `TypeError`s, `__text_signature__`,
//! `__doc__` and the line of the stub. PyO3's functions are not used: they compare every keyword's name as text and
//! convert every value, a third of the instructions of a conversion. Here a keyword is found by the address of its
//! name, since the interpreter interns the names in code; a name with another address is compared as text.
//!
//! Every call begins with the guard against the thread's exit ([`thread_exit`]). PyO3 does not count these calls as
//! its own, so a `PyErr` or `Py` that is dropped inside waits for PyO3's next call: drop it by
//! `release::dropping`, as [`raise`] does with the error that a function returns.

mod declaration;
mod vector;

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{Borrowed, ffi};

use crate::python::cpython::counted::counted;
pub(crate) use crate::python::cpython::fastcall::declaration::{Parameter, Signature, stub};
use crate::python::cpython::fastcall::declaration::{docstring, name, text};
pub(crate) use crate::python::cpython::fastcall::vector::{Keywords, Value, Vector, missing};
use crate::python::cpython::tracing::{Called, Tracer};
use crate::python::cpython::{panic, thread_exit, tracing};

/// Reads the arguments of a declared function; implemented by [`signature!`].
pub(crate) trait ReadArguments: Signature {
    /// The arguments of one call, borrowed from the caller.
    type Arguments<'a, 'py>;

    /// Interns the names of the keywords. Called at import, since without the GIL CPython's interning races with
    /// itself.
    fn intern_names(py: Python<'_>);

    /// Reads the arguments of a call; `BARE` states that it has no keywords.
    ///
    /// # Errors
    /// `TypeError` for a wrong number of arguments, a missing or an unexpected one.
    fn read<'a, 'py, const BARE: bool>(
        vector: Vector<'a, 'py>,
    ) -> PyResult<Self::Arguments<'a, 'py>>;
}

/// A declared function and its body.
pub(crate) trait Function: ReadArguments {
    /// Runs a call that may be traced; `None` for a function that converts nothing.
    const TRACER: Option<Tracer> = None;

    /// Runs the function. `slf` is the module, or the object of a method.
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>>;
}

/// Declares a Python function:
///
/// ```text
/// signature! {
///     /// Summary.
///     Join = join [
///         /// Views and streams.
///         items: "Iterable[CaiView | StreamLike]",
///     ] (
///         /// The stream that waits.
///         on: "StreamLike",
///     ) -> "list[CaiView]"
/// }
/// ```
/// Parameters in brackets are positional-only, those in parentheses keyword-only. A default is written as in Python;
/// an argument whose default is `None` counts as not given if it is `None`. The body is an `impl Function for Join`,
/// which takes the struct of arguments, a field for each parameter.
macro_rules! signature {
    (
        $(#[doc = $doc:literal])*
        $type:ident = $function:ident
        [$($(#[doc = $positional_doc:literal])* $positional:ident: $positional_kind:literal),* $(,)?]
        ($($(#[doc = $keyword_doc:literal])* $keyword:ident: $kind:literal $(= $default:tt)?),* $(,)?)
        -> $returns:literal
    ) => {
        $(#[doc = $doc])*
        pub(crate) struct $type;

        const _: () = {
            use $crate::python::cpython::fastcall as fc;
            use pyo3::prelude::*;

            /// The arguments of one call.
            pub(crate) struct Arguments<'a, 'py> {
                $(pub(crate) $positional: pyo3::Borrowed<'a, 'py, PyAny>,)*
                $(pub(crate) $keyword: fc::signature!(@type $($default)?),)*
                /// The bits of those keywords that are given, in the order of their declaration.
                #[allow(dead_code, reason = "not every function asks")]
                pub(crate) which: u32,
                borrowed: std::marker::PhantomData<(&'a (), Python<'py>)>,
            }

            static INTERNED: fc::Keywords<{ <$type as fc::Signature>::KEYWORDS.len() }> = fc::Keywords::new();

            impl fc::Signature for $type {
                const NAME: &'static std::ffi::CStr =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($function), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without NUL"),
                    };
                const DOC: &'static [&'static str] = &[$($doc),*];
                const POSITIONAL: &'static [fc::Parameter] = &[$(fc::Parameter {
                    name: stringify!($positional),
                    kind: $positional_kind,
                    default: None,
                    doc: &[$($positional_doc),*],
                }),*];
                const KEYWORDS: &'static [fc::Parameter] = &[$(fc::Parameter {
                    name: stringify!($keyword),
                    kind: $kind,
                    default: fc::signature!(@default $($default)?),
                    doc: &[$($keyword_doc),*],
                }),*];
                const RETURNS: &'static str = $returns;
            }

            impl fc::ReadArguments for $type {
                type Arguments<'a, 'py> = Arguments<'a, 'py>;

                fn intern_names(py: Python<'_>) {
                    INTERNED.interned::<Self>(py);
                }

                #[inline(always)]
                fn read<'a, 'py, const BARE: bool>(
                    vector: fc::Vector<'a, 'py>,
                ) -> PyResult<Arguments<'a, 'py>> {
                    let [$($positional),*] = vector.positional::<Self, _>()?;
                    let mut values = [None; <$type as fc::Signature>::KEYWORDS.len()];
                    let which = match BARE {
                        true => 0,
                        false => vector.keywords::<Self, _>(&INTERNED, &mut values)?,
                    };
                    let [$($keyword),*] = values;
                    Ok(Arguments {
                        $($positional,)*
                        $($keyword: fc::signature!(@value $type, $keyword $($default)?),)*
                        which,
                        borrowed: std::marker::PhantomData,
                    })
                }
            }
        };
    };
    (@type) => { pyo3::Borrowed<'a, 'py, PyAny> };
    (@type $default:tt) => { fc::Value<'a, 'py> };
    (@default) => { None };
    (@default $default:tt) => { Some(stringify!($default)) };
    (@value $type:ident, $keyword:ident) => {
        $keyword.ok_or_else(|| fc::missing::<$type>(stringify!($keyword)))?
    };
    (@value $type:ident, $keyword:ident $default:tt) => { $keyword };
}
pub(crate) use signature;

/// The C function that the interpreter calls; `TRACES` states that it asks whether it is traced.
///
/// # Safety
/// As for a function of `METH_FASTCALL | METH_KEYWORDS` ([`Vector::new`]): the thread is attached, and `slf` is an
/// object that lives during the call.
unsafe extern "C" fn enter<F: Function, const TRACES: bool>(
    slf: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    thread_exit::guard();
    if TRACES && F::TRACER.is_some() && tracing::may_trace() {
        // SAFETY: this function's contract.
        return unsafe { traced::<F>(slf, values, count, names) };
    }
    // SAFETY: this thread is attached (this function's contract).
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the interpreter's arguments, unchanged; they live during the call (this function's contract).
    let vector = unsafe { Vector::new(py, values, count, names) };
    // SAFETY: not null: the module or the object, alive during the call (this function's contract).
    let slf = unsafe { Borrowed::from_ptr(py, slf) };
    let result = catch_unwind(AssertUnwindSafe(|| {
        // Most calls have no keywords: in a body of their own all defaults are constants.
        let result = if names.is_null() {
            F::read::<true>(vector).and_then(|arguments| F::call(slf, arguments))
        } else {
            F::read::<false>(vector).and_then(|arguments| F::call(slf, arguments))
        };
        match result {
            Ok(object) => object.into_ptr(),
            Err(error) => raise(py, error),
        }
    }));
    result.unwrap_or_else(|payload| raise(py, panic::caught(&*payload)))
}

/// Calls [`enter`] by the function's tracer.
///
/// # Safety
/// That of [`enter`].
#[cold]
#[inline(never)]
unsafe fn traced<F: Function>(
    slf: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: this thread is attached (this function's contract).
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the interpreter's arguments, unchanged; they live during the call (this function's contract).
    let vector = unsafe { Vector::new(py, values, count, names) };
    // SAFETY: not null: the module or the object, alive during the call (this function's contract).
    let object = unsafe { Borrowed::from_ptr(py, slf) };
    // SAFETY: this function's contract; the body of a call runs once.
    let mut call = || unsafe { enter::<F, false>(slf, values, count, names) };
    let Some(tracer) = F::TRACER else {
        return call();
    };
    let called = Called {
        name: F::NAME,
        array: match F::POSITIONAL.first() {
            Some(first) if first.name == "obj" => vector.first(),
            // Of a method; a function of several arrays has the module.
            _ => (!object.is_instance_of::<PyModule>()).then_some(object),
        },
        stream: (vector.named::<F>("stream")).or_else(|| vector.named::<F>("on")),
    };
    let result = catch_unwind(AssertUnwindSafe(|| tracer(py, called, &mut call)));
    result.unwrap_or_else(|payload| raise(py, panic::caught(&*payload)))
}

/// Sets the exception, releases what was dropped on the way to it, and returns NULL.
#[cold]
#[inline(never)]
pub(crate) fn raise(py: Python<'_>, error: PyErr) -> *mut ffi::PyObject {
    counted(py, || error.restore(py));
    ptr::null_mut()
}

/// Makes the function object of `module`.
pub(crate) fn function<'py, F: Function>(
    module: &Bound<'py, PyModule>,
) -> PyResult<Bound<'py, PyAny>> {
    F::intern_names(module.py());
    let definition = definition::<F>("")?;
    let name = module.name()?;
    // SAFETY: the definition is never freed, and its function has the signature of its flags; `self` of the calls is
    // the module, of which the function object holds a reference.
    let function = unsafe { ffi::PyCFunction_NewEx(definition, module.as_ptr(), name.as_ptr()) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(module.py(), function) }
}

/// Makes a method descriptor of `class`, which checks the class of the object.
pub(crate) fn method<'py, F: Function>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    F::intern_names(class.py());
    let definition = definition::<F>("$self")?;
    // SAFETY: the definition is never freed, and its function has the signature of its flags.
    let method = unsafe { ffi::PyDescr_NewMethod(class.as_type_ptr(), definition) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(class.py(), method) }
}

/// The addresses of the definitions, which CPython requires to live for ever, so that a leak checker finds them.
static DEFINITIONS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Allocates the definition, with signature and docstring separated as CPython expects.
fn definition<F: Function>(slf: &str) -> PyResult<*mut ffi::PyMethodDef> {
    let signature = text::<F>(slf, |parameter| match parameter.default {
        Some(default) => format!("{}={default}", parameter.name),
        None => parameter.name.into(),
    });
    let doc = format!("{}{signature}\n--\n\n{}", name::<F>(), docstring::<F>());
    let definition = Box::into_raw(Box::new(ffi::PyMethodDef {
        ml_name: F::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: enter::<F, true>,
        },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: CString::new(doc)?.into_raw(),
    }));
    let mut kept = DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(definition.expose_provenance());
    Ok(definition)
}
