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
            let used = Use::new(driver, stream).expect("a context");
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
            waiting.finish();
            let calls = driver.calls();
            let freed = calls.iter().filter(|call| **call == own).count();
            let what = format!("{refused:?} {is_in_use} {stream:?}: {calls:?}");
            assert_eq!(freed, 1, "{what}");
            assert_eq!(calls.last(), Some(&own), "{what}");
            let waits = calls
                .iter()
                .filter(|call| call.starts_with("cuMemFree "))
                .count()
                - 1;
            assert_eq!(waits > 0, is_in_use, "{what}");
        }
    }
}
