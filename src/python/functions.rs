//! The functions of the Python package.

use std::mem::MaybeUninit;

use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::protocol::device::Flags;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::choice::flag;
use crate::python::call::device;
use crate::python::call::options::{Given, Options, with_options};
use crate::python::call::{blocks, stream, use_stream};
use crate::python::capsule;
use crate::python::capsule::Empty;
use crate::python::class::alloc::NewView;
use crate::python::class::beside::Beside;
use crate::python::class::scope::Scope;
use crate::python::class::view::{PyCaiView, scope_of};
use crate::python::cpython::fastcall::{Function, Value, signature};
use crate::python::cpython::new::{new_dict, new_str, new_uint};
use crate::python::cpython::recursion::Level;
use crate::python::cpython::tracing::Tracer;
use crate::python::export::cai_to_capsule::{self, FastRequest};
use crate::python::export::dlpack::{DlpackRequest, Export};
use crate::python::import::cai::{self, AllowCaiOnly};
use crate::python::import::dlpack::DlpackArguments;
use crate::python::import::known_types;
use crate::python::import::object;
use crate::python::import::route;
use crate::python::import::traits::Traits;
use crate::python::trace::trace;
use crate::view::{CaiView, Transfer};

with_options! {
    /// Returns a view of an array that speaks CAI or DLPack. Copies nothing.
    ///
    /// The route is the first that the array offers: the C Exchange API of its type, CAI if it names the producer's
    /// stream (or has version 3), `__dlpack__`, CAI.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///     Ready on the stream that the producer names. Keeps the array alive.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If an argument or a field of the interface has the wrong type or value.
    /// BufferError
    ///     If the array is valid and cannot be exported.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    ///
    /// Examples
    /// --------
    /// >>> torch.from_dlpack(cd.view(numba_array))  # doctest: +SKIP
    View = view [
        /// An array with ``__cuda_array_interface__`` or ``__dlpack__``, a DLPack capsule, or a CAI dict (with
        /// `owner`).
        obj: "ArrayLike",
    ] () -> "CaiView"
}

impl Function for View {
    const TRACER: Option<Tracer> = Some(trace);

    #[inline(always)]
    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let parsed = Options::read(Self::given(&arguments))?;
        let options = parsed.as_ref().unwrap_or(Options::NONE);
        // `object::new_view`, whose call would be 10 to 16 instructions of each import.
        let (object, py) = (arguments.obj, arguments.obj.py());
        let facts = known_types::facts_of(&object)?;
        if facts.traits.intersects(Traits::OURS) {
            if parsed.is_none() && object::is_its_own_view(&object)? {
                return Ok(object.to_owned());
            }
            let view = object::derived(&object, options)?;
            return Ok(view.into_object(py)?.into_any());
        }
        let mut new = NewView::new(py)?;
        let beside = route::foreign(new.view(), &object, facts, options, AllowCaiOnly::Yes)?;
        let beside = beside.keeping(None, options.producer_object.as_deref());
        // SAFETY: written: `foreign` has not failed.
        Ok(unsafe { new.finish(beside) }?.into_any())
    }
}

with_options! {
    /// Returns a view of an array by the CUDA Array Interface, and by nothing else.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///     Ready on the stream that the interface names.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError, BufferError, DriverError
    ///     As `view` does.
    FromCai = from_cai [
        /// An array with ``__cuda_array_interface__``, or such a dict (with `owner`).
        obj: "ArrayLike",
    ] () -> "CaiView"
}

impl Function for FromCai {
    const TRACER: Option<Tracer> = Some(trace);

    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _level = Level::begin(arguments.obj.py())?;
        let parsed = Options::read(Self::given(&arguments))?;
        let options = parsed.as_ref().unwrap_or(Options::NONE);
        let mut new = NewView::new(arguments.obj.py())?;
        let traits = known_types::facts_of(&arguments.obj)?.traits;
        let beside = cai::import(
            new.view(),
            &arguments.obj,
            traits,
            options,
            AllowCaiOnly::Yes,
        )?;
        let beside = beside.keeping(None, options.producer_object.as_deref());
        let beside = match scope_of(&arguments.obj) {
            None => beside,
            Some(scope) => beside.within(scope),
        };
        // SAFETY: written: `import` has not failed.
        Ok(unsafe { new.finish(beside) }?.into_any())
    }
}

with_options! {
    /// Returns a view of an array by `__dlpack__`, or of a capsule.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///     Ready on `stream`. Owns the managed tensor.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError, BufferError, DriverError
    ///     As `view` does. A refused capsule is not consumed.
    FromDlpack = from_dlpack [
        /// An array with ``__dlpack__`` and ``__dlpack_device__``, or a DLPack capsule. Any array if it is to be
        /// copied.
        obj: "ArrayLike",
    ] (
        /// The device for the data: "cpu", "cuda:1", a torch.device, or (type, id). None: where the array is. The
        /// producer makes the transfer; if it refuses, this package copies, and so it does with a capsule.
        device: "DeviceLike | None" = None,
        /// Passed to the producer: True must copy, False must not. This package copies what is in a capsule.
        copy: "bool | None" = None,
        /// The stream on which the data will be ready: the producer's call has it wait, and with `producer_stream` this
        /// package. None: the legacy default stream; for pinned and managed memory the host waits.
        stream: "StreamLike | None" = None,
    ) -> "CaiView"
}

impl Function for FromDlpack {
    const TRACER: Option<Tracer> = Some(trace);

    #[inline(always)]
    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _level = Level::begin(arguments.obj.py())?;
        let parsed = Options::read(Self::given(&arguments))?;
        let options = parsed.as_ref().unwrap_or(Options::NONE);
        let stream = arguments.stream;
        let wanted = stream
            .map(|value| stream::named(&value, Field::Argument("stream")))
            .transpose()?;
        let request = DlpackArguments {
            stream: options.producer.or(wanted),
            is_producers: options.producer.is_some() || wanted.is_none(),
            consumer: options.producer.and(wanted),
            copy: flag(arguments.copy, "copy")?,
            device: arguments.device.map(device::device).transpose()?,
        };
        let mut new = NewView::new(arguments.obj.py())?;
        route::by_dlpack(new.view(), &arguments.obj, &request, options)?;
        let named = options.producer_object.as_deref();
        let beside = Beside::default().keeping(stream.as_deref(), named);
        // SAFETY: written: `by_dlpack` has not failed.
        let view = unsafe { new.view().assume_init_ref() };
        let beside = match of_block(&arguments.obj, view) {
            Some(scope) => beside.within(scope),
            None => beside,
        };
        // SAFETY: written, as above.
        Ok(unsafe { new.finish(beside) }?.into_any())
    }
}

/// Returns the block of the view that another one was made of, unless that is a copy: one that has another address, as the view may
/// have been one of a copy.
#[inline(always)]
fn of_block<'a>(object: &'a Bound<'_, PyAny>, made: &CaiView) -> Option<&'a Scope> {
    let scope = scope_of(object)?;
    let own = object.cast::<PyCaiView>().ok()?.get().view().descriptor();
    let made = made.descriptor();
    let is_copy = made.flags().contains(Flags::IS_COPIED) && made.data() != own.data();
    (!is_copy).then_some(scope)
}

with_options! {
    /// Returns a DLPack capsule of an array.
    ///
    /// A capsule cannot negotiate. Pass `view(obj)` to a consumer that calls `__dlpack__` itself.
    ///
    /// Returns
    /// -------
    /// CapsuleType
    ///     Named ``dltensor_versioned``, or ``dltensor`` without `max_version`. Owns the array until it is
    ///     consumed or destroyed.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError, BufferError, DriverError
    ///     As `view` and `CaiView.__dlpack__` do.
    ToDlpack = to_dlpack [
        /// Any array that `view` takes.
        obj: "ArrayLike",
    ] (
        /// The consumer's stream, as in `CaiView.__dlpack__`. "host" blocks until the data is ready, for
        /// consumers whose stream cannot be named.
        stream: "StreamLike | Literal['host'] | None" = None,
        /// As in `CaiView.__dlpack__`.
        max_version: "tuple[int, int] | None" = None,
        /// As in `CaiView.__dlpack__`.
        dl_device: "DeviceLike | None" = None,
        /// As in `CaiView.__dlpack__`.
        copy: "bool | None" = None,
        /// Asserts that the consumer may write, though the array is read-only.
        writable: "bool" = False,
    ) -> "CapsuleType"
}

impl Function for ToDlpack {
    const TRACER: Option<Tracer> = Some(trace);

    #[inline(always)]
    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let object = arguments.obj;
        let given = Self::given(&arguments);
        let shares = arguments.dl_device.is_none()
            && arguments.copy.is_none()
            && arguments.writable.is_none();
        let facts = known_types::facts_of(&object)?;
        let mut read = None;
        // Before the options are parsed: see the figures of `cai_to_capsule`.
        if shares
            && facts.traits.intersects(Traits::PLAIN)
            && let Some(device_id) = given.sole_device_id()
            && let Some(request) = FastRequest::read(arguments.stream, arguments.max_version)
        {
            let dict = {
                let _level = Level::begin(object.py())?;
                cai::attribute(&object)?
            };
            if let Some(dict) = &dict
                && let Some(capsule) =
                    cai_to_capsule::convert(&object, dict, facts.traits, request, device_id)?
            {
                return Ok(capsule);
            }
            read = Some(dict);
        }
        let request = DlpackRequest {
            stream: arguments.stream,
            max_version: arguments.max_version,
            dl_device: arguments.dl_device,
            copy: arguments.copy,
            writable: flag(arguments.writable, "writable")?.unwrap_or(false),
            on_host: is_host(arguments.stream),
        };
        by_view(&object, read, given, &request)
    }
}

/// Makes the capsule by way of a view. `read` is `__cuda_array_interface__`, or its absence, if it has been read: an
/// attribute is read once.
#[inline(never)]
#[expect(clippy::option_option, reason = "not read, or read and perhaps absent")]
fn by_view<'py>(
    object: &Bound<'py, PyAny>,
    read: Option<Option<Bound<'py, PyAny>>>,
    given: Given<'_, 'py>,
    request: &DlpackRequest<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let _level = Level::begin(object.py())?;
    let parsed = Options::read(given)?;
    let options = parsed.as_ref().unwrap_or(Options::NONE);
    if request.writable && options.read_only == Some(true) {
        let field = Field::Argument("writable");
        let violation = Violation::new(Rule::ArgumentValue, field, "True, with read_only=True");
        return Err(violation.with_hint("pass one of them").into());
    }
    if capsule::is_capsule(object) {
        return of_capsule(object, options, request);
    }
    let Some(dict) = read else {
        let (view, may_have_moved) = route::import_unordered(object, options)?;
        let (capsule, is_copy) = export(object, view, may_have_moved, request)?;
        if let (Ok(view), false) = (object.cast::<PyCaiView>(), is_copy) {
            view.get().note(&capsule);
        }
        return Ok(capsule);
    };
    let (mut view, traits) = (MaybeUninit::uninit(), known_types::facts_of(object)?.traits);
    route::by_attributes(&mut view, object, traits, dict, options, AllowCaiOnly::No)?;
    // SAFETY: written: `by_attributes` has not failed.
    Ok(export(object, unsafe { view.assume_init() }, false, request)?.0)
}

/// Makes the capsule of a view of `object` that no Python object holds; with whether its memory is a copy.
#[inline(never)]
fn export<'py>(
    object: &Bound<'py, PyAny>,
    view: CaiView,
    may_have_moved: bool,
    request: &DlpackRequest<'_, 'py>,
) -> PyResult<(Bound<'py, PyAny>, bool)> {
    let py = object.py();
    // The code of the arguments may leave the block on whose stream the data is ready.
    let _kept = match blocks::are_open() {
        true => use_stream::object_of(py, view.ready_number())?,
        false => None,
    };
    let export = Export::decide(view.descriptor().borrowed(), request)?;
    if let Ok(view) = object.cast::<PyCaiView>() {
        // After the arguments, whose code may end the view's block.
        view.get().check_alive()?;
    }
    if may_have_moved && export.wants_order() {
        export.follow(&view)?;
    }
    let view = match export.transfer() {
        Some(transfer) => export.copy(py, transfer, &view)?,
        None => {
            export.order_followed(py, &view)?;
            view
        }
    };
    if let Ok(view) = object.cast::<PyCaiView>() {
        // So may the producer's, which has been asked where it works.
        view.get().check_alive()?;
    }
    let (descriptor, owner) = view.into_parts();
    let capsule = export.capsule(py, descriptor.borrowed(), owner)?;
    Ok((capsule, export.transfer().is_some()))
}

/// Makes a capsule of a capsule, whose tensor is taken when nothing can be refused any more: the order is made before,
/// and the new capsule. A copy reads the tensor, which nobody else may take meanwhile; if the driver refuses the copy, or
/// there is no memory for the new tensor, the old one is put back.
#[cold]
fn of_capsule<'py>(
    capsule: &Bound<'py, PyAny>,
    options: &Options<'_, '_>,
    request: &DlpackRequest<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = capsule.py();
    let offer = route::offer_of_capsule(capsule, options)?;
    let export = Export::decide(offer.tensor.descriptor.borrowed(), request)?;
    let empty = Empty::new(py)?;
    match export.transfer() {
        Some(_) => Transfer::check(&offer.tensor.descriptor)?,
        None => export.order(py, &offer.unowned())?,
    }
    let (view, taken) = route::take(offer, options)?;
    let exported = match export.transfer() {
        None => Ok(view),
        Some(transfer) => {
            let copy = export.copy(py, transfer, &view);
            drop(view);
            copy
        }
    };
    let filled = exported.and_then(|view| {
        let (descriptor, owner) = view.into_parts();
        export.fill(empty, descriptor.borrowed(), owner)
    });
    if filled.is_err() {
        taken.restore();
    }
    filled
}

fn is_host(stream: Value<'_, '_>) -> bool {
    stream.is_some_and(|stream| stream.cast::<PyString>().is_ok_and(|text| text == "host"))
}

signature! {
    /// Returns the counters of ownership.
    ///
    /// Returns
    /// -------
    /// dict
    ///     live: living owners. pending: releases that wait for the GIL. released: releases so far. leaked_at_exit:
    ///     owners leaked at the interpreter's end. panics: caught Rust panics. open_guards: open consume blocks.
    Stats = stats [] () -> "dict[str, int]"
}

impl Function for Stats {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        _: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let stats = crate::view::stats();
        let (py, dict) = (slf.py(), new_dict(slf.py())?);
        for (name, count) in [
            ("live", stats.live),
            ("pending", stats.pending),
            ("released", stats.released),
            ("leaked_at_exit", stats.leaked_at_exit),
            ("panics", stats.panics),
            ("open_guards", stats.open_guards),
        ] {
            dict.set_item(new_str(py, name)?, new_uint(py, count)?)?;
        }
        Ok(dict.into_any())
    }
}
