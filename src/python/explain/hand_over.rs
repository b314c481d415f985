//! The hand-over of a view to a consumer: who would wait, and what would be refused.

use std::cell::{LazyCell, RefCell};

use pyo3::prelude::*;

use super::explanation::{Explanation, sentence};
use crate::error::Error;
use crate::partners::{
    Asks, Call, Change, Drops, Order, Partner, Reads, Remedy, Waits, platform_of, unstated,
    with_remedies,
};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Rule, Violation};
use crate::protocol::stream::{Plan, Platform, Reason, Request, SyncPolicy};
use crate::python::call::use_stream::Work;
use crate::python::call::{library, policy, stream, use_stream};
use crate::python::class::view::PyCaiView;
use crate::python::cpython::errors::{driver_error, is_of_the_process};
use crate::python::cpython::{gil, release};
use crate::python::export::dlpack::{DlpackRequest, Export};
use crate::view::{CaiView, PresentAs, Transfer};

/// What the caller says of the consumer.
#[derive(Clone, Copy)]
pub(super) struct Given<'a, 'py> {
    pub(super) partner: Option<&'static Partner>,
    pub(super) stream: Option<&'a Bound<'py, PyAny>>,
    /// The array is the view of another copy of this library, or has the state of the view that is its `owner=`: the import
    /// waits for a producer that has moved.
    pub(super) is_passed: bool,
}

/// Explains the order of a hand-over, and its refusal.
///
/// # Errors
/// Those of the `stream` argument, and of the context's policy and streams.
pub(super) fn explain<'py>(
    py: Python<'py>,
    view: &PyCaiView,
    given: Given<'_, 'py>,
    found: &mut Explanation,
) -> PyResult<()> {
    let consumer = match Consumer::of(py, view, given)? {
        Ok(consumer) => consumer,
        Err(refused) => {
            return refuse_stream(py, view, given, refused, found);
        }
    };
    found.launch = launched(py, view, given, Some(&consumer))?;
    let order = match given.partner {
        None => {
            let request = consumer.usual()?;
            let described = view.view().descriptor().check_dlpack();
            described
                .map_err(Error::from)
                .and_then(|()| consumer.usual_order(request))
        }
        Some(partner) => consumer.order(partner.call_of(view.view().device())),
    };
    let refused = ordered(py, order, found)?;
    match given.partner {
        Some(partner) => refuse(py, view, partner, Some(&consumer), found),
        None if given.stream.is_some() => found.refused = refused,
        // Without a consumer the import is all that is explained, and the order is what an export would do.
        None => found.refused = consumer.refused_import(py)?,
    }
    Ok(())
}

/// Explains an order, and returns why there is none.
///
/// # Errors
/// What tells of the process, as a lack of memory.
fn ordered(
    py: Python<'_>,
    order: Result<Order, Error>,
    found: &mut Explanation,
) -> PyResult<Option<String>> {
    Ok(match order {
        Ok(order) => {
            found.driver_calls = order.driver_calls();
            found.order = Some(order.to_string());
            if order.is_unnamed() {
                let unknown = "who waits, and whether a capture forbids it: cannot be known without stream=, the \
                               consumer's stream";
                found.unknown = Some(unknown.to_owned());
            }
            match order {
                Order::Refused(why) => Some(why.to_string()),
                _ => None,
            }
        }
        Err(error) => {
            let refused = told(py, error)?;
            found.driver_calls = None;
            found.order = Some(format!("refused: {refused}"));
            Some(refused)
        }
    })
}

/// Returns the text of an error that an order or an import has.
///
/// # Errors
/// An error that tells of the process.
fn told(py: Python<'_>, error: Error) -> PyResult<String> {
    let error = PyErr::from(error);
    if is_of_the_process(py, &error) {
        return Err(error);
    }
    let text = sentence(py, &error);
    release::drop_now(error);
    Ok(text)
}

/// Explains what the library's kernels make of the view itself; `None` if they take none. `consumer` is given if the
/// order is known.
///
/// # Errors
/// `MemoryError`.
pub(super) fn launched(
    py: Python<'_>,
    view: &PyCaiView,
    given: Given<'_, '_>,
    consumer: Option<&Consumer<'_>>,
) -> PyResult<Option<Py<Explanation>>> {
    let Some((partner, launch)) =
        (given.partner).and_then(|partner| Some((partner, partner.launch.as_ref()?)))
    else {
        return Ok(None);
    };
    let mut found = Explanation {
        call: Some(launch.code),
        ..Explanation::default()
    };
    let array = view.view().descriptor();
    found.refused = partner.refusal(launch, array);
    if let (None, Some(consumer)) = (&found.refused, consumer) {
        found.refused = ordered(py, consumer.order(launch), &mut found)?;
    }
    found.dropped = match found.refused {
        Some(_) => None,
        None => dropped(py, launch, array),
    };
    let what = match (&found.refused, &found.order) {
        (Some(refused), _) => format!("refused: {refused}"),
        (None, Some(order)) => order.clone(),
        (None, None) => launch.streams(),
    };
    let dropped = found.dropped.as_deref().unwrap_or("nothing");
    found.text = match found.refused {
        Some(_) => what,
        None => format!("{}: {what}; dropped: {dropped}", launch.code),
    };
    Ok(Some(Py::new(py, found)?))
}

/// Returns what a call takes of an array and does not keep; `None` if nothing is known.
fn dropped(py: Python<'_>, call: &Call, array: &Descriptor) -> Option<String> {
    let is_dropped =
        |drops: &&Drops| drops.applies_to(array) && !library::is_set(py, drops.unless());
    let dropped: Vec<_> = (call.drops.iter().filter(is_dropped))
        .map(|drops| drops.name())
        .collect();
    (!dropped.is_empty()).then(|| dropped.join("; "))
}

/// Explains that the view would refuse the consumer's stream, unless it refuses the export to any, or the table its array.
fn refuse_stream(
    py: Python<'_>,
    view: &PyCaiView,
    given: Given<'_, '_>,
    stream: Violation,
    found: &mut Explanation,
) -> PyResult<()> {
    let array = view.view().descriptor();
    let stream = array.check_dlpack().err().unwrap_or(stream).to_string();
    found.driver_calls = None;
    found.order = Some(format!("refused: {stream}"));
    found.refused = Some(stream.clone());
    let Some(partner) = given.partner else {
        return Ok(());
    };
    let without = Given {
        stream: None,
        ..given
    };
    let Ok(consumer) = Consumer::of(py, view, without)? else {
        return Ok(());
    };
    found.launch = launched(py, view, without, Some(&consumer))?;
    refuse(py, view, partner, Some(&consumer), found);
    let unnamed = |code: &str| code.replacen("=s)", "=-1)", 1);
    found.refused = found.refused.as_deref().map(unnamed);
    for remedy in &mut found.remedies {
        *remedy = unnamed(remedy);
    }
    if found.refused.is_none() {
        let call = partner.call_of(view.view().device());
        let remedy = Remedy {
            code: unnamed(call.code),
            does: "takes it: its memory has no streams",
            argument: None,
            by_build: None,
        };
        let remedies: Vec<_> = call.passes_stream.then_some(remedy).into_iter().collect();
        found.dropped = None;
        found.refused = Some(with_remedies(&stream, &remedies));
        found.remedies = remedies.into_iter().map(|remedy| remedy.code).collect();
    }
    Ok(())
}

/// Explains why the consumer would refuse the view. `consumer` is given if the order is known.
pub(super) fn refuse(
    py: Python<'_>,
    view: &PyCaiView,
    partner: &'static Partner,
    consumer: Option<&Consumer<'_>>,
    found: &mut Explanation,
) {
    let unanswered = RefCell::new(None);
    let preferred = partner.call_of(view.view().device());
    // Asked only after the driver has refused the preferred call.
    let wrong_stream = LazyCell::new(|| consumer?.wrong_stream(preferred));
    let exports = |call: &Call, array: &Descriptor| {
        // That a call looks at no stream is no remedy for one that does not exist.
        if call.code != preferred.code
            && unanswered.borrow().is_some()
            && let Some(wrong) = &*wrong_stream
        {
            return Some(wrong.clone());
        }
        if let Err(refused) = library::check_build(py, partner, call, array.device()) {
            return Some(refused.to_string());
        }
        let error = check(view, call, array, consumer).err()?;
        let refused = sentence(py, &error);
        if driver_error(py).is_ok_and(|class| error.is_instance(py, class)) {
            unanswered.replace(Some(refused.clone()));
        }
        Some(refused)
    };
    let copies = |copy: &Descriptor| {
        let call = partner.call_of(copy.device());
        let build = library::check_build(py, partner, call, copy.device());
        build.is_ok()
            && can_copy(py, view, copy.device(), consumer).unwrap_or_else(|error| {
                release::drop_now(error);
                false
            })
    };
    let can = |change, changed: &Descriptor| match change {
        Change::Writable | Change::Bytes => true,
        // A producer may name memory so that is not known to the driver, or there is none.
        Change::Cuda => match view.view().present_as(PresentAs::Cuda) {
            Err(Error::Driver(unknown)) => {
                unanswered.replace(Some(unknown.to_string()));
                false
            }
            presented => presented.is_ok(),
        },
        Change::ToCpu | Change::ToCuda | Change::InCOrder => copies(changed),
    };
    let (refused, remedies) = partner.refusals(view.view().descriptor(), exports, can);
    if let (Some(refused), Some(why)) = (&refused, unanswered.into_inner())
        && *refused != why
    {
        let call = format!(
            "whether another call takes it: cannot be known without an answer of the driver ({why})"
        );
        also_unknown(found, call);
    }
    found.refused = refused.map(|refused| with_remedies(&refused, &remedies));
    ask_build(py, view.view().device(), partner, &remedies, found);
    found.remedies = remedies.into_iter().map(|remedy| remedy.code).collect();
    if found.refused.is_none() {
        let array = view.view().descriptor();
        found.dropped = dropped(py, partner.call_of(array.device()), array);
    }
}

/// Explains that the library's build decides, unless it tells.
pub(super) fn ask_build(
    py: Python<'_>,
    device: Device,
    partner: &Partner,
    remedies: &[Remedy],
    found: &mut Explanation,
) {
    if library::is_built(py, partner.call_of(device)).is_none()
        && let Some(build) = partner.unknown(device, found.refused.is_some(), remedies)
    {
        also_unknown(found, build);
    }
}

/// Adds to what cannot be known.
fn also_unknown(found: &mut Explanation, what: String) {
    found.unknown = Some(match found.unknown.take() {
        Some(before) => format!("{before}; {what}"),
        None => what,
    });
}

/// Checks what the view itself would refuse to a call.
fn check(
    view: &PyCaiView,
    call: &Call,
    array: &Descriptor,
    consumer: Option<&Consumer<'_>>,
) -> PyResult<()> {
    view.check_scope()?;
    match call.reads {
        Reads::Capsule => Export::decide(array.borrowed(), &LEGACY).map(drop)?,
        Reads::Interface => view.view().ready_by_number().map(drop)?,
        _ => {}
    }
    if call.copies && !array.device().is_host_readable() {
        Transfer::check(array)?;
    }
    match consumer.map(|consumer| consumer.order(call)).transpose()? {
        Some(Order::Refused(why)) => Err(why.into()),
        _ => Ok(()),
    }
}

/// Whether `from_dlpack` could copy the view to `wanted` now, as far as is known without doing it.
fn can_copy(
    py: Python<'_>,
    view: &PyCaiView,
    wanted: Device,
    consumer: Option<&Consumer<'_>>,
) -> PyResult<bool> {
    let source = view.view().descriptor();
    Transfer::check(source)?;
    let work;
    let request = match wanted.device_type {
        DeviceType::CUDA => {
            work = use_stream::work_stream(py, wanted)?;
            if !Transfer::can_allocate(wanted, work.stream)? {
                return Ok(false);
            }
            Request::Stream(work.stream)
        }
        _ => Request::Host,
    };
    let order = |consumer: &Consumer<'_>| {
        let order = consumer.decide(request, SyncPolicy::Event)?;
        consumer.after_producer(order, SyncPolicy::Event)
    };
    let is_refused = matches!(consumer.map(order).transpose()?, Some(Order::Refused(_)));
    Ok(Transfer::can_copy_to(source, wanted) && !is_refused)
}

/// The arguments of a call that takes a capsule of the layout before DLPack 1.0.
const LEGACY: DlpackRequest<'static, 'static> = DlpackRequest {
    stream: None,
    max_version: None,
    dl_device: None,
    copy: None,
    writable: false,
    on_host: true,
};

/// The order that a consumer asks a view for.
pub(super) struct Consumer<'v> {
    view: &'v CaiView,
    platform: Platform,
    policy: SyncPolicy,
    /// The stream that the caller has named.
    stream: Option<Request>,
    /// The stream of `use_stream`.
    work: Work<'v>,
    is_passed: bool,
}

impl<'v> Consumer<'v> {
    /// Reads what the caller says of the consumer, or returns why the view would refuse its stream.
    fn of(
        py: Python<'v>,
        view: &'v PyCaiView,
        given: Given<'_, '_>,
    ) -> PyResult<Result<Self, Violation>> {
        let view = view.view();
        let platform = platform_of(view.descriptor());
        let number = given.stream.map(stream::number).transpose()?;
        let named = |number| Request::from_dlpack(Some(number), platform);
        let stream = match number.map(named).transpose() {
            Ok(stream) => stream,
            Err(refused) => match (
                refused.rule(),
                (given.partner).map(|partner| partner.call_of(view.device())),
            ) {
                (Rule::StreamCpu | Rule::StreamRocm, None) => return Ok(Err(refused)),
                (Rule::StreamCpu, Some(call)) if call.passes_stream && number != Some(-1) => {
                    return Ok(Err(refused));
                }
                (Rule::StreamRocm, Some(call)) if call.waits == Waits::Stream => {
                    return Ok(Err(refused));
                }
                // A library passes None for memory without streams, whatever stream it works on.
                (Rule::StreamRocm, Some(_)) => None,
                (Rule::StreamCpu, Some(_)) => {
                    // A number that is no stream of any library's is refused all the same.
                    Request::from_dlpack(number, Platform::Cuda)?;
                    None
                }
                _ => return Err(refused.into()),
            },
        };
        Ok(Ok(Self {
            view,
            platform,
            policy: policy::policy(py)?,
            stream,
            is_passed: given.is_passed,
            work: match platform {
                Platform::Cuda | Platform::HostReadable => {
                    use_stream::work_stream(py, view.device())?
                }
                _ => Work::LEGACY_DEFAULT,
            },
        }))
    }

    /// What `__dlpack__` is asked for by a consumer that is not known.
    fn usual(&self) -> PyResult<Request> {
        match (self.stream, self.platform) {
            (Some(request), _) => Ok(request),
            (None, Platform::Host | Platform::HostReadable) => Ok(Request::Host),
            (None, _) => stream::request(None, self.platform),
        }
    }

    /// Decides who waits for a consumer that is not known.
    fn usual_order(&self, request: Request) -> Result<Order, Error> {
        let decide = |request| self.decide(request, self.policy);
        let order = match (self.stream, self.platform) {
            (None, Platform::Cuda) => unstated(self.work.stream, decide)?,
            _ => decide(request)?,
        };
        match request {
            Request::NoSync if !self.is_passed => Ok(order),
            request => self.after_producer(order, self.policy_of(request)),
        }
    }

    /// Decides who waits in a call.
    fn order(&self, call: &Call) -> Result<Order, Error> {
        let call = gil::with(|py| library::as_set(py, call));
        let asks = call.asks(self.view.descriptor(), self.stream, self.work.stream);
        let decide = |request, policy| self.decide(request, policy);
        let order = call.order(
            self.view.descriptor(),
            self.view.ready_number(),
            self.stream,
            asks,
            self.policy,
            decide,
        )?;
        let policy = match asks {
            // The dict is given away by the policy, whatever its reader does.
            Asks::Nothing => self.policy,
            _ if order == Plan::Nothing(Reason::NoSyncRequested).into() && !self.is_passed => {
                return Ok(order);
            }
            Asks::For(request) => self.policy_of(request),
            Asks::HostAnd(_) => self.policy_of(Request::Host),
            _ => self.policy,
        };
        self.after_producer(order, policy)
    }

    /// Adds the wait that comes first: that of the ready stream, for a producer that has moved since the import.
    fn after_producer(&self, order: Order, policy: SyncPolicy) -> Result<Order, Error> {
        if matches!(order, Order::Refused(_)) {
            // The import of a passed view waits first, and is refused first.
            let import = match self.is_passed {
                true => self.view.foresee_producer(self.policy)?,
                false => None,
            };
            return Ok(match import {
                Some(Plan::Refuse(refused)) => Order::Refused(refused),
                _ => order,
            });
        }
        Ok(match self.view.foresee_producer(policy)? {
            Some(wait) => order.after(wait),
            None => order,
        })
    }

    /// Returns why an import of the view, which makes the same first wait, would be refused.
    ///
    /// # Errors
    /// Those of [`told`].
    fn refused_import(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(match self.view.foresee_producer(self.policy) {
            Ok(Some(Plan::Refuse(refused))) => Some(refused.to_string()),
            Ok(_) => None,
            Err(error) => Some(told(py, error)?),
        })
    }

    /// A requested wait of the host does not depend on the context's policy.
    fn policy_of(&self, request: Request) -> SyncPolicy {
        match request {
            Request::Host => SyncPolicy::Event,
            _ => self.policy,
        }
    }

    /// Why there is no order in a call, if it is the fault of the stream that the caller has named.
    fn wrong_stream(&self, call: &Call) -> Option<String> {
        let unnamed = Self {
            stream: None,
            work: self.work.clone(),
            ..*self
        };
        let refused = self.order(call).err()?;
        (self.stream.is_some() && unnamed.order(call).is_ok()).then(|| refused.to_string())
    }

    fn decide(&self, request: Request, policy: SyncPolicy) -> Result<Order, Error> {
        let policy = match request {
            Request::Host => SyncPolicy::Event,
            _ => policy,
        };
        self.view.foresee(request, policy).map(Order::from)
    }
}
