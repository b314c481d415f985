//! Reads the `descr` of a dict: a list of (name, type) or (name, type, shape) tuples.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::protocol::dtype::TypeStr;
use crate::protocol::interface::{Descr, DescrBuilder};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::python::call::choice::valid;
use crate::python::cpython::int::{IntRule, repr};
use crate::python::cpython::list;

const EXTENT: IntRule = IntRule::new(Field::CaiDescr, Rule::DescrType, Rule::ShapeRange);

/// Reads a `descr`; `None` and a missing key are the same.
///
/// # Errors
/// The `descr-...` rules; the exceptions of the items' own methods.
pub(crate) fn read(value: Option<Bound<'_, PyAny>>, typestr: TypeStr) -> PyResult<Descr> {
    let Some(value) = value.filter(|value| !value.is_none()) else {
        return Ok(Descr::None);
    };
    let Ok(list) = value.cast::<PyList>() else {
        return Err(wrong_type(&value));
    };
    let mut fields = DescrBuilder::new();
    read_fields(list, &mut fields)?;
    Ok(fields.finish(typestr)?)
}

/// Adds the fields of a list. The builder bounds depth and number, so that a list that contains itself ends.
fn read_fields(list: &Bound<'_, PyList>, fields: &mut DescrBuilder) -> PyResult<()> {
    for item in list::items(list) {
        let Ok(field) = item.cast::<PyTuple>() else {
            return Err(wrong_type(&item));
        };
        if !(2..=3).contains(&field.len()) {
            return Err(Violation::new(Rule::DescrSyntax, Field::CaiDescr, repr(&item)).into());
        }
        let (title, name) = name(&field.get_item(0)?)?;
        let shape = if field.len() == 3 {
            shape(&field.get_item(2)?)?
        } else {
            Vec::new()
        };
        let kind = field.get_item(1)?;
        if let Ok(inner) = kind.cast::<PyList>() {
            let mut nested = fields.nested()?;
            read_fields(inner, &mut nested)?;
            fields.push_nested(&name, nested, &shape)?;
        } else if let Ok(text) = kind.cast::<PyString>() {
            let Some(text) = valid(text) else {
                return Err(wrong_text(&kind));
            };
            fields.push(&name, &text, &shape)?;
        } else {
            return Err(wrong_type(&kind));
        }
        if let Some(title) = title {
            fields.set_title(&title);
        }
    }
    Ok(())
}

/// Reads a name, or a (title, name) pair.
fn name(value: &Bound<'_, PyAny>) -> PyResult<(Option<String>, String)> {
    let (title, named) = match value.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => (Some(pair.get_item(0)?), pair.get_item(1)?),
        _ => (None, value.clone()),
    };
    let Ok(text) = named.cast::<PyString>() else {
        return Err(wrong_type(value));
    };
    let name = valid(text).ok_or_else(|| wrong_text(value))?;
    let title = title.filter(|title| !title.is_none());
    let title = title.as_ref().map(|title| match title.cast::<PyString>() {
        Ok(text) => valid(text).ok_or_else(|| wrong_text(value)),
        Err(_) => Err(wrong_type(value)),
    });
    Ok((title.transpose()?, name))
}

fn shape(value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    match value.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().map(|extent| EXTENT.read(&extent)).collect(),
        Err(_) => Ok(vec![EXTENT.read(value)?]),
    }
}

/// Builds the error for a str with a lone surrogate.
#[cold]
fn wrong_text(found: &Bound<'_, PyAny>) -> PyErr {
    Violation::new(Rule::DescrSyntax, Field::CaiDescr, repr(found))
        .with_hint("a str with a lone surrogate is no text; rename the field with the producer")
        .into()
}

#[cold]
fn wrong_type(found: &Bound<'_, PyAny>) -> PyErr {
    Violation::new(Rule::DescrType, Field::CaiDescr, repr(found)).into()
}
