//! Streams with what keeps them alive: the arguments of all safe functions that pass a stream to the driver.

use std::fmt;

use super::copy::kept_by_copy;
use super::streams::{Kept, Placed};
use super::{CaiView, detach};
use crate::driver::{ContextGuard, Defaults, UNTOLD};
use crate::error::Error;
use crate::protocol::stream::Stream;

mod context;

/// A stream that is alive, with what keeps it so. [`Stream`] is its number, which promises nothing.
///
/// A driver dereferences the handle of a stream, so that one that was destroyed must not reach it. What is made with
/// this stream (a view, a guard, a copy) keeps it alive as long as it may name it.
///
/// | stream | comes of | kept by |
/// |---|---|---|
/// | `&Arc<CudaStream>` (feature `cudarc`) | [`IntoLiveStream`], by which `on`, `consume`, ... take it | the `Arc` |
/// | of a view | [`CaiView::ready`], [`CaiView::producer`] | the view's owner, or what keeps it for the view |
/// | the two default ones | a constant | what keeps their context (below) |
/// | any other | [`LiveStream::new`] | the caller's promise |
///
/// A default stream is one of the memory's context, which the view's owner keeps; for pinned and managed memory, and under the
/// name of the CPU, of the current one. If that is a primary context, what is made with the stream keeps it. Another one that
/// is not the memory's is refused by `stream-context` if a constant has named the stream: nothing is known to keep it.
///
/// ```
#[doc = floats!()]
/// use cai_dlpack::view::LiveStream;
///
/// let (view, other) = (floats(), floats());
/// let moved = view.on(other.ready())?; // keeps the owner of `other`, if its stream has to be kept
/// assert_eq!(moved.ready().number(), Stream::None);
/// assert!(view.to_dlpack(LiveStream::LEGACY_DEFAULT).is_ok());
/// # Ok::<(), cai_dlpack::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct LiveStream<'a> {
    stream: Stream,
    kept_by: KeptBy<'a>,
}

/// The keeper of a stream, or that the caller promises it.
#[derive(Clone, Copy)]
enum KeptBy<'a> {
    /// The caller's promise; no stream needs none.
    Promise,
    /// Nothing but what keeps the context of a default stream.
    Constant,
    #[cfg(feature = "cudarc")]
    Keeper(&'a (dyn Keeper + 'a)),
    /// The view that names the stream so.
    View(&'a CaiView, Placed),
}

/// A stream as the safe functions take it: a [`LiveStream`], or a `&Arc<CudaStream>` (feature `cudarc`).
///
/// Implement it for a type of your own that knows such a stream:
///
/// ```
#[doc = floats!()]
/// use cai_dlpack::view::{IntoLiveStream, LiveStream};
///
/// /// The stream of a library that works on the legacy default stream alone.
/// struct Default;
///
/// impl IntoLiveStream<'static> for Default {
///     fn into_live_stream(self) -> LiveStream<'static> {
///         LiveStream::LEGACY_DEFAULT
///     }
/// }
/// assert!(floats().to_dlpack(Default).is_ok());
/// assert_eq!(Default.into_live_stream(), Stream::LegacyDefault);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no stream that is kept alive",
    label = "no `LiveStream`, and no `&Arc<CudaStream>`",
    note = "a stream of cudarc is passed by reference to its `Arc`, which is kept: `&stream`",
    note = "a stream of a view is passed as `view.ready()` or `view.producer()`",
    note = "a number, such as a `Stream`, keeps nothing alive: `unsafe {{ LiveStream::new(number) }}` promises that its stream lives"
)]
pub trait IntoLiveStream<'s> {
    /// Returns the stream, with what keeps it alive.
    fn into_live_stream(self) -> LiveStream<'s>;
}

impl<'s> IntoLiveStream<'s> for LiveStream<'s> {
    fn into_live_stream(self) -> Self {
        self
    }
}

/// Leaves the context current in which a stream's number means that stream; the caller's if what came of that is a
/// refusal, which is the one to report.
#[inline]
pub(crate) fn stay_if_done<R>(
    there: Option<ContextGuard<'static>>,
    done: Result<R, Error>,
) -> Result<R, Error> {
    match (there, &done) {
        (None, _) => {}
        #[cfg(feature = "cudarc")]
        (Some(there), Ok(_)) => detach(|| there.stay())?,
        (Some(there), _) => detach(|| drop(there)),
    }
    done
}

/// Keeps a stream of another library alive.
#[cfg(feature = "cudarc")]
pub(crate) trait Keeper: Sync {
    /// Checks that the stream's number means this stream to the memory of an array, or makes it mean that.
    ///
    /// # Errors
    /// `stream-device`, or the driver's refusal.
    fn check(&self, array: &CaiView) -> Result<Option<ContextGuard<'static>>, Error>;

    /// Returns one more reference to it.
    fn keep(&self) -> Kept;
}

impl<'a> LiveStream<'a> {
    /// No stream: the data is ready; the consumer asks for no order.
    pub const NONE: LiveStream<'static> = LiveStream {
        stream: Stream::None,
        kept_by: KeptBy::Promise,
    };
    /// The legacy default stream (1).
    pub const LEGACY_DEFAULT: LiveStream<'static> = LiveStream {
        stream: Stream::LegacyDefault,
        kept_by: KeptBy::Constant,
    };
    /// The per-thread default stream (2) of the calling thread.
    pub const PER_THREAD_DEFAULT: LiveStream<'static> = LiveStream {
        stream: Stream::PerThreadDefault,
        kept_by: KeptBy::Constant,
    };

    /// Promises that a stream is alive, for streams of a library that this one does not know.
    ///
    /// # Safety
    /// - The stream, of a default stream its context, is alive until the last call that this value is passed to has returned,
    ///   and until the last view, copy and guard that was made with it, or that came of one, is gone. ([`Stream::None`] needs
    ///   no promise.)
    /// - The stream's context is a primary one, or is not destroyed: a thread of this library asks there, some time after the
    ///   end of a copy or a guard, whether its work is over.
    ///
    /// ```
    /// use cai_dlpack::protocol::stream::Stream;
    /// use cai_dlpack::view::LiveStream;
    ///
    /// // SAFETY: of a context that this program never destroys.
    /// let stream = unsafe { LiveStream::new(Stream::from_raw(2)) };
    /// assert_eq!(stream, Stream::PerThreadDefault);
    /// ```
    #[must_use]
    pub const unsafe fn new(stream: Stream) -> LiveStream<'static> {
        LiveStream {
            stream,
            kept_by: KeptBy::Promise,
        }
    }

    /// Makes the stream of this number, which `keeper` keeps alive.
    #[cfg(feature = "cudarc")]
    pub(crate) fn kept_by(stream: Stream, keeper: &'a dyn Keeper) -> Self {
        let kept_by = KeptBy::Keeper(keeper);
        Self { stream, kept_by }
    }

    /// Makes the ready stream, or the producer's, of a view.
    pub(super) fn of_view(view: &'a CaiView, placed: Placed) -> Self {
        Self {
            stream: placed.stream,
            kept_by: KeptBy::View(view, placed),
        }
    }

    /// Returns the stream's number, which keeps nothing alive.
    #[must_use]
    pub const fn number(self) -> Stream {
        self.stream
    }

    /// Calls `body` with the stream's number for work on the memory of an array, which uses a view's if `is_used`. If it is
    /// refused, what was current is so again.
    ///
    /// # Errors
    /// `stream-device`, `stream-context`, `stream-thread` if its number means another stream here, or the driver's refusal;
    /// those of `body`.
    #[inline]
    pub(crate) fn for_memory<R>(
        self,
        array: &CaiView,
        is_used: bool,
        body: impl FnOnce(Stream) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let there = match self.kept_by {
            #[cfg(feature = "cudarc")]
            KeptBy::Keeper(keeper) => keeper.check(array)?,
            KeptBy::View(view, placed) if is_used && self.stream.is_default() => {
                context::check_named(array, view, placed)?;
                None
            }
            _ => None,
        };
        stay_if_done(there, body(self.stream))
    }

    /// Checks that the context of a constant is alive, for a call that remembers none: it is named from there on.
    ///
    /// # Errors
    /// The driver's: another thread may have destroyed it.
    pub(super) fn check_current(self, array: &CaiView) -> Result<(), Error> {
        match self.kept_by {
            KeptBy::Constant if array.means_current_context() => context::check_current(),
            _ => Ok(()),
        }
    }

    /// Returns what keeps the stream alive as `array` has [placed](CaiView::placed) it, if that is needed, or that it is a
    /// [promise](Kept::Promise): the array's owner keeps the memory's context.
    ///
    /// # Errors
    /// `stream-context` for a default stream of a context that nothing is known to keep, or the driver's refusal.
    pub(crate) fn keep_for(self, array: &CaiView, placed: Placed) -> Result<Option<Kept>, Error> {
        match (self.kept_by, placed.whose) {
            (_, Defaults::Untold) => Err(UNTOLD.into()),
            #[cfg(feature = "cudarc")]
            (KeptBy::Keeper(keeper), _) => Ok(Some(keeper.keep())),
            (KeptBy::Promise, _) => Ok((self.stream != Stream::None).then_some(Kept::Promise)),
            (KeptBy::View(view, named), _) if !self.stream.is_default() => {
                Ok((self.stream != Stream::None).then(|| keep_of(view, named)))
            }
            (KeptBy::View(view, named), Defaults::Of(context)) => {
                let of_view = || match context::is_of(view, named, context)? {
                    true => Ok(Some(keep_of(view, named))),
                    false => context::refuse(self.stream),
                };
                context::keep(array, context, of_view)
            }
            (KeptBy::Constant, Defaults::Of(context)) => {
                context::keep(array, context, || context::refuse(self.stream))
            }
            (KeptBy::View(..) | KeptBy::Constant, _) => Ok(None),
        }
    }
}

/// Returns what keeps a stream of a view: its owner, or what is [`Kept`] beside it, or by a copy that was made on it. That is kept
/// itself, and not the view: else each view, or copy, that a stream goes on to would keep the ones before.
fn keep_of(view: &CaiView, named: Placed) -> Kept {
    let beside = (view.streams.kept()).filter(|_| view.streams.placed_ready() == named);
    let kept = (beside.cloned()).or_else(|| kept_by_copy(&view.owner, named));
    kept.unwrap_or_else(|| view.keep_owner())
}

impl CaiView {
    /// Returns one more reference to the owner, which keeps both streams of the view, but for a ready one that is [`Kept`]
    /// beside it.
    pub(super) fn keep_owner(&self) -> Kept {
        Kept::by(self.owner.share())
    }
}

impl From<LiveStream<'_>> for Stream {
    fn from(live: LiveStream<'_>) -> Self {
        live.stream
    }
}

/// Compares the numbers.
impl PartialEq for LiveStream<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.stream == other.stream
    }
}

impl Eq for LiveStream<'_> {}

/// Compares the numbers.
impl PartialEq<Stream> for LiveStream<'_> {
    fn eq(&self, other: &Stream) -> bool {
        self.stream == *other
    }
}

impl fmt::Debug for LiveStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveStream").field(&self.stream).finish()
    }
}

impl fmt::Display for LiveStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}
