//! How a library would import an array: decided from the table, and not done.

use std::fmt;

use super::reads::Reads;
use super::row::{Call, Partner, Waits};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::Device;
use crate::protocol::rule::Violation;
use crate::protocol::stream::{Plan, Platform, Request, Situation, Stream, SyncPolicy, plan};

/// Who waits for whom in a hand-over.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Order {
    /// No call is made.
    Nothing {
        /// The reason, a sentence.
        why: &'static str,
    },
    /// The dict names the stream that the data is ready on; no call is made.
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
    /// The calling thread waits for `stream`.
    HostWait {
        /// The stream that the data is ready on.
        stream: Stream,
        /// The reason, a sentence.
        why: &'static str,
    },
    /// There is no order to be made.
    Refused(Violation),
}

impl From<Plan> for Order {
    fn from(plan: Plan) -> Self {
        match plan {
            Plan::Nothing(reason) => Self::Nothing {
                why: reason.sentence(),
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
            Self::PassedOn { ready } => {
                write!(f, "{ready} is passed on in the dict; no call is made")
            }
            Self::Event { record, wait, why } => {
                write!(f, "{wait} waits for an event on {record}: {why}")
            }
            Self::HostWait { stream, why } => write!(f, "the host waits for {stream}: {why}"),
            Self::Refused(violation) => write!(f, "refused: {violation}"),
        }
    }
}

/// How a library would import an array.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HandOver {
    /// The call to make.
    pub call: &'static Call,
    /// Who would wait for whom.
    pub order: Order,
    /// Why the call would refuse the array; `None` if nothing is known against it.
    pub refused: Option<String>,
    /// What to do about the refusal.
    pub remedy: Option<String>,
}

impl HandOver {
    /// The refusal with its remedy, in a sentence.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let refused = self.refused.as_deref()?;
        Some(match &self.remedy {
            Some(remedy) => format!("{refused}; {remedy}"),
            None => refused.to_owned(),
        })
    }
}

/// What is asked about a hand-over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The consumer's stream, if the caller has named one.
    pub(crate) stream: Option<Request>,
    pub(crate) policy: SyncPolicy,
    /// The array's device is known, and not only assumed.
    pub(crate) is_located: bool,
}

impl Partner {
    /// Decides how this library would import an array that is ready on `ready`.
    ///
    /// `stream` is the stream that the consumer works on, if it is known. Captures are not looked at, and
    /// order is made by events.
    ///
    /// The answer is about the preferred [`call`](Self::call); if that refuses the array and another one does not,
    /// the remedy names the other.
    #[must_use]
    pub fn plan(
        &'static self,
        array: &Descriptor,
        ready: Stream,
        stream: Option<Stream>,
    ) -> HandOver {
        let asked = Asked {
            stream: stream.map(Request::from),
            policy: SyncPolicy::Event,
            is_located: true,
        };
        self.plan_asked(array, ready, asked)
    }

    pub(crate) fn plan_asked(
        &'static self,
        array: &Descriptor,
        ready: Stream,
        asked: Asked,
    ) -> HandOver {
        let refusal = |call: &Call| self.refusal(call, array, asked.is_located);
        let (refused, remedy) = refusal(&self.call).unzip();
        let other = || {
            let call = self.more.iter().find(|call| refusal(call).is_none())?;
            let does = if call.copies { "copies" } else { "takes" };
            Some(format!("{} {does} it", call.code))
        };
        let remedy = remedy.and_then(|remedy| remedy.or_else(other));
        HandOver {
            call: &self.call,
            order: order(&self.call, array, ready, asked),
            refused,
            remedy,
        }
    }

    /// Why a call refuses an array, and what to do.
    fn refusal(
        &self,
        call: &Call,
        array: &Descriptor,
        is_located: bool,
    ) -> Option<(String, Option<String>)> {
        let device = array.device();
        let is_foreign = !call.devices.is_empty() && !call.devices.contains(&device.device_type);
        if is_located && is_foreign {
            let is_mapped = matches!(device.device_type, Device::CUDA_MANAGED | Device::CUDA_HOST)
                && call.devices.contains(&Device::CUDA);
            let remedy = "v.present_as(\"cuda\") names it device memory";
            return Some((
                format!(
                    "{} takes no memory of device type {}",
                    self.name, device.device_type
                ),
                is_mapped.then(|| remedy.to_owned()),
            ));
        }
        let readable = match call.reads {
            Reads::Interface => array.check_interface().map(drop),
            Reads::ArrayInterface => array.items().map(drop),
            Reads::Dlpack | Reads::Capsule | Reads::Buffer | Reads::BufferOrDlpack => {
                array.check_dlpack()
            }
        };
        if let Err(violation) = readable {
            return Some((violation.to_string(), None));
        }
        let refuses =
            (call.refuses.iter()).find(|refuses| refuses.applies_to(array, call.reads))?;
        Some((
            format!("{} refuses {refuses}", self.name),
            refuses.remedy().map(str::to_owned),
        ))
    }
}

/// Who would wait for whom, were the call made.
fn order(call: &Call, array: &Descriptor, ready: Stream, asked: Asked) -> Order {
    if call.reads == Reads::Interface && asked.stream.is_none() {
        return Order::PassedOn { ready };
    }
    order_for(array, ready, asked, Some(call.waits))
}

/// Who would wait for whom; `waits` is what the consumer asks for if the caller has named no stream.
pub(crate) fn order_for(
    array: &Descriptor,
    ready: Stream,
    asked: Asked,
    waits: Option<Waits>,
) -> Order {
    let device_type = array.device().device_type;
    let platform = Platform::from_device_type(device_type).unwrap_or(Platform::Host);
    let reads_on_host = matches!(platform, Platform::Host | Platform::HostReadable);
    let request = match (asked.stream, waits) {
        (Some(request), _) => request,
        (None, Some(Waits::Host)) => Request::Host,
        (None, Some(Waits::Nobody)) if !reads_on_host => Request::NoSync,
        (None, _) if reads_on_host => Request::Host,
        (None, _) => Request::Stream(Stream::LegacyDefault),
    };
    let situation = Situation {
        platform,
        ..Situation::new(ready, request, asked.policy)
    };
    plan(&situation).into()
}
