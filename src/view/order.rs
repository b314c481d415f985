//! Orders streams, and the host, after the data of a view.

use super::streams::{Kept, Placed, Streams, is_elsewhere};
use super::{CaiView, IntoLiveStream, defaults_now, detach, keep, with_driver};
use crate::driver::{
    self, Context, ContextGuard, Defaults, Driver, DriverError, Pending, Place, twice,
};
use crate::error::Error;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
#[cfg(feature = "pyo3")]
use crate::protocol::stream::Reason;
use crate::protocol::stream::{Plan, Request, Stream, SyncPolicy};

/// How a stream waits for data.
#[derive(Clone, Copy, PartialEq)]
enum Waits {
    Not,
    /// By an edge of a graph that both are being captured into.
    InGraph,
    Eagerly,
}

impl CaiView {
    /// Makes `stream` wait for the data; returns a view of the same memory that is ready there.
    ///
    /// One event is recorded on the ready stream and waited for by `stream`; none if the data is ready
    /// there already. For consumers that do not look at the ready stream: work that is enqueued on
    /// `stream` from now on finds the data ready. The producer stream stays what it is. The new view keeps `stream`
    /// alive. [`LiveStream::NONE`](super::LiveStream::NONE) changes nothing.
    ///
    /// # Errors
    /// A [`Violation`] if no order can be made (a graph capture forbids it, another thread's per-thread stream),
    /// `stream-device`, `stream-context` or `stream-thread` for a default stream that is not kept, or is another one by its number
    /// ([`LiveStream`](super::LiveStream)), or the driver's refusal.
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::view::LiveStream;
    ///
    /// let view = floats().on(LiveStream::LEGACY_DEFAULT)?;
    /// assert_eq!(view.ready(), Stream::None); // was ready everywhere, and stays so
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn on<'s>(&self, stream: impl IntoLiveStream<'s>) -> Result<Self, Error> {
        let stream = stream.into_live_stream();
        let is_pending = self.ready_number() != Stream::None;
        stream.for_memory(self, is_pending, |number| {
            let request = Request::Stream(number);
            if !is_pending {
                self.order(request, SyncPolicy::Event)?;
                return Ok(self.clone());
            }
            let placed = self.placed(number)?;
            let kept = stream.keep_for(self, placed)?;
            self.order(request, SyncPolicy::Event)?;
            Ok(self.kept_at(placed, kept))
        })
    }

    /// As [`ready_at`](Self::ready_at), for a stream that `kept` keeps alive; unchanged for no stream.
    pub(super) fn kept_at(&self, placed: Placed, kept: Option<Kept>) -> Self {
        let mut view = self.clone();
        if placed.stream != Stream::None && self.ready_number() != Stream::None {
            view.streams = view.streams.with_ready_kept(placed, kept);
        }
        view
    }

    /// Blocks the calling thread until the data is ready; returns a view with nothing left to wait for.
    ///
    /// # Errors
    /// As [`CaiView::on`]; a stream that is being captured cannot be waited for.
    ///
    /// ```
    #[doc = floats!()]
    /// assert_eq!(floats().synchronize()?.ready(), Stream::None);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn synchronize(&self) -> Result<Self, Error> {
        self.order(Request::Host, SyncPolicy::Event)?;
        Ok(self.ready_on(Stream::None))
    }

    /// Returns the same memory with another ready stream, on which the caller has made it ready. Data that is
    /// ready everywhere stays so.
    pub(crate) fn ready_on(&self, stream: Stream) -> Self {
        if self.ready_number() == Stream::None {
            self.clone()
        } else {
            self.clone().with_ready(stream)
        }
    }

    /// Like [`ready_on`](Self::ready_on), for a stream whose meaning is known.
    pub(super) fn ready_at(&self, placed: Placed) -> Self {
        let mut view = self.clone();
        if self.ready_number() != Stream::None {
            view.streams = view.streams.with_ready(placed);
        }
        view
    }

    /// Returns the ready stream for a reader that learns its number and waits by itself.
    ///
    /// # Errors
    /// `stream-thread` for another thread's per-thread default stream: here its number means this thread's, on which
    /// nothing is pending. `stream-context` for a default stream of another context than the current one, if the
    /// memory does not tell the context.
    #[inline]
    pub(crate) fn ready_by_number(&self) -> Result<Stream, Violation> {
        let ready = self.ready_number();
        if ready.is_default() {
            self.check_number(ready)?;
        }
        Ok(ready)
    }

    fn check_number(&self, ready: Stream) -> Result<(), Violation> {
        let Placed { thread, whose, .. } = self.streams.placed_ready();
        if is_elsewhere(thread) {
            return Err(elsewhere(Rule::StreamThread, ready));
        }
        // The memory of one device says whose its default streams are.
        if !matches!(whose, Defaults::Of(_) | Defaults::Untold) && !self.is_shared_by_contexts() {
            return Ok(());
        }
        let is_memorys = |context| self.context_by(self.device()) == Ok(context);
        // On a thread without a context the number means the memory's.
        let is_here = match (whose, defaults_now()) {
            (Defaults::Untold, _) | (_, Defaults::Untold) => false,
            (Defaults::Of(there), Defaults::Of(here)) => here == there,
            (Defaults::Of(context), _) | (_, Defaults::Of(context)) => is_memorys(context),
            (_, _) => true,
        };
        match is_here {
            true => Ok(()),
            false => Err(elsewhere(Rule::StreamContext, ready)),
        }
    }

    /// Takes the default streams of `context`, the memory's, for those of device memory.
    ///
    /// # Errors
    /// `stream-context` if the data is ready on a default stream of another context.
    pub(super) fn mean_memory_context(
        &mut self,
        context: Option<Context>,
    ) -> Result<(), Violation> {
        if let Some(context) = context {
            self.streams = self.streams.with_defaults_of_memory(context);
        }
        match self.streams.placed_ready() {
            Placed {
                stream,
                whose: Defaults::Of(_) | Defaults::Untold,
                ..
            } => Err(elsewhere(Rule::StreamContext, stream)),
            _ => Ok(()),
        }
    }

    /// Returns the streams as the same memory has them by the name of `device`, where a default stream would be another
    /// context's.
    ///
    /// # Errors
    /// The driver's, if it is asked for the context.
    pub(crate) fn streams_by(&self, device: Device) -> Result<Streams, DriverError> {
        let is_same = device == self.device();
        // One that was named on a thread without a context is the memory's, and would be the current one's elsewhere.
        if is_same && !self.is_shared_by_contexts() {
            return Ok(self.streams.clone());
        }
        let streams = match is_same {
            true => self.streams.clone(),
            false => self.streams.renamed(self.device()),
        };
        if !streams.has_by_memory() {
            return Ok(streams);
        }
        Ok(streams.with_memory_context(self.context_by(self.device())?))
    }

    /// Whether [`CaiView::order`] will do anything at all; a few comparisons.
    #[inline]
    pub(crate) fn needs_order(&self, request: Request, policy: SyncPolicy) -> bool {
        self.may_need_order(request)
            && driver::needed(self.ready_number(), request, &self.place(), policy)
    }

    /// Whether [`needs_order`](Self::needs_order) is worth asking: the usual cases need no `Place`. Memory that every
    /// context reaches has default streams that only look the same, under the name of a device too, and a host that reads it
    /// may have to wait for more.
    #[inline(always)]
    pub(crate) fn may_need_order(&self, request: Request) -> bool {
        request.needs_order(self.ready_number())
            || self.is_shared_by_contexts()
            || self.streams.is_ready_in_a_context()
            || (request == Request::Host && self.may_be_managed())
    }

    /// Makes the stream or the host that `request` names wait for the data, by the policy.
    pub(crate) fn order(&self, request: Request, policy: SyncPolicy) -> Result<(), Error> {
        let Some(driver) = self.driver_to_order(request, policy)? else {
            return Ok(());
        };
        let (ready, place) = (self.ready_number(), self.place_for(driver, request)?);
        detach(|| driver::order(driver, ready, request, &place, policy).map(drop))
    }

    /// Makes `other`, on which a part of the array was written, wait for the ready stream; or else the host for one of the
    /// two. Returns whether it is `other` on which all parts are ready then, and whether they are done. An edge of a graph
    /// orders all of them if none `is_eager`, written by work of no graph; if one is and nothing else can be done the host
    /// waits for the contexts.
    ///
    /// # Errors
    /// The driver's refusal of that wait, [`Lost`](Unordered::Lost): some part may not be ready. `stream-thread` if one of the
    /// streams is another thread's, and the other one is captured: nothing orders the two in that graph.
    pub(super) fn has_all_after(
        &self,
        other: Placed,
        is_eager: bool,
    ) -> Result<(bool, bool), Unordered> {
        let ready = self.streams.placed_ready();
        if ready == other {
            return Ok((true, false));
        }
        let orders = |waits| match waits {
            Ok(Waits::Eagerly) => true,
            Ok(Waits::InGraph) => !is_eager,
            Ok(Waits::Not) | Err(_) => false,
        };
        let forth = twice(|| self.awaited_by(other));
        if orders(forth) || self.is_awaited_by_host() {
            return Ok((true, false));
        }
        let mut there = self.clone();
        there.streams = there.streams.with_ready(other);
        let back = twice(|| there.awaited_by(ready));
        if orders(back) || there.is_awaited_by_host() {
            return Ok((false, false));
        }
        let mut both = [ready, other].into_iter();
        if let Some(unnamed) = both.find(|placed| is_elsewhere(placed.thread)) {
            let field = Field::Argument("stream");
            let refused = Violation::new(Rule::StreamThread, field, unnamed.stream);
            return Err(Unordered::Refused(refused.with_hint(PARTS_HINT).into()));
        }
        // Both streams are captured.
        if is_eager {
            let waited = self.wait_for_context_of(ready);
            let waited = waited.and_then(|()| self.wait_for_context_of(other));
            waited.map_err(Unordered::Lost)?;
        } else {
            // No rule of captures forbids an edge that the driver refuses.
            let refused = |refused: DriverError| Unordered::Refused(refused.into());
            forth.and(back).map_err(refused)?;
        }
        let is_there = forth == Ok(Waits::InGraph) || back != Ok(Waits::InGraph);
        Ok((is_there, is_eager))
    }

    /// Makes a stream wait for the data, unless a rule forbids that.
    ///
    /// # Errors
    /// The driver's refusal.
    fn awaited_by(&self, stream: Placed) -> Result<Waits, DriverError> {
        let (ready, request) = (self.ready_number(), Request::Stream(stream.stream));
        let place = Place {
            requested: stream.whose,
            ..self.place()
        };
        if is_elsewhere(stream.thread) {
            return Ok(Waits::Not);
        }
        if !driver::needed(ready, request, &place, SyncPolicy::Event) {
            return Ok(Waits::Eagerly);
        }
        let order = |driver| driver::order(driver, ready, request, &place, SyncPolicy::Event);
        match with_driver(order) {
            Ok(done) if done.is_in_graph() => Ok(Waits::InGraph),
            Ok(_) => Ok(Waits::Eagerly),
            Err(Error::Driver(refused)) => Err(refused),
            Err(_) => Ok(Waits::Not),
        }
    }

    /// Has the host wait for all work of a stream's context, beside captures too.
    fn wait_for_context_of(&self, placed: Placed) -> Result<(), DriverError> {
        let Placed { stream, whose, .. } = placed;
        let place = Place {
            requested: whose,
            ..self.place()
        };
        with_driver(|driver| {
            let _there = twice(|| ContextGuard::of_stream(driver, stream, &place))?;
            keep::wait_for_context(driver)
        })
    }

    /// Has the host wait for the data, unless that is refused; returns whether it has.
    fn is_awaited_by_host(&self) -> bool {
        self.order(Request::Host, SyncPolicy::Event).is_ok()
    }

    /// Makes the ready stream wait for `now`, a stream of the calling thread.
    #[cold]
    pub(super) fn wait_for(&self, now: Placed, policy: SyncPolicy) -> Result<(), Error> {
        let Some((request, place)) = self.wait_of_ready(now, policy)? else {
            return Ok(());
        };
        let order = |driver| driver::order(driver, now.stream, request, &place, policy);
        match with_driver(order) {
            Err(Error::Violation(refused)) => Err(self.producer_at(now, refused).into()),
            ordered => ordered.map(drop),
        }
    }

    /// Decides what [`wait_for`](Self::wait_for) would do now, and does nothing of it.
    ///
    /// # Errors
    /// Those of [`foresee`](Self::foresee).
    #[cfg(feature = "pyo3")]
    #[cold]
    pub(super) fn foresee_wait(&self, now: Placed, policy: SyncPolicy) -> Result<Plan, Error> {
        match self.wait_of_ready(now, policy) {
            Ok(None) => Ok(Plan::Nothing(Reason::SameStream)),
            Ok(Some((request, place))) => {
                let plan = with_driver(|driver| {
                    driver::foresee(Some(driver), now.stream, request, &place, policy)
                })?;
                Ok(match plan {
                    Plan::Refuse(refused) => Plan::Refuse(self.producer_at(now, refused)),
                    plan => plan,
                })
            }
            Err(refused) => Ok(Plan::Refuse(refused)),
        }
    }

    /// Says of a refused wait for `now` what the caller has not named.
    #[cold]
    fn producer_at(&self, now: Placed, refused: Violation) -> Violation {
        let ready = self.ready_number();
        refused
            .in_field(Field::ExchangeApi)
            .with_found(format_args!(
                "{}, where the producer works now (the view is ready on {ready})",
                now.stream
            ))
            .with_hint("a new view of the array is ready where its producer works")
    }

    /// Returns the request of the ready stream to wait for `now`, and where; `None` if it need not.
    ///
    /// # Errors
    /// `stream-thread` if the ready stream is another thread's.
    fn wait_of_ready(
        &self,
        now: Placed,
        policy: SyncPolicy,
    ) -> Result<Option<(Request, Place)>, Violation> {
        let (request, there) = (Request::Stream(self.ready_number()), self.place());
        let place = Place {
            thread: now.thread,
            ready: now.whose,
            requested: there.ready,
            ..there
        };
        let is_elsewhere = is_elsewhere(there.thread);
        // By its number another thread's own default stream would be this one's.
        let is_namesake = is_elsewhere && now.thread.is_some() && policy != SyncPolicy::None;
        if !is_namesake && !driver::needed(now.stream, request, &place, policy) {
            return Ok(None);
        }
        if is_elsewhere {
            return Err(elsewhere(Rule::StreamThread, self.ready_number()));
        }
        Ok(Some((request, place)))
    }

    /// Decides what [`order`](Self::order) would do now, and does nothing of it.
    ///
    /// # Errors
    /// The driver's refusal of a question; without a driver its absence.
    pub(crate) fn foresee(&self, request: Request, policy: SyncPolicy) -> Result<Plan, Error> {
        let (ready, place) = (self.ready_number(), self.place());
        if let Some(refused) = self.refused(request, policy) {
            return Ok(Plan::Refuse(refused));
        }
        let driver = self.driver_to_order(request, policy)?;
        detach(|| driver::foresee(driver, ready, request, &place, policy))
    }

    /// Returns why [`order`](Self::order) would be refused now.
    ///
    /// # Errors
    /// Those of [`foresee`](Self::foresee).
    pub(crate) fn refusal(
        &self,
        request: Request,
        policy: SyncPolicy,
    ) -> Result<Option<Violation>, Error> {
        if !self.needs_order(request, policy) {
            return Ok(None);
        }
        Ok(match self.foresee(request, policy)? {
            Plan::Refuse(refused) => Some(refused),
            _ => None,
        })
    }

    /// As [`order`](Self::order), without a wait of the host: returns the wait, begun, if there is one.
    pub(crate) fn begin_order(
        &self,
        request: Request,
        policy: SyncPolicy,
    ) -> Result<Option<Pending>, Error> {
        let Some(driver) = self.driver_to_order(request, policy)? else {
            return Ok(None);
        };
        let (ready, place) = (self.ready_number(), self.place_for(driver, request)?);
        detach(|| driver::begin(driver, ready, request, None, &place, policy))
            .map(|(_, pending)| pending)
    }

    /// Returns where the data is. A host that may have to wait for whole contexts must know of every capture there: the
    /// producer is asked which stream it works on.
    fn place_for(&self, driver: &dyn Driver, request: Request) -> Result<Place, Error> {
        let mut place = self.place();
        let may_wait = request == Request::Host && place.may_be_managed;
        if may_wait
            && self.streams.worker().is_some()
            && !detach(|| driver.exclusive_devices())?.is_empty()
            && let Some(moved) = self.producer_moved()?
        {
            place.producers[1] = moved.stream;
        }
        Ok(place)
    }

    /// Why an order is refused on a platform that this library has no driver for: no library is looked for.
    #[inline]
    fn refused(&self, request: Request, policy: SyncPolicy) -> Option<Violation> {
        match self.device().device_type {
            DeviceType::ROCM => {
                driver::refused(self.ready_number(), request, &self.place(), policy)
            }
            _ => None,
        }
    }

    /// # Errors
    /// `rocm-order`.
    #[inline]
    pub(super) fn check_platform(&self, request: Request, policy: SyncPolicy) -> Result<(), Error> {
        match self.refused(request, policy) {
            Some(refused) => Err(refused.into()),
            None => Ok(()),
        }
    }

    /// Returns the driver, if it is needed.
    fn driver_to_order(
        &self,
        request: Request,
        policy: SyncPolicy,
    ) -> Result<Option<&'static dyn Driver>, Error> {
        if !self.needs_order(request, policy) {
            return Ok(None);
        }
        self.check_platform(request, policy)?;
        match driver::driver() {
            // Ready data, and no device that could be busy with it.
            Err(error) if error.is_absent() && self.ready_number() == Stream::None => Ok(None),
            driver => Ok(Some(driver?)),
        }
    }
}

/// Why a part of an array is not ordered after another one.
#[derive(Debug)]
pub(crate) enum Unordered {
    /// The driver tells nothing of the work of one: who writes the array later has to wait for its context.
    Lost(DriverError),
    /// A rule or the driver refuses the edge.
    Refused(Error),
}

impl From<Unordered> for Error {
    fn from(unordered: Unordered) -> Self {
        match unordered {
            Unordered::Lost(refused) => refused.into(),
            Unordered::Refused(refused) => refused,
        }
    }
}

/// The way out for parts of an array that two threads write in a capture.
const PARTS_HINT: &str =
    "end the guards of the parts on one thread, or write them on streams with a handle";

/// Refuses a default stream whose number means another stream to the reader.
#[cold]
fn elsewhere(rule: Rule, ready: Stream) -> Violation {
    Violation::new(rule, Field::CaiStream, ready).with_hint(
        "v.on(stream), called where the data is written, moves it to a stream with a handle",
    )
}

#[cfg(test)]
mod tests;
