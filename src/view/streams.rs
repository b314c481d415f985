//! Holds the two streams of a view in two words.
//!
//! A per-thread default stream means another stream on every thread, so that its thread is kept with it; a default
//! stream of memory that every context reaches is kept with its context; and a stream that a view was written on may
//! be kept alive by the view. Few views have any of these: they stand in a box.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::ThreadId;

use crate::driver::{Context, Defaults};
use crate::protocol::stream::Stream;

/// The stream that a consumer must wait for, and the one on which the producer goes on working.
#[derive(Clone, Debug)]
pub(crate) struct Streams(Words);

#[derive(Clone, Debug)]
enum Words {
    /// [`Stream::raw`] of the ready stream; [`code`] of the producer's.
    Plain {
        ready: u64,
        producer: NonZeroU64,
    },
    Apart(Box<Threads>),
}

#[derive(Clone, Debug)]
struct Threads {
    ready: Placed,
    producer: Option<Placed>,
    kept: Option<Kept>,
}

/// Keeps a ready stream alive that is neither the producer's nor the caller's promise.
#[derive(Clone)]
pub(crate) struct Kept(
    #[expect(
        dead_code,
        reason = "held, and dropped with the last view that is ready there"
    )]
    pub(crate) Arc<dyn Send + Sync>,
);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// A stream, and if it is a default stream whose: of which context, and a per-thread one of which thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Placed {
    pub(super) stream: Stream,
    pub(super) thread: Option<ThreadId>,
    pub(super) whose: Defaults,
}

impl Placed {
    /// As the calling thread means it, for memory of a device.
    #[inline]
    pub(super) fn here(stream: Stream) -> Self {
        Self {
            stream,
            thread: thread_of(stream),
            whose: Defaults::OfMemory,
        }
    }

    /// A stream that a word holds.
    #[inline]
    const fn plain(stream: Stream) -> Self {
        Self {
            stream,
            thread: None,
            whose: Defaults::OfMemory,
        }
    }

    /// This one, of `whose` context if it is a default stream.
    pub(super) fn of(mut self, whose: Defaults) -> Self {
        if self.stream.is_default() {
            self.whose = whose;
        }
        self
    }

    fn is_plain(&self) -> bool {
        self.thread.is_none() && self.whose == Defaults::OfMemory
    }
}

/// Returns the calling thread, if `stream` means that thread's.
#[inline]
pub(crate) fn thread_of(stream: Stream) -> Option<ThreadId> {
    (stream == Stream::PerThreadDefault).then(|| std::thread::current().id())
}

/// Whether a stream of `thread` ([`thread_of`]) is another one here.
pub(crate) fn is_elsewhere(thread: Option<ThreadId>) -> bool {
    thread.is_some_and(|thread| thread != std::thread::current().id())
}

/// The code of an unknown producer stream: the per-thread default stream's own, which is free, as no such
/// stream stands in a word.
const UNKNOWN: NonZeroU64 = NonZeroU64::MIN.saturating_add(Stream::PerThreadDefault.raw());

/// Encodes a producer's stream as a word that is not 0; `None` for those that go apart.
#[inline(always)]
fn code(producer: Option<Stream>) -> Option<NonZeroU64> {
    match producer {
        None => Some(UNKNOWN),
        Some(Stream::PerThreadDefault) => None,
        Some(stream) => NonZeroU64::new(stream.raw().wrapping_add(1)),
    }
}

/// Decodes a [`Stream::raw`]; 0 is none.
#[inline(always)]
fn stream_of(raw: u64) -> Stream {
    match raw {
        0 => Stream::None,
        raw => Stream::from_raw(raw),
    }
}

impl Streams {
    /// The two streams as the calling thread means them.
    #[inline(always)]
    pub(crate) fn here(ready: Stream, producer: Option<Stream>) -> Self {
        match code(producer) {
            Some(producer) if ready != Stream::PerThreadDefault => Self(Words::Plain {
                ready: ready.raw(),
                producer,
            }),
            _ => Self::of(Placed::here(ready), producer.map(Placed::here), None),
        }
    }

    /// Both the stream of this handle; 0 is the legacy default stream.
    #[inline(always)]
    pub(crate) fn of_handle(handle: u64) -> Self {
        const PER_THREAD: u64 = Stream::PerThreadDefault.raw();
        let ready = handle.max(Stream::LegacyDefault.raw());
        match NonZeroU64::new(ready.wrapping_add(1)) {
            Some(producer) if ready != PER_THREAD => Self(Words::Plain { ready, producer }),
            _ => {
                let placed = Placed::here(Stream::from_raw(handle));
                Self::of(placed, Some(placed), None)
            }
        }
    }

    #[inline(never)]
    fn of(ready: Placed, producer: Option<Placed>, kept: Option<Kept>) -> Self {
        let plain = code(producer.map(|placed| placed.stream));
        let is_plain = [Some(ready), producer]
            .iter()
            .flatten()
            .all(Placed::is_plain);
        let is_plain = is_plain && kept.is_none();
        Self(match plain.filter(|_| is_plain) {
            Some(producer) => Words::Plain {
                ready: ready.stream.raw(),
                producer,
            },
            None => Words::Apart(Box::new(Threads {
                ready,
                producer,
                kept,
            })),
        })
    }

    /// These, with another ready stream.
    pub(super) fn with_ready(&self, ready: Placed) -> Self {
        Self::of(ready, self.placed_producer(), None)
    }

    /// These, with another ready stream, which `kept` keeps alive if it has to be kept.
    pub(super) fn with_ready_kept(&self, ready: Placed, kept: Option<Kept>) -> Self {
        Self::of(ready, self.placed_producer(), kept)
    }

    /// These, with another producer stream.
    pub(super) fn with_producer(&self, producer: Placed) -> Self {
        Self::of(self.placed_ready(), Some(producer), self.kept().cloned())
    }

    /// These, with the default streams among them of this context.
    #[cold]
    pub(super) fn with_defaults(&self, whose: Defaults) -> Self {
        let producer = self.placed_producer().map(|placed| placed.of(whose));
        Self::of(
            self.placed_ready().of(whose),
            producer,
            self.kept().cloned(),
        )
    }

    /// These, with those of `context`, which is the memory's, remembered as the memory's.
    #[cold]
    pub(super) fn with_defaults_of_memory(&self, context: Context) -> Self {
        let mean = |placed: Placed| match placed.whose == Defaults::Of(context) {
            true => placed.of(Defaults::OfMemory),
            false => placed,
        };
        let producer = self.placed_producer().map(mean);
        Self::of(mean(self.placed_ready()), producer, self.kept().cloned())
    }

    /// Whose the default streams of this memory are, as far as these tell.
    pub(super) fn memory_defaults(&self) -> Defaults {
        let is_primary = |placed: Placed| placed.whose == Defaults::OfPrimary;
        match is_primary(self.placed_ready()) || self.placed_producer().is_some_and(is_primary) {
            true => Defaults::OfPrimary,
            false => Defaults::OfMemory,
        }
    }

    /// Whether one of them is a default stream.
    pub(super) fn has_default(&self) -> bool {
        let producer = self.producer().is_some_and(Stream::is_default);
        self.ready().is_default() || producer
    }

    #[inline(always)]
    pub(super) fn ready(&self) -> Stream {
        match &self.0 {
            Words::Plain { ready, .. } => stream_of(*ready),
            Words::Apart(threads) => threads.ready.stream,
        }
    }

    #[inline(always)]
    pub(super) fn producer(&self) -> Option<Stream> {
        match &self.0 {
            Words::Plain { producer, .. } if *producer == UNKNOWN => None,
            Words::Plain { producer, .. } => Some(stream_of(producer.get().wrapping_sub(1))),
            Words::Apart(threads) => threads.producer.map(|placed| placed.stream),
        }
    }

    pub(super) fn placed_ready(&self) -> Placed {
        match &self.0 {
            Words::Plain { ready, .. } => Placed::plain(stream_of(*ready)),
            Words::Apart(threads) => threads.ready,
        }
    }

    pub(super) fn kept(&self) -> Option<&Kept> {
        match &self.0 {
            Words::Plain { .. } => None,
            Words::Apart(threads) => threads.kept.as_ref(),
        }
    }

    pub(super) fn placed_producer(&self) -> Option<Placed> {
        match &self.0 {
            Words::Plain { .. } => self.producer().map(Placed::plain),
            Words::Apart(threads) => threads.producer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_comes_back() {
        let streams = [0, 1, 2, 3, 0x7f00_0000_0000, u64::MAX - 1, u64::MAX].map(stream_of);
        for ready in streams {
            let producers = streams.iter().copied().map(Some).chain([None]);
            for producer in producers {
                let made = Streams::here(ready, producer);
                assert_eq!((made.ready(), made.producer()), (ready, producer));
                assert_eq!(made.placed_ready(), Placed::here(ready));
                assert_eq!(made.placed_producer(), producer.map(Placed::here));
                for other in streams {
                    let moved = made.with_ready(Placed::here(other));
                    assert_eq!((moved.ready(), moved.producer()), (other, producer));
                    let moved = made.with_producer(Placed::here(other));
                    assert_eq!((moved.ready(), moved.producer()), (ready, Some(other)));
                }
            }
        }
    }

    #[test]
    fn a_thread_is_kept_and_not_replaced() {
        let (main, mine) = (std::thread::current().id(), Stream::PerThreadDefault);
        let made = Streams::here(mine, Some(mine));
        let moved = std::thread::spawn(move || made.with_producer(Placed::here(mine)))
            .join()
            .unwrap();
        assert_eq!(moved.placed_ready().thread, Some(main));
        assert_ne!(moved.placed_producer().unwrap().thread, Some(main));
        let back =
            std::thread::spawn(move || moved.with_ready(Placed::here(Stream::LegacyDefault)));
        assert_eq!(back.join().unwrap().placed_ready().thread, None);
    }

    #[test]
    fn by_handle() {
        for handle in [0, 1, 2, 3, u64::MAX] {
            let (stream, made) = (Stream::from_raw(handle), Streams::of_handle(handle));
            assert_eq!(made.placed_ready(), Placed::here(stream));
            assert_eq!(made.placed_producer(), Some(Placed::here(stream)));
        }
    }

    #[test]
    fn two_words() {
        assert_eq!(size_of::<Streams>(), 16);
    }
}
