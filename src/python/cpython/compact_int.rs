//! Small ints read where they lie, without a call: a dict of eight axes holds twenty.
//!
//! How CPython lays an int out is no part of its interface, so it is looked at first: [`learn`] compares a
//! few ints with what they should look like. Where they do not, and under the stable ABI, every int is read
//! by a call.

#[cfg(all(not(any(Py_LIMITED_API, PyPy, GraalPy)), target_pointer_width = "64"))]
mod layout {
    use std::sync::atomic::{AtomicBool, Ordering};

    use pyo3::ffi;
    use pyo3::prelude::*;

    /// An int, as `longintrepr.h` has it: 3.10 and 3.11 count its digits, with the sign; from 3.12 on the
    /// count stands above three bits that say the sign (0: positive).
    #[repr(C)]
    struct Int {
        head: ffi::PyObject,
        tag: usize,
        digits: [u32; 2],
    }

    /// The bits of a digit.
    const DIGIT: u32 = 30;
    /// The tag of a positive int of two digits.
    const TWO: usize = if cfg!(Py_3_12) { 2 << 3 } else { 2 };

    /// The sign of an int of up to one digit, 0 for 0; `None` for a longer one.
    #[inline(always)]
    fn sign(tag: usize) -> Option<i64> {
        if cfg!(Py_3_12) {
            (tag < TWO).then_some(1 - (tag & 3) as i64)
        } else {
            (tag.wrapping_add(1) <= 2).then_some(tag as i64)
        }
    }

    /// Whether ints look so; not, until it is known.
    static KNOWN: AtomicBool = AtomicBool::new(false);

    /// The value of an int of up to one digit, or two where it is positive.
    ///
    /// # Safety
    /// `int` is an exact int.
    #[inline(always)]
    pub(crate) unsafe fn read(int: *mut ffi::PyObject) -> Option<i64> {
        if !KNOWN.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: an int (this function's contract), which looks as `Int` says (`learn`).
        unsafe { look(int.cast()) }
    }

    /// # Safety
    /// `int` is laid out as [`Int`]; its second digit need not be there where it counts one.
    #[inline(always)]
    unsafe fn look(int: *const Int) -> Option<i64> {
        // SAFETY: by this function's contract.
        let tag = unsafe { (*int).tag };
        // SAFETY: every int has room for one digit.
        let low = unsafe { (*int).digits[0] };
        if let Some(sign) = sign(tag) {
            return Some(sign * i64::from(low));
        }
        if tag != TWO {
            return None;
        }
        // SAFETY: it counts two.
        let high = unsafe { (*int).digits[1] };
        Some(i64::from(high) << DIGIT | i64::from(low))
    }

    /// Looks whether ints are laid out as [`Int`].
    pub(crate) fn learn(py: Python<'_>) {
        let info = py.import("sys").and_then(|sys| sys.getattr("int_info"));
        let nbytes = info.and_then(|info| info.getattr("sizeof_digit")?.extract());
        if !nbytes.is_ok_and(|nbytes: usize| nbytes == size_of::<u32>()) {
            return;
        }
        let short = [
            0,
            1,
            -1,
            77,
            -77,
            300,
            (1 << 30) - 1,
            1 - (1 << 30),
            1 << 30,
            (1 << 60) - 1,
        ];
        let long = [-(1 << 30), 1 << 60, i64::MAX, i64::MIN];
        let look = |value: i64| {
            // SAFETY: the GIL is held; a new reference, or NULL with an exception set.
            let int = unsafe { ffi::PyLong_FromLongLong(value) };
            // SAFETY: as above.
            let int = unsafe { Bound::from_owned_ptr_or_opt(py, int) }?;
            // SAFETY: an int is not smaller than its head, a count and a digit of this size; two are read only
            // where it says so, and then it has as many bytes, whatever they mean.
            unsafe { look(int.as_ptr().cast()) }
        };
        let as_said = short.iter().all(|value| look(*value) == Some(*value));
        if as_said && long.iter().all(|value| look(*value).is_none()) {
            KNOWN.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(not(all(not(any(Py_LIMITED_API, PyPy, GraalPy)), target_pointer_width = "64")))]
mod layout {
    use pyo3::ffi;
    use pyo3::prelude::*;

    /// Nothing is known of how this interpreter lays ints out.
    ///
    /// # Safety
    /// None.
    #[inline(always)]
    pub(crate) unsafe fn read(_int: *mut ffi::PyObject) -> Option<i64> {
        None
    }

    pub(crate) fn learn(_py: Python<'_>) {}
}

pub(crate) use layout::{learn, read};
