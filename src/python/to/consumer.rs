//! The library that an array is handed to, and its ways to import one.

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::partners::{Partner, Quirk};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Platform;
use crate::python::call::library;
use crate::python::cpython::int::{repr, type_name};
use crate::python::exchange_table::Table;
use crate::python::import::known_types;
use crate::python::to::imported::Imported;
use crate::python::to::named;

/// A library, and its ways to import an array.
pub(super) struct Consumer<'py> {
    /// `None` if the table of partners does not have the library.
    pub(super) partner: Option<&'static Partner>,
    /// `None` until the partner's own call is needed.
    imported: Option<&'static Imported>,
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
        let imported = match named::find(library)? {
            Some(imported) => imported,
            None => Self::of_name(library)?,
        };
        Ok(Self::of_arrays(py, imported))
    }

    #[cold]
    fn of_name(library: &Bound<'py, PyAny>) -> PyResult<&'static Imported> {
        let partner = library::of(library, "library")?;
        let imported = Imported::of(library.py(), partner)?;
        named::remember(library, imported)?;
        Ok(imported)
    }

    /// The arrays that the partner's own ways return.
    #[inline(always)]
    fn of_arrays(py: Python<'py>, imported: &'static Imported) -> Self {
        Self {
            partner: Some(imported.partner),
            imported: Some(imported),
            table: imported.table,
            class: None,
            py,
        }
    }

    fn of_class(class: &Bound<'py, PyType>) -> PyResult<Self> {
        if let Some(imported) = Imported::find(class) {
            return Ok(Self::of_arrays(class.py(), imported));
        }
        let partner = library::of_class(class)?;
        let has_arrays = |partner: &&Partner| partner.array.is_some();
        let imported = partner
            .filter(has_arrays)
            .map(|partner| Imported::of(class.py(), partner));
        let imported = imported.transpose()?;
        // Its own class, by which the next call finds it.
        if let Some(imported) = Imported::find(class) {
            return Ok(Self::of_arrays(class.py(), imported));
        }
        let table = known_types::table(class)?.filter(Table::can_import);
        if partner.is_none() && table.is_none() {
            return Err(library::unknown(class, "library").into());
        }
        Ok(Self {
            partner,
            imported,
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
    ///
    /// # Errors
    /// `transfer-refused` for memory that the library has not been built for.
    pub(super) fn table_for(&self, array: &Descriptor) -> Result<Option<Table>, Violation> {
        if let Some(imported) = self.imported {
            imported.check_build(array.device())?;
        }
        Ok(self.any_table_for(array))
    }

    fn any_table_for(&self, array: &Descriptor) -> Option<Table> {
        let table = self.table?;
        let Some(partner) = self.partner else {
            return Some(table);
        };
        let platform = Platform::of(array.device());
        let has_order = !matches!(platform, None | Some(Platform::Rocm));
        (has_order && partner.refusal(&partner.call, array).is_none()).then_some(table)
    }

    /// Whether the stream that the library's table names is the one on which the library works.
    pub(super) fn names_its_stream(&self) -> bool {
        let producer = self.partner.and_then(|partner| partner.producer.as_ref());
        !producer.is_some_and(|producer| producer.quirks.contains(&Quirk::IgnoresStream))
    }

    /// Returns the call of the table of partners, if every array goes to it, and a view alone, without a question before.
    #[inline(always)]
    pub(super) fn sole_function(&self) -> Option<&Bound<'py, PyAny>> {
        let imported = self.imported?;
        let is_sole = self.table.is_none() && imported.is_plain;
        let function = imported.function.as_ref().filter(|_| is_sole)?;
        Some(function.bind(self.py))
    }

    /// Returns the call of the table of partners, as a function of the view and, if it passes one, the stream.
    ///
    /// # Errors
    /// `argument-value` if the library has no arrays of its own; the exception of importing the library.
    pub(super) fn function(&self, partner: &'static Partner) -> PyResult<&'static Py<PyAny>> {
        let imported = match self.imported {
            Some(imported) => imported,
            None => Imported::of(self.py, partner)?,
        };
        (imported.function.as_ref()).ok_or_else(|| without_arrays(partner))
    }
}

#[cold]
fn without_arrays(partner: &Partner) -> PyErr {
    let (field, name) = (
        Field::Argument("library"),
        format_args!("'{}'", partner.name),
    );
    let hint = format!("it has no arrays of its own: {}", partner.call.code);
    Violation::new(Rule::ArgumentValue, field, name)
        .with_hint(hint)
        .into()
}
