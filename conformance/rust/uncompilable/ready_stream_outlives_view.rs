//! The stream of a view lives as long as the view.

use cai_dlpack::CaiView;

fn wait(view: CaiView, other: &CaiView) {
    let ready = view.ready();
    drop(view);
    let _ready = other.on(ready);
}

fn main() {
    let _ = wait;
}
