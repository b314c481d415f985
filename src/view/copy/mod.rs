//! Copies that a consumer asks for: `copy=True` on the device, and to the CPU.
//!
//! | from | to | the copy runs | ready |
//! |---|---|---|---|
//! | device, managed, pinned memory | the same kind | on the consumer's stream, after the data | on the consumer's stream; now, for one that names none and reads on the host |
//! | device memory | the CPU | on a stream of this thread, and the host waits | now |
//! | memory that the host reads | the CPU | on the host, once the data is ready | now |
//!
//! The copy is in C order, writable, and its tensor's alone. On a stream the source is read after this
//! returns; so its producer's stream is made to wait for the copy, and where nobody said which stream
//! that is, the host waits.

mod block;
mod device;
mod host;

use pyo3::prelude::*;

use crate::error::Error;
use crate::protocol::descriptor::{Descriptor, Device, Flags};
use crate::protocol::layout::{Axes, Layout, Source};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, SyncPolicy};
use crate::view::{CaiView, Owner};

/// A copy that will be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Transfer {
    /// To memory of the same kind, where the data is.
    Alike,
    /// To memory of the CPU.
    ToHost,
}

impl Transfer {
    /// The copy that answers `copy=` and `dl_device=`; `None` where there is none to make. `wanted` is the
    /// device that was asked for, already found to be the data's own or the CPU.
    ///
    /// # Errors
    /// `copy-needed` where `copy=False` was asked and there is no other way; `copy-refused` for memory that
    /// cannot be copied here.
    pub(crate) fn decide(
        own: Device,
        wanted: Device,
        asked: Option<bool>,
    ) -> Result<Option<Self>, Violation> {
        let to_host = wanted == Device::HOST;
        let shareable = !to_host || own.is_host_readable();
        match asked {
            None | Some(false) if shareable => Ok(None),
            Some(false) => {
                let found = format_args!("False, with the data on {own}");
                Err(Violation::new(
                    Rule::CopyNeeded,
                    Field::Argument("copy"),
                    found,
                ))
            }
            _ if to_host && (own.device_type == Device::CUDA || own.is_host_readable()) => {
                Ok(Some(Self::ToHost))
            }
            _ if own.is_cuda_accessible() => Ok(Some(Self::Alike)),
            _ => Err(refused(own)),
        }
    }

    /// Makes the copy: a view of it that nobody else holds, ready for whoever asked.
    ///
    /// The driver is asked about the source first: a copy reads all of it, and a pointer that leads
    /// nowhere is a refusal here, not a fault of the GPU (or, on the host, of the process).
    ///
    /// # Errors
    /// The rules of [`CaiView::check_memory`]; why no order can be made, the driver's refusal, or no memory. What was allocated has been freed.
    pub(crate) fn make(
        self,
        py: Python<'_>,
        view: &CaiView,
        request: Request,
        policy: SyncPolicy,
    ) -> PyResult<CaiView> {
        let whole = Whole::of(view.descriptor())?;
        view.check_memory()?;
        let made = py.detach(|| match self {
            Self::Alike => device::copy(view, &whole, request, policy),
            Self::ToHost => host::copy(view, &whole, policy),
        })?;
        Ok(made)
    }
}

#[cold]
fn refused(own: Device) -> Violation {
    let violation = Violation::new(
        Rule::CopyRefused,
        Field::Argument("copy"),
        format_args!("True, with the data on {own}"),
    );
    if own.is_host_readable() {
        violation.with_hint("dl_device=(1, 0) copies it to the CPU")
    } else {
        violation.with_hint("copy it with the library that owns it")
    }
}

/// A source as a copy sees it: items of whole bytes, apart by byte strides.
struct Whole {
    itemsize: u64,
    byte_strides: Vec<i64>,
    layout: Layout,
}

impl Whole {
    /// # Errors
    /// `copy-refused` for packed elements: a byte belongs to several.
    fn of(descriptor: &Descriptor) -> Result<Self, Violation> {
        let mut axes = Axes::new(Source::Tensor);
        for extent in descriptor.shape() {
            axes.push_extent(*extent)?;
        }
        let itemsize = descriptor.dtype().itemsize();
        let layout = Layout::from_elem_axes(axes, itemsize.unwrap_or(1))?;
        match (itemsize, descriptor.byte_strides()) {
            (Some(itemsize), Some(strides)) => Ok(Self {
                itemsize: u64::from(itemsize),
                byte_strides: strides.collect(),
                layout,
            }),
            _ => Err(Violation::new(
                Rule::CopyRefused,
                Field::Argument("copy"),
                format_args!("True, with packed {} elements", descriptor.dtype()),
            )),
        }
    }

    /// The description of the copy at `data`.
    fn at(&self, data: u64, device: Device, source: &Descriptor) -> Result<Descriptor, Violation> {
        let layout = self.layout.clone();
        Descriptor::from_layout(data, device, source.dtype(), Flags::IS_COPIED, layout)
    }
}

/// The view of a copy.
///
/// # Safety
/// `owner` owns `descriptor`'s memory, which is ready on `ready`.
unsafe fn view_of(
    descriptor: Descriptor,
    ready: crate::protocol::stream::Stream,
    owner: Owner,
) -> Result<CaiView, Error> {
    // SAFETY: by this function's contract.
    Ok(unsafe { CaiView::new(descriptor, ready, owner) }.on_producer(ready))
}
