//! The integers of both protocols as tables, and the decision against an oracle of its own.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;

use rstest::rstest;

use super::*;
use crate::protocol::rule::Rule;

const HANDLE: Stream = Stream::from_raw(0x5500_1230);
const OTHER: Stream = Stream::from_raw(0x5500_4560);
const STREAMS: [Stream; 5] = [
    Stream::None,
    Stream::LegacyDefault,
    Stream::PerThreadDefault,
    HANDLE,
    OTHER,
];
const TOO_LARGE: i128 = 1 << 64;

#[rstest]
#[case::c88_zero_is_the_default_stream(0, Stream::LegacyDefault)]
#[case::legacy(1, Stream::LegacyDefault)]
#[case::per_thread(2, Stream::PerThreadDefault)]
#[case::smallest_handle(3, Stream::from_raw(3))]
#[case::handle(0x5500_1230, HANDLE)]
#[case::largest(u64::MAX.into(), Stream::from_raw(u64::MAX))]
fn cai_integers(#[case] value: i128, #[case] stream: Stream) {
    assert_eq!(Stream::from_cai(value, false).unwrap(), stream);
}

#[rstest]
#[case::c88_zero_when_strict(0, true, Rule::StreamZero)]
#[case::c89_minus_one(-1, false, Rule::StreamRange)]
#[case::minus_two(-2, true, Rule::StreamRange)]
#[case::c92_two_to_the_64(TOO_LARGE, false, Rule::StreamRange)]
#[case::smallest(i128::MIN, false, Rule::StreamRange)]
#[case::largest(i128::MAX, true, Rule::StreamRange)]
fn cai_refusals(#[case] value: i128, #[case] strict: bool, #[case] rule: Rule) {
    let violation = Stream::from_cai(value, strict).unwrap_err();
    assert_eq!(
        (violation.rule(), violation.field()),
        (rule, Field::CaiStream)
    );
    assert_eq!(violation.found(), value.to_string());
}

/// A refusal says what the caller may have meant.
#[test]
fn refusals_that_have_advice() {
    let minus_one = Stream::from_cai(-1, false).unwrap_err();
    assert!(minus_one.hint().unwrap().contains("None"), "{minus_one}");
    assert_eq!(Stream::from_cai(-2, false).unwrap_err().hint(), None);
    let of_cpu = dlpack_stream(Rule::StreamCpu, 5);
    assert!(of_cpu.hint().unwrap().contains("None blocks"), "{of_cpu}");
    assert_eq!(dlpack_stream(Rule::StreamRange, 5).hint(), None);
}

#[test]
fn strict_changes_nothing_but_zero() {
    for value in [1, 2, 3, 0x5500_1230, u64::MAX.into()] {
        assert_eq!(
            Stream::from_cai(value, true),
            Stream::from_cai(value, false),
            "{value}"
        );
    }
}

#[rstest]
#[case(Stream::None, None, 0, -1, -1)]
#[case(Stream::LegacyDefault, Some(1), 1, 1, 0)]
#[case(Stream::PerThreadDefault, Some(2), 2, 2, 2)]
#[case(HANDLE, Some(0x5500_1230), 0x5500_1230, 0x5500_1230, 0x5500_1230)]
fn one_stream_in_every_notation(
    #[case] stream: Stream,
    #[case] cai: Option<u64>,
    #[case] raw: u64,
    #[case] dlpack: i128,
    #[case] rocm: i128,
) {
    assert_eq!(stream.to_cai(), cai);
    assert_eq!(stream.raw(), raw);
    assert_eq!(stream.to_dlpack_arg(), dlpack);
    assert_eq!(stream.to_dlpack_arg_on(Platform::Rocm), rocm);
    assert_eq!(stream.to_dlpack_arg_on(Platform::Cuda), dlpack);
}

#[test]
fn every_stream_survives_both_protocols() {
    for stream in STREAMS {
        if let Some(cai) = stream.to_cai() {
            assert_ne!(cai, 0, "{stream}");
            assert_eq!(Stream::from_cai(cai.into(), true).unwrap(), stream);
            assert_eq!(Stream::from_raw(stream.raw()), stream);
        }
        for platform in [Platform::Cuda, Platform::HostReadable] {
            let argument = Some(stream.to_dlpack_arg());
            assert_eq!(
                Request::from_dlpack(argument, platform).unwrap(),
                Request::from(stream)
            );
        }
    }
    for stream in [Stream::None, Stream::LegacyDefault, HANDLE] {
        let argument = Some(stream.to_dlpack_arg_on(Platform::Rocm));
        let request = Request::from_dlpack(argument, Platform::Rocm).unwrap();
        assert_eq!(request, Request::from(stream));
    }
}

/// Every argument that is read is written again as one that means the same; every request that has an argument is read
/// from it; and each that has none is one that no argument means.
#[test]
fn every_request_survives_dlpack() {
    const PLATFORMS: [Platform; 4] = [
        Platform::Cuda,
        Platform::HostReadable,
        Platform::Rocm,
        Platform::Host,
    ];
    let integers = (-3..=20).chain((0..64).map(|bit| 1_i128 << bit)).map(Some);
    let arguments: Vec<_> = integers.chain([None, Some(i128::from(u64::MAX))]).collect();
    for platform in PLATFORMS {
        let mut read = Vec::new();
        for argument in &arguments {
            let Ok(request) = Request::from_dlpack(*argument, platform) else {
                continue;
            };
            let written = request.to_dlpack(platform).expect("it was read");
            assert_eq!(Request::from_dlpack(written, platform), Ok(request));
            // The one integer that has two spellings is the default stream: None means it, too.
            let is_default = request == Request::Stream(Stream::LegacyDefault);
            assert!(written == *argument || (is_default && argument.is_none()));
            read.push(request);
        }
        for request in STREAMS
            .map(Request::from)
            .into_iter()
            .chain([Request::Host])
        {
            let is_handle = matches!(request, Request::Stream(Stream::Handle(_)));
            let has_argument = match is_handle {
                true => platform != Platform::Host,
                false => read.contains(&request),
            };
            let written = request.to_dlpack(platform);
            assert_eq!(written.is_some(), has_argument, "{request} on {platform:?}");
            if let Some(argument) = written {
                assert_eq!(Request::from_dlpack(argument, platform), Ok(request));
            }
        }
    }
}

const LEGACY: Request = Request::Stream(Stream::LegacyDefault);
const PER_THREAD: Request = Request::Stream(Stream::PerThreadDefault);
const ON_HANDLE: Request = Request::Stream(HANDLE);

/// A row is an integer; its columns are CUDA, pinned and managed, ROCm, CPU.
#[rstest]
#[case(None, [Ok(LEGACY), Ok(Request::Host), Ok(LEGACY), Ok(Request::Host)])]
#[case(Some(-1), [Ok(Request::NoSync), Ok(Request::NoSync), Ok(Request::NoSync), Err(Rule::StreamCpu)])]
#[case(Some(0), [Err(Rule::StreamZero), Err(Rule::StreamZero), Ok(LEGACY), Err(Rule::StreamCpu)])]
#[case(Some(1), [Ok(LEGACY), Ok(LEGACY), Err(Rule::StreamRocm), Err(Rule::StreamCpu)])]
#[case(Some(2), [Ok(PER_THREAD), Ok(PER_THREAD), Err(Rule::StreamRocm), Err(Rule::StreamCpu)])]
#[case(Some(0x5500_1230), [Ok(ON_HANDLE), Ok(ON_HANDLE), Ok(ON_HANDLE), Err(Rule::StreamCpu)])]
#[case(Some(-2), [Err(Rule::StreamRange), Err(Rule::StreamRange), Err(Rule::StreamRange), Err(Rule::StreamCpu)])]
#[case(Some(TOO_LARGE), [Err(Rule::StreamRange), Err(Rule::StreamRange), Err(Rule::StreamRange), Err(Rule::StreamCpu)])]
#[case(Some(i128::MIN), [Err(Rule::StreamRange), Err(Rule::StreamRange), Err(Rule::StreamRange), Err(Rule::StreamCpu)])]
fn dlpack_integers(#[case] value: Option<i128>, #[case] expected: [Result<Request, Rule>; 4]) {
    let platforms = [
        Platform::Cuda,
        Platform::HostReadable,
        Platform::Rocm,
        Platform::Host,
    ];
    for (platform, expected) in platforms.into_iter().zip(expected) {
        let request = Request::from_dlpack(value, platform);
        if let Err(violation) = &request {
            assert_eq!(violation.field(), Field::Argument("stream"));
        }
        let request = request.map_err(|violation| violation.rule());
        assert_eq!(request, expected, "{value:?} on {platform:?}");
    }
}

#[rstest]
#[case(1, Some(Platform::Host))]
#[case(2, Some(Platform::Cuda))]
#[case(3, Some(Platform::HostReadable))]
#[case(4, None)]
#[case(10, Some(Platform::Rocm))]
#[case(11, Some(Platform::Rocm))]
#[case(13, Some(Platform::HostReadable))]
#[case(14, None)]
#[case(-1, None)]
fn device_types(#[case] device_type: i32, #[case] platform: Option<Platform>) {
    let device = Device::new(DeviceType::from_dlpack(device_type), 0);
    assert_eq!(Platform::of(device), platform);
}

/// Everything that [`plan`] can be asked, where the data is ready on `STREAMS`.
fn situations() -> Vec<Situation> {
    let mut all = Vec::new();
    for_each_choice(&mut |choose| {
        let ready = choose.one_of(&STREAMS);
        let request = choose.one_of(&[
            Request::NoSync,
            Request::Host,
            Request::Stream(Stream::None),
            LEGACY,
            PER_THREAD,
            ON_HANDLE,
            Request::Stream(OTHER),
        ]);
        let captures = [
            Capture::Idle,
            Capture::Active,
            Capture::Invalidated,
            Capture::BlocksLegacy,
        ];
        let platforms = [
            Platform::Cuda,
            Platform::HostReadable,
            Platform::Rocm,
            Platform::Host,
        ];
        all.push(Situation {
            ready,
            request,
            platform: choose.one_of(&platforms),
            policy: choose.one_of(&[SyncPolicy::Event, SyncPolicy::Host, SyncPolicy::None]),
            ready_on_other_thread: choose.one_of(&[false, true]),
            ready_in_other_context: choose.one_of(&[false, true]),
            ready_capture: choose.one_of(&captures),
            requested_capture: choose.one_of(&captures),
            same_capture: choose.one_of(&[false, true]),
            joins_back: choose.one_of(&[false, true]),
            exclusive_managed: choose.one_of(&[false, true]),
        });
    });
    all
}

/// Runs `body` once for every sequence of choices that it makes (an odometer over their sizes).
fn for_each_choice(body: &mut dyn FnMut(&mut Choices)) {
    let mut choices = Choices {
        digits: Vec::new(),
        at: 0,
    };
    loop {
        choices.at = 0;
        body(&mut choices);
        while choices
            .digits
            .pop_if(|(digit, size)| digit.wrapping_add(1) == *size)
            .is_some()
        {}
        match choices.digits.last_mut() {
            Some((digit, _)) => *digit = digit.wrapping_add(1),
            None => return,
        }
    }
}

struct Choices {
    digits: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        if self.at == self.digits.len() {
            self.digits.push((0, all.len()));
        }
        let (digit, _) = *self.digits.get(self.at).unwrap();
        self.at = self.at.wrapping_add(1);
        *all.get(digit).unwrap()
    }
}

/// What a plan does, without its reasons.
#[derive(Debug, PartialEq)]
enum Deed {
    Nothing,
    Event,
    StreamWait,
    ContextWait,
    Refuse(Rule),
}

/// The design's stream section as a list, first match first; written without looking at `plan`.
fn oracle(s: &Situation) -> Deed {
    let asks_stream = |stream| s.request == Request::Stream(stream);
    let foreign = s.ready == Stream::PerThreadDefault && s.ready_on_other_thread;
    let elsewhere = s.ready.is_default() && s.ready_in_other_context;
    let captured = |capture| s.ready_capture == capture || s.requested_capture == capture;
    let host = s.request == Request::Host;
    let rows: [(bool, Deed); 19] = [
        (s.policy == SyncPolicy::None, Deed::Nothing),
        (s.request == Request::NoSync, Deed::Nothing),
        (asks_stream(Stream::None), Deed::Nothing),
        (
            s.ready == Stream::None && !(host && s.exclusive_managed),
            Deed::Nothing,
        ),
        (
            asks_stream(s.ready) && !foreign && !elsewhere,
            Deed::Nothing,
        ),
        (s.platform == Platform::Rocm, Deed::Refuse(Rule::RocmOrder)),
        (foreign, Deed::Refuse(Rule::StreamThread)),
        // The host: only where nothing is captured.
        (
            host && s.ready_capture == Capture::Active,
            Deed::Refuse(Rule::CaptureHostWait),
        ),
        (
            host && s.ready_capture == Capture::Invalidated,
            Deed::Refuse(Rule::CaptureInvalid),
        ),
        (
            host && s.ready_capture == Capture::BlocksLegacy,
            Deed::Refuse(Rule::CaptureLegacy),
        ),
        (
            host && s.exclusive_managed && s.requested_capture != Capture::Idle,
            Deed::Refuse(Rule::CaptureHostWait),
        ),
        (host && s.exclusive_managed, Deed::ContextWait),
        (host, Deed::StreamWait),
        // Two streams.
        (
            captured(Capture::Invalidated),
            Deed::Refuse(Rule::CaptureInvalid),
        ),
        (
            captured(Capture::BlocksLegacy),
            Deed::Refuse(Rule::CaptureLegacy),
        ),
        (
            s.ready_capture == Capture::Idle && s.requested_capture == Capture::Active,
            Deed::Refuse(Rule::CaptureConsumer),
        ),
        (
            s.ready_capture == Capture::Active && s.requested_capture == Capture::Idle,
            match (s.joins_back, asks_stream(Stream::LegacyDefault)) {
                (_, true) => Deed::Refuse(Rule::CaptureLegacy),
                (true, false) => Deed::Event,
                (false, false) => Deed::Refuse(Rule::CaptureProducer),
            },
        ),
        (
            captured(Capture::Active),
            if s.same_capture {
                Deed::Event
            } else {
                Deed::Refuse(Rule::CaptureOther)
            },
        ),
        (s.policy == SyncPolicy::Host, Deed::StreamWait),
    ];
    rows.into_iter()
        .find(|(applies, _)| *applies)
        .map_or(Deed::Event, |(_, deed)| deed)
}

fn deed(plan: &Plan) -> Deed {
    match plan {
        Plan::Nothing(_) => Deed::Nothing,
        Plan::Event { .. } => Deed::Event,
        Plan::HostWait {
            reason: Reason::HostReadsExclusively,
            ..
        } => Deed::ContextWait,
        Plan::HostWait { .. } => Deed::StreamWait,
        Plan::Refuse(violation) => Deed::Refuse(violation.rule()),
    }
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn every_situation_gets_the_plan_of_the_oracle() {
    let all = situations();
    assert_eq!(all.len(), 5 * 7 * 4 * 3 * 2 * 2 * 4 * 4 * 2 * 2 * 2);
    for situation in all {
        let plan = plan(&situation);
        assert_eq!(deed(&plan), oracle(&situation), "{situation:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn an_event_goes_from_the_ready_stream_to_the_requested_one() {
    for situation in situations() {
        match plan(&situation) {
            Plan::Event { record, wait, .. } => {
                assert_eq!(record, situation.ready);
                assert_eq!(Request::Stream(wait), situation.request);
                let is_other = record != wait || situation.ready_in_other_context;
                assert!(is_other, "{situation:?}");
            }
            Plan::HostWait { stream, .. } => assert_eq!(stream, situation.ready),
            Plan::Nothing(_) | Plan::Refuse(_) => {}
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn the_host_never_waits_while_a_capture_is_in_sight() {
    for situation in situations() {
        if let Plan::HostWait { .. } = plan(&situation) {
            assert_eq!(situation.ready_capture, Capture::Idle, "{situation:?}");
            let is_asked = matches!(situation.request, Request::Stream(_));
            assert!(
                !is_asked || situation.requested_capture == Capture::Idle,
                "{situation:?}"
            );
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn the_cheap_tests_agree_with_the_plan() {
    for situation in situations() {
        let plan = plan(&situation);
        let is_nothing = matches!(plan, Plan::Nothing(_));
        assert_eq!(settled(&situation).is_some(), is_nothing, "{situation:?}");
        if let Some(early) = plan_without_captures(&situation) {
            assert_eq!(early, plan, "{situation:?}");
        }
        // The cheapest one may only err towards asking again.
        let is_usual = !situation.ready_in_other_context && !situation.exclusive_managed;
        if is_usual && !situation.request.needs_order(situation.ready) {
            assert!(is_nothing, "{situation:?}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn a_capture_state_is_never_asked_for_in_vain() {
    for situation in situations() {
        let idle = Situation {
            ready_capture: Capture::Idle,
            requested_capture: Capture::Idle,
            ..situation
        };
        if plan_without_captures(&situation).is_some() {
            assert_eq!(plan(&situation), plan(&idle), "{situation:?}");
        }
    }
}

#[rstest]
#[case(HANDLE, Request::from(OTHER), true)]
#[case(HANDLE, Request::from(HANDLE), false)]
#[case(HANDLE, Request::NoSync, false)]
#[case(HANDLE, Request::Host, true)]
#[case(Stream::None, Request::Host, false)]
#[case(Stream::None, Request::from(HANDLE), false)]
#[case(Stream::LegacyDefault, LEGACY, false)]
#[case(Stream::LegacyDefault, PER_THREAD, true)]
#[case::the_thread_is_not_known(Stream::PerThreadDefault, PER_THREAD, true)]
fn needs_order(#[case] ready: Stream, #[case] request: Request, #[case] needs: bool) {
    assert_eq!(request.needs_order(ready), needs);
}

#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn every_refusal_says_what_to_do_and_names_both_streams() {
    let (mut rules, mut hints) = (Vec::new(), BTreeSet::new());
    for situation in situations() {
        let Plan::Refuse(violation) = plan(&situation) else {
            continue;
        };
        let hint = violation.hint().unwrap_or_default();
        assert!(!hint.is_empty(), "{violation}");
        hints.insert(hint.to_owned());
        let found = violation.found();
        assert!(found.contains(&situation.ready.to_string()), "{violation}");
        assert!(
            found.contains(&situation.request.to_string()),
            "{violation}"
        );
        if !rules.contains(&violation.rule()) {
            rules.push(violation.rule());
        }
    }
    assert_eq!(rules.len(), 8, "{rules:?}");
    assert_eq!(hints.len(), rules.len(), "{hints:?}");
}

#[test]
fn plans_read_as_sentences() {
    let situation = Situation::new(HANDLE, LEGACY, SyncPolicy::Event);
    assert_eq!(
        plan(&situation).to_string(),
        "the legacy default stream (1) waits for an event on stream 0x55001230: \
         the consumer works on another stream"
    );
    let host = Situation {
        request: Request::Host,
        ..situation
    };
    assert_eq!(
        plan(&host).to_string(),
        "the host waits for stream 0x55001230: the host reads the data"
    );
    let same = Situation {
        request: ON_HANDLE,
        ..situation
    };
    assert_eq!(
        plan(&same).to_string(),
        "nothing to do: the consumer works on the stream that the data is ready on"
    );
    let captured = Situation {
        requested_capture: Capture::Active,
        ..situation
    };
    let text = plan(&captured).to_string();
    assert!(
        text.starts_with("refused: argument 'stream' = the legacy default stream (1)"),
        "{text}"
    );
    assert!(text.ends_with("[capture-consumer]"), "{text}");
}
