//! The guard makes the way back when it ends: the pointer is for work that comes before.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn launch(view: &CaiView, stream: &Arc<CudaStream>) {
    let pointer = view.typed::<f32>().unwrap().on(stream).unwrap().device_ptr();
    println!("a kernel that reads {pointer}");
}

fn main() {
    let _ = launch;
}
