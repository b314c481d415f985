//! The same memory under its other name: managed, pinned and registered memory is reachable from the device and
//! from the host, and many consumers take one of the two alone.

use super::{CaiView, TO_THE_CPU, Transfer, with_driver};
use crate::driver::{Context, MemoryKind, PointerInfo};
use crate::error::Error;
use crate::protocol::device::{Device, DeviceType, Flags};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Request, Stream, SyncPolicy};

/// The side that memory is presented to.
///
/// ```
#[doc = floats!()]
/// use cai_dlpack::protocol::rule::Rule;
/// use cai_dlpack::view::PresentAs;
///
/// // Plain memory of the host has no other name; pinned and managed memory has both.
/// let view = floats();
/// assert!(view.present_as(PresentAs::Host).is_ok());
/// match view.present_as(PresentAs::Cuda) {
///     Err(cai_dlpack::Error::Violation(refused)) => assert_eq!(refused.rule(), Rule::PresentAs),
///     Err(cai_dlpack::Error::Driver(absent)) => println!("{absent}"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PresentAs {
    /// Consumers that take device memory alone.
    Cuda,
    /// Consumers that take memory of the CPU alone.
    Host,
}

impl PresentAs {
    /// The name in Python.
    const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Host => "host",
        }
    }
}

impl CaiView {
    /// Presents the memory as the device's or as the CPU's, without a copy. The host waits until the data is
    /// ready if it is to read it.
    ///
    /// # Errors
    /// `present-as` if the memory is not reachable from that side; `stream-context` if it is ready on a default stream
    /// of another context than the memory's, which device memory cannot say; what [`CaiView::synchronize`] refuses; the
    /// driver's refusal.
    ///
    /// ```
    /// use cai_dlpack::view::PresentAs;
    #[doc = floats!()]
    /// let view = floats().present_as(PresentAs::Host)?;
    /// assert_eq!(view.device(), Device::HOST);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn present_as(&self, side: PresentAs) -> Result<Self, Error> {
        let own = self.device();
        let is_so = match side {
            PresentAs::Cuda => own.device_type == DeviceType::CUDA,
            PresentAs::Host => own.device_type == DeviceType::CPU,
        };
        if is_so {
            if side == PresentAs::Host {
                self.order(Request::Host, SyncPolicy::Event)?;
            }
            return Ok(self.clone());
        }
        let (data, ordinal, context, is_managed) = self.found(side)?;
        match side {
            PresentAs::Cuda => {
                let mut view = self.renamed(data, Device::cuda(ordinal), is_managed)?;
                // On no memory nothing can be pending, whose default stream it is said to be.
                if data != 0 {
                    view.mean_memory_context(context)?;
                }
                Ok(view)
            }
            PresentAs::Host => {
                self.order(Request::Host, SyncPolicy::Event)?;
                let view = self.renamed(data, Device::HOST, is_managed)?;
                Ok(view.with_ready(Stream::None))
            }
        }
    }

    /// Asks the driver about the memory; `None` if there are no elements.
    fn pointer_info(&self) -> Result<Option<PointerInfo>, Error> {
        match self.descriptor().data() {
            0 => Ok(None),
            data => Ok(Some(with_driver(|driver| {
                driver.pointer_info(data, false)
            })?)),
        }
    }

    #[cold]
    fn not_presented(&self, side: PresentAs) -> Violation {
        let found = format_args!("'{}' of memory on {}", side.name(), self.device());
        let refused = Violation::new(Rule::PresentAs, Field::Argument("kind"), found);
        match side {
            PresentAs::Cuda => refused.with_hint(
                "only managed, pinned and registered memory is reachable from the device",
            ),
            PresentAs::Host if self.can_be_had_on_the_cpu() => {
                refused.with_hint(format!("{TO_THE_CPU} has it there"))
            }
            PresentAs::Host => refused,
        }
    }

    /// Refuses what [`present_as`](Self::present_as) refuses before anything waits.
    ///
    /// # Errors
    /// Those of [`present_as`](Self::present_as) without those of the order.
    #[cfg(feature = "pyo3")]
    #[cold]
    pub(crate) fn check_presented(&self, side: PresentAs) -> Result<(), Error> {
        match self.device().device_type == DeviceType::CPU {
            true => Ok(()),
            false => self.found(side).map(drop),
        }
    }

    /// Finds the address for `side`, the device, the memory's context, and whether it is managed.
    ///
    /// # Errors
    /// `present-as`; the driver's.
    fn found(&self, side: PresentAs) -> Result<(u64, i32, Option<Context>, bool), Error> {
        if self.device().is_opaque() {
            return Err(self.not_presented(side).into());
        }
        Ok(match self.pointer_info()? {
            None => (0, 0, None, false),
            Some(info) => {
                let data = match side {
                    PresentAs::Cuda => info.device_pointer,
                    PresentAs::Host => info.host_pointer,
                };
                if info.kind == MemoryKind::Unknown || data == 0 {
                    return Err(self.not_presented(side).into());
                }
                let is_managed = info.kind == MemoryKind::Managed;
                (data, info.ordinal.max(0), info.context, is_managed)
            }
        })
    }

    /// Whether the memory, or a copy, can be had on the CPU: the host cannot wait for a stream of ROCm.
    fn can_be_had_on_the_cpu(&self) -> bool {
        let is_waited_for = self.device().device_type != DeviceType::ROCM_HOST
            || self.ready_number() == Stream::None;
        is_waited_for && Transfer::can_copy_to_host(self.descriptor())
    }

    /// Replaces address and device of the memory; its kind stays known.
    fn renamed(&self, data: u64, device: Device, is_managed: bool) -> Result<Self, Error> {
        let mut descriptor = self.descriptor().at(data, device)?;
        if is_managed {
            descriptor.set_memory(Flags::MANAGED);
        }
        // SAFETY: the driver has returned both addresses for one memory, which the owner keeps.
        let mut view = unsafe { self.derive(descriptor) };
        view.streams = self.streams_by(device)?;
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::script::{self, Script};
    use crate::protocol::descriptor::{Descriptor, RawTensor};
    use crate::view::Owner;

    /// A refusal names the copy on the CPU where one can be made, and waited for.
    #[test]
    fn a_refusal_names_the_copy_that_can_be_had() {
        let pending = Stream::from_raw(0xa1);
        for (device_type, ready, is_named) in [
            (DeviceType::ROCM, Stream::None, false),
            (DeviceType::ROCM_HOST, Stream::None, true),
            (DeviceType::ROCM_HOST, pending, false),
            (DeviceType::CUDA, pending, true),
        ] {
            let raw = RawTensor {
                device: Device::new(device_type, 0),
                ..RawTensor::EXAMPLE
            };
            let descriptor = Descriptor::new(&raw).expect("a valid tensor");
            // SAFETY: nothing reads the memory.
            let view = unsafe { CaiView::new(descriptor, ready, Owner::new(())) };
            let refused = view.not_presented(PresentAs::Host);
            let hint = refused.hint().unwrap_or_default();
            assert_eq!(hint.contains(TO_THE_CPU), is_named, "{device_type}: {hint}");
        }
    }

    #[test]
    fn memory_of_one_side_alone_is_refused_by_the_name_of_the_other() {
        let script = Script::leak();
        script.device_memory(0x7000, 24, 0, 0xa).current(0xa);
        let _installed = script::install(script);
        for (device_type, data, side, name) in [
            (
                DeviceType::CPU,
                0x9000,
                PresentAs::Cuda,
                "'cuda' of memory on",
            ),
            (
                DeviceType::CUDA,
                0x7000,
                PresentAs::Host,
                "'host' of memory on",
            ),
        ] {
            let descriptor = Descriptor::new(&RawTensor {
                data,
                device: Device::new(device_type, 0),
                ..RawTensor::EXAMPLE
            });
            let descriptor = descriptor.expect("a valid tensor");
            // SAFETY: nothing reads the memory.
            let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
            let refused = view.present_as(side).expect_err("refused").to_string();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
