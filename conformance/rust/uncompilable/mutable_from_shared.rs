//! A mutable view needs a mutable borrow.

use cai_dlpack::CaiView;

fn write(view: &CaiView) {
    let _typed = view.typed_mut::<f32>().unwrap();
}

fn main() {
    let _ = write;
}
