//! What a user sees of each value in a message or a debugger.

use std::collections::HashSet;

use cai_dlpack::protocol::stream::{Reason, Request, Stream};
use cai_dlpack::view::LiveStream;

use crate::arrays::array;

const REASONS: [Reason; 10] = [
    Reason::PolicyNone,
    Reason::NoSyncRequested,
    Reason::ReadyEverywhere,
    Reason::SameStream,
    Reason::DifferentStreams,
    Reason::SameCapture,
    Reason::ForkFromCapture,
    Reason::HostReads,
    Reason::HostReadsExclusively,
    Reason::PolicyHost,
];

#[test]
fn each_reason_has_a_sentence_of_its_own() {
    let sentences: HashSet<_> = REASONS.iter().map(|reason| reason.sentence()).collect();
    assert_eq!(sentences.len(), REASONS.len());
    assert!(
        REASONS
            .iter()
            .all(|reason| reason.to_string() == reason.sentence())
    );
}

#[test]
fn a_stream_looks_alike_in_every_type_that_has_one() {
    // SAFETY: streams are compared and printed, and passed to no driver.
    let live = |stream| unsafe { LiveStream::new(stream) };
    for stream in [
        Stream::None,
        Stream::LegacyDefault,
        Stream::PerThreadDefault,
        Stream::from_raw(0x70),
    ] {
        assert_eq!(live(stream).to_string(), stream.to_string());
        assert_eq!(
            format!("{:?}", live(stream)),
            format!("LiveStream({stream:?})")
        );
        assert_eq!(Stream::from(live(stream)), stream);
        assert!(live(stream) == stream && live(stream) == live(stream));
        if stream != Stream::None {
            assert_eq!(Request::from(stream).to_string(), stream.to_string());
        }
    }
    assert_eq!(Request::from(Stream::None), Request::NoSync);
    let others = [Request::NoSync, Request::Host].map(|request| request.to_string());
    assert_eq!(others, ["no synchronisation", "the host"]);
}

#[test]
fn a_view_and_what_is_made_of_it_can_be_looked_at() {
    let view = array(vec![1.0_f32, 2.0], &[2]);
    let typed = view.typed::<f32>().expect("floats");
    let again = Clone::clone(&typed);
    assert_eq!((again.len(), again.as_ptr()), (typed.len(), typed.as_ptr()));
    let tensor = view.to_dlpack(LiveStream::NONE).expect("a tensor");
    assert!(format!("{tensor:?}").starts_with("DlpackTensor(0x"));
    assert!(format!("{view:?}").contains("Owner"));
    let refused = format!("{:?}", view.typed::<i8>().map(drop));
    assert!(
        refused.contains("Violation(") && refused.contains("[view-dtype]"),
        "{refused}"
    );
    let guard = view
        .consume(LiveStream::LEGACY_DEFAULT)
        .expect("ready data");
    assert!(format!("{guard:?}").contains("edge"));
}
