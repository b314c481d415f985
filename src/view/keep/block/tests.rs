//! How a use is marked and memory freed, with its context and stream there or gone, on the scripted driver.

use super::super::room;
use super::*;
use crate::driver::script::{Script, context};

const CONTEXT: u64 = 0xb10c;
const STREAM: Stream = Stream::from_raw(0xb1);
const KINDS: [Memory; 4] = [
    Memory::Pool,
    Memory::Device,
    Memory::Managed,
    Memory::Pinned,
];

fn script() -> &'static Script {
    let script = Script::leak();
    script.stream(STREAM.raw(), CONTEXT).current(CONTEXT);
    script
}

fn block(driver: &'static Script, memory: Memory, used: Use) -> Block {
    let made = match memory {
        Memory::Pool => Block::pooled(driver, 64, 0, STREAM, used),
        other => Block::new(driver, other, 64, used, used.home),
    };
    made.expect("memory")
}

fn used(driver: &Script, stream: Option<Stream>) -> Use {
    let used = match stream {
        Some(stream) => Use::new(driver, stream),
        None => Use::anywhere(driver, None),
    };
    used.expect("a context")
}

/// Memory is freed once, by its own call, unless its context has taken it along; that of a pool outlives its context,
/// as long as the device is in use.
#[test]
fn memory_is_freed_if_it_is_still_there() {
    for (memory, is_gone, is_used) in KINDS.into_iter().flat_map(|memory| {
        [(false, false), (true, false), (true, true)].map(|(a, b)| (memory, a, b))
    }) {
        let driver = script();
        if is_used {
            driver.primary(0, 0xb10d);
        }
        let block = block(driver, memory, used(driver, Some(STREAM)));
        let shown = format!("{block:?}");
        assert!(
            shown.contains(&format!("{memory:?}")) && shown.contains(&block.pointer().to_string()),
            "{shown}"
        );
        if is_gone {
            driver.replace_context(CONTEXT);
        }
        driver.take_calls();
        // SAFETY: the scripted driver has no work.
        assert!(unsafe { block.free() }.is_none());
        let calls = (driver.count("cuMemFree"), driver.count("cuMemFreeHost"));
        let is_freed = !is_gone || (memory == Memory::Pool && is_used);
        let expected = match (is_freed, memory) {
            (false, _) => (0, 0),
            (true, Memory::Pinned) => (0, 1),
            (true, _) => (1, 0),
        };
        assert_eq!(calls, expected, "{memory:?} gone {is_gone} used {is_used}");
    }
}

/// A primary context that was reset has taken the memory of its pool along, whether it is in use again or not: what is at
/// the address then is another's.
#[test]
fn memory_is_not_freed_in_the_context_that_has_come_in_place_of_its_own() {
    for memory in KINDS {
        let driver = script();
        driver.primary(0, CONTEXT);
        let block = block(driver, memory, used(driver, Some(STREAM)));
        driver.replace_context(CONTEXT);
        driver.take_calls();
        // SAFETY: the scripted driver has no work.
        assert!(unsafe { block.free() }.is_none());
        let calls = driver.count("cuMemFree") + driver.count("cuMemFreeHost");
        assert_eq!(calls, 0, "{memory:?}");
    }
}

/// A context that another thread destroys between the question about it and the call that frees takes all memory along but
/// that of a pool, for which the driver is asked again elsewhere. Any other refusal may have freed it.
#[test]
fn memory_is_freed_elsewhere_if_its_context_ends_meanwhile() {
    for (memory, code) in KINDS
        .into_iter()
        .flat_map(|memory| [201, 709, 1, 700, 999].map(|code| (memory, code)))
    {
        let driver = script();
        driver.primary(0, 0xb10d);
        let block = block(driver, memory, used(driver, Some(STREAM)));
        driver.take_calls();
        driver.fault("cuMemFree", 0, code);
        driver.fault("cuMemFreeHost", 0, code);
        // SAFETY: the scripted driver has no work.
        assert!(unsafe { block.free() }.is_none());
        let tries = driver.count("cuMemFree") + driver.count("cuMemFreeHost");
        let is_again = memory == Memory::Pool && [201, 709].contains(&code);
        assert_eq!(tries, 1 + usize::from(is_again), "{memory:?} {code}");
        let calls = driver.take_calls();
        let is_elsewhere = calls.iter().any(|call| call == "cuCtxPushCurrent 0xb10d");
        assert_eq!(is_elsewhere, is_again, "{calls:?}");
    }
}

/// Where contexts have no numbers, that the primary context is not in use tells that it was reset.
#[test]
fn memory_is_not_freed_again_in_a_primary_context_that_is_not_in_use() {
    for is_active in [false, true] {
        let driver = script();
        driver.primary(0, CONTEXT);
        let block = block(driver, Memory::Pool, used(driver, Some(STREAM)));
        if !is_active {
            driver.primary_context_release(0).expect("it is retained");
        }
        driver.take_calls();
        driver.fault("cuMemFree", 0, 709);
        // SAFETY: the scripted driver has no work.
        assert!(unsafe { block.free() }.is_none());
        assert_eq!(driver.count("cuMemFree"), 1 + usize::from(is_active));
    }
}

/// What can happen to a stream between its use and the mark.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Since {
    Nothing,
    Captured,
    Destroyed,
    ContextGone,
}

#[test]
fn a_mark_tells_where_the_use_stands() {
    let streams = [
        Some(STREAM),
        Some(Stream::LegacyDefault),
        Some(Stream::PerThreadDefault),
        None,
    ];
    for (stream, since) in streams.into_iter().flat_map(|stream| {
        [
            Since::Nothing,
            Since::Captured,
            Since::Destroyed,
            Since::ContextGone,
        ]
        .map(|since| (stream, since))
    }) {
        let driver = script();
        let used = used(driver, stream);
        let is_named = stream == Some(STREAM);
        assert_eq!(used.stream(), stream);
        assert_eq!(used.has_handle(), is_named);
        match since {
            Since::Nothing => {}
            Since::Captured => drop(driver.captured(stream.unwrap_or(STREAM), Capture::Active, 1)),
            Since::Destroyed => driver.stream_destroy(STREAM).expect("once"),
            Since::ContextGone => drop(driver.replace_context(CONTEXT)),
        }
        let found = match used.mark(driver) {
            Mark::Event(_) => "event",
            Mark::Later => "later",
            Mark::Unnamed => "unnamed",
            Mark::Over => "over",
        };
        let expected = match since {
            Since::ContextGone => "over",
            _ if !is_named => "unnamed",
            Since::Destroyed if stream == Some(STREAM) => "unnamed",
            Since::Captured => "later",
            _ => "event",
        };
        assert_eq!(found, expected, "{stream:?} {since:?}");
        let site = used.site(driver).expect("an answer");
        assert_eq!(site.is_none(), since == Since::ContextGone);
    }
}

/// A device is waited for by a call that frees memory: of the device, or if it has none left of the host. In a context
/// that is gone nothing runs. If the driver refuses both, nothing is known of its work.
#[test]
fn a_device_is_waited_for_once() {
    for (failures, is_gone) in [(0, false), (1, false), (2, false), (3, false), (0, true)] {
        let driver = script();
        let site = used(driver, Some(STREAM)).site(driver).expect("an answer");
        let site = site.expect("a context");
        if is_gone {
            driver.replace_context(CONTEXT);
        }
        // The first is made once more: one answer alone tells nothing of the context.
        for call in ["cuMemAlloc", "cuMemAlloc", "cuMemHostAlloc"]
            .into_iter()
            .take(failures)
        {
            driver.fault(call, 0, 2);
        }
        driver.take_calls();
        assert_eq!(site.settle(driver), failures < 3, "{failures} {is_gone}");
        let calls = (driver.count("cuMemFree"), driver.count("cuMemFreeHost"));
        let expected = match (failures, is_gone) {
            (0 | 1, false) => (1, 0),
            (2, false) => (0, 1),
            _ => (0, 0),
        };
        assert_eq!(calls, expected, "{failures} {is_gone}");
    }
}

/// The byte that a wait takes is on its way back, for who finds no memory meanwhile.
#[test]
fn a_wait_for_a_device_is_counted() {
    let driver = script();
    let site = used(driver, Some(STREAM)).site(driver).expect("an answer");
    let site = site.expect("a context");
    let _patient = room::PATIENT.read();
    let mut waiter = room::Waiter::new(site.ordinal);
    assert!(site.settle(driver));
    assert!(waiter.wait(), "a change");
}

/// A use that may be anywhere is waited for in each primary context in use, but not by a call of its own in the context
/// that the call which frees waits for: which may be the device's primary one or another.
#[test]
fn work_anywhere_is_on_every_device_in_use() {
    for (active, is_primary) in [&[][..], &[0_i32], &[1], &[0, 1]]
        .into_iter()
        .flat_map(|active| [true, false].map(|is_primary| (active, is_primary)))
    {
        let driver = script();
        for ordinal in active {
            let primary = match (ordinal, is_primary) {
                (0, true) => CONTEXT,
                _ => 0xb100 + u64::from(ordinal.unsigned_abs()),
            };
            driver.primary(*ordinal, primary);
        }
        for memory in KINDS {
            let anywhere = block(driver, memory, used(driver, None));
            let sites = anywhere.sites_of_use().expect("an answer");
            let found: Vec<_> = sites.iter().map(|site| site.ordinal).collect();
            let others: Vec<_> = active
                .iter()
                .copied()
                .filter(|ordinal| *ordinal != 0 || !is_primary)
                .collect();
            assert_eq!(found, others);
            // A stream's own device is waited for by the call that frees memory which is of no pool.
            let there = block(driver, memory, used(driver, Some(STREAM))).sites_of_use();
            assert_eq!(
                there.expect("an answer").len(),
                usize::from(memory == Memory::Pool)
            );
        }
    }
}

/// A context that was made by hand is waited for as the primary ones are, if it was current as the consumer asked; once,
/// and as long as it is there.
#[test]
fn work_anywhere_is_in_the_callers_context_too() {
    const MADE: u64 = 0x0b0b;
    let made = context(MADE);
    for (original, is_gone, expected) in [
        (None, false, 0),
        (Some(CONTEXT), false, 0),
        (Some(0xb101), false, 0),
        (Some(MADE), false, 1),
        (Some(MADE), true, 0),
    ] {
        let driver = script();
        driver.primary(0, CONTEXT).primary(1, 0xb101);
        let used = Use::anywhere(driver, original.map(context)).expect("a context");
        if is_gone {
            driver.replace_context(MADE);
        }
        let block = block(driver, Memory::Device, used);
        for sites in [block.sites_of_use(), used.sites(driver)] {
            let sites = sites.expect("an answer");
            let homes = sites.iter().filter_map(|site| site.home);
            let found = homes.filter(|home| home.context == made).count();
            assert_eq!(found, expected, "{original:?} {is_gone}");
        }
    }
}

/// A call of the driver that fails leaves the devices unknown, or the wait undone: neither is taken for an answer.
#[test]
fn what_the_driver_refuses_is_no_answer() {
    for code in [1, 2, 700, 999] {
        let driver = script();
        driver.primary(1, 0xb101);
        let anywhere = block(driver, Memory::Device, used(driver, None));
        for call in ["cuDeviceGetCount", "cuDevicePrimaryCtxGetState"] {
            driver.fault(call, 0, code);
            assert!(anywhere.sites_of_use().is_err(), "{call} {code}");
        }
        let there = used(driver, Some(STREAM));
        driver.fault("cuCtxGetDevice", 0, code);
        assert!(there.site(driver).is_err(), "{code}");
        let site = there.site(driver).expect("an answer").expect("a context");
        driver.fault("cuMemFree", 0, code);
        assert!(!site.settle(driver), "{code}");
        assert!(site.settle(driver), "{code}");
    }
}

/// A context is gone if the driver tells so: by its number, or by an error that is the end of it. A refusal that comes
/// once is asked about again; one that comes twice leaves all as it was.
#[test]
fn a_context_that_the_driver_does_not_tell_of_may_be_there() {
    let calls = ["cuCtxGetId", "cuCtxPushCurrent"];
    for (call, code) in calls
        .into_iter()
        .flat_map(|call| [2, 999, 201, 709].map(|code| (call, code)))
    {
        for times in [1, 2] {
            let driver = script();
            let used = used(driver, Some(STREAM));
            let block = block(driver, Memory::Managed, used);
            let fault = || {
                for _ in 0..times {
                    driver.fault(call, 0, code);
                }
            };
            let is_gone = times == 2 && [201, 709].contains(&code);
            let is_told = times == 1 || is_gone;
            fault();
            let what = format!("{call} {code} {times}");
            let mark = used.mark(driver);
            let found = (matches!(mark, Mark::Event(_)), matches!(mark, Mark::Over));
            assert_eq!(found, (times == 1, is_gone), "{what}");
            fault();
            assert_eq!(used.site(driver).is_ok(), is_told, "{what}");
            fault();
            // SAFETY: the scripted driver has no work.
            let left = unsafe { block.free() };
            assert_eq!(left.is_none(), is_told, "{what}");
            let freed = driver.count("cuMemFree");
            assert_eq!(freed, usize::from(times == 1), "{what}");
            if let Some(left) = left {
                // SAFETY: the scripted driver has no work.
                assert!(unsafe { left.free() }.is_none(), "{what}");
                assert_eq!(driver.count("cuMemFree"), 1, "{what}");
            }
        }
    }
}

/// A stream is another one if its handle comes back; one that the driver does not tell from it might be.
#[test]
fn a_stream_is_one_if_the_driver_can_tell() {
    for stream in [
        STREAM,
        Stream::LegacyDefault,
        Stream::PerThreadDefault,
        Stream::None,
    ] {
        for code in [0, 999] {
            let driver = script();
            for _ in 0..2 * usize::from(code != 0) {
                driver.fault("cuStreamGetId", 0, code);
            }
            let used = used(
                driver,
                Some(stream).filter(|stream| *stream != Stream::None),
            );
            let is_one = stream != Stream::None && (stream != STREAM || code == 0);
            assert_eq!(used.is_of_one_stream(), is_one, "{stream:?} {code}");
        }
    }
}

/// In a primary context that is not in use nothing runs; one that is, and that cannot be entered, is not waited for.
#[test]
fn a_device_that_is_not_in_use_has_no_work() {
    for (is_active, is_refused) in [(false, false), (true, false), (true, true)] {
        let driver = script();
        if is_active {
            driver.primary(1, 0xb101);
        }
        if is_refused {
            driver.fault("cuDevicePrimaryCtxRetain", 0, 999);
        }
        let (ordinal, home) = (1, None);
        let waited = Site { ordinal, home }.wait(driver);
        assert_eq!(waited.is_err(), is_refused, "{is_active} {waited:?}");
        let is_waited_for = is_active && !is_refused;
        assert_eq!(driver.count("cuMemFree"), usize::from(is_waited_for));
    }
}

/// A context that ends meanwhile is asked for no other memory.
#[test]
fn a_context_that_ends_while_it_is_waited_for_has_no_work() {
    for code in [201, 709] {
        let driver = script();
        let site = used(driver, Some(STREAM)).site(driver).expect("an answer");
        (0..2).for_each(|_| _ = driver.fault("cuMemAlloc", 0, code));
        assert!(site.expect("a context").settle(driver), "{code}");
        assert_eq!(driver.count("cuMemFree"), 0, "{code}");
        assert_eq!(driver.count("cuMemHostAlloc"), 0, "{code}");
    }
}

/// The caller's context may end before it is asked about; a refusal does not tell that, nor one answer alone.
#[test]
fn the_callers_context_is_gone_only_if_the_driver_says_so() {
    for code in [2, 999, 201, 709] {
        let driver = script();
        driver.fault("cuCtxGetId", 1, code);
        let used = Use::anywhere(driver, Some(context(0x0b0b)));
        let works = used.expect("an answer").works;
        assert!(matches!(works, Works::Anywhere(Some(_))), "{code}");
        driver.fault("cuCtxGetId", 1, code);
        driver.fault("cuCtxGetId", 0, code);
        let used = Use::anywhere(driver, Some(context(0x0b0b)));
        let is_gone = [201, 709].contains(&code);
        assert_eq!(used.is_ok(), is_gone, "{code}");
        if let Ok(used) = used {
            assert!(matches!(used.works, Works::Anywhere(None)), "{code}");
        }
    }
}

#[test]
fn the_next_use_of_memory_is_known_to_be_on_its_device() {
    let driver = script();
    for memory in KINDS {
        for stream in [Some(STREAM), None] {
            let block = block(driver, memory, used(driver, stream));
            let is_at_home = memory == Memory::Pool || stream.is_none();
            assert_eq!(block.is_at_home(), is_at_home, "{memory:?} {stream:?}");
        }
    }
}

/// A stream with a handle is known by that; a default one by its number of a thread, and by its context.
#[test]
fn a_block_is_for_the_stream_that_it_was_made_for() {
    let driver = script();
    let here = Placed::here(STREAM);
    let default = |stream, whose| Placed::here(stream).of(whose);
    let (legacy, own) = (Stream::LegacyDefault, Stream::PerThreadDefault);
    let of = Defaults::Of(context(CONTEXT));
    let named = [
        here,
        Placed::here(Stream::from_raw(0xb2)),
        default(legacy, of),
        default(own, of),
        default(legacy, Defaults::Of(context(0xb10d))),
        default(legacy, Defaults::OfPrimary),
        Placed::here(legacy),
        Placed::here(Stream::None),
    ];
    for (stream, is_for) in [
        (Some(STREAM), Some(here)),
        (Some(legacy), Some(default(legacy, of))),
        (Some(own), Some(default(own, of))),
        (None, None),
    ] {
        let block = block(driver, Memory::Device, used(driver, stream));
        for other in named {
            assert_eq!(
                block.is_for(other),
                is_for == Some(other),
                "{stream:?} {other:?}"
            );
        }
    }
}
