//! A row of the table: the facts about one library, as types.

use std::fmt;

use super::reads::Reads;
use super::refuses::Refuses;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, DeviceType};
use crate::protocol::dtype::code;
use crate::protocol::interface::Descr;

/// A library that exchanges arrays through this bridge.
#[derive(Debug)]
#[non_exhaustive]
pub struct Partner {
    /// The name that Python imports; `explain(to=...)` takes it.
    pub name: &'static str,
    /// The name in the library's own spelling.
    pub title: &'static str,
    /// Other names that people type; `explain(to=...)` takes them too.
    pub aliases: &'static [&'static str],
    /// The distribution on PyPI whose version was checked.
    pub distribution: &'static str,
    /// The other distributions on PyPI that install it, of which `*` stands for digits, as those of a CUDA version;
    /// `explain(to=...)` takes them too.
    pub distributions: &'static [&'static str],
    /// The modules in which its array types are defined, or their parent packages.
    pub modules: &'static [&'static str],
    /// The version that the facts hold for.
    pub version: &'static str,
    /// How the facts were checked.
    pub checked: Checked,
    /// What it does when it exports; `None` if it has no arrays of its own.
    pub producer: Option<Producer>,
    /// The class whose exchange table imports tensors, as `module.Class`; without a table, the preferred call does.
    pub array: Option<&'static str>,
    /// The call that imports a view, preferred over [`more`](Self::more).
    pub call: Call,
    /// Further calls that import a view. One of the preferred call's own expression is how that reads memory of other
    /// devices.
    pub more: &'static [Call],
    /// The launch that takes a view itself, as it does an array of the library's: nothing is imported, and less waits.
    pub launch: Option<Call>,
    /// What it does wrong.
    pub faults: &'static [Fault],
}

/// How the facts of a [`Partner`] were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checked {
    /// By the conformance matrix, on the host and on the simulated driver.
    Matrix,
    /// By the conformance matrix, on the host.
    MatrixHost,
    /// By `make torch`, on the host.
    Torch,
    /// By a test of the repository that calls it.
    Test,
    /// By reading its source.
    Source,
}

impl Checked {
    /// The column of docs/partners.md.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Matrix => "matrix",
            Self::MatrixHost => "matrix, CPU",
            Self::Torch => "torch, CPU",
            Self::Test => "test",
            Self::Source => "source",
        }
    }
}

/// A [`Partner`] as the origin of arrays.
#[derive(Debug)]
#[non_exhaustive]
pub struct Producer {
    /// The Python expression that imports its array.
    pub call: &'static str,
    /// The protocols by which its arrays can be read.
    pub exports: &'static [Reads],
    /// The device types of DLPack that its arrays are of, without those that a user of it has to ask for.
    pub devices: &'static [DeviceType],
    /// What the import must allow for.
    pub quirks: &'static [Quirk],
    /// What an array that names no stream says about pending work.
    pub silence: Silence,
    /// Where [`silence`](Self::silence) was found.
    pub evidence: &'static str,
    /// Whether its arrays can be written, if it exports tensors without a read-only flag; `None` if all that it
    /// exports has the flag.
    pub untold: Option<Mutability>,
    /// The device types of DLPack whose arrays it says to be read-only, all of them.
    pub read_only: &'static [DeviceType],
    /// What it does not export.
    pub refuses: &'static str,
}

/// What the import of a library's arrays must allow for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quirk {
    /// Its `__dlpack__` accepts a stream without using it, and its exchange table, if it has one, always reports
    /// stream NULL: what it exports is undeclared ([`Silence::Unknown`]).
    IgnoresStream,
    /// It exports bfloat16 with the typestr of float16 or uint16.
    MislabelsBfloat16,
    /// Its `__dlpack__` requires, or works on, the current device, so that the array's device is made current.
    WantsCurrentDevice,
    /// Its `__dlpack__` ends the process for a dtype that it cannot export, so that the array's `dtype` is read first.
    AbortsOnDtype,
}

impl Quirk {
    /// The column of docs/partners.md.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IgnoresStream => "ignores `stream`",
            Self::MislabelsBfloat16 => "mislabels bfloat16",
            Self::WantsCurrentDevice => "wants its device current",
            Self::AbortsOnDtype => "aborts on a dtype that it cannot export",
        }
    }
}

/// What it means that a producer names no stream: the data is ready, or undeclared.
///
/// Undeclared data is ordered after the stream that it may be pending on. If that is unknown, the legacy default stream
/// is taken and a warning says so. A strict import refuses undeclared data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Silence {
    /// The data is ready.
    Ready,
    /// Work may be pending on a default stream: the legacy one or, by the library's settings, those of its threads.
    /// The legacy one waits for all of them, and they for it: "the per-thread default stream is not a non-blocking
    /// stream and will synchronize with the legacy default stream" (CUDA Runtime API, "Stream synchronization
    /// behavior"). On which thread the work is, no protocol names.
    LegacyDefault,
    /// Work may be pending on a stream that cannot be told.
    Unknown,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::LegacyDefault => f.write_str("undeclared: pending on stream 1"),
            Self::Unknown => f.write_str("undeclared: unknown"),
        }
    }
}

/// Whether the arrays of a library can be written, which the legacy tensors that it exports cannot state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutability {
    /// The library's arrays can be written.
    Mutable,
    /// The library's arrays never change.
    Immutable,
    /// Some can be written, some cannot.
    Unknown,
}

impl Mutability {
    /// The column of docs/partners.md.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutable => "mutable",
            Self::Immutable => "immutable",
            Self::Unknown => "unknown",
        }
    }
}

/// A call that imports a view.
#[derive(Debug)]
#[non_exhaustive]
pub struct Call {
    /// The Python statement that the call needs before.
    pub import: &'static str,
    /// The Python expression; `v` is the view.
    pub code: &'static str,
    /// The protocol that it reads.
    pub reads: Reads,
    /// Who waits until the data is ready.
    pub waits: Waits,
    /// The attribute by which the library's user switches that wait off, as `module.attribute`; empty if there is none.
    pub(crate) waits_if: &'static str,
    /// What the caller does about the order; empty if there is nothing to do.
    pub advice: &'static str,
    /// The DLPack device types that it imports; empty for all.
    pub devices: &'static [DeviceType],
    /// The device types of these that only some builds of the library import, such as those with CUDA.
    pub by_build: &'static [DeviceType],
    /// The attribute that is None or "False" in the builds without them, as `module.attribute`; empty if there is none.
    pub build: &'static str,
    /// The arrays that it refuses.
    pub refuses: &'static [Refuses],
    /// Those of [`refuses`](Self::refuses) at which some versions of the library end the process: `to` refuses them
    /// before it calls.
    pub aborts: &'static [Refuses],
    /// The fields that it does not read, beside those that it [drops](Self::drops); empty if nothing is known.
    pub ignores: &'static str,
    /// The properties of the view that its array lacks.
    pub drops: &'static [Drops],
    /// It copies the elements.
    pub copies: bool,
    /// It is passed the consumer's stream as `s`, and passes it to the view whatever the memory; -1 is none.
    pub passes_stream: bool,
    /// It looks at the buffer of memory that the host can read, for which the host waits then.
    pub(crate) looks_at_buffer: bool,
    /// It imports a bare capsule too.
    pub takes_capsules: bool,
    /// The caller's own object that the call needs beside the view, if it is not the one that is called; else empty.
    pub(crate) own: &'static str,
}

impl Call {
    /// Who waits, and what the caller does about it, in a sentence.
    #[must_use]
    pub fn streams(&self) -> String {
        match self.advice {
            "" => self.who_waits(),
            advice => format!("{}: {advice}", self.who_waits()),
        }
    }

    /// What the caller does about an array, as [`advice`](Self::advice) has it; of data that is ready no view is ordered.
    #[cfg(feature = "pyo3")]
    pub(crate) fn advice_for(&self, is_ready: bool) -> String {
        let helps = |part: &&str| !is_ready || !part.contains("`v.");
        let parts: Vec<_> = self.advice.split("; ").filter(helps).collect();
        parts.join("; ")
    }

    /// Who waits, and by which setting nobody does.
    pub(crate) fn who_waits(&self) -> String {
        let waits = self.waits.name();
        match self.waits_if {
            _ if self.looks_at_buffer => {
                format!(
                    "{waits}; for pinned and managed memory the host waits, as their buffer is looked at"
                )
            }
            "" => waits.to_owned(),
            setting => format!("{waits}, unless `{setting}` is off"),
        }
    }

    /// The view that a caller passes to a call for which nobody waits, such as `v.synchronize()`: the first code of the
    /// [`advice`](Self::advice).
    #[cfg(test)]
    pub(super) fn ordered(&self) -> Option<&'static str> {
        let code = self.advice.split_once("pass `")?.1.split_once('`')?.0;
        (self.waits == Waits::Nobody).then_some(code)
    }

    /// The call, with others who wait: the library's user has set it so.
    #[cfg(feature = "pyo3")]
    pub(crate) const fn with_waits(&self, waits: Waits) -> Self {
        Self { waits, ..*self }
    }
}

impl Call {
    /// Whether it takes memory of a device's type, if its build does.
    pub(super) fn takes(&self, device: Device) -> bool {
        self.devices.is_empty() || self.devices.contains(&device.device_type)
    }

    /// Whether the host waits for the stream in the dict: the library does it, and asks the view for nothing.
    #[cfg(feature = "pyo3")]
    pub(crate) fn waits_unasked(&self) -> bool {
        (self.reads, self.waits) == (Reads::Interface, Waits::Host)
    }

    /// The name of the caller's own object that the call needs beside the view, such as a kernel; `None` if it needs
    /// none.
    #[must_use]
    pub fn needs(&self) -> Option<&'static str> {
        if !self.own.is_empty() {
            return Some(self.own);
        }
        let imported = self.import.rsplit([' ']).next().unwrap_or_default();
        let bound = match self.import.starts_with("from ") || self.import.contains(" as ") {
            true => imported,
            false => imported.split('.').next().unwrap_or_default(),
        };
        let first = self.code.split(['.', '(']).next().unwrap_or_default();
        (first != bound).then_some(first)
    }

    /// The function, if the call passes it the view and nothing else.
    #[must_use]
    #[cfg(feature = "pyo3")]
    pub(crate) fn function(&self) -> Option<&'static str> {
        let name = self.code.strip_suffix("(v)")?;
        let is_dotted = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.');
        name.chars().all(is_dotted).then_some(name)
    }
}

/// A property that a [`Call`] accepts without an error, and that its array lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drops {
    /// The read-only flag: its array can be written.
    ReadOnly,
    /// The read-only flag of an array without elements: DLPack has no address for one, and the library takes memory of its
    /// own, in which there is nothing to write.
    EmptyReadOnly,
    /// The lanes of an element type: its array has elements of one.
    Lanes,
    /// The fields of records: its array has items of raw bytes.
    Fields,
    /// Shape, strides and type: it has the bytes alone.
    Layout,
    /// Half the bits of a 64-bit type: its array has elements of 32 bits, converted, while a setting is off.
    Width,
    /// Shape and strides of items of no whole number of bytes: its array raises if it is asked for them.
    BitAxes,
    /// A type that NumPy lacks, other than bfloat16: its array raises if it is asked for it.
    TypeBeyondNumpy,
}

impl Drops {
    /// The column of docs/partners.md, and the words of `explain`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "the read-only flag",
            Self::EmptyReadOnly => "the read-only flag of an array without elements",
            Self::Lanes => "the lanes of a type",
            Self::Fields => "the fields of records",
            Self::Layout => "shape, strides and type",
            Self::Width => "half the bits of 64-bit types, while jax_enable_x64 is off",
            Self::BitAxes => "shape and strides of items of no whole number of bytes",
            Self::TypeBeyondNumpy => "types that NumPy lacks, but for bfloat16",
        }
    }

    /// The setting of the library that keeps it, as a dotted name; empty if there is none.
    #[cfg(feature = "pyo3")]
    pub(crate) const fn unless(self) -> &'static str {
        match self {
            Self::Width => "jax.config.jax_enable_x64",
            _ => "",
        }
    }

    /// Whether an array has it.
    #[must_use]
    pub fn applies_to(self, array: &Descriptor) -> bool {
        match self {
            Self::ReadOnly => array.access() != Access::Writable,
            Self::EmptyReadOnly => array.len() == 0 && Self::ReadOnly.applies_to(array),
            Self::Lanes => array.dtype().lanes() > 1,
            Self::Layout => true,
            Self::BitAxes => Refuses::BitItems.applies_to(array, Reads::Dlpack),
            Self::TypeBeyondNumpy => {
                let lacks = [
                    Refuses::DType("float8"),
                    Refuses::DType("complex32"),
                    Refuses::SubByte,
                    Refuses::Lanes,
                ];
                (lacks.iter()).any(|lacks| lacks.applies_to(array, Reads::Dlpack))
            }
            Self::Width => {
                let dtype = array.dtype();
                let is_complex = matches!(dtype.code(), code::COMPLEX | code::BCOMPLEX);
                let parts = if is_complex { 2 } else { 1 };
                !dtype.is_cai_only() && dtype.bits() == 64 * parts
            }
            Self::Fields => {
                (array.cai_only()).is_some_and(|only| matches!(only.descr(), Descr::Fields(_)))
            }
        }
    }
}

/// Who waits until the data is ready, in a [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waits {
    /// The stream that the library, or its caller, works on.
    Stream,
    /// The legacy default stream, and the one of `use_stream`: the library names none.
    LegacyDefault,
    /// The legacy default stream, or the one of `use_stream`: the library asks the exchange table for it.
    WorkStream,
    /// The host.
    Host,
    /// Nobody: the library reads the address and starts.
    Nobody,
}

impl Waits {
    /// The column of docs/partners.md, and the sentence of `explain`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "its stream waits",
            Self::LegacyDefault => {
                "the legacy default stream waits, and the one of `cd.use_stream`"
            }
            Self::WorkStream => "the legacy default stream waits, or the one of `cd.use_stream`",
            Self::Host => "the host waits",
            Self::Nobody => "nobody waits",
        }
    }
}

/// A mistake of a library.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fault {
    /// What happens.
    pub what: &'static str,
    /// The smallest way to see it.
    pub reproduction: &'static str,
    /// Where somebody has reported it to the library.
    pub report: Option<&'static str>,
}

impl Partner {
    /// The calls that import a view, the preferred one first.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        std::iter::once(&self.call).chain(self.more)
    }

    /// The preferred call, as it reads memory of a device.
    pub(crate) fn call_of(&self, device: Device) -> &Call {
        let reads = |call: &&Call| call.code == self.call.code && call.takes(device);
        self.calls().find(reads).unwrap_or(&self.call)
    }

    /// What takes a view: the [launch](Self::launch), then the calls.
    #[cfg(test)]
    pub(super) fn takers(&self) -> impl Iterator<Item = &Call> {
        self.launch.iter().chain(self.calls())
    }

    pub(super) fn is_called(&self, name: &str) -> bool {
        let name = letters(name);
        std::iter::once(&self.name)
            .chain([&self.title, &self.distribution])
            .chain(self.aliases)
            .chain(self.distributions)
            .any(|known| matches(&letters(known), &name))
    }
}

/// The name without what the names of one library differ in, as `tvm_ffi` and `TVM-FFI` do: case and separators.
fn letters(name: &str) -> String {
    let is_separator = |letter: &char| matches!(letter, '-' | '_' | '.' | ' ');
    let letters = name.chars().filter(|letter| !is_separator(letter));
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Whether a name is of this pattern, in which `*` stands for one digit or more.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let digits = name
        .strip_prefix(head)
        .and_then(|rest| rest.strip_suffix(tail));
    digits.is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
    })
}
