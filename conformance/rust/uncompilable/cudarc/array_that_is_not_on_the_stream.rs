//! A kernel takes a guard, which its stream has waited for.

use std::sync::Arc;

use cai_dlpack::view::View;
use cudarc::driver::{CudaFunction, CudaStream, PushKernelArg};

fn launch(a: View<'_, f32>, stream: &Arc<CudaStream>, kernel: &CudaFunction) {
    stream.launch_builder(kernel).arg(&a);
}

fn main() {
    let _ = launch;
}
