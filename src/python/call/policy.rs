//! The policy of a context.

use once_cell::race::OnceBox;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::SyncPolicy;
use crate::python::call::blocks;
use crate::python::cpython::int::repr;
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

/// Sets how consumers are ordered after the data, during a `with` block.
///
/// The block belongs to the current context (`contextvars`): to the asyncio task, or to the thread outside of tasks.
/// Tasks that are created inside it inherit the setting.
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
/// RuntimeError
///     If the block is left in another context than it was entered in.
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

fn given_sync(sync: &Bound<'_, PyAny>) -> PyResult<SyncPolicy> {
    let field = Field::Argument("sync");
    let Ok(name) = sync.cast::<PyString>() else {
        return Err(Violation::new(Rule::ArgumentType, field, repr(sync)).into());
    };
    by_name(&name.to_cow()?).ok_or_else(|| unknown_policy(field, &repr(sync)))
}
