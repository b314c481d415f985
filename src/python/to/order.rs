//! Makes an array ready for a request of the library's, or of the caller's for it.

use pyo3::prelude::*;

use crate::protocol::stream::{Request, SyncPolicy};
use crate::python::call::policy;
use crate::view::CaiView;

/// Orders the request after the data, by the policy. A host that is about to read the data waits under every policy.
///
/// # Errors
/// The rules of the order; the driver's errors.
pub(super) fn by_policy(py: Python<'_>, view: &CaiView, request: Request) -> PyResult<()> {
    let policy = match request {
        Request::Host => SyncPolicy::Event,
        _ => policy::policy(py)?,
    };
    if view.needs_order(request, policy) {
        view.order(request, policy)?;
    }
    Ok(())
}
