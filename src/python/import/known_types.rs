//! Caches, by type, how an object is imported: its exchange table, and its traits.
//!
//! Both are attributes of the *type*, and a type is examined once ([`facts_of`]). A table that breaks DLPack's header
//! (an int, another name or major version, a missing function) counts as none: the object's `__dlpack__` is called
//! instead. The cache keeps no class alive.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

use dlpark::ffi::DLPackExchangeAPI;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

use crate::partners;
use crate::python::capsule::is_capsule;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors;
use crate::python::cpython::names::names;
use crate::python::cpython::new::new_uint;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::{getattr, release};
use crate::python::exchange_table::Table;
use crate::python::import::numba;
use crate::python::import::traits::Traits;

/// Reads the traits of a type, which may run Python code.
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
    traits.set(Traits::HAS_DLPACK, getattr::has(kind, &names.dlpack)?);
    traits.set(Traits::OURS, kind.is(py.get_type::<PyCaiView>()));
    traits.set(Traits::NDARRAY, inherits(kind, "numpy", "ndarray")?);
    traits.set(Traits::MASKED, inherits(kind, "numpy.ma", "MaskedArray")?);
    let is_a_copys = getattr::has(kind, &names.is_cai_view)?;
    traits.set(
        Traits::ANOTHER_COPY,
        is_a_copys && !traits.contains(Traits::OURS),
    );
    traits |= inherited(kind)?;
    let is_array = traits.intersects(Traits::HAS_DLPACK) || kind.hasattr(&names.cai)?;
    let may_hold_arrays = !is_array && !traits.intersects(Traits::LISTED);
    traits.set(
        Traits::CONTAINER,
        may_hold_arrays && kind.hasattr(&names.iter)?,
    );
    Ok(traits)
}

/// Returns the traits of the libraries whose types a type is, or inherits from: the quirks and the silence of each, and
/// the mutability of the nearest. A subclass of a library's array works on the library's streams, and a mix-in of another
/// library changes nothing about that.
fn inherited(kind: &Bound<'_, PyType>) -> PyResult<Traits> {
    let mut traits = Traits::empty();
    let mut untold = None;
    for base in kind.mro() {
        let partner = partners::of_module(&module_of(&base)?);
        if let Some(producer) = partner.and_then(|partner| partner.producer.as_ref()) {
            traits.extend(producer.quirks.iter().copied().map(Traits::of_quirk));
            traits |= Traits::LISTED | Traits::of_silence(producer.silence);
            untold = untold.or(producer.untold);
        }
    }
    Ok(traits | Traits::of_mutability(untold))
}

/// Reads the module of a class: as an attribute, as PyO3's own reader waits in cells (`cpython`). Its value may be of any
/// type.
fn module_of(class: &Bound<'_, PyAny>) -> PyResult<String> {
    let module = class.getattr(&names(class.py()).module)?;
    let module = module.cast::<PyString>();
    Ok(module.map_or_else(
        |_| String::new(),
        |module| module.to_string_lossy().into_owned(),
    ))
}

/// Whether a type is a class of a package, or a subclass of it. The package is not imported for it.
fn inherits(kind: &Bound<'_, PyType>, package: &str, class: &str) -> PyResult<bool> {
    let names = names(kind.py());
    for base in kind.mro() {
        if base.getattr(&names.dunder_name)?.str()? == class {
            let module = base.getattr(&names.module)?.str()?;
            let module = module.to_string_lossy();
            let rest = module.strip_prefix(package);
            if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The facts about a type that decide how its objects are imported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeFacts {
    pub(crate) table: Option<Table>,
    pub(crate) traits: Traits,
}

impl TypeFacts {
    /// For an import whose caller makes the wait for a producer that has moved.
    #[inline(always)]
    pub(crate) fn unordered(self) -> Self {
        Self {
            traits: self.traits | Traits::UNORDERED,
            ..self
        }
    }
}

/// One cached type, read on every import and rarely written. `version` is odd while the slot is written; a reader that
/// sees it change discards what it has read.
struct Slot {
    version: AtomicU32,
    traits: AtomicU32,
    /// The address of the type, which is alive; NULL once it is not ([`class_ended`]).
    kind: AtomicPtr<ffi::PyTypeObject>,
    /// A strong reference to the weak reference that calls [`class_ended`]; NULL for a static type, which lives for ever.
    watch: AtomicPtr<ffi::PyObject>,
    /// The version of the type, without the GIL ([`is_same`](Self::is_same)); 0 for a static type.
    tag: AtomicU32,
    table: AtomicPtr<DLPackExchangeAPI>,
}

const SLOTS: usize = 64;

static CACHE: [Slot; SLOTS] = [const {
    Slot {
        version: AtomicU32::new(0),
        traits: AtomicU32::new(0),
        kind: AtomicPtr::new(ptr::null_mut()),
        watch: AtomicPtr::new(ptr::null_mut()),
        tag: AtomicU32::new(0),
        table: AtomicPtr::new(ptr::null_mut()),
    }
}; SLOTS];

/// The number of slots that a type can be in: a power of two. One of them is looked at first.
const WAYS: usize = 8;

/// Returns the index of the slot that is looked at first.
#[inline]
fn first_slot(kind: *mut ffi::PyTypeObject) -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = (kind.addr() as u64).wrapping_mul(GOLDEN);
    (hash >> (u64::BITS - SLOTS.ilog2())) as usize
}

impl Slot {
    /// Returns the slot of a type that is looked at first.
    #[inline]
    fn of(kind: *mut ffi::PyTypeObject) -> &'static Self {
        &CACHE[first_slot(kind)]
    }

    /// Returns every slot that a type can be in, the first one first.
    fn all_of(kind: *mut ffi::PyTypeObject) -> impl Iterator<Item = &'static Self> {
        (0..WAYS).map(move |way| &CACHE[first_slot(kind) ^ way])
    }

    /// Returns the slot that a type is written to: one that is free, else one of them in turn, whose type is displaced.
    /// Types that are in use together soon stand side by side, unless more than [`WAYS`] of them share their slots.
    fn to_fill(kind: *mut ffi::PyTypeObject) -> &'static Self {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let is_free = |slot: &&Self| slot.kind.load(Ordering::Relaxed).is_null();
        Self::all_of(kind).find(is_free).unwrap_or_else(|| {
            let turn = TURN.fetch_add(1, Ordering::Relaxed);
            &CACHE[first_slot(kind) ^ (turn % WAYS)]
        })
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
        let is_whole = version & 1 == 0
            && self.version.load(Ordering::Relaxed) == version
            && self.is_same(kind);
        is_whole.then_some(TypeFacts {
            table: Table::from_raw(table),
            traits,
        })
    }

    /// Whether the type at this address is the one that the slot is of, and not another one that has got its address.
    ///
    /// [`class_ended`] does not tell of every end: if a finaliser brings the class back while it is collected, CPython
    /// clears the new weak reference without its callback (3.14 and later, `gc_collect_region`).
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline(always)]
    fn is_same(&self, kind: *mut ffi::PyTypeObject) -> bool {
        let watch = self.watch.load(Ordering::Relaxed);
        // SAFETY: a strong reference of this slot, which is given up with the GIL.
        watch.is_null() || unsafe { referent(watch) } == kind.cast()
    }

    /// Compares the version of the type instead, which no other state of any type has: without the GIL another thread may give
    /// up the weak reference meanwhile. A type that is changed is examined again.
    #[cfg(Py_GIL_DISABLED)]
    #[inline(always)]
    fn is_same(&self, kind: *mut ffi::PyTypeObject) -> bool {
        let tag = self.tag.load(Ordering::Relaxed);
        // SAFETY: the type of a living object.
        tag == 0 || tag == unsafe { tag_of(kind) }
    }

    /// Caches a type, displacing another one, unless another thread is writing.
    fn write(&self, kind: &Bound<'_, PyType>, facts: TypeFacts) {
        let watch = match watch(kind) {
            Ok(watch) => watch,
            Err(error) => return release::drop_now(error),
        };
        let Some(tag) = tag(kind, watch.is_some()) else {
            return;
        };
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
        self.tag.store(tag, Ordering::Relaxed);
        self.kind.store(kind.as_type_ptr(), Ordering::Relaxed);
        let watch = watch.map_or(ptr::null_mut(), Bound::into_ptr);
        let before = self.watch.swap(watch, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
        // SAFETY: NULL, or the strong reference of this slot, which `swap` has taken; the GIL is held (`kind`).
        unsafe { ffi::Py_XDECREF(before) };
    }
}

/// Returns the object that a weak reference refers to, borrowed; another one, or NULL, if it has been cleared.
///
/// # Safety
/// `watch` is a living weak reference; the GIL is held.
#[cfg(not(any(Py_GIL_DISABLED, Py_LIMITED_API)))]
#[inline(always)]
unsafe fn referent(watch: *mut ffi::PyObject) -> *mut ffi::PyObject {
    /// The head of CPython's `PyWeakReference`, in every version (`cpython/weakrefobject.h`).
    #[repr(C)]
    struct WeakReference {
        head: ffi::PyObject,
        object: *mut ffi::PyObject,
    }
    // SAFETY: a weak reference is laid out so (this function's contract), and is written with the GIL alone.
    unsafe { (*watch.cast::<WeakReference>()).object }
}

#[cfg(all(Py_LIMITED_API, not(Py_GIL_DISABLED)))]
#[allow(
    deprecated,
    reason = "its successor returns a new reference, and exists from 3.13 on"
)]
unsafe fn referent(watch: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a living weak reference, with the GIL (this function's contract).
    unsafe { ffi::PyWeakref_GetObject(watch) }
}

/// Returns the version by which a type is known again; 0 where none is needed, `None` if it can have none.
fn tag(kind: &Bound<'_, PyType>, is_on_heap: bool) -> Option<u32> {
    #[cfg(not(Py_GIL_DISABLED))]
    let found = {
        let _ = (kind, is_on_heap);
        Some(0)
    };
    #[cfg(Py_GIL_DISABLED)]
    let found = {
        unsafe extern "C" {
            fn PyUnstable_Type_AssignVersionTag(kind: *mut ffi::PyTypeObject) -> std::ffi::c_int;
        }
        let assigned = || {
            let kind = kind.as_type_ptr();
            // SAFETY: a living type, on an attached thread (`kind`).
            if unsafe { PyUnstable_Type_AssignVersionTag(kind) } == 0 {
                return None;
            }
            // SAFETY: a living type (`kind`).
            let tag = unsafe { tag_of(kind) };
            // A change of the type in between has taken it away.
            (tag != 0).then_some(tag)
        };
        if is_on_heap { assigned() } else { Some(0) }
    };
    found
}

/// Reads the version of a type, which another thread may write.
///
/// # Safety
/// A living type.
#[cfg(Py_GIL_DISABLED)]
#[inline(always)]
unsafe fn tag_of(kind: *mut ffi::PyTypeObject) -> u32 {
    // SAFETY: a living type (this function's contract); nothing is read yet.
    let tag = unsafe { &raw mut (*kind).tp_version_tag };
    // SAFETY: aligned, and CPython writes it by atomic stores without the GIL.
    let tag = unsafe { AtomicU32::from_ptr(tag.cast()) };
    tag.load(Ordering::Relaxed)
}

/// Makes a weak reference to a class that calls [`class_ended`] with its address; `None` for a static type.
fn watch<'py>(kind: &Bound<'py, PyType>) -> PyResult<Option<Bound<'py, PyAny>>> {
    static CLASS_ENDED: Definition = Definition(ffi::PyMethodDef {
        ml_name: c"class_ended".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunction: class_ended,
        },
        ml_flags: ffi::METH_O,
        ml_doc: ptr::null(),
    });
    // SAFETY: a living type.
    if unsafe { ffi::PyType_GetFlags(kind.as_type_ptr()) } & ffi::Py_TPFLAGS_HEAPTYPE == 0 {
        return Ok(None);
    }
    let address = new_uint(kind.py(), kind.as_type_ptr().addr() as u64)?;
    let definition = (&raw const CLASS_ENDED.0).cast_mut();
    // SAFETY: the definition is static and never written, and its function has the signature of its flags.
    let callback = unsafe { ffi::PyCFunction_NewEx(definition, address.as_ptr(), ptr::null_mut()) };
    // SAFETY: a new reference, or NULL with an exception set.
    let callback = unsafe { Bound::from_owned_ptr_or_err(kind.py(), callback) }?;
    // SAFETY: two living objects; a class can be referred to weakly.
    let watch = unsafe { ffi::PyWeakref_NewRef(kind.as_ptr(), callback.as_ptr()) };
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(kind.py(), watch) }.map(Some)
}

struct Definition(ffi::PyMethodDef);

// SAFETY: never written; its pointers are to statics.
unsafe impl Sync for Definition {}

/// Takes the type of an address out of the cache, before another type can get this address: CPython calls a class's weak
/// references before it frees the class. Waits for no writer: a slot whose type is replaced meanwhile is left alone.
unsafe extern "C" fn class_ended(
    address: *mut ffi::PyObject,
    _watch: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the function object of `watch` holds an int that is an address.
    let address = unsafe { ffi::PyLong_AsVoidPtr(address) }.cast();
    let (gone, order) = (ptr::null_mut(), Ordering::Relaxed);
    for slot in Slot::all_of(address) {
        let _ = slot.kind.compare_exchange(address, gone, order, order);
    }
    // SAFETY: returns the address of a static.
    let none = unsafe { ffi::Py_None() };
    // SAFETY: a living object; the GIL is held, as CPython calls this.
    unsafe { ffi::Py_INCREF(none) };
    none
}

/// Returns the facts about an object's type, from the cache or else from the type. An attribute that is added to a
/// type after its first import is not seen.
#[inline(always)]
pub(crate) fn facts_of(object: &Bound<'_, PyAny>) -> PyResult<TypeFacts> {
    // SAFETY: a living object.
    let kind = unsafe { ffi::Py_TYPE(object.as_ptr()) };
    match Slot::of(kind).read(kind) {
        Some(facts) => Ok(facts),
        None => facts_elsewhere(object, kind),
    }
}

/// Like [`facts_of`], for a type that is not in the slot that is looked at first.
#[cold]
fn facts_elsewhere(object: &Bound<'_, PyAny>, kind: *mut ffi::PyTypeObject) -> PyResult<TypeFacts> {
    match Slot::all_of(kind).find_map(|slot| slot.read(kind)) {
        Some(facts) => Ok(facts),
        None => discover(object),
    }
}

#[cold]
fn discover(object: &Bound<'_, PyAny>) -> PyResult<TypeFacts> {
    let _level = Level::begin(object.py())?;
    let kind = object.get_type();
    let mut traits = self::traits(&kind)?;
    let table = if traits.intersects(Traits::ANOTHER_COPY) {
        None
    } else {
        table(&kind)?
    };
    if !traits.intersects(Traits::HAS_DLPACK) && numba::is_array(&kind)? {
        traits |= Traits::NUMBA;
    }
    let has_own_route = traits.intersects(Traits::OURS | Traits::MASKED)
        || is_capsule(object)
        || object.is_instance_of::<PyDict>();
    let has_more =
        has_own_route || traits.intersects(Traits::LAZY | Traits::NUMBA | Traits::ANOTHER_COPY);
    if table.is_none() && !has_more {
        traits |= Traits::PLAIN;
    }
    let facts = TypeFacts { table, traits };
    Slot::to_fill(kind.as_type_ptr()).write(&kind, facts);
    Ok(facts)
}

/// Reads the table of a type; `None` if there is no usable one or reading it raises an `Exception` that is no lack of
/// memory: the object is then imported by `__dlpack__`.
pub(crate) fn table(kind: &Bound<'_, PyType>) -> PyResult<Option<Table>> {
    match getattr::optional(kind, &names(kind.py()).exchange_api) {
        Ok(capsule) => Ok(capsule.as_ref().and_then(Table::of_capsule)),
        // A lack of memory would be remembered as a type without a table.
        Err(error) if errors::is_of_the_process(kind.py(), &error) => Err(error),
        Err(error) => {
            release::drop_now(error);
            Ok(None)
        }
    }
}
