//! The element types that a function takes: one, or several of which the array has one.

use super::borrow::check_lent;
use super::typed::{check_writable, mismatch};
use super::{CaiView, Element, View, ViewMut, check_element, prove_memory};
use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::dtype::DType;
use crate::protocol::rule::{Rule, Violation};

/// The element types that an array may have: one [`Element`], or those of an enum that [`elements!`](crate::elements)
/// declares.
///
/// [`CaiView::typed_as`] and the arguments of extension modules (`python::In`, `python::InOut`) take either:
///
/// | asked for | by `typed_as`, `view` | by `typed_as_mut`, `view_mut` |
/// |---|---|---|
/// | `f32` | `View<'_, f32>` | `ViewMut<'_, f32>` |
/// | `Float`, of `F32(f32)` and `F64(f64)` | `Float<View<'_, f32>, View<'_, f64>>` | `Float<ViewMut<'_, f32>, ViewMut<'_, f64>>` |
///
/// It is implemented by the macro, and not by hand. Its methods check the type again where a view is made
/// ([`Lent::of`]), as the trait is safe to implement, and what an impl declares in `DTYPES` proves nothing.
///
/// ```
#[doc = floats!()]
/// use cai_dlpack::view::Elements;
///
/// /// Whether the array is one of `E`.
/// fn is_of<E: Elements>(view: &CaiView) -> bool {
///     view.typed_as::<E>().is_ok()
/// }
/// assert!(is_of::<f32>(&floats()) && !is_of::<i32>(&floats()));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element of an array, and no enum of such",
    label = "no type of an array's elements",
    note = "an array of `bool` has elements `cai_dlpack::view::Bool`: a byte of 2 is no `bool` of Rust",
    note = "complex numbers are `[f32; 2]` and `[f64; 2]`, or of num-complex, by the feature of that name; `half::f16` and `half::bf16` need the feature `half`",
    note = "several types are an enum: `cai_dlpack::elements! {{ pub enum Float {{ F32(f32), F64(f64) }} }}`",
    note = "another type of DLPack is an `unsafe impl Element` for a wrapper of your own"
)]
pub trait Elements {
    /// An array to be read.
    type View<'a>;
    /// An array to be written.
    type ViewMut<'a>;

    /// Each type once.
    #[doc(hidden)]
    const DTYPES: &'static [DType];

    /// Makes the view of an array that is of one of [`DTYPES`](Self::DTYPES).
    #[doc(hidden)]
    fn view(array: Lent<'_>) -> Self::View<'_>;

    /// Makes the mutable view of an array that is of one of [`DTYPES`](Self::DTYPES).
    #[doc(hidden)]
    fn view_mut(array: LentMut<'_>) -> Self::ViewMut<'_>;
}

impl<T: Element> Elements for T {
    type View<'a> = View<'a, T>;
    type ViewMut<'a> = ViewMut<'a, T>;

    #[doc(hidden)]
    const DTYPES: &'static [DType] = &[T::DTYPE];

    #[doc(hidden)]
    #[inline(always)]
    fn view(array: Lent<'_>) -> View<'_, T> {
        match array.of::<T>() {
            Some(view) => view,
            None => other_type::<T>(array.0),
        }
    }

    #[doc(hidden)]
    #[inline(always)]
    fn view_mut(array: LentMut<'_>) -> ViewMut<'_, T> {
        match array.of::<T>() {
            Ok(view) => view,
            Err(other) => other_type::<T>(other.0),
        }
    }
}

/// Ends a call of [`Elements::view`] for an array of another type: an impl by hand has declared one type and made a view of
/// another.
#[cold]
#[inline(never)]
fn other_type<T: Element>(array: &CaiView) -> ! {
    let came = array.descriptor().dtype();
    panic!(
        "an array of {came} is no {}: Elements is implemented by elements! alone",
        T::DTYPE
    )
}

/// An array whose memory and alignment have been checked, to be read as its own element type: [`of`](Self::of) makes a view
/// of no other.
#[doc(hidden)]
#[derive(Debug)]
pub struct Lent<'a>(&'a CaiView);

/// An array whose memory, alignment and layout have been checked, to be written as its own element type: [`of`](Self::of)
/// makes a view of no other.
#[doc(hidden)]
#[derive(Debug)]
pub struct LentMut<'a>(&'a mut CaiView);

impl<'a> Lent<'a> {
    /// Of an array whose address has been [checked](check_elements) for its own type.
    #[inline(always)]
    pub(crate) fn new(array: &'a CaiView) -> Self {
        Self(array)
    }

    /// Refuses to compile for an enum that has one type twice, whose second variant would never be made: run by the compiler.
    ///
    /// # Panics
    /// At compile time, where the macro calls it.
    pub const fn check_distinct(dtypes: &[DType]) {
        let mut at = 0;
        while at < dtypes.len() {
            let mut other = 0;
            while other < at {
                let (one, two) = (dtypes[at], dtypes[other]);
                assert!(
                    one.code() != two.code()
                        || one.bits() != two.bits()
                        || one.lanes() != two.lanes(),
                    "an enum of elements! has each type of DLPack once"
                );
                other += 1;
            }
            at += 1;
        }
    }

    /// Returns the view, if the array is of this type.
    #[inline(always)]
    #[must_use]
    pub fn of<T: Element>(&self) -> Option<View<'a, T>> {
        (self.0.descriptor().dtype() == T::DTYPE).then(|| View::new(self.0))
    }
}

impl<'a> LentMut<'a> {
    /// Of an array whose address has been [checked](check_elements) for its own type.
    #[inline(always)]
    pub(crate) fn new(array: &'a mut CaiView) -> Self {
        Self(array)
    }

    /// Returns the view, if the array is of this type.
    ///
    /// # Errors
    /// `self`, if it is of another one.
    #[inline(always)]
    pub fn of<T: Element>(self) -> Result<ViewMut<'a, T>, Self> {
        match self.0.descriptor().dtype() == T::DTYPE {
            true => Ok(ViewMut::new(self.0)),
            false => Err(self),
        }
    }
}

impl CaiView {
    /// Returns this array as elements of type `T`; [`View`] has an example.
    ///
    /// # Errors
    /// `view-dtype` if it is of another type, `data-alignment`; `view-in-use` while an argument of a Python function
    /// (`python::InOut`) writes to its memory; and if the memory is CUDA's and
    /// there is a driver, by one query: `pointer-unknown`, `pointer-device`, `out-of-bounds`.
    ///
    /// ```
    #[doc = floats!()]
    /// let view = floats();
    /// assert_eq!(view.typed::<f32>()?.copy_to_vec()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    /// assert!(view.typed::<f64>().is_err());
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn typed<T: Element>(&self) -> Result<View<'_, T>, Error> {
        self.typed_as::<T>()
    }

    /// Returns this array as elements of type `T` that may be written; [`ViewMut`] has an example.
    ///
    /// # Errors
    /// As [`CaiView::typed`]; `read-only-writer` for data that is not known to be
    /// [writable](crate::protocol::device::Access::Writable), and
    /// `overlap` if two indices may mean one element (a broadcast axis, strides that interleave). `view-in-use` while any
    /// argument (`python::In`, `python::InOut`) uses its memory.
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::protocol::rule::Rule;
    ///
    /// let mut view = floats();
    /// assert_eq!(view.typed_mut::<f32>()?.len(), 6);
    /// // A row that is repeated has several indices for one element, and is read-only.
    /// let mut rows = view.index(0, 0)?.broadcast(&[2, 3])?;
    /// let Err(cai_dlpack::Error::Violation(refused)) = rows.typed_mut::<f32>() else { panic!("was taken") };
    /// assert_eq!(refused.rule(), Rule::ReadOnlyWriter);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn typed_mut<T: Element>(&mut self) -> Result<ViewMut<'_, T>, Error> {
        self.typed_as_mut::<T>()
    }

    /// Returns this array as one of several element types: as an enum of [`elements!`](crate::elements), which has an
    /// example.
    ///
    /// # Errors
    /// As [`CaiView::typed`].
    ///
    /// ```
    #[doc = floats!()]
    /// cai_dlpack::elements! {
    ///     enum Float {
    ///         F32(f32),
    ///         F64(f64),
    ///     }
    /// }
    ///
    /// let view = floats();
    /// let bytes = match view.typed_as::<Float>()? {
    ///     Float::F32(of) => 4 * of.len(),
    ///     Float::F64(of) => 8 * of.len(),
    /// };
    /// assert_eq!(bytes, 24);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn typed_as<E: Elements>(&self) -> Result<E::View<'_>, Error> {
        check_elements(self.descriptor(), E::DTYPES)?;
        check_lent(self.descriptor(), false)?;
        prove_memory(self.descriptor())?;
        Ok(E::view(Lent::new(self)))
    }

    /// Returns this array as one of several element types that may be written.
    ///
    /// # Errors
    /// As [`CaiView::typed_mut`].
    ///
    /// ```
    #[doc = floats!()]
    /// cai_dlpack::elements! {
    ///     enum Number {
    ///         F32(f32),
    ///         I32(i32),
    ///     }
    /// }
    ///
    /// let mut view = floats();
    /// let Number::F32(a) = view.typed_as_mut::<Number>()? else { unreachable!() };
    /// assert_eq!(a.len(), 6);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn typed_as_mut<E: Elements>(&mut self) -> Result<E::ViewMut<'_>, Error> {
        check_elements(self.descriptor(), E::DTYPES)?;
        check_writable(self.descriptor())?;
        check_lent(self.descriptor(), true)?;
        prove_memory(self.descriptor())?;
        Ok(E::view_mut(LentMut::new(self)))
    }
}

/// Checks that the array is of one of these types, and that its address suits it.
pub(crate) fn check_elements(came: &Descriptor, wanted: &[DType]) -> Result<(), Violation> {
    match wanted {
        [only] => check_element(came, *only),
        _ if wanted.contains(&came.dtype()) => check_element(came, came.dtype()),
        _ => {
            came.check_dlpack()?;
            let wanted = one_of(wanted);
            let wanted = format_args!("{wanted} is wanted");
            Err(mismatch(Rule::ViewDtype, came, wanted))
        }
    }
}

/// Lists types for a message: "float32, float64 or int32".
#[cold]
pub(crate) fn one_of(dtypes: &[DType]) -> String {
    let mut names: Vec<_> = dtypes.iter().map(ToString::to_string).collect();
    let last = names.pop().unwrap_or_default();
    match names.is_empty() {
        true => last,
        false => format!("{} or {last}", names.join(", ")),
    }
}

/// Declares an enum over element types, for functions that take arrays of several.
///
/// Each variant has one [`Element`]. The enum has a type parameter for each variant: `Float` is what is
/// asked for, and `Float<View<'_, f32>, View<'_, f64>>` what is returned. An array of another type is refused by
/// `view-dtype`, in one message for all.
///
/// ```
#[doc = floats!()]
/// cai_dlpack::elements! {
///     /// The types that this module computes with.
///     #[derive(Debug)]
///     pub enum Float {
///         F32(f32),
///         F64(f64),
///     }
/// }
///
/// fn bytes(view: &CaiView) -> Result<usize, cai_dlpack::Error> {
///     Ok(match view.typed_as::<Float>()? {
///         Float::F32(a) => 4 * a.len(),
///         Float::F64(a) => 8 * a.len(),
///     })
/// }
/// assert_eq!(bytes(&floats())?, 24);
/// assert_eq!(bytes(&CaiView::from_vec(vec![0.0_f64; 3], [3])?)?, 24);
///
/// let refused = bytes(&CaiView::from_vec(vec![0_i8; 3], [3])?).unwrap_err();
/// assert!(refused.to_string().ends_with("float32 or float64 is wanted [view-dtype]"));
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
///
/// As arguments of a function that Python calls (feature `pyo3`), of any rank and of one axis:
///
/// ```
/// # #[cfg(feature = "pyo3")] mod example {
/// use cai_dlpack::python::{In, InOut};
/// use cai_dlpack::view::{Element, View, ViewMut};
/// use pyo3::prelude::*;
///
/// # cai_dlpack::elements! { pub enum Float { F32(f32), F64(f64) } }
/// fn kernel<T: Element>(a: View<'_, T>, out: ViewMut<'_, T>) -> PyResult<()> {
///     let (a, out) = (a.c_order()?.cuda()?, out.c_order()?.cuda()?);
/// #   let _ = (a, out);
///     // ... launch the kernel for `T` ...
///     Ok(())
/// }
///
/// #[pyfunction]
/// fn run(a: In<Float>, mut out: InOut<f32, 1>) -> PyResult<()> {
///     match a.view() {
///         Float::F32(a) => kernel(a, out.view_mut()),
///         Float::F64(_) => Err(pyo3::exceptions::PyNotImplementedError::new_err("float64")),
///     }
/// }
/// # }
/// ```
#[macro_export]
macro_rules! elements {
    ($(#[$meta:meta])* $visible:vis enum $name:ident {
        $($(#[$of_variant:meta])* $variant:ident($element:ty)),+ $(,)?
    }) => {
        $(#[$meta])*
        $visible enum $name<$($variant = ()),+> {
            $($(#[$of_variant])* $variant($variant),)+
        }

        const _: () = $crate::view::Lent::check_distinct(
            <$name as $crate::view::Elements>::DTYPES,
        );

        impl $crate::view::Elements for $name {
            type View<'a> = $name<$($crate::view::View<'a, $element>),+>;
            type ViewMut<'a> = $name<$($crate::view::ViewMut<'a, $element>),+>;

            const DTYPES: &'static [$crate::protocol::dtype::DType] =
                &[$(<$element as $crate::view::Element>::DTYPE),+];

            fn view(array: $crate::view::Lent<'_>) -> Self::View<'_> {
                $(if let ::core::option::Option::Some(view) = array.of::<$element>() {
                    return $name::$variant(view);
                })+
                ::core::unreachable!("the array is of one of the types that are asked for")
            }

            fn view_mut(array: $crate::view::LentMut<'_>) -> Self::ViewMut<'_> {
                $(let array = match array.of::<$element>() {
                    ::core::result::Result::Ok(view) => return $name::$variant(view),
                    ::core::result::Result::Err(other) => other,
                };)+
                ::core::unreachable!("{array:?} is of one of the types that are asked for")
            }
        }
    };
}

#[cfg(test)]
mod tests;
