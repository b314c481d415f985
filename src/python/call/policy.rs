//! The policy of a context.

use once_cell::race::OnceBox;
use pyo3::Borrowed;
use pyo3::prelude::*;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::SyncPolicy;
use crate::python::call::blocks;
use crate::python::call::choice::{choice, flag, not_among};
use crate::python::cpython::fastcall::{Function, signature};
use crate::python::cpython::thread_exit::entries;

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
        let name = std::env::var("CAI_DLPACK_SYNC").ok();
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
            Box::new(std::env::var("CAI_DLPACK_STRICT").is_ok_and(|set| set == "1"))
        })
    }))
}

/// Refuses an unknown value of `CAI_DLPACK_SYNC` and `CAI_DLPACK_STRICT` when the module is loaded.
///
/// # Errors
/// `ValueError`, naming the variable.
pub(crate) fn check_environment() -> PyResult<()> {
    if let Ok(strict) = std::env::var("CAI_DLPACK_STRICT")
        && !STRICT_BY_NAME.iter().any(|(name, _)| *name == strict)
    {
        return Err(not_among("CAI_DLPACK_STRICT", &format!("'{strict}'"), &STRICT_BY_NAME).into());
    }
    match std::env::var("CAI_DLPACK_SYNC") {
        Ok(name) if by_name(&name).is_none() => {
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

/// The values of the environment variable for `strict`.
const STRICT_BY_NAME: [(&str, bool); 2] = [("0", false), ("1", true)];

fn by_name(given: &str) -> Option<SyncPolicy> {
    let mut policies = POLICIES_BY_NAME.iter();
    policies.find_map(|(name, policy)| (*name == given).then_some(*policy))
}

signature! {
    /// Sets how consumers are ordered after the data, during a `with` block.
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
    ///     If `sync` is no str, or none of these; if neither argument is given.
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
    ) -> "AbstractContextManager[object]"
}

impl Function for SetPolicy {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let sync = arguments.sync;
        let sync = sync.map(|given| choice(&given, "sync", &POLICIES_BY_NAME));
        let block = Policy {
            sync: sync.transpose()?,
            strict: flag(arguments.strict, "strict")?,
        };
        if block.sync.is_none() && block.strict.is_none() {
            let neither = Violation::new(Rule::ArgumentType, Field::Argument("sync"), "None");
            let hint = "must be \"event\", \"host\" or \"none\", as strict= is not given";
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
