//! What a partner's module has for imports, found once.

use std::ptr;

use once_cell::race::OnceBox;
use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::partners::{Call, PARTNERS, Partner};
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::Violation;
use crate::python::call::library;
use crate::python::cpython::source;
use crate::python::exchange_table::Table;
use crate::python::import::known_types;

/// The ways of a partner, once it has been imported.
pub(super) struct Imported {
    pub(super) partner: &'static Partner,
    /// The class of its arrays, if that has an exchange table.
    class: Option<Py<PyType>>,
    pub(super) table: Option<Table>,
    /// The call as a function of the view and, if it passes one, the stream: the library's own function if that is all
    /// that the call names. `None` for one that passes the view to something of the caller's.
    pub(super) function: Option<Py<PyAny>>,
    /// The call is passed the view alone, and nothing is asked before it.
    pub(super) is_plain: bool,
    /// The device types that it has not been built for.
    lacks: &'static [DeviceType],
}

impl Imported {
    /// One cell for each partner.
    fn all() -> &'static [OnceBox<Self>] {
        static ALL: OnceBox<Vec<OnceBox<Imported>>> = OnceBox::new();
        ALL.get_or_init(|| Box::new(PARTNERS.iter().map(|_| OnceBox::new()).collect()))
    }

    /// Imports the library, if this is the first time.
    ///
    /// # Errors
    /// The exception of importing the library.
    pub(super) fn of(py: Python<'_>, partner: &'static Partner) -> PyResult<&'static Self> {
        let at = PARTNERS.iter().position(|each| ptr::eq(each, partner));
        let Some(cell) = at.and_then(|at| Self::all().get(at)) else {
            return Err(PySystemError::new_err("a partner that is not in the table"));
        };
        cell.get_or_try_init(|| Self::now(py, partner).map(Box::new))
    }

    /// Finds the partner whose arrays are of this very class, if it has been imported.
    pub(super) fn find(class: &Bound<'_, PyType>) -> Option<&'static Self> {
        Self::all().iter().find_map(|cell| {
            let imported = cell.get()?;
            let own = imported.class.as_ref()?;
            own.is(class).then_some(imported)
        })
    }

    /// Refuses memory that the library has not been built for: it may end the process.
    ///
    /// # Errors
    /// `transfer-refused`.
    #[inline(always)]
    pub(super) fn check_build(&self, device: Device) -> Result<(), Violation> {
        match self.lacks.contains(&device.device_type) {
            true => Err(library::not_built(self.partner, &self.partner.call, device)),
            false => Ok(()),
        }
    }

    #[cold]
    fn now(py: Python<'_>, partner: &'static Partner) -> PyResult<Self> {
        let call = &partner.call;
        let Call { import, code, .. } = *call;
        let globals = PyDict::new(py);
        source::exec(py, import, &globals)?;
        if code.contains("cd.") {
            globals.set_item("cd", py.import("cai_dlpack")?)?;
        }
        let function = match call.needs() {
            None => {
                let code = match (call.function(), call.passes_stream) {
                    (Some(function), _) => function.to_owned(),
                    (None, false) => format!("lambda v: {code}"),
                    (None, true) => format!("lambda v, s: {code}"),
                };
                Some(source::eval(py, &code, &globals)?.unbind())
            }
            Some(_) => None,
        };
        let lacks = match library::is_built(py, call) {
            Some(false) => call.by_build,
            _ => &[],
        };
        let mut this = Self {
            partner,
            class: None,
            table: None,
            function,
            is_plain: !call.passes_stream
                && !call.waits_unasked()
                && lacks.is_empty()
                && call.aborts.is_empty(),
            lacks,
        };
        if let Some(array) = partner.array {
            let (module, class) = array.rsplit_once('.').unwrap_or((array, ""));
            let class = py.import(module)?.getattr(class)?.cast_into::<PyType>()?;
            this.table = known_types::table(&class)?.filter(Table::can_import);
            this.class = this.table.map(|_| class.unbind());
        }
        Ok(this)
    }
}
