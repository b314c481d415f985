//! The open `policy` and `use_stream` blocks of a context.
//!
//! One context variable holds them, as `decimal` and `numpy.errstate` hold theirs: a coroutine that suspends inside a
//! block takes its setting with it. The value is a tuple, outermost block first, which is never changed, as copies of
//! the context share it.
//!
//! **A road not taken**: to set the variable to the block's value and to reset it at the end. Blocks of generators end
//! in any order, and the one that ends first would restore what was before the other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use once_cell::race::OnceBox;
use pyo3::PyClass;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PyTuple};

use crate::python::cpython::collector::WithoutCollections;
use crate::python::cpython::context_var::ContextVar;
use crate::python::cpython::new::{new_str, new_tuple};
use crate::python::cpython::release;
use crate::python::cpython::thread_exit::entries;

/// How many [`Entered`] the process has. With none, no context needs to be read: the thread that could read one has
/// got its context from a thread that has counted it.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

/// An open block, in every context that has it.
#[pyclass(module = "cai_dlpack", frozen)]
pub(crate) struct Entered {
    block: Py<PyAny>,
    /// A [`token`] of the context in which the block was entered.
    token: Py<PyAny>,
    /// Whether it has ended, and is still there: in a copy of its context, or as there was no memory to take it out.
    is_over: AtomicBool,
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
        let token = token(py)?.unbind();
        ENTERED.fetch_add(1, Ordering::Relaxed);
        let (block, is_over) = (block.clone().unbind(), AtomicBool::new(false));
        Bound::new(
            py,
            Self {
                block,
                token,
                is_over,
            },
        )
    }

    fn is_open(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Refuses another context than that in which the block was entered, which may be a copy of it. In that one it uses the token.
    ///
    /// # Errors
    /// `RuntimeError`; out of memory, which CPython lacks for an error alone. Nothing has changed then.
    fn use_token(&self, py: Python<'_>) -> PyResult<()> {
        context(py)?.reset(self.token.bind(py)).map_err(|error| {
            if error.is_instance_of::<PyMemoryError>(py) {
                return error;
            }
            let refused = entered_elsewhere(py);
            refused.set_cause(py, Some(error));
            refused
        })
    }

    /// Ends it in copies of the context, too.
    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
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

/// Returns a token of the current context. The variable had its value before: to reset it changes nothing, and needs no memory.
fn token(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let (context, value) = (context(py)?, PyEllipsis::get(py).to_owned().into_any());
    if context.get(py)?.is_none() {
        context.set(&value)?;
    }
    context.set(&value)
}

/// Returns the blocks that are open in the current context, outermost first.
fn open(py: Python<'_>) -> PyResult<Vec<Bound<'_, Entered>>> {
    let Some(value) = variable(py)?.get(py)? else {
        return Ok(Vec::new());
    };
    let value = value.cast_into::<PyTuple>()?;
    let blocks = value.iter().map(|block| Ok(block.cast_into::<Entered>()?));
    blocks
        .filter(|block| block.as_ref().map_or(true, |block| block.get().is_open()))
        .collect()
}

/// Calls `body` while `block` is open.
///
/// # Errors
/// Those of `body`; out of memory to open it.
pub(crate) fn around<R>(
    block: &Bound<'_, PyAny>,
    body: impl FnOnce() -> PyResult<R>,
) -> PyResult<R> {
    let entered = enter(block)?;
    let result = body();
    let left = leave(block);
    entered.get().end();
    if let Err(error) = left {
        release::drop_now(error);
    }
    result
}

/// Opens `block` in the current context.
///
/// # Errors
/// Out of memory: then nothing has changed.
pub(crate) fn enter<'py>(block: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Entered>> {
    let py = block.py();
    // A finaliser may enter and leave blocks, too.
    let _collections = WithoutCollections::begin(py);
    let entered = Entered::new(block)?;
    let mut open = open(py)?;
    open.push(entered.clone());
    set(py, open)?;
    Ok(entered)
}

/// Closes the innermost open block that is `block`. If there is no memory to take it out of the context, it ends in copies of
/// that, too: a block that stayed open would have all that follows be as it says, such as without an order.
///
/// # Errors
/// `RuntimeError` if it was entered in another context, or nowhere: nothing has changed then.
pub(crate) fn leave(block: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = block.py();
    // Outlives the guard: its drop may run a finaliser.
    let entered;
    let _collections = WithoutCollections::begin(py);
    let mut open = open(py)?;
    let is_it = |entered: &Bound<'_, Entered>| entered.get().block.is(block);
    let at = open
        .iter()
        .rposition(is_it)
        .ok_or_else(|| entered_elsewhere(py))?;
    entered = open.remove(at);
    entered.get().use_token(py)?;
    // CPython crashes where it has no memory for a value nor for the token of it: a token of its own comes first.
    if let Err(no_memory) = token(py).and_then(|_| set(py, open)) {
        entered.get().end();
        release::drop_now(no_memory);
    }
    Ok(())
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

/// Not by `PyRuntimeError::new_err`, which panics without memory.
#[cold]
fn entered_elsewhere(py: Python<'_>) -> PyErr {
    let text = "this block was not entered in the current context (task or thread), and cannot be left here";
    match new_str(py, text) {
        Ok(text) => PyErr::from_type(py.get_type::<PyRuntimeError>(), text.unbind()),
        Err(error) => error,
    }
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
        let entered = entered.cast::<Entered>().ok()?.get();
        let block = entered.block.bind(py).cast::<B>().ok()?;
        fact(block.get()).filter(|_| entered.is_open())
    };
    Ok(value.cast::<PyTuple>()?.iter().rev().find_map(of_block))
}
