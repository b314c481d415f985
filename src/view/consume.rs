//! Orders one stream's use of a view: after the data, and before the producer's next write.
//!
//! ```text
//!   producer stream  ---write---*                          *---next write--->
//!                                \ event            event /
//!   consumer stream               *---read, compute------*
//!                              entry                    exit
//! ```
//! The CUDA Array Interface (v3, Synchronization) asks of a consumer that waited for the producer's
//! stream, instead of enqueuing on it, that nothing can run there until the consumer is done. The
//! exit's event is that: the producer's stream waits for it. If the producer [works](super::producer) on another one by
//! then, that one waits too. `ConsumeGuard::close` is the one place that names them.

#[cfg(feature = "cudarc")]
use super::keep::Begun;
use super::streams::{Kept, Placed, thread_of};
use super::{CaiView, IntoLiveStream, stats, with_driver};
#[cfg(feature = "cudarc")]
use crate::driver::ContextGuard;
use crate::driver::{self, Back, Context, Defaults, Done, Pending, Place, twice};
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};
#[cfg(feature = "cudarc")]
use crate::protocol::stream::Capture;
use crate::protocol::stream::{Plan, Request, Stream, SyncPolicy};

mod dropped;

#[cfg(feature = "pyo3")]
pub(crate) use dropped::Dropped;

/// What the end of a [`ConsumeGuard`] does for the producer.
///
/// ```
/// use cai_dlpack::view::ReturnEdge;
///
/// assert_eq!(ReturnEdge::SameStream.name(), "same-stream");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReturnEdge {
    /// The producer's stream waits for the consumer's, by an event.
    Event,
    /// Nothing: the consumer works on the producer's stream.
    SameStream,
    /// Nothing: the producer has no work in any stream.
    NotNeeded,
    /// Nothing, since the producer's stream is unknown: the caller has to order what comes after.
    Unknown,
}

impl ReturnEdge {
    /// Returns the name that Python shows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::SameStream => "same-stream",
            Self::NotNeeded => "not-needed",
            Self::Unknown => "unknown",
        }
    }
}

/// Keeps a view on a consumer's stream. Its end, by [`ConsumeGuard::finish`] or by drop, makes the return edge.
///
/// ```
#[doc = floats!()]
/// use cai_dlpack::view::{LiveStream, ReturnEdge};
///
/// let view = floats(); // ready everywhere, of a producer without a stream: nothing is to be ordered
/// let guard = view.consume(LiveStream::LEGACY_DEFAULT)?;
/// // ... enqueue work on the stream that reads `guard.view()` ...
/// assert_eq!(guard.finish()?, ReturnEdge::NotNeeded);
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard makes the return edge"]
pub struct ConsumeGuard {
    view: CaiView,
    consumer: Consumer,
    /// What keeps the consumer's stream until the edge is made.
    kept: Option<Kept>,
    ended: bool,
}

/// A stream that is to consume a view, what the end of its guard will do, and by which policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Consumer {
    placed: Placed,
    edge: ReturnEdge,
    /// The stream on which the producer works, if it has left the one of the import.
    moved: Option<Placed>,
    policy: SyncPolicy,
    entry: Entry,
}

/// Where a consumer's work begins.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// No forward edge was needed, and the driver was not asked.
    NotAsked,
    /// The driver has refused to tell.
    #[cfg(feature = "cudarc")]
    Unknown,
    /// Outside of any graph.
    Eager,
    InCapture(u64),
}

impl From<Done> for Entry {
    fn from(done: Done) -> Self {
        match done {
            Done::Nothing(_) => Self::NotAsked,
            Done::Event(_) | Done::HostWait(_) => Self::Eager,
            Done::InGraph(_, capture) => Self::InCapture(capture),
        }
    }
}

impl Consumer {
    /// Whether a stream of the producer's is this very one: of the same context and thread, if it is a default stream.
    fn is_on(&self, producer: Placed) -> bool {
        let Placed {
            stream,
            thread,
            whose,
        } = self.placed;
        let is_named_alike = (producer.stream, producer.thread) == (stream, thread);
        let is_one = !stream.is_default() || producer.whose == whose;
        stream == Stream::None || (is_named_alike && is_one)
    }

    /// Decides what the end of the guard does, for these streams of the producer's.
    fn edge_to(&self, producer: Option<Placed>) -> ReturnEdge {
        match producer.map(|producer| (producer, producer.stream)) {
            None => ReturnEdge::Unknown,
            Some((_, Stream::None)) => ReturnEdge::NotNeeded,
            Some((producer, _)) => {
                let is_same = self.is_on(producer) && self.moved.is_none_or(|to| self.is_on(to));
                match is_same {
                    true => ReturnEdge::SameStream,
                    false => ReturnEdge::Event,
                }
            }
        }
    }
}

impl CaiView {
    /// Makes `stream` wait for the data now, and the producer's stream wait for `stream` when the guard ends.
    /// Nothing is called if the two are the same. The guard keeps `stream` alive; it has an example.
    ///
    /// # Errors
    /// As [`CaiView::on`]; and `stream-thread` if the producer works on the per-thread default stream of
    /// another thread, which only that thread can make wait.
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::view::LiveStream;
    ///
    /// let view = floats();
    /// let guard = view.consume(LiveStream::PER_THREAD_DEFAULT)?;
    /// // ... a call of a C library that works on the stream and takes a pointer ...
    /// let pointer = guard.view().descriptor().data();
    /// assert_eq!(pointer, view.descriptor().data());
    /// guard.finish()?;
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    pub fn consume<'s>(&self, stream: impl IntoLiveStream<'s>) -> Result<ConsumeGuard, Error> {
        let stream = stream.into_live_stream();
        let has_stream = |stream: Option<Stream>| stream.is_some_and(|known| known != Stream::None);
        let is_ordered =
            has_stream(Some(self.ready_number())) || has_stream(self.producer_number());
        stream.for_memory(self, is_ordered, |number| {
            let mut guard =
                self.consume_kept(number, SyncPolicy::Event, |placed| {
                    match is_ordered || !number.is_default() {
                        true => stream.keep_for(self, placed),
                        false => Ok(None),
                    }
                })?;
            guard.view = self.kept_at(guard.consumer.placed, guard.kept.clone());
            Ok(guard)
        })
    }

    pub(crate) fn consume_with(
        &self,
        stream: Stream,
        policy: SyncPolicy,
    ) -> Result<ConsumeGuard, Error> {
        self.consume_kept(stream, policy, |_| Ok(None))
    }

    /// Like [`consume_with`](Self::consume_with); `keep` returns the keeper of the stream.
    fn consume_kept(
        &self,
        stream: Stream,
        policy: SyncPolicy,
        keep: impl FnOnce(Placed) -> Result<Option<Kept>, Error>,
    ) -> Result<ConsumeGuard, Error> {
        // Asked first: the producer's code may make another context current, which is that of a default stream from then on.
        let moved = self.producer_moved()?;
        let consumer = self.consumer(self.placed(stream)?, moved, policy);
        let back = self.back(consumer)?;
        let kept = keep(consumer.placed)?;
        let mut guard = self.consume_back(consumer, back, self.place())?;
        guard.kept = kept;
        Ok(guard)
    }

    /// Like [`consume_with`](Self::consume_with), for work that no capture can hold: `stream` enters none. `moved` is
    /// where the producer works ([`producer_moved`](Self::producer_moved)), until
    /// [`finish_at_once`](ConsumeGuard::finish_at_once), and `pending` the same if the ready stream has to wait for it: unless
    /// one of the edges is refused. A default stream is that of `context`, if one is given, and not
    /// of the memory's.
    pub(super) fn consume_uncaptured(
        &self,
        stream: Stream,
        context: Option<Context>,
        (moved, pending): (Option<Placed>, Option<Placed>),
        policy: SyncPolicy,
    ) -> Result<ConsumeGuard, Error> {
        check_thread(self.streams.placed_producer())?;
        let (placed, place) = match context {
            None => (self.placed(stream)?, self.place()),
            Some(context) => {
                let requested = Defaults::Of(context);
                let place = Place {
                    requested,
                    ..self.place()
                };
                (Placed::here(stream).of(requested), place)
            }
        };
        let consumer = self.consumer(placed, moved, policy);
        self.check_back(consumer)?;
        if let Some(now) = pending {
            let ready = self.ready_number();
            check_edge(ready, Request::Stream(stream), &place, policy)?;
            self.wait_for(now, policy)?;
        }
        self.consume_back(consumer, None, place)
    }

    /// Refuses a consumer whose return edge a capture would refuse. The edge to the ready stream is none of those: the one
    /// from there is refused alike.
    ///
    /// # Errors
    /// The rules of captures, and the driver's refusal of a question: nothing has been enqueued.
    fn check_back(&self, consumer: Consumer) -> Result<(), Error> {
        if consumer.edge != ReturnEdge::Event {
            return Ok(());
        }
        let ready = self.streams.placed_ready();
        let producer = (self.streams.placed_producer()).filter(|producer| *producer != ready);
        let (placed, policy) = (consumer.placed, consumer.policy);
        for producer in [producer, consumer.moved].into_iter().flatten() {
            let request = Request::Stream(producer.stream);
            let place = place_back(self.place(), placed, producer.whose);
            if consumer.is_on(producer) {
                continue;
            }
            match check_edge(placed.stream, request, &place, policy) {
                Err(Error::Violation(refused)) => {
                    let found = format_args!(
                        "{}, which the producer's {} has to wait for",
                        placed.stream, producer.stream
                    );
                    return Err((refused.with_found(found))
                        .with_hint("copy before the capture begins, or after it")
                        .into());
                }
                foreseen => foreseen?,
            }
        }
        Ok(())
    }

    /// Decides about a guard for a stream as it is placed now.
    fn consumer(&self, placed: Placed, moved: Option<Placed>, policy: SyncPolicy) -> Consumer {
        let mut consumer = Consumer {
            placed,
            edge: ReturnEdge::Unknown,
            moved,
            policy,
            entry: Entry::NotAsked,
        };
        consumer.edge = consumer.edge_to(self.streams.placed_producer());
        consumer
    }

    /// Returns what the end of the guard of `consumer` would do now, on this thread.
    ///
    /// # Errors
    /// [`Error::Producer`]; `stream-thread` if this thread cannot name a stream of the edge, as the end.
    pub(crate) fn return_edge(&self, mut consumer: Consumer) -> Result<ReturnEdge, Error> {
        consumer.moved = self.producer_moved()?;
        let producer = self.streams.placed_producer();
        let edge = consumer.edge_to(producer);
        if edge == ReturnEdge::Event && consumer.policy != SyncPolicy::None {
            check_thread(producer.filter(|producer| !consumer.is_on(*producer)))?;
            check_thread(Some(consumer.placed))?;
        }
        Ok(edge)
    }

    fn consume_back(
        &self,
        mut consumer: Consumer,
        back: Option<Back>,
        place: Place,
    ) -> Result<ConsumeGuard, Error> {
        self.enter(&mut consumer, back, &place)?;
        Ok(self.consumed(consumer))
    }

    /// Makes the forward edge from the ready stream.
    fn enter(
        &self,
        consumer: &mut Consumer,
        back: Option<Back>,
        place: &Place,
    ) -> Result<(), Error> {
        let (request, policy) = (Request::Stream(consumer.placed.stream), consumer.policy);
        let ready = self.ready_number();
        if driver::needed(ready, request, place, policy) {
            self.check_platform(request, policy)?;
            let done = with_driver(|driver| {
                driver::order_within(driver, ready, request, back, place, policy)
            })?;
            if !matches!(done, Done::Nothing(_)) {
                consumer.entry = done.into();
            }
        }
        Ok(())
    }

    /// Makes the forward edges of a writer: from the ready stream, and from the producer's, which is where the ends of readers
    /// come back to. After it [`consumed`](Self::consumed) makes the guard. The writer enters no graph if it still has to wait
    /// for something else, `is_held_up`: that wait would be none of the graph's.
    ///
    /// # Errors
    /// As [`consume`](Self::consume). If the producer's stream is refused the other one is waited for already; if that was
    /// in a capture, the producer's stream waits for `stream`.
    #[cfg(feature = "cudarc")]
    pub(crate) fn enter_to_write(
        &self,
        stream: Stream,
        is_held_up: bool,
    ) -> Result<Consumer, Error> {
        let (placed, policy) = (self.placed(stream)?, SyncPolicy::Event);
        let mut consumer = self.consumer(placed, self.producer_moved()?, policy);
        let back = self.back(consumer)?.filter(|_| !is_held_up);
        self.enter(&mut consumer, back, &self.place())?;
        if let Some(producer) = self.streams.placed_producer()
            && producer != self.streams.placed_ready()
        {
            let mut there = self.clone();
            there.streams = there.streams.with_ready(producer);
            // Nor does a graph order data that the stream has waited for by now, or holds itself.
            let is_ready = self.ready_number() == Stream::None;
            let back = back.filter(|_| is_ready || matches!(consumer.entry, Entry::InCapture(_)));
            let entered = consumer;
            if let Err(refused) = there.enter(&mut consumer, back, &there.place()) {
                if matches!(entered.entry, Entry::InCapture(_)) {
                    // The capture that it has entered for the data is lost unless it comes back.
                    drop(self.consumed(entered));
                }
                return Err(refused);
            }
        }
        Ok(consumer)
    }

    /// Makes the forward edge of [`consume_with`](Self::consume_with), without a wait of the host: returns the wait,
    /// begun, if there is one. After it [`consumed`](Self::consumed) makes the guard.
    pub(crate) fn begin_consume(
        &self,
        stream: Stream,
        policy: SyncPolicy,
    ) -> Result<(Consumer, Option<Pending>), Error> {
        let moved = self.producer_moved()?;
        let mut consumer = self.consumer(self.placed(stream)?, moved, policy);
        let (request, back) = (Request::Stream(stream), self.back(consumer)?);
        if !self.needs_order(request, policy) {
            return Ok((consumer, None));
        }
        self.check_platform(request, policy)?;
        let (ready, place) = (self.ready_number(), self.place());
        let (done, pending) =
            with_driver(|driver| driver::begin(driver, ready, request, back, &place, policy))?;
        consumer.entry = done.into();
        Ok((consumer, pending))
    }

    /// Makes the guard of a consumer that the forward edge has been made for.
    pub(crate) fn consumed(&self, consumer: Consumer) -> ConsumeGuard {
        stats::OPENED.add();
        ConsumeGuard {
            view: self.ready_at(consumer.placed),
            consumer,
            kept: None,
            ended: false,
        }
    }

    /// Returns the stream that the return edge comes back to. Only a consumer that comes back to the ready stream's
    /// capture may enter it.
    fn back(&self, consumer: Consumer) -> Result<Option<Back>, Violation> {
        let placed = self.streams.placed_producer();
        check_thread(placed)?;
        Ok(placed
            .filter(|_| consumer.edge == ReturnEdge::Event)
            .map(|Placed { stream, whose, .. }| Back { stream, whose }))
    }
}

/// Refuses an edge that would be refused, and makes none.
fn check_edge(
    ready: Stream,
    request: Request,
    place: &Place,
    policy: SyncPolicy,
) -> Result<(), Error> {
    if !driver::needed(ready, request, place, policy) {
        return Ok(());
    }
    let foreseen =
        with_driver(|driver| driver::foresee(Some(driver), ready, request, place, policy));
    match foreseen? {
        Plan::Refuse(refused) => Err(refused.into()),
        _ => Ok(()),
    }
}

/// Returns where `consumer` is, as the stream that is waited for, and the stream of the producer's, which is `whose`.
fn place_back(place: Place, consumer: Placed, whose: Defaults) -> Place {
    Place {
        thread: consumer.thread,
        ready: consumer.whose,
        requested: whose,
        ..place
    }
}

/// Refuses another thread's per-thread default stream: here its number means this thread's.
fn check_thread(placed: Option<Placed>) -> Result<(), Violation> {
    match placed {
        Some(Placed { stream, thread, .. }) if thread != thread_of(stream) => Err(Violation::new(
            Rule::StreamThread,
            Field::Argument("stream"),
            stream,
        )),
        _ => Ok(()),
    }
}

impl ConsumeGuard {
    /// Returns the data, ready on the consumer's stream.
    #[must_use]
    pub fn view(&self) -> &CaiView {
        &self.view
    }

    /// Returns what the end will do for the producer, which may still move to another stream.
    ///
    /// ```
    #[doc = floats!()]
    /// use cai_dlpack::view::{LiveStream, ReturnEdge};
    ///
    /// let view = floats();
    /// assert_eq!(view.consume(LiveStream::LEGACY_DEFAULT)?.return_edge(), ReturnEdge::NotNeeded);
    /// # Ok::<(), cai_dlpack::Error>(())
    /// ```
    #[must_use]
    pub fn return_edge(&self) -> ReturnEdge {
        self.consumer.edge
    }

    /// Asks whether the consumer's stream, which is of `context`, is being captured now, if no forward edge has told: then the
    /// end can refuse an edge in a graph that begins later, and tell work that is all of a graph. On the producer's own stream
    /// that matters for a part alone, beside which others may be written.
    #[cfg(feature = "cudarc")]
    pub(crate) fn check_entry(&mut self, context: Option<Context>, is_part: bool) {
        let consumer = &mut self.consumer;
        let is_settled = consumer.edge == ReturnEdge::SameStream && !is_part;
        if is_settled || !matches!(consumer.entry, Entry::NotAsked) {
            return;
        }
        let stream = consumer.placed.stream;
        let ask = |driver| {
            let there = context.map(|context| ContextGuard::above(driver, context));
            let _there = there.transpose()?;
            match driver.capture(stream)? {
                Capture::Active => driver.capture_id(stream).map(Entry::InCapture),
                _ => Ok(Entry::Eager),
            }
        };
        let told = with_driver(|driver| twice(|| ask(driver)));
        consumer.entry = told.unwrap_or(Entry::Unknown);
    }

    /// Where the consumer's work began, as [`check_entry`](Self::check_entry) was told.
    #[cfg(feature = "cudarc")]
    pub(crate) fn begun(&self) -> Begun {
        match self.consumer.entry {
            Entry::InCapture(capture) => Begun::InCapture(capture),
            _ => Begun::OnStream,
        }
    }

    /// Returns the stream that the guard is for, as the guard was made.
    #[cfg(feature = "cudarc")]
    pub(crate) fn placed(&self) -> Placed {
        self.consumer.placed
    }

    /// Returns the stream that the guard is for, and what its end will do.
    pub(crate) fn consumer(&self) -> Consumer {
        self.consumer
    }

    /// Whether some stream of the producer's is the consumer's, or will wait for it.
    pub(super) fn makes_producer_wait(&self) -> bool {
        match self.consumer.edge {
            ReturnEdge::SameStream => true,
            ReturnEdge::Event => self.consumer.policy != SyncPolicy::None,
            ReturnEdge::NotNeeded | ReturnEdge::Unknown => false,
        }
    }

    /// Makes the return edge: what the producer enqueues from now on waits for the consumer's work so far.
    ///
    /// # Errors
    /// The driver's refusal, or a [`Violation`] if a capture forbids the edge; [`Error::Producer`]. The guard has ended,
    /// and the producer waits for nothing: synchronise the consumer's stream before the data is written.
    pub fn finish(mut self) -> Result<ReturnEdge, Error> {
        self.end()?;
        Ok(self.consumer.edge)
    }

    /// Like [`finish`](Self::finish); also returns whether an edge is one of a graph, and orders nothing outside of it.
    #[cfg(feature = "cudarc")]
    pub(crate) fn finish_told(mut self) -> Result<(ReturnEdge, bool), Error> {
        let mut is_in_graph = false;
        self.close(CaiView::producer_moved, |guard, producer| {
            let done = guard.make_wait_for(guard.consumer.placed, producer)?;
            is_in_graph |= done.is_some_and(Done::is_in_graph);
            Ok(())
        })?;
        Ok((self.consumer.edge, is_in_graph))
    }

    /// As [`finish`](Self::finish), in the call that has begun the guard: the producer works where it did then.
    pub(super) fn finish_at_once(mut self) -> Result<(), Error> {
        let moved = self.consumer.moved;
        self.close(|_| Ok(moved), Self::make_wait)
    }

    /// As [`finish`](Self::finish), without a wait of the host: returns the wait, begun, if there is one.
    pub(crate) fn begin_finish(mut self) -> Result<Option<Pending>, Error> {
        let mut pending = None;
        self.close(CaiView::producer_moved, |guard, producer| {
            // A later mark of the same stream.
            pending = guard.begin_wait(producer)?.or(pending.take());
            Ok(())
        })?;
        Ok(pending)
    }

    /// Makes the return edge, once.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.close(CaiView::producer_moved, Self::make_wait)
    }

    /// Ends the guard. Passes each stream of the producer's to `edge` that has to wait, once: the one of the import, and
    /// then the one that `moved` returns, on which it works now.
    fn close(
        &mut self,
        moved: impl FnOnce(&CaiView) -> Result<Option<Placed>, Error>,
        mut edge: impl FnMut(&Self, Placed) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        stats::CLOSED.add();
        let producer = match (self.consumer.edge, self.view.streams.placed_producer()) {
            (ReturnEdge::SameStream | ReturnEdge::Event, Some(producer)) => producer,
            _ => return Ok(()),
        };
        if !self.consumer.is_on(producer) {
            if self.consumer.policy != SyncPolicy::None {
                check_thread(Some(producer))?;
            }
            edge(self, producer)?;
        }
        if let Some(moved) = moved(&self.view)?
            && !self.consumer.is_on(moved)
        {
            self.consumer.edge = ReturnEdge::Event;
            edge(self, moved)?;
        }
        Ok(())
    }

    /// Makes a stream of the producer's wait for the consumer's.
    fn make_wait(&self, producer: Placed) -> Result<(), Error> {
        self.make_wait_for(self.consumer.placed, producer).map(drop)
    }

    /// Like [`make_wait`](Self::make_wait), for the consumer's stream under this name; `None` if nothing has to wait.
    fn make_wait_for(&self, consumer: Placed, producer: Placed) -> Result<Option<Done>, Error> {
        let request = Request::Stream(producer.stream);
        let place = place_back(self.view.place(), consumer, producer.whose);
        let (consumer, policy) = (consumer.stream, self.consumer.policy);
        if !driver::needed(consumer, request, &place, policy) {
            return Ok(None);
        }
        let order = |driver| driver::order(driver, consumer, request, &place, policy);
        let done = with_driver(|driver| self.or_again(|| order(driver)))?;
        self.check_edge(done, producer.stream)?;
        Ok(Some(done))
    }

    /// Makes an edge, and once more if it is refused for work of a capture: that is lost if the consumer's stream does not come
    /// back.
    fn or_again<T>(&self, mut edge: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        match self.consumer.entry {
            Entry::InCapture(_) => twice(edge),
            _ => edge(),
        }
    }

    /// Refuses an edge in a graph for work that began outside of it: nothing orders what the producer enqueues after the
    /// capture behind that.
    fn check_edge(&self, done: Done, producer: Stream) -> Result<(), Violation> {
        match (done, self.consumer.entry) {
            (Done::InGraph(_, capture), Entry::InCapture(begun)) if capture == begun => Ok(()),
            (Done::Nothing(_) | Done::Event(_) | Done::HostWait(_), _) | (_, Entry::NotAsked) => {
                Ok(())
            }
            (Done::InGraph(..), _) => {
                let (rule, field) = (Rule::CaptureConsumer, Field::Argument("stream"));
                Err(Violation::new(rule, field, producer).with_hint(
                    "leave the block before the capture begins, or enter it in the capture",
                ))
            }
        }
    }

    /// As [`make_wait`](Self::make_wait), without a wait of the host. If one is returned, the producer's stream waits
    /// as well: the host's may be given up, by a cancelled task.
    fn begin_wait(&self, producer: Placed) -> Result<Option<Pending>, Error> {
        let request = Request::Stream(producer.stream);
        let place = place_back(self.view.place(), self.consumer.placed, producer.whose);
        let (consumer, policy) = (self.consumer.placed.stream, self.consumer.policy);
        if !driver::needed(consumer, request, &place, policy) {
            return Ok(None);
        }
        with_driver(|driver| {
            let begin = || driver::begin(driver, consumer, request, None, &place, policy);
            let (done, pending) = self.or_again(begin)?;
            self.check_edge(done, producer.stream)?;
            if pending.is_some() {
                driver::order(driver, consumer, request, &place, SyncPolicy::Event)?;
            }
            Ok(pending)
        })
    }
}

#[cfg(test)]
mod tests;
