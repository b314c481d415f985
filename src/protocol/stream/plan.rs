//! [`plan`]: decides what must wait for what, as a pure function from facts to a [`Plan`].

use std::fmt::{self, Display};

use super::{Platform, Request, Stream};
use crate::protocol::rule::{Field, Rule, Violation};

/// The way in which the library orders by default. An explicit request (`v.synchronize()`,
/// `stream="host"`) uses [`SyncPolicy::Event`] under any policy.
///
/// ```
/// use cai_dlpack::protocol::stream::{Plan, Request, Situation, Stream, SyncPolicy, plan};
///
/// let (there, here) = (Stream::from_raw(0x70), Request::Stream(Stream::from_raw(0x90)));
/// let by = |policy| plan(&Situation::new(there, here, policy));
/// assert!(matches!(by(SyncPolicy::Event), Plan::Event { .. }));
/// assert!(matches!(by(SyncPolicy::Host), Plan::HostWait { .. }));
/// assert!(matches!(by(SyncPolicy::None), Plan::Nothing(_)));
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum SyncPolicy {
    /// By an event between the streams; the host waits only if no stream can.
    #[default]
    Event,
    /// The host waits for the ready stream. During a stream capture, which a host wait would
    /// invalidate, still by an event.
    Host,
    /// Not at all: the caller has ordered the work.
    None,
}

/// The capture state of a stream.
///
/// ```
/// use cai_dlpack::protocol::stream::{Capture, Plan, Reason, Request, Situation, Stream, SyncPolicy, plan};
///
/// let (there, here) = (Stream::from_raw(0x70), Stream::from_raw(0x90));
/// let mut situation = Situation::new(there, Request::Stream(here), SyncPolicy::Event);
/// let reason = Reason::DifferentStreams;
/// assert_eq!(plan(&situation), Plan::Event { record: there, wait: here, reason });
/// assert_eq!(reason.sentence(), "the consumer works on another stream");
/// // A stream that is being captured cannot wait for work outside of the capture.
/// situation.requested_capture = Capture::Active;
/// assert!(matches!(plan(&situation), Plan::Refuse(_)));
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Capture {
    /// Not capturing.
    Idle,
    /// Being captured into a graph.
    Active,
    /// Part of a capture that has been invalidated.
    Invalidated,
    /// The legacy default stream while another stream of its context is being captured: the driver
    /// returns `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`, and any use of it would invalidate the capture.
    BlocksLegacy,
}

/// The facts that the order depends on.
///
/// ```
/// use cai_dlpack::protocol::stream::{Plan, Request, Situation, Stream, SyncPolicy, plan};
///
/// // The per-thread default stream of another thread has the number of this thread's own.
/// let own = Stream::PerThreadDefault;
/// let mut situation = Situation::new(own, Request::Stream(own), SyncPolicy::Event);
/// assert!(matches!(plan(&situation), Plan::Nothing(_)));
/// situation.ready_on_other_thread = true;
/// assert!(matches!(plan(&situation), Plan::Refuse(_)));
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Situation {
    /// The stream that the data is ready on.
    pub ready: Stream,
    /// The request of the consumer.
    pub request: Request,
    /// The platform of the streams.
    pub platform: Platform,
    /// The way to order.
    pub policy: SyncPolicy,
    /// Whether a per-thread default stream that the data is ready on belongs to another thread
    /// than the calling one. Ignored for other streams.
    pub ready_on_other_thread: bool,
    /// Whether a default stream that the data is ready on belongs to another context than the requested
    /// one of the same number. Ignored for other streams.
    pub ready_in_other_context: bool,
    /// The ready stream's capture state; the driver is asked only if the decision depends on it.
    pub ready_capture: Capture,
    /// The requested stream's capture state. If the host is requested, that of the legacy default stream of the
    /// context that it waits for as a whole; else [`Capture::Idle`].
    pub requested_capture: Capture,
    /// Whether both streams are captured into the same graph. Ignored unless both are
    /// [`Capture::Active`].
    pub same_capture: bool,
    /// Whether the consumer's stream is joined back to the ready stream later, as `consume()`
    /// does: a fork out of a capture is legal only then.
    pub joins_back: bool,
    /// Whether the host is to read managed memory that it must not access while *any* work runs on
    /// the device (no concurrent managed access). Then ready data has to be waited for too. Ignored for streams.
    pub exclusive_managed: bool,
}

impl Situation {
    /// Makes the common situation: CUDA, no capture, streams of the calling thread.
    #[must_use]
    pub const fn new(ready: Stream, request: Request, policy: SyncPolicy) -> Situation {
        Situation {
            ready,
            request,
            platform: Platform::Cuda,
            policy,
            ready_on_other_thread: false,
            ready_in_other_context: false,
            ready_capture: Capture::Idle,
            requested_capture: Capture::Idle,
            same_capture: false,
            joins_back: false,
            exclusive_managed: false,
        }
    }
}

/// The reason for a plan; `Display` writes a sentence for `explain`.
///
/// ```
/// use cai_dlpack::protocol::stream::{Plan, Reason, Request, Situation, Stream, SyncPolicy, plan};
///
/// let situation = Situation::new(Stream::None, Request::Host, SyncPolicy::Event);
/// assert_eq!(plan(&situation), Plan::Nothing(Reason::ReadyEverywhere));
/// assert_eq!(Reason::ReadyEverywhere.sentence(), "the data is ready; there is no stream to wait for");
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The policy leaves the order to the user.
    PolicyNone,
    /// The consumer asked for no synchronisation.
    NoSyncRequested,
    /// The data is ready on every stream.
    ReadyEverywhere,
    /// The consumer works on the ready stream.
    SameStream,
    /// The streams differ.
    DifferentStreams,
    /// Both streams are captured into the same graph: the event becomes an edge of it.
    SameCapture,
    /// The ready stream is being captured and the consumer's stream joins it until it is joined
    /// back.
    ForkFromCapture,
    /// The host is the consumer.
    HostReads,
    /// The host is the consumer of managed memory, on a device without concurrent managed access.
    HostReadsExclusively,
    /// The policy asks for a host wait.
    PolicyHost,
}

impl Reason {
    /// Returns the reason as a sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Reason::PolicyNone => "the policy \"none\" leaves the order to the caller",
            Reason::NoSyncRequested => {
                "the order is yours, as the consumer asks for no synchronisation"
            }
            Reason::ReadyEverywhere => "the data is ready; there is no stream to wait for",
            Reason::SameStream => "the consumer works on the stream that the data is ready on",
            Reason::DifferentStreams => "the consumer works on another stream",
            Reason::SameCapture => "both streams are captured into the same graph",
            Reason::ForkFromCapture => {
                "the consumer's stream enters the capture and is joined back at the end"
            }
            Reason::HostReads => "the host reads the data",
            Reason::HostReadsExclusively => {
                "the host reads managed memory, which it must not touch while the device works"
            }
            Reason::PolicyHost => "the policy \"host\" makes the host wait",
        }
    }

    /// Whether nobody waits, although the data may be pending: the order is the caller's.
    pub(crate) const fn leaves_order(self) -> bool {
        matches!(self, Reason::PolicyNone | Reason::NoSyncRequested)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

/// The decision: what waits for what.
///
/// ```
/// use cai_dlpack::protocol::stream::{Plan, Request, Situation, Stream, SyncPolicy, plan};
///
/// let (there, here) = (Stream::from_raw(0x70), Stream::from_raw(0x90));
/// match plan(&Situation::new(there, Request::Stream(here), SyncPolicy::Event)) {
///     Plan::Event { record, wait, .. } => assert_eq!((record, wait), (there, here)),
///     Plan::HostWait { stream, .. } => println!("wait for {stream}"),
///     Plan::Refuse(why) => println!("{why}"),
///     other => println!("{other}"),
/// }
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Plan {
    /// No call is made.
    Nothing(Reason),
    /// The stream `wait` waits for an event recorded on the stream `record`; the host continues.
    Event {
        /// The ready stream.
        record: Stream,
        /// The consumer's stream.
        wait: Stream,
        /// The reason.
        reason: Reason,
    },
    /// The calling thread blocks until `stream` has finished; for [`Reason::HostReadsExclusively`] until the whole
    /// context of the memory has, too.
    HostWait {
        /// The ready stream.
        stream: Stream,
        /// The reason.
        reason: Reason,
    },
    /// The work cannot be ordered. No call is made and nothing changes.
    Refuse(Violation),
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plan::Nothing(reason) => {
                let what = match reason.leaves_order() {
                    true => "nobody waits",
                    false => "nothing to do",
                };
                write!(f, "{what}: {reason}")
            }
            Plan::Event {
                record,
                wait,
                reason,
            } => {
                write!(f, "{wait} waits for an event on {record}: {reason}")
            }
            Plan::HostWait { stream, reason } => write!(f, "the host waits for {stream}: {reason}"),
            Plan::Refuse(violation) => write!(f, "refused: {violation}"),
        }
    }
}

/// Decides without facts from the driver: `Some(reason)` if there is nothing to do.
///
/// Reads neither the platform nor capture states. `None` means that [`plan`] must decide, with the capture states.
#[inline]
pub(crate) fn settled(situation: &Situation) -> Option<Reason> {
    match (situation.request, situation.ready) {
        (Request::Host, Stream::None)
            if situation.exclusive_managed && situation.policy != SyncPolicy::None =>
        {
            None
        }
        (_, Stream::None) => Some(Reason::ReadyEverywhere),
        _ if situation.policy == SyncPolicy::None => Some(Reason::PolicyNone),
        (Request::NoSync | Request::Stream(Stream::None), _) => Some(Reason::NoSyncRequested),
        (Request::Stream(requested), ready) if requested == ready => {
            let foreign = ready == Stream::PerThreadDefault && situation.ready_on_other_thread;
            let elsewhere = ready.is_default() && situation.ready_in_other_context;
            (!foreign && !elsewhere).then_some(Reason::SameStream)
        }
        _ => None,
    }
}

/// Decides what no capture state can change: the [settled] cases, and those that are refused anyway.
///
/// `None` means that the capture states are needed.
pub(crate) fn plan_without_captures(situation: &Situation) -> Option<Plan> {
    if let Some(reason) = settled(situation) {
        return Some(Plan::Nothing(reason));
    }
    if situation.platform == Platform::Rocm {
        return Some(Plan::Refuse(refusal(Rule::RocmOrder, situation)));
    }
    let foreign = situation.ready == Stream::PerThreadDefault && situation.ready_on_other_thread;
    foreign.then(|| Plan::Refuse(refusal(Rule::StreamThread, situation)))
}

/// Decides what waits for what. Pure: all facts are in the [`Situation`].
///
/// ```
/// use cai_dlpack::protocol::stream::{Plan, Reason, Request, Situation, Stream, SyncPolicy, plan};
///
/// let ready = Stream::LegacyDefault;
/// let same = Situation::new(ready, Request::Stream(ready), SyncPolicy::Event);
/// assert_eq!(plan(&same), Plan::Nothing(Reason::SameStream));
///
/// let host = Situation::new(ready, Request::Host, SyncPolicy::Event);
/// assert_eq!(
///     plan(&host).to_string(),
///     "the host waits for the legacy default stream (1): the host reads the data"
/// );
/// ```
#[must_use]
pub fn plan(situation: &Situation) -> Plan {
    if let Some(plan) = plan_without_captures(situation) {
        return plan;
    }
    match situation.request {
        Request::Stream(requested) => plan_streams(situation, requested),
        Request::Host | Request::NoSync => plan_host(situation),
    }
}

/// Plans a host wait, which is legal only for a stream that is in no capture.
fn plan_host(situation: &Situation) -> Plan {
    let reason = if situation.exclusive_managed {
        Reason::HostReadsExclusively
    } else {
        Reason::HostReads
    };
    // A wait for the whole context breaks a capture there, and its legacy stream is what tells of one.
    let is_context_captured =
        situation.exclusive_managed && situation.requested_capture != Capture::Idle;
    match situation.ready_capture {
        Capture::Idle if is_context_captured => {
            Plan::Refuse(refusal(Rule::CaptureHostWait, situation))
        }
        Capture::Idle => Plan::HostWait {
            stream: situation.ready,
            reason,
        },
        Capture::Active | Capture::Invalidated | Capture::BlocksLegacy => {
            Plan::Refuse(refusal(host_rule(situation.ready_capture), situation))
        }
    }
}

/// Plans the order of two different streams of this thread.
fn plan_streams(situation: &Situation, requested: Stream) -> Plan {
    let event = |reason| Plan::Event {
        record: situation.ready,
        wait: requested,
        reason,
    };
    match (situation.ready_capture, situation.requested_capture) {
        (Capture::Idle, Capture::Idle) => match situation.policy {
            SyncPolicy::Host => Plan::HostWait {
                stream: situation.ready,
                reason: Reason::PolicyHost,
            },
            SyncPolicy::Event | SyncPolicy::None => event(Reason::DifferentStreams),
        },
        (Capture::Active, Capture::Active) if situation.same_capture => event(Reason::SameCapture),
        (Capture::Active, Capture::Idle)
            if situation.joins_back && requested != Stream::LegacyDefault =>
        {
            event(Reason::ForkFromCapture)
        }
        states => Plan::Refuse(refusal(capture_rule(requested, states), situation)),
    }
}

/// Returns the rule that forbids a host wait for a stream in this state.
const fn host_rule(ready: Capture) -> Rule {
    match ready {
        Capture::Invalidated => Rule::CaptureInvalid,
        Capture::BlocksLegacy => Rule::CaptureLegacy,
        Capture::Idle | Capture::Active => Rule::CaptureHostWait,
    }
}

/// Returns the rule that forbids an event between two streams in these states (ready, requested).
fn capture_rule(requested: Stream, states: (Capture, Capture)) -> Rule {
    match states {
        (Capture::Invalidated, _) | (_, Capture::Invalidated) => Rule::CaptureInvalid,
        (Capture::BlocksLegacy, _) | (_, Capture::BlocksLegacy) => Rule::CaptureLegacy,
        (Capture::Active, Capture::Active) => Rule::CaptureOther,
        (Capture::Active, Capture::Idle) if requested == Stream::LegacyDefault => {
            Rule::CaptureLegacy
        }
        (Capture::Active, Capture::Idle) => Rule::CaptureProducer,
        (Capture::Idle, _) => Rule::CaptureConsumer,
    }
}

/// Refuses a pair of streams, with what to do instead.
#[cold]
fn refusal(rule: Rule, situation: &Situation) -> Violation {
    let (request, ready) = (situation.request, situation.ready);
    refused(
        rule,
        format_args!("{request} (the data is ready on {ready})"),
    )
}

/// Refuses that a stream in this state waits for work of another one that is not being captured.
#[cfg(feature = "cudarc")]
pub(crate) fn refuse_wait(stream: Stream, state: Capture) -> Option<Violation> {
    let rule = || capture_rule(stream, (Capture::Idle, state));
    (state != Capture::Idle).then(|| refused(rule(), stream))
}

#[cold]
fn refused(rule: Rule, found: impl Display) -> Violation {
    let violation = Violation::new(rule, Field::Argument("stream"), found);
    match hint(rule) {
        Some(hint) => violation.with_hint(hint),
        None => violation,
    }
}

/// What the caller of a consumer that names no stream can do in a capture, which forbids the legacy default one.
pub(crate) const NAME_THE_STREAM: &str =
    "name the stream on which the consumer works: `with cd.use_stream(stream)` around the call";

/// Returns what the caller can do instead.
const fn hint(rule: Rule) -> Option<&'static str> {
    match rule {
        Rule::RocmOrder => Some(
            "synchronise in the producer, then pass -1, or the stream that the data is ready on; what an order on ROCm \
             would need is in src/driver/rocm.rs",
        ),
        Rule::StreamThread => Some(
            "on the producer's thread, call v.on(stream) or cd.join with a stream that has a handle",
        ),
        Rule::CaptureHostWait => {
            Some("end the capture first, or consume on a stream of the same capture")
        }
        Rule::CaptureConsumer => Some(
            "before the capture begins, order the view with v.on(stream) or v.synchronize(); or let the producer work in the capture",
        ),
        Rule::CaptureProducer => Some(
            "inside `with v.consume(stream)` the stream is joined back to the capture; else consume on the capturing stream",
        ),
        Rule::CaptureOther => {
            Some("capture producer and consumer into one graph, or order the two graph launches")
        }
        Rule::CaptureLegacy => {
            Some("work on a stream of its own, made non-blocking, instead of the default one")
        }
        Rule::CaptureInvalid => Some("end the capture; its graph is lost"),
        _ => None,
    }
}
