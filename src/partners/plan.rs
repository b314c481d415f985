//! How a library would import an array: decided from the table, and not done.

use std::convert::Infallible;

use super::order::{Order, platform_of};
use super::reads::Reads;
use super::row::{Call, Drops, Partner};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, DeviceType};
use crate::protocol::dtype::DType;
use crate::protocol::stream::{Request, Situation, Stream, SyncPolicy, plan};
use crate::protocol::whole::Whole;

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
    /// What only trying the call, or a remedy, tells; `None` if nothing.
    pub unknown: Option<String>,
    /// What takes the array instead.
    pub remedies: Vec<Remedy>,
}

/// A Python expression that takes an array which a call refuses; `v` is the view.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Remedy {
    /// The expression.
    pub code: String,
    /// What it does, as the end of a sentence that begins with it.
    pub does: &'static str,
    /// The argument that it passes to the preferred call instead of `v`; `None` if it is another call.
    pub argument: Option<&'static str>,
    /// The device type that it passes, if only some builds of the library import that.
    pub by_build: Option<DeviceType>,
}

impl HandOver {
    /// The refusal with its remedies, in a sentence.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        Some(with_remedies(self.refused.as_deref()?, &self.remedies))
    }
}

/// A refusal with its remedies, in a sentence.
pub(crate) fn with_remedies(refused: &str, remedies: &[Remedy]) -> String {
    let mut sentence = refused.to_owned();
    for remedy in remedies {
        sentence.extend(["; ", &remedy.code, " ", remedy.does]);
    }
    sentence
}

impl Partner {
    /// Decides how this library would import an array that is ready on `ready`.
    ///
    /// `stream` is the stream that the consumer works on, if it is known. Captures are not looked at, and
    /// order is made by events.
    ///
    /// The answer is about the preferred [`call`](Self::call); if that refuses the array and another one does not,
    /// a remedy names the other.
    #[must_use]
    pub fn plan(
        &'static self,
        array: &Descriptor,
        ready: Stream,
        stream: Option<Stream>,
    ) -> HandOver {
        let (refused, remedies) = self.refusals(array, |_, _| None, |_, _| true);
        let platform = platform_of(array);
        let stream = stream.map(Request::from);
        let call = self.call_of(array.device());
        let asks = call.asks(array, stream, Stream::LegacyDefault);
        let policy = SyncPolicy::Event;
        let decide = |request, policy| {
            let situation = Situation::new(ready, request, policy);
            let plan = plan(&Situation {
                platform,
                ..situation
            });
            Ok::<_, Infallible>(Order::from(plan))
        };
        let Ok(order) = call.order(array, ready, stream, asks, policy, decide);
        HandOver {
            call,
            order,
            unknown: self.unknown(array.device(), refused.is_some(), &remedies),
            refused,
            remedies,
        }
    }

    /// What only trying the preferred call, or what takes the array instead, tells.
    pub(crate) fn unknown(
        &self,
        device: Device,
        is_refused: bool,
        remedies: &[Remedy],
    ) -> Option<String> {
        let device_type = match is_refused {
            false => self.call_of(device).by_build(device),
            true => remedies.iter().find_map(|remedy| remedy.by_build),
        }?;
        Some(format!(
            "whether {}, as it is installed, takes memory of device type {device_type}: cannot be known without trying",
            self.name
        ))
    }

    /// Why the preferred call refuses an array, and what takes it instead: a copy only if nothing else does. `exports` is
    /// why the view itself refuses to be exported to a call, as the described array; `can` is whether a change can be made,
    /// which gives the described array, and the library's build takes that. What loses lanes reads other numbers, and is no
    /// remedy.
    pub(crate) fn refusals(
        &'static self,
        array: &Descriptor,
        exports: impl Fn(&Call, &Descriptor) -> Option<String>,
        can: impl Fn(Change, &Descriptor) -> bool,
    ) -> (Option<String>, Vec<Remedy>) {
        let refusal = |call: &Call, array: &Descriptor| {
            self.refusal(call, array).or_else(|| exports(call, array))
        };
        let keeps_lanes =
            |call: &Call| !call.drops.contains(&Drops::Lanes) || !Drops::Lanes.applies_to(array);
        let preferred = self.call_of(array.device());
        let Some(refused) = refusal(preferred, array) else {
            return (None, Vec::new());
        };
        let others = (self.more.iter())
            .filter(|call| keeps_lanes(call) && refusal(call, array).is_none())
            .map(|call| Remedy {
                code: call.code.to_owned(),
                does: match call.copies {
                    true => "copies it",
                    false if call.drops.contains(&Drops::Layout) => "takes its bytes",
                    false => "takes it",
                },
                argument: None,
                by_build: call.by_build(array.device()),
            });
        let changed = Change::IN_PLACE.iter().filter_map(|change| {
            let changed = change.of(array)?;
            let call = self.call_of(changed.device());
            let is_taken = keeps_lanes(call) && refusal(call, &changed).is_none();
            (is_taken && can(*change, &changed)).then(|| self.after(*change, &changed))
        });
        let mut remedies: Vec<_> = others.chain(changed).collect();
        // A copy does not help against a capture.
        let may_copy = keeps_lanes(preferred) && self.refusal(preferred, array).is_some();
        if remedies.is_empty() && may_copy {
            let changes = match self.device_refusal(preferred, array.device()) {
                Some(_) => &[Change::ToCpu, Change::ToCuda][..],
                None => &[Change::InCOrder][..],
            };
            let copied = changes.iter().filter_map(|change| {
                let copy = change.of(array)?;
                let is_taken = self.refusal(self.call_of(copy.device()), &copy).is_none();
                (is_taken && can(*change, &copy)).then(|| self.after(*change, &copy))
            });
            remedies.extend(copied);
        }
        (Some(refused), remedies)
    }

    /// The preferred call of an array that has been changed.
    fn after(&self, change: Change, changed: &Descriptor) -> Remedy {
        let call = self.call_of(changed.device());
        Remedy {
            code: call.code_of(change.code()),
            does: change.does(),
            argument: Some(change.code()),
            by_build: call.by_build(changed.device()),
        }
    }

    /// Why a call refuses all memory of a device, by the table.
    pub(crate) fn device_refusal(&self, call: &Call, device: Device) -> Option<String> {
        let (name, device_type) = (self.name, device.device_type);
        (!call.takes(device))
            .then(|| format!("{name} takes no memory of device type {device_type}"))
    }

    /// Why a call refuses an array, by the table.
    pub(crate) fn refusal(&self, call: &Call, array: &Descriptor) -> Option<String> {
        let refused = self.device_refusal(call, array.device());
        if refused.is_some() {
            return refused;
        }
        let readable = match call.reads {
            Reads::Interface => array.check_interface().map(drop),
            // NumPy takes the types of ml_dtypes by `__array__`; of a buffer the row says what has none.
            Reads::ArrayInterface | Reads::Buffer | Reads::View => Ok(()),
            Reads::Dlpack | Reads::Capsule | Reads::BufferOrDlpack => array.check_dlpack(),
        };
        if let Err(violation) = readable {
            return Some(violation.to_string());
        }
        let mut refuses = call.refuses.iter();
        let refuses = refuses.find(|refuses| refuses.applies_to(array, call.reads))?;
        Some(format!("{} refuses {refuses}", self.name))
    }
}

impl Call {
    /// Why some versions of the library end the process at an array, if they do.
    #[cfg(feature = "pyo3")]
    pub(crate) fn abort(&self, array: &Descriptor) -> Option<&'static super::Refuses> {
        let mut aborts = self.aborts.iter();
        aborts.find(|aborts| aborts.applies_to(array, self.reads))
    }

    /// The device type, if only some builds of the library import it.
    fn by_build(&self, device: Device) -> Option<DeviceType> {
        let device_type = device.device_type;
        self.by_build.contains(&device_type).then_some(device_type)
    }

    /// The expression for another view than `v`.
    fn code_of(&self, view: &str) -> String {
        let argument = self.code.replacen("(v,", &format!("({view},"), 1);
        argument.replacen("(v)", &format!("({view})"), 1)
    }
}

/// A change of a view that makes it acceptable to more calls.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Writable,
    Cuda,
    Bytes,
    ToCpu,
    ToCuda,
    InCOrder,
}

impl Change {
    /// Of what is told about the same memory.
    const IN_PLACE: [Self; 3] = [Self::Writable, Self::Cuda, Self::Bytes];

    const fn code(self) -> &'static str {
        match self {
            Self::Writable => "cd.view(v, read_only=False)",
            Self::Cuda => "v.present_as(\"cuda\")",
            Self::Bytes => "cd.view(v, dtype=\"uint8\", shape=(v.nbytes,))",
            Self::ToCpu => "cd.from_dlpack(v, device=\"cpu\")",
            Self::ToCuda => "cd.from_dlpack(v, device=\"cuda\")",
            Self::InCOrder => "cd.from_dlpack(v, copy=True)",
        }
    }

    const fn does(self) -> &'static str {
        match self {
            Self::Writable => "asserts that it is not written",
            Self::Cuda => "names it device memory",
            Self::Bytes => "presents the bytes of its packed elements",
            Self::ToCpu => "copies it to the CPU",
            Self::ToCuda => "copies it to the GPU",
            Self::InCOrder => "copies it in C order",
        }
    }

    /// The array as it is described after the change; `None` if the change does nothing.
    fn of(self, array: &Descriptor) -> Option<Descriptor> {
        match self {
            Self::Writable => (array.access() != Access::Writable)
                .then(|| array.clone().with_access(Access::Writable)),
            Self::Cuda => {
                let device_type = array.device().device_type;
                let is_mapped = matches!(
                    device_type,
                    DeviceType::CUDA_MANAGED | DeviceType::CUDA_HOST
                );
                let on_device = || array.clone().with_device(Device::cuda(0)).ok();
                is_mapped.then(on_device).flatten()
            }
            Self::Bytes => {
                let is_packed = array.dtype().is_sub_byte() && array.itemsize().is_none();
                let nbytes = i64::try_from(array.nbytes()).ok().filter(|_| is_packed)?;
                array.clone().with_shape(DType::U8, &[nbytes]).ok()
            }
            Self::ToCpu => copied(array, DeviceType::CUDA, Device::HOST),
            Self::ToCuda => copied(array, DeviceType::CPU, Device::cuda(0)),
            Self::InCOrder => copied(array, array.device().device_type, array.device()),
        }
    }
}

/// The array as it is described after a copy from one kind of memory to another; `None` if it is not of the first.
fn copied(array: &Descriptor, from: DeviceType, to: Device) -> Option<Descriptor> {
    let whole = Whole::of(array).ok()?;
    (array.device().device_type == from).then(|| whole.at(ALIGNED, to, array).ok())?
}

/// An address as that of a copy is: aligned for any type.
const ALIGNED: u64 = 4096;
