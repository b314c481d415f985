//! The libraries that arrays come from and go to: what each of them does, as one table.
//!
//! [`PARTNERS`] is the only place that states a fact about a library. Read from it are the quirks that the
//! import allows for (`python::import::known_types`), the answers of `explain`, the tables of
//! docs/partners.md and the calls and expectations of `conformance/matrix`.
//!
//! ```
//! use cai_dlpack::partners;
//! use cai_dlpack::protocol::descriptor::Descriptor;
//! use cai_dlpack::protocol::device::{Device, Flags};
//! use cai_dlpack::protocol::dtype::DType;
//! use cai_dlpack::protocol::axes::{Axes, Source};
//! use cai_dlpack::protocol::layout::Layout;
//! use cai_dlpack::protocol::stream::Stream;
//!
//! # fn main() -> Result<(), cai_dlpack::protocol::rule::Violation> {
//! let axes = Axes::from_slices(Source::Tensor, &[3, 4], None)?;
//! let layout = Layout::from_elem_axes(axes, 4)?;
//! let array = Descriptor::from_layout(0x1000, Device::cuda(0), DType::F32, Flags::READ_ONLY, layout)?;
//!
//! let jax = partners::find("jnp").expect("an alias of JAX");
//! let plan = jax.plan(&array, Stream::LegacyDefault, None);
//! assert_eq!(plan.call.code, "jax.dlpack.from_dlpack(v)");
//! assert_eq!(
//!     plan.order.to_string(),
//!     "the consumer's stream waits for an event on the legacy default stream (1), unless the consumer works there",
//! );
//! assert!(plan.refused.is_some_and(|why| why.contains("read-only")));
//! # Ok(())
//! # }
//! ```
//!
//! All that is known of a library stands in its row:
//!
//! ```
//! use cai_dlpack::partners::{
//!     self, Call, Checked, Drops, Fault, HandOver, Mutability, Order, Partner, Producer, Quirk, Reads, Refuses, Remedy,
//!     Silence, Waits,
//! };
//!
//! let cupy: &Partner = partners::of_module("cupy._core.core").expect("CuPy's arrays");
//! let (_how, _faults): (Checked, &[Fault]) = (cupy.checked, cupy.faults);
//! for call in cupy.calls() {
//!     let call: &Call = call;
//!     let (reads, waits): (Reads, Waits) = (call.reads, call.waits);
//!     println!("{} reads {}, {}: {:?}", call.code, reads.name(), waits.name(), call.needs());
//!     let (_refused, _dropped): (&[Refuses], &[Drops]) = (call.refuses, call.drops);
//! }
//! if let Some(Producer { call, quirks, untold, silence, .. }) = &cupy.producer {
//!     let (_, _): (&[Quirk], &Silence) = (quirks, silence);
//!     println!("{call}: {}", untold.map_or("told", Mutability::name));
//! }
//!
//! /// What a refused array may be passed by.
//! fn instead(plan: &HandOver) -> Option<&Remedy> {
//!     let order: &Order = &plan.order;
//!     println!("{order}: {:?}", order.driver_calls());
//!     plan.remedies.first()
//! }
//! # let _ = (instead, Refuses::applies_to, Drops::applies_to);
//! ```

mod buffer;
mod order;
#[cfg(test)]
mod page;
mod plan;
mod reads;
mod refuses;
mod row;
mod table;
#[cfg(test)]
mod tests;

pub use order::Order;
#[cfg(feature = "pyo3")]
pub(crate) use order::{Asks, platform_of, unstated};
#[cfg(feature = "pyo3")]
pub(crate) use plan::{Change, with_remedies};
pub use plan::{HandOver, Remedy};
pub use reads::Reads;
pub use refuses::Refuses;
pub use row::{Call, Checked, Drops, Fault, Mutability, Partner, Producer, Quirk, Silence, Waits};
pub use table::PARTNERS;

/// The partner of a name, a title, a distribution or an alias.
#[must_use]
pub fn find(name: &str) -> Option<&'static Partner> {
    PARTNERS.iter().find(|partner| partner.is_called(name))
}

/// The partner that defines its array types in `module` (`type.__module__`).
#[must_use]
pub fn of_module(module: &str) -> Option<&'static Partner> {
    PARTNERS.iter().find(|partner| {
        partner.modules.iter().any(|package| {
            let rest = module.strip_prefix(package);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    })
}
