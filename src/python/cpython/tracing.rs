//! Whether conversions are traced, and where the lines of the trace go: `logging`'s logger `cai_dlpack`, at level debug.
//!
//! `logging` and `nvtx` run Python code, and so may the loggers of a user. Each runs before a conversion has begun or
//! after it has ended, never inside: what a conversion borrows is not borrowed yet, or not any more. A hand-over by the
//! exchange table has no such moment, since its caller is C code that may hold borrowed references: its line waits for the
//! next one ([`keep`]).
//!
//! No error of them reaches the caller: it is reported by `sys.unraisablehook`. That there is no memory for a line is such an
//! error, also if PyO3 panics with it: the call has ended by then, and returns what it has made.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyAttributeError, PyImportError, PyKeyboardInterrupt};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{Borrowed, ffi};

use crate::python::cpython::counted::counted;
use crate::python::cpython::interrupt::raise_later;
use crate::python::cpython::panic::Entry;

/// The name of the logger, and of the domain of the ranges of NVTX.
const NAME: &str = "cai_dlpack";
/// `logging.DEBUG`.
const DEBUG: u8 = 10;

/// How many reasons there are to ask, in the current context, whether a conversion is traced.
static REASONS: AtomicUsize = AtomicUsize::new(0);

/// Whether a conversion may be traced: all that one that is not traced is asked.
#[inline(always)]
pub(crate) fn may_trace() -> bool {
    REASONS.load(Ordering::Relaxed) != 0
}

/// A reason to ask whether conversions are traced, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reason(());

impl Reason {
    pub(crate) fn new() -> Self {
        REASONS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Makes it a reason for the life of the process.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Reason {
    fn drop(&mut self) {
        REASONS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that may be traced.
#[derive(Clone, Copy)]
pub(crate) struct Called<'a, 'py> {
    /// The function's name.
    pub(crate) name: &'static CStr,
    /// The array: the first argument, or the object of a method; `None` for a function of several.
    pub(crate) array: Option<Borrowed<'a, 'py, PyAny>>,
    /// The stream that the caller names.
    pub(crate) stream: Option<Borrowed<'a, 'py, PyAny>>,
}

/// Runs a call, which returns an object, or NULL with an exception set; returns the same.
pub(crate) type Tracer =
    fn(Python<'_>, Called<'_, '_>, &mut dyn FnMut() -> *mut ffi::PyObject) -> *mut ffi::PyObject;

/// What a conversion says of itself while it is traced.
#[derive(Default)]
pub(crate) struct Marks {
    pub(crate) route: Option<&'static str>,
    /// The rule of the last refusal.
    pub(crate) rule: Option<&'static str>,
    pub(crate) array: Option<String>,
}

thread_local! {
    /// Of the innermost traced conversion of this thread.
    static MARKS: RefCell<Option<Marks>> = const { RefCell::new(None) };
    /// Whether this thread writes a line: what it converts meanwhile is not traced.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// Takes the marks of a conversion, until it is dropped: then those of the one that it runs in.
pub(crate) struct Marking(Option<Marks>);

impl Marking {
    pub(crate) fn begin() -> Self {
        Self(MARKS.replace(Some(Marks::default())))
    }

    pub(crate) fn take(&self) -> Marks {
        MARKS.take().unwrap_or_default()
    }
}

impl Drop for Marking {
    fn drop(&mut self) {
        MARKS.set(self.0.take());
    }
}

/// Changes the marks of the conversion that this thread runs, if it is traced. Costs one load if none is.
#[inline(always)]
pub(crate) fn mark(change: impl FnOnce(&mut Marks)) {
    if may_trace() {
        mark_here(change);
    }
}

#[cold]
#[inline(never)]
fn mark_here(change: impl FnOnce(&mut Marks)) {
    MARKS.with_borrow_mut(|marks| marks.as_mut().map(change));
}

/// Whether this thread writes a line.
pub(crate) fn is_writing() -> bool {
    WRITES.get()
}

/// Runs Python code that is not the caller's, as that of the trace: nothing that it converts is traced, and its error is
/// reported, a panic too.
pub(super) fn reporting(py: Python<'_>, body: impl FnOnce() -> PyResult<()>) -> bool {
    /// Also after a panic.
    struct Writes(bool);
    impl Drop for Writes {
        fn drop(&mut self) {
            WRITES.set(self.0);
        }
    }
    let _writes = Writes(WRITES.replace(true));
    // So that PyO3 drops at once what the code has made (`release::dropping`).
    counted(py, || match Entry::run(body) {
        Ok(()) => true,
        Err(error) => {
            if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                // It is the user's, and not the logger's.
                raise_later(py, error);
            } else {
                error.write_unraisable(py, None);
            }
            false
        }
    })
}

/// Lines that wait for a moment at which Python code may run.
static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The most lines that wait.
const MOST: usize = 1000;

/// Keeps a line for the next [`write()`]. Runs no Python code.
///
/// Waits for no other thread, so that a child that was forked meanwhile does not wait either: the line is lost then.
pub(crate) fn keep(line: String) {
    match KEPT.try_lock() {
        Ok(mut kept) if kept.len() < MOST => kept.push(line),
        Err(TryLockError::Poisoned(kept)) => kept.into_inner().push(line),
        Ok(_) | Err(TryLockError::WouldBlock) => {}
    }
}

/// Writes a line, after those that were kept.
#[cold]
pub(crate) fn write(py: Python<'_>, line: impl FnOnce() -> String) {
    reporting(py, || {
        flush(py);
        debug(py, &line())
    });
}

/// Writes the lines that were kept.
#[cold]
pub(crate) fn flush(py: Python<'_>) {
    let kept = KEPT
        .try_lock()
        .map(|mut kept| std::mem::take(&mut *kept))
        .unwrap_or_default();
    for line in kept {
        reporting(py, || debug(py, &line));
    }
}

fn debug(py: Python<'_>, line: &str) -> PyResult<()> {
    static LOGGER: OnceBox<Py<PyAny>> = OnceBox::new();
    let logger = LOGGER.get_or_try_init(|| logger(py).map(|logger| Box::new(logger.unbind())))?;
    logger.bind(py).call_method1("debug", (line,)).map(drop)
}

/// Returns the logger, which is set to its level, and writes to stderr, unless it was configured otherwise.
fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let logging = py.import("logging")?;
    let logger = logging.call_method1("getLogger", (NAME,))?;
    if logger.getattr("level")?.extract::<i64>()? == 0 {
        logger.call_method1("setLevel", (DEBUG,))?;
    }
    if !logger.call_method0("hasHandlers")?.is_truthy()? {
        let handler = logging.call_method0("StreamHandler")?;
        let formatter = logging.call_method1("Formatter", ("%(name)s: %(message)s",))?;
        handler.call_method1("setFormatter", (formatter,))?;
        logger.call_method1("addHandler", (handler,))?;
    }
    Ok(logger)
}

/// A range of NVTX, if the package `nvtx` is installed.
pub(crate) struct Range(bool);

impl Range {
    #[cold]
    pub(crate) fn push(py: Python<'_>, name: &CStr) -> Self {
        let mut is_open = false;
        reporting(py, || {
            if let Some(nvtx) = Nvtx::of(py)? {
                let name = format!("{NAME}.{}", name.to_string_lossy());
                nvtx.push.bind(py).call((name,), Some(&domain(py)?))?;
                is_open = true;
            }
            Ok(())
        });
        Self(is_open)
    }

    pub(crate) fn pop(self, py: Python<'_>) {
        if self.0 {
            reporting(py, || match Nvtx::of(py)? {
                Some(nvtx) => nvtx.pop.bind(py).call((), Some(&domain(py)?)).map(drop),
                None => Ok(()),
            });
        }
    }
}

fn domain(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let keywords = PyDict::new(py);
    keywords.set_item("domain", NAME)?;
    Ok(keywords)
}

/// The functions of the package `nvtx`.
struct Nvtx {
    push: Py<PyAny>,
    pop: Py<PyAny>,
}

impl Nvtx {
    /// Imports the package when it is first asked for; `None` if it is not installed, or another package of this name is.
    fn of(py: Python<'_>) -> PyResult<Option<&'static Self>> {
        static NVTX: OnceBox<Option<Nvtx>> = OnceBox::new();
        let import = || {
            let nvtx = py.import("nvtx")?;
            let (push, pop) = (nvtx.getattr("push_range")?, nvtx.getattr("pop_range")?);
            let (push, pop) = (push.unbind(), pop.unbind());
            Ok(Box::new(Some(Self { push, pop })))
        };
        let is_absent = |error: &PyErr| {
            error.is_instance_of::<PyImportError>(py)
                || error.is_instance_of::<PyAttributeError>(py)
        };
        let found = NVTX.get_or_try_init(|| match import() {
            Err(error) if is_absent(&error) => Ok(Box::new(None)),
            found => found,
        })?;
        Ok(found.as_ref())
    }
}
