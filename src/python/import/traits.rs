//! The traits of a type that decide how its objects are imported.

use bitflags::bitflags;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;

use crate::partners::Quirk;
use crate::python::cpython::int::type_name;
use crate::python::cpython::warn;

bitflags! {
    /// What decides the way an object of a type is imported, beside the table: its class, its attributes, and
    /// the quirks of its library ([`PARTNERS`](crate::partners::PARTNERS)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Traits: u32 {
        /// It is our own `CaiView`.
        const OURS = 1;
        /// It has this attribute; so do the next four. [`method`](Self::method) tells that it is a method.
        const REQUIRES_GRAD = 1 << 1;
        const IS_CONJ = 1 << 2;
        const IS_NEG = 1 << 3;
        const IS_SPARSE = 1 << 4;
        const IS_PINNED = 1 << 5;
        /// [`Quirk::IgnoresStream`].
        const IGNORES_STREAM = 1 << 6;
        /// [`Quirk::WantsCurrentDevice`].
        const WANTS_CURRENT = 1 << 7;
        /// It has `__dlpack__`.
        const HAS_DLPACK = 1 << 8;
        /// It is the `CaiView` of another copy of this library, linked by another extension. Its dict names the
        /// stream that the array is ready on, and on which its producer waits for readers. Its table could
        /// name the thread's work stream only, which would have to wait first.
        const ANOTHER_COPY = 1 << 9;
        /// [`Quirk::MislabelsBfloat16`].
        const MISLABELS = 1 << 10;
        /// It is neither a capsule nor a dict, and its objects are asked through their attributes: it has no
        /// table, and is no view of ours.
        const PLAIN = 1 << 11;
        /// Attributes that change the meaning of an export.
        const STATE = Self::REQUIRES_GRAD.bits() | Self::IS_CONJ.bits() | Self::IS_NEG.bits();
    }
}

impl Traits {
    /// The trait that the attribute of a trait below 2^16 is a method.
    pub(super) const fn method(self) -> Self {
        Self::from_bits_retain(self.bits() << 16)
    }

    /// The trait of a library's quirk.
    pub(super) const fn of_quirk(quirk: Quirk) -> Self {
        match quirk {
            Quirk::IgnoresStream => Self::IGNORES_STREAM,
            Quirk::MislabelsBfloat16 => Self::MISLABELS,
            Quirk::WantsCurrentDevice => Self::WANTS_CURRENT,
        }
    }
}

/// Warns, once per type, that the stream of the data is unknown.
#[cold]
pub(crate) fn warn_unknown(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let text = format!(
        "{} does not say which stream it works on: the legacy default stream is taken, which waits for no \
         non-blocking stream; name the stream by producer_stream=, or None where nothing is pending [stream-unknown]",
        type_name(object)
    );
    let category = object.py().get_type::<PyUserWarning>();
    warn::once(object, &text, category.as_any())
}
