//! cudarc writes to what was lent mutably, and to nothing else.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn zero(view: &CaiView, stream: &Arc<CudaStream>) {
    let mut on = view.typed::<f32>().unwrap().on(stream).unwrap();
    stream.memset_zeros(&mut on.as_slice().unwrap()).unwrap();
}

fn main() {
    let _ = zero;
}
