//! Streams with what keeps them alive: the arguments of all safe functions that pass a stream to the driver.

use std::fmt;
use std::sync::Arc;

use super::streams::Kept;
use super::{CaiView, with_driver};
use crate::driver::{Context, twice};
use crate::error::Error;
use crate::protocol::stream::Stream;

/// A stream that is alive, with what keeps it so. [`Stream`] is its number, which promises nothing.
///
/// A driver dereferences the handle of a stream, so that one that was destroyed must not reach it. What is made with
/// this stream (a view, a guard, a copy) keeps it alive as long as it may name it.
///
/// | stream | comes of | kept by |
/// |---|---|---|
/// | `&Arc<CudaStream>` (feature `cudarc`) | [`IntoLiveStream`], by which `on`, `consume`, ... take it | the `Arc` |
/// | of a view | [`CaiView::ready`], [`CaiView::producer`] | the view's owner, or what keeps it for the view |
/// | [`NONE`](Self::NONE), the two default ones | a constant | nothing: they are there as long as their context, for pinned and managed memory the current one |
/// | any other | [`LiveStream::new`] | the caller's promise |
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
    keeper: Option<&'a (dyn Keeper + 'a)>,
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

/// The context that was current before the one in which a stream's number means that stream.
pub(crate) struct Displaced(pub(crate) Option<Context>);

/// Makes what was displaced current again if what came of that is a refusal, which is the one to report.
pub(crate) fn back_if_refused<R>(
    displaced: Option<Displaced>,
    done: Result<R, Error>,
) -> Result<R, Error> {
    if let (Err(_), Some(Displaced(before))) = (&done, displaced) {
        let _ = with_driver(|driver| twice(|| driver.set_current_context(before)));
    }
    done
}

/// What keeps a stream alive.
pub(crate) trait Keeper: Sync {
    /// Checks that the stream's number means this stream to the memory of an array, or makes it mean that.
    ///
    /// # Errors
    /// `stream-device`, or the driver's refusal.
    fn check(&self, _array: &CaiView) -> Result<Option<Displaced>, Error> {
        Ok(None)
    }

    /// Returns one more reference to it.
    fn keep(&self) -> Kept;
}

/// The owner keeps both streams of a view, except for a ready stream that is [`Kept`] beside it.
impl Keeper for CaiView {
    fn keep(&self) -> Kept {
        Kept(Arc::new(self.owner.share()))
    }
}

/// Itself, and not the view that holds it: else each view that a stream goes on to would keep the ones before.
impl Keeper for Kept {
    fn keep(&self) -> Kept {
        self.clone()
    }
}

impl<'a> LiveStream<'a> {
    /// No stream: the data is ready; the consumer asks for no order.
    pub const NONE: LiveStream<'static> = LiveStream::always(Stream::None);
    /// The legacy default stream (1).
    pub const LEGACY_DEFAULT: LiveStream<'static> = LiveStream::always(Stream::LegacyDefault);
    /// The per-thread default stream (2) of the calling thread.
    pub const PER_THREAD_DEFAULT: LiveStream<'static> =
        LiveStream::always(Stream::PerThreadDefault);

    const fn always(stream: Stream) -> LiveStream<'static> {
        LiveStream {
            stream,
            keeper: None,
        }
    }

    /// Promises that a stream is alive, for streams of a library that this one does not know.
    ///
    /// # Safety
    /// The stream is alive until the last call that this value is passed to has returned, and until the last view, copy
    /// and guard that was made with it, or that came of one, is gone. (Default streams and [`Stream::None`] need no
    /// promise.)
    ///
    /// ```
    /// use cai_dlpack::protocol::stream::Stream;
    /// use cai_dlpack::view::LiveStream;
    ///
    /// // SAFETY: 2 needs no promise.
    /// let stream = unsafe { LiveStream::new(Stream::from_raw(2)) };
    /// assert_eq!(stream, Stream::PerThreadDefault);
    /// ```
    #[must_use]
    pub const unsafe fn new(stream: Stream) -> LiveStream<'static> {
        LiveStream::always(stream)
    }

    /// Makes the stream of this number, which `keeper` keeps alive.
    pub(crate) fn kept_by(stream: Stream, keeper: &'a dyn Keeper) -> Self {
        let keeper = (stream != Stream::None).then_some(keeper);
        Self { stream, keeper }
    }

    /// Returns the stream's number, which keeps nothing alive.
    #[must_use]
    pub const fn number(self) -> Stream {
        self.stream
    }

    /// Calls `body` with the stream's number for work on the memory of an array. If it is refused, what was current is so again.
    ///
    /// # Errors
    /// `stream-device`, or the driver's refusal; those of `body`.
    #[inline]
    pub(super) fn for_memory<R>(
        self,
        array: &CaiView,
        body: impl FnOnce(Stream) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let displaced = match self.keeper {
            Some(keeper) => keeper.check(array)?,
            None => None,
        };
        back_if_refused(displaced, body(self.stream))
    }

    /// Returns what keeps the stream alive, if that is needed.
    pub(crate) fn keep(self) -> Option<Kept> {
        self.keeper.map(Keeper::keep)
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
