//! The usual call of a function, without the general reading of its arguments.
//!
//! PyO3 compares every keyword's name as text and moves every value through its conversions: a third
//! of a conversion's instructions. Here a name is known by its identity, as the interpreter interns the
//! names that stand in code. Whatever is not known so (another name, a value of an unusual type, a
//! wrong number of arguments) is handed to PyO3's own function, which knows every case and every error.
//!
//! PyO3 does not count these calls as its own: a `PyErr` or `Py` dropped inside would wait for its next one.
//! What runs here drops none unless by [`release::dropping`], or on the way to an error, which ends so.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use pyo3::{Borrowed, ffi};

use crate::python::cpython::once::Once;
use crate::python::cpython::{release, thread_exit};

/// A function of ours whose usual calls are answered without PyO3.
pub(crate) trait Quick {
    /// Its name, for Python.
    const NAME: &'static CStr;

    /// The function that takes the other calls.
    fn careful() -> &'static Once<Py<PyAny>>;

    /// Answers the call.
    fn call<'py>(slf: Borrowed<'_, 'py, PyAny>, arguments: Vector<'_, 'py>) -> Answer<'py>;
}

/// How a call was answered. Two words, which fit registers.
pub(crate) enum Answer<'py> {
    /// By this object.
    Object(Bound<'py, PyAny>),
    /// By an exception, which is set.
    Raised,
    /// Not at all, with nothing done: the other function takes it.
    Unusual,
}

impl<'py> Answer<'py> {
    /// Sets the exception; all that was dropped on the way to it ends now.
    #[cold]
    #[inline(never)]
    pub(crate) fn raise(py: Python<'py>, error: PyErr) -> Self {
        release::dropping(|| error.restore(py));
        Self::Raised
    }

    #[inline(always)]
    pub(crate) fn from_result<T>(py: Python<'py>, result: PyResult<Bound<'py, T>>) -> Self {
        match result {
            Ok(object) => Self::Object(object.into_any()),
            Err(error) => Self::raise(py, error),
        }
    }
}

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

/// An argument's value; `None` where it is not given, or given as `None`.
pub(crate) type Value<'a, 'py> = Option<Borrowed<'a, 'py, PyAny>>;

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

    /// The values, positional and named.
    fn all(&self) -> &'a [*mut ffi::PyObject] {
        let length = self.positional + self.named_count();
        if length == 0 {
            return &[];
        }
        // SAFETY: so many values (`new`).
        unsafe { std::slice::from_raw_parts(self.values, length) }
    }

    #[inline(always)]
    fn named_count(&self) -> usize {
        if self.names.is_null() {
            return 0;
        }
        // SAFETY: a tuple (`new`).
        unsafe { tuple_len(self.names) }.cast_unsigned()
    }

    /// One of the values.
    ///
    /// # Safety
    /// There are more of them than `at`.
    #[inline(always)]
    unsafe fn value(&self, at: usize) -> Borrowed<'a, 'py, PyAny> {
        // SAFETY: by this function's contract.
        let place = unsafe { self.values.add(at) };
        // SAFETY: as above.
        let value = unsafe { *place };
        // SAFETY: an argument, which the caller keeps alive during `'a`.
        unsafe { Borrowed::from_ptr(self.py, value) }
    }

    /// The only positional argument; `None` where there are more or fewer.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<Borrowed<'a, 'py, PyAny>> {
        if self.positional != 1 {
            return None;
        }
        // SAFETY: there is one.
        Some(unsafe { self.value(0) })
    }

    /// The argument of a call that has no other, nor keywords.
    #[inline(always)]
    pub(crate) fn sole(&self) -> Option<Borrowed<'a, 'py, PyAny>> {
        self.only().filter(|_| self.names.is_null())
    }

    /// Whether there is no positional argument.
    #[inline]
    pub(crate) fn is_named_only(&self) -> bool {
        self.positional == 0
    }

    /// The keywords: name and value.
    #[inline(always)]
    pub(crate) fn named(
        &self,
    ) -> impl Iterator<Item = (*mut ffi::PyObject, Borrowed<'a, 'py, PyAny>)> {
        let this = *self;
        (0..self.named_count()).map(move |at| {
            // SAFETY: there are so many names.
            let name = unsafe { tuple_item(this.names, at.cast_signed()) };
            // SAFETY: there are as many values after the positional ones.
            (name, unsafe { this.value(this.positional + at) })
        })
    }
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
    // SAFETY: the contract of this function.
    let item = unsafe { ffi::PyTuple_GetItem(tuple, index) };
    #[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
    // SAFETY: the contract of this function.
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
    // SAFETY: the contract of this function.
    let length = unsafe { ffi::PyTuple_Size(tuple) };
    #[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy)))]
    // SAFETY: the contract of this function.
    let length = unsafe { ffi::PyTuple_GET_SIZE(tuple) };
    length
}

/// A bool argument: `None` for what is neither True nor False, `Some(None)` where it is not given.
#[inline]
#[expect(clippy::option_option, reason = "not usual, or usual and not given")]
pub(crate) fn flag(value: Value<'_, '_>) -> Option<Option<bool>> {
    let Some(value) = value else {
        return Some(None);
    };
    // SAFETY: reads the addresses of statics.
    let (yes, no) = (unsafe { ffi::Py_True() }, unsafe { ffi::Py_False() });
    let is_true = value.as_ptr() == yes;
    (is_true || value.as_ptr() == no).then_some(Some(is_true))
}

/// What the interpreter calls.
///
/// # Safety
/// That of `METH_FASTCALL | METH_KEYWORDS`: see [`Vector::new`]; the thread is attached, and `slf` lives.
unsafe extern "C" fn enter<Q: Quick>(
    slf: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    thread_exit::stays();
    // SAFETY: the interpreter calls this attached.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: as the interpreter calls.
    let arguments = unsafe { Vector::new(py, values, count, names) };
    // SAFETY: the module or the object, alive during the call.
    let slf = unsafe { Borrowed::from_ptr(py, slf) };
    let answer = catch_unwind(AssertUnwindSafe(|| match Q::call(slf, arguments) {
        Answer::Unusual => Answer::from_result(py, careful::<Q>(slf, arguments)),
        answer => answer,
    }));
    match answer.unwrap_or_else(|_| panicked(py)) {
        Answer::Object(object) => object.into_ptr(),
        Answer::Raised | Answer::Unusual => ptr::null_mut(),
    }
}

#[cold]
fn panicked(py: Python<'_>) -> Answer<'_> {
    Answer::raise(py, PanicException::new_err("panic from Rust code"))
}

/// Reads the keywords of a [`Vector`] into variables of their names, each an option; leaves the function with
/// [`Answer::Unusual`] where there is another name, or one that is not interned. `None` is not given, except
/// to those before the bar.
macro_rules! keywords {
    ($arguments:expr, $names:expr; $($kept:ident),* | $($name:ident),*) => {
        $(let mut $kept = None;)*
        $(let mut $name = None;)*
        for (name, value) in $arguments.named() {
            $(if name == $names.$kept.as_ptr() { $kept = Some(value); } else)*
            $(if name == $names.$name.as_ptr() { $name = (!value.is_none()).then_some(value); } else)*
            { return Answer::Unusual; }
        }
        $(let $kept = $kept;)*
        $(let $name = $name;)*
    };
}
pub(crate) use keywords;

/// Makes the same call of PyO3's function.
#[cold]
#[inline(never)]
fn careful<'py, Q: Quick>(
    slf: Borrowed<'_, 'py, PyAny>,
    arguments: Vector<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = slf.py();
    let Some(function) = Q::careful().get() else {
        return Err(pyo3::exceptions::PyRuntimeError::new_err(
            "a function that was never registered",
        ));
    };
    // A method is called with its object; a function of the module is not.
    let descriptor = (&raw mut ffi::PyMethodDescr_Type).cast();
    // SAFETY: a living object.
    let is_method = unsafe { ffi::Py_IS_TYPE(function.as_ptr(), descriptor) } != 0;
    let mut values = Vec::with_capacity(arguments.all().len() + 1);
    values.extend(is_method.then_some(slf.as_ptr()));
    values.extend_from_slice(arguments.all());
    // SAFETY: the arguments of this very call, and the object before them where one is wanted.
    let answer = unsafe {
        ffi::PyObject_Vectorcall(
            function.as_ptr(),
            values.as_ptr(),
            arguments.positional + usize::from(is_method),
            arguments.names,
        )
    };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, answer) }
}

/// What stands before a function of the module: added in place of `function`.
///
/// # Errors
/// What Python raises.
pub(crate) fn add_function<Q: Quick>(
    module: &Bound<'_, PyModule>,
    function: Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = module.py();
    let definition = definition::<Q>(&function)?;
    let name = module.name()?;
    // SAFETY: the definition lives for ever and fits its flags; the module is the `self` of the calls.
    let quick = unsafe { ffi::PyCFunction_NewEx(definition, module.as_ptr(), name.as_ptr()) };
    // SAFETY: a new reference, or NULL with an exception set.
    let quick = unsafe { Bound::from_owned_ptr_or_err(py, quick) }?;
    Q::careful().set(function.unbind());
    module.add(PyString::new(py, &Q::NAME.to_string_lossy()), quick)
}

/// What stands before a method: replaces it on its class.
///
/// # Errors
/// What Python raises.
pub(crate) fn add_method<Q: Quick>(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    let name = PyString::new(py, &Q::NAME.to_string_lossy());
    let method = class.getattr(&name)?;
    let definition = definition::<Q>(&method)?;
    // SAFETY: the definition lives for ever and fits its flags; the descriptor checks its object's class.
    let quick = unsafe { ffi::PyDescr_NewMethod(class.as_type_ptr(), definition) };
    // SAFETY: a new reference, or NULL with an exception set.
    let quick = unsafe { Bound::from_owned_ptr_or_err(py, quick) }?;
    Q::careful().set(method.unbind());
    class.setattr(name, quick)
}

/// The definitions live for ever, as CPython demands; by their addresses here a leak checker finds them.
static DEFINITIONS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The definition, with the signature and the text of `function`.
fn definition<Q: Quick>(function: &Bound<'_, PyAny>) -> PyResult<*mut ffi::PyMethodDef> {
    let signature: String = function.getattr("__text_signature__")?.extract()?;
    let text: String = function.getattr("__doc__")?.extract()?;
    let name = Q::NAME.to_string_lossy();
    let doc = CString::new(format!("{name}{signature}\n--\n\n{text}"))?;
    let definition = Box::into_raw(Box::new(ffi::PyMethodDef {
        ml_name: Q::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: enter::<Q>,
        },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.into_raw(),
    }));
    let mut kept = DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(definition.expose_provenance());
    Ok(definition)
}
