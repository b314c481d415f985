//! A tensor that keeps its promises is not changed.

use cai_dlpack::view::DlpackTensor;

fn change(mut tensor: DlpackTensor) {
    let _ = tensor.validate_mut();
}

fn main() {
    let _ = change;
}
