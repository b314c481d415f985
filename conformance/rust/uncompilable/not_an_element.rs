//! Rust's `bool` is no element: a byte of 2 would be undefined behaviour.

use cai_dlpack::CaiView;

fn read(view: CaiView) {
    let _typed = view.typed::<bool>().unwrap();
}

fn main() {
    let _ = read;
}
