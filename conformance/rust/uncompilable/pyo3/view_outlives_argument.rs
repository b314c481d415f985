//! A view of an argument must not outlive it.

use cai_dlpack::python::In;

fn keep(a: In<f32, 2>) -> usize {
    let view = a.view();
    let cai = a.into_cai();
    drop(cai);
    view.len()
}

fn main() {
    let _ = keep;
}
