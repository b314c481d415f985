//! Coroutines that wait for the driver without blocking the event loop.
//!
//! A coroutine asks between sleeps whether the wait is over. So a cancelled task stops at once, and a closed loop or an
//! ending interpreter waits for nothing.
//!
//! **A road not taken**: the blocking wait on a thread of the loop's executor. A cancelled wait would keep its thread
//! until the device is done, the end of `asyncio.run` and of the interpreter would wait for it, and a few dozen waits
//! would keep everybody else's work from the executor. A per-thread default stream means another one there, too.

use std::sync::{Mutex, PoisonError};

use once_cell::race::OnceBox;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::driver::Pending;
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_dict, new_str};
use crate::python::cpython::source;
use crate::python::cpython::thread_exit::entries;
use crate::python::cpython::tracing::Called;
use crate::python::trace::traced;
use crate::view::detach;

/// The pause between two questions is doubled from 50 microseconds up to 5 milliseconds.
const SOURCE: &str = "
from asyncio import sleep

async def drive(awaited):
    pause = 50e-6
    while not awaited.is_over():
        await sleep(pause)
        pause = min(2 * pause, 5e-3)
    return awaited.result()
";

/// The work of a coroutine, around one wait.
pub(crate) trait Awaitable: Send + Sync {
    /// Makes the calls before the wait, at the coroutine's first step; returns the wait if there is one.
    ///
    /// # Errors
    /// Those of the coroutine.
    fn begin(&self, py: Python<'_>) -> PyResult<Option<Pending>>;

    /// Returns the coroutine's result, after the wait.
    ///
    /// # Errors
    /// Those of the coroutine.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;

    /// The view and the stream, for the line of the trace.
    fn called<'a, 'py>(&'a self, py: Python<'py>) -> Called<'a, 'py>;

    /// Shows the collector the objects that it holds.
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError>;
}

/// Makes a coroutine, named as the method that returns it.
///
/// # Errors
/// Out of memory; the failed import of `asyncio`.
pub(crate) fn coroutine<'py>(
    py: Python<'py>,
    class: &str,
    method: &str,
    work: impl Awaitable + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    static DRIVE: OnceBox<Py<PyAny>> = OnceBox::new();
    let drive = DRIVE.get_or_try_init(|| compiled(py).map(Box::new))?;
    let awaited = Awaited {
        work: Box::new(work),
        wait: Mutex::default(),
    };
    let coroutine = drive.bind(py).call1((awaited,))?;
    coroutine.setattr(&names(py).dunder_name, new_str(py, method)?)?;
    coroutine.setattr(
        &names(py).qualname,
        new_str(py, &format!("{class}.{method}"))?,
    )?;
    Ok(coroutine)
}

#[cold]
fn compiled(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let globals = new_dict(py)?;
    globals.set_item(&names(py).dunder_name, new_str(py, "cai_dlpack")?)?;
    source::exec(py, SOURCE, &globals)?;
    let drive = globals.as_any().get_item("drive")?;
    Ok(drive.unbind())
}

/// What `drive` asks.
#[pyclass(module = "cai_dlpack", frozen)]
pub(crate) struct Awaited {
    work: Box<dyn Awaitable>,
    wait: Mutex<Wait>,
}

#[derive(Default)]
enum Wait {
    #[default]
    NotBegun,
    Pending(Pending),
    Over,
}

impl Awaited {
    fn replace(&self, wait: Wait) -> Wait {
        let mut place = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut place, wait)
    }

    /// The first step, which is the one that is traced.
    fn begin(&self, py: Python<'_>) -> PyResult<bool> {
        let mut is_over = true;
        traced(py, self.work.called(py), || {
            if let Some(pending) = self.work.begin(py)? {
                is_over = self.ask(pending)?;
            }
            Ok(py.None().into_bound(py))
        })?;
        Ok(is_over)
    }

    /// Asks the driver, and keeps a wait that is not over.
    fn ask(&self, pending: Pending) -> PyResult<bool> {
        let (pending, is_over) = detach(|| {
            let is_over = pending.is_over();
            ((is_over == Ok(false)).then_some(pending), is_over)
        });
        if let Some(pending) = pending {
            self.replace(Wait::Pending(pending));
        }
        Ok(is_over?)
    }
}

entries! {
impl Awaited {
    /// Begins the wait, at first, and returns whether it is over.
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        match self.replace(Wait::Over) {
            Wait::NotBegun => self.begin(py),
            Wait::Pending(pending) => self.ask(pending),
            Wait::Over => Ok(true),
        }
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.work.result(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.work.traverse(&visit)
    }
}
}

impl Drop for Awaited {
    /// Gives up a wait that nothing awaits any more.
    fn drop(&mut self) {
        if let Wait::Pending(pending) = self.replace(Wait::Over) {
            detach(|| drop(pending));
        }
    }
}
