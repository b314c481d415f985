//! Caches, by type, how an object is imported: its library's exchange table, and its traits.
//!
//! The table is an attribute of the *type*, and a type is looked at once ([`facts_of`]). A table that breaks DLPack's
//! header (an int, another name or major version, a missing function) counts as none: the object's `__dlpack__`
//! is asked instead.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};

use dlpark::ffi::DLPackExchangeAPI;
use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

use crate::partners;
use crate::python::capsule::is_capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::names::names;
use crate::python::cpython::{getattr, release};
use crate::python::exchange_table::Table;
use crate::python::import::traits::Traits;

/// Asks a type, which may run Python code.
fn traits(kind: &Bound<'_, PyType>) -> PyResult<Traits> {
    let py = kind.py();
    let names = names(py);
    let attributes = [
        (Traits::REQUIRES_GRAD, &names.requires_grad),
        (Traits::IS_CONJ, &names.is_conj),
        (Traits::IS_NEG, &names.is_neg),
        (Traits::IS_SPARSE, &names.is_sparse),
        (Traits::IS_PINNED, &names.is_pinned),
    ];
    let mut traits = Traits::empty();
    for (this, name) in attributes {
        if let Some(attribute) = getattr::optional(kind, name)? {
            traits |= this;
            if attribute.is_callable() {
                traits |= this.method();
            }
        }
    }
    traits.set(Traits::HAS_DLPACK, kind.hasattr(&names.dlpack)?);
    traits.set(Traits::OURS, kind.is(py.get_type::<PyCaiView>()));
    // Read from the type, as PyO3's own reader waits in cells (`once`); a type may give it any value.
    let module = kind.getattr(&names.module)?;
    let module = module.cast::<PyString>();
    let module = module.map_or_else(|_| "".into(), |module| module.to_string_lossy());
    let is_of_us = module.split('.').next() == Some("cai_dlpack");
    traits.set(
        Traits::ANOTHER_COPY,
        is_of_us && !traits.contains(Traits::OURS),
    );
    let producer = partners::of_module(&module).and_then(|partner| partner.producer.as_ref());
    let quirks = producer.map_or(&[][..], |producer| producer.quirks);
    traits.extend(quirks.iter().map(|quirk| Traits::of_quirk(*quirk)));
    Ok(traits)
}

/// What the import must know of an object's type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeFacts {
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
    fn read(&self, kind: *mut ffi::PyTypeObject) -> Option<TypeFacts> {
        let version = self.version.load(Ordering::Acquire);
        if self.kind.load(Ordering::Relaxed) != kind {
            return None;
        }
        let table = self.table.load(Ordering::Relaxed);
        let traits = Traits::from_bits_retain(self.traits.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        is_whole.then_some(TypeFacts {
            table: Table::from_raw(table),
            traits,
        })
    }

    /// Caches a type in the place of another one, unless another thread is writing.
    fn write(&self, kind: &Bound<'_, PyType>, facts: TypeFacts) {
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
        let table = Table::into_raw(facts.table);
        self.table.store(table, Ordering::Relaxed);
        self.traits.store(facts.traits.bits(), Ordering::Relaxed);
        let before = self
            .kind
            .swap(kind.clone().into_ptr().cast(), Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
        // SAFETY: NULL, or the strong reference that stood here; the GIL is held (`kind` is bound).
        unsafe { ffi::Py_XDECREF(before.cast()) };
    }
}

/// Reads the cache for an object's type, else looks at the type; a few instructions if it is cached.
///
/// A type is asked once: an attribute that is added to it later is not seen, and its `__dlpack__` serves.
#[inline]
pub(crate) fn facts_of(object: &Bound<'_, PyAny>) -> PyResult<TypeFacts> {
    // SAFETY: reads the type of a living object.
    let kind = unsafe { ffi::Py_TYPE(object.as_ptr()) };
    match Slot::of(kind).read(kind) {
        Some(facts) => Ok(facts),
        None => discover(object),
    }
}

#[cold]
fn discover(object: &Bound<'_, PyAny>) -> PyResult<TypeFacts> {
    let kind = object.get_type();
    let mut traits = self::traits(&kind)?;
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
    let facts = TypeFacts { table, traits };
    Slot::of(kind.as_type_ptr()).write(&kind, facts);
    Ok(facts)
}

/// The table of a type; `None` if there is no usable one or reading it raises an exception: `__dlpack__` is
/// the protocol, this is its short cut.
fn table(kind: &Bound<'_, PyType>) -> PyResult<Option<Table>> {
    match getattr::optional(kind, &names(kind.py()).exchange_api) {
        Ok(capsule) => Ok(capsule.as_ref().and_then(Table::of_capsule)),
        Err(error) if error.is_instance_of::<PyException>(kind.py()) => {
            release::drop_now(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
