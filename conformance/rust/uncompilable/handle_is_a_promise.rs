//! A stream of a number is a promise that the stream lives, and a promise is `unsafe`.

use cai_dlpack::CaiView;
use cai_dlpack::protocol::stream::Stream;

fn wait(view: &CaiView) {
    let _ready = view.on(Stream::from_handle(0x5a30));
}

fn main() {
    let _ = wait;
}
