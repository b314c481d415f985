//! Arguments and return values of `#[pyfunction]`s in any extension crate.
//!
//! | in a signature | takes | gives |
//! |---|---|---|
//! | [`In<T, N>`](In) | any array of `N` axes of `T` | [`View<'_, T>`](crate::view::View) |
//! | [`InOut<T, N>`](InOut) | one that may be written, and that no other `In` or `InOut` uses | [`ViewMut<'_, T>`](crate::view::ViewMut) |
//! | `In<T>`, `InOut<T>` | one of any number of axes | the same |
//! | `In<E, N>` of an enum of [`elements!`](crate::elements) | one of several types | the enum, of views |
//! | [`CaiView`] | any array | itself |
//!
//! Arrays are imported as by `cai_dlpack.view`, by the same routes. A returned [`CaiView`] becomes a Python object of
//! both protocols. No set-up is needed: the first array runs it.

mod in_use;
mod rank;
mod take;

use std::marker::PhantomData;

use pyo3::prelude::*;

use crate::protocol::device::Device;
use crate::python::argument::take::{Argument, Wanted};
use crate::python::class::view::PyCaiView;
use crate::view::{CaiView, Elements, Lent, LentMut};

pub use in_use::{Refuse, TrustStreams, Wait, WhenInUse};
pub use rank::{ANY, Extents, Rank};

/// An array argument of `N` axes and elements of type `T`, which the function reads.
///
/// It owns a view of the caller's array, and lends it as [`View`](crate::view::View). The checks of layout, device and shape
/// return the view, or an error that is a `TypeError` in Python and names the view if it is
/// [named](crate::view::View::named):
///
/// ```no_run
/// use cai_dlpack::python::In;
/// use pyo3::prelude::*;
///
/// #[pyfunction]
/// fn rows(a: In<f32, 2>) -> PyResult<usize> {
///     let a = a.view().named("a").c_order()?.cuda()?.of_shape(&[None, Some(3)])?;
///     Ok(a.len() / 3)
/// }
/// ```
///
/// `In<f32>` takes any number of axes. `In<Float>` takes several types, those of an enum that [`elements!`](crate::elements)
/// declares, and lends that:
///
/// ```no_run
/// use cai_dlpack::python::In;
/// use pyo3::prelude::*;
///
/// cai_dlpack::elements! {
///     enum Float {
///         F32(f32),
///         F64(f64),
///     }
/// }
///
/// #[pyfunction]
/// fn bytes(a: In<Float>) -> usize {
///     let elements: usize = a.shape().iter().product();
///     match a.view() {
///         Float::F32(_) => 4 * elements,
///         Float::F64(_) => 8 * elements,
///     }
/// }
/// ```
///
/// It tells of the array what a view of it does, and is kept or returned as a [`CaiView`]:
///
/// ```no_run
/// use cai_dlpack::CaiView;
/// use cai_dlpack::python::In;
/// use pyo3::prelude::*;
///
/// /// The array, if its rows lie apart and on a GPU, and its producer has told on which stream it works.
/// #[pyfunction]
/// fn apart(a: In<f32, 2>) -> Option<CaiView> {
///     let ([_, columns], [row, _]) = (a.shape(), a.elem_strides());
///     let is_apart = !a.is_empty() && row != columns as isize;
///     let is_known = !a.device().is_host_readable() && a.cai().producer().is_some();
///     (is_apart && is_known).then(|| a.into_cai())
/// }
/// ```
///
/// It is taken by value: PyO3 has no `&In`.
///
/// `W` is what is done while another thread's call writes to the memory: [`Refuse`], unless the signature has another
/// [`WhenInUse`].
///
/// # Errors
/// `TypeError` if the array has another type or number of axes (`view-dtype`, `view-ndim`); `BufferError` if it
/// reaches outside its allocation, or if another argument writes to its memory (`view-in-use`).
#[derive(Debug)]
pub struct In<T, const N: usize = ANY, W: WhenInUse = Refuse> {
    argument: Argument,
    signature: PhantomData<fn() -> (T, W)>,
}

/// An array argument of `N` axes and elements of type `T`, which the function writes.
///
/// It owns a view of the caller's array, and lends it as [`ViewMut`](crate::view::ViewMut). `T`, `N` and `W` are as for [`In`].
///
/// ```no_run
/// use cai_dlpack::CaiView;
/// use cai_dlpack::python::InOut;
/// use pyo3::prelude::*;
///
/// /// Sets the elements to 0 if they are the host's, and hands the array back: the argument's borrow ends.
/// #[pyfunction]
/// fn zero(mut out: InOut<f32, 2>) -> PyResult<CaiView> {
///     println!("{} of shape {:?}, strides {:?}", out.cai(), out.shape(), out.elem_strides());
///     if out.device().is_host_readable() && !out.is_empty() {
///         let before = out.view().copy_to_vec()?;
///         assert_eq!(before.len(), out.len());
///         let mut elements = out.view_mut().named("out").c_order()?;
///         // SAFETY: the array is there, and the caller does not let other threads or a GPU use it meanwhile.
///         unsafe { elements.host_slice_mut() }?.fill(0.0);
///     }
///     Ok(out.into_cai())
/// }
/// ```
///
/// # Errors
/// As [`In`]; `BufferError` for a read-only array (`read-only-writer`), for one of which two indices address one
/// element (`overlap`), and for one that shares memory with another `In` or `InOut` (`view-in-use`). While it lives
/// no [`CaiView`] of the same memory is lent; a [`View`](crate::view::View) that was lent before is not seen.
#[derive(Debug)]
pub struct InOut<T, const N: usize = ANY, W: WhenInUse = Refuse> {
    argument: Argument,
    signature: PhantomData<fn() -> (T, W)>,
}

/// Implements the accessors of both kinds of argument.
macro_rules! argument {
    ($argument:ident, exclusive: $exclusive:literal) => {
        impl<T: Elements, const N: usize, W: WhenInUse> $argument<T, N, W> {
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
            pub fn view(&self) -> T::View<'_> {
                T::view(Lent::new(self.cai()))
            }

            /// Returns the extents, in elements: an array of `N`, or a slice if `N` is left open.
            #[must_use]
            pub fn shape(&self) -> <Rank<N> as Extents>::Shape<'_>
            where
                Rank<N>: Extents,
            {
                // There are `N` (`extract`).
                Rank::<N>::shape(self.cai().shape())
            }

            /// Returns one stride per axis, in elements: an array of `N`, or a slice if `N` is left open.
            #[must_use]
            pub fn elem_strides(&self) -> <Rank<N> as Extents>::Strides<'_>
            where
                Rank<N>: Extents,
            {
                Rank::<N>::strides(self.cai().elem_strides())
            }

            /// Returns the number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                // Fits: the layout's size in bytes fits `i64`, and this is a 64-bit platform's crate.
                self.cai().descriptor().len() as usize
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

            const WANTED: Wanted = Wanted::of::<T, N>($exclusive, W::MEETING);
        }

        impl<T: Elements, const N: usize, W: WhenInUse> FromPyObject<'_, '_>
            for $argument<T, N, W>
        {
            type Error = PyErr;

            #[inline(always)]
            fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
                Ok(Self {
                    argument: Argument::take(&object, &Self::WANTED)?,
                    signature: PhantomData,
                })
            }
        }
    };
}

argument!(In, exclusive: false);
argument!(InOut, exclusive: true);

// **A road not taken**: our words for `&In` in a signature, by a `FromPyObject` under a condition that never holds (as in
// `interop/cudarc/missing.rs`). PyO3 infers whether an argument is one or a reference to a class, so two of its impls match
// `&In`, and the compiler then reports PyO3's trait and the condition of neither.

impl<T: Elements, const N: usize, W: WhenInUse> InOut<T, N, W> {
    /// Returns the elements, to be written.
    #[must_use]
    pub fn view_mut(&mut self) -> T::ViewMut<'_> {
        T::view_mut(LentMut::new(self.argument.view_mut()))
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
        take::get_ready(py)?;
        PyCaiView::new(self).into_object(py)
    }
}
