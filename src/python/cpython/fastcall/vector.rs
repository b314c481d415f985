//! Reads the arguments of a vectorcall by the declaration of the function.

use std::marker::PhantomData;

use once_cell::race::OnceBox;
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{Borrowed, ffi};

use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::errors;
use crate::python::cpython::fastcall::declaration::{Parameter, Signature, name};
use crate::python::cpython::int::repr;
use crate::python::cpython::tuple::{tuple_item, tuple_len};

/// An argument; `None` if it is not given, or given as the `None` that is its default.
pub(crate) type Value<'a, 'py> = Option<Borrowed<'a, 'py, PyAny>>;

/// Returns the bits of the parameters whose default is `None`: for these a given `None` counts as not given.
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

/// The arguments of a call, borrowed from the caller.
#[derive(Clone, Copy)]
pub(crate) struct Vector<'a, 'py> {
    py: Python<'py>,
    /// The positional values, then those of `names`.
    values: *const *mut ffi::PyObject,
    positional: usize,
    /// An exact tuple, or NULL.
    names: *mut ffi::PyObject,
    lives: PhantomData<&'a ffi::PyObject>,
}

/// Writes a keyword's value, and returns its bit; does nothing for a `None` that is the default.
#[inline(always)]
fn put<'a, 'py, S: Signature>(
    slot: &mut Value<'a, 'py>,
    index: usize,
    value: Borrowed<'a, 'py, PyAny>,
) -> u32 {
    let bit = 1 << index;
    if const { defaults_to_none(S::KEYWORDS) } & bit != 0 && value.is_none() {
        return 0;
    }
    *slot = Some(value);
    bit
}

impl<'a, 'py> Vector<'a, 'py> {
    /// # Safety
    /// As for a function of `METH_FASTCALL | METH_KEYWORDS`: `names` is NULL or a tuple of str, and `values` points
    /// to `count` objects and then one for each name; all live during `'a`.
    pub(super) unsafe fn new(
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

    /// Returns one of the values.
    ///
    /// # Safety
    /// `at` is below the number of values.
    #[inline(always)]
    unsafe fn value(&self, at: usize) -> Borrowed<'a, 'py, PyAny> {
        // SAFETY: within the values (this function's contract).
        let place = unsafe { self.values.add(at) };
        // SAFETY: an element of the values, which may be read during `'a` (`new`).
        let value = unsafe { *place };
        // SAFETY: an argument is not null, and the caller keeps it alive during `'a` (`new`).
        unsafe { Borrowed::from_ptr(self.py, value) }
    }

    /// Returns the `N` positional arguments.
    ///
    /// # Errors
    /// `TypeError` for another number of them.
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

    /// Writes the keyword arguments to `values`, in the order of their declaration, and returns the bits of those
    /// that are given. Only for a call that has keywords.
    ///
    /// # Errors
    /// `TypeError` for an unexpected keyword.
    #[inline(always)]
    pub(crate) fn keywords<S: Signature, const N: usize>(
        &self,
        names: &'static Keywords<N>,
        values: &mut [Value<'a, 'py>; N],
    ) -> PyResult<u32> {
        let names = names.interned::<S>(self.py);
        // Most calls name keywords in the order of their declaration: one pass finds them all.
        let (mut which, mut rest) = (0, names.iter().zip(values.iter_mut()).enumerate());
        for at in 0..self.keyword_count() {
            // SAFETY: `at` is below the number of keywords.
            let (given, value) = unsafe { self.keyword(at) };
            match rest.find(|(_, (name, _))| name.as_ptr() == given) {
                Some((index, (_, slot))) => which |= put::<S>(slot, index, value),
                None => return self.keywords_in_any_order::<S, N>(names, values),
            }
        }
        Ok(which)
    }

    /// As [`keywords`](Self::keywords), in any order and by any object of the same text.
    #[cold]
    #[inline(never)]
    fn keywords_in_any_order<S: Signature, const N: usize>(
        &self,
        names: &[Py<PyString>; N],
        values: &mut [Value<'a, 'py>; N],
    ) -> PyResult<u32> {
        let mut which = 0;
        for at in 0..self.keyword_count() {
            // SAFETY: `at` is below the number of keywords.
            let (given, value) = unsafe { self.keyword(at) };
            let index = match names.iter().position(|name| name.as_ptr() == given) {
                Some(index) => index,
                None => self.by_text::<S>(given, names, value)?,
            };
            which |= put::<S>(&mut values[index], index, value);
        }
        Ok(which)
    }

    /// The number of keywords of a call that has any.
    #[inline(always)]
    fn keyword_count(&self) -> usize {
        // SAFETY: a tuple (`new`), as there are keywords.
        unsafe { tuple_len(self.names) }.cast_unsigned()
    }

    /// A keyword's name and its value.
    ///
    /// # Safety
    /// `at` is below the number of keywords.
    #[inline(always)]
    unsafe fn keyword(&self, at: usize) -> (*mut ffi::PyObject, Borrowed<'a, 'py, PyAny>) {
        // SAFETY: a tuple (`new`), and `at` is below its length (this function's contract).
        let name = unsafe { tuple_item(self.names, at.cast_signed()) };
        // SAFETY: there is one value for each name after the positional ones (`new`), and `at` is below the number
        // of names (this function's contract).
        (name, unsafe { self.value(self.positional + at) })
    }

    /// Finds the name of the same text as `given`, which has another address than all of them.
    ///
    /// # Errors
    /// `TypeError` if there is none.
    #[cold]
    #[inline(never)]
    fn by_text<S: Signature>(
        &self,
        given: *mut ffi::PyObject,
        names: &[Py<PyString>],
        value: Borrowed<'a, 'py, PyAny>,
    ) -> PyResult<usize> {
        // SAFETY: an item of the tuple of names: not null, and alive during the call.
        let given = unsafe { Borrowed::from_ptr(self.py, given) };
        for (index, name) in names.iter().enumerate() {
            if given.eq(name.bind(self.py))? {
                return Ok(index);
            }
        }
        Err(errors::unexpected(
            &given.to_string(),
            &repr(&value),
            &no_such_keyword::<S>(&given),
        ))
    }

    /// Returns the first positional argument, if there is one.
    #[cold]
    pub(crate) fn first(&self) -> Option<Borrowed<'a, 'py, PyAny>> {
        // SAFETY: there is one positional value at least.
        (self.positional > 0).then(|| unsafe { self.value(0) })
    }

    /// Returns the argument of a parameter, if it is given, and not as None.
    #[cold]
    pub(crate) fn named<S: Signature>(&self, name: &str) -> Value<'a, 'py> {
        let is_named = |parameter: &Parameter| parameter.name == name;
        let value = match S::POSITIONAL.iter().position(is_named) {
            // SAFETY: `at` is below the number of positional values.
            Some(at) if at < self.positional => Some(unsafe { self.value(at) }),
            _ => self.keyword_named(name),
        };
        value.filter(|value| !value.is_none())
    }

    #[cold]
    #[inline(never)]
    fn miscounted<S: Signature>(&self) -> PyErr {
        let (function, wanted, given) = (name::<S>(), S::POSITIONAL.len(), self.positional);
        if let Some(parameter) = S::POSITIONAL.get(given) {
            let kind = if self.has_keyword(parameter.name) {
                "is positional-only, and was passed as a keyword argument"
            } else {
                "is positional"
            };
            let field = Field::Argument(parameter.name);
            return Violation::new(Rule::ArgumentMissing, field, "")
                .with_hint(format!("{function}() has no default for it; it {kind}"))
                .into();
        }
        let plural = if wanted == 1 { "" } else { "s" };
        let found = format_args!("{given} positional arguments");
        Violation::new(Rule::ArgumentCount, Field::Arguments, found)
            .with_hint(format!(
                "{function}() takes {wanted} positional argument{plural}{}",
                keywords_of::<S>()
            ))
            .into()
    }

    /// Whether the call has a keyword of this name.
    #[cold]
    fn has_keyword(&self, name: &str) -> bool {
        self.keyword_named(name).is_some()
    }

    /// Returns the value of the keyword of this name. Makes no object: the tracer asks outside of what catches a panic.
    #[cold]
    fn keyword_named(&self, name: &str) -> Option<Borrowed<'a, 'py, PyAny>> {
        if self.names.is_null() {
            return None;
        }
        (0..self.keyword_count()).find_map(|at| {
            // SAFETY: `at` is below the number of keywords.
            let (given, value) = unsafe { self.keyword(at) };
            // SAFETY: an item of the tuple of names: not null, and alive during the call.
            let given = unsafe { Borrowed::from_ptr(self.py, given) };
            let is_it = given.cast::<PyString>().is_ok_and(|given| *given == *name);
            is_it.then_some(value)
        })
    }
}

/// Names the keywords that a function has, for a call that used another one.
#[cold]
fn no_such_keyword<S: Signature>(given: &Bound<'_, PyAny>) -> String {
    let function = name::<S>();
    let is_given = |parameter: &&Parameter| given.eq(parameter.name).unwrap_or(false);
    match S::POSITIONAL.iter().find(is_given) {
        Some(parameter) => format!(
            "{function}() got a positional-only argument passed as keyword argument: '{}'",
            parameter.name
        ),
        None => format!(
            "{function}() got an unexpected keyword argument '{given}'{}{}",
            keywords_of::<S>(),
            copies_instead::<S>(given)
        ),
    }
}

/// Names the call that copies, for a keyword that would ask a function for a copy that imports and copies nothing.
#[cold]
fn copies_instead<S: Signature>(given: &Bound<'_, PyAny>) -> &'static str {
    let has = |name| S::KEYWORDS.iter().any(|keyword| keyword.name == name);
    match given.to_string().as_str() {
        "device" if has("dl_device") => "; dl_device= asks for a copy there",
        "device" if has("device_id") => "; cd.from_dlpack(obj, device=...) copies",
        "copy" if has("device_id") => "; cd.from_dlpack(obj, copy=True) copies",
        _ => "",
    }
}

/// Lists the keywords of a function, as the end of a sentence.
#[cold]
fn keywords_of<S: Signature>() -> String {
    let names: Vec<_> = S::KEYWORDS.iter().map(|keyword| keyword.name).collect();
    match names.is_empty() {
        true => "; it has no keywords".to_owned(),
        false => format!("; its keywords are {}", names.join(", ")),
    }
}

/// Builds the error for a missing required keyword.
#[cold]
pub(crate) fn missing<S: Signature>(keyword: &'static str) -> PyErr {
    let hint = format!("{}() has no default for it", name::<S>());
    Violation::new(Rule::ArgumentMissing, Field::Argument(keyword), "")
        .with_hint(hint)
        .into()
}
