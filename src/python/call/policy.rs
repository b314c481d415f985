//! The `policy` blocks of a thread.
//!
//! They belong to the thread, not to the task: a coroutine that suspends inside a block leaves it open for the next
//! task of the thread.

use std::cell::{Cell, RefCell};

use once_cell::race::OnceBox;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::SyncPolicy;
use crate::python::cpython::int::repr;
use crate::python::cpython::thread_exit::entries;

thread_local! {
    static POLICY: Cell<Option<SyncPolicy>> = const { Cell::new(None) };
    static POLICIES: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
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

/// Sets how this thread orders consumers after the data, during a `with` block.
///
/// Parameters
/// ----------
/// sync : {'event', 'host', 'none'}
///     "event" (the default): the consumer's stream waits for an event; the host does not wait. "host": the host
///     waits for the data. "none": nothing waits; the caller has ordered the work.
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
#[pyclass(name = "policy", module = "cai_dlpack", frozen)]
pub(crate) struct Policy {
    sync: SyncPolicy,
}

entries! {
impl Policy {
    #[new]
    #[pyo3(signature = (*, sync))]
    fn new(sync: &Bound<'_, PyAny>) -> PyResult<Self> {
        let field = Field::Argument("sync");
        let Ok(name) = sync.cast::<PyString>() else {
            return Err(Violation::new(Rule::ArgumentType, field, repr(sync)).into());
        };
        let sync = by_name(&name.to_cow()?).ok_or_else(|| unknown_policy(field, &repr(sync)))?;
        Ok(Self { sync })
    }

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
