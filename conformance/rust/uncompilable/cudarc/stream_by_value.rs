//! A stream is passed by reference to its `Arc`: the message says so.

use std::sync::Arc;

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn wait(view: &CaiView, stream: Arc<CudaStream>) {
    let _ready = view.on(stream);
}

fn main() {
    let _ = wait;
}
