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
    /// The block of the view that was lent, which may be left before this one.
    outer: Option<Arc<Self>>,
}

/// Blocks within blocks end in a bounded stack.
impl Drop for Scope {
    fn drop(&mut self) {
        let mut outer = self.outer.take();
        while let Some(mut scope) = outer.and_then(Arc::into_inner) {
            outer = scope.outer.take();
        }
    }
}

impl Scope {
    pub(crate) fn begin(consumer: Consumer, outer: Option<&Self>) -> Self {
        Self {
            ended: Arc::default(),
            consumer,
            outer: outer.cloned().map(Arc::new),
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
        let mut each = Some(self);
        while let Some(scope) = each {
            if scope.ended.load(Ordering::Acquire) {
                return Err(ended());
            }
            each = scope.outer.as_deref();
        }
        Ok(())
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
