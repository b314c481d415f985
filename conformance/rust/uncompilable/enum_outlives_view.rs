//! The enum of a view borrows it, whichever type it is of.

use cai_dlpack::CaiView;

cai_dlpack::elements! {
    enum Float {
        F32(f32),
        F64(f64),
    }
}

fn main() {
    let view = CaiView::from_vec(vec![1.0_f32], [1]).unwrap();
    let typed = view.typed_as::<Float>().unwrap();
    drop(view);
    match typed {
        Float::F32(a) => drop(a.len()),
        Float::F64(a) => drop(a.len()),
    }
}
