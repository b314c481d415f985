//! So does the producer's.

use cai_dlpack::CaiView;

fn wait(view: CaiView, other: &CaiView) {
    let producer = view.producer().unwrap();
    drop(view);
    let _tensor = other.to_dlpack(producer);
}

fn main() {
    let _ = wait;
}
