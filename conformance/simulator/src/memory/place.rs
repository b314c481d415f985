//! Places: addresses in calls, checked at the call, and resolved again when the work runs.

use std::sync::Arc;

use crate::abi::codes::Code;
use crate::memory::backing::Backing;
use crate::memory::ranges::{Allocation, Kind, Memory};

/// An address in an argument of a call.
#[derive(Clone)]
pub(crate) enum Place {
    /// In a range of the table: the range's identity and the offset in it.
    Known {
        buffer: u64,
        base: u64,
        offset: usize,
    },
    /// Pageable host memory, valid by the caller's promise.
    Pageable(u64),
    /// Bytes that were copied away from pageable memory when the work was enqueued.
    Staged(Arc<[u8]>),
}

/// Bytes that may be touched right now; the `Arc`s keep them mapped while work runs.
pub(crate) struct Span {
    address: usize,
    _keep: Option<Arc<Backing>>,
    _staged: Option<Arc<[u8]>>,
}

impl Span {
    /// Returns the address. A method, so that a closure that uses it captures the whole span.
    pub(crate) fn address(&self) -> usize {
        self.address
    }
}

/// A piece of work on memory, prepared: it holds the spans that it touches.
pub(crate) type Job = Box<dyn FnOnce()>;

/// The kind of memory that a place is in, for the rules about blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Device,
    /// Managed memory: device memory for copies, host memory for memset.
    Managed,
    Pinned,
    Pageable,
}

impl Memory {
    /// Checks an address of either side. A range of the table must hold all `bytes`.
    pub(crate) fn place(&self, address: u64, bytes: usize) -> Result<Place, Code> {
        if address == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let Some(range) = self.find(address) else {
            return Ok(Place::Pageable(address));
        };
        let offset = (address - range.base) as usize;
        if bytes > range.bytes - offset {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Place::Known {
            buffer: range.buffer,
            base: range.base,
            offset,
        })
    }

    /// Checks an address that the device must reach: one in the table, mapped host memory included.
    pub(crate) fn device_place(&self, address: u64, bytes: usize) -> Result<Place, Code> {
        let place = self.place(address, bytes)?;
        match place {
            Place::Known { .. } => Ok(place),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Checks an address that the host must reach: device memory is refused.
    pub(crate) fn host_place(&self, address: u64, bytes: usize) -> Result<Place, Code> {
        let place = self.place(address, bytes)?;
        match self.side(&place) {
            Side::Device => Err(Code::INVALID_VALUE),
            _ => Ok(place),
        }
    }

    /// Returns the kind of memory that a place is in, for the rules about blocking.
    pub(crate) fn side(&self, place: &Place) -> Side {
        if !matches!(place, Place::Known { .. }) {
            return Side::Pageable;
        }
        match self.range(place).map(|range| range.kind) {
            Some(Kind::Pinned(_) | Kind::Registered(_)) => Side::Pinned,
            Some(Kind::Managed) => Side::Managed,
            _ => Side::Device,
        }
    }

    /// Returns the range that a place is in.
    pub(crate) fn range(&self, place: &Place) -> Option<&Allocation> {
        match place {
            Place::Known { base, .. } => self.at_base(*base),
            _ => None,
        }
    }

    /// Resolves a place when the work runs. Memory that is not alive then is an illegal address.
    pub(crate) fn span(&self, place: &Place) -> Result<Span, Code> {
        match place {
            Place::Pageable(address) => Ok(Span {
                address: *address as usize,
                _keep: None,
                _staged: None,
            }),
            Place::Staged(bytes) => Ok(Span {
                address: bytes.as_ptr().expose_provenance(),
                _keep: None,
                _staged: Some(bytes.clone()),
            }),
            Place::Known {
                buffer,
                base,
                offset,
            } => {
                let range = self
                    .at_base(*base)
                    .filter(|range| range.buffer == *buffer && range.is_alive());
                let range = range.ok_or(Code::ILLEGAL_ADDRESS)?;
                let address = match &range.backing {
                    Some(backing) => backing.host_address(*offset),
                    None => range.base as usize + offset,
                };
                Ok(Span {
                    address,
                    _keep: range.backing.clone(),
                    _staged: None,
                })
            }
        }
    }
}
