//! The C Exchange API of DLPack 1.3, both sides: a table of C functions that stands on the *type*.
//!
//! ```text
//!   import   type(array).__dlpack_c_exchange_api__ --> Table --> owning tensor + work stream --> view
//!   export   CaiView.__dlpack_c_exchange_api__     --> our own static table
//! ```
//! The type's attribute is looked up once per type and remembered ([`known`]), together with what else
//! there is to know about the type. A table that is not as the header says (an int, another name or
//! major version, a missing function) counts as none: the object's `__dlpack__` is asked instead.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};

use dlpark::ffi::{DLPACK_MAJOR_VERSION, DLPackExchangeAPI, DLPackExchangeAPIHeader};
use pyo3::exceptions::{PyException, PyUserWarning};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

use crate::python::capsule::is_capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::keys;
use crate::python::cpython::{getattr, release};

/// The name of the capsule that holds a table.
pub(crate) const NAME: &std::ffi::CStr = c"dlpack_exchange_api";
/// Tables of a version chain that are looked at: a chain that bites its tail comes to an end.
const LONGEST_CHAIN: usize = 16;

/// A producer's table, of major version 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table(NonNull<DLPackExchangeAPI>);

// SAFETY: DLPack 1.3: a table is static, "must stay alive throughout the lifetime of the process", and
// nobody writes to it.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    pub(super) fn api(&self) -> &DLPackExchangeAPI {
        // SAFETY: a table of our major version (`of_capsule`), alive for ever.
        unsafe { self.0.as_ref() }
    }

    /// The table in a capsule; `None` where it is not one, or not of our version, or cannot export.
    fn of_capsule(capsule: &Bound<'_, PyAny>) -> Option<Self> {
        // SAFETY: any object may be asked; no exception is set.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), NAME.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: valid under this name, so that this cannot fail.
        let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) };
        // SAFETY: DLPack 1.3: a capsule of this name holds a table, which begins with its header.
        let table = unsafe { our_version(table.cast()) }?;
        let api = table.api();
        let can_export = api.managed_tensor_from_py_object_no_sync.is_some();
        (can_export && api.current_work_stream.is_some()).then_some(table)
    }
}

/// The first table of a chain whose major version is ours.
///
/// # Safety
/// `header` is NULL or begins a static table, and so does every `prev_api`.
unsafe fn our_version(mut header: *const DLPackExchangeAPIHeader) -> Option<Table> {
    for _ in 0..LONGEST_CHAIN {
        // SAFETY: NULL or readable, by this function's contract.
        let this = unsafe { header.as_ref() }?;
        if this.version.major == DLPACK_MAJOR_VERSION {
            return NonNull::new(header.cast_mut().cast()).map(Table);
        }
        header = this.prev_api;
    }
    None
}

/// What there is to know about a type beside its table: the attributes that tell what the table does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Traits(u32);

impl Traits {
    /// It is our own `CaiView`.
    pub(crate) const OURS: Self = Self(1);
    pub(super) const REQUIRES_GRAD: Self = Self(1 << 1);
    pub(super) const IS_CONJ: Self = Self(1 << 2);
    pub(super) const IS_NEG: Self = Self(1 << 3);
    pub(super) const IS_SPARSE: Self = Self(1 << 4);
    pub(super) const IS_PINNED: Self = Self(1 << 5);
    /// Its `__dlpack__` takes a stream and does nothing with it, and its work stream is always NULL.
    pub(crate) const IGNORES_STREAM: Self = Self(1 << 6);
    /// Its `__dlpack__` works on its library's current device, or insists that this is the array's.
    pub(crate) const WANTS_CURRENT: Self = Self(1 << 7);
    /// It has `__dlpack__`.
    pub(crate) const SPEAKS: Self = Self(1 << 8);
    /// It is the `CaiView` of another copy of this library, which some other extension links. Its dict
    /// names the stream that the array is ready on, and on which its producer waits for readers. Its
    /// table could name the thread's work stream only, which would have to wait first.
    const ANOTHER_COPY: Self = Self(1 << 9);
    /// Its typestr says float16 or uint16 where its own dtype says bfloat16 (torch of 2024, Paddle, Warp).
    pub(crate) const MISLABELS: Self = Self(1 << 10);
    /// It is neither a capsule nor a dict, and its objects are asked through their attributes: it has no
    /// table, and is no view of ours.
    pub(crate) const PLAIN: Self = Self(1 << 11);
    /// Attributes that change what an export means.
    pub(super) const STATE: Self = Self(Self::REQUIRES_GRAD.0 | Self::IS_CONJ.0 | Self::IS_NEG.0);

    /// That the attribute of a trait below 2^16 is a method.
    pub(super) const fn method(self) -> Self {
        Self(self.0 << 16)
    }

    #[inline]
    pub(crate) const fn any_of(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Asks a type, which may run Python code.
    fn of(kind: &Bound<'_, PyType>) -> PyResult<Self> {
        let py = kind.py();
        let attributes = [
            (Self::REQUIRES_GRAD, "requires_grad"),
            (Self::IS_CONJ, "is_conj"),
            (Self::IS_NEG, "is_neg"),
            (Self::IS_SPARSE, "is_sparse"),
            (Self::IS_PINNED, "is_pinned"),
        ];
        let mut bits = 0;
        for (this, name) in attributes {
            if let Some(attribute) =
                getattr::optional(kind, PyString::intern(py, name).as_unbound())?
            {
                bits |= this.0;
                if attribute.is_callable() {
                    bits |= this.method().0;
                }
            }
        }
        if kind.hasattr(&keys(py).dlpack)? {
            bits |= Self::SPEAKS.0;
        }
        if kind.is(py.get_type::<PyCaiView>()) {
            bits |= Self::OURS.0;
        }
        // Of a type, which may say anything; and not by PyO3, whose cells wait (`once`).
        let module = kind.getattr(&keys(py).module)?;
        let module = module.cast::<PyString>();
        let module = module.map_or_else(|_| "".into(), |module| module.to_string_lossy());
        let library = module.split('.').next().unwrap_or_default();
        if library == "cai_dlpack" && bits & Self::OURS.0 == 0 {
            bits |= Self::ANOTHER_COPY.0;
        }
        if module.starts_with("cuda.core") {
            bits |= Self::IGNORES_STREAM.0;
        }
        if matches!(library, "torch" | "paddle" | "warp") {
            bits |= Self::MISLABELS.0;
        }
        if matches!(library, "torch" | "cupy") {
            bits |= Self::WANTS_CURRENT.0;
        }
        Ok(Self(bits))
    }
}

/// What is known of an object's type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) table: Option<Table>,
    pub(crate) traits: Traits,
}

/// One remembered type. Written rarely, read on every import; `version` is odd while it is written,
/// and a reader that sees it change has read nothing.
struct Slot {
    version: AtomicU32,
    traits: AtomicU32,
    /// A strong reference: while it stands here no other type can have this address.
    kind: AtomicPtr<ffi::PyTypeObject>,
    table: AtomicPtr<DLPackExchangeAPI>,
}

const SLOTS: usize = 64;

static CACHE: [Slot; SLOTS] = [const {
    Slot {
        version: AtomicU32::new(0),
        traits: AtomicU32::new(0),
        kind: AtomicPtr::new(ptr::null_mut()),
        table: AtomicPtr::new(ptr::null_mut()),
    }
}; SLOTS];

impl Slot {
    /// The place of a type. Types that share one take it from each other, which costs time only.
    #[inline]
    fn of(kind: *mut ffi::PyTypeObject) -> &'static Self {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let hash = (kind.addr() as u64).wrapping_mul(GOLDEN);
        &CACHE[(hash >> (u64::BITS - SLOTS.ilog2())) as usize]
    }

    #[inline(always)]
    fn read(&self, kind: *mut ffi::PyTypeObject) -> Option<Known> {
        let version = self.version.load(Ordering::Acquire);
        if self.kind.load(Ordering::Relaxed) != kind {
            return None;
        }
        let table = self.table.load(Ordering::Relaxed);
        let traits = Traits(self.traits.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        is_whole.then_some(Known {
            table: NonNull::new(table).map(Table),
            traits,
        })
    }

    /// Remembers a type in the place of another one; nothing where somebody else is writing.
    fn write(&self, kind: &Bound<'_, PyType>, known: Known) {
        let version = self.version.load(Ordering::Relaxed);
        let free = version & 1 == 0
            && self
                .version
                .compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !free {
            return;
        }
        fence(Ordering::Release);
        let table = known
            .table
            .map_or(ptr::null_mut(), |table| table.0.as_ptr());
        self.table.store(table, Ordering::Relaxed);
        self.traits.store(known.traits.0, Ordering::Relaxed);
        let before = self
            .kind
            .swap(kind.clone().into_ptr().cast(), Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
        // SAFETY: NULL, or the strong reference that stood here; the GIL is held (`kind` is bound).
        unsafe { ffi::Py_XDECREF(before.cast()) };
    }
}

/// What is remembered of an object's type; `None` where it was not met before.
#[inline(always)]
pub(crate) fn remembered(object: &Bound<'_, PyAny>) -> Option<Known> {
    // SAFETY: reads the type of a living object.
    let kind = unsafe { ffi::Py_TYPE(object.as_ptr()) };
    Slot::of(kind).read(kind)
}

/// What is known of an object's type; a few instructions where the type was met before.
///
/// A type is asked once: an attribute that is added to it later is not seen, and its `__dlpack__` serves.
#[inline]
pub(crate) fn known(object: &Bound<'_, PyAny>) -> PyResult<Known> {
    match remembered(object) {
        Some(known) => Ok(known),
        None => discover(object),
    }
}

#[cold]
fn discover(object: &Bound<'_, PyAny>) -> PyResult<Known> {
    let kind = object.get_type();
    let mut traits = Traits::of(&kind)?;
    let table = if traits.any_of(Traits::ANOTHER_COPY) {
        None
    } else {
        table(&kind)?
    };
    let is_asked_otherwise =
        traits.any_of(Traits::OURS) || is_capsule(object) || object.is_instance_of::<PyDict>();
    if table.is_none() && !is_asked_otherwise {
        traits.0 |= Traits::PLAIN.0;
    }
    let known = Known { table, traits };
    Slot::of(kind.as_type_ptr()).write(&kind, known);
    Ok(known)
}

/// Says, once per type, that nobody knows when the data is ready.
#[cold]
pub(crate) fn warn_unknown(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let text = format!(
        "{} does not say which stream it works on: the legacy default stream is taken, which waits for no \
         non-blocking stream; name the stream by producer_stream=, or None where nothing is pending [stream-unknown]",
        type_name(object)
    );
    let category = object.py().get_type::<PyUserWarning>();
    crate::python::cpython::warn::once(object, &text, category.as_any())
}

/// The table of a type; `None` for whatever is not a usable one, and for whatever error reading it
/// raises: `__dlpack__` is the protocol, this is its short cut.
fn table(kind: &Bound<'_, PyType>) -> PyResult<Option<Table>> {
    match getattr::optional(kind, &keys(kind.py()).exchange_api) {
        Ok(capsule) => Ok(capsule.as_ref().and_then(Table::of_capsule)),
        Err(error) if error.is_instance_of::<PyException>(kind.py()) => {
            release::drop_now(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
