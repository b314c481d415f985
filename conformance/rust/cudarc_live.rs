//! Streams and memory are kept: no safe program has the driver use what is gone.

use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::Device;
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{ConsumeGuard, DlpackTensor, IntoLiveStream, LiveStream, Owner};
use cai_dlpack::{CaiView, Error};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result, sys};

use crate::simulator::machine;

fn rule<T>(answer: Result<T, Error>) -> Rule {
    match answer.map(drop) {
        Err(Error::Violation(violation)) => violation.rule(),
        other => panic!("{other:?}"),
    }
}

fn array(stream: &Arc<CudaStream>) -> CaiView {
    let slice = stream
        .clone_htod(&[1.0_f32, 2.0, 3.0, 4.0])
        .expect("memory");
    CaiView::from_cudarc(slice, [4]).expect("a view")
}

#[test]
fn what_names_a_stream_keeps_it() {
    let _machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let view = array(&context.new_stream().expect("a stream"));
    let stream = context.new_stream().expect("a stream");
    let count = || Arc::strong_count(&stream);

    let moved = view.on(&stream).expect("an order");
    assert_eq!(
        (count(), moved.ready().number().raw()),
        (2, stream.cu_stream().addr() as u64)
    );
    let derived = moved.clone();
    drop(moved);
    assert_eq!(count(), 2);
    drop(derived);
    assert_eq!(count(), 1);

    let guard = view.consume(&stream).expect("an order");
    assert_eq!(count(), 2);
    guard.finish().expect("the way back");
    assert_eq!(count(), 1);

    let ready = without_a_producer(&view);
    let guard = ready.consume(&stream).expect("no order");
    assert_eq!(count(), 2, "the guard names it all the same");
    drop(guard);
    assert_eq!(count(), 1);

    let tensor = view.to_dlpack(&stream).expect("a tensor");
    assert_eq!(count(), 1); // it names none
    let back = CaiView::from_dlpack(tensor, &stream).expect("a view");
    assert_eq!(count(), 2);
    drop(back);

    let other = array(&context.new_stream().expect("a stream"));
    let moved = view.on(other.ready()).expect("an order");
    let (theirs, live) = (other.ready().number(), cai_dlpack::view::stats().live);
    drop(other);
    assert_eq!(cai_dlpack::view::stats().live, live, "kept for its stream");
    assert_eq!(moved.ready(), theirs);
    drop(moved);
}

#[test]
fn no_stream_changes_nothing() {
    let _machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let view = array(&context.new_stream().expect("a stream"));
    assert_eq!(
        view.on(LiveStream::NONE).expect("a view").ready(),
        view.ready()
    );
    let guard = view.consume(LiveStream::NONE).expect("a guard");
    assert_eq!(guard.view().ready(), view.ready());
}

#[test]
fn a_default_stream_that_its_number_does_not_mean_is_refused() {
    let _machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let view = array(&context.new_stream().expect("a stream"));
    let own = CudaContext::new_non_primary(0, 0).expect("a context");
    let (own, elsewhere) = (own.default_stream(), CudaContext::new(1).expect("device 1"));
    for stream in [own, elsewhere.default_stream()] {
        assert_eq!(rule(view.on(&stream)), Rule::StreamDevice);
        assert_eq!(rule(view.consume(&stream)), Rule::StreamDevice);
        assert_eq!(rule(view.copy_on(&stream)), Rule::StreamDevice);
        assert_eq!(rule(view.to_dlpack(&stream)), Rule::StreamDevice);
        assert_eq!(rule(view.to_dlpack_legacy(&stream)), Rule::StreamDevice);
        let tensor = view.to_dlpack(LiveStream::NONE).expect("a tensor");
        assert_eq!(
            rule(CaiView::from_dlpack(tensor, &stream)),
            Rule::StreamDevice
        );
    }
    assert!(view.on(&context.default_stream()).is_ok());
}

/// `CUDA_ERROR_INVALID_HANDLE`: the simulator's answer to a handle that it does not know.
const INVALID_HANDLE: u32 = 400;
/// `CUDA_ERROR_ILLEGAL_ADDRESS`: its answer to work on memory that is not there.
const ILLEGAL_ADDRESS: u32 = 700;

/// Numbers that look random, the same for each seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// What a program has in its hands.
struct Hands {
    context: Arc<CudaContext>,
    streams: Vec<Arc<CudaStream>>,
    views: Vec<CaiView>,
    guards: Vec<ConsumeGuard>,
    /// Each with the stream that its data is ready on. A program that names another one on import has no order, and
    /// reads memory of a pool before it is there.
    tensors: Vec<(DlpackTensor, Stream)>,
    /// The stream that is being captured.
    captured: Option<Arc<CudaStream>>,
    graphs: Vec<(CudaGraph, Arc<CudaStream>)>,
    launched: u32,
}

impl Hands {
    /// One step of the safe API, of what is there by chance; an order that is refused is none.
    fn step(&mut self, dice: &mut Dice) {
        let Self {
            context,
            streams,
            views,
            guards,
            tensors,
            captured,
            graphs,
            launched,
        } = self;
        // A capture that an order has broken is told to the next call.
        let _ = context.check_err();
        while streams.len() < 2 {
            streams.push(context.new_stream().expect("a stream"));
        }
        while views.len() < 2 {
            // Not the stream that may be being captured.
            let made = array(&context.new_stream().expect("a stream"));
            views.push(match dice.below(2) {
                0 => made,
                _ => without_a_producer(&made),
            });
        }
        let (one, other) = (dice.below(views.len()), dice.below(views.len()));
        let stream = dice.below(streams.len());
        let to: LiveStream<'_> = match dice.below(8) {
            0 => LiveStream::NONE,
            1 => LiveStream::LEGACY_DEFAULT,
            2 | 3 => views[other].ready(),
            4 => views[other].producer().unwrap_or(LiveStream::NONE),
            _ => (&streams[stream]).into_live_stream(),
        };
        let mut made = None;
        match dice.below(18) {
            0 | 1 => made = views[one].on(to).ok(),
            2 => made = views[one].copy_on(to).ok(),
            3 => guards.extend(views[one].consume(to)),
            4 => {
                let ready = match to.number() {
                    Stream::None => views[one].ready().number(),
                    named => named,
                };
                tensors.extend(views[one].to_dlpack(to).map(|tensor| (tensor, ready)));
            }
            5 if !tensors.is_empty() => {
                let (tensor, ready) = tensors.swap_remove(dice.below(tensors.len()));
                let known = [LiveStream::NONE, LiveStream::LEGACY_DEFAULT].into_iter();
                let known = known.chain(views.iter().map(CaiView::ready));
                let known: Vec<_> = known
                    .chain(streams.iter().map(IntoLiveStream::into_live_stream))
                    .collect();
                let named = known.into_iter().find(|named| named.number() == ready);
                made = named.and_then(|named| CaiView::from_dlpack(tensor, named).ok());
            }
            6 if !guards.is_empty() => {
                let guard = guards.swap_remove(dice.below(guards.len()));
                made = Some(guard.view().clone());
                drop(guard);
            }
            7 => made = Some(views[one].clone()),
            8 => {
                if let Ok(typed) = views[one].typed_mut::<f32>() {
                    drop(typed.on(&streams[stream]));
                }
            }
            9 | 10 => drop(views.swap_remove(one)),
            11 => drop(streams.swap_remove(stream)),
            12 if captured.is_none() => {
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                let begun = streams[stream].begin_capture(mode);
                *captured = begun.ok().map(|()| Arc::clone(&streams[stream]));
            }
            12..=14 => {
                if let Some(captured) = captured {
                    let _ = fill(&mut views[one], captured);
                }
            }
            15 => graphs.extend(captured.take().and_then(end)),
            16 if !graphs.is_empty() => *launched += launch(&graphs[dice.below(graphs.len())]),
            _ if !graphs.is_empty() => drop(graphs.swap_remove(dice.below(graphs.len()))),
            _ => {}
        }
        self.views.extend(made);
    }

    /// Drops all but the graphs, and launches these.
    fn end(&mut self) {
        self.graphs.extend(self.captured.take().and_then(end));
        self.guards.clear();
        self.tensors.clear();
        self.views.clear();
        if !self.graphs.is_empty() {
            // Another thread frees what a stream had yet to get to.
            thread::sleep(Duration::from_millis(20));
        }
        self.launched += self.graphs.iter().map(launch).sum::<u32>();
    }
}

/// An array that is ready, and whose producer is unknown: one that may be used in a capture.
fn without_a_producer(view: &CaiView) -> CaiView {
    let ready = view.synchronize().expect("a wait");
    let tensor = ready.to_dlpack(LiveStream::NONE).expect("a tensor");
    CaiView::from_dlpack(tensor, LiveStream::NONE).expect("a view")
}

fn fill(view: &mut CaiView, stream: &Arc<CudaStream>) -> Result<(), Error> {
    let mut guard = view.typed_mut::<f32>()?.on(stream)?;
    let mut slice = guard.as_slice().expect("contiguous");
    let _ = stream.memset_zeros(&mut slice);
    Ok(())
}

fn end(stream: Arc<CudaStream>) -> Option<(CudaGraph, Arc<CudaStream>)> {
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    let graph = stream.end_capture(flags).ok().flatten();
    graph.map(|graph| (graph, stream))
}

/// Launches a graph on the stream that it was captured from, and waits for it; returns how many that were.
fn launch((graph, stream): &(CudaGraph, Arc<CudaStream>)) -> u32 {
    // A stream that is being captured again records the launch, and is not waited for.
    u32::from(graph.launch().is_ok() && stream.synchronize().is_ok())
}

/// Random safe programs: whatever they keep, record, launch and drop, the driver is passed no handle of a stream that is
/// gone, and no work finds memory that is gone.
#[test]
fn no_program_uses_what_is_gone() {
    let machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let mut launched = 0;
    for seed in 0..60 {
        machine.sim.clear();
        let mut dice = Dice(seed);
        let mut hands = Hands {
            context: Arc::clone(&context),
            streams: Vec::new(),
            views: Vec::new(),
            guards: Vec::new(),
            tensors: Vec::new(),
            captured: None,
            graphs: Vec::new(),
            launched: 0,
        };
        for step in 0..=60 {
            match step {
                60 => hands.end(),
                _ => hands.step(&mut dice),
            }
            if !machine.sim.has_log() {
                continue;
            }
            let is_wrong = |result: Option<u32>| {
                result.is_some_and(|code| [INVALID_HANDLE, ILLEGAL_ADDRESS].contains(&code))
            };
            let wrong = (machine.sim.calls().into_iter()).find(|call| is_wrong(call.result));
            assert_eq!(wrong, None, "seed {seed}, step {step}");
            machine.sim.clear();
        }
        launched += hands.launched;
        // What a capture that was broken has left there.
        let _ = context.check_err();
        assert_eq!(context.synchronize(), Ok(()), "seed {seed}");
    }
    assert!(launched > 20, "{launched}");
    // A GPU's driver may follow a handle that is gone.
    if !machine.sim.has_log() {
        return;
    }
    // A number that nobody keeps: the simulator tells.
    let view = array(&context.new_stream().expect("a stream"));
    let gone = Stream::from_cudarc(&context.new_stream().expect("a stream")).expect("a number");
    // SAFETY: not so: the simulator follows no handle.
    assert!(view.on(unsafe { LiveStream::new(gone) }).is_err());
    let calls = machine.sim.calls();
    assert!(calls.iter().any(|call| call.result == Some(INVALID_HANDLE)));
}

/// Memory of a pool, which its end gives back on a stream.
struct Pooled {
    memory: sys::CUdeviceptr,
    context: Arc<CudaContext>,
    stream: Weak<CudaStream>,
    freed: Arc<Mutex<Vec<bool>>>,
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.context.bind_to_thread().expect("a context");
        let stream = self.stream.upgrade();
        let freed = stream.map(|stream| {
            // SAFETY: memory of the pool, freed once, on a live stream.
            unsafe { result::free_async(self.memory, stream.cu_stream()) }
        });
        let is_freed = matches!(freed, Some(Ok(())));
        self.freed.lock().expect("no panic").push(is_freed);
    }
}

/// Makes a tensor of memory that was allocated on a stream, which something else must keep.
fn pooled(stream: &Arc<CudaStream>, freed: &Arc<Mutex<Vec<bool>>>) -> DlpackTensor {
    // SAFETY: freed once, by the owner's end.
    let memory = unsafe { result::malloc_async(stream.cu_stream(), 64) }.expect("memory");
    let owner = Owner::new(Pooled {
        memory,
        context: Arc::clone(stream.context()),
        stream: Arc::downgrade(stream),
        freed: Arc::clone(freed),
    });
    let raw = RawTensor::new(memory, Device::cuda(0), DType::F32, &[16]);
    let descriptor = Descriptor::new(&raw).expect("a valid tensor");
    // SAFETY: 64 bytes of the owner, which nothing writes.
    let view = unsafe { CaiView::new(descriptor, Stream::None, owner) };
    view.to_dlpack(LiveStream::NONE)
        .expect("no order is needed")
}

/// Also below a chain that is too deep for its stack, where the end of the memory has to wait.
#[test]
fn what_keeps_a_stream_ends_after_the_memory() {
    let _machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    type Way = fn(DlpackTensor, &Arc<CudaStream>) -> CaiView;
    let ways: [(&str, Way); 3] = [
        ("imported", |tensor, stream| {
            CaiView::from_dlpack(tensor, stream).expect("a view")
        }),
        ("moved", |tensor, stream| {
            let other = stream.context().new_stream().expect("a stream");
            let view = CaiView::from_dlpack(tensor, &other).expect("a view");
            view.on(stream).expect("an order")
        }),
        ("named by a view", |tensor, stream| {
            let other = array(stream);
            CaiView::from_dlpack(tensor, other.ready()).expect("a view")
        }),
    ];
    for (way, made) in ways {
        for (depth, is_shared) in depths().flat_map(|depth| [(depth, false), (depth, true)]) {
            let freed = Arc::<Mutex<Vec<_>>>::default();
            let stream = context.new_stream().expect("a stream");
            let view = made(pooled(&stream, &freed), &stream);
            drop(stream);
            // Another view that shares what keeps the stream is let go of first.
            let other = array(&context.new_stream().expect("a stream"));
            let other = is_shared.then(|| other.on(view.ready()).expect("an order"));
            let owner = Owner::new((other.map(Owner::new), view));
            let owner = (0..depth).fold(owner, |owner, _| Owner::new(owner));
            let end = thread::Builder::new().stack_size(256 << 10);
            let thread = end.spawn(|| drop(owner)).expect("a thread");
            thread.join().expect("no panic");
            let freed = freed.lock().expect("no panic");
            assert_eq!(*freed, [true], "{way}, {depth}, {is_shared}");
        }
    }
}

fn depths() -> impl Iterator<Item = usize> {
    (0..=3)
        .chain(28..=34)
        .chain(59..=67)
        .chain([100, 126, 127, 128, 129, 300])
}
