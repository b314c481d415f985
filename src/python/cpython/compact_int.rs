//! Reads small ints in place, without a call: a dict of eight axes holds twenty.
//!
//! The layout of an int is no part of CPython's interface, so [`learn`] checks it on a few ints first: from 3.12 on
//! against `PyUnstable_Long_IsCompact` and `PyUnstable_Long_CompactValue`, which C code has as inline functions. If they
//! differ, and under the stable ABI, every int is read by a call.

#[cfg(all(not(any(Py_LIMITED_API, PyPy, GraalPy)), target_pointer_width = "64"))]
mod layout {
    use std::sync::atomic::{AtomicBool, Ordering};

    use pyo3::ffi;
    use pyo3::prelude::*;

    use crate::python::cpython::gil;

    /// The layout of an int in `longintrepr.h`: in 3.10 and 3.11 the tag is the number of digits, negative for a
    /// negative int; from 3.12 on it is that number above three bits, of which two hold the sign (0: positive, 1: zero,
    /// 2: negative).
    #[repr(C)]
    struct Int {
        head: ffi::PyObject,
        tag: usize,
        digits: [u32; 2],
    }

    /// The number of bits of a digit.
    const DIGIT: u32 = 30;
    /// The tag of a positive int of two digits.
    const TWO: usize = if cfg!(Py_3_12) { 2 << 3 } else { 2 };

    /// Returns the sign of an int of up to one digit, 0 for 0; `None` for a longer one.
    #[inline(always)]
    fn sign(tag: usize) -> Option<i64> {
        if cfg!(Py_3_12) {
            (tag < TWO).then_some(1 - (tag & 3) as i64)
        } else {
            (tag.wrapping_add(1) <= 2).then_some(tag as i64)
        }
    }

    /// Whether ints have the layout of [`Int`]; false until [`learn`] has checked it.
    static MATCHES: AtomicBool = AtomicBool::new(false);

    /// Returns the value of an int of up to one digit, or of a positive one of two.
    ///
    /// # Safety
    /// `int` is an exact int.
    #[inline(always)]
    pub(crate) unsafe fn read(int: *mut ffi::PyObject) -> Option<i64> {
        if !MATCHES.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: an int (this function's contract), laid out as `Int` (`learn`).
        unsafe { decode(int.cast()) }
    }

    /// Decodes an int by its tag.
    ///
    /// # Safety
    /// `int` points to a tag and as many digits as the tag states, laid out as in [`Int`].
    #[inline(always)]
    unsafe fn decode(int: *const Int) -> Option<i64> {
        // SAFETY: there is a tag (this function's contract).
        let tag = unsafe { (*int).tag };
        // From 3.12 on 0 has a digit as well, which `PyUnstable_Long_CompactValue` reads.
        if cfg!(not(Py_3_12)) && tag == 0 {
            return Some(0);
        }
        // SAFETY: there is at least one digit: for 0 see above.
        let low = i64::from(unsafe { (*int).digits[0] });
        if let Some(sign) = sign(tag) {
            return Some(sign * low);
        }
        if tag != TWO {
            return None;
        }
        // SAFETY: the tag states two digits (this function's contract).
        let high = unsafe { (*int).digits[1] };
        Some(i64::from(high) << DIGIT | low)
    }

    /// Whether CPython itself says that the int is compact exactly if its value fits one digit, and has this value.
    fn is_compact_as_stated(int: &Bound<'_, PyAny>, value: i64) -> bool {
        type IsCompact = unsafe extern "C" fn(*const ffi::PyObject) -> std::ffi::c_int;
        type CompactValue = unsafe extern "C" fn(*const ffi::PyObject) -> ffi::Py_ssize_t;
        let is_compact = gil::find(&[c"PyUnstable_Long_IsCompact"]);
        let compact_value = gil::find(&[c"PyUnstable_Long_CompactValue"]);
        let (Some(is_compact), Some(compact_value)) = (is_compact, compact_value) else {
            return false;
        };
        // SAFETY: the function has this signature since it exists (3.12).
        let is_compact =
            unsafe { std::mem::transmute::<*mut std::ffi::c_void, IsCompact>(is_compact) };
        // SAFETY: the function has this signature since it exists (3.12).
        let compact_value =
            unsafe { std::mem::transmute::<*mut std::ffi::c_void, CompactValue>(compact_value) };
        // SAFETY: a living, exact int.
        if unsafe { is_compact(int.as_ptr()) } == 0 {
            return value.unsigned_abs() >= 1 << DIGIT;
        }
        // SAFETY: a living, exact int, which is compact.
        value.unsigned_abs() < 1 << DIGIT && unsafe { compact_value(int.as_ptr()) } as i64 == value
    }

    /// Checks on a few ints whether they are laid out as [`Int`].
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
        let decode = |value: i64| {
            // SAFETY: the GIL is held.
            let int = unsafe { ffi::PyLong_FromLongLong(value) };
            // SAFETY: a new reference to an int, or NULL with an exception set.
            let int = unsafe { Bound::from_owned_ptr_or_opt(py, int) }?;
            if cfg!(Py_3_12) && !is_compact_as_stated(&int, value) {
                return None;
            }
            // SAFETY: an int has a head and a word, and another int than 0 a digit of this size at least (`int_info`);
            // if the word reads as two digits the int has as many bytes, whatever they mean.
            unsafe { decode(int.as_ptr().cast()) }
        };
        let reads_short = short.iter().all(|value| decode(*value) == Some(*value));
        if reads_short && long.iter().all(|value| decode(*value).is_none()) {
            MATCHES.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(not(all(not(any(Py_LIMITED_API, PyPy, GraalPy)), target_pointer_width = "64")))]
mod layout {
    use pyo3::ffi;
    use pyo3::prelude::*;

    /// Returns `None`: this interpreter's layout of ints is not public.
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
