//! Names the step that is missing, in the compiler's words, where a function of cudarc's is given an array as it stands.
//!
//! cudarc's traits are not ours to annotate. So the traits of arguments are implemented for arrays under a condition that
//! never holds, which the compiler then reports.

use std::convert::Infallible;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DeviceRepr, DeviceSlice, SyncOnDrop};

use super::guard::StreamGuard;
#[cfg(feature = "pyo3")]
use crate::python::{In, InOut, WhenInUse};
use crate::view::{Element, View, ViewMut};

/// Implemented by nothing: a kernel takes an array that is on its stream.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not on the kernel's stream",
    label = "an array as it stands, which the stream has not waited for",
    note = "pass the guard that `.on(&stream)?` returns: `let x = a.on(&stream)?; launch.arg(&x)`; of an argument, `a.view().on(&stream)?`"
)]
pub trait OnStream {
    #[doc(hidden)]
    fn never(&self) -> &Infallible;
}

/// Implemented by nothing: cudarc's copies take the elements, which are contiguous, and not the guard. Demanded of the view, as
/// the compiler keeps what it says of the guard itself to itself.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "the guard of a `{Self}` is no slice: the array may have gaps",
    label = "a guard as it stands",
    note = "pass its elements, which are contiguous: `&x.as_slice()?`, of a guard `let mut x = a.on(&stream)?`"
)]
pub trait AsSlice {
    #[doc(hidden)]
    fn never(&self) -> &Infallible;
}

/// Implements `DeviceRepr`, by which a value is an argument of a kernel, under the condition that never holds.
macro_rules! never_an_argument {
    ($($(#[$attribute:meta])* [$($generics:tt)*] $array:ty;)*) => {$(
        $(#[$attribute])*
        #[doc(hidden)]
        // SAFETY: implemented for no type, as nothing implements `OnStream`.
        unsafe impl<$($generics)*> DeviceRepr for $array where $array: OnStream {}
    )*};
}

never_an_argument! {
    ['a, T: Element] View<'a, T>;
    ['a, T: Element] ViewMut<'a, T>;
    #[cfg(feature = "pyo3")]
    [T, const N: usize, W: WhenInUse] In<T, N, W>;
    #[cfg(feature = "pyo3")]
    [T, const N: usize, W: WhenInUse] InOut<T, N, W>;
}

/// Implements the traits of a slice for a guard, under the condition that never holds.
macro_rules! never_a_slice {
    ($($view:ident;)*) => {$(
        #[doc(hidden)]
        impl<'v, T: Element> DeviceSlice<T> for StreamGuard<'_, $view<'v, T>>
        where
            $view<'v, T>: AsSlice,
        {
            fn len(&self) -> usize {
                match *self.typed().never() {}
            }

            fn stream(&self) -> &Arc<CudaStream> {
                match *self.typed().never() {}
            }
        }

        #[doc(hidden)]
        impl<'v, T: Element> DevicePtr<T> for StreamGuard<'_, $view<'v, T>>
        where
            $view<'v, T>: AsSlice,
        {
            fn device_ptr<'a>(&'a self, _stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
                match *self.typed().never() {}
            }
        }
    )*};
}

never_a_slice! {
    View;
    ViewMut;
}
