//! A launch keeps its arguments borrowed: the guard must be there when the kernel is enqueued.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};

fn launch(view: &CaiView, stream: &Arc<CudaStream>, kernel: &CudaFunction) {
    let guard = view.typed::<f32>().unwrap().on(stream).unwrap();
    let mut launch = stream.launch_builder(kernel);
    launch.arg(&guard);
    drop(guard);
    // SAFETY: not so.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }.unwrap();
}

fn main() {
    let _ = launch;
}
