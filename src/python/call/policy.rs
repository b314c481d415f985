//! The policy of a context.

use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::race::OnceBox;
use pyo3::Borrowed;
use pyo3::prelude::*;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::SyncPolicy;
use crate::python::call::blocks;
use crate::python::call::choice::{choice, flag, not_among};
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::release;
use crate::python::cpython::thread_exit::entries;
use crate::python::cpython::tracing::Reason;

/// Returns the policy of the current context: of `with policy(...)`, else of `CAI_DLPACK_SYNC`, else events.
///
/// # Errors
/// Those of [`blocks::innermost`].
#[inline]
pub(crate) fn policy(py: Python<'_>) -> PyResult<SyncPolicy> {
    let found = blocks::innermost(py, |block: &Policy| block.sync)?;
    Ok(found.unwrap_or_else(default_policy))
}

fn default_policy() -> SyncPolicy {
    static DEFAULT: OnceBox<SyncPolicy> = OnceBox::new();
    *DEFAULT.get_or_init(|| {
        let name = environment("CAI_DLPACK_SYNC");
        Box::new(name.and_then(|name| by_name(&name)).unwrap_or_default())
    })
}

/// Whether imports are strict: of `with policy(...)`, else of `CAI_DLPACK_STRICT`.
///
/// # Errors
/// Those of [`blocks::innermost`].
pub(crate) fn is_strict(py: Python<'_>) -> PyResult<bool> {
    let found = blocks::innermost(py, |block: &Policy| block.strict)?;
    Ok(found.unwrap_or_else(|| {
        static DEFAULT: OnceBox<bool> = OnceBox::new();
        *DEFAULT.get_or_init(|| {
            Box::new(environment("CAI_DLPACK_STRICT").is_some_and(|set| set == "1"))
        })
    }))
}

/// Whether conversions are traced: of `with policy(...)`, else of `CAI_DLPACK_TRACE`. Runs no Python code.
#[cold]
pub(crate) fn is_traced(py: Python<'_>) -> bool {
    match blocks::innermost(py, |block: &Policy| block.trace) {
        Ok(found) => found.unwrap_or_else(|| IS_TRACED.load(Ordering::Relaxed)),
        Err(error) => {
            release::drop_now(error);
            false
        }
    }
}

/// Whether `CAI_DLPACK_TRACE` is set.
static IS_TRACED: AtomicBool = AtomicBool::new(false);

/// Reads the environment when the module is loaded.
///
/// # Errors
/// `ValueError` for an unknown value of a variable, naming it.
pub(crate) fn read_environment() -> PyResult<()> {
    environment_flag("CAI_DLPACK_STRICT")?;
    if environment_flag("CAI_DLPACK_TRACE")? && !IS_TRACED.swap(true, Ordering::Relaxed) {
        Reason::new().keep();
    }
    match environment("CAI_DLPACK_SYNC") {
        Some(name) if by_name(&name).is_none() => {
            let found = format!("'{name}'");
            Err(not_among("CAI_DLPACK_SYNC", &found, &POLICIES_BY_NAME).into())
        }
        _ => Ok(()),
    }
}

/// The values of `sync` and of its environment variable.
const POLICIES_BY_NAME: [(&str, SyncPolicy); 3] = [
    ("event", SyncPolicy::Event),
    ("host", SyncPolicy::Host),
    ("none", SyncPolicy::None),
];

/// Reads a variable; what is no UTF-8 is shown by U+FFFD, and is no value of any.
fn environment(variable: &'static str) -> Option<String> {
    std::env::var_os(variable).map(|given| given.to_string_lossy().into_owned())
}

fn environment_flag(variable: &'static str) -> PyResult<bool> {
    const FLAGS: [(&str, bool); 2] = [("0", false), ("1", true)];
    let Some(given) = environment(variable) else {
        return Ok(false);
    };
    match FLAGS.iter().find(|(name, _)| *name == given) {
        Some((_, flag)) => Ok(*flag),
        None => Err(not_among(variable, &format!("'{given}'"), &FLAGS).into()),
    }
}

fn by_name(given: &str) -> Option<SyncPolicy> {
    let mut policies = POLICIES_BY_NAME.iter();
    policies.find_map(|(name, policy)| (*name == given).then_some(*policy))
}

signature! {
    /// Sets how consumers are ordered after the data, what is refused, and what is traced, during a `with` block.
    ///
    /// The block belongs to the current context (`contextvars`): to the asyncio task, or to the thread outside of tasks.
    /// Tasks that are created inside it inherit the setting.
    ///
    /// Returns
    /// -------
    /// ContextManager
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `sync` is no str, or none of these; if no argument is given.
    /// RuntimeError
    ///     If the block is left in another context than it was entered in.
    ///
    /// Examples
    /// --------
    /// >>> with cd.policy(sync="host"):  # doctest: +SKIP
    /// ...     array = torch.from_dlpack(cd.view(obj))
    SetPolicy = policy [] (
        /// "event" (the default): the consumer's stream waits for an event; the host does not wait. "host": the host
        /// waits for the data. "none": nothing waits; the caller has ordered the work.
        sync: "Literal['event', 'host', 'none'] | None" = None,
        /// True: every import is strict (`view`), and so is `CaiView.consume`.
        strict: "bool | None" = None,
        /// True: each conversion writes a line to the logger `cai_dlpack`, at level debug.
        trace: "bool | None" = None,
    ) -> "AbstractContextManager[object]"
}

impl Function for SetPolicy {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let sync = arguments.sync;
        let sync = sync.map(|given| choice(&given, "sync", &POLICIES_BY_NAME));
        let trace = flag(arguments.trace, "trace")?;
        let block = Policy {
            sync: sync.transpose()?,
            strict: flag(arguments.strict, "strict")?,
            trace,
            _reason: trace.filter(|trace| *trace).map(|_| Reason::new()),
        };
        if block.sync.is_none() && block.strict.is_none() && trace.is_none() {
            let neither = Violation::new(Rule::ArgumentType, Field::Argument("sync"), "None");
            let hint =
                "must be \"event\", \"host\" or \"none\", as neither strict= nor trace= is given";
            return Err(neither.with_hint(hint).into());
        }
        Ok(Bound::new(slf.py(), block)?.into_any())
    }
}

/// The context manager that `policy` returns.
#[pyclass(name = "Policy", module = "cai_dlpack", frozen)]
pub(crate) struct Policy {
    sync: Option<SyncPolicy>,
    strict: Option<bool>,
    trace: Option<bool>,
    _reason: Option<Reason>,
}

entries! {
impl Policy {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        blocks::enter(slf)?;
        Ok(slf.clone())
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        blocks::leave(slf)?;
        Ok(false)
    }
}
}
