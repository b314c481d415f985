//! `In` is read.

use cai_dlpack::python::In;

fn write(mut a: In<f32, 2>) {
    let _ = a.view_mut();
}

fn main() {
    let _ = write;
}
