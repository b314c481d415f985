//! Who waits for whom in a hand-over.

use std::fmt;

use super::buffer::{has_buffer, is_out_of_order};
use super::reads::Reads;
use super::row::{Call, Waits};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Access;
use crate::protocol::rule::{Rule, Violation};
use crate::protocol::stream::{
    NAME_THE_STREAM, Plan, Platform, Reason, Request, Stream, SyncPolicy,
};

/// Who waits for whom in a hand-over.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Order {
    /// No call is made.
    Nothing {
        /// The reason, a sentence.
        why: &'static str,
    },
    /// No call is made, although the data may be pending: the order is the caller's.
    Unordered {
        /// The reason, a sentence.
        why: &'static str,
    },
    /// The dict names the stream that the data is ready on, which the consumer does not wait for.
    PassedOn {
        /// That stream.
        ready: Stream,
    },
    /// `wait` waits for an event recorded on `record`.
    Event {
        /// The stream that the data is ready on.
        record: Stream,
        /// The consumer's stream.
        wait: Stream,
        /// The reason, a sentence.
        why: &'static str,
    },
    /// It depends on the stream that the consumer works on, which the caller has not named: the consumer waits for
    /// `ready`, unless it works there.
    Unnamed {
        /// The stream that the data is ready on.
        ready: Stream,
        /// The host waits in the consumer's place.
        on_host: bool,
    },
    /// The calling thread waits for `stream`.
    HostWait {
        /// The stream that the data is ready on.
        stream: Stream,
        /// The reason, a sentence.
        why: &'static str,
    },
    /// Two streams wait, one after the other.
    Both(Box<[Order; 2]>),
    /// There is no order to be made.
    Refused(Violation),
}

impl Order {
    /// The calls of the driver that make the order; `None` if they depend on a stream that is not known. Questions, such
    /// as those about captures, are not among them.
    #[must_use]
    pub fn driver_calls(&self) -> Option<Vec<&'static str>> {
        Some(match self {
            Self::Nothing { .. }
            | Self::Unordered { .. }
            | Self::PassedOn { .. }
            | Self::Refused(_) => vec![],
            Self::Event { .. } => vec!["cuEventRecord", "cuStreamWaitEvent"],
            Self::HostWait {
                stream: Stream::None,
                ..
            } => vec!["cuCtxSynchronize"],
            Self::HostWait { .. } => vec!["cuStreamSynchronize"],
            Self::Both(both) => {
                let [first, second] = &**both;
                [first.driver_calls()?, second.driver_calls()?].concat()
            }
            Self::Unnamed { .. } => return None,
        })
    }

    /// Whether it depends on a stream that the caller has not named.
    #[cfg(feature = "pyo3")]
    pub(crate) fn is_unnamed(&self) -> bool {
        match self {
            Self::Unnamed { .. } => true,
            Self::Both(both) => both.iter().any(Self::is_unnamed),
            _ => false,
        }
    }

    /// This order, and then the other one; only those that make a call, unless one is refused.
    fn then(self, next: Self) -> Self {
        match (&self, &next) {
            (_, Self::Refused(_)) | (Self::Nothing { .. } | Self::Unordered { .. }, _) => next,
            (_, Self::Nothing { .. } | Self::Unordered { .. }) => self,
            _ => Self::Both(Box::new([self, next])),
        }
    }

    /// The order of data whose producer works elsewhere now: first `wait`, that of the ready stream for it.
    #[cfg(feature = "pyo3")]
    pub(crate) fn after(self, wait: Plan) -> Self {
        let why = "the producer has moved there since the import";
        let first = match wait {
            Plan::Nothing(_) => return self,
            Plan::Refuse(refused) => return Self::Refused(refused),
            Plan::Event { record, wait, .. } => Self::Event { record, wait, why },
            Plan::HostWait { stream, .. } => Self::HostWait { stream, why },
        };
        match self {
            Self::Nothing { .. } => first,
            order => Self::Both(Box::new([first, order])),
        }
    }
}

impl From<Plan> for Order {
    fn from(plan: Plan) -> Self {
        match plan {
            Plan::Nothing(reason) => match (reason.leaves_order(), reason.sentence()) {
                (true, why) => Self::Unordered { why },
                (false, why) => Self::Nothing { why },
            },
            Plan::Event {
                record,
                wait,
                reason,
            } => Self::Event {
                record,
                wait,
                why: reason.sentence(),
            },
            Plan::HostWait { stream, reason } => Self::HostWait {
                stream,
                why: reason.sentence(),
            },
            Plan::Refuse(violation) => Self::Refused(violation),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing { why } => write!(f, "nothing to do: {why}"),
            Self::Unordered { why } => write!(f, "nobody waits: {why}"),
            Self::PassedOn { ready } => {
                write!(f, "nobody waits: {ready} is passed on in the dict")
            }
            Self::Event { record, wait, why } => {
                write!(f, "{wait} waits for an event on {record}: {why}")
            }
            Self::Unnamed { ready, on_host } => {
                let who = match on_host {
                    true => "the host waits for",
                    false => "the consumer's stream waits for an event on",
                };
                write!(f, "{who} {ready}, unless the consumer works there")
            }
            Self::HostWait { stream, why } => write!(f, "the host waits for {stream}: {why}"),
            Self::Both(both) => write!(f, "{}; {}", both[0], both[1]),
            Self::Refused(violation) => write!(f, "refused: {violation}"),
        }
    }
}

/// The consumer's part in an order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asks {
    /// It asks the view for this order.
    For(Request),
    /// It asks for device memory and names no stream; this is the one of `use_stream`.
    Unstated(Stream),
    /// It asks for the order of a stream that the caller has not named.
    Unnamed,
    /// It asks the host to wait, and then for the order of this stream, if the caller has named it.
    HostAnd(Option<Request>),
    /// It reads the stream in the dict, and waits by itself, or not at all.
    Nothing,
}

impl Call {
    /// What the call asks a view of this array for. `stream` is the one that the caller names, `work` that of
    /// `use_stream`.
    pub(crate) fn asks(&self, array: &Descriptor, stream: Option<Request>, work: Stream) -> Asks {
        if self.reads == Reads::Interface {
            return Asks::Nothing;
        }
        let platform = platform_of(array);
        let is_cpu = platform == Platform::Host;
        let is_on_host = is_cpu || platform == Platform::HostReadable;
        // An array with a buffer is not read by DLPack.
        let has_buffer = self.reads == Reads::BufferOrDlpack && has_buffer(array);
        match self.waits {
            Waits::WorkStream if is_cpu => Asks::For(Request::NoSync),
            Waits::WorkStream => Asks::For(Request::Stream(work)),
            Waits::LegacyDefault if platform == Platform::Cuda => Asks::Unstated(work),
            Waits::LegacyDefault if !is_on_host => {
                Asks::For(Request::Stream(Stream::LegacyDefault))
            }
            Waits::Nobody if !is_cpu && !has_buffer => Asks::For(Request::NoSync),
            Waits::Stream if is_on_host && self.looks_at_buffer => match is_cpu {
                true => Asks::For(Request::Host),
                false => Asks::HostAnd(stream),
            },
            Waits::Stream if !is_cpu => stream.map_or(Asks::Unnamed, Asks::For),
            // It passes no stream, which for a device of ROCm means the default one.
            Waits::Host if platform == Platform::Rocm && self.reads == Reads::Dlpack => {
                Asks::For(Request::Stream(Stream::LegacyDefault))
            }
            _ => Asks::For(Request::Host),
        }
    }

    /// What the call asks for next, if what it [asks for](Self::asks) first is refused.
    fn asks_next(&self, array: &Descriptor) -> Option<Request> {
        match (self.reads, self.waits, platform_of(array)) {
            (_, _, Platform::Host) => None,
            (Reads::BufferOrDlpack, ..) if is_out_of_order(array) => None,
            (Reads::BufferOrDlpack, ..) => Some(Request::NoSync),
            // A library that cannot take a tensor from the table calls `__dlpack__`, and passes neither a stream nor a
            // version, without which read-only data is refused. Of memory that the host cannot read it is asked for the
            // work stream again, and refused again.
            (_, Waits::WorkStream, Platform::HostReadable)
                if array.access() != Access::ReadOnly =>
            {
                Some(Request::Host)
            }
            _ => None,
        }
    }

    /// Who waits for data that is ready on `ready`. `decide` decides about what the call asks the view for, by a policy.
    ///
    /// # Errors
    /// Those of `decide`.
    pub(crate) fn order<E>(
        &self,
        array: &Descriptor,
        ready: Stream,
        stream: Option<Request>,
        asks: Asks,
        policy: SyncPolicy,
        decide: impl Fn(Request, SyncPolicy) -> Result<Order, E>,
    ) -> Result<Order, E> {
        let nothing = |reason| Order::from(Plan::Nothing(reason));
        let why = "the consumer waits for the stream in the dict";
        Ok(match (asks, self.waits, stream) {
            (Asks::For(request), ..) => match (decide(request, policy), self.asks_next(array)) {
                (Ok(Order::Refused(_)) | Err(_), Some(next)) => decide(next, policy)?,
                (Ok(Order::Refused(why)), _)
                    if (self.waits, request) == (Waits::WorkStream, LEGACY_DEFAULT) =>
                {
                    Order::Refused(name_the_stream(why))
                }
                (first, _) => first?,
            },
            (Asks::Unstated(work), ..) => unstated(work, |request| decide(request, policy))?,
            _ if ready == Stream::None => nothing(Reason::ReadyEverywhere),
            (Asks::Unnamed, ..) => unnamed(ready, policy, decide),
            (Asks::HostAnd(stream), ..) => {
                let next = match stream {
                    // A launch on stream 0 passes None, by which the host waits again under any policy; one on the legacy default
                    // stream its number.
                    None | Some(LEGACY_DEFAULT) => unnamed(ready, SyncPolicy::Event, &decide),
                    Some(request) => decide(request, policy)?,
                };
                match decide(Request::Host, policy)? {
                    // Of a buffer that is refused the library asks for the tensor.
                    Order::Refused(_) => next,
                    first => first.then(next),
                }
            }
            // The library's own wait is refused by the driver as ours would be, as for a stream that is being captured.
            (Asks::Nothing, Waits::Host, _) => match decide(Request::Host, SyncPolicy::Event)? {
                Order::Refused(why) => Order::Refused(why),
                _ => Order::HostWait { stream: ready, why },
            },
            (Asks::Nothing, Waits::Nobody, _) => Order::PassedOn { ready },
            (Asks::Nothing, _, Some(Request::Stream(wait))) if wait == ready => {
                nothing(Reason::SameStream)
            }
            (Asks::Nothing, _, Some(Request::Stream(wait))) => {
                match decide(Request::Stream(wait), SyncPolicy::Event)? {
                    Order::Refused(why) => Order::Refused(why),
                    _ => Order::Event {
                        record: ready,
                        wait,
                        why,
                    },
                }
            }
            (Asks::Nothing, _, Some(_)) => nothing(Reason::NoSyncRequested),
            (Asks::Nothing, _, None) => Order::Unnamed {
                ready,
                on_host: false,
            },
        })
    }
}

/// The order of a stream that the caller has not named.
fn unnamed<E>(
    ready: Stream,
    policy: SyncPolicy,
    decide: impl Fn(Request, SyncPolicy) -> Result<Order, E>,
) -> Order {
    let on_host = match policy {
        SyncPolicy::None => return Plan::Nothing(Reason::PolicyNone).into(),
        policy => policy == SyncPolicy::Host,
    };
    match decide(LEGACY_DEFAULT, policy) {
        // That is so of every stream: the data is ready on one of another thread's.
        Ok(Order::Refused(why)) if why.rule() == Rule::StreamThread => Order::Refused(why),
        _ => Order::Unnamed { ready, on_host },
    }
}

const LEGACY_DEFAULT: Request = Request::Stream(Stream::LegacyDefault);

/// The order of device memory for a consumer that names no stream: the legacy default one waits, and `work`, which is that
/// of `use_stream`; the latter alone if a capture forbids the former.
///
/// # Errors
/// Those of `decide`.
pub(crate) fn unstated<E>(
    work: Stream,
    decide: impl Fn(Request) -> Result<Order, E>,
) -> Result<Order, E> {
    if work == Stream::LegacyDefault {
        return Ok(match decide(LEGACY_DEFAULT)? {
            Order::Refused(why) => Order::Refused(name_the_stream(why)),
            order => order,
        });
    }
    Ok(
        match (decide(Request::Stream(work))?, decide(LEGACY_DEFAULT)?) {
            (Order::Refused(why), _) => Order::Refused(why),
            (work, Order::Refused(why)) if why.rule() == Rule::CaptureLegacy => work,
            (_, Order::Refused(why)) => Order::Refused(why),
            (work, legacy) => work.then(legacy),
        },
    )
}

/// A refusal, with the way out of a consumer that names no stream.
fn name_the_stream(why: Violation) -> Violation {
    match why.rule() {
        Rule::CaptureLegacy => why.with_hint(NAME_THE_STREAM),
        _ => why,
    }
}

/// The platform of an array's device.
pub(crate) fn platform_of(array: &Descriptor) -> Platform {
    Platform::of(array.device()).unwrap_or(Platform::Host)
}
