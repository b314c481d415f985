//! We are the consumer of somebody's table.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use dlpark::ffi::{DLDeviceType, DLManagedTensorVersioned};
use pyo3::prelude::*;

use super::{Table, Traits};
use crate::driver;
use crate::protocol::descriptor::Device;
use crate::protocol::interface::Descr;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Stream};
use crate::python::context;
use crate::python::integer::type_name;
use crate::python::keys::keys;
use crate::python::release;
use crate::view::CaiView;

/// A view as it was imported, and what few have: where to ask again for the producer's stream, for one
/// that came through a table; the fields of a struct.
pub(crate) struct Exchanged {
    pub(crate) view: CaiView,
    pub(crate) work: Option<WorkStream>,
    pub(crate) fields: Option<Box<Descr>>,
}

impl Exchanged {
    /// A view with nothing beside it.
    #[inline(always)]
    pub(crate) fn plain(view: CaiView) -> Self {
        Self {
            view,
            work: None,
            fields: None,
        }
    }
}

/// Imports through the table of the object's type. `None` where `__dlpack__` must be asked instead:
/// because it would refuse, or because the table failed without saying why.
///
/// The tensor is ready on the producer's work stream, which is also where it goes on working; with
/// `producer` the caller knows better.
#[inline(never)]
pub(crate) fn import(
    object: &Bound<'_, PyAny>,
    table: Table,
    traits: Traits,
    producer: Option<Stream>,
) -> PyResult<Option<Exchanged>> {
    if traits.any_of(Traits::STATE) && is_refused(object, traits)? {
        return Ok(None);
    }
    release::prepare(object.py())?;
    let Some(tensor) = table.tensor(object)? else {
        return Ok(None);
    };
    // SAFETY: DLPack 1.3: the call gives an initialised tensor whose ownership is the caller's.
    let imported = unsafe { release::own_tensor(tensor) };
    let descriptor = imported.descriptor()?;
    let device = descriptor.device();
    if device.device_type == Device::CPU && is_pinned(object, traits)? {
        // The table calls pinned memory the CPU's; `__dlpack_device__` knows better (torch).
        return Ok(None);
    }
    let Some((ready, work)) = table.ready(device, traits, producer)? else {
        return Ok(None);
    };
    let is_unknown = work.is_none() && producer.is_none() && ready != Stream::None;
    if is_unknown {
        super::warn_unknown(object)?;
    }
    // SAFETY: the owner is the managed tensor, whose data is valid until its deleter runs (DLPack).
    let view = unsafe { CaiView::new(descriptor, ready, imported.into_owner()) };
    Ok(Some(Exchanged {
        view: if is_unknown {
            view
        } else {
            view.with_producer(ready)
        },
        work,
        fields: None,
    }))
}

/// Whether the object's own `__dlpack__` would refuse: the table's functions do not look (torch, paddle).
///
/// # Errors
/// `values-lazy` for what even `__dlpack__` hands out as if it were plain.
pub(super) fn is_refused(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    if is_true(object, traits, Traits::IS_NEG)? {
        return Err(lazily_negated(object));
    }
    for state in [Traits::REQUIRES_GRAD, Traits::IS_CONJ, Traits::IS_SPARSE] {
        if is_true(object, traits, state)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an array that its table calls the CPU's is pinned.
#[inline]
pub(super) fn is_pinned(object: &Bound<'_, PyAny>, traits: Traits) -> PyResult<bool> {
    is_true(object, traits, Traits::IS_PINNED)
}

#[cold]
fn lazily_negated(object: &Bound<'_, PyAny>) -> PyErr {
    let found = format_args!(
        "an object of type {} whose is_neg() is true",
        type_name(object)
    );
    Violation::new(Rule::ValuesLazy, Field::Object, found)
        .with_hint("materialise it first, with resolve_neg()")
        .into()
}

/// One of the attributes that [`Traits`] knows: a property, or a method without arguments.
#[inline]
fn is_true(object: &Bound<'_, PyAny>, traits: Traits, state: Traits) -> PyResult<bool> {
    if !traits.any_of(state) {
        return Ok(false);
    }
    let names = keys(object.py());
    let name = match state {
        Traits::REQUIRES_GRAD => &names.requires_grad,
        Traits::IS_CONJ => &names.is_conj,
        Traits::IS_NEG => &names.is_neg,
        Traits::IS_SPARSE => &names.is_sparse,
        _ => &names.is_pinned,
    };
    let value = object.getattr(name)?;
    if value.is_callable() {
        value.call0()?.is_truthy()
    } else {
        value.is_truthy()
    }
}

impl Table {
    /// An owning tensor; `None` where the function failed without an exception.
    ///
    /// # Errors
    /// The producer's own exception.
    #[inline]
    fn tensor(
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
        let is_unknown = traits.any_of(Traits::IGNORES_STREAM) && ready == Stream::LegacyDefault;
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
    /// The stream; `None` where the function failed without an exception.
    #[inline]
    fn ask(&self) -> PyResult<Option<Stream>> {
        let Some(ask) = self.table.api().current_work_stream else {
            return Ok(None);
        };
        let mut stream = ptr::null_mut::<c_void>();
        let device_type = DLDeviceType(self.device.device_type.cast_unsigned());
        // SAFETY: the GIL is held, and `stream` is a place for the answer.
        let code = unsafe { ask(device_type, self.device.id, &raw mut stream) };
        if code == 0 {
            return Ok(Some(Stream::from_raw(stream.addr() as u64)));
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
        let (request, policy) = (Request::Stream(view.ready()), context::policy());
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
