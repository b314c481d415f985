//! Makes views of managed tensors.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use dlpark::ManagedTensorBase;
use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLTensor};

use super::{Abi, CaiView, DlpackTensor, IntoLiveStream, Owner, RawOwner};
use crate::error::Error;
use crate::process::fork;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Device, DeviceType, Flags};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;

impl CaiView {
    /// Takes a managed tensor over.
    ///
    /// `ready` is the stream that a consumer must wait for before it touches the data: the one that was
    /// passed to the producer, or on which the producer works. It has no default: a tensor carries nothing
    /// of streams, and unknown is not [`LiveStream::NONE`](super::LiveStream::NONE). The view keeps it alive.
    ///
    /// # Errors
    /// A [`Violation`] if the tensor breaks a rule of DLPack, `stream-device`: its deleter has been called.
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::view::LiveStream;
    ///
    /// let tensor = floats().to_dlpack(LiveStream::NONE)?;
    /// let view = CaiView::from_dlpack(tensor, LiveStream::NONE)?;
    /// assert_eq!(view.descriptor().shape(), [2, 3]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn from_dlpack<'s, M: Tensor>(
        tensor: DlpackTensor<M>,
        ready: impl IntoLiveStream<'s>,
    ) -> Result<Self, Error> {
        let ready = ready.into_live_stream();
        // SAFETY: a `Managed` owns an initialised tensor with readable metadata and a deleter for any thread (its own
        // contract), and its data is valid by that of `DlpackTensor`; `ready` lives, and is kept below.
        let mut view = unsafe { Self::from_dlpack_ptr(tensor.into_raw(), ready.number()) }?;
        let (placed, kept) = ready.for_memory(&view, true, |number| {
            let placed = view.placed(number)?;
            Ok((placed, ready.keep_for(&view, placed)?))
        })?;
        if let (Some(kept), true) = (kept, placed.stream != Stream::None) {
            view.set_ready_kept(placed, Some(kept));
        }
        Ok(view)
    }

    /// Takes over a managed tensor of a C library.
    ///
    /// # Errors
    /// A [`Violation`] if the pointer is NULL, the major version is not 1 or the tensor breaks a rule
    /// of DLPack. Ownership is taken even then: the deleter has been called. If the pointer is not aligned, there is no tensor
    /// to be read, and so no deleter.
    ///
    /// # Safety
    /// - `tensor` is NULL or points to an initialised tensor that the caller owns and gives away. (A pointer that is not
    ///   aligned is found and refused.)
    /// - `shape`, and `strides` unless NULL, point to `ndim` readable integers that nobody changes until
    ///   the deleter runs. (A NULL that must not be is found and refused.)
    /// - The deleter may be called once, on any thread, or is NULL.
    /// - The data stays valid until the deleter is called, on the tensor's device, from `ready` on
    ///   ([`DlpackTensor::new`] has the list), and `ready` is a live stream as long.
    ///
    /// ```
    #[doc = floats!()]
    /// let tensor = floats().to_dlpack_legacy(cai_dlpack::view::LiveStream::NONE)?.into_raw(); // as a C library hands it over
    /// // SAFETY: an initialised tensor that is ours and given away; its memory is ready.
    /// let view = unsafe { CaiView::from_dlpack_ptr(tensor, Stream::None) }?;
    /// assert_eq!(view.descriptor().shape(), [2, 3]);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub unsafe fn from_dlpack_ptr<M: Tensor>(tensor: *mut M, ready: Stream) -> Result<Self, Error> {
        fork::watch();
        let tensor = locate(tensor, Field::Capsule)?;
        // SAFETY: aligned (`locate`); initialised and ours, by this function's contract.
        let imported = unsafe { Imported::take(tensor) };
        let descriptor = imported.descriptor()?;
        // SAFETY: the owner is the tensor itself, whose data and `ready` are valid by our contract.
        Ok(unsafe { Self::new(descriptor, ready, imported.into_owner()) })
    }
}

/// One of DLPack's two layouts: [`DLManagedTensor`] or [`DLManagedTensorVersioned`]. No other type can be added.
///
/// ```
#[doc = floats!()]
/// use cai_dlpack::view::{DLManagedTensor, DLManagedTensorVersioned, DlpackTensor, LiveStream, Tensor};
///
/// /// Takes either layout.
/// fn taken<M: Tensor>(tensor: DlpackTensor<M>) -> Result<CaiView, cai_dlpack::Error> {
///     CaiView::from_dlpack(tensor, LiveStream::NONE)
/// }
/// assert_eq!(taken(floats().to_dlpack(LiveStream::NONE)?)?.shape(), [2, 3]);
/// assert_eq!(taken(floats().to_dlpack_legacy(LiveStream::NONE)?)?.shape(), [2, 3]);
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
#[expect(
    private_bounds,
    reason = "seals the trait: the two layouts are DLPack's, not the user's"
)]
pub trait Tensor: ManagedTensorBase + Abi {}
impl Tensor for DLManagedTensor {}
impl Tensor for DLManagedTensorVersioned {}

/// An owned managed tensor; dropped, it calls the deleter.
pub(crate) struct Imported<M: Abi> {
    tensor: NonNull<M>,
    owner: Owner,
}

impl<M: Abi> Imported<M> {
    /// # Safety
    /// `tensor` is aligned, initialised, owned by the caller and given away; see [`CaiView::from_dlpack_ptr`].
    #[inline(always)]
    pub(crate) unsafe fn take(tensor: NonNull<M>) -> Self {
        // SAFETY: the contract of `managed` is part of ours.
        let owner = Owner::from_raw(unsafe { RawOwner::managed(tensor) });
        Self { tensor, owner }
    }

    /// Like [`Imported::take`], for a tensor that `owner` has taken over already.
    ///
    /// # Safety
    /// `owner` holds `tensor`, which is aligned and initialised.
    pub(crate) unsafe fn held_by(owner: Owner, tensor: NonNull<M>) -> Self {
        Self { tensor, owner }
    }

    /// # Errors
    /// `dlpack-major`, with nothing of the tensor read; the rules of DLPack.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> Result<Descriptor, Violation> {
        self.known()?.descriptor()
    }

    /// Like [`Imported::descriptor`], written where it is to stand unless it is refused.
    #[inline(always)]
    pub(crate) fn describe(&self, place: &mut MaybeUninit<Descriptor>) -> Result<(), Violation> {
        self.known()?.describe(place)
    }

    #[inline(always)]
    fn known(&self) -> Result<KnownTensor<'_, M>, Violation> {
        // SAFETY: the contract of `take`; `owner` holds the tensor.
        unsafe { KnownTensor::check(self.tensor) }
    }

    #[inline(always)]
    pub(crate) fn into_owner(self) -> Owner {
        self.owner
    }
}

/// Returns the address of a tensor (`T` is one of DLPack's structs) if one may lie there. Reads nothing of it.
///
/// # Errors
/// `capsule-null`, `tensor-alignment`.
#[inline(always)]
pub(crate) fn locate<T>(tensor: *mut T, field: Field) -> Result<NonNull<T>, Violation> {
    match NonNull::new(tensor) {
        Some(tensor) if tensor.is_aligned() => Ok(tensor),
        _ => Err(no_tensor(tensor.cast(), field)),
    }
}

#[cold]
fn no_tensor(found: *const (), field: Field) -> Violation {
    match found.is_null() {
        true => Violation::new(Rule::CapsuleNull, field, "NULL"),
        false => Violation::new(Rule::TensorAlignment, field, format_args!("{found:p}")),
    }
}

/// A managed tensor of a major version that we know: the only way to a tensor's fields.
///
/// Of another version DLPack lets a consumer use the deleter and nothing else.
pub(crate) struct KnownTensor<'a, M>(&'a M);

impl<'a, M: Abi> KnownTensor<'a, M> {
    /// Reads the version, and nothing else if it is not ours.
    ///
    /// # Errors
    /// `dlpack-major`.
    ///
    /// # Safety
    /// `tensor` is aligned ([`locate`]), and its version may be read. If its major part is ours, `tensor` is initialised and not
    /// changed during `'a`, and its shape and strides are NULL or point to `ndim` readable integers.
    #[inline(always)]
    pub(crate) unsafe fn check(tensor: NonNull<M>) -> Result<Self, Violation> {
        // SAFETY: aligned, and the version may be read (this function's contract).
        match unsafe { M::version_at(tensor.as_ptr()) } {
            Some(version) if version.major != DLPACK_MAJOR_VERSION => {
                Err(wrong_major(version.major, version.minor))
            }
            // SAFETY: aligned; of our major version, so that it is initialised and unchanged during `'a`.
            _ => Ok(Self(unsafe { tensor.as_ref() })),
        }
    }

    /// # Errors
    /// The rules of DLPack.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> Result<Descriptor, Violation> {
        // SAFETY: shape and strides are as `read_tensor` asks (`check`).
        unsafe { read_tensor(self.0.tensor(), self.0.stated_flags()) }
    }

    /// Like [`descriptor`](Self::descriptor), written where it is to stand unless it is refused.
    #[inline(always)]
    fn describe(&self, place: &mut MaybeUninit<Descriptor>) -> Result<(), Violation> {
        // SAFETY: shape and strides are as `describe` asks (`check`).
        unsafe { describe(self.0, place) }
    }
}

#[cold]
fn wrong_major(major: u32, minor: u32) -> Violation {
    Violation::new(
        Rule::DlpackMajor,
        Field::TensorVersion,
        format_args!("{major}.{minor}"),
    )
}

/// Reads and checks a tensor's metadata.
///
/// # Safety
/// `shape` and `strides` are NULL or point to `ndim` readable integers that nobody changes meanwhile.
#[inline(always)]
pub(crate) unsafe fn read_tensor(tensor: &DLTensor, flags: Flags) -> Result<Descriptor, Violation> {
    // SAFETY: NULL or readable, by this function's own contract.
    Descriptor::new(&unsafe { raw(tensor, flags) }?)
}

/// Like [`read_tensor`], written where it is to stand.
///
/// # Safety
/// As [`read_tensor`].
#[inline(never)]
unsafe fn describe<M: Abi>(
    managed: &M,
    place: &mut MaybeUninit<Descriptor>,
) -> Result<(), Violation> {
    let (tensor, flags) = (managed.tensor(), managed.stated_flags());
    let few = tensor.ndim.cast_unsigned() <= Descriptor::INLINE_AXES && !tensor.shape.is_null();
    if few && are_aligned(tensor) {
        let ndim = tensor.ndim as usize;
        // SAFETY: not NULL, aligned, and readable by this function's contract.
        let shape = unsafe { std::slice::from_raw_parts(tensor.shape, ndim) };
        // SAFETY: NULL or readable, by this function's contract; aligned.
        let strides = unsafe { extents(tensor.strides, ndim) };
        if let Some(usual) = Descriptor::check_fast(&raw_of(tensor, shape, strides, flags)) {
            place.write(usual);
            return Ok(());
        }
    }
    // SAFETY: NULL or readable, by this function's own contract.
    unsafe { describe_carefully(managed, place) }
}

/// Like [`describe`], for any tensor: reads again, so that the usual way need not keep what it has read.
///
/// # Safety
/// As [`read_tensor`].
#[cold]
#[inline(never)]
unsafe fn describe_carefully<M: Abi>(
    managed: &M,
    place: &mut MaybeUninit<Descriptor>,
) -> Result<(), Violation> {
    // SAFETY: NULL or readable, by this function's own contract.
    let raw = unsafe { raw(managed.tensor(), managed.stated_flags()) }?;
    place.write(Descriptor::check(&raw)?);
    Ok(())
}

/// Reads a tensor's metadata as it is; its number of axes is checked.
///
/// # Safety
/// As [`read_tensor`], while `'a` lasts.
#[inline(always)]
unsafe fn raw(tensor: &DLTensor, flags: Flags) -> Result<RawTensor<'_>, Violation> {
    let ndim = Descriptor::check_ndim(tensor.ndim)?;
    if ndim > 0 && tensor.shape.is_null() {
        return Err(Violation::new(Rule::ShapeNull, Field::TensorShape, "NULL"));
    }
    if !are_aligned(tensor) {
        return Err(unaligned(tensor));
    }
    // SAFETY: NULL or readable while `'a` lasts, by this function's contract; aligned.
    let shape = unsafe { extents(tensor.shape, ndim) }.unwrap_or_default();
    // SAFETY: NULL or readable while `'a` lasts, by this function's contract; aligned.
    let strides = unsafe { extents(tensor.strides, ndim) };
    Ok(raw_of(tensor, shape, strides, flags))
}

/// Whether shape and strides are NULL, or lie where integers may lie.
#[inline(always)]
fn are_aligned(tensor: &DLTensor) -> bool {
    (tensor.shape.addr() | tensor.strides.addr()).is_multiple_of(align_of::<i64>())
}

#[cold]
fn unaligned(tensor: &DLTensor) -> Violation {
    let (field, pointer) = match tensor.shape.is_aligned() {
        true => (Field::TensorStrides, tensor.strides),
        false => (Field::TensorShape, tensor.shape),
    };
    Violation::new(Rule::ShapeAlignment, field, format_args!("{pointer:p}"))
}

#[inline(always)]
fn raw_of<'a>(
    tensor: &DLTensor,
    shape: &'a [i64],
    strides: Option<&'a [i64]>,
    flags: Flags,
) -> RawTensor<'a> {
    RawTensor {
        data: tensor.data.expose_provenance() as u64,
        byte_offset: tensor.byte_offset,
        device: Device::new(
            DeviceType::from_dlpack(tensor.device.device_type.0.cast_signed()),
            tensor.device.device_id,
        ),
        code: tensor.dtype.code.0,
        bits: tensor.dtype.bits,
        lanes: tensor.dtype.lanes,
        shape,
        strides,
        flags,
    }
}

/// # Safety
/// `values` is NULL, or aligned and points to `ndim` readable integers that do not change during `'a`.
unsafe fn extents<'a>(values: *const i64, ndim: usize) -> Option<&'a [i64]> {
    if values.is_null() {
        return None;
    }
    // SAFETY: not NULL, aligned, and readable by this function's contract; `ndim` is at most 64.
    Some(unsafe { std::slice::from_raw_parts(values, ndim) })
}
