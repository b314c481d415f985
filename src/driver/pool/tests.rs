//! What the pool keeps, hands out and forgets.

use super::*;
use crate::driver::script::{Script, context};

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

/// A lease of the context, as it is now.
fn recorded(script: &Script) -> Result<Lease<'_>, DriverError> {
    let context = context(CONTEXT);
    Lease::recorded(script, (context, script.context_id(context)?), STREAM)
}

/// Takes this many events out at the same time, and puts them all back.
fn fill(script: &Script, count: usize) {
    let lease = |_| recorded(script).expect("a lease");
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
    let lease = recorded(&script).expect("a lease");
    assert!(script.pool.is_empty(), "it is out");
    assert!(lease.wait(Stream::from_raw(0xdead)).is_err());
    assert_eq!(script.pool.len(), 1);
}

/// A record that fails is the stream's fault where a new event fails too: the kept one stays, and none is left behind.
#[test]
fn fifty_records_that_fail_leave_no_event() {
    let script = script();
    for code in [400, 201, 709] {
        fill(&script, 1);
        for _ in 0..50 {
            script
                .fault("cuEventRecord", 0, code)
                .fault("cuEventRecord", 0, code);
            assert!(recorded(&script).is_err());
            // What comes between puts an event into the pool again.
            fill(&script, 1);
        }
        assert_eq!((script.pool.len(), script.events_alive()), (1, 1), "{code}");
    }
}
