//! The parts of a mutable view borrow the array as long as one of them lives.

use cai_dlpack::CaiView;

fn both(view: &mut CaiView) {
    let (first, second) = view.typed_mut::<f32>().unwrap().split(0, 1).unwrap();
    drop(first);
    let whole = view.typed::<f32>().unwrap();
    drop((second, whole));
}

fn main() {
    let _ = both;
}
