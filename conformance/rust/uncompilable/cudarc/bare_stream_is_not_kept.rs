//! A stream is kept by its `Arc`, which what is made with it shares.

use cai_dlpack::CaiView;
use cudarc::driver::CudaStream;

fn wait(view: &CaiView, stream: &CudaStream) {
    let _ready = view.on(stream);
}

fn main() {
    let _ = wait;
}
