//! `to`: hands an array to a library by the best way that the table of partners names.
//!
//! | the library | way |
//! |---|---|
//! | has a class with an exchange table | a tensor goes through the table: no view, no capsule |
//! | any other | the call of its row in the table of partners, with a view |

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr;

use once_cell::race::OnceBox;
use pyo3::Borrowed;
use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyString, PyType};

use crate::partners;
use crate::partners::{Call, PARTNERS, Partner};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Flags;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Platform, Request, Stream, SyncPolicy};
use crate::python::call::options::{Options, with_options};
use crate::python::call::{library, policy, stream, use_stream};
use crate::python::class::view::{PyCaiView, kept_by_parent};
use crate::python::cpython::fastcall::{Function, Value};
use crate::python::cpython::names::names;
use crate::python::cpython::new::{new_int, new_uint};
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::exchange_table::{Table, work_stream};
use crate::python::import::cai::AllowCaiOnly;
use crate::python::import::traits::Traits;
use crate::python::import::{known_types, route, undeclared};
use crate::view::{CaiView, build_in_capsule, refuse_padded};

with_options! {
    /// Returns a library's own array of the same memory, made by the best way that the library has.
    ///
    /// The data is ready where the library works: on its current stream, if its exchange table names one, else as the
    /// library's own call requests it. Copies nothing, unless the library's call does.
    ///
    /// Returns
    /// -------
    /// Any
    ///     What the library's call returns: a `torch.Tensor`, a `jax.Array`. Keeps the array alive.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If an argument or a field of the interface has the wrong type or value, or the library is not known.
    /// BufferError
    ///     If the array is valid and cannot be exported.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    /// ImportError
    ///     If the library is not installed.
    /// Exception
    ///     What the library raises if it refuses the array; `explain` tells before.
    ///
    /// Examples
    /// --------
    /// >>> cd.to(numba_array, torch)  # doctest: +SKIP
    To = to [
        /// Any array that `view` takes.
        obj: "object",
        /// The library: its name ("torch"), its module (``torch``), or its class of arrays (``torch.Tensor``).
        library: "str | ModuleType | type",
    ] (
        /// The stream that the library will work on, as in `CaiView.__dlpack__`. None: the library's own.
        stream: "_StreamLike | None" = None,
    ) -> "Any"
}

impl Function for To {
    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let object = arguments.obj;
        let _level = Level::begin(object.py())?;
        let parsed = Options::read(Self::given(&arguments))?;
        let options = parsed.as_ref().unwrap_or(Options::NONE);
        let consumer = Consumer::of(&arguments.library)?;
        let view = import(&object, options)?;
        if let Some(table) = consumer.table
            && consumer.takes_tensor(view.view().descriptor())
        {
            return by_table(object.py(), view, table, arguments.stream);
        }
        consumer.call(&view.into_object(object.py())?, arguments.stream)
    }
}

/// A library, and its ways to import an array.
struct Consumer<'py> {
    /// `None` if the table of partners does not have the library.
    partner: Option<&'static Partner>,
    /// The exchange table of its arrays, which imports tensors.
    table: Option<Table>,
    py: Python<'py>,
}

impl<'py> Consumer<'py> {
    /// Finds the library that the caller has named.
    ///
    /// # Errors
    /// `argument-type`, `argument-value`; what importing the library raises.
    fn of(library: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = library.py();
        if let Ok(class) = library.cast::<PyType>() {
            return Self::of_class(class);
        }
        let partner = match Known::get(library)? {
            Some(partner) => partner,
            None => {
                let partner = if let Ok(module) = library.cast::<PyModule>() {
                    partners::of_module(&module.name()?.to_string_lossy())
                        .ok_or_else(|| library::unknown(library, "library"))?
                } else {
                    library::named(library, "library", "a library: its name, module or class")?
                };
                Known::put(library, partner)?;
                partner
            }
        };
        Ok(Self {
            partner: Some(partner),
            table: Imported::of(py, partner)?.table,
            py,
        })
    }

    fn of_class(class: &Bound<'py, PyType>) -> PyResult<Self> {
        let module = class.getattr(&names(class.py()).module)?;
        let module = module
            .cast::<PyString>()
            .ok()
            .map(|name| name.to_string_lossy());
        let partner = module.as_deref().and_then(partners::of_module);
        let table = known_types::table(class)?.filter(Table::can_import);
        if partner.is_none() && table.is_none() {
            return Err(library::unknown(class, "library").into());
        }
        Ok(Self {
            partner,
            table,
            py: class.py(),
        })
    }

    /// Whether an array goes through the table: what the library refuses, its call refuses by its own words.
    fn takes_tensor(&self, array: &Descriptor) -> bool {
        let platform = Platform::from_device_type(array.device().device_type);
        if matches!(platform, None | Some(Platform::Rocm)) {
            return false;
        }
        match self.partner {
            Some(partner) => partner.refusal(&partner.call, array).is_none(),
            None => true,
        }
    }

    /// Makes the call of the table of partners.
    fn call(
        &self,
        view: &Bound<'py, PyCaiView>,
        stream: Value<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = view.get().view().descriptor();
        let Some(partner) = self.partner else {
            let field = Field::Argument("library");
            return Err(Violation::new(Rule::DeviceUnknown, field, array.device()).into());
        };
        let Some(function) = &Imported::of(self.py, partner)?.function else {
            let found = format_args!("'{}'", partner.name);
            let violation = Violation::new(Rule::ArgumentValue, Field::Argument("library"), found);
            let hint = format!("it has no arrays of its own: {}", partner.call.code);
            return Err(violation.with_hint(hint).into());
        };
        let platform = Platform::from_device_type(array.device().device_type);
        let view = match stream {
            Some(stream) if !partner.call.passes_stream => {
                let named = stream::named(&stream, Field::Argument("stream"))?;
                PyCaiView::ordered(view, Request::Stream(named), named, None)?
            }
            _ => view.clone(),
        };
        let stream = match (stream, platform) {
            (Some(stream), _) => stream.to_owned(),
            (None, Some(Platform::Cuda | Platform::HostReadable)) => {
                let work = use_stream::work_stream(self.py, array.device().id)?;
                new_uint(self.py, work.raw())?.into_any()
            }
            (None, _) => new_int(self.py, -1)?.into_any(),
        };
        function.bind(self.py).call1((view, stream))
    }
}

/// Imports an array as the value of a view that is no Python object yet.
fn import<'py>(object: &Bound<'py, PyAny>, options: &Options<'_, 'py>) -> PyResult<PyCaiView> {
    let facts = known_types::facts_of(object)?;
    let named = options.producer_object.as_deref();
    if facts.traits.intersects(Traits::OURS) {
        let parent = object.cast::<PyCaiView>()?;
        let this = parent.get();
        this.prepare()?;
        undeclared::check_view(parent, options)?;
        let view = route::own(kept_by_parent(parent, this.view().clone())?, options)?;
        let (view, beside) = this.wrap(object.py(), view).into_fields();
        return Ok(PyCaiView::with(view, beside.keeping(named, named)));
    }
    let mut view = MaybeUninit::uninit();
    let beside = route::foreign(&mut view, object, facts, options, AllowCaiOnly::Yes)?;
    // SAFETY: written: `foreign` has not failed.
    let view = unsafe { view.assume_init() };
    Ok(PyCaiView::with(view, beside.keeping(None, named)))
}

/// Passes a tensor through the library's table, ready where the library works.
fn by_table<'py>(
    py: Python<'py>,
    view: PyCaiView,
    table: Table,
    stream: Value<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let (view, beside) = view.into_fields();
    if beside.rare().is_some() {
        // PyO3 would keep the stream objects until it is next called.
        release::dropping(|| drop(beside));
    }
    refuse_padded(view.descriptor().borrowed(), Field::Argument("library"))?;
    let request = request(py, &view, table, stream)?;
    let policy = match request {
        Request::Host => SyncPolicy::Event,
        _ => policy::policy(py)?,
    };
    if view.needs_order(request, policy) {
        view.order(request, policy)?;
    }
    let (descriptor, owner) = view.into_parts();
    // The library shares the memory, so that the tensor is no copy.
    let flags = descriptor.flags().with(Flags::IS_COPIED, false);
    let tensor =
        build_in_capsule(descriptor.borrowed(), flags.bits(), owner).inspect_err(|_| {
            // SAFETY: `build_in_capsule` has failed and not taken the owner, which is released once.
            unsafe { owner.release() };
        })?;
    table.object(py, tensor)
}

/// Returns the order that a library needs which imports a tensor through its table.
fn request(
    py: Python<'_>,
    view: &CaiView,
    table: Table,
    stream: Value<'_, '_>,
) -> PyResult<Request> {
    let device = view.device();
    let platform = Platform::from_device_type(device.device_type).unwrap_or(Platform::Host);
    if stream.is_some() {
        return stream::request(stream.as_deref(), platform);
    }
    if platform != Platform::Cuda {
        // The library may read such memory on the host.
        return Ok(Request::Host);
    }
    let handle = match table.worker() {
        Some(worker) => work_stream(py, worker, device)?,
        None => None,
    };
    let named = match handle.map(Stream::from_raw) {
        Some(stream) if stream != Stream::LegacyDefault => stream,
        _ => use_stream::work_stream(py, device.id)?,
    };
    Ok(Request::Stream(named))
}

/// The libraries that callers have named, by the str or the module: finding a name compares it with all of the table's.
struct Known;

impl Known {
    fn all(py: Python<'_>) -> &Bound<'_, PyDict> {
        static KNOWN: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
        KNOWN.get_or_init(py, || PyDict::new(py).unbind()).bind(py)
    }

    fn get(library: &Bound<'_, PyAny>) -> PyResult<Option<&'static Partner>> {
        if !library.is_exact_instance_of::<PyString>()
            && !library.is_exact_instance_of::<PyModule>()
        {
            return Ok(None);
        }
        let found = Self::all(library.py()).get_item(library)?;
        let at = found.map(|at| at.extract::<usize>()).transpose()?;
        Ok(at.and_then(|at| PARTNERS.get(at)))
    }

    fn put(library: &Bound<'_, PyAny>, partner: &'static Partner) -> PyResult<()> {
        let at = PARTNERS.iter().position(|each| ptr::eq(each, partner));
        Self::all(library.py()).set_item(
            library,
            new_uint(library.py(), at.unwrap_or(usize::MAX) as u64)?,
        )
    }
}

/// The ways of a partner, once it has been imported.
struct Imported {
    table: Option<Table>,
    /// The call as a function of the view and the stream; `None` for one that passes the view to something of the
    /// caller's.
    function: Option<Py<PyAny>>,
}

impl Imported {
    /// Imports the library, if this is the first time.
    ///
    /// # Errors
    /// The exception of importing the library.
    fn of(py: Python<'_>, partner: &'static Partner) -> PyResult<&'static Self> {
        static ALL: OnceBox<Vec<OnceBox<Imported>>> = OnceBox::new();
        let all = ALL.get_or_init(|| Box::new(PARTNERS.iter().map(|_| OnceBox::new()).collect()));
        let at = PARTNERS.iter().position(|each| ptr::eq(each, partner));
        let Some(cell) = at.and_then(|at| all.get(at)) else {
            return Err(PySystemError::new_err("a partner that is not in the table"));
        };
        cell.get_or_try_init(|| Self::now(py, partner).map(Box::new))
    }

    #[cold]
    fn now(py: Python<'_>, partner: &Partner) -> PyResult<Self> {
        let call = &partner.call;
        let Call { import, code, .. } = *call;
        let globals = PyDict::new(py);
        py.run(&text(import)?, Some(&globals), None)?;
        if code.contains("cd.") {
            globals.set_item("cd", py.import("cai_dlpack")?)?;
        }
        let function = match call.needs() {
            None => {
                let code = text(&format!("lambda v, s: {code}"))?;
                Some(py.eval(&code, Some(&globals), None)?.unbind())
            }
            Some(_) => None,
        };
        let table = match partner.array {
            None => None,
            Some(array) => {
                let (module, class) = array.rsplit_once('.').unwrap_or((array, ""));
                let class = py.import(module)?.getattr(class)?;
                known_types::table(class.cast()?)?.filter(Table::can_import)
            }
        };
        Ok(Self { table, function })
    }
}

fn text(code: &str) -> PyResult<CString> {
    CString::new(code).map_err(|error| PySystemError::new_err(error.to_string()))
}
