//! `share` and `open`: views between the processes of one machine.

use std::sync::{Mutex, MutexGuard, PoisonError};

use once_cell::race::OnceBox;
use pyo3::Borrowed;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use crate::error::Error;
use crate::process::thread::Thread;
use crate::protocol::rule::{Field, Rule};
use crate::protocol::stream::Stream;
use crate::python::call::choice::wrong_type;
use crate::python::call::device::on_device;
use crate::python::call::options::Options;
use crate::python::call::use_stream::Work;
use crate::python::call::{blocks, policy, stream, use_stream};
use crate::python::class::beside::{Beside, Rare, kept};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors::of_package;
use crate::python::cpython::fastcall::{Function, Value, method, signature};
use crate::python::cpython::new::{new_bytes, new_str, new_tuple};
use crate::python::cpython::own_module;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::cpython::thread_exit::entries;
use crate::python::import::object;
use crate::share::{Handle, Held, Pickled, Shared};
use crate::view::{CaiView, Owner};

signature! {
    /// Lets another process of this machine use the memory of an array, during a `with` block. Copies nothing.
    ///
    /// Entering returns a handle, for `open` in a process of the same user: it pickles, and it is bytes. By CUDA IPC,
    /// so that the memory is of `cuMemAlloc` (`cudaMalloc`), or a `Buffer` of cuda.core from a pool that was made for
    /// IPC: the buffer itself, or a view that has it as its owner. The process that opens it finds the data ready: an
    /// event travels with it. Leaving has later calls of `open` refused, and does not block; the array is kept until
    /// the last process that has opened the handle has let go of it, or has died.
    ///
    /// A handle is a capability: who has it, and the key, can read and write the memory, also if the array is read-only,
    /// which no hardware enforces. Whether the other process is done with the data, only a message of your own tells.
    ///
    /// Returns
    /// -------
    /// ContextManager of Handle
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     As `view` does; if `key` is no bytes, or empty.
    /// BufferError
    ///     If CUDA IPC does not share this memory; as `view` does.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    ///
    /// Examples
    /// --------
    /// >>> with cd.share(array) as handle:  # doctest: +SKIP
    /// ...     queue.put(handle)
    /// ...     done.wait()
    Share = share [
        /// Any array that `view` takes.
        obj: "ArrayLike",
    ] (
        /// The secret that both processes have. None: `multiprocessing.current_process().authkey`, which the children of
        /// multiprocessing inherit.
        key: "bytes | None" = None,
    ) -> "AbstractContextManager[Handle]"
}

impl Function for Share {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        release::dropping(|| {
            let key = read_key(slf.py(), arguments.key)?;
            let view = object::new_view(&arguments.obj, Options::NONE)?;
            let block = PyShare {
                object: (*arguments.obj).clone().unbind(),
                view: view.cast_into::<PyCaiView>()?.unbind(),
                key,
                open: Mutex::default(),
            };
            Ok(Bound::new(slf.py(), block)?.into_any())
        })
    }
}

signature! {
    /// Opens a handle of `share`: returns a view of the other process's memory. Copies nothing.
    ///
    /// The handle's tag is checked before anything in it is used. The view keeps the memory in both processes, as all that
    /// is made of it does; when the last of it is gone, this process waits for the device on a thread of its own, and lets
    /// go. In the process that shares, it is a view of the same array. The exporter must not die meanwhile: what is left
    /// then is what CUDA leaves.
    ///
    /// Returns
    /// -------
    /// CaiView
    ///     Ready on `stream`. On the device that this process knows under the same UUID.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `stream` names no stream; if `handle` is none of this key.
    /// BufferError
    ///     If the block of `share` has been left; if the handle is of another machine, user or container, or of a device
    ///     that is not visible here.
    /// DriverError
    ///     If a call of the CUDA driver fails.
    ///
    /// Examples
    /// --------
    /// >>> view = cd.open(queue.get(), stream=stream)  # doctest: +SKIP
    Open = open [
        /// What the block of `share` has returned: the handle, or the same bytes.
        handle: "bytes",
    ] (
        /// The stream on which the data will be ready. None: that of `use_stream`, else the legacy default stream.
        stream: "StreamLike | None" = None,
        /// As in `share`.
        key: "bytes | None" = None,
    ) -> "CaiView"
}

impl Function for Open {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        release::dropping(|| {
            let py = slf.py();
            let Ok(bytes) = arguments.handle.cast::<PyBytes>() else {
                let handle = &arguments.handle;
                return Err(wrong_type(handle, "handle", "a handle of share, or its bytes").into());
            };
            let key = read_key(py, arguments.key)?;
            let handle = Handle::from_bytes(bytes.as_bytes(), &key)?;
            let work = match arguments.stream {
                Some(named) => Work {
                    stream: stream::named(&named, Field::Argument("stream"))?,
                    object: Some(named.to_owned()),
                },
                None if blocks::are_open() => use_stream::work_stream(py, handle.device()?)?,
                None => Work::LEGACY_DEFAULT,
            };
            let stream = work.stream;
            let view = match handle.pickled()? {
                Some(pickle) => open_pickled(py, &handle, pickle, &key, stream)?,
                // SAFETY: who has the key promises it, as docs/reach.md says; the stream's object is kept below.
                None => unsafe { handle.open_on(stream, true) }?,
            };
            let rare = Rare {
                stream_object: kept(work.object.as_ref()),
                ..Rare::default()
            };
            let made = PyCaiView::with(view, Beside::new(rare)).into_object(py)?;
            Ok(made.into_any())
        })
    }
}

/// Opens memory that cuda.core maps. The tag has been checked: only who has the key has chosen what is unpickled.
///
/// # Errors
/// Those of [`Handle::open`]; what cuda.core raises, unless the exporter has ended the share or died meanwhile, which is
/// `share-ended` with that as its cause.
fn open_pickled(
    py: Python<'_>,
    handle: &Handle,
    pickle: &[u8],
    key: &[u8],
    stream: Stream,
) -> PyResult<CaiView> {
    // First of all the exporter keeps the memory.
    let held = Bound::new(
        py,
        PyHeld {
            _held: handle.hold()?,
        },
    )?;
    let load = py.import(POOLS)?.getattr("load")?;
    let arguments = (new_bytes(py, pickle)?, new_bytes(py, key)?, held);
    // cuda.core makes that context current itself, in the place of what is.
    let mapped = on_device(py, handle.device()?.id, || load.call1(arguments))
        .map_err(PyErr::from)
        .flatten()
        .map_err(|failed| match handle.hold() {
            Ok(_) => failed,
            Err(ended) => {
                let ended = PyErr::from(ended);
                ended.set_cause(py, Some(failed));
                ended
            }
        })?;
    let range = mapped.getattr("range")?.extract()?;
    let owner = Owner::from_raw(release::own(mapped)?);
    // SAFETY: who has the key promises it, as docs/reach.md says; the object keeps the buffer, and `held`.
    Ok(unsafe { handle.open_mapped(stream, range, owner) }?)
}

/// The module that has cuda.core pickle.
const POOLS: &str = "cai_dlpack._pools";

/// Keeps another process's share while a buffer of it is mapped.
#[pyclass(name = "Held", module = "cai_dlpack", frozen)]
pub(crate) struct PyHeld {
    _held: Held,
}

/// Reads the key.
///
/// # Errors
/// `argument-type` for anything but bytes; what multiprocessing raises.
fn read_key(py: Python<'_>, key: Value<'_, '_>) -> PyResult<Vec<u8>> {
    if let Some(key) = key {
        let Ok(bytes) = key.cast::<PyBytes>() else {
            // By its type alone: the value is a secret, whatever it is.
            return Err(wrong_type(key.get_type().as_any(), "key", "bytes").into());
        };
        return Ok(bytes.as_bytes().to_vec());
    }
    let _level = Level::begin(py)?;
    let process = py
        .import("multiprocessing.process")?
        .call_method0("current_process")?;
    let key = process.getattr("authkey")?.cast_into::<PyBytes>()?;
    Ok(key.as_bytes().to_vec())
}

/// The context manager that `share` returns.
///
/// Each entering makes a handle of its own, also while another one is open.
#[pyclass(name = "Share", module = "cai_dlpack", frozen)]
pub(crate) struct PyShare {
    /// What was shared: a library's own object, or the view.
    object: Py<PyAny>,
    view: Py<PyCaiView>,
    key: Vec<u8>,
    open: Mutex<Vec<(Thread, Entered)>>,
}

/// A block that is open.
struct Entered {
    shared: Shared,
    /// Gives importers the descriptor of a pool, until it is closed.
    giver: Option<Py<PyAny>>,
}

impl PyShare {
    fn open(&self) -> MutexGuard<'_, Vec<(Thread, Entered)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what this thread has entered last; of a thread that has entered nothing, what any has.
    fn leave(&self) -> Option<Entered> {
        let mut open = self.open();
        let here = Thread::current();
        let own = open.iter().rposition(|(thread, _)| *thread == here);
        let at = own.or(open.len().checked_sub(1))?;
        Some(open.remove(at).1)
    }

    /// Shares the view, by its library if the memory is of a pool of cuda.core's.
    fn enter(&self, py: Python<'_>) -> PyResult<Entered> {
        let view = self.view.get();
        let policy = policy::policy(py)?;
        let refused = match view.lend(py)?.share_with(policy) {
            Err(Error::Violation(refused)) if refused.rule() == Rule::ShareMemory => refused,
            shared => {
                let giver = None;
                return Ok(Entered {
                    shared: shared?,
                    giver,
                });
            }
        };
        // An extension module of another name works without the package.
        let Ok(pools) = py.import(POOLS) else {
            return Err(refused.into());
        };
        let owner = view.owner(py);
        let named = pools.getattr("dump")?.call1((
            self.object.bind(py),
            owner,
            new_bytes(py, &self.key)?,
        ))?;
        if named.is_none() {
            return Err(refused.into());
        }
        let (bytes, range, giver): (Vec<u8>, (u64, u64), Py<PyAny>) = named.extract()?;
        let shared = view
            .lend(py)?
            .share_named(policy, Some(Pickled { bytes, range }));
        if shared.is_err() {
            giver.call_method0(py, "close")?;
        }
        let giver = Some(giver);
        Ok(Entered {
            shared: shared?,
            giver,
        })
    }
}

entries! {
impl PyShare {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let view = this.view.get();
        view.prepare()?;
        let entered = this.enter(py)?;
        let bytes = entered.shared.handle().to_bytes(&this.key)?;
        let handle = handle_class(py)?.call1(new_tuple(py, [Ok(new_bytes(py, &bytes)?)])?)?;
        this.open().push((Thread::current(), entered));
        Ok(handle)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        // Dropped without the lock: what is released may run any code.
        let ended = self.leave();
        if let Some(Entered { shared, giver }) = ended {
            drop(shared);
            if let Some(giver) = giver {
                giver.call_method0(py, "close")?;
            }
        }
        Ok(false)
    }

    /// Shows the view to the collector: an array that refers to its block makes a cycle. An open block keeps the array.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.object)?;
        visit.call(&self.view)
    }
}
}

signature! {
    /// Returns a text without the bytes: they are a capability.
    HandleText = __repr__ [] () -> "str"
}

impl Function for HandleText {
    fn call<'py>(
        slf: Borrowed<'_, 'py, PyAny>,
        _: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let text = format!("<cai_dlpack.Handle of {} bytes>", slf.len()?);
        Ok(new_str(slf.py(), &text)?.into_any())
    }
}

/// Returns the class `cai_dlpack.Handle`: bytes, which pickle, with a text of their own. It is the package's if that has
/// been imported before the first call.
///
/// # Errors
/// The first call creates the class, which can fail.
pub(crate) fn handle_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: OnceBox<Py<PyType>> = OnceBox::new();
    CLASS
        .get_or_try_init(|| {
            let base = py.get_type::<PyBytes>();
            if let Some(shared) = of_package(py, "Handle", &base) {
                return Ok(Box::new(shared.unbind()));
            }
            let doc =
                "What `share` returns and `open` takes: bytes that name memory of another process.

It pickles, and travels by whatever carries bytes. It is a capability: do not publish it.";
            let namespace = PyDict::new(py);
            namespace.set_item("__module__", "cai_dlpack")?;
            namespace.set_item("__doc__", doc)?;
            namespace.set_item("__slots__", PyTuple::empty(py))?;
            let arguments = ("Handle", PyTuple::new(py, [base])?, namespace);
            let class = py.get_type::<PyType>().call1(arguments)?;
            let class = class.cast_into::<PyType>()?;
            let text = method::<HandleText>(&class)?;
            class.setattr("__repr__", &text)?;
            class.setattr("__str__", text)?;
            own_module::rename(&class);
            Ok(Box::new(class.unbind()))
        })
        .map(|class| class.bind(py))
}
