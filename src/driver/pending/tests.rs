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
    begin(script, READY, request, None, &place, policy).expect("nothing forbids it")
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
