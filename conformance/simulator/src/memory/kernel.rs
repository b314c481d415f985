//! Fake kernels: work that reads or writes device memory on a stream, enqueued by `sim_*` calls.

use std::sync::Arc;

use crate::abi::codes::Code;
use crate::memory::bytes::{read, write};
use crate::memory::place::{Job, Place};
use crate::memory::ranges::Memory;

/// A fake kernel.
#[derive(Clone)]
pub(crate) enum Kernel {
    /// Writes these bytes.
    Store { dst: Place, bytes: Arc<[u8]> },
    /// Writes the sum of `count` elements to one 64-bit element: i64 for integers, f64 for floats.
    Sum {
        dst: Place,
        src: Place,
        count: usize,
        element: Element,
    },
}

/// The element types that [`Kernel::Sum`] adds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    U8,
    I32,
    I64,
    F32,
    F64,
}

impl Element {
    /// Returns the type with this name in NumPy's array interface, less the byte order.
    pub(crate) fn from_name(name: &str) -> Option<Element> {
        match name {
            "u1" => Some(Element::U8),
            "i4" => Some(Element::I32),
            "i8" => Some(Element::I64),
            "f4" => Some(Element::F32),
            "f8" => Some(Element::F64),
            _ => None,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Element::U8 => 1,
            Element::I32 | Element::F32 => 4,
            Element::I64 | Element::F64 => 8,
        }
    }

    /// Sums packed elements, and returns the 8 bytes of the result.
    fn sum(self, bytes: &[u8]) -> [u8; 8] {
        let chunks = bytes.chunks_exact(self.bytes());
        match self {
            Element::U8 => bytes
                .iter()
                .map(|byte| i64::from(*byte))
                .sum::<i64>()
                .to_ne_bytes(),
            Element::I32 => chunks
                .map(|c| i64::from(i32::from_ne_bytes(fixed(c))))
                .sum::<i64>()
                .to_ne_bytes(),
            Element::I64 => chunks
                .fold(0i64, |sum, c| {
                    sum.wrapping_add(i64::from_ne_bytes(fixed(c)))
                })
                .to_ne_bytes(),
            Element::F32 => chunks
                .map(|c| f64::from(f32::from_ne_bytes(fixed(c))))
                .sum::<f64>()
                .to_ne_bytes(),
            Element::F64 => chunks
                .map(|c| f64::from_ne_bytes(fixed(c)))
                .sum::<f64>()
                .to_ne_bytes(),
        }
    }
}

fn fixed<const N: usize>(chunk: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(chunk);
    bytes
}

impl Kernel {
    /// Resolves the places, and returns the job that reads and writes them.
    pub(crate) fn prepare(&self, memory: &Memory) -> Result<Job, Code> {
        match self {
            Kernel::Store { dst, bytes } => {
                let (dst, bytes) = (memory.span(dst)?, bytes.clone());
                Ok(Box::new(move || write(dst.address(), &bytes)))
            }
            Kernel::Sum {
                dst,
                src,
                count,
                element,
            } => {
                let (dst, src) = (memory.span(dst)?, memory.span(src)?);
                let (element, length) = (*element, count * element.bytes());
                Ok(Box::new(move || {
                    let sum = element.sum(&read(src.address(), length));
                    write(dst.address(), &sum);
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Element;

    #[test]
    fn sums_have_the_sign_and_width_of_their_elements() {
        let bytes: Vec<u8> = [-1i32, 3].iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_eq!(i64::from_ne_bytes(Element::I32.sum(&bytes)), 2);
        assert_eq!(i64::from_ne_bytes(Element::U8.sum(&[255, 255])), 510);
        let floats: Vec<u8> = [0.5f32, 0.25]
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        assert_eq!(f64::from_ne_bytes(Element::F32.sum(&floats)), 0.75);
    }
}
