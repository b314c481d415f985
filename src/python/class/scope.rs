//! The extent of a `consume` block, shared by its views.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::protocol::rule::{Field, Rule, Violation};
use crate::view::Consumer;

/// The `consume` block of a view: whom it is for, and whether it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    ended: Arc<AtomicBool>,
    consumer: Consumer,
}

impl Scope {
    pub(crate) fn begin(consumer: Consumer) -> Self {
        Self {
            ended: Arc::default(),
            consumer,
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

    pub(crate) fn consumer(&self) -> Consumer {
        self.consumer
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
