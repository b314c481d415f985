//! A wait that is begun makes no call that blocks, and is asked about in the event's context.

use rstest::{fixture, rstest};

use super::*;
use crate::driver::script::Script;
use crate::driver::{Place, begin};
use crate::protocol::stream::{Request, Stream, SyncPolicy};

const READY: Stream = Stream::from_raw(0xb1);
const CONTEXT_A: u64 = 0xa;
const CONTEXT_B: u64 = 0xb;

/// The ready stream is of another context than the current one.
#[fixture]
fn script() -> &'static Script {
    let script = Script::leak();
    script.stream(READY.raw(), CONTEXT_B);
    script.device_memory(0x7000, 64, 1, CONTEXT_B);
    script.current(CONTEXT_A)
}

fn begun(script: &'static Script, request: Request, policy: SyncPolicy) -> Option<Pending> {
    let place = Place::cuda(1, 0x7000);
    let begun = begin(script, READY, request, None, &place, policy);
    begun.expect("nothing forbids it").1
}

#[rstest]
#[case::host(Request::Host, SyncPolicy::Event)]
#[case::policy_host(Request::Stream(Stream::from_raw(0xb2)), SyncPolicy::Host)]
fn the_host_marks_and_asks(
    script: &'static Script,
    #[case] request: Request,
    #[case] policy: SyncPolicy,
) {
    script.stream(0xb2, CONTEXT_B);
    let pending = begun(script, request, policy).expect("a wait of the host");
    assert_eq!(script.count("cuEventRecord"), 1);
    assert_eq!(script.count("cuStreamSynchronize"), 0);
    assert_eq!(script.current_now(), CONTEXT_A);
    script.take_calls();
    assert_eq!(pending.is_over(), Ok(true));
    assert_eq!(script.count("cuEventQuery"), 1);
    assert_eq!(script.current_now(), CONTEXT_A);
}

#[rstest]
fn an_order_of_streams_leaves_no_wait(script: &'static Script) {
    script.stream(0xb2, CONTEXT_B);
    let pending = begun(script, Stream::from_raw(0xb2).into(), SyncPolicy::Event);
    assert!(pending.is_none());
    assert_eq!(script.count("cuStreamWaitEvent"), 1);
}

#[rstest]
fn the_error_of_a_question_is_returned_and_the_context_put_back(script: &'static Script) {
    let pending = begun(script, Request::Host, SyncPolicy::Event).expect("a wait of the host");
    script.fault("cuEventQuery", 0, 719);
    assert_eq!(
        pending.is_over().map_err(|error| error.code()),
        Err(Some(719))
    );
    assert_eq!(script.current_now(), CONTEXT_A);
}

/// Managed memory that its device wants to itself is waited for with all work of the device, on a thread of its own;
/// ready or not, and of a device without a context there is no work.
#[rstest]
#[cfg_attr(miri, ignore = "waits for a thread by the clock")]
fn a_whole_device_is_waited_for_elsewhere(
    script: &'static Script,
    #[values(Stream::None, READY)] ready: Stream,
    #[values(None, Some(700))] fault: Option<u32>,
    #[values(false, true)] has_context: bool,
) {
    script.managed(0x7000).exclusive_managed(1);
    let info = script.pointer_info(0x7000, true).expect("memory");
    let context = info.context.filter(|_| has_context);
    script.pointer(0x7000, crate::driver::PointerInfo { context, ..info });
    if let Some(code) = fault {
        script.fault("cuCtxSynchronize", 0, code);
    }
    let mut place = Place::cuda(1, 0x7000);
    place.may_be_managed = true;
    let pending = begin(
        script,
        ready,
        Request::Host,
        None,
        &place,
        SyncPolicy::Event,
    );
    assert_eq!(script.current_now(), CONTEXT_A);
    let is_whole = has_context;
    let (_, pending) = pending.expect("nothing forbids it");
    assert_eq!(pending.is_some(), is_whole || ready == READY);
    let Some(pending) = pending else {
        return;
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let ended = loop {
        match pending.is_over() {
            Ok(false) => assert!(std::time::Instant::now() < end, "it ends"),
            ended => break ended.map_err(|error| error.code()),
        }
        thread::yield_now();
    };
    let expected = fault
        .filter(|_| is_whole)
        .map_or(Ok(true), |code| Err(Some(code)));
    assert_eq!(ended, expected);
    assert_eq!(script.count("cuCtxSynchronize"), usize::from(is_whole));
    assert_eq!(script.count("cuEventRecord"), usize::from(ready == READY));
}
