//! Reads the fields of Numba's arrays without the getter of their interface, which is 11 000 instructions of Python.
//!
//! The premise is that the source on disk is that of the code in memory: another text gives another sum, and then the getter
//! is called.
//!
//! The getter is followed only if it is the [known](KNOWN_FUNCTIONS) one: the functions of the class are compared with it once
//! for each version of the class, which CPython changes with the class or a base of it. What the getter reads is read here
//! too, by references of our own, as an attribute may be computed by Python code; what it computes of these is computed.
//! Everything else is left to the getter: any other class, an element type that is not one of NumPy's plain ones, extents
//! that are no ints.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

use once_cell::race::OnceBox;
use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::protocol::convert::PlainDict;
use crate::protocol::dtype::DType;
use crate::protocol::stream::Stream;
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_dict, new_str};
use crate::python::cpython::{int, release};
use crate::python::import::cai_dict::{FastDict, Numbers};

/// Tells whether the functions of a class are those that are followed: by the SHA-256 of their source (numba-cuda 0.30),
/// which is read once for each code object.
const KNOWN_FUNCTIONS: &CStr = cr#"
import hashlib, inspect

SOURCES = [
    "2ae36cb381eedbb2f6a582ff6fc339ca1d8a0f0957870d0bc70920f006fa6637",  # __cuda_array_interface__
    "f1d7eefce2321f2ee37d5ff38f01e29fd78d42645d8b996ccfaccaf56792c908",  # device_ctypes_pointer
    "8847ca5b611fe0ab1ff9b970c9fc59ecb73dd777b30adbaf24d7d055bb17e48a",  # is_contiguous
]
known = []


def is_known(codes):
    if len(known) != len(codes) or any(code is not other for code, other in zip(codes, known)):
        sources = [hashlib.sha256(inspect.getsource(code).encode()).hexdigest() for code in codes]
        known[:] = codes if sources == SOURCES else []
    return bool(known)


def is_followed(kind):
    getter, pointer = kind.__cuda_array_interface__.fget, kind.device_ctypes_pointer.fget
    names = getter.__globals__
    functions = getter, pointer, names["is_contiguous"]
    return (
        kind.__getattribute__ is object.__getattribute__
        and not {"int", "tuple", "reversed", "zip"} & names.keys()
        and is_known([function.__code__ for function in functions])
    )
"#;

/// What the arrays of a class are read by.
struct Known {
    is_followed: Py<PyAny>,
    /// NumPy's plain element types: for each there is one object, which lives for ever and never changes.
    dtypes: Vec<(Py<PyAny>, DType)>,
    /// The version of the class that is followed; 0 for none.
    followed: AtomicU32,
    /// The version of a class that was compared last, and is not followed; 0 for none.
    refused: AtomicU32,
}

/// Whether a class is Numba's, by its name.
///
/// # Errors
/// Those of the class's attributes.
#[cold]
pub(super) fn is_array(kind: &Bound<'_, PyType>) -> PyResult<bool> {
    const MODULE: &str = "numba.cuda.cudadrv.devicearray";
    let names = names(kind.py());
    Ok(kind.getattr(&names.module)?.eq(MODULE)?
        && kind.getattr(&names.qualname)?.eq("DeviceNDArray")?
        && version_of(kind.as_type_ptr()) != 0)
}

/// Whether the getter of Numba's class, as the class is now, is followed: its version has not been compared yet. A copy of
/// an array changes it too, which stores a list of slots in the class.
///
/// # Errors
/// What the class's attributes raise that is no `Exception`.
#[cold]
fn compare(known: &Known, kind: &Bound<'_, PyType>, version: u32) -> PyResult<bool> {
    let py = kind.py();
    let same = || known.is_followed.bind(py).call1((kind,))?.is_truthy();
    let is_same = unless_raised(same(), py)? == Some(true);
    let is_followed = is_same && version_of(kind.as_type_ptr()) == version;
    let compared = if is_followed {
        &known.followed
    } else {
        &known.refused
    };
    compared.store(version, Ordering::Relaxed);
    Ok(is_followed)
}

fn prepare(py: Python<'_>) -> PyResult<Known> {
    let globals = new_dict(py)?;
    globals.set_item(&names(py).dunder_name, new_str(py, "cai_dlpack")?)?;
    py.run(KNOWN_FUNCTIONS, Some(&globals), None)?;
    let is_followed = globals.as_any().get_item("is_followed")?.unbind();
    let numpy = py.import(new_str(py, "numpy")?)?.getattr("dtype")?;
    let mut dtypes = Vec::new();
    for dtype in DType::ALL {
        if let Ok(typestr) = dtype.typestr() {
            dtypes.push((numpy.call1((new_str(py, typestr)?,))?.unbind(), *dtype));
        }
    }
    Ok(Known {
        is_followed,
        dtypes,
        followed: AtomicU32::new(0),
        refused: AtomicU32::new(0),
    })
}

/// Returns the version of a class, which no other state of any class has had; 0 if it has none, and where it cannot be
/// read.
fn version_of(kind: *mut ffi::PyTypeObject) -> u32 {
    #[cfg(any(Py_LIMITED_API, PyPy, GraalPy, Py_GIL_DISABLED))]
    let version = {
        let _ = kind;
        0
    };
    #[cfg(not(any(Py_LIMITED_API, PyPy, GraalPy, Py_GIL_DISABLED)))]
    // SAFETY: a living type, which is written by threads that hold the GIL, as this one does.
    let version = unsafe { (*kind).tp_version_tag };
    version
}

/// Reads the array that the getter would describe; `None`, with nothing done, for what is left to the getter.
///
/// # Errors
/// What the attributes raise that is no `Exception`.
#[inline(never)]
pub(super) fn read_fast<'a>(
    object: &Bound<'_, PyAny>,
    numbers: &'a mut Numbers,
) -> PyResult<Option<FastDict<'a>>> {
    unless_raised(read_if_followed(object, numbers), object.py()).map(Option::flatten)
}

#[inline(always)]
fn read_if_followed<'a>(
    object: &Bound<'_, PyAny>,
    numbers: &'a mut Numbers,
) -> PyResult<Option<FastDict<'a>>> {
    static KNOWN: OnceBox<Known> = OnceBox::new();
    let py = object.py();
    // SAFETY: a living object.
    let version = version_of(unsafe { ffi::Py_TYPE(object.as_ptr()) });
    let known = KNOWN.get_or_try_init(|| prepare(py).map(Box::new))?;
    let is = |compared: &AtomicU32| compared.load(Ordering::Relaxed) == version;
    if version == 0 || is(&known.refused) {
        return Ok(None);
    }
    if !is(&known.followed) && !compare(known, &object.get_type(), version)? {
        return Ok(None);
    }
    follow(object, &known.dtypes, numbers)
}

/// Drops an `Exception`: the getter is called, which raises it if it meets it too.
fn unless_raised<T>(result: PyResult<T>, py: Python<'_>) -> PyResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_instance_of::<PyException>(py) => {
            release::drop_now(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads what the getter reads.
fn follow<'a>(
    object: &Bound<'_, PyAny>,
    dtypes: &[(Py<PyAny>, DType)],
    numbers: &'a mut Numbers,
) -> PyResult<Option<FastDict<'a>>> {
    let names = names(object.py());
    let dtype = object.getattr(&names.dtype)?;
    let Some(&(_, dtype)) = dtypes.iter().find(|(known, _)| known.is(&dtype)) else {
        return Ok(None);
    };
    let pointer = object
        .getattr(&names.gpu_data)?
        .getattr(&names.device_ctypes_pointer)?
        .getattr(&names.value)?;
    let (shape, strides) = (
        object.getattr(&names.shape)?,
        object.getattr(&names.strides)?,
    );
    let stream = stream_of(&object.getattr(&names.stream)?)?;
    let read = Read {
        pointer: &pointer,
        shape: &shape,
        strides: &strides,
        dtype,
    };
    Ok(stream.and_then(|stream| read.described(stream, numbers)))
}

/// What the getter reads, but the stream.
struct Read<'a, 'py> {
    pointer: &'a Bound<'py, PyAny>,
    shape: &'a Bound<'py, PyAny>,
    strides: &'a Bound<'py, PyAny>,
    dtype: DType,
}

impl Read<'_, '_> {
    /// Describes the array as its dict does; `None` for what no plain dict describes.
    fn described<'a>(&self, stream: Stream, numbers: &'a mut Numbers) -> Option<FastDict<'a>> {
        let address = match self.pointer.is_none() {
            true => 0,
            false => unsigned(self.pointer)?,
        };
        let ndim = ints(self.shape, numbers, 0)?;
        if ints(self.strides, numbers, ndim)? != ndim {
            return None;
        }
        let values = numbers.get_mut(..2 * ndim)?;
        let has_strides = !is_contiguous(values, self.dtype)?;
        let plain = PlainDict {
            data: address,
            read_only: false,
            dtype: self.dtype,
            values,
            ndim: ndim as u8,
            has_strides,
        };
        Some(FastDict {
            array: plain.checked().ok()?,
            address,
            stream,
            is_stream_known: true,
        })
    }
}

/// Returns the stream of the dict; `None` for one that is refused or warned of.
fn stream_of(stream: &Bound<'_, PyAny>) -> PyResult<Option<Stream>> {
    if int::read_fast(stream.as_borrowed()) == Some(0) || !stream.ne(0)? {
        return Ok(Some(Stream::None));
    }
    // SAFETY: a living object; the GIL is held.
    let number = unsafe { ffi::PyNumber_Long(stream.as_ptr()) };
    // SAFETY: a new reference, or NULL with an exception set.
    let number = unsafe { Bound::from_owned_ptr_or_err(stream.py(), number) }?;
    let handle = unsigned(&number).filter(|&handle| handle != 0);
    Ok(handle.map(Stream::from_raw))
}

fn unsigned(number: &Bound<'_, PyAny>) -> Option<u64> {
    u64::try_from(int::read_fast(number.as_borrowed())?).ok()
}

/// Writes the ints of a tuple to `numbers` from `from` on, and returns how many they are.
fn ints(tuple: &Bound<'_, PyAny>, numbers: &mut Numbers, from: usize) -> Option<usize> {
    let tuple = tuple.cast_exact::<PyTuple>().ok()?;
    let into = numbers.get_mut(from..from.checked_add(tuple.len())?)?;
    for (number, item) in into.iter_mut().zip(tuple.iter_borrowed()) {
        *number = int::read_fast(item)?;
    }
    Some(into.len())
}

/// Whether Numba takes an array for one in C order, by its extents, then strides; `None` above 64 bits.
fn is_contiguous(values: &[i64], dtype: DType) -> Option<bool> {
    let (shape, strides) = values.split_at(values.len() / 2);
    let mut size = i64::from(dtype.itemsize()?);
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent > 1 && stride != 0 {
            if size != stride {
                return Some(false);
            }
            size = size.checked_mul(extent)?;
        }
    }
    Some(true)
}
