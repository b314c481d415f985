//! Keeps memory and owners until streams are done with them.
//!
//! A view, or a copy of this library's, may be dropped while work that reads it is enqueued. Its end comes after
//! that work: an event is recorded on the stream that it is for, and what hangs on it ends once the event has been
//! reached. A deleter must not wait, nor call the driver (whose lock may be held by a host function that wants the
//! GIL), so that all of it is a thread's.
//!
//! ```text
//!   deleter --send--> cai-dlpack-keep: asks all events together --+--> owners, memory of a pool: here
//!                        ^                                        +--> cai-dlpack-free: cuMemFree,
//!                        v                                             one thread for each device
//!                     cai-dlpack-mark: records, another thread while one is blocked
//! ```
//!
//! | what ends | after | by |
//! |---|---|---|
//! | an owner | an event on the stream of its last user | its drop |
//! | an owner whose last user was a stream that was captured, or the legacy one beside a capture | all work of the stream's context | its drop |
//! | an owner whose memory a graph uses | the graph, and all that was made of it | its drop |
//! | memory of a pool, for a stream that something keeps | an event on that stream | `cuMemFree`, which does not wait for such memory |
//! | other memory | the same | `cuMemFree` or `cuMemFreeHost`, which wait for the context; or the next copy of about its size takes it |
//! | memory for a default stream, or for one that nothing keeps, of a pool or not | the next copy for it marks the stream; without one, all work of the stream's context | the same |
//! | memory for a consumer that named no stream (-1, the host) | all work of its context, and of every primary one in use | the same |
//! | an owner of another process's memory | the same | its drop |
//! | memory for a stream, also while a thread waits for the device to end it, if none is left for the next copy for it | nothing: that copy's work comes later in the order of the stream | no call: the copy takes it over |
//!
//! A thread that finds no memory waits for any of these ([`room`]), also for owners that only a thread with the GIL ends; but
//! no longer than it takes to ask again for what is stuck: behind a capture, which may be its own, behind eight streams whose
//! marks block, or as the driver does not answer; and no longer than a second for an owner's end, which may want a lock that
//! the thread holds. A finaliser waits for nothing: it may be what others wait for.
//!
//! If the driver refuses the wait, the memory or owner is kept, and the wait is tried again. If it refuses the call that
//! frees, the memory is lost: "this function may also return error codes from previous, asynchronous launches" (driver API),
//! so that it may have been freed, and a second call would free what has come in its place.
//!
//! **Limits.** `cuEventRecord` blocks while the driver takes no more work for the stream: eight such streams block the marks
//! of all others. What is inside `cuMemFree` can be taken no more, as long as that waits for the context; and
//! until it returns, other threads enqueue nothing there (docs/cusim.md).
//!
//! **A stream that was destroyed** has left a handle that no call may be given: the driver reads what is there, which has
//! ended the process on a GPU (docs/cusim.md). So no thread of ours names a stream that nothing keeps. A call for a stream may,
//! and `cuStreamGetId` tells that from an earlier one under the same handle.
//!
//! **Captures.** A stream is asked before its event is recorded, and once more after it, since the capture is another
//! thread's: what was recorded inside one is thrown away, and the memory stays until the capture has ended. The legacy
//! stream is used by calls for it alone: between question and mark another thread may begin to capture a blocking stream,
//! and the mark would break that.
//!
//! **Fork.** A forked child has neither thread, and no such memory: it is refused the driver.
//!
//! **Roads not taken.** `cuMemFreeAsync` on the stream cannot be asked whether a capture has begun meanwhile. On a stream of
//! ours, behind an event, it breaks no capture; but whether the busy stream may have the memory before that event is
//! reached is for attributes of the device's pool to decide, which the process sets (`CU_MEMPOOL_ATTR_REUSE_*`), and it
//! is no help for other memory. The next copy for the same stream takes a dropped one's memory over instead.
//! `cuLaunchHostFunc` would need no thread of ours, but an owner's end may call the driver, which a host function
//! must not. One thread that waits for the events in order lets a long stream delay all that came after it. To poll an
//! event of the copy's own stream before `cuMemFree` does not shorten that call: it waits for every stream of the device,
//! and no call gives such memory back without. So behind unrelated work it is used again, by its [size](size_class).

mod block;
mod free;
mod graph;
mod held;
mod mark;
mod poll;
#[cfg(feature = "cudarc")]
mod readers;
mod room;

pub(crate) use block::{Block, Memory, Use};
pub(crate) use graph::by_graph;
#[cfg(feature = "cudarc")]
pub(crate) use poll::has_waited;
#[cfg(test)]
pub(crate) use poll::round;
pub(crate) use poll::{
    Begun, by_stream, by_stream_of, end, end_after, keep_for_ever, mark_own, start_for,
    wait_for_context,
};
#[cfg(feature = "cudarc")]
pub(crate) use readers::{Before, are_there};
#[cfg(feature = "pyo3")]
pub(crate) use room::ending;
#[cfg(feature = "cudarc")]
pub(crate) use room::is_ours;

#[cfg(any(feature = "cudarc", feature = "ipc"))]
use crate::driver::Event;
#[cfg(feature = "cudarc")]
use crate::driver::twice;
use crate::driver::{ContextGuard, Driver, DriverError, Place};
use crate::protocol::stream::Stream;
use crate::view::{Owner, end_own};

/// Ends an owner whose memory is used by streams that nobody has named, of any device: once an event has been reached, and
/// the devices in use have done the work that they have by then.
#[cfg(any(feature = "cudarc", feature = "ipc"))]
pub(crate) struct AfterDevices {
    driver: &'static dyn Driver,
    ordinal: i32,
    used: Use,
    after: Option<Event>,
}

#[cfg(any(feature = "cudarc", feature = "ipc"))]
impl AfterDevices {
    /// Starts the thread of the memory's device, so that a deleter finds it. `used` is of a context there, on no stream, and
    /// `after` an event of that context, which the owner keeps and the first use waits for.
    pub(crate) fn new(
        driver: &'static dyn Driver,
        ordinal: i32,
        used: Use,
        after: Option<Event>,
    ) -> Self {
        free::start(driver, ordinal);
        Self {
            driver,
            ordinal,
            used,
            after,
        }
    }

    /// Hands `owner` to the thread: neither waits nor calls the driver.
    pub(crate) fn drop_later(&self, owner: Owner) {
        let owned = held::Owned {
            driver: self.driver,
            ordinal: self.ordinal,
            memory_ordinal: self.ordinal,
            used: self.used,
            after: self.after,
            owner,
            stream: None,
            #[cfg(feature = "cudarc")]
            reader: std::sync::Arc::default(),
        };
        free::later(held::Held::owner(owned), true);
    }
}

/// Ends `owner`, which uses memory of a device on streams that no thread of ours can name, once the devices in use have done the
/// work that they have, in the current context among others. The host does not wait.
#[cfg(feature = "cudarc")]
pub(crate) fn after_context(driver: &'static dyn Driver, ordinal: i32, owner: Owner) {
    match twice(|| Use::anywhere(driver, None)) {
        Ok(used) => AfterDevices::new(driver, ordinal, used, None).drop_later(owner),
        // It is not known where the work is.
        Err(_) => std::mem::forget(owner),
    }
}

/// Allocates in the current context, which is that of a use on no stream, or takes over what waits there to be freed, and
/// is large enough and not much larger. What only a waiting call frees is allocated in few sizes, so that it can be taken over.
///
/// # Errors
/// The driver's refusal.
pub(crate) fn allocate(
    driver: &'static dyn Driver,
    memory: Memory,
    nbytes: u64,
    used: Use,
) -> Result<Block, DriverError> {
    let size = size_class(nbytes);
    let home = match used.stream() {
        Some(_) => block::Home::here(driver)?,
        None => used.home,
    };
    if let Some(mut block) = free::take(memory, size, home) {
        block.used = used;
        poll::let_go(&mut block);
        block.is_in_use = false;
        return Ok(block);
    }
    let made = match Block::new(driver, memory, size, used, home) {
        Err(error) if error.is_out_of_memory() && size > nbytes => {
            Block::new(driver, memory, nbytes, used, home)
        }
        made => made,
    };
    or_taken(made, driver, memory, nbytes, home, used)
}

/// Allocates from the pool of the stream's device, which is the current one, for work on `stream`.
///
/// # Errors
/// The driver's refusal; [unsupported](DriverError::is_unsupported) if the device has no pools.
pub(crate) fn allocate_pooled(
    driver: &'static dyn Driver,
    nbytes: u64,
    ordinal: i32,
    stream: Stream,
    used: Use,
) -> Result<Block, DriverError> {
    let made = Block::pooled(driver, nbytes, ordinal, stream, used);
    or_taken(made, driver, Memory::Pool, nbytes, used.home, used)
}

/// If memory is short: takes over what a dropped copy for the same stream has, which needs no wait.
fn or_taken(
    made: Result<Block, DriverError>,
    driver: &'static dyn Driver,
    memory: Memory,
    nbytes: u64,
    home: block::Home,
    used: Use,
) -> Result<Block, DriverError> {
    let Err(error) = made else {
        return made;
    };
    let taken = match error.is_out_of_memory() && !room::is_ours() {
        true => poll::take(driver, memory, nbytes, home, used),
        false => None,
    };
    let mut block = taken.ok_or(error)?;
    poll::let_go(&mut block);
    block.is_in_use = true;
    Ok(block)
}

/// Rounds a size up to one of four in each doubling: to less than a quarter more.
const fn size_class(nbytes: u64) -> u64 {
    let step = match nbytes.checked_ilog2() {
        Some(log @ 2..) => 1 << (log - 2),
        _ => 1,
    };
    match nbytes.checked_next_multiple_of(step) {
        Some(class) => class,
        None => nbytes,
    }
}

/// Allocates at `place`, for `used`. If memory is short there it waits for what has ended of that device, and tries again
/// each time that something is given back, until nothing is left to wait for. After each wait it asks `may_go_on`: the
/// allocation may be work of a stream that is being captured by then. At last it ends what this thread alone can end.
///
/// A thread of ours does not wait: what it would wait for may be its own to end.
///
/// # Errors
/// The driver's refusal, and that of `may_go_on`.
pub(crate) fn with_room<E: From<DriverError>>(
    driver: &'static dyn Driver,
    place: &Place,
    used: Use,
    may_go_on: impl Fn() -> Result<(), E>,
    allocate: impl Fn() -> Result<Block, DriverError>,
) -> Result<Block, E> {
    match allocate() {
        Err(error) if error.is_out_of_memory() && !room::is_ours() => {}
        made => return Ok(made?),
    }
    let ordinal = device_of(driver, place)?;
    let (mut can_mark, mut waiter, mut is_own_ended) = (true, room::Waiter::new(ordinal), false);
    loop {
        waiter.tries();
        // A refused mark is left to the threads that wait for the device.
        can_mark = can_mark && poll::mark_own(driver, used);
        match allocate() {
            Err(error) if error.is_out_of_memory() => {
                poll::hurry(driver);
                if !waiter.wait() {
                    if std::mem::replace(&mut is_own_ended, true) || !end_own() {
                        return Err(error.into());
                    }
                    waiter = room::Waiter::new(ordinal);
                }
                may_go_on()?;
            }
            made => return Ok(made?),
        }
    }
}

/// The device that memory at `place` is of.
fn device_of(driver: &dyn Driver, place: &Place) -> Result<i32, DriverError> {
    let _there = ContextGuard::of_memory(driver, place)?;
    driver.current_device()
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::driver::script::Script;
    use crate::view::Kept;

    /// A driver of one device with this context, of which other tests have none.
    fn script(context: u64) -> &'static Script {
        let script = Script::leak();
        script.primary(0, context).current(context);
        script
    }

    fn used(driver: &Script) -> Use {
        Use::anywhere(driver, None).expect("a context")
    }

    fn kept(mut block: Block) -> Block {
        block.stream = Some(Kept::by(Owner::new(())));
        block.is_stream_kept = true;
        block
    }

    /// It is tried again only if memory is short; once more, if something is given back meanwhile (by another test).
    #[test]
    #[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
    fn an_allocation_is_tried_again_as_often_as_room_can_be_made() {
        for (failures, code) in (0..5).flat_map(|failures| [2, 1, 201].map(|code| (failures, code)))
        {
            let driver = script(0xcafe);
            for _ in 0..failures {
                driver.fault("cuMemAlloc", 0, code);
            }
            let used = used(driver);
            let place = Place::cuda(0, 0);
            let may_go_on = || Ok::<(), DriverError>(());
            let made = with_room(driver, &place, used, may_go_on, || {
                Block::new(driver, Memory::Device, 64, used, used.home)
            });
            let tries = if code == 2 { 2 } else { 1 };
            let what = format!("{failures} failures of code {code}");
            let is_tried_enough = failures < tries;
            assert!(made.is_ok() >= is_tried_enough, "{what}");
            assert!(made.is_err() || failures == 0 || code == 2, "{what}");
            let expected = tries.min(failures + 1) as usize;
            let tried = driver.count("cuMemAlloc");
            assert!(
                tried >= expected && (code == 2 || tried == expected),
                "{what}"
            );
        }
    }

    /// An allocation that fails takes over a dropped copy only if memory is short.
    #[test]
    #[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
    fn what_a_dropped_copy_has_is_taken_for_lack_of_memory_only() {
        let stream = Stream::from_raw(0xca5e);
        for code in [1, 2, 3, 4, 201, 400, 700, 801, 999] {
            // A context of its own: what an earlier round dropped is not alike.
            let context = 0xca_f100 + u64::from(code);
            let driver = script(context);
            driver.stream(stream.raw(), context);
            // Busy for a second or so.
            (0..300).for_each(|_| _ = driver.fault("cuEventQuery", 0, 600));
            let used = Use::new(driver, stream).expect("a context");
            let pooled = || allocate_pooled(driver, 64, 0, stream, used);
            end(kept(pooled().expect("memory")));
            driver.fault("cuMemAllocAsync", 0, code);
            assert_eq!(pooled().is_ok(), code == 2, "{code}");
            driver.without_faults();
        }
    }

    /// A block that another stream still writes to is not taken over by a copy for the stream that it was made for.
    #[test]
    #[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
    fn what_ends_after_another_stream_is_not_taken_over() {
        let (stream, own) = (Stream::from_raw(0xca5e1), Stream::from_raw(0xca5e2));
        for (context, is_taken) in [(0xca_e000, true), (0xca_e001, false)] {
            let driver = script(context);
            driver.stream(stream.raw(), context);
            driver.stream(own.raw(), context);
            (0..300).for_each(|_| _ = driver.fault("cuEventQuery", 0, 600));
            let used = Use::new(driver, stream).expect("a context");
            let pooled = || allocate_pooled(driver, 64, 0, stream, used);
            let block = kept(pooled().expect("memory"));
            match is_taken {
                true => end(block),
                false => end_after(driver, own, Kept::Promise, block),
            }
            driver.fault("cuMemAllocAsync", 0, 2);
            assert_eq!(pooled().is_ok(), is_taken);
            driver.without_faults();
        }
    }

    /// It ends once that stream is done, and does not stay.
    #[test]
    #[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
    fn what_ends_after_another_stream_ends() {
        let (stream, own, context) = (
            Stream::from_raw(0xca5e3),
            Stream::from_raw(0xca5e4),
            0xca_e002,
        );
        let driver = script(context);
        driver
            .stream(stream.raw(), context)
            .stream(own.raw(), context);
        let used = Use::new(driver, stream).expect("a context");
        let block = allocate_pooled(driver, 64, 0, stream, used).expect("memory");
        end_after(driver, own, Kept::Promise, kept(block));
        let marked =
            |call: &String| call.starts_with("cuEventRecord") && call.ends_with(" 0xca5e4");
        assert!(driver.calls().iter().any(marked), "{:?}", driver.calls());
        let is_freed = (0..20_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            driver.count("cuMemFree") == 1
        });
        assert!(is_freed, "{:?}", driver.calls());
    }

    /// Whatever is current: what is waited for is the memory's device's.
    #[test]
    fn the_device_of_memory_is_its_place_s() {
        let contexts = [0xcaf0, 0xcaf1];
        for (ordinal, current) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let driver = script(contexts[0]);
            driver.primary(1, contexts[1]).current(contexts[current]);
            let place = Place::cuda(ordinal, 0);
            assert_eq!(device_of(driver, &place).ok(), Some(ordinal), "{current}");
            assert_eq!(driver.current_now(), contexts[current]);
        }
    }

    /// A size that does not fit is asked for exactly, unless that is the same.
    #[test]
    fn a_class_that_does_not_fit_gives_way_to_the_size() {
        for (nbytes, code) in (1..200).flat_map(|nbytes| [2, 1].map(|code| (nbytes, code))) {
            for (memory, call) in [
                (Memory::Device, "cuMemAlloc"),
                (Memory::Managed, "cuMemAllocManaged"),
                (Memory::Pinned, "cuMemHostAlloc"),
            ] {
                let driver = script(0xcaff);
                driver.fault(call, 0, code);
                let made = allocate(driver, memory, nbytes, used(driver));
                let is_again = code == 2 && size_class(nbytes) > nbytes;
                let sizes = [size_class(nbytes), nbytes];
                let sizes = &sizes[..1 + usize::from(is_again)];
                let asked: Vec<_> = sizes.iter().map(|size| format!("{call} {size}")).collect();
                let mut calls = driver.take_calls();
                calls.retain(|made| made.split(' ').next() == Some(call));
                assert_eq!((calls, made.is_ok()), (asked, is_again), "{nbytes} {code}");
            }
        }
    }

    #[test]
    fn four_sizes_in_each_doubling_serve_all() {
        let classes = |from: u64| (from + 1..=2 * from).map(size_class);
        for log in 2..16 {
            let mut sizes = classes(1 << log).collect::<Vec<_>>();
            assert!(sizes.is_sorted());
            sizes.dedup();
            assert_eq!(sizes.len(), 4);
        }
        for nbytes in (0..10_000).chain([u64::MAX >> 1, u64::MAX - 1, u64::MAX]) {
            let class = size_class(nbytes);
            assert!((nbytes..=nbytes.saturating_add(nbytes / 4)).contains(&class));
            assert_eq!(size_class(class), class);
        }
    }

    /// The contexts of a block that ends after another stream, which is being captured, are kept until it is freed.
    #[test]
    #[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
    fn what_ends_after_a_captured_stream_keeps_its_contexts() {
        struct Tells(&'static Script, std::sync::mpsc::Sender<usize>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.1.send(self.0.count("cuMemFree"));
            }
        }
        let (stream, own, context) = (
            Stream::from_raw(0xca5e5),
            Stream::from_raw(0xca5e6),
            0xca_e003,
        );
        let driver = script(context);
        driver
            .stream(stream.raw(), context)
            .stream(own.raw(), context);
        let used = Use::new(driver, stream).expect("a context");
        let (told, freed) = std::sync::mpsc::channel();
        let mut block = Block::new(driver, Memory::Device, 64, used, used.home).expect("memory");
        block.stream = Some(Kept::by(std::sync::Mutex::new(Tells(driver, told.clone()))));
        block.is_stream_kept = true;
        driver.captured(own, crate::protocol::stream::Capture::Active, 1);
        let source = Kept::by(std::sync::Mutex::new(Tells(driver, told)));
        end_after(driver, own, source, block);
        for _ in 0..2 {
            assert!(
                freed.recv().is_ok_and(|frees| frees > 0),
                "it is freed before"
            );
        }
    }
}
