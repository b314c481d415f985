//! Arguments and return values of `#[pyfunction]`s in any extension crate.
//!
//! | in a signature | takes | gives |
//! |---|---|---|
//! | [`In<T, N>`](In) | any array of `N` axes of `T` | [`View<'_, T>`](View) |
//! | [`InOut<T, N>`](InOut) | one that may be written, and that no other `In` or `InOut` uses | [`ViewMut<'_, T>`](ViewMut) |
//! | [`CaiView`] | any array | itself |
//!
//! Arrays are imported as by `cai_dlpack.view`, by the same routes. A returned [`CaiView`] becomes a Python object of
//! both protocols. No set-up is needed: the first array runs it.

mod take;

use std::marker::PhantomData;

use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::python::argument::take::{Argument, Wanted};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::gil;
use crate::view::{CaiView, Element, View, ViewMut};

/// An array argument of `N` axes and elements of type `T`, which the function reads.
///
/// It owns a view of the caller's array, and lends it as [`View`]. The checks of layout, device and shape return the
/// view, or an error that is a `TypeError` in Python:
///
/// ```no_run
/// use cai_dlpack::python::In;
/// use pyo3::prelude::*;
///
/// #[pyfunction]
/// fn rows(a: In<f32, 2>) -> PyResult<usize> {
///     let a = a.view().c_order()?.cuda()?.of_shape(&[None, Some(3)])?;
///     Ok(a.len() / 3)
/// }
/// ```
///
/// # Errors
/// `TypeError` if the array has another type or number of axes (`view-dtype`, `view-ndim`); `BufferError` if it
/// reaches outside its allocation, or if another argument writes to its memory (`view-in-use`).
#[derive(Debug)]
pub struct In<T, const N: usize> {
    argument: Argument,
    element: PhantomData<fn() -> T>,
}

/// An array argument of `N` axes and elements of type `T`, which the function writes.
///
/// It owns a view of the caller's array, and lends it as [`ViewMut`].
///
/// # Errors
/// As [`In`]; `BufferError` for a read-only array (`read-only-writer`), for one of which two indices address one
/// element (`overlap`), and for one that shares memory with another `In` or `InOut` (`view-in-use`). While it lives
/// no [`CaiView`] of the same memory is lent; a [`View`] that was lent before is not seen.
#[derive(Debug)]
pub struct InOut<T, const N: usize> {
    argument: Argument,
    element: PhantomData<fn() -> T>,
}

/// Implements the accessors of both kinds of argument.
macro_rules! argument {
    ($argument:ident, exclusive: $exclusive:literal) => {
        impl<T: Element, const N: usize> $argument<T, N> {
            /// Returns the array without its element type. A clone of it has no borrow of its own: it is lent
            /// ([`CaiView::typed`], [`CaiView::typed_mut`]) as far as the arguments that use the memory allow it.
            #[must_use]
            pub fn cai(&self) -> &CaiView {
                self.argument.view()
            }

            /// Returns the array, to be kept or returned, and ends its borrow.
            #[must_use]
            pub fn into_cai(self) -> CaiView {
                self.argument.into_view()
            }

            /// Returns the elements, to be read.
            #[must_use]
            pub fn view(&self) -> View<'_, T> {
                View::new(self.cai())
            }

            /// Returns the extents, in elements.
            #[must_use]
            pub fn shape(&self) -> [usize; N] {
                let shape = self.cai().shape();
                // There are `N` (`extract`).
                std::array::from_fn(|axis| shape[axis])
            }

            /// Returns one stride per axis, in elements.
            #[must_use]
            pub fn elem_strides(&self) -> [isize; N] {
                let strides = self.cai().elem_strides();
                std::array::from_fn(|axis| strides[axis])
            }

            /// Returns the number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.view().len()
            }

            /// Whether there are no elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns DLPack's device: type and id.
            #[must_use]
            pub fn device(&self) -> Device {
                self.cai().device()
            }

            const WANTED: Wanted = Wanted::of::<T, N>($exclusive);
        }

        impl<T: Element, const N: usize> FromPyObject<'_, '_> for $argument<T, N> {
            type Error = PyErr;

            #[inline(always)]
            fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
                Ok(Self {
                    argument: Argument::take(&object, &Self::WANTED)?,
                    element: PhantomData,
                })
            }
        }
    };
}

argument!(In, exclusive: false);
argument!(InOut, exclusive: true);

impl<T: Element, const N: usize> InOut<T, N> {
    /// Returns the elements, to be written.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::new(self.argument.view_mut())
    }
}

/// Takes any array, of any type and shape. [`CaiView::typed`] checks its bounds, and whether another argument writes to its
/// memory; this does neither.
impl FromPyObject<'_, '_> for CaiView {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        take::import(&object)
    }
}

/// Makes a Python object that exports by both protocols and keeps the memory alive.
impl<'py> IntoPyObject<'py> for CaiView {
    type Target = PyCaiView;
    type Output = Bound<'py, PyCaiView>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        // The view's end may call the driver, and this may be the module's first contact with the interpreter.
        gil::learn(py);
        take::get_ready();
        PyCaiView::new(self).into_object(py)
    }
}
