//! Context variables (PEP 567), by the C API, which the stable ABI leaves out, and otherwise by their methods.

#[cfg(not(Py_LIMITED_API))]
use pyo3::ffi;
use pyo3::prelude::*;

/// A `contextvars.ContextVar`: each asyncio task has its own value, and each thread outside of tasks.
pub(crate) struct ContextVar(Py<PyAny>);

impl ContextVar {
    /// # Errors
    /// Out of memory; the failed import of `contextvars`.
    pub(crate) fn new(py: Python<'_>, name: &str) -> PyResult<Self> {
        let class = py.import("contextvars")?.getattr("ContextVar")?;
        Ok(Self(class.call1((name,))?.unbind()))
    }

    /// Returns the value in the current context; `None` if it was never set there.
    ///
    /// # Errors
    /// None that CPython documents: only the look-up itself can fail.
    #[cfg(not(Py_LIMITED_API))]
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut value = std::ptr::null_mut();
        // SAFETY: the GIL is held (`py`), the first argument is a context variable (`new`), NULL is no default, and
        // `value` is valid for a write.
        if unsafe { ffi::PyContextVar_Get(self.0.as_ptr(), std::ptr::null_mut(), &raw mut value) }
            < 0
        {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a new reference, or NULL if there is no value.
        Ok(unsafe { Bound::from_owned_ptr_or_opt(py, value) })
    }

    /// Returns the value in the current context; `None` if it was never set there.
    ///
    /// # Errors
    /// None that CPython documents: only the call itself can fail.
    #[cfg(Py_LIMITED_API)]
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.0.bind(py).call_method1("get", (py.None(),))?;
        Ok((!value.is_none()).then_some(value))
    }

    /// Sets the value in the current context, and returns the token for [`reset`](Self::reset).
    ///
    /// # Errors
    /// Out of memory.
    #[cfg(not(Py_LIMITED_API))]
    pub(crate) fn set<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the GIL is held (`value`); a context variable (`new`) and a living object.
        let token = unsafe { ffi::PyContextVar_Set(self.0.as_ptr(), value.as_ptr()) };
        // SAFETY: a new reference, or NULL with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(value.py(), token) }
    }

    /// Sets the value in the current context, and returns the token for [`reset`](Self::reset).
    ///
    /// # Errors
    /// Out of memory.
    #[cfg(Py_LIMITED_API)]
    pub(crate) fn set<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.0.bind(value.py()).call_method1("set", (value,))
    }

    /// Restores the value that `token` remembers.
    ///
    /// # Errors
    /// `ValueError` in another context than the one in which the token was made, `RuntimeError` for a used token:
    /// nothing has changed then.
    #[cfg(not(Py_LIMITED_API))]
    pub(crate) fn reset(&self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        // SAFETY: the GIL is held (`token`); a context variable (`new`) and a token of it (`set`).
        match unsafe { ffi::PyContextVar_Reset(self.0.as_ptr(), token.as_ptr()) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(token.py())),
        }
    }

    /// Restores the value that `token` remembers.
    ///
    /// # Errors
    /// `ValueError` in another context than the one in which the token was made, `RuntimeError` for a used token:
    /// nothing has changed then.
    #[cfg(Py_LIMITED_API)]
    pub(crate) fn reset(&self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        let done = self.0.bind(token.py()).call_method1("reset", (token,));
        done.map(drop)
    }
}
