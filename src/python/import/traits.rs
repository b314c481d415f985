//! Traits of a type that decide how its objects are imported.

use bitflags::bitflags;

use crate::partners::{Mutability, Quirk, Silence};

bitflags! {
    /// The class and the attributes of a type, and the quirks of its library
    /// ([`PARTNERS`](crate::partners::PARTNERS)), which decide the route of an import beside the table.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Traits: u32 {
        /// The type is `CaiView`.
        const OURS = 1;
        /// The type has this attribute, and so for the next four. [`method`](Self::method): it is a method.
        const REQUIRES_GRAD = 1 << 1;
        const IS_CONJ = 1 << 2;
        const IS_NEG = 1 << 3;
        const IS_SPARSE = 1 << 4;
        const IS_PINNED = 1 << 5;
        /// [`Quirk::IgnoresStream`].
        const IGNORES_STREAM = 1 << 6;
        /// [`Quirk::WantsCurrentDevice`].
        const WANTS_CURRENT = 1 << 7;
        /// The type has `__dlpack__`.
        const HAS_DLPACK = 1 << 8;
        /// The type is the `CaiView` of another extension's copy of this library. Its dict names the stream that the
        /// array is ready on, and [`another_copy`](super::another_copy) what else is to know; its table could name the thread's work
        /// stream only, which would have to wait first.
        const ANOTHER_COPY = 1 << 9;
        /// [`Quirk::MislabelsBfloat16`].
        const MISLABELS = 1 << 10;
        /// The type has no table and none of [`LAZY`](Self::LAZY) and [`NUMBA`](Self::NUMBA), and is neither a `CaiView`, a capsule nor a dict: its objects are
        /// imported by their attributes.
        const PLAIN = 1 << 11;
        /// [`Silence::LegacyDefault`]: an array without a stream may have work pending on a default stream.
        const SILENT_LEGACY = 1 << 12;
        /// The type is of a library of the table, or inherits from one.
        const LISTED = 1 << 13;
        /// [`Silence::Unknown`]: the same, on a stream that the table cannot tell.
        const SILENT_UNKNOWN = 1 << 14;
        /// An array without a stream is undeclared, and not ready.
        const SILENT = Self::SILENT_LEGACY.bits() | Self::SILENT_UNKNOWN.bits();
        /// [`Mutability::Mutable`]: an array whose tensor has no flags can be written.
        const IS_MUTABLE = 1 << 15;
        /// The type is NumPy's array, or a subclass of it. [`method`](Self::method) has the bits below.
        const NDARRAY = 1 << 24;
        /// The type is NumPy's masked array, or a subclass of it, whose `__dlpack__` drops the mask.
        const MASKED = 1 << 25;
        /// [`Quirk::AbortsOnDtype`].
        const ABORTS_ON_DTYPE = 1 << 26;
        /// The import is `explain`'s, which calls `__dlpack__` only if that makes nothing wait. No type has this bit.
        const TRIED = 1 << 27;
        /// The type is iterable, and neither an array nor of a library of the table: its objects may hold arrays of any
        /// library.
        const CONTAINER = 1 << 28;
        /// The type is Numba's array, whose fields are read without the getter of its interface ([`numba`](super::numba)).
        const NUMBA = 1 << 29;
        /// The import's caller makes the wait for a producer that has moved, when nothing is refused any more. No type has this
        /// bit.
        const UNORDERED = 1 << 30;
        /// Attributes that state an operation which is pending on the values.
        const LAZY = Self::IS_NEG.bits() | Self::IS_CONJ.bits();
        /// What is read before `__dlpack__` is called.
        const CHECKED_FIRST = Self::LAZY.bits() | Self::ABORTS_ON_DTYPE.bits() | Self::TRIED.bits();
        /// Attributes that change the meaning of an export.
        const STATE = Self::REQUIRES_GRAD.bits() | Self::LAZY.bits();
    }
}

impl Traits {
    /// Returns the trait that the attribute of this trait, which is below 2^8, is a method.
    pub(super) const fn method(self) -> Self {
        Self::from_bits_retain(self.bits() << 16)
    }

    /// Returns the trait of what a library means by naming no stream.
    pub(super) fn of_silence(silence: Silence) -> Self {
        match silence {
            Silence::Ready => Self::empty(),
            Silence::Unknown => Self::SILENT_UNKNOWN,
            Silence::LegacyDefault => Self::SILENT_LEGACY,
        }
    }

    /// Returns the trait of what a library means by a tensor without flags.
    ///
    /// [`Mutability::Immutable`] is not taken for the flag: JAX's arrays would then be refused by JAX, whose import is
    /// legacy as its export is. They stay unknown, and every consumer that can be told is told not to write.
    pub(super) const fn of_mutability(untold: Option<Mutability>) -> Self {
        match untold {
            Some(Mutability::Mutable) => Self::IS_MUTABLE,
            Some(Mutability::Immutable | Mutability::Unknown) | None => Self::empty(),
        }
    }

    /// Returns the trait of a library's quirk.
    pub(super) const fn of_quirk(quirk: Quirk) -> Self {
        match quirk {
            Quirk::IgnoresStream => Self::IGNORES_STREAM,
            Quirk::MislabelsBfloat16 => Self::MISLABELS,
            Quirk::AbortsOnDtype => Self::ABORTS_ON_DTYPE,
            Quirk::WantsCurrentDevice => Self::WANTS_CURRENT,
        }
    }
}
