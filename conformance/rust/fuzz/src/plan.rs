//! Any situation of two streams: the plan orders them, or says why it does not have to or cannot.

use cai_dlpack::protocol::stream::{
    Capture, Plan, Platform, Request, Situation, Stream, SyncPolicy, plan,
};

use crate::bytes::Bytes;

const STREAMS: [Stream; 3] = [
    Stream::None,
    Stream::LegacyDefault,
    Stream::PerThreadDefault,
];
const CAPTURES: [Capture; 3] = [Capture::Idle, Capture::Active, Capture::Invalidated];

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let ready = bytes.one_of(&STREAMS);
    let request = match bytes.byte() % 4 {
        0 => Request::NoSync,
        1 => Request::Host,
        _ => Request::Stream(bytes.one_of(&STREAMS)),
    };
    let policy = bytes.one_of(&[SyncPolicy::Event, SyncPolicy::Host, SyncPolicy::None]);
    let mut situation = Situation::new(ready, request, policy);
    situation.platform = bytes.one_of(&[Platform::Cuda, Platform::Rocm]);
    situation.ready_on_other_thread = bytes.flag();
    situation.ready_in_other_context = bytes.flag();
    situation.ready_capture = bytes.one_of(&CAPTURES);
    situation.requested_capture = bytes.one_of(&CAPTURES);
    situation.same_capture = bytes.flag();
    situation.joins_back = bytes.flag();
    situation.exclusive_managed = bytes.flag();
    match plan(&situation) {
        Plan::Event { record, wait, .. } => {
            assert_eq!((record, Request::Stream(wait)), (ready, request));
            assert_ne!(policy, SyncPolicy::None);
            let is_one = record == wait
                && !situation.ready_in_other_context
                && !(record == Stream::PerThreadDefault && situation.ready_on_other_thread);
            assert!(
                !is_one,
                "an event between a stream and itself: {situation:?}"
            );
        }
        Plan::HostWait { stream, .. } => {
            assert_eq!(stream, ready);
            assert!(request == Request::Host || policy == SyncPolicy::Host);
        }
        Plan::Nothing(_) => {
            let is_ready = ready == Stream::None || request == Request::Stream(ready);
            let is_told = request == Request::NoSync || request == Request::Stream(Stream::None);
            assert!(
                is_ready || is_told || policy == SyncPolicy::None,
                "{situation:?}"
            );
        }
        Plan::Refuse(_) => {}
        other => panic!("a plan that is judged by no line above: {other:?}"),
    }
}
