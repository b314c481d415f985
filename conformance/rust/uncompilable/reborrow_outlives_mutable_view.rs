//! A shorter borrow of a mutable view must not outlive it, nor be used beside it.

use cai_dlpack::CaiView;

fn both(view: &mut CaiView) {
    let mut typed = view.typed_mut::<f32>().unwrap();
    let shared = typed.as_view();
    let _pointer = typed.as_mut_ptr();
    let _ = shared.len();
}

fn main() {
    let _ = both;
}
