//! A guard that writes lends no view: on another stream that would be read beside its work.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn read_beside(view: &mut CaiView, writes: &Arc<CudaStream>, reads: &Arc<CudaStream>) {
    let guard = view.typed_mut::<f32>().unwrap().on(writes).unwrap();
    let beside = guard.view().as_view().on(reads).unwrap();
    drop((beside, guard));
}

fn main() {
    let _ = read_beside;
}
