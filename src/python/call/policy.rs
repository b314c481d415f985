//! The `policy` and `use_stream` blocks of a thread.
//!
//! Both belong to the thread, not to the task: a coroutine that suspends inside a block leaves it open for the next
//! task of the thread.

use std::cell::{Cell, RefCell};

use once_cell::race::OnceBox;
use pyo3::Borrowed;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::driver;
use crate::driver::ContextGuard;
use crate::driver::{Driver, DriverError};
use crate::protocol::rule::Field;
use crate::protocol::stream::{Stream, SyncPolicy};
use crate::python::call::choice::{choice, not_among};
use crate::python::call::{options, stream};
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::thread_exit::entries;
use crate::view::detach;

thread_local! {
    static POLICY: Cell<Option<SyncPolicy>> = const { Cell::new(None) };
    static POLICIES: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
    static WORK: RefCell<Vec<Work>> = const { RefCell::new(Vec::new()) };
}

/// An open `policy` block of this thread, identified by the address of its object.
struct Entered {
    block: usize,
    sync: SyncPolicy,
}

/// Changes this thread's open blocks; the innermost one sets the policy.
fn with_policies(change: impl FnOnce(&mut Vec<Entered>)) {
    POLICIES.with_borrow_mut(|open| {
        change(open);
        POLICY.set(open.last().map(|entered| entered.sync));
    });
}

/// An open `use_stream` block of this thread.
struct Work {
    device_id: i32,
    stream: Stream,
}

/// Returns the policy of this thread: of `with policy(...)`, else of `CAI_DLPACK_SYNC`, else events.
#[inline]
pub(crate) fn policy() -> SyncPolicy {
    POLICY.get().unwrap_or_else(default_policy)
}

fn default_policy() -> SyncPolicy {
    static DEFAULT: OnceBox<SyncPolicy> = OnceBox::new();
    *DEFAULT.get_or_init(|| {
        let name = std::env::var("CAI_DLPACK_SYNC").ok();
        Box::new(name.and_then(|name| by_name(&name)).unwrap_or_default())
    })
}

/// Refuses an unknown value of `CAI_DLPACK_SYNC` when the module is loaded.
///
/// # Errors
/// `ValueError`, naming the variable.
pub(crate) fn check_environment() -> PyResult<()> {
    match std::env::var("CAI_DLPACK_SYNC") {
        Ok(name) if by_name(&name).is_none() => {
            let found = format!("'{name}'");
            Err(not_among("CAI_DLPACK_SYNC", &found, &POLICIES_BY_NAME).into())
        }
        _ => Ok(()),
    }
}

/// The values of `sync` and of the environment variable.
const POLICIES_BY_NAME: [(&str, SyncPolicy); 3] = [
    ("event", SyncPolicy::Event),
    ("host", SyncPolicy::Host),
    ("none", SyncPolicy::None),
];

fn by_name(given: &str) -> Option<SyncPolicy> {
    let mut policies = POLICIES_BY_NAME.iter();
    policies.find_map(|(name, policy)| (*name == given).then_some(*policy))
}

/// Returns the work stream of this thread on a device: of the innermost `use_stream` block, else the legacy default
/// stream.
pub(crate) fn work_stream(device_id: i32) -> Stream {
    WORK.with_borrow(|work| {
        work.iter()
            .rev()
            .find(|work| work.device_id == device_id)
            .map(|work| work.stream)
    })
    .unwrap_or(Stream::LegacyDefault)
}

signature! {
    /// Sets how this thread orders consumers after the data, during a `with` block.
    ///
    /// Returns
    /// -------
    /// ContextManager
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `sync` is no str, or none of these.
    ///
    /// Examples
    /// --------
    /// >>> with cd.policy(sync="host"):  # doctest: +SKIP
    /// ...     array = torch.from_dlpack(cd.view(obj))
    SetPolicy = policy [] (
        /// "event" (the default): the consumer's stream waits for an event; the host does not wait. "host": the host
        /// waits for the data. "none": nothing waits; the caller has ordered the work.
        sync: "Literal['event', 'host', 'none']",
    ) -> "AbstractContextManager[object]"
}

impl Function for SetPolicy {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let sync = choice(&arguments.sync, "sync", &POLICIES_BY_NAME)?;
        Ok(Bound::new(slf.py(), Policy { sync })?.into_any())
    }
}

/// The context manager that `policy` returns.
#[pyclass(name = "Policy", module = "cai_dlpack", frozen)]
pub(crate) struct Policy {
    sync: SyncPolicy,
}

entries! {
impl Policy {
    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        let (block, sync) = (slf.address(), slf.sync);
        with_policies(|open| open.push(Entered { block, sync }));
        slf
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> bool {
        // Blocks of generators end in any order: only this one is removed.
        with_policies(|open| {
            if let Some(at) = open
                .iter()
                .rposition(|entered| entered.block == self.address())
            {
                open.remove(at);
            }
        });
        false
    }
}
}

impl Policy {
    /// Returns the address, which identifies a living object; an open block keeps its object alive.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Queries the driver for the device of a stream's context, or of this thread's context for a default stream. 0
/// without a driver or a context.
fn device_of(stream: Stream) -> Result<i32, DriverError> {
    match driver::driver() {
        Ok(driver) => detach(|| device_asked_of(driver, stream)),
        Err(_) => Ok(0),
    }
}

fn device_asked_of(driver: &dyn Driver, stream: Stream) -> Result<i32, DriverError> {
    if !stream.is_default() {
        let _current = ContextGuard::of_handle(driver, stream)?;
        return driver.current_device();
    }
    match driver.current_context()? {
        Some(_) => driver.current_device(),
        None => Ok(0),
    }
}

signature! {
    /// Names the stream that this thread works on, during a `with` block.
    ///
    /// A consumer that imports views through the C Exchange API reads the thread's work stream without naming an
    /// array. It gets this stream, and every view that it imports is made ready there. Without a block it gets the
    /// legacy default stream.
    ///
    /// Returns
    /// -------
    /// ContextManager
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `stream` names no stream, or `device_id` no device.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    NameStream = use_stream [
        /// An int or an object with ``__cuda_stream__``.
        stream: "_StreamLike",
    ] (
        /// The id of the stream's CUDA device. None: the driver is queried.
        device_id: "int | None" = None,
    ) -> "AbstractContextManager[object]"
}

impl Function for NameStream {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let device_id = arguments.device_id.map(options::device_id).transpose()?;
        let stream = stream::named(&arguments.stream, Field::Argument("stream"))?;
        let block = UseStream {
            device_id: match device_id {
                Some(device_id) => device_id,
                None => device_of(stream)?,
            },
            stream,
            object: arguments.stream.to_owned().unbind(),
        };
        Ok(Bound::new(slf.py(), block)?.into_any())
    }
}

/// The context manager that `use_stream` returns.
#[pyclass(name = "UseStream", module = "cai_dlpack", frozen)]
pub(crate) struct UseStream {
    device_id: i32,
    stream: Stream,
    /// Keeps a stream object alive.
    object: Py<PyAny>,
}

entries! {
impl UseStream {
    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        WORK.with_borrow_mut(|work| {
            work.push(Work {
                device_id: slf.device_id,
                stream: slf.stream,
            })
        });
        slf
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> bool {
        WORK.with_borrow_mut(|work| {
            let mine = |work: &Work| work.device_id == self.device_id && work.stream == self.stream;
            if let Some(at) = work.iter().rposition(mine) {
                work.remove(at);
            }
        });
        false
    }

    /// Shows the stream object to the collector: an object that refers to the block makes a cycle.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.object)
    }
}
}
