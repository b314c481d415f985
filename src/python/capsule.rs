//! Wraps tensors in capsules, reads them there, and claims them.
//!
//! | holds | name | consumed |
//! |---|---|---|
//! | `DLManagedTensor` | `dltensor` | `used_dltensor` |
//! | `DLManagedTensorVersioned` | `dltensor_versioned` | `used_dltensor_versioned` |
//!
//! Source: DLPack, Python specification. A capsule that was not consumed calls the deleter when it is destroyed; a
//! consumed one does nothing. The name alone does not tell, as a consumer may call the deleter and leave the name: the
//! capsule's context holds the tensor's [`Ticket`], which the deleter ends.

use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};

use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;

use crate::protocol::descriptor::Descriptor;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::cpython::release;
use crate::view::{self, Abi, KnownTensor, Owner, Ticket};

/// The names, at the head of a page: CPython compares a name twice for each capsule, and `strcmp` needs twice the
/// instructions if the bits of both addresses, taken together, are those of a page's end.
#[repr(C, align(4096))]
struct Names {
    versioned: [u8; 32],
    legacy: [u8; 32],
}

static NAMES: Names = Names {
    versioned: padded(b"dltensor_versioned"),
    legacy: padded(b"dltensor"),
};

/// Returns a name that ends with a NUL, and nothing but NULs behind it.
const fn padded(name: &[u8]) -> [u8; 32] {
    let (mut padded, mut at) = ([0; 32], 0);
    assert!(name.len() < padded.len(), "a NUL ends the name");
    while at < name.len() {
        padded[at] = name[at];
        at += 1;
    }
    padded
}

const fn text(padded: &'static [u8; 32]) -> &'static CStr {
    match CStr::from_bytes_until_nul(padded) {
        Ok(text) => text,
        Err(_) => unreachable!(),
    }
}

const LEGACY: &CStr = text(&NAMES.legacy);
const VERSIONED: &CStr = text(&NAMES.versioned);
const LEGACY_USED: &CStr = c"used_dltensor";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

/// The names of the capsule of one layout.
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

/// Wraps a managed tensor of [`build_in_capsule`](crate::view::build_in_capsule), with its ticket. Calls its deleter on
/// failure.
#[inline]
pub(crate) fn wrap<M: Named>(
    py: Python<'_>,
    (tensor, ticket): (NonNull<M>, Ticket),
) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the pointer is not null, the name is static, and `destroy` takes a capsule of this layout.
    let capsule =
        unsafe { ffi::PyCapsule_New(tensor.as_ptr().cast(), M::NAME.as_ptr(), Some(destroy::<M>)) };
    // SAFETY: a new reference, or NULL with an exception set.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.inspect_err(|_| {
        // SAFETY: initialised, and still owned here, as there is no capsule.
        unsafe { M::drop_raw(tensor.as_ptr()) };
    })?;
    let ticket = ptr::without_provenance_mut(ticket.to_bits());
    // SAFETY: a new capsule, for which the call cannot fail.
    unsafe { ffi::PyCapsule_SetContext(capsule.as_ptr(), ticket) };
    Ok(capsule)
}

/// A capsule that holds no tensor yet: made before a tensor is taken, as nothing may fail afterwards.
pub(crate) struct Empty<'py>(Bound<'py, PyAny>);

impl<'py> Empty<'py> {
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(py: Python<'py>) -> PyResult<Self> {
        let nowhere = NonNull::<DLManagedTensorVersioned>::dangling();
        // SAFETY: the GIL is held; the pointer is not null, and nothing follows it: without a name and a destructor the
        // capsule is no tensor's.
        let capsule = unsafe { ffi::PyCapsule_New(nowhere.as_ptr().cast(), ptr::null(), None) };
        // SAFETY: a new reference, or NULL with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.map(Self)
    }

    /// Puts a tensor into the capsule, as [`wrap`] does.
    pub(crate) fn filled<M: Named>(
        self,
        (tensor, ticket): (NonNull<M>, Ticket),
    ) -> Bound<'py, PyAny> {
        let Self(capsule) = self;
        let ticket = ptr::without_provenance_mut(ticket.to_bits());
        // SAFETY: a valid capsule, and a pointer that is not null: the call cannot fail.
        unsafe { ffi::PyCapsule_SetPointer(capsule.as_ptr(), tensor.as_ptr().cast()) };
        // SAFETY: a valid capsule, for which the call cannot fail.
        unsafe { ffi::PyCapsule_SetContext(capsule.as_ptr(), ticket) };
        // SAFETY: a valid capsule, for which the call cannot fail; `destroy` takes a capsule of this layout.
        unsafe { ffi::PyCapsule_SetDestructor(capsule.as_ptr(), Some(destroy::<M>)) };
        // SAFETY: a valid capsule, for which the call cannot fail; the name is static.
        unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), M::NAME.as_ptr()) };
        capsule
    }
}

/// The capsule's destructor: calls the deleter of a tensor that no consumer has taken.
unsafe extern "C" fn destroy<M: Named>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule, holding the GIL. It has a name, so that no exception is set.
    let name = unsafe { ffi::PyCapsule_GetName(capsule) };
    if name != M::NAME.as_ptr() && !is_restored::<M>(capsule, name) {
        return;
    }
    // SAFETY: a capsule that holds a pointer, so that the call neither fails nor changes a pending exception.
    let ticket = unsafe { ffi::PyCapsule_GetContext(capsule) };
    if !Ticket::from_bits(ticket.addr()).is_valid() {
        return;
    }
    // SAFETY: a valid capsule of this name, so that the call neither fails nor changes a pending exception.
    let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()) };
    // SAFETY: an unconsumed capsule owns its initialised tensor, whose deleter has not been called (the ticket is valid)
    // and does not unwind; the capsule is destroyed once.
    unsafe { M::drop_raw(tensor.cast()) };
}

/// Whether a name at another address is the capsule's own: a consumer renames it, and restores the name if it fails.
#[inline(always)]
fn is_restored<M: Named>(capsule: *mut ffi::PyObject, name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: the name of a living capsule is a C string, which has one byte at least.
    let first = unsafe { name.read() };
    // The consumed names begin with another letter: no text is compared for them.
    // SAFETY: a living object, of any type; no exception is set.
    first == M::NAME.to_bytes_with_nul()[0].cast_signed() as c_char
        && unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } != 0
}

/// A tensor that was read in its capsule. Nothing is taken yet: dropped, it leaves the capsule as it was.
pub(crate) struct Unclaimed<'py> {
    pub(crate) descriptor: Descriptor,
    pub(crate) capsule: Bound<'py, PyAny>,
    tensor: NonNull<()>,
    versioned: bool,
}

/// Reads and checks the description of a capsule's tensor, of either layout. Changes nothing.
///
/// Of a tensor of another major version the version is read, and nothing else: not even the deleter may stand where
/// version 1 has it.
///
/// # Errors
/// `capsule-...` rules, `dlpack-major`, and the rules of tensors.
#[inline(always)]
pub(crate) fn read<'py>(capsule: Bound<'py, PyAny>) -> PyResult<Unclaimed<'py>> {
    // Here, since it can fail, and nothing may fail once the tensor is taken.
    release::prepare(capsule.py())?;
    // The lock keeps other importers from taking the tensor, and so from deleting it, while it is read.
    let (descriptor, tensor, versioned) = with_critical_section(&capsule, || {
        if is_named(&capsule, VERSIONED) {
            let (descriptor, tensor) = describe::<DLManagedTensorVersioned>(&capsule)?;
            Ok((descriptor, tensor, true))
        } else if is_named(&capsule, LEGACY) {
            let (descriptor, tensor) = describe::<DLManagedTensor>(&capsule)?;
            Ok((descriptor, tensor, false))
        } else {
            Err(wrong_name(&capsule))
        }
    })?;
    Ok(Unclaimed {
        descriptor,
        capsule,
        tensor,
        versioned,
    })
}

/// Refuses a capsule of this library whose tensor has been deleted by a consumer that left the name (TensorFlow).
///
/// # Errors
/// `capsule-used`.
pub(crate) fn check_alive(capsule: &Bound<'_, PyAny>) -> Result<(), Violation> {
    check_alive_as::<DLManagedTensorVersioned>(capsule)?;
    check_alive_as::<DLManagedTensor>(capsule)
}

fn check_alive_as<M: Named>(capsule: &Bound<'_, PyAny>) -> Result<(), Violation> {
    if !is_named(capsule, M::NAME) {
        return Ok(());
    }
    // SAFETY: a valid capsule (`is_named`), for which the call cannot fail.
    let destructor = unsafe { ffi::PyCapsule_GetDestructor(capsule.as_ptr()) };
    let own: unsafe extern "C" fn(*mut ffi::PyObject) = destroy::<M>;
    if !destructor.is_some_and(|destructor| ptr::fn_addr_eq(destructor, own)) {
        return Ok(());
    }
    // SAFETY: a valid capsule (`is_named`), for which the call cannot fail.
    let ticket = unsafe { ffi::PyCapsule_GetContext(capsule.as_ptr()) };
    match Ticket::from_bits(ticket.addr()).is_valid() {
        true => Ok(()),
        false => {
            let name = M::NAME.to_string_lossy();
            let found = format_args!("'{name}', whose tensor a consumer has deleted");
            Err(Violation::new(Rule::CapsuleUsed, Field::Capsule, found))
        }
    }
}

impl Unclaimed<'_> {
    /// Takes the tensor out of the capsule: the point of no return. Whatever can be refused has been refused before.
    ///
    /// If several threads claim one capsule, one succeeds: comparing and renaming are one step, under the GIL or the
    /// capsule's lock.
    ///
    /// # Errors
    /// `capsule-used` if another importer has been quicker.
    #[inline(always)]
    pub(crate) fn claim(&self) -> PyResult<Owner> {
        with_critical_section(&self.capsule, || match self.versioned {
            true => take::<DLManagedTensorVersioned>(&self.capsule, self.tensor),
            false => take::<DLManagedTensor>(&self.capsule, self.tensor),
        })
    }
}

/// A capsule whose tensor has been taken, and may be put back.
pub(crate) struct Claimed<'py> {
    capsule: Bound<'py, PyAny>,
    versioned: bool,
}

impl<'py> Unclaimed<'py> {
    /// Returns what puts the tensor back once it has been claimed.
    pub(crate) fn to_restore(&self) -> Claimed<'py> {
        Claimed {
            capsule: self.capsule.clone(),
            versioned: self.versioned,
        }
    }
}

impl Claimed<'_> {
    /// Puts the tensor back, so that the capsule is as it was; unless `owner` is shared, by work that still reads the
    /// data: then the tensor ends after it, and the capsule stays consumed.
    #[cold]
    pub(crate) fn restore(self, owner: Owner) {
        with_critical_section(&self.capsule, || {
            if owner.give_up() {
                let name = match self.versioned {
                    true => VERSIONED,
                    false => LEGACY,
                };
                // SAFETY: a valid capsule, which `claim` has renamed, and a static name: the call cannot fail. The
                // tensor has been given up undeleted, and is the capsule's again.
                unsafe { ffi::PyCapsule_SetName(self.capsule.as_ptr(), name.as_ptr()) };
            }
        });
    }
}

/// Ends the tensor of a capsule of this library that no one has consumed. The capsule counts as consumed then.
#[cold]
pub(crate) fn revoke(capsule: Bound<'_, PyAny>) {
    let is_consumed = !is_named(&capsule, VERSIONED) && !is_named(&capsule, LEGACY);
    if !is_consumed && check_alive(&capsule).is_ok() {
        drop(read(capsule).and_then(|tensor| tensor.claim()));
    }
}

/// Whether this is a capsule, of any name.
#[inline]
pub(crate) fn is_capsule(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a living object.
    unsafe { ffi::PyCapsule_CheckExact(object.as_ptr()) != 0 }
}

fn is_named(capsule: &Bound<'_, PyAny>, name: &CStr) -> bool {
    // SAFETY: a living object, of any type; no exception is set.
    unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) != 0 }
}

#[inline(always)]
fn describe<M: Named>(capsule: &Bound<'_, PyAny>) -> Result<(Descriptor, NonNull<()>), Violation> {
    // SAFETY: a valid capsule of this name (`read`), so that the call cannot fail.
    let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), M::NAME.as_ptr()) };
    let tensor = view::locate(pointer.cast::<M>(), Field::Capsule)?;
    // SAFETY: aligned (`locate`). DLPack: a capsule of this name owns an initialised tensor, which is not changed meanwhile.
    let known = unsafe { KnownTensor::check(tensor) }?;
    Ok((known.descriptor()?, tensor.cast()))
}

/// Renames the capsule, and takes its tensor, which was read before.
#[inline(always)]
fn take<M: Named>(capsule: &Bound<'_, PyAny>, tensor: NonNull<()>) -> PyResult<Owner> {
    // SAFETY: a living capsule and a static name; of a capsule of another name the call sets an exception.
    let now = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), M::NAME.as_ptr()) };
    if now != tensor.as_ptr().cast() {
        return Err(taken(capsule));
    }
    // SAFETY: a valid capsule, as its pointer was found by its name, and a static name: the call cannot fail.
    unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), M::USED.as_ptr()) };
    // SAFETY: initialised (DLPack), aligned and of a major version that is known (`describe`), and the one that the capsule held
    // until now; the renamed capsule has given up its ownership.
    Ok(unsafe { release::own_tensor(tensor.cast::<M>()) }.into_owner())
}

/// Refuses a capsule that another importer has taken since it was read.
#[cold]
fn taken(capsule: &Bound<'_, PyAny>) -> PyErr {
    // SAFETY: the GIL is held. The exception of a failed call, if there is one.
    unsafe { ffi::PyErr_Clear() };
    wrong_name(capsule).into()
}

#[cold]
fn wrong_name(capsule: &Bound<'_, PyAny>) -> Violation {
    // SAFETY: a capsule (both callers of `read` check it).
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
