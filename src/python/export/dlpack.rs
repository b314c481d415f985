//! Parses the arguments of `__dlpack__`, and builds its capsule.

use std::ptr::NonNull;

use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::protocol::descriptor::DescriptorRef;
use crate::protocol::device::{Access, Device, DeviceType, Flags};
use crate::protocol::dtype::DType;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{NAME_THE_STREAM, Platform, Request, Stream, SyncPolicy};
use crate::python::call::use_stream::Work;
use crate::python::call::{device, policy, stream, use_stream};
use crate::python::capsule;
use crate::python::capsule::Empty;
use crate::python::class::view::{PyCaiView, follow_before};
use crate::python::cpython::fastcall::Value;
use crate::python::cpython::int;
use crate::python::cpython::int::{IntRule, repr};
use crate::python::cpython::release::{self, PythonMemory};
use crate::python::cpython::tuple::tuple_item;
use crate::python::export::buffer::{PACKED, with_bytes};
use crate::view::{
    Abi, CaiView, Heap, Memory, RawOwner, Ticket, Transfer, build_in_capsule, refuse_packed,
    refuse_padded,
};

const MAX_VERSION: IntRule = IntRule::new(
    Field::Argument("max_version"),
    Rule::MaxVersionType,
    Rule::MaxVersion,
);
/// An int beyond 32 bits is of no device.
const DL_DEVICE: IntRule = IntRule::new(
    Field::Argument("dl_device"),
    Rule::DlDeviceType,
    Rule::TransferRefused,
);

/// The arguments of `__dlpack__` (array API 2024.12) and `to_dlpack`, unparsed.
#[derive(Clone, Copy)]
pub(crate) struct DlpackRequest<'a, 'py> {
    pub(crate) stream: Value<'a, 'py>,
    pub(crate) max_version: Value<'a, 'py>,
    pub(crate) dl_device: Value<'a, 'py>,
    pub(crate) copy: Value<'a, 'py>,
    /// The caller asserts that the consumer may write.
    pub(crate) writable: bool,
    /// The host waits, for a consumer whose stream cannot be named.
    pub(crate) on_host: bool,
}

impl DlpackRequest<'_, '_> {
    /// Whether the consumer states nothing of itself, as tvm-ffi does that was refused by the exchange table and asks again:
    /// it works where it has asked before, and shows this refusal alone.
    fn is_bare(&self) -> bool {
        let Self {
            stream,
            max_version,
            dl_device,
            copy,
            ..
        } = self;
        [stream, max_version, dl_device, copy]
            .iter()
            .all(|given| given.is_none())
    }

    /// Makes the order that a request without a stream needs beside its own: of the stream of the `use_stream` block. A
    /// block is open. Returns whether that is all, as a capture forbids the legacy default stream then; `None` if it needs none.
    ///
    /// # Errors
    /// The rules of both orders; the driver's errors.
    #[cold]
    pub(crate) fn order_for_block(
        &self,
        py: Python<'_>,
        this: &PyCaiView,
        export: &Export,
    ) -> PyResult<Option<bool>> {
        let (view, device) = (this.view(), this.view().device());
        // For memory that the host reads, the host waits.
        if self.stream.is_some() || Platform::of(device) != Some(Platform::Cuda) {
            return Ok(None);
        }
        let work = use_stream::work_stream(py, device)?;
        if work.stream == Stream::LegacyDefault {
            return Ok(None);
        }
        if export.transfer.is_some() {
            // The copy is what has to be ready (`copy_for_block`).
            return Ok(None);
        }
        // Both orders are foreseen before either is made: a refusal leaves every stream as it was.
        let request = Request::Stream(work.stream);
        if let Some(refused) = refusal(py, view, request)? {
            return Err(refused.into());
        }
        let legacy = refusal(py, view, Request::Stream(Stream::LegacyDefault))?;
        let is_all = match legacy {
            None => false,
            Some(refused) if refused.rule() == Rule::CaptureLegacy => true,
            Some(refused) => return Err(refused.into()),
        };
        this.follow()?;
        order(py, view, request)?;
        Ok(Some(is_all))
    }

    /// Makes the copy, for a request without a stream on the stream of the `use_stream` block; the legacy default stream
    /// waits for it, unless a capture forbids that. Its memory ends after the work of both.
    ///
    /// # Errors
    /// Those of the copy; the rules of the order; the driver's errors.
    #[cold]
    pub(crate) fn copy_for_block(
        &self,
        py: Python<'_>,
        export: &Export,
        transfer: Transfer,
        view: &CaiView,
    ) -> PyResult<CaiView> {
        let legacy = Request::Stream(Stream::LegacyDefault);
        let work = match export.request == legacy && self.stream.is_none() {
            true => use_stream::work_stream(py, export.device)?,
            false => Work::LEGACY_DEFAULT,
        };
        if work.stream == Stream::LegacyDefault {
            return export.copy(py, transfer, view);
        }
        // Whether the consumer works on the one stream or on the other is not known.
        let request = Request::Stream(work.stream);
        let copy = transfer.make_for_any(view, request, policy_of(py, request)?)?;
        match refusal(py, &copy, legacy)? {
            None => order(py, &copy, legacy)?,
            Some(refused) if refused.rule() == Rule::CaptureLegacy => {}
            Some(refused) => return Err(refused.into()),
        }
        Ok(copy)
    }

    /// Returns the refusal of an order, with the way out of a consumer that names no stream.
    #[cold]
    pub(crate) fn unnamed(&self, py: Python<'_>, view: &CaiView, refused: PyErr) -> PyErr {
        let foreseen = || {
            let request = Request::Stream(Stream::LegacyDefault);
            let refused = refusal(py, view, request).ok()??;
            (refused.rule() == Rule::CaptureLegacy).then(|| refused.with_hint(NAME_THE_STREAM))
        };
        // Memory that the host reads is waited for by the host.
        let platform = Platform::of(view.device());
        match self.stream.is_none() && platform == Some(Platform::Cuda) {
            true => release::dropping(|| foreseen().map_or(refused, PyErr::from)),
            false => refused,
        }
    }

    /// Returns why an order would be refused, of a bare request or of the one by the table before, instead of `refused`:
    /// nothing that one asserts of the array remedies that.
    #[cold]
    pub(crate) fn first_refusal(&self, py: Python<'_>, view: &CaiView, refused: PyErr) -> PyErr {
        let foreseen = || {
            let platform = Platform::of(view.device())?;
            let by_table = || use_stream::work_stream(py, view.device());
            let refusal = |request| refusal(py, view, request).ok()?;
            match platform {
                Platform::Cuda | Platform::HostReadable => {
                    let kept = by_table().ok()?;
                    let work = Request::Stream(kept.stream);
                    let other = stream::request(None, platform).ok()?;
                    // In a block the work stream alone waits if a capture forbids the legacy default one.
                    let is_made = |refused: &Violation| {
                        platform != Platform::Cuda
                            || work == other
                            || refused.rule() != Rule::CaptureLegacy
                    };
                    refusal(work).or_else(|| refusal(other).filter(is_made))
                }
                _ => refusal(stream::request(None, platform).ok()?),
            }
        };
        match self.is_bare() {
            true => release::dropping(|| foreseen().map_or(refused, PyErr::from)),
            false => refused,
        }
    }
}

/// Returns why an order would be refused.
fn refusal(py: Python<'_>, view: &CaiView, request: Request) -> PyResult<Option<Violation>> {
    Ok(view.refusal(request, policy_of(py, request)?)?)
}

/// Returns the policy of an order; a requested wait of the host does not depend on the context's.
#[inline]
fn policy_of(py: Python<'_>, request: Request) -> PyResult<SyncPolicy> {
    match request {
        Request::Host => Ok(SyncPolicy::Event),
        _ => policy::policy(py),
    }
}

/// Orders a consumer after the data, by the policy. Releases the GIL only if it calls the driver.
///
/// # Errors
/// The rules of the order; the driver's errors.
#[inline(always)]
pub(crate) fn order(py: Python<'_>, view: &CaiView, request: Request) -> PyResult<()> {
    if request == Request::Host && policy::policy(py)? == SyncPolicy::None {
        // The caller has followed the policy, which is not this wait's.
        view.follow(|| PyResult::Ok(SyncPolicy::Event))?;
    }
    order_followed(py, view, request)
}

/// As [`order`], after a producer that the caller has followed by the policy of this very order.
#[inline(always)]
fn order_followed(py: Python<'_>, view: &CaiView, request: Request) -> PyResult<()> {
    if !view.may_need_order(request) {
        return Ok(());
    }
    let policy = policy_of(py, request)?;
    if view.needs_order(request, policy) {
        view.order(request, policy)?;
    }
    Ok(())
}

/// The plan of an export, made before anything is done.
pub(crate) struct Export {
    request: Request,
    versioned: bool,
    flags: Flags,
    /// The device of the tensor: the array's, or the CPU for memory that the host reads.
    device: Device,
    /// The copy to make first.
    transfer: Option<Transfer>,
}

impl Export {
    /// Parses the arguments and plans the export.
    ///
    /// # Errors
    /// `TypeError`, `ValueError` or `BufferError`, naming the argument.
    #[inline(always)]
    pub(crate) fn decide(
        descriptor: DescriptorRef<'_>,
        request: &DlpackRequest<'_, '_>,
    ) -> PyResult<Self> {
        let versioned = match request.max_version {
            None => false,
            Some(version) => is_versioned(&version)?,
        };
        let device = match request.dl_device {
            None => descriptor.device,
            Some(value) => target(&value, descriptor.device)?,
        };
        let transfer = if request.copy.is_none() && device == descriptor.device {
            None
        } else {
            transfer(descriptor, device, request.copy)?
        };
        // The consumer is the sole owner of a copy, and may write to it.
        let access = if request.writable || transfer.is_some() {
            Access::Writable
        } else {
            descriptor.flags.access()
        };
        if !versioned {
            // A legacy tensor is as silent as the producer of unknown access was: what came in goes out.
            if access == Access::ReadOnly {
                let (dtype, flags, own) = (descriptor.dtype, descriptor.flags, descriptor.device);
                let is_copied = || Transfer::decide(own, device, Some(true)).is_ok();
                return Err(read_only_to_legacy(
                    dtype,
                    flags,
                    is_copied,
                    request.max_version,
                ));
            }
            refuse_padded(descriptor, Field::Object)
                .map_err(|refused| padded_to_legacy(refused, request.max_version))?;
        } else if descriptor.dtype.is_sub_byte() {
            check_knows_sub_byte(descriptor, request.max_version)?;
        }
        let flags = descriptor
            .flags
            .with_access(access)
            .with(Flags::IS_COPIED, transfer.is_some());
        let platform = Platform::of(device).unwrap_or(Platform::Host);
        let request = if request.on_host {
            Request::Host
        } else {
            stream::request(request.stream.as_deref(), platform)?
        };
        Ok(Self {
            request,
            versioned,
            flags,
            device,
            transfer,
        })
    }

    /// Returns the copy to make first; `None` if the data itself is exported.
    #[inline(always)]
    pub(crate) fn transfer(&self) -> Option<Transfer> {
        self.transfer
    }

    /// Makes the copy, ready for the consumer.
    #[cold]
    pub(crate) fn copy(
        &self,
        py: Python<'_>,
        transfer: Transfer,
        view: &CaiView,
    ) -> PyResult<CaiView> {
        Ok(transfer.make(view, self.request, policy_of(py, self.request)?)?)
    }

    /// The same export, without an order, which has been made.
    #[cold]
    pub(crate) fn ordered(self) -> Self {
        Self {
            request: Request::NoSync,
            ..self
        }
    }

    /// Whether the consumer requests an order.
    #[inline]
    pub(crate) fn wants_order(&self) -> bool {
        self.request != Request::NoSync
    }

    /// Orders the data after a producer that has moved, if the consumer's own order is not refused. A copy does so itself.
    #[inline]
    pub(crate) fn follow(&self, view: &CaiView) -> PyResult<()> {
        match self.transfer {
            None => follow_before(view, self.request, |py| policy_of(py, self.request)),
            Some(_) => Ok(()),
        }
    }

    /// Orders the consumer after the data. Releases the GIL only if it calls the driver.
    #[inline]
    pub(crate) fn order(&self, py: Python<'_>, view: &CaiView) -> PyResult<()> {
        order(py, view, self.request)
    }

    /// As [`order`](Self::order), after [`follow`](Self::follow).
    #[inline]
    pub(crate) fn order_followed(&self, py: Python<'_>, view: &CaiView) -> PyResult<()> {
        order_followed(py, view, self.request)
    }

    /// Builds the capsule. Takes `owner`: releases it on failure.
    #[inline(always)]
    pub(crate) fn capsule<'py>(
        &self,
        py: Python<'py>,
        descriptor: DescriptorRef<'_>,
        owner: RawOwner,
    ) -> PyResult<Bound<'py, PyAny>> {
        build_capsule(py, self.described(descriptor), self.versioned, owner)
    }

    /// As [`capsule`](Self::capsule), in a capsule that has been made before.
    #[cold]
    pub(crate) fn fill<'py>(
        &self,
        empty: Empty<'py>,
        descriptor: DescriptorRef<'_>,
        owner: RawOwner,
    ) -> PyResult<Bound<'py, PyAny>> {
        let descriptor = self.described(descriptor);
        Ok(if self.versioned {
            empty.filled(tensor::<DLManagedTensorVersioned>(descriptor, owner)?)
        } else {
            empty.filled(tensor::<DLManagedTensor>(descriptor, owner)?)
        })
    }

    #[inline(always)]
    fn described<'a>(&self, descriptor: DescriptorRef<'a>) -> DescriptorRef<'a> {
        DescriptorRef {
            device: self.device,
            flags: self.flags,
            ..descriptor
        }
    }
}

/// Builds a capsule in the versioned or the legacy layout. Takes `owner`: releases it on failure.
#[inline(always)]
pub(crate) fn build_capsule<'py>(
    py: Python<'py>,
    descriptor: DescriptorRef<'_>,
    versioned: bool,
    owner: RawOwner,
) -> PyResult<Bound<'py, PyAny>> {
    if versioned {
        capsule::wrap(py, tensor::<DLManagedTensorVersioned>(descriptor, owner)?)
    } else {
        capsule::wrap(py, tensor::<DLManagedTensor>(descriptor, owner)?)
    }
}

#[inline(always)]
fn tensor<M: Abi>(
    descriptor: DescriptorRef<'_>,
    owner: RawOwner,
) -> PyResult<(NonNull<M>, Ticket)> {
    if owner.is_of(&release::PYTHON) {
        // SAFETY: this thread holds the GIL, with which such an owner may end.
        unsafe { tensor_in::<M, PythonMemory>(descriptor, owner) }
    } else {
        tensor_on_heap(descriptor, owner)
    }
}

#[cold]
#[inline(never)]
fn tensor_on_heap<M: Abi>(
    descriptor: DescriptorRef<'_>,
    owner: RawOwner,
) -> PyResult<(NonNull<M>, Ticket)> {
    // SAFETY: every thread may call this allocator.
    unsafe { tensor_in::<M, Heap>(descriptor, owner) }
}

/// # Safety
/// Those of [`build_in_capsule`].
#[inline(always)]
unsafe fn tensor_in<M: Abi, A: Memory>(
    descriptor: DescriptorRef<'_>,
    owner: RawOwner,
) -> PyResult<(NonNull<M>, Ticket)> {
    // SAFETY: this function's contract.
    let built = unsafe { build_in_capsule::<M, A>(descriptor, descriptor.flags.bits(), owner) };
    built.map_err(|error| {
        // SAFETY: `build_in_capsule` has failed and not taken the owner, which is released once.
        unsafe { owner.release() };
        error.into()
    })
}

/// Refuses elements smaller than a byte to a consumer of DLPack 1.0, which cannot tell packed from padded ones: it has no
/// flag for the latter, and counts whole bytes for each of the former (mpi4py), past the end of the memory.
///
/// # Errors
/// `padded-legacy`, `packed-legacy`.
#[cold]
fn check_knows_sub_byte(descriptor: DescriptorRef<'_>, max_version: Value<'_, '_>) -> PyResult<()> {
    let Some(version) = max_version else {
        return Ok(());
    };
    // A pair of ints (`takes_versioned`).
    let part = |at| MAX_VERSION.read::<i64>(&version.get_item(at)?);
    if (part(0)?, part(1)?) < (1, 1) {
        refuse_padded(descriptor, Field::Object)
            .map_err(|refused| padded_to_legacy(refused, max_version))?;
        refuse_packed(descriptor, Field::Argument("max_version"))
            .map_err(|refused| packed_to_old(refused, descriptor, &version))?;
    }
    Ok(())
}

/// Whether the consumer takes a versioned tensor: any major version from 1 on (the consumer checks the tensor's).
#[inline(always)]
fn is_versioned(max_version: &Bound<'_, PyAny>) -> PyResult<bool> {
    takes_versioned_fast(max_version).map_or_else(|| takes_versioned(max_version), Ok)
}

/// Like [`takes_versioned`], for an exact tuple of two small ints; `None` for anything else.
#[inline(always)]
pub(crate) fn takes_versioned_fast(max_version: &Bound<'_, PyAny>) -> Option<bool> {
    let pair = max_version.cast_exact::<PyTuple>().ok()?;
    if pair.len() != 2 {
        return None;
    }
    // SAFETY: a tuple of two.
    let major = unsafe { tuple_item(pair.as_ptr(), 0) };
    // SAFETY: a tuple of two.
    let minor = unsafe { tuple_item(pair.as_ptr(), 1) };
    // SAFETY: an item is not null, and lives as long as the tuple.
    let major = int::read_fast(unsafe { Borrowed::from_ptr(pair.py(), major) })?;
    // SAFETY: an item is not null, and lives as long as the tuple.
    let minor = int::read_fast(unsafe { Borrowed::from_ptr(pair.py(), minor) })?;
    (major >= 0 && minor >= 0).then_some(major >= 1)
}

#[cold]
#[inline(never)]
fn takes_versioned(max_version: &Bound<'_, PyAny>) -> PyResult<bool> {
    let refuse = |rule| {
        let field = Field::Argument("max_version");
        PyErr::from(Violation::new(rule, field, repr(max_version)))
    };
    let Ok(pair) = max_version.cast::<PyTuple>() else {
        return Err(refuse(Rule::MaxVersionType));
    };
    if pair.len() != 2 {
        return Err(refuse(Rule::MaxVersion));
    }
    let major: i64 = MAX_VERSION.read(&pair.get_item(0)?)?;
    let minor: i64 = MAX_VERSION.read(&pair.get_item(1)?)?;
    if major < 0 || minor < 0 {
        return Err(refuse(Rule::MaxVersion));
    }
    Ok(major >= 1)
}

/// Reads the requested device: the array's own, or the CPU for memory that the host reads or that can be copied there.
fn target(dl_device: &Bound<'_, PyAny>, own: Device) -> PyResult<Device> {
    let field = Field::Argument("dl_device");
    if let Some(wanted) = device::named(dl_device, field)? {
        return exported(wanted, own, dl_device);
    }
    let Ok(pair) = dl_device.cast::<PyTuple>() else {
        return Err(Violation::new(Rule::DlDeviceType, field, repr(dl_device))
            .with_hint("(1, 0) is the CPU, (2, 0) the first CUDA device")
            .into());
    };
    if pair.len() != 2 {
        return Err(Violation::new(Rule::DlDevice, field, repr(dl_device)).into());
    }
    let device_type = DeviceType::from_dlpack(DL_DEVICE.read(&pair.get_item(0)?)?);
    let wanted = Device::new(device_type, DL_DEVICE.read(&pair.get_item(1)?)?);
    exported(wanted, own, dl_device)
}

/// Returns the device of the tensor for a requested one.
fn exported(wanted: Device, own: Device, dl_device: &Bound<'_, PyAny>) -> PyResult<Device> {
    let refused = |hint| {
        let field = Field::Argument("dl_device");
        Violation::new(Rule::TransferRefused, field, repr(dl_device)).with_hint(hint)
    };
    device::exported(own, wanted, refused)
}

fn wants_copy(copy: &Bound<'_, PyAny>) -> PyResult<bool> {
    // NumPy's bool too, as for the other flags (`flag`).
    copy.extract().map_err(|error: PyErr| {
        release::drop_now(error);
        Violation::new(Rule::CopyType, Field::Argument("copy"), repr(copy)).into()
    })
}

/// Names what the consumer has passed, or the array if it has passed nothing, and the remedy that an export has.
#[cold]
fn padded_to_legacy(refused: Violation, max_version: Value<'_, '_>) -> PyErr {
    let elements = format!("{} elements", refused.found());
    let refused = match max_version {
        Some(version) => refused
            .in_field(Field::Argument("max_version"))
            .with_found(format!("{}, with {elements}", repr(&version))),
        None => refused.with_found(format!(
            "{elements}, for a consumer that passes no max_version"
        )),
    };
    let bytes = refused
        .hint()
        .map(|bytes| format!("; {bytes}"))
        .unwrap_or_default();
    let asks =
        format!("max_version=(1, 1) of __dlpack__ or to_dlpack exports them with the flag{bytes}");
    refused.with_hint(asks).into()
}

/// Names the version that the consumer has passed, with the remedies that an export has.
#[cold]
fn packed_to_old(
    refused: Violation,
    descriptor: DescriptorRef<'_>,
    version: &Bound<'_, PyAny>,
) -> PyErr {
    let found = format!("{}, with {} elements", repr(version), refused.found());
    let asks = "max_version=(1, 1) of __dlpack__ or to_dlpack asks for a tensor that is known to be packed";
    let hint = match descriptor.is_c_contiguous() {
        true => format!("{asks}; {PACKED}"),
        false => asks.to_owned(),
    };
    refused.with_found(found).with_hint(hint).into()
}

/// Decides about the copy for `dl_device=` and `copy=`.
///
/// # Errors
/// Those of [`Transfer::decide`], by the argument that was passed; `copy-refused`.
#[cold]
fn transfer(
    descriptor: DescriptorRef<'_>,
    device: Device,
    copy: Value<'_, '_>,
) -> PyResult<Option<Transfer>> {
    let copy = copy.map(|copy| wants_copy(&copy)).transpose()?;
    let decided = Transfer::decide(descriptor.device, device, copy);
    let transfer = decided.map_err(|refused| match copy {
        None => not_copied_to(Field::Argument("dl_device"), device, descriptor),
        Some(true) if descriptor.device.is_host_readable() && are_bytes(descriptor) => {
            let copies = "cai_dlpack.from_dlpack(view, device=(1, 0), copy=True) copies it to the CPU, \
                          if nothing is pending";
            refused.with_hint(copies)
        }
        Some(_) => refused,
    })?;
    if transfer.is_some() && descriptor.dtype.is_sub_byte() {
        check_copies_sub_byte(descriptor, device, copy.is_some())?;
    }
    Ok(transfer)
}

/// Refuses to copy elements that are no whole number of bytes by their type, before anything else about the export: no
/// other argument remedies that.
///
/// # Errors
/// `copy-refused`.
#[cold]
fn check_copies_sub_byte(
    descriptor: DescriptorRef<'_>,
    wanted: Device,
    is_copy_asked: bool,
) -> Result<(), Violation> {
    if are_bytes(descriptor) {
        return Ok(());
    }
    let refused = not_copied_to(Field::Argument("dl_device"), wanted, descriptor);
    Err(match is_copy_asked {
        false => refused,
        true => {
            let found = format!("True, with {}", elements(descriptor));
            refused.in_field(Field::Argument("copy")).with_found(found)
        }
    })
}

/// Whether each element is a whole number of bytes by its type.
fn are_bytes(source: DescriptorRef<'_>) -> bool {
    source.dtype.itemsize().is_some() && !source.is_padded()
}

/// Names what is not copied.
fn elements(source: DescriptorRef<'_>) -> String {
    match (source.dtype.is_sub_byte(), source.is_padded()) {
        (false, _) => format!("the data on {}", source.device),
        (true, true) => format!("padded {} elements", source.dtype),
        (true, false) => format!("packed {} elements", source.dtype),
    }
}

/// Refuses a copy that the device asks for, and no argument `copy`: `field` names the device.
#[cold]
pub(crate) fn not_copied_to(field: Field, wanted: Device, source: DescriptorRef<'_>) -> Violation {
    let found = (wanted.to_dlpack(), elements(source));
    let found = format_args!("{:?}, with {}", found.0, found.1);
    let refused = Violation::new(Rule::CopyRefused, field, found);
    match Transfer::decide(source.device, wanted, Some(true)) {
        Ok(_) => with_bytes(refused, source),
        Err(_) => refused.with_hint("copy it with the library that owns it"),
    }
}

#[cold]
fn read_only_to_legacy(
    dtype: DType,
    flags: Flags,
    is_copied: impl FnOnce() -> bool,
    max_version: Value<'_, '_>,
) -> PyErr {
    let (field, found) = match max_version {
        Some(version) => (Field::Argument("max_version"), repr(&version)),
        None => {
            let found = "a read-only array, for a consumer that passes no max_version";
            (Field::Object, found.to_owned())
        }
    };
    let is_sub_byte = dtype.is_sub_byte();
    let is_padded = is_sub_byte && flags.contains(Flags::SUBBYTE_PADDED);
    // DLPack 1.0 cannot tell packed elements from padded ones (`check_knows_sub_byte`).
    let mut hint = match is_sub_byte {
        false => {
            "max_version=(1, 0) of __dlpack__ or to_dlpack exports it with the flag".to_owned()
        }
        true => "max_version=(1, 1) of __dlpack__ or to_dlpack exports it with the flag".to_owned(),
    };
    // Padding is what a legacy tensor cannot state either.
    if !is_padded {
        hint.push_str(
            "; writable=True of to_dlpack, or read_only=False on import, asserts that the consumer may write",
        );
    }
    if !is_sub_byte && is_copied() {
        hint.push_str("; copy=True of __dlpack__ or to_dlpack gives it a copy");
    }
    Violation::new(Rule::ReadOnlyLegacy, field, found)
        .with_hint(hint)
        .into()
}
