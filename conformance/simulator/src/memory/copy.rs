//! Copies as work: rows of bytes from one place to another.

use crate::abi::codes::Code;
use crate::memory::bytes::move_bytes;
use crate::memory::place::{Job, Place};
use crate::memory::ranges::Memory;

/// The form of a copy: rows, and how far apart they are at either end; a plain copy is one row.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) width: usize,
    pub(crate) rows: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) src_pitch: usize,
}

impl Form {
    /// Makes the form of a plain copy.
    pub(crate) fn plain(bytes: usize) -> Form {
        Form {
            width: bytes,
            rows: 1,
            dst_pitch: bytes,
            src_pitch: bytes,
        }
    }

    /// Counts the bytes from the first of the first row to the last of the last, rows `pitch` apart.
    pub(crate) fn span(&self, pitch: usize) -> usize {
        pitch * self.rows.saturating_sub(1) + self.width
    }
}

/// A copy between two places.
#[derive(Clone)]
pub(crate) struct Copy2d {
    pub(crate) dst: Place,
    pub(crate) src: Place,
    pub(crate) form: Form,
}

impl Copy2d {
    /// Resolves the places, and returns the job that copies the rows.
    pub(crate) fn prepare(&self, memory: &Memory) -> Result<Job, Code> {
        let (dst, src) = (memory.span(&self.dst)?, memory.span(&self.src)?);
        let form = self.form;
        Ok(Box::new(move || {
            for row in 0..form.rows {
                move_bytes(
                    dst.address() + row * form.dst_pitch,
                    src.address() + row * form.src_pitch,
                    form.width,
                );
            }
        }))
    }
}
