//! `__dlpack__`'s arguments, and the capsule that answers them.

use std::ptr::NonNull;

use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use crate::protocol::descriptor::DescriptorRef;
use crate::protocol::device::{Device, Flags};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, SyncPolicy};
use crate::python::call::{policy, stream};
use crate::python::capsule;
use crate::python::cpython::fastcall::{Value, tuple_item};
use crate::python::cpython::int;
use crate::python::cpython::int::{IntRule, repr};
use crate::view::{Abi, CaiView, RawOwner, Transfer, build};

const MAX_VERSION: IntRule = IntRule::new(
    Field::Argument("max_version"),
    Rule::MaxVersionType,
    Rule::MaxVersion,
);
const DL_DEVICE: IntRule = IntRule::new(
    Field::Argument("dl_device"),
    Rule::DlDeviceType,
    Rule::DlDevice,
);

/// The arguments of `__dlpack__` as they come (array API 2024.12), and of `to_dlpack`.
#[derive(Clone, Copy)]
pub(crate) struct DlpackRequest<'a, 'py> {
    pub(crate) stream: Value<'a, 'py>,
    pub(crate) max_version: Value<'a, 'py>,
    pub(crate) dl_device: Value<'a, 'py>,
    pub(crate) copy: Value<'a, 'py>,
    /// The caller asserts that writing to read-only data is fine.
    pub(crate) writable: bool,
    /// Wait on the host, for a consumer whose streams cannot be named.
    pub(crate) on_host: bool,
}

/// What will be exported, decided before anything is done.
pub(crate) struct Export {
    request: Request,
    versioned: bool,
    flags: Flags,
    /// Another name for the device: the CPU's, for memory that the host reads.
    device: Device,
    /// The copy to make first.
    transfer: Option<Transfer>,
}

impl Export {
    /// # Errors
    /// `TypeError`, `ValueError` or `BufferError`, naming the argument.
    #[inline(always)]
    pub(crate) fn decide(
        described: DescriptorRef<'_>,
        request: &DlpackRequest<'_, '_>,
    ) -> PyResult<Self> {
        let versioned = match request.max_version {
            None => false,
            Some(version) => is_versioned(&version)?,
        };
        let device = match request.dl_device {
            None => described.device,
            Some(value) => target(&value, described.device)?,
        };
        let transfer = if request.copy.is_none() && device == described.device {
            None
        } else {
            let copy = request.copy.map(|copy| wants_copy(&copy)).transpose()?;
            Transfer::decide(described.device, device, copy)?
        };
        // Of a shared tensor nobody is the sole owner; of a copy the consumer is, who may write to it.
        let is_read_only = described.flags.read_only() && !request.writable && transfer.is_none();
        let flags = described
            .flags
            .with(Flags::READ_ONLY, is_read_only)
            .with(Flags::IS_COPIED, transfer.is_some());
        if !versioned && flags.contains(Flags::READ_ONLY) {
            return Err(read_only_to_legacy());
        }
        let platform = Platform::from_device_type(device.device_type).unwrap_or(Platform::Host);
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

    /// The copy to make first; `None` if the data itself is exported.
    #[inline(always)]
    pub(crate) fn transfer(&self) -> Option<Transfer> {
        self.transfer
    }

    /// Makes a copy, ready for the consumer.
    #[cold]
    pub(crate) fn copy(
        &self,
        py: Python<'_>,
        transfer: Transfer,
        view: &CaiView,
    ) -> PyResult<CaiView> {
        let policy = self.policy();
        Ok(py.detach(|| transfer.make(view, self.request, policy))?)
    }

    /// How the order is made: a host that was asked for waits, whatever the policy says about the rest.
    #[inline]
    fn policy(&self) -> SyncPolicy {
        if self.request == Request::Host {
            SyncPolicy::Event
        } else {
            policy::policy()
        }
    }

    /// Whether the consumer leaves the order to us.
    #[inline]
    pub(crate) fn wants_order(&self) -> bool {
        self.request != Request::NoSync
    }

    /// Orders the consumer after the data. The GIL is released only if the driver will be called.
    #[inline]
    pub(crate) fn order(&self, py: Python<'_>, view: &CaiView) -> PyResult<()> {
        if !view.may_need_order(self.request) {
            return Ok(());
        }
        let policy = self.policy();
        if view.needs_order(self.request, policy) {
            py.detach(|| view.order(self.request, policy))?;
        }
        Ok(())
    }

    /// The capsule. `owner` is taken: on failure it has been released.
    #[inline(always)]
    pub(crate) fn capsule<'py>(
        &self,
        py: Python<'py>,
        described: DescriptorRef<'_>,
        owner: RawOwner,
    ) -> PyResult<Bound<'py, PyAny>> {
        let described = DescriptorRef {
            device: self.device,
            flags: self.flags,
            ..described
        };
        Self::made(py, described, self.versioned, owner)
    }

    /// The capsule of what is described, in the one layout or the other. `owner` is taken: on failure it
    /// has been released.
    #[inline(always)]
    pub(crate) fn made<'py>(
        py: Python<'py>,
        described: DescriptorRef<'_>,
        versioned: bool,
        owner: RawOwner,
    ) -> PyResult<Bound<'py, PyAny>> {
        if versioned {
            capsule::wrap(py, tensor::<DLManagedTensorVersioned>(described, owner)?)
        } else {
            capsule::wrap(py, tensor::<DLManagedTensor>(described, owner)?)
        }
    }
}

#[inline(always)]
fn tensor<M: Abi>(described: DescriptorRef<'_>, owner: RawOwner) -> PyResult<NonNull<M>> {
    build::<M>(described, described.flags.bits(), owner).map_err(|error| {
        // SAFETY: `build` did not take the owner, so that it is still ours to end.
        unsafe { owner.release() };
        error.into()
    })
}

/// Whether the consumer takes our versioned tensor: any major version from 1 on (it checks what it gets).
#[inline(always)]
fn is_versioned(max_version: &Bound<'_, PyAny>) -> PyResult<bool> {
    quick_version(max_version).map_or_else(|| careful_version(max_version), Ok)
}

/// [`is_versioned`] of an exact tuple of two small ints.
#[inline(always)]
pub(crate) fn quick_version(max_version: &Bound<'_, PyAny>) -> Option<bool> {
    let pair = max_version.cast_exact::<PyTuple>().ok()?;
    if pair.len() != 2 {
        return None;
    }
    // SAFETY: a tuple of two.
    let major = unsafe { tuple_item(pair.as_ptr(), 0) };
    // SAFETY: as above.
    let minor = unsafe { tuple_item(pair.as_ptr(), 1) };
    // SAFETY: an item of the tuple, which lives as long.
    let major = int::quick(unsafe { Borrowed::from_ptr(pair.py(), major) })?;
    // SAFETY: as above.
    let minor = int::quick(unsafe { Borrowed::from_ptr(pair.py(), minor) })?;
    (major >= 0 && minor >= 0).then_some(major >= 1)
}

#[cold]
#[inline(never)]
fn careful_version(max_version: &Bound<'_, PyAny>) -> PyResult<bool> {
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

/// The device that the consumer asks for: its own name, or the CPU's for memory that the host reads or
/// that can be copied there.
fn target(dl_device: &Bound<'_, PyAny>, own: Device) -> PyResult<Device> {
    let field = Field::Argument("dl_device");
    let Ok(pair) = dl_device.cast::<PyTuple>() else {
        return Err(Violation::new(Rule::DlDeviceType, field, repr(dl_device)).into());
    };
    if pair.len() != 2 {
        return Err(Violation::new(Rule::DlDevice, field, repr(dl_device)).into());
    }
    let device_type: i32 = DL_DEVICE.read(&pair.get_item(0)?)?;
    let asked = Device {
        device_type,
        id: DL_DEVICE.read(&pair.get_item(1)?)?,
    };
    let managed =
        own.device_type == Device::CUDA_MANAGED && asked.device_type == Device::CUDA_MANAGED;
    if asked == own || managed {
        return Ok(own);
    }
    if asked == Device::HOST && (own.is_host_readable() || own.device_type == Device::CUDA) {
        return Ok(asked);
    }
    let hint = format!("the data is on ({}, {})", own.device_type, own.id);
    Err(
        Violation::new(Rule::TransferRefused, field, repr(dl_device))
            .with_hint(hint)
            .into(),
    )
}

fn wants_copy(copy: &Bound<'_, PyAny>) -> PyResult<bool> {
    match copy.cast::<PyBool>() {
        Ok(copy) => Ok(copy.is_true()),
        Err(_) => Err(Violation::new(Rule::CopyType, Field::Argument("copy"), repr(copy)).into()),
    }
}

#[cold]
fn read_only_to_legacy() -> PyErr {
    Violation::new(
        Rule::ReadOnlyLegacy,
        Field::Argument("max_version"),
        "no version of 1.0 or later",
    )
    .with_hint(
        "read_only=False on import, or writable=True of to_dlpack, asserts that writing is fine",
    )
    .into()
}
