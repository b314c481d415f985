//! cudarc writes to views that may be written, and to nothing else.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn zero(view: &CaiView, stream: &Arc<CudaStream>) {
    let mut guard = view.typed::<f32>().unwrap().on(stream).unwrap();
    stream.memset_zeros(&mut guard.as_slice().unwrap()).unwrap();
}

fn main() {
    let _ = zero;
}
