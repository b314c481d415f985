//! What a view, of this library or of another copy of it, says beside its dict: both streams, and how to ask where its
//! producer works.

use pyo3::prelude::*;

use crate::protocol::device::Access;
use crate::python::call::options::Options;
use crate::python::class::view::PyCaiView;
use crate::python::import::traits::Traits;
use crate::python::import::{another_copy, undeclared};
use crate::view::{CaiView, PassedStreams};

/// What an object that is imported by its dict says beside it: nothing, unless it is a view.
pub(crate) struct OfView<'a, 'py> {
    parent: Option<&'a Bound<'py, PyCaiView>>,
    passed: Option<PassedStreams>,
    /// Whether the dict is to be read without the getter's wait, as [`complete`](Self::complete) makes it.
    pub(crate) is_unordered: bool,
}

impl<'a, 'py> OfView<'a, 'py> {
    /// Reads what the object says. Nothing waits.
    ///
    /// # Errors
    /// Those of [`undeclared::check_view`] and [`another_copy::streams_of`].
    pub(crate) fn read(
        object: &'a Bound<'py, PyAny>,
        traits: Traits,
        options: &Options<'_, 'py>,
    ) -> PyResult<Self> {
        let parent = object.cast::<PyCaiView>().ok();
        if let Some(parent) = parent {
            undeclared::check_view(parent, options)?;
        }
        let passed = another_copy::streams_of(object, traits, options)?;
        let is_named = traits.intersects(Traits::ANOTHER_COPY) && options.producer.is_some();
        Ok(Self {
            parent,
            passed,
            is_unordered: parent.is_some() || passed.is_some() || is_named,
        })
    }

    /// Completes the view that was made of the dict, and then makes the wait for a producer that has moved: that of the object,
    /// or of the view that is its `owner=`.
    ///
    /// # Errors
    /// The driver's, if it is asked for the memory's context; those of [`another_copy::wait`].
    pub(crate) fn complete(
        self,
        view: &mut CaiView,
        traits: Traits,
        options: &Options<'_, 'py>,
    ) -> PyResult<()> {
        if let Some(passed) = self.passed {
            view.take_streams(passed)?;
        }
        if let Some(parent) = self.parent {
            let own = parent.get().view();
            // The dict says less than the view, of its order too.
            if options.producer.is_none() {
                view.set_streams(own.streams_by(view.device())?);
            }
            let own = own.descriptor().access();
            let access = options.read_only.map_or(own, Access::of_flag);
            let descriptor = view.descriptor().clone().with_access(access);
            // SAFETY: the same bytes. They are written if the view that lends them may be, or if the caller asserts it.
            unsafe { view.set_descriptor(descriptor) };
        }
        another_copy::wait(view, traits)
    }
}
