//! Readers and a writer, on the scripted driver.

use super::*;
use crate::driver::script::{self, Script};
use crate::protocol::stream::Capture;

const CONTEXT: u64 = 0x9021;
const STREAM: Stream = Stream::from_raw(0x93);
const OTHER: Stream = Stream::from_raw(0x94);
const WRITER: Stream = Stream::from_raw(0x95);
const NOT_READY: u32 = 600;

fn script() -> &'static Script {
    let script = Script::leak();
    for stream in [STREAM, OTHER, WRITER] {
        script.stream(stream.raw(), CONTEXT);
    }
    script.current(CONTEXT);
    script
}

fn owner() -> Owner {
    let owner = Owner::new([0_u8; 4]);
    drop(owner.share());
    owner
}

/// A mark on `stream`, and what the keeper holds beside it.
fn marked(driver: &'static Script, stream: Stream, of: &Owner) -> (Arc<StreamMark>, Arc<()>) {
    let (used, drawn) = (Use::new(driver, stream).expect("a context"), Moment::next());
    let mark = Arc::new(used.mark_own(driver).expect("a mark"));
    let kept = note(of, used, Some(&mark), drawn);
    (mark, kept)
}

fn writes_after(driver: &'static Script, stream: Stream, of: &Owner) -> Result<(), Error> {
    let mut before = Before::default();
    before.find(driver, stream, of)?;
    before.wait(driver, stream, of)
}

/// How many waits a writer's stream makes.
fn waits(driver: &'static Script, of: &Owner) -> usize {
    driver.take_calls();
    writes_after(driver, WRITER, of).expect("no capture");
    driver.count("cuStreamWaitEvent")
}

fn rule(refused: Result<(), Error>) -> Rule {
    match refused {
        Err(Error::Violation(refused)) => refused.rule(),
        other => panic!("{other:?}"),
    }
}

/// The last mark of each stream stands for all of that stream, until it has been reached.
#[test]
fn a_writer_waits_for_the_last_mark_of_each_stream() {
    let (driver, owner) = (script(), owner());
    assert!(!are_there(&owner));
    let first = marked(driver, STREAM, &owner);
    let (second, other) = (
        marked(driver, STREAM, &owner),
        marked(driver, OTHER, &owner),
    );
    assert_eq!(waits(driver, &owner), 2);
    drop(second);
    assert_eq!(waits(driver, &owner), 1);
    drop((first, other));
    assert!(!are_there(&owner));
    assert_eq!(waits(driver, &owner), 0);
}

/// Threads that record one after the other may note that the other way round: both marks stand then.
#[test]
fn a_mark_that_is_noted_late_stands_for_no_later_one() {
    let (driver, owner) = (script(), owner());
    let used = Use::new(driver, STREAM).expect("a context");
    let drawn = [Moment::next(), Moment::next()];
    let marks = [(); 2].map(|()| Arc::new(used.mark_own(driver).expect("a mark")));
    for at in [1, 0] {
        drop(note(&owner, used, Some(&marks[at]), drawn[at]));
    }
    assert_eq!(waits(driver, &owner), 2);
    let _last = marked(driver, STREAM, &owner);
    assert_eq!(waits(driver, &owner), 1);
}

/// Where the driver tells no stream from a later one of its handle each mark stands; they are not looked at whenever one comes.
#[test]
fn readers_of_one_owner_that_are_done_are_taken_out() {
    let (driver, owner) = (script(), owner());
    driver
        .fault("cuStreamGetId", 0, 801)
        .fault("cuStreamGetId", 0, 801);
    let used = Use::new(driver, STREAM).expect("a context");
    assert!(!used.is_of_one_stream());
    let mark = Arc::new(used.mark_own(driver).expect("a mark"));
    let mut kept = Vec::new();
    for _ in 0..8 * FEW {
        kept.push(note(&owner, used, Some(&mark), Moment::next()));
    }
    assert_eq!(waits(driver, &owner), 8 * FEW);
    drop(mark);
    for _ in 0..8 * FEW {
        drop(note(
            &owner,
            used,
            Some(&Arc::new(used.mark_own(driver).expect("a mark"))),
            Moment::next(),
        ));
    }
    let left = lock().of(&owner).readers.len();
    assert!(left < 8 * FEW, "{left}");
}

/// Owners are one if they share a payload, also one that something was put beside; others' readers are of no concern.
#[test]
fn readers_are_of_a_payload() {
    let (driver, payload) = (script(), owner());
    let beside = payload.share().beside(Owner::new([1_u8]));
    let (shared, another) = (beside.share(), owner());
    let _mark = marked(driver, STREAM, &shared);
    for one in [&payload, &beside, &shared, &payload.share()] {
        assert_eq!(waits(driver, one), 1);
    }
    for other in [another, Owner::new([2_u8])] {
        assert!(!are_there(&other));
        assert_eq!(waits(driver, &other), 0);
    }
}

/// A capture waits for no mark from outside of it, and is not refused for one that has been reached.
#[test]
fn a_captured_writer_is_refused_until_the_marks_are_reached() {
    for (state, expected) in [
        (Capture::Active, Rule::CaptureConsumer),
        (Capture::Invalidated, Rule::CaptureInvalid),
        (Capture::BlocksLegacy, Rule::CaptureLegacy),
    ] {
        let (driver, owner) = (script(), owner());
        let _mark = marked(driver, STREAM, &owner);
        driver.captured(WRITER, state, 1);
        driver.fault("cuEventQuery", 0, NOT_READY);
        assert_eq!(rule(writes_after(driver, WRITER, &owner)), expected);
        driver.without_faults().take_calls();
        writes_after(driver, WRITER, &owner).expect("reached");
        assert_eq!(driver.count("cuStreamWaitEvent"), 0);
    }
}

/// What has no mark, or has lost it to a capture, is not waited for: a writer is refused until the owner is kept no more.
#[test]
fn a_writer_is_refused_while_a_reader_has_no_mark() {
    let (driver, owner) = (script(), owner());
    let used = Use::new(driver, STREAM).expect("a context");
    let unmarked = note(&owner, used, None, Moment::next());
    assert_eq!(
        rule(writes_after(driver, WRITER, &owner)),
        Rule::CaptureConsumer
    );
    drop(unmarked);
    assert_eq!(waits(driver, &owner), 0);
    let (mark, kept) = marked(driver, STREAM, &owner);
    let other = marked(driver, OTHER, &owner);
    forget(&mark);
    drop((mark, other));
    assert_eq!(
        rule(writes_after(driver, WRITER, &owner)),
        Rule::CaptureConsumer
    );
    drop(kept);
    assert_eq!(waits(driver, &owner), 0);
}

/// A mark that a capture has recorded which has ended by then is none; another refusal of the driver's is told as such.
#[test]
fn a_mark_of_an_ended_capture_is_none() {
    let (driver, owner) = (script(), owner());
    let _mark = marked(driver, STREAM, &owner);
    let refuse = |times: usize, code| {
        driver.without_faults();
        (0..times).for_each(|_| _ = driver.fault("cuStreamWaitEvent", 0, code));
    };
    refuse(2, INVALID_VALUE);
    assert_eq!(
        rule(writes_after(driver, WRITER, &owner)),
        Rule::CaptureConsumer
    );
    // One answer alone tells of no capture.
    for code in [INVALID_VALUE, 2] {
        refuse(1, code);
        writes_after(driver, WRITER, &owner).expect("the second wait is made");
    }
    refuse(2, 2);
    let refused = writes_after(driver, WRITER, &owner).map_err(|error| error.to_string());
    assert!(
        refused.is_err_and(|told| told.contains("cuStreamWaitEvent")),
        "the call's name"
    );
}

/// Nothing is left of owners that nobody reads any more.
#[test]
fn readers_that_are_done_are_taken_out() {
    let (driver, owners) = (script(), [(); 100].map(|()| owner()));
    let last = owners.last().expect("some");
    for owner in &owners {
        drop(marked(driver, STREAM, owner));
    }
    let known = owners.iter().filter_map(id);
    let left = known.filter(|of| lock().of.contains_key(of)).count();
    assert!(left <= 16 + 2 * 16, "{left}");
    assert!(!are_there(last));
}

/// What was waited for as the driver had told nothing of it stands no longer; the marks beside it do.
#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn work_that_is_lost_is_waited_for_once() {
    let (driver, owner) = (script(), owner());
    let _installed = script::install(driver);
    let _mark = marked(driver, STREAM, &owner);
    note_lost(&owner, None);
    for is_lost in [true, false] {
        assert_eq!(waits(driver, &owner), 1, "the mark");
        assert_eq!(driver.count("cuMemFree") > 0, is_lost);
    }
}
