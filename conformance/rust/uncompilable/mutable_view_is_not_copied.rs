//! A mutable view is one: it moves.

use cai_dlpack::view::ViewMut;

fn twice(view: ViewMut<'_, f32>) -> (ViewMut<'_, f32>, ViewMut<'_, f32>) {
    (view, view)
}

fn main() {
    let _ = twice;
}
