//! What is current, and for how long, on the scripted driver.

use std::num::NonZeroU64;

use rstest::{fixture, rstest};

use super::*;
use crate::driver::script::{Script, context};

const ARRAY: u64 = 0x7000;
const CONTEXT_A: u64 = 0xa;
const CONTEXT_B: u64 = 0xb;
const CONTEXT_BELOW: u64 = 0xbe;
const PRIMARY: u64 = 0xc;
const STREAM: Stream = Stream::from_raw(0xa1);

/// A stream and an array of a context that is not current, beside the device's primary one.
#[fixture]
fn script() -> Script {
    let script = Script::new();
    script
        .stream(0xa1, CONTEXT_A)
        .device_memory(ARRAY, 64, 0, CONTEXT_A)
        .primary(0, PRIMARY);
    script
}

#[rstest]
fn the_context_of_the_memory_is_current_until_the_guard_is_dropped(script: Script) {
    script.current(PRIMARY);
    let guard = ContextGuard::of_memory(&script, &Place::cuda(0, ARRAY)).expect("a context");
    assert_eq!(script.current_now(), CONTEXT_A);
    drop(guard);
    assert_eq!(script.current_now(), PRIMARY);
}

#[rstest]
fn what_is_current_already_is_not_set(script: Script) {
    script.current(CONTEXT_A);
    let place = Place::cuda(0, ARRAY);
    drop(ContextGuard::of_stream(&script, STREAM, &place).expect("a context"));
    assert_eq!(script.calls(), ["cuCtxGetCurrent", "cuStreamGetCtx 0xa1"]);
}

#[rstest]
fn memory_of_no_context_is_the_primary_ones_which_is_given_back(script: Script) {
    script.device_memory(ARRAY, 64, 0, 0);
    let guard = ContextGuard::of_memory(&script, &Place::cuda(0, ARRAY)).expect("a context");
    assert_eq!(
        (script.current_now(), script.primary_count(0)),
        (PRIMARY, 2)
    );
    drop(guard);
    assert_eq!((script.current_now(), script.primary_count(0)), (0, 1));
}

/// Memory that every device reaches has default streams on each.
#[rstest]
fn memory_that_is_named_as_another_devices_is_of_that_devices_primary_context(script: Script) {
    script.primary(1, CONTEXT_B);
    for (ordinal, there) in [(1, CONTEXT_B), (0, CONTEXT_A), (-1, CONTEXT_A)] {
        let place = Place::cuda(ordinal, ARRAY);
        let memory = ContextGuard::of_memory(&script, &place).expect("a context");
        assert_eq!(script.current_now(), there);
        drop(memory);
        let stream = ContextGuard::of_stream(&script, Stream::LegacyDefault, &place);
        assert_eq!(script.current_now(), there);
        drop(stream);
    }
}

#[rstest]
fn a_thread_without_a_context_asks_in_any_that_is_active(script: Script) {
    let guard = ContextGuard::of_handle(&script, STREAM).expect("a context");
    assert_eq!(script.current_now(), CONTEXT_A);
    drop(guard);
    assert_eq!((script.current_now(), script.primary_count(0)), (0, 1));
}

#[rstest]
fn what_others_have_made_current_is_put_back(script: Script) {
    script.current(PRIMARY);
    let guard = ContextGuard::of_device(&script, 0).expect("the context that is current");
    script.current(CONTEXT_A);
    drop(guard);
    assert_eq!(script.current_now(), PRIMARY);
}

#[rstest]
fn a_context_that_cannot_be_made_current_is_given_back(script: Script) {
    script.fault("cuCtxPushCurrent", 0, 201);
    assert!(ContextGuard::of_device(&script, 0).is_err());
    assert_eq!((script.current_now(), script.primary_count(0)), (0, 1));
}

#[rstest]
fn without_an_active_device_there_is_none() {
    let script = Script::new();
    let guard = ContextGuard::of_any_device(&script).expect("an answer");
    assert!(guard.is_none());
}

/// For code of others, on a thread that may have none.
#[rstest]
fn the_context_of_any_device_is_current_until_the_guard_is_dropped(script: Script) {
    let guard = ContextGuard::of_any_device(&script).expect("an answer");
    assert!(guard.is_some());
    assert_eq!(script.current_now(), PRIMARY);
    drop(guard);
    assert_eq!((script.current_now(), script.primary_count(0)), (0, 1));
}

/// On a thread without a context a stream is asked about in the memory's.
#[rstest]
fn a_context_is_current_before_a_stream_is_asked_about(script: Script) {
    let place = Place::cuda(0, ARRAY);
    drop(ContextGuard::of_stream(&script, STREAM, &place).expect("a context"));
    let calls = script.calls();
    let at = |name: &str| calls.iter().position(|call| call.starts_with(name));
    let (set, asked) = (at("cuCtxPushCurrent"), at("cuStreamGetCtx"));
    assert!(set.is_some() && set < asked, "{calls:?}");
    assert_eq!(script.current_now(), 0);
}

/// A place that names no context, on a device whose primary one is current.
fn found<'d>(script: &'d Script, place: &Place) -> Result<Home<'d>, DriverError> {
    let current = script.current_context()?;
    Home::find(script, place, Defaults::OfMemory, current)
}

#[rstest]
fn a_primary_context_that_is_current_is_retained_once(script: Script) {
    let place = Place::cuda(0, 0);
    script.current(PRIMARY);
    drop(found(&script, &place).expect("the primary context"));
    for thread_has_it in [true, false] {
        script
            .current(if thread_has_it { PRIMARY } else { CONTEXT_A })
            .take_calls();
        let home = found(&script, &place).expect("the primary context");
        assert_eq!(home.context.0.get(), PRIMARY);
        let retained = script.count("cuDevicePrimaryCtxRetain");
        assert_eq!(retained, usize::from(!thread_has_it));
        drop(home);
        assert_eq!(script.primary_count(0), 1);
    }
}

/// A context with the same handle is another one: the driver is asked.
#[rstest]
fn a_successor_of_a_primary_context_is_not_taken_for_it(script: Script) {
    script.current(PRIMARY);
    let place = Place::cuda(0, 0);
    drop(found(&script, &place).expect("the primary context"));
    script.replace_context(PRIMARY).take_calls();
    drop(found(&script, &place).expect("its successor"));
    assert_eq!(script.count("cuDevicePrimaryCtxRetain"), 1);
}

#[rstest]
fn memory_of_a_pool_is_not_asked_about_twice(script: Script) {
    let place = Place::cuda(0, ARRAY);
    let home = Home::find(&script, &place, Defaults::OfPrimary, None).expect("the primary context");
    assert_eq!(home.context.0.get(), PRIMARY);
    assert_eq!(script.count("cuPointerGetAttributes"), 0);
}

/// Of memory for any device that is named as device 0's, too: its own context is no answer.
#[rstest]
fn memory_of_another_device_is_not_of_the_one_that_it_is_named_as(script: Script) {
    script.device_memory(ARRAY, 64, 1, CONTEXT_B);
    let memory = ContextGuard::of_memory(&script, &Place::cuda(0, ARRAY)).expect("a context");
    assert_eq!(script.current_now(), PRIMARY);
    drop(memory);
}

/// A thread without a context is answered in any that is active, but not about memory of a device that is not known.
#[rstest]
fn where_the_device_is_not_known_a_bare_stream_alone_is_of_any(script: Script) {
    let active = |place| Home::active(&script, &place, -1).map(|home| home.context.0.get());
    assert_eq!(active(Place::of_current()).ok(), Some(PRIMARY));
    let refused = active(Place::cuda(-1, ARRAY)).map_err(|error| error.code());
    assert_eq!(refused, Err(Some(INVALID_CONTEXT)));
}

#[rstest]
fn the_context_that_was_current_is_told_while_another_is(script: Script) {
    script.current(CONTEXT_B);
    let guard = ContextGuard::of_memory(&script, &Place::cuda(0, ARRAY)).expect("a context");
    let told =
        [guard.original(), guard.current()].map(|found| found.map(|context| context.0.get()));
    assert_eq!(told, [Some(CONTEXT_B), Some(CONTEXT_A)]);
}

/// The driver tells of the context that is kept once, and of another one when it is asked.
#[rstest]
fn the_identity_of_a_kept_context_is_asked_for_once(script: Script) {
    let identity = |handle: u64| script.context_id(context(handle));
    let expected = [PRIMARY, CONTEXT_A].map(|handle| identity(handle).expect("an identity"));
    assert_ne!(expected[0], expected[1]);
    let guard = ContextGuard::of_device(&script, 0).expect("the primary context");
    let kept = Home::primary(&script, 0).and_then(|home| home.identified(&script));
    let (mut guard, kept) = (guard, kept.expect("an identity"));
    let contexts = [guard.keep(kept), context(CONTEXT_A)];
    script.take_calls();
    for (context, expected) in contexts.into_iter().zip(expected) {
        assert_eq!(guard.id_of(context).ok(), Some(expected));
    }
    assert_eq!(script.count("cuCtxGetId"), 1);
}

/// The caller's context, which another thread may destroy at any time, is named by no call.
#[rstest]
fn the_callers_context_is_not_named(script: Script) {
    script.current(CONTEXT_B);
    let place = Place::cuda(0, ARRAY);
    let guards = || {
        let mut guard = ContextGuard::of_memory(&script, &place)?;
        guard.switch(context(PRIMARY))?;
        // Back to the caller's by another way, and away again.
        guard.switch(context(CONTEXT_B))?;
        assert_eq!(script.current_now(), CONTEXT_B);
        guard.switch(context(CONTEXT_A))?;
        drop(guard);
        drop(ContextGuard::of_device(&script, 0)?);
        drop(ContextGuard::above(&script, context(CONTEXT_A))?);
        ContextGuard::of_stream(&script, STREAM, &place)?.around_call(|| Ok::<_, DriverError>(()))
    };
    guards().expect("contexts");
    let named = |call: &String| call.ends_with(&format!(" {CONTEXT_B:#x}"));
    assert_eq!(script.calls().iter().find(|call| named(call)), None);
    assert_eq!(script.current_now(), CONTEXT_B);
}

/// The thread's stack, under a context of the caller's that is not the current one.
fn stack(script: &Script, before: u64) -> Vec<u64> {
    match before {
        0 => {}
        _ => drop(
            script
                .current(CONTEXT_BELOW)
                .push_current_context(context(before)),
        ),
    }
    script.stack_now()
}

/// Others that replace what is current, push and do not pop, or pop what was pushed, leave the stack as it was; who pops what is
/// the caller's leaves at least what is current. The caller's own context is named only if they have replaced or popped that.
#[rstest]
fn what_others_leave_current_is_taken_away(
    script: Script,
    #[values(0, CONTEXT_B)] before: u64,
    #[values(false, true)] is_pushed: bool,
    #[values("nothing", "replaced", "replaced by the caller's", "pushed", "popped")] left: &str,
) {
    let expected = stack(&script, before);
    let mut guard = ContextGuard::around(&script).expect("a context");
    if is_pushed {
        guard.switch(context(PRIMARY)).expect("a context");
    }
    let others = match left {
        "nothing" => Ok(()),
        "replaced" => script.set_current_context(Some(context(CONTEXT_A))),
        "pushed" => script.push_current_context(context(CONTEXT_A)),
        "popped" => script.pop_current_context().map(drop),
        _ => script.set_current_context(NonZeroU64::new(before).map(Context)),
    };
    assert_eq!(
        others.is_err(),
        left == "popped" && expected.is_empty() && !is_pushed
    );
    script.take_calls();
    drop(guard);
    match left {
        "popped" if !is_pushed => assert_eq!(script.current_now(), before),
        // It cannot be told from a stack of which what was pushed is gone.
        "replaced by the caller's" if is_pushed && before != 0 => {
            assert_eq!(script.stack_now(), [CONTEXT_BELOW, before, before]);
        }
        _ => assert_eq!(script.stack_now(), expected),
    }
    let is_lost = !is_pushed && ["popped", "replaced"].contains(&left);
    let named = |call: &String| call.ends_with(&format!(" {CONTEXT_B:#x}"));
    let is_named = script.calls().iter().any(named);
    assert_eq!(is_named, is_lost && before != 0);
}

/// More than one context that others have pushed is taken away down to what the guard has pushed.
#[rstest]
fn what_others_have_pushed_is_taken_away(
    script: Script,
    #[values(0, CONTEXT_B)] before: u64,
    #[values(1, 2, 3)] pushes: usize,
) {
    let expected = stack(&script, before);
    let guard = ContextGuard::of_device(&script, 0).expect("a context");
    for _ in 0..pushes {
        let pushed = script.push_current_context(context(CONTEXT_A));
        pushed.expect("a context");
    }
    drop(guard);
    assert_eq!(script.stack_now(), expected);
}

/// A context that ends on this thread is popped by that, and the caller's stays.
#[cfg(feature = "cudarc")]
#[rstest]
fn a_context_that_has_ended_is_popped_once(
    script: Script,
    #[values(false, true)] has_ended: bool,
    #[values(0, CONTEXT_B)] before: u64,
) {
    let expected = stack(&script, before);
    let mut guard = ContextGuard::around(&script).expect("a context");
    guard.switch(context(CONTEXT_A)).expect("a context");
    if has_ended {
        assert_eq!(script.pop_current_context(), Ok(Some(context(CONTEXT_A))));
    }
    drop(guard);
    assert_eq!(script.stack_now(), expected);
}

/// One refusal of each call of the end changes nothing.
#[rstest]
fn an_end_that_is_refused_once_is_tried_again(
    script: Script,
    #[values("cuCtxPopCurrent", "cuCtxGetCurrent", "cuCtxPushCurrent")] call: &'static str,
    #[values(0, 1)] after: u32,
    #[values(false, true)] is_replaced: bool,
) {
    let expected = stack(&script, CONTEXT_B);
    let mut guard = ContextGuard::around(&script).expect("a context");
    guard.switch(context(PRIMARY)).expect("a context");
    if is_replaced {
        script.current(CONTEXT_A);
    }
    script.fault(call, after, 999);
    drop(guard);
    assert_eq!(script.stack_now(), expected);
}

/// So it is wherever the end stands in the midst of what others have left.
#[rstest]
fn an_end_that_takes_away_what_others_pushed_is_tried_again(
    script: Script,
    #[values("cuCtxPopCurrent", "cuCtxGetCurrent")] call: &'static str,
    #[values(0, 1, 2, 3)] after: u32,
    #[values(1, 2, 3)] pushes: usize,
    #[values(0, CONTEXT_B)] before: u64,
) {
    let expected = stack(&script, before);
    let guard = ContextGuard::of_device(&script, 0).expect("a context");
    for _ in 0..pushes {
        let pushed = script.push_current_context(context(CONTEXT_A));
        pushed.expect("a context");
    }
    script.fault(call, after, 999);
    drop(guard);
    assert_eq!(script.stack_now(), expected);
}

#[cfg(feature = "cudarc")]
#[rstest]
fn what_stays_is_in_the_place_of_the_callers(
    script: Script,
    #[values(0, CONTEXT_A, CONTEXT_B)] before: u64,
    #[values(0, 1, 2)] refusals: u32,
) {
    script.current(before);
    let there = ContextGuard::of_context(&script, context(CONTEXT_A)).expect("a context");
    for _ in 0..refusals {
        script.fault("cuCtxSetCurrent", 0, 999);
    }
    let is_refused = refusals == 2 && before != CONTEXT_A;
    assert_eq!(there.stay().is_err(), is_refused);
    let expected = if is_refused { before } else { CONTEXT_A };
    assert_eq!(script.current_now(), expected);
    if expected != before {
        let popped = script.pop_current_context();
        assert_eq!(
            (popped.is_ok(), script.current_now()),
            (true, 0),
            "one is there"
        );
    }
}

#[test]
fn each_device_has_one_primary_context() {
    let (known, script) = (Primaries::new(), Script::new());
    let id = script.context_id(context(PRIMARY)).expect("an identity");
    for (ordinal, handle) in [(0, CONTEXT_A), (1, CONTEXT_B), (0, PRIMARY)] {
        known.put(ordinal, context(handle), id);
    }
    let found = [0, 1, 2].map(|ordinal| known.get(ordinal).map(|(context, _)| context.0.get()));
    assert_eq!(found, [Some(PRIMARY), Some(CONTEXT_B), None]);
}

/// Only the refusal of a caller's context that is gone says nothing of the stream: any other answer is the last one.
#[rstest]
fn a_refusal_is_asked_about_again_beside_a_lost_context_alone(
    script: Script,
    #[values("the caller's", "pushed", "none")] current: &str,
    #[values(201, 709, 400, 999)] code: u32,
) {
    script.current(if current == "none" { 0 } else { CONTEXT_B });
    let mut guard = ContextGuard::new(&script).expect("a guard");
    if current == "pushed" {
        guard.switch(context(CONTEXT_A)).expect("a context");
    }
    script.fault("cuStreamGetCtx", 0, code);
    let mut is_looked_for = false;
    let told = guard.context_of(STREAM, || {
        is_looked_for = true;
        Home::any(&script)
    });
    let is_lost = current == "the caller's" && [201, 709].contains(&code);
    assert_eq!((told.is_ok(), is_looked_for), (is_lost, is_lost));
}

/// Whatever is current, or known of the memory: a stream of a context that was not told is of none.
#[rstest]
fn default_streams_of_a_context_that_is_not_told_are_of_none(
    script: Script,
    #[values(0, ARRAY)] pointer: u64,
    #[values(0, CONTEXT_A, PRIMARY)] current: u64,
    #[values(-1, 0)] ordinal: i32,
) {
    script.current(current);
    let place = Place {
        requested: Defaults::Untold,
        ..Place::cuda(ordinal, pointer)
    };
    let found = ContextGuard::of_stream(&script, Stream::LegacyDefault, &place);
    assert_eq!(found.map(drop), Err(UNTOLD));
    assert_eq!(script.current_now(), current);
}
