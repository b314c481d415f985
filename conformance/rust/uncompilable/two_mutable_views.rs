//! One mutable view excludes every other view of the same value.

use cai_dlpack::CaiView;

fn write(mut view: CaiView) {
    let first = view.typed_mut::<f32>().unwrap();
    let second = view.typed::<f32>().unwrap();
    drop((first, second));
}

fn main() {
    let _ = write;
}
