//! What cudarc's functions take is borrowed from the guard.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::{CudaStream, DeviceSlice};

fn slice(view: &CaiView, stream: &Arc<CudaStream>) {
    let mut guard = view.typed::<f32>().unwrap().on(stream).unwrap();
    let slice = guard.as_slice().unwrap();
    drop(guard);
    let _ = slice.len();
}

fn main() {
    let _ = slice;
}
