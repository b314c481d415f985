//! We are the consumer of somebody's table.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use dlpark::ffi::{DLDeviceType, DLManagedTensorVersioned};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::driver;
use crate::protocol::descriptor::Device;
use crate::protocol::dtype::{DType, code};
use crate::protocol::interface::Descr;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::call::policy;
use crate::python::class::alloc::Room;
use crate::python::class::view::PyCaiView;
use crate::python::cpython::int::type_name;
use crate::python::cpython::names::keys;
use crate::python::cpython::release;
use crate::python::import::exchange_table::Table;
use crate::python::import::traits::{Traits, warn_unknown};
use crate::view::{CaiView, Streams, Uninit};

/// A view as it was imported, and what few have: where to ask again for the producer's stream, for one
/// that came through a table; the fields of a struct.
pub(crate) struct Imported {
    pub(crate) view: CaiView,
    pub(crate) table: Option<Table>,
    pub(crate) fields: Option<Box<Descr>>,
}

impl Imported {
    /// A view with nothing beside it.
    #[inline(always)]
    pub(crate) fn plain(view: CaiView) -> Self {
        Self {
            view,
            table: None,
            fields: None,
        }
    }
}

/// Imports through the table of the object's type. `None` where `__dlpack__` must be asked instead:
/// because it would refuse, or because the table failed without saying why.
///
/// With `producer` the caller knows better where the producer works.
///
/// # Errors
/// The producer's own, and what its tensor breaks.
pub(crate) fn import(
    object: &Bound<'_, PyAny>,
    table: Table,
    traits: Traits,
    producer: Option<Stream>,
) -> PyResult<Option<Imported>> {
    let mut place = MaybeUninit::uninit();
    let Some(found) = import_to(&mut place, object, table, traits, producer)? else {
        return Ok(None);
    };
    Ok(Some(Imported {
        // SAFETY: `import_to` has written it.
        view: unsafe { place.assume_init() },
        table: found.table,
        fields: None,
    }))
}

/// [`import`] to an object, in whose room the view is written.
///
/// # Errors
/// As [`import`].
#[inline(always)]
pub(crate) fn import_object<'py>(
    room: Room<'py>,
    object: &Bound<'py, PyAny>,
    table: Table,
    traits: Traits,
) -> PyResult<Option<Bound<'py, PyCaiView>>> {
    // SAFETY: room for a value.
    let place = unsafe { PyCaiView::view_at(room.value()) };
    // SAFETY: aligned room for a view, ours as long as `room`, and without demands on what stands there.
    let place = unsafe { &mut *place.cast::<MaybeUninit<CaiView>>() };
    let Some(found) = import_to(place, object, table, traits, None)? else {
        return Ok(None);
    };
    // SAFETY: room for a value.
    unsafe { PyCaiView::complete_at(room.value(), found.table) };
    // SAFETY: all of it has been written. The owner, a managed tensor, is no Python object: it is in no cycle.
    Ok(Some(unsafe { room.filled(false) }))
}

/// What came with a view that was written.
pub(crate) struct Found {
    /// Where to ask again which stream the producer works on.
    table: Option<Table>,
}

/// [`import`] to the place where the view is to stand: it is written there, or nothing is.
///
/// The tensor is ready on the producer's work stream, which is also where it goes on working.
///
/// # Errors
/// As [`import`].
#[inline(always)]
pub(crate) fn import_to(
    place: &mut MaybeUninit<CaiView>,
    object: &Bound<'_, PyAny>,
    table: Table,
    traits: Traits,
    producer: Option<Stream>,
) -> PyResult<Option<Found>> {
    if is_no_array(object, traits)? {
        return Ok(None);
    }
    release::prepare(object.py())?;
    let Some(tensor) = table.tensor(object)? else {
        return Ok(None);
    };
    // SAFETY: DLPack 1.3: the call gives an initialised tensor whose ownership is the caller's.
    let imported = unsafe { release::own_tensor(tensor) };
    let view = Uninit::new(place).import(imported)?;
    let described = view.descriptor();
    let device = described.device();
    if traits.intersects(Traits::STATE) && is_refused(object, traits, described.dtype())? {
        return Ok(None);
    }
    if device.device_type == Device::CPU && is_pinned(object, traits)? {
        // The table calls pinned memory the CPU's; `__dlpack_device__` knows better (torch).
        return Ok(None);
    }
    let mut found = Found { table: None };
    let streams = if let Some(producer) = producer {
        Streams::here(producer, Some(producer))
    } else if has_no_streams(device) {
        Streams::here(Stream::None, Some(Stream::None))
    } else {
        let Some(handle) = WorkStream::new(table, device).ask_handle()? else {
            return Ok(None);
        };
        let says_nothing = traits.intersects(Traits::IGNORES_STREAM)
            && Stream::from_raw(handle) == Stream::LegacyDefault;
        if says_nothing {
            warn_unknown(object)?;
            Streams::here(Stream::LegacyDefault, None)
        } else {
            found.table = Some(table);
            Streams::of_handle(handle)
        }
    };
    // SAFETY: the owner is the managed tensor, whose data is valid until its deleter runs (DLPack); its producer
    // keeps the stream that it works on.
    unsafe { view.finish(streams) };
    Ok(Some(found))
}

/// Whether there is nothing to ask about streams.
#[inline(always)]
fn has_no_streams(device: Device) -> bool {
    matches!(
        Platform::from_device_type(device.device_type),
        None | Some(Platform::Host)
    )
}

/// Whether the object's own `__dlpack__` would refuse these elements: the table's functions do not look
/// (torch, paddle).
///
/// # Errors
/// `values-lazy` for what even `__dlpack__` hands out as if it were plain.
pub(super) fn is_refused(
    object: &Bound<'_, PyAny>,
    traits: Traits,
    dtype: DType,
) -> PyResult<bool> {
    if is_true(object, traits, Traits::IS_NEG)? {
        return Err(lazily_negated(object));
    }
    // Integers have no gradients, and only complex numbers a conjugate.
    let may_have_gradient = !matches!(dtype.code(), code::INT | code::UINT | code::BOOL);
    let may_be_conjugate = dtype.code() == code::COMPLEX;
    Ok(
        (may_have_gradient && is_true(object, traits, Traits::REQUIRES_GRAD)?)
            || (may_be_conjugate && is_true(object, traits, Traits::IS_CONJ)?),
    )
}

/// Whether the table's functions must not be called: they take every tensor for one with strides.
#[inline(always)]
pub(super) fn is_no_array(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    is_true(object, traits, Traits::IS_SPARSE)
}

/// Whether an array that its table calls the CPU's is pinned.
#[inline(always)]
pub(super) fn is_pinned(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    is_true(object, traits, Traits::IS_PINNED)
}

#[cold]
fn lazily_negated(object: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(object);
    let found = format_args!("an object of type {name} whose is_neg() is true");
    Violation::new(Rule::ValuesLazy, Field::Object, found)
        .with_hint("materialise it first, with resolve_neg()")
        .into()
}

/// One of the attributes that [`Traits`] knows: a property, or a method without arguments.
#[inline(always)]
fn is_true(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    Ok(traits.intersects(state) && ask(object, traits, state)?)
}

#[inline(never)]
fn ask(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    let py = object.py();
    let names = keys(py);
    let name = match state {
        Traits::REQUIRES_GRAD => &names.requires_grad,
        Traits::IS_CONJ => &names.is_conj,
        Traits::IS_NEG => &names.is_neg,
        Traits::IS_SPARSE => &names.is_sparse,
        _ => &names.is_pinned,
    };
    let value = if traits.intersects(state.method()) {
        let argument = object.as_ptr();
        // SAFETY: an interned name and one argument, the object; a new reference, or NULL with an exception
        // set. No method object is made.
        let answer = unsafe {
            ffi::PyObject_VectorcallMethod(name.as_ptr(), &raw const argument, 1, ptr::null_mut())
        };
        // SAFETY: a new reference that is ours, or NULL with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, answer) }?
    } else {
        object.getattr(name)?
    };
    value.is_truthy()
}

impl Table {
    /// An owning tensor; `None` where the function failed without an exception.
    ///
    /// # Errors
    /// The producer's own exception.
    #[inline(always)]
    pub(super) fn tensor(
        &self,
        object: &Bound<'_, PyAny>,
    ) -> PyResult<Option<NonNull<DLManagedTensorVersioned>>> {
        let Some(export) = self.api().managed_tensor_from_py_object_no_sync else {
            return Ok(None);
        };
        let mut tensor = ptr::null_mut();
        // SAFETY: the GIL is held, `object` is of the type that the table was found on, and `tensor` is
        // a place for the answer.
        let code = unsafe { export(object.as_ptr().cast(), &raw mut tensor) };
        if code == 0 {
            return Ok(NonNull::new(tensor));
        }
        failed(object.py()).map(|()| None)
    }

    /// What the tensor is ready on, and where to ask again; `None` where the work stream cannot be had.
    #[inline]
    pub(super) fn ready(
        self,
        device: Device,
        traits: Traits,
        producer: Option<Stream>,
    ) -> PyResult<Option<(Stream, Option<WorkStream>)>> {
        if let Some(producer) = producer {
            return Ok(Some((producer, None)));
        }
        if matches!(
            Platform::from_device_type(device.device_type),
            None | Some(Platform::Host)
        ) {
            return Ok(Some((Stream::None, None)));
        }
        let work = WorkStream {
            table: self,
            device,
        };
        let Some(ready) = work.ask()? else {
            return Ok(None);
        };
        let is_unknown =
            traits.intersects(Traits::IGNORES_STREAM) && ready == Stream::LegacyDefault;
        Ok(Some((ready, (!is_unknown).then_some(work))))
    }
}

/// The exception that a function of a table has set, or nothing.
#[cold]
pub(super) fn failed(py: Python<'_>) -> PyResult<()> {
    PyErr::take(py).map_or(Ok(()), Err)
}

/// Where a producer says which stream it works on now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkStream {
    table: Table,
    device: Device,
}

impl WorkStream {
    #[inline(always)]
    pub(crate) fn new(table: Table, device: Device) -> Self {
        Self { table, device }
    }

    /// The stream; `None` where the function failed without an exception.
    #[inline]
    fn ask(&self) -> PyResult<Option<Stream>> {
        Ok(self.ask_handle()?.map(Stream::from_raw))
    }

    /// Its handle.
    #[inline(always)]
    fn ask_handle(&self) -> PyResult<Option<u64>> {
        let Some(ask) = self.table.api().current_work_stream else {
            return Ok(None);
        };
        let mut stream = ptr::null_mut::<c_void>();
        let device_type = DLDeviceType(self.device.device_type.cast_unsigned());
        // SAFETY: the GIL is held, and `stream` is a place for the answer.
        let code = unsafe { ask(device_type, self.device.id, &raw mut stream) };
        if code == 0 {
            return Ok(Some(stream.addr() as u64));
        }
        Python::attach(failed).map(|()| None)
    }

    /// Where the producer has moved to another stream since the import, the view's ready stream waits
    /// for what that one holds: the next consumer then finds both.
    ///
    /// # Errors
    /// The producer's exception, or why no order can be made.
    #[inline]
    pub(crate) fn follow(&self, py: Python<'_>, view: &CaiView) -> PyResult<()> {
        match self.moved(view)? {
            Some(now) => self.wait_for(py, now, view),
            None => Ok(()),
        }
    }

    /// The stream that the producer has moved to since the import.
    ///
    /// # Errors
    /// The producer's exception.
    #[inline]
    pub(crate) fn moved(&self, view: &CaiView) -> PyResult<Option<Stream>> {
        Ok(self.ask()?.filter(|now| *now != view.ready()))
    }

    #[cold]
    fn wait_for(&self, py: Python<'_>, now: Stream, view: &CaiView) -> PyResult<()> {
        let (request, policy) = (Request::Stream(view.ready()), policy::policy());
        let place = driver::Place {
            thread: None,
            ..view.place()
        };
        if driver::needed(now, request, &place, policy) {
            py.detach(|| driver::order(driver::driver()?, now, request, &place, policy))?;
        }
        Ok(())
    }
}
