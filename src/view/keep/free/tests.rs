//! What a thread of this folder does, on the caller's, as where no thread can be started.

use super::*;
use crate::driver::script::Script;
use crate::protocol::stream::Stream;

const CONTEXT: u64 = 0xf4ee;

/// Memory that work may use is freed once, after the wait for its device; what the driver refuses is tried again.
#[test]
fn without_a_thread_the_caller_waits_and_frees() {
    // A device's name, and then both calls that wait for it.
    let refusals: [&[&str]; 4] = [
        &[],
        &["cuCtxGetDevice"],
        &["cuMemAlloc", "cuMemHostAlloc"],
        &["cuCtxGetDevice", "cuMemAlloc", "cuMemHostAlloc"],
    ];
    for (refused, is_in_use) in refusals
        .into_iter()
        .flat_map(|all| [(all, true), (all, false)])
    {
        for stream in [Some(Stream::PerThreadDefault), None] {
            let driver = Script::leak();
            driver.primary(0, CONTEXT).primary(1, CONTEXT + 1);
            driver.current(CONTEXT);
            let used = match stream {
                Some(stream) => Use::new(driver, stream),
                None => Use::anywhere(driver, None),
            };
            let used = used.expect("a context");
            let block = Block::new(driver, Memory::Device, 64, used, used.home).expect("memory");
            let own = format!("cuMemFree {:#x}", block.pointer());
            driver.take_calls();
            for call in refused {
                driver.fault(call, 0, 999);
            }
            let waiting = Waiting {
                since: Instant::now(),
                held: Held::memory(block),
                is_in_use,
                sites: if is_in_use { None } else { Some(Vec::new()) },
            };
            assert!(waiting.finish().is_none());
            let calls = driver.calls();
            let freed = calls.iter().filter(|call| **call == own).count();
            let what = format!("{refused:?} {is_in_use} {stream:?}: {calls:?}");
            assert_eq!(freed, 1, "{what}");
            assert_eq!(
                calls[calls.len() - 2..],
                [&own, "cuCtxPopCurrent"],
                "{what}"
            );
            let waits = calls
                .iter()
                .filter(|call| call.starts_with("cuMemFree "))
                .count()
                - 1;
            assert_eq!(waits > 0, is_in_use, "{what}");
        }
    }
}

/// One wait for a context ends the use of all that had ended there before it began, and of nothing else: neither what ended
/// later, nor what another context uses, or streams that nobody has named.
#[test]
fn one_wait_is_for_all_that_had_ended() {
    let driver = Script::leak();
    driver
        .primary(0, CONTEXT + 2)
        .primary(1, CONTEXT + 3)
        .current(CONTEXT + 2);
    let own = Use::new(driver, Stream::PerThreadDefault).expect("a context");
    let anywhere = Use::anywhere(driver, None).expect("a context");
    driver.current(CONTEXT + 3);
    let elsewhere = Use::new(driver, Stream::PerThreadDefault).expect("a context");
    let site = own.site(driver).expect("an answer").expect("a context");
    let (before, begun) = (Instant::now(), Instant::now() + Duration::from_secs(1));
    for (used, since, is_over) in [
        (own, before, true),
        (own, begun, false),
        (elsewhere, before, false),
        (anywhere, before, false),
    ] {
        let block = Block::new(driver, Memory::Pinned, 8, used, used.home).expect("memory");
        let mut waiting = Waiting {
            since,
            held: Held::memory(block),
            is_in_use: true,
            sites: None,
        };
        waiting.settled_with(&site, begun);
        assert_eq!(!waiting.is_in_use, is_over);
        assert_eq!(waiting.sites.is_some_and(|left| left.is_empty()), is_over);
    }
}

/// What has ended is left alone for a while, but not if a thread waits for its memory.
#[test]
fn what_has_ended_has_a_while_unless_it_is_wanted() {
    let driver = Script::leak();
    driver.primary(97, CONTEXT + 4).current(CONTEXT + 4);
    let used = Use::anywhere(driver, None).expect("a context");
    let block = Block::new(driver, Memory::Pinned, 8, used, used.home).expect("memory");
    let mut waiting = Waiting {
        since: Instant::now(),
        held: Held::memory(block),
        is_in_use: true,
        sites: None,
    };
    assert!(!waiting.is_due());
    let waiter = room::Waiter::new(waiting.held.ordinal());
    assert!(waiting.is_due());
    drop(waiter);
    waiting.since -= GRACE;
    assert!(waiting.is_due());
}

/// The thread may have been started by another call meanwhile, and sleep.
#[test]
#[cfg_attr(miri, ignore = "starts a thread, which stays")]
fn what_a_caller_has_left_wakes_the_thread() {
    let driver = Script::leak();
    driver.primary(96, CONTEXT + 5).current(CONTEXT + 5);
    let used = Use::anywhere(driver, None).expect("a context");
    let block = Block::new(driver, Memory::Pinned, 8, used, used.home).expect("memory");
    start(driver, 96);
    std::thread::sleep(GRACE * 5);
    let since = Instant::now();
    let left = Waiting {
        since,
        held: Held::memory(block),
        is_in_use: true,
        sites: None,
    };
    leave(&mut lock(), left);
    while driver.count("cuMemFreeHost") == 0 {
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "nothing is freed"
        );
        std::thread::sleep(GRACE);
    }
}
