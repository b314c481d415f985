//! A typed view borrows: the memory must outlive it.

use cai_dlpack::CaiView;

fn longest(view: CaiView) -> usize {
    let typed = view.typed::<f32>().unwrap();
    drop(view);
    typed.len()
}

fn main() {
    let _ = longest;
}
