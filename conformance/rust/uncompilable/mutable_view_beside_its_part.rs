//! A part of a mutable view takes its place.

use cai_dlpack::view::ViewMut;

fn both(mut whole: ViewMut<'_, f32>) {
    let mut row = whole.index(0, 0).unwrap();
    let _both = (row.as_mut_ptr(), whole.as_mut_ptr());
}

fn main() {
    let _ = both;
}
