//! On the scripted driver, whose "other process" has the memory at an address of its own; the files and locks are real.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rstest::rstest;

use super::Handle;
use super::handle::Place;
use super::holders::{Hold, Holders};
use crate::driver::script::{Installed, Script, install};
use crate::error::Error;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::{Device, Flags};
use crate::protocol::dtype::DType;
use crate::protocol::rule::Rule;
use crate::protocol::stream::{Capture, Stream, SyncPolicy};
use crate::view::{CaiView, Owner};

const KEY: &[u8] = b"a key";
const READY: u64 = 0x51;
const MINE: u64 = 0x52;

/// A device with one allocation, a producer's stream and one of the importer's; returns also where the allocation lies: at an
/// address of its own, as the process has one list of its mappings for all tests.
fn world() -> (&'static Script, Installed, u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0x7001_0000);
    let base = NEXT.fetch_add(0x1_0000, Ordering::Relaxed);
    let script = Script::leak();
    script.primary(0, 0xc0).current(0xc0);
    script.stream(READY, 0xc0).stream(MINE, 0xc0);
    script.device_memory(base, 4096, 0, 0xc0);
    (script, install(script), base)
}

fn view(data: u64, ready: u64, dropped: &std::sync::mpsc::Sender<()>) -> CaiView {
    struct Told(std::sync::mpsc::Sender<()>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let tensor = RawTensor::new(data, Device::cuda(0), DType::F32, &[2, 3]);
    let descriptor = Descriptor::new(&tensor).expect("a tensor");
    let ready = if ready == 0 {
        Stream::None
    } else {
        Stream::from_raw(ready)
    };
    // SAFETY: no memory is read, and the script has the stream.
    unsafe { CaiView::new(descriptor, ready, Owner::new(Told(dropped.clone()))) }
}

/// As another process would.
fn open(handle: &Handle, stream: u64) -> Result<CaiView, Error> {
    // SAFETY: no memory is read, and the script has the stream.
    unsafe { handle.open_there(Stream::from_raw(stream), false) }
}

fn rule(refused: Result<impl Sized, Error>) -> Rule {
    match refused.map(drop) {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[cfg_attr(miri, ignore = "files and threads")]
fn the_importers_stream_waits_and_the_owner_stays_until_the_mapping_is_closed() {
    let (script, _installed, base) = world();
    let (dropped, owner) = std::sync::mpsc::channel();
    let shared = view(base + 0x10, READY, &dropped).share().expect("shared");
    let bytes = shared.handle().to_bytes(KEY).expect("bytes");
    let handle = Handle::from_bytes(&bytes, KEY).expect("the same key");
    assert_eq!(&handle, shared.handle());
    let recorded = script.take_calls();
    assert!(
        recorded.contains(&"cuEventRecord 0xe001 0x51".to_owned()),
        "{recorded:?}"
    );
    let opened = open(&handle, MINE).expect("opened");
    let calls = script.take_calls();
    assert!(
        calls
            .iter()
            .any(|call| call.starts_with("cuStreamWaitEvent 0x52")),
        "{calls:?}"
    );
    let there = crate::driver::script::ELSEWHERE + base + 0x10;
    assert_eq!(opened.descriptor().data(), there);
    assert_eq!(opened.ready(), Stream::from_raw(MINE));
    drop(shared);
    let again = opened.clone();
    drop(opened);
    thread::sleep(Duration::from_millis(50));
    assert_eq!((script.opened(), owner.try_recv().is_ok()), (1, false));
    drop(again);
    wait_for("the owner is released", || owner.try_recv().is_ok());
    assert_eq!(script.opened(), 0);
    // The thread that has released the owner destroys its event next.
    wait_for("the events are gone", || script.events_alive() == 0);
    assert_eq!(rule(open(&handle, MINE)), Rule::ShareEnded);
    assert_eq!(script.primary_count(0), 1);
}

/// The context that is current as a share is opened is waited for at the end, if the caller keeps it: safe code may let go of it.
#[rstest]
#[case(false)]
#[case(true)]
#[cfg_attr(miri, ignore = "files and threads")]
fn the_current_context_is_named_if_it_is_kept(#[case] is_kept: bool) {
    let (script, _installed, base) = world();
    let (dropped, owner) = std::sync::mpsc::channel();
    let shared = view(base, READY, &dropped).share().expect("shared");
    script.current(0xcc).take_calls();
    let stream = Stream::from_raw(MINE);
    // SAFETY: no memory is read, and the script has the stream and the context.
    let opened = unsafe { shared.handle().open_there(stream, is_kept) };
    drop((opened.expect("opened"), shared));
    wait_for("the owner is released", || owner.try_recv().is_ok());
    wait_for("the events are gone", || script.events_alive() == 0);
    let calls = script.take_calls();
    let named = calls.iter().filter(|call| call.ends_with(" 0xcc"));
    assert_eq!(named.count() > 0, is_kept, "{calls:?}");
}

/// A call that waits for the device would hold up other threads of the process for as long as the event is not reached: for
/// ever, if its process has died before. An event of which the driver tells nothing, asked twice, keeps nothing open.
#[rstest]
#[case(&[600, 600, 600], 4)]
#[case(&[999, 999], 2)]
#[case(&[999, 600], 3)]
#[cfg_attr(miri, ignore = "files and threads")]
fn no_thread_waits_for_the_device_before_the_event_is_reached(
    #[case] told: &[u32],
    #[case] questions: usize,
) {
    let (script, _installed, base) = world();
    let (dropped, _owner) = std::sync::mpsc::channel();
    let shared = view(base, READY, &dropped).share().expect("shared");
    let opened = open(shared.handle(), MINE).expect("opened");
    for code in told {
        script.fault("cuEventQuery", 0, *code);
    }
    script.take_calls();
    drop(opened);
    wait_for("the mapping is closed", || script.opened() == 0);
    let calls = script.take_calls();
    let waits = |call: &String| call.starts_with("cuMemAlloc") || call.starts_with("cuMemFree");
    let before = calls.iter().take_while(|call| !waits(call));
    let asked = before.filter(|call| call.starts_with("cuEventQuery"));
    assert_eq!(asked.count(), questions, "{calls:?}");
    assert!(calls.iter().any(waits), "{calls:?}");
}

#[test]
#[cfg_attr(miri, ignore = "files and threads")]
fn a_share_that_nobody_opens_ends_at_once() {
    let (script, _installed, base) = world();
    let (dropped, owner) = std::sync::mpsc::channel();
    let shared = view(base, READY, &dropped).share().expect("shared");
    assert!(owner.try_recv().is_err());
    let handle = shared.handle().clone();
    drop(shared);
    assert!(owner.try_recv().is_ok());
    assert_eq!(script.events_alive(), 0);
    assert_eq!(rule(open(&handle, MINE)), Rule::ShareEnded);
    // SAFETY: no memory is read.
    let late = unsafe { handle.open(crate::view::LiveStream::LEGACY_DEFAULT) };
    assert_eq!(rule(late), Rule::ShareEnded);
}

#[test]
#[cfg_attr(miri, ignore = "files and threads")]
fn one_allocation_is_mapped_once() {
    let (script, _installed, base) = world();
    let (dropped, owner) = std::sync::mpsc::channel();
    let shares: Vec<_> = [0, 4, 400]
        .map(|at| view(base + at, 0, &dropped).share().expect("shared"))
        .into();
    let views: Vec<_> = (0..9)
        .map(|at| open(shares[at % 3].handle(), MINE).expect("opened"))
        .collect();
    assert_eq!(
        (script.count("cuIpcOpenMemHandle"), script.opened()),
        (1, 1)
    );
    assert!(views.iter().all(|view| view.ready() == Stream::None));
    drop((views, shares));
    for _ in 0..3 {
        wait_for("three owners are released", || owner.try_recv().is_ok());
    }
    assert_eq!(
        (script.count("cuIpcCloseMemHandle"), script.opened()),
        (1, 0)
    );
}

/// The process that shares has a view of its own, by the same event.
#[test]
#[cfg_attr(miri, ignore = "files and threads")]
fn the_exporters_process_maps_nothing() {
    let (script, _installed, base) = world();
    let (dropped, owner) = std::sync::mpsc::channel();
    let shared = view(base, READY, &dropped).share().expect("shared");
    script.take_calls();
    // SAFETY: no memory is read; the script has the stream.
    let mine = unsafe { crate::view::LiveStream::new(Stream::from_raw(MINE)) };
    // SAFETY: no memory is read.
    let opened = unsafe { shared.handle().open(mine) }.expect("opened");
    assert_eq!(opened.descriptor().data(), base);
    assert_eq!(opened.ready(), Stream::from_raw(MINE));
    let calls = script.take_calls();
    assert!(
        calls.contains(&"cuStreamWaitEvent 0x52 0xe001".to_owned()),
        "{calls:?}"
    );
    assert!(
        !calls.iter().any(|call| call.starts_with("cuIpc")),
        "{calls:?}"
    );
    drop(shared);
    assert!(owner.try_recv().is_err());
    drop(opened);
    assert!(owner.try_recv().is_ok());
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn memory_is_refused_by_its_name() {
    let (script, _installed, base) = world();
    let (dropped, _) = std::sync::mpsc::channel();
    let refused = |what: &str| {
        let refused = view(base, READY, &dropped).share();
        let Err(Error::Violation(violation)) = refused else {
            panic!("{what}")
        };
        let text = violation.to_string();
        assert!(text.contains(what), "{what}: {text}");
        violation.rule()
    };
    script.device_memory(base, 4096, 0, 0);
    assert_eq!(refused("a pool that cannot be exported"), Rule::ShareMemory);
    script.exportable(1, false);
    assert_eq!(
        refused("a pool that is exported as a whole"),
        Rule::ShareMemory
    );
    script.exportable(0, true);
    assert_eq!(refused("memory without a handle"), Rule::ShareMemory);
    script.exportable(1, true);
    assert_eq!(
        refused("torch.multiprocessing sends torch's tensors of expandable_segments"),
        Rule::ShareMemory
    );
    script.device_memory(base, 4096, 0, 0xc0).managed(base);
    assert_eq!(refused("managed memory"), Rule::ShareMemory);
    script.device_memory(base, 8, 0, 0xc0);
    assert_eq!(refused(&format!("bytes {base:#x} to")), Rule::OutOfBounds);
    script.forget_pointer(base);
    assert_eq!(refused(&format!("{base:#x}")), Rule::PointerUnknown);
}

#[rstest]
#[case(Capture::Active, Rule::CaptureProducer, Rule::CaptureConsumer)]
#[case(Capture::Invalidated, Rule::CaptureInvalid, Rule::CaptureInvalid)]
#[case(Capture::BlocksLegacy, Rule::CaptureLegacy, Rule::CaptureLegacy)]
#[cfg_attr(miri, ignore = "files and threads")]
fn streams_of_captures_are_refused(
    #[case] capture: Capture,
    #[case] ready: Rule,
    #[case] waits: Rule,
) {
    let (script, _installed, base) = world();
    let (dropped, owner) = std::sync::mpsc::channel();
    script.captured(Stream::from_raw(READY), capture, 7);
    assert_eq!(rule(view(base, READY, &dropped).share()), ready);
    assert!(owner.try_recv().is_ok());
    script.captured(Stream::from_raw(READY), Capture::Idle, 0);
    script.captured(Stream::from_raw(MINE), capture, 8);
    let shared = view(base, READY, &dropped).share().expect("shared");
    assert_eq!(rule(open(shared.handle(), MINE)), waits);
    assert_eq!(script.opened(), 0);
    drop(shared);
    assert!(owner.try_recv().is_ok());
    assert_eq!((script.events_alive(), script.primary_count(0)), (0, 1));
}

/// Whatever call fails, nothing is left: no event, no mapping, no count of a context, no lock.
#[test]
#[cfg_attr(miri, ignore = "files and threads")]
fn each_call_that_fails_leaves_nothing() {
    let (script, _installed, base) = world();
    let (dropped, owner) = std::sync::mpsc::channel();
    let mut failed = 0;
    for call in [
        "cuPointerGetAttributes",
        "cuDeviceGetUuid",
        "cuIpcGetMemHandle",
        "cuIpcGetEventHandle",
        "cuEventCreate",
        "cuEventRecord",
        "cuIpcOpenMemHandle",
        "cuIpcOpenEventHandle",
        "cuStreamWaitEvent",
        "cuStreamIsCapturing",
        "cuDevicePrimaryCtxRetain",
        "cuCtxGetCurrent",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuCtxGetId",
        "cuDeviceGetCount",
        "cuThreadExchangeStreamCaptureMode",
        "cuStreamGetCtx",
    ] {
        for after in 0..12 {
            script.fault(call, after, 999);
            let both = view(base, READY, &dropped).share().and_then(|shared| {
                let opened = open(shared.handle(), MINE)?;
                Ok((shared, opened))
            });
            failed += usize::from(both.is_err());
            script.without_faults();
            drop(both);
            wait_for(&format!("{call} {after}: the owner"), || {
                owner.try_recv().is_ok()
            });
            wait_for(&format!("{call} {after}: the context"), || {
                script.primary_count(0) == 1
            });
            assert_eq!(script.opened(), 0, "{call} {after}");
            assert_eq!(script.current_now(), 0xc0, "{call} {after}");
        }
    }
    assert!(failed > 30, "{failed}");
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn arrays_without_elements_travel_as_layout_alone() {
    let (script, _installed, _) = world();
    let empty = CaiView::empty::<f32>(Device::cuda(0), [2, 0, 3]).expect("empty");
    let shared = empty.share().expect("shared");
    let opened = open(shared.handle(), MINE).expect("opened");
    assert_eq!(
        (opened.descriptor().shape(), opened.descriptor().data()),
        (&[2, 0, 3][..], 0)
    );
    assert_eq!(opened.ready(), Stream::None);
    assert_eq!(
        script.count("cuIpcGetMemHandle") + script.count("cuIpcOpenMemHandle"),
        0
    );
}

/// Layouts, types and flags come back; every byte is under the tag, and so is the key.
#[test]
#[cfg_attr(miri, ignore = "files")]
fn bytes_come_back_and_no_byte_can_be_changed() {
    let (_script, _installed, base) = world();
    let shapes: [(&[i64], &[i64]); 6] = [
        (&[], &[]),
        (&[5], &[-1]),
        (&[2, 3], &[3, 1]),
        (&[3, 2], &[1, 3]),
        (&[4, 4], &[0, 2]),
        (&[1, 2, 1, 2], &[9, 5, -7, 2]),
    ];
    let flags = [Flags::NONE, Flags::READ_ONLY, Flags::LEGACY];
    for (shape, strides) in shapes {
        for (dtype, flags) in [DType::F32, DType::F16, DType::U8].into_iter().zip(flags) {
            let tensor = RawTensor::new(base + 0x800, Device::cuda(0), dtype, shape);
            let tensor = tensor.with_elem_strides(strides).with_flags(flags);
            let descriptor = Descriptor::new(&tensor).expect("a tensor");
            // SAFETY: no memory is read.
            let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
            let shared = view.share().expect("shared");
            let opened = open(shared.handle(), MINE).expect("opened");
            let (from, to) = (view.descriptor(), opened.descriptor());
            assert_eq!(
                (from.shape(), from.elem_strides(), from.dtype()),
                (to.shape(), to.elem_strides(), to.dtype())
            );
            assert_eq!(from.access(), to.access());
            let bytes = shared.handle().to_bytes(KEY).expect("bytes");
            for at in 0..bytes.len() {
                for bit in [1, 0x80] {
                    let mut changed = bytes.clone();
                    changed[at] ^= bit;
                    let refused = Handle::from_bytes(&changed, KEY).expect_err("changed");
                    assert_eq!(refused.rule(), Rule::ShareHandle);
                }
                assert!(Handle::from_bytes(&bytes[..at], KEY).is_err());
            }
            assert!(Handle::from_bytes(&bytes, b"another").is_err());
            assert_eq!(
                Handle::from_bytes(&bytes, b"").expect_err("empty").rule(),
                Rule::ArgumentValue
            );
        }
    }
}

/// What is tagged, and is none all the same: another version, too short, too long, impossible numbers. No panic.
#[test]
#[cfg_attr(miri, ignore = "files")]
fn bytes_of_whoever_has_the_key_are_checked_too() {
    use hmac::{Hmac, KeyInit, Mac};
    let (_script, _installed, base) = world();
    let (dropped, _) = std::sync::mpsc::channel();
    let shared = view(base, READY, &dropped).share().expect("shared");
    let bytes = shared.handle().to_bytes(KEY).expect("bytes");
    let body = &bytes[..bytes.len() - 32];
    let tagged = |body: &[u8]| {
        let mac = Hmac::<sha2::Sha256>::new_from_slice(KEY).expect("a key");
        [body, &mac.chain_update(body).finalize().into_bytes()[..]].concat()
    };
    assert!(Handle::from_bytes(&tagged(body), KEY).is_ok());
    for length in 0..body.len() {
        assert!(Handle::from_bytes(&tagged(&body[..length]), KEY).is_err());
    }
    assert!(Handle::from_bytes(&tagged(&[body, &[0]].concat()), KEY).is_err());
    for at in 0..body.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = body.to_vec();
            changed[at] = value;
            if let Ok(handle) = Handle::from_bytes(&tagged(&changed), KEY) {
                // It is refused, or opened: as the script has it, in memory that is there.
                let _ = open(&handle, MINE);
            }
        }
    }
}

/// Its bytes come back, none of them may be missing, and Rust, which cannot unpickle, refuses it.
#[test]
#[cfg_attr(miri, ignore = "files")]
fn a_handle_of_a_pool_carries_what_its_library_pickles() {
    use hmac::{Hmac, KeyInit, Mac};
    let (_script, _installed, base) = world();
    let (dropped, _) = std::sync::mpsc::channel();
    let shared = view(base, READY, &dropped).share().expect("shared");
    let mut handle = shared.handle().clone();
    handle.memory = None;
    handle.pickled = Some((b"what a library has pickled".to_vec(), 24));
    let bytes = handle.to_bytes(KEY).expect("bytes");
    let read = Handle::from_bytes(&bytes, KEY).expect("the same key");
    assert_eq!(read, handle);
    let tagged = |body: &[u8]| {
        let mac = Hmac::<sha2::Sha256>::new_from_slice(KEY).expect("a key");
        [body, &mac.chain_update(body).finalize().into_bytes()[..]].concat()
    };
    let body = &bytes[..bytes.len() - 32];
    for length in 0..body.len() {
        assert!(Handle::from_bytes(&tagged(&body[..length]), KEY).is_err());
    }
    assert!(Handle::from_bytes(&tagged(&[body, &[0]].concat()), KEY).is_err());
    assert_eq!(rule(open(&read, MINE)), Rule::ShareMemory);
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn a_policy_of_no_order_makes_no_event() {
    let (script, _installed, base) = world();
    let (dropped, _) = std::sync::mpsc::channel();
    let view = view(base, READY, &dropped);
    for (policy, waits) in [(SyncPolicy::None, 0), (SyncPolicy::Host, 1)] {
        let shared = view.share_with(policy).expect("shared");
        assert_eq!(
            (
                script.count("cuEventRecord"),
                script.count("cuStreamSynchronize")
            ),
            (0, waits)
        );
        assert!(shared.handle().ready.is_none());
    }
}

/// An importer that goes on has the lock, and the exporter does not find that nobody has it: in every order.
#[test]
#[cfg_attr(miri, ignore = "files")]
fn an_importer_goes_on_only_while_the_exporter_keeps() {
    let (mut went_on, mut refused) = (0, 0);
    for round in 0..3000_u32 {
        let holders = Holders::new().expect("a file");
        let place = holders.place.clone();
        let (took, gone) = thread::scope(|scope| {
            let importer = scope.spawn(|| {
                (0..round % 50).for_each(|_| std::hint::spin_loop());
                Hold::take(&place)
            });
            (0..round % 70).for_each(|_| std::hint::spin_loop());
            holders.end().expect("written");
            let gone = holders.are_gone();
            (importer.join().expect("no panic"), gone)
        });
        went_on += u32::from(took.is_ok());
        refused += u32::from(took.is_err());
        assert!(!(took.is_ok() && gone), "round {round}");
        drop(took);
        assert!(holders.are_gone());
    }
    println!("{went_on} went on, {refused} were refused");
}

/// Numbers of files and processes come back.
#[test]
#[cfg_attr(miri, ignore = "files")]
fn what_has_come_in_the_place_of_a_share_is_none() {
    let ended = |place| rule(Hold::take(&place));
    let holders = Holders::new().expect("a file");
    let place = holders.place.clone();
    assert!(Hold::take(&place).is_ok());
    let mut other = place.clone();
    other.nonce[3] ^= 1;
    assert_eq!(ended(other), Rule::ShareEnded);
    let mut other = place.clone();
    other.started += 1;
    assert_eq!(ended(other), Rule::ShareEnded);
    let null = File::open("/dev/null").expect("a file");
    let mut other = place.clone();
    other.file = null.as_raw_fd().unsigned_abs();
    assert_eq!(ended(other), Rule::ShareEnded);
    let another = Holders::new().expect("a file");
    let mut other = place.clone();
    other.file = another.place.file;
    assert_eq!(ended(other), Rule::ShareEnded);
    drop(holders);
    assert_eq!(ended(place), Rule::ShareEnded);
}

#[rstest]
#[case::machine(|place: &mut Place| place.boot[0] ^= 1, Rule::ShareHost)]
#[case::container(|place: &mut Place| place.pid_namespace ^= 1, Rule::ShareHost)]
#[case::user(|place: &mut Place| place.user ^= 1, Rule::ShareUser)]
#[cfg_attr(miri, ignore = "files")]
fn handles_of_elsewhere_are_refused(#[case] change: fn(&mut Place), #[case] expected: Rule) {
    let mut place = Holders::new().expect("a file").place.clone();
    assert!(matches!(place.check(), Ok(true)));
    change(&mut place);
    assert_eq!(rule(place.check()), expected);
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn a_device_that_is_not_here_is_refused() {
    let (_script, _installed, base) = world();
    let (dropped, _) = std::sync::mpsc::channel();
    let shared = view(base, READY, &dropped).share().expect("shared");
    let mut handle = shared.handle().clone();
    handle.device.0[0] ^= 1;
    assert_eq!(rule(open(&handle, MINE)), Rule::ShareDevice);
}

/// No stream is named that the data could be ready on.
#[test]
#[cfg_attr(miri, ignore = "files and threads")]
fn an_importer_without_a_stream_is_refused_and_takes_nothing() {
    let (script, _installed, base) = world();
    let (dropped, owner) = std::sync::mpsc::channel();
    let shared = view(base, READY, &dropped).share().expect("shared");
    // SAFETY: no memory is read.
    let opened = unsafe { shared.handle().open_there(Stream::None, false) };
    assert_eq!(rule(opened), Rule::StreamNone);
    assert_eq!(script.opened(), 0);
    drop(shared);
    assert!(owner.try_recv().is_ok());
}

/// A debugger shows neither the key of a handle nor the driver's secrets in it.
#[test]
#[cfg_attr(miri, ignore = "files and threads")]
fn a_share_and_its_handle_show_what_they_are_of() {
    let (_script, _installed, base) = world();
    let (dropped, _owner) = std::sync::mpsc::channel();
    let shared = view(base, 0, &dropped).share().expect("shared");
    let handle = format!("{:?}", shared.handle());
    let process = std::process::id();
    assert_eq!(
        handle,
        format!("Handle {{ process: {process}, shape: [2, 3], .. }}")
    );
    assert_eq!(
        format!("{shared:?}"),
        format!("Shared {{ handle: {handle}, .. }}")
    );
}

/// Nothing is left of an opened share if any one call of its end is refused once.
#[test]
#[cfg_attr(miri, ignore = "makes files and starts threads")]
fn an_end_that_is_refused_once_leaves_nothing() {
    const CALLS: [&str; 9] = [
        "cuDevicePrimaryCtxRetain",
        "cuCtxGetCurrent",
        "cuCtxPushCurrent",
        "cuCtxGetId",
        "cuCtxPopCurrent",
        "cuDevicePrimaryCtxGetState",
        "cuThreadExchangeStreamCaptureMode",
        "cuCtxGetDevice",
        "cuDeviceGetCount",
    ];
    let cases = CALLS
        .iter()
        .flat_map(|call| (0..5).map(move |after| (*call, after)));
    for (call, after) in cases {
        let (script, _installed, base) = world();
        let (dropped, _owner) = std::sync::mpsc::channel();
        let shared = view(base, READY, &dropped).share().expect("shared");
        let opened = open(shared.handle(), MINE).expect("opened");
        script.fault(call, after, 999);
        drop(opened);
        wait_for(&format!("{call} {after}"), || {
            (script.opened(), script.primary_count(0)) == (0, 1)
        });
        script.without_faults();
        drop(shared);
    }
}

/// Nor is anything left of a share that no other process opens: its event is destroyed in its context.
#[test]
#[cfg_attr(miri, ignore = "makes files and starts threads")]
fn a_share_whose_end_is_refused_once_leaves_no_event() {
    let calls = ["cuCtxGetId", "cuCtxGetCurrent", "cuCtxPushCurrent"];
    let cases = calls
        .iter()
        .flat_map(|call| (0..3).map(move |after| (*call, after)));
    for (call, after) in cases {
        let (script, _installed, base) = world();
        let (dropped, _owner) = std::sync::mpsc::channel();
        let shared = view(base, READY, &dropped).share().expect("shared");
        assert_eq!(script.events_alive(), 1);
        script.fault(call, after, 999);
        drop(shared);
        wait_for(&format!("{call} {after}"), || script.events_alive() == 0);
        script.without_faults();
    }
}
