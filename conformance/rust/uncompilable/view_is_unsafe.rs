//! Nobody makes a view of an address without a promise.

use cai_dlpack::CaiView;
use cai_dlpack::protocol::descriptor::Descriptor;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::Owner;

fn view(descriptor: Descriptor) -> CaiView {
    CaiView::new(descriptor, Stream::None, Owner::new(()))
}

fn main() {
    let _ = view;
}
