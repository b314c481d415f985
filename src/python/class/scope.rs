//! The extent of a `consume` block, shared by its views.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::view::ReturnEdge;

/// The `consume` block of a view: its return edge, and whether it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    ended: Arc<AtomicBool>,
    edge: ReturnEdge,
}

impl Scope {
    pub(crate) fn begin(edge: ReturnEdge) -> Self {
        Self {
            ended: Arc::default(),
            edge,
        }
    }

    /// Ends the block: every later use of its views is refused.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// # Errors
    /// `scope-ended` after the end.
    #[inline]
    pub(crate) fn check(&self) -> PyResult<()> {
        if self.ended.load(Ordering::Acquire) {
            Err(ended())
        } else {
            Ok(())
        }
    }

    pub(crate) fn edge(&self) -> ReturnEdge {
        self.edge
    }
}

#[cold]
fn ended() -> PyErr {
    Violation::new(
        Rule::ScopeEnded,
        Field::Object,
        "a view of a consume block that was left",
    )
    .into()
}
