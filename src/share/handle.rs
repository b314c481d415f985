//! The handle of a shared view, and its bytes.
//!
//! ```text
//! magic, 8 | where: boot, pid namespace, user, process, its start | who holds it: file, nonce
//!          | device | flags, element type, extents, strides | memory and offset, event | pickle | tag, 32
//! ```
//! Memory of a pool is named by what a Python library pickles; its offset is from the start of the library's buffer.
//! All numbers are little-endian. The tag is HMAC-SHA256 of all that comes before it.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::driver::ipc::{EventHandle, MemoryHandle, Uuid};
use crate::protocol::axes::MAX_NDIM;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Access, Device, Flags};
use crate::protocol::rule::{Field, Rule, Violation};

/// The first bytes of each handle; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"caidlp\0\x01";
/// The bytes of a tag.
const TAG: usize = 32;

/// Tells one share from all others.
pub(super) type Nonce = [u8; 16];

/// Where a share is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Of this start of the machine's system.
    pub(super) boot: [u8; 16],
    /// Where the numbers of processes mean these processes.
    pub(super) pid_namespace: u64,
    pub(super) user: u32,
    pub(super) process: u32,
    /// When the process was started, in ticks since the machine's start.
    pub(super) started: u64,
    /// The number of the file in that process.
    pub(super) file: u32,
    pub(super) nonce: Nonce,
}

/// Names a shared view for another process of this machine; see [`CaiView::share`](crate::CaiView::share).
///
/// A handle is a capability: who has one, and the key, can read and write the memory.
///
/// ```no_run
/// # fn received() -> Vec<u8> { Vec::new() }
/// use cai_dlpack::view::LiveStream;
/// use cai_dlpack::{CaiView, Error, share::Handle};
///
/// /// In the process that has received the bytes.
/// fn opened(key: &[u8]) -> Result<CaiView, Error> {
///     let handle = Handle::from_bytes(&received(), key)?;
///     // SAFETY: the other process lives until it is told that this one is done, and nobody writes meanwhile.
///     unsafe { handle.open(LiveStream::PER_THREAD_DEFAULT) }
/// }
/// # let _ = opened;
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    /// The process that shares, and how it is known to do so still.
    pub(super) place: Place,
    pub(super) device: Uuid,
    pub(super) array: Array,
    /// The allocation, and how far from its start the element of index 0 lies; none without elements.
    pub(super) memory: Option<(MemoryHandle, u64)>,
    /// The mark after which the data is ready; none if it is.
    pub(super) ready: Option<EventHandle>,
    /// What a library of Python's has pickled in place of `memory`, and how far from the start of its buffer the element
    /// of index 0 lies.
    pub(super) pickled: Option<(Vec<u8>, u64)>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("process", &self.place.process)
            .field("shape", &self.array.shape)
            .finish_non_exhaustive()
    }
}

/// What a descriptor says, but for the address and the number of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Array {
    code: u8,
    bits: u8,
    lanes: u16,
    flags: Flags,
    shape: Vec<i64>,
    elem_strides: Vec<i64>,
}

impl Array {
    /// Reads a descriptor that [`check_dlpack`](Descriptor::check_dlpack) has accepted.
    pub(super) fn of(array: &Descriptor) -> Self {
        let dtype = array.dtype();
        Self {
            code: dtype.code(),
            bits: dtype.bits(),
            lanes: dtype.lanes(),
            flags: array.flags(),
            shape: array.shape().to_vec(),
            elem_strides: array.elem_strides().to_vec(),
        }
    }

    /// Describes the array at an address.
    ///
    /// # Errors
    /// As [`Descriptor::new`].
    pub(super) fn at(&self, data: u64, device: Device) -> Result<Descriptor, Violation> {
        Descriptor::new(&RawTensor {
            data,
            byte_offset: 0,
            device,
            code: self.code,
            bits: self.bits,
            lanes: self.lanes,
            shape: &self.shape,
            strides: Some(&self.elem_strides),
            flags: self.flags.with(Flags::OF_DEVICE, true),
        })
    }
}

impl Handle {
    /// Returns the bytes that travel, with the tag by which [`from_bytes`](Self::from_bytes) knows that the key is the same.
    ///
    /// # Errors
    /// `argument-value` for an empty key.
    ///
    /// ```
    /// use cai_dlpack::share::Handle;
    ///
    /// let refused = Handle::from_bytes(b"no handle", b"our key").unwrap_err();
    /// assert_eq!(refused.rule().id(), "share-handle");
    /// ```
    pub fn to_bytes(&self, key: &[u8]) -> Result<Vec<u8>, Violation> {
        let mac = keyed(key)?;
        let mut bytes = MAGIC.to_vec();
        let mut put = |part: &[u8]| bytes.extend_from_slice(part);
        let Place {
            boot,
            pid_namespace,
            user,
            process,
            started,
            file,
            nonce,
        } = &self.place;
        put(boot);
        put(&pid_namespace.to_le_bytes());
        put(&user.to_le_bytes());
        put(&process.to_le_bytes());
        put(&started.to_le_bytes());
        put(&file.to_le_bytes());
        put(nonce);
        put(&self.device.0);
        let array = &self.array;
        put(&[code_of(array.flags), array.code, array.bits]);
        put(&array.lanes.to_le_bytes());
        put(&[array.shape.len() as u8]);
        let axes = array.shape.iter().chain(&array.elem_strides);
        axes.for_each(|extent| put(&extent.to_le_bytes()));
        let parts = [
            self.memory.is_some(),
            self.ready.is_some(),
            self.pickled.is_some(),
        ];
        put(&[(0..3).fold(0, |bits, at| bits | u8::from(parts[at]) << at)]);
        if let Some((memory, offset)) = &self.memory {
            put(&memory.0);
            put(&offset.to_le_bytes());
        }
        if let Some(ready) = &self.ready {
            put(&ready.0);
        }
        if let Some((pickle, offset)) = &self.pickled {
            put(&(pickle.len() as u64).to_le_bytes());
            put(pickle);
            put(&offset.to_le_bytes());
        }
        let tag = mac.chain_update(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&tag);
        Ok(bytes)
    }

    /// Reads the bytes of a handle. The tag is compared before anything else is looked at.
    ///
    /// # Errors
    /// `share-handle` if the tag is not of this key; also if another version of this library has made it.
    /// `argument-value` for an empty key.
    pub fn from_bytes(bytes: &[u8], key: &[u8]) -> Result<Self, Violation> {
        let mac = keyed(key)?;
        let (body, tag) = bytes
            .split_last_chunk::<TAG>()
            .ok_or_else(|| refused(bytes, "that are no handle"))?;
        mac.chain_update(body)
            .verify_slice(tag)
            .map_err(|_| refused(bytes, "whose tag is not of this key"))?;
        let mut rest = Reader(body);
        let found = || refused(bytes, "of another version's handle");
        if rest.take::<8>() != Some(MAGIC) {
            return Err(found());
        }
        read(&mut rest)
            .filter(|_| rest.0.is_empty())
            .ok_or_else(found)
    }
}

fn keyed(key: &[u8]) -> Result<Hmac<Sha256>, Violation> {
    let field = Field::Argument("key");
    match Hmac::<Sha256>::new_from_slice(key) {
        Ok(mac) if !key.is_empty() => Ok(mac),
        _ => Err(Violation::new(Rule::ArgumentValue, field, "an empty key")
            .with_hint("must be bytes that only the two processes know")),
    }
}

#[cold]
fn refused(bytes: &[u8], are: &str) -> Violation {
    let found = format_args!("{} bytes {are}", bytes.len());
    Violation::new(Rule::ShareHandle, Field::Argument("handle"), found).with_hint(
        "processes that do not inherit multiprocessing's authkey pass one key= to both ends",
    )
}

/// The flags that travel. What is a copy here is none there; that the memory is its device's own is known.
fn code_of(flags: Flags) -> u8 {
    let access = match flags.access() {
        Access::Writable => 0,
        Access::ReadOnly => 1,
        Access::Unknown => 2,
    };
    access | u8::from(flags.contains(Flags::SUBBYTE_PADDED)) << 2
}

fn flags_of(code: u8) -> Option<Flags> {
    let access = match code & 3 {
        0 => Access::Writable,
        1 => Access::ReadOnly,
        2 => Access::Unknown,
        _ => return None,
    };
    let flags = Flags::NONE.with_access(access);
    (code < 8).then(|| flags.with(Flags::SUBBYTE_PADDED, code & 4 != 0))
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (part, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*part)
    }

    fn bytes(&mut self, length: usize) -> Option<&[u8]> {
        let (part, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(part)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn axes(&mut self, ndim: usize) -> Option<Vec<i64>> {
        (0..ndim)
            .map(|_| self.take().map(i64::from_le_bytes))
            .collect()
    }
}

fn read(rest: &mut Reader<'_>) -> Option<Handle> {
    let place = Place {
        boot: rest.take()?,
        pid_namespace: rest.u64()?,
        user: rest.u32()?,
        process: rest.u32()?,
        started: rest.u64()?,
        file: rest.u32()?,
        nonce: rest.take::<{ size_of::<Nonce>() }>()?,
    };
    let device = Uuid(rest.take()?);
    let flags = flags_of(rest.byte()?)?;
    let (code, bits) = (rest.byte()?, rest.byte()?);
    let lanes = rest.take().map(u16::from_le_bytes)?;
    let ndim = usize::from(rest.byte()?);
    if ndim > MAX_NDIM {
        return None;
    }
    let array = Array {
        code,
        bits,
        lanes,
        flags,
        shape: rest.axes(ndim)?,
        elem_strides: rest.axes(ndim)?,
    };
    let parts = rest.byte().filter(|parts| *parts < 8)?;
    let memory = match parts & 1 {
        0 => None,
        _ => Some((MemoryHandle(rest.take()?), rest.u64()?)),
    };
    let ready = match parts & 2 {
        0 => None,
        _ => Some(EventHandle(rest.take()?)),
    };
    let pickled = match parts & 4 {
        0 => None,
        _ => {
            let length = usize::try_from(rest.u64()?).ok()?;
            Some((rest.bytes(length)?.to_vec(), rest.u64()?))
        }
    };
    Some(Handle {
        place,
        device,
        array,
        memory,
        ready,
        pickled,
    })
}

/// Checks that bytes lie in an allocation.
///
/// # Errors
/// `out-of-bounds`.
pub(super) fn check_span((start, size): (u64, u64), span: (u64, u64)) -> Result<(), Violation> {
    let end = start.saturating_add(size);
    if start <= span.0 && span.1 <= end {
        return Ok(());
    }
    let found = format_args!("bytes {:#x} to {:#x}", span.0, span.1);
    let hint = format!("the allocation is {start:#x} to {end:#x}");
    Err(Violation::new(Rule::OutOfBounds, Field::TensorData, found).with_hint(hint))
}
