//! cudarc's contexts, streams, fork and join, and async copies run on the simulator unmodified.

#![cfg(target_os = "linux")]

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaStream, DevicePtr};
use cusim_control::{Schedule, Sim};

static SIM: LazyLock<Sim> =
    LazyLock::new(|| Sim::load_built().unwrap_or_else(|why| panic!("{why}")));
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Locks the simulator for one test at a time: the call log and the schedule are the process's.
fn simulator() -> (Sim, MutexGuard<'static, ()>) {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    SIM.clear();
    (*SIM, turn)
}

fn handle(stream: &CudaStream) -> u64 {
    stream.cu_stream() as usize as u64
}

fn under_both_schedules(test: impl Fn(Sim)) {
    let (sim, _turn) = simulator();
    for schedule in [Schedule::Threaded, Schedule::Lazy] {
        sim.set_schedule(schedule);
        test(sim);
    }
    sim.set_schedule(Schedule::Threaded);
}

#[test]
fn a_copy_goes_there_and_back() {
    under_both_schedules(|_| {
        let stream = CudaContext::new(0)
            .expect("device 0")
            .new_stream()
            .expect("a stream");
        let there = stream
            .clone_htod(&[1.0f32, 2.0, 3.0])
            .expect("to the device");
        let mut twin = stream.alloc_zeros::<f32>(3).expect("memory");
        stream
            .memcpy_dtod(&there, &mut twin)
            .expect("on the device");
        assert_eq!(
            stream.clone_dtoh(&twin).expect("to the host"),
            [1.0, 2.0, 3.0]
        );
    });
}

#[test]
fn both_devices_have_their_own_memory() {
    under_both_schedules(|_| {
        for ordinal in [0, 1] {
            let context = CudaContext::new(ordinal).expect("a device");
            assert!(context.name().expect("a name").contains("simulated"));
            let stream = context.default_stream();
            let memory = stream
                .clone_htod(&[ordinal as u8; 8])
                .expect("to the device");
            assert_eq!(
                stream.clone_dtoh(&memory).expect("to the host"),
                [ordinal as u8; 8]
            );
        }
    });
}

#[test]
fn fork_and_join_order_the_streams() {
    under_both_schedules(|sim| {
        let context = CudaContext::new(0).expect("device 0");
        let stream = context.new_stream().expect("a stream");
        let memory = stream.clone_htod(&[0u8; 4]).expect("memory");
        stream.synchronize().expect("done");
        let address = memory.device_ptr(&stream).0;
        let gate = sim.gate(handle(&stream)).expect("a gate");
        sim.store(handle(&stream), address, b"late")
            .expect("a kernel");
        let fork = stream.fork().expect("a fork");
        let other = context.new_stream().expect("another stream");
        other.synchronize().expect("nothing to wait for");
        assert_eq!(
            sim.peek(address, 4).expect("memory"),
            [0; 4],
            "the gate is closed"
        );
        gate.open();
        fork.synchronize()
            .expect("waits for what came before the fork");
        assert_eq!(sim.peek(address, 4).expect("memory"), *b"late");
        stream.join(&fork).expect("a join");
        stream.synchronize().expect("done");
    });
}

#[test]
fn a_missing_wait_reads_what_was_there_before() {
    let (sim, _turn) = simulator();
    sim.set_schedule(Schedule::Lazy);
    let context = CudaContext::new(0).expect("device 0");
    let (producer, consumer) = (
        context.new_stream().expect("one"),
        context.new_stream().expect("two"),
    );
    let memory = producer.clone_htod(b"old!").expect("memory");
    context.synchronize().expect("done");
    let address = memory.device_ptr(&producer).0;
    for (waits, expected) in [(false, b"old!"), (true, b"new!")] {
        sim.poke(address, b"old!").expect("memory");
        sim.store(handle(&producer), address, b"new!")
            .expect("a kernel");
        if waits {
            consumer.join(&producer).expect("a wait");
        }
        // A view that is not in cudarc's own bookkeeping, as an imported pointer is.
        let view = consumer.upgrade(address);
        assert_eq!(consumer.clone_dtoh(&view).expect("to the host"), *expected);
        view.leak();
        context.synchronize().expect("done");
    }
    sim.set_schedule(Schedule::Threaded);
}

/// Wraps a raw pointer as cudarc's slice, which frees it when dropped: callers leak the slice.
trait Upgrade {
    fn upgrade(&self, address: u64) -> cudarc::driver::CudaSlice<u8>;
}

impl Upgrade for std::sync::Arc<CudaStream> {
    fn upgrade(&self, address: u64) -> cudarc::driver::CudaSlice<u8> {
        // SAFETY: the caller's memory is 4 bytes long and outlives the slice, which is leaked.
        unsafe { self.upgrade_device_ptr(address, 4) }
    }
}

#[test]
fn events_tell_time_and_completion() {
    under_both_schedules(|sim| {
        use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
        let context = CudaContext::new(0).expect("device 0");
        let stream = context.new_stream().expect("a stream");
        let start = stream
            .record_event(Some(CU_EVENT_DEFAULT))
            .expect("an event");
        let gate = sim.gate(handle(&stream)).expect("a gate");
        let end = stream
            .record_event(Some(CU_EVENT_DEFAULT))
            .expect("an event");
        assert!(!end.is_complete());
        gate.open();
        end.synchronize().expect("reached");
        assert!(end.is_complete() && start.elapsed_ms(&end).expect("a time") >= 0.0);
    });
}

#[test]
fn an_injected_fault_is_an_error_and_not_a_panic() {
    let (sim, _turn) = simulator();
    let context = CudaContext::new(0).expect("device 0");
    sim.fault("cuStreamCreate", 1, 2);
    assert!(context.new_stream().is_err());
    assert_eq!(sim.pending_faults(), 0);
    assert!(context.new_stream().is_ok());
}

#[test]
fn nothing_is_left_behind() {
    let (sim, _turn) = simulator();
    let context = CudaContext::new(0).expect("device 0");
    context.synchronize().expect("done");
    let before = sim.live();
    let stream = context.new_stream().expect("a stream");
    let memory = stream.clone_htod(&[7u32; 100]).expect("memory");
    assert!(sim.live().allocations > before.allocations);
    drop((memory, stream));
    context.synchronize().expect("done");
    assert_eq!(sim.live(), before);
}

#[test]
fn the_orders_of_a_program_are_counted() {
    let (sim, _turn) = simulator();
    let context = CudaContext::new(0).expect("device 0");
    let memory = context.default_stream().clone_htod(&[0u8]).expect("memory");
    context.synchronize().expect("done");
    let address = memory.device_ptr(&context.default_stream()).0;
    let mut seen = Vec::new();
    let runs = sim.for_every_order(false, || {
        let streams = [
            context.new_stream().expect("one"),
            context.new_stream().expect("two"),
        ];
        for (value, stream) in streams.iter().enumerate() {
            sim.store(handle(stream), address, &[value as u8])
                .expect("a kernel");
        }
        context.synchronize().expect("done");
        seen.extend(sim.peek(address, 1).expect("memory"));
    });
    seen.sort_unstable();
    assert_eq!((runs, seen), (2, vec![0, 1]));
}
