//! A guard must not outlive the stream that it is for.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn consume(view: &CaiView, stream: Arc<CudaStream>) {
    let guard = view.typed::<f32>().unwrap().on(&stream).unwrap();
    drop(stream);
    let _ = guard.device_ptr();
}

fn main() {
    let _ = consume;
}
