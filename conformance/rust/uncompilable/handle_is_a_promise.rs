//! A stream of a number lives by a promise, and a promise is `unsafe`.

use cai_dlpack::CaiView;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::LiveStream;

fn wait(view: &CaiView) {
    let _ready = view.on(LiveStream::new(Stream::from_raw(0x5a30)));
}

fn main() {
    let _ = wait;
}
