//! The open `policy` and `use_stream` blocks of a context.
//!
//! One context variable holds them, as `decimal` and `numpy.errstate` hold theirs: a coroutine that suspends inside a
//! block takes its setting with it. The value is a tuple, outermost block first, which is never changed, as copies of
//! the context share it.
//!
//! **A road not taken**: to set the variable to the block's value and to reset it at the end. Blocks of generators end
//! in any order, and the one that ends first would restore what was before the other.

use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::race::OnceBox;
use pyo3::PyClass;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::python::cpython::collector::WithoutCollections;
use crate::python::cpython::context_var::ContextVar;
use crate::python::cpython::new::new_tuple;
use crate::python::cpython::release;
use crate::python::cpython::thread_exit::entries;

/// How many [`Entered`] the process has. With none, no context needs to be read: the thread that could read one has
/// got its context from a thread that has counted it.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

/// An open block, in every context that has it.
#[pyclass(module = "cai_dlpack", frozen)]
pub(crate) struct Entered {
    block: Py<PyAny>,
    /// A token of [`context`], of the context in which the block was entered.
    token: Py<PyAny>,
}

entries! {
impl Entered {
    /// Shows the collector block and token: the token refers to its context, which holds this.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.block)?;
        visit.call(&self.token)
    }
}
}

impl Entered {
    fn new<'py>(block: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = block.py();
        let token = context(py)?.set(py.None().bind(py))?.unbind();
        ENTERED.fetch_add(1, Ordering::Relaxed);
        let block = block.clone().unbind();
        Bound::new(py, Self { block, token })
    }

    /// Refuses another context than that in which the block was entered, which may be a copy of it.
    ///
    /// # Errors
    /// `RuntimeError`.
    fn check_context(&self, py: Python<'_>) -> PyResult<()> {
        if let Err(error) = context(py)?.reset(self.token.bind(py)) {
            // CPython compares the contexts before it needs memory.
            if !error.is_instance_of::<PyMemoryError>(py) {
                let refused = entered_elsewhere();
                refused.set_cause(py, Some(error));
                return Err(refused);
            }
            release::drop_now(error);
        }
        Ok(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.fetch_sub(1, Ordering::Relaxed);
    }
}

fn variable(py: Python<'_>) -> PyResult<&'static ContextVar> {
    static VARIABLE: OnceBox<ContextVar> = OnceBox::new();
    VARIABLE.get_or_try_init(|| ContextVar::new(py, "cai_dlpack.blocks").map(Box::new))
}

/// A variable whose tokens alone are used: they tell a context from its copies. Resetting [`variable`] itself would bring
/// back the blocks of another time, which a second step, that may fail, would have to mend.
fn context(py: Python<'_>) -> PyResult<&'static ContextVar> {
    static VARIABLE: OnceBox<ContextVar> = OnceBox::new();
    VARIABLE.get_or_try_init(|| ContextVar::new(py, "cai_dlpack.context").map(Box::new))
}

/// Returns the blocks that are open in the current context, outermost first.
fn open(py: Python<'_>) -> PyResult<Vec<Bound<'_, Entered>>> {
    let Some(value) = variable(py)?.get(py)? else {
        return Ok(Vec::new());
    };
    let value = value.cast_into::<PyTuple>()?;
    value.iter().map(|block| Ok(block.cast_into()?)).collect()
}

/// Opens `block` in the current context.
///
/// # Errors
/// Out of memory: then nothing has changed.
pub(crate) fn enter(block: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = block.py();
    // A finaliser may enter and leave blocks, too.
    let _collections = WithoutCollections::begin(py);
    let entered = Entered::new(block)?;
    let mut open = open(py)?;
    open.push(entered);
    set(py, open)
}

/// Closes the innermost open block that is `block`.
///
/// # Errors
/// `RuntimeError` if it was entered in another context, or nowhere; out of memory. Nothing has changed then.
pub(crate) fn leave(block: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = block.py();
    // Outlives the guard: its drop may run a finaliser.
    let entered;
    let _collections = WithoutCollections::begin(py);
    let before = variable(py)?.get(py)?;
    let mut open = open(py)?;
    let is_it = |entered: &Bound<'_, Entered>| entered.get().block.is(block);
    let at = open.iter().rposition(is_it).ok_or_else(entered_elsewhere)?;
    entered = open.remove(at);
    set(py, open)?;
    // Last, as a token is used once, and nothing fails after it.
    entered.get().check_context(py).inspect_err(|_| {
        let restored = before.map(|before| variable(py)?.set(&before).map(drop));
        if let Some(Err(error)) = restored {
            release::drop_now(error);
        }
    })
}

fn set<'py>(py: Python<'py>, open: Vec<Bound<'py, Entered>>) -> PyResult<()> {
    let open = new_tuple(py, open.into_iter().map(Ok))?;
    let Err(error) = variable(py)?.set(open.as_any()) else {
        return Ok(());
    };
    // CPython may set the value, and then lack the memory for what it does last.
    match variable(py)?.get(py)? {
        Some(value) if value.is(&open) => {
            release::drop_now(error);
            Ok(())
        }
        _ => Err(error),
    }
}

#[cold]
fn entered_elsewhere() -> PyErr {
    PyRuntimeError::new_err(
        "this block was not entered in the current context (task or thread), and cannot be left here",
    )
}

/// Whether any block is open in the process; if not, nothing is read.
#[inline]
pub(crate) fn are_open() -> bool {
    ENTERED.load(Ordering::Relaxed) != 0
}

/// Returns what `fact` finds first in the open blocks of class `B`, innermost first. Costs one load if no block is
/// open in the process.
///
/// # Errors
/// None in practice: those of reading the context variable.
#[inline]
pub(crate) fn innermost<B, T>(py: Python<'_>, fact: impl Fn(&B) -> Option<T>) -> PyResult<Option<T>>
where
    B: PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Sync,
{
    match are_open() {
        false => Ok(None),
        true => innermost_of_context(py, fact),
    }
}

#[cold]
fn innermost_of_context<B, T>(py: Python<'_>, fact: impl Fn(&B) -> Option<T>) -> PyResult<Option<T>>
where
    B: PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Sync,
{
    let Some(value) = variable(py)?.get(py)? else {
        return Ok(None);
    };
    let of_block = |entered: Bound<'_, PyAny>| -> Option<T> {
        let entered = entered.cast::<Entered>().ok()?;
        let block = entered.get().block.bind(py).cast::<B>().ok()?;
        fact(block.get())
    };
    Ok(value.cast::<PyTuple>()?.iter().rev().find_map(of_block))
}
