//! Arguments and return values of functions in anyone's extension crate.
//!
//! | in a signature | takes | gives |
//! |---|---|---|
//! | [`In<T, N>`](In) | any array of `N` axes of `T` | [`View<'_, T>`](View) |
//! | [`InOut<T, N>`](InOut) | one that may be written, and that no other argument uses | [`ViewMut<'_, T>`](ViewMut) |
//! | [`CaiView`] | any array | itself |
//!
//! An array is what `cai_dlpack.view` structs, by the same routes. A [`CaiView`] that is returned becomes
//! an object of both protocols. Nothing has to be set up: what this crate needs from the interpreter is
//! made when the first array comes.

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
/// It owns a view of the caller's array and gives it as [`View`]. The demands on layout, device and
/// shape hand a view back, or a refusal that is a `TypeError` for the caller:
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
/// Where the argument is no such array the caller gets a `TypeError` that says what is wanted and what
/// came (`view-dtype`, `view-ndim`), a `BufferError` where it reaches outside its allocation, and
/// `view-in-use` where another argument writes to its memory.
#[derive(Debug)]
pub struct In<T, const N: usize> {
    argument: Argument,
    element: PhantomData<fn() -> T>,
}

/// An array argument of `N` axes and elements of type `T`, which the function writes.
///
/// It owns a view of the caller's array and gives it as [`ViewMut`]. Beside what [`In`] refuses,
/// read-only arrays (`read-only-writer`), arrays of which two indices mean one element (`overlap`) and
/// arrays that share memory with another argument (`view-in-use`) are a `BufferError`.
#[derive(Debug)]
pub struct InOut<T, const N: usize> {
    argument: Argument,
    element: PhantomData<fn() -> T>,
}

/// What both kinds of argument answer.
macro_rules! argument {
    ($argument:ident, exclusive: $exclusive:literal) => {
        impl<T: Element, const N: usize> $argument<T, N> {
            /// The array, without its type.
            #[must_use]
            pub fn cai(&self) -> &CaiView {
                self.argument.view()
            }

            /// The array, to be kept or returned. It is not borrowed any more.
            #[must_use]
            pub fn into_cai(self) -> CaiView {
                self.argument.into_view()
            }

            /// The elements, to be read.
            #[must_use]
            pub fn view(&self) -> View<'_, T> {
                View::new(self.cai())
            }

            /// The extents, in elements.
            #[must_use]
            pub fn shape(&self) -> [usize; N] {
                let shape = self.cai().descriptor().shape();
                // Extents are not negative (`Descriptor`), and there are `N` (`extract`).
                std::array::from_fn(|axis| shape[axis] as usize)
            }

            /// One stride per axis, in elements.
            #[must_use]
            pub fn elem_strides(&self) -> [i64; N] {
                let strides = self.cai().descriptor().elem_strides();
                std::array::from_fn(|axis| strides[axis])
            }

            /// The number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                self.view().len()
            }

            /// Whether there are no elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// DLPack's device: type and id.
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
    /// The elements, to be written.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::new(self.argument.view_mut())
    }
}

/// Any array, of whatever type and shape. Its bounds are not asked for; [`CaiView::typed`] does.
impl FromPyObject<'_, '_> for CaiView {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        take::import(&object)
    }
}

/// A Python object that speaks both protocols and keeps the memory alive.
impl<'py> IntoPyObject<'py> for CaiView {
    type Target = PyCaiView;
    type Output = Bound<'py, PyCaiView>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        // For its end, which may call the driver: this may be the first that the module has to do with Python.
        gil::learn(py);
        take::get_ready();
        PyCaiView::new(self).into_object(py)
    }
}
