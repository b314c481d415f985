//! Arrays that nothing has been written to, for a consumer's result.

use super::allocation::{Allocation, refuse_capture};
use super::host::HostBlock;
use super::made::view_of;
use crate::driver::{ContextGuard, Driver, Place};
use crate::error::Error;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{DeviceType, Flags};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;
use crate::view::keep::Use;
use crate::view::{CaiView, Owner, with_driver};

impl CaiView {
    /// Allocates an array of `prototype`'s device, shape and element type, in C order, for work on `stream`: what is
    /// enqueued there from now on may write to it. Its address is ignored.
    ///
    /// # Errors
    /// `exchange-allocator` for a device on which this library does not allocate; `capture-consumer`; the driver's
    /// refusal; no memory.
    pub(crate) fn allocated_like(prototype: &Descriptor, stream: Stream) -> Result<Self, Error> {
        let device = prototype.device();
        let made = |data, ready, owner| {
            let layout = prototype.layout().clone();
            let dtype = prototype.dtype();
            let described = Descriptor::from_layout(data, device, dtype, Flags::NONE, layout)?;
            // SAFETY: the owner's memory has the size of the elements in C order; nothing is pending on it but what
            // the allocation itself makes `ready` wait for.
            Ok(unsafe { view_of(described, ready, owner) })
        };
        if prototype.nbytes() == 0 {
            return made(0, Stream::None, Owner::new(()));
        }
        match device.device_type {
            DeviceType::CPU => {
                let block = HostBlock::zeroed(prototype.nbytes())?;
                made(block.address(), Stream::None, Owner::new(block))
            }
            DeviceType::CUDA | DeviceType::CUDA_MANAGED | DeviceType::CUDA_HOST => {
                let allocation = with_driver(|driver| on_stream(driver, prototype, stream))?;
                made(allocation.pointer(), stream, allocation.into_owner())
            }
            _ => Err(Violation::new(Rule::ExchangeAllocator, Field::ExchangeApi, device).into()),
        }
    }
}

fn on_stream(
    driver: &'static dyn Driver,
    prototype: &Descriptor,
    stream: Stream,
) -> Result<Allocation, Error> {
    let place = Place::new(prototype.device(), 0);
    let current = ContextGuard::of_stream(driver, stream, &place)?.with_others();
    refuse_capture(driver, stream, Field::ExchangeApi)?;
    // The host can use the memory too, in the order of no stream.
    let is_of_host = prototype.device().is_host_readable();
    let enter = || ContextGuard::of_memory(driver, &place).map(ContextGuard::with_others);
    let _home = is_of_host.then(enter).transpose()?;
    let used = match is_of_host {
        true => Use::anywhere(driver, current.original())?,
        false => Use::new(driver, stream)?,
    };
    let memory = (prototype.device(), prototype.nbytes());
    Allocation::new(driver, memory, &place, used, None, Field::ExchangeApi)
}
