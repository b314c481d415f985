//! An owner may outlive every borrow, so it cannot hold one.

use cai_dlpack::view::Owner;

fn main() {
    let values = vec![1.0_f32];
    let owner = Owner::new(&values);
    drop(values);
    drop(owner);
}
