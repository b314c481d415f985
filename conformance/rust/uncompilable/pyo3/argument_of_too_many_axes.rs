//! The extents of an array are an array up to 16 axes.

use cai_dlpack::python::In;

fn extents(a: In<f32, 17>) {
    let _ = a.shape();
}

fn main() {
    let _ = extents;
}
