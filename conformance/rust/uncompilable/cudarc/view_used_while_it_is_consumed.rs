//! A view that is lent to be written is nobody else's until the loan ends.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn lend(view: &mut CaiView, stream: &Arc<CudaStream>) {
    let on = view.typed_mut::<f32>().unwrap().on(stream).unwrap();
    let _other = view.typed::<f32>();
    drop(on);
}

fn main() {
    let _ = lend;
}
