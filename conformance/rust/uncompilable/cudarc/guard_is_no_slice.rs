//! A copy of cudarc's takes the elements of a guard.

use std::sync::Arc;

use cai_dlpack::view::View;
use cudarc::driver::CudaStream;

fn download(a: View<'_, f32>, stream: &Arc<CudaStream>) -> Vec<f32> {
    let x = a.on(stream).unwrap();
    stream.clone_dtoh(&x).unwrap()
}

fn main() {
    let _ = download;
}
