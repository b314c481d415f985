//! The protocols by which calls read a view.

/// The protocol by which a [`Call`](super::Call) reads a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reads {
    /// `__dlpack__`, or the exchange table.
    Dlpack,
    /// A DLPack capsule alone.
    Capsule,
    /// `__cuda_array_interface__`.
    Interface,
    /// Python's buffer protocol.
    Buffer,
    /// Python's buffer protocol, and `__dlpack__` for memory that has none.
    BufferOrDlpack,
    /// `__array_interface__`.
    ArrayInterface,
    /// The attributes of the view itself: a function of this library.
    View,
}

impl Reads {
    /// The name of the protocol, as the conformance matrix prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dlpack => "DLPack",
            Self::Capsule => "capsule",
            Self::Interface => "interface",
            Self::Buffer => "buffer",
            Self::BufferOrDlpack => "buffer or DLPack",
            Self::ArrayInterface => "array interface",
            Self::View => "the view itself",
        }
    }
}
