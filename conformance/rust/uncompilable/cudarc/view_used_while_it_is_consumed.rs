//! A view that a stream writes cannot be used until the guard ends.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn consume(view: &mut CaiView, stream: &Arc<CudaStream>) {
    let guard = view.typed_mut::<f32>().unwrap().on(stream).unwrap();
    let _other = view.typed::<f32>();
    drop(guard);
}

fn main() {
    let _ = consume;
}
