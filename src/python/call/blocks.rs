//! The open `policy` and `use_stream` blocks of a context.
//!
//! One context variable holds them, as `decimal` and `numpy.errstate` hold theirs: a coroutine that suspends inside a
//! block takes its setting with it. The value is a tuple, outermost block first, which is never changed, as copies of
//! the context share it.
//!
//! **A road not taken**: to set the variable to the block's value and to reset it at the end. Blocks of generators end
//! in any order, and the one that ends first would restore what was before the other.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::race::OnceBox;
use pyo3::PyClass;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::python::cpython::context_var::ContextVar;
use crate::python::cpython::new::new_tuple;
use crate::python::cpython::thread_exit::entries;

/// How many [`Entered`] the process has. With none, no context needs to be read: the thread that could read one has
/// got its context from a thread that has counted it.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

/// An open block, in every context that has it.
#[pyclass(module = "cai_dlpack", frozen)]
struct Entered {
    block: Py<PyAny>,
    /// The token of the context in which the block was entered; set once.
    token: OnceLock<Py<PyAny>>,
}

entries! {
impl Entered {
    /// Shows the collector block and token: the token refers to its context, which holds this.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.block)?;
        self.token.get().map_or(Ok(()), |token| visit.call(token))
    }
}
}

impl Entered {
    fn new<'py>(block: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        ENTERED.fetch_add(1, Ordering::Relaxed);
        let (block, py) = (block.clone().unbind(), block.py());
        let token = OnceLock::new();
        Bound::new(py, Self { block, token })
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
/// Out of memory.
pub(crate) fn enter(block: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = block.py();
    let entered = Entered::new(block)?;
    let mut open = open(py)?;
    open.push(entered.clone());
    let token = variable(py)?.set(new_tuple(py, open.into_iter().map(Ok))?.as_any())?;
    // Not set yet: no other context has this block.
    let _ = entered.get().token.set(token.unbind());
    Ok(())
}

/// Closes the innermost open block that is `block`.
///
/// # Errors
/// `RuntimeError` if it was entered in another context, or nowhere: nothing has changed then.
pub(crate) fn leave(block: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = block.py();
    let mut open = open(py)?;
    let is_it = |entered: &Bound<'_, Entered>| entered.get().block.is(block);
    let at = open.iter().rposition(is_it).ok_or_else(entered_elsewhere)?;
    let entered = open.remove(at);
    let token = entered.get().token.get().ok_or_else(entered_elsewhere)?;
    // Refused in a copy of the context in which the block was entered.
    variable(py)?.reset(token.bind(py)).map_err(|error| {
        if error.is_instance_of::<PyMemoryError>(py) {
            return error;
        }
        let refused = entered_elsewhere();
        refused.set_cause(py, Some(error));
        refused
    })?;
    // The token remembers the blocks of its time, of which some may have ended.
    variable(py)?
        .set(new_tuple(py, open.into_iter().map(Ok))?.as_any())
        .map(drop)
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
