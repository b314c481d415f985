//! A loan must not outlive the stream that it is made to.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn lend(view: &CaiView, stream: Arc<CudaStream>) {
    let on = view.typed::<f32>().unwrap().on(&stream).unwrap();
    drop(stream);
    let _ = on.device_ptr();
}

fn main() {
    let _ = lend;
}
