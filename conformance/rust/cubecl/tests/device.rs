//! On the simulated driver by `make cubecl`; on a machine with a GPU by `cargo test`.

use std::mem::ManuallyDrop;
use std::thread;

use cai_cubecl::{handle_of, view_of};
use cai_dlpack::CaiView;
use cai_dlpack::interop::cudarc::context;
use cai_dlpack::protocol::device::Device;
use cubecl_cuda::{CudaDevice, CudaRuntime};
use cubecl_runtime::client::ComputeClient;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::Handle;
use cudarc::driver::result::ctx;

const VALUES: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

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

/// What has written the view, and the copy of it, are done in streams that cubecl does not wait for.
#[test]
fn a_copy_is_there_when_its_handle_is() {
    let device = CudaDevice::new(0);
    let stream = context(0)
        .and_then(|context| Ok(context.new_stream()?))
        .expect("a stream");
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
    let stream = context(0)
        .and_then(|context| Ok(context.new_stream()?))
        .expect("a stream");
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
    // Another device than that of the other test, so that no one else takes the memory.
    let device = CudaDevice::new(1);
    let client = CudaRuntime::client(&device);
    let handle = client.create_from_slice(&bytes());
    // SAFETY: no kernel runs.
    let view = unsafe { view_of::<f32>(handle, &device, &[6]) }.expect("a view");
    let at = view.descriptor().data();

    let stream = context(1)
        .and_then(|context| Ok(context.new_stream()?))
        .expect("a stream");
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
