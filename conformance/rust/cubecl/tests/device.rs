//! On the simulated driver by `make cubecl`; on a machine with a GPU by `cargo test`.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use cai_cubecl::{handle_of, view_of};
use cai_dlpack::CaiView;
use cai_dlpack::interop::cudarc::context;
use cai_dlpack::protocol::device::Device;
use cubecl_cuda::{CudaDevice, CudaRuntime};
use cubecl_runtime::client::ComputeClient;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::Handle;
use cudarc::driver::CudaStream;
use cudarc::driver::result::ctx;
use cusim_control::Sim;

const VALUES: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

/// One test at a time: a wait of another one for the whole device would stand in for one that is missing.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stream_of(device: usize) -> std::sync::Arc<CudaStream> {
    context(device)
        .and_then(|context| Ok(context.new_stream()?))
        .expect("a stream")
}

fn bytes() -> Vec<u8> {
    VALUES
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

fn address(client: &ComputeClient<CudaRuntime>, handle: &Handle) -> u64 {
    client
        .get_resource(handle.clone())
        .expect("memory")
        .resource()
        .ptr
}

#[test]
fn there_and_back() {
    let _turn = turn();
    let device = CudaDevice::new(0);
    let client = CudaRuntime::client(&device);
    let handle = client.create_from_slice(&bytes());

    // SAFETY: no kernel runs.
    let refused = unsafe { view_of::<f32>(handle.clone(), &device, &[2, 4]) };
    assert!(refused.is_err(), "it has 6 elements");
    // SAFETY: no kernel runs.
    let view = unsafe { view_of::<f32>(handle, &device, &[2, 3]) }.expect("a view");
    assert!(
        view.clone().typed_mut::<f32>().is_err(),
        "cubecl shares its memory"
    );
    let host = view.copy_to_host().expect("a copy");
    assert_eq!(
        host.typed::<f32>()
            .and_then(|host| host.copy_to_vec())
            .expect("floats"),
        VALUES
    );

    let back = handle_of(&view.typed::<f32>().expect("floats"), &device).expect("a handle");
    assert_eq!(client.read_one(back).expect("bytes")[..], bytes()[..]);
}

/// What has written the view, and the copy of it, are done in streams that cubecl does not wait for; and cubecl takes memory in
/// the order of its own stream: a copy that does not wait for that is an illegal address.
#[test]
fn a_copy_is_there_when_its_handle_is() {
    let _turn = turn();
    let device = CudaDevice::new(0);
    let stream = stream_of(0);
    let view =
        CaiView::from_cudarc(stream.clone_htod(&VALUES).expect("memory"), [6]).expect("a view");
    let handle = handle_of(&view.typed::<f32>().expect("floats"), &device).expect("a handle");
    assert_eq!(
        CudaRuntime::client(&device)
            .read_one(handle)
            .expect("bytes")[..],
        bytes()[..]
    );
}

/// cubecl waits with an event, which needs a context on the thread.
#[test]
fn a_thread_without_a_context_copies() {
    let _turn = turn();
    let stream = stream_of(0);
    let view =
        CaiView::from_cudarc(stream.clone_htod(&VALUES).expect("memory"), [6]).expect("a view");
    let copy = move || {
        let handle = handle_of(&view.typed::<f32>().expect("floats"), &CudaDevice::new(0));
        handle.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(thread::spawn(copy).join().expect("no panic"), Ok(()));
}

#[test]
fn a_view_that_ends_leaves_the_context_as_it_was() {
    let _turn = turn();
    let device = CudaDevice::new(1);
    let handle = CudaRuntime::client(&device).create_from_slice(&bytes());
    // SAFETY: no kernel runs.
    let view = unsafe { view_of::<f32>(handle, &device, &[6]) }.expect("a view");
    let other = context(0).expect("a context");
    other.bind_to_thread().expect("a context");
    let before = ctx::get_current().expect("a context");
    drop(view);
    assert_eq!(ctx::get_current().expect("a context"), before);
}

#[test]
fn a_view_without_elements_is_refused() {
    let _turn = turn();
    let empty = CaiView::empty::<f32>(Device::cuda(0), [0]).expect("a view");
    let refused = handle_of(&empty.typed::<f32>().expect("floats"), &CudaDevice::new(0));
    assert_eq!(
        refused.map(drop).map_err(|error| error.to_string()),
        Err("cubecl has no memory of 0 bytes".into())
    );
}

/// cubecl reuses the memory of a handle at once, on a stream that waits for nobody, and a consumer of DLPack may let go of a
/// tensor that its stream still reads.
#[test]
fn memory_goes_back_once_its_readers_are_done() {
    let _turn = turn();
    // Another device than that of the other test, so that no one else takes the memory.
    let device = CudaDevice::new(1);
    let client = CudaRuntime::client(&device);
    let handle = client.create_from_slice(&bytes());
    // SAFETY: no kernel runs.
    let view = unsafe { view_of::<f32>(handle, &device, &[6]) }.expect("a view");
    let at = view.descriptor().data();

    let stream = stream_of(1);
    let mut read = stream.alloc_zeros::<f32>(VALUES.len()).expect("memory");
    // SAFETY: the elements of the view, which nothing writes.
    let lent = ManuallyDrop::new(unsafe { stream.upgrade_device_ptr::<f32>(at, VALUES.len()) });
    stream.memcpy_dtod(&*lent, &mut read).expect("a copy");
    drop(view);

    // Handles that are kept, until one has the memory.
    let mut next = Vec::new();
    while next.iter().all(|handle| address(&client, handle) != at) {
        assert!(next.len() < 1000, "the memory stays away");
        next.push(client.create_from_slice(&[0xff; 24]));
    }
    client
        .read_one(next.pop().expect("a handle"))
        .expect("cubecl's work is done");
    assert_eq!(stream.clone_dtoh(&read).expect("floats"), VALUES);
}

#[test]
fn a_view_that_is_refused_takes_no_memory() {
    let _turn = turn();
    let (device, stream) = (CudaDevice::new(0), stream_of(0));
    let client = CudaRuntime::client(&device);
    let of_device = CaiView::from_cudarc(stream.clone_htod(&VALUES).expect("memory"), [2, 3]);
    let columns = of_device.expect("a view").transpose().expect("columns");
    let of_host = CaiView::from_vec(VALUES, [6]).expect("a view");
    let elsewhere = stream_of(1).clone_htod(&VALUES).expect("memory");
    let elsewhere = CaiView::from_cudarc(elsewhere, [6]).expect("a view");
    let used = || client.memory_usage().expect("a number").bytes_in_use;
    let before = used();
    for (view, rule) in [
        (&columns, "view-contiguous"),
        (&of_host, "view-device"),
        (&elsewhere, "stream-device"),
    ] {
        let refused = handle_of(&view.typed::<f32>().expect("floats"), &device);
        let refused = refused.map(drop).expect_err("a refusal").to_string();
        assert!(refused.contains(rule), "{refused}");
        assert_eq!(used(), before, "{rule}");
    }
}

/// What cudarc makes for a copy ends with it.
#[test]
fn copies_leave_no_streams_and_events() {
    let _turn = turn();
    let (device, stream) = (CudaDevice::new(0), stream_of(0));
    let view =
        CaiView::from_cudarc(stream.clone_htod(&VALUES).expect("memory"), [6]).expect("a view");
    let view = view.typed::<f32>().expect("floats");
    let copy = || drop(handle_of(&view, &device).expect("a handle"));
    // The first ones fill what cubecl and the library keep.
    (0..4).for_each(|_| copy());
    // A real driver does not tell how many there are.
    let Ok(sim) = Sim::attach() else { return };
    let before = sim.live();
    (0..50).for_each(|_| copy());
    let after = sim.live();
    assert_eq!(after.streams, before.streams);
    assert!(after.events <= before.events + 4, "{before:?}, {after:?}");
}

#[test]
fn the_context_of_the_caller_stays() {
    let _turn = turn();
    let device = CudaDevice::new(1);
    let stream = stream_of(1);
    let view =
        CaiView::from_cudarc(stream.clone_htod(&VALUES).expect("memory"), [6]).expect("a view");
    let other = context(0).expect("a context");
    other.bind_to_thread().expect("a context");
    let before = ctx::get_current().expect("a context");
    let now = || ctx::get_current().expect("a context");
    let handle = handle_of(&view.typed::<f32>().expect("floats"), &device).expect("a handle");
    assert_eq!(now(), before);
    // SAFETY: no kernel runs.
    let copy = unsafe { view_of::<f32>(handle.clone(), &device, &[6]) }.expect("a view");
    assert_eq!(now(), before);
    // SAFETY: no kernel runs.
    let refused = unsafe { view_of::<f32>(handle, &device, &[7]) };
    assert!(refused.is_err() && now() == before);
    drop(copy);
    assert_eq!(now(), before);
}

#[test]
fn a_part_of_a_handle_is_a_view_of_that_part() {
    let _turn = turn();
    let device = CudaDevice::new(0);
    let handle = CudaRuntime::client(&device).create_from_slice(&bytes());
    let part = handle.clone().offset_start(4).offset_end(8);
    // SAFETY: no kernel runs.
    let part = unsafe { view_of::<f32>(part, &device, &[3]) }.expect("a view");
    let host = part.copy_to_host().expect("a copy");
    let values = host.typed::<f32>().and_then(|host| host.copy_to_vec());
    assert_eq!(values.expect("floats"), VALUES[1..4]);
    // Two bytes further the elements are not where floats may be.
    let uneven = handle.clone().offset_start(2).offset_end(2);
    // SAFETY: no kernel runs.
    assert!(unsafe { view_of::<f32>(uneven, &device, &[5]) }.is_err());
    for shape in [&[-6][..], &[i64::MAX, 6], &[0], &[]] {
        // SAFETY: no kernel runs.
        assert!(
            unsafe { view_of::<f32>(handle.clone(), &device, shape) }.is_err(),
            "{shape:?}"
        );
    }
}
