//! The guard makes the way back when it ends: the pointer is for work that comes before.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};

fn launch(view: &CaiView, stream: &Arc<CudaStream>, kernel: &CudaFunction) {
    let pointer = view.typed::<f32>().unwrap().on(stream).unwrap().device_ptr();
    let mut launch = stream.launch_builder(kernel);
    launch.arg(pointer);
    // SAFETY: not so.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }.unwrap();
}

fn main() {
    let _ = launch;
}
