//! Which stream a number means, on the scripted driver.

use super::*;
use crate::protocol::descriptor::{Descriptor, RawTensor};
use crate::protocol::device::Device;
use crate::protocol::dtype::DType;
use crate::view::Owner;

const ARRAY: u64 = 0x7000;

/// Four floats of this kind of memory, ready on `ready`.
fn view(device_type: i32, ready: Stream) -> CaiView {
    let descriptor = Descriptor::new(&RawTensor {
        data: ARRAY,
        byte_offset: 0,
        device_type,
        device_id: 0,
        code: DType::F32.code(),
        bits: DType::F32.bits(),
        lanes: DType::F32.lanes(),
        shape: &[4],
        strides: None,
        flags: 0,
    });
    let descriptor = descriptor.expect("a valid tensor");
    // SAFETY: nothing reads the memory; the scripted driver follows no stream.
    unsafe { CaiView::new(descriptor, ready, Owner::new(())) }
}

fn on_another_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(work).join()).expect("a thread that ends well")
}

#[test]
fn the_interface_names_no_stream_of_another_thread() {
    let view = view(Device::CUDA, Stream::PerThreadDefault);
    assert!(view.interface().is_ok());
    let refused = on_another_thread(|| view.interface().map(drop)).expect_err("a refusal");
    assert_eq!(refused.rule(), Rule::StreamThread);
    let moved = view.with_ready(Stream::LegacyDefault);
    assert!(on_another_thread(|| moved.interface().is_ok()));
}
