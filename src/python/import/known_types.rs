//! Caches, by type, how an object is imported: its library's exchange table, and its traits.
//!
//! ```text
//!   import   type(array).__dlpack_c_exchange_api__ --> Table --> owning tensor + work stream --> view
//!   export   CaiView.__dlpack_c_exchange_api__     --> our own static table
//! ```
//! The C Exchange API of DLPack 1.3 is a table of C functions, an attribute of the *type*. A type is looked at
//! once ([`known`]). A table that breaks the header (an int, another name or major version, a missing
//! function) counts as none: the object's `__dlpack__` is asked instead.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};

use bitflags::bitflags;
use dlpark::ffi::{DLPACK_MAJOR_VERSION, DLPackExchangeAPI, DLPackExchangeAPIHeader};
use pyo3::exceptions::{PyException, PyUserWarning};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

use crate::partners;
use crate::partners::Quirk;
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

// SAFETY: DLPack 1.3: a table is static, "must stay alive throughout the lifetime of the process", and is
// never written.
unsafe impl Send for Table {}
// SAFETY: DLPack 1.3: a table is static and never written, so that threads may read it together.
unsafe impl Sync for Table {}

impl Table {
    pub(super) fn api(&self) -> &DLPackExchangeAPI {
        // SAFETY: a table of our major version (`of_capsule`), alive for ever.
        unsafe { self.0.as_ref() }
    }

    /// The table in a capsule; `None` if it holds none, or one of another version, or one that cannot export.
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

bitflags! {
    /// What decides the way an object of a type is imported, beside the table: its class, its attributes, and
    /// the quirks of its library ([`PARTNERS`](crate::partners::PARTNERS)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Traits: u32 {
        /// It is our own `CaiView`.
        const OURS = 1;
        /// It has this attribute; so do the next four. [`method`](Self::method) tells that it is a method.
        const REQUIRES_GRAD = 1 << 1;
        const IS_CONJ = 1 << 2;
        const IS_NEG = 1 << 3;
        const IS_SPARSE = 1 << 4;
        const IS_PINNED = 1 << 5;
        /// [`Quirk::IgnoresStream`].
        const IGNORES_STREAM = 1 << 6;
        /// [`Quirk::WantsCurrentDevice`].
        const WANTS_CURRENT = 1 << 7;
        /// It has `__dlpack__`.
        const SPEAKS = 1 << 8;
        /// It is the `CaiView` of another copy of this library, linked by another extension. Its dict names the
        /// stream that the array is ready on, and on which its producer waits for readers. Its table could
        /// name the thread's work stream only, which would have to wait first.
        const ANOTHER_COPY = 1 << 9;
        /// [`Quirk::MislabelsBfloat16`].
        const MISLABELS = 1 << 10;
        /// It is neither a capsule nor a dict, and its objects are asked through their attributes: it has no
        /// table, and is no view of ours.
        const PLAIN = 1 << 11;
        /// Attributes that change the meaning of an export.
        const STATE = Self::REQUIRES_GRAD.bits() | Self::IS_CONJ.bits() | Self::IS_NEG.bits();
    }
}

impl Traits {
    /// The trait that the attribute of a trait below 2^16 is a method.
    pub(super) const fn method(self) -> Self {
        Self::from_bits_retain(self.bits() << 16)
    }

    const fn of_quirk(quirk: Quirk) -> Self {
        match quirk {
            Quirk::IgnoresStream => Self::IGNORES_STREAM,
            Quirk::MislabelsBfloat16 => Self::MISLABELS,
            Quirk::WantsCurrentDevice => Self::WANTS_CURRENT,
        }
    }

    /// Asks a type, which may run Python code.
    fn of(kind: &Bound<'_, PyType>) -> PyResult<Self> {
        let py = kind.py();
        let names = keys(py);
        let attributes = [
            (Self::REQUIRES_GRAD, &names.requires_grad),
            (Self::IS_CONJ, &names.is_conj),
            (Self::IS_NEG, &names.is_neg),
            (Self::IS_SPARSE, &names.is_sparse),
            (Self::IS_PINNED, &names.is_pinned),
        ];
        let mut traits = Self::empty();
        for (this, name) in attributes {
            if let Some(attribute) = getattr::optional(kind, name)? {
                traits |= this;
                if attribute.is_callable() {
                    traits |= this.method();
                }
            }
        }
        traits.set(Self::SPEAKS, kind.hasattr(&names.dlpack)?);
        traits.set(Self::OURS, kind.is(py.get_type::<PyCaiView>()));
        // Read from the type, as PyO3's own reader waits in cells (`once`); a type may give it any value.
        let module = kind.getattr(&names.module)?;
        let module = module.cast::<PyString>();
        let module = module.map_or_else(|_| "".into(), |module| module.to_string_lossy());
        let is_of_us = module.split('.').next() == Some("cai_dlpack");
        traits.set(Self::ANOTHER_COPY, is_of_us && !traits.contains(Self::OURS));
        let producer = partners::of_module(&module).and_then(|partner| partner.producer.as_ref());
        let quirks = producer.map_or(&[][..], |producer| producer.quirks);
        traits.extend(quirks.iter().map(|quirk| Self::of_quirk(*quirk)));
        Ok(traits)
    }
}

/// What the import must know of an object's type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) table: Option<Table>,
    pub(crate) traits: Traits,
}

/// One cached type. Written rarely, read on every import; `version` is odd while it is written,
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
        let traits = Traits::from_bits_retain(self.traits.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        is_whole.then_some(Known {
            table: NonNull::new(table).map(Table),
            traits,
        })
    }

    /// Caches a type in the place of another one, unless another thread is writing.
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
        self.traits.store(known.traits.bits(), Ordering::Relaxed);
        let before = self
            .kind
            .swap(kind.clone().into_ptr().cast(), Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
        // SAFETY: NULL, or the strong reference that stood here; the GIL is held (`kind` is bound).
        unsafe { ffi::Py_XDECREF(before.cast()) };
    }
}

/// Reads the cache for an object's type; `None` if the type is not in it.
#[inline(always)]
pub(crate) fn remembered(object: &Bound<'_, PyAny>) -> Option<Known> {
    // SAFETY: reads the type of a living object.
    let kind = unsafe { ffi::Py_TYPE(object.as_ptr()) };
    Slot::of(kind).read(kind)
}

/// Reads the cache for an object's type, else looks at the type; a few instructions if it is cached.
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
    let table = if traits.intersects(Traits::ANOTHER_COPY) {
        None
    } else {
        table(&kind)?
    };
    let is_asked_otherwise =
        traits.intersects(Traits::OURS) || is_capsule(object) || object.is_instance_of::<PyDict>();
    if table.is_none() && !is_asked_otherwise {
        traits |= Traits::PLAIN;
    }
    let known = Known { table, traits };
    Slot::of(kind.as_type_ptr()).write(&kind, known);
    Ok(known)
}

/// Warns, once per type, that the stream of the data is unknown.
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

/// The table of a type; `None` if there is no usable one or reading it raises an exception: `__dlpack__` is
/// the protocol, this is its short cut.
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
