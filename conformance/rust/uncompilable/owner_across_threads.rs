//! An owner is dropped on whatever thread is last.

use std::rc::Rc;

use cai_dlpack::view::Owner;

fn main() {
    let _owner = Owner::new(Rc::new(1));
}
