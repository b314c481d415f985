//! What an argument does whose memory another thread uses.

use crate::view::Meeting;

/// What becomes of an argument whose memory an argument of another thread's call uses, if either writes: [`Refuse`], [`Wait`]
/// or [`TrustStreams`], the last parameter of [`In`](super::In) and [`InOut`](super::InOut).
///
/// | | the call that comes second | and then |
/// |---|---|---|
/// | [`Refuse`] | raises `view-in-use` | no argument of this extension uses the memory that an `InOut` writes, or writes what an `In` reads |
/// | [`Wait`] | waits for the end of the first, without the GIL | the same |
/// | [`TrustStreams`] | goes on beside the first, if that is such, too; else it waits | only the streams keep the calls apart |
///
/// It is the second one's choice, except that both must trust. Two arguments of one thread exclude each other in any case:
/// those of one call, and those of a call that a callback makes. An array that is in use by other means, by a `CaiView`, by
/// another extension or by Python code, is neither waited for nor refused.
///
/// ```
/// use cai_dlpack::CaiView;
/// use cai_dlpack::python::{In, InOut, Wait, WhenInUse};
/// use pyo3::prelude::*;
///
/// /// Threads that add to one array take turns.
/// #[pyfunction]
/// fn add(a: In<f32, 1, Wait>, out: InOut<f32, 1, Wait>) -> CaiView {
///     // ... launch, on a stream that waits for both ...
///     kept(a);
///     out.into_cai()
/// }
///
/// fn kept<W: WhenInUse>(a: In<f32, 1, W>) -> CaiView {
///     a.into_cai()
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell what to do while another thread uses the array",
    label = "one of `Refuse`, `Wait` and `TrustStreams` of `cai_dlpack::python`"
)]
pub trait WhenInUse: sealed::WhenInUse {}

pub(super) mod sealed {
    use super::Meeting;

    pub trait WhenInUse {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "sealed: nobody outside names it")]
        const MEETING: Meeting;
    }
}

macro_rules! meetings {
    ($($(#[$meta:meta])* $name:ident => $meeting:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        pub enum $name {}

        impl WhenInUse for $name {}

        impl sealed::WhenInUse for $name {
            #[allow(private_interfaces, reason = "sealed: nobody outside names it")]
            const MEETING: Meeting = Meeting::$meeting;
        }
    )*};
}

meetings! {
    /// The call is refused by `view-in-use`: the default. See [`WhenInUse`].
    ///
    /// ```
    /// use cai_dlpack::python::{In, Refuse};
    ///
    /// fn written_out(a: In<f32, 2, Refuse>) -> In<f32, 2> {
    ///     a
    /// }
    /// ```
    Refuse => Refused;
    /// The call waits until the other one has ended, without the GIL, and imports the array again then: so that work which
    /// the other one has ordered before the producer's stream is waited for. See [`WhenInUse`].
    ///
    /// What is waited for is the end of the *argument*, and not that of the work on a stream: calls come one after the other, as
    /// on one thread, and what orders their work is what orders it there. For a producer that names no stream
    /// that is the extension's own stream.
    ///
    /// A wait that could not end is refused by `view-in-use`: for an argument of this thread, and for one of a thread that waits
    /// in turn for this one; a circle through a lock, or through an argument of another extension, is not seen. So is a capsule,
    /// which cannot be imported again. A signal handler that raises ends it, as
    /// `KeyboardInterrupt`. An argument that is kept after its call (in a `#[pyclass]`) is waited for until that is dropped, if
    /// ever: keep [`into_cai`](super::In::into_cai).
    ///
    /// ```
    /// use cai_dlpack::python::{ANY, InOut, Wait};
    ///
    /// /// Of any number of axes, which then stands before it.
    /// fn elements(out: &InOut<f32, ANY, Wait>) -> usize {
    ///     out.len()
    /// }
    /// # let _ = elements;
    /// ```
    Wait => Waits;
    /// The call goes on beside others of such arguments: the streams alone keep them apart. It waits for all else, as [`Wait`].
    /// See [`WhenInUse`].
    ///
    /// For functions that do no more than enqueue work, of which the extension sees to it that the work on one array goes to
    /// one stream, or to streams that wait for each other. A guard ([`CaiView::consume`](crate::CaiView::consume), `View::on`)
    /// does not order two calls that are at work at once: the second's stream waits for what the producer's holds as *its*
    /// guard begins, and the first's work is joined to that when the first's guard *ends*. Not for functions that read or
    /// write on the host.
    ///
    /// Nothing becomes unsafe by it: what a view cannot promise of other threads stands in the list of each `unsafe`
    /// function ([`View::host_slice`](crate::view::View::host_slice)). But results are wrong if the streams do not
    /// order the work.
    ///
    /// ```
    /// use cai_dlpack::python::{InOut, TrustStreams};
    /// use pyo3::prelude::*;
    ///
    /// /// All threads enqueue on the one stream of this module.
    /// #[pyfunction]
    /// fn accumulate(out: InOut<f32, 1, TrustStreams>) {
    ///     // ...
    /// #   let _ = out;
    /// }
    /// ```
    TrustStreams => Trusts;
}
