//! The types of the C prototypes: handles, and pointers that C lends for one call.
//!
//! Handles are numbers: nothing is ever dereferenced through one. Pointers that C lends are
//! wrapped on arrival; reading and writing them is done in this module and nowhere else.

use std::ffi::{CStr, c_char};

use crate::abi::codes::{Code, Status};

/// An argument of an entry point.
pub(crate) trait Word: Copy {
    /// Returns the argument as the call log keeps it.
    fn word(self) -> u64;
}

macro_rules! number_words {
    ($($ty:ty),*) => {$(
        impl Word for $ty {
            fn word(self) -> u64 {
                self as u64
            }
        }
    )*};
}

number_words!(i32, u32, u64, usize, u8, u16);

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) usize);

        impl $name {
            #[allow(dead_code, reason = "not every kind of handle is compared with null")]
            pub(crate) const NULL: $name = $name(0);
        }

        impl Word for $name {
            fn word(self) -> u64 {
                self.0 as u64
            }
        }

        impl From<usize> for $name {
            fn from(value: usize) -> $name {
                $name(value)
            }
        }
    )*};
}

handles! {
    /// CUcontext.
    ContextHandle;
    /// CUstream: a created one, or 0, 1 (legacy) or 2 (per-thread).
    StreamHandle;
    /// CUevent.
    EventHandle;
    /// CUmemoryPool.
    PoolHandle;
    /// CUgraph.
    GraphHandle;
    /// CUgraphExec.
    ExecHandle;
    /// CUuserObject.
    UserObjectHandle;
    /// CUgraphNode.
    NodeHandle;
    /// An address in host memory, valid by the caller's promise: read or written only as work.
    HostAddress;
    /// An address of either side, for calls that take both as CUdeviceptr.
    UnifiedAddress;
}

/// CUdeviceptr.
pub(crate) type DeviceAddress = u64;

/// A host function: called with the data pointer it was enqueued with. `C-unwind`, because a
/// Python callback may end its thread (pthread_exit) while the interpreter shuts down.
pub(crate) type HostFunction = extern "C-unwind" fn(usize);

/// CUstreamCallback: called with stream, status and data.
pub(crate) type StreamCallbackFunction = extern "C-unwind" fn(usize, u32, usize);

/// CUipcMemHandle and CUipcEventHandle, which C passes by value; CUmemPoolPtrExportData.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

impl Word for IpcHandle {
    /// Returns the middle of the handle: the inode of what it names (`process::token`).
    fn word(self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = *self.0.first_chunk::<40>().unwrap_or(&[0; 40]);
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }
}

impl Word for Option<HostFunction> {
    fn word(self) -> u64 {
        self.map_or(0, |function| function as usize as u64)
    }
}

impl Word for Option<StreamCallbackFunction> {
    fn word(self) -> u64 {
        self.map_or(0, |function| function as usize as u64)
    }
}

/// A pointer that C lends for the length of one call, to be written.
///
/// Values exist only as arguments of entry points, so a non-null one is what the caller of the
/// CUDA API promises: writable, aligned, and large enough for `T` (or for the count that the
/// call documents).
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// A pointer that C lends for the length of one call, to be read; its invariant is that of [`Out`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> Word for Out<T> {
    fn word(self) -> u64 {
        self.0 as usize as u64
    }
}

impl<T: Copy> Word for In<T> {
    fn word(self) -> u64 {
        self.0 as usize as u64
    }
}

impl<T: Copy> Out<T> {
    /// An output that is left out.
    pub(crate) const NULL: Out<T> = Out(std::ptr::null_mut());

    /// Makes an output of an address that lies in an array which the caller lends for the call.
    pub(crate) fn from_lent(address: usize) -> Out<T> {
        Out(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Reads the caller's value, for calls that read and then write.
    pub(crate) fn get(self) -> Result<T, Code> {
        In(self.0.cast_const()).get()
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns INVALID_VALUE for a null pointer: most calls check their outputs before they act.
    pub(crate) fn check(self) -> Status {
        if self.is_null() {
            Err(Code::INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    pub(crate) fn put(self, value: T) -> Status {
        self.check()?;
        self.put_at(0, value);
        Ok(())
    }

    /// Writes an output that the caller may leave out.
    pub(crate) fn put_if_wanted(self, value: T) {
        if !self.is_null() {
            self.put_at(0, value);
        }
    }

    /// Writes element `index` of an array that the caller lends.
    pub(crate) fn put_at(self, index: usize, value: T) {
        let slot = self.0.wrapping_add(index);
        // SAFETY: not null (checked by the callers of this function in this module, and by
        // `check` elsewhere); the invariant of `Out` makes the slot writable for a `T`.
        // The write is unaligned, because C callers also lend the inside of packed buffers.
        unsafe { slot.write_unaligned(value) }
    }

    /// Returns the pointer as one to another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(self) -> Result<T, Code> {
        self.get_at(0)
    }

    /// Reads element `index` of an array that the caller lends.
    pub(crate) fn get_at(self, index: usize) -> Result<T, Code> {
        if self.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let slot = self.0.wrapping_add(index);
        // SAFETY: not null; the invariant of `In` makes the slot readable for a `T`, which is
        // `Copy`. The read is unaligned, because C callers also lend the inside of packed buffers.
        Ok(unsafe { slot.read_unaligned() })
    }
}

/// A C string that the caller lends.
pub(crate) type Text = In<c_char>;

impl In<c_char> {
    /// Returns the string, to be read within the call only.
    pub(crate) fn text(self) -> Result<&'static str, Code> {
        if self.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the caller of the API promises a NUL-terminated string that lives
        // for the call. The `'static` is never kept: every user reads it within the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::INVALID_VALUE)
    }
}

/// Copies `text` into a C buffer of `capacity` bytes, cut and NUL-terminated; nothing at 0.
pub(crate) fn put_text(out: Out<c_char>, capacity: usize, text: &str) {
    if out.is_null() || capacity == 0 {
        return;
    }
    let kept = text.len().min(capacity - 1);
    for (index, byte) in text.bytes().take(kept).enumerate() {
        out.put_at(index, byte as c_char);
    }
    out.put_at(kept, 0);
}
