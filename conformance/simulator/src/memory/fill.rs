//! memset as work: a pattern of 1, 2 or 4 bytes over a range.

use std::ptr;

use crate::abi::codes::Code;
use crate::memory::place::{Job, Place};
use crate::memory::ranges::Memory;

/// `count` times the first `unit` bytes of `pattern`.
#[derive(Clone)]
pub(crate) struct Fill {
    pub(crate) dst: Place,
    pub(crate) pattern: [u8; 8],
    pub(crate) unit: usize,
    pub(crate) count: usize,
}

impl Fill {
    /// Resolves the place, and returns the job that fills it.
    pub(crate) fn prepare(&self, memory: &Memory) -> Result<Job, Code> {
        let span = memory.span(&self.dst)?;
        let (pattern, unit, count) = (self.pattern, self.unit, self.count);
        Ok(Box::new(move || {
            let first = ptr::with_exposed_provenance_mut::<u8>(span.address());
            for index in 0..unit * count {
                let slot = first.wrapping_add(index);
                // SAFETY: the place was checked to hold `unit * count` bytes, which the span keeps
                // mapped and writable; a `u8` needs no alignment and no drop.
                unsafe { slot.write(pattern[index % unit]) };
            }
        }))
    }
}
