//! The types that an element of an array may have in Rust.

use std::fmt;
use std::hash::{Hash, Hasher};

use bytemuck::Pod;

use crate::protocol::dtype::DType;

/// A Rust type whose values are the elements of an array.
///
/// | Rust | array |
/// |---|---|
/// | `i8` to `i64`, `u8` to `u64`, `f32`, `f64` | of the same name |
/// | [`Bool`] | `bool` |
/// | `[f32; 2]`, `[f64; 2]` (real, imaginary) | `complex64`, `complex128` |
/// | `num_complex::Complex32`, `Complex64` (feature `num-complex`) | `complex64`, `complex128` |
/// | `half::f16`, `half::bf16` (feature `half`) | `float16`, `bfloat16` |
///
/// [`Pod`] makes reading and writing sound: every pattern of bits is a value, and no byte is padding.
/// Rust's `bool` is not among them, as a byte of 2 is no `bool`.
///
/// # Safety
/// - A value's bits mean what the protocol defines for [`DTYPE`](Self::DTYPE): `bfloat16` is not `u16`.
///
/// That a value has the size of one element, of one lane, and asks for no stricter alignment than the
/// protocols promise, is checked as the code is compiled:
///
/// ```compile_fail,E0080
/// use cai_dlpack::{CaiView, protocol::dtype::DType, view::Element};
///
/// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
/// #[repr(C, align(8))]
/// struct Wide([f32; 2]);
///
/// // SAFETY: a real and an imaginary part.
/// unsafe impl Element for Wide {
///     const DTYPE: DType = DType::C64; // aligned to 4 bytes, and not to 8
/// }
///
/// fn take(view: &CaiView) {
///     let _ = view.typed::<Wide>();
/// }
/// # take as fn(&CaiView);
/// ```
///
/// For another type of DLPack, such as one of the 8-bit floats, implement it for a wrapper:
///
/// ```
/// use cai_dlpack::protocol::dtype::DType;
/// use cai_dlpack::view::Element;
///
/// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
/// #[repr(transparent)]
/// struct E4m3(u8);
///
/// // SAFETY: one byte, and nothing reads it as a number but code that knows the format.
/// unsafe impl Element for E4m3 {
///     const DTYPE: DType = DType::F8_E4M3FN;
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element of an array",
    label = "no type of an array's elements",
    note = "an array of `bool` has elements `cai_dlpack::view::Bool`: a byte of 2 is no `bool` of Rust",
    note = "complex numbers are `[f32; 2]` and `[f64; 2]`, or of num-complex, by the feature of that name; `half::f16` and `half::bf16` need the feature `half`",
    note = "another type of DLPack is an `unsafe impl Element` for a wrapper of your own"
)]
pub unsafe trait Element: Pod {
    /// The type as both protocols know it.
    const DTYPE: DType;
}

/// Refuses to compile for an element of another size than its type's, or of a stricter alignment.
pub(crate) const fn check_size<T: Element>() {
    let size = match T::DTYPE.itemsize() {
        Some(size) => size as usize,
        None => 0,
    };
    assert!(
        size_of::<T>() == size,
        "an Element has the size of one element of its DTYPE"
    );
    assert!(
        align_of::<T>() <= T::DTYPE.align() as usize,
        "an Element is aligned no more strictly than its DTYPE"
    );
}

/// A `bool` of an array: one byte, of which every value but 0 is true. All true ones are equal.
///
/// ```
/// use cai_dlpack::view::Bool;
///
/// assert!(Bool(2).get());
/// assert_eq!(Bool(2), true.into());
/// ```
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// Returns the value as Rust's `bool`.
    #[must_use]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl Hash for Bool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.get().hash(state);
    }
}

impl fmt::Display for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.get()
    }
}

macro_rules! element_types {
    ($($(#[$attribute:meta])* $element:ty => $dtype:ident;)*) => {
        $(
            $(#[$attribute])*
            // SAFETY: the constant names this very type; the line below compares the sizes.
            unsafe impl Element for $element {
                const DTYPE: DType = DType::$dtype;
            }
        )*

        $(
            $(#[$attribute])*
            const _: () = check_size::<$element>();
        )*
    };
}

element_types! {
    Bool => BOOL;
    i8 => I8;
    i16 => I16;
    i32 => I32;
    i64 => I64;
    u8 => U8;
    u16 => U16;
    u32 => U32;
    u64 => U64;
    f32 => F32;
    f64 => F64;
    [f32; 2] => C64;
    [f64; 2] => C128;
    #[cfg(feature = "num-complex")]
    num_complex::Complex<f32> => C64;
    #[cfg(feature = "num-complex")]
    num_complex::Complex<f64> => C128;
    #[cfg(feature = "half")]
    half::f16 => F16;
    #[cfg(feature = "half")]
    half::bf16 => BF16;
}
