//! An argument that is written is borrowed by one at a time.

use cai_dlpack::python::InOut;

fn twice(mut a: InOut<f32, 2>) {
    let first = a.view_mut();
    let second = a.view_mut();
    drop((first, second));
}

fn main() {
    let _ = twice;
}
