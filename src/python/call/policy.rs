//! The `policy` and `use_stream` blocks of a thread.
//!
//! Both belong to the thread, not to the task: a coroutine that suspends inside a block leaves it open for the next
//! task of the thread.

use std::cell::{Cell, RefCell};

use once_cell::race::OnceBox;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::driver;
use crate::driver::ContextGuard;
use crate::driver::{Driver, DriverError};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Stream, SyncPolicy};
use crate::python::call::stream;
use crate::python::cpython::int::{IntRule, repr};
use crate::python::cpython::thread_exit::entries;
use crate::view::detach;

thread_local! {
    static POLICY: Cell<Option<SyncPolicy>> = const { Cell::new(None) };
    static STRICT: Cell<Option<bool>> = const { Cell::new(None) };
    static POLICIES: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
    static WORK: RefCell<Vec<Work>> = const { RefCell::new(Vec::new()) };
}

/// An open `policy` block of this thread, identified by the address of its object.
struct Entered {
    block: usize,
    sync: Option<SyncPolicy>,
    strict: Option<bool>,
}

/// Changes this thread's open blocks; of each setting, the innermost one that has it.
fn with_policies(change: impl FnOnce(&mut Vec<Entered>)) {
    POLICIES.with_borrow_mut(|open| {
        change(open);
        POLICY.set(open.iter().rev().find_map(|entered| entered.sync));
        STRICT.set(open.iter().rev().find_map(|entered| entered.strict));
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

/// Whether imports are strict: of `with policy(...)`, else of `CAI_DLPACK_STRICT`.
pub(crate) fn is_strict() -> bool {
    STRICT.get().unwrap_or_else(|| {
        static DEFAULT: OnceBox<bool> = OnceBox::new();
        *DEFAULT.get_or_init(|| {
            Box::new(std::env::var("CAI_DLPACK_STRICT").is_ok_and(|set| set == "1"))
        })
    })
}

/// Refuses an unknown value of `CAI_DLPACK_SYNC` and `CAI_DLPACK_STRICT` when the module is loaded.
///
/// # Errors
/// `ValueError`, naming the variable.
pub(crate) fn check_environment() -> PyResult<()> {
    if let Ok(strict) = std::env::var("CAI_DLPACK_STRICT")
        && !matches!(strict.as_str(), "0" | "1")
    {
        let field = Field::Argument("CAI_DLPACK_STRICT");
        let violation = Violation::new(Rule::ArgumentValue, field, format_args!("'{strict}'"));
        return Err(violation.with_hint("must be \"0\" or \"1\"").into());
    }
    match std::env::var("CAI_DLPACK_SYNC") {
        Ok(name) if by_name(&name).is_none() => Err(unknown_policy(
            Field::Argument("CAI_DLPACK_SYNC"),
            &format!("'{name}'"),
        )),
        _ => Ok(()),
    }
}

fn by_name(name: &str) -> Option<SyncPolicy> {
    match name {
        "event" => Some(SyncPolicy::Event),
        "host" => Some(SyncPolicy::Host),
        "none" => Some(SyncPolicy::None),
        _ => None,
    }
}

#[cold]
fn unknown_policy(field: Field, found: &str) -> PyErr {
    Violation::new(Rule::ArgumentValue, field, found)
        .with_hint("must be \"event\", \"host\" or \"none\"")
        .into()
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

/// Sets how this thread orders consumers after the data, during a `with` block.
///
/// Parameters
/// ----------
/// sync : {'event', 'host', 'none'}, optional
///     "event" (the default): the consumer's stream waits for an event; the host does not wait. "host": the host
///     waits for the data. "none": nothing waits; the caller has ordered the work.
/// strict : bool, optional
///     True: every import is strict (`view`), and so is `CaiView.consume`.
///
/// Raises
/// ------
/// TypeError, ValueError
///     If `sync` is no str, or none of these; if neither is given.
///
/// Examples
/// --------
/// >>> with cd.policy(sync="host"):  # doctest: +SKIP
/// ...     array = torch.from_dlpack(cd.view(obj))
#[pyclass(name = "policy", module = "cai_dlpack", frozen)]
pub(crate) struct Policy {
    sync: Option<SyncPolicy>,
    strict: Option<bool>,
}

entries! {
impl Policy {
    #[new]
    #[pyo3(signature = (*, sync=None, strict=None))]
    fn new(sync: Option<&Bound<'_, PyAny>>, strict: Option<bool>) -> PyResult<Self> {
        if sync.is_none() && strict.is_none() {
            let neither = Violation::new(Rule::ArgumentType, Field::Argument("sync"), "None");
            return Err(neither.with_hint("name sync=, strict= or both").into());
        }
        Ok(Self {
            sync: sync.map(given_sync).transpose()?,
            strict,
        })
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        let (block, sync, strict) = (slf.address(), slf.sync, slf.strict);
        with_policies(|open| open.push(Entered { block, sync, strict }));
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

fn given_sync(sync: &Bound<'_, PyAny>) -> PyResult<SyncPolicy> {
    let field = Field::Argument("sync");
    let Ok(name) = sync.cast::<PyString>() else {
        return Err(Violation::new(Rule::ArgumentType, field, repr(sync)).into());
    };
    by_name(&name.to_cow()?).ok_or_else(|| unknown_policy(field, &repr(sync)))
}

fn given_device_id(device_id: &Bound<'_, PyAny>) -> PyResult<i32> {
    let field = Field::Argument("device_id");
    let device_id: i32 =
        IntRule::new(field, Rule::ArgumentType, Rule::DeviceIdRange).read(device_id)?;
    if device_id < 0 {
        return Err(Violation::new(Rule::DeviceIdRange, field, device_id).into());
    }
    Ok(device_id)
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

/// Names the stream that this thread works on, during a `with` block.
///
/// A consumer that imports views through the C Exchange API reads the thread's work stream without naming an array. It
/// gets this stream, and every view that it imports is made ready there. Without a block it gets the legacy default
/// stream.
///
/// Parameters
/// ----------
/// stream : StreamLike
///     An int or an object with ``__cuda_stream__``.
/// device_id : int | None, default None
///     The id of the stream's CUDA device. None: the driver is queried.
///
/// Raises
/// ------
/// TypeError, ValueError
///     If `stream` names no stream, or `device_id` no device.
/// DriverError
///     If a call of the CUDA driver fails.
#[pyclass(name = "use_stream", module = "cai_dlpack", frozen)]
pub(crate) struct UseStream {
    device_id: i32,
    stream: Stream,
    /// Keeps a stream object alive.
    object: Py<PyAny>,
}

entries! {
impl UseStream {
    #[new]
    #[pyo3(signature = (stream, /, *, device_id=None))]
    fn new(stream: &Bound<'_, PyAny>, device_id: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let device_id = device_id.map(given_device_id).transpose()?;
        let object = stream.clone().unbind();
        let stream = stream::named(stream, Field::Argument("stream"))?;
        Ok(Self {
            device_id: match device_id {
                Some(device_id) => device_id,
                None => device_of(stream)?,
            },
            stream,
            object,
        })
    }

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
