//! `explain`: describes an import, the order and the consumer's call.
//!
//! | part | decided by |
//! |---|---|
//! | route, array, ready stream, refusal of the import | the import itself, whose view is dropped ([`trial`]) |
//! | order | the questions and the plan of the order that an export would make ([`CaiView::foresee`]) |
//! | the consumer's refusal | the view's own export, and the [table of partners](crate::partners) |
//!
//! Makes no event and no stream wait.
//!
//! [`CaiView::foresee`]: crate::view::CaiView::foresee

mod explanation;
mod hand_over;
mod offers;

use std::fmt::Write;

use pyo3::Borrowed;
use pyo3::prelude::*;

use crate::partners::Partner;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Access;
use crate::protocol::stream::Stream;
use crate::python::call::library;
use crate::python::call::options::{Options, with_options};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors;
use crate::python::cpython::fastcall::Function;
use crate::python::cpython::recursion::Level;
use crate::python::cpython::release;
use crate::python::cpython::text::as_tuple;
use crate::python::import::known_types;
use crate::python::import::traits::Traits;
use crate::python::import::trial;
use crate::python::import::trial::{End, Trial};
use crate::python::to::is_our_class;
pub(crate) use explanation::Explanation;
use explanation::sentence;
use hand_over::Given;

with_options! {
    /// Describes what `view` and the consumer's call would do with an array: the route, the order, what is refused.
    ///
    /// Takes the keywords of `view`. Imports the array as `view` does, and drops it; makes nothing wait. A producer whose
    /// `__dlpack__` would make a stream wait is not called, and `unknown` says so.
    ///
    /// Returns
    /// -------
    /// Explanation
    ///     Prints as a text of a few lines.
    ///
    /// Raises
    /// ------
    /// TypeError, ValueError
    ///     If `to` names no library of the table of partners, `stream` no stream, or a keyword of `view` has the wrong
    ///     type or value.
    /// RecursionError, MemoryError
    ///     What tells of the process rather than of the array.
    Explain = explain [
        /// Any array that `view` takes.
        obj: "object",
    ] (
        /// The consumer's library: one of its names ("torch", "pytorch"), its module, or its class of arrays. Adds its
        /// zero-copy call, and what the call refuses.
        to: "str | ModuleType | type | None" = None,
        /// The consumer's stream, as in `CaiView.__dlpack__`.
        stream: "StreamLike | None" = None,
    ) -> "Explanation"
}

impl Function for Explain {
    fn call<'py>(
        _: Borrowed<'_, 'py, PyAny>,
        arguments: Self::Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _level = Level::begin(arguments.obj.py())?;
        let parsed = Options::read(Self::given(&arguments))?;
        let options = parsed.as_ref().unwrap_or(Options::NONE);
        let traits = known_types::facts_of(&arguments.obj)?.traits;
        let given = Given {
            partner: (arguments.to.as_deref())
                .filter(|to| !is_our_class(to))
                .map(|to| library::of(to, "to"))
                .transpose()?,
            stream: arguments.stream.as_deref(),
            is_passed: traits.intersects(Traits::ANOTHER_COPY)
                || options.owner.is_some() && !traits.intersects(Traits::OURS),
        };
        // Errors of the import become text, and are dropped.
        let explanation = release::dropping(|| explain(&arguments.obj, options, given))?;
        Ok(Bound::new(arguments.obj.py(), explanation)?.into_any())
    }
}

fn explain<'py>(
    object: &Bound<'py, PyAny>,
    options: &Options<'_, 'py>,
    given: Given<'_, 'py>,
) -> PyResult<Explanation> {
    let py = object.py();
    let Trial {
        route,
        end,
        warnings,
    } = trial::import(object, options)?;
    let mut found = Explanation {
        route,
        warnings,
        driver_calls: Some(Vec::new()),
        ..Explanation::default()
    };
    let mut is_undeclared = false;
    let view = match end {
        End::Refused(error) if errors::is_of_the_process(py, &error) => return Err(error),
        End::Refused(error) => {
            found.refused = Some(sentence(py, &error));
            found.driver_calls = None;
            None
        }
        End::View(view, _offer) => {
            is_undeclared = view.view().is_undeclared();
            found.ready = Some(state(view.view().ready_number(), is_undeclared));
            hand_over::explain(py, &view, given, &mut found)?;
            Some(view)
        }
        End::Unasked(device, described) => {
            found.driver_calls = None;
            found.unknown = Some(format!(
                "whether the producer exports it, and in which order: cannot be known without calling its __dlpack__ on \
                 {:?}, which makes a stream wait",
                device.to_dlpack()
            ));
            match (&described, given.partner) {
                (Some(view), Some(partner)) => {
                    found.launch = hand_over::launched(py, view, given, None)?;
                    hand_over::refuse(py, view, partner, None, &mut found);
                }
                (None, Some(partner)) => {
                    let call = partner.call_of(device);
                    let built = library::check_build(py, partner, call, device);
                    let built = built.err().map(|refused| refused.to_string());
                    found.refused = partner.device_refusal(call, device).or(built);
                    hand_over::ask_build(py, device, partner, &[], &mut found);
                }
                (_, None) => {}
            }
            described
        }
    };
    found.call = given.partner.map(|partner| partner.call.code);
    found.text = written(object, &found, view.as_ref(), given, is_undeclared)?;
    Ok(found)
}

/// Returns the state of data that is ready on a stream, or taken to be.
fn state(ready: Stream, undeclared: bool) -> String {
    match (undeclared, ready) {
        (false, Stream::None) => "now".to_owned(),
        (false, stream) => format!("on {stream}"),
        (true, Stream::None) => "undeclared; taken as ready now".to_owned(),
        (true, stream) => format!("undeclared; taken as pending on {stream}"),
    }
}

/// Writes the lines of the text.
fn written(
    object: &Bound<'_, PyAny>,
    found: &Explanation,
    view: Option<&PyCaiView>,
    given: Given<'_, '_>,
    is_undeclared: bool,
) -> PyResult<String> {
    let mut text = String::new();
    line(&mut text, "offers", &offers::of(object)?);
    if let Some(route) = found.route {
        let why = offers::why(route, is_undeclared, found.ready.is_none());
        line(&mut text, "route", &format!("{route}: {why}"));
    }
    if let Some(view) = view {
        let array = shown(view.view().descriptor());
        line(&mut text, "array", &array);
        if let Err(refusal) = view.view().descriptor().check_dlpack() {
            line(&mut text, "by DLPack", &format!("refused: {refusal}"));
        }
    }
    let mut known = |head: &str, rest: Option<&str>| {
        if let Some(rest) = rest {
            line(&mut text, head, rest);
        }
    };
    known("ready", found.ready.as_deref());
    let launch = found.launch.as_ref().map(Py::get);
    known("in a kernel", launch.map(|launch| launch.text.as_str()));
    known("order", found.order.as_deref());
    known("unknown", found.unknown.as_deref());
    let to = given.partner.map(|partner| format!("to {}", partner.name));
    known(to.as_deref().unwrap_or_default(), found.call);
    let call = |partner: &'static Partner| match view {
        Some(view) => partner.call_of(view.view().device()),
        None => &partner.call,
    };
    let is_ready = found.ready.is_some()
        && view.is_some_and(|view| view.view().ready_number() == Stream::None);
    let advice = (given.partner).map(|partner| call(partner).advice_for(is_ready).replace('`', ""));
    known(
        "advice",
        advice.as_deref().filter(|advice| !advice.is_empty()),
    );
    known("dropped", found.dropped.as_deref());
    known("refused", found.refused.as_deref());
    for warning in &found.warnings {
        line(&mut text, "warning", warning);
    }
    Ok(text.trim_end().to_owned())
}

fn line(text: &mut String, head: &str, rest: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{head:11} {rest}");
}

fn shown(descriptor: &Descriptor) -> String {
    let device = descriptor.device();
    let shape = as_tuple(descriptor.shape().iter());
    let is_even = descriptor.elem_strides().len() == descriptor.ndim();
    let (strides, unit) = match descriptor.byte_strides().filter(|_| !is_even) {
        Some(strides) => (as_tuple(strides), "bytes"),
        None => (as_tuple(descriptor.elem_strides().iter()), "elements"),
    };
    let flag = match descriptor.access() {
        Access::Writable => "",
        Access::ReadOnly => ", read-only",
        Access::Unknown => ", perhaps read-only",
    };
    format!(
        "{shape} {} on {:?}, strides {strides} {unit}{flag}",
        descriptor.type_name(),
        device.to_dlpack(),
    )
}
