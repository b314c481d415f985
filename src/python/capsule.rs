//! Capsules: their names, making one, claiming one.
//!
//! | holds | name | consumed |
//! |---|---|---|
//! | `DLManagedTensor` | `dltensor` | `used_dltensor` |
//! | `DLManagedTensorVersioned` | `dltensor_versioned` | `used_dltensor_versioned` |
//!
//! Source: DLPack, Python specification. A capsule that nobody consumed calls the deleter when it is
//! destroyed; a consumed one does nothing.

use std::ffi::CStr;
use std::ptr::NonNull;

use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;

use crate::protocol::descriptor::Descriptor;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::release;
use crate::view::{Abi, KnownTensor, Owner};

/// A name that no page and no vector of 32 bytes splits: CPython compares it twice for a capsule, and `strcmp` takes
/// twice the instructions across such an edge.
#[repr(C, align(32))]
struct Name<const N: usize>([u8; N]);

impl<const N: usize> Name<N> {
    const fn text(&'static self) -> &'static CStr {
        match CStr::from_bytes_with_nul(&self.0) {
            Ok(text) => text,
            Err(_) => panic!("a name ends with its only NUL"),
        }
    }
}

const LEGACY: &CStr = const { &Name(*b"dltensor\0") }.text();
const LEGACY_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = const { &Name(*b"dltensor_versioned\0") }.text();
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

/// The names of the capsule that carries one layout.
pub(crate) trait Named: Abi {
    const NAME: &'static CStr;
    const USED: &'static CStr;
}

impl Named for DLManagedTensor {
    const NAME: &'static CStr = LEGACY;
    const USED: &'static CStr = LEGACY_USED;
}

impl Named for DLManagedTensorVersioned {
    const NAME: &'static CStr = VERSIONED;
    const USED: &'static CStr = VERSIONED_USED;
}

/// Wraps a managed tensor of ours. On failure its deleter has been called.
#[inline]
pub(crate) fn wrap<M: Named>(py: Python<'_>, tensor: NonNull<M>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the pointer is not null, the name lives for ever, and `destroy` takes such a capsule.
    let capsule =
        unsafe { ffi::PyCapsule_New(tensor.as_ptr().cast(), M::NAME.as_ptr(), Some(destroy::<M>)) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.inspect_err(|_| {
        // SAFETY: no capsule took the tensor over, so that it is still ours; it is initialised.
        unsafe { M::drop_raw(tensor.as_ptr()) };
    })
}

/// The capsule's destructor: calls the deleter of a tensor that no consumer has taken.
unsafe extern "C" fn destroy<M: Named>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule, holding the GIL; the capsule has a name, so that no exception is
    // set.
    let name = unsafe { ffi::PyCapsule_GetName(capsule) };
    // A consumer gives the capsule a name of its own, and gives ours back if it fails, perhaps at another address.
    // SAFETY: any object may be asked; no exception is set.
    let is_ours = name == M::NAME.as_ptr()
        || unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } != 0;
    if !is_ours {
        return;
    }
    // SAFETY: valid under this name, so that this neither fails nor touches a pending exception.
    let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()) };
    // SAFETY: an unconsumed capsule owns its tensor; our deleters do not unwind.
    unsafe { M::drop_raw(tensor.cast()) };
}

/// AllowStructs the tensor out of a capsule, whichever of the two it is.
///
/// The metadata is read and checked first: on a refusal the capsule is as it was, and may be tried
/// elsewhere. The exception is another major version, of which the specification lets a consumer use
/// nothing but the deleter: such a tensor is consumed and deleted.
///
/// Of several threads that claim one capsule, one wins: checking and renaming are one step under the
/// GIL, and under the capsule's lock where there is none.
#[inline(always)]
pub(crate) fn claim(capsule: &Bound<'_, PyAny>) -> PyResult<(Descriptor, Owner)> {
    // Now, since it may run Python code: nothing may come between the check and the renaming.
    release::prepare(capsule.py())?;
    with_critical_section(capsule, || {
        if is_named(capsule, VERSIONED) {
            consume::<DLManagedTensorVersioned>(capsule)
        } else if is_named(capsule, LEGACY) {
            consume::<DLManagedTensor>(capsule)
        } else {
            Err(wrong_name(capsule).into())
        }
    })
}

/// Whether this is a capsule, of any name.
#[inline]
pub(crate) fn is_capsule(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: reads the object's type.
    unsafe { ffi::PyCapsule_CheckExact(object.as_ptr()) != 0 }
}

fn is_named(capsule: &Bound<'_, PyAny>, name: &CStr) -> bool {
    // SAFETY: any object may be asked; no exception is set.
    unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) != 0 }
}

#[inline(always)]
fn consume<M: Named>(capsule: &Bound<'_, PyAny>) -> PyResult<(Descriptor, Owner)> {
    // SAFETY: valid under this name (`claim`), so that this cannot fail.
    let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), M::NAME.as_ptr()) };
    let Some(tensor) = NonNull::new(pointer.cast::<M>()) else {
        return Err(Violation::new(Rule::CapsuleNull, Field::Capsule, "NULL").into());
    };
    // SAFETY: a capsule of this name holds an initialised tensor, which it owns and nobody changes while we look
    // (DLPack).
    match unsafe { KnownTensor::check(tensor) } {
        Ok(known) => {
            let descriptor = known.descriptor()?;
            Ok((descriptor, take::<M>(capsule, tensor)?))
        }
        Err(violation) => {
            drop(take::<M>(capsule, tensor)?);
            Err(violation.into())
        }
    }
}

/// Renames the capsule and owns its tensor: the point of no return.
#[inline(always)]
fn take<M: Named>(capsule: &Bound<'_, PyAny>, tensor: NonNull<M>) -> PyResult<Owner> {
    // SAFETY: a valid capsule, and a name that lives for ever.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), M::USED.as_ptr()) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    // SAFETY: renamed, the capsule has given its tensor to us.
    Ok(unsafe { release::own_tensor(tensor) }.into_owner())
}

#[cold]
fn wrong_name(capsule: &Bound<'_, PyAny>) -> Violation {
    // SAFETY: reads the name of a capsule (`claim`'s callers pass nothing else); no exception is set
    // for capsules without one but NULL is returned.
    let name = unsafe { ffi::PyCapsule_GetName(capsule.as_ptr()) };
    if name.is_null() {
        // SAFETY: the GIL is held.
        unsafe { ffi::PyErr_Clear() };
        return Violation::new(
            Rule::CapsuleName,
            Field::Capsule,
            "a capsule without a name",
        );
    }
    // SAFETY: the name of a living capsule is a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let rule = if name == LEGACY_USED || name == VERSIONED_USED {
        Rule::CapsuleUsed
    } else {
        Rule::CapsuleName
    };
    Violation::new(
        rule,
        Field::Capsule,
        format_args!("'{}'", name.to_string_lossy()),
    )
}
