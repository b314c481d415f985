//! The rounds of the thread, made by hand on the scripted driver.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};

use super::*;
use crate::driver::script::Script;
use crate::protocol::stream::Capture;

const CONTEXT: u64 = 0x9011;
const STREAM: Stream = Stream::from_raw(0x91);
const OTHER: Stream = Stream::from_raw(0x92);

fn script() -> &'static Script {
    let script = Script::leak();
    script
        .stream(STREAM.raw(), CONTEXT)
        .stream(OTHER.raw(), CONTEXT)
        .current(CONTEXT);
    script
}

fn used(driver: &Script, stream: Stream) -> Use {
    Use::new(driver, Some(stream)).expect("a context")
}

fn block(driver: &'static Script, memory: Memory, nbytes: u64, used: Use) -> Block {
    let made = match memory {
        Memory::Pool => Block::pooled(driver, nbytes, 0, STREAM, used),
        other => Block::new(driver, other, nbytes, used, used.home),
    };
    made.expect("memory")
}

/// An owner that tells of its end, as `stream` uses it.
fn owner(driver: &'static Script, stream: Stream) -> (Held, Arc<AtomicBool>) {
    struct Ends(Arc<AtomicBool>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let ended = Arc::new(AtomicBool::new(false));
    let held = Held::Owner(Owned {
        driver,
        ordinal: 0,
        used: used(driver, stream),
        owner: Owner::new(Ends(Arc::clone(&ended))),
    });
    (held, ended)
}

/// Without the thread the caller waits: until the capture is over that forbids the mark, and then for the event.
#[test]
fn without_a_thread_the_caller_ends_it() {
    for (is_captured, is_refused) in [(false, false), (true, false), (false, true)] {
        let driver = script();
        let (held, ended) = owner(driver, STREAM);
        if is_captured {
            driver.captured(STREAM, Capture::Active, 1);
        }
        if is_refused {
            driver.fault("cuEventQuery", 0, 999);
        }
        thread::scope(|scope| {
            let news = News::Unmarked(held);
            let alone = scope.spawn(move || {
                driver.current(0xc0de);
                Keeper::default().take_alone(driver, news);
                driver.current_now()
            });
            while is_captured && driver.count("cuStreamIsCapturing") < 2 {
                thread::yield_now();
            }
            assert!(!is_captured || !ended.load(Ordering::Acquire));
            driver.captured(STREAM, Capture::Idle, 0);
            assert_eq!(alone.join().ok(), Some(0xc0de), "the context is put back");
        });
        assert!(ended.load(Ordering::Acquire));
        assert_eq!(driver.count("cuEventRecord"), 1);
        let questions = driver.count("cuEventQuery");
        assert_eq!(questions, 1 + usize::from(is_refused));
    }
}

/// A block is taken over if it is of the kind, context and stream that are asked for: the smallest that is large enough,
/// whether its stream has a mark or not.
#[test]
fn the_smallest_block_of_the_same_stream_is_found() {
    let driver = script();
    let (here, there) = (used(driver, STREAM), used(driver, OTHER));
    let sizes = [256, 64, 128];
    for marked in 0..=sizes.len() {
        let mut keeper = Keeper::default();
        let held = |size: &u64| Held::Memory(block(driver, Memory::Device, *size, here));
        for size in &sizes[..marked] {
            let event = here.mark_own(driver).expect("a mark");
            let beside = Held::Memory(block(driver, Memory::Device, *size, there));
            let held = vec![beside, held(size)];
            keeper.take(News::Marked(event, held));
        }
        for size in &sizes[marked..] {
            keeper.take(News::Unmarked(held(size)));
        }
        keeper.take(News::Unmarked(owner(driver, STREAM).0));
        let mut find = |memory, nbytes, used: Use| {
            let wanted = Wanted {
                memory,
                nbytes,
                home: used.home,
                used,
            };
            let (answers, receiver) = mpsc::channel();
            keeper.take(News::Take(wanted, answers));
            receiver.try_recv().ok().map(|block| block.nbytes)
        };
        assert_eq!(find(Memory::Managed, 1, here), None);
        assert_eq!(find(Memory::Device, 257, here), None);
        for (nbytes, found) in [(65, Some(128)), (65, Some(256)), (65, None)] {
            assert_eq!(find(Memory::Device, nbytes, here), found, "{marked}");
        }
        assert_eq!(find(Memory::Device, 64, here), Some(64));
        let beside = [256, 64, 128][..marked].iter().min().copied();
        assert_eq!(find(Memory::Device, 1, there), beside);
    }
}

/// A block that the one who asked no longer waits for stays.
#[test]
fn what_is_not_taken_stays() {
    let driver = script();
    let used = used(driver, STREAM);
    let mut keeper = Keeper::default();
    keeper.take(News::Unmarked(Held::Memory(block(
        driver,
        Memory::Pool,
        64,
        used,
    ))));
    let (answers, receiver) = mpsc::channel();
    drop(receiver);
    let wanted = Wanted {
        memory: Memory::Pool,
        nbytes: 64,
        home: used.home,
        used,
    };
    keeper.take(News::Take(wanted, answers));
    assert_eq!(keeper.unmarked.len(), 1);
    keeper.round(std::iter::empty());
    assert!(keeper.is_idle());
    assert_eq!(driver.count("cuMemFree"), 1);
}

/// One mark serves all that a stream uses.
#[test]
fn each_stream_is_marked_once() {
    let driver = script();
    let streams = [STREAM, OTHER, STREAM, STREAM, OTHER];
    let (held, ended): (Vec<_>, Vec<_>) = streams.iter().map(|at| owner(driver, *at)).unzip();
    let mut keeper = Keeper::default();
    keeper.round(held.into_iter().map(News::Unmarked));
    assert_eq!(driver.count("cuEventRecord"), 2);
    assert!(keeper.is_idle());
    assert!(ended.iter().all(|ended| ended.load(Ordering::Acquire)));
}

/// A thread that waits for room is told when something has ended since it looked, and let go when nothing of its device
/// is left that may end: what the driver does not tell of is not waited for.
#[test]
fn a_wait_for_room_ends() {
    let driver = script();
    // What other tests end counts too.
    let wait = |keeper: &mut Keeper, ended_since: u64| loop {
        let seen = ended();
        let (waits, receiver) = channel();
        keeper.take(News::Drain(Drain {
            ordinal: 0,
            seen: seen.wrapping_sub(ended_since),
            waits,
        }));
        keeper.ask();
        if ended() == seen {
            return receiver.try_recv();
        }
    };
    let let_go = Err(mpsc::TryRecvError::Disconnected);
    let mut keeper = Keeper::default();
    assert_eq!(wait(&mut keeper, 1), Ok(()));
    assert_eq!(wait(&mut keeper, 0), let_go);

    let event = used(driver, STREAM).mark_own(driver).expect("a mark");
    // As often as the loop may ask.
    for _ in 0..100 {
        driver.fault("cuEventQuery", 0, 999);
    }
    keeper.take(News::Marked(event, vec![owner(driver, STREAM).0]));
    assert_eq!(wait(&mut keeper, 0), let_go, "it is stuck");
    assert_eq!(keeper.waiting.len(), 1);
}
