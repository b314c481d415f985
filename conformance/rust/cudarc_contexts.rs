//! Default streams are of a context: what is made with one keeps it, or is refused, and a number that means another one is.

use std::ptr;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cai_dlpack::protocol::device::DeviceType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
#[cfg(all(feature = "ipc", target_os = "linux"))]
use cai_dlpack::share::Shared;
use cai_dlpack::view::{ConsumeGuard, DlpackTensor, IntoLiveStream, LiveStream, Owner, PresentAs};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use cusim_control::{Call, Schedule};
use rstest::rstest;

use crate::arrays::array;
use crate::copies::{floats_of, settled_allocations};
use crate::cudarc_edges::is_whole;
use crate::cudarc_live::Dice;
use crate::cudarc_uses::{MODES, begin};
use crate::simulator::{Machine, Steered, eventually, machine, number};

const KINDS: [DeviceType; 3] = [
    DeviceType::CUDA,
    DeviceType::CUDA_HOST,
    DeviceType::CUDA_MANAGED,
];

fn context(is_primary: bool) -> Arc<CudaContext> {
    let made = match is_primary {
        true => CudaContext::new(0),
        false => CudaContext::new_non_primary(0, 0),
    };
    made.expect("a context")
}

/// Two floats, ready on a stream of the memory's context.
fn pending(kind: DeviceType, home: &Arc<CudaContext>) -> CaiView {
    let (ready, stream) = (floats_of(kind, home), home.new_stream().expect("a stream"));
    let tensor = ready.to_dlpack(LiveStream::NONE).expect("a tensor");
    CaiView::from_dlpack(tensor, &stream).expect("a view")
}

fn refused<T>(answer: &Result<T, Error>) -> Option<Rule> {
    match answer {
        Ok(_) => None,
        Err(Error::Violation(violation)) => Some(violation.rule()),
        Err(other) => panic!("{other}"),
    }
}

/// No call has named a context, a stream or memory that is gone.
pub(crate) fn check_alive(machine: &Machine, of: &str) {
    check(machine, &[400, 700, 709], of);
}

fn check(machine: &Machine, codes: &[u32], of: &str) {
    let is_wrong = |code: u32| codes.contains(&code);
    let mut calls = machine.sim.calls().into_iter();
    let wrong = calls.find(|call| call.result.is_some_and(is_wrong));
    assert_eq!(wrong, None, "{of}");
    machine.sim.clear();
}

/// Views and guards that a constant has made, used after all contexts but one were let go of.
#[rstest]
fn a_constant_keeps_its_context_or_is_refused(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values("of the memory", "primary", "another one")] current: &str,
    #[values(LiveStream::LEGACY_DEFAULT, LiveStream::PER_THREAD_DEFAULT)] named: LiveStream<'_>,
    #[values("on", "consume", "from_dlpack")] made_by: &str,
) {
    let machine = machine();
    machine.log_every_thread();
    let home = context(false);
    let view = pending(kind, &home);
    let other = match current {
        "of the memory" => Arc::clone(&home),
        _ => context(current == "primary"),
    };
    other.bind_to_thread().expect("current");
    machine.sim.clear();
    let is_refused = kind != DeviceType::CUDA && current == "another one";
    let expected = is_refused.then_some(Rule::StreamContext);
    let (mut guard, mut moved) = (None, None);
    match made_by {
        "on" => moved = Some(view.on(named)),
        "consume" => guard = Some(view.consume(named)),
        _ => {
            let tensor = view.to_dlpack(LiveStream::NONE).expect("a tensor");
            moved = Some(CaiView::from_dlpack(tensor, named));
        }
    }
    let answer = moved
        .as_ref()
        .and_then(refused)
        .or(guard.as_ref().and_then(refused));
    assert_eq!(answer, expected);
    let asked = machine.sim.calls();
    if is_refused {
        let order = ["cuEventRecord", "cuStreamWaitEvent"];
        assert!(!asked.iter().any(|call| order.contains(&call.name())));
        let current = CudaContext::new(0).and_then(|primary| primary.bind_to_thread());
        return current.expect("current");
    }
    let whose = Arc::downgrade(&other);
    let last = context(true);
    last.bind_to_thread().expect("current");
    if current != "primary" {
        drop((home, other));
    }
    let to = last.new_stream().expect("a stream");
    if let Some(Ok(moved)) = &moved {
        moved.on(&to).expect("an order");
        assert_eq!(moved.ready(), named);
    }
    if let Some(Ok(guard)) = guard {
        guard.view().on(&to).expect("an order");
        guard.finish().expect("the way back");
    }
    check_alive(&machine, "all are alive");
    drop((view, moved, to, last));
    if current != "primary" {
        eventually("all are let go of", || whose.strong_count() == 0);
    }
}

/// The primary context alone is held by what names its default stream: it goes with that.
#[rstest]
fn a_primary_context_goes_with_what_names_its_default_stream(
    #[values(DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
) {
    let machine = machine();
    machine.log_every_thread();
    let (home, primary) = (context(false), context(true));
    let view = pending(kind, &home);
    primary.bind_to_thread().expect("current");
    let count = |call| machine.sim.count(&format!("cuDevicePrimaryCtx{call}"));
    machine.sim.clear();
    let moved = view.on(LiveStream::LEGACY_DEFAULT).expect("an order");
    assert_eq!(count("Retain"), count("Release") + 1);
    let derived = moved.clone();
    drop(moved);
    assert_eq!(count("Retain"), count("Release") + 1);
    drop(derived);
    assert_eq!(count("Retain"), count("Release"));
    // That of the memory needs no other keeper, and a call that remembers none neither.
    home.bind_to_thread().expect("current");
    machine.sim.clear();
    drop(view.on(LiveStream::LEGACY_DEFAULT).expect("an order"));
    primary.bind_to_thread().expect("current");
    drop(
        view.to_dlpack(LiveStream::LEGACY_DEFAULT)
            .expect("a tensor"),
    );
    assert_eq!(count("Retain"), count("Release"));
}

/// A context that another thread has destroyed stays current: it is not named for its default stream, nor is that taken for ready.
/// Memory of the device has that of its own context, whatever is current.
#[rstest]
fn a_constant_of_a_context_that_is_gone_is_refused(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(LiveStream::LEGACY_DEFAULT, LiveStream::PER_THREAD_DEFAULT)] named: LiveStream<'_>,
    #[values("a handle", "the other context's", "its own")] ready_on: &str,
) {
    let machine = machine();
    machine.sim.answers_for_destroyed_contexts();
    let (home, gone) = (context(true), context(false));
    let (mut view, memory) = (pending(kind, &home), floats_of(kind, &home));
    if ready_on == "the other context's" {
        view = view.on(named).expect("an order");
    }
    gone.bind_to_thread().expect("current");
    if ready_on == "its own" {
        // An owner that does not keep what it has promised: the simulator tells.
        view = owned(&memory, named.number()).0;
    }
    let handle = gone.cu_ctx().addr() as u64;
    thread::spawn(move || drop(gone)).join().expect("destroyed");
    machine.sim.clear();
    assert_eq!(view.to_dlpack(named).is_err(), kind != DeviceType::CUDA);
    let names = |call: &Call| call.arguments.iter().any(|(_, given)| *given == handle);
    assert_eq!(machine.sim.calls().into_iter().find(names), None);
    home.bind_to_thread().expect("current");
}

/// A default stream of one view is passed by its number, which may mean another one to another view.
#[rstest]
fn a_default_stream_of_a_view_is_that_one_or_is_refused(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST)] kind: DeviceType,
    #[values(LiveStream::LEGACY_DEFAULT, LiveStream::PER_THREAD_DEFAULT)] named: LiveStream<'_>,
    #[values("there", "elsewhere", "another thread")] used: &str,
) {
    let machine = machine();
    let (home, other) = (context(false), context(true));
    let at_home = pending(kind, &home).on(named).expect("an order");
    let view = match used {
        "there" | "another thread" => pending(kind, &home),
        _ => pending(kind, &other),
    };
    let try_all = || {
        let ready = at_home.ready();
        let tensor = view.to_dlpack(LiveStream::NONE).expect("a tensor");
        [
            refused(&view.on(ready)),
            refused(&view.consume(ready)),
            refused(&view.to_dlpack(ready)),
            refused(&view.copy_on(ready)),
            refused(&CaiView::from_dlpack(tensor, ready)),
        ]
    };
    let found = match used {
        "another thread" => thread::scope(|scope| {
            let there = scope.spawn(|| {
                home.bind_to_thread().expect("current");
                try_all()
            });
            there.join().expect("no panic")
        }),
        _ => try_all(),
    };
    let expected = match (used, named.number()) {
        ("elsewhere", _) => Some(Rule::StreamContext),
        ("another thread", Stream::PerThreadDefault) => Some(Rule::StreamThread),
        _ => None,
    };
    assert_eq!(found, [expected; 5]);
    other.bind_to_thread().expect("current");
    drop(machine);
}

/// A driver that does not tell whose a default stream is has not said that it is this one.
#[rstest]
fn no_answer_makes_no_default_stream_this_one(
    #[values("cuPointerGetAttributes", "cuCtxGetCurrent")] call: &str,
    #[values(999, 201, 709)] code: u32,
    #[values(1, 2, 3)] nth: u64,
    #[values(false, true)] is_import: bool,
) {
    let machine = machine();
    let (home, other) = (context(false), context(true));
    let named = pending(DeviceType::CUDA, &home).on(LiveStream::LEGACY_DEFAULT);
    let named = named.expect("an order");
    let view = pending(DeviceType::CUDA, &other);
    let tensor = view.to_dlpack(LiveStream::NONE).expect("a tensor");
    machine.sim.fault(call, nth, code);
    machine.sim.fault(call, nth + 1, code);
    let answer = match is_import {
        true => CaiView::from_dlpack(tensor, named.ready()),
        false => view.on(named.ready()),
    };
    machine.sim.clear_faults();
    assert!(answer.is_err());
    other.bind_to_thread().expect("current");
    drop((named, home));
    other.bind_to_thread().expect("current");
}

/// A copy whose making a driver has refused ends in contexts that are there, too.
#[rstest]
fn a_refused_copy_keeps_its_contexts_until_its_end(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_primary: bool,
    #[values("1", "a handle", "none")] on: &str,
) {
    let machine = machine();
    machine.log_every_thread();
    let last = context(!is_primary);
    let copy = |fault: Option<&(String, u64)>| {
        let home = context(is_primary);
        let (view, stream) = (pending(kind, &home), home.new_stream().expect("a stream"));
        machine.sim.clear();
        if let Some((name, nth)) = fault {
            machine.sim.fault(name, *nth, 999);
        }
        let copy = view.copy_on(match on {
            "1" => LiveStream::LEGACY_DEFAULT,
            "none" => LiveStream::NONE,
            _ => (&stream).into_live_stream(),
        });
        machine.sim.clear_faults();
        let calls = machine.sim.calls();
        let is_refused = copy.is_err();
        let _ = home.check_err();
        last.bind_to_thread().expect("current");
        drop((copy, view, stream));
        last.bind_to_thread().expect("current");
        let gone = Arc::downgrade(&home);
        drop(home);
        last.bind_to_thread().expect("current");
        eventually("it is let go of", || gone.strong_count() == 0);
        thread::sleep(Duration::from_millis(5));
        check_alive(&machine, &format!("{fault:?}"));
        (calls, is_refused)
    };
    let mut faults: Vec<(String, u64)> = Vec::new();
    for call in copy(None).0 {
        let nth = faults
            .iter()
            .filter(|(name, _)| *name == call.name())
            .count() as u64
            + 1;
        faults.push((call.name().to_owned(), nth));
    }
    // One that is not given back stays, and with it what later tests do to it.
    faults.retain(|(name, _)| name != "cuDevicePrimaryCtxRelease");
    let refused = faults.iter().filter(|fault| copy(Some(fault)).1).count();
    assert!(refused > 5, "{refused} of {}", faults.len());
}

/// Ready data is not ordered, so that it takes the stream of any view.
#[test]
fn ready_data_takes_the_stream_of_any_view() {
    let machine = machine();
    let (home, other) = (context(false), context(true));
    let elsewhere = pending(DeviceType::CUDA, &other)
        .on(LiveStream::LEGACY_DEFAULT)
        .expect("an order");
    home.bind_to_thread().expect("current");
    for kind in KINDS {
        let ready = floats_of(kind, &home);
        assert_eq!(refused(&ready.on(elsewhere.ready())), None);
        assert_eq!(refused(&ready.consume(elsewhere.ready())), None);
        assert_eq!(refused(&ready.to_dlpack(elsewhere.ready())), None);
        assert_eq!(
            refused(&ready.copy_on(elsewhere.ready())),
            Some(Rule::StreamContext)
        );
    }
    // The host copies ready memory of its own: on no stream.
    let ready = array(vec![1.0_f32, 2.0], &[2]);
    assert_eq!(refused(&ready.copy_on(elsewhere.ready())), None);
    other.bind_to_thread().expect("current");
    drop(machine);
}

/// A share is opened on the stream that is passed, or not at all.
#[cfg(all(feature = "ipc", target_os = "linux"))]
#[test]
fn a_share_is_opened_on_that_stream_or_refused() {
    let machine = machine();
    let (primary, own) = (context(true), context(false));
    primary.bind_to_thread().expect("current");
    let view = pending(DeviceType::CUDA, &primary);
    let other = pending(DeviceType::CUDA, &own).on(LiveStream::LEGACY_DEFAULT);
    let other = other.expect("an order");
    primary.bind_to_thread().expect("current");
    let shared = view.share().expect("a share");
    let open = |stream: LiveStream<'_>| {
        // SAFETY: this process, which keeps the memory, and reads it alone.
        refused(&unsafe { shared.handle().open(stream) })
    };
    let of = |stream: &Arc<CudaStream>| open(stream.into_live_stream());
    assert_eq!(of(&own.default_stream()), Some(Rule::StreamDevice));
    assert_eq!(open(other.ready()), Some(Rule::StreamContext));
    assert_eq!(of(&own.new_stream().expect("a stream")), None);
    assert_eq!(of(&primary.default_stream()), None);
    assert_eq!(open(LiveStream::PER_THREAD_DEFAULT), None);
    drop((shared, view, other));
    primary.bind_to_thread().expect("current");
    drop(machine);
}

/// Makes a context current that another thread destroys.
fn with_a_dead_context() -> u64 {
    let gone = context(false);
    let handle = gone.cu_ctx().addr() as u64;
    gone.bind_to_thread().expect("current");
    thread::spawn(move || drop(gone)).join().expect("destroyed");
    handle
}

/// A context that another thread has destroyed stays current here: calls without a name for it are refused by the driver, but
/// its name leads nowhere.
#[rstest]
fn a_current_context_that_is_gone_is_not_named(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_primary: bool,
    #[values(false, true)] is_on_default: bool,
    #[values("a handle", "the default stream", "a constant", "of the view", "none")] on: &str,
    #[values(
        "on",
        "consume",
        "copy_on",
        "to_dlpack",
        "from_dlpack",
        "typed",
        "typed_mut",
        "guard",
        "to_host",
        "view",
        "slice",
        "present",
        "copy"
    )]
    call: &str,
) {
    let machine = machine();
    machine.log_every_thread();
    let home = context(is_primary);
    home.bind_to_thread().expect("current");
    let mut view = pending(kind, &home);
    if is_on_default {
        view = view.on(LiveStream::LEGACY_DEFAULT).expect("an order");
    }
    let stream = home.new_stream().expect("a stream");
    let default = home.per_thread_stream();
    let slice = stream.alloc_zeros::<f32>(4).expect("memory");
    let held = view.consume(&stream).expect("a guard");
    let copy = view.copy_on(&stream).expect("a copy");
    let shared = view.to_dlpack(LiveStream::NONE).expect("a tensor");
    let other = view.clone();
    let gone = with_a_dead_context();
    machine.sim.clear();
    let to: LiveStream<'_> = match on {
        "a handle" => (&stream).into_live_stream(),
        "the default stream" => (&default).into_live_stream(),
        "a constant" => LiveStream::LEGACY_DEFAULT,
        "of the view" => other.ready(),
        _ => LiveStream::NONE,
    };
    match call {
        "on" => drop(view.on(to)),
        "consume" => drop(view.consume(to)),
        "copy_on" => drop(view.copy_on(to)),
        "to_dlpack" => drop(view.to_dlpack(to)),
        "from_dlpack" => drop(CaiView::from_dlpack(shared, to)),
        "typed" => drop(view.typed::<f32>().expect("floats").on(&stream)),
        "typed_mut" => drop(view.typed_mut::<f32>().expect("floats").on(&stream)),
        "guard" => drop(held),
        "to_host" => drop((view.copy_to_host(), view.synchronize())),
        "present" => drop([PresentAs::Host, PresentAs::Cuda].map(|side| view.present_as(side))),
        "slice" => drop(CaiView::from_cudarc(slice, [4])),
        "copy" => drop(copy),
        _ => drop((view, stream, default, home)),
    }
    let calls = machine.sim.calls();
    let names = |call: &&Call| call.arguments.iter().any(|(_, given)| *given == gone);
    assert_eq!(calls.iter().find(names), None);
    context(true).bind_to_thread().expect("current");
}

/// The host waits in a call while another thread destroys the context that is current here: at the end of the call the driver is
/// not given its name, and it is current as before, above the same others.
#[rstest]
fn a_current_context_that_ends_meanwhile_is_not_named(
    #[values(
        (DeviceType::CUDA, "synchronize"),
        (DeviceType::CUDA_HOST, "synchronize"),
        (DeviceType::CUDA_MANAGED, "synchronize"),
        (DeviceType::CUDA, "to_host"),
        (DeviceType::CUDA_HOST, "to_host"),
        (DeviceType::CUDA_MANAGED, "to_host"),
        (DeviceType::CUDA_HOST, "present"),
        (DeviceType::CUDA_MANAGED, "present"),
        (DeviceType::CUDA, "end")
    )]
    (kind, call): (DeviceType, &'static str),
    #[values(false, true)] is_primary: bool,
) {
    let machine = machine();
    machine.log_every_thread();
    let home = context(is_primary);
    home.bind_to_thread().expect("current");
    let view = match call {
        "end" => {
            let slice = context(true).per_thread_stream().alloc_zeros::<f32>(4);
            CaiView::from_cudarc(slice.expect("memory"), [4]).expect("a view")
        }
        _ => pending(kind, &home),
    };
    let held = machine.sim.gate(view.ready().number().raw());
    let [below, current] = [context(false), context(false)];
    let (stays, gone) = (below.cu_ctx() as usize, current.cu_ctx() as usize);
    machine.sim.clear();
    let worker = thread::spawn(move || {
        below.bind_to_thread().expect("current");
        // SAFETY: a context that is alive.
        assert_eq!(unsafe { sys::cuCtxPushCurrent_v2(gone as _) } as u32, 0);
        match call {
            "synchronize" => drop(view.synchronize().expect("a wait")),
            "to_host" => drop(view.copy_to_host().expect("a copy")),
            "present" => drop(view.present_as(PresentAs::Host).expect("a wait")),
            // It is freed on a stream of another thread's, so that the whole context is waited for.
            _ => drop(view),
        }
        assert_eq!(result::ctx::get_current(), Ok(Some(gone as _)));
        // SAFETY: the one that was pushed.
        let popped = unsafe { sys::cuCtxPopCurrent_v2(&mut ptr::null_mut()) };
        assert_eq!(popped as u32, 0);
        assert_eq!(result::ctx::get_current(), Ok(Some(stays as _)));
        below
    });
    let waits = [
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuMemAlloc",
        "cuMemFree",
    ];
    let is_waiting = |call: &Call| call.result.is_none() && waits.contains(&call.name());
    eventually("the host waits", || {
        machine.sim.calls().iter().any(is_waiting)
    });
    drop(current);
    held.expect("a gate").open();
    drop(worker.join().expect("as before"));
    let calls = machine.sim.calls();
    let names = |call: &&Call| {
        call.arguments
            .iter()
            .any(|(_, given)| *given == gone as u64)
    };
    // Contexts of other tests may end, too.
    let ends = |call: &&Call| call.name() == "cuCtxDestroy" && names(call);
    let mut after = calls.iter().skip_while(|call| !ends(call));
    assert!(after.next().is_some());
    assert_eq!(after.find(names), None);
    home.bind_to_thread().expect("current");
}

/// The values that a program holds. The current context is one of these, or one that another thread destroys.
struct Hands {
    /// Whether another thread destroys the current context now and then.
    is_left: bool,
    contexts: Vec<Arc<CudaContext>>,
    made: Vec<Weak<CudaContext>>,
    streams: Vec<Arc<CudaStream>>,
    views: Vec<CaiView>,
    guards: Vec<ConsumeGuard>,
    tensors: Vec<DlpackTensor>,
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    shares: Vec<Shared>,
    refused: usize,
    kept: usize,
}

impl Hands {
    fn new(is_left: bool) -> Self {
        Self {
            is_left,
            contexts: Vec::new(),
            made: Vec::new(),
            streams: Vec::new(),
            views: Vec::new(),
            guards: Vec::new(),
            tensors: Vec::new(),
            #[cfg(all(feature = "ipc", target_os = "linux"))]
            shares: Vec::new(),
            refused: 0,
            kept: 0,
        }
    }

    fn add_context(&mut self, dice: &mut Dice) {
        let context = context(dice.below(3) == 0);
        self.made.push(Arc::downgrade(&context));
        self.streams.push(context.new_stream().expect("a stream"));
        self.streams.push(match dice.below(2) {
            0 => context.default_stream(),
            _ => context.per_thread_stream(),
        });
        self.contexts.push(context);
    }

    /// cudarc makes a context current to destroy it, after which one that is gone may be current.
    fn bind(&self) {
        self.contexts[0].bind_to_thread().expect("current");
    }

    /// Drops all but a context that is alive.
    fn end(mut self) -> Vec<Weak<CudaContext>> {
        let last = context(true);
        self.contexts.insert(0, last);
        self.bind();
        while self.contexts.len() > 1 {
            drop(self.contexts.pop());
            self.bind();
        }
        while !self.streams.is_empty() {
            drop(self.streams.pop());
            self.bind();
        }
        drop((self.guards, self.views, self.tensors));
        #[cfg(all(feature = "ipc", target_os = "linux"))]
        drop(self.shares);
        self.made
    }

    fn step(&mut self, machine: &Machine, dice: &mut Dice) {
        while self.contexts.len() < 2 {
            self.add_context(dice);
        }
        // An error that a refusal has noted there is told to the next call.
        self.contexts.iter().for_each(|context| {
            let _ = context.check_err();
        });
        while self.views.len() < 2 {
            let home = &self.contexts[dice.below(self.contexts.len())];
            self.views.push(pending(KINDS[dice.below(3)], home));
        }
        let current = dice.below(self.contexts.len());
        self.contexts[current].bind_to_thread().expect("current");
        let (one, other) = (dice.below(self.views.len()), dice.below(self.views.len()));
        let to: LiveStream<'_> = match dice.below(10) {
            0 => LiveStream::NONE,
            1..=3 => LiveStream::LEGACY_DEFAULT,
            4 => LiveStream::PER_THREAD_DEFAULT,
            5 | 6 => self.views[other].ready(),
            7 => self.views[other].producer().unwrap_or(LiveStream::NONE),
            _ => match self.streams.is_empty() {
                true => LiveStream::NONE,
                false => (&self.streams[dice.below(self.streams.len())]).into_live_stream(),
            },
        };
        let mut made = None;
        let leaves = self.is_left && dice.below(2) == 0;
        let left = leaves.then(|| Left::new(dice));
        match dice.below(19) {
            0..=2 => made = Some(self.views[one].on(to)),
            3 => made = Some(self.views[one].copy_on(to)),
            4 | 5 => match self.views[one].consume(to) {
                Ok(guard) => self.guards.push(guard),
                Err(_) => self.refused += 1,
            },
            6 => self.tensors.extend(self.views[one].to_dlpack(to)),
            7 if !self.tensors.is_empty() => {
                let tensor = self.tensors.swap_remove(dice.below(self.tensors.len()));
                made = Some(CaiView::from_dlpack(tensor, to));
            }
            8 if !self.guards.is_empty() => {
                drop(self.guards.swap_remove(dice.below(self.guards.len())));
            }
            9 => drop(self.views.swap_remove(one)),
            10 if !self.streams.is_empty() => {
                drop(self.streams.swap_remove(dice.below(self.streams.len())));
            }
            11 if self.contexts.len() < 4 => self.add_context(dice),
            #[cfg(all(feature = "ipc", target_os = "linux"))]
            12 | 13 => self.shares.extend(self.views[one].share()),
            #[cfg(all(feature = "ipc", target_os = "linux"))]
            14 if !self.shares.is_empty() => {
                let shared = &self.shares[dice.below(self.shares.len())];
                // SAFETY: this process shares it, and nothing writes it.
                made = Some(unsafe { shared.handle().open(to) });
            }
            #[cfg(all(feature = "ipc", target_os = "linux"))]
            15 if !self.shares.is_empty() => {
                drop(self.shares.swap_remove(dice.below(self.shares.len())));
            }
            _ => {
                let gone = dice.below(self.contexts.len());
                let next = (gone + 1) % self.contexts.len();
                self.contexts[next].bind_to_thread().expect("current");
                drop(self.contexts.swap_remove(gone));
            }
        }
        match made {
            Some(Ok(view)) => self.views.push(view),
            Some(Err(_)) => self.refused += 1,
            None => {}
        }
        if let Some(left) = left {
            left.check(machine);
        }
        self.bind();
        if self.views.len() > 12 {
            drop(self.views.swap_remove(dice.below(self.views.len())));
        }
        let alive = self.made.iter().filter(|made| made.strong_count() > 0);
        self.kept += usize::from(alive.count() > self.contexts.len());
    }
}

/// A context that is current here, and that another thread lets go of soon.
struct Left {
    handle: u64,
    thread: thread::JoinHandle<()>,
}

impl Left {
    fn new(dice: &mut Dice) -> Self {
        let (context, pause) = (context(false), dice.below(8));
        let handle = context.cu_ctx().addr() as u64;
        context.bind_to_thread().expect("current");
        let thread = thread::spawn(move || {
            // At once, or while a call runs here.
            thread::sleep(Duration::from_micros(10 * pause as u64));
            drop(context);
        });
        if pause < 3 {
            thread::sleep(Duration::from_micros(200));
        }
        Self { handle, thread }
    }

    /// No call has named it after its end.
    fn check(self, machine: &Machine) {
        self.thread.join().expect("let go of");
        let calls = machine.sim.calls();
        let ends =
            |call: &Call| call.name() == "cuCtxDestroy" && call.arguments[0].1 == self.handle;
        let mut after = calls.iter().skip_while(|call| !ends(call));
        assert!(after.next().is_some());
        let names = |call: &&Call| {
            call.arguments
                .iter()
                .any(|(_, given)| *given == self.handle)
        };
        assert_eq!(after.find(names), None);
    }
}

/// Random safe programs of contexts that are made current, used by the numbers of their default streams, and let go of.
#[rstest]
fn no_program_names_a_context_that_is_gone(#[values(false, true)] is_left: bool) {
    let machine = machine();
    machine.log_every_thread();
    let (mut refused, mut kept) = (0, 0);
    // In a context that is gone calls are refused without its name, too.
    let codes: &[u32] = if is_left {
        &[400, 700]
    } else {
        &[400, 700, 709]
    };
    for seed in 0..PROGRAMS {
        let mut dice = Dice(seed);
        let mut hands = Hands::new(is_left);
        for step in 0..60 {
            hands.step(&machine, &mut dice);
            check(&machine, codes, &format!("seed {seed}, step {step}"));
        }
        (refused, kept) = (refused + hands.refused, kept + hands.kept);
        let made = hands.end();
        let alive = || made.iter().any(|made| made.strong_count() > 0);
        eventually("all are let go of", || !alive());
        check(&machine, codes, &format!("seed {seed}, the end"));
    }
    assert!(
        refused > 100 && kept > 100,
        "{refused} refused, {kept} kept"
    );
}

const PROGRAMS: u64 = 150;

/// Parts of a written array end beside a current context that is gone: they are ordered in their streams' own.
#[rstest]
fn parts_end_beside_a_context_that_is_gone(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_primary: bool,
    #[values(false, true)] is_ready: bool,
) {
    let machine = machine();
    machine.log_every_thread();
    let home = context(is_primary);
    home.bind_to_thread().expect("current");
    let [one, other, reads] = [(); 3].map(|()| home.new_stream().expect("a stream"));
    let mut view = match is_ready {
        true => floats_of(kind, &home),
        false => pending(kind, &home),
    };
    let parts = view.typed_mut::<f32>().expect("floats").split(0, 1);
    let (left, right) = parts.expect("two parts");
    let left = left.on(&one).expect("a guard");
    let right = right.on(&other).expect("a guard");
    let _ = (left.device_ptr(), right.device_ptr());
    let gone = with_a_dead_context();
    machine.sim.clear();
    left.finish().expect("an end");
    right.finish().expect("an end");
    let calls = machine.sim.calls();
    let names = |call: &&Call| call.arguments.iter().any(|(_, given)| *given == gone);
    assert_eq!(calls.iter().find(names), None);
    let waits = |call: &&Call| call.name() == "cuStreamWaitEvent";
    assert!(
        calls.iter().any(|call| waits(&call)),
        "the parts are ordered"
    );
    home.bind_to_thread().expect("current");
    drop(
        view.typed::<f32>()
            .expect("floats")
            .on(&reads)
            .expect("a guard"),
    );
}

/// What kept the stream on which a written array was ready ends after the guard's own calls: that makes its context current, and
/// destroys it.
#[rstest]
fn what_kept_the_stream_of_a_written_array_ends_apart(#[values(false, true)] is_part: bool) {
    let machine = machine();
    machine.log_every_thread();
    let (home, own) = (context(false), context(false));
    let plain = floats_of(DeviceType::CUDA_HOST, &home);
    let stream = home.new_stream().expect("a stream");
    own.bind_to_thread().expect("current");
    let of_own = own.new_stream().expect("a stream");
    let number = Stream::from_cudarc(&of_own).expect("a number");
    let owner = Owner::new((of_own, own, plain.clone()));
    // SAFETY: the same elements, and a stream, which the owner keeps.
    let source = unsafe { CaiView::new(plain.descriptor().clone(), number, owner) };
    home.bind_to_thread().expect("current");
    let tensor = plain.to_dlpack(LiveStream::NONE).expect("a tensor");
    let view = CaiView::from_dlpack(tensor, &stream).expect("a view");
    let mut view = view.on(source.ready()).expect("an order");
    drop(source);
    let mut typed = view.typed_mut::<f32>().expect("floats");
    let (guard, _other) = match is_part {
        true => {
            let (left, right) = typed.split(0, 1).expect("two parts");
            (left.on(&stream), Some(right))
        }
        false => (typed.reborrow().on(&stream), None),
    };
    let guard = guard.expect("a guard");
    let _ = guard.device_ptr();
    let gone = with_a_dead_context();
    machine.sim.clear();
    guard.finish().expect("an end");
    let calls = machine.sim.calls();
    assert!(is_part || calls.iter().any(|call| call.name() == "cuCtxDestroy"));
    let names = |call: &&Call| call.arguments.iter().any(|(_, given)| *given == gone);
    assert_eq!(calls.iter().find(names), None);
    home.bind_to_thread().expect("current");
}

/// A driver tells nothing of streams while a context is current that is gone: it is asked in another one.
#[rstest]
fn orders_are_made_beside_a_context_that_is_gone(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_primary: bool,
) {
    let machine = machine();
    let home = context(is_primary);
    home.bind_to_thread().expect("current");
    let (view, stream) = (pending(kind, &home), home.new_stream().expect("a stream"));
    let held = view.consume(&stream).expect("a guard");
    let gone = with_a_dead_context();
    held.finish().expect("an end");
    let moved = view.on(&stream).expect("an order");
    moved
        .consume(view.ready())
        .expect("an order")
        .finish()
        .expect("an end");
    let copy = view.copy_on(&stream).expect("a copy");
    let tensor = copy.to_dlpack(view.ready()).expect("a tensor");
    drop((tensor, moved, copy.synchronize().expect("a wait")));
    assert_eq!(result::ctx::get_current(), Ok(Some(gone as usize as _)));
    home.bind_to_thread().expect("current");
    drop(machine);
}

/// A copy to the host whose wait is refused has a mark after its work, in the context of the memory: the owner, which keeps that,
/// ends once all that hangs on the mark has.
#[test]
fn a_refused_copy_to_the_host_keeps_its_context() {
    let machine = machine();
    machine.log_every_thread();
    let (last, home) = (context(true), context(false));
    let view = floats_of(DeviceType::CUDA, &home);
    machine.sim.set_schedule(Schedule::Lazy);
    machine.sim.clear();
    machine.sim.fault("cuStreamSynchronize", 1, 999);
    assert!(view.copy_to_host().is_err());
    assert_eq!(machine.sim.pending_faults(), 0);
    last.bind_to_thread().expect("current");
    let left = Arc::downgrade(&home);
    drop((view, home));
    last.bind_to_thread().expect("current");
    machine.sim.set_schedule(Schedule::Threaded);
    eventually("the context ends", || left.strong_count() == 0);
    thread::sleep(Duration::from_millis(50));
    check_alive(&machine, "a refused copy to the host");
}

/// A writer may have the last share of a reader's mark, and with it that of a context: that ends once the writer's calls are made.
#[test]
fn a_mark_that_a_writer_has_last_ends_after_its_calls() {
    let machine = machine();
    machine.log_every_thread();
    let (home, own) = (context(true), context(false));
    let mut view = floats_of(DeviceType::CUDA, &home);
    own.bind_to_thread().expect("current");
    let reads = own.new_stream().expect("a stream");
    let number_of = Stream::from_cudarc(&reads).expect("a number");
    let (left, held) = (Arc::downgrade(&own), machine.sim.gate(number(&reads)));
    let owner = Owner::new((reads, own, view.clone()));
    // SAFETY: the same elements, and a stream, which the owner keeps.
    let source = unsafe { CaiView::new(view.descriptor().clone(), number_of, owner) };
    home.bind_to_thread().expect("current");
    let writes = home.new_stream().expect("a stream");
    drop(view.copy_on(source.ready()).expect("a copy"));
    drop(source);
    // The library's thread marks the stream.
    thread::sleep(Duration::from_millis(50));
    let full = machine.sim.gate(number(&writes)).expect("a gate");
    let Steered::Simulator(sim) = &machine.sim else {
        panic!("no simulator")
    };
    // The second piece of work blocks the thread that enqueues it.
    sim.set("queue", 1).expect("a setting");
    with_a_dead_context();
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        // The reader is done, and the library's thread lets go of all that it has.
        held.expect("a gate").open();
        thread::sleep(Duration::from_millis(300));
        full.open();
    });
    machine.sim.clear();
    let guard = view.typed_mut::<f32>().expect("floats").on(&writes);
    let has_ended = left.strong_count() == 0;
    opener.join().expect("opened");
    sim.set("queue", 1024).expect("a setting");
    drop(guard.expect("a guard"));
    assert!(has_ended, "the writer has had the last share");
    check_alive(&machine, "a writer");
    home.bind_to_thread().expect("current");
}

/// Work of parts of which the driver tells nothing is noted as lost in a context, about which later writers ask.
#[test]
fn lost_parts_keep_their_context() {
    let machine = machine();
    machine.log_every_thread();
    let home = context(true);
    let mut view = floats_of(DeviceType::CUDA_HOST, &home);
    let others = [(); 2].map(|()| context(false));
    let streams = others
        .each_ref()
        .map(|of| of.new_stream().expect("a stream"));
    home.bind_to_thread().expect("current");
    let [moves, writes] = [(); 2].map(|()| home.new_stream().expect("a stream"));
    let parts = view.typed_mut::<f32>().expect("floats").split(0, 1);
    let (left, right) = parts.expect("two parts");
    let left = left.on(&streams[0]).expect("a guard");
    let right = right.on(&streams[1]).expect("a guard");
    left.finish().expect("an end");
    // The first two questions are for the keeper of the memory, which the host can write.
    (3..30).for_each(|nth| machine.sim.fault("cuStreamIsCapturing", nth, 999));
    (1..30).for_each(|nth| {
        machine
            .sim
            .fault("cuThreadExchangeStreamCaptureMode", nth, 999);
    });
    let told = right.finish();
    machine.sim.clear_faults();
    assert!(told.is_err(), "{told:?}");
    let mut moved = view.on(&moves).expect("an order");
    for of in &others {
        let _ = of.check_err();
    }
    drop((view, streams));
    home.bind_to_thread().expect("current");
    drop(others);
    home.bind_to_thread().expect("current");
    thread::sleep(Duration::from_millis(50));
    drop(moved.typed_mut::<f32>().expect("floats").on(&writes));
    check_alive(&machine, "a later writer");
}

/// A driver that does not tell which context is current: a constant does not name the default stream of it.
#[test]
fn a_constant_of_a_context_that_is_not_told_is_refused() {
    let machine = machine();
    let (last, home, other) = (context(true), context(false), context(false));
    let view = pending(DeviceType::CUDA_HOST, &home);
    other.bind_to_thread().expect("current");
    for nth in [1, 2] {
        machine.sim.fault("cuCtxGetCurrent", nth, 999);
    }
    let copy = view.copy_on(LiveStream::LEGACY_DEFAULT);
    assert_eq!(machine.sim.pending_faults(), 0);
    assert!(matches!(copy, Err(Error::Driver(_))), "{copy:?}");
    last.bind_to_thread().expect("current");
    drop((other, view));
    last.bind_to_thread().expect("current");
}

/// A view that was made without a current context is ready on the default stream of the memory's: a copy for no stream is made
/// there, whatever is current.
#[rstest]
fn a_copy_for_no_stream_is_made_on_the_memorys(
    #[values(DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_primary: bool,
) {
    let machine = machine();
    let home = context(is_primary);
    let memory = floats_of(kind, &home);
    let made = thread::spawn(move || {
        let (described, owner) = (memory.descriptor().clone(), Owner::new(memory));
        // SAFETY: the same elements; the context of the stream is the memory's, which the owner keeps.
        unsafe { CaiView::new(described, Stream::LegacyDefault, owner) }
    });
    let view = made.join().expect("a view");
    home.bind_to_thread().expect("current");
    let copy = view.copy_on(LiveStream::NONE).expect("a copy");
    drop((copy, view));
    home.bind_to_thread().expect("current");
    drop(machine);
}

/// A copy of a copy on the default stream of another context than the memory's keeps that by the same keeper.
#[rstest]
fn copies_on_the_default_stream_of_another_context_keep_no_other(
    #[values(DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
) {
    const COPIES: u64 = 50;
    let machine = machine();
    let (home, other) = (context(false), context(false));
    let memory = floats_of(kind, &home);
    let described = memory.descriptor().clone();
    other.bind_to_thread().expect("current");
    let owner = Owner::new((memory, Arc::clone(&other)));
    // SAFETY: the same elements, and the context of the stream, which is current: the owner keeps them.
    let mut view = unsafe { CaiView::new(described, Stream::LegacyDefault, owner) };
    let allocations = || machine.sim.live().allocations;
    let before = settled_allocations(&machine);
    for _ in 0..COPIES {
        view = view.copy_on(view.ready()).expect("a copy");
    }
    other.synchronize().expect("a wait");
    eventually("the copies end", || allocations() < before + COPIES / 2);
    other.bind_to_thread().expect("current");
    drop(view);
    home.bind_to_thread().expect("current");
}

/// A rule that refuses to order two parts loses no work, and keeps no context for ever.
#[test]
fn parts_that_a_rule_refuses_keep_no_context() {
    let machine = machine();
    let (primary, other) = (context(true), context(false));
    let left = Arc::downgrade(&other);
    let mut view = floats_of(DeviceType::CUDA_HOST, &primary);
    let captured = other.new_stream().expect("a stream");
    let own = primary.per_thread_stream();
    let parts = view.typed_mut::<f32>().expect("floats").split(0, 1);
    let (first, second) = parts.expect("two parts");
    let ended = thread::scope(|scope| {
        let there = scope.spawn(|| {
            primary.bind_to_thread().expect("current");
            first.on(&own).expect("a guard").finish().map(drop)
        });
        there.join().expect("no panic")
    });
    ended.expect("an end");
    begin(&captured, MODES[2]);
    let ended = second.on(&captured).expect("a guard").finish();
    assert_eq!(refused(&ended), Some(Rule::StreamThread));
    is_whole(&captured);
    primary.bind_to_thread().expect("current");
    let _ = other.check_err();
    drop((view, captured));
    primary.bind_to_thread().expect("current");
    drop(other);
    primary.bind_to_thread().expect("current");
    eventually("the context ends", || left.strong_count() == 0);
    drop(machine);
}

/// Nor does the default stream of a view stand for that of a context that is current, and that the driver has not told at first.
#[test]
fn a_views_stream_of_a_context_that_is_not_told_is_refused() {
    let machine = machine();
    let (last, home, other) = (context(true), context(false), context(false));
    let memory = floats_of(DeviceType::CUDA_MANAGED, &home);
    home.bind_to_thread().expect("current");
    let described = memory.descriptor().clone();
    let owner = Owner::new((memory, Arc::clone(&home)));
    // SAFETY: the same elements, and the context of the stream, which is current: the owner keeps them.
    let view = unsafe { CaiView::new(described, Stream::LegacyDefault, owner) };
    other.bind_to_thread().expect("current");
    for nth in [1, 2] {
        machine.sim.fault("cuCtxGetCurrent", nth, 999);
    }
    let copy = view.copy_on(view.ready());
    assert_eq!(machine.sim.pending_faults(), 0);
    assert!(matches!(copy, Err(Error::Driver(_))), "{copy:?}");
    let copy = view.copy_on(view.ready());
    assert_eq!(refused(&copy), Some(Rule::StreamContext));
    last.bind_to_thread().expect("current");
    drop((other, view, home));
    last.bind_to_thread().expect("current");
}

/// Makes a view that is ready on a default stream.
fn made_ready_on(stream: &Arc<CudaStream>, view: &mut CaiView, by: &str) -> Result<CaiView, Error> {
    match by {
        "a copy" => view.copy_on(LiveStream::LEGACY_DEFAULT),
        "a copy on a stream" => view.copy_on(stream),
        "a view" => view.on(stream),
        "a constant" => view.on(LiveStream::LEGACY_DEFAULT),
        "an import" => CaiView::from_dlpack(view.to_dlpack(stream)?, stream),
        "consumed" => Ok(view.consume(stream)?.view().clone()),
        "written" => {
            view.typed_mut::<f32>()?.on(stream)?.finish()?;
            Ok(view.clone())
        }
        _ => {
            let (left, _right) = view.typed_mut::<f32>()?.split(0, 1)?;
            left.on(stream)?.finish()?;
            Ok(view.clone())
        }
    }
}

/// A default stream of the current context, which the driver does not tell at some question: what would name it is refused, since by
/// its number it would be that of the memory's.
#[rstest]
fn a_stream_of_a_context_that_is_not_told_is_refused(
    #[values(
        "a copy",
        "a copy on a stream",
        "a view",
        "a constant",
        "an import",
        "consumed",
        "written",
        "a part"
    )]
    by: &str,
    #[values(DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
) {
    let machine = machine();
    let (home, primary) = (context(false), context(true));
    let stream = primary.default_stream();
    let made = |refused: &[u64]| {
        let mut view = pending(kind, &home);
        primary.bind_to_thread().expect("current");
        machine.sim.clear();
        for nth in refused {
            machine.sim.fault("cuCtxGetCurrent", *nth, 999);
        }
        let made = made_ready_on(&stream, &mut view, by);
        let left = machine.sim.pending_faults();
        machine.sim.clear_faults();
        // A refused end has noted an error.
        let _ = (primary.check_err(), home.check_err());
        primary.bind_to_thread().expect("current");
        (made, left)
    };
    made(&[]).0.expect("a view");
    let asked = machine.sim.count("cuCtxGetCurrent");
    let mut told = Vec::new();
    for first in 1..asked {
        let (made, left) = made(&[first, first + 1]);
        if let Ok(made) = made {
            let held = machine.sim.gate(1).expect("a gate");
            let waits = thread::spawn(move || made.synchronize().map(drop));
            thread::sleep(Duration::from_millis(20));
            assert!(
                !waits.is_finished(),
                "{first} of {asked}: ready on another stream"
            );
            held.open();
            waits.join().expect("no panic").expect("a wait");
            primary.bind_to_thread().expect("current");
        } else if left == 0 {
            told.push(first);
        }
    }
    assert!(!told.is_empty());
}

/// Makes a view with an owner of its own that is ready on a default stream, and tells whether that owner is there.
fn owned(view: &CaiView, ready: Stream) -> (CaiView, Weak<()>) {
    let token = Arc::new(());
    let left = Arc::downgrade(&token);
    let owner = Owner::new((view.clone(), token));
    // SAFETY: the same elements; the caller keeps the context of the stream, or has the simulator tell.
    let view = unsafe { CaiView::new(view.descriptor().clone(), ready, owner) };
    (view, left)
}

/// What a default stream needs is its context: a view that has named one goes, and what it owns.
#[rstest]
fn a_default_stream_of_a_view_keeps_no_view(
    #[values(DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(false, true)] is_primary: bool,
    #[values(Stream::LegacyDefault, Stream::PerThreadDefault)] named: Stream,
) {
    let machine = machine();
    let home = context(is_primary);
    let view = pending(kind, &home);
    let (other, left) = owned(&floats_of(kind, &home), named);
    let moved = view.on(other.ready()).expect("an order");
    let guard = view.consume(other.ready()).expect("an order");
    drop(other);
    assert_eq!(left.strong_count(), 0);
    assert_eq!(
        (moved.ready().number(), guard.view().ready().number()),
        (named, named)
    );
    guard.finish().expect("the way back");
    drop((moved, view));
    home.bind_to_thread().expect("current");
    drop(machine);
}

/// Memory that every context reaches has a default stream in each: one view of it may name another one's than its neighbour.
#[rstest]
fn a_default_stream_of_another_view_of_the_same_memory_may_be_another_one(
    #[values(DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(LiveStream::LEGACY_DEFAULT, LiveStream::PER_THREAD_DEFAULT)] named: LiveStream<'_>,
    #[values(false, true)] is_there: bool,
) {
    let machine = machine();
    let (home, primary) = (context(false), context(true));
    let view = pending(kind, &home);
    primary.bind_to_thread().expect("current");
    let there = view.on(named).expect("an order");
    if !is_there {
        home.bind_to_thread().expect("current");
    }
    let expected = (!is_there).then_some(Rule::StreamContext);
    assert_eq!(refused(&view.on(there.ready())), expected);
    assert_eq!(refused(&view.consume(there.ready())), expected);
    assert_eq!(refused(&view.to_dlpack(there.ready())), expected);
    primary.bind_to_thread().expect("current");
    drop(machine);
}

/// A view that is ready on a default stream of a context that was not told names none later, when another one is.
#[rstest]
fn a_ready_stream_that_was_not_told_is_no_other_view_s(
    #[values(DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED)] kind: DeviceType,
    #[values(Stream::LegacyDefault, Stream::PerThreadDefault)] named: Stream,
) {
    let machine = machine();
    let home = context(true);
    let (view, memory) = (pending(kind, &home), floats_of(kind, &home));
    for nth in [1, 2] {
        machine.sim.fault("cuCtxGetCurrent", nth, 999);
    }
    let (untold, _left) = owned(&memory, named);
    assert_eq!(machine.sim.pending_faults(), 0);
    for answer in [
        view.on(untold.ready()).map(drop),
        view.consume(untold.ready()).map(drop),
        view.to_dlpack(untold.ready()).map(drop),
        view.copy_on(untold.ready()).map(drop),
    ] {
        assert!(matches!(answer, Err(Error::Driver(_))), "{answer:?}");
    }
    home.bind_to_thread().expect("current");
}
