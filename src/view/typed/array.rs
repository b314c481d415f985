//! The array of a typed view: a whole one, or a part of one.
//!
//! A part that is borrowed mutably notes in its array where it was written: the next use of that array waits for it.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::view::{CaiView, Kept, Placed, Unordered, detach};

/// The array of a typed view that reads.
#[derive(Clone)]
pub(super) enum Array<'a> {
    Whole(&'a CaiView),
    Part(Box<CaiView>),
}

impl Array<'_> {
    #[inline]
    pub(super) fn cai(&self) -> &CaiView {
        match self {
            Self::Whole(cai) => cai,
            Self::Part(cai) => cai,
        }
    }
}

/// The array of a typed view that writes.
pub(crate) enum ArrayMut<'a> {
    Whole(&'a mut CaiView),
    Part(Box<CaiView>, Arc<Whole<'a>>),
    /// A part, borrowed once more.
    Reborrowed(&'a mut CaiView, Arc<Whole<'a>>),
}

impl<'a> ArrayMut<'a> {
    #[inline]
    pub(crate) fn cai(&self) -> &CaiView {
        match self {
            Self::Whole(cai) | Self::Reborrowed(cai, _) => cai,
            Self::Part(cai, _) => cai,
        }
    }

    pub(super) fn reborrow(&mut self) -> ArrayMut<'_> {
        match self {
            Self::Whole(cai) => ArrayMut::Whole(cai),
            Self::Part(cai, of) => ArrayMut::Reborrowed(cai, Arc::clone(of) as _),
            Self::Reborrowed(cai, of) => ArrayMut::Reborrowed(cai, Arc::clone(of) as _),
        }
    }

    /// Notes that what was written is ready on a stream, which `kept` keeps alive if it has to be kept, for the array and for those
    /// that it is a part of. `is_eager` tells of work that may be of no graph. Hands `ended` what kept the streams that they were
    /// ready on: that ends where any code may run.
    ///
    /// # Errors
    /// Why it is not ordered after another part of the same array.
    #[cfg(any(test, feature = "cudarc"))]
    pub(crate) fn written(
        &mut self,
        ready: Placed,
        kept: Option<Kept>,
        is_eager: bool,
        ended: &mut Vec<Kept>,
    ) -> Result<(), Unordered> {
        ended.extend(self.cai().streams().kept().cloned());
        match self {
            Self::Whole(cai) => {
                cai.set_ready_kept(ready, kept);
                Ok(())
            }
            Self::Part(cai, of) => {
                cai.set_ready_kept(ready, kept.clone());
                of.written(ready, kept, is_eager, ended)
            }
            Self::Reborrowed(cai, of) => {
                cai.set_ready_kept(ready, kept.clone());
                of.written(ready, kept, is_eager, ended)
            }
        }
    }

    /// Returns what the parts of this array tell where they were written.
    pub(super) fn into_whole(self) -> Arc<Whole<'a>> {
        let (cai, of) = match self {
            Self::Part(_, of) => return of,
            Self::Whole(cai) => (cai, None),
            Self::Reborrowed(cai, of) => (cai, Some(of)),
        };
        Arc::new(Whole {
            cai: Mutex::new(NonNull::from(cai)),
            has_eager: AtomicBool::new(false),
            of,
            borrow: PhantomData,
        })
    }
}

/// An array that lends parts of itself, exclusively borrowed.
///
/// A pointer, and not the `&'a mut` that it is of, as a mutex of that would not let a part be borrowed for a shorter time.
pub(crate) struct Whole<'a> {
    cai: Mutex<NonNull<CaiView>>,
    /// Whether a part may have been written by work of no graph. Changes under the lock alone.
    has_eager: AtomicBool,
    /// The array that this one is itself a part of.
    of: Option<Arc<Whole<'a>>>,
    borrow: PhantomData<&'a mut CaiView>,
}

// SAFETY: it stands for a `&mut CaiView`, which may go to another thread, as a `CaiView` may.
unsafe impl Send for Whole<'_> where CaiView: Send {}
// SAFETY: shared, it gives access to the array under a lock alone, to one thread at a time; a `CaiView` may go to another.
unsafe impl Sync for Whole<'_> where CaiView: Send {}

impl Whole<'_> {
    /// Notes that a part of the array was written, and is ready on a stream.
    ///
    /// Another part may have been written on another stream: then one of the two waits for the other, or the host does, and
    /// the array is ready on the one that has all parts. A capture may forbid each of these for one of them.
    ///
    /// # Errors
    /// Those of [`ArrayMut::written`].
    fn written(
        &self,
        ready: Placed,
        kept: Option<Kept>,
        is_eager: bool,
        ended: &mut Vec<Kept>,
    ) -> Result<(), Unordered> {
        // A thread that waits for the lock must not hold what the one in the driver wants back.
        let told = detach(|| {
            let mut lock = self.cai.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: of a `&'a mut CaiView` that was moved into this value, so that nothing else uses the array during `'a`;
            // the lock is held, so that this is the only reference that is made of it now.
            let cai = unsafe { lock.as_mut() };
            let may_be = is_eager || self.has_eager.load(Ordering::Relaxed);
            let told = cai.has_all_after(ready, may_be);
            let (is_there, are_done) = *told.as_ref().unwrap_or(&(true, false));
            self.has_eager.store(may_be && !are_done, Ordering::Relaxed);
            ended.extend(cai.streams().kept().cloned());
            if is_there {
                cai.set_ready_kept(ready, kept.clone());
            }
            told
        });
        let above = self.of.as_ref().map_or(Ok(()), |of| {
            let are_done = matches!(told, Ok((_, true)));
            of.written(ready, kept, is_eager && !are_done, ended)
        });
        match (told, above) {
            (Err(lost @ Unordered::Lost(_)), _) | (_, Err(lost)) => Err(lost),
            (told, Ok(())) => told.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::script::{self, Script};
    use crate::protocol::descriptor::{Descriptor, RawTensor};
    use crate::protocol::device::Device;
    use crate::protocol::stream::{Capture, Stream};
    use crate::view::Owner;

    const CONTEXT: u64 = 0xa44a;
    const ONE: Stream = Stream::from_raw(0xa1);
    const OTHER: Stream = Stream::from_raw(0xa2);

    fn view() -> CaiView {
        let descriptor = Descriptor::new(&RawTensor {
            device: Device::cuda(0),
            shape: &[4],
            ..RawTensor::EXAMPLE
        });
        let descriptor = descriptor.expect("a valid tensor");
        // SAFETY: nothing reads the memory; the scripted driver follows no stream.
        unsafe { CaiView::new(descriptor, ONE, Owner::new(())) }
    }

    fn whole_of<'a>(cai: &'a mut CaiView, of: Option<&Arc<Whole<'a>>>) -> Arc<Whole<'a>> {
        match of {
            None => ArrayMut::Whole(cai).into_whole(),
            Some(of) => ArrayMut::Reborrowed(cai, Arc::clone(of)).into_whole(),
        }
    }

    /// Work of no graph is waited for by the first part that one graph alone would order, once, and that in each array of
    /// which it is a part.
    #[test]
    fn work_of_no_graph_is_remembered_until_it_is_waited_for() {
        let script = Script::leak();
        for stream in [ONE, OTHER] {
            script.stream(stream.raw(), CONTEXT);
        }
        script.current(CONTEXT);
        let _installed = script::install(script);
        let (mut all, mut half) = (view(), view());
        let all = whole_of(&mut all, None);
        let half = whole_of(&mut half, Some(&all));
        let remembered = || [&all, &half].map(|whole| whole.has_eager.load(Ordering::Relaxed));
        let write = |stream, is_eager| {
            script.take_calls();
            let written = half.written(Placed::here(stream), None, is_eager, &mut Vec::new());
            written.expect("no refusal");
            script.count("cuMemFree") > 0
        };
        assert!(!write(ONE, true), "on the ready stream");
        assert_eq!(remembered(), [true, true]);
        for stream in [ONE, OTHER] {
            script.captured(stream, Capture::Active, 1);
        }
        assert!(write(OTHER, false), "beside an edge of the graph");
        assert_eq!(remembered(), [false, false]);
        assert!(!write(ONE, false), "all of the graph");
        assert_eq!(remembered(), [false, false]);
    }
}
