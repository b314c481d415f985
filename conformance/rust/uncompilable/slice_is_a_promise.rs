//! Nobody can prove that host memory holds still: a slice of it is a promise.

use cai_dlpack::view::View;

fn first(view: View<'_, f32>) -> f32 {
    view.host_slice().unwrap()[0]
}

fn main() {
    let _ = first;
}
