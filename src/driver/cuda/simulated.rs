//! The real loader and the real order on the simulated driver: what the scripted one cannot show,
//! that data is really there when a consumer reads it.

use super::simulator::{
    begin_capture, calls, destroy, destroy_if_alive, end_capture, fault, in_every_order, managed,
    names, peek, pinned, poke, pooled, primary, reset, run_on_it, set, sim_gate, sim_live_events,
    sim_log_clear, sim_open, simulator, store, stream,
};
use crate::driver::order::Done;
use crate::driver::{
    Back, Context, CopyPlan, Defaults, Driver, Joined, MemoryKind, Place, PrivateStream,
    copy_strided, join, order, order_within, synchronize,
};
use crate::error::Error;
use crate::protocol::rule::Rule;
use crate::protocol::stream::{Capture, Reason, Request, Stream, SyncPolicy};

/// How many tests are below: one that is not found is not silently left out.
const CASES: usize = 21;
/// How many of them choose the order of work themselves, which only the lazy schedule lets them.
const ENUMERATED: usize = 2;

#[test]
fn on_the_simulated_driver_with_threads() {
    let passed = run_on_it("driver::cuda::simulated", "order_of_the_queues", "threaded");
    assert_eq!(passed, CASES - ENUMERATED);
}

#[test]
fn on_the_simulated_driver_lazily() {
    assert_eq!(
        run_on_it("driver::cuda::simulated", "nothing", "lazy"),
        CASES
    );
}

const OLD: [u8; 4] = [9; 4];
const NEW: [u8; 4] = [1, 2, 3, 4];

/// Two devices; streams and memory of either; device 0 current; an empty log.
struct World {
    driver: &'static dyn Driver,
    contexts: [Context; 2],
    /// Non-blocking streams of device 0 and of device 1.
    a: Stream,
    b: Stream,
    c: Stream,
    d: Stream,
    /// Memory of device 0.
    array: u64,
    target: u64,
}

impl World {
    fn new() -> World {
        let driver = simulator();
        let contexts = [primary(0), primary(1)];
        driver
            .set_current_context(Some(contexts[1]))
            .expect("device 1");
        let (b, d) = (stream(false), stream(false));
        driver
            .set_current_context(Some(contexts[0]))
            .expect("device 0");
        let (a, c) = (stream(false), stream(false));
        let array = driver.alloc(4).expect("memory");
        let target = driver.alloc(4).expect("memory");
        sim_log_clear();
        World {
            driver,
            contexts,
            a,
            b,
            c,
            d,
            array,
            target,
        }
    }

    fn place(&self) -> Place {
        Place::cuda(0, self.array)
    }

    fn current(&self, context: Option<Context>) {
        self.driver.set_current_context(context).expect("a context");
    }

    fn order(&self, ready: Stream, requested: Stream) -> Result<Done, Error> {
        order(
            self.driver,
            ready,
            requested.into(),
            &self.place(),
            SyncPolicy::Event,
        )
    }

    /// Writes on `ready` behind a closed gate, lets `between` order, copies on `requested`, lets
    /// `early` have a look, and opens the gate; what the copy saw.
    fn seen(
        &self,
        (ready, requested): (Stream, Stream),
        between: impl FnOnce(),
        early: impl FnOnce(),
    ) -> [u8; 4] {
        self.current(Some(self.contexts[0]));
        poke(self.array, &OLD);
        poke(self.target, &[0; 4]);
        let gate = sim_gate(ready.raw());
        store(ready, self.array, &NEW);
        between();
        self.current(Some(self.contexts[0]));
        // SAFETY: four bytes at both ends, which live as long as the simulator.
        unsafe {
            self.driver
                .copy_async(self.target, self.array, 4, requested)
        }
        .expect("a copy");
        early();
        assert_eq!(sim_open(gate), 0);
        self.driver
            .stream_synchronize(requested)
            .expect("the consumer's work");
        peek(self.target)
    }
}

/// Time for a copy that does not wait to go first. Too short a time hides a fault and invents none;
/// the lazy schedule needs none.
fn chance() {
    if !is_lazy() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

impl Drop for World {
    /// Streams that stay would slow down every later test; some tests have destroyed one already.
    fn drop(&mut self) {
        for stream in [self.a, self.b, self.c, self.d] {
            destroy_if_alive(stream);
        }
    }
}

fn is_lazy() -> bool {
    std::env::var("CUSIM_SCHEDULE").is_ok_and(|schedule| schedule == "lazy")
}

fn rule<T: std::fmt::Debug>(result: Result<T, Error>) -> Rule {
    match result {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("not refused by a rule: {other:?}"),
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> (&'static str, Option<u32>) {
    match result {
        Err(Error::Driver(error)) => (error.call(), error.code()),
        other => panic!("no driver error: {other:?}"),
    }
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn every_function_is_there_and_two_devices() {
    let world = World::new();
    assert_eq!(world.driver.device_count(), Ok(2));
    assert_eq!(world.driver.current_context(), Ok(Some(world.contexts[0])));
    assert_eq!(world.driver.stream_context(world.d), Ok(world.contexts[1]));
    let [first, second] = world
        .contexts
        .map(|context| world.driver.context_id(context));
    assert_ne!(first.expect("an id"), second.expect("an id"));
    assert_eq!(world.driver.primary_context_active(1), Ok(true));
    assert!(world.driver.primary_context_active(99).is_err());
    let shared = [0, 1].map(|ordinal| world.driver.concurrent_managed_access(ordinal));
    assert_eq!(shared, [Ok(true), Ok(true)]);
    assert!(world.driver.concurrent_managed_access(99).is_err());
    assert_eq!(world.driver.exclusive_devices(), Ok(Vec::new()));
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn kinds_of_memory_by_one_call() {
    let world = World::new();
    let host = 7_u32;
    let pooled = pooled(64, world.a);
    world.current(Some(world.contexts[1]));
    let far = world.driver.alloc(64).expect("memory");
    world.current(Some(world.contexts[0]));
    let rows = [
        (world.array, MemoryKind::Device, 0, Some((world.array, 4))),
        (pooled + 8, MemoryKind::Device, 0, Some((pooled, 64))),
        (far + 16, MemoryKind::Device, 1, Some((far, 64))),
        (managed(32), MemoryKind::Managed, 0, None),
        (pinned(32), MemoryKind::Pinned, 0, None),
        (
            (&raw const host).addr() as u64,
            MemoryKind::Unknown,
            -2,
            None,
        ),
    ];
    for (pointer, kind, ordinal, range) in rows {
        sim_log_clear();
        let info = world.driver.pointer_info(pointer, true).expect("a query");
        assert_eq!(names(), ["cuPointerGetAttributes"]);
        assert_eq!((info.kind, info.ordinal), (kind, ordinal));
        assert_eq!(info.mapped, kind != MemoryKind::Unknown);
        if range.is_some() {
            assert_eq!((info.range, info.device_pointer), (range, pointer));
        }
        let short = world.driver.pointer_info(pointer, false).expect("a query");
        assert_eq!(short.range, None);
    }
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn without_an_order_the_consumer_reads_too_early() {
    let world = World::new();
    let consumer_runs = || {
        world
            .driver
            .stream_synchronize(world.c)
            .expect("it waits for nobody")
    };
    let bytes = world.seen((world.a, world.c), || (), consumer_runs);
    assert_eq!(bytes, OLD, "or these tests prove nothing");
}

/// Every pair of streams, with either device current and with none.
#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn with_an_order_the_consumer_reads_what_was_written() {
    let world = World::new();
    let (legacy, per_thread) = (Stream::LegacyDefault, Stream::PerThreadDefault);
    for ready in [legacy, per_thread, world.a, world.b] {
        for requested in [legacy, per_thread, world.c, world.d] {
            for current in [Some(world.contexts[0]), Some(world.contexts[1]), None] {
                let ordered = || {
                    world.current(current);
                    world.order(ready, requested).expect("an order");
                    assert_eq!(world.driver.current_context(), Ok(current));
                };
                let bytes = world.seen((ready, requested), ordered, chance);
                assert_eq!(bytes, NEW, "{ready} -> {requested}");
            }
        }
    }
}

const LATER: [u8; 4] = [7; 4];

/// Which of the two edges a program has.
#[derive(Copy, Clone)]
struct Edges {
    forward: bool,
    back: bool,
}

impl World {
    /// The producer writes on `ready`, the consumer reads on `requested`, the producer writes
    /// again; what the consumer saw, in every order of the queues.
    fn seen_in_every_order(
        &self,
        (ready, requested): (Stream, Stream),
        edges: Edges,
        policy: SyncPolicy,
        eagerly: bool,
    ) -> Vec<[u8; 4]> {
        let order = |from: Stream, to: Stream| {
            order(self.driver, from, to.into(), &self.place(), policy).expect("an order")
        };
        in_every_order(eagerly, || {
            poke(self.array, &OLD);
            store(ready, self.array, &NEW);
            if edges.forward {
                order(ready, requested);
            }
            // SAFETY: four bytes at both ends, which live as long as the simulator.
            unsafe {
                self.driver
                    .copy_async(self.target, self.array, 4, requested)
            }
            .expect("a copy");
            if edges.back {
                order(requested, ready);
            }
            store(ready, self.array, &LATER);
            for stream in [requested, ready] {
                self.driver.stream_synchronize(stream).expect("the end");
            }
            peek(self.target)
        })
    }
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn with_both_edges_every_order_of_the_queues_is_right() {
    let world = World::new();
    let edges = Edges {
        forward: true,
        back: true,
    };
    let check = |pair, policy, eagerly| {
        let seen = world.seen_in_every_order(pair, edges, policy, eagerly);
        assert!(seen.iter().all(|bytes| *bytes == NEW), "{pair:?}: {seen:?}");
        seen.len()
    };
    let (legacy, per_thread) = (Stream::LegacyDefault, Stream::PerThreadDefault);
    let streams = [legacy, per_thread, world.a, world.b, world.c, world.d];
    for ready in streams {
        for requested in streams {
            for policy in [SyncPolicy::Event, SyncPolicy::Host] {
                check((ready, requested), policy, false);
            }
        }
    }
    let eager = check((world.a, world.c), SyncPolicy::Event, true);
    assert!(eager > 100, "the orders are really enumerated: {eager}");
}

/// Each edge is there for a reason that these orders can see.
#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn without_an_edge_some_order_of_the_queues_is_wrong() {
    let world = World::new();
    for (edges, wrong) in [
        (
            Edges {
                forward: false,
                back: true,
            },
            OLD,
        ),
        (
            Edges {
                forward: true,
                back: false,
            },
            LATER,
        ),
    ] {
        for pair in [
            (world.a, world.c),
            (world.b, world.c),
            (Stream::LegacyDefault, world.a),
        ] {
            let seen = world.seen_in_every_order(pair, edges, SyncPolicy::Event, true);
            assert!(seen.contains(&wrong), "{pair:?}: {seen:?}");
            assert!(seen.contains(&NEW), "{pair:?}: {seen:?}");
        }
    }
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn an_order_is_these_calls() {
    let world = World::new();
    world.order(world.a, world.c).expect("fills the pool");
    sim_log_clear();
    world.order(world.a, world.c).expect("an order");
    assert_eq!(
        names(),
        [
            "cuCtxGetCurrent",
            "cuStreamGetCtx",
            "cuStreamIsCapturing",
            "cuStreamIsCapturing",
            "cuCtxGetId",
            "cuEventRecord",
            "cuStreamWaitEvent",
        ]
    );
    let text = calls();
    assert!(
        text[5].contains(&format!("stream={:#x}", world.a.raw())),
        "{text:?}"
    );
    assert!(
        text[6].contains(&format!("stream={:#x}", world.c.raw())),
        "{text:?}"
    );
    sim_log_clear();
    world.order(world.a, world.a).expect("nothing");
    world.order(Stream::None, world.a).expect("nothing");
    assert_eq!(names(), [""; 0]);
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn the_host_reads_what_was_written() {
    let world = World::new();
    store(world.b, world.array, &NEW);
    world.current(None);
    synchronize(world.driver, world.b, &world.place()).expect("a host wait");
    assert_eq!(peek(world.array), NEW);
    assert_eq!(world.driver.current_context(), Ok(None));
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn joined_streams_are_all_waited_for() {
    let world = World::new();
    let mut streams = Joined::default();
    for stream in [world.a, world.b, world.a] {
        streams.array(stream, world.place());
    }
    let joined = || assert_eq!(join(world.driver, &streams, world.c).ok(), Some(2));
    assert_eq!(world.seen((world.b, world.c), joined, chance), NEW);
}

/// The refusals, each beside a capture that must survive it.
#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn a_capture_survives_every_refusal() {
    let world = World::new();
    begin_capture(world.a);
    assert_eq!(rule(world.order(world.a, world.c)), Rule::CaptureProducer);
    assert_eq!(rule(world.order(world.c, world.a)), Rule::CaptureConsumer);
    assert_eq!(
        rule(world.order(world.a, Stream::LegacyDefault)),
        Rule::CaptureLegacy
    );
    let host = synchronize(world.driver, world.a, &world.place());
    assert_eq!(rule(host), Rule::CaptureHostWait);
    assert_eq!(world.driver.capture(world.a), Ok(Capture::Active));
    begin_capture(world.c);
    assert_eq!(rule(world.order(world.a, world.c)), Rule::CaptureOther);
    end_capture(world.c);
    end_capture(world.a);
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn a_capture_that_is_broken_is_refused_as_one() {
    let world = World::new();
    begin_capture(world.a);
    assert!(world.driver.stream_synchronize(world.a).is_err());
    assert_eq!(world.driver.capture(world.a), Ok(Capture::Invalidated));
    assert_eq!(rule(world.order(world.a, world.c)), Rule::CaptureInvalid);
    assert_eq!(rule(world.order(world.c, world.a)), Rule::CaptureInvalid);
    let host = synchronize(world.driver, world.a, &world.place());
    assert_eq!(rule(host), Rule::CaptureInvalid);
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn the_legacy_stream_beside_a_blocking_capture() {
    let world = World::new();
    let blocking = stream(true);
    begin_capture(blocking);
    assert_eq!(
        world.driver.capture(Stream::LegacyDefault),
        Ok(Capture::BlocksLegacy)
    );
    assert_eq!(
        rule(world.order(Stream::LegacyDefault, world.a)),
        Rule::CaptureLegacy
    );
    assert_eq!(
        rule(world.order(world.a, Stream::LegacyDefault)),
        Rule::CaptureLegacy
    );
    let host = synchronize(world.driver, Stream::LegacyDefault, &world.place());
    assert_eq!(rule(host), Rule::CaptureLegacy);
    end_capture(blocking);
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn a_loan_inside_a_capture_comes_back() {
    let world = World::new();
    begin_capture(world.a);
    let request = Request::Stream(world.c);
    let there = order_within(
        world.driver,
        world.a,
        request,
        Some(Back {
            stream: world.a,
            whose: Defaults::OfMemory,
        }),
        &world.place(),
        SyncPolicy::Event,
    );
    assert!(matches!(
        there,
        Ok(Done::InGraph(Reason::ForkFromCapture, _))
    ));
    store(world.c, world.array, &NEW);
    let back = world.order(world.c, world.a);
    assert!(matches!(back, Ok(Done::InGraph(Reason::SameCapture, _))));
    end_capture(world.a);
    assert_eq!(world.driver.capture(world.c), Ok(Capture::Idle));
    world
        .order(world.a, world.c)
        .expect("the pooled event serves outside again");
}

/// Streams of ours beyond those that are kept are destroyed, and may be: each is another one, and idle.
#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn streams_beyond_those_that_are_kept_are_destroyed() {
    let world = World::new();
    let driver = world.driver;
    let taken = || PrivateStream::new(driver).expect("a stream");
    let many: Vec<_> = (0..12).map(|_| taken()).collect();
    let handles: Vec<_> = many.iter().map(PrivateStream::stream).collect();
    drop(many);
    let is_alive = |stream: &&Stream| driver.capture(**stream) == Ok(Capture::Idle);
    let kept = handles.iter().filter(is_alive).count();
    assert!((1..handles.len()).contains(&kept), "{kept}");
    assert!(handles.contains(&taken().stream()), "one that was kept");
    driver.set_current_context(None).expect("no context");
    assert_eq!(
        code(PrivateStream::new(driver).map(drop).map_err(Error::from)),
        ("cuCtxGetCurrent", Some(201))
    );
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn a_destroyed_stream_is_a_driver_error() {
    let world = World::new();
    destroy(world.a);
    world.current(Some(world.contexts[1]));
    assert_eq!(
        code(world.order(world.a, world.c)),
        ("cuStreamGetCtx", Some(400))
    );
    assert_eq!(
        code(world.order(world.c, world.a)),
        ("cuStreamIsCapturing", Some(400))
    );
    assert_eq!(world.driver.current_context(), Ok(Some(world.contexts[1])));
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn a_failing_call_leaves_context_and_events_as_they_were() {
    // The first order of a context creates its event, and destroys it when the record fails.
    World::new().current(None);
    reset(0);
    let world = World::new();
    let events = sim_live_events();
    fault(c"cuEventRecord", 1, 2);
    assert_eq!(
        code(world.order(world.a, world.c)),
        ("cuEventRecord", Some(2))
    );
    assert_eq!(sim_live_events(), events);

    world.order(world.a, world.c).expect("fills the pool");
    world.current(Some(world.contexts[1]));
    for call in [
        c"cuEventRecord",
        c"cuStreamWaitEvent",
        c"cuStreamIsCapturing",
        c"cuCtxGetId",
    ] {
        let events = sim_live_events();
        fault(call, 1, 2);
        let failed = code(world.order(world.a, world.c));
        assert_eq!(failed, (call.to_str().expect("ASCII"), Some(2)));
        assert_eq!(world.driver.current_context(), Ok(Some(world.contexts[1])));
        assert_eq!(sim_live_events(), events);
    }
    world
        .order(world.a, world.c)
        .expect("and the next one works");
}

/// A context dies with its events; its handle may come back as another context.
#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn a_dead_contexts_events_are_not_used_again() {
    set(c"reuse", 1);
    for _ in 0..3 {
        let world = World::new();
        world.order(world.a, world.c).expect("fills the pool");
        world.current(None);
        reset(0);
        let world = World::new();
        sim_log_clear();
        world
            .order(world.a, world.c)
            .expect("an order in the new context");
        let count = |call: &str| names().iter().filter(|name| *name == call).count();
        let made = (count("cuEventCreate"), count("cuEventRecord"));
        assert_eq!(made, (1, 1), "a new event, and no attempt with a dead one");
        assert!(!names().contains(&"cuEventDestroy_v2".to_owned()));
    }
    set(c"reuse", 0);
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn threads_order_at_the_same_time() {
    let world = World::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let world = &world;
            scope.spawn(move || {
                let home = world.contexts[thread % 2];
                world.current(Some(home));
                for round in 0..500 {
                    let (ready, requested) = match (thread + round) % 3 {
                        0 => (world.a, world.c),
                        1 => (world.b, world.a),
                        _ => (world.c, world.d),
                    };
                    world.order(ready, requested).expect("an order");
                    assert_eq!(world.driver.current_context(), Ok(Some(home)));
                }
            });
        }
    });
    assert!(
        sim_live_events() <= 64,
        "a few events for 2000 orders: {}",
        sim_live_events()
    );
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn a_matrix_upside_down_is_copied_row_major() {
    let world = World::new();
    let source: Vec<u8> = (0..12).collect();
    let from = world.driver.alloc(12).expect("memory");
    let to = world.driver.alloc(12).expect("memory");
    poke(from, &source);
    // Upside down: the first row is the last one in memory. (The simulator copies no rectangles.)
    let plan = CopyPlan::new(&[3, 4], &[-4, 1], 1).expect("not empty");
    // SAFETY: twelve bytes at both ends.
    unsafe { copy_strided(world.driver, &plan, to, from + 8, world.a) }.expect("the copies");
    world
        .driver
        .stream_synchronize(world.a)
        .expect("the copies are done");
    assert_eq!(peek(to), [8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3]);
    // SAFETY: its own allocation, which nothing uses any more.
    unsafe { world.driver.free(from) }.expect("a free");
    // SAFETY: its own allocation, which nothing uses any more.
    unsafe { world.driver.free(to) }.expect("a free");
}

#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn each_stream_has_a_number_of_its_own() {
    let world = World::new();
    let numbers =
        [world.a, world.c, world.a].map(|stream| world.driver.stream_id(stream).expect("a number"));
    assert_eq!(numbers[0], numbers[2]);
    assert_ne!(numbers[0], numbers[1]);
}

/// The last release ends a primary context.
#[test]
#[ignore = "run by on_the_simulated_driver_*"]
fn what_is_retained_is_given_back() {
    let driver = simulator();
    let is_active = || driver.primary_context_active(1).expect("an answer");
    let before = is_active();
    driver.primary_context_retain(1).expect("a context");
    assert!(is_active());
    driver.primary_context_release(1).expect("given back");
    assert_eq!(is_active(), before);
}
