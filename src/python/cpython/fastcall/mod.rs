//! Python functions and methods, each declared once.
//!
//! [`signature!`] takes a function's name, parameters, defaults, types and docstring, and makes of them the
//! struct of its arguments, their interned names, the look-up of keywords, CPython's own `TypeError`s,
//! `__text_signature__`, `__doc__` and the line of the stub. PyO3's functions are not used, as they compare
//! every keyword's name as text and move every value through a conversion: a third of the instructions of a
//! conversion. Here a keyword is found by the address of its name, since the interpreter interns the names in
//! code; a name with another address is compared as text.
//!
//! Every call begins with the guard against the thread's exit ([`thread_exit`]). PyO3 does not count these
//! calls as its own, so a `PyErr` or `Py` that is dropped inside waits for PyO3's next call: drop it by
//! [`release::dropping`]. The error that a function returns is dropped so here.

use std::ffi::{CStr, CString};
use std::fmt::Write;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use once_cell::race::OnceBox;
use pyo3::exceptions::PyTypeError;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use pyo3::{Borrowed, ffi};

use crate::python::cpython::{release, thread_exit};

/// One parameter of a declared function, as [`signature!`] has it.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// Its type, as the stub says it.
    pub(crate) kind: &'static str,
    /// Its default, as Python writes it; a parameter without one is required.
    pub(crate) default: Option<&'static str>,
    /// Its description, each line as rustdoc has it (after a blank).
    pub(crate) doc: &'static [&'static str],
}

/// What [`signature!`] declares.
pub(crate) trait Signature {
    /// The name in Python.
    const NAME: &'static CStr;
    /// The docstring, each line as rustdoc has it (after a blank).
    const DOC: &'static [&'static str];
    /// The positional-only parameters, `self` not among them.
    const POSITIONAL: &'static [Parameter];
    /// The keyword-only parameters.
    const KEYWORDS: &'static [Parameter];
    /// The type of the result, as the stub says it.
    const RETURNS: &'static str;
    /// The arguments of one call, borrowed from the caller.
    type Arguments<'a, 'py>;

    /// Interns the names of the keywords. At import, as CPython's interning races with itself if several threads
    /// come at once without the GIL.
    fn intern_names(py: Python<'_>);

    /// Finds the arguments; with `BARE` of a call that has no keywords.
    ///
    /// # Errors
    /// A `TypeError` for a wrong number of arguments, a missing or an unexpected one.
    fn read<'a, 'py, const BARE: bool>(
        vector: Vector<'a, 'py>,
    ) -> PyResult<Self::Arguments<'a, 'py>>;
}

/// A declared function and its body.
pub(crate) trait Function: Signature {
    /// Runs the function. `slf` is the module, or the object of a method.
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>>;
}

/// An argument; `None` if it was not given, or given as the `None` that is its default.
pub(crate) type Value<'a, 'py> = Option<Borrowed<'a, 'py, PyAny>>;

/// The bits of the parameters whose default is `None`, so that a `None` that is given counts as not given.
const fn defaults_to_none(parameters: &[Parameter]) -> u32 {
    let (mut bits, mut at) = (0, 0);
    while at < parameters.len() {
        if let Some(default) = parameters[at].default
            && matches!(default.as_bytes(), b"None")
        {
            bits |= 1 << at;
        }
        at += 1;
    }
    bits
}

/// The names of a function's keywords, interned once.
pub(crate) struct Keywords<const N: usize>(OnceBox<[Py<PyString>; N]>);

impl<const N: usize> Keywords<N> {
    pub(crate) const fn new() -> Self {
        Self(OnceBox::new())
    }

    #[inline(always)]
    pub(crate) fn interned<S: Signature>(
        &'static self,
        py: Python<'_>,
    ) -> &'static [Py<PyString>; N] {
        self.0.get_or_init(|| {
            let intern = |at: usize| PyString::intern(py, S::KEYWORDS[at].name).unbind();
            Box::new(std::array::from_fn(intern))
        })
    }
}

/// Declares a Python function:
///
/// ```text
/// signature! {
///     /// Summary.
///     Join = join [
///         /// Views and streams.
///         items: "Iterable[CaiView | _StreamLike]",
///     ] (
///         /// The stream that waits.
///         on: "_StreamLike",
///     ) -> "list[CaiView]"
/// }
/// ```
/// The names in brackets are positional-only, those in parentheses keyword-only. The default stands as Python
/// writes it; an argument whose default is `None` reads as not given if it is `None`. The body is written as
/// `impl Function for Join`; it takes the struct of arguments, a field for each parameter.
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

/// The arguments of one call, borrowed from the caller.
#[derive(Clone, Copy)]
pub(crate) struct Vector<'a, 'py> {
    py: Python<'py>,
    /// The values: positional ones, then those of `names`.
    values: *const *mut ffi::PyObject,
    positional: usize,
    /// An exact tuple, or NULL.
    names: *mut ffi::PyObject,
    lives: PhantomData<&'a ffi::PyObject>,
}

impl<'a, 'py> Vector<'a, 'py> {
    /// # Safety
    /// As the interpreter calls `METH_FASTCALL | METH_KEYWORDS`: `names` is NULL or a tuple of str, and
    /// `values` points to `count` values and then one for each name; all live during `'a`.
    unsafe fn new(
        py: Python<'py>,
        values: *const *mut ffi::PyObject,
        count: ffi::Py_ssize_t,
        names: *mut ffi::PyObject,
    ) -> Self {
        Self {
            py,
            values,
            positional: count.cast_unsigned(),
            names,
            lives: PhantomData,
        }
    }

    /// One of the values.
    ///
    /// # Safety
    /// There are more of them than `at`.
    #[inline(always)]
    unsafe fn value(&self, at: usize) -> Borrowed<'a, 'py, PyAny> {
        // SAFETY: `values` points to more than `at` values (this function's contract).
        let place = unsafe { self.values.add(at) };
        // SAFETY: within the values, which live during `'a` (`new`).
        let value = unsafe { *place };
        // SAFETY: an argument: not null, and kept alive by the caller during `'a` (`new`).
        unsafe { Borrowed::from_ptr(self.py, value) }
    }

    /// The positional arguments, of which there must be `N`.
    #[inline(always)]
    pub(crate) fn positional<S: Signature, const N: usize>(
        &self,
    ) -> PyResult<[Borrowed<'a, 'py, PyAny>; N]> {
        if self.positional != N {
            return Err(self.miscounted::<S>());
        }
        // SAFETY: there are `N` positional values, and `at` is below `N`.
        Ok(std::array::from_fn(|at| unsafe { self.value(at) }))
    }

    /// Fills `values` with the keyword arguments, in the order of their declaration. Returns the bits of those
    /// that are given.
    ///
    /// Called if there are keywords.
    #[inline(always)]
    pub(crate) fn keywords<S: Signature, const N: usize>(
        &self,
        names: &'static Keywords<N>,
        values: &mut [Value<'a, 'py>; N],
    ) -> PyResult<u32> {
        let may_be_none = const { !defaults_to_none(S::KEYWORDS) };
        let names = names.interned::<S>(self.py);
        // SAFETY: a tuple (`new`), as there are keywords.
        let count = unsafe { tuple_len(self.names) }.cast_unsigned();
        let (mut which, mut next) = (0, 0);
        for at in 0..count {
            // SAFETY: a tuple (`new`), and `at` is below its length.
            let name = unsafe { tuple_item(self.names, at.cast_signed()) };
            // From the last one on: in a call, keywords mostly stand in the order of their declaration.
            let is_it = |candidate: &Py<PyString>| candidate.as_ptr() == name;
            let (before, after) = names.split_at(next);
            let index = match after.iter().position(is_it) {
                Some(index) => next + index,
                None => match before.iter().position(is_it) {
                    Some(index) => index,
                    None => self.by_text::<S>(name, names)?,
                },
            };
            next = index + 1;
            // SAFETY: after the positional values there is one for each name (`new`).
            let value = unsafe { self.value(self.positional + at) };
            let bit = 1 << index;
            if may_be_none & bit != 0 || !value.is_none() {
                values[index] = Some(value);
                which |= bit;
            }
        }
        Ok(which)
    }

    /// The place of the name that has the same text as `given`, whose address is none of theirs.
    ///
    /// # Errors
    /// A `TypeError` if there is none.
    #[cold]
    #[inline(never)]
    fn by_text<S: Signature>(
        &self,
        given: *mut ffi::PyObject,
        names: &[Py<PyString>],
    ) -> PyResult<usize> {
        // SAFETY: an item of the tuple of names, alive during the call.
        let given = unsafe { Borrowed::from_ptr(self.py, given) };
        for (index, name) in names.iter().enumerate() {
            if given.eq(name.bind(self.py))? {
                return Ok(index);
            }
        }
        let function = name::<S>();
        let is_positional = |parameter: &&Parameter| given.eq(parameter.name).unwrap_or(false);
        Err(PyTypeError::new_err(
            match S::POSITIONAL.iter().find(is_positional) {
                Some(parameter) => format!(
                    "{function}() got a positional-only argument passed as keyword argument: '{}'",
                    parameter.name
                ),
                None => format!(
                    "{function}() got an unexpected keyword argument '{}'",
                    &*given
                ),
            },
        ))
    }

    #[cold]
    #[inline(never)]
    fn miscounted<S: Signature>(&self) -> PyErr {
        let (function, wanted) = (name::<S>(), S::POSITIONAL.len());
        if let Some(parameter) = S::POSITIONAL.get(self.positional) {
            return PyTypeError::new_err(format!(
                "{function}() missing required positional argument: '{}'",
                parameter.name
            ));
        }
        let plural = if wanted == 1 { "" } else { "s" };
        PyTypeError::new_err(format!(
            "{function}() takes {wanted} positional argument{plural} but {} {} given",
            self.positional,
            if self.positional == 1 { "was" } else { "were" }
        ))
    }
}

/// The error for a required keyword that is not there.
#[cold]
pub(crate) fn missing<S: Signature>(keyword: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{}() missing required keyword-only argument: '{keyword}'",
        name::<S>()
    ))
}

fn name<S: Signature>() -> std::borrow::Cow<'static, str> {
    S::NAME.to_string_lossy()
}

/// An item of a tuple, borrowed.
///
/// # Safety
/// `tuple` is a tuple and `index` below its length.
#[inline]
pub(crate) unsafe fn tuple_item(
    tuple: *mut ffi::PyObject,
    index: ffi::Py_ssize_t,
) -> *mut ffi::PyObject {
    #[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
    // SAFETY: a tuple and an index below its length (this function's contract).
    let item = unsafe { ffi::PyTuple_GetItem(tuple, index) };
    #[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
    // SAFETY: a tuple and an index below its length (this function's contract).
    let item = unsafe { ffi::PyTuple_GET_ITEM(tuple, index) };
    item
}

/// The length of a tuple.
///
/// # Safety
/// `tuple` is a tuple.
#[inline]
pub(crate) unsafe fn tuple_len(tuple: *mut ffi::PyObject) -> ffi::Py_ssize_t {
    #[cfg(any(Py_LIMITED_API, PyPy, GraalPy))]
    // SAFETY: a tuple (this function's contract).
    let length = unsafe { ffi::PyTuple_Size(tuple) };
    #[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
    // SAFETY: a tuple (this function's contract).
    let length = unsafe { ffi::PyTuple_GET_SIZE(tuple) };
    length
}

/// What the interpreter calls.
///
/// # Safety
/// That of `METH_FASTCALL | METH_KEYWORDS`: see [`Vector::new`]; the thread is attached, and `slf` lives.
unsafe extern "C" fn enter<F: Function>(
    slf: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    thread_exit::guard();
    // SAFETY: the interpreter calls this attached.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the interpreter's arguments, unchanged.
    let vector = unsafe { Vector::new(py, values, count, names) };
    // SAFETY: the module or the object, alive during the call.
    let slf = unsafe { Borrowed::from_ptr(py, slf) };
    let result = catch_unwind(AssertUnwindSafe(|| {
        // A call without keywords, as most are, has a body of its own, in which all defaults are constants.
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
    result.unwrap_or_else(|_| raise(py, PanicException::new_err("panic from Rust code")))
}

/// Sets the exception, and ends what was dropped on the way to it. Returns NULL.
#[cold]
#[inline(never)]
fn raise(py: Python<'_>, error: PyErr) -> *mut ffi::PyObject {
    release::dropping(|| error.restore(py));
    ptr::null_mut()
}

/// The function as an object of `module`.
///
/// # Errors
/// What CPython raises.
pub(crate) fn function<'py, F: Function>(
    module: &Bound<'py, PyModule>,
) -> PyResult<Bound<'py, PyAny>> {
    F::intern_names(module.py());
    let definition = definition::<F>("")?;
    let name = module.name()?;
    // SAFETY: the definition lives for ever and fits its flags; the module is the `self` of the calls.
    let function = unsafe { ffi::PyCFunction_NewEx(definition, module.as_ptr(), name.as_ptr()) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(module.py(), function) }
}

/// The function as a method of `class`: a descriptor, which checks the class of the object.
///
/// # Errors
/// What CPython raises.
pub(crate) fn method<'py, F: Function>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    F::intern_names(class.py());
    let definition = definition::<F>("$self, /")?;
    // SAFETY: the definition lives for ever and fits its flags.
    let method = unsafe { ffi::PyDescr_NewMethod(class.as_type_ptr(), definition) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(class.py(), method) }
}

/// The definitions live for ever, as CPython demands; by their addresses here a leak checker finds them.
static DEFINITIONS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The definition, with the signature and the docstring as CPython parts them.
fn definition<F: Function>(slf: &str) -> PyResult<*mut ffi::PyMethodDef> {
    let signature = text::<F>(slf, |parameter| match parameter.default {
        Some(default) => format!("{}={default}", parameter.name),
        None => parameter.name.into(),
    });
    let doc = format!("{}{signature}\n--\n\n{}", name::<F>(), docstring::<F>());
    let definition = Box::into_raw(Box::new(ffi::PyMethodDef {
        ml_name: F::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: enter::<F>,
        },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: CString::new(doc)?.into_raw(),
    }));
    let mut kept = DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(definition.expose_provenance());
    Ok(definition)
}

/// The docstring in numpydoc's form: what is said of the function, with the parameters before the first section.
fn docstring<S: Signature>() -> String {
    let lines: Vec<_> = S::DOC.iter().map(|line| unindented(line)).collect();
    let is_rule = |line: &&str| line.len() > 2 && line.bytes().all(|byte| byte == b'-');
    let sections = match lines.iter().position(is_rule) {
        Some(rule) => rule.saturating_sub(1),
        None => lines.len(),
    };
    let (head, tail) = lines.split_at(sections);
    let mut parts = vec![head.join("\n")];
    let parameters: String = S::POSITIONAL.iter().chain(S::KEYWORDS).map(entry).collect();
    parts.extend((!parameters.is_empty()).then(|| format!("Parameters\n----------\n{parameters}")));
    parts.extend((!tail.is_empty()).then(|| tail.join("\n")));
    let parts: Vec<_> = parts.iter().map(|part| part.trim()).collect();
    parts.join("\n\n")
}

/// A parameter's entry in the section of parameters.
fn entry(parameter: &Parameter) -> String {
    let Parameter { name, default, .. } = parameter;
    let kind = parameter.kind.replace('_', "");
    let mut text = match default {
        Some(default) => format!("{name} : {kind}, default {default}\n"),
        None => format!("{name} : {kind}\n"),
    };
    for line in parameter.doc {
        let _ = writeln!(text, "    {}", unindented(line));
    }
    text
}

fn unindented(line: &'static str) -> &'static str {
    line.strip_prefix(' ').unwrap_or(line)
}

/// The line of the stub, with `slf` as its first parameter.
pub(crate) fn stub<S: Signature>(slf: &str) -> String {
    let parameters = text::<S>(slf, |parameter| {
        let Parameter { name, kind, .. } = parameter;
        match parameter.default {
            Some(default) => format!("{name}: {kind} = {default}"),
            None => format!("{name}: {kind}"),
        }
    });
    format!("def {}{parameters} -> {}: ...", name::<S>(), S::RETURNS)
}

/// The parameters in parentheses, with the marks between the kinds.
fn text<S: Signature>(slf: &str, parameter: impl Fn(&Parameter) -> String) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend((!slf.is_empty()).then(|| slf.to_owned()));
    parts.extend(S::POSITIONAL.iter().map(&parameter));
    parts.extend((!S::POSITIONAL.is_empty()).then(|| "/".to_owned()));
    parts.extend((!S::KEYWORDS.is_empty()).then(|| "*".to_owned()));
    parts.extend(S::KEYWORDS.iter().map(&parameter));
    format!("({})", parts.join(", "))
}
