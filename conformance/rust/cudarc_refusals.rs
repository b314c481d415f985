//! Each call of the driver refused, once and twice, in operations on memory of a context that safe code lets go of while their work
//! is pending: no call names what is gone, the caller's context is current again, and a single refusal keeps nothing for ever.

use std::env;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cai_dlpack::protocol::device::DeviceType;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{LiveStream, Owner, PresentAs};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::{CudaContext, CudaStream, result};
use cusim_control::Schedule;
use rstest::rstest;

use crate::copies::floats_of;
use crate::cudarc_edges::is_whole;
use crate::cudarc_live::Dice;
use crate::cudarc_uses::MODES;
use crate::simulator::{Machine, machine};

/// If this variable is set, each call of each operation is refused: that takes half an hour.
const REFUSALS: &str = "CAI_DLPACK_REFUSALS";
const UNKNOWN: u32 = 999;
/// How long what was let go of may take to end.
const LIMIT: Duration = Duration::from_secs(5);

/// Two contexts that are no primary ones, the streams of each, and arrays in the first.
struct World {
    /// The last one to go, as others end in it.
    last: Arc<CudaContext>,
    contexts: [Arc<CudaContext>; 2],
    here: [Arc<CudaStream>; 2],
    there: [Arc<CudaStream>; 2],
    view: CaiView,
    other: CaiView,
    token: Arc<()>,
}

/// Tells of the end of an owner.
struct Told {
    _token: Arc<()>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Start {
    kind: DeviceType,
    /// Whether the data is ready on a stream.
    is_pending: bool,
    /// Whether the other context is current, and not a primary one.
    is_there: bool,
}

impl World {
    fn new(start: Start) -> Self {
        let last = CudaContext::new(0).expect("a context");
        let contexts = [0, 1].map(|_| CudaContext::new_non_primary(0, 0).expect("a context"));
        let streams = |of: usize| [0, 1].map(|_| contexts[of].new_stream().expect("a stream"));
        let (here, there) = (streams(0), streams(1));
        let token = Arc::new(());
        let array = || {
            let memory = floats_of(start.kind, &contexts[0]);
            let described = memory.descriptor().clone();
            let owner = Owner::new((
                memory,
                Told {
                    _token: Arc::clone(&token),
                },
            ));
            // SAFETY: the same elements, which the owner keeps.
            let ready = unsafe { CaiView::new(described, Stream::None, owner) };
            match start.is_pending {
                true => {
                    let tensor = ready.to_dlpack(LiveStream::NONE).expect("a tensor");
                    CaiView::from_dlpack(tensor, &here[0]).expect("a view")
                }
                false => ready,
            }
        };
        let (view, other) = (array(), array());
        match start.is_there {
            true => contexts[1].bind_to_thread(),
            false => last.bind_to_thread(),
        }
        .expect("current");
        Self {
            last,
            contexts,
            here,
            there,
            view,
            other,
            token,
        }
    }

    /// Lets go of everything, and has the work done; returns whether all of it has ended.
    fn has_ended(self, machine: &Machine) -> bool {
        let Self {
            last,
            contexts,
            here,
            there,
            view,
            other,
            token,
        } = self;
        for context in contexts.iter().chain([&last]) {
            // A refused end has noted an error.
            let _ = context.check_err();
        }
        let left = contexts.each_ref().map(Arc::downgrade);
        let settle = || last.bind_to_thread().expect("current");
        settle();
        drop((view, other));
        settle();
        drop((here, there));
        for context in contexts {
            settle();
            drop(context);
        }
        settle();
        machine.sim.set_schedule(Schedule::Threaded);
        is_over(|| Arc::strong_count(&token) > 1 || left.iter().any(|of| of.strong_count() > 0))
    }
}

/// Waits until nothing is left; returns whether that is so.
fn is_over(is_left: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while is_left() && begun.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(1));
    }
    !is_left()
}

type Operation = fn(&mut World) -> Result<(), Error>;

// No call of cudarc's is among them, which would leave its own context current.

fn write(view: &mut CaiView, stream: &Arc<CudaStream>) -> Result<(), Error> {
    let there = view.typed_mut::<f32>()?.on(stream)?;
    let _ = there.device_ptr();
    there.finish().map(drop)
}

fn read(view: &CaiView, stream: &Arc<CudaStream>) -> Result<(), Error> {
    let there = view.typed::<f32>()?.on(stream)?;
    let _ = there.device_ptr();
    there.finish().map(drop)
}

fn write_parts(view: &mut CaiView, [one, other]: [&Arc<CudaStream>; 2]) -> Result<(), Error> {
    let (left, right) = view.typed_mut::<f32>()?.split(0, 1)?;
    let (left, right) = (left.on(one)?, right.on(other)?);
    let ended = left.finish();
    right.finish()?;
    ended.map(drop)
}

const OPERATIONS: &[(&str, Operation)] = &[
    ("to the host", |world| world.view.copy_to_host().map(drop)),
    ("copy here", |world| {
        world.view.copy_on(&world.here[1]).map(drop)
    }),
    ("copy there", |world| {
        world.view.copy_on(&world.there[0]).map(drop)
    }),
    ("copy on none", |world| {
        world.view.copy_on(LiveStream::NONE).map(drop)
    }),
    ("copy on a constant", |world| {
        world.view.copy_on(LiveStream::LEGACY_DEFAULT).map(drop)
    }),
    ("copy on a view's", |world| {
        let moved = world.other.on(&world.there[0])?;
        world.view.copy_on(moved.ready()).map(drop)
    }),
    ("copy a copy", |world| {
        let copy = world.view.copy_on(&world.there[0])?;
        copy.copy_on(copy.ready()).map(drop)
    }),
    ("copy into what was dropped", |world| {
        drop(world.view.copy_on(&world.there[0])?);
        world.view.copy_on(&world.there[0]).map(drop)
    }),
    ("copy, then write", |world| {
        drop(world.view.copy_on(&world.there[0])?);
        write(&mut world.view, &world.here[1])
    }),
    ("read here", |world| read(&world.view, &world.here[1])),
    ("read there", |world| read(&world.view, &world.there[0])),
    ("write here", |world| write(&mut world.view, &world.here[1])),
    ("write there", |world| {
        write(&mut world.view, &world.there[0])
    }),
    ("write twice", |world| {
        write(&mut world.view, &world.there[0])?;
        write(&mut world.view, &world.here[1])
    }),
    ("read, then write", |world| {
        read(&world.view, &world.there[0])?;
        write(&mut world.view, &world.here[1])
    }),
    ("write parts here", |world| {
        write_parts(&mut world.view, [&world.here[0], &world.here[1]])
    }),
    ("write parts on both", |world| {
        write_parts(&mut world.view, [&world.here[1], &world.there[0]])
    }),
    ("write parts in two captures", |world| {
        let streams = [&world.here[1], &world.there[0]];
        for stream in streams {
            // SAFETY: a stream that is alive.
            unsafe { result::stream::begin_capture(stream.cu_stream(), MODES[2]) }?;
        }
        let written = write_parts(&mut world.view, streams);
        // One may be broken by a refusal.
        let _ = streams.map(|stream| is_whole(stream));
        written
    }),
    ("consume", |world| {
        world.view.consume(&world.there[0])?.finish().map(drop)
    }),
    ("on", |world| {
        world.view.on(&world.there[0])?.on(&world.here[1]).map(drop)
    }),
    ("present", |world| {
        world
            .view
            .present_as(PresentAs::Cuda)?
            .on(&world.there[0])
            .map(drop)
    }),
    ("there and back", |world| {
        let tensor = world.view.to_dlpack(&world.there[0])?;
        CaiView::from_dlpack(tensor, &world.there[0]).map(drop)
    }),
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    ("a share", |world| {
        let shared = world.view.share()?;
        // SAFETY: this process does not end, and nothing writes the memory.
        unsafe { shared.handle().open(&world.there[0]) }.map(drop)
    }),
];

/// Runs an operation with these refusals, lets go of everything while its work is pending, and checks all that it has done.
/// Returns the calls of the operation.
fn run(
    machine: &Machine,
    (operation, start): (Operation, Start),
    refused: &[(String, u64)],
    what: &str,
) -> Vec<String> {
    let mut world = World::new(start);
    let current = result::ctx::get_current().expect("an answer");
    machine.sim.set_schedule(Schedule::Lazy);
    machine.sim.clear();
    for (call, nth) in refused {
        machine.sim.fault(call, *nth, UNKNOWN);
    }
    // Refused or not.
    let _ = operation(&mut world);
    machine.sim.clear_faults();
    let calls = machine.sim.calls();
    let is_question = |(call, _): &(String, u64)| call == "cuCtxGetCurrent";
    if refused.len() < 2 || refused.iter().all(is_question) {
        assert_eq!(result::ctx::get_current(), Ok(current), "{what}");
    }
    let has_ended = world.has_ended(machine);
    thread::sleep(Duration::from_millis(15));
    let is_gone = |code: u32| [400, 700, 709].contains(&code);
    let all = machine.sim.calls();
    let wrong = all.iter().find(|call| call.result.is_some_and(is_gone));
    assert_eq!(wrong, None, "{what}");
    assert!(has_ended || refused.len() > 1, "{what}: something stays");
    calls.iter().map(|call| call.name().to_owned()).collect()
}

/// A third of the operations is drawn, and one call of each.
#[rstest]
fn what_is_let_go_of_after_a_refusal_is_not_named(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_pending: bool,
    #[values(false, true)] is_there: bool,
) {
    let machine = machine();
    machine.log_every_thread();
    let start = Start {
        kind,
        is_pending,
        is_there,
    };
    let is_drawn = env::var_os(REFUSALS).is_none();
    let mut dice = Dice(u64::from(is_pending) + 2 * u64::from(is_there));
    for (name, operation) in OPERATIONS {
        if is_drawn && dice.below(3) > 0 {
            continue;
        }
        let run = |refused: &[(String, u64)]| {
            let what = format!("{name}, {start:?}, {refused:?}");
            run(&machine, (*operation, start), refused, &what)
        };
        let calls = run(&[]);
        let nth = |at: usize| {
            let earlier = calls[..=at].iter().filter(|call| **call == calls[at]);
            earlier.count() as u64
        };
        let refused: Vec<usize> = match is_drawn {
            true => vec![dice.below(calls.len().max(1))],
            false => (0..calls.len()).collect(),
        };
        for at in refused.into_iter().filter(|at| *at < calls.len()) {
            let call = |nth| (calls[at].clone(), nth);
            run(&[call(nth(at))]);
            run(&[call(nth(at)), call(nth(at) + 1)]);
        }
    }
}
