//! Holds the two streams of a view in two words, and in a third how its producer is asked for the second one again.
//!
//! A per-thread default stream means another stream on every thread, so that its thread is kept with it; a default
//! stream of memory that every context reaches is kept with its context; a stream that a view was written on may
//! be kept alive by the view; and the ready stream may be a guess. Few views have any of these: they stand in a box.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::kinds::drop_in_order;
use super::worker::Worker;
use crate::driver::{Context, Defaults};
use crate::process::thread::Thread;
use crate::protocol::device::Device;
use crate::protocol::stream::Stream;

/// The stream that a consumer must wait for, and the one on which the producer goes on working: as the import has found
/// it, and how it is asked which one that is now.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    words: Words,
    worker: Option<Worker>,
}

#[derive(Clone, Debug)]
enum Words {
    /// [`Stream::raw`] of the ready stream; [`code`] of the producer's.
    Plain {
        ready: u64,
        producer: NonZeroU64,
    },
    Apart(Box<Apart>),
}

#[derive(Clone, Debug)]
struct Apart {
    ready: Placed,
    producer: Option<Placed>,
    kept: Option<Kept>,
    /// The device that the producer is asked about, if it is not the view's own.
    asked_about: Option<Device>,
    /// The stream on which the data is ready is undeclared: `ready` is assumed.
    is_undeclared: bool,
}

/// Keeps a ready stream alive that is not the producer's.
#[derive(Clone)]
pub(crate) enum Kept {
    /// Dropped with the last view that is ready there.
    By(#[expect(dead_code, reason = "held")] Share),
    /// By the caller's promise, which ends with the last view, copy and guard that is made by it: no thread of ours may name the
    /// stream later.
    Promise,
}

impl Kept {
    pub(crate) fn by(keeper: impl Send + Sync + 'static) -> Self {
        Self::By(Share(Some(Arc::new(keeper))))
    }

    pub(crate) const fn is_promise(&self) -> bool {
        matches!(self, Self::Promise)
    }
}

/// A share of what keeps a stream.
#[derive(Clone)]
pub(crate) struct Share(Option<Arc<dyn Send + Sync>>);

impl Drop for Share {
    /// After the owners that wait on this thread to end, which may use the stream: that of a view whose share this is does.
    fn drop(&mut self) {
        if let Some(share) = self.0.take() {
            drop_in_order(share);
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// A stream, and if it is a default stream whose: of which context, and a per-thread one of which thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Placed {
    pub(super) stream: Stream,
    pub(super) thread: Option<Thread>,
    pub(super) whose: Defaults,
}

impl Placed {
    /// As the calling thread means it, for memory of a device.
    #[inline]
    pub(crate) fn here(stream: Stream) -> Self {
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

    /// This one, of `whose` context if it is a default stream whose context is not known yet.
    pub(super) fn of(mut self, whose: Defaults) -> Self {
        if self.is_placeable() {
            self.whose = whose;
        }
        self
    }

    /// Whether it is a default stream of which no context is known but the memory's.
    pub(super) fn is_placeable(&self) -> bool {
        self.stream.is_default() && self.whose == Defaults::OfMemory
    }

    /// Whether it is a default stream whose context the memory tells, by the device that it is named of.
    fn is_by_memory(&self) -> bool {
        let is_told = matches!(self.whose, Defaults::OfMemory | Defaults::OfPrimary);
        self.stream.is_default() && is_told
    }

    fn is_plain(&self) -> bool {
        self.thread.is_none() && self.whose == Defaults::OfMemory
    }
}

/// Returns the calling thread, if `stream` means that thread's.
#[inline]
pub(crate) fn thread_of(stream: Stream) -> Option<Thread> {
    (stream == Stream::PerThreadDefault).then(Thread::current)
}

/// Whether a stream of `thread` ([`thread_of`]) is another one here.
pub(crate) fn is_elsewhere(thread: Option<Thread>) -> bool {
    thread.is_some_and(|thread| thread != Thread::current())
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

impl Apart {
    /// The two streams as the calling thread means them, declared.
    fn here(ready: Stream, producer: Option<Stream>) -> Self {
        Self {
            ready: Placed::here(ready),
            producer: producer.map(Placed::here),
            kept: None,
            asked_about: None,
            is_undeclared: false,
        }
    }

    /// Whether two words hold it all.
    fn is_plain(&self) -> bool {
        let is_apart = self.kept.is_some() || self.asked_about.is_some() || self.is_undeclared;
        !is_apart && self.ready.is_plain() && self.producer.as_ref().is_none_or(Placed::is_plain)
    }
}

impl Streams {
    /// The two streams as the calling thread means them.
    #[inline(always)]
    pub(crate) fn here(ready: Stream, producer: Option<Stream>) -> Self {
        match code(producer) {
            Some(producer) if ready != Stream::PerThreadDefault => Self {
                words: Words::Plain {
                    ready: ready.raw(),
                    producer,
                },
                worker: None,
            },
            _ => Self::of(None, Apart::here(ready, producer)),
        }
    }

    /// Both the stream of this handle, on which `worker` works now; 0 is the legacy default stream.
    #[inline(always)]
    pub(crate) fn of_worker(handle: u64, worker: Worker) -> Self {
        const PER_THREAD: u64 = Stream::PerThreadDefault.raw();
        let ready = handle.max(Stream::LegacyDefault.raw());
        match NonZeroU64::new(ready.wrapping_add(1)) {
            Some(producer) if ready != PER_THREAD => Self {
                words: Words::Plain { ready, producer },
                worker: Some(worker),
            },
            _ => {
                let stream = Stream::from_raw(handle);
                Self::of(Some(worker), Apart::here(stream, Some(stream)))
            }
        }
    }

    /// Like [`here`](Self::here), of data whose order is undeclared.
    #[cold]
    pub(crate) fn undeclared(ready: Stream, producer: Option<Stream>) -> Self {
        let apart = Apart {
            is_undeclared: true,
            ..Apart::here(ready, producer)
        };
        Self::of(None, apart)
    }

    #[inline(never)]
    fn of(worker: Option<Worker>, apart: Apart) -> Self {
        let plain = code(apart.producer.map(|placed| placed.stream));
        let words = match plain.filter(|_| apart.is_plain()) {
            Some(producer) => Words::Plain {
                ready: apart.ready.stream.raw(),
                producer,
            },
            None => Words::Apart(Box::new(apart)),
        };
        Self { words, worker }
    }

    fn apart(&self) -> Apart {
        match &self.words {
            Words::Plain { .. } => Apart {
                ready: self.placed_ready(),
                producer: self.placed_producer(),
                kept: None,
                asked_about: None,
                is_undeclared: false,
            },
            Words::Apart(apart) => Apart::clone(apart),
        }
    }

    /// These, with another ready stream. It stays undeclared whether the data is ready there.
    pub(super) fn with_ready(&self, ready: Placed) -> Self {
        self.with_ready_kept(ready, None)
    }

    /// These, with another ready stream, which `kept` keeps alive if it has to be kept.
    pub(super) fn with_ready_kept(&self, ready: Placed, kept: Option<Kept>) -> Self {
        let apart = Apart {
            ready,
            kept,
            ..self.apart()
        };
        Self::of(self.worker, apart)
    }

    /// The ready one of these, whose producer goes on working on `producer`. A default stream of which no context is known is that of
    /// the ready one's, if that is one.
    #[cfg(feature = "pyo3")]
    #[cold]
    pub(crate) fn going_on(&self, producer: Stream) -> Self {
        let ready = self.placed_ready();
        let apart = Apart {
            ready,
            producer: Some(Placed::here(producer).of(ready.whose)),
            ..Apart::here(ready.stream, None)
        };
        Self::of(None, apart)
    }

    /// These, with another producer stream, which no worker is asked about.
    pub(super) fn with_producer(&self, producer: Placed) -> Self {
        let apart = Apart {
            producer: Some(producer),
            asked_about: None,
            ..self.apart()
        };
        Self::of(None, apart)
    }

    /// The ready stream, the producer's and the device that `worker` is asked about, if it is not the view's own.
    #[cfg(feature = "pyo3")]
    #[cold]
    pub(super) fn passed(
        (ready, producer, asked_about): (Placed, Option<Placed>, Option<Device>),
        worker: Option<Worker>,
        is_undeclared: bool,
    ) -> Self {
        let apart = Apart {
            ready,
            producer,
            kept: None,
            asked_about,
            is_undeclared,
        };
        Self::of(worker, apart)
    }

    /// Both this stream, which the caller has named.
    pub(super) fn declared(stream: Placed) -> Self {
        let apart = Apart {
            ready: stream,
            producer: Some(stream),
            kept: None,
            asked_about: None,
            is_undeclared: false,
        };
        Self::of(None, apart)
    }

    /// These, for memory under another name than `device`, by which its producer knows it.
    pub(super) fn renamed(&self, device: Device) -> Self {
        if self.worker.is_none() {
            return self.clone();
        }
        let apart = self.apart();
        let asked_about = apart.asked_about.or(Some(device));
        let apart = Apart {
            asked_about,
            ..apart
        };
        Self::of(self.worker, apart)
    }

    /// How the producer is asked which stream it works on now.
    #[inline(always)]
    pub(super) fn worker(&self) -> Option<Worker> {
        self.worker
    }

    /// The device that the producer is asked about, if it is not the view's own.
    pub(super) fn asked_about(&self) -> Option<Device> {
        match &self.words {
            Words::Plain { .. } => None,
            Words::Apart(apart) => apart.asked_about,
        }
    }

    /// These, with the default streams among them of this context, if no other is known for them.
    #[cold]
    pub(crate) fn with_defaults(&self, whose: Defaults) -> Self {
        self.with_each(|placed| placed.of(whose))
    }

    fn with_each(&self, change: impl Fn(Placed) -> Placed) -> Self {
        let apart = self.apart();
        let apart = Apart {
            ready: change(apart.ready),
            producer: apart.producer.map(change),
            ..apart
        };
        Self::of(self.worker, apart)
    }

    /// These, with those of `context`, which is the memory's, remembered as the memory's.
    #[cold]
    pub(super) fn with_defaults_of_memory(&self, context: Context) -> Self {
        self.with_each(|placed| match placed.whose == Defaults::Of(context) {
            true => Placed {
                whose: Defaults::OfMemory,
                ..placed
            },
            false => placed,
        })
    }

    /// These, with those of which the memory tells the context remembered as of `context`, which it is.
    #[cold]
    pub(super) fn with_memory_context(&self, context: Context) -> Self {
        self.with_each(|placed| match placed.is_by_memory() {
            true => Placed {
                whose: Defaults::Of(context),
                ..placed
            },
            false => placed,
        })
    }

    /// Whether one of them is a default stream of which the memory tells the context.
    pub(super) fn has_by_memory(&self) -> bool {
        let producer = self.placed_producer();
        self.placed_ready().is_by_memory() || producer.is_some_and(|placed| placed.is_by_memory())
    }

    /// These, of data that is ready by now.
    #[cfg(feature = "pyo3")]
    #[cold]
    pub(crate) fn waited(&self) -> Self {
        self.with_ready(Placed::here(Stream::None))
    }

    /// Whether the ready stream is assumed: its producer has declared none, and its importer has named none.
    #[inline(always)]
    pub(crate) fn are_undeclared(&self) -> bool {
        matches!(&self.words, Words::Apart(apart) if apart.is_undeclared)
    }

    /// Whose the default streams of this memory are, as far as these tell.
    pub(super) fn memory_defaults(&self) -> Defaults {
        let is_primary = |placed: Placed| placed.whose == Defaults::OfPrimary;
        match is_primary(self.placed_ready()) || self.placed_producer().is_some_and(is_primary) {
            true => Defaults::OfPrimary,
            false => Defaults::OfMemory,
        }
    }

    /// Whether the ready stream is a default stream of a context that is remembered.
    #[inline(always)]
    pub(super) fn is_ready_in_a_context(&self) -> bool {
        matches!(&self.words, Words::Apart(apart) if matches!(apart.ready.whose, Defaults::Of(_) | Defaults::Untold))
    }

    /// Whether one of them is a default stream of which no context is known but the memory's.
    pub(super) fn has_placeable(&self) -> bool {
        let producer = self.placed_producer();
        self.placed_ready().is_placeable() || producer.is_some_and(|placed| placed.is_placeable())
    }

    #[inline(always)]
    pub(crate) fn ready(&self) -> Stream {
        match &self.words {
            Words::Plain { ready, .. } => stream_of(*ready),
            Words::Apart(apart) => apart.ready.stream,
        }
    }

    #[inline(always)]
    pub(crate) fn producer(&self) -> Option<Stream> {
        match &self.words {
            Words::Plain { producer, .. } if *producer == UNKNOWN => None,
            Words::Plain { producer, .. } => Some(stream_of(producer.get().wrapping_sub(1))),
            Words::Apart(apart) => apart.producer.map(|placed| placed.stream),
        }
    }

    pub(super) fn placed_ready(&self) -> Placed {
        match &self.words {
            Words::Plain { ready, .. } => Placed::plain(stream_of(*ready)),
            Words::Apart(apart) => apart.ready,
        }
    }

    pub(super) fn kept(&self) -> Option<&Kept> {
        match &self.words {
            Words::Plain { .. } => None,
            Words::Apart(apart) => apart.kept.as_ref(),
        }
    }

    pub(crate) fn placed_producer(&self) -> Option<Placed> {
        match &self.words {
            Words::Plain { .. } => self.producer().map(Placed::plain),
            Words::Apart(apart) => apart.producer,
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
                    // It takes no allocation either, if it takes none made at once.
                    let fresh = Streams::here(other, producer);
                    let [moved, fresh] =
                        [moved, fresh].map(|each| matches!(each.words, Words::Plain { .. }));
                    assert_eq!(moved, fresh, "{ready:?} {producer:?} {other:?}");
                    let moved = made.with_producer(Placed::here(other));
                    assert_eq!((moved.ready(), moved.producer()), (ready, Some(other)));
                }
            }
        }
    }

    #[test]
    fn a_thread_is_kept_and_not_replaced() {
        let (main, mine) = (Thread::current(), Stream::PerThreadDefault);
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
    fn a_worker_stays_until_a_producer_is_named() {
        for handle in [0, 1, 2, 3, u64::MAX] {
            let (stream, worker) = (Stream::from_raw(handle), Worker::of_nothing());
            let (made, other) = (
                Streams::of_worker(handle, worker),
                Placed::here(stream_of(7)),
            );
            assert_eq!(made.placed_ready(), Placed::here(stream));
            assert_eq!(made.placed_producer(), Some(Placed::here(stream)));
            let moved = [
                made.with_ready(other),
                made.with_defaults(Defaults::OfPrimary),
            ];
            assert!(moved.iter().all(|moved| moved.worker().is_some()));
            assert!(made.with_producer(other).worker().is_none());
            let renamed = made.renamed(Device::HOST).with_ready(other);
            let renamed = renamed.renamed(Device::cuda(1));
            assert_eq!(renamed.asked_about(), Some(Device::HOST));
            assert!(renamed.worker().is_some());
        }
    }

    #[test]
    fn three_words() {
        assert_eq!(size_of::<Streams>(), 24);
    }
}
