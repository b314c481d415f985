//! Nor the number in a dict, whose view may be gone.

use cai_dlpack::CaiView;

fn wait(view: CaiView, other: &CaiView) {
    let interface = view.interface().unwrap();
    drop(view);
    let _ready = other.consume(interface.stream());
}

fn main() {
    let _ = wait;
}
