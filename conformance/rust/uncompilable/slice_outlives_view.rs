//! So does a slice of host memory.

use cai_dlpack::CaiView;

fn keep(view: CaiView) -> &'static [f32] {
    let typed = view.typed::<f32>().unwrap();
    // SAFETY: a test.
    unsafe { typed.host_slice() }.unwrap()
}

fn main() {
    let _ = keep;
}
