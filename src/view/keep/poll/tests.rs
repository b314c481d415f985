//! The rounds of the thread, made by hand on the scripted driver.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use super::super::with_room;
use super::*;
use crate::driver::Place;
use crate::driver::script::Script;
use crate::protocol::stream::Capture;
use crate::view::Kept;

const CONTEXT: u64 = 0x9011;
const STREAM: Stream = Stream::from_raw(0x91);
const OTHER: Stream = Stream::from_raw(0x92);

fn script() -> &'static Script {
    script_of(CONTEXT)
}

fn script_of(context: u64) -> &'static Script {
    let script = Script::leak();
    script
        .stream(STREAM.raw(), context)
        .stream(OTHER.raw(), context)
        .current(context);
    script
}

fn used(driver: &Script, stream: Stream) -> Use {
    Use::new(driver, stream).expect("a context")
}

fn block(driver: &'static Script, memory: Memory, nbytes: u64, used: Use) -> Block {
    let made = match memory {
        Memory::Pool => Block::pooled(driver, nbytes, 0, STREAM, used),
        other => Block::new(driver, other, nbytes, used, used.home),
    };
    made.expect("memory")
}

/// One whose stream is kept.
fn kept(driver: &'static Script, memory: Memory, nbytes: u64, used: Use) -> Held {
    let mut block = block(driver, memory, nbytes, used);
    block.stream = Some(Kept::by(telling().0));
    block.is_stream_kept = true;
    Held::memory(block)
}

/// An owner that tells of its end.
fn telling() -> (Owner, Arc<AtomicBool>) {
    struct Ends(Arc<AtomicBool>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let ended = Arc::new(AtomicBool::new(false));
    (Owner::new(Ends(Arc::clone(&ended))), ended)
}

/// One that `stream` uses.
fn owner(driver: &'static Script, stream: Stream) -> (Held, Arc<AtomicBool>) {
    let (owner, ended) = telling();
    let held = Held::owner(Owned {
        driver,
        ordinal: 0,
        memory_ordinal: 0,
        used: used(driver, stream),
        after: None,
        owner,
        stream: None,
        #[cfg(feature = "cudarc")]
        reader: Arc::default(),
    });
    (held, ended)
}

/// If the stream cannot be marked the host waits; if it cannot do that either, the owner stays, unless the context has
/// ended, where nothing runs any more. A refusal that comes once changes nothing.
#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn an_owner_that_nothing_waits_for_stays() {
    const REFUSED: u32 = 999;
    const DESTROYED: u32 = 709;
    for (record, waits, ends) in [
        (REFUSED, &[][..], true),
        (REFUSED, &[REFUSED], true),
        (REFUSED, &[REFUSED; 2], false),
        (REFUSED, &[DESTROYED; 2], true),
        (DESTROYED, &[REFUSED; 2], true),
    ] {
        let driver = script();
        let (owner, ended) = telling();
        for _ in 0..2 {
            driver.fault("cuEventRecord", 0, record);
        }
        for code in waits {
            driver.fault("cuStreamSynchronize", 0, *code);
        }
        by_stream(driver, STREAM, &owner, Device::cuda(0), Begun::OnStream);
        let what = (record, waits);
        assert!(driver.count("cuStreamSynchronize") > 0, "{what:?}");
        drop(owner);
        assert_eq!(ended.load(Ordering::Acquire), ends, "{what:?}");
    }
}

/// In a context that is gone there is no work; any other refusal may be of one that has some.
#[test]
fn a_context_that_is_gone_is_not_waited_for() {
    for (code, is_refused) in [(201, false), (709, false), (2, true), (999, true)] {
        let driver = script();
        for refusals in [1, 2] {
            (0..refusals).for_each(|_| _ = driver.fault("cuCtxGetDevice", 0, code));
            let is_told = wait_for_context(driver).is_err();
            assert_eq!(is_told, is_refused && refusals == 2, "{code} {refusals}");
            driver.without_faults();
        }
    }
}

/// A capture's end is seen by the next caller, though that one waits for nothing of its own.
#[test]
fn what_was_left_is_tried_again_by_a_caller_that_does_not_wait() {
    let driver = script();
    let (held, ended) = owner(driver, STREAM);
    driver.captured(STREAM, Capture::Active, 1);
    let mut left = Keeper::default();
    left.take_alone(driver, Some(News::Unmarked(held)));
    driver.captured(STREAM, Capture::Idle, 0);
    thread::sleep(2 * RETRY);
    let mut next = Keeper::default();
    next.add(left);
    next.look_alone(driver);
    assert!(next.is_idle());
    assert!(ended.load(Ordering::Acquire));
}

/// Without the thread the caller waits for the event; not for the capture that forbids its mark, which may be its own: what it
/// leaves ends with the next one's.
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
        driver.current(0xc0de);
        let mut keeper = Keeper::default();
        keeper.take_alone(driver, Some(News::Unmarked(held)));
        assert_eq!(driver.current_now(), 0xc0de, "the context is put back");
        assert_eq!(keeper.is_idle(), !is_captured);
        assert_eq!(ended.load(Ordering::Acquire), !is_captured);
        driver.captured(STREAM, Capture::Idle, 0);
        let mut next = Keeper::default();
        next.take(News::Left(keeper));
        next.take_alone(driver, None);
        assert!(next.is_idle());
        assert_eq!(driver.current_now(), 0xc0de);
        assert!(ended.load(Ordering::Acquire));
        assert_eq!(driver.count("cuEventRecord"), 1);
        let questions = driver.count("cuEventQuery");
        assert_eq!(questions, 1 + usize::from(is_refused));
    }
}

/// Nor does it wait for ever for work, to which it may have to open the way itself.
#[test]
#[cfg_attr(miri, ignore = "takes seconds")]
fn without_a_thread_the_caller_does_not_wait_for_ever() {
    let driver = script();
    let (held, ended) = owner(driver, STREAM);
    // For each question that is asked so long.
    (0..30_000).for_each(|_| _ = driver.fault("cuEventQuery", 0, 600));
    let (mut keeper, begun) = (Keeper::default(), Instant::now());
    keeper.take_alone(driver, Some(News::Unmarked(held)));
    assert!(begun.elapsed() >= room::LIMIT && !keeper.is_idle());
    assert!(!ended.load(Ordering::Acquire));
    driver.without_faults();
    keeper.look_alone(driver);
    assert!(keeper.is_idle() && ended.load(Ordering::Acquire));
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
        let held = |size: &u64| Held::memory(block(driver, Memory::Device, *size, here));
        for size in &sizes[..marked] {
            let event = here.mark_own(driver).expect("a mark");
            let beside = Held::memory(block(driver, Memory::Device, *size, there));
            let held = vec![beside, held(size)];
            keeper.take(News::Marked(event.into(), held));
        }
        for size in &sizes[marked..] {
            keeper.take(News::Unmarked(held(size)));
        }
        keeper.take(News::Unmarked(owner(driver, STREAM).0));
        let mut find =
            |memory, nbytes, used: Use| nbytes_of(&ask(&mut keeper, memory, nbytes, used));
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

/// Memory of the context of a use.
fn wanted(memory: Memory, nbytes: u64, used: Use) -> Wanted {
    Wanted {
        memory,
        nbytes,
        home: used.home,
        used,
    }
}

fn ask(keeper: &mut Keeper, memory: Memory, nbytes: u64, used: Use) -> mpsc::Receiver<Answer> {
    let (answers, receiver) = mpsc::channel();
    keeper.take(News::Take(wanted(memory, nbytes, used), answers));
    receiver
}

/// Takes the answer, of which it returns the size, and frees it.
fn nbytes_of(receiver: &mpsc::Receiver<Answer>) -> Option<u64> {
    let block = receiver.try_recv().ok()?.0.take()?.into_block()?;
    let nbytes = block.nbytes;
    // SAFETY: no work uses what the script has allocated.
    assert!(unsafe { block.free() }.is_none());
    Some(nbytes)
}

/// Memory is on its way until it has been taken: the one who asked may not wait for it any more.
#[test]
fn what_is_on_offer_is_due() {
    const ORDINAL: i32 = 0x0760;
    let driver = script();
    driver.primary(ORDINAL, 0x9012).current(0x9012);
    let used = used(driver, OTHER);
    driver.current(0x9012);
    let mut keeper = Keeper::default();
    keeper.take(News::Unmarked(Held::memory(block(
        driver,
        Memory::Device,
        64,
        used,
    ))));
    let receiver = ask(&mut keeper, Memory::Device, 64, used);
    let _patient = room::PATIENT.read();
    let mut waiter = room::Waiter::new(ORDINAL);
    let waits = thread::spawn(move || waiter.wait());
    thread::sleep(LONG);
    assert!(!waits.is_finished());
    assert_eq!(nbytes_of(&receiver), Some(64));
    assert!(waits.join().expect("no panic"));
}

/// What a graph has kept is waited for from the graph's end on.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn what_a_graph_has_kept_is_on_its_way() {
    struct Slow(mpsc::Receiver<()>);
    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
    const ORDINAL: i32 = 0x0770;
    let _patient = room::PATIENT.read();
    start(script());
    let (go_on, gate) = mpsc::channel();
    drop_later(Owner::new(Slow(gate)));
    let mut waiter = room::Waiter::new(ORDINAL);
    let waits = thread::spawn(move || waiter.wait());
    thread::sleep(2 * LONG);
    let is_waiting = !waits.is_finished();
    go_on.send(()).expect("it waits");
    assert!(is_waiting && waits.join().expect("no panic"));
}

/// What keeps the stream of a block may take a lock when it ends: it is waited for no longer than an owner's end.
#[test]
#[cfg_attr(miri, ignore = "takes a second")]
fn what_keeps_a_stream_is_not_waited_for_for_ever() {
    struct Slow(std::sync::Mutex<mpsc::Receiver<()>>);
    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.lock().map(|gate| gate.recv());
        }
    }
    let _alone = room::PATIENT.write();
    let driver = script();
    let mut block = block(driver, Memory::Pool, 64, used(driver, STREAM));
    let (go_on, gate) = mpsc::channel();
    block.stream = Some(Kept::by(Slow(std::sync::Mutex::new(gate))));
    block.is_stream_kept = true;
    block.ordinal = 0x0780;
    let held = Held::memory(block);
    let mut waiter = room::Waiter::new(0x0780);
    let ends = thread::spawn(move || {
        // SAFETY: the scripted driver has no work.
        assert!(unsafe { held.end() }.is_none());
    });
    let (done, told) = mpsc::channel();
    thread::spawn(move || {
        let is_free = waiter.wait();
        done.send((is_free, room::Waiter::new(0x0780).wait()))
    });
    let told = told.recv_timeout(3 * room::LIMIT);
    go_on.send(()).expect("it waits");
    assert_eq!(
        told,
        Ok((true, false)),
        "the memory comes at once, and no more"
    );
    ends.join().expect("no panic");
}

/// The mark of a block that is taken is asked about from then on, too: what keeps its stream goes after it.
#[test]
fn what_keeps_the_stream_of_a_mark_stays_until_it_is_reached() {
    for is_marking in [false, true] {
        let driver = script();
        let used = used(driver, STREAM);
        let (owner, ended) = telling();
        let mut block = block(driver, Memory::Pool, 64, used);
        (block.stream, block.is_stream_kept) = (Some(Kept::by(owner)), true);
        let held = vec![Held::memory(block)];
        let mut keeper = Keeper::default();
        let mark = used.mark_own(driver).expect("a mark");
        if is_marking {
            keeper.marking.push(Marking {
                used,
                held,
                kept: Vec::new(),
                since: Instant::now(),
                is_again: false,
            });
        } else {
            keeper.take(News::Marked(Arc::new(mark), held));
        }
        let receiver = ask(&mut keeper, Memory::Pool, 64, used);
        assert_eq!(nbytes_of(&receiver), Some(64));
        assert!(!ended.load(Ordering::Acquire), "the mark is there");
        if is_marking {
            keeper.take(News::Mark(used, used.mark(driver)));
            assert!(!ended.load(Ordering::Acquire), "the mark is there");
        }
        keeper.round(std::iter::empty());
        assert!(ended.load(Ordering::Acquire) && keeper.is_idle());
    }
}

/// The keeper of a mark's stream ends where threads that wait for memory see that, by each answer of the driver.
#[test]
fn the_end_of_what_keeps_the_stream_of_a_mark_is_seen() {
    struct Ends(Arc<Mutex<Vec<bool>>>);
    impl Drop for Ends {
        fn drop(&mut self) {
            let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push(room::is_ending());
        }
    }
    for answer in [0_u32, 907, 709] {
        let driver = script();
        let used = used(driver, STREAM);
        let seen = Arc::<Mutex<Vec<bool>>>::default();
        let kept = || Kept::by(Owner::new(Ends(Arc::clone(&seen))));
        let event = used.home.record(driver, STREAM).expect("a mark");
        let event = StreamMark::new(event.expect("no capture"), Some(kept()));
        let mut keeper = Keeper::default();
        keeper.waiting.push(Waiting {
            event: Arc::new(event),
            held: Vec::new(),
            marked: Some(used),
            kept: vec![kept()],
        });
        for _ in 0..2 * u32::from(answer != 0) {
            driver.fault("cuEventQuery", 0, answer);
        }
        keeper.round(std::iter::empty());
        assert!(keeper.is_idle(), "{answer}");
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(*seen, [true; 2], "{answer}");
    }
}

/// A promise is no keeper: a thread of the library's does not name a stream that only the contexts of a copy are kept for.
#[test]
fn a_stream_that_is_not_kept_is_not_marked() {
    let driver = script();
    let used = used(driver, STREAM);
    for is_stream_kept in [false, true] {
        let mut block = block(driver, Memory::Pool, 64, used);
        block.stream = Some(Kept::by(telling().0));
        block.is_stream_kept = is_stream_kept;
        assert_eq!(Held::memory(block).keeps_its_stream(), is_stream_kept);
    }
}

/// A block that the one who asked no longer waits for stays.
#[test]
fn what_is_not_taken_stays() {
    let driver = script();
    let used = used(driver, STREAM);
    let mut keeper = Keeper::default();
    keeper.take(News::Unmarked(kept(driver, Memory::Pool, 64, used)));
    let (answers, receiver) = mpsc::channel();
    drop(receiver);
    keeper.take(News::Take(wanted(Memory::Pool, 64, used), answers));
    assert_eq!(keeper.unmarked.len(), 1);
    keeper.round(std::iter::empty());
    assert!(keeper.is_idle());
    assert_eq!(driver.count("cuMemFree"), 1);
}

/// So does one that was sent before the one who asked gave up.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn what_is_sent_and_not_taken_ends() {
    let driver = script();
    let used = used(driver, STREAM);
    let (answers, receiver) = mpsc::channel();
    let held = kept(driver, Memory::Pool, 64, used);
    answers.send(Answer(Some(held))).expect("a receiver");
    drop(receiver);
    let begun = Instant::now();
    while driver.count("cuMemFree") == 0 && begun.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
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

/// A stream that is busy for long gets no event for each copy: what comes later waits for an earlier mark.
#[test]
fn a_busy_stream_gets_few_marks() {
    let driver = script();
    let mut keeper = Keeper::default();
    let round = |keeper: &mut Keeper, is_busy: bool| {
        keeper.take(News::Unmarked(owner(driver, STREAM).0));
        keeper.mark();
        for _ in 0..keeper.waiting.len() * usize::from(is_busy) {
            driver.fault("cuEventQuery", 0, 600);
        }
        keeper.ask();
    };
    for came in 1..3 * MARKS {
        round(&mut keeper, true);
        assert_eq!(driver.count("cuEventRecord"), came.min(MARKS), "{came}");
        assert_eq!(keeper.waiting.len() + keeper.unmarked.len(), came);
    }
    round(&mut keeper, false);
    assert_eq!(keeper.waiting.len(), 0);
    keeper.mark();
    let marks = driver.count("cuEventRecord");
    assert_eq!(marks, MARKS + 1, "one for all that came later");
    keeper.ask();
    assert!(keeper.is_idle());
}

/// An event that a capture of another thread's has recorded is never reached: the stream is marked again, if it is kept.
/// One that nothing keeps is named no more, as it may have been destroyed: its context is waited for.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn a_mark_in_a_capture_is_none() {
    for code in [1_u32, 907] {
        for is_kept in [true, false] {
            // Of its own: a wait for a context is one for all that has ended there, in other tests too.
            let driver = script_of(CONTEXT + 1 + u64::from(code) + u64::from(is_kept));
            let used = used(driver, STREAM);
            let held = match is_kept {
                true => kept(driver, Memory::Pool, 64, used),
                false => Held::memory(block(driver, Memory::Pool, 64, used)),
            };
            let mut keeper = Keeper::default();
            for _ in 0..2 {
                driver.fault("cuEventQuery", 0, code);
            }
            let event = used.mark_own(driver).expect("a mark");
            keeper.round(std::iter::once(News::Marked(event.into(), vec![held])));
            let lists = (keeper.unmarked.len(), keeper.waiting.len());
            let expected = match (code, is_kept) {
                (907, is_kept) => (usize::from(is_kept), 0),
                _ => (0, 1),
            };
            assert_eq!(lists, expected, "{code} {is_kept}");
            keeper.round(std::iter::empty());
            assert!(keeper.is_idle());
            let marks = driver.count("cuEventRecord");
            assert_eq!(marks, 1 + usize::from(code == 907 && is_kept));
            let frees = 1 + usize::from(code == 907 && !is_kept);
            let begun = Instant::now();
            while driver.count("cuMemFree") < frees && begun.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
            }
            assert_eq!(
                driver.count("cuMemFree"),
                frees,
                "the wait for a context frees a byte"
            );
        }
    }
}

/// What comes while a stream is being marked waits for the next mark; what is being marked can be taken over.
#[test]
fn a_stream_has_one_mark_begun() {
    let driver = script();
    let used = used(driver, STREAM);
    let memory = |nbytes| News::Unmarked(Held::memory(block(driver, Memory::Device, nbytes, used)));
    let mut keeper = Keeper::default();
    keeper.take(memory(64));
    let held = mem::take(&mut keeper.unmarked);
    keeper.marking.push(Marking {
        used,
        held,
        since: Instant::now(),
        is_again: false,
        kept: Vec::new(),
    });
    keeper.round([memory(128), memory(256)].into_iter());
    assert_eq!((keeper.unmarked.len(), keeper.waiting.len()), (2, 0));
    assert!(!keeper.is_idle());

    let receiver = ask(&mut keeper, Memory::Device, 1, used);
    assert_eq!(nbytes_of(&receiver), Some(64));

    for _ in 0..2 {
        driver.fault("cuEventQuery", 0, 600);
    }
    keeper.round(std::iter::once(News::Mark(used, used.mark(driver))));
    let held: Vec<_> = keeper.waiting.iter().map(|at| at.held.len()).collect();
    assert_eq!(
        held,
        [0, 2],
        "the mark of what was taken, and one of what came later"
    );
}

/// No thread waits for the end of a capture, nor for what the driver does not tell of, until it does.
#[test]
#[cfg_attr(miri, ignore = "the pause is over before it looks again")]
fn what_has_no_answer_is_stuck() {
    let driver = script();
    let mut keeper = Keeper::default();
    let (owner, _) = owner(driver, STREAM);
    driver.captured(STREAM, Capture::Active, 1);
    keeper.round(std::iter::once(News::Unmarked(owner)));
    assert!(keeper.later.held[0].is_stuck());
    driver.captured(STREAM, Capture::Idle, 0);
    keeper.mark();
    assert!(keeper.waiting.is_empty(), "it is not asked without a pause");
    thread::sleep(2 * RETRY);
    keeper.mark();
    assert!(!keeper.waiting[0].held[0].is_stuck());
    for _ in 0..2 {
        driver.fault("cuEventQuery", 0, 999);
    }
    keeper.ask();
    assert!(keeper.waiting[0].held[0].is_stuck());
    keeper.ask();
    assert!(keeper.is_idle());
}

/// A stream that was being captured may be so still until it is marked, however long that takes: the capture may be that of
/// the thread that waits.
#[test]
#[cfg_attr(miri, ignore = "starts threads that block signals")]
fn what_hangs_on_a_capture_is_stuck_until_it_is_marked() {
    let driver = script();
    let used = used(driver, STREAM);
    let mut keeper = Keeper::default();
    let (owner, _) = owner(driver, STREAM);
    driver.captured(STREAM, Capture::Active, 1);
    keeper.round(std::iter::once(News::Unmarked(owner)));
    // Their answers come by hand.
    keeper.markers = Some(Markers::new(|_, _, _| {}));
    for _ in 0..2 {
        thread::sleep(2 * RETRY);
        keeper.mark();
        assert_eq!(keeper.marking.len(), 1);
        thread::sleep(2 * PATIENCE);
        keeper.mark();
        assert!(keeper.marking[0].held[0].is_stuck());
        keeper.take(News::Mark(used, used.mark(driver)));
        assert!(keeper.later.held[0].is_stuck());
    }
    driver.captured(STREAM, Capture::Idle, 0);
    thread::sleep(2 * RETRY);
    keeper.mark();
    keeper.take(News::Mark(used, used.mark(driver)));
    assert!(!keeper.waiting[0].held[0].is_stuck());
}

/// A thread that finds no memory waits for an owner of memory of that device, whatever device the stream is of.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn an_owner_counts_for_the_device_of_its_memory() {
    let driver = script();
    driver.primary(0, CONTEXT);
    for (device, ordinal) in [(Device::cuda(0x0a10), 0x0a10), (Device::HOST, 0)] {
        let (owner, ended) = telling();
        let _patient = room::PATIENT.read();
        let mut waiter = room::Waiter::new(ordinal);
        until_done(driver, (STREAM, None), &owner, device, Begun::OnStream).expect("a mark");
        drop(owner);
        while !ended.load(Ordering::Acquire) {
            thread::yield_now();
        }
        assert!(waiter.wait(), "its end is a change there");
    }
}

/// An owner's end may make a copy on the thread that all memory waits for: without memory it is refused at once.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn an_owners_end_waits_for_no_memory() {
    struct Copies(&'static Script, Use, mpsc::Sender<bool>);
    impl Drop for Copies {
        fn drop(&mut self) {
            let full = || Err(DriverError::new("cuMemAlloc", 2));
            let may_go_on = || Ok::<(), DriverError>(());
            let made = with_room(self.0, &Place::cuda(0, 0), self.1, may_go_on, full);
            // The test may have given up.
            let _ = self.2.send(made.is_err());
        }
    }
    let driver = script();
    driver.primary(0, CONTEXT);
    let (refused, ends) = mpsc::channel();
    let owner = Owner::new(Copies(driver, used(driver, STREAM), refused));
    until_done(
        driver,
        (STREAM, None),
        &owner,
        Device::cuda(0),
        Begun::OnStream,
    )
    .expect("a mark");
    drop(owner);
    let waited = ends.recv_timeout(Duration::from_secs(20));
    assert_eq!(waited, Ok(true));
}

/// The caller may be a function of the driver's, in which an owner's end may call nothing.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn what_a_graph_has_kept_stays_without_the_thread() {
    let program = std::env::current_exe().expect("this program");
    let name = "view::keep::poll::tests::in_a_process_without_the_thread";
    let status = std::process::Command::new(program)
        .args([name, "--exact", "--ignored"])
        // It leaks on purpose.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.success()));
}

#[test]
#[ignore = "run by what_a_graph_has_kept_stays_without_the_thread"]
fn in_a_process_without_the_thread() {
    let (owner, ended) = telling();
    drop_later(owner);
    assert!(!ended.load(Ordering::Acquire));
}

/// An owner that waits for a whole context, as no thread of ours may mark its stream, ends by the mark of a call for that stream.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn a_call_for_a_stream_marks_it_for_what_has_ended() {
    // A thread that this one was kept from may have taken it: then once more.
    let is_marked = (0..100).any(|round| {
        let driver = script_of(0x9011_0000 + round);
        let used = used(driver, STREAM);
        end(block(driver, Memory::Pool, 64, used));
        driver.take_calls();
        assert!(mark_own(driver, used));
        driver.count("cuEventRecord") == 1
    });
    assert!(is_marked);
}

/// Memory that was stuck, as the driver told nothing of its mark, is freed once that has been reached, though nothing else ends.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn what_was_stuck_ends_by_itself() {
    const ORDINAL: i32 = 0x0790;
    let driver = script();
    let used = used(driver, STREAM);
    let mut block = block(driver, Memory::Device, 64, used);
    block.ordinal = ORDINAL;
    start_for(&block);
    // The thread waits for something to come.
    thread::sleep(2 * LONG);
    let mark = used.mark_own(driver).expect("a mark");
    let mut keeper = Keeper::default();
    keeper.take(News::Marked(Arc::new(mark), vec![Held::memory(block)]));
    for _ in 0..2 {
        driver.fault("cuEventQuery", 0, 999);
    }
    for is_idle in [false, true] {
        keeper.round(std::iter::empty());
        assert_eq!(keeper.is_idle(), is_idle);
    }
    let begun = Instant::now();
    while driver.count("cuMemFree") == 0 && begun.elapsed() < Duration::from_secs(10) {
        thread::yield_now();
    }
    assert_eq!(driver.count("cuMemFree"), 1);
}

/// A primary context stays where it is, so that what keeps the stream may go though its work may go on: a writer asks about that.
#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn what_keeps_a_lost_stream_goes_where_its_context_stays() {
    for is_primary in [false, true] {
        let driver = script();
        if is_primary {
            driver.primary(0, CONTEXT);
        }
        for call in ["cuEventRecord", "cuStreamSynchronize"] {
            (0..2).for_each(|_| _ = driver.fault(call, 0, 999));
        }
        let ((owner, ended), (keeper, is_let_go)) = (telling(), telling());
        let stream = (STREAM, Some(Kept::by(keeper)));
        by_stream_of(
            driver,
            None,
            stream,
            &owner,
            Device::cuda(0),
            Begun::OnStream,
        );
        drop(owner);
        let ends = [ended, is_let_go].map(|end| end.load(Ordering::Acquire));
        assert_eq!(ends, [false, is_primary]);
    }
}
