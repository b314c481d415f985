//! What the pool keeps, hands out and forgets.

use super::*;
use crate::driver::script::{Script, context};
use crate::driver::{Driver, DriverError, Lease, PrivateStream};

const CONTEXT: u64 = 0xa;
const STREAM: Stream = Stream::from_raw(0xa1);
const BEFORE: ContextId = ContextId(1);
const AFTER: ContextId = ContextId(2);

fn event(number: u64) -> Event {
    Event(number.try_into().expect("an event's handle is not 0"))
}

fn script() -> Script {
    let script = Script::new();
    script.stream(0xa1, CONTEXT).current(CONTEXT);
    script
}

/// The context and its identity.
fn home(script: &Script) -> (Context, ContextId) {
    let id = script.context_id(context(CONTEXT));
    (context(CONTEXT), id.expect("an identity"))
}

/// Takes this many events out at the same time, and puts them all back.
fn fill(script: &Script, count: usize) {
    let lease = |_| Lease::recorded(script, home(script), STREAM).expect("a lease");
    let leases: Vec<_> = (0..count).map(lease).collect();
    drop(leases);
}

#[test]
fn an_event_is_handed_out_once() {
    let pool = Pool::new();
    assert!(pool.is_empty());
    assert_eq!(pool.put(context(CONTEXT), BEFORE, event(7)), None);
    assert_eq!(pool.take(context(CONTEXT), BEFORE), Some(event(7)));
    assert_eq!(pool.take(context(CONTEXT), BEFORE), None);
}

#[test]
fn a_successor_under_the_same_handle_gets_none_of_its_events() {
    let pool = Pool::new();
    pool.put(context(CONTEXT), BEFORE, event(7));
    assert_eq!(pool.take(context(CONTEXT), AFTER), None);
    assert!(pool.is_empty());
}

#[test]
fn an_event_that_comes_back_too_late_is_not_kept() {
    let pool = Pool::new();
    pool.put(context(CONTEXT), AFTER, event(8));
    assert_eq!(
        pool.put(context(CONTEXT), BEFORE, event(7)),
        None,
        "and not destroyed"
    );
    assert_eq!(pool.take(context(CONTEXT), AFTER), Some(event(8)));
    assert_eq!(pool.take(context(CONTEXT), AFTER), None);
}

#[test]
fn no_more_than_the_limit_is_kept_and_the_rest_is_destroyed() {
    let script = script();
    fill(&script, KEPT + 3);
    assert_eq!(script.count("cuEventDestroy"), 3);
    assert_eq!((script.pool.len(), script.events_alive()), (KEPT, KEPT));
}

#[test]
fn one_dead_event_condemns_the_pool() {
    let script = script();
    fill(&script, 5);
    script.kill_events(CONTEXT);
    fill(&script, 1);
    assert_eq!((script.pool.len(), script.events_alive()), (1, 1));
    assert_eq!(script.count("cuEventDestroy"), 0);
}

#[test]
fn a_wait_that_fails_gives_the_event_back() {
    let script = script();
    let lease = Lease::recorded(&script, home(&script), STREAM).expect("a lease");
    assert!(script.pool.is_empty(), "it is out");
    assert!(lease.wait(Stream::from_raw(0xdead)).is_err());
    drop(lease);
    assert_eq!(script.pool.len(), 1);
}

#[test]
fn a_record_that_the_stream_is_refused_for_leaves_no_event() {
    let script = script();
    fill(&script, 2);
    for _ in 0..50 {
        assert!(Lease::recorded(&script, home(&script), Stream::from_raw(0xdead)).is_err());
    }
    assert_eq!((script.pool.len(), script.events_alive()), (2, 2));
}

/// A stream that is destroyed while the mark waits for room in its queue is refused; by then another one may have its
/// handle, and takes a new event.
#[test]
fn a_stream_that_ends_meanwhile_condemns_no_event() {
    for code in [201, 400, 709] {
        let script = script();
        fill(&script, 2);
        for _ in 0..2 * KEPT {
            script.fault("cuEventRecord", 0, code);
            drop(Lease::recorded(&script, home(&script), STREAM).expect("a mark of the other"));
        }
        assert_eq!((script.pool.len(), script.events_alive()), (2, 2));
    }
}

/// One answer that an event is dead, and one of anything else: it is neither lost nor are those beside it.
#[test]
fn an_event_is_dead_by_two_answers() {
    for (first, then) in [(400, 1), (201, 999), (709, 2)] {
        let script = script();
        fill(&script, 2);
        for _ in 0..2 * KEPT {
            script.fault("cuEventRecord", 0, first);
            script.fault("cuEventRecord", 1, then);
            drop(Lease::recorded(&script, home(&script), STREAM).expect("a mark of another"));
        }
        assert_eq!(script.pool.len(), script.events_alive(), "{first}, {then}");
        assert!(script.events_alive() <= KEPT, "{first}, {then}");
    }
}

#[test]
fn a_stream_is_one_threads_while_it_is_out_and_used_again_later() {
    let script = script();
    let (first, second) = (
        PrivateStream::new(&script).expect("a stream"),
        PrivateStream::new(&script).expect("a stream"),
    );
    assert_ne!(first.stream(), second.stream());
    drop((first, second));
    drop(PrivateStream::new(&script).expect("a stream"));
    assert_eq!(script.count("cuStreamCreate"), 2);
    let many: Vec<_> = (0..STREAMS_KEPT + 2)
        .map(|_| PrivateStream::new(&script).expect("a stream"))
        .collect();
    drop(many);
    assert_eq!(script.count("cuStreamDestroy"), 2);
    script.replace_context(CONTEXT);
    let id = script.context_id(context(CONTEXT)).expect("an id");
    assert_eq!(script.pool.take_stream(context(CONTEXT), id), None);
}

/// Whatever the queries return: a mark is reached if it says so, or if its context is gone. A dead event of a living
/// context tells nothing, so that the context is waited for; no other one is.
#[test]
fn a_mark_that_is_asked_about_is_reached_or_its_context_is_waited_for() {
    const CODES: [u32; 9] = [0, 1, 4, 201, 400, 700, 709, 719, 901];
    let cases = CODES
        .iter()
        .flat_map(|first| CODES.map(|then| (*first, then)));
    for ((first, then), is_there) in cases.flat_map(|case| [(case, true), (case, false)]) {
        let script = script();
        let id = match is_there {
            true => home(&script).1,
            false => ContextId(0xdead),
        };
        let lease = Lease::recorded(&script, (context(CONTEXT), id), STREAM).expect("a lease");
        let (begun, faults) = (script.take_calls(), [first, then].into_iter());
        for code in faults.take_while(|code| *code != 0) {
            script.fault("cuEventQuery", 0, code);
        }
        let (is_told, case) = (first == 0 || then == 0, (first, then, is_there, begun));
        let is_end = |code| DriverError::new("", code).is_end_of_context();
        let refused = match is_end(then) && !is_end(first) {
            true => first,
            false => then,
        };
        let reached = match is_told || is_end(refused) || refused == 400 {
            true => Ok(true),
            false => Err(Some(refused)),
        };
        let found = lease.is_reached().map_err(|error| error.code());
        assert_eq!(found, reached, "{case:?}");
        let is_waited_for = !is_told && is_there && matches!(refused, 201 | 400 | 709);
        assert_eq!(
            script.count("cuCtxSynchronize"),
            usize::from(is_waited_for),
            "{case:?}"
        );
    }
}

/// A context is there under its own identity alone; of one that the driver does not tell nothing is known.
#[cfg(feature = "cudarc")]
#[test]
fn an_event_has_its_context_until_that_is_told_to_be_gone() {
    for (codes, is_replaced, has_context) in [
        (&[][..], false, true),
        (&[], true, false),
        (&[709, 709], false, false),
        (&[201, 201], false, false),
        (&[999, 999], false, true),
        (&[999, 999], true, true),
        (&[999], true, false),
        (&[709], false, true),
    ] {
        let script = script();
        let lease = Lease::recorded(&script, home(&script), STREAM).expect("a lease");
        if is_replaced {
            script.replace_context(CONTEXT);
        }
        for code in codes {
            script.fault("cuCtxGetId", 0, *code);
        }
        assert_eq!(lease.has_context(), has_context, "{codes:?} {is_replaced}");
    }
}
