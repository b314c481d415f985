//! A number is data: no safe function takes it for a stream.

use cai_dlpack::CaiView;
use cai_dlpack::protocol::stream::Stream;

fn wait(view: &CaiView) {
    let _ready = view.on(Stream::from_raw(0x5a30));
}

fn main() {
    let _ = wait;
}
