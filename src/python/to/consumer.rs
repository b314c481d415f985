//! The library that an array is handed to, and its ways to import one.

use std::ffi::CString;
use std::ptr;

use once_cell::race::OnceBox;
use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyString, PyType};

use crate::partners;
use crate::partners::{Call, PARTNERS, Partner, Quirk};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Platform;
use crate::python::call::library;
use crate::python::cpython::int::{repr, type_name};
use crate::python::cpython::names::names;
use crate::python::cpython::new::new_uint;
use crate::python::exchange_table::Table;
use crate::python::import::known_types;

/// A library, and its ways to import an array.
pub(super) struct Consumer<'py> {
    /// `None` if the table of partners does not have the library.
    pub(super) partner: Option<&'static Partner>,
    /// The exchange table of its arrays, which imports tensors.
    table: Option<Table>,
    /// The class that the caller has named, unless its arrays are known to be what the library returns.
    class: Option<Bound<'py, PyType>>,
    py: Python<'py>,
}

impl<'py> Consumer<'py> {
    /// Finds the library that the caller has named.
    ///
    /// # Errors
    /// `argument-type`, `argument-value`; what importing the library raises.
    pub(super) fn of(library: &Bound<'py, PyAny>) -> PyResult<Self> {
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
            class: None,
            py,
        })
    }

    fn of_class(class: &Bound<'py, PyType>) -> PyResult<Self> {
        if let Some((partner, imported)) = Imported::find(class) {
            return Ok(Self {
                partner: Some(partner),
                table: imported.table,
                class: None,
                py: class.py(),
            });
        }
        let module = class.getattr(&names(class.py()).module)?;
        let module = module
            .cast::<PyString>()
            .ok()
            .map(|name| name.to_string_lossy());
        let partner = module.as_deref().and_then(partners::of_module);
        if let Some(partner) = partner.filter(|partner| partner.array.is_some()) {
            // So that the next call finds the class.
            Imported::of(class.py(), partner)?;
        }
        let table = known_types::table(class)?.filter(Table::can_import);
        if partner.is_none() && table.is_none() {
            return Err(library::unknown(class, "library").into());
        }
        Ok(Self {
            partner,
            table,
            class: Some(class.clone()),
            py: class.py(),
        })
    }

    pub(super) fn py(&self) -> Python<'py> {
        self.py
    }

    /// Returns what the library has made, if it is of the class that the caller has named.
    ///
    /// # Errors
    /// `argument-value` if it is not: the module of a class does not tell whether the class is one of arrays.
    #[inline(always)]
    pub(super) fn checked(&self, made: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match &self.class {
            Some(class) if !made.is_instance(class)? => Err(self.of_other_class(class, &made)),
            _ => Ok(made),
        }
    }

    #[cold]
    fn of_other_class(&self, class: &Bound<'py, PyType>, made: &Bound<'py, PyAny>) -> PyErr {
        let (field, made) = (Field::Argument("library"), type_name(made));
        let hint = match self.partner {
            Some(partner) => format!("{} makes an object of type {made}", partner.call.code),
            None => format!("its exchange table makes an object of type {made}"),
        };
        Violation::new(Rule::ArgumentValue, field, repr(class))
            .with_hint(hint)
            .into()
    }

    /// Returns the table, if an array goes through it: what the library refuses, its call refuses by its own words. A
    /// class that the table of partners does not have has no call.
    pub(super) fn table_for(&self, array: &Descriptor) -> Option<Table> {
        let table = self.table?;
        let Some(partner) = self.partner else {
            return Some(table);
        };
        let platform = Platform::from_device_type(array.device().device_type);
        let has_order = !matches!(platform, None | Some(Platform::Rocm));
        (has_order && partner.refusal(&partner.call, array).is_none()).then_some(table)
    }

    /// Whether the stream that the library's table names is the one on which the library works.
    pub(super) fn names_its_stream(&self) -> bool {
        let producer = self.partner.and_then(|partner| partner.producer.as_ref());
        !producer.is_some_and(|producer| producer.quirks.contains(&Quirk::IgnoresStream))
    }

    /// Returns the call of the table of partners, as a function of the view and the stream.
    ///
    /// # Errors
    /// `argument-value` if the library has no arrays of its own; the exception of importing the library.
    pub(super) fn function(&self, partner: &'static Partner) -> PyResult<&'static Py<PyAny>> {
        let function = &Imported::of(self.py, partner)?.function;
        function.as_ref().ok_or_else(|| {
            let (field, name) = (
                Field::Argument("library"),
                format_args!("'{}'", partner.name),
            );
            let hint = format!("it has no arrays of its own: {}", partner.call.code);
            Violation::new(Rule::ArgumentValue, field, name)
                .with_hint(hint)
                .into()
        })
    }
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
    /// The class of its arrays, if that has an exchange table.
    class: Option<Py<PyType>>,
    table: Option<Table>,
    /// The call as a function of the view and the stream; `None` for one that passes the view to something of the
    /// caller's.
    function: Option<Py<PyAny>>,
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
    fn of(py: Python<'_>, partner: &'static Partner) -> PyResult<&'static Self> {
        let at = PARTNERS.iter().position(|each| ptr::eq(each, partner));
        let Some(cell) = at.and_then(|at| Self::all().get(at)) else {
            return Err(PySystemError::new_err("a partner that is not in the table"));
        };
        cell.get_or_try_init(|| Self::now(py, partner).map(Box::new))
    }

    /// Finds the partner whose arrays are of this very class, if it has been imported.
    fn find(class: &Bound<'_, PyType>) -> Option<(&'static Partner, &'static Self)> {
        PARTNERS
            .iter()
            .zip(Self::all())
            .find_map(|(partner, cell)| {
                let imported = cell.get()?;
                let own = imported.class.as_ref()?;
                own.is(class).then_some((partner, imported))
            })
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
        let mut this = Self {
            class: None,
            table: None,
            function,
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

fn text(code: &str) -> PyResult<CString> {
    CString::new(code).map_err(|error| PySystemError::new_err(error.to_string()))
}
